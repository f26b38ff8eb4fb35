/* SentencePiece-style BPE: the symbols that merge are characters, not bytes. A space is written as
 * U+2581 and a text may get one in front. Characters without a token become their bytes.
 *
 * Written while a tokenizer is loaded; after that any number of threads may read it. The only
 * failure is FM_ERR_NOMEM. */
#ifndef FLASHMOE_TEXT_SPM_H
#define FLASHMOE_TEXT_SPM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/bpe.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPM_SPACE "\xe2\x96\x81" /* U+2581 */

enum spm_prefix {
    SPM_NO_PREFIX,
    SPM_AT_START,      /* at the start of the text, unless it begins with a space */
    SPM_UNLESS_SPACED, /* after added tokens too, unless the span begins with a space */
    SPM_ALWAYS,        /* on every span */
};

struct spm_character {
    uint32_t code_point, id;
};

struct spm {
    enum spm_prefix prefix;
    bool splits; /* before every space, even if a merge would cross it */
    uint32_t ascii[128]; /* ids, SPM_NO_ID for none */
    struct spm_character *slots; /* open addressing, linear probing */
    uint32_t n_slots;
    /* Bit b of joins[a]: a merge joins a text that ends in byte a to one that begins with byte b.
     * Text is cut between characters unless this is set, which changes no id and keeps the pieces
     * short. */
    uint32_t joins[256][8];
};

#define SPM_NO_ID UINT32_MAX

/* Allocates room for `n` characters. Leaves the settings unchanged. */
int spm_init(struct spm *spm, uint32_t n, struct fm_error *err);
void spm_clear(struct spm *spm); /* accepts a zeroed one */
/* Adds the token of a character. */
void spm_add(struct spm *spm, uint32_t code_point, uint32_t id);
/* Notes a merge by the texts of its parts. */
void spm_note_merge(struct spm *spm, const char *left, size_t left_bytes, const char *right);

/* Appends the ids of a span of valid UTF-8 without added tokens. */
int spm_encode(const struct spm *spm, const struct bpe_table *table, const uint32_t byte_ids[256],
               struct bpe_work *work, const uint8_t *text, size_t bytes, bool is_start,
               struct fm_error *err);

/* Returns whether a token text is "<0x41>" and the byte that it stands for. */
bool spm_is_byte(const char *text, uint8_t *byte);

#ifdef __cplusplus
}
#endif
#endif
