/* One answer of a job: an fm_answer (flashmoe.h) whose events become the job's.
 *
 * Borrows the specification. Events go to a function on the caller's thread. One thread. After a
 * failure the answer can only be closed. */
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

/* As fm_answer_step. */
int answer_step(struct answer *a, const struct fm_session *session, int32_t *id,
                struct fm_error *err);
/* Passes on what was kept back, and JOB_CHOICE_END. */
int answer_finish(struct answer *a, struct fm_error *err);

uint64_t answer_n_tokens(const struct answer *a);
uint64_t answer_n_reasoning(const struct answer *a);

#ifdef __cplusplus
}
#endif
#endif
