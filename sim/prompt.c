/* Prompts: token ids made from the trace's block ids, so that equal ids give equal tokens and nothing else does.
 *
 * A turn's prompt is its whole blocks, then the part of a block that is left. The recorded block ids cover whole
 * blocks; where the next turn of the stream continues this one, its block at that place begins with this turn's
 * left-over part and goes on with the answer. So the left-over part and the answer are read from the later turn's
 * blocks, and a prompt followed by its answer is, token for token, a prefix of the next prompt (docs/METHOD.md
 * "Prompts").
 *
 * Every token is a pure function of (scope, block id, offset, salt); nothing is stored but the links between turns. */
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sim/sim_int.h"

typedef struct link {
    uint32_t tail_turn;     /* turn whose data decide the block behind the whole blocks */
    bool continues;         /* the next turn contains this prompt */
    uint32_t theory;        /* block ids seen before in the trace */
} link;

struct cedar_prompts {
    const cedar_corpus *corpus;
    cedar_prompt_rules rules;
    uint32_t *trace_first;  /* [trace_count] index of the trace's stream 0 in stream_first */
    uint64_t *stream_first; /* [streams of all traces] index of its turn 0 in links */
    link *links;            /* [turns of all traces] */
    uint64_t *scope;        /* [trace_count] key of the block content */
    uint64_t *own;          /* [trace_count] key of what no id describes */
};

