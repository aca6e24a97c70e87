/* The option table: every key of run{...} and of key=value words, with its type, default, range and help.
 *
 * Values come in as text and are kept twice: as canonical text (one spelling per value, so that equal options give
 * equal configuration hashes) and as the typed field that the simulator reads (sim/options_int.h). */
#include "sim/options_int.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "http/http.h"

#define AT(field) offsetof(struct cedar_run_opts, field)

enum {
    BILLION = 1000000000,
    REAL_DIGITS = 6,            /* after the point: such numbers go through a double (JSON) unchanged */
    RATIO_DIGITS = 9,
    LABEL_BYTES_MAX = 63,       /* cedar_run_result.label */
    TEXT_BYTES_MAX = 65536,
    VALUE_BYTES = 64,           /* canonical text of a number */
    WORD_BYTES_MAX = 63         /* longest word that cedar_nearest looks at */
};

static const double whole_max = 9007199254740991.0; /* 2^53 - 1: exact as a double and in JSON */

static const cedar_opt_info table[] = {
    { "label", CEDAR_OPT_STRING, "", 0, 0, NULL, "name of the run in tables and reports, at most 63 bytes", AT(label) },
    { "rules", CEDAR_OPT_CHOICE, "plain", 0, 0, "plain|agentx|agentx-fast",
      "whose defaults the keys below have, and which of them are locked", AT(rules) },
    { "unsafe_override", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "true: locked keys of the rules may be changed; the run is then not a valid submission", AT(unsafe_override) },

    { "model", CEDAR_OPT_STRING, "tiny", 0, 0, NULL,
      "a name in scenarios/models, a config.json, or a checkpoint directory; http: its name there",
      AT(model) },
    { "weights_seed", CEDAR_OPT_INT, "1", 0, whole_max, NULL,
      "seed of the made weights, when the model is only a shape", AT(weights_seed) },
    { "backend", CEDAR_OPT_CHOICE, "auto", 0, 0, "auto|cpu|cuda|none|http",
      "where the engine runs; auto: the GPU if there is one; http: behind endpoints", AT(backend) },
    { "arith", CEDAR_OPT_CHOICE, "f32", 0, 0, "wide|f32|bf16", "arithmetic between the model's own quantisers",
      AT(arith) },
    { "threads", CEDAR_OPT_INT, "0", 0, 1024, NULL, "threads of the CPU engine; 0 = all processors", AT(threads) },
    { "gpus", CEDAR_OPT_INT, "1", 1, CEDAR_GPUS_MAX, NULL,
      "GPUs that compute together, at most the model's output groups; on the CPU: groups of threads", AT(gpus) },
    { "one_stream", CEDAR_OPT_BOOL, "false", 0, 0, NULL, "true: a GPU launches nothing on side streams",
      AT(one_stream) },

    { "trace", CEDAR_OPT_STRING, "", 0, 0, NULL, "trace files and directories, separated by commas; required",
      AT(trace) },
    { "traces_max", CEDAR_OPT_INT, "0", 0, 1e9, NULL, "traces to load; 0 = all", AT(traces_max) },
    { "strict", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "true: a broken trace is an error; false: it is skipped and counted", AT(strict) },
    { "split_flattened", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "true: agents whose requests are mixed into the root stream get streams of their own", AT(split_flattened) },
    { "lanes", CEDAR_OPT_INT, "4", 1, 4096, NULL, "sessions played at the same time", AT(lanes) },
    { "seed", CEDAR_OPT_INT, "42", 0, whole_max, NULL, "seed of everything random in a run", AT(seed) },
    { "order", CEDAR_OPT_CHOICE, "sequential", 0, 0, "sequential|shuffle", "order in which the lanes take the traces",
      AT(order) },
    { "passes", CEDAR_OPT_INT, "1", 1, 1e6, NULL, "how often the list of traces is played before the lanes stop",
      AT(passes) },
    { "recycle", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "true: lanes go on taking traces until duration_s or requests_max; passes is not used", AT(recycle) },
    { "turns_max", CEDAR_OPT_INT, "0", 0, 1e9, NULL, "turns played of each stream; 0 = all", AT(turns_max) },
    { "requests_max", CEDAR_OPT_INT, "0", 0, 1e12, NULL, "requests started after the warm-up; 0 = all",
      AT(requests_max) },
    { "duration_s", CEDAR_OPT_REAL, "0", 0, 31536000, NULL,
      "schedule time in s after the warm-up when new requests stop; 0 = until the traces end", AT(duration_ns) },
    { "start_lo", CEDAR_OPT_REAL, "0", 0, 1, NULL, "share of its session before which no lane's first start lies",
      AT(start_lo_ppb) },
    { "start_hi", CEDAR_OPT_REAL, "0", 0, 1, NULL,
      "share of its session behind which no lane's first start lies; 0 = all start with the first turn",
      AT(start_hi_ppb) },
    { "primers", CEDAR_OPT_CHOICE, "spread", 0, 0, "spread|burst",
      "when the turns before the start are sent: as recorded, or all at once", AT(primers) },
    { "warmup_requests", CEDAR_OPT_INT, "0", 0, 1e6, NULL,
      "requests of each lane after its primers that only warm up: no delays, one answer token", AT(warmup_requests) },
    { "warmup_grace_s", CEDAR_OPT_REAL, "1800", 0, 31536000, NULL,
      "longest wait in s for the last warm-up requests; what is left is cut", AT(warmup_grace_ns) },
    { "length_scale", CEDAR_OPT_RATIO, "1", 0, 64, NULL,
      "token counts times this; the trace's tokens per block times this must be a whole number", AT(length_num) },
    { "time_scale", CEDAR_OPT_REAL, "1", 0, 1000, NULL, "recorded delays times this", AT(time_scale_ppb) },
    { "think_cap_s", CEDAR_OPT_REAL, "300", 0, 31536000, NULL, "longest delay before a turn in s, after time_scale",
      AT(think_cap_ns) },
    { "tree_idle_cap_s", CEDAR_OPT_REAL, "0", 0, 31536000, NULL,
      "longest wait in s of a session with nothing on its way; its timers move together; 0 = no limit",
      AT(tree_idle_cap_ns) },
    { "global_idle_cap_s", CEDAR_OPT_REAL, "0", 0, 31536000, NULL,
      "longest wait in s with nothing on its way at all; all timers move together; 0 = no limit",
      AT(global_idle_cap_ns) },
    { "barriers", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "true: a turn also waits for the turns of other streams that had ended before it in the recording",
      AT(barriers) },
    { "on_error", CEDAR_OPT_CHOICE, "advance", 0, 0, "advance|end_session",
      "a failed request counts as completed, or ends its session; never retried", AT(on_error) },
    { "errors_max", CEDAR_OPT_REAL, "1", 0, 1, NULL,
      "failed requests per completed one at which the run stops early; 1 = never", AT(errors_max_ppb) },
    { "history", CEDAR_OPT_CHOICE, "recorded", 0, 0, "recorded",
      "answers that later prompts contain: those of the recording", AT(history) },
    { "salt", CEDAR_OPT_CHOICE, "tree", 0, 0, "tree|none",
      "who shares prefixes behind the system segment: nobody, or whoever has equal block ids", AT(salt) },
    { "context_max", CEDAR_OPT_INT, "0", 0, 1 << 24, NULL, "longest sequence in tokens; 0 = what the model allows",
      AT(context_max) },

    { "floor_tok_s_user", CEDAR_OPT_REAL, "0", 0, 1e6, NULL,
      "speed floor: tokens per second that each user gets at least; 0 = none", AT(floor_ppb) },
    { "floor_percentile", CEDAR_OPT_INT, "90", 1, 100, NULL,
      "the floor holds when 1 / this percentile of the inter-token latency reaches it", AT(floor_percentile) },
    { "floor_mode", CEDAR_OPT_CHOICE, "mark", 0, 0, "mark|admit",
      "a missed floor is marked; admit: prompts and new requests are also held back to keep it", AT(floor_mode) },
    { "admission", CEDAR_OPT_STRING, "", 0, 0, NULL,
      "name and hash of the scenario's admission policy; given as a function", AT(admission) },

    { "replay", CEDAR_OPT_CHOICE, "exact", 0, 0, "exact|decoder|encoder|both", "what is approximated: bounded replay",
      AT(replay) },
    { "cut", CEDAR_OPT_CHOICE, "after", 0, 0, "after|inside|inside_clip",
      "where decoder replay cuts the last KV source", AT(cut) },
    { "encoder_rows", CEDAR_OPT_INT, "0", 0, 1 << 24, NULL,
      "tokens fed again before a prefix hit's end; 0 = the model's window", AT(encoder_rows) },
    { "decoder_rows", CEDAR_OPT_INT, "0", 0, 1 << 24, NULL,
      "prompt tokens of a chunk kept behind the cut; 0 = the model's window", AT(decoder_rows) },
    { "adopt_short_hits", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "true: a prefix hit no longer than encoder_rows is used too, replayed from its start", AT(adopt_short_hits) },
    { "prefix_cache", CEDAR_OPT_BOOL, "true", 0, 0, NULL, "reuse the cache rows of earlier prompts", AT(prefix_cache) },
    { "page_tokens", CEDAR_OPT_INT, "16", 1, 65536, NULL, "tokens per KV page", AT(page_tokens) },
    { "kv_pages", CEDAR_OPT_INT, "0", 0, 2147483647, NULL,
      "KV pages in the pool; 0 = enough for the lanes' longest contexts, times 4", AT(kv_pages) },
    { "window_cache_bytes", CEDAR_OPT_INT, "0", 0, whole_max, NULL,
      "stored windows of the prefix cache in bytes (exact and decoder); 0 = unlimited", AT(window_cache_bytes) },

    { "window_store", CEDAR_OPT_CHOICE, "step", 0, 0, "step|paged",
      "how windows are stored: a step ends there, or no step does (modelled, without numerics)", AT(window_store) },

    { "engines", CEDAR_OPT_INT, "1", 1, 1024, NULL,
      "engines that share the lanes, each with pages of its own (modelled, without numerics)", AT(engines) },
    { "routing", CEDAR_OPT_CHOICE, "session", 0, 0, "session|round_robin|least_loaded|prefix|policy",
      "engine of a request; session: its session's; policy: what a function of the scenario says",
      AT(routing) },
    { "routing_policy", CEDAR_OPT_STRING, "", 0, 0, NULL,
      "name and hash of the scenario's routing policy; given as a function", AT(routing_policy) },

    { "endpoints", CEDAR_OPT_STRING, "", 0, 0, NULL,
      "base URLs of OpenAI-compatible endpoints, separated by commas (backend http)", AT(endpoints) },
    { "http_api", CEDAR_OPT_CHOICE, "chat", 0, 0, "chat|completions",
      "where requests go: /v1/chat/completions or /v1/completions", AT(http_api) },
    { "http_vocab", CEDAR_OPT_INT, "0", 0, 1 << 24, NULL,
      "prompts are lists of token ids below this (completions); 0 = prompts are text", AT(http_vocab) },
    { "http_key", CEDAR_OPT_STRING, "", 0, 0, NULL,
      "where the API key is, never the key itself: env:NAME or file:PATH", AT(http_key) },
    { "http_ca_file", CEDAR_OPT_STRING, "", 0, 0, NULL,
      "PEM file of the authorities that https endpoints must be certified by; empty = the system's",
      AT(http_ca_file) },
    { "http_body", CEDAR_OPT_STRING, "", 0, 0, NULL, "JSON object whose members join the body of every request",
      AT(http_body) },
    { "http_ignore_eos", CEDAR_OPT_BOOL, "true", 0, 0, NULL,
      "true: requests say ignore_eos, so that answers have their recorded length", AT(http_ignore_eos) },
    { "http_session_headers", CEDAR_OPT_STRING, "X-Session-ID", 0, 0, NULL,
      "headers that carry the session's id, separated by commas", AT(http_session_headers) },
    { "http_nonce", CEDAR_OPT_STRING, "", 0, 0, NULL,
      "part of the salt, so that earlier runs' prompts are not hit; none = a fresh one for every run",
      AT(http_nonce) },
    { "http_concurrent_max", CEDAR_OPT_INT, "0", 0, 65536, NULL, "requests on their way at one time; 0 = no limit",
      AT(http_concurrent_max) },
    { "http_connect_s", CEDAR_OPT_REAL, "10", 0, 86400, NULL, "longest wait in s for a connection; 0 = no limit",
      AT(http_connect_ns) },
    { "http_first_s", CEDAR_OPT_REAL, "600", 0, 86400, NULL, "longest wait in s for the first content; 0 = no limit",
      AT(http_first_ns) },
    { "http_stall_s", CEDAR_OPT_REAL, "120", 0, 86400, NULL, "longest wait in s for further content; 0 = no limit",
      AT(http_stall_ns) },
    { "http_total_s", CEDAR_OPT_REAL, "3600", 0, 86400, NULL, "longest time in s of a request; 0 = no limit",
      AT(http_total_ns) },
    { "http_metrics", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "true: the endpoints' /metrics are read before and after the run, and stored", AT(http_metrics) },

    { "step_tokens", CEDAR_OPT_INT, "256", 1, 65536, NULL, "tokens in one step at most", AT(step_tokens) },
    { "chunk_tokens", CEDAR_OPT_INT, "0", 0, 65536, NULL, "prompt tokens of one request in one step; 0 = step_tokens",
      AT(chunk_tokens) },
    { "batch_max", CEDAR_OPT_INT, "0", 0, 4096, NULL, "requests decoded at the same time; 0 = no limit",
      AT(batch_max) },
    { "continuation", CEDAR_OPT_CHOICE, "forced", 0, 0, "forced|greedy",
      "tokens that go on a prompt: the recorded answer's, or the engine's own", AT(continuation) },
    { "draft_tokens", CEDAR_OPT_INT, "0", 0, 64, NULL,
      "drafted tokens that a decode step verifies behind the sampled one; 0 = no speculation", AT(draft_tokens) },
    { "acceptance_length", CEDAR_OPT_REAL, "0", 0, 65, NULL,
      "mean tokens of a decode step with drafts, drawn instead of verified; 0 = drafts are verified",
      AT(acceptance_ppb) },

    { "clock", CEDAR_OPT_CHOICE, "measured", 0, 0, "measured|recorded|modelled|wall",
      "whose durations: the engine's, an earlier run's, the cost model's; wall: real time (backend http)", AT(clock) },
    { "hardware", CEDAR_OPT_STRING, "", 0, 0, NULL,
      "what the cost model prices: a name in scenarios/hardware, or a file (clock modelled)", AT(hardware) },
    { "assume", CEDAR_OPT_STRING, "", 0, 0, NULL,
      "figures of the hardware that are set otherwise, e.g. launch_ns=500,overlap=0.5 (clock modelled)", AT(assume) },
    { "graphs", CEDAR_OPT_CHOICE, "split", 0, 0, "full|split|off|decode|trimmed",
      "a GPU's graphs: one a step, one a part, none; modelled alone: decode steps, and trimmed layers",
      AT(graphs) },
    { "kv_rows", CEDAR_OPT_CHOICE, "fp4", 0, 0, "fp4|fp8",
      "size of global KV rows and index keys: the model's own, or FP8 (modelled, without numerics)",
      AT(kv_rows) },
    { "kernels", CEDAR_OPT_CHOICE, "separate", 0, 0, "separate|fused",
      "kernels of a layer that the cost model counts (clock modelled)", AT(kernels) },
    { "side_stream", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "true: a second stream hides the kernels that the hardware file names (clock modelled)",
      AT(side_stream) },
    { "allreduce", CEDAR_OPT_CHOICE, "plain", 0, 0, "plain|fused|nccl",
      "all-reduces of several GPUs: alone, with the kernels behind them in one, or NCCL's (not modelled)",
      AT(allreduce) },
    { "pace", CEDAR_OPT_CHOICE, "fixed", 0, 0, "fixed|measured",
      "step length on the schedule axis: pace_step_us + rows * pace_row_us, or the clock's", AT(pace) },
    { "pace_step_us", CEDAR_OPT_INT, "1000", 1, 1e9, NULL, "schedule time of a step in us", AT(pace_step_us) },
    { "pace_row_us", CEDAR_OPT_INT, "20", 0, 1e9, NULL, "schedule time of each row of a step in us", AT(pace_row_us) },

    { "keep", CEDAR_OPT_BOOL, "true", 0, 0, NULL,
      "false: nothing of the run is stored, only the scenario sees its result (clock modelled)", AT(keep) },
    { "steps_per_row", CEDAR_OPT_INT, "1", 1, 1e6, NULL,
      "engine steps that a row of the table steps sums up (modelled runs without numerics)", AT(steps_per_row) },

    { "quality", CEDAR_OPT_BOOL, "false", 0, 0, NULL, "score every decoded position against exact recomputation",
      AT(quality) },
    { "quality_every", CEDAR_OPT_INT, "1", 1, 1e9, NULL, "score every n-th request only", AT(quality_every) },
    { "prompt_scores", CEDAR_OPT_BOOL, "false", 0, 0, NULL,
      "score prompt positions too; such prompts are never trimmed (needs quality)", AT(prompt_scores) },
};

