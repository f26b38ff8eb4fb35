/* The private fields of a tokenizer, shared by the files that load, encode and decode; not for
 * other code. Ownership and threads as in tokenizer.h. */
#ifndef FLASHMOE_TEXT_TOKENIZER_IMPL_H
#define FLASHMOE_TEXT_TOKENIZER_IMPL_H

#include "base/jdoc.h"
#include "text/bpe.h"
#include "text/pretok.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TOKEN_PRESENT = 1, /* the id has a token */
    TOKEN_ADDED = 2,
    TOKEN_SPECIAL = 4,
};

struct added_token {
    const char *text; /* in added_text, not NUL-terminated */
    uint32_t bytes;
    uint32_t id;
};

struct tokenizer {
    size_t n_ids;
    uint8_t *flags;         /* [n_ids] TOKEN_* */
    uint32_t *piece_begin;  /* [n_ids + 1] into pieces */
    uint8_t *pieces;        /* raw bytes of all tokens in order of id */
    size_t max_piece_bytes;
    uint32_t byte_ids[256];
    struct bpe_table merges;

    struct added_token *added; /* [n_added] sorted by bytes */
    size_t n_added;
    char *added_text;
    /* Added tokens that begin with byte b are added[added_begin[b]] up to added_begin[b + 1]. */
    uint32_t added_begin[257];

    bool has_nfc;
    const struct pretok *pretok;
};

/* Refuses every unsupported setting of the document; sets has_nfc and pretok. */
int tokenizer_check_settings(struct tokenizer *tok, const struct jdoc *doc, struct fm_error *err);

/* Reads vocabulary, added tokens and merges. After a failure the tokenizer can only be closed. */
int tokenizer_load_tokens(struct tokenizer *tok, const struct jdoc *doc, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
