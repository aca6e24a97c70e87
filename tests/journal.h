/* Plays runs in tests and keeps everything they report, as text: the deterministic members, and the timing members
 * apart. Include once. */
#ifndef CEDAR_TESTS_JOURNAL_H
#define CEDAR_TESTS_JOURNAL_H

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "sim/sim.h"

#ifndef JOURNAL_MODEL
#define JOURNAL_MODEL "tests/golden/tiny-s1" /* any checkpoint directory: the fake engine does not read it */
#endif

static cedar_err failure;       /* of the call inside OK() */
#define OK(call) ck_assert_msg((call) == CEDAR_OK, "%s", failure.msg)

#define HEAD(id, system)                                                                                               \
    "{\"id\":\"" id "\",\"models\":[\"m\"],\"block_size\":4,\"hash_id_scope\":\"local\",\"tool_tokens\":0,"            \
    "\"system_tokens\":" #system ",\"requests\":["
#define TURN(t, in, out, api, ids)                                                                                     \
    "{\"t\":" #t ",\"type\":\"s\",\"model\":\"m\",\"in\":" #in ",\"out\":" #out ",\"hash_ids\":[" ids                  \
    "],\"api_time\":" #api "}"
#define SUB(t, id, turns)                                                                                              \
    "{\"t\":" #t ",\"type\":\"subagent\",\"agent_id\":\"" id "\",\"subagent_type\":\"x\",\"duration_ms\":1000,"        \
    "\"total_tokens\":1,\"tool_use_count\":0,\"status\":\"completed\",\"models\":[\"m\"],\"tool_tokens\":0,\"system_"  \
    "tokens\":0,"                                                                                                      \
    "\"requests\":[" turns "]}"

typedef struct journal {
    char *rows, *timing;
    size_t rows_bytes, timing_bytes;
    FILE *to, *timing_to;
    uint64_t requests, sessions, steps, quality, errors, in_tokens, out_tokens, tokens_stepped;
    uint64_t hits, replayed, produced, depth_max, unfinished;
    int64_t step_ns[20000];
    double kl_sum;
    uint64_t drafted, accepted;
    uint64_t fed, fed_done, kept;           /* rows and requests of all phases; requests that count */
    uint64_t overflows, theory_blocks;
    int64_t profile_ns, arrival_max;        /* schedule: start of the profiling phase, last arrival in it */
    double itl_sched_max, ttft_sched_mean;  /* of the profiling phase, schedule ns */
    int64_t open_lanes_max;
    char status[16], error[480], session_ends[512];
    cedar_miss_reason misses[64];
    cedar_run_cache *cache;                 /* lent to the run; NULL = none */
    cedar_status (*hardware)(const char *data_dir, const char *name, struct cedar_hardware *out, cedar_err *err);
    int fail_at_step;
    int64_t fail_alloc;                     /* the run's n-th allocation fails; 0 = none does */
    volatile int stop;
    int stop_at_step, stop_at_row, rows_seen;       /* rows of any kind */
} journal;

static void count_row(journal *l) {
    if (++l->rows_seen == l->stop_at_row) l->stop = 1;
}

static cedar_status on_run(void *self, const cedar_run_row *r, cedar_err *err) {
    journal *l = self;
    (void)err;
    fprintf(l->to, "run %ld %s %s %s %u\n", (long)r->run_id, r->label, r->replay, r->backend, r->lanes);
    return CEDAR_OK;
}

static cedar_status on_session(void *self, const cedar_session_row *r, cedar_err *err) {
    journal *l = self;
    count_row(l);
    (void)err;
    l->sessions++;
    snprintf(l->session_ends + strlen(l->session_ends), sizeof l->session_ends - strlen(l->session_ends), "%s ",
             r->outcome);
    fprintf(l->to, "session %ld lane %d pass %d %s %u/%u %ld..%ld %s\n", (long)r->session_id, r->lane, r->pass,
            r->trace_id, r->requests_done, r->requests_planned, (long)r->start_sched_ns, (long)r->end_sched_ns,
            r->outcome);
    fprintf(l->timing_to, "%ld %ld\n", (long)r->start_ns, (long)r->end_ns);
    return CEDAR_OK;
}