enum { KEY_COUNT = sizeof table / sizeof *table };

/* Defaults of the rules where they differ from the table's. */
static const struct preset { const char *key, *agentx, *fast; } presets[] = {
    { "recycle", "true", "true" },
    { "duration_s", "3600", "1200" },
    { "start_lo", "0.25", "0.25" },
    { "start_hi", "0.75", "0.75" },
    { "warmup_requests", "10", "1" },
    { "think_cap_s", "31536000", "31536000" },
    { "tree_idle_cap_s", "300", "300" },
    { "global_idle_cap_s", "10", "10" },
    { "barriers", "true", "true" },
    { "errors_max", "0.1", "0.1" },
    { "floor_tok_s_user", "150", "150" },
};

enum { PRESET_COUNT = sizeof presets / sizeof *presets };

/* What no AgentX run may change and still be submitted. duration_s, which only has a least value, is apart. */
static const struct lock { const char *key, *value; } locks[] = {
    { "recycle", "true" },       { "turns_max", "0" },          { "requests_max", "0" }, { "length_scale", "1" },
    { "time_scale", "1" },       { "think_cap_s", "31536000" }, { "global_idle_cap_s", "10" }, { "barriers", "true" },
    { "on_error", "advance" },   { "history", "recorded" },     { "salt", "tree" },      { "admission", "" },
    { "floor_mode", "mark" },    { "http_ignore_eos", "true" },
};

