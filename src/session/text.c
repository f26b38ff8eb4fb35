/* Text in and out of a model: the public face of src/text. */
#include <string.h>

#include "base/mem.h"
#include "session/engine_internal.h"
#include "text/chat.h"

static int needs_tokenizer(const struct fm_model *m, struct fm_error *err)
{
    if (m->tokenizer != NULL)
        return 0;
    return err_set(err, FM_ERR_UNSUPPORTED, "'%s' has no tokenizer.json: text cannot be read",
                   m->model->source->path);
}

int fm_tokenize(const struct fm_model *m, const char *text, size_t text_bytes, int flags,
                int32_t **ids, size_t *n_ids, struct fm_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    int rc = needs_tokenizer(m, err);
    if (rc == 0)
        rc = tokenizer_encode(m->tokenizer, text, text_bytes, (flags & FM_TEXT_WITH_SPECIAL) != 0,
                              ids, n_ids, err);
    return rc;
}

int fm_tokenize_chat(const struct fm_model *m, const char *system, const char *user,
                     size_t user_bytes, int32_t **ids, size_t *n_ids, struct fm_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    int rc = needs_tokenizer(m, err);
    if (rc != 0)
        return rc;
    if (!chat_is_available(m->tokenizer))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "'%s' has no <|im_start|> and <|im_end|> tokens: not a chat model",
                       m->model->source->path);
    return chat_encode(m->tokenizer, system, user, user_bytes, ids, n_ids, err);
}

const char *fm_token_text(const struct fm_model *m, int32_t id, size_t *text_bytes)
{
    *text_bytes = 0;
    return m->tokenizer != NULL ? tokenizer_piece(m->tokenizer, id, text_bytes) : NULL;
}

bool fm_model_is_stop_token(const struct fm_model *m, int32_t id)
{
    return model_is_stop_token(m->model, id);
}

struct fm_decoder {
    struct token_decoder inner;
};

int fm_decoder_open(const struct fm_model *m, struct fm_decoder **out, struct fm_error *err)
{
    *out = NULL;
    int rc = needs_tokenizer(m, err);
    if (rc != 0)
        return rc;
    struct fm_decoder *decoder = mem_new(1, sizeof *decoder, "the decoder", err);
    if (decoder == NULL)
        return FM_ERR_NOMEM;
    rc = token_decoder_init(&decoder->inner, m->tokenizer, err);
    if (rc != 0) {
        mem_free(decoder);
        return rc;
    }
    *out = decoder;
    return 0;
}

void fm_decoder_close(struct fm_decoder *decoder)
{
    if (decoder == NULL)
        return;
    token_decoder_clear(&decoder->inner);
    mem_free(decoder);
}

int fm_decoder_push(struct fm_decoder *decoder, int32_t id, const char **text, size_t *text_bytes,
                    struct fm_error *err)
{
    return token_decoder_push(&decoder->inner, id, text, text_bytes, err);
}

void fm_decoder_finish(struct fm_decoder *decoder, const char **text, size_t *text_bytes)
{
    token_decoder_finish(&decoder->inner, text, text_bytes);
}