static cedar_status on_request(void *self, const cedar_request_row *r, cedar_err *err) {
    journal *l = self;
    count_row(l);
    (void)err;
    if (l->requests < 64) l->misses[l->requests] = r->miss;
    l->requests++;
    bool counts = strcmp(r->phase, "profiling") == 0;
    l->errors += counts && *r->error != 0;
    if (counts && r->arrival_sched_ns > l->arrival_max) l->arrival_max = r->arrival_sched_ns;
    if (*r->error) snprintf(l->error, sizeof l->error, "%s", r->error);
    else {
        l->fed_done++;
        l->fed += r->in_tokens - r->hit_tokens + r->replayed_tokens + r->out_tokens - 1 + r->drafted_tokens -
                  r->accepted_tokens;
        l->drafted += r->drafted_tokens;
        l->accepted += r->accepted_tokens;
        double ttft = (double)(r->first_sched_ns - r->arrival_sched_ns);
        if (counts) l->ttft_sched_mean += (ttft - l->ttft_sched_mean) / (double)++l->kept;
        if (counts && r->out_tokens > 1) {
            double itl = (double)(r->last_sched_ns - r->first_sched_ns) / (r->out_tokens - 1);
            if (itl > l->itl_sched_max) l->itl_sched_max = itl;
        }
        l->in_tokens += counts ? r->in_tokens : 0;
        l->out_tokens += counts ? r->out_tokens : 0;
        l->hits += r->hit_tokens;
        l->theory_blocks += r->blocks_hit_theory;
        l->replayed += r->replayed_tokens;
        if (r->provenance_depth > l->depth_max) l->depth_max = r->provenance_depth;
        ck_assert_int_le(r->arrival_sched_ns, r->admit_sched_ns);
        ck_assert_int_lt(r->admit_sched_ns, r->first_sched_ns);
        ck_assert_int_le(r->first_sched_ns, r->last_sched_ns);
        ck_assert_int_le(r->arrival_ns, r->admit_ns);
        ck_assert_int_lt(r->admit_ns, r->first_ns);
        ck_assert_int_le(r->first_ns, r->last_ns);
        ck_assert_uint_lt(r->hit_tokens, r->in_tokens); /* a token is left to compute */
        ck_assert_uint_le(r->hit_tokens, r->matched_tokens);
        ck_assert_uint_eq(r->decode_steps + r->accepted_tokens, r->out_tokens - 1);
    }
    fprintf(
        l->to,
        "request %ld %s s%ld l%d %d.%d in %u out %u hit %u/%u replay %u trim %u steps %u+%u depth %u miss %d at %ld "
        "%ld %ld "
        "%ld %s\n",
        (long)r->request_id, r->phase, (long)r->session_id, r->lane, r->stream, r->turn, r->in_tokens, r->out_tokens,
        r->hit_tokens, r->matched_tokens, r->replayed_tokens, r->trimmed_tokens, r->prefill_steps, r->decode_steps,
        r->provenance_depth, (int)r->miss, (long)r->arrival_sched_ns, (long)r->admit_sched_ns, (long)r->first_sched_ns,
        (long)r->last_sched_ns, r->error);
    fprintf(l->timing_to, "%ld %ld %ld %ld\n", (long)r->arrival_ns, (long)r->admit_ns, (long)r->first_ns,
            (long)r->last_ns);
    return CEDAR_OK;
}

static cedar_status on_step(void *self, const cedar_step_row *r, cedar_err *err) {
    journal *l = self;
    count_row(l);
    if (l->steps < 20000) l->step_ns[l->steps] = r->duration_ns;
    l->steps++;
    ck_assert_int_eq(r->step_id, (int64_t)l->steps);
    l->tokens_stepped += r->rows;
    if (l->stop_at_step && (int)l->steps == l->stop_at_step) l->stop = 1;
    if (l->fail_at_step && (int)l->steps == l->fail_at_step) return cedar_fail(err, CEDAR_E_DB, "planted: disk full");
    fprintf(l->to,
            "step %ld %u=%u+%u rows %u=%u+%u replayed %u kept %u wait %u run %u pages %u/%u kv %lu win %lu %ld..%ld\n",
            (long)r->step_id, r->entries, r->prefill_entries, r->decode_entries, r->rows, r->prefill_rows,
            r->decode_rows, r->replayed_rows, r->kept_rows, r->waiting, r->running, r->pages_free, r->pages_cached,
            (unsigned long)r->kv_bytes_used, (unsigned long)r->window_bytes_stored, (long)r->start_sched_ns,
            (long)r->end_sched_ns);
    fprintf(l->timing_to, "%ld %ld\n", (long)r->start_ns, (long)r->duration_ns);
    return CEDAR_OK;
}

