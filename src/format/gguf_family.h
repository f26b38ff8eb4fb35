/* What one family of models is called in GGUF files: architecture, metadata keys, tensor names, and
 * what llama.cpp's converter does to its values. A family keeps such a table beside its code
 * (src/arch); it is handed down through struct source_options, and so are the pre-tokenizers of
 * src/text. The reader itself knows none of them.
 *
 * Tables are constant. The functions below are for a family's `more`; any thread. */
#ifndef FLASHMOE_FORMAT_GGUF_FAMILY_H
#define FLASHMOE_FORMAT_GGUF_FAMILY_H

#include "format/gguf_values.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor. Lists end with an empty one. */
struct gguf_name {
    const char *ggml, *hugging_face; /* of a layer: below "blk.N." and "model.layers.N." */
    bool is_recurrent; /* in recurrent layers only */
    bool is_one_row;   /* a vector in the file is a matrix of one row */
};

/* A field of config.json that is a whole number, at least 1, under a key of its own. Lists end with
 * an empty one. */
struct gguf_field {
    const char *name, *key;
    uint64_t max;
    bool is_optional;
};

/* A pre-tokenizer as tokenizer.ggml.pre names it, with what else a GGUF file does not say. Lists
 * end with an empty one. */
struct gguf_pattern {
    const char *const *names; /* NULL-terminated */
    const char *regex;        /* as tokenizer.json spells it */
    bool has_nfc;
};

#define GGUF_MAX_NAME_LISTS 6

struct gguf_layout;

struct gguf_family {
    const char *const *architectures; /* general.architecture; NULL-terminated */
    const char *model_type;           /* of the config.json that is made */
    const struct gguf_field *fields;
    const struct gguf_name *global_names;
    /* The first list with a name counts, and the first name that a tensor has is the one that is
     * written. NULL behind the last list. */
    const struct gguf_name *layer_names[GGUF_MAX_NAME_LISTS + 1];
    bool has_attention_gate; /* beside the queries, in one projection */
    bool has_partial_rotary; /* rope.dimension_count may be less than a head */
    bool renormalises;       /* norm_topk_prob of a file that does not say */
    struct source_conventions conventions;
    /* Control tokens that end an answer besides those a file names; NULL-terminated. */
    const char *const *stop_tokens;
    /* Keys that `more` reads and the reader would refuse, since they change the arithmetic of a
     * family that does not know them; NULL-terminated, may be NULL. */
    const char *const *own_keys;
    /* Reads what only this family has; may be NULL. The fields are set, num_hidden_layers is the
     * layout's n_layers. */
    int (*more)(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                struct fm_error *err);
};

/* All that is handed down; each may be NULL. */
struct gguf_names {
    const struct gguf_family *const *families; /* NULL-terminated */
    const struct gguf_pattern *patterns;
};

/* What the names of tensors depend on. */
struct gguf_layout {
    const struct gguf_family *family;
    const char *architecture; /* the family's spelling */
    uint64_t n_layers; /* without the blocks for multi-token prediction, which come last */
    uint64_t n_blocks;
    bool is_recurrent[LIMIT_LAYERS];
    uint64_t q_rows, kv_rows; /* of a fused projection in an attention layer */
    struct source_conventions conventions; /* the family's; `more` may change them */
};

/* Sets a field of the configuration; takes the value over. The first failure sticks in *rc. */
void gguf_config_set(json_t *config, const char *field, json_t *value, int *rc,
                     struct fm_error *err);
/* Sets the fields of a list. */
int gguf_config_read(json_t *config, const struct gguf *g, const struct gguf_field *fields,
                     struct fm_error *err);
/* A whole number that is set, or `fallback`. */
uint64_t gguf_config_uint(const json_t *config, const char *field, uint64_t fallback);

#ifdef __cplusplus
}
#endif
#endif
