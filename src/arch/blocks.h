/* A pre-norm decoder made of pieces. A layer is a mixer and a feed-forward block, each a small
 * table of functions over a struct of its own: attention (mix_attention.h), the gated delta rule
 * (mix_delta_net.h), routed experts and a dense block (ffn.h). A family says in its traits which
 * pieces its layers have, and points its arch functions here; what it computes differently it
 * supplies itself. Another mixer or block is another file.
 *
 * Everything is made while a model opens, by one thread, and does not change afterwards. */
#ifndef FLASHMOE_ARCH_BLOCKS_H
#define FLASHMOE_ARCH_BLOCKS_H

#include "arch/arch.h"
#include "model/binder.h"

#ifdef __cplusplus
extern "C" {
#endif

struct transformer;
struct transformer_traits;
struct layer_kind;

/* Where the tensors of a layer are. */
struct layer_names {
    uint32_t layer;
    const char *prefix; /* "model.layers.3." */
    enum vector_transform norm; /* how norms are read */
    const struct transformer_traits *traits;
};

#define LAYER_PREFIX_BYTES 128

/* ---- mixers ---------------------------------------------------------------------------------- */

/* What a mixer needs; every field is at least what was there before. */
struct mixer_sizes {
    uint64_t max_cols; /* of its weights and heads */
    uint64_t floats_per_row; /* of scratch */
    uint64_t floats_per_few; /* besides, for each of the first ARCH_FEW_ROWS rows */
    unsigned n_heads, head_dim, key_dim, index_best; /* as in arch_sizes */
};

/* Where a mixer finds and puts its rows; `normed` is its input. */
struct mix_buffers {
    const float *rope; /* [n, rotary_dim] */
    const float *block_rope; /* the same, of the first positions of an index's blocks */
    float *out;        /* [n, hidden] */
    float *scratch;    /* [n, floats_per_row], then [at most ARCH_FEW_ROWS, floats_per_few] */
};

struct mixer {
    size_t bytes; /* of the struct that a layer has of it, `mix`: shape and weights */
    size_t (*more_bytes)(const void *mix); /* behind the struct, by its shape; NULL: none */
    /* Fills in the shape, once for every kind of layer; it is then copied to the layers. */
    int (*read)(void *mix, struct transformer *t, const struct transformer_traits *traits,
                const struct layer_kind *kind, const struct config *config, struct fm_error *err);
    void (*bind)(void *mix, struct binder *b, const struct transformer *t,
                 const struct layer_names *names);
    void (*sizes)(const void *mix, struct mixer_sizes *sizes);
    /* Adds the parts of its state to an empty description; the same for every sequence. */
    void (*state)(const void *mix, struct layer_state *state);
    void (*run)(const void *mix, struct step *step, const struct mix_buffers *m);
};

/* ---- feed-forward blocks --------------------------------------------------------------------- */

/* A block has either `run` or all functions behind it. Their input is `normed`. */
struct ffn_block {
    size_t bytes; /* of the struct that a layer has of it, `ffn` */
    /* Returns the layer's index in model->expert_layers, or ARCH_NO_EXPERTS. */
    uint32_t (*bind)(void *ffn, struct binder *b, const struct transformer *t,
                     const struct layer_names *names);
    uint32_t (*max_intermediate)(const struct transformer *t);
    void (*run)(const void *ffn, struct step *step); /* ffn = block(normed) */
    /* As in struct arch. */
    void (*route)(const void *ffn, struct step *step);
    void (*predict)(const void *ffn, struct step *step); /* from ahead_normed */
    void (*experts)(const void *ffn, struct step *step, const struct expert_layer *layer,
                    const struct step_expert *experts, uint32_t n, bool with_shared);
    void (*routed)(const void *ffn, struct step *step, const struct expert_layer *layer,
                   const struct step_routed *routed);
    void (*close)(const void *ffn, struct step *step); /* ffn = all parts */
};

/* ---- the decoder ----------------------------------------------------------------------------- */

struct transformer_layer {
    const float *mix_norm, *ffn_norm;
    const struct mixer *mixer;
    void *mix;
    const struct ffn_block *block;
    void *ffn;
    uint32_t expert_layer; /* or ARCH_NO_EXPERTS */
};

#define TRANSFORMER_KINDS 4 /* of layers, at most */

struct transformer {
    uint32_t n_layers, hidden, vocabulary, max_context, rotary_dim;
    uint32_t n_streams, index_ratio; /* of the residual; positions of an index's block, or 0 */
    struct activation activation; /* of all feed-forward blocks */
    struct router router; /* of all layers, without what each has of its own */
    uint32_t n_experts_trained;
    uint32_t expert_intermediate, shared_intermediate, dense_intermediate;
    const char *router_name; /* of its tensors, below "mlp." */
    enum expert_order expert_order;
    bool has_tied_head;
    float eps;
    struct rope rope;
    float *rope_frequencies; /* [rotary_dim / 2] */

    struct weight embedding;
    struct weight head;
    const float *final_norm;
    struct transformer_layer *layers; /* and the one of mtp */
    struct mtp *mtp; /* NULL: the model has none, or it is not loaded */
    void *shapes[TRANSFORMER_KINDS]; /* what layers of each kind begin as */
    void *more; /* the family's own, in one block (mem_new) */
};

static inline const struct transformer *transformer_of(const struct step *step)
{
    return (const struct transformer *)step->arch;
}

/* Makes the table of the rotation, which is the same in all layers, once `rope` is read. */
int transformer_make_rope(struct transformer *t, uint32_t rotary_dim, struct fm_error *err);
/* Frees what transformer_open made; the weights belong to the model. */
void transformer_free(void *arch);

void blocks_sizes(const void *arch, struct arch_sizes *sizes);
void blocks_state(const void *arch, uint32_t layer, struct layer_state *state);
uint32_t blocks_expert_layer(const void *arch, uint32_t layer);
void blocks_embed(struct step *step);
void blocks_place(struct step *step);
void blocks_mix(struct step *step, uint32_t layer);
void blocks_route(struct step *step, uint32_t layer);
void blocks_predict(struct step *step, uint32_t layer);
void blocks_dense(struct step *step, uint32_t layer);
void blocks_experts(struct step *step, uint32_t layer, const struct step_expert *experts,
                    uint32_t n, bool with_shared);
void blocks_routed(struct step *step, uint32_t layer, const struct step_routed *routed);
void blocks_close(struct step *step, uint32_t layer);
void blocks_final_norm(struct step *step, const float *x, uint32_t n, float *normed);
void blocks_head(struct step *step, const float *normed, uint32_t n, float *logits);

/* All of them, for a family's descriptor. */
#define BLOCKS_FUNCTIONS                                                                           \
    .sizes = blocks_sizes, .state = blocks_state, .expert_layer = blocks_expert_layer,             \
    .embed = blocks_embed, .place = blocks_place, .mix = blocks_mix, .route = blocks_route,        \
    .predict = blocks_predict, .dense = blocks_dense, .experts = blocks_experts,                   \
    .routed = blocks_routed, .close = blocks_close, .final_norm = blocks_final_norm,               \
    .head = blocks_head

/* ---- opening (blocks_open.c) ----------------------------------------------------------------- */

/* A kind of layer, under its name in the configuration's layer_types. */
struct layer_kind {
    const char *name;
    const struct mixer *mixer;
    bool has_window; /* attention: sees as many positions as sliding_window says */
};

/* How queries and keys are normed before they are rotated. */
enum head_norms { NORM_EACH_HEAD, NORM_ALL_HEADS, NORM_NO_HEADS };

/* Biases of the projections of queries, keys and values. */
struct bias_traits {
    const char *field; /* of the configuration, that says whether there are any; NULL: never any */
    bool by_default;   /* when it does not say */
    bool has_output;   /* the output projection has one, too */
};

/* What the experts that every row goes through are. */
enum shared_experts {
    SHARED_NONE,
    SHARED_GATED, /* one, of shared_expert_intermediate_size, with a gate */
    SHARED_PLAIN, /* n_shared_experts of the routed experts' size in one, added as they are */
};

/* How experts are chosen, beyond what every router has. */
struct router_traits {
    enum router_score score;
    const char *correction; /* its tensor, below that of the block; NULL: none */
    bool has_groups; /* reads n_group, topk_group and routed_scaling_factor */
    uint32_t default_groups, default_groups_chosen; /* when the configuration does not say; 0: 1 */
    double default_scale;                           /* likewise */
};

struct delta_net;

/* What differs between families that are built from these blocks. */
struct transformer_traits {
    const char *const *prefixes;  /* NULL-terminated, tried in order: "model.", ... */
    const struct layer_kind *kinds; /* at most TRANSFORMER_KINDS, up to one without a name */
    /* Without layer_types every n-th layer is of the first kind and the others are of the second;
     * the configuration's full_attention_interval counts before it. 0: all are of the first. */
    uint32_t default_interval;
    /* When the configuration does not say; 0: the family rotates whole heads, whatever it says. */
    double partial_rotary_factor;
    bool turns_neighbours; /* of latent attention, when rope_interleave does not say */
    bool may_have_rotary_dim; /* the number itself in place of that factor */
    /* Likewise. kv_heads 0: as many as heads; head_dim 0: hidden by heads; eps 0: 1e-6. */
    uint32_t default_kv_heads, default_head_dim;
    double default_eps;
    bool may_have_dense_layers; /* reads mlp_only_layers and decoder_sparse_step */
    bool begins_with_dense_layers; /* reads first_k_dense_replace */
    uint32_t n_dense_layers; /* so many first layers are dense, unless mlp_layer_types is there */
    bool has_attention_gate;
    bool may_have_sigmoid_gate; /* of the delta rule: reads output_gate_type */
    bool has_streams; /* gates stand in for the norms of layers, and for the final one */
    bool may_have_window; /* all layers see sliding_window positions, if it is there */
    struct bias_traits bias;
    enum shared_experts shared;
    struct router_traits router;
    const char *other_block; /* of routed blocks, where it is not "mlp."; NULL: it always is */
    bool may_have_predictors; /* layers behind the last one, which are not used */
    bool may_have_mtp; /* a block of the first kind below "mtp." (mtp.h) */
    struct activation activation; /* silu unless it says otherwise */
    const char *router_name; /* "gate" unless it says otherwise */
    enum expert_order expert_order;
    bool has_own_interval; /* whatever full_attention_interval says */
    enum head_norms head_norms;
    const char *head_norms_field; /* false or missing: no norms of heads; NULL: always these */
    bool has_zero_centred_norms; /* in Hugging Face files */
    bool always_renormalises;    /* whatever norm_topk_prob says */
    bool renormalises_by_default;
    /* Binds qkv, z, b and a of a delta rule layer below `prefix`. */
    void (*bind_delta_projections)(struct binder *b, const struct transformer *t,
                                   struct delta_net *d, const char *prefix);
    /* Reads what only this family's configuration has; may be NULL. */
    int (*read_more)(struct transformer *t, const struct config *config, struct fm_error *err);
    /* Refuses what does not fit the kinds of the layers; may be NULL. */
    int (*check_layers)(const struct transformer *t, const struct config *config,
                        struct fm_error *err);
    /* Binds what a layer's pieces have beyond that, biases and the like; may be NULL. */
    void (*bind_more)(struct binder *b, const struct transformer *t, struct transformer_layer *l,
                      const struct layer_names *names);
    /* Binds what stands in for the final norm, below the model's prefix; may be NULL. */
    void (*bind_last)(struct binder *b, struct transformer *t, const struct layer_names *names);
};

/* The family's open function, given its traits. */
int transformer_open(const struct transformer_traits *traits, const struct config *config,
                     struct binder *binder, struct model_shape *shape, void **arch,
                     struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
