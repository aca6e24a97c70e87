/* Owns the statistics of traces: the columns of STATS_weka.csv (docs/TRACES.md has the definitions) and the sums of a
 * corpus.
 *
 * The table was made with double arithmetic on seconds, so that percentiles of waits are computed here in the same
 * way: seconds = ns / 1e9 is the double nearest to the recorded decimal, and every sum and product below is one IEEE
 * operation. Sums and counts are integers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "traces/traces_int.h"

#define LONG_WAIT_NS (300 * NS_PER_S)

static double seconds(int64_t ns) {
    return (double)ns / 1e9;
}

/* Start of a turn in seconds; relative times are added up as the table's script does, rounding and all. */
static double start_s(const cedar_stream *s, const cedar_turn *t) {
    return s->t_relative ? seconds(s->marker_ns) + seconds(t->t_ns - s->marker_ns) : seconds(t->t_ns);
}

static uint64_t turn_count(const cedar_trace *t) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < t->stream_count; i++) n += t->streams[i].turn_count;
    return n;
}

/* --- hits -------------------------------------------------------------------------------------------------------- */

static int walk_order(const void *a, const void *b) {
    const traces_walk *x = a, *y = b;
    if (x->t_ns != y->t_ns) return x->t_ns < y->t_ns ? -1 : 1;
    if (x->trace != y->trace) return x->trace < y->trace ? -1 : 1;
    if (x->anchor != y->anchor) return x->anchor < y->anchor ? -1 : 1;
    if (x->stream != y->stream) return x->stream < y->stream ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Appends the turns of a trace to walk. A subagent lies behind the root turn it is listed behind. */
static size_t walk_add(const cedar_trace *t, uint32_t trace, traces_walk *walk) {
    size_t n = 0;
    for (uint32_t i = 0; i < t->stream_count; i++) {
        const cedar_stream *s = &t->streams[i];
        for (uint32_t k = 0; k < s->turn_count; k++) {
            int32_t anchor = i ? s->spawn_turn : (int32_t)k;
            walk[n++] = (traces_walk){ s->turns[k].t_ns, trace, anchor, i, k, &s->turns[k] };
        }
    }
    return n;
}

/* Blocks of a turn that were seen before, and how many of them stand at its front; then the turn's blocks count as
 * seen. Hits are counted before the turn's own ids go in. */
static bool count_hits(traces_seen *seen, uint32_t space, const cedar_turn *t, uint64_t *hits, uint64_t *prefix) {
    uint32_t front = 0;
    for (uint32_t b = 0; b < t->block_count; b++) {
        if (!traces_seen_has(seen, space, t->block_ids[b])) continue;
        ++*hits;
        if (front == b) front++;
    }
    *prefix += front;
    for (uint32_t b = front; b < t->block_count; b++)
        if (!traces_seen_add(seen, space, t->block_ids[b])) return false;
    return true;
}

/* Walks the turns of `count` traces in order of time. */
static cedar_status walk_traces(const cedar_trace *traces, uint32_t count, uint64_t *total, uint64_t *hits,
                                uint64_t *prefix, cedar_err *err) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < count; i++) n += turn_count(&traces[i]);
    traces_walk *walk = cedar_calloc(n, sizeof *walk);
    traces_seen *seen = traces_seen_new();
    bool done = walk && seen;
    size_t filled = 0;
    for (uint32_t i = 0; done && i < count; i++) filled += walk_add(&traces[i], i, walk + filled);
    if (done) qsort(walk, filled, sizeof *walk, walk_order);
    *total = *hits = *prefix = 0;
    for (size_t i = 0; done && i < filled; i++) {
        *total += walk[i].turn->block_count;
        done = count_hits(seen, traces[walk[i].trace].id_space, walk[i].turn, hits, prefix);
    }
    traces_seen_free(seen);
    cedar_free(walk);
    return done ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "no memory to count the hits of %llu requests",
                                        (unsigned long long)n);
}

/* --- percentiles ------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Linear between the two nearest ranks; 0 without values. The values are sorted. */
static double percentile(const double *sorted, size_t n, unsigned percent) {
    if (!n) return 0;
    double rank = (double)(n - 1) * percent / 100;
    size_t lo = (size_t)rank, hi = lo + 1 < n ? lo + 1 : lo;
    return sorted[lo] + (sorted[hi] - sorted[lo]) * (rank - (double)lo);
}

/* Median of a token count over all turns. */
static double median_tokens(const cedar_trace *t, double *scratch, bool output) {
    size_t n = 0;
    for (uint32_t i = 0; i < t->stream_count; i++)
        for (uint32_t k = 0; k < t->streams[i].turn_count; k++) {
            const cedar_turn *turn = &t->streams[i].turns[k];
            scratch[n++] = output ? turn->out_tokens : turn->in_recorded;
        }
    qsort(scratch, n, sizeof *scratch, by_value);
    return percentile(scratch, n, 50);
}

