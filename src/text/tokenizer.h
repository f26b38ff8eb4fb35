/* Text to token ids and back: the byte-level BPE of a Hugging Face tokenizer.json. The ids are
 * those of the official `tokenizers` package for the same file.
 *
 * A tokenizer owns its tables; what it lends (pieces) lives until tokenizer_close. It is immutable
 * after opening, so any number of threads may use one. A token_decoder belongs to one thread and
 * must not outlive its tokenizer.
 *
 * Opening fails (FM_ERR_UNSUPPORTED) on every setting that is not understood, naming file, field
 * and value, and (FM_ERR_FORMAT) on a vocabulary that contradicts itself. Encoding fails only on
 * a text that is too long or for want of memory; text that is not UTF-8 is encoded with U+FFFD in
 * place of every maximal invalid part. Decoding fails only on ids that have no token. */
#ifndef FLASHMOE_TEXT_TOKENIZER_H
#define FLASHMOE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The longest text of one call: the longest context at four bytes a token. One unbroken word of
 * this length takes about 40 times its size while it is merged. */
#define TOKENIZER_TEXT_BYTES (64u * 1024 * 1024)
/* Finding added tokens costs at most this many steps per byte of text; real ones are below 50. */
#define TOKENIZER_ADDED_BYTES 512u

struct tokenizer;

int tokenizer_open(const char *path, struct tokenizer **out, struct fm_error *err);
/* The same from memory; `name` stands for the file in messages. */
int tokenizer_parse(const char *name, const char *text, size_t bytes, struct tokenizer **out,
                    struct fm_error *err);
void tokenizer_close(struct tokenizer *tok); /* accepts NULL */

/* The highest id plus one. Ids in between may have no token. */
size_t tokenizer_n_ids(const struct tokenizer *tok);
/* A text of n bytes has n / tokenizer_max_token_bytes tokens or more. */
size_t tokenizer_max_token_bytes(const struct tokenizer *tok);
bool tokenizer_has_id(const struct tokenizer *tok, int32_t id);
/* Special tokens steer the model and give no text. */
bool tokenizer_is_special(const struct tokenizer *tok, int32_t id);
/* The id of an added token ("<|im_end|>"); false when there is none of that text. */
bool tokenizer_find(const struct tokenizer *tok, const char *text, int32_t *id);
/* The raw bytes an id stands for, not necessarily whole characters, also of special tokens; NULL
 * when the id has no token. Not NUL-terminated. */
const char *tokenizer_piece(const struct tokenizer *tok, int32_t id, size_t *bytes);

/* The ids of `text`, freed with mem_free; NULL when there are none. With `with_special`, added
 * tokens in the text become their id; without, all of them are ordinary characters. */
int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t bytes,
                     bool with_special, int32_t **ids, size_t *n_ids, struct fm_error *err);

/* The same with the say of each byte: an added token counts only where every byte of it allows it.
 * The text is valid UTF-8, otherwise FM_ERR_ARG. */
enum {
    TOKENIZER_ALL,
    TOKENIZER_NONE,
    TOKENIZER_ORDINARY, /* added tokens that are not special, such as <think> */
};
int tokenizer_encode_marked(const struct tokenizer *tok, const char *text, size_t bytes,
                            const uint8_t *marks, int32_t **ids, size_t *n_ids,
                            struct fm_error *err);

/* Ids to text, piece by piece. All pieces together are what the official decode gives with
 * skip_special_tokens; a piece never ends inside a character. Bytes that cannot become UTF-8 turn
 * into U+FFFD. */
struct token_decoder {
    const struct tokenizer *tok;
    uint8_t *raw; /* the start of a character, then the piece of the id */
    size_t n_raw;
    uint8_t *text;
};

int token_decoder_init(struct token_decoder *decoder, const struct tokenizer *tok,
                       struct fm_error *err);
void token_decoder_clear(struct token_decoder *decoder); /* accepts a zeroed one */

/* The text that is complete after `id`, valid until the next call; may be empty. Never allocates.
 * After a failure the decoder is as it was. */
int token_decoder_push(struct token_decoder *decoder, int32_t id, const char **text,
                       size_t *text_bytes, struct fm_error *err);
/* What is left: U+FFFD for an unfinished character. The decoder then starts anew. */
void token_decoder_finish(struct token_decoder *decoder, const char **text, size_t *text_bytes);

#ifdef __cplusplus
}
#endif
#endif