static const int64_t agentx_duration_min_ns = 900 * (int64_t)BILLION;

_Static_assert((int)KEY_COUNT <= (int)CEDAR_OPT_KEYS_MAX, "options_int.h: text is too short");
_Static_assert(AT(length_den) == AT(length_num) + sizeof(int64_t), "a ratio is two numbers in a row");
_Static_assert(sizeof(cedar_replay_kind) == sizeof(unsigned) && sizeof(cedar_arith) == sizeof(unsigned) &&
               sizeof(cedar_cut) == sizeof(unsigned), "choices are stored as unsigned");

const cedar_opt_info *cedar_opt_table(size_t *count) {
    *count = KEY_COUNT;
    return table;
}

/* --- nearest word ----------------------------------------------------------------------------------------------- */

/* Least number of insertions, deletions, replacements and swaps of neighbours; both words are short. */
static size_t edit_distance(const char *a, size_t an, const char *b, size_t bn) {
    size_t rows[3][WORD_BYTES_MAX + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= bn; j++) last[j] = j;
    memcpy(before, last, sizeof rows[0]);
    for (size_t i = 1; i <= an; i++) {
        now[0] = i;
        for (size_t j = 1; j <= bn; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            bool swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swap && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[bn];
}

const char *cedar_nearest(const char *word, const char *const *words, size_t count) {
    size_t n = strlen(word), best = SIZE_MAX;
    const char *found = NULL;
    if (n == 0 || n > WORD_BYTES_MAX) return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t m = strlen(words[i]);
        if (m == 0 || m > WORD_BYTES_MAX) continue;
        /* A common beginning says enough, whatever is missing or too much behind it. */
        bool begins = (n >= 3 && m > n && strncmp(word, words[i], n) == 0) ||
                      (m >= 4 && n > m && strncmp(word, words[i], m) == 0);
        size_t d = begins ? 1 : edit_distance(word, n, words[i], m);
        size_t shorter = n < m ? n : m;
        if (d <= (shorter + 2) / 3 && d < shorter && d < best) {
            best = d;
            found = words[i];
        }
    }
    return found;
}

static int find_key(const char *key) {
    for (int i = 0; i < KEY_COUNT; i++)
        if (strcmp(table[i].key, key) == 0) return i;
    return -1;
}

static cedar_status unknown_key(const char *key, cedar_err *err) {
    const char *keys[KEY_COUNT];
    for (int i = 0; i < KEY_COUNT; i++) keys[i] = table[i].key;
    const char *near = cedar_nearest(key, keys, KEY_COUNT);
    if (near) return cedar_fail(err, CEDAR_E_ARG, "unknown option \"%.64s\"; did you mean \"%s\"?", key, near);
    return cedar_fail(err, CEDAR_E_ARG, "unknown option \"%.64s\"; docs/SCENARIOS.md lists the options", key);
}

/* --- text to values --------------------------------------------------------------------------------------------- */

/* A parsed value, before it goes into the options. */
typedef struct parsed {
    int64_t number, den;        /* den: of a ratio */
    unsigned choice;
    bool flag;
    char text[VALUE_BYTES];     /* canonical, except for strings */
} parsed;

static cedar_status bad(const cedar_opt_info *k, const char *value, const char *want, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_ARG, "%s = \"%.64s\": must be %s", k->key, value, want);
}

