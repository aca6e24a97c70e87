/* What an audit needs from the rest of cedar: the model, and documents from traces. */
#include "sim/audit_host.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "sim/run_int.h"
#include "sim/sim_int.h"

enum { PATH_BYTES = 2048 };

/* --- documents from traces ---------------------------------------------------------------------------------------- */

static uint32_t common_tokens(const cedar_audit_turn *a, const cedar_audit_turn *b) {
    uint32_t n = 0, most = a->end < b->prompt ? a->end : b->prompt - 1;     /* one new token at least */
    while (n < most && a->tokens[n] == b->tokens[n]) n++;
    return n;
}

static cedar_status fill_turn(const cedar_prompts *p, const cedar_prompt_rules *rules, const cedar_trace *t,
                              cedar_turn_ref ref, cedar_audit_turn *turn, int32_t **block, cedar_err *err) {
    const cedar_turn *recorded = &t->streams[0].turns[ref.turn];
    turn->prompt = cedar_prompt_scale(rules, recorded->in_tokens);
    turn->end = turn->prompt + cedar_prompt_scale(rules, recorded->out_tokens);
    *block = cedar_calloc(turn->end, sizeof **block);
    if (!*block) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u tokens", turn->end);
    cedar_prompt_fill(p, &ref, 0, turn->end, *block);
    turn->tokens = *block;
    return CEDAR_OK;
}

/* Turns until one is too long for the model, or as many as were asked for. */
static cedar_status fill_doc(const cedar_audit_opts *o, const cedar_prompts *p, const cedar_prompt_rules *rules,
                             const cedar_trace *t, uint32_t trace, uint32_t limit, cedar_audit_doc *d, int32_t **blocks,
                             cedar_err *err) {
    const cedar_stream *s = &t->streams[0];
    uint32_t most = s->turn_count < o->turns ? s->turn_count : o->turns;
    snprintf(d->name, sizeof d->name, "%s", t->id);
    d->turns = cedar_calloc(most, sizeof *d->turns);
    if (!d->turns) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u turns", most);
    cedar_turn_ref ref = { .trace = trace, .salt = cedar_prompt_salt(t, o->seed, 0, 0) };
    for (; ref.turn < most; ref.turn++) {
        const cedar_turn *recorded = &s->turns[ref.turn];
        uint64_t end = (uint64_t)cedar_prompt_scale(rules, recorded->in_tokens) +
                       cedar_prompt_scale(rules, recorded->out_tokens);
        if (end > limit) break;
        cedar_audit_turn *turn = &d->turns[d->turn_count];
        cedar_status st = fill_turn(p, rules, t, ref, turn, &blocks[ref.turn], err);
        if (st) return st;
        if (turn->prompt < 2) continue;     /* nothing stands before its last row */
        if (d->turn_count) turn->hit = common_tokens(&d->turns[d->turn_count - 1], turn);
        d->turn_count++;
    }
    return CEDAR_OK;
}

cedar_status cedar_audit_docs_traces(const cedar_audit_opts *o, const cedar_corpus *corpus, const cedar_config *c,
                                     uint32_t length_num, uint32_t length_den, cedar_audit_docs **out,
                                     cedar_err *err) {
    cedar_prompt_rules rules = { .vocab = c->vocab, .length_num = length_num, .length_den = length_den };
    cedar_run_special_ids(c, &rules);
    uint32_t limit = cedar_audit_context(o, c),
             count = corpus->trace_count < o->docs ? corpus->trace_count : o->docs;
    cedar_prompts *p = NULL;
    cedar_audit_docs *d = NULL;
    cedar_status st = cedar_prompts_new(corpus, &rules, &p, err);
    if (!st) st = cedar_audit_docs_new(count, count * o->turns, &d, err);
    uint32_t used = 0;
    for (uint32_t i = 0; i < count && !st; i++) {
        if (corpus->traces[i].stream_count == 0) continue;
        st = fill_doc(o, p, &rules, &corpus->traces[i], i, limit, &d->docs[used], d->blocks + (size_t)i * o->turns,
                      err);
        if (d->docs[used].turn_count) used++;
        else if (!st) cedar_free(d->docs[used].turns), d->docs[used] = (cedar_audit_doc){ 0 };
    }
    if (!st && !used)
        st = cedar_fail(err, CEDAR_E_ARG, "traces %s: no root stream begins with a turn that fits into %u tokens, so "
                        "there is no document to audit; make length_scale smaller%s", o->trace, limit,
                        limit < (uint32_t)c->positions_max ? " or context_max larger" : "");
    if (!st) {
        d->count = used;
        st = cedar_audit_docs_check(d, err);
        if (st) cedar_fail_in(err, st, "traces %s", o->trace);
    }
    cedar_prompts_free(p);
    if (st) {
        if (d) d->count = count;
        cedar_audit_docs_free(d);
        return st;
    }
    *out = d;
    return CEDAR_OK;
}

