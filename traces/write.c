/* Owns writing: a corpus as weka, Mooncake, LLMServingSim, TraceLab and BLIS files, and the list of what the target
 * cannot keep. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/mem.h"
#include "traces/traces_int.h"

#define MOONCAKE_BLOCK_TOKENS 512

static const struct { const char *text, *unit; } loss_rows[CEDAR_LOSS_COUNT] = {
    [CEDAR_LOSS_STREAMS] = { "spawn and join lost, written as sessions of their own", "streams" },
    [CEDAR_LOSS_SPAWN] = { "start with the session, written behind the first root turn", "streams" },
    [CEDAR_LOSS_NAMES] = { "renamed, the same name came before", "streams" },
    [CEDAR_LOSS_LEFT_OUT] = { "left out when loading", "streams" },
    [CEDAR_LOSS_IDS] = { "block ids lost, the length of the shared prefix is kept in whole blocks", "turns" },
    [CEDAR_LOSS_IDS_NUMBERED] = { "block ids numbered anew", "turns" },
    [CEDAR_LOSS_IDS_ADDED] = { "ids added for tokens that no id covered", "turns" },
    [CEDAR_LOSS_IDS_CUT] = { "ids beyond the prompt's length left out", "turns" },
    [CEDAR_LOSS_START] = { "recorded start lost", "turns" },
    [CEDAR_LOSS_DELAY] = { "wait lost, it follows from the times", "turns" },
    [CEDAR_LOSS_ROUNDED] = { "times rounded to the format's unit", "turns" },
    [CEDAR_LOSS_DURATION] = { "recorded duration lost", "turns" },
    [CEDAR_LOSS_TTFT] = { "recorded time to the first token lost", "turns" },
    [CEDAR_LOSS_THINK] = { "recorded think time lost", "turns" },
    [CEDAR_LOSS_MODEL] = { "model lost", "turns" },
    [CEDAR_LOSS_SYSTEM] = { "count of system tokens lost", "streams" },
};

const char *cedar_loss_text(cedar_loss kind) {
    return (unsigned)kind < CEDAR_LOSS_COUNT ? loss_rows[kind].text : "unknown";
}

size_t cedar_losses_format(const cedar_losses *l, char *buf, size_t size) {
    size_t n = 0;
    if (size) buf[0] = 0;
    for (int i = 0; i < CEDAR_LOSS_COUNT; i++) {
        if (!l->count[i]) continue;
        bool room = n < size;
        int got = snprintf(room ? buf + n : NULL, room ? size - n : 0, "  %s: %llu %s\n", loss_rows[i].text,
                           (unsigned long long)l->count[i], loss_rows[i].unit);
        n += got > 0 ? (size_t)got : 0;
    }
    return n;
}

/* A stream's place in the order of names. */
typedef struct named {
    const cedar_trace *t;
    uint32_t stream;
    uint32_t place;        /* in the corpus, over all traces */
    uint32_t copy;         /* streams before it with the same name */
} named;

/* One call of cedar_trace_write. */
typedef struct writer {
    const cedar_corpus *c;
    FILE *out;
    cedar_losses *losses;
    traces_seen *numbers;  /* new numbers of ids; NULL: ids stay as they are */
    int64_t next_id;       /* for ids that are added */
    uint64_t rows;         /* written so far */
    named *names;          /* [streams of the corpus] in the order of the corpus */
    uint32_t stream_first; /* of the current trace in names */
} writer;

static void lose(writer *w, cedar_loss kind, bool lost) {
    w->losses->count[kind] += lost;
}

/* --- pieces ------------------------------------------------------------------------------------------------------ */

static void put_string(FILE *f, const char *s) {
    char code[CEDAR_JSON_CHAR_BYTES];
    fputc('"', f);
    for (; *s; s++) fputs(cedar_json_char(*s, code), f);
    fputc('"', f);
}

/* A CSV field. */
static void put_field(FILE *f, const char *s) {
    if (*s && !s[strcspn(s, ",\"\r\n")] && s[0] != ' ' && s[0] != '\t' &&
        s[strlen(s) - 1] != ' ' && s[strlen(s) - 1] != '\t') {
        fputs(s, f);
        return;
    }
    fputc('"', f);
    for (; *s; s++) {
        if (*s == '"') fputc('"', f);
        fputc(*s, f);
    }
    fputc('"', f);
}

