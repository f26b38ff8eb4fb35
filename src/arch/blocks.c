#include "arch/blocks.h"

#include "arch/mtp.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void blocks_sizes(const void *arch, struct arch_sizes *sizes)
{
    const struct transformer *t = arch;
    struct mixer_sizes mix = {.max_cols = t->hidden};
    uint64_t wide = 0, routed = 0;
    for (uint32_t i = 0; i < t->n_layers + (t->mtp != NULL); i++) {
        const struct transformer_layer *l = &t->layers[i];
        l->mixer->sizes(l->mix, &mix);
        const uint64_t intermediate = l->block->max_intermediate(t);
        wide = larger(wide, intermediate);
        if (l->block->run == NULL)
            routed = larger(routed, intermediate);
    }
    *sizes = (struct arch_sizes){.max_cols = (uint32_t)larger(mix.max_cols, wide)};
    if (t->mtp != NULL)
        sizes->max_cols = (uint32_t)larger(sizes->max_cols, 2ull * t->hidden);
    sizes->max_intermediate = (uint32_t)wide;
    sizes->max_routed_intermediate = (uint32_t)routed;
    sizes->n_heads = mix.n_heads;
    sizes->head_dim = mix.head_dim;
    sizes->key_dim = mix.key_dim;
    sizes->index_best = mix.index_best;
    sizes->mix_floats_per_row = t->rotary_dim + t->hidden + mix.floats_per_row;
    sizes->mix_floats_per_few = mix.floats_per_few;
}

void blocks_state(const void *arch, uint32_t layer, struct layer_state *state)
{
    const struct transformer *t = arch;
    *state = (struct layer_state){0};
    t->layers[layer].mixer->state(t->layers[layer].mix, state);
}

uint32_t blocks_expert_layer(const void *arch, uint32_t layer)
{
    const struct transformer *t = arch;
    return t->layers[layer].expert_layer;
}

void blocks_embed(struct step *step)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->embed(step->be, &t->embedding, step->tokens, step->n_rows, step->x);
}

/* The scratch of the mixers begins with the rope table, which all layers use. */
void blocks_place(struct step *step)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->rope_table(step->be, step->positions, step->n_rows, t->rope_frequencies,
                              t->rotary_dim, (float)t->rope.attention_factor, step->mix);
}

struct mix_buffers blocks_mix_buffers(const struct step *step)
{
    const struct transformer *t = transformer_of(step);
    float *out = step->mix + (size_t)step->n_rows * t->rotary_dim;
    return (struct mix_buffers){.rope = step->mix, .out = out,
                                .scratch = out + (size_t)step->n_rows * t->hidden};
}

void blocks_mix(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[layer];
    struct backend *be = step->be;
    const size_t n = step->n_rows;
    const struct mix_buffers m = blocks_mix_buffers(step);
    be->ops->rms_norm(be, step->x, l->mix_norm, t->eps, n, t->hidden, step->normed);
    l->mixer->run(l->mix, step, &m);
    be->ops->add(be, step->x, m.out, n * t->hidden);
}

static void norm_ffn(struct step *step, uint32_t layer, size_t n, float *normed)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->rms_norm(step->be, step->x, t->layers[layer].ffn_norm, t->eps, n, t->hidden,
                            normed);
}

void blocks_route(struct step *step, uint32_t layer)
{
    const struct transformer_layer *l = &transformer_of(step)->layers[layer];
    norm_ffn(step, layer, step->n_rows, step->normed);
    l->block->route(l->ffn, step);
}

void blocks_predict(struct step *step, uint32_t layer)
{
    const struct transformer_layer *l = &transformer_of(step)->layers[layer];
    norm_ffn(step, layer, step->n_rows, step->ahead_normed);
    l->block->predict(l->ffn, step);
}

static void add_ffn(struct step *step)
{
    step->be->ops->add(step->be, step->x, step->ffn,
                       (size_t)step->n_rows * transformer_of(step)->hidden);
}

void blocks_dense(struct step *step, uint32_t layer)
{
    const struct transformer_layer *l = &transformer_of(step)->layers[layer];
    norm_ffn(step, layer, step->n_rows, step->normed);
    l->block->run(l->ffn, step);
    add_ffn(step);
}

void blocks_experts(struct step *step, uint32_t layer, const struct step_expert *experts,
                    uint32_t n, bool with_shared)
{
    const struct transformer_layer *l = &transformer_of(step)->layers[layer];
    l->block->experts(l->ffn, step, &step->model->expert_layers[l->expert_layer], experts, n,
                      with_shared);
}

void blocks_routed(struct step *step, uint32_t layer, const struct step_routed *routed)
{
    const struct transformer_layer *l = &transformer_of(step)->layers[layer];
    l->block->routed(l->ffn, step, &step->model->expert_layers[l->expert_layer], routed);
}

void blocks_close(struct step *step, uint32_t layer)
{
    const struct transformer_layer *l = &transformer_of(step)->layers[layer];
    l->block->close(l->ffn, step);
    add_ffn(step);
}

void blocks_final_norm(struct step *step, const float *x, uint32_t n, float *normed)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->rms_norm(step->be, x, t->final_norm, t->eps, n, t->hidden, normed);
}

void blocks_head(struct step *step, const float *normed, uint32_t n, float *logits)
{
    const struct transformer *t = transformer_of(step);
    const struct weight *head = t->has_tied_head ? &t->embedding : &t->head;
    step->be->ops->input(step->be, normed, n, t->hidden);
    step->be->ops->matmul(step->be, &(struct backend_product){head, logits, NULL}, 1);
}