/* Range of a number as words, without digits that mean nothing. */
static cedar_status out_of_range(const cedar_opt_info *k, const char *value, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_ARG, "%s = %.64s: allowed are %s%.0f to %.0f", k->key, value,
                      k->type == CEDAR_OPT_RATIO ? "numbers above " : "", k->lo, k->hi);
}

/* Digits at *s into *out; false when there is none. Numbers too large become INT64_MAX, which no range allows. */
static bool read_digits(const char **s, int64_t *out) {
    const char *p = *s;
    int64_t x = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(x, 10, &x) || __builtin_add_overflow(x, *p - '0', &x))
            x = INT64_MAX;
    if (p == *s) return false;
    *s = p;
    *out = x;
    return true;
}

static bool read_whole(const char *s, int64_t *out) {
    bool minus = *s == '-';
    s += minus;
    if (!read_digits(&s, out) || *s) return false;
    if (minus) *out = -*out;
    return true;
}

/* A decimal number times 10^9, exactly: "2", "0.25", "1.5". Digits behind `digits_max` places must be 0. */
static bool read_decimal(const char *s, int digits_max, int64_t *out) {
    int64_t whole, part = 0, unit = BILLION;
    bool minus = *s == '-';
    s += minus;
    if (!read_digits(&s, &whole)) return false;
    if (*s == '.') {
        s++;
        if (!isdigit((unsigned char)*s)) return false;
        for (; isdigit((unsigned char)*s); s++) {
            if (digits_max-- > 0) part += (*s - '0') * (unit /= 10);
            else if (*s != '0') return false;
        }
    }
    if (*s) return false;
    if (__builtin_mul_overflow(whole, BILLION, &whole) || __builtin_add_overflow(whole, part, out)) *out = INT64_MAX;
    if (minus) *out = -*out;
    return true;
}

static int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static cedar_status parse_int(const cedar_opt_info *k, const char *value, parsed *p, cedar_err *err) {
    if (!read_whole(value, &p->number)) return bad(k, value, "a whole number", err);
    if ((double)p->number < k->lo || (double)p->number > k->hi) return out_of_range(k, value, err);
    snprintf(p->text, sizeof p->text, "%lld", (long long)p->number);
    return CEDAR_OK;
}

