#include "apps/cli/token_logprobs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "apps/cli/term.h"

struct token_logprob {
    struct fm_logprob chosen, top[FM_TOP_LOGPROBS_MAX];
    unsigned n_top;
};

int token_logprobs_add(struct token_logprobs *t, const struct fm_logprob *logprobs, unsigned n,
                       struct fm_error *err)
{
    int rc = mem_grow(&t->list, &t->capacity, t->n_tokens + 1, sizeof(struct token_logprob),
                      "log probabilities", err);
    if (rc != 0)
        return rc;
    struct token_logprob *token = (struct token_logprob *)t->list + t->n_tokens++;
    *token = (struct token_logprob){.chosen = logprobs[0], .n_top = n - 1};
    memcpy(token->top, logprobs + 1, (n - 1) * sizeof *logprobs);
    return 0;
}

void token_logprobs_clear(struct token_logprobs *t)
{
    mem_free(t->list);
    *t = (struct token_logprobs){0};
}

static json_t *one_json(const struct fm_model *model, const struct fm_logprob *token)
{
    size_t bytes;
    const char *text = fm_token_text(model, token->id, &bytes);
    const double logprob = isfinite(token->logprob) ? (double)token->logprob : -9999;
    return json_pack("{s:i, s:o, s:f}", "id", token->id, "text",
                     json_text(text != NULL ? text : "", bytes), "logprob", logprob);
}

json_t *token_logprobs_json(const struct token_logprobs *t, const struct fm_model *model)
{
    json_t *list = json_array();
    const struct token_logprob *tokens = t->list;
    for (size_t i = 0; i < t->n_tokens; i++) {
        json_t *token = one_json(model, &tokens[i].chosen), *top = json_array();
        for (unsigned k = 0; k < tokens[i].n_top; k++)
            (void)json_array_append_new(top, one_json(model, &tokens[i].top[k]));
        (void)json_object_set_new(token, "top", top);
        (void)json_array_append_new(list, token);
    }
    return list;
}

/* Prints the token as a JSON string, which always fits on one line. */
static void print_token(const struct fm_model *model, const struct fm_logprob *token,
                        const char *before)
{
    size_t bytes;
    const char *text = fm_token_text(model, token->id, &bytes);
    json_t *value = json_text(text != NULL ? text : "", bytes);
    (void)fprintf(stderr, "%s%.4f ", before, (double)token->logprob);
    err_json(value);
    json_decref(value);
}

void token_logprobs_print(const struct token_logprobs *t, const struct fm_model *model)
{
    const struct token_logprob *tokens = t->list;
    for (size_t i = 0; i < t->n_tokens; i++) {
        (void)fprintf(stderr, "%6zu", i);
        print_token(model, &tokens[i].chosen, "  ");
        for (unsigned k = 0; k < tokens[i].n_top; k++)
            print_token(model, &tokens[i].top[k], k == 0 ? "  |  " : "  ");
        (void)fputc('\n', stderr);
    }
}
