/* What the files of the GGUF reader share. Keys: one that begins with '.' stands below the name of
 * the architecture, so ".block_count" is "qwen3moe.block_count" in a file of that architecture.
 * Any thread; errors name the file, the key and the value. */
#ifndef FLASHMOE_FORMAT_GGUF_INTERNAL_H
#define FLASHMOE_FORMAT_GGUF_INTERNAL_H

#include "format/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- bytes (gguf.c) ---------------------------------------------------------------------- */

uint64_t gguf_get_le(const uint8_t *p, unsigned bytes);
unsigned gguf_type_bytes(uint32_t type); /* 0 for strings and arrays */
bool gguf_is_text(const uint8_t *bytes, uint64_t n); /* UTF-8 without NUL */

/* ---- values (gguf_values.c) -------------------------------------------------------------- */

/* The full key of '.KEY'; the architecture is looked up. */
#define GGUF_KEY_BYTES (2 * LIMIT_GGUF_NAME_BYTES + 8)
const struct gguf_value *gguf_look(const struct gguf *g, const char *key,
                                   char full_key[GGUF_KEY_BYTES]);

/* Whole numbers of any width, and arrays of equal ones: some converters write one per layer. The
 * *_or form gives `fallback` when the key is absent; the other one fails then. */
int gguf_uint(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
              struct fm_error *err);
int gguf_uint_or(const struct gguf *g, const char *key, uint64_t min, uint64_t max,
                 uint64_t fallback, uint64_t *out, struct fm_error *err);
/* Any number. */
int gguf_number_or(const struct gguf *g, const char *key, double min, double max, double fallback,
                   double *out, struct fm_error *err);
int gguf_bool_or(const struct gguf *g, const char *key, bool fallback, bool *out,
                 struct fm_error *err);
/* Text of *bytes bytes, not NUL-terminated; NULL and 0 when the key is absent. */
int gguf_text_or_null(const struct gguf *g, const char *key, const char **text, uint64_t *bytes,
                      struct fm_error *err);
bool gguf_text_is(const char *text, uint64_t bytes, const char *wanted);

/* The error for a value that is understood and not supported. */
int gguf_refuse(const struct gguf *g, const char *full_key, const struct gguf_value *value,
                const char *expected, struct fm_error *err);

/* Element i of an array of whole numbers or truth values. */
bool gguf_element(const struct gguf_value *array, uint64_t i, int64_t *out);

/* ---- configuration (gguf_config.c) ------------------------------------------------------- */

struct gguf_family {
    const char *architecture, *model_type;
    bool is_hybrid;           /* recurrent layers, a gate on attention, a shared expert */
    bool has_tiled_heads;     /* when key and value heads differ in number */
};

/* What the names of tensors depend on. */
struct gguf_layout {
    const struct gguf_family *family;
    uint64_t n_layers; /* without the blocks for multi-token prediction, which come last */
    uint64_t n_blocks;
    bool is_recurrent[LIMIT_LAYERS];
    uint64_t q_rows, kv_rows; /* of a fused projection in an attention layer */
};

/* The tensors the configuration depends on. */
struct gguf_head {
    uint64_t vocabulary; /* rows of the embedding */
    bool is_tied;        /* there is no output.weight */
};

/* What general.architecture names; any other is refused. */
int gguf_find_family(const struct gguf *g, const struct gguf_family **out, struct fm_error *err);
/* Fills config and conventions of the source, and the layout but for its family, which is set. */
int gguf_read_config(struct source *source, const struct gguf *g, const struct gguf_head *head,
                     struct gguf_layout *layout, struct fm_error *err);

/* ---- names (gguf_names.c) ---------------------------------------------------------------- */

/* "model.layers.1023." and the longest name behind it, or "mtp." and a name of the file. */
#define GGUF_HF_NAME_BYTES (LIMIT_GGUF_NAME_BYTES + 64)

/* How many tensors of the source a tensor of the file becomes: three for a fused projection of
 * an attention layer, otherwise one. */
unsigned gguf_n_targets(const struct gguf_layout *layout, const struct gguf_tensor *t);
/* Describes the target-th of them, its name into `name`. */
int gguf_describe(const struct gguf *g, const struct gguf_layout *layout,
                  const struct gguf_tensor *t, unsigned target, struct tensor_info *out,
                  char name[GGUF_HF_NAME_BYTES], struct fm_error *err);

/* ---- texts (gguf_tokenizer.c) ------------------------------------------------------------ */

/* Adds tokenizer.json, tokenizer_config.json and generation_config.json; none of them when the
 * file has no tokenizer. */
int gguf_add_texts(struct source *source, const struct gguf *g, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