/* Time in a unit of 10^digits nanoseconds, exact, without zeros at the end. */
static void put_time(FILE *f, int64_t ns, int digits) {
    int64_t unit = 1;
    for (int i = 0; i < digits; i++) unit *= 10;
    int64_t part = ns % unit;
    fprintf(f, "%lld", (long long)(ns / unit));
    if (!part) return;
    while (part % 10 == 0) {
        part /= 10;
        digits--;
    }
    fprintf(f, ".%0*lld", digits, (long long)part);
}

static int64_t id_of(const writer *w, const cedar_trace *t, int64_t id) {
    return w->numbers ? (int64_t)traces_seen_number(w->numbers, t->id_space, id) : id;
}

/* `want` ids: the turn's, then new ones. */
static void put_ids(writer *w, const cedar_trace *t, const cedar_turn *turn, uint32_t want) {
    lose(w, CEDAR_LOSS_IDS_ADDED, want > turn->block_count);
    lose(w, CEDAR_LOSS_IDS_CUT, want < turn->block_count);
    lose(w, CEDAR_LOSS_IDS_NUMBERED, w->numbers && turn->block_count);
    fputs("\"hash_ids\":[", w->out);
    for (uint32_t i = 0; i < want; i++) {
        int64_t id = i < turn->block_count ? id_of(w, t, turn->block_ids[i]) : w->next_id++;
        fprintf(w->out, "%s%lld", i ? "," : "", (long long)id);
    }
    fputc(']', w->out);
}

/* What the recorded times say about the wait before turn k. */
static int64_t derived_delay(const cedar_stream *s, uint32_t k) {
    if (!k) return 0;
    int64_t gap = s->turns[k].t_ns - (s->turns[k - 1].t_ns + s->turns[k - 1].api_ns);
    return gap > 0 ? gap : 0;
}

#define SESSION_NAME_BYTES (2 * NAME_BYTES_MAX + 32)

/* Name of a stream that becomes a session of its own: rows of equal sessions would be put together. */
static cedar_status session_name(writer *w, const cedar_trace *t, uint32_t stream, char buf[SESSION_NAME_BYTES],
                                 cedar_err *err) {
    size_t n = cedar_stream_name(t, stream, buf, SESSION_NAME_BYTES);
    uint32_t copy = w->names[w->stream_first + stream].copy;
    if (copy && n <= NAME_BYTES_MAX)
        n += (size_t)snprintf(buf + n, SESSION_NAME_BYTES - n, "#%u", copy + 1);
    lose(w, CEDAR_LOSS_NAMES, copy > 0);
    if (n <= NAME_BYTES_MAX) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_UNSUPPORTED, "%s: the name of a stream, \"%.60s...\", has %zu bytes; at most %zu "
                      "are allowed", t->file, buf, n, NAME_BYTES_MAX);
}

/* What formats without a place for them lose of every turn. */
static void lose_details(writer *w, const cedar_turn *t) {
    lose(w, CEDAR_LOSS_DURATION, t->has_api);
    lose(w, CEDAR_LOSS_TTFT, t->ttft_ns >= 0);
    lose(w, CEDAR_LOSS_THINK, t->has_think);
    lose(w, CEDAR_LOSS_MODEL, t->model >= 0);
}

static void lose_tree(writer *w, const cedar_trace *t) {
    w->losses->count[CEDAR_LOSS_STREAMS] += t->stream_count - 1;
    w->losses->count[CEDAR_LOSS_LEFT_OUT] += (uint64_t)t->dropped_streams + t->empty_streams;
    for (uint32_t i = 0; i < t->stream_count; i++) lose(w, CEDAR_LOSS_SYSTEM, t->streams[i].system_tokens > 0);
}

/* --- weka -------------------------------------------------------------------------------------------------------- */

static void weka_turn(writer *w, const cedar_trace *t, const cedar_stream *s, uint32_t k) {
    const cedar_turn *turn = &s->turns[k];
    fputs("{\"t\":", w->out);
    put_time(w->out, turn->t_ns - (s->t_relative ? s->marker_ns : 0), 9);
    fprintf(w->out, ",\"type\":\"%s\"", turn->ttft_ns >= 0 ? "s" : "n");
    if (turn->model >= 0) {
        fputs(",\"model\":", w->out);
        put_string(w->out, t->models[turn->model]);
    }
    fprintf(w->out, ",\"in\":%u,\"out\":%u,", turn->in_recorded, turn->out_tokens);
    put_ids(w, t, turn, turn->block_count);
    const struct { const char *key; bool there; int64_t ns; } times[] = { { "api_time", turn->has_api, turn->api_ns },
                                                                          { "ttft", turn->ttft_ns >= 0, turn->ttft_ns },
                                                                          { "think_time", turn->has_think,
                                                                            turn->think_ns } };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        if (!times[i].there) continue;
        fprintf(w->out, ",\"%s\":", times[i].key);
        put_time(w->out, times[i].ns, 9);
    }
    fputc('}', w->out);
    lose(w, CEDAR_LOSS_DELAY, turn->delay_ns != derived_delay(s, k));
}

