/* Declarations that the files of the GGUF reader share; not for other code. Any thread. Errors name
 * the file, the key or tensor, and the value. */
#ifndef FLASHMOE_FORMAT_GGUF_INTERNAL_H
#define FLASHMOE_FORMAT_GGUF_INTERNAL_H

#include "format/gguf_family.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- bytes (gguf.c) ---------------------------------------------------------------------- */

uint64_t gguf_get_le(const uint8_t *p, unsigned bytes);
unsigned gguf_type_bytes(uint32_t type); /* 0 for strings and arrays */
bool gguf_is_text(const uint8_t *bytes, uint64_t n); /* UTF-8 without NUL */

/* ---- configuration (gguf_config.c) ------------------------------------------------------- */

/* The facts about tensors that the configuration depends on. */
struct gguf_head {
    uint64_t vocabulary; /* rows of the embedding */
    bool is_tied;        /* there is no output.weight */
};

/* Sets the layout's family and architecture from general.architecture. Fails if none of the
 * families (NULL-terminated, may be NULL) has it. */
int gguf_find_family(const struct gguf *g, const struct gguf_family *const *families,
                     struct gguf_layout *layout, struct fm_error *err);
/* Refuses an architecture that no family has: names the nearest one and the tensors that it does
 * not know. */
int gguf_refuse_architecture(const struct gguf *g, const struct gguf_family *const *families,
                             const char *text, uint64_t bytes, struct fm_error *err);
/* Returns whether the family has a name for the tensor, in layers of any kind. */
bool gguf_family_names(const struct gguf_family *family, const struct gguf_tensor *t);
/* Fills config and conventions of the source, and the rest of the layout. */
int gguf_read_config(struct source *source, const struct gguf *g, const struct gguf_head *head,
                     struct gguf_layout *layout, struct fm_error *err);

/* ---- names (gguf_names.c) ---------------------------------------------------------------- */

/* Room for "model.layers.1023." and the longest name after it, or "mtp." and a name of the file. */
#define GGUF_HF_NAME_BYTES (LIMIT_GGUF_NAME_BYTES + 64)

/* Returns how many tensors of the source a tensor of the file becomes: three for a fused projection
 * of an attention layer, otherwise one. */
unsigned gguf_n_targets(const struct gguf_layout *layout, const struct gguf_tensor *t);
/* Describes target number `target` and writes its name to `name`. */
int gguf_describe(const struct gguf *g, const struct gguf_layout *layout,
                  const struct gguf_tensor *t, unsigned target, struct tensor_info *out,
                  char name[GGUF_HF_NAME_BYTES], struct fm_error *err);

/* ---- texts (gguf_tokenizer.c) ------------------------------------------------------------ */

/* Adds tokenizer.json, tokenizer_config.json and generation_config.json, or none of them if the
 * file has no tokenizer. `stop_tokens` is the family's. */
int gguf_add_texts(struct source *source, const struct gguf *g,
                   const struct gguf_pattern *patterns, const char *const *stop_tokens,
                   struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
