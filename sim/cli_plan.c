/* cedar plan: what a model needs, and how many sequences fit. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sim/cli_int.h"
#include "sim/sim_int.h"

/* A number with one of the given suffixes. */
typedef struct suffix { const char *text; uint64_t factor; } suffix;

static bool parse_number(const char *text, const suffix *suffixes, uint64_t most, uint64_t *out) {
    char *end;
    if (!isdigit((unsigned char)*text)) return false;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || !n) return false;
    for (const suffix *s = suffixes; s->text; s++) {
        if (strcasecmp(end, s->text)) continue;
        return !__builtin_mul_overflow((uint64_t)n, s->factor, out) && *out <= most;
    }
    return false;
}

static bool parse_size(const char *text, uint64_t *out) {
    static const suffix s[] = { { "", 1 },
                                { "B", 1 },
                                { "kB", 1000 },
                                { "MB", 1000000 },
                                { "GB", 1000000000 },
                                { "TB", 1000000000000 },
                                { "KiB", 1ull << 10 },
                                { "MiB", 1ull << 20 },
                                { "GiB", 1ull << 30 },
                                { "TiB", 1ull << 40 },
                                { NULL, 0 } };
    return parse_number(text, s, UINT64_MAX, out);
}

static bool parse_tokens(const char *text, uint32_t most, uint32_t *out) {
    static const suffix s[] = { { "", 1 }, { "k", 1024 }, { "m", 1 << 20 }, { NULL, 0 } };
    uint64_t n;
    if (!parse_number(text, s, most, &n)) return false;
    *out = (uint32_t)n;
    return true;
}

static void print_bytes(const char *what, uint64_t bytes, const char *note) {
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB" };
    double v = (double)bytes;
    int u = 0;
    for (; v >= 1000 && u < 4; u++) v /= 1000;
    printf("  %-34s %10.*f %-2s  %s\n", what, u ? 2 : 0, v, units[u], note);
}

static uint32_t pages_of(uint32_t tokens, uint32_t page) { return (tokens + page - 1) / page; }

static void set_sequences(cedar_engine_opts *o, uint32_t seqs) {
    uint64_t pages = (uint64_t)seqs * pages_of(o->context_tokens, o->page_tokens);
    o->seq_count = o->step_seqs = seqs;
    o->page_count = pages > UINT32_MAX ? UINT32_MAX : (uint32_t)pages;   /* refused, not made smaller */
}

static void print_shape(const cedar_config *c, const cedar_memory_plan *p) {
    printf("model %s: %d layers, %d hidden, %d experts, vocabulary %d, window %d; %.2f billion parameters\n\n", c->name,
           c->layers, c->hidden, c->experts, c->vocab, c->window, (double)p->parameters / 1e9);
    puts("weights");
    const struct { const char *what; uint64_t bytes;
    } parts[] = { { "experts", p->expert_bytes },
                  { "shared experts", p->shared_bytes },
                  { "attention", p->attention_bytes },
                  { "Engram tables", p->engram_table_bytes },
                  { "residual streams (mHC)", p->hc_bytes },
                  { "drafter", p->draft_bytes },
                  { "embedding and head", p->embed_head_bytes },
                  { "other", p->other_bytes } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].bytes) print_bytes(parts[i].what, parts[i].bytes, "");
    print_bytes("all weights", p->weight_bytes, "as stored in the checkpoint");
    puts("caches");
    char note[128];
    snprintf(note, sizeof note, "(%.3f B per token)", (double)p->kv_token_bytes_x1000 / 1000);
    print_bytes("global KV and index keys, 1k tokens", p->kv_token_bytes_x1000 * 1024 / 1000, note);
    snprintf(note, sizeof note, "what storing a prefix's windows costs: as much as %.0f tokens of global KV",
             (double)(p->window_bytes + p->draft_ring_bytes) * 1000 / (double)p->kv_token_bytes_x1000);
    print_bytes("windows of all layers, one position", p->window_bytes + p->draft_ring_bytes, note);
}

static void print_engine(const cedar_engine_opts *o, const cedar_memory_plan *p) {
    printf("\nengine: %u sequence%s of %u tokens, pages of %u tokens, steps of %u rows\n", o->seq_count,
           o->seq_count == 1 ? "" : "s", o->context_tokens, o->page_tokens, o->step_rows);
    char note[64];
    snprintf(note, sizeof note, o->gpus > 1 ? "its share of %u pages" : "%u pages", o->page_count);
    if (o->gpus > 1) printf("on each of %u GPUs, the fullest of them\n", o->gpus);
    print_bytes("weights", p->rank_weight_bytes, "");
    print_bytes("KV pool", p->rank_pool_bytes, note);
    print_bytes("sequences", p->seq_bytes * o->seq_count, "windows, open groups, token history");
    print_bytes("workspace", p->rank_workspace_bytes, "");
    print_bytes("total", p->rank_bytes, "");
    if (o->gpus > 1) print_bytes("all GPUs together", p->total_bytes, "");
}

