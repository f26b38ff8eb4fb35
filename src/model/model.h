/* A model: the dense weights in memory, where each expert lies on disk, and the numbers everybody
 * needs. It knows no architecture: families are handed down by the caller of model_open.
 *
 * A model is immutable after model_open and may be read by any thread. Every offset and size is
 * checked while it opens and nowhere later. It owns all that its fields point to. */
#ifndef FLASHMOE_MODEL_MODEL_H
#define FLASHMOE_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "flashmoe.h"
#include "format/gguf_family.h"
#include "format/packed.h"
#include "model/config.h"
#include "quant/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

struct binder;

/* ---- experts --------------------------------------------------------------------------- */

/* Most pieces one expert lies in: three matrices of three parts each. */
#define EXPERT_MAX_EXTENTS (EXPERT_MATRICES * QUANT_MAX_PARTS)

/* A run of bytes in a file and where it goes in the slot. */
struct extent {
    uint64_t offset, bytes, slot_offset;
    uint32_t file;
};

/* The routed experts of one layer: all have the same formats and size. */
struct expert_layer {
    uint32_t layer, n_experts;
    char *prefix;         /* of the tensors' names: "model.layers.3.mlp." */
    struct record record; /* how an expert lies in its slot */
    uint64_t read_bytes;  /* what is read of one */
    uint32_t n_extents;
    struct extent *extents; /* [n_experts, n_extents] */
    /* Packed models: the checksum of each slot; otherwise NULL. */
    const struct packed_sum *sums; /* [n_experts] */
};

/* The matrix as it lies in a slot. */
struct weight expert_layer_weight(const struct expert_layer *layer, unsigned matrix,
                                  const void *slot);

/* ---- families -------------------------------------------------------------------------- */

/* What the layers above need to know about any model. */
struct model_shape {
    uint32_t n_layers, n_attention_layers, hidden, vocabulary;
    uint32_t max_context; /* with what the rotation is scaled by */
    struct rope rope;
    uint32_t n_experts, n_experts_per_token;
    uint32_t n_experts_trained; /* per token, where fewer are used */
    bool has_tied_head;
};

struct model_family {
    const char *const *model_types; /* NULL-terminated, as config.json spells them */
    /* The one of them whose fields lie in text_config; NULL: none. */
    const char *multimodal_type;
    const struct gguf_family *gguf; /* its names in GGUF files; NULL: it is not read from them */
    /* Reads the configuration, binds every tensor, fills `shape` and returns the family's own
     * model in *arch (mem_new). Binder errors are sticky: model_open looks at them. */
    int (*open)(const struct config *config, struct binder *binder, struct model_shape *shape,
                void **arch, struct fm_error *err);
    void (*close)(void *arch); /* accepts NULL */
};

/* ---- what each tensor is for ---------------------------------------------------------- */

enum tensor_role {
    TENSOR_UNKNOWN, /* no call has named it */
    TENSOR_IGNORED,
    TENSOR_ELSEWHERE, /* of a layer that is not here */
    TENSOR_VECTOR, /* norms, convolutions: kept as f32 */
    TENSOR_MATRIX,
    TENSOR_GATE, /* routers and the like: small, and wrong choices are costly */
    TENSOR_EMBEDDING,
    TENSOR_HEAD,
    TENSOR_EXPERT,
};

struct tensor_use {
    enum tensor_role role;
    const struct quant *quant;
    uint64_t n_rows, n_cols; /* of all slabs together */
};

/* ---- the model ------------------------------------------------------------------------- */

struct model_format_use {
    const struct quant *quant;
    bool is_expert;
    uint64_t n_tensors, n_bytes;
};

#define MODEL_MAX_FORMATS 32

struct dense_plan;