/* --- playing ------------------------------------------------------------------------------------------------------ */

/* The options that an audit and a run have in common, so that both share what is loaded. */
static cedar_status shared_options(const cedar_audit_opts *o, cedar_run_opts **out, cedar_err *err) {
    static const char *const keys[] = { "model", "weights_seed", "backend", "trace", "length_scale" };
    char value[CEDAR_AUDIT_LIST_MAX * 64];
    size_t count;
    const cedar_audit_option *table = cedar_audit_table(&count);
    cedar_status st = cedar_opts_new(out, err);
    for (size_t i = 0; i < count && !st; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys && !st; k++) {
            if (strcmp(table[i].key, keys[k])) continue;
            cedar_audit_get(o, &table[i], value, sizeof value);
            st = cedar_opts_set(*out, keys[k], value, err);
        }
    return st;
}

/* A file of documents as given, else the same under data_dir, as for traces. */
static cedar_status docs_from_file(const cedar_audit_opts *o, const char *data_dir, const cedar_config *c,
                                   cedar_audit_docs **out, cedar_err *err) {
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", data_dir ? data_dir : ".", o->documents);
    bool here = access(o->documents, R_OK) == 0 || n >= PATH_BYTES || access(path, R_OK) != 0;
    return cedar_audit_docs_file(o, here ? o->documents : path, c, out, err);
}

static cedar_status make_docs(const cedar_audit_opts *o, const cedar_run_opts *shared, const cedar_config *c,
                              const cedar_audit_setting *s, cedar_audit_docs **out, char what[256], cedar_err *err) {
    if (*o->documents && *o->trace)
        return cedar_fail(err, CEDAR_E_ARG, "documents is \"%s\" and trace \"%s\"; an audit takes one of them",
                          o->documents, o->trace);
    if (*o->documents) {
        snprintf(what, 256, "those of %.240s", o->documents);
        return docs_from_file(o, s->data_dir, c, out, err);
    }
    if (!*o->trace) {
        snprintf(what, 256, "made from seed %llu, pattern %s", (unsigned long long)o->seed, o->pattern);
        return cedar_audit_docs_make(o, c, out, err);
    }
    cedar_corpus *corpus = NULL;
    cedar_status st = cedar_run_load_corpus(s->cache, shared, s->data_dir, &corpus, err);
    if (st) return st;
    snprintf(what, 256, "root streams of %.100s, sha256 %.12s..., lengths times %.32s", o->trace, corpus->hash,
             o->length_scale);
    st = cedar_audit_docs_traces(o, corpus, c, (uint32_t)shared->length_num, (uint32_t)shared->length_den, out, err);
    if (!s->cache) cedar_corpus_free(corpus);
    return st;
}

cedar_status cedar_audit_play(const cedar_audit_opts *o, int64_t audit_id, const cedar_audit_setting *s,
                              cedar_audit_result *out, cedar_err *err) {
    cedar_run_opts *shared = NULL;
    cedar_model *model = NULL;
    cedar_audit_docs *docs = NULL;
    char origin[256], hash[65], what[256];
    cedar_status st = shared_options(o, &shared, err);
    if (!st) st = cedar_run_load_model(s->cache, shared, s->data_dir, &model, origin, hash, err);
    if (!st) st = make_docs(o, shared, cedar_model_config(model), s, &docs, what, err);
    if (!st) {
        cedar_audit_host host = { .observer = s->observer, .model = model, .model_hash = hash, .model_origin = origin,
                                  .docs = docs, .documents = what, .progress = s->progress, .self = s->self,
                                  .stop = s->stop };
        st = cedar_audit(o, audit_id, &host, out, err);
    }
    cedar_audit_docs_free(docs);
    if (!s->cache) cedar_model_close(model);
    cedar_opts_free(shared);
    return st;
}