static cedar_status on_quality(void *self, const cedar_quality_row *r, cedar_err *err) {
    journal *l = self;
    count_row(l);
    (void)err;
    l->quality++;
    l->kl_sum += r->kl_pq + r->kl_qp + r->js + fabs(r->logp_p - r->logp_q) + r->ratio_max + !r->top1_same;
    fprintf(l->to, "quality %ld %u %d %d %a %a\n", (long)r->request_id, r->pos, r->offset, r->token, r->kl_pq,
            r->logp_q);
    return CEDAR_OK;
}

static cedar_status on_end(void *self, const cedar_run_end_row *r, cedar_err *err) {
    journal *l = self;
    (void)err;
    snprintf(l->status, sizeof l->status, "%s", r->status);
    l->unfinished = r->requests_unfinished;
    l->profile_ns = r->profile_sched_ns;
    l->overflows = r->overflows;
    ck_assert_uint_eq(r->requests, l->requests);
    ck_assert_uint_eq(r->sessions, l->sessions);
    ck_assert_uint_eq(r->steps, l->steps);
    fprintf(l->to, "end %s %lx requests %lu sessions %lu unfinished %lu %lu at %ld\n", r->status,
            (unsigned long)r->event_hash, (unsigned long)r->requests, (unsigned long)r->sessions,
            (unsigned long)r->requests_unfinished, (unsigned long)r->sessions_unfinished, (long)r->end_sched_ns);
    fprintf(l->timing_to, "%ld\n", (long)r->end_ns);
    return CEDAR_OK;
}

__attribute__((unused)) static void journal_free(journal *l) {
    free(l->rows);
    free(l->timing);
    free(l);
}

/* Plays a trace file or text ("{" or a path) with options "key=value key=value". */
__attribute__((unused)) static cedar_status play_run(const char *trace, const char *settings, journal *l,
                                                     const cedar_recorded *recorded, cedar_run_result *out,
                                                     cedar_err *err) {
    char path[] = "/tmp/cedar-test-XXXXXX.json", words[512], *save = NULL;
    bool made = *trace == '{';
    if (made) {
        int fd = mkstemps(path, 5);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(write(fd, trace, strlen(trace)), (ssize_t)strlen(trace));
        close(fd);
    }
    cedar_run_opts *o = NULL;
    OK(cedar_opts_new(&o, &failure));
    OK(cedar_opts_set(o, "model", JOURNAL_MODEL, &failure));
    OK(cedar_opts_set(o, "trace", made ? path : trace, &failure));
    snprintf(words, sizeof words, "%s", settings);
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(w, '=');
        *equals = 0;
        OK(cedar_opts_set(o, w, equals + 1, &failure));
    }
    l->to = open_memstream(&l->rows, &l->rows_bytes);
    l->timing_to = open_memstream(&l->timing, &l->timing_bytes);
    cedar_observer obs = { .self = l,
                           .run_begin = on_run,
                           .session = on_session,
                           .request = on_request,
                           .step = on_step,
                           .quality = on_quality,
                           .run_end = on_end };
    cedar_run_host host = { .observer = &obs, .data_dir = ".", .recorded = recorded, .stop = &l->stop,
                            .cache = l->cache, .hardware = l->hardware };
    memset(out, 0, sizeof *out);
    cedar_mem_fail_at(l->fail_alloc);
    cedar_status st = cedar_run(o, 1, &host, out, err);
    cedar_mem_fail_at(0);
    fclose(l->to);
    fclose(l->timing_to);
    cedar_opts_free(o);
    if (made) unlink(path);
    return st;
}

__attribute__((unused)) static journal *run_ok(const char *trace, const char *settings,
                                               const cedar_recorded *recorded, cedar_run_result *out) {
    journal *l = calloc(1, sizeof *l);
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    cedar_status st = play_run(trace, settings, l, recorded, out, &err);
    ck_assert_msg(st == CEDAR_OK, "%s", err.msg);
    ck_assert_int_eq(cedar_mem_live(), live);
    ck_assert_str_eq(l->status, "finished");
    ck_assert_uint_eq(l->requests, out->requests);
    ck_assert_uint_eq(l->errors, out->errors);
    ck_assert_uint_eq(l->in_tokens, out->in_tokens);
    ck_assert_uint_eq(l->out_tokens, out->out_tokens);
    /* conservation: every row fed is a prompt token not served by the cache, a replayed one, or an answer token but the
     * last */
    if (l->fed_done == l->requests) ck_assert_uint_eq(l->tokens_stepped, l->fed);
    return l;
}

#endif