uint32_t cedar_prompt_scale(const cedar_prompt_rules *rules, uint32_t tokens) {
    uint64_t n = (uint64_t)tokens * rules->length_num / rules->length_den;
    return n < 1 ? 1 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

uint64_t cedar_prompt_salt(const cedar_trace *t, uint64_t seed, uint32_t lane, uint32_t pass) {
    if (t->ids_global) return 0;
    uint64_t key = cedar_rng_key(seed, "prompt/salt");
    return cedar_rng_at(key ^ cedar_rng_key(0, t->id), (uint64_t)lane << 32 | pass) | 1;
}

/* --- links between turns ------------------------------------------------------------------------------------------ */

static uint32_t whole_blocks(const cedar_trace *t, const cedar_turn *turn) {
    uint32_t whole = turn->in_tokens / t->block_tokens;
    return whole < turn->block_count ? whole : turn->block_count;
}

/* Whether b's prompt begins with the whole of a's prompt, as far as ids can tell. */
static bool contains(const cedar_trace *t, const cedar_turn *a, const cedar_turn *b) {
    uint32_t whole = whole_blocks(t, a);
    return whole == a->in_tokens / t->block_tokens && b->in_tokens >= a->in_tokens &&
           cedar_turn_common_blocks(a, b) >= whole;
}

/* From the last turn to the first, so that a chain of turns inside one block resolves to the turn that fills it. */
static void link_stream(const cedar_trace *t, const cedar_stream *s, link *links) {
    for (uint32_t k = s->turn_count; k-- > 0;) {
        links[k].tail_turn = k;
        links[k].continues = k + 1 < s->turn_count && contains(t, &s->turns[k], &s->turns[k + 1]);
        if (!links[k].continues) continue;
        bool filled = whole_blocks(t, &s->turns[k + 1]) > whole_blocks(t, &s->turns[k]);
        links[k].tail_turn = filled ? k + 1 : links[k + 1].tail_turn;
    }
}

/* --- theoretical hits: one seen-set per trace, walked in (time, stream, turn) order ------------------------------- */

typedef struct place { int64_t t_ns; uint32_t stream, turn; } place;

static int place_order(const void *pa, const void *pb) {
    const place *a = pa, *b = pb;
    if (a->t_ns != b->t_ns) return a->t_ns < b->t_ns ? -1 : 1;
    if (a->stream != b->stream) return a->stream < b->stream ? -1 : 1;
    return (a->turn > b->turn) - (a->turn < b->turn);
}

typedef struct seen_set { int64_t *ids; uint64_t mask; } seen_set;   /* ids: -1 = empty (block ids are not negative) */

static bool see(seen_set *s, int64_t id) {
    uint64_t i = cedar_mix64((uint64_t)id) & s->mask;
    while (s->ids[i] != -1 && s->ids[i] != id) i = (i + 1) & s->mask;
    bool known = s->ids[i] == id;
    s->ids[i] = id;
    return known;
}

static cedar_status theory_make(cedar_prompts *p, uint32_t trace, cedar_err *err) {
    const cedar_trace *t = &p->corpus->traces[trace];
    uint64_t turns = 0, blocks = 0;
    for (uint32_t s = 0; s < t->stream_count; s++) {
        turns += t->streams[s].turn_count;
        for (uint32_t k = 0; k < t->streams[s].turn_count; k++) blocks += t->streams[s].turns[k].block_count;
    }
    seen_set seen = { .mask = 63 };
    while (seen.mask + 1 < 2 * blocks + 2) seen.mask = 2 * seen.mask + 1;
    place *places = cedar_calloc(turns, sizeof *places);
    seen.ids = cedar_calloc(seen.mask + 1, sizeof *seen.ids);
    cedar_status st = CEDAR_OK;
    if (!places || !seen.ids) {
        st = cedar_fail(err, CEDAR_E_OOM, "no memory for the block ids of trace %s", t->id);
        goto out;
    }
    for (uint64_t i = 0; i <= seen.mask; i++) seen.ids[i] = -1;
    uint64_t n = 0;
    for (uint32_t s = 0; s < t->stream_count; s++)
        for (uint32_t k = 0; k < t->streams[s].turn_count; k++)
            places[n++] = (place){ t->streams[s].turns[k].t_ns, s, k };
    qsort(places, n, sizeof *places, place_order);
    for (uint64_t i = 0; i < n; i++) {
        const cedar_turn *turn = &t->streams[places[i].stream].turns[places[i].turn];
        uint32_t hits = 0;
        for (uint32_t b = 0; b < turn->block_count; b++) hits += see(&seen, turn->block_ids[b]);
        p->links[p->stream_first[p->trace_first[trace] + places[i].stream] + places[i].turn].theory = hits;
    }
out:
    cedar_free(places);
    cedar_free(seen.ids);
    return st;
}

/* --- making and freeing ------------------------------------------------------------------------------------------- */

static cedar_status check_scale(const cedar_corpus *corpus, const cedar_prompt_rules *rules, cedar_err *err) {
    for (uint32_t i = 0; i < corpus->trace_count; i++) {
        uint64_t scaled = (uint64_t)corpus->traces[i].block_tokens * rules->length_num;
        if (scaled % rules->length_den == 0 && scaled >= rules->length_den) continue;
        return cedar_fail(
            err, CEDAR_E_ARG,
            "length_scale %u/%u does not turn the %u-token blocks of trace %s into a whole number of tokens;"
            " choose a fraction that does, such as 1/%u",
            rules->length_num, rules->length_den, corpus->traces[i].block_tokens, corpus->traces[i].id,
            corpus->traces[i].block_tokens);
    }
    return CEDAR_OK;
}

static void count_all(const cedar_corpus *corpus, uint64_t *streams, uint64_t *turns) {
    *streams = *turns = 0;
    for (uint32_t i = 0; i < corpus->trace_count; i++) {
        *streams += corpus->traces[i].stream_count;
        for (uint32_t s = 0; s < corpus->traces[i].stream_count; s++) *turns += corpus->traces[i].streams[s].turn_count;
    }
}

static void link_all(cedar_prompts *p) {
    uint64_t stream = 0, turn = 0;
    for (uint32_t i = 0; i < p->corpus->trace_count; i++) {
        const cedar_trace *t = &p->corpus->traces[i];
        p->trace_first[i] = (uint32_t)stream;
        p->scope[i] = t->ids_global ? cedar_rng_key(t->id_space, "prompt/blocks") : cedar_rng_key(0, t->id);
        p->own[i] = cedar_rng_key(1, t->id);
        for (uint32_t s = 0; s < t->stream_count; s++) {
            p->stream_first[stream++] = turn;
            link_stream(t, &t->streams[s], p->links + turn);
            turn += t->streams[s].turn_count;
        }
    }
}

cedar_status cedar_prompts_new(const cedar_corpus *corpus, const cedar_prompt_rules *rules, cedar_prompts **out,
                               cedar_err *err) {
    CEDAR_ASSERT(rules->vocab > (int32_t)rules->special_count);
    cedar_status st = check_scale(corpus, rules, err);
    if (st) return st;
    uint64_t streams, turns;
    count_all(corpus, &streams, &turns);
    cedar_prompts *p = cedar_calloc(1, sizeof *p);
    if (!p) goto oom;
    p->corpus = corpus;
    p->rules = *rules;
    p->trace_first = cedar_calloc(corpus->trace_count, sizeof *p->trace_first);
    p->stream_first = cedar_calloc(streams, sizeof *p->stream_first);
    p->links = cedar_calloc(turns, sizeof *p->links);
    p->scope = cedar_calloc(corpus->trace_count, sizeof *p->scope);
    p->own = cedar_calloc(corpus->trace_count, sizeof *p->own);
    if (!p->trace_first || !p->stream_first || !p->links || !p->scope || !p->own) goto oom;
    link_all(p);
    for (uint32_t i = 0; i < corpus->trace_count; i++) {
        st = theory_make(p, i, err);
        if (st) goto fail;
    }
    *out = p;
    return CEDAR_OK;
oom:
    st = cedar_fail(err, CEDAR_E_OOM, "no memory for the links between %llu turns", (unsigned long long)turns);
fail:
    cedar_prompts_free(p);
    return st;
}

void cedar_prompts_free(cedar_prompts *p) {
    if (!p) return;
    cedar_free(p->trace_first);
    cedar_free(p->stream_first);
    cedar_free(p->links);
    cedar_free(p->scope);
    cedar_free(p->own);
    cedar_free(p);
}

static const link *link_of(const cedar_prompts *p, uint32_t trace, uint32_t stream, uint32_t turn) {
    return &p->links[p->stream_first[p->trace_first[trace] + stream] + turn];
}

uint32_t cedar_prompt_theory(const cedar_prompts *p, uint32_t trace, uint32_t stream, uint32_t turn) {
    return link_of(p, trace, stream, turn)->theory;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

/* One stretch of tokens with one key: token i of the stretch is number (offset + i) of the key's stream. */
typedef struct stretch { uint64_t key; uint32_t offset, count; bool salted; } stretch;

static int32_t token_at(const cedar_prompt_rules *rules, uint64_t key, uint32_t offset) {
    int32_t id = (int32_t)cedar_rng_below(key, offset, (uint64_t)(rules->vocab - (int32_t)rules->special_count));
    for (uint32_t i = 0; i < rules->special_count && id >= rules->special[i]; i++) id++;
    return id;
}

static uint32_t system_blocks(const cedar_trace *t, uint32_t stream) {
    return (t->streams[stream].system_tokens + t->block_tokens - 1) / t->block_tokens;
}

static uint64_t block_key(const cedar_prompts *p, const cedar_turn_ref *ref, const cedar_turn *turn, uint32_t block,
                          bool salted) {
    return cedar_mix64(p->scope[ref->trace] ^ cedar_mix64((uint64_t)turn->block_ids[block])) ^ (salted ? ref->salt : 0);
}

/* What no id describes: told apart by stream, turn and kind. */
static uint64_t own_key(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t turn, uint32_t kind) {
    uint64_t where = cedar_mix64((uint64_t)ref->stream << 32 | turn) + kind;
    return cedar_mix64(p->own[ref->trace] ^ cedar_mix64(where)) ^ ref->salt;
}

/* Tokens of a block after scaling. */
static uint32_t block_size(const cedar_prompts *p, const cedar_trace *t) {
    return (uint32_t)((uint64_t)t->block_tokens * p->rules.length_num / p->rules.length_den);
}

/* The stretch of a prompt's tokens at `pos`, up to the block's end. */
static stretch prompt_stretch(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t pos) {
    const cedar_trace *t = &p->corpus->traces[ref->trace];
    const cedar_turn *turns = t->streams[ref->stream].turns, *turn = &turns[ref->turn];
    uint32_t size = block_size(p, t), block = pos / size, offset = pos % size, whole = whole_blocks(t, turn);
    stretch s = { .offset = offset, .count = size - offset, .salted = block >= system_blocks(t, ref->stream) };
    uint32_t from = ref->turn;
    if (block == whole && whole == turn->in_tokens / t->block_tokens)
        from = link_of(p, ref->trace, ref->stream, ref->turn)->tail_turn;
    if (block < turns[from].block_count) {
        s.key = block_key(p, ref, &turns[from], block, s.salted);
    } else {
        s.key = own_key(p, ref, from, 0);
        s.offset = pos;
        s.salted = true;
    }
    return s;
}

/* The stretch of the answer's tokens at `pos`: what the next prompt holds there, else tokens of the answer's own. */
static stretch answer_stretch(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t pos) {
    if (link_of(p, ref->trace, ref->stream, ref->turn)->continues) {
        cedar_turn_ref next = *ref;
        next.turn++;
        uint32_t in = cedar_prompt_scale(&p->rules,
                                         p->corpus->traces[ref->trace].streams[ref->stream].turns[next.turn].in_tokens);
        if (pos < in) {
            stretch s = prompt_stretch(p, &next, pos);
            if (s.count > in - pos) s.count = in - pos;
            return s;
        }
    }
    return (stretch){ .key = own_key(p, ref, ref->turn, 1), .offset = pos, .count = UINT32_MAX, .salted = true };
}

/* The stretch of prompt and answer at `pos`, inside one of the two. in: length of the prompt. */
static stretch stretch_at(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t in, uint32_t pos) {
    stretch s = pos < in ? prompt_stretch(p, ref, pos) : answer_stretch(p, ref, pos);
    if (pos < in && s.count > in - pos) s.count = in - pos;
    return s;
}

static uint32_t prompt_tokens(const cedar_prompts *p, const cedar_turn_ref *ref) {
    return cedar_prompt_scale(&p->rules,
                              p->corpus->traces[ref->trace].streams[ref->stream].turns[ref->turn].in_tokens);
}

void cedar_prompt_fill(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t first, uint32_t count,
                       int32_t *out) {
    uint32_t in = prompt_tokens(p, ref);
    for (uint32_t n = 0; n < count;) {
        stretch s = stretch_at(p, ref, in, first + n);
        uint32_t most = s.count > count - n ? count - n : s.count;
        for (uint32_t i = 0; i < most; i++) out[n + i] = token_at(&p->rules, s.key, s.offset + i);
        n += most;
    }
}

/* --- names of pages ----------------------------------------------------------------------------------------------- */

static uint64_t name_add(uint64_t name, const stretch *s) {
    name = cedar_mix64(name ^ s->key) * 0x9E3779B97F4A7C15ull;
    return cedar_mix64(name ^ ((uint64_t)s->offset << 32 | s->count)) + s->salted;
}

static stretch salted_stretch(const cedar_prompts *p, const cedar_turn_ref *plain, bool salts, uint32_t in,
                              uint32_t pos) {
    stretch s = stretch_at(p, plain, in, pos);
    s.salted &= salts;
    return s;
}

/* Stretches that go on each other count as one, so that equal tokens have equal names however they were asked for. */
static cedar_page_name page_name(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t in, uint32_t pos,
                                 uint32_t end) {
    const cedar_turn_ref plain = { .trace = ref->trace, .stream = ref->stream, .turn = ref->turn };
    cedar_page_name n = { 0, false };
    stretch open = salted_stretch(p, &plain, ref->salt != 0, in, pos);
    for (;;) {
        if (open.count > end - pos) open.count = end - pos;
        n.salted |= open.salted;
        pos += open.count;
        if (pos == end) break;
        stretch next = salted_stretch(p, &plain, ref->salt != 0, in, pos);
        if (next.key == open.key && next.offset == open.offset + open.count && next.salted == open.salted) {
            pos -= open.count;
            open.count = next.count > UINT32_MAX - open.count ? UINT32_MAX : open.count + next.count;
            continue;
        }
        n.name = name_add(n.name, &open);
        open = next;
    }
    n.name = name_add(n.name, &open);
    return n;
}

void cedar_prompt_names(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t page_tokens, uint32_t first,
                        uint32_t count, cedar_page_name *out) {
    uint32_t in = prompt_tokens(p, ref);
    for (uint32_t i = first; i < count; i++)
        out[i] = page_name(p, ref, in, i * page_tokens, (i + 1) * page_tokens);
}

uint32_t cedar_prompt_pages_kept(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t page_tokens) {
    if (!ref->turn) return 0;
    const cedar_trace *t = &p->corpus->traces[ref->trace];
    const cedar_turn *b = &t->streams[ref->stream].turns[ref->turn], *a = b - 1;
    uint32_t same = cedar_turn_common_blocks(a, b), in_a = whole_blocks(t, a), in_b = whole_blocks(t, b);
    if (same > in_a) same = in_a;
    if (same > in_b) same = in_b;
    return (uint32_t)((uint64_t)same * block_size(p, t) / page_tokens);
}

uint32_t cedar_prompt_common(const cedar_prompts *p, const cedar_turn_ref *ref) {
    if (!ref->turn) return 0;
    const cedar_turn_ref before = { .trace = ref->trace, .stream = ref->stream, .turn = ref->turn - 1 };
    uint32_t in, out, now = prompt_tokens(p, ref);
    cedar_prompt_lengths(p, &before, &in, &out);
    uint64_t same = link_of(p, before.trace, before.stream, before.turn)->continues ? (uint64_t)in + out
                                                                                : cedar_prompt_pages_kept(p, ref, 1);
    return same < now ? (uint32_t)same : now;
}

void cedar_prompt_lengths(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t *in, uint32_t *out) {
    const cedar_turn *turn = &p->corpus->traces[ref->trace].streams[ref->stream].turns[ref->turn];
    *in = cedar_prompt_scale(&p->rules, turn->in_tokens);
    *out = cedar_prompt_scale(&p->rules, turn->out_tokens);
}

uint32_t cedar_prompt_system(const cedar_prompts *p, uint32_t trace, uint32_t stream) {
    const cedar_trace *t = &p->corpus->traces[trace];
    return system_blocks(t, stream) * block_size(p, t);
}

uint64_t cedar_prompt_scope(const cedar_prompts *p, uint32_t trace) { return p->scope[trace]; }
