/* Synthetic acceptance of drafted tokens: how many a verify step keeps when nobody looks at them.
 *
 * AgentX compares engines at one acceptance length per model, whatever text they are fed: AL = 1 + accepted drafts
 * per step, 3.51 for DSpark with five drafts on this model. The schedule has the least variance: floor(AL - 1) drafts
 * always and one more with the rest as its probability (spec/agentx.md 1.7).
 * Pure; one number of the stream "acceptance" per request and step, so runs on an engine and modelled ones agree. */
#ifndef CEDAR_SIM_ACCEPT_H
#define CEDAR_SIM_ACCEPT_H

#include <stdint.h>

/* Key of the stream under the run's seed. */
uint64_t cedar_accept_key(uint64_t seed);

/* Drafts that the request's verify step number `step` (0, 1, ...) keeps of `drafts`. acceptance_ppb: AL times 10^9, at
 * least 10^9. */
uint32_t cedar_accept_drafts(uint64_t key, int64_t request_id, uint32_t step, uint32_t drafts, int64_t acceptance_ppb);

/* Rows that a decode step at position pos feeds: the sampled token and up to `drafts` behind it, within the `end`
 * positions that the request feeds in all. It also ends at `boundary` (0 = nowhere) when that lies ahead, because
 * windows are stored there. */
uint32_t cedar_accept_rows(uint32_t drafts, uint32_t pos, uint32_t end, uint32_t boundary);

#endif
