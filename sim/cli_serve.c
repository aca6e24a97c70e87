/* cedar serve: the engine behind an OpenAI-compatible endpoint, with the options of runs. */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "reports/reports.h"
#include "serve/serve.h"
#include "sim/cli_int.h"
#include "sim/run_int.h"

/* What stands in a database's place for a scenario; `cedar replay` says the sentence. */
static const char SCENARIO[] =
    "error(\"this database was written by `cedar serve`: its requests came from clients, so there is nothing to play "
    "again\", 0)\n";

typedef struct serving {
    const char *host, *db;
    uint64_t port, queue, connections, body, grace_s;
    bool replace, quiet;
    const char **words;         /* [word_count] key=value; owned */
    size_t word_count;
    char data_dir[1024];
    cedar_run_opts *opts;
    cedar_model *model;
    char origin[256], model_hash[65];
    cedar_serve_opts serve;
    cedar_store *store;         /* made behind the server: an address that is taken must cost no older database */
    cedar_observer observer;    /* the store's */
    cedar_server *server;
} serving;

/* --- options ------------------------------------------------------------------------------------------------------ */

/* Run options that mean something here. */
static const char *const taken[] = { "label", "model", "weights_seed", "backend", "arith", "threads", "lanes", "seed",
                                     "context_max", "replay", "cut", "encoder_rows", "decoder_rows",
                                     "adopt_short_hits", "prefix_cache", "page_tokens", "kv_pages",
                                     "window_cache_bytes", "step_tokens", "chunk_tokens", "batch_max", "graphs",
                                     "gpus", "one_stream", "allreduce" };

static cedar_status set_word(serving *x, const char *word, cedar_err *err) {
    char key[64];
    const char *equals = strchr(word, '=');
    size_t n = (size_t)(equals - word);
    if (n >= sizeof key) return cedar_fail(err, CEDAR_E_ARG, "unknown option \"%.64s\"", word);
    memcpy(key, word, n);
    key[n] = 0;
    bool known = !cedar_opts_get(x->opts, key);     /* cedar_opts_set says what is near */
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) known |= strcmp(key, taken[i]) == 0;
    if (!known)
        return cedar_fail(err, CEDAR_E_ARG, "%s is an option of runs that a server has no use for; `cedar help serve` "
                          "lists those it takes", key);
    return cedar_opts_set(x->opts, key, equals + 1, err);
}

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void make_engine_opts(serving *x) {
    const cedar_run_opts *o = x->opts;
    const cedar_config *c = cedar_model_config(x->model);
    cedar_engine_opts *e = &x->serve.engine;
    *e = cedar_engine_defaults(c);
    uint64_t most = (uint64_t)c->positions_max, seqs = min_u64((uint64_t)o->lanes, (uint64_t)o->step_tokens);
    e->backend = cedar_opts_get(o, "backend");
    e->eager = o->graphs == CEDAR_GRAPHS_OFF;
    e->arith = o->arith;
    e->threads = (uint32_t)o->threads;
    e->gpus = (uint32_t)o->gpus;
    e->stop = cedar_cli_stop();
    e->one_stream = o->one_stream;
    e->allreduce = o->allreduce;
    e->page_tokens = (uint32_t)o->page_tokens;
    e->context_tokens = (uint32_t)(o->context_max ? min_u64((uint64_t)o->context_max, most) : most);
    e->seq_count = e->step_seqs = (uint32_t)(o->batch_max ? min_u64(seqs, (uint64_t)o->batch_max) : seqs);
    uint64_t pages = (e->context_tokens + e->page_tokens - 1) / e->page_tokens;
    e->page_count = (uint32_t)min_u64(o->kv_pages ? (uint64_t)o->kv_pages : 4 * (uint64_t)o->lanes * pages, INT32_MAX);
    e->step_rows = (uint32_t)o->step_tokens;
    e->verify_rows = 0;
}

static cedar_status load(serving *x, cedar_err *err) {
    const cedar_run_opts *o = x->opts;
    if (o->backend != CEDAR_BACKEND_AUTO && o->backend != CEDAR_BACKEND_CPU && o->backend != CEDAR_BACKEND_CUDA)
        return cedar_fail(err, CEDAR_E_ARG,
                          "backend = \"%s\" computes nothing here that could be answered; take \"cpu\" or \"cuda\"",
                          cedar_opts_get(o, "backend"));
    cedar_status st = cedar_run_load_model(NULL, o, x->data_dir, &x->model, x->origin, x->model_hash, err);
    if (st) return st;
    const cedar_config *c = cedar_model_config(x->model);
    x->serve = (cedar_serve_opts){ .model = x->model,
                                   .name = c->name,
                                   .rules = cedar_run_replay_rules(o, c),
                                   .prefix_cache = o->prefix_cache,
                                   .window_bytes_max = (uint64_t)o->window_cache_bytes,
                                   .chunk_rows = (uint32_t)o->chunk_tokens,
                                   .seed = (uint64_t)o->seed,
                                   .address = x->host,
                                   .port = (uint16_t)x->port,
                                   .body_bytes_max = x->body,
                                   .connections_max = (uint32_t)x->connections,
                                   .queue_max = (uint32_t)x->queue,
                                   .grace_ns = (int64_t)x->grace_s * 1000000000,
                                   .run_id = 1 };
    make_engine_opts(x);
    return cedar_engine_gpus_check(x->serve.engine.backend, x->serve.engine.gpus, err);
}