static void weka_subagent(writer *w, const cedar_trace *t, const cedar_stream *s) {
    fputs(",{\"t\":", w->out);
    put_time(w->out, s->marker_ns, 9);
    fputs(",\"type\":\"subagent\",\"agent_id\":", w->out);
    put_string(w->out, s->id);
    fprintf(w->out, ",\"tool_tokens\":0,\"system_tokens\":%u,\"requests\":[", s->system_tokens);
    for (uint32_t k = 0; k < s->turn_count; k++) {
        if (k) fputc(',', w->out);
        weka_turn(w, t, s, k);
    }
    fputs("]}", w->out);
    lose(w, CEDAR_LOSS_SPAWN, s->spawn_turn < 0);
}

/* The subagents of root turn k come behind it, in their order. */
static void weka_children(writer *w, const cedar_trace *t, uint32_t k) {
    for (uint32_t i = 1; i < t->stream_count; i++) {
        int32_t spawn = t->streams[i].spawn_turn;
        if ((spawn < 0 ? 0 : (uint32_t)spawn) == k) weka_subagent(w, t, &t->streams[i]);
    }
}

static cedar_status weka_trace(writer *w, const cedar_trace *t, cedar_err *err) {
    (void)err;
    const cedar_stream *root = &t->streams[0];
    fputs("{\"id\":", w->out);
    put_string(w->out, t->id);
    fputs(",\"models\":[", w->out);
    for (uint32_t i = 0; i < t->model_count; i++) {
        if (i) fputc(',', w->out);
        put_string(w->out, t->models[i]);
    }
    fprintf(w->out, "],\"block_size\":%u,\"hash_id_scope\":\"%s\",\"tool_tokens\":0,\"system_tokens\":%u,"
            "\"requests\":[",
            t->block_tokens, t->ids_global ? "global" : "local", root->system_tokens);
    bool *has_children = cedar_calloc(root->turn_count, sizeof *has_children);
    if (!has_children) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory to write it", t->id);
    for (uint32_t i = 1; i < t->stream_count; i++)
        has_children[t->streams[i].spawn_turn < 0 ? 0 : t->streams[i].spawn_turn] = true;
    for (uint32_t k = 0; k < root->turn_count; k++) {
        if (k) fputc(',', w->out);
        weka_turn(w, t, root, k);
        if (has_children[k]) weka_children(w, t, k);
    }
    fputs("]}\n", w->out);
    w->losses->count[CEDAR_LOSS_LEFT_OUT] += (uint64_t)t->dropped_streams + t->empty_streams;
    cedar_free(has_children);
    return CEDAR_OK;
}

/* Every stream as a session of its own, turn by turn: the shape of formats with one request per row. */
static cedar_status rows_of_trace(writer *w, const cedar_trace *t,
                                  void (*turn)(writer *w, const cedar_trace *t, const cedar_stream *s, uint32_t k,
                                               const char *name),
                                  cedar_err *err) {
    char name[SESSION_NAME_BYTES];
    for (uint32_t i = 0; i < t->stream_count; i++) {
        cedar_status st = session_name(w, t, i, name, err);
        if (st) return st;
        for (uint32_t k = 0; k < t->streams[i].turn_count; k++) turn(w, t, &t->streams[i], k, name);
    }
    lose_tree(w, t);
    return CEDAR_OK;
}

/* --- Mooncake ---------------------------------------------------------------------------------------------------- */

