#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

/* An incomplete character has at most three bytes. */
#define CUT_BYTES 3

int token_decoder_init(struct token_decoder *decoder, const struct tokenizer *tok,
                       struct fm_error *err)
{
    const size_t raw_bytes = CUT_BYTES + tok->max_piece_bytes;
    *decoder = (struct token_decoder){.tok = tok, .is_start = true};
    decoder->raw = mem_new(raw_bytes, 1, "a decoder", err);
    decoder->text = mem_new(raw_bytes, 3, "a decoder", err); /* room for U+FFFD for every byte */
    if (decoder->raw == NULL || decoder->text == NULL) {
        token_decoder_clear(decoder);
        return FM_ERR_NOMEM;
    }
    return 0;
}

void token_decoder_clear(struct token_decoder *decoder)
{
    mem_free(decoder->raw);
    mem_free(decoder->text);
    *decoder = (struct token_decoder){0};
}

void token_decoder_continue(struct token_decoder *decoder)
{
    decoder->is_start = false;
}

/* As utf8_repair, with one U+FFFD per invalid byte. */
static size_t repair_bytes(const uint8_t *text, size_t bytes, uint8_t *out, size_t *used)
{
    size_t n_out = 0, at = 0, step;
    for (; at < bytes; at += step) {
        uint32_t code_point;
        const enum utf8_status status = utf8_step(text + at, bytes - at, &code_point, &step);
        if (status == UTF8_CUT && used != NULL)
            break;
        if (status == UTF8_CHAR)
            n_out += utf8_put(code_point, out + n_out);
        for (size_t i = 0; status != UTF8_CHAR && i < step; i++)
            n_out += utf8_put(0xfffd, out + n_out);
    }
    if (used != NULL)
        *used = at;
    return n_out;
}

/* Converts what is complete of the raw bytes; all of them if `used` is NULL. */
static void take_text(struct token_decoder *decoder, const char **text, size_t *text_bytes,
                      size_t *used)
{
    const struct tokenizer *tok = decoder->tok;
    size_t n = (tok->is_spm ? repair_bytes : utf8_repair)(decoder->raw, decoder->n_raw,
                                                          decoder->text, used);
    const size_t skip = n > 0 && decoder->is_start && tok->strips_space && decoder->text[0] == ' ';
    if (n > 0)
        decoder->is_start = false;
    *text = (const char *)decoder->text + skip;
    *text_bytes = n - skip;
}

int token_decoder_push(struct token_decoder *decoder, int32_t id, const char **text,
                       size_t *text_bytes, struct fm_error *err)
{
    const struct tokenizer *tok = decoder->tok;
    *text = (const char *)decoder->text;
    *text_bytes = 0;
    if (!tokenizer_has_id(tok, id))
        return err_set(err, FM_ERR_ARG, "token id %d has no token; ids end at %zu", id,
                       tok->n_ids - 1);
    if (tok->flags[id] & TOKEN_SPECIAL)
        return 0;
    size_t bytes, used;
    const char *piece = tokenizer_piece(tok, id, &bytes);
    memcpy(decoder->raw + decoder->n_raw, piece, bytes);
    decoder->n_raw += bytes;
    take_text(decoder, text, text_bytes, &used);
    decoder->n_raw -= used;
    memmove(decoder->raw, decoder->raw + used, decoder->n_raw);
    return 0;
}

void token_decoder_finish(struct token_decoder *decoder, const char **text, size_t *text_bytes)
{
    take_text(decoder, text, text_bytes, NULL);
    decoder->n_raw = 0;
    decoder->is_start = true;
}
