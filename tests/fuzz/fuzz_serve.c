/* Fuzz target (libFuzzer): bodies of requests. The first byte says which endpoint and how large model and context are;
 * any bytes behind it give a request whose promises hold, or a refusal with a status and a sentence. The text of the
 * prompt's tokens gives the same tokens again.
 *
 *     make fuzz T=serve S=60 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "serve/serve_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_request(const serve_shape *shape, const serve_request *q) {
    uint64_t total = (uint64_t)q->prompt + q->max_tokens;
    if (!q->prompt || !q->max_tokens || total > shape->context || q->min_tokens > q->max_tokens) abort();
    if (!(q->temperature >= 0 && q->temperature <= 2) || !(q->top_p > 0 && q->top_p <= 1)) abort();
    if (q->top_logprobs > SERVE_TOP_LOGPROBS_MAX || (q->top_logprobs && !q->logprobs)) abort();
    if (q->include_usage && !q->stream) abort();
    for (uint32_t i = 0; i < q->stop_count; i++)
        if (!*q->stops[i] || strlen(q->stops[i]) > SERVE_STOP_BYTES_MAX) abort();
    char *text = malloc((size_t)q->prompt * SERVE_TOKEN_BYTES);
    int32_t *again = malloc((size_t)q->prompt * SERVE_TOKEN_BYTES * sizeof *again);
    size_t bytes = 0;
    if (!text || !again) abort();
    for (uint32_t i = 0; i < q->prompt; i++) {
        if (q->tokens[i] < 0 || q->tokens[i] >= shape->vocab) abort();
        bytes += serve_token_text(q->tokens[i], text + bytes);
    }
    if (serve_tokens_encode(shape->vocab, text, bytes, again) != q->prompt) abort();
    if (memcmp(again, q->tokens, q->prompt * sizeof *again)) abort();
    free(text);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    const serve_shape shape = { "tiny", data[0] & 2 ? 129280 : 512, data[0] & 4 ? 32 : 4096 };
    serve_request q;
    serve_refusal why = { 0 };
    if (serve_parse(data[0] & 1 ? SERVE_CHAT : SERVE_COMPLETION, &shape, (const char *)data + 1, size - 1, &q, &why)) {
        check_request(&shape, &q);
        cedar_free(q.tokens);
    } else {
        char *text = serve_answer_error(&why);
        if (why.status < 400 || !why.message[0] || !why.type || !text) abort();
        free(text);
    }
    if (cedar_mem_live()) abort();
    return 0;
}
