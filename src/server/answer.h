/* One answer as it comes: from logits to tokens, text, stop strings, and its parts
 * (chat/message.h).
 *
 * An answer owns its sampler, decoder, stop strings and parser, and borrows the specification. What
 * it finds goes to a function on the caller's thread. One thread. A failure ends the answer; it can
 * only be closed then. */
#ifndef FLASHMOE_SERVER_ANSWER_H
#define FLASHMOE_SERVER_ANSWER_H

#include "flashmoe.h"
#include "server/job.h"
#include "server/recall.h"

#ifdef __cplusplus
extern "C" {
#endif

struct answer;

/* `text` is borrowed; `logprobs` may be NULL, and what it holds is taken over. */
typedef int answer_fn(void *ctx, const struct job_event *like, const char *text, size_t text_bytes,
                      struct job_logprobs *logprobs);

struct answer_options {
    const struct fm_model *model;
    const struct job_spec *spec;
    struct recall *recall; /* remembers the calls' own bytes */
    unsigned prompt, choice; /* which prompt; the answer's number */
    answer_fn *fn;
    void *ctx;
};

int answer_open(const struct answer_options *options, struct answer **out, struct fm_error *err);
void answer_close(struct answer *a); /* accepts NULL */

/* Chooses a token from the logits and passes its text on. *id is the token, or -1 when the answer
 * is over: a stop token, a stop string, or as many tokens as it may have. */
int answer_step(struct answer *a, const float *logits, int32_t *id, struct fm_error *err);
/* Passes on what was held back, and JOB_CHOICE_END. is_full: the context holds no more. */
int answer_finish(struct answer *a, bool is_full, struct fm_error *err);

uint64_t answer_n_tokens(const struct answer *a);
uint64_t answer_n_reasoning(const struct answer *a);

#ifdef __cplusplus
}
#endif
#endif
