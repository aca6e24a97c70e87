/* Fuzz target for the trace readers (libFuzzer).
 *
 * The first byte chooses the format, strictness and the file's name; the rest is the file. Whatever loads must satisfy
 * what the rest of the program relies on: times that do not run backwards, delays and ids that are not negative,
 * spawns before joins, statistics that add up. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "traces/traces.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_turn(const cedar_trace *t, const cedar_stream *s, uint32_t k) {
    const cedar_turn *turn = &s->turns[k];
    CEDAR_ASSERT(turn->t_ns >= s->start_ns && turn->api_ns >= 0 && turn->delay_ns >= 0);
    CEDAR_ASSERT(turn->t_ns + turn->api_ns <= s->end_ns);
    CEDAR_ASSERT(!k || turn->t_ns >= turn[-1].t_ns);
    CEDAR_ASSERT(k || turn->delay_ns == 0);
    CEDAR_ASSERT(turn->ttft_ns >= -1 && turn->think_ns >= -1);
    CEDAR_ASSERT(turn->in_tokens >= 1 && turn->in_recorded <= turn->in_tokens);
    CEDAR_ASSERT(turn->model >= -1 && turn->model < (int32_t)t->model_count);
    for (uint32_t b = 0; b < turn->block_count; b++) CEDAR_ASSERT(turn->block_ids[b] >= 0);
}

static void check_stream(const cedar_trace *t, uint32_t i) {
    const cedar_stream *s = &t->streams[i], *root = &t->streams[0];
    CEDAR_ASSERT(s->id && s->turn_count > 0);
    CEDAR_ASSERT(i ? s->spawn_turn >= 0 && s->spawn_turn < (int32_t)root->turn_count : s->spawn_turn == -1);
    CEDAR_ASSERT(s->join_turn == -1 || (i && s->spawn_turn < s->join_turn));
    CEDAR_ASSERT(s->join_turn < (int32_t)root->turn_count && s->spawn_offset_ns >= 0);
    for (uint32_t k = 0; k < s->turn_count; k++) check_turn(t, s, k);
}

static void check_trace(const cedar_trace *t) {
    CEDAR_ASSERT(t->id && t->id[0] && t->file && t->line > 0 && t->block_tokens > 0 && t->stream_count > 0);
    CEDAR_ASSERT(t->id_space > 0);
    for (uint32_t i = 0; i < t->stream_count; i++) check_stream(t, i);

    cedar_trace_stats s;
    char *row = NULL, text[64];
    CEDAR_ASSERT(cedar_trace_stats_make(t, &s, NULL) == CEDAR_OK);
    CEDAR_ASSERT(s.blocks_hit_prefix <= s.blocks_hit_seen && s.blocks_hit_seen <= s.blocks_total);
    CEDAR_ASSERT(s.main <= s.requests && s.first_t <= s.last_t && s.delay_p50_s <= s.delay_p90_s);
    CEDAR_ASSERT(cedar_trace_stats_row(t->id, &s, &row, NULL) == CEDAR_OK);
    cedar_free(row);
    cedar_trace_stats_free(&s);

    cedar_trace_check c;
    cedar_trace_check_make(t, &c);
    for (int i = 0; i < CEDAR_ODDITY_COUNT; i++) CEDAR_ASSERT(c.found[i] <= c.of[i]);
    CEDAR_ASSERT(cedar_trace_check_format(t, &c, text, sizeof text) >= strlen(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = { "dir/fuzz.jsonl", "fuzz.json" };
    if (!size) return 0;
    cedar_corpus_opts opts = { .format = (cedar_trace_format)(data[0] % 3), .strict = data[0] & 4 };
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    cedar_status st = cedar_corpus_parse((const char *)data + 1, size - 1, names[data[0] / 8 % 2], &opts, &c, &err);
    CEDAR_ASSERT(st == CEDAR_OK || (st == CEDAR_E_FORMAT && err.msg[0]));
    if (!st) {
        cedar_corpus_stats s;
        CEDAR_ASSERT(c->trace_count > 0 && (!opts.strict || !c->skipped));
        for (uint32_t i = 0; i < c->trace_count; i++) check_trace(&c->traces[i]);
        CEDAR_ASSERT(cedar_corpus_stats_make(c, &s, NULL) == CEDAR_OK);
        CEDAR_ASSERT(s.traces == c->trace_count && s.blocks_hit_seen <= s.blocks_total);
        cedar_corpus_free(c);
    }
    CEDAR_ASSERT(cedar_mem_live() == live);
    return 0;
}
