/* The AgentX draw of where a lane enters a session. */
#include "sim/start.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"

static void add_text(cedar_sha256 *h, const char *text) { cedar_sha256_add(h, text, strlen(text)); }

uint64_t cedar_start_seed64(uint64_t random_seed, const char *trace_id, uint32_t lane) {
    char number[24];
    uint8_t digest[32];
    cedar_sha256 h;
    cedar_sha256_init(&h);
    snprintf(number, sizeof number, "%llu:", (unsigned long long)random_seed);
    add_text(&h, number);
    add_text(&h, trace_id);
    snprintf(number, sizeof number, ":%u", lane);
    add_text(&h, number);
    cedar_sha256_digest(&h, digest);
    uint64_t seed = 0;
    for (int i = 0; i < 8; i++) seed = seed << 8 | digest[i];
    return seed;
}

double cedar_start_unit(uint64_t seed64) {
    cedar_pcg64 g;
    cedar_pcg64_seed(&g, seed64);
    return cedar_pcg64_double(&g);
}

/* The division rounds to the double that the trace's decimal seconds read as, so comparing with t* is exact. */
static double seconds(int64_t ns) { return (double)ns / 1e9; }

static int64_t first_ns_not_before(double s) {
    int64_t ns = (int64_t)floor(s * 1e9) - 2;
    while (seconds(ns) < s) ns++;
    return ns;
}

static uint32_t first_turn_from(const cedar_stream *s, int64_t t_ns) {
    uint32_t k = 0;
    while (k < s->turn_count && s->turns[k].t_ns < t_ns) k++;
    return k;
}

static void span_of(const cedar_trace *t, int64_t *start_ns, int64_t *end_ns) {
    *start_ns = INT64_MAX;
    *end_ns = INT64_MIN;
    for (uint32_t i = 0; i < t->stream_count; i++)
        for (uint32_t k = 0; k < t->streams[i].turn_count; k++) {
            int64_t at = t->streams[i].turns[k].t_ns;
            if (at < *start_ns) *start_ns = at;
            if (at > *end_ns) *end_ns = at;
        }
}

cedar_status cedar_start_draw(const cedar_trace *t, uint64_t random_seed, uint32_t lane, double lo_ratio,
                              double hi_ratio, uint32_t *next, cedar_start *out, cedar_err *err) {
    if (!(lo_ratio >= 0 && lo_ratio <= hi_ratio && hi_ratio <= 1))
        return cedar_fail(err, CEDAR_E_ARG, "the start window is %g to %g; it must be 0 <= from <= to <= 1", lo_ratio,
                          hi_ratio);
    int64_t start_ns, end_ns;
    span_of(t, &start_ns, &end_ns);
    if (end_ns < start_ns) return cedar_fail(err, CEDAR_E_ARG, "trace %s has no turns to start at", t->id);
    cedar_start s = { .seed64 = cedar_start_seed64(random_seed, t->id, lane) };
    double start_s = seconds(start_ns), length_s = seconds(end_ns) - start_s;
    s.u = cedar_start_unit(s.seed64);
    s.lo_s = start_s + lo_ratio * length_s;
    s.hi_s = start_s + hi_ratio * length_s;
    s.t_star_s = s.lo_s + s.u * (s.hi_s - s.lo_s);
    s.t_star_ns = first_ns_not_before(s.t_star_s);
    for (uint32_t i = 0; i < t->stream_count; i++) {
        next[i] = first_turn_from(&t->streams[i], s.t_star_ns);
        if (next[i] == t->streams[i].turn_count) s.over++;
        else if (next[i] == 0) s.ahead++;
        else s.primers++;
    }
    s.empty = s.over == t->stream_count;
    *out = s;
    return CEDAR_OK;
}

int64_t cedar_start_lead_ns(const cedar_start *s, const cedar_turn *primed, int64_t cap_ns) {
    int64_t lead = s->t_star_ns - primed->t_ns;
    return lead < 0 ? 0 : lead > cap_ns ? cap_ns : lead;
}
