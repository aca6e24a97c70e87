/* What is said to an endpoint: bodies of requests, with the prompt as token ids, as text, or as messages.
 *
 * Text is made of common short words, which most tokenisers hold as one token each: word i of the list stands for token
 * id i. How many tokens the endpoint counts in the end is recorded. */
#include "sim/talk.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const char *const words[] = {
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother",
    "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business",
    "issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
    "member", "law", "car", "city", "community", "name", "president", "team", "minute", "idea", "kid", "body",
    "information", "back", "parent", "face", "others", "level", "office", "door", "health", "person", "art", "war",
    "history", "party", "result", "change", "morning", "reason", "research", "girl", "guy", "moment", "air",
    "teacher", "force", "education", "foot", "boy", "age", "policy", "music", "market", "sense", "nation", "plan",
    "college", "interest", "death", "course", "someone", "experience", "behavior", "street", "table", "court",
    "hospital", "effect", "type", "series", "land", "church", "north", "south", "east", "west", "light", "voice",
    "wind", "fire", "paper", "space", "ground", "form", "value", "rate", "model", "test", "color", "river", "road",
    "tree", "field", "king", "order", "class", "piece", "page", "letter", "picture", "record", "sound", "summer",
    "winter", "spring", "machine", "island", "ocean", "stone", "metal", "glass", "bread", "heart", "blood", "bone",
    "skin", "sleep", "dream", "fear", "hope", "love", "peace", "truth", "price", "cost", "trade", "bank", "store",
    "box", "bag", "cup", "key", "bed", "chair", "floor", "wall", "roof", "window", "garden", "kitchen", "train",
    "plane", "ship", "boat", "bus", "horse", "dog", "cat", "bird", "fish", "egg", "milk", "tea", "rice", "corn",
    "salt", "sugar", "oil", "gold", "iron", "wood", "the", "of", "and", "to", "in", "is", "it", "you", "that", "he",
    "was", "for", "on", "are", "as", "with", "his", "they", "at", "be", "this", "have", "from", "or", "one", "had",
    "by", "but", "not", "what", "all", "were", "we", "when", "your", "can", "said", "there", "use", "an", "each",
    "which"
};

_Static_assert(sizeof words / sizeof *words == CEDAR_TALK_WORDS, "the list of words has another length");

/* --- text that grows ---------------------------------------------------------------------------------------------- */

typedef struct text {
    char *bytes;
    size_t count, capacity;
    bool failed;                /* out of memory; everything added since is lost */
} text;

static void add_bytes(text *t, const char *bytes, size_t n) {
    if (t->failed) return;
    if (t->capacity - t->count < n) {
        size_t capacity = t->capacity ? t->capacity : 1024;
        while (capacity - t->count < n) capacity *= 2;
        char *grown = cedar_realloc(t->bytes, capacity, 1);
        t->failed = !grown;
        if (t->failed) return;
        t->bytes = grown;
        t->capacity = capacity;
    }
    memcpy(t->bytes + t->count, bytes, n);
    t->count += n;
}

static void add(text *t, const char *s) { add_bytes(t, s, strlen(s)); }

static void add_number(text *t, uint32_t n) {
    char digits[12];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + n % 10);
    while (n /= 10);
    add_bytes(t, digits + at, sizeof digits - at);
}

static void add_ids(text *t, const int32_t *tokens, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (i) add(t, ",");
        add_number(t, (uint32_t)tokens[i]);
    }
}

static void add_words(text *t, const int32_t *tokens, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (i) add(t, " ");
        add(t, words[tokens[i]]);
    }
}

/* --- what every body has ------------------------------------------------------------------------------------------ */

/* The members of an object, as they stand between its braces; *out is owned by the caller (free: jansson's). */
static cedar_status read_extra(const char *body, char **out, cedar_err *err) {
    static const char *const taken[] = { "model", "messages", "prompt", "stream", "stream_options", "max_tokens",
                                         "max_completion_tokens", "n", "ignore_eos" };
    json_error_t why;
    *out = NULL;
    if (!*body) return CEDAR_OK;
    json_t *o = json_loads(body, JSON_REJECT_DUPLICATES, &why);
    cedar_status st = CEDAR_OK;
    if (!json_is_object(o))
        st = cedar_fail(err, CEDAR_E_ARG, "http_body must be a JSON object such as {\"temperature\": 0}%s%s",
                        o ? "" : ": ", o ? "" : why.text);
    for (size_t i = 0; i < sizeof taken / sizeof *taken && !st; i++)
        if (json_object_get(o, taken[i]))
            st = cedar_fail(err, CEDAR_E_ARG, "http_body: \"%s\" is set by the run itself", taken[i]);
    if (!st && json_object_size(o)) {
        *out = json_dumps(o, JSON_COMPACT | JSON_EMBED);
        if (!*out) st = cedar_fail(err, CEDAR_E_OOM, "no memory for http_body");
    }
    json_decref(o);
    return st;
}

