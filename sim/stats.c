/* Samples of a run and their percentiles, for the summary. The database computes its own from the rows.
 *
 * A list that outgrows its buffer is never sorted: a percentile's two neighbours are found by counting, 16 bits of the
 * value at a time, from the highest. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "sim/percentile.h"
#include "sim/sim_int.h"

enum { SAMPLES_KEPT = 32768, DIGIT_BITS = 16, DIGITS = 1 << DIGIT_BITS, READ_AT_ONCE = 4096 };

static cedar_status file_fail(const char *doing, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_IO, "the temporary file of a run's latencies cannot be %s: %s", doing,
                      strerror(errno));
}

static cedar_status make_room(cedar_samples *s, cedar_err *err) {
    if (s->capacity < SAMPLES_KEPT) {
        size_t capacity = s->capacity ? 2 * s->capacity : 256;
        double *grown = cedar_realloc(s->v, capacity, sizeof *grown);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu samples", capacity);
        s->v = grown;
        s->capacity = capacity;
        return CEDAR_OK;
    }
    if (!s->file && !(s->file = tmpfile())) return file_fail("made", err);
    if (fwrite(s->v, sizeof *s->v, s->count, s->file) != s->count) return file_fail("written", err);
    s->filed += s->count;
    s->count = 0;
    return CEDAR_OK;
}

cedar_status cedar_samples_add(cedar_samples *s, double v, cedar_err *err) {
    cedar_status st = s->count < s->capacity ? CEDAR_OK : make_room(s, err);
    if (st) return st;
    s->v[s->count++] = v;
    s->sum += v;
    return CEDAR_OK;
}

void cedar_samples_free(cedar_samples *s) {
    if (s->file) fclose(s->file);
    cedar_free(s->v);
    *s = (cedar_samples){ 0 };
}

double cedar_samples_mean(const cedar_samples *s) {
    uint64_t n = s->filed + s->count;
    return n ? s->sum / (double)n : NAN;
}

/* --- percentiles of lists in a file ------------------------------------------------------------------------------- */

/* Bits in the order of values, negative ones too. */
static uint64_t key_of(double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

static double value_of(uint64_t key) {
    uint64_t bits = key >> 63 ? key & ~(1ull << 63) : ~key;
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Counts the values whose bits above `shift` + DIGIT_BITS are those of `prefix` by the DIGIT_BITS bits at `shift`. */
static void count_digits(const double *v, size_t n, uint64_t prefix, int shift, uint64_t *counts) {
    for (size_t i = 0; i < n; i++) {
        uint64_t key = key_of(v[i]), above = shift + DIGIT_BITS < 64 ? key >> (shift + DIGIT_BITS) : 0;
        if (above == prefix) counts[key >> shift & (DIGITS - 1)]++;
    }
}

static cedar_status count_all(cedar_samples *s, uint64_t prefix, int shift, uint64_t *counts, cedar_err *err) {
    double part[READ_AT_ONCE];
    memset(counts, 0, DIGITS * sizeof *counts);
    count_digits(s->v, s->count, prefix, shift, counts);
    if (fseek(s->file, 0, SEEK_SET)) return file_fail("read", err);
    for (uint64_t left = s->filed; left;) {
        size_t n = left < READ_AT_ONCE ? (size_t)left : READ_AT_ONCE;
        if (fread(part, sizeof *part, n, s->file) != n) return file_fail("read", err);
        count_digits(part, n, prefix, shift, counts);
        left -= n;
    }
    return fseek(s->file, 0, SEEK_END) ? file_fail("read", err) : CEDAR_OK;
}

/* The value of a rank, 0 = the least. counts [DIGITS] is scratch. */
static cedar_status find_rank(cedar_samples *s, uint64_t rank, uint64_t *counts, double *out, cedar_err *err) {
    uint64_t prefix = 0;
    for (int shift = 64 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        cedar_status st = count_all(s, prefix, shift, counts, err);
        if (st) return st;
        uint64_t digit = 0;
        for (; rank >= counts[digit]; digit++) rank -= counts[digit];
        prefix = prefix << DIGIT_BITS | digit;
    }
    *out = value_of(prefix);
    return CEDAR_OK;
}

cedar_status cedar_samples_percentile(cedar_samples *s, double p, double *out, cedar_err *err) {
    if (!s->file) {
        cedar_sort_real(s->v, s->count);
        *out = cedar_percentile(s->v, s->count, p);
        return CEDAR_OK;
    }
    uint64_t *counts = cedar_calloc(DIGITS, sizeof *counts), n = s->filed + s->count;
    if (!counts) return cedar_fail(err, CEDAR_E_OOM, "no memory for a percentile");
    double rank = (double)(n - 1) * p / 100, low = 0, high = 0;
    uint64_t first = (uint64_t)rank;
    cedar_status st = find_rank(s, first < n ? first : n - 1, counts, &low, err);
    high = low;
    if (!st && first + 1 < n) st = find_rank(s, first + 1, counts, &high, err);
    cedar_free(counts);
    *out = low + (rank - (double)first) * (high - low);
    return st;
}
