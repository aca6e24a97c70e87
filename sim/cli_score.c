/* cedar score: the log-probability of given tokens, each from the tokens before it, in exact mode.
 *
 * Token files are int32, little endian; sequences start at position 0 and nothing is replayed or trimmed. */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "reports/reports.h"
#include "sim/cli_int.h"
#include "sim/sim_int.h"

typedef struct score {
    const cedar_config *c;
    cedar_engine *engine;
    uint32_t step;              /* rows of a step */
    float *logits;              /* [step, vocab] */
    bool rows;
    const char *dump_path;      /* logits of all rows go there; NULL: nowhere */
    FILE *dump;
    double nats;                /* of the file: sums */
    uint64_t right;
} score;

static cedar_status read_tokens(const char *path, const cedar_config *c, int32_t **out, uint32_t *count,
                                cedar_err *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return cedar_fail(err, CEDAR_E_IO, "%s: cannot be opened", path);
    uint32_t n = 0, room = (uint32_t)c->positions_max;
    uint8_t b[4];
    cedar_status st = CEDAR_OK;
    int32_t *t = cedar_calloc(room, sizeof *t);
    if (!t) st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %u tokens", path, room);
    size_t got = 0;
    while (!st && (got = fread(b, 1, sizeof b, f)) == sizeof b) {
        uint32_t id = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        if (n == room)
            st = cedar_fail(err, CEDAR_E_ARG, "%s: has more tokens than the model's %u positions", path, room);
        else if (id >= (uint32_t)c->vocab)
            st = cedar_fail(err, CEDAR_E_ARG, "%s: token %u is %d, it must lie in the vocabulary of %d", path, n,
                            (int32_t)id, c->vocab);
        else t[n++] = (int32_t)id;
    }
    if (!st && ferror(f)) st = cedar_fail(err, CEDAR_E_IO, "%s: cannot be read", path);
    if (!st && (got || n < 2))
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: holds %u tokens and %zu bytes more; it must be a list of at least 2 "
                        "tokens, int32, little endian", path, n, got);
    fclose(f);
    if (st) cedar_free(t);
    else *out = t, *count = n;
    return st;
}

/* Log-probability of `token`; *best: the most likely one, lowest id on ties. */
static double log_probability(const float *logits, int32_t vocab, int32_t token, int32_t *best) {
    double sum = 0;
    *best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[*best]) *best = i;
    double top = (double)logits[*best];
    for (int32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - top);
    return (double)logits[token] - top - log(sum);
}

static cedar_status feed(score *s, int32_t seq, const int32_t *tokens, uint32_t pos, uint32_t rows, cedar_err *err) {
    static const cedar_replay_rules exact = { 0 };
    cedar_plan_entry entry;
    cedar_plan_rows(&exact, CEDAR_ROWS_PREFILL, pos, rows, cedar_seq_bounds(s->engine, seq), 0, true, rows, &entry);
    entry.seq = seq;
    entry.tokens = tokens + pos;
    cedar_step_plan plan = { .cut = CEDAR_CUT_AFTER, .entry_count = 1, .entries = &entry };
    cedar_plan_total(&plan);
    cedar_step_out out = { .logits = s->logits };
    return cedar_engine_step(s->engine, &plan, &out, err);
}

/* Row p tells of token p + 1; the last row tells of none. */
static void take_rows(score *s, const char *path, const int32_t *tokens, uint32_t count, uint32_t pos, uint32_t rows) {
    for (uint32_t r = 0; r < rows && pos + r + 1 < count; r++) {
        int32_t token = tokens[pos + r + 1], best;
        double logp = log_probability(s->logits + (size_t)r * (size_t)s->c->vocab, s->c->vocab, token, &best);
        s->nats -= logp;
        s->right += best == token;
        if (!s->rows) continue;
        cedar_report_csv_text(path, stdout);
        printf(",%u,%d,%d,%.6f\n", pos + r + 1, token, best, logp);
    }
}

static cedar_status score_tokens(score *s, const char *path, const int32_t *tokens, uint32_t count, cedar_err *err) {
    int32_t seq;
    cedar_status st = cedar_seq_open(s->engine, &seq, err);
    if (st) return st;
    s->nats = 0;
    s->right = 0;
    st = cedar_seq_reserve(s->engine, seq, count, err);
    for (uint32_t pos = 0, rows; pos < count && !st; pos += rows) {
        rows = count - pos < s->step ? count - pos : s->step;
        st = feed(s, seq, tokens, pos, rows, err);
        if (st) break;
        take_rows(s, path, tokens, count, pos, rows);
        size_t width = (size_t)s->c->vocab;
        if (s->dump && fwrite(s->logits, sizeof *s->logits * width, rows, s->dump) != rows)
            st = cedar_fail(err, CEDAR_E_IO, "the logits of %s cannot be written", path);
    }
    cedar_seq_close(s->engine, seq);
    if (st || s->rows) return st;
    cedar_report_csv_text(path, stdout);
    printf(",%u,%u,%.6f,%llu\n", count, count - 1, s->nats, (unsigned long long)s->right);
    return CEDAR_OK;
}