cedar_status cedar_talk_open(const char *model, const char *body, bool ignore_eos, bool chat, bool ids, cedar_talk *out,
                             cedar_err *err) {
    text t = { 0 };
    *out = (cedar_talk){ .chat = chat, .ids = ids };
    char *extra = NULL;
    cedar_status st = read_extra(body, &extra, err);
    if (st) return st;
    json_t *name = json_string(model);
    char *quoted = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
    json_decref(name);
    t.failed = !quoted;
    add(&t, "{\"model\":");
    add(&t, quoted ? quoted : "");
    add(&t, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    if (ignore_eos) add(&t, ",\"ignore_eos\":true");
    if (extra) add(&t, ",");
    add(&t, extra ? extra : "");
    add_bytes(&t, "", 1);
    free(quoted);
    free(extra);
    out->front = t.bytes;
    if (!t.failed) return CEDAR_OK;
    cedar_talk_close(out);
    return cedar_fail(err, CEDAR_E_OOM, "no memory for the body of requests");
}

void cedar_talk_close(cedar_talk *t) {
    cedar_free(t->front);
    t->front = NULL;
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Messages of a chat: where each ends, and whose it is. The prompt of a turn keeps those of the turn before it as far
 * as both are the same; behind that come the answer of the turn before, and what the user says. So a conversation that
 * goes on is told in the same messages, which an endpoint's prefix cache can find. */
static const char *const roles[] = { "system", "assistant", "user" };

typedef enum role { ROLE_SYSTEM, ROLE_ASSISTANT, ROLE_USER } role;

typedef struct message {
    uint32_t end;
    role who;
} message;

/* Adds a message up to `end`, or lets the last one go on when it is of the same role. */
static uint32_t put(message *m, uint32_t n, role who, uint32_t end) {
    uint32_t begin = n ? m[n - 1].end : 0;
    if (end <= begin) return n;
    if (n && m[n - 1].who == who) n--;
    m[n++] = (message){ end, who };
    return n;
}

/* messages [2 * (turn + 1) + 1]; how many there are. The last one is the user's. */
static uint32_t split(const cedar_prompts *p, const cedar_turn_ref *ref, message *m) {
    uint32_t n = 0, system = cedar_prompt_system(p, ref->trace, ref->stream);
    cedar_turn_ref at = *ref;
    for (at.turn = 0; at.turn <= ref->turn; at.turn++) {
        uint32_t in, out, same = cedar_prompt_common(p, &at);
        cedar_prompt_lengths(p, &at, &in, &out);
        if (same >= in) same = in - 1;
        while (n && m[n - 1].end > same) {
            uint32_t begin = n > 1 ? m[n - 2].end : 0;
            role who = m[n - 1].who;
            n--;
            if (begin < same) n = put(m, n, who, same);
        }
        if (at.turn && n) {
            /* what both have in common behind the earlier prompt is the earlier answer */
            n = put(m, n, ROLE_ASSISTANT, same);
        } else {
            n = put(m, n, ROLE_SYSTEM, system < in ? system : in - 1);
        }
        n = put(m, n, ROLE_USER, in);
    }
    return n;
}

static void add_messages(text *t, const message *m, uint32_t n, const int32_t *tokens) {
    uint32_t begin = 0;
    add(t, ",\"messages\":[");
    for (uint32_t i = 0; i < n; i++) {
        add(t, i ? ",{\"role\":\"" : "{\"role\":\"");
        add(t, roles[m[i].who]);
        add(t, "\",\"content\":\"");
        add_words(t, tokens + begin, m[i].end - begin);
        add(t, "\"}");
        begin = m[i].end;
    }
    add(t, "]");
}

cedar_status cedar_talk_body(const cedar_talk *k, const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t in,
                             uint32_t out, char **body, size_t *bytes, cedar_err *err) {
    text t = { 0 };
    int32_t *tokens = cedar_calloc(in, sizeof *tokens);
    message *m = k->chat ? cedar_calloc(2 * (size_t)ref->turn + 3, sizeof *m) : NULL;
    t.failed = !tokens || (k->chat && !m);
    if (!t.failed) {
        cedar_prompt_fill(p, ref, 0, in, tokens);
        add(&t, k->front);
        if (k->chat) {
            add_messages(&t, m, split(p, ref, m), tokens);
        } else {
            add(&t, k->ids ? ",\"prompt\":[" : ",\"prompt\":\"");
            if (k->ids) add_ids(&t, tokens, in);
            else add_words(&t, tokens, in);
            add(&t, k->ids ? "]" : "\"");
        }
        add(&t, ",\"max_tokens\":");
        add_number(&t, out);
        add(&t, "}");
    }
    cedar_free(tokens);
    cedar_free(m);
    if (t.failed) {
        cedar_free(t.bytes);
        return cedar_fail(err, CEDAR_E_OOM, "no memory for a prompt of %u tokens", in);
    }
    *body = t.bytes;
    *bytes = t.count;
    return CEDAR_OK;
}