static void mooncake_turn(writer *w, const cedar_trace *t, const cedar_stream *s, uint32_t k, const char *name) {
    const cedar_turn *turn = &s->turns[k];
    uint32_t in = turn->in_recorded, want = in / t->block_tokens + (in % t->block_tokens != 0);
    fputs("{\"session_id\":", w->out);
    put_string(w->out, name);
    fputs(",\"timestamp\":", w->out);
    put_time(w->out, turn->t_ns, 6);
    if (k) {
        fputs(",\"delay\":", w->out);
        put_time(w->out, turn->delay_ns, 6);
    }
    fprintf(w->out, ",\"input_length\":%u,\"output_length\":%u", in, turn->out_tokens);
    if (turn->block_count) {
        fputc(',', w->out);
        put_ids(w, t, turn, want);
    }
    if (t->block_tokens != MOONCAKE_BLOCK_TOKENS) fprintf(w->out, ",\"block_size\":%u", t->block_tokens);
    fputs("}\n", w->out);
    lose_details(w, turn);
}

static cedar_status mooncake_trace(writer *w, const cedar_trace *t, cedar_err *err) {
    return rows_of_trace(w, t, mooncake_turn, err);
}

/* --- LLMServingSim ----------------------------------------------------------------------------------------------- */

static cedar_status llmservingsim_trace(writer *w, const cedar_trace *t, cedar_err *err) {
    char name[SESSION_NAME_BYTES];
    for (uint32_t i = 0; i < t->stream_count; i++) {
        const cedar_stream *s = &t->streams[i];
        int64_t sum = s->turns[0].t_ns;
        cedar_status st = session_name(w, t, i, name, err);
        if (st) return st;
        fputs("{\"session_id\":", w->out);
        put_string(w->out, name);
        fprintf(w->out, ",\"arrival_time_ns\":%lld,\"sub_requests\":[", (long long)sum);
        for (uint32_t k = 0; k < s->turn_count; k++) {
            const cedar_turn *turn = &s->turns[k];
            int64_t wait = k + 1 < s->turn_count ? turn[1].delay_ns : 0;
            fprintf(w->out, "%s{\"input_toks\":%u,\"output_toks\":%u,\"tool_duration_ns\":%lld", k ? "," : "",
                    turn->in_recorded, turn->out_tokens, (long long)wait);
            if (turn->block_count) {
                fputc(',', w->out);
                put_ids(w, t, turn, turn->block_count);
                fprintf(w->out, ",\"block_size\":%u", t->block_tokens);
            }
            fputc('}', w->out);
            lose_details(w, turn);
            lose(w, CEDAR_LOSS_START, turn->t_ns != sum);
            sum += wait;
        }
        fputs("]}\n", w->out);
    }
    lose_tree(w, t);
    return CEDAR_OK;
}

/* --- TraceLab ---------------------------------------------------------------------------------------------------- */

/* Recorded, else what the ids share with the turn before. */
static uint32_t prefix_of(const cedar_trace *t, const cedar_stream *s, uint32_t k) {
    const cedar_turn *turn = &s->turns[k];
    uint64_t n = turn->prefix_tokens;
    if (!turn->has_prefix) n = k ? (uint64_t)cedar_turn_common_blocks(&turn[-1], turn) * t->block_tokens : 0;
    return n < turn->in_recorded ? (uint32_t)n : turn->in_recorded;
}

static long long rounded_ms(int64_t ns) {
    return (long long)((ns + NS_PER_MS / 2) / NS_PER_MS);
}

static cedar_status tracelab_trace(writer *w, const cedar_trace *t, cedar_err *err) {
    char name[SESSION_NAME_BYTES];
    for (uint32_t i = 0; i < t->stream_count; i++) {
        const cedar_stream *s = &t->streams[i];
        int64_t sum = s->turns[0].t_ns;
        cedar_status st = session_name(w, t, i, name, err);
        if (st) return st;
        for (uint32_t k = 0; k < s->turn_count; k++) {
            const cedar_turn *turn = &s->turns[k];
            uint32_t prefix = prefix_of(t, s, k);
            int64_t wait = k + 1 < s->turn_count ? turn[1].delay_ns : 0;
            put_field(w->out, name);
            fprintf(w->out, ",%lld,%u,%u,%u,%u,%lld\n", rounded_ms(s->turns[0].t_ns), k, prefix,
                    turn->in_recorded - prefix, turn->out_tokens, rounded_ms(wait));
            lose_details(w, turn);
            lose(w, CEDAR_LOSS_IDS, turn->block_count && !turn->has_prefix);
            lose(w, CEDAR_LOSS_START, turn->t_ns != sum);
            lose(w, CEDAR_LOSS_ROUNDED, wait % NS_PER_MS || (!k && turn->t_ns % NS_PER_MS));
            sum += wait;
        }
    }
    lose_tree(w, t);
    return CEDAR_OK;
}

