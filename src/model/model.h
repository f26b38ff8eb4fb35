/* A model: the dense weights in memory, where each expert lies on disk, and the sizes that other
 * layers need. It knows no architecture: the caller of model_open passes the families in.
 *
 * A model is immutable after model_open, and any thread may read it. Every offset and size is
 * checked while it opens and never again. It owns all that its fields point to. */
#ifndef FLASHMOE_MODEL_MODEL_H
#define FLASHMOE_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "flashmoe.h"
#include "format/gguf_family.h"
#include "format/packed.h"
#include "model/config.h"
#include "model/row_table.h"
#include "quant/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

struct binder;

/* ---- experts --------------------------------------------------------------------------- */

/* Maximum number of extents of one expert: three matrices of three parts each. */
#define EXPERT_MAX_EXTENTS (EXPERT_MATRICES * QUANT_MAX_PARTS)

/* A run of bytes in a file, and where it goes in the slot. */
struct extent {
    uint64_t offset, bytes, slot_offset;
    uint32_t file;
};

/* The routed experts of one layer. All have the same formats and size. */
struct expert_layer {
    uint32_t layer, n_experts;
    char *prefix;         /* of the tensors' names: "model.layers.3.mlp." */
    uint8_t order;        /* enum expert_order (binder.h): what its tensors' names mean */
    struct record record; /* how an expert lies in its slot */
    uint64_t read_bytes;  /* bytes read per expert */
    uint32_t n_extents;
    struct extent *extents; /* [n_experts, n_extents] */
    /* The checksum of each slot if the model is packed, otherwise NULL. */
    const struct packed_sum *sums; /* [n_experts] */
};

/* Returns the matrix as it lies in a slot. */
struct weight expert_layer_weight(const struct expert_layer *layer, unsigned matrix,
                                  const void *slot);

#define MODEL_MAX_TABLES 8
#define MODEL_MAX_RECENT 8

/* ---- families -------------------------------------------------------------------------- */

/* What the layers above need to know about any model. */
struct model_shape {
    uint32_t n_layers, n_attention_layers, hidden, vocabulary;
    uint32_t row_floats; /* of a row between two layers: hidden, for each stream of the residual */
    uint32_t max_context; /* including the effect of rope scaling */
    struct rope rope;
    uint32_t n_experts, n_experts_per_token;
    uint32_t n_experts_trained; /* per token in training; n_experts_per_token may be smaller */
    bool has_tied_head;
};

struct model_family {
    const char *const *model_types; /* NULL-terminated, as config.json spells them */
    /* The one of them whose fields are in text_config; NULL: none. */
    const char *multimodal_type;
    const struct gguf_family *gguf; /* its names in GGUF files; NULL: GGUF is not supported */
    /* Reads the configuration, binds every tensor, fills `shape` and returns the family's own model
     * in *arch (mem_new). model_open checks for binder errors, so this function need not. */
    int (*open)(const struct config *config, struct binder *binder, struct model_shape *shape,
                void **arch, struct fm_error *err);
    void (*close)(void *arch); /* accepts NULL */
};

/* ---- what each tensor is for ---------------------------------------------------------- */

enum tensor_role {
    TENSOR_UNKNOWN, /* no call has named it */
    TENSOR_IGNORED,
    TENSOR_ELSEWHERE, /* of a layer that is not loaded */
    TENSOR_VECTOR, /* norms, convolutions: kept as f32 */
    TENSOR_MATRIX,
    TENSOR_GATE, /* routers and the like: small, and errors in them are costly */
    TENSOR_EMBEDDING,
    TENSOR_HEAD,
    TENSOR_EXPERT,
    TENSOR_TABLE,   /* read row by row while the model runs */
    TENSOR_DERIVED, /* integers that follow from the configuration */
};

struct tensor_use {
    enum tensor_role role;
    const struct quant *quant;
    uint64_t n_rows, n_cols; /* of all slabs together */
    uint32_t counted;        /* a bit for each of the model's formats that it has been counted in */
};

/* ---- the model ------------------------------------------------------------------------- */

struct model_format_use {
    const struct quant *quant;
    bool is_expert;
    uint64_t n_tensors; /* of the files, however many matrices are cut out of one */
    uint64_t n_bytes;
};

#define MODEL_MAX_FORMATS 32 /* bits of tensor_use.counted */

struct dense_plan;

struct model {
    struct source *source;
    struct tensor_use *uses; /* [source->n_tensors] */
    const struct model_family *family;
    void *arch;
    char *model_type;
    struct model_shape shape; /* of the whole model */
    uint32_t first_layer, end_layer;  /* the loaded layers; usually all */
    bool has_head, leaves_head; /* it is loaded; it is not, although the last layer is */
    uint32_t first_expert_layer;      /* number of layers with experts before first_layer */
    struct expert_layer *expert_layers; /* of the loaded layers */
    uint32_t n_expert_layers;
    /* The block for multi-token prediction is loaded: layer shape.n_layers, whose experts are the
     * last of expert_layers. No logits depend on it. */
    bool has_mtp;
    bool has_large_mtp; /* its experts take more memory than the others */
    struct row_table row_tables[MODEL_MAX_TABLES]; /* of the loaded layers */
    uint32_t n_row_tables;
    void *dense; /* one block in `memory`; NULL before model_load_dense */
    const struct memory *memory;   /* borrowed; NULL before model_load_dense */
    const struct weight_preparer *preparer; /* borrowed; NULL: weights stay as they were read */
    /* What lies in `dense` in an order that no file has (interleave_suits_memory), by place. */
    struct weight_part *turned;
    size_t n_turned;
    struct dense_plan *dense_plan; /* what model_load_dense will read; NULL after it */
    uint64_t dense_bytes, dense_token_bytes;
    uint64_t mtp_dense_bytes; /* of dense_bytes: at its end, and no part of dense_token_bytes */
    /* Copies of dense floats for the processor beside a device; NULL if not needed. */
    char *host_copies;
    uint64_t host_copy_bytes; /* that they take if the memory is a device's */
    uint64_t n_parameters;
    struct model_format_use formats[MODEL_MAX_FORMATS];
    unsigned n_formats;
    unsigned n_ignored_tensors;
    int32_t stop_tokens[LIMIT_STOP_TOKENS];
    unsigned n_stop_tokens;
    uint64_t expert_slot_bytes; /* maximum over all layers; 0 without experts */
};

