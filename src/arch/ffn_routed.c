#include <stdio.h>

#include "arch/ffn.h"

/* Writes the beginning of the names of the block's tensors. */
static void name_block(const struct binder *b, const struct layer_names *names, char *block,
                       size_t bytes)
{
    const char *other = names->traits->other_block;
    const bool is_other =
        other != NULL && binder_find(b, "%s%sgate.weight", names->prefix, other) != NULL;
    (void)snprintf(block, bytes, "%s%s", names->prefix, is_other ? other : "mlp.");
}

static void bind_shared(struct ffn_routed *r, struct binder *b, const struct transformer *t,
                        enum shared_experts kind, const char *block)
{
    if (t->shared_intermediate == 0)
        return;
    ffn_bind(b, &r->shared, t->hidden, t->shared_intermediate, block,
             kind == SHARED_GATED ? "shared_expert" : "shared_experts");
    if (kind == SHARED_GATED)
        binder_matrix(b, &r->shared_gate, TENSOR_GATE, 1, t->hidden,
                      "%sshared_expert_gate.weight", block);
}

static uint32_t routed_bind(void *ffn, struct binder *b, const struct transformer *t,
                            const struct layer_names *names)
{
    struct ffn_routed *r = ffn;
    const struct transformer_traits *traits = names->traits;
    char block[LAYER_PREFIX_BYTES + 32];
    name_block(b, names, block, sizeof block);
    const uint32_t n_experts = t->router.n_experts;
    r->rule = t->router;
    binder_matrix(b, &r->router, TENSOR_GATE, n_experts, t->hidden, "%s%s.weight", block,
                  t->router_name);
    if (traits->router.correction != NULL)
        binder_vector(b, &r->rule.correction, n_experts, VECTOR_PLAIN, "%s%s", block,
                      traits->router.correction);
    const uint32_t expert_layer = binder_experts(b, names->layer, n_experts, t->hidden,
                                                 t->expert_intermediate, t->expert_order, block);
    bind_shared(r, b, t, traits->shared, block);
    return expert_layer;
}

/* transformers has gate and up in one tensor of pairs; converters have them apart. */
void ffn_bind_expert_biases(struct binder *b, const struct transformer *t, struct ffn_routed *r,
                            const struct layer_names *names)
{
    const uint32_t n = t->router.n_experts, n_cols = t->expert_intermediate;
    const uint64_t n_floats = (uint64_t)n * n_cols;
    const char *prefix = names->prefix;
    if (binder_find(b, "%smlp.experts.gate_up_proj_bias", prefix) != NULL) {
        binder_pairs(b, &r->biases.gate, &r->biases.up, n, n_cols,
                     "%smlp.experts.gate_up_proj_bias", prefix);
        binder_rows(b, &r->biases.down, n, t->hidden, "%smlp.experts.down_proj_bias", prefix);
    } else {
        binder_rows(b, &r->biases.gate, n, n_cols, "%smlp.experts.gate_proj.bias", prefix);
        binder_rows(b, &r->biases.up, n, n_cols, "%smlp.experts.up_proj.bias", prefix);
        binder_rows(b, &r->biases.down, n, t->hidden, "%smlp.experts.down_proj.bias", prefix);
    }
    binder_host_copy(b, &r->host_biases.gate, &r->biases.gate, n_floats);
    binder_host_copy(b, &r->host_biases.up, &r->biases.up, n_floats);
    binder_host_copy(b, &r->host_biases.down, &r->biases.down, (uint64_t)n * t->hidden);
}

static uint32_t routed_intermediate(const struct transformer *t)
{
    return t->expert_intermediate > t->shared_intermediate ? t->expert_intermediate
                                                           : t->shared_intermediate;
}

static void routed_route(const void *ffn, struct step *step)
{
    const struct ffn_routed *r = ffn;
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const struct backend_product products[] = {{&r->router, step->router, r->router_bias},
                                               {&r->shared_gate, step->shared_gate, NULL}};
    be->ops->input(be, step->normed, step->n_rows, t->hidden);
    be->ops->matmul(be, products, r->shared_gate.n_rows > 0 ? 2 : 1);
    be->ops->route(be, &r->rule, step->router, step->n_rows, step->ids, step->weights);
    if (step->resident != NULL)
        be->ops->prefer(be, &(struct backend_preference){
            .router = &r->rule, .logits = step->router, .n = step->n_rows,
            .resident = step->resident, .bias = step->cache_bias, .scores = step->scores,
            .ids = step->ids, .weights = step->weights});
}

