/* The private fields of a tokenizer, shared by the files that load, encode and decode; not for
 * other code. Ownership and threads as in tokenizer.h. */
#ifndef FLASHMOE_TEXT_TOKENIZER_IMPL_H
#define FLASHMOE_TEXT_TOKENIZER_IMPL_H

#include "base/jdoc.h"
#include "base/word_map.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/pretok.h"
#include "text/spm.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TOKEN_PRESENT = 1, /* the id has a token */
    TOKEN_ADDED = 2,
    TOKEN_SPECIAL = 4,
    TOKEN_BLANK = 8, /* an added token of spaces only: text, whatever the marks say */
};

#define TOKENIZER_MAX_PREFIX 8

struct tokenizer {
    size_t n_ids;
    uint8_t *flags;         /* [n_ids] TOKEN_* */
    uint32_t *piece_begin;  /* [n_ids + 1] into pieces */
    uint8_t *pieces;        /* raw bytes of all tokens in order of id */
    size_t max_piece_bytes;
    uint32_t byte_ids[256];
    struct bpe_table merges;

    /* A piece that is a token becomes it, whatever the merges say. Empty if they decide. */
    struct word_map words;

    /* Added tokens are found in the text as it is; those of the second set afterwards, in the
     * normalised rest. */
    struct added_set added, added_normalized;

    bool has_nfc;
    const struct pretok *pretok; /* NULL with is_spm */
    bool is_spm;
    struct spm spm;
    bool strips_space; /* decoding removes the space that spm.prefix has added */
    int32_t prefix[TOKENIZER_MAX_PREFIX]; /* ids before every text, such as <s> */
    size_t n_prefix;
};

/* Refuses every unsupported setting of the document; sets how text is split. */
int tokenizer_check_settings(struct tokenizer *tok, const struct jdoc *doc, struct fm_error *err);

/* Reads vocabulary, added tokens and merges. After a failure the tokenizer can only be closed. */
int tokenizer_load_tokens(struct tokenizer *tok, const struct jdoc *doc, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