static cedar_status parse_real(const cedar_opt_info *k, const char *value, parsed *p, cedar_err *err) {
    if (!read_decimal(value, REAL_DIGITS, &p->number))
        return bad(k, value, "a number with at most 6 digits after the point", err);
    double x = (double)p->number;
    if (x < k->lo * BILLION || x > k->hi * BILLION) return out_of_range(k, value, err);
    int n = snprintf(p->text, sizeof p->text, "%lld.%09lld", (long long)(p->number / BILLION),
                     (long long)(p->number % BILLION));
    while (p->text[n - 1] == '0') p->text[--n] = 0;
    if (p->text[n - 1] == '.') p->text[--n] = 0;
    return CEDAR_OK;
}

static cedar_status parse_ratio(const cedar_opt_info *k, const char *value, parsed *p, cedar_err *err) {
    const char *s = value;
    int64_t num, den = BILLION;
    if (strchr(value, '/')) {
        if (!read_digits(&s, &num) || *s++ != '/' || !read_digits(&s, &den) || *s)
            return bad(k, value, "a number, or two whole numbers such as \"1/64\"", err);
    } else if (!read_decimal(value, RATIO_DIGITS, &num)) {
        return bad(k, value, "a number, or two whole numbers such as \"1/64\"", err);
    }
    /* Both parts stay below 2^31, so that products with token counts cannot overflow. */
    int64_t by = num > 0 && den > 0 && num < INT64_MAX && den < INT64_MAX ? gcd(num, den) : 0;
    if (by == 0 || num / by > INT32_MAX || den / by > INT32_MAX ||
        (double)(num / by) > k->hi * (double)(den / by))
        return out_of_range(k, value, err);
    p->number = num / by;
    p->den = den / by;
    if (p->den == 1) snprintf(p->text, sizeof p->text, "%lld", (long long)p->number);
    else snprintf(p->text, sizeof p->text, "%lld/%lld", (long long)p->number, (long long)p->den);
    return CEDAR_OK;
}

static cedar_status parse_bool(const cedar_opt_info *k, const char *value, parsed *p, cedar_err *err) {
    p->flag = strcmp(value, "true") == 0;
    if (!p->flag && strcmp(value, "false") != 0) return bad(k, value, "true or false", err);
    snprintf(p->text, sizeof p->text, "%s", value);
    return CEDAR_OK;
}

static cedar_status parse_choice(const cedar_opt_info *k, const char *value, parsed *p, cedar_err *err) {
    size_t n = strlen(value);
    p->choice = 0;
    for (const char *s = k->choices; n; p->choice++) {
        size_t m = strcspn(s, "|");
        if (m == n && strncmp(s, value, n) == 0) {
            snprintf(p->text, sizeof p->text, "%s", value);
            return CEDAR_OK;
        }
        if (!s[m]) break;
        s += m + 1;
    }
    char list[VALUE_BYTES * 2];
    snprintf(list, sizeof list, "one of %s", k->choices);
    return bad(k, value, list, err);
}

/* Strings go into JSON, SQLite and terminals: UTF-8 without control characters. */
static cedar_status parse_string(const cedar_opt_info *k, const char *value, cedar_err *err) {
    size_t n = strlen(value), most = k->place == AT(label) ? LABEL_BYTES_MAX : TEXT_BYTES_MAX;
    if (n > most)
        return cedar_fail(err, CEDAR_E_ARG, "%s = \"%.32s...\": %zu bytes, at most %zu are allowed", k->key, value, n,
                          most);
    if (n == 0 && *k->value_default && k->place != AT(http_session_headers))
        return cedar_fail(err, CEDAR_E_ARG, "%s = \"\": must not be empty", k->key);
    if (k->place == AT(http_key) && !cedar_http_key_source(value))
        return cedar_fail(err, CEDAR_E_ARG,     /* without the value, which may be a key */
                          "http_key says where the key is, never the key itself: \"env:NAME\" or \"file:PATH\"");
    for (const char *s = value; *s;) {
        uint32_t c;
        size_t m = cedar_utf8_bytes(s, &c);
        if (m == 0 || c < 0x20 || c == 0x7F)
            return cedar_fail(err, CEDAR_E_ARG, "%s: byte %zu of the value is a control character or not UTF-8", k->key,
                              (size_t)(s - value) + 1);
        s += m;
    }
    return CEDAR_OK;
}

static cedar_status parse_value(const cedar_opt_info *k, const char *value, parsed *p, cedar_err *err) {
    if (k->type != CEDAR_OPT_STRING && !*value) return cedar_fail(err, CEDAR_E_ARG, "%s: the value is empty", k->key);
    switch (k->type) {
    case CEDAR_OPT_INT: return parse_int(k, value, p, err);
    case CEDAR_OPT_REAL: return parse_real(k, value, p, err);
    case CEDAR_OPT_RATIO: return parse_ratio(k, value, p, err);
    case CEDAR_OPT_BOOL: return parse_bool(k, value, p, err);
    case CEDAR_OPT_CHOICE: return parse_choice(k, value, p, err);
    case CEDAR_OPT_STRING: return parse_string(k, value, err);
    }
    return cedar_fail(err, CEDAR_E_ARG, "%s: unknown type", k->key);
}

/* --- the options ------------------------------------------------------------------------------------------------ */

/* Puts a parsed value into its field; text is the owned canonical text. */
static void store(cedar_run_opts *o, const cedar_opt_info *k, const parsed *p, const char *text) {
    char *field = (char *)o + k->place;
    switch (k->type) {
    case CEDAR_OPT_INT:
    case CEDAR_OPT_REAL: memcpy(field, &p->number, sizeof p->number); break;
    case CEDAR_OPT_RATIO:
        memcpy(field, &p->number, sizeof p->number);
        memcpy(field + sizeof p->number, &p->den, sizeof p->den);
        break;
    case CEDAR_OPT_BOOL: memcpy(field, &p->flag, sizeof p->flag); break;
    case CEDAR_OPT_CHOICE: memcpy(field, &p->choice, sizeof p->choice); break;
    case CEDAR_OPT_STRING: memcpy(field, &text, sizeof text); break;
    }
}

