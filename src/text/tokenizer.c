#include "text/tokenizer.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "text/nfc.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

/* ---- opening ----------------------------------------------------------------------------- */

static int tokenizer_new(const struct jdoc *doc, struct tokenizer **out, struct fm_error *err)
{
    struct tokenizer *tok = mem_new(1, sizeof *tok, "a tokenizer", err);
    if (tok == NULL)
        return FM_ERR_NOMEM;
    int rc = tokenizer_check_settings(tok, doc, err);
    if (rc == 0)
        rc = tokenizer_load_tokens(tok, doc, err);
    if (rc != 0) {
        tokenizer_close(tok);
        return rc;
    }
    *out = tok;
    return 0;
}

int tokenizer_parse(const char *name, const char *text, size_t bytes, struct tokenizer **out,
                    struct fm_error *err)
{
    *out = NULL;
    struct jdoc doc;
    int rc = jdoc_parse(&doc, name, text, bytes, err);
    if (rc != 0)
        return rc;
    rc = tokenizer_new(&doc, out, err);
    jdoc_clear(&doc);
    return rc;
}

int tokenizer_open(const char *path, struct tokenizer **out, struct fm_error *err)
{
    *out = NULL;
    struct jdoc doc;
    int rc = jdoc_load(&doc, path, LIMIT_TOKENIZER_JSON_BYTES, err);
    if (rc != 0)
        return rc;
    rc = tokenizer_new(&doc, out, err);
    jdoc_clear(&doc);
    plat_memory_trim(); /* the document is about ten times as large as the tokenizer */
    return rc;
}

void tokenizer_close(struct tokenizer *tok)
{
    if (tok == NULL)
        return;
    mem_free(tok->flags);
    mem_free(tok->piece_begin);
    mem_free(tok->pieces);
    mem_free(tok->added);
    mem_free(tok->added_text);
    bpe_table_clear(&tok->merges);
    mem_free(tok);
}

/* ---- asking ------------------------------------------------------------------------------ */

size_t tokenizer_n_ids(const struct tokenizer *tok)
{
    return tok->n_ids;
}

/* NFC never makes a text shorter than a third of its bytes: U+0390 has six bytes decomposed and two
 * composed, and no character has a larger ratio. */
#define NFC_SHRINK 3

size_t tokenizer_max_token_bytes(const struct tokenizer *tok)
{
    return tok->max_piece_bytes * (tok->has_nfc ? NFC_SHRINK : 1);
}

bool tokenizer_has_id(const struct tokenizer *tok, int32_t id)
{
    return id >= 0 && (size_t)id < tok->n_ids && (tok->flags[id] & TOKEN_PRESENT);
}

bool tokenizer_is_special(const struct tokenizer *tok, int32_t id)
{
    return tokenizer_has_id(tok, id) && (tok->flags[id] & TOKEN_SPECIAL);
}

const char *tokenizer_piece(const struct tokenizer *tok, int32_t id, size_t *bytes)
{
    *bytes = 0;
    if (!tokenizer_has_id(tok, id))
        return NULL;
    *bytes = tok->piece_begin[id + 1] - tok->piece_begin[id];
    return (const char *)tok->pieces + tok->piece_begin[id];
}

/* Returns the longest added token at the beginning of `text`, or NULL. The candidates are sorted,
 * so those that share the first k bytes are neighbours. The range [low, high) narrows byte by byte;
 * its first entry is the token that ends there, if any. */
static const struct added_token *match_added(const struct tokenizer *tok, const char *text,
                                             size_t bytes)
{
    size_t low = tok->added_begin[(uint8_t)text[0]];
    size_t high = tok->added_begin[(uint8_t)text[0] + 1];
    const struct added_token *found = NULL;
    for (size_t k = 1; low < high; k++) {
        if (tok->added[low].bytes == k)
            found = &tok->added[low++];
        if (k == bytes)
            break;
        const uint8_t byte = (uint8_t)text[k];
        size_t a = low, b = high;
        while (a < b) { /* the first whose byte k is not smaller */
            const size_t middle = (a + b) / 2;
            if ((uint8_t)tok->added[middle].text[k] < byte)
                a = middle + 1;
            else
                b = middle;
        }
        low = a;
        b = high;
        while (a < b) { /* the first whose byte k is larger */
            const size_t middle = (a + b) / 2;
            if ((uint8_t)tok->added[middle].text[k] <= byte)
                a = middle + 1;
            else
                b = middle;
        }
        high = a;
    }
    return found;
}

bool tokenizer_find(const struct tokenizer *tok, const char *text, int32_t *id)
{
    const size_t bytes = strlen(text);
    if (bytes == 0)
        return false;
    const struct added_token *added = match_added(tok, text, bytes);
    if (added == NULL || added->bytes != bytes)
        return false;
    *id = (int32_t)added->id;
    return true;
}

