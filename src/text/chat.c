#include "text/chat.h"

#include <string.h>

#include "base/mem.h"

struct draft {
    const struct tokenizer *tok;
    int32_t start, end; /* <|im_start|> and <|im_end|> */
    int32_t *ids;
    size_t n, capacity;
    struct fm_error *err;
};

bool chat_is_available(const struct tokenizer *tok)
{
    int32_t id;
    return tokenizer_find(tok, "<|im_start|>", &id) && tokenizer_find(tok, "<|im_end|>", &id);
}

static int add_ids(struct draft *d, const int32_t *ids, size_t n)
{
    int rc = mem_grow((void **)&d->ids, &d->capacity, d->n + n, sizeof *d->ids, "the prompt",
                      d->err);
    if (rc == 0 && n > 0)
        memcpy(d->ids + d->n, ids, n * sizeof *ids);
    d->n += rc == 0 ? n : 0;
    return rc;
}

/* Two texts as one: what belongs together is split into tokens together. */
static int add_text(struct draft *d, const char *head, const char *text, size_t text_bytes)
{
    const size_t head_bytes = strlen(head);
    char *joined = mem_new(head_bytes + text_bytes, 1, "the prompt", d->err);
    if (joined == NULL)
        return FM_ERR_NOMEM;
    memcpy(joined, head, head_bytes);
    if (text_bytes > 0)
        memcpy(joined + head_bytes, text, text_bytes);
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = tokenizer_encode(d->tok, joined, head_bytes + text_bytes, false, &ids, &n, d->err);
    if (rc == 0)
        rc = add_ids(d, ids, n);
    mem_free(ids);
    mem_free(joined);
    return rc;
}

static int add_turn(struct draft *d, const char *role_line, const char *text, size_t text_bytes)
{
    int rc = add_ids(d, &d->start, 1);
    if (rc == 0)
        rc = add_text(d, role_line, text, text_bytes);
    if (rc == 0)
        rc = add_ids(d, &d->end, 1);
    return rc != 0 ? rc : add_text(d, "\n", NULL, 0);
}

int chat_encode(const struct tokenizer *tok, const char *system, const char *user,
                size_t user_bytes, int32_t **ids, size_t *n_ids, struct fm_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    struct draft d = {.tok = tok, .err = err};
    int rc = 0;
    if (!tokenizer_find(tok, "<|im_start|>", &d.start) ||
        !tokenizer_find(tok, "<|im_end|>", &d.end))
        rc = err_set(err, FM_ERR_UNSUPPORTED, "the tokenizer has no chat tokens");
    if (rc == 0 && system != NULL)
        rc = add_turn(&d, "system\n", system, strlen(system));
    if (rc == 0)
        rc = add_turn(&d, "user\n", user, user_bytes);
    if (rc == 0)
        rc = add_ids(&d, &d.start, 1);
    if (rc == 0)
        rc = add_text(&d, "assistant\n", NULL, 0);
    if (rc != 0) {
        mem_free(d.ids);
        return rc;
    }
    *ids = d.ids;
    *n_ids = d.n;
    return 0;
}