/* Parses a value and sets it. */
static cedar_status set_value(cedar_run_opts *o, int i, const char *value, cedar_err *err) {
    const cedar_opt_info *k = &table[i];
    parsed p = { 0 };
    cedar_status st = parse_value(k, value, &p, err);
    if (st) return st;
    char *text = cedar_strdup(k->type == CEDAR_OPT_STRING ? value : p.text);
    if (!text) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for the value", k->key);
    cedar_free(o->text[i]);
    o->text[i] = text;
    store(o, k, &p, text);
    return CEDAR_OK;
}

static const char *default_of(int key, cedar_rules rules, cedar_backend_kind backend) {
    if (table[key].place == AT(clock) && backend == CEDAR_BACKEND_HTTP) return "wall";
    for (int i = 0; i < PRESET_COUNT && rules != CEDAR_RULES_PLAIN; i++)
        if (strcmp(presets[i].key, table[key].key) == 0)
            return rules == CEDAR_RULES_AGENTX ? presets[i].agentx : presets[i].fast;
    return table[key].value_default;
}

/* Other rules, or another backend: the keys that nobody has given take their defaults, whatever the order of setting.
 * The values are made in new options first, so that a failure changes nothing. */
static cedar_status set_deciding(cedar_run_opts *o, int key, const char *value, cedar_err *err) {
    struct cedar_run_opts fresh = { 0 };
    cedar_status st = set_value(&fresh, key, value, err);
    cedar_rules rules = table[key].place == AT(rules) ? fresh.rules : o->rules;
    cedar_backend_kind backend = table[key].place == AT(backend) ? fresh.backend : o->backend;
    for (int i = 0; i < KEY_COUNT && !st; i++) {
        const char *text = default_of(i, rules, backend);
        if (i != key && !o->given[i] && strcmp(o->text[i], text)) st = set_value(&fresh, i, text, err);
    }
    for (int i = 0; i < KEY_COUNT; i++) {
        if (!fresh.text[i]) continue;
        if (!st) {
            char *old = o->text[i];
            parsed p = { 0 };
            CEDAR_ASSERT(parse_value(&table[i], fresh.text[i], &p, NULL) == CEDAR_OK);  /* it was parsed before */
            o->text[i] = fresh.text[i];
            store(o, &table[i], &p, o->text[i]);
            fresh.text[i] = old;
        }
        cedar_free(fresh.text[i]);
    }
    return st;
}

cedar_status cedar_opts_set(cedar_run_opts *o, const char *key, const char *value, cedar_err *err) {
    int i = find_key(key);
    if (i < 0) return unknown_key(key, err);
    bool decides = table[i].place == AT(rules) || table[i].place == AT(backend);
    cedar_status st = decides ? set_deciding(o, i, value, err) : set_value(o, i, value, err);
    if (!st) o->given[i] = true;
    return st;
}

void cedar_opts_policy(cedar_run_opts *o, const cedar_policy *policy) { o->policy = policy; }
void cedar_opts_router(cedar_run_opts *o, const cedar_router *router) { o->router = router; }

/* New options with the values of `from`, or the defaults. */
static cedar_status make(const cedar_run_opts *from, cedar_run_opts **out, cedar_err *err) {
    cedar_run_opts *o = cedar_calloc(1, sizeof *o);
    if (!o) return cedar_fail(err, CEDAR_E_OOM, "no memory for run options");
    for (int i = 0; i < KEY_COUNT; i++) {
        cedar_status st = set_value(o, i, from ? from->text[i] : table[i].value_default, err);
        if (st) {
            cedar_opts_free(o);
            return st;
        }
    }
    if (from) {
        memcpy(o->given, from->given, sizeof o->given);
        o->policy = from->policy;
        o->router = from->router;
    }
    *out = o;
    return CEDAR_OK;
}

cedar_status cedar_opts_new(cedar_run_opts **out, cedar_err *err) { return make(NULL, out, err); }

cedar_status cedar_opts_copy(const cedar_run_opts *o, cedar_run_opts **out, cedar_err *err) {
    return make(o, out, err);
}

void cedar_opts_free(cedar_run_opts *o) {
    if (!o) return;
    for (int i = 0; i < KEY_COUNT; i++) cedar_free(o->text[i]);
    cedar_free(o);
}

const char *cedar_opts_get(const cedar_run_opts *o, const char *key) {
    int i = find_key(key);
    return i < 0 ? NULL : o->text[i];
}

/* --- JSON ------------------------------------------------------------------------------------------------------- */

/* True when the canonical text is written in quotes. */
static bool quoted(cedar_opt_type type) {
    return type == CEDAR_OPT_STRING || type == CEDAR_OPT_CHOICE || type == CEDAR_OPT_RATIO;
}

cedar_status cedar_opts_json(const cedar_run_opts *o, char **out, cedar_err *err) {
    size_t room = 8;
    for (int i = 0; i < KEY_COUNT; i++) room += strlen(table[i].key) + 2 * strlen(o->text[i]) + 8;
    char *json = cedar_calloc(room, 1);
    if (!json) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu bytes of run options as JSON", room);
    char *to = json;
    for (int i = 0; i < KEY_COUNT; i++) {
        to += sprintf(to, "%s\"%s\":%s", i ? "," : "{", table[i].key, quoted(table[i].type) ? "\"" : "");
        for (const char *s = o->text[i]; *s; s++) { /* no control characters in any value */
            if (*s == '"' || *s == '\\') *to++ = '\\';
            *to++ = *s;
        }
        if (quoted(table[i].type)) *to++ = '"';
    }
    *to++ = '}';
    *out = json;
    return CEDAR_OK;
}

