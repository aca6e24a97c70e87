/* What is said to an endpoint. No state but what is shown.
 *
 * Threads: no state. Allocation: base/mem.h. */
#ifndef CEDAR_SIM_TALK_H
#define CEDAR_SIM_TALK_H

#include "sim/sim_int.h"

enum { CEDAR_TALK_WORDS = 256 };    /* token ids of prompts that are text */

typedef struct cedar_talk {
    char *front;                /* the beginning of every body, owned */
    bool chat;                  /* messages, else a prompt */
    bool ids;                   /* the prompt is a list of token ids */
} cedar_talk;

/* model: as the endpoint knows it. body: JSON object whose members every body has, "" = none. */
cedar_status cedar_talk_open(const char *model, const char *body, bool ignore_eos, bool chat, bool ids, cedar_talk *out,
                             cedar_err *err) CEDAR_USE_RESULT;
void cedar_talk_close(cedar_talk *t);

/* The body of a turn's request: its prompt of `in` tokens, an answer of `out`. *body is owned by the caller. */
cedar_status cedar_talk_body(const cedar_talk *k, const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t in,
                             uint32_t out, char **body, size_t *bytes, cedar_err *err) CEDAR_USE_RESULT;

#endif