/* --- BLIS -------------------------------------------------------------------------------------------------------- */

static void blis_turn(writer *w, const cedar_trace *t, const cedar_stream *s, uint32_t k, const char *name) {
    const cedar_turn *turn = &s->turns[k];
    int64_t start = turn->t_ns / NS_PER_US, end = (turn->t_ns + turn->api_ns) / NS_PER_US, first = 0;
    int64_t think = k ? turn->delay_ns / NS_PER_US : 0;
    bool has_first = turn->ttft_ns >= 0 && turn->has_api && turn->ttft_ns <= turn->api_ns;
    if (has_first) first = (turn->t_ns + turn->ttft_ns) / NS_PER_US;
    if (!turn->has_api) end = 0;
    fprintf(w->out, "%llu,,,,", (unsigned long long)w->rows++);
    put_field(w->out, name);
    fprintf(w->out, ",%u,,0,%s,%u,%u,%u,0,0,0,0,", k, turn->ttft_ns >= 0 ? "true" : "false", turn->in_recorded,
            turn->out_tokens, turn->in_recorded);
    if (turn->model >= 0) put_field(w->out, t->models[turn->model]);
    fprintf(w->out, ",0,0,%lld,%lld,%lld,%lld,0,ok,,,%lld\n", (long long)start, (long long)start, (long long)first,
            (long long)end, (long long)think);
    lose(w, CEDAR_LOSS_IDS, turn->block_count > 0);
    lose(w, CEDAR_LOSS_THINK, turn->has_think);
    lose(w, CEDAR_LOSS_TTFT, turn->ttft_ns >= 0 && !first);
    lose(w, CEDAR_LOSS_DURATION, turn->has_api && !end);
    lose(w, CEDAR_LOSS_DELAY, !think && turn->delay_ns != derived_delay(s, k));
    lose(w, CEDAR_LOSS_ROUNDED, turn->t_ns % NS_PER_US || turn->api_ns % NS_PER_US || turn->delay_ns % NS_PER_US ||
                                    (has_first && turn->ttft_ns % NS_PER_US));
}

static cedar_status blis_trace(writer *w, const cedar_trace *t, cedar_err *err) {
    return rows_of_trace(w, t, blis_turn, err);
}

/* Whether turns repeat what their session asked before. */
static bool accumulates(const cedar_corpus *c) {
    for (uint32_t i = 0; i < c->trace_count; i++)
        for (uint32_t j = 0; j < c->traces[i].stream_count; j++) {
            const cedar_stream *s = &c->traces[i].streams[j];
            for (uint32_t k = 1; k < s->turn_count; k++)
                if (cedar_turn_common_blocks(&s->turns[k - 1], &s->turns[k])) return true;
        }
    return false;
}

static void blis_begin(writer *w, FILE *header) {
    FILE *f = header ? header : w->out;
    fprintf(f, "trace_version: 2\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n");
    if (accumulates(w->c)) fputs("session_context_growth: accumulate\n", f);
    if (!header) fputs("---\n", f);
    fputs("request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,streaming,"
          "input_tokens,output_tokens,text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,model,"
              "deadline_us,"
          "server_input_tokens,arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,num_chunks,status,"
          "error_message,finish_reason,think_time_us\n", w->out);
}

static void tracelab_begin(writer *w, FILE *header) {
    (void)header;
    fputs("session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n", w->out);
}

/* --- ids of several spaces --------------------------------------------------------------------------------------- */

static const cedar_trace *first_of(const cedar_corpus *c, bool global_only) {
    for (uint32_t i = 0; i < c->trace_count; i++)
        if (c->traces[i].ids_global || !global_only) return &c->traces[i];
    return NULL;
}

/* Whether ids of different spaces would meet in the written file. In weka files local ids never meet others, and
 * global ones of different block sizes do not either. */
static bool spaces_meet(const cedar_corpus *c, bool weka) {
    const cedar_trace *first = first_of(c, weka);
    bool meet = false, sizes = true;
    for (uint32_t i = 0; first && i < c->trace_count; i++) {
        const cedar_trace *t = &c->traces[i];
        if (weka && !t->ids_global) continue;
        meet |= t->id_space != first->id_space;
        sizes &= (t->id_space & 0x80000000u) != 0;
    }
    return meet && !(weka && sizes);
}