/* ---- encoding ---------------------------------------------------------------------------- */

struct encoder {
    const struct tokenizer *tok;
    struct nfc_buffer nfc;
    struct bpe_work bpe;
};

/* Encodes text without added tokens. */
static int encode_span(struct encoder *e, const uint8_t *text, size_t bytes, struct fm_error *err)
{
    const struct tokenizer *tok = e->tok;
    int rc = 0;
    if (tok->has_nfc && nfc_find_active(text, bytes) < bytes) {
        rc = nfc_normalize(&e->nfc, text, bytes, err);
        text = e->nfc.text;
        bytes = e->nfc.bytes;
    }
    for (size_t at = 0; rc == 0 && at < bytes;) {
        const size_t piece_bytes = tok->pretok->next(text + at, bytes - at);
        rc = bpe_encode(&tok->merges, tok->byte_ids, &e->bpe, text + at, piece_bytes, err);
        at += piece_bytes;
    }
    return rc;
}

/* Returns the longest added token at the beginning of `text` that all its bytes allow. */
static const struct added_token *match_marked(const struct tokenizer *tok, const char *text,
                                              size_t bytes, const uint8_t *marks)
{
    const struct added_token *added = match_added(tok, text, bytes);
    while (marks != NULL && added != NULL) {
        const bool is_special = (tok->flags[added->id] & TOKEN_SPECIAL) != 0;
        size_t n = 0;
        while (n < added->bytes &&
               (marks[n] == TOKENIZER_ALL || (marks[n] == TOKENIZER_ORDINARY && !is_special)))
            n++;
        if (n == added->bytes)
            break;
        /* A shorter token may end before the byte that forbids it. */
        const size_t max = marks[n] == TOKENIZER_NONE ? n : added->bytes - 1u;
        added = max > 0 ? match_added(tok, text, max) : NULL;
    }
    return added;
}

static int encode_text(struct encoder *e, const char *text, size_t bytes, bool with_special,
                       const uint8_t *marks, struct fm_error *err)
{
    size_t span = 0; /* where the text that is not encoded yet begins */
    int rc = 0;
    for (size_t at = 0; with_special && rc == 0 && at < bytes;) {
        const struct added_token *added =
            match_marked(e->tok, text + at, bytes - at, marks != NULL ? marks + at : NULL);
        if (added == NULL) {
            at++;
            continue;
        }
        rc = encode_span(e, (const uint8_t *)text + span, at - span, err);
        if (rc == 0)
            rc = bpe_push_id(&e->bpe, added->id, err);
        at += added->bytes;
        span = at;
    }
    return rc != 0 ? rc : encode_span(e, (const uint8_t *)text + span, bytes - span, err);
}

static int encode(const struct tokenizer *tok, const char *text, size_t bytes, bool with_special,
                  const uint8_t *marks, int32_t **ids, size_t *n_ids, struct fm_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    if (bytes > TOKENIZER_TEXT_BYTES)
        return err_set(err, FM_ERR_ARG, "the text has %zu bytes; at most %u can be tokenized",
                       bytes, TOKENIZER_TEXT_BYTES);
    struct encoder e = {.tok = tok};
    uint8_t *repaired = NULL;
    int rc = 0;
    const size_t n_bad = utf8_count_bad((const uint8_t *)text, bytes);
    if (n_bad > 0 && marks != NULL)
        return err_set(err, FM_ERR_ARG, "the text is not UTF-8");
    if (n_bad > 0) {
        repaired = mem_new(bytes + 2 * n_bad, 1, "text that is not UTF-8", err);
        if (repaired == NULL)
            return FM_ERR_NOMEM;
        bytes = utf8_repair((const uint8_t *)text, bytes, repaired, NULL);
        text = (const char *)repaired;
    }
    rc = encode_text(&e, text, bytes, with_special, marks, err);
    if (rc == 0 && e.bpe.n_ids > 0) {
        *ids = e.bpe.ids;
        *n_ids = e.bpe.n_ids;
        e.bpe.ids = NULL;
    }
    bpe_work_clear(&e.bpe);
    nfc_clear(&e.nfc);
    mem_free(repaired);
    return rc;
}

int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t bytes,
                     bool with_special, int32_t **ids, size_t *n_ids, struct fm_error *err)
{
    return encode(tok, text, bytes, with_special, NULL, ids, n_ids, err);
}

int tokenizer_encode_marked(const struct tokenizer *tok, const char *text, size_t bytes,
                            const uint8_t *marks, int32_t **ids, size_t *n_ids,
                            struct fm_error *err)
{
    return encode(tok, text, bytes, true, marks, ids, n_ids, err);
}