/* --- the database ------------------------------------------------------------------------------------------------- */

static cedar_status begin_run(serving *x, cedar_err *err) {
    static const char *const replays[] = { "exact", "decoder", "encoder", "both" };
    const cedar_run_opts *o = x->opts;
    const cedar_config *c = cedar_model_config(x->model);
    cedar_memory_plan memory;
    char *json = NULL, hash[CEDAR_SHA256_HEX];
    cedar_status st = cedar_plan_memory(c, &x->serve.engine, &memory, err);
    if (!st) st = cedar_opts_json(o, &json, err);
    if (st) return st;
    cedar_sha256 s;
    cedar_sha256_init(&s);
    cedar_sha256_add(&s, json, strlen(json));
    cedar_sha256_hex(&s, hash);
    const cedar_run_row row = { .run_id = 1,
                                .label = *o->label ? o->label : replays[o->replay],
                                .config_json = json,
                                .config_hash = hash,
                                .model_name = c->name,
                                .model_hash = x->model_hash,
                                .model_origin = x->origin,
                                .trace_paths = "",
                                .trace_hash = "",
                                .backend = cedar_serve_backend(x->server),
                                .arith = cedar_opts_get(o, "arith"),
                                .clock = "wall",
                                .replay = replays[o->replay],
                                .rules = "served",
                                .admission = "",
                                .floor_mode = "mark",
                                .floor_percentile = (uint32_t)o->floor_percentile,
                                .seed = (uint64_t)o->seed,
                                .lanes = (uint32_t)o->lanes,
                                .vocab = (uint32_t)c->vocab,
                                .window = (uint32_t)c->window,
                                .page_tokens = x->serve.engine.page_tokens,
                                .kv_token_bytes_x1000 = memory.kv_token_bytes_x1000,
                                .window_snap_bytes = memory.window_bytes + memory.draft_ring_bytes,
                                .plan_total_bytes = memory.total_bytes };
    const cedar_observer *to = cedar_store_observer(x->store);
    st = to->run_begin(to->self, &row, err);
    cedar_free(json);
    return st;
}

static cedar_status end_run(serving *x, cedar_status st, const cedar_err *why, cedar_err *err) {
    const cedar_serve_totals t = cedar_serve_result(x->server);
    const cedar_run_end_row row = { .run_id = 1,
                                    .status = st ? "failed" : "finished",
                                    .error = st ? why->msg : "",
                                    .event_hash = t.event_hash,
                                    .requests = t.requests,
                                    .steps = t.steps,
                                    .end_sched_ns = t.end_ns,
                                    .end_ns = t.end_ns,
                                    .wall_ns = t.end_ns,
                                    .gate_ok = t.requests > t.failed && t.failed * 10 <= t.requests - t.failed,
                                    .invalid = "",
                                    .invalid_why = "" };
    const cedar_observer *to = cedar_store_observer(x->store);
    return to->run_end(to->self, &row, err);
}

/* --- serving ------------------------------------------------------------------------------------------------------ */

static void say_where(const serving *x) {
    bool six = strchr(x->host, ':') != NULL;
    printf("cedar: serving %s on http://%s%s%s:%u/v1\n", x->serve.name, six ? "[" : "", x->host, six ? "]" : "",
           cedar_serve_port(x->server));
    fflush(stdout);
}