/* --- one trace --------------------------------------------------------------------------------------------------- */

static void add_turn(const cedar_trace *t, const cedar_turn *turn, cedar_trace_stats *s) {
    s->requests++;
    s->isl_sum += turn->in_recorded;
    s->osl_sum += turn->out_tokens;
    if (turn->in_recorded > s->isl_max) s->isl_max = turn->in_recorded;
    s->osl_zero += !turn->out_tokens;
    s->len_floor += turn->block_count == turn->in_recorded / t->block_tokens;
    s->no_api += !turn->has_api;
}

/* Waits between neighbours of a stream. A delay that the trace gives itself (Mooncake rows) counts as given. */
static void add_waits(const cedar_stream *s, double *waits, size_t *n, __int128 *sum_ns, cedar_trace_stats *out) {
    for (uint32_t k = 1; k < s->turn_count; k++) {
        const cedar_turn *a = &s->turns[k - 1], *b = &s->turns[k];
        int64_t end_ns = a->t_ns + a->api_ns;
        double wait = start_s(s, b) - (start_s(s, a) + seconds(a->api_ns));
        bool given = b->delay_ns != (b->t_ns > end_ns ? b->t_ns - end_ns : 0);
        waits[(*n)++] = given ? seconds(b->delay_ns) : wait > 0 ? wait : 0;
        *sum_ns += b->delay_ns;
        out->delay_over_300 += b->delay_ns > LONG_WAIT_NS;
        out->overlap_pairs += b->t_ns < end_ns;
    }
}

static void add_span(const cedar_trace *t, cedar_trace_stats *s) {
    s->first_t = s->last_t = start_s(&t->streams[0], &t->streams[0].turns[0]);
    for (uint32_t i = 0; i < t->stream_count; i++) {
        const cedar_stream *x = &t->streams[i];
        double first = start_s(x, &x->turns[0]), last = start_s(x, &x->turns[x->turn_count - 1]);
        if (first < s->first_t) s->first_t = first;
        if (last > s->last_t) s->last_t = last;
    }
    s->tstar_lo = s->first_t + 0.25 * (s->last_t - s->first_t);
    s->tstar_hi = s->first_t + 0.75 * (s->last_t - s->first_t);
}

/* Number as the table prints it: rounded to `digits` decimals, no zeros at the end but one digit behind the point. */
static int print_decimal(char *buf, size_t size, double x, int digits) {
    int n = snprintf(buf, size, "%.*f", digits, x);
    if (n < 0 || (size_t)n >= size) return n;
    while (n > 2 && buf[n - 1] == '0' && buf[n - 2] != '.') buf[--n] = 0;
    return n;
}

/* "agent:spawn->join(7req,end 12.5)" of every subagent, with ";" between. */
static cedar_status make_spawn_join(const cedar_trace *t, char **out, cedar_err *err) {
    size_t room = 1;
    for (uint32_t i = 1; i < t->stream_count; i++) room += strlen(t->streams[i].id) + 96;
    char *text = cedar_calloc(room, 1);
    if (!text) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu bytes", t->id, room);
    size_t n = 0;
    for (uint32_t i = 1; i < t->stream_count; i++) {
        const cedar_stream *s = &t->streams[i];
        char join[16] = "None", end[40];
        if (s->join_turn >= 0) snprintf(join, sizeof join, "%d", s->join_turn);
        print_decimal(end, sizeof end, seconds(s->end_ns), 3);
        n += (size_t)snprintf(text + n, room - n, "%s%s:%d->%s(%ureq,end %s)", i > 1 ? ";" : "", s->id, s->spawn_turn,
                              join, s->turn_count, end);
    }
    *out = text;
    return CEDAR_OK;
}

static double ratio(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : 0;
}

cedar_status cedar_trace_stats_make(const cedar_trace *t, cedar_trace_stats *out, cedar_err *err) {
    cedar_trace_stats s = { .main = t->streams[0].turn_count, .subagents = t->stream_count - 1 };
    double *values = cedar_calloc(turn_count(t), sizeof *values);
    cedar_status st = CEDAR_OK;
    *out = (cedar_trace_stats){ 0 };
    if (!values) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its statistics", t->id);
    size_t n = 0;
    __int128 sum_ns = 0;
    for (uint32_t i = 0; i < t->stream_count; i++) {
        for (uint32_t k = 0; k < t->streams[i].turn_count; k++) add_turn(t, &t->streams[i].turns[k], &s);
        add_waits(&t->streams[i], values, &n, &sum_ns, &s);
    }
    qsort(values, n, sizeof *values, by_value);
    s.delay_p50_s = percentile(values, n, 50);
    s.delay_p90_s = percentile(values, n, 90);
    s.delay_sum_s = (double)sum_ns / 1e9;
    s.isl_p50 = median_tokens(t, values, false);
    s.osl_p50 = median_tokens(t, values, true);
    add_span(t, &s);
    st = walk_traces(t, 1, &s.blocks_total, &s.blocks_hit_seen, &s.blocks_hit_prefix, err);
    s.hit_rate = ratio(s.blocks_hit_seen, s.blocks_total);
    if (!st) st = make_spawn_join(t, &s.spawn_join, err);
    cedar_free(values);
    if (!st) *out = s;
    return st;
}

