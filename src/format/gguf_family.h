/* Describes how GGUF files name one family of models: architecture, metadata keys, tensor names,
 * and what llama.cpp's converter does to the values. Each family keeps such a table next to its
 * code (src/arch). The tables, and the pre-tokenizers of src/text, are passed down in struct
 * source_options; the reader itself knows none of them.
 *
 * Tables are constant. The functions below are for a family's `more` function; any thread. */
#ifndef FLASHMOE_FORMAT_GGUF_FAMILY_H
#define FLASHMOE_FORMAT_GGUF_FAMILY_H

#include "format/gguf_values.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor name. Lists end with an empty entry. */
struct gguf_name {
    const char *ggml, *hugging_face; /* within a layer: below "blk.N." and "model.layers.N." */
    bool is_recurrent; /* only in recurrent layers */
    bool is_one_row;   /* a vector in the file stands for a matrix with one row */
};

/* A field of config.json that is an integer of at least 1 with its own key. Lists end with an empty
 * entry. */
struct gguf_field {
    const char *name, *key;
    uint64_t max;
    bool is_optional;
};

/* A pre-tokenizer as tokenizer.ggml.pre names it, and what a GGUF file does not say about it. Lists
 * end with an empty entry. */
struct gguf_pattern {
    const char *const *names; /* NULL-terminated */
    /* As tokenizer.json writes them, NULL-terminated; none: the one of ByteLevel. */
    const char *const *regexes;
    bool has_nfc, ignores_merges;
};

#define GGUF_MAX_NAME_LISTS 6

struct gguf_layout;

struct gguf_family {
    const char *const *architectures; /* values of general.architecture; NULL-terminated */
    const char *model_type;           /* for the generated config.json */
    const struct gguf_field *fields;
    const struct gguf_name *global_names;
    /* The first list that has a name is used, and the first name that a tensor has is the one
     * written. NULL after the last list. */
    const struct gguf_name *layer_names[GGUF_MAX_NAME_LISTS + 1];
    bool has_attention_gate; /* in one projection with the queries */
    bool has_partial_rotary; /* rope.dimension_count may be smaller than a head */
    bool has_latent_heads;   /* key_length and value_length are no sizes of heads */
    bool renormalises;       /* norm_topk_prob if the file does not say */
    struct source_conventions conventions;
    /* Control tokens that end an answer in addition to those that a file names; NULL-terminated. */
    const char *const *stop_tokens;
    /* Keys that `more` reads. The reader refuses them for other families, because they change the
     * arithmetic. NULL-terminated, may be NULL. */
    const char *const *own_keys;
    /* Reads what only this family has; may be NULL. Called when the fields are set and
     * num_hidden_layers is the layout's n_layers. */
    int (*more)(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                struct fm_error *err);
};

/* Everything that is passed down; each may be NULL. */
struct gguf_names {
    const struct gguf_family *const *families; /* NULL-terminated */
    const struct gguf_pattern *patterns;
};

/* What the names of tensors depend on. */
struct gguf_layout {
    const struct gguf_family *family;
    const char *architecture; /* as the family writes it */
    uint64_t n_layers; /* without the blocks for multi-token prediction, which come last */
    uint64_t n_blocks;
    bool is_recurrent[LIMIT_LAYERS];
    uint64_t q_rows, kv_rows; /* for a fused projection in an attention layer */
    bool has_attention_bias, has_head_norms; /* the first block has such tensors */
    /* A tensor outside of blocks that belongs to a layer, with its name there; empty: none. */
    struct gguf_name moved;
    uint64_t moved_layer;
    struct source_conventions conventions; /* the family's conventions, which `more` may change */
};

/* Sets a field of the configuration and takes ownership of the value. The first failure stays in
 * *rc. */
void gguf_config_set(json_t *config, const char *field, json_t *value, int *rc,
                     struct fm_error *err);
/* Sets all fields of a list. */
int gguf_config_read(json_t *config, const struct gguf *g, const struct gguf_field *fields,
                     struct fm_error *err);
/* Returns an integer field, or `fallback` if it is not set. */
uint64_t gguf_config_uint(const json_t *config, const char *field, uint64_t fallback);

#ifdef __cplusplus
}
#endif
#endif
