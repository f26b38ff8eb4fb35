#include "apps/bench/eval_tokens.h"

#include <string.h>

#include "base/mem.h"
#include "apps/bench/corpus.h"
#include "apps/cli/term.h"

const char operand_corpus_help[] =
    "NAME.jsonl has one record per line, {\"text\": ...} or {\"prompt\": ..., \"response\": "
    "...}, which is rendered as chat; any other file is one plain text";

static int has_token(const struct fm_model *model, const char *mark, bool *has,
                     struct fm_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = fm_tokenize(model, mark, strlen(mark), FM_TEXT_WITH_SPECIAL, &ids, &n_ids, err);
    *has = rc == 0 && n_ids == 1;
    fm_free(ids);
    return rc;
}

static int find_marks(const struct fm_model *model, struct corpus_marks *marks,
                      struct fm_error *err)
{
    bool has_begin = false, has_close = false;
    int rc = has_token(model, "<|im_start|>", &has_begin, err);
    if (rc == 0)
        rc = has_token(model, "<|im_end|>", &has_close, err);
    if (rc == 0)
        rc = has_token(model, "<|endoftext|>", &marks->has_end, err);
    marks->has_chat = has_begin && has_close;
    return rc;
}

int eval_tokens_add(struct eval_tokens *tokens, const struct fm_model *model, const char *text,
                    size_t text_bytes, struct fm_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    const int flags = FM_TEXT_WITH_SPECIAL | (tokens->n_ids == 0 ? FM_TEXT_WITH_PREFIX : 0);
    int rc = fm_tokenize(model, text, text_bytes, flags, &ids, &n_ids, err);
    if (rc == 0)
        rc = mem_grow(&tokens->ids, &tokens->capacity, tokens->n_ids + n_ids, sizeof *ids,
                      "the tokens", err);
    if (rc == 0 && n_ids > 0) {
        memcpy((int32_t *)tokens->ids + tokens->n_ids, ids, n_ids * sizeof *ids);
        tokens->n_ids += n_ids;
    }
    fm_free(ids);
    return rc;
}

int eval_tokens_read(struct eval_tokens *tokens, const struct args *args,
                     const struct fm_model *model, const char *path, size_t enough,
                     struct fm_error *err)
{
    struct corpus_marks marks = {0};
    struct corpus corpus = {0};
    int rc = find_marks(model, &marks, err);
    if (rc == 0)
        rc = corpus_open(&corpus, path, marks, err);
    while (rc == 0 && tokens->n_ids < enough) {
        char *text = NULL;
        size_t text_bytes = 0;
        int found = corpus_next(&corpus, &text, &text_bytes, err);
        if (found == 0)
            break;
        rc = found < 0 ? found : eval_tokens_add(tokens, model, text, text_bytes, err);
        mem_free(text);
    }
    if (corpus.has_cut_line && !args_flag(args, "quiet"))
        say("note: '%s' line %u, the last one, is cut off and was skipped", path, corpus.line);
    corpus_close(&corpus);
    if (rc == 0 && tokens->n_ids < 2)
        rc = err_set(err, FM_ERR_FORMAT, "'%s' has %zu tokens; at least 2 are needed", path,
                     tokens->n_ids);
    return rc;
}

void eval_tokens_clear(struct eval_tokens *tokens)
{
    mem_free(tokens->ids);
    *tokens = (struct eval_tokens){0};
}

const int32_t *eval_tokens_at(const struct eval_tokens *tokens, size_t at)
{
    return (const int32_t *)tokens->ids + at;
}