struct model {
    struct source *source;
    struct tensor_use *uses; /* [source->n_tensors] */
    const struct model_family *family;
    void *arch;
    char *model_type;
    struct model_shape shape; /* of the whole model */
    uint32_t first_layer, end_layer;  /* those that are here; all of them in most models */
    uint32_t first_expert_layer;      /* layers with experts before first_layer */
    struct expert_layer *expert_layers; /* those that are here */
    uint32_t n_expert_layers;
    void *dense; /* one block in `memory`; NULL before model_load_dense */
    const struct memory *memory;   /* borrowed; NULL likewise */
    const struct weight_preparer *preparer; /* borrowed; NULL: weights stay as they were read */
    struct dense_plan *dense_plan; /* what model_load_dense will read; NULL after it */
    uint64_t dense_bytes, dense_token_bytes;
    uint64_t n_parameters;
    struct model_format_use formats[MODEL_MAX_FORMATS];
    unsigned n_formats;
    unsigned n_ignored_tensors;
    int32_t stop_tokens[LIMIT_STOP_TOKENS];
    unsigned n_stop_tokens;
    uint64_t expert_slot_bytes; /* the largest of all layers; 0 without experts */
};

struct model_options {
    const struct model_family *const *families; /* NULL-terminated */
    const char *spare_dir; /* as in struct source_options; may be NULL */
    bool metadata_only;
    uint32_t experts_per_token; /* fewer than the model's own: approximate; 0: the model's own */
    /* Only the layers [first_layer, end_layer): the embedding comes with layer 0, the head with the
     * last one. Files without weights of theirs may be missing. 0, 0: all layers. */
    uint32_t first_layer, end_layer;
};

/* What GGUF files are read with: what the families are called there, and every pre-tokenizer. */
#define MODEL_MAX_NAMES 64
struct model_gguf {
    const struct gguf_family *families[MODEL_MAX_NAMES + 1];
    struct gguf_pattern patterns[MODEL_MAX_NAMES + 1];
    struct gguf_names names; /* of the lists above, so it stays where it is */
};
void model_gguf_init(struct model_gguf *gguf, const struct model_family *const *families);
/* Opens the source alone, with what the options say about it. */
int model_source_open(const char *path, const struct model_options *options, struct source **out,
                      struct fm_error *err);
/* Headers only: checks everything and computes all sizes. */
int model_open(const char *path, const struct model_options *options, struct model **out,
               struct fm_error *err);
/* The same for a source that is open already; it belongs to the model from here on, also on
 * failure. */
int model_open_source(struct source *source, const struct model_options *options,
                      struct model **out, struct fm_error *err);
/* Weights get the layout that a backend's kernels want: the dense ones when they are loaded, which
 * comes after this, and experts when a store has read them. */
void model_prepare_for(struct model *model, const struct weight_preparer *preparer);
/* Whether a matrix of an expert changes when it is read, and that change, in place. */
bool expert_layer_changes(const struct model *model, const struct expert_layer *layer,
                          unsigned matrix);
void expert_layer_prepare(const struct model *model, const struct expert_layer *layer, void *slot);
/* Reads the dense weights into `memory`, which must outlive the model; model_open was called
 * without metadata_only. With `checks` it fails unless what is in memory has the checksums of a
 * packed model, or the files of another one still are as they were when it was opened. */
int model_load_dense(struct model *model, const struct memory *memory, bool checks,
                     fm_progress_fn *progress, void *progress_ctx, struct fm_error *err);
/* Bytes that it reads; 0 once it has. */
uint64_t model_dense_read_bytes(const struct model *model);
void model_close(struct model *model); /* accepts NULL */

/* The same for the same checkpoint in the same form: its architecture, shape and the place of every
 * expert. For what is kept from one run to the next. */
uint64_t model_identity(const struct model *model);

/* The last layer is here, and the head with it. */
static inline bool model_has_head(const struct model *model)
{
    return model->end_layer == model->shape.n_layers;
}

bool model_is_stop_token(const struct model *model, int32_t id);
/* False when there is no room for another one. */
bool model_add_stop_token(struct model *model, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
