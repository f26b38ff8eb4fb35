#include "arch/mtp.h"

#include <assert.h>

#include "arch/mix_attention.h"

/* ---- opening --------------------------------------------------------------------------------- */

bool mtp_is_wanted(const struct binder *b, const struct transformer_traits *traits)
{
    return traits->may_have_mtp && binder_wants_mtp(b) && binder_has_head(b) &&
           binder_find(b, "mtp.fc.weight") != NULL &&
           binder_find(b, "mtp.layers.0.input_layernorm.weight") != NULL;
}

void mtp_bind(struct binder *b, struct mtp *mtp, const struct transformer *t,
              enum vector_transform norm)
{
    binder_matrix(b, &mtp->fc, TENSOR_MATRIX, t->hidden, 2 * t->hidden, "mtp.fc.weight");
    binder_vector(b, &mtp->embedding_norm, t->hidden, norm, "mtp.pre_fc_norm_embedding.weight");
    binder_vector(b, &mtp->hidden_norm, t->hidden, norm, "mtp.pre_fc_norm_hidden.weight");
    binder_vector(b, &mtp->norm, t->hidden, norm, "mtp.norm.weight");
}

/* ---- running --------------------------------------------------------------------------------- */

/* x first has the embedded tokens. The two halves of a pair lie side by side, so every row has its
 * own norms. */
static void mtp_rows(struct step *step, const float *hidden, float *pairs)
{
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t n = t->hidden;
    blocks_embed(step);
    for (size_t r = 0; r < step->n_rows; r++) {
        float *pair = pairs + r * 2 * n;
        be->ops->rms_norm(be, step->x + r * n, t->mtp->embedding_norm, t->eps, 1, n, pair);
        be->ops->rms_norm(be, hidden + r * n, t->mtp->hidden_norm, t->eps, 1, n, pair + n);
    }
    be->ops->input(be, pairs, step->n_rows, 2 * n);
    be->ops->matmul(be, &(struct backend_product){&t->mtp->fc, step->x, NULL}, 1);
}

static void mtp_keep(struct step *step)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[t->n_layers];
    const struct mix_buffers m = blocks_mix_buffers(step);
    assert(l->mixer == &mixer_attention);
    step->be->ops->rms_norm(step->be, step->x, l->mix_norm, t->eps, step->n_rows, t->hidden,
                            step->normed);
    attention_keep(l->mix, step, &m);
}

static void mtp_norm(struct step *step, const float *x, uint32_t n, float *normed)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->rms_norm(step->be, x, t->mtp->norm, t->eps, n, t->hidden, normed);
}

static void mtp_head(struct step *step, const float *normed, uint32_t n, uint32_t n_tokens,
                     float *logits)
{
    const struct transformer *t = transformer_of(step);
    struct weight head = t->has_tied_head ? t->embedding : t->head;
    assert(n_tokens <= head.n_rows);
    head.n_rows = n_tokens;
    step->be->ops->input(step->be, normed, n, t->hidden);
    step->be->ops->matmul(step->be, &(struct backend_product){&head, logits, NULL}, 1);
}

const struct arch_mtp blocks_mtp = {.rows = mtp_rows, .keep = mtp_keep, .norm = mtp_norm,
                                    .head = mtp_head};
