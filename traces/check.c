/* Owns the findings of `cedar trace check`: what is odd in a trace that loads, counted. */
#include <stdarg.h>
#include <stdio.h>

#include "traces/traces_int.h"

#define IDLE_NS (300 * NS_PER_S)

static const struct { const char *text, *unit; } oddities[CEDAR_ODDITY_COUNT] = {
    [CEDAR_ODDITY_IDS_NEITHER] = { "ids neither floor nor ceil", "requests" },
    [CEDAR_ODDITY_IDS_CEIL] = { "ids include the partial last block", "requests" },
    [CEDAR_ODDITY_IDS_WIDE] = { "ids above 2^31 - 1", "requests" },
    [CEDAR_ODDITY_IN_ZERO] = { "in = 0, replayed as 1", "requests" },
    [CEDAR_ODDITY_OUT_ZERO] = { "out = 0", "requests" },
    [CEDAR_ODDITY_NO_API] = { "no api_time, counted as 0", "requests" },
    [CEDAR_ODDITY_NO_THINK] = { "no think_time", "requests" },
    [CEDAR_ODDITY_OVERLAP] = { "overlap with the previous turn", "pairs" },
    [CEDAR_ODDITY_SHRINK] = { "context shorter than in the previous turn", "pairs" },
    [CEDAR_ODDITY_PREFIX_CUT] = { "prefix cut by more than one block", "pairs" },
    [CEDAR_ODDITY_IDLE] = { "idle for more than 300 s", "pairs" },
    [CEDAR_ODDITY_MODELS] = { "model changes", "pairs" },
    [CEDAR_ODDITY_BACKGROUND] = { "never joined, run in the background", "subagents" },
    [CEDAR_ODDITY_RELATIVE] = { "times count from the marker", "subagents" },
    [CEDAR_ODDITY_NO_SPAWN] = { "left out, listed before the first root turn", "subagents" },
    [CEDAR_ODDITY_EMPTY] = { "left out, without requests", "subagents" },
};

const char *cedar_oddity_text(cedar_oddity kind) {
    return (unsigned)kind < CEDAR_ODDITY_COUNT ? oddities[kind].text : "unknown";
}

const char *cedar_oddity_unit(cedar_oddity kind) {
    return (unsigned)kind < CEDAR_ODDITY_COUNT ? oddities[kind].unit : "cases";
}

static bool has_wide_id(const cedar_turn *t) {
    for (uint32_t b = 0; b < t->block_count; b++)
        if (t->block_ids[b] > INT32_MAX) return true;
    return false;
}

static void check_turn(const cedar_trace *trace, const cedar_turn *t, cedar_trace_check *c) {
    uint32_t floor = t->in_recorded / trace->block_tokens;
    uint32_t ceil = floor + (t->in_recorded % trace->block_tokens != 0);
    c->found[CEDAR_ODDITY_IDS_NEITHER] += t->block_count != floor && t->block_count != ceil;
    c->found[CEDAR_ODDITY_IDS_CEIL] += t->block_count != floor && t->block_count == ceil;
    c->found[CEDAR_ODDITY_IDS_WIDE] += has_wide_id(t);
    c->found[CEDAR_ODDITY_IN_ZERO] += !t->in_recorded;
    c->found[CEDAR_ODDITY_OUT_ZERO] += !t->out_tokens;
    c->found[CEDAR_ODDITY_NO_API] += !t->has_api;
    c->found[CEDAR_ODDITY_NO_THINK] += !t->has_think;
}

static void check_pair(const cedar_turn *a, const cedar_turn *b, cedar_trace_check *c) {
    c->found[CEDAR_ODDITY_OVERLAP] += b->t_ns < a->t_ns + a->api_ns;
    c->found[CEDAR_ODDITY_SHRINK] += b->in_recorded < a->in_recorded;
    c->found[CEDAR_ODDITY_PREFIX_CUT] += cedar_turn_common_blocks(a, b) + 1 < a->block_count;
    c->found[CEDAR_ODDITY_IDLE] += b->delay_ns > IDLE_NS;
    c->found[CEDAR_ODDITY_MODELS] += a->model >= 0 && b->model >= 0 && a->model != b->model;
}

void cedar_trace_check_make(const cedar_trace *t, cedar_trace_check *out) {
    cedar_trace_check c = { .streams = t->stream_count };
    uint32_t pairs = 0, subagents = t->stream_count - 1 + t->dropped_streams + t->empty_streams;
    for (uint32_t i = 0; i < t->stream_count; i++) {
        const cedar_stream *s = &t->streams[i];
        c.requests += s->turn_count;
        pairs += s->turn_count - 1;
        for (uint32_t k = 0; k < s->turn_count; k++) {
            check_turn(t, &s->turns[k], &c);
            if (k) check_pair(&s->turns[k - 1], &s->turns[k], &c);
        }
        c.found[CEDAR_ODDITY_BACKGROUND] += i && s->join_turn < 0;
        c.found[CEDAR_ODDITY_RELATIVE] += s->t_relative;
    }
    c.found[CEDAR_ODDITY_NO_SPAWN] = t->dropped_streams;
    c.found[CEDAR_ODDITY_EMPTY] = t->empty_streams;
    for (int i = 0; i < CEDAR_ODDITY_COUNT; i++)
        c.of[i] = i >= CEDAR_ODDITY_BACKGROUND ? subagents : i >= CEDAR_ODDITY_OVERLAP ? pairs : c.requests;
    *out = c;
}

/* snprintf at offset n, counting on when the buffer is full. */
static size_t put(char *buf, size_t size, size_t n, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static size_t put(char *buf, size_t size, size_t n, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int got = n < size ? vsnprintf(buf + n, size - n, fmt, ap) : vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    return n + (got > 0 ? (size_t)got : 0);
}

size_t cedar_trace_check_format(const cedar_trace *t, const cedar_trace_check *c, char *buf, size_t size) {
    size_t n = put(buf, size, 0, "%s:%d: %s: %u requests, %u subagents\n", t->file, t->line, t->id, c->requests,
                   c->streams - 1);
    for (int i = 0; i < CEDAR_ODDITY_COUNT; i++)
        if (c->found[i])
            n = put(buf, size, n, "  %s: %u of %u %s\n", oddities[i].text, c->found[i], c->of[i], oddities[i].unit);
    return n;
}
