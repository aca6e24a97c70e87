/* Owns what is derived from recorded times after a trace is read: delays, ends, spawns and joins. */
#include <stdio.h>

#include "traces/traces_int.h"

/* A subagent ends before a root turn when the turn starts at most this much earlier: recorded times are rounded. */
#define JOIN_SLACK_NS 1000

void traces_stream_times(cedar_stream *s) {
    s->start_ns = s->turns[0].t_ns;
    s->end_ns = 0;
    s->turns[0].delay_ns = 0;
    for (uint32_t k = 0; k < s->turn_count; k++) {
        cedar_turn *turn = &s->turns[k];
        if (k) {
            int64_t gap = turn->t_ns - (turn[-1].t_ns + turn[-1].api_ns);
            turn->delay_ns = gap > 0 ? gap : 0;
        }
        int64_t end = turn->t_ns + turn->api_ns;
        if (end > s->end_ns) s->end_ns = end;
    }
}

/* First root turn behind the spawn turn that starts once the subagent is done; -1: none. Root turns are in time
 * order, so bisection finds it. */
static int32_t find_join(const cedar_stream *root, const cedar_stream *s) {
    uint32_t lo = s->spawn_turn < 0 ? 1 : (uint32_t)s->spawn_turn + 1, hi = root->turn_count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (root->turns[mid].t_ns >= s->end_ns - JOIN_SLACK_NS) hi = mid;
        else lo = mid + 1;
    }
    return lo < root->turn_count ? (int32_t)lo : -1;
}

void traces_streams_link(cedar_trace *t) {
    const cedar_stream *root = &t->streams[0];
    for (uint32_t i = 1; i < t->stream_count; i++) {
        cedar_stream *s = &t->streams[i];
        const cedar_turn *spawn = s->spawn_turn < 0 ? NULL : &root->turns[s->spawn_turn];
        int64_t offset = s->start_ns - (spawn ? spawn->t_ns + spawn->api_ns : root->start_ns);
        s->spawn_offset_ns = offset > 0 ? offset : 0;
        s->join_turn = find_join(root, s);
    }
}

size_t cedar_stream_name(const cedar_trace *t, uint32_t stream, char *buf, size_t size) {
    const char *id = t->streams[stream].id;
    const char *mark = stream == 0 || (id[0] == ':' && id[1] == ':') ? "" : "::sa:";
    int n = snprintf(buf, size, "%s%s%s", t->id, mark, id);
    return n > 0 ? (size_t)n : 0;
}

uint32_t cedar_turn_common_blocks(const cedar_turn *a, const cedar_turn *b) {
    uint32_t n = a->block_count < b->block_count ? a->block_count : b->block_count, k = 0;
    while (k < n && a->block_ids[k] == b->block_ids[k]) k++;
    return k;
}
