/* Fuzz target for the trace readers and writers (libFuzzer).
 *
 * The first byte chooses the format, the second strictness, splitting and the file's name; the rest is the file.
 * Whatever loads must satisfy what the rest of the program relies on: times that do not run backwards, delays and ids
 * that are not negative, spawns before joins, barriers that close no circle, statistics that add up; and what is
 * written can be read. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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
    for (uint32_t b = 0; b < turn->barrier_count; b++) {
        const cedar_barrier *w = &turn->barriers[b];
        CEDAR_ASSERT(w->stream < t->stream_count && &t->streams[w->stream] != s);
        CEDAR_ASSERT(w->turn < t->streams[w->stream].turn_count && (!b || w[-1].stream < w->stream));
    }
    CEDAR_ASSERT(turn->ttft_ns >= -1 && turn->think_ns >= -1);
    CEDAR_ASSERT(turn->in_tokens >= 1 && turn->in_recorded <= turn->in_tokens);
    CEDAR_ASSERT(turn->model >= -1 && turn->model < (int32_t)t->model_count);
    for (uint32_t b = 0; b < turn->block_count; b++) CEDAR_ASSERT(turn->block_ids[b] >= 0);
}

static void check_stream(const cedar_trace *t, uint32_t i) {
    const cedar_stream *s = &t->streams[i], *root = &t->streams[0];
    CEDAR_ASSERT(s->id && s->turn_count > 0);
    CEDAR_ASSERT(i ? s->spawn_turn >= -1 && s->spawn_turn < (int32_t)root->turn_count : s->spawn_turn == -1);
    CEDAR_ASSERT(s->join_turn == -1 || (i && s->spawn_turn < s->join_turn));
    CEDAR_ASSERT(s->join_turn < (int32_t)root->turn_count && s->spawn_offset_ns >= 0);
    for (uint32_t k = 0; k < s->turn_count; k++) check_turn(t, s, k);
}

/* Plays the tree with nothing but its order: every turn must get its chance. */
static void check_order(const cedar_trace *t) {
    uint32_t *done = cedar_calloc(t->stream_count, sizeof *done), left = 0;
    for (uint32_t i = 0; i < t->stream_count; i++) left += t->streams[i].turn_count;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < t->stream_count; i++) {
            const cedar_stream *s = &t->streams[i];
            bool ready = done[i] < s->turn_count && (!i || (int64_t)done[0] > s->spawn_turn);
            for (uint32_t j = 1; ready && !i && j < t->stream_count; j++)
                ready = t->streams[j].join_turn != (int32_t)done[0] || done[j] == t->streams[j].turn_count;
            for (uint32_t b = 0; ready && b < s->turns[done[i]].barrier_count; b++)
                ready = done[s->turns[done[i]].barriers[b].stream] > s->turns[done[i]].barriers[b].turn;
            if (!ready) continue;
            done[i]++;
            left--;
            moved = true;
        }
    }
    CEDAR_ASSERT(!left);
    cedar_free(done);
}

/* Writes the corpus and reads it back. Other formats than weka may refuse what they cannot say. */
static void check_write(const cedar_corpus *c, cedar_trace_format format) {
    char *text = NULL;
    size_t bytes = 0;
    cedar_corpus *back = NULL;
    cedar_corpus_opts opts = { .format = format, .strict = true };
    FILE *f = open_memstream(&text, &bytes);
    cedar_status st = cedar_trace_write(c, format, f, NULL, NULL, NULL);
    fclose(f);
    CEDAR_ASSERT(!st || st == CEDAR_E_UNSUPPORTED);
    if (!st) st = cedar_corpus_parse(text, bytes, "back", &opts, &back, NULL);
    CEDAR_ASSERT(!st || format != CEDAR_TRACE_WEKA);
    CEDAR_ASSERT(st || format != CEDAR_TRACE_WEKA || back->trace_count == c->trace_count);
    cedar_corpus_free(back);
    free(text);
}

static void check_trace(const cedar_trace *t) {
    CEDAR_ASSERT(t->id && t->id[0] && t->file && t->line > 0 && t->block_tokens > 0 && t->stream_count > 0);
    CEDAR_ASSERT(t->id_space > 0);
    for (uint32_t i = 0; i < t->stream_count; i++) check_stream(t, i);
    check_order(t);

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
    static const char *const names[] = { "dir/fuzz.jsonl", "fuzz.json", "fuzz.csv", "fuzz" };
    if (size < 2) return 0;
    cedar_corpus_opts opts = { .format = (cedar_trace_format)(data[0] % CEDAR_TRACE_FORMAT_COUNT),
                               .strict = data[1] & 1, .split_flattened = data[1] & 2 };
    cedar_corpus *c = NULL;
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    cedar_status st = cedar_corpus_parse((const char *)data + 2, size - 2, names[data[1] / 4 % 4], &opts, &c, &err);
    CEDAR_ASSERT(st == CEDAR_OK || ((st == CEDAR_E_FORMAT || st == CEDAR_E_UNSUPPORTED) && err.msg[0]));
    if (!st) {
        cedar_corpus_stats s;
        CEDAR_ASSERT(c->trace_count > 0 && (!opts.strict || !c->skipped));
        for (uint32_t i = 0; i < c->trace_count; i++) check_trace(&c->traces[i]);
        CEDAR_ASSERT(cedar_corpus_stats_make(c, &s, NULL) == CEDAR_OK);
        CEDAR_ASSERT(s.traces == c->trace_count && s.blocks_hit_seen <= s.blocks_total);
        for (int i = 0; i < CEDAR_TRACE_FORMAT_COUNT; i++)
            if (cedar_trace_writable((cedar_trace_format)i)) check_write(c, (cedar_trace_format)i);
        cedar_corpus_free(c);
    }
    CEDAR_ASSERT(cedar_mem_live() == live);
    return 0;
}
