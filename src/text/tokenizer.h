/* Converts text to token ids and back: the BPE of a Hugging Face tokenizer.json, over bytes or in
 * the style of SentencePiece, and Kimi's tiktoken.model. The ids are those of the official
 * `tokenizers` package for the same file; for tiktoken.model those of `tiktoken`.
 *
 * A tokenizer owns its tables; pieces that it returns live until tokenizer_close. It is immutable
 * after opening, so any number of threads may use it. A token_decoder belongs to one thread and
 * must not outlive its tokenizer.
 *
 * Opening fails with FM_ERR_UNSUPPORTED for every unsupported setting, naming file, field and
 * value, and with FM_ERR_FORMAT for a contradictory vocabulary. Encoding fails only if the text is
 * too long or memory runs out; invalid UTF-8 is encoded with U+FFFD for every maximal invalid part.
 * Decoding fails only for ids without a token. */
#ifndef FLASHMOE_TEXT_TOKENIZER_H
#define FLASHMOE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum text per call: the longest context at four bytes per token. One unbroken word of this
 * length takes about 40 times its size while it is merged. */
#define TOKENIZER_TEXT_BYTES (64u * 1024 * 1024)
/* Maximum length of an added token, which bounds the steps per byte of text for finding them; real
 * ones are below 50. */
#define TOKENIZER_ADDED_BYTES 512u

struct jdoc;
struct tokenizer;

int tokenizer_open(const char *path, struct tokenizer **out, struct fm_error *err);
/* Does the same from memory; `name` stands for the file in messages. */
int tokenizer_parse(const char *name, const char *text, size_t bytes, struct tokenizer **out,
                    struct fm_error *err);
/* Does the same for Kimi's tiktoken.model. `config` is tokenizer_config.json, which names the
 * special tokens; NULL or without a root if there is none. */
int tokenizer_parse_tiktoken(const char *name, const char *text, size_t bytes,
                             const struct jdoc *config, struct tokenizer **out,
                             struct fm_error *err);
void tokenizer_close(struct tokenizer *tok); /* accepts NULL */

/* Returns the highest id plus one. Some ids below may have no token. */
size_t tokenizer_n_ids(const struct tokenizer *tok);
/* Returns m such that a text of n bytes has at least n / m tokens. */
size_t tokenizer_max_token_bytes(const struct tokenizer *tok);
/* Returns the ids that belong before a text that is not a rendered conversation, such as <s>. */
const int32_t *tokenizer_prefix(const struct tokenizer *tok, size_t *n);
/* Replaces them; at most 8. Call it before other threads use the tokenizer. */
void tokenizer_set_prefix(struct tokenizer *tok, const int32_t *ids, size_t n);
bool tokenizer_has_id(const struct tokenizer *tok, int32_t id);
/* Returns whether a token is special: such tokens control the model and have no text. */
bool tokenizer_is_special(const struct tokenizer *tok, int32_t id);
/* Finds the id of an added token ("<|im_end|>"). Returns false if there is none with that text. */
bool tokenizer_find(const struct tokenizer *tok, const char *text, int32_t *id);
/* Returns the raw bytes of an id, also of special tokens; they may be partial characters. Returns
 * NULL if the id has no token. Not NUL-terminated. */
const char *tokenizer_piece(const struct tokenizer *tok, int32_t id, size_t *bytes);

/* Returns the ids of `text`; free with mem_free; NULL if there are none. With `with_special`, added
 * tokens in the text become their ids; otherwise they are ordinary characters. */
int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t bytes,
                     bool with_special, int32_t **ids, size_t *n_ids, struct fm_error *err);

/* Does the same with a permission per byte: an added token counts only if every one of its bytes
 * allows it. Fails with FM_ERR_ARG if the text is not valid UTF-8. */
enum {
    TOKENIZER_ALL,
    TOKENIZER_NONE,
    TOKENIZER_ORDINARY, /* added tokens that are not special, such as <think> */
};
int tokenizer_encode_marked(const struct tokenizer *tok, const char *text, size_t bytes,
                            const uint8_t *marks, int32_t **ids, size_t *n_ids,
                            struct fm_error *err);

/* Decodes ids piece by piece. All pieces together equal the official decode with
 * skip_special_tokens. A piece never ends inside a character. Bytes that cannot become UTF-8 turn
 * into U+FFFD: one for a maximal invalid part, or one per byte in the style of SentencePiece, as
 * the `sentencepiece` package does. */
struct token_decoder {
    const struct tokenizer *tok;
    bool is_start; /* remove the space that encoding has put before the text */
    uint8_t *raw; /* the start of a character, followed by the bytes of the id */
    size_t n_raw;
    uint8_t *text;
};

int token_decoder_init(struct token_decoder *decoder, const struct tokenizer *tok,
                       struct fm_error *err);
void token_decoder_clear(struct token_decoder *decoder); /* accepts a zeroed one */
/* Says that the ids continue a text, so a space at the beginning belongs to it. */
void token_decoder_continue(struct token_decoder *decoder);

/* Returns the text that is complete after `id`, valid until the next call; may be empty. Never
 * allocates. After a failure the decoder is unchanged. */
int token_decoder_push(struct token_decoder *decoder, int32_t id, const char **text,
                       size_t *text_bytes, struct fm_error *err);
/* Returns the rest: U+FFFD for an incomplete character. The decoder then starts over. */
void token_decoder_finish(struct token_decoder *decoder, const char **text, size_t *text_bytes);

#ifdef __cplusplus
}
#endif
#endif