void cedar_trace_stats_free(cedar_trace_stats *s) {
    if (!s) return;
    cedar_free(s->spawn_join);
    *s = (cedar_trace_stats){ 0 };
}

/* --- the table --------------------------------------------------------------------------------------------------- */

const char *cedar_trace_stats_header(void) {
    return "file,requests,main,subagents,isl_sum,osl_sum,isl_p50,isl_max,osl_p50,osl_zero,blocks_total,"
           "blocks_hit_seen,blocks_hit_prefix,hit_rate,delay_p50_s,delay_p90_s,delay_over_300,delay_sum_s,"
           "overlap_pairs,first_t,last_t,tstar_lo,tstar_hi,len_floor,no_api,spawn_join";
}

/* Appends a CSV field; quoted only when it holds a comma, a quote or a line break. buf has room. */
static char *put_text(char *buf, const char *text) {
    bool quoted = strpbrk(text, ",\"\r\n");
    if (quoted) *buf++ = '"';
    for (; *text; text++) {
        if (*text == '"') *buf++ = '"';
        *buf++ = *text;
    }
    if (quoted) *buf++ = '"';
    return buf;
}

static char *put_count(char *buf, uint64_t x) {
    return buf + sprintf(buf, ",%llu", (unsigned long long)x);
}

static char *put_real(char *buf, double x, int digits) {
    *buf++ = ',';
    return buf + print_decimal(buf, 60, x, digits);
}

cedar_status cedar_trace_stats_row(const char *file, const cedar_trace_stats *s, char **out, cedar_err *err) {
    const char *joins = s->spawn_join ? s->spawn_join : "";
    /* 24 numbers of at most 60 bytes; quoting at most doubles a text. */
    size_t room = 2 * (strlen(file) + strlen(joins)) + 25 * 64;
    char *row = cedar_calloc(room, 1);
    if (!row) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu bytes", file, room);
    char *p = put_text(row, file);
    p = put_count(p, s->requests);
    p = put_count(p, s->main);
    p = put_count(p, s->subagents);
    p = put_count(p, s->isl_sum);
    p = put_count(p, s->osl_sum);
    p = put_real(p, s->isl_p50, 1);
    p = put_count(p, s->isl_max);
    p = put_real(p, s->osl_p50, 1);
    p = put_count(p, s->osl_zero);
    p = put_count(p, s->blocks_total);
    p = put_count(p, s->blocks_hit_seen);
    p = put_count(p, s->blocks_hit_prefix);
    p = put_real(p, s->hit_rate, 6);
    p = put_real(p, s->delay_p50_s, 3);
    p = put_real(p, s->delay_p90_s, 3);
    p = put_count(p, s->delay_over_300);
    p = put_real(p, s->delay_sum_s, 3);
    p = put_count(p, s->overlap_pairs);
    p = put_real(p, s->first_t, 9);
    p = put_real(p, s->last_t, 9);
    p = put_real(p, s->tstar_lo, 4);
    p = put_real(p, s->tstar_hi, 4);
    p = put_count(p, s->len_floor);
    p = put_count(p, s->no_api);
    *p++ = ',';
    p = put_text(p, joins);
    *p = 0;
    *out = row;
    return CEDAR_OK;
}

/* --- a corpus ---------------------------------------------------------------------------------------------------- */

cedar_status cedar_corpus_stats_make(const cedar_corpus *c, cedar_corpus_stats *out, cedar_err *err) {
    cedar_corpus_stats s = { .traces = c->trace_count };
    uint64_t prefix;
    *out = (cedar_corpus_stats){ 0 };
    for (uint32_t i = 0; i < c->trace_count; i++) {
        s.streams += c->traces[i].stream_count;
        for (uint32_t j = 0; j < c->traces[i].stream_count; j++) {
            const cedar_stream *x = &c->traces[i].streams[j];
            s.requests += x->turn_count;
            for (uint32_t k = 0; k < x->turn_count; k++) {
                s.isl_sum += x->turns[k].in_recorded;
                s.osl_sum += x->turns[k].out_tokens;
            }
        }
    }
    cedar_status st = walk_traces(c->traces, c->trace_count, &s.blocks_total, &s.blocks_hit_seen, &prefix, err);
    s.hit_rate = ratio(s.blocks_hit_seen, s.blocks_total);
    if (!st) *out = s;
    return st;
}