/* The signals come to this thread, which is the engine's: others are made with them blocked. */
static cedar_status open_server(serving *x, cedar_err *err) {
    sigset_t ends, before;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    cedar_status st = cedar_serve_open(&x->serve, &x->server, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

static cedar_status open_store(serving *x, cedar_err *err) {
    const cedar_cli_source source = { .path = "cedar serve", .text = SCENARIO, .words = x->words,
                                      .word_count = x->word_count, .seed = (uint64_t)x->opts->seed };
    cedar_status st = cedar_cli_store(x->db, x->replace, &source, &x->store, err);
    if (!st) x->observer = *cedar_store_observer(x->store);
    return st ? st : begin_run(x, err);
}

static cedar_status run_server(serving *x, cedar_err *err) {
    cedar_cli_catch_signals();
    if (x->db) x->serve.observer = &x->observer;
    cedar_status st = open_server(x, err);
    if (!st && x->db) st = open_store(x, err);
    if (st) return st;
    if (!x->quiet) say_where(x);
    st = cedar_serve_run(x->server, cedar_cli_stop(), err);
    if (!x->db) return st;
    cedar_err why = { 0 };
    cedar_status ended = end_run(x, st, err, &why);
    if (ended && !st) *err = why;
    return st ? st : ended;
}

static cedar_status serve_all(serving *x, cedar_err *err) {
    cedar_status st = cedar_opts_new(&x->opts, err);
    for (size_t i = 0; i < x->word_count && !st; i++) st = set_word(x, x->words[i], err);
    if (!st && x->db) st = cedar_cli_check_place(x->db, err);
    if (!st && x->db && access(x->db, F_OK) == 0 && !x->replace)
        st = cedar_fail(err, CEDAR_E_IO, "%s exists; add --replace to overwrite it, or -o FILE to write elsewhere",
                        x->db);
    if (!st) st = load(x, err);
    if (!st) st = run_server(x, err);
    cedar_status left = cedar_serve_close(x->server, err);
    if (!st) st = left;
    cedar_err why = { 0 };
    cedar_status closed = cedar_store_close(x->store, !st, &why);
    if (closed && !st) *err = why;
    if (x->store && !x->quiet) fprintf(stderr, "%swrote %s\n", st ? "not finished; " : "", x->db);
    cedar_model_close(x->model);
    cedar_opts_free(x->opts);
    return st ? st : closed;
}

int cedar_cli_serve(int argc, char **argv) {
    static const struct option options[] = { { "host", required_argument, NULL, 'H' },
                                             { "port", required_argument, NULL, 'p' },
                                             { "queue", required_argument, NULL, 'Q' },
                                             { "connections", required_argument, NULL, 'C' },
                                             { "body", required_argument, NULL, 'B' },
                                             { "grace", required_argument, NULL, 'G' },
                                             { "model", required_argument, NULL, 'm' },
                                             { "output", required_argument, NULL, 'o' },
                                             { "replace", no_argument, NULL, 'r' },
                                             { "quiet", no_argument, NULL, 'q' },
                                             { NULL, 0, NULL, 0 } };
    serving x = { .host = "127.0.0.1", .port = 8000, .queue = 4096, .connections = 4096, .body = 16 << 20,
                  .grace_s = 30 };
    char model[1024] = "";
    for (int c; (c = getopt_long(argc, argv, "H:p:m:o:rq", options, NULL)) != -1;) {
        bool good = true;
        if (c == 'H') x.host = optarg;
        else if (c == 'p') good = cedar_cli_count("serve", "--port", optarg, 0, 65535, &x.port);
        else if (c == 'Q') good = cedar_cli_count("serve", "--queue", optarg, 1, 1000000, &x.queue);
        else if (c == 'C') good = cedar_cli_count("serve", "--connections", optarg, 1, 1000000, &x.connections);
        else if (c == 'B') good = cedar_cli_count("serve", "--body", optarg, 1, 1 << 30, &x.body);
        else if (c == 'G') good = cedar_cli_count("serve", "--grace", optarg, 0, 86400, &x.grace_s);
        else if (c == 'm') snprintf(model, sizeof model, "model=%s", optarg);
        else if (c == 'o' && !*optarg) return cedar_cli_usage("serve", "the name of the database is empty");
        else if (c == 'o') x.db = optarg;
        else if (c == 'r') x.replace = true;
        else if (c == 'q') x.quiet = true;
        else return cedar_cli_usage("serve", "an option is wrong");
        if (!good) return CEDAR_EXIT_USAGE;
    }
    cedar_err err = { 0 };
    for (int i = optind; i < argc; i++)
        if (!strchr(argv[i], '=')) return cedar_cli_usage("serve", "\"%s\" is not a key=value word", argv[i]);
    x.words = cedar_calloc((size_t)(argc - optind) + 1, sizeof *x.words);
    if (!x.words) cedar_fail(&err, CEDAR_E_OOM, "no memory for the command line");
    if (x.words && *model) x.words[x.word_count++] = model;
    for (int i = optind; i < argc && x.words; i++) x.words[x.word_count++] = argv[i];
    cedar_cli_data_dir(x.data_dir, sizeof x.data_dir);
    bool failed = !x.words || serve_all(&x, &err);
    cedar_free(x.words);
    return failed ? cedar_cli_fail(&err) : CEDAR_EXIT_OK;
}
