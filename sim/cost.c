/* The cost model. */
#include "sim/cost.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define KEY(name, lo, hi, value, help) { #name, offsetof(cedar_hardware, name), lo, hi, value, help }

const cedar_hardware_key *cedar_hardware_keys(size_t *count) {
    static const cedar_hardware_key keys[] = {
        KEY(gpus, 1, 1024, NAN, "GPUs that serve one replica together"),
        KEY(attention_ranks, 1, 1024, 1, "groups of GPUs with attention of their own, 1 = all share each row's"),
        KEY(hbm_bytes, 1e6, 1e15, NAN, "device memory of one GPU, bytes"),
        KEY(copy_bytes_s, 1e6, 1e15, NAN, "bandwidth of a large copy, bytes read plus written per second"),
        KEY(matmul_flop_s, 1e6, 1e19, NAN, "dense matrix rate in the precision used, operations per second"),
        KEY(attention_flop_s, 1e6, 1e19, NAN, "rate of the sparse attention core, operations per second"),
        KEY(indexer_flop_s, 1e6, 1e19, NAN, "rate of index scores, operations per second"),
        KEY(memory_efficiency, 0.01, 1, 1, "share of copy_bytes_s that weight and cache reads reach"),
        KEY(matmul_efficiency, 0.01, 1, 1, "share of matmul_flop_s that layers reach"),
        KEY(attention_efficiency, 0.01, 1, 1, "share of attention_flop_s that is reached"),
        KEY(indexer_efficiency, 0.01, 1, 1, "share of indexer_flop_s that is reached"),
        KEY(overlap, 0.01, 1, 1, "share of the shorter of weight reads and matrix operations that hides in the longer"),
        KEY(kernels_per_layer, 0, 1000, NAN, "kernel launches of one layer"),
        KEY(fused_kernels_per_layer, 0, 1000, 0, "the same with fused kernels, 0 = not described"),
        KEY(side_stream_kernels, 0, 1000, 0, "launches of a layer that a second stream hides, 0 = not described"),
        KEY(layer_ns, 0, 1e6, 0, "what a layer takes whatever it works on, beside its launches, ns"),
        KEY(launch_ns, 0, 1e6, NAN, "gap between two kernels of a graph, ns"),
        KEY(eager_launch_ns, 0, 1e6, NAN, "gap between two launches without a graph, ns"),
        KEY(step_host_ns, 0, 1e9, 0, "planning, input copies and results of a step, ns"),
        KEY(allreduce_ns, 0, 1e9, 0, "one all-reduce of a few rows, ns; used with more than one GPU"),
        KEY(fused_allreduce_ns, 0, 1e9, 0, "one all-reduce with the mHC kernel behind it, ns, 0 = not described"),
        KEY(fused_allreduce_kernels, 0, 1000, 0, "launches of a layer that the fused all-reduces save"),
        KEY(fused_allreduce_rows, 0, 1e6, 0, "most rows that a fused all-reduce takes, 0 = any"),
        KEY(stream_passes, 0, 100, 0, "residual streams that a site reads or writes, times; every GPU does all of it"),
        KEY(fused_stream_passes, 0, 100, 0, "the same with fused kernels, 0 = as stream_passes"),
        KEY(link_bytes_s, 1, 1e15, 1e12, "large all-reduces, bytes per second of one GPU"),
        KEY(host_link_bytes_s, 1, 1e15, 1e11, "host to device, bytes per second"),
        KEY(dollars_hour, 0, 1e6, 0, "price of one GPU for an hour, 0 = unknown"),
    };
    *count = sizeof keys / sizeof *keys;
    return keys;
}