/* Sets one key from its JSON value. */
static cedar_status set_json(cedar_run_opts *o, const cedar_opt_info *k, const cedar_json *doc, const char *name,
                             cedar_err *err) {
    char number[VALUE_BYTES];
    const char *value = number;
    cedar_status st;
    if (quoted(k->type)) {
        st = cedar_json_string(doc, name, k->key, &value, err);
    } else if (k->type == CEDAR_OPT_INT) {
        int64_t x = 0;
        st = cedar_json_int(doc, name, k->key, INT64_MIN, INT64_MAX, &x, err);
        snprintf(number, sizeof number, "%lld", (long long)x);
    } else if (k->type == CEDAR_OPT_REAL) {
        double x = 0;
        st = cedar_json_real(doc, name, k->key, k->lo, k->hi, &x, err);
        snprintf(number, sizeof number, "%.6f", x);
    } else {
        bool x = false;
        st = cedar_json_bool(doc, name, k->key, &x, err);
        value = x ? "true" : "false";
    }
    if (st) return st;
    st = cedar_opts_set(o, k->key, value, err);
    return st ? cedar_fail_in(err, st == CEDAR_E_ARG ? CEDAR_E_FORMAT : st, "%s", name) : CEDAR_OK;
}

cedar_status cedar_opts_parse(const char *json, const char *name, cedar_run_opts **out, cedar_err *err) {
    cedar_json *doc = NULL;
    cedar_run_opts *o = NULL;
    cedar_status st = cedar_json_parse(json, strlen(json), name, 1, &doc, err);
    if (st) return st;
    st = cedar_opts_new(&o, err);
    for (int i = 0; i < KEY_COUNT && !st; i++) st = set_json(o, &table[i], doc, name, err);
    cedar_json_free(doc);
    if (st) {
        cedar_opts_free(o);
        return st;
    }
    *out = o;
    return CEDAR_OK;
}

/* --- checks over several keys ----------------------------------------------------------------------------------- */

static cedar_status check_paths(const char *list, cedar_err *err) {
    if (!*list) return cedar_fail(err, CEDAR_E_ARG, "trace is not set; give a trace file or directory");
    for (const char *s = list;; s++) {
        size_t n = strcspn(s, ",");
        if (n == 0) return cedar_fail(err, CEDAR_E_ARG, "trace = \"%.64s\": a path between the commas is empty", list);
        s += n;
        if (!*s) return CEDAR_OK;
    }
}

uint32_t cedar_opts_locks(const cedar_run_opts *o, char *names, size_t bytes) {
    uint32_t count = 0;
    size_t n = 0;
    *names = 0;
    if (o->rules == CEDAR_RULES_PLAIN) return 0;
    for (size_t i = 0; i <= sizeof locks / sizeof *locks; i++) {
        bool last = i == sizeof locks / sizeof *locks;
        const char *key = last ? "duration_s" : locks[i].key;
        bool kept = last ? o->duration_ns >= agentx_duration_min_ns
                         : strcmp(o->text[find_key(key)], locks[i].value) == 0;
        if (kept) continue;
        if (n < bytes) n += (size_t)snprintf(names + n, bytes - n, "%s%s", count ? ", " : "", key);
        count++;
    }
    return count;
}

static cedar_status check_rules(const cedar_run_opts *o, cedar_err *err) {
    char names[256];
    if (cedar_opts_locks(o, names, sizeof names) && !o->unsafe_override)
        return cedar_fail(err, CEDAR_E_ARG,
                          "rules = \"%s\" lock %s; duration_s is at least 900; set unsafe_override = true "
                          "to change them all the same: the run is then not a valid submission",
                          cedar_opts_get(o, "rules"), names);
    if (o->start_lo_ppb > o->start_hi_ppb)
        return cedar_fail(err, CEDAR_E_ARG, "start_lo = %s lies behind start_hi = %s", cedar_opts_get(o, "start_lo"),
                          cedar_opts_get(o, "start_hi"));
    if (o->recycle && !o->duration_ns && !o->requests_max)
        return cedar_fail(err, CEDAR_E_ARG, "recycle = true never ends by itself; give duration_s or requests_max");
    if (o->floor_mode == CEDAR_FLOOR_ADMIT && !o->floor_ppb)
        return cedar_fail(err, CEDAR_E_ARG,
                          "floor_mode = \"admit\" needs a floor; give floor_tok_s_user, for example 150");
    return CEDAR_OK;
}

/* What an endpoint decides itself, or what needs the engine's insides: keys that must have their defaults. */
static cedar_status check_http_only(const cedar_run_opts *o, cedar_err *err) {
    static const char *const keys[] = { "weights_seed", "arith", "threads", "gpus", "one_stream", "floor_mode",
                                        "admission", "replay", "cut", "encoder_rows", "decoder_rows",
                                        "adopt_short_hits", "prefix_cache", "kv_pages", "window_cache_bytes",
                                        "engines", "step_tokens", "chunk_tokens", "batch_max", "continuation",
                                        "draft_tokens", "acceptance_length", "hardware", "graphs", "allreduce",
                                        "pace", "pace_step_us", "pace_row_us", "steps_per_row", "quality",
                                        "quality_every", "prompt_scores" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const cedar_opt_info *k = &table[find_key(keys[i])];
        if (strcmp(cedar_opts_get(o, keys[i]), k->value_default))
            return cedar_fail(err, CEDAR_E_ARG, "%s = \"%.64s\", which the scenario or the command line sets, cannot "
                              "be honoured with backend = \"http\": the endpoint decides that; leave it out, as "
                              "scenarios/endpoint-ab.lua does", keys[i], cedar_opts_get(o, keys[i]));
    }
    if (o->routing == CEDAR_ROUTING_PREFIX || o->routing == CEDAR_ROUTING_POLICY)
        return cedar_fail(err, CEDAR_E_ARG, "routing = \"%s\" needs to see into the engines; with backend = \"http\" "
                          "take session, round_robin or least_loaded", cedar_opts_get(o, "routing"));
    return CEDAR_OK;
}