static void routed_predict(const void *ffn, struct step *step)
{
    const struct ffn_routed *r = ffn;
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    be->ops->input(be, step->ahead_normed, step->n_rows, t->hidden);
    be->ops->matmul(be, &(struct backend_product){&r->router, step->router,
                                                          r->router_bias}, 1);
    be->ops->route(be, &r->rule, step->router, step->n_rows, step->ahead_ids,
                   step->ahead_weights);
    be->ops->input(be, step->normed, step->n_rows, t->hidden);
}

/* The part of expert e, [n_experts, n]. */
static const float *bias_of(const float *biases, uint32_t e, uint32_t n)
{
    return biases != NULL ? biases + (size_t)e * n : NULL;
}

/* `normed` is the input since the router. */
static void routed_experts(const void *ffn, struct step *step, const struct expert_layer *layer,
                           const struct step_expert *experts, uint32_t n, bool with_shared)
{
    const struct ffn_routed *r = ffn;
    const struct transformer *t = transformer_of(step);
    const struct expert_biases *biases =
        step->be->memory->is_host ? &r->host_biases : &r->biases;
    struct backend_ffn blocks[ARCH_EXPERTS_TOGETHER + 1];
    uint32_t n_blocks = 0;
    if (with_shared && t->shared_intermediate > 0)
        blocks[n_blocks++] = ffn_on_all_rows(step, &r->shared, step->shared);
    for (uint32_t i = 0; i < n; i++)
        blocks[n_blocks++] = (struct backend_ffn){
            .gate = expert_layer_weight(layer, EXPERT_GATE, experts[i].slot),
            .up = expert_layer_weight(layer, EXPERT_UP, experts[i].slot),
            .down = expert_layer_weight(layer, EXPERT_DOWN, experts[i].slot),
            .gate_bias = bias_of(biases->gate, experts[i].expert, t->expert_intermediate),
            .up_bias = bias_of(biases->up, experts[i].expert, t->expert_intermediate),
            .down_bias = bias_of(biases->down, experts[i].expert, t->hidden),
            .activation = t->activation, .rows = experts[i].rows, .places = experts[i].places,
            .n = experts[i].n, .out = step->expert_parts};
    if (n_blocks > 0)
        step->be->ops->ffn(step->be, blocks, n_blocks);
}

static void routed_routed(const void *ffn, struct step *step, const struct expert_layer *layer,
                          const struct step_routed *routed)
{
    const struct ffn_routed *r = ffn;
    const struct transformer *t = transformer_of(step);
    const struct backend_ffn shared = ffn_on_all_rows(step, &r->shared, step->shared);
    const struct backend_ffn expert = {
        .gate = expert_layer_weight(layer, EXPERT_GATE, routed->slot),
        .up = expert_layer_weight(layer, EXPERT_UP, routed->slot),
        .down = expert_layer_weight(layer, EXPERT_DOWN, routed->slot),
        .gate_bias = r->biases.gate, .up_bias = r->biases.up, .down_bias = r->biases.down,
        .activation = t->activation, .out = step->expert_parts};
    step->be->ops->ffn_routed(step->be, &(struct backend_routed){
        .ids = step->ids, .k = r->rule.k, .bases = routed->bases, .expert = &expert,
        .shared = t->shared_intermediate > 0 ? &shared : NULL});
}

static void routed_close(const void *ffn, struct step *step)
{
    const struct ffn_routed *r = ffn;
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    be->ops->expert_sum(be, step->expert_parts, step->weights, step->n_rows, r->rule.k,
                        t->hidden, step->ffn);
    if (r->shared_gate.n_rows > 0)
        be->ops->add_gated(be, step->ffn, step->shared, step->shared_gate, step->n_rows,
                           t->hidden);
    else if (t->shared_intermediate > 0)
        be->ops->add(be, step->ffn, step->shared, (size_t)step->n_rows * t->hidden);
}

const struct ffn_block ffn_block_routed = {
    .bytes = sizeof(struct ffn_routed),
    .bind = routed_bind,
    .max_intermediate = routed_intermediate,
    .route = routed_route,
    .predict = routed_predict,
    .experts = routed_experts,
    .routed = routed_routed,
    .close = routed_close,
};
