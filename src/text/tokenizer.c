#include "text/tokenizer.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "text/nfc.h"
#include "text/text_buffer.h"
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
    added_set_clear(&tok->added);
    added_set_clear(&tok->added_normalized);
    word_map_clear(&tok->words);
    spm_clear(&tok->spm);
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

/* A piece has one byte for U+2581, which may stand in the text with three. */
#define SPM_SHRINK 3

size_t tokenizer_max_token_bytes(const struct tokenizer *tok)
{
    return tok->max_piece_bytes * (tok->has_nfc ? NFC_SHRINK : tok->is_spm ? SPM_SHRINK : 1);
}

const int32_t *tokenizer_prefix(const struct tokenizer *tok, size_t *n)
{
    *n = tok->n_prefix;
    return tok->prefix;
}

void tokenizer_set_prefix(struct tokenizer *tok, const int32_t *ids, size_t n)
{
    tok->n_prefix = n < TOKENIZER_MAX_PREFIX ? n : TOKENIZER_MAX_PREFIX;
    for (size_t i = 0; i < tok->n_prefix; i++)
        tok->prefix[i] = ids[i];
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

bool tokenizer_find(const struct tokenizer *tok, const char *text, int32_t *id)
{
    const size_t bytes = strlen(text);
    if (bytes == 0)
        return false;
    const struct added_set *const sets[] = {&tok->added, &tok->added_normalized};
    const struct added_token *added = NULL;
    for (unsigned i = 0; i < 2 && (added == NULL || added->bytes != bytes); i++)
        added = added_set_match(sets[i], text, bytes);
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
    bool is_start;                /* nothing of the text is encoded yet */
    struct text_buffer text;      /* normalised text and its marks */
    struct text_buffer marks;
};

/* Encodes what is left when all added tokens are found. */
static int encode_words(struct encoder *e, const uint8_t *text, size_t bytes, struct fm_error *err)
{
    const struct tokenizer *tok = e->tok;
    if (tok->is_spm)
        return spm_encode(&tok->spm, &tok->merges, tok->byte_ids, &e->bpe, text, bytes,
                          e->is_start, err);
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < bytes;) {
        const size_t piece_bytes = tok->pretok->next(text + at, bytes - at);
        const uint32_t id = word_map_find(&tok->words, text + at, piece_bytes);
        rc = id != WORD_MAP_NONE
                 ? bpe_push_id(&e->bpe, id, err)
                 : bpe_encode(&tok->merges, tok->byte_ids, &e->bpe, text + at, piece_bytes, err);
        at += piece_bytes;
    }
    return rc;
}

static bool is_allowed(const struct tokenizer *tok, const struct added_token *added,
                       const uint8_t *marks)
{
    const unsigned flags = tok->flags[added->id];
    if (flags & TOKEN_BLANK)
        return true;
    for (size_t i = 0; i < added->bytes; i++)
        if (marks[i] != TOKENIZER_ALL &&
            (marks[i] != TOKENIZER_ORDINARY || (flags & TOKEN_SPECIAL)))
            return false;
    return true;
}

/* Returns the longest added token at the beginning of `text` that all its bytes allow. */
static const struct added_token *match_marked(const struct tokenizer *tok,
                                              const struct added_set *set, const char *text,
                                              size_t bytes, const uint8_t *marks)
{
    const struct added_token *added = added_set_match(set, text, bytes);
    while (marks != NULL && added != NULL) {
        if (is_allowed(tok, added, marks))
            break;
        /* A shorter token may end before the byte that forbids it. */
        added = added->bytes > 1 ? added_set_match(set, text, added->bytes - 1u) : NULL;
    }
    return added;
}

static int encode_span(struct encoder *e, const uint8_t *text, size_t bytes, bool with_special,
                       const uint8_t *marks, struct fm_error *err);

/* Finds the tokens of one set. What lies between them goes on to encode_span, or to encode_words
 * if that has called this. */