static cedar_status check_hardware(const cedar_hardware *hw, cedar_err *err) {
    size_t count;
    const cedar_hardware_key *k = cedar_hardware_keys(&count);
    for (size_t i = 0; i < count; i++) {
        double v;
        memcpy(&v, (const char *)hw + k[i].offset, sizeof v);
        if (!(v >= k[i].lo && v <= k[i].hi))
            return cedar_fail(err, CEDAR_E_ARG, "hardware \"%s\": %s is %g, allowed are %g to %g (%s)", hw->name,
                              k[i].key, v, k[i].lo, k[i].hi, k[i].help);
    }
    double each = hw->gpus / hw->attention_ranks;
    if (hw->gpus != floor(hw->gpus) || each != floor(each))
        return cedar_fail(err, CEDAR_E_ARG, "hardware \"%s\": gpus = %g and attention_ranks = %g: GPUs are whole, and "
                          "each rank has as many of them", hw->name, hw->gpus, hw->attention_ranks);
    return CEDAR_OK;
}

static double touched(double experts, double per_token, uint32_t rows) {
    double base = 1 - per_token / experts, power = 1;
    for (uint32_t n = rows; n; n >>= 1) {
        if (n & 1) power *= base;
        base *= base;
    }
    return experts * (1 - power);
}

double cedar_cost_experts_touched(const cedar_config *c, uint32_t rows) {
    return touched(c->experts, c->experts_per_token, rows);
}

double cedar_cost_weight_bytes(const cedar_config *c, double ranks) {
    cedar_memory_plan p;
    cedar_err err;
    if (cedar_plan_memory(c, NULL, &p, &err)) return INFINITY;
    return (double)p.expert_bytes + ranks * (double)(p.weight_bytes - p.engram_table_bytes - p.expert_bytes);
}

static double larger(double a, double b) { return a > b ? a : b; }
static double smaller(double a, double b) { return a < b ? a : b; }

static void find_kinds(cedar_cost *k) {
    const cedar_config *c = k->c;
    for (int32_t i = 0; i < c->layers; i++) {
        if (c->is_index_source[i]) k->index_layers[k->index_layer_count++] = i;
        bool scores = c->is_index_source[i], pooled = c->candidate_source >= 0 && i > c->candidate_source;
        uint32_t n = 0;
        while (n < k->kind_count && (k->kinds[n].ratio != c->ratio[i] || k->kinds[n].scores != scores ||
                                     k->kinds[n].pooled != (scores && pooled))) n++;
        if (n == k->kind_count)
            k->kinds[k->kind_count++] =
                (cedar_cost_kind){ .ratio = (double)c->ratio[i], .scores = scores, .pooled = scores && pooled };
        k->kind[i] = (uint8_t)n;
    }
}

/* E4M3 codes with a scale byte per 32x32 tile; E2M1 nibbles with one per 32 (spec/model.md 3.2, 3.3). */
static double fp8_bytes(double parameters) { return parameters * (1 + 1.0 / 1024); }
static double fp4_bytes(double parameters) { return parameters * (0.5 + 1.0 / 32); }

/* One byte a value and one per 32 of them, as window rows (spec/model.md 3.4, 4.1). */
uint64_t cedar_cost_fp8_row_bytes(const cedar_config *c) {
    return (uint64_t)(c->head_dim + c->head_dim / 32 + c->index_dim + c->index_dim / 32);
}

/* A switch needs its figure, and the drafter its stages. */
static cedar_status check_switches(const cedar_config *c, const cedar_hardware *hw, const cedar_cost_switches *on,
                                   cedar_err *err) {
    const struct { bool on; double figure; const char *option, *key; } needs[] = {
        { on->fused_kernels, hw->fused_kernels_per_layer, "kernels = \"fused\"", "fused_kernels_per_layer" },
        { on->side_stream, hw->side_stream_kernels, "side_stream = true", "side_stream_kernels" },
        { on->fused_allreduce, hw->fused_allreduce_ns, "allreduce = \"fused\"", "fused_allreduce_ns" },
    };
    if (on->fused_allreduce && hw->gpus <= 1)
        return cedar_fail(err, CEDAR_E_ARG, "allreduce = \"fused\": hardware \"%s\" is one GPU, which has nothing to "
                          "add; take \"plain\", or hardware of several", hw->name);
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i].on && needs[i].figure <= 0)
            return cedar_fail(err, CEDAR_E_ARG, "%s: hardware \"%s\" does not describe it; give %s in its file",
                              needs[i].option, hw->name, needs[i].key);
    uint32_t block = c->stages ? (uint32_t)c->draft_block : 0;
    if (on->draft_tokens > block)
        return cedar_fail(err, CEDAR_E_ARG, "draft_tokens = %u: the drafter of %s makes %u tokens%s", on->draft_tokens,
                          c->name, block, block ? "" : ", it has none");
    return CEDAR_OK;
}