/* Base URLs: no user, query or fragment, which may be secrets and would be stored. */
static cedar_status check_endpoints(const char *list, cedar_err *err) {
    int number = 1;
    if (!*list)
        return cedar_fail(err, CEDAR_E_ARG, "backend = \"http\" needs an endpoint; give endpoints=http://HOST:PORT");
    for (const char *s = list;; s++, number++) {
        size_t n = strcspn(s, ",");
        cedar_status st = strcspn(s, "@?# ") < n ? CEDAR_E_ARG : cedar_http_url(s, n);
        if (st == CEDAR_E_OOM) return cedar_fail(err, st, "no memory for the URL of an endpoint");
        if (st)
            return cedar_fail(err, CEDAR_E_ARG, "endpoints: URL %d must look like http://HOST:PORT or "
                              "https://HOST/PATH, without user, query or spaces; keys are given by http_key", number);
        s += n;
        if (!*s) return CEDAR_OK;
    }
}

/* Headers that say what a request is: a session's id in their place would break it. */
static bool is_own_header(const char *name, size_t n) {
    static const char *const own[] = { "Accept", "Authorization", "Connection", "Content-Encoding", "Content-Length",
                                       "Content-Type", "Expect", "Host", "Transfer-Encoding", "X-Request-ID" };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strlen(own[i]) == n && strncasecmp(name, own[i], n) == 0) return true;
    return false;
}

/* Names that may stand in front of a header's colon. */
static cedar_status check_headers(const char *list, cedar_err *err) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    size_t count = 0;
    for (const char *s = list; *list; s++) {
        size_t n = strspn(s, allowed);
        if (n == 0 || n > CEDAR_HTTP_HEADER_NAME_MAX || (s[n] && s[n] != ',') || is_own_header(s, n) ||
            ++count > CEDAR_HTTP_SESSION_HEADERS_MAX)
            return cedar_fail(err, CEDAR_E_ARG, "http_session_headers = \"%.64s\": at most %d names of headers such as "
                              "X-Session-ID, separated by commas, of at most %d characters, and none that says what a "
                              "request is, such as Host", list, CEDAR_HTTP_SESSION_HEADERS_MAX,
                              CEDAR_HTTP_HEADER_NAME_MAX);
        s += n;
        if (!*s) break;
    }
    return CEDAR_OK;
}

static cedar_status check_http(const cedar_run_opts *o, cedar_err *err) {
    bool http = o->backend == CEDAR_BACKEND_HTTP;
    if (http != (o->clock == CEDAR_CLOCK_WALL))
        return cedar_fail(err, CEDAR_E_ARG, "backend = \"http\" and clock = \"wall\" need each other: an endpoint's "
                          "time is real time, and nothing else's is; clock is \"%s\", backend is \"%s\"",
                          cedar_opts_get(o, "clock"), cedar_opts_get(o, "backend"));
    for (int i = 0; i < KEY_COUNT && !http; i++) {
        bool of_http = strncmp(table[i].key, "http_", 5) == 0 || table[i].place == AT(endpoints);
        if (of_http && strcmp(o->text[i], table[i].value_default))
            return cedar_fail(err, CEDAR_E_ARG, "%s needs backend = \"http\"; it is \"%s\"", table[i].key,
                              cedar_opts_get(o, "backend"));
    }
    if (!http) return CEDAR_OK;
    if (o->http_vocab && o->http_api != CEDAR_HTTP_API_COMPLETIONS)
        return cedar_fail(err, CEDAR_E_ARG, "http_vocab = %lld: only http_api = \"completions\" takes token ids",
                          (long long)o->http_vocab);
    cedar_status st = check_http_only(o, err);
    if (!st) st = check_endpoints(o->endpoints, err);
    if (!st && *o->http_ca_file && !strcasestr(o->endpoints, "https://"))
        st = cedar_fail(err, CEDAR_E_ARG, "http_ca_file needs an endpoint that begins with https://; no other shows a "
                        "certificate");
    return st ? st : check_headers(o->http_session_headers, err);
}

cedar_status cedar_opts_check(const cedar_run_opts *o, cedar_err *err) {
    cedar_status st = check_paths(o->trace, err);
    if (!st) st = check_rules(o, err);
    if (!st) st = check_http(o, err);
    if (st) return st;
    if (o->chunk_tokens > o->step_tokens)
        return cedar_fail(err, CEDAR_E_ARG, "chunk_tokens = %lld is more than step_tokens = %lld; a chunk is part of "
                                            "a step",
                          (long long)o->chunk_tokens, (long long)o->step_tokens);
    if (o->acceptance_ppb && (o->acceptance_ppb < BILLION || o->acceptance_ppb > (o->draft_tokens + 1) * BILLION))
        return cedar_fail(err, CEDAR_E_ARG, "acceptance_length = %s: a step with draft_tokens = %lld makes 1 to %lld "
                          "tokens", cedar_opts_get(o, "acceptance_length"), (long long)o->draft_tokens,
                          (long long)o->draft_tokens + 1);
    if (o->acceptance_ppb && o->continuation == CEDAR_CONTINUATION_GREEDY)
        return cedar_fail(err, CEDAR_E_ARG, "acceptance_length needs continuation = forced: the engine's own answer "
                          "is what it accepts");
    if (o->draft_tokens >= o->step_tokens)
        return cedar_fail(err, CEDAR_E_ARG, "draft_tokens = %lld leaves no room in step_tokens = %lld: a decode step "
                          "has one row more than drafts", (long long)o->draft_tokens, (long long)o->step_tokens);
    if (!o->keep && o->clock != CEDAR_CLOCK_MODELLED)
        return cedar_fail(err, CEDAR_E_ARG, "keep = false needs clock = \"modelled\": a measured run could not be "
                          "played again without its stored step lengths");
    if (o->prompt_scores && !o->quality)
        return cedar_fail(err, CEDAR_E_ARG, "prompt_scores = true needs quality = true");
    if (o->kv_pages > 0 && o->kv_pages * o->page_tokens < o->context_max)
        return cedar_fail(err, CEDAR_E_ARG, "kv_pages = %lld of page_tokens = %lld hold %lld tokens, less than "
                          "context_max = %lld", (long long)o->kv_pages, (long long)o->page_tokens,
                          (long long)(o->kv_pages * o->page_tokens), (long long)o->context_max);
    return CEDAR_OK;
}
