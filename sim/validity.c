/* Whether a point may be submitted. */
#include "sim/validity.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* a / b > num / den without rounding; counts may use all 64 bits. */
static bool share_above(uint64_t a, unsigned __int128 b, uint32_t num, uint32_t den) {
    return (unsigned __int128)a * den > b * num;
}

static unsigned reasons_of(const cedar_validity_in *in) {
    unsigned __int128 all = (unsigned __int128)in->completed + in->errors + in->overflow_skipped;
    unsigned __int128 reached = in->last_sample_ns > 0 ? (unsigned __int128)in->last_sample_ns * 100 : 0;
    unsigned __int128 needed = in->phase_ns > 0 ? (unsigned __int128)in->phase_ns * 98 : 0;
    unsigned r = 0;
    if (in->locks_overridden) r |= CEDAR_INVALID_LOCKS;
    if (share_above(in->overflow, all, 1, 100)) r |= CEDAR_INVALID_OVERFLOW;
    if (in->cancelled) r |= CEDAR_INVALID_CANCELLED;
    if (in->last_sample_ns < 0 || reached < needed) r |= CEDAR_INVALID_COVERAGE;
    if (in->scenario_unknown) r |= CEDAR_INVALID_SCENARIO;
    if (!in->completed) r |= CEDAR_INVALID_EMPTY;
    else if (share_above(in->errors, in->completed, 10, 100)) r |= CEDAR_INVALID_ERRORS;
    return r;
}

static void describe(const cedar_validity_in *in, cedar_invalid reason, char *to, size_t room) {
    unsigned long long errors = in->errors, completed = in->completed, overflow = in->overflow,
                       skipped = in->overflow_skipped;
    switch (reason) {
    case CEDAR_INVALID_LOCKS: snprintf(to, room, "a rule of the scenario was overridden"); break;
    case CEDAR_INVALID_OVERFLOW:
        snprintf(to, room, "%llu context overflows are more than 1%% of %llu completed, %llu errors and %llu skipped",
                 overflow, completed, errors, skipped);
        break;
    case CEDAR_INVALID_CANCELLED: snprintf(to, room, "the run was cancelled"); break;
    case CEDAR_INVALID_COVERAGE:
        if (in->last_sample_ns < 0) snprintf(to, room, "there is no TTFT or ITL sample");
        else snprintf(to, room, "the last TTFT or ITL sample is at %.3f s, before 98%% of the %.3f s phase",
                      (double)in->last_sample_ns / 1e9, (double)in->phase_ns / 1e9);
        break;
    case CEDAR_INVALID_SCENARIO: snprintf(to, room, "no AgentX rules were asked for"); break;
    case CEDAR_INVALID_EMPTY: snprintf(to, room, "no request completed"); break;
    case CEDAR_INVALID_ERRORS:
        snprintf(to, room, "%llu errors are more than 10%% of %llu completed requests", errors, completed);
        break;
    }
}

void cedar_validity_make(const cedar_validity_in *in, cedar_validity *out) {
    cedar_validity v = { .reasons = reasons_of(in) };
    size_t at = 0;
    for (unsigned bit = 0; bit < CEDAR_INVALID_COUNT; bit++) {
        if (!(v.reasons & 1u << bit)) continue;
        if (at) at += (size_t)snprintf(v.text + at, sizeof v.text - at, "; ");
        describe(in, (cedar_invalid)(1u << bit), v.text + at, sizeof v.text - at);
        at += strlen(v.text + at);
        CEDAR_ASSERT(at + 1 < sizeof v.text);       /* sized for all reasons with the longest numbers */
    }
    v.submission_valid = !(v.reasons & CEDAR_INVALID_SUBMISSION);
    v.gate_ok = !(v.reasons & CEDAR_INVALID_GATE);
    v.valid = v.submission_valid && v.gate_ok;
    *out = v;
}

const char *cedar_invalid_name(cedar_invalid reason) {
    switch (reason) {
    case CEDAR_INVALID_LOCKS: return "unsafe_override";
    case CEDAR_INVALID_OVERFLOW: return "context_overflow";
    case CEDAR_INVALID_CANCELLED: return "cancelled";
    case CEDAR_INVALID_COVERAGE: return "metric_coverage";
    case CEDAR_INVALID_SCENARIO: return "scenario_unknown";
    case CEDAR_INVALID_EMPTY: return "no_success";
    case CEDAR_INVALID_ERRORS: return "error_rate";
    }
    return "unknown";
}