/* Per row and layer: both sites, all streams in bf16, on each GPU (spec/performance.md 2.5). */
static double stream_ns(const cedar_config *c, const cedar_hardware *hw, const cedar_cost_switches *on) {
    bool fused = on->fused_kernels && hw->fused_stream_passes > 0;
    double passes = fused ? hw->fused_stream_passes : hw->stream_passes;
    return 2 * passes * 2.0 * c->hc * c->hidden / (hw->copy_bytes_s * hw->memory_efficiency) * 1e9;
}

/* What a draft pass reads whatever its rows (spec/model.md 2.11): stages, main_proj, head, and the chain's head once
 * per draft. */
static void make_drafter(cedar_cost *k, double attention, double expert, double mix) {
    const cedar_config *c = k->c;
    double d = c->hidden, router = c->draft_experts * d, n = k->on.draft_tokens;
    k->draft_bytes = c->stages * (fp8_bytes(attention + expert) + 2 * router + 4 * mix) +
                     fp8_bytes(c->target_count * d * d) + k->head_bytes + n * 2.0 * c->vocab * c->markov_rank;
    k->draft_layer_flop = 2 * (attention + (c->draft_experts_per_token + 1) * expert + router + mix);
}

cedar_status cedar_cost_make(const cedar_config *c, const cedar_hardware *hw, const cedar_cost_switches *on,
                             cedar_cost *out, cedar_err *err) {
    cedar_status st = check_hardware(hw, err);
    if (!st) st = check_switches(c, hw, on, err);
    if (st) return st;
    double d = c->hidden, heads = (double)c->heads * c->head_dim, ql = c->q_lora,
           lora = (double)c->o_groups * c->o_lora;
    double attention = ql * d + heads * ql + c->head_dim * d + lora * (heads / c->o_groups) + d * lora;
    double expert = 3.0 * c->moe_dim * d, router = c->experts * d, mix = 2.0 * (2 + c->hc) * c->hc * c->hc * d;
    double window_row = c->head_dim + c->head_dim / 32.0;
    *out = (cedar_cost){
        .hw = *hw, .c = c, .on = *on,
        .kernels = on->fused_kernels ? hw->fused_kernels_per_layer : hw->kernels_per_layer,
        .stream_ns = stream_ns(c, hw, on),
        .layer_bytes = fp8_bytes(attention + expert) + 2 * router + 4 * mix,
        .source_bytes = 2 * (2.0 * c->head_dim * d + (double)c->index_dim * c->head_dim),
        .index_bytes = fp8_bytes((double)c->index_heads * c->index_dim * ql) + 2.0 * c->index_heads * d,
        .expert_bytes = fp4_bytes(expert),
        .head_bytes = 2.0 * c->vocab * d,
        .own_flop = 2 * (attention + expert + router + mix),
        .layer_flop = 2 * (attention + (c->experts_per_token + 1) * expert + router + mix),
        .core_flop = 4 * heads,
        .score_flop = 2.0 * c->index_heads * c->index_dim,
        .kv_key_bytes = on->fp8_rows ? window_row : c->head_dim / 2.0 + c->head_dim / 16.0,
        .window_key_bytes = window_row,
        .index_key_bytes = c->index_dim / (on->fp8_rows ? 1.0 : 2.0) + c->index_dim / 32.0,
        .bandwidth = hw->gpus * hw->copy_bytes_s * hw->memory_efficiency,
        .matmul_rate = hw->gpus * hw->matmul_flop_s * hw->matmul_efficiency,
        .attention_rate = hw->gpus * hw->attention_flop_s * hw->attention_efficiency,
        .indexer_rate = hw->gpus * hw->indexer_flop_s * hw->indexer_efficiency,
    };
    find_kinds(out);
    if (on->draft_tokens) make_drafter(out, attention, expert, mix);
    return CEDAR_OK;
}