/* Numbers all ids in the order of the corpus, or finds the largest. */
static cedar_status plan_ids(writer *w, bool number, cedar_err *err) {
    int64_t most = -1;
    if (number && !(w->numbers = traces_seen_new())) goto oom;
    for (uint32_t i = 0; i < w->c->trace_count; i++) {
        const cedar_trace *t = &w->c->traces[i];
        for (uint32_t j = 0; j < t->stream_count; j++)
            for (uint32_t k = 0; k < t->streams[j].turn_count; k++) {
                const cedar_turn *turn = &t->streams[j].turns[k];
                for (uint32_t b = 0; b < turn->block_count; b++) {
                    if (turn->block_ids[b] > most) most = turn->block_ids[b];
                    if (number && !traces_seen_add(w->numbers, t->id_space, turn->block_ids[b])) goto oom;
                }
            }
    }
    if (!number && most > INT64_MAX / 2) return plan_ids(w, true, err); /* no room behind it for added ids */
    w->next_id = number ? (int64_t)traces_seen_count(w->numbers) : most + 1;
    return CEDAR_OK;
oom:
    return cedar_fail(err, CEDAR_E_OOM, "no memory to number the block ids of %u traces", w->c->trace_count);
}

/* --- names ------------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    const named *x = a, *y = b;
    char p[SESSION_NAME_BYTES], q[SESSION_NAME_BYTES];
    cedar_stream_name(x->t, x->stream, p, sizeof p);
    cedar_stream_name(y->t, y->stream, q, sizeof q);
    int d = strcmp(p, q);
    return d ? d : x->place < y->place ? -1 : x->place > y->place;
}

static int by_place(const void *a, const void *b) {
    const named *x = a, *y = b;
    return x->place < y->place ? -1 : x->place > y->place;
}

static bool same_name(const named *x, const named *y) {
    char p[SESSION_NAME_BYTES], q[SESSION_NAME_BYTES];
    cedar_stream_name(x->t, x->stream, p, sizeof p);
    cedar_stream_name(y->t, y->stream, q, sizeof q);
    return !strcmp(p, q);
}

static cedar_status plan_names(writer *w, cedar_err *err) {
    size_t n = 0;
    for (uint32_t i = 0; i < w->c->trace_count; i++) n += w->c->traces[i].stream_count;
    w->names = cedar_calloc(n, sizeof *w->names);
    if (!w->names) return cedar_fail(err, CEDAR_E_OOM, "no memory for the names of %zu streams", n);
    n = 0;
    for (uint32_t i = 0; i < w->c->trace_count; i++)
        for (uint32_t j = 0; j < w->c->traces[i].stream_count; j++, n++)
            w->names[n] = (named){ &w->c->traces[i], j, (uint32_t)n, 0 };
    qsort(w->names, n, sizeof *w->names, by_name);
    for (size_t i = 1; i < n; i++)
        if (same_name(&w->names[i - 1], &w->names[i])) w->names[i].copy = w->names[i - 1].copy + 1;
    qsort(w->names, n, sizeof *w->names, by_place);
    return CEDAR_OK;
}

/* --- the formats that can be written ----------------------------------------------------------------------------- */

static const struct target {
    cedar_trace_format format;
    void (*begin)(writer *w, FILE *header);
    cedar_status (*trace)(writer *w, const cedar_trace *t, cedar_err *err);
    bool ids, adds_ids;
} targets[] = {
    { CEDAR_TRACE_WEKA, NULL, weka_trace, true, false },
    { CEDAR_TRACE_MOONCAKE, NULL, mooncake_trace, true, true },
    { CEDAR_TRACE_LLMSERVINGSIM, NULL, llmservingsim_trace, true, false },
    { CEDAR_TRACE_TRACELAB_CSV, tracelab_begin, tracelab_trace, false, false },
    { CEDAR_TRACE_BLIS, blis_begin, blis_trace, false, false },
};

static const struct target *find_target(cedar_trace_format format) {
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (targets[i].format == format) return &targets[i];
    return NULL;
}

bool cedar_trace_writable(cedar_trace_format format) {
    return find_target(format) != NULL;
}

static cedar_status not_writable(cedar_trace_format format, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_UNSUPPORTED, "the format %s cannot be written; weka, mooncake, llmservingsim, "
                      "tracelab_csv and blis can", cedar_trace_format_name(format));
}

