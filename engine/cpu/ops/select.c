/* Selection: top-k and the candidate pool, with one tie rule (spec/model.md 2.7). */
#include <string.h>

#include "engine/cpu/ops/ops.h"

/* True if (score a, id a) is picked before (b): higher score, then lower id. -0 equals +0. */
static bool before(real a, int32_t ia, real b, int32_t ib) { return a > b || (a == b && ia < ib); }

/* Heap with the worst pick on top. */
static void sift_down(real *score, int32_t *ids, int n, int i) {
    for (;;) {
        int worst = i;
        for (int c = 2 * i + 1; c <= 2 * i + 2 && c < n; c++)
            if (before(score[worst], ids[worst], score[c], ids[c])) worst = c;
        if (worst == i) return;
        real s = score[i];
        int32_t id = ids[i];
        score[i] = score[worst];
        ids[i] = ids[worst];
        score[worst] = s;
        ids[worst] = id;
        i = worst;
    }
}

/* Ascending by id: heap sort, so that long lists with any order cost n log n. */
static void sort_ids(int32_t *ids, int n) {
    for (int start = n / 2 - 1, end = n; end > 1;) {
        if (start >= 0) {
            start--;
        } else {
            end--;
            int32_t t = ids[0];
            ids[0] = ids[end];
            ids[end] = t;
        }
        for (int i = start + 1;;) {
            int big = i;
            for (int c = 2 * i + 1; c <= 2 * i + 2 && c < end; c++)
                if (ids[c] > ids[big]) big = c;
            if (big == i) break;
            int32_t t = ids[i];
            ids[i] = ids[big];
            ids[big] = t;
            i = big;
        }
    }
}

int OP(top_k)(const real *score, const int32_t *names, int count, int k, int32_t *ids, real *heap_score) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        real s = score[i];
        if (!(s > -INFINITY)) continue;
        int32_t id = names ? names[i] : i;
        if (n < k) {
            heap_score[n] = s;
            ids[n++] = id;
            if (n == k)
                for (int j = n / 2 - 1; j >= 0; j--) sift_down(heap_score, ids, n, j);
        } else if (before(s, id, heap_score[0], ids[0])) {
            heap_score[0] = s;
            ids[0] = id;
            sift_down(heap_score, ids, n, 0);
        }
    }
    sort_ids(ids, n);
    for (int i = n; i < k; i++) ids[i] = -1;
    return n;
}

int OP(candidate_blocks)(const real *score, int visible, int block, int blocks_max, int32_t *ids, real *block_score,
                         real *heap_score) {
    int blocks = (visible + block - 1) / block;
    for (int b = 0; b < blocks; b++) {
        real top = -INFINITY;
        for (int j = b * block; j < (b + 1) * block && j < visible; j++)
            if (score[j] > top) top = score[j];
        block_score[b] = top;
    }
    if (blocks) block_score[blocks - 1] = INFINITY;     /* the newest visible entry's block is always kept */
    return OP(top_k)(block_score, NULL, blocks, blocks_max, ids, heap_score);
}

static bool is_in(const int32_t *ids, int k, int32_t id) {
    for (int i = 0; i < k; i++)
        if (ids[i] == id) return true;
    return false;
}

/* How far the best own pick that the other list lacks lies above the worst pick that only the other list has, relative
 * to the largest score. Infinite when those cannot be compared. */
static double picks_distance(const real *score, const int32_t *names, int count, int k, const int32_t *mine,
                             const int32_t *theirs) {
    double lost = -INFINITY, taken = INFINITY, top = 0;
    int only_mine = 0, only_theirs = 0, valid = 0;
    for (int i = 0; i < k; i++) valid += theirs[i] >= 0 && !is_in(mine, k, theirs[i]);
    for (int i = 0; i < count; i++) {
        double s = (double)score[i];
        int32_t id = names ? names[i] : i;
        bool m = is_in(mine, k, id), t = is_in(theirs, k, id);
        if (isfinite(s)) top = fmax(top, fabs(s));
        if (m && !t) {
            lost = fmax(lost, s);
            only_mine++;
        } else if (t && !m && s > -INFINITY) {
            taken = fmin(taken, s);
            only_theirs++;
        }
    }
    if (only_mine != only_theirs || only_theirs != valid) return INFINITY;
    return lost == taken ? 0 : (lost - taken) / top;
}

void OP(tape_picks)(cedar_tape *tape, cedar_tape_kind kind, const real *score, const int32_t *names, int count, int k,
                    int32_t *ids) {
    size_t bytes = (size_t)k * sizeof *ids;
    const int32_t *theirs = tape ? cedar_tape_next(tape, kind, ids, (uint32_t)bytes, 1) : NULL;
    if (!theirs || memcmp(ids, theirs, bytes) == 0) return;
    double distance = picks_distance(score, names, count, k, ids, theirs);
    cedar_tape_judge(tape, kind, distance);
    if (distance < INFINITY) memcpy(ids, theirs, bytes);    /* a list of something else is not followed */
}