/* Sums over rows: how many run in a layer group, and their contexts. spread: times that a rank takes longer for its
 * rows than all would if they shared them: 1 when every rank has some. */
typedef struct rows_sum {
    double rows, context, spread;
} rows_sum;

static double spread_of(const cedar_cost *k, uint32_t sequences) {
    return k->hw.attention_ranks / larger(1, smaller(k->hw.attention_ranks, sequences));
}

static void add_rows(double *sum, double *context, uint32_t pos, uint32_t rows) {
    *sum += rows;
    *context += (double)rows * pos + (double)rows * ((double)rows + 1) / 2;
}

void cedar_cost_load_add(cedar_cost_load *load, uint32_t pos, uint32_t rows, uint32_t kept) {
    add_rows(&load->rows, &load->context, pos, rows);
    add_rows(&load->kept_rows, &load->kept_context, pos + rows - kept, kept);
    load->trimmed |= kept < rows;
}

/* What one layer of a kind adds beside its weights and matrix operations. */
typedef struct kind_price {
    double attention_ns, indexer_ns, key_bytes, core, scan_bytes, score;
} kind_price;

/* What a layer of a kind works on: window keys and chosen keys that a row attends to, and entries that are scored: all
 * that are visible, or those inside the candidate pool. */
typedef struct kind_load {
    double keys, chosen, entries;
} kind_load;

static kind_load load_kind(const cedar_cost *k, const cedar_cost_kind *kind, const rows_sum *s, double mean) {
    const cedar_config *c = k->c;
    kind_load l = { smaller(mean, c->window), kind->ratio > 0 ? smaller(mean / kind->ratio, c->index_topk) : 0, 0 };
    if (!kind->scores) return l;
    l.entries = s->context / kind->ratio;
    if (kind->pooled) l.entries = smaller(l.entries, s->rows * (double)c->candidate_blocks * c->candidate_block);
    return l;
}

static void price_attention(const cedar_cost *k, const cedar_cost_kind *kind, const rows_sum *s, const kind_load *l,
                            kind_price *p) {
    double keys = l->keys, rows = s->rows;
    p->key_bytes = rows * (keys * k->window_key_bytes + (kind->ratio > 0 ? l->chosen * k->kv_key_bytes : 0));
    if (kind->ratio > 0) keys += l->chosen;
    p->core = rows * keys * k->core_flop;
    p->attention_ns = s->spread * larger(p->key_bytes / k->bandwidth, p->core / k->attention_rate) * 1e9;
}

static void price_indexer(const cedar_cost *k, const rows_sum *s, const kind_load *l, kind_price *p) {
    p->score = l->entries * k->score_flop;
    /* rows of one prompt share the keys they scan; the bytes of a scan count once per 64 rows */
    p->scan_bytes = l->entries * k->index_key_bytes / larger(1, smaller(s->rows, 64));
    p->indexer_ns = s->spread * larger(p->scan_bytes / k->bandwidth, p->score / k->indexer_rate) * 1e9;
}

static void price_kinds(const cedar_cost *k, const rows_sum *s, kind_price *out) {
    double mean = s->context / s->rows;
    for (uint32_t n = 0; n < k->kind_count; n++) {
        kind_load l = load_kind(k, &k->kinds[n], s, mean);
        out[n] = (kind_price){ 0 };
        price_attention(k, &k->kinds[n], s, &l, &out[n]);
        if (k->kinds[n].scores) price_indexer(k, s, &l, &out[n]);
    }
}

