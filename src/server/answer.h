/* One answer of a job: turns the events of an fm_answer (flashmoe.h) into job events.
 *
 * Borrows the specification. Calls a function with each event on the caller's thread. One thread.
 * After a failure the answer can only be closed. */
#ifndef FLASHMOE_SERVER_ANSWER_H
#define FLASHMOE_SERVER_ANSWER_H

#include "flashmoe.h"
#include "server/job.h"
#include "server/call_texts.h"

#ifdef __cplusplus
extern "C" {
#endif

struct answer;

/* Receives an event. `text` is borrowed; `logprobs` may be NULL, and its contents are taken
 * over. */
typedef int answer_fn(void *ctx, const struct job_event *like, const char *text, size_t text_bytes,
                      struct job_logprobs *logprobs);

struct answer_options {
    const struct fm_model *model;
    const struct job_spec *spec;
    struct call_texts *texts; /* stores the model's own text of each tool call */
    unsigned prompt, choice; /* index of the prompt; number of the answer */
    answer_fn *fn;
    void *ctx;
};

int answer_open(const struct answer_options *options, struct answer **out, struct fm_error *err);
void answer_close(struct answer *a); /* accepts NULL */

/* Like fm_answer_step. */
int answer_step(struct answer *a, const struct fm_session *session, int32_t *id,
                struct fm_error *err);
/* Emits what was held back, and JOB_CHOICE_END. */
int answer_finish(struct answer *a, struct fm_error *err);

uint64_t answer_n_tokens(const struct answer *a);
uint64_t answer_n_reasoning(const struct answer *a);

#ifdef __cplusplus
}
#endif
#endif