static int split_added(struct encoder *e, const struct added_set *set, const uint8_t *text,
                       size_t bytes, const uint8_t *marks, struct fm_error *err)
{
    const bool is_last = set == &e->tok->added_normalized;
    size_t span = 0; /* where the text that is not encoded yet begins */
    int rc = 0;
    for (size_t at = 0; rc == 0 && at <= bytes;) {
        const uint8_t *here = marks != NULL ? marks + at : NULL;
        const struct added_token *added =
            at == bytes ? NULL
                        : match_marked(e->tok, set, (const char *)text + at, bytes - at, here);
        if (added == NULL && at++ < bytes)
            continue;
        const size_t end = added != NULL ? at : bytes;
        if (end > span) {
            rc = is_last ? encode_words(e, text + span, end - span, err)
                         : encode_span(e, text + span, end - span, true,
                                       marks != NULL ? marks + span : NULL, err);
            e->is_start = false;
        }
        if (added == NULL)
            break;
        if (rc == 0)
            rc = bpe_push_id(&e->bpe, added->id, err);
        e->is_start = false;
        at += added->bytes;
        span = at;
    }
    return rc;
}

/* Returns the mark that allows least of what `n` marks allow. */
static uint8_t strictest_mark(const uint8_t *marks, size_t n)
{
    uint8_t mark = TOKENIZER_ALL;
    for (size_t i = 0; i < n && mark != TOKENIZER_NONE; i++)
        if (marks[i] != TOKENIZER_ALL)
            mark = marks[i];
    return mark;
}

/* Normalises text with its marks, character by character with what joins it. */
static int normalize_marked(struct encoder *e, const uint8_t *text, size_t bytes,
                            const uint8_t *marks, struct fm_error *err)
{
    e->text.n = e->marks.n = 0;
    for (size_t at = 0, end; at < bytes; at = end) {
        uint32_t c;
        end = at;
        do
            end += utf8_get(text + end, &c);
        while (end < bytes && utf8_get(text + end, &c) > 0 && (unicode_bits(c) & UNICODE_NFC));
        const int rc = nfc_normalize(&e->nfc, text + at, end - at, err);
        if (rc != 0)
            return rc;
        const char mark = (char)strictest_mark(marks + at, end - at);
        bool is_kept = text_buffer_add(&e->text, (const char *)e->nfc.text, e->nfc.bytes);
        for (size_t i = 0; is_kept && i < e->nfc.bytes; i++)
            is_kept = text_buffer_add(&e->marks, &mark, 1);
        if (!is_kept)
            return err_set(err, FM_ERR_NOMEM, "no memory for a text");
    }
    return 0;
}

/* Encodes text without added tokens of the first set. */
static int encode_span(struct encoder *e, const uint8_t *text, size_t bytes, bool with_special,
                       const uint8_t *marks, struct fm_error *err)
{
    const struct tokenizer *tok = e->tok;
    const bool has_more = with_special && tok->added_normalized.n > 0;
    int rc = 0;
    if (tok->has_nfc && nfc_find_active(text, bytes) < bytes) {
        if (has_more && marks != NULL) {
            rc = normalize_marked(e, text, bytes, marks, err);
            text = e->text.data;
            bytes = e->text.n;
            marks = e->marks.data;
        } else {
            rc = nfc_normalize(&e->nfc, text, bytes, err);
            text = e->nfc.text;
            bytes = e->nfc.bytes;
        }
    }
    if (rc != 0)
        return rc;
    return has_more ? split_added(e, &tok->added_normalized, text, bytes, marks, err)
                    : encode_words(e, text, bytes, err);
}

static int encode(const struct tokenizer *tok, const char *text, size_t bytes, bool with_special,
                  const uint8_t *marks, int32_t **ids, size_t *n_ids, struct fm_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    if (bytes > TOKENIZER_TEXT_BYTES)
        return err_set(err, FM_ERR_ARG, "the text has %zu bytes; at most %u can be tokenized",
                       bytes, TOKENIZER_TEXT_BYTES);
    struct encoder e = {.tok = tok, .is_start = true};
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
    rc = with_special ? split_added(&e, &tok->added, (const uint8_t *)text, bytes, marks, err)
                      : encode_span(&e, (const uint8_t *)text, bytes, false, NULL, err);
    if (rc == 0 && e.bpe.n_ids > 0) {
        *ids = e.bpe.ids;
        *n_ids = e.bpe.n_ids;
        e.bpe.ids = NULL;
    }
    bpe_work_clear(&e.bpe);
    nfc_clear(&e.nfc);
    text_buffer_clear(&e.text);
    text_buffer_clear(&e.marks);
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