typedef struct price {
    double weights_ns, matmul_ns, stream_ns, dense_ns, attention_ns, indexer_ns, layers, bytes, flop;
} price;

/* A stretch of layers that run on the same rows. */
typedef struct group {
    int32_t first, last;            /* [first, last) */
    const rows_sum *rows;
    const kind_price *kinds;
} group;

/* Kernels that read and multiply one after the other, or begin and end with nothing to multiply, hide only a share of
 * the shorter. */
static double hide(const cedar_cost *k, double weights_ns, double matmul_ns) {
    return larger(weights_ns, matmul_ns) + (1 - k->hw.overlap) * smaller(weights_ns, matmul_ns);
}

/* Weights are read once, by each rank; per-row work adds up. Streams are worked on by every GPU of a rank in full. */
static void add_dense(const cedar_cost *k, const group *g, price *p) {
    const cedar_config *c = k->c;
    double layers = g->last - g->first, rows = g->rows->rows, spread = g->rows->spread, ranks = k->hw.attention_ranks;
    double bytes = layers * (ranks * k->layer_bytes + cedar_cost_experts_touched(c, (uint32_t)rows) * k->expert_bytes);
    double flop = layers * rows * k->layer_flop, waits = layers * rows * k->own_flop * (spread - 1);
    for (int32_t i = g->first; i < g->last; i++) {
        if (c->is_kv_source[i]) bytes += ranks * k->source_bytes;
        if (c->is_index_source[i]) bytes += ranks * k->index_bytes;
    }
    double weights_ns = bytes / k->bandwidth * 1e9,
           matmul_ns = (flop + waits) / k->matmul_rate * 1e9,
           streams_ns = layers * rows * k->stream_ns * (spread / ranks);
    p->weights_ns += weights_ns;
    p->matmul_ns += matmul_ns;
    p->stream_ns += streams_ns;
    p->dense_ns += hide(k, weights_ns, matmul_ns) + streams_ns;
    p->bytes += bytes;
    p->flop += flop;
}

static void add_attention(const cedar_cost *k, const group *g, price *p) {
    for (int32_t i = g->first; i < g->last; i++) p->attention_ns += g->kinds[k->kind[i]].attention_ns;
}

static void add_indexer(const cedar_cost *k, const group *g, price *p) {
    for (int32_t n = 0; n < k->index_layer_count; n++) {
        int32_t i = k->index_layers[n];
        if (i >= g->first && i < g->last) p->indexer_ns += g->kinds[k->kind[i]].indexer_ns;
    }
}

static void add_group(const cedar_cost *k, const group *g, price *p) {
    if (g->rows->rows <= 0 || g->last <= g->first) return;
    p->layers += g->last - g->first;
    add_dense(k, g, p);
    add_attention(k, g, p);
    add_indexer(k, g, p);
}

/* Bytes and operations of attention and index scores, for the parts. */
static void count_parts(const cedar_cost *k, const group *g, price *p) {
    for (int32_t i = g->first; i < g->last && g->rows->rows > 0; i++) {
        const kind_price *n = &g->kinds[k->kind[i]];
        p->bytes += n->key_bytes + n->scan_bytes;
        p->flop += n->core + n->score;
    }
}

/* Layers that are launched in one way on the same rows: what the device works, what its all-reduces take, and what
 * launching adds. */
typedef struct piece {
    double work_ns, link_ns, launch_ns;
} piece;

/* Without a graph the host launches ahead of the device, so the longer of the two counts; it also launches what a
 * second stream hides. */
