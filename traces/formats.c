/* Owns the names of the formats. */
#include <string.h>

#include "traces/traces_int.h"

static const char *const names[CEDAR_TRACE_FORMAT_COUNT] = {
    [CEDAR_TRACE_AUTO] = "auto",
    [CEDAR_TRACE_WEKA] = "weka",
    [CEDAR_TRACE_MOONCAKE] = "mooncake",
    [CEDAR_TRACE_AIPERF] = "aiperf",
    [CEDAR_TRACE_LLMSERVINGSIM] = "llmservingsim",
    [CEDAR_TRACE_OTEL] = "otel",
    [CEDAR_TRACE_TRACELAB] = "tracelab",
    [CEDAR_TRACE_TRACELAB_CSV] = "tracelab_csv",
    [CEDAR_TRACE_BLIS] = "blis",
    [CEDAR_TRACE_AZURE] = "azure",
    [CEDAR_TRACE_BURSTGPT] = "burstgpt",
    [CEDAR_TRACE_TIMED] = "timed",
};

const char *cedar_trace_format_name(cedar_trace_format format) {
    return (unsigned)format < CEDAR_TRACE_FORMAT_COUNT ? names[format] : "unknown";
}

cedar_status cedar_trace_format_find(const char *name, cedar_trace_format *out, cedar_err *err) {
    for (int i = 0; i < CEDAR_TRACE_FORMAT_COUNT; i++) {
        if (strcmp(names[i], name)) continue;
        *out = (cedar_trace_format)i;
        return CEDAR_OK;
    }
    return cedar_fail(err, CEDAR_E_ARG, "\"%.64s\" is no trace format; known are " CEDAR_TRACE_FORMAT_NAMES, name);
}