struct model_options {
    const struct model_family *const *families; /* NULL-terminated */
    const char *spare_dir; /* as in struct source_options; may be NULL */
    bool metadata_only;
    uint32_t experts_per_token; /* fewer than the model has: approximate; 0: the model's own */
    /* Loads only the layers [first_layer, end_layer). The embedding belongs to layer 0, the head to
     * the last layer. Files without weights of these layers may be missing. 0, 0: all layers. */
    uint32_t first_layer, end_layer;
    uint32_t n_layers; /* of the whole model, if it is known: with_mtp needs it with HEAD_LOADED */
    /* Loads the head without the last layer, or the last layer without the head. */
    enum { HEAD_WITH_LAST_LAYER, HEAD_LOADED, HEAD_ELSEWHERE } head;
    /* Loads the block for multi-token prediction with the head, if there is one. */
    bool with_mtp;
    /* Expert files of a packed model may be missing: model.json says what would be in them. Only
     * with metadata_only. may_be_part: only those that another part of the model has. */
    bool may_lack_experts, may_be_part;
};

/* What GGUF files are read with: names of the families, and every pre-tokenizer. */
#define MODEL_MAX_NAMES 64
struct model_gguf {
    const struct gguf_family *families[MODEL_MAX_NAMES + 1];
    struct gguf_pattern patterns[MODEL_MAX_NAMES + 1];
    struct gguf_names names; /* points to the lists above, so do not copy this struct */
};
void model_gguf_init(struct model_gguf *gguf, const struct model_family *const *families);
/* Opens only the source, with the options that concern it. */
int model_source_open(const char *path, const struct model_options *options, struct source **out,
                      struct fm_error *err);
/* Opens a model from its headers: checks everything and computes all sizes. */
int model_open(const char *path, const struct model_options *options, struct model **out,
               struct fm_error *err);
/* Same for an open source. The model takes ownership of it, even on failure. */
int model_open_source(struct source *source, const struct model_options *options,
                      struct model **out, struct fm_error *err);
/* Gives weights the layout that a backend's kernels want: dense weights when they are loaded,
 * experts when a store has read them. Call this before model_load_dense. */
void model_prepare_for(struct model *model, const struct weight_preparer *preparer);
/* Returns whether a matrix of an expert is converted when it is read; converts it in place. */
bool expert_layer_changes(const struct model *model, const struct expert_layer *layer,
                          unsigned matrix);
void expert_layer_prepare(const struct model *model, const struct expert_layer *layer, void *slot);
/* Hears how far the dense weights are. Returns false: they are wanted no more. */
typedef bool model_load_fn(void *ctx, uint64_t done, uint64_t total);
/* Reads the dense weights into `memory`, which must outlive the model. model_open must have been
 * called without metadata_only. With `checks` it verifies the checksums of a packed model in
 * memory. For other models it checks that the files have not changed since they were opened. */
int model_load_dense(struct model *model, const struct memory *memory, bool checks,
                     model_load_fn *progress, void *progress_ctx, struct fm_error *err);
/* Returns the bytes that model_load_dense will read; 0 afterwards. */
uint64_t model_dense_read_bytes(const struct model *model);
void model_close(struct model *model); /* accepts NULL */

/* Returns a hash of the architecture, the shape and the place of every expert: equal for the same
 * checkpoint in the same form. For files that are kept from one run to the next. */
uint64_t model_identity(const struct model *model);

/* Returns whether rows go from the layers into the head. */
static inline bool model_ends_in_head(const struct model *model)
{
    return model->has_head && model->end_layer == model->shape.n_layers;
}

/* Returns how many of expert_layers and of the layers with state are there without and with the
 * block for multi-token prediction. */
static inline uint32_t model_n_own_expert_layers(const struct model *model)
{
    return model->n_expert_layers - model->has_mtp;
}
static inline uint32_t model_n_state_layers(const struct model *model)
{
    return model->end_layer - model->first_layer + model->has_mtp;
}
/* Returns which layer is the i-th of those with state: the block counts as the one behind the last
 * layer of the whole model. */
static inline uint32_t model_state_layer(const struct model *model, uint32_t i)
{
    return i < model->end_layer - model->first_layer ? model->first_layer + i
                                                     : model->shape.n_layers;
}

bool model_is_stop_token(const struct model *model, int32_t id);
/* Returns false if there is no room for another one. */
bool model_add_stop_token(struct model *model, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