cedar_status cedar_trace_write(const cedar_corpus *c, cedar_trace_format format, FILE *out, FILE *header,
                               cedar_losses *losses, cedar_err *err) {
    const struct target *target = find_target(format);
    cedar_losses own;
    writer w = { .c = c, .out = out, .losses = losses ? losses : &own };
    *w.losses = (cedar_losses){ 0 };
    if (!target) return not_writable(format, err);
    cedar_status st = CEDAR_OK;
    bool meet = spaces_meet(c, format == CEDAR_TRACE_WEKA);
    if (format != CEDAR_TRACE_WEKA) st = plan_names(&w, err);
    if (!st && target->ids && (meet || target->adds_ids)) st = plan_ids(&w, meet, err);
    traces_seen *numbers = w.numbers; /* freed below, also when numbering failed */
    if (!st && target->begin) target->begin(&w, header);
    for (uint32_t i = 0; !st && i < c->trace_count; i++) {
        /* Local ids of weka sessions need no numbers. */
        bool keep = format == CEDAR_TRACE_WEKA && !c->traces[i].ids_global;
        w.numbers = keep ? NULL : numbers;
        st = target->trace(&w, &c->traces[i], err);
        w.stream_first += c->traces[i].stream_count;
    }
    cedar_free(w.names);
    traces_seen_free(numbers);
    if (!st && (fflush(out) || ferror(out) || (header && (fflush(header) || ferror(header)))))
        st = cedar_fail(err, CEDAR_E_IO, "writing a trace file failed: %s", strerror(errno));
    return st;
}

/* --- conversion -------------------------------------------------------------------------------------------------- */

/* A file that takes its name only when it is complete. */
typedef struct part {
    FILE *f;
    char *path, *temp;
} part;

static cedar_status part_open(part *p, const char *path, const char *tail, cedar_err *err) {
    size_t n = strlen(path);
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    if (tail && dot && (!slash || dot > slash + 1)) n = (size_t)(dot - path);
    size_t room = n + 16;
    p->path = cedar_calloc(room, 1);
    p->temp = cedar_calloc(room, 1);
    if (!p->path || !p->temp) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its name", path);
    snprintf(p->path, room, "%.*s%s", (int)n, path, tail ? tail : "");
    snprintf(p->temp, room, "%s.part", p->path);
    struct stat info;       /* taking the name of a device or a pipe would remove it */
    if (!stat(p->path, &info) && !S_ISREG(info.st_mode))
        return cedar_fail(err, CEDAR_E_IO, "%s: is not a plain file and cannot be replaced; choose another name",
                          p->path);
    p->f = fopen(p->temp, "wb");
    return p->f ? CEDAR_OK : cedar_fail(err, CEDAR_E_IO, "%s: %s", p->temp, strerror(errno));
}

/* Closes the file and, when all went well, gives it its name. */
static cedar_status part_close(part *p, cedar_status st, cedar_err *err) {
    if (p->f && fclose(p->f) && !st) st = cedar_fail(err, CEDAR_E_IO, "%s: %s", p->temp, strerror(errno));
    if (p->f && !st && rename(p->temp, p->path))
        st = cedar_fail(err, CEDAR_E_IO, "%s: %s", p->path, strerror(errno));
    if (p->f && st) remove(p->temp);
    cedar_free(p->path);
    cedar_free(p->temp);
    return st;
}

cedar_status cedar_trace_convert(const char *const *paths, size_t path_count, const cedar_corpus_opts *opts,
                                 cedar_trace_format to, const char *to_path, cedar_losses *losses, uint32_t *traces,
                                 uint32_t *skipped, cedar_err *err) {
    cedar_corpus *c = NULL;
    part out = { 0 }, header = { 0 };
    if (!cedar_trace_writable(to)) return not_writable(to, err);
    cedar_status st = cedar_corpus_load(paths, path_count, opts, &c, err);
    if (!st) st = part_open(&out, to_path, NULL, err);
    if (!st && to == CEDAR_TRACE_BLIS) st = part_open(&header, to_path, ".yaml", err);
    if (!st) st = cedar_trace_write(c, to, out.f, header.f, losses, err);
    if (!st && traces) *traces = c->trace_count;
    if (!st && skipped) *skipped = c->skipped;
    st = part_close(&header, st, err);
    st = part_close(&out, st, err);
    cedar_corpus_free(c);
    return st;
}
