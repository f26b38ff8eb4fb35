#include "server/prompt_view.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "flashmoe_lab.h"

#define GIVEN_LOGPROBS 32 /* tokens per event, so that memory is charged as it grows */

bool prompt_view_is_wanted(const struct job_spec *spec)
{
    return spec->wants_prompt_logprobs || spec->wants_embedding;
}

static int give(struct prompt_view *v)
{
    const struct job_event like = {.kind = JOB_PROMPT, .choice = v->choice};
    return v->logprobs.n > 0 ? v->fn(v->ctx, &like, "", 0, &v->logprobs) : 0;
}

/* Adds a token: its own log probability, then those of the most likely ones. */
static int add(struct prompt_view *v, const struct fm_logprob *probs, unsigned n)
{
    struct job_logprobs *l = &v->logprobs;
    l->n_each = n;
    const int rc = mem_grow((void **)&l->at, &l->capacity, l->n + n, sizeof *l->at,
                            "the log probabilities", NULL);
    if (rc != 0)
        return rc;
    memcpy(&l->at[l->n], probs, n * sizeof *probs);
    l->n += n;
    return l->n >= (size_t)GIVEN_LOGPROBS * n ? give(v) : 0;
}

/* Adds the first token, which nothing predicts. It has as many entries as the others. */
static int add_first(struct prompt_view *v)
{
    struct fm_model_info info = {.size = sizeof info};
    struct fm_logprob probs[1 + FM_TOP_LOGPROBS_MAX];
    fm_model_info(v->model, &info);
    const unsigned n_top = v->spec->n_top_logprobs < info.vocabulary ? v->spec->n_top_logprobs
                                                                     : info.vocabulary;
    for (unsigned i = 0; i <= n_top; i++)
        probs[i] = (struct fm_logprob){v->prompt->ids[0], NAN};
    return add(v, probs, 1 + n_top);
}

static void open_sum(struct prompt_view *v)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(v->model, &info);
    v->n_sum = info.hidden;
    v->n_layers = info.n_layers;
    v->sum = mem_new(v->n_sum, sizeof *v->sum, "an embedding", NULL);
    v->rc = v->sum != NULL ? 0 : FM_ERR_NOMEM;
}

void prompt_view_hidden(struct prompt_view *v, unsigned layer, const float *x, unsigned n)
{
    if (v->sum == NULL || layer != v->n_layers || n != v->n_sum)
        return;
    for (unsigned i = 0; i < n; i++)
        v->sum[i] += (double)x[i];
    v->n_rows++;
}

/* Gives the mean of the rows, scaled to length 1: the direction is that of the sum. */
static int give_embedding(struct prompt_view *v)
{
    const struct job_event like = {.kind = JOB_EMBEDDING, .choice = v->choice};
    double square = 0;
    for (unsigned i = 0; i < v->n_sum; i++)
        square += v->sum[i] * v->sum[i];
    const double scale = square > 0 ? 1 / sqrt(square) : 0;
    float *vector = mem_new(v->n_sum, sizeof *vector, "an embedding", NULL);
    if (vector == NULL)
        return FM_ERR_NOMEM;
    for (unsigned i = 0; i < v->n_sum; i++)
        vector[i] = (float)(v->sum[i] * scale);
    const int rc = v->fn(v->ctx, &like, (const char *)vector, v->n_sum * sizeof *vector, NULL);
    mem_free(vector);
    return rc;
}

void prompt_view_begin(struct prompt_view *v, const struct answer_options *how)
{
    prompt_view_clear(v);
    v->model = how->model;
    v->spec = how->spec;
    v->prompt = &how->spec->prompts[how->prompt];
    v->choice = how->choice;
    v->fn = how->fn;
    v->ctx = how->ctx;
    v->rc = v->spec->wants_prompt_logprobs ? add_first(v) : 0;
    if (v->spec->wants_embedding)
        open_sum(v);
}

void prompt_view_logits(struct prompt_view *v, unsigned position, const float *logits)
{
    struct fm_logprob probs[1 + FM_TOP_LOGPROBS_MAX];
    if (v->spec == NULL || v->rc != 0 || !v->spec->wants_prompt_logprobs ||
        position + 1 >= v->prompt->n_ids)
        return; /* what follows the prompt is the answer's */
    probs[0].id = v->prompt->ids[position + 1];
    const int n = fm_logprobs(v->model, logits, &probs[0], &probs[1], v->spec->n_top_logprobs);
    v->rc = n < 0 ? n : add(v, probs, 1 + (unsigned)n);
}

int prompt_view_end(struct prompt_view *v, struct fm_error *err)
{
    if (v->spec != NULL && v->rc == 0)
        v->rc = give(v);
    if (v->sum != NULL && v->rc == 0)
        v->rc = v->n_rows == v->prompt->n_ids ? give_embedding(v) : FM_ERR_UNSUPPORTED;
    v->spec = NULL;
    if (v->rc == FM_ERR_UNSUPPORTED)
        return err_set(err, v->rc, "the hidden states of this model cannot be seen here, where "
                       "other machines have its last layers");
    if (v->rc == FM_ERR_FORMAT)
        return err_set(err, v->rc, "the logits give no distribution: the weights are damaged");
    if (v->rc != 0)
        return err_set(err, JOB_ERR_MEMORY, "%s", JOB_MEMORY_TEXT);
    return 0;
}

void prompt_view_clear(struct prompt_view *v)
{
    mem_free(v->logprobs.at);
    mem_free(v->sum);
    *v = (struct prompt_view){0};
}
