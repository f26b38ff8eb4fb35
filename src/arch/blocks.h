/* The building blocks that families are wired from: a pre-norm decoder whose mixers are softmax
 * attention or the gated delta rule and whose feed-forward blocks are routed experts or a dense
 * SwiGLU. A family fills `struct transformer` when it opens and points its arch functions here;
 * one that computes something else supplies its own function. */
#ifndef FLASHMOE_ARCH_BLOCKS_H
#define FLASHMOE_ARCH_BLOCKS_H

#include "arch/arch.h"
#include "model/binder.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ffn_weights {
    struct weight gate, up, down;
};

struct attention_weights {
    struct weight q, k, v, o; /* q holds query and gate rows per head when gated */
    const float *q_norm, *k_norm;
};

struct delta_net_weights {
    struct weight qkv, z, b, a, out;
    const float *conv, *decay, *dt_bias, *norm;
};

struct transformer_layer {
    bool is_recurrent;
    const float *mix_norm, *ffn_norm;
    struct attention_weights attention;
    struct delta_net_weights delta_net;

    uint32_t expert_layer; /* or ARCH_NO_EXPERTS: `dense` is used */
    struct weight router;
    struct ffn_weights shared;
    struct weight shared_gate; /* [1, hidden] */
    struct ffn_weights dense;
};

struct transformer {
    uint32_t n_layers, hidden, vocabulary, max_context;
    uint32_t n_heads, n_kv_heads, head_dim, rotary_dim;
    bool has_attention_gate;
    uint32_t n_key_heads, n_value_heads, key_dim, value_dim, conv_kernel;
    uint32_t n_experts, n_experts_per_token, n_experts_trained;
    uint32_t expert_intermediate, shared_intermediate, dense_intermediate;
    bool has_dense_layers, renormalises, has_tied_head;
    bool has_tiled_value_heads; /* source_conventions */
    float eps;
    struct rope rope;
    float *rope_frequencies; /* [rotary_dim / 2] */

    struct weight embedding;
    struct weight head;
    const float *final_norm;
    struct transformer_layer *layers;
};

/* Frees what transformer_new made; the weights belong to the model. */
void transformer_free(void *arch);

void blocks_sizes(const void *arch, struct arch_sizes *sizes);
void blocks_state(const void *arch, uint32_t layer, struct layer_state *state);
uint32_t blocks_expert_layer(const void *arch, uint32_t layer);
void blocks_embed(struct step *step);
void blocks_place(struct step *step);
void blocks_mix(struct step *step, uint32_t layer);
void blocks_route(struct step *step, uint32_t layer);
void blocks_foresee(struct step *step, uint32_t layer);
void blocks_dense(struct step *step, uint32_t layer);
void blocks_experts(struct step *step, uint32_t layer, const struct step_expert *experts,
                    uint32_t n, bool with_shared);
void blocks_close(struct step *step, uint32_t layer);
void blocks_final_norm(struct step *step, const float *x, uint32_t n, float *normed);
void blocks_head(struct step *step, const float *normed, uint32_t n, float *logits);

/* All of them, for a family's descriptor. */
#define BLOCKS_FUNCTIONS                                                                           \
    .sizes = blocks_sizes, .state = blocks_state, .expert_layer = blocks_expert_layer,             \
    .embed = blocks_embed, .place = blocks_place, .mix = blocks_mix, .route = blocks_route,        \
    .foresee = blocks_foresee, .dense = blocks_dense, .experts = blocks_experts,                   \
    .close = blocks_close, .final_norm = blocks_final_norm, .head = blocks_head

/* ---- opening (blocks_open.c) ----------------------------------------------------------------- */

/* What differs between families that are built from these blocks. */
struct transformer_traits {
    const char *const *prefixes;  /* NULL-terminated, tried in order: "model.", ... */
    /* When the configuration does not say; 0: the family rotates whole heads, whatever it says. */
    double partial_rotary_factor;
    uint32_t default_kv_heads, default_head_dim; /* likewise; head_dim 0: hidden by heads */
    bool may_have_dense_layers; /* reads mlp_only_layers and decoder_sparse_step */
    bool has_attention_gate, has_delta_net, has_shared_expert;
    bool has_zero_centred_norms; /* in Hugging Face files */
    bool always_renormalises;    /* whatever norm_topk_prob says */
    bool renormalises_by_default;
    /* Binds qkv, z, b and a of a recurrent layer below `prefix`. */
    void (*bind_delta_projections)(struct binder *b, const struct transformer *t,
                                   struct delta_net_weights *w, const char *prefix);
};

/* The projections of a recurrent layer where they lie apart: all queries, keys and values in one
 * matrix, the gates z in another. */
void blocks_bind_qkv_z(struct binder *b, const struct transformer *t, struct delta_net_weights *w,
                       const char *prefix);

/* The family's open function, given its traits. */
int transformer_open(const struct transformer_traits *traits, const struct config *config,
                     struct binder *binder, struct model_shape *shape, void **arch,
                     struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
