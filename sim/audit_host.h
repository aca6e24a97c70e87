/* Audits as scenarios ask for them: model and documents found by name, then audit/.
 *
 * Ownership, threads, errors   as sim/sim.h. */
#ifndef CEDAR_SIM_AUDIT_HOST_H
#define CEDAR_SIM_AUDIT_HOST_H

#include "audit/audit.h"
#include "sim/sim.h"
#include "traces/traces.h"

/* observer, data_dir, progress, self, stop and cache as in cedar_run_host. */
typedef struct cedar_audit_setting {
    const cedar_audit_observer *observer;
    const char *data_dir;
    void (*progress)(void *self, const char *label, uint64_t done, uint64_t total, int64_t elapsed_ns);
    void *self;
    const volatile int *stop;
    cedar_run_cache *cache;
} cedar_audit_setting;

cedar_status cedar_audit_play(const cedar_audit_opts *o, int64_t audit_id, const cedar_audit_setting *setting,
                              cedar_audit_result *out, cedar_err *err) CEDAR_USE_RESULT;

/* Documents from traces: the first turns of each root stream, prompts as runs make them (docs/METHOD.md "Prompts"). A
 * turn's hit is what it has in common with the turn before. */
cedar_status cedar_audit_docs_traces(const cedar_audit_opts *o, const cedar_corpus *corpus, const cedar_config *c,
                                     uint32_t length_num, uint32_t length_den, cedar_audit_docs **out,
                                     cedar_err *err) CEDAR_USE_RESULT;

/* Documents from a file of tokens (docs/AUDIT.md "Options"). */
cedar_status cedar_audit_docs_file(const cedar_audit_opts *o, const char *path, const cedar_config *c,
                                   cedar_audit_docs **out, cedar_err *err) CEDAR_USE_RESULT;

#endif