static piece price_piece(const cedar_cost *k, const price *p, double rows, bool eager) {
    const cedar_hardware *hw = &k->hw;
    bool fused = k->on.fused_allreduce && hw->gpus > 1 &&
                 (hw->fused_allreduce_rows <= 0 || rows <= hw->fused_allreduce_rows);
    double bytes_ns = rows * k->c->hidden * 2 / hw->link_bytes_s * 1e9,
           reduce = (fused ? hw->fused_allreduce_ns : hw->allreduce_ns) + bytes_ns,
           link = hw->gpus > 1 ? 2 * p->layers * reduce : 0,
           work = p->dense_ns + p->attention_ns + p->indexer_ns, layers = p->layers * hw->layer_ns,
           kernels = larger(k->kernels - (fused ? hw->fused_allreduce_kernels : 0), 0),
           in_the_way = larger(kernels - (k->on.side_stream ? hw->side_stream_kernels : 0), 0);
    piece out = { .work_ns = work, .link_ns = link, .launch_ns = layers + p->layers * in_the_way * hw->launch_ns };
    if (eager) out.launch_ns = layers + larger(0, p->layers * kernels * hw->eager_launch_ns - work - link - layers);
    return out;
}

static bool is_eager(const cedar_cost *k, bool prompts, bool behind_cut) {
    switch (k->on.graphs) {
    case CEDAR_GRAPHS_FULL:
    case CEDAR_GRAPHS_SPLIT: return false;
    case CEDAR_GRAPHS_OFF: return true;
    case CEDAR_GRAPHS_DECODE: return prompts;
    case CEDAR_GRAPHS_TRIMMED: return prompts && !behind_cut;
    }
    return false;
}

static double piece_ns(const piece *p) { return p->work_ns + p->link_ns + p->launch_ns; }

/* A draft pass for so many sequences: stages on the drafted rows as a piece of their own, then the head and the chain
 * of small products, two launches a draft. Its first stage also takes in the features of what was verified. */
static double price_draft(const cedar_cost *k, double sequences) {
    if (sequences <= 0 || !k->on.draft_tokens) return 0;
    const cedar_config *c = k->c;
    double n = k->on.draft_tokens, rows = sequences * n, stages = c->stages, keys = c->window + n,
           ranks = k->hw.attention_ranks, spread = spread_of(k, (uint32_t)sequences);
    double bytes = ranks * k->draft_bytes + stages * k->expert_bytes *
                   touched(c->draft_experts, c->draft_experts_per_token, (uint32_t)rows),
           flop = stages * rows * k->draft_layer_flop * spread;
    price p = { .layers = stages, .dense_ns = hide(k, bytes / k->bandwidth * 1e9, flop / k->matmul_rate * 1e9) +
                                              stages * rows * k->stream_ns * (spread / ranks) };
    p.attention_ns = stages * 1e9 * spread * larger(sequences * keys * k->window_key_bytes / k->bandwidth,
                                           rows * keys * k->core_flop / k->attention_rate);
    piece pass = price_piece(k, &p, rows, k->on.graphs == CEDAR_GRAPHS_OFF);
    return piece_ns(&pass) + 2 * n * (k->on.graphs == CEDAR_GRAPHS_OFF ? k->hw.eager_launch_ns : k->hw.launch_ns);
}

static int64_t whole(double ns) { return (int64_t)(ns + 0.5); }

/* Pieces, and what a step has once. Two graphs in a row have the gap of a few launches between them. */
static int64_t total_of(const cedar_cost *k, const price *p, const piece *pieces, int count,
                        const cedar_cost_load *load, cedar_cost_parts *parts) {
    piece sum = { 0 };
    for (int i = 0; i < count; i++) {
        sum.work_ns += pieces[i].work_ns;
        sum.link_ns += pieces[i].link_ns;
        sum.launch_ns += pieces[i].launch_ns;
    }
    if (count > 1 && k->on.graphs == CEDAR_GRAPHS_SPLIT) sum.launch_ns += 4 * k->hw.launch_ns;
    double head_bytes = load->logits > 0 ? k->hw.attention_ranks * k->head_bytes : 0,
           head = head_bytes / k->bandwidth * 1e9, draft = price_draft(k, load->drafts);
    double total = piece_ns(&sum) + head + draft + k->hw.step_host_ns;
    if (parts)
        *parts = (cedar_cost_parts){ .weights_ns = whole(p->weights_ns),
                                     .matmul_ns = whole(p->matmul_ns),
                                     .stream_ns = whole(p->stream_ns),
                                     .attention_ns = whole(p->attention_ns),
                                     .indexer_ns = whole(p->indexer_ns),
                                     .head_ns = whole(head),
                                     .draft_ns = whole(draft),
                                     .launch_ns = whole(sum.launch_ns),
                                     .link_ns = whole(sum.link_ns),
                                     .host_ns = whole(k->hw.step_host_ns),
                                     .total_ns = whole(total),
                                     .bytes = p->bytes + head_bytes,
                                     .flop = p->flop };
    return whole(total);
}