/* Written only once the model is there, and never over the tokens. */
static cedar_status open_dump(score *s, char **files, int count, cedar_err *err) {
    struct stat to, from;
    bool there = stat(s->dump_path, &to) == 0;
    for (int i = 0; i < count && there; i++)
        if (stat(files[i], &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
            return cedar_fail(err, CEDAR_E_ARG, "%s: holds tokens to be scored; give --logits another file",
                              s->dump_path);
    s->dump = fopen(s->dump_path, "wb");
    return s->dump ? CEDAR_OK : cedar_fail(err, CEDAR_E_IO, "%s: cannot be written", s->dump_path);
}

static cedar_status score_files(score *s, char **files, int count, cedar_err *err) {
    cedar_status st = s->dump_path ? open_dump(s, files, count, err) : CEDAR_OK;
    if (!st) puts(s->rows ? "file,position,token,likeliest,logp" : "file,tokens,scored,nats,right");
    for (int i = 0; i < count && !st; i++) {
        int32_t *tokens = NULL;
        uint32_t n = 0;
        st = read_tokens(files[i], s->c, &tokens, &n, err);
        if (st) break;
        st = score_tokens(s, files[i], tokens, n, err);
        cedar_free(tokens);
        fflush(stdout);
    }
    return st;
}

/* Opens the engine for one sequence of the model's length, and scores. */
static cedar_status run(const char *model, cedar_engine_opts o, score *s, char **files, int count, cedar_err *err) {
    char dir[1024], origin[256];
    cedar_cli_data_dir(dir, sizeof dir);
    cedar_model *m = NULL;
    cedar_status st = cedar_model_find(model, dir, 1, CEDAR_WEIGHTS_HOST, &m, origin, err);
    if (st) return st;
    s->c = cedar_model_config(m);
    cedar_engine_opts all = cedar_engine_defaults(s->c);
    all.backend = o.backend;
    all.arith = o.arith;
    all.threads = o.threads;
    all.context_tokens = (uint32_t)s->c->positions_max;
    all.page_count = (all.context_tokens + all.page_tokens - 1) / all.page_tokens;
    all.step_rows = s->step;
    all.weight_cache_bytes = 1ull << 30;
    s->logits = cedar_calloc((size_t)s->step * (size_t)s->c->vocab, sizeof *s->logits);
    if (!s->logits) st = cedar_fail(err, CEDAR_E_OOM, "no memory for the logits of %u rows", s->step);
    if (!st) st = cedar_engine_open(m, &all, &s->engine, err);
    if (!st) st = score_files(s, files, count, err);
    cedar_status closed = cedar_engine_close(s->engine, err);
    cedar_free(s->logits);
    cedar_model_close(m);
    return st ? st : closed;
}

int cedar_cli_score(int argc, char **argv) {
    static const struct option options[] = { { "model", required_argument, NULL, 'm' },
                                             { "backend", required_argument, NULL, 'b' },
                                             { "arith", required_argument, NULL, 'a' },
                                             { "threads", required_argument, NULL, 'j' },
                                             { "step", required_argument, NULL, 's' },
                                             { "rows", no_argument, NULL, 'r' },
                                             { "logits", required_argument, NULL, 'l' },
                                             { NULL, 0, NULL, 0 } };
    const char *model = NULL;
    uint64_t threads = 0, step = 512;
    cedar_engine_opts o = { .backend = "auto", .arith = CEDAR_F32 };
    score s = { 0 };
    for (int c; (c = getopt_long(argc, argv, "m:b:a:j:s:rl:", options, NULL)) != -1;) {
        bool ok = true;
        switch (c) {
        case 'm': model = optarg; break;
        case 'b': o.backend = optarg; break;
        case 'r': s.rows = true; break;
        case 'l': s.dump_path = optarg; break;
        case 'a': ok = cedar_cli_arith("score", optarg, &o.arith); break;
        case 'j': ok = cedar_cli_count("score", "--threads", optarg, 0, 4096, &threads); break;
        case 's': ok = cedar_cli_count("score", "--step", optarg, 1, 1 << 20, &step); break;
        default: return cedar_cli_usage("score", "an option is wrong");
        }
        if (!ok) return CEDAR_EXIT_USAGE;
    }
    if (!model) return cedar_cli_usage("score", "give --model");
    if (optind == argc) return cedar_cli_usage("score", "give at least one file of tokens");
    o.threads = (uint32_t)threads;
    s.step = (uint32_t)step;
    cedar_err err = { 0 };
    cedar_status st = run(model, o, &s, argv + optind, argc - optind, &err);
    if (s.dump && fclose(s.dump) && !st) st = cedar_fail(&err, CEDAR_E_IO, "%s: cannot be written", s.dump_path);
    return st ? cedar_cli_fail(&err) : CEDAR_EXIT_OK;
}