/* Most sequences whose plan stays within `hbm`; 0 when not even one does. */
static cedar_status count_fitting(const cedar_config *c, cedar_engine_opts o, uint64_t hbm, uint32_t *out,
                                  cedar_err *err) {
    uint32_t low = 0, high = 1u << 20;
    uint32_t per_seq = pages_of(o.context_tokens, o.page_tokens);
    if (high > INT32_MAX / per_seq) high = INT32_MAX / per_seq;
    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        cedar_memory_plan p;
        set_sequences(&o, mid);
        cedar_status st = cedar_plan_memory(c, &o, &p, err);
        if (st) return st;
        if (p.rank_bytes <= hbm) low = mid;
        else high = mid - 1;
    }
    *out = low;
    return CEDAR_OK;
}

static cedar_status plan(const cedar_config *c, cedar_engine_opts *o, uint64_t hbm, uint32_t seqs, cedar_err *err) {
    cedar_memory_plan p;
    set_sequences(o, seqs ? seqs : 1);
    cedar_status st = cedar_plan_memory(c, o, &p, err);
    if (st) return st;
    print_shape(c, &p);
    print_engine(o, &p);
    if (!hbm) return CEDAR_OK;
    uint32_t fit;
    st = count_fitting(c, *o, hbm, &fit, err);
    if (st) return st;
    putchar('\n');
    print_bytes("given", hbm, o->gpus > 1 ? "for each GPU" : "");
    if (fit) printf("%u sequence%s of %u tokens fit\n", fit, fit == 1 ? "" : "s", o->context_tokens);
    else printf("not even one sequence of %u tokens fits\n", o->context_tokens);
    return CEDAR_OK;
}

int cedar_cli_plan(int argc, char **argv) {
    static const struct option options[] = { { "model", required_argument, NULL, 'm' },
                                             { "hbm", required_argument, NULL, 'b' },
                                             { "context", required_argument, NULL, 'c' },
                                             { "seqs", required_argument, NULL, 's' },
                                             { "page", required_argument, NULL, 'p' },
                                             { "step", required_argument, NULL, 'r' },
                                             { "gpus", required_argument, NULL, 'g' },
                                             { NULL, 0, NULL, 0 } };
    const char *model = NULL;
    uint64_t hbm = 0;
    uint64_t gpus = 1;
    uint32_t context = 0, seqs = 0, page = 0, step = 0;
    for (int c; (c = getopt_long(argc, argv, "m:b:c:s:p:r:g:", options, NULL)) != -1;) {
        bool ok = true;
        switch (c) {
        case 'm': model = optarg; break;
        case 'b': ok = parse_size(optarg, &hbm); break;
        case 'c': ok = parse_tokens(optarg, 1u << 30, &context); break;
        case 's': ok = parse_tokens(optarg, 1u << 20, &seqs); break;
        case 'p': ok = parse_tokens(optarg, 1u << 20, &page); break;
        case 'r': ok = parse_tokens(optarg, 1u << 24, &step); break;
        case 'g':
            if (!cedar_cli_count("plan", "--gpus", optarg, 1, CEDAR_GPUS_MAX, &gpus)) return CEDAR_EXIT_USAGE;
            break;
        default: return cedar_cli_usage("plan", "an option is wrong");
        }
        if (!ok) return cedar_cli_usage("plan", "\"%s\" is not a number this option takes", optarg);
    }
    if (optind != argc) return cedar_cli_usage("plan", "\"%s\" is not an option", argv[optind]);
    if (!model) return cedar_cli_usage("plan", "give --model");
    char dir[1024];
    cedar_cli_data_dir(dir, sizeof dir);
    cedar_err err = { 0 };
    cedar_config *c = cedar_calloc(1, sizeof *c);
    cedar_status st =
        c ? cedar_shape_find(model, dir, c, &err) : cedar_fail(&err, CEDAR_E_OOM, "no memory for a model's shape");
    if (!st) {
        cedar_engine_opts o = cedar_engine_defaults(c);
        if (context) o.context_tokens = context;
        if (page) o.page_tokens = page;
        if (step) o.step_rows = step;
        o.gpus = (uint32_t)gpus;
        if (o.context_tokens > (uint32_t)c->positions_max)
            st = cedar_fail(&err, CEDAR_E_ARG, "--context %u is more than the model's %d positions", o.context_tokens,
                            c->positions_max);
        if (!st) st = plan(c, &o, hbm, seqs, &err);
    }
    cedar_free(c);
    return st ? cedar_cli_fail(&err) : CEDAR_EXIT_OK;
}