enum { GROUPS = 3 };        /* before the cut, the cut layer, behind it */

/* Adds b to a, for the parts of a step. */
static void add_price(price *a, const price *b) {
    a->weights_ns += b->weights_ns;
    a->matmul_ns += b->matmul_ns;
    a->stream_ns += b->stream_ns;
    a->attention_ns += b->attention_ns;
    a->indexer_ns += b->indexer_ns;
    a->bytes += b->bytes;
    a->flop += b->flop;
}

/* With graphs "full" a trimmed step replays the whole batch's graph: nothing is trimmed (spec/replay.md 2.7). */
static bool trims(const cedar_cost *k, const cedar_cost_load *load) {
    return load->trimmed && k->on.graphs != CEDAR_GRAPHS_FULL;
}

static int64_t price_load(const cedar_cost *k, cedar_cut cut_mode, const cedar_cost_load *load,
                          cedar_cost_parts *parts) {
    double spread = spread_of(k, load->sequences);
    const rows_sum all = { load->rows, load->context, spread }, kept = { load->kept_rows, load->kept_context, spread };
    bool trimmed = trims(k, load);
    kind_price kinds[CEDAR_COST_KINDS], late_kinds[CEDAR_COST_KINDS];
    const rows_sum *late = trimmed ? &kept : &all;
    price_kinds(k, &all, kinds);
    if (trimmed) price_kinds(k, &kept, late_kinds);
    int32_t cut = k->c->cut;
    const kind_price *behind = trimmed ? late_kinds : kinds;
    bool whole_cut = cut_mode == CEDAR_CUT_AFTER;
    const group groups[GROUPS] = { { 0, cut, &all, kinds },
                                   { cut, cut + 1, whole_cut ? &all : late, whole_cut ? kinds : behind },
                                   { cut + 1, k->c->layers, late, behind } };
    int early = trimmed ? 1 + whole_cut : GROUPS;       /* groups of the first piece */
    price halves[2] = { { .layers = 0 }, { .layers = 0 } };
    for (int i = 0; i < GROUPS; i++) add_group(k, &groups[i], &halves[i >= early]);
    for (int i = 0; i < GROUPS && parts; i++) count_parts(k, &groups[i], &halves[i >= early]);
    const piece pieces[2] = { price_piece(k, &halves[0], all.rows, is_eager(k, load->prompts, false)),
                              price_piece(k, &halves[1], kept.rows, is_eager(k, load->prompts, true)) };
    if (trimmed) add_price(&halves[0], &halves[1]);
    return total_of(k, &halves[0], pieces, 1 + trimmed, load, parts);
}

/* Another number of rows, or of busy ranks: everything is new. */
static void renew_memo(const cedar_cost *k, const rows_sum *s, cedar_cost_memo *memo) {
    const int32_t ends[GROUPS + 1] = { 0, k->c->cut, k->c->cut + 1, k->c->layers };
    price p = { 0 };
    for (int i = 0; i < GROUPS; i++)
        if (ends[i] < ends[i + 1]) add_dense(k, &(group){ ends[i], ends[i + 1], s, NULL }, &p);
    memo->rows = s->rows;
    memo->spread = s->spread;
    memo->dense_ns = p.dense_ns;
    for (uint32_t n = 0; n < k->kind_count; n++) memo->kinds[n].keys = memo->kinds[n].entries = -1;
}

