/* What a request wants to know about the positions of its prompt, and not of its answer: the log
 * probabilities of its tokens, or one vector for all of it.
 *
 * Lies in a job and borrows the model and the prompt. The runner thread feeds it from the observer
 * of the job's session, with all positions in order from 0 on. Memory that runs out is reported by
 * prompt_view_end. */
#ifndef FLASHMOE_SERVER_PROMPT_VIEW_H
#define FLASHMOE_SERVER_PROMPT_VIEW_H

#include "server/answer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct prompt_view {
    const struct fm_model *model;
    const struct job_spec *spec; /* NULL: nobody looks */
    const struct job_prompt *prompt;
    unsigned choice;
    answer_fn *fn; /* receives JOB_PROMPT and JOB_EMBEDDING */
    void *ctx;
    struct job_logprobs logprobs; /* not given yet */
    double *sum;                  /* [n_sum] of the rows so far */
    unsigned n_sum, n_rows, n_layers;
    int rc;                       /* the first failure */
};

/* Returns whether the specification wants to know anything of its prompts. */
bool prompt_view_is_wanted(const struct job_spec *spec);
void prompt_view_begin(struct prompt_view *v, const struct answer_options *how);
/* Takes the logits after the token at `position`. */
void prompt_view_logits(struct prompt_view *v, unsigned position, const float *logits);
/* Takes the hidden state of a token behind a layer. Only the last one counts, the final norm's
 * output. */
void prompt_view_hidden(struct prompt_view *v, unsigned layer, const float *x, unsigned n);
/* Gives what is left after the last token. Returns 0, or what failed. */
int prompt_view_end(struct prompt_view *v, struct fm_error *err);
void prompt_view_clear(struct prompt_view *v); /* accepts a zeroed one */

#ifdef __cplusplus
}
#endif
#endif