/* Brings the memo up to date with the context, working out only what differs. Sums are taken in the order of layers, as
 * above, so that the bits are the same. */
static void update_memo(const cedar_cost *k, const rows_sum *s, cedar_cost_memo *memo) {
    double mean = s->context / s->rows;
    bool attention = false;
    for (uint32_t n = 0; n < k->kind_count; n++) {
        kind_load l = load_kind(k, &k->kinds[n], s, mean);
        kind_price p;
        if (l.keys != memo->kinds[n].keys || l.chosen != memo->kinds[n].chosen) {
            price_attention(k, &k->kinds[n], s, &l, &p);
            memo->kinds[n].keys = l.keys;
            memo->kinds[n].chosen = l.chosen;
            memo->kinds[n].attention_ns = p.attention_ns;
            attention = true;
        }
        if (!k->kinds[n].scores || l.entries == memo->kinds[n].entries) continue;
        price_indexer(k, s, &l, &p);
        memo->kinds[n].entries = l.entries;
        memo->kinds[n].indexer_ns = p.indexer_ns;
    }
    if (!attention) return;
    memo->attention_ns = 0;
    for (int32_t i = 0; i < k->c->layers; i++) memo->attention_ns += memo->kinds[k->kind[i]].attention_ns;
}

int64_t cedar_cost_load_ns(const cedar_cost *k, cedar_cut cut, const cedar_cost_load *load, cedar_cost_memo *memo) {
    if (!memo || trims(k, load)) return price_load(k, cut, load, NULL);
    const rows_sum all = { load->rows, load->context, spread_of(k, load->sequences) };
    if (memo->rows != all.rows || memo->spread != all.spread) renew_memo(k, &all, memo);
    update_memo(k, &all, memo);
    price p = { .dense_ns = memo->dense_ns, .attention_ns = memo->attention_ns, .layers = k->c->layers };
    for (int32_t n = 0; n < k->index_layer_count; n++)
        p.indexer_ns += memo->kinds[k->kind[k->index_layers[n]]].indexer_ns;
    const piece one = price_piece(k, &p, all.rows, is_eager(k, load->prompts, false));
    return total_of(k, &p, &one, 1, load, NULL);
}

int64_t cedar_cost_step_ns(const cedar_cost *k, const cedar_step_plan *plan, cedar_cost_parts *parts) {
    cedar_cost_load load = { .logits = plan->logits, .sequences = plan->entry_count };
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        cedar_cost_load_add(&load, plan->entries[i].pos, plan->entries[i].rows, plan->entries[i].kept);
        load.prompts |= plan->entries[i].kind == CEDAR_ROWS_PREFILL;
        load.drafts += plan->entries[i].kind == CEDAR_ROWS_VERIFY;
    }
    load.trimmed = plan->trimmed;
    return price_load(k, plan->cut, &load, parts);
}

int64_t cedar_cost_predict_ns(const cedar_cost *k, uint32_t sequences, uint32_t context_mean, uint32_t prefill_rows,
                              uint32_t prefill_pos) {
    uint32_t rows = sequences * (1 + k->on.draft_tokens);
    rows_sum s = { rows, (double)rows * context_mean, spread_of(k, sequences + (prefill_rows > 0)) };
    add_rows(&s.rows, &s.context, prefill_pos, prefill_rows);
    if (s.rows <= 0) return 0;
    kind_price kinds[CEDAR_COST_KINDS];
    price_kinds(k, &s, kinds);
    price p = { 0 };
    add_group(k, &(group){ 0, k->c->layers, &s, kinds }, &p);
    const cedar_cost_load load = { .logits = (uint32_t)s.rows, .drafts = k->on.draft_tokens ? sequences : 0,
                                   .prompts = prefill_rows > 0 };
    const piece one = price_piece(k, &p, s.rows, is_eager(k, load.prompts, false));
    return total_of(k, &p, &one, 1, &load, NULL);
}
