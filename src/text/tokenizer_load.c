/* Loads vocabulary, added tokens and merges. */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "text/nfc.h"
#include "text/tokenizer_impl.h"
#include "text/unicode.h"

/* Token texts by id while loading, borrowed from the document. */
struct loader {
    struct tokenizer *tok;
    const struct jdoc *doc;
    const json_t *vocab;
    const char **texts; /* [n_ids] NULL if there is no token */
    char *joined;       /* both parts of a merge */
    size_t joined_capacity;
};

/* ---- the byte alphabet ------------------------------------------------------------------- */

/* Returns whether a byte stands for itself; the others map to U+0100 and up, in ascending order. */
static bool is_own_character(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

#define N_ALPHABET (0x100 + 68)

/* characters[b] is the character of byte b; bytes_of[c] is the byte of character c, or -1. */
struct alphabet {
    uint32_t characters[256];
    int16_t bytes_of[N_ALPHABET];
};

static void alphabet_init(struct alphabet *alphabet)
{
    memset(alphabet->bytes_of, -1, sizeof alphabet->bytes_of);
    uint32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; byte++) {
        const uint32_t c = is_own_character(byte) ? byte : next++;
        alphabet->characters[byte] = c;
        alphabet->bytes_of[c] = (int16_t)byte;
    }
}

/* Converts a token text to its bytes: through the alphabet, or unchanged if a character is not in
 * the alphabet, as the official decoder does. *is_bytes says which. Returns the number of bytes;
 * `out` may be NULL. */
static size_t text_to_bytes(const struct alphabet *alphabet, const char *text, uint8_t *out,
                            bool *is_bytes)
{
    const size_t bytes = strlen(text);
    size_t n = 0;
    *is_bytes = true;
    for (size_t at = 0; at < bytes; n++) {
        uint32_t c;
        at += utf8_get((const uint8_t *)text + at, &c);
        const int byte = c < N_ALPHABET ? alphabet->bytes_of[c] : -1;
        if (byte < 0) {
            if (out != NULL)
                memcpy(out, text, bytes);
            *is_bytes = false;
            return bytes;
        }
        if (out != NULL)
            out[n] = (uint8_t)byte;
    }
    return n;
}

/* ---- ids --------------------------------------------------------------------------------- */

/* Checks one id and raises n_ids if needed. */
static int count_id(struct loader *l, const json_t *id, const char *text, struct fm_error *err)
{
    const json_int_t n = json_integer_value(id);
    if (!json_is_integer(id) || n < 0 || n >= (json_int_t)LIMIT_VOCAB) {
        char shown[80];
        return err_set(err, FM_ERR_FORMAT,
                       "%s: the id of token '%.60s' is %s, expected a whole number below %u",
                       l->doc->file, text,
                       id == NULL ? "absent" : jdoc_show(id, shown, sizeof shown), LIMIT_VOCAB);
    }
    if ((size_t)n >= l->tok->n_ids)
        l->tok->n_ids = (size_t)n + 1;
    return 0;
}

static int count_ids(struct loader *l, const json_t *added, struct fm_error *err)
{
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)l->vocab, text, id)
    {
        const int rc = count_id(l, id, text, err);
        if (rc != 0)
            return rc;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        const char *content = json_string_value(json_object_get(token, "content"));
        if (content == NULL || content[0] == '\0')
            return err_set(err, FM_ERR_FORMAT, "%s: added_tokens[%zu] has no content",
                           l->doc->file, i);
        const int rc = count_id(l, json_object_get(token, "id"), content, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int set_text(struct loader *l, size_t id, const char *text, struct fm_error *err)
{
    if (l->texts[id] != NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: id %zu belongs to both '%.60s' and '%.60s'",
                       l->doc->file, id, l->texts[id], text);
    l->texts[id] = text;
    l->tok->flags[id] |= TOKEN_PRESENT;
    return 0;
}

static int index_vocab(struct loader *l, struct fm_error *err)
{
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)l->vocab, text, id)
    {
        if (text[0] == '\0')
            return err_set(err, FM_ERR_FORMAT, "%s: model.vocab has an empty token", l->doc->file);
        const int rc = set_text(l, (size_t)json_integer_value(id), text, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- added tokens ------------------------------------------------------------------------ */

static int refuse_added(const struct loader *l, const char *content, const char *field,
                        const json_t *value, const char *expected, struct fm_error *err)
{
    char shown[80];
    return err_set(err, FM_ERR_UNSUPPORTED,
                   "%s: added token '%.60s': field '%s' is %s; only %s is supported",
                   l->doc->file, content, field, jdoc_show(value, shown, sizeof shown), expected);
}

/* Fields of an added token that change how it matches must be false, except `normalized`. */
static int check_added(const struct loader *l, const json_t *token, const char *content,
                       struct fm_error *err)
{
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)token, field, value)
    {
        if (strcmp(field, "id") == 0 || strcmp(field, "content") == 0)
            continue;
        if (strcmp(field, "special") == 0 || strcmp(field, "normalized") == 0) {
            if (!json_is_boolean(value))
                return refuse_added(l, content, field, value, "true or false", err);
            continue;
        }
        if (strcmp(field, "single_word") != 0 && strcmp(field, "lstrip") != 0 &&
            strcmp(field, "rstrip") != 0)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: added token '%.60s': field '%s' is not supported", l->doc->file,
                           content, field);
        if (!json_is_false(value))
            return refuse_added(l, content, field, value, "false", err);
    }
    /* The document must say whether a token is matched before or after normalisation. */
    const json_t *normalized = json_object_get(token, "normalized");
    if (normalized == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: added token '%.60s': field 'normalized' is absent; only true or false "
                       "is supported",
                       l->doc->file, content);
    const bool changes = (l->tok->is_spm && l->tok->spm.prefix == SPM_ALWAYS) ||
                         (l->tok->has_nfc && nfc_find_active((const uint8_t *)content,
                                                             strlen(content)) < strlen(content));
    if (json_is_true(normalized) && changes)
        return refuse_added(l, content, "normalized", normalized,
                            "false for a text that the normalizer changes", err);
    if (strlen(content) > TOKENIZER_ADDED_BYTES)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: added token '%.60s...' has %zu bytes; at most %u are supported",
                       l->doc->file, content, strlen(content), TOKENIZER_ADDED_BYTES);
    return 0;
}

static int index_added(struct loader *l, const json_t *token, struct fm_error *err)
{
    struct tokenizer *tok = l->tok;
    const char *content = json_string_value(json_object_get(token, "content"));
    const size_t id = (size_t)json_integer_value(json_object_get(token, "id"));
    int rc = check_added(l, token, content, err);
    if (rc != 0)
        return rc;
    const json_t *vocab_id = json_object_get(l->vocab, content);
    if (vocab_id == NULL)
        rc = set_text(l, id, content, err);
    else if (json_integer_value(vocab_id) != (json_int_t)id)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: token '%.60s' has id %zu in added_tokens and %lld in model.vocab",
                     l->doc->file, content, id, (long long)json_integer_value(vocab_id));
    else if (tok->flags[id] & TOKEN_ADDED)
        rc = err_set(err, FM_ERR_FORMAT, "%s: added token '%.60s' occurs twice", l->doc->file,
                     content);
    if (rc != 0)
        return rc;
    tok->flags[id] |= TOKEN_ADDED;
    if (json_is_true(json_object_get(token, "special")))
        tok->flags[id] |= TOKEN_SPECIAL;
    else if (content[strspn(content, " ")] == '\0')
        tok->flags[id] |= TOKEN_BLANK;
    return 0;
}

/* Collects the added tokens that are, or are not, matched in normalised text. */
static int sort_added(struct loader *l, const json_t *list, bool normalized, struct added_set *set,
                      struct fm_error *err)
{
    size_t n = 0;
    struct added_token *tokens =
        mem_new(json_array_size(list), sizeof *tokens, "added tokens", err);
    if (tokens == NULL)
        return FM_ERR_NOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i);
        const char *content = json_string_value(json_object_get(token, "content"));
        if (json_is_true(json_object_get(token, "normalized")) == normalized)
            tokens[n++] = (struct added_token){
                content, (uint32_t)strlen(content),
                (uint32_t)json_integer_value(json_object_get(token, "id"))};
    }
    const int rc = added_set_init(set, l->doc->file, tokens, n, err);
    mem_free(tokens);
    return rc;
}

/* ---- pieces ------------------------------------------------------------------------------ */

/* Converts a token text in the style of SentencePiece: "<0x41>" is a byte, U+2581 a space. */
static size_t text_to_spaced(const char *text, uint8_t *out)
{
    uint8_t byte;
    size_t n = 0;
    if (spm_is_byte(text, &byte)) {
        if (out != NULL)
            out[0] = byte;
        return 1;
    }
    for (size_t at = 0; text[at] != '\0'; n++) {
        const bool is_space = strncmp(text + at, SPM_SPACE, 3) == 0;
        if (out != NULL)
            out[n] = is_space ? ' ' : (uint8_t)text[at];
        at += is_space ? 3 : 1;
    }
    return n;
}

/* Writes the bytes of token `id`; `out` may be NULL. Returns their number. */
static size_t write_piece(const struct loader *l, const struct alphabet *alphabet, size_t id,
                          uint8_t *out, bool *is_bytes)
{
    const char *text = l->texts[id];
    *is_bytes = false;
    if (text == NULL)
        return 0;
    if (!l->tok->is_spm)
        return text_to_bytes(alphabet, text, out, is_bytes);
    if (!(l->tok->flags[id] & TOKEN_SPECIAL))
        return text_to_spaced(text, out);
    if (out != NULL)
        memcpy(out, text, strlen(text));
    return strlen(text);
}

static int fill_pieces(struct loader *l, const struct alphabet *alphabet, struct fm_error *err)
{
    struct tokenizer *tok = l->tok;
    uint64_t total = 0;
    bool is_bytes;
    for (size_t id = 0; id < tok->n_ids; id++)
        total += write_piece(l, alphabet, id, NULL, &is_bytes);
    tok->pieces = mem_new(total, 1, "token texts", err);
    tok->piece_begin = mem_new(tok->n_ids + 1, sizeof *tok->piece_begin, "token texts", err);
    if (tok->pieces == NULL || tok->piece_begin == NULL)
        return FM_ERR_NOMEM;
    uint32_t at = 0;
    for (size_t id = 0; id < tok->n_ids; id++) {
        const size_t bytes = write_piece(l, alphabet, id, tok->pieces + at, &is_bytes);
        if (bytes > tok->max_piece_bytes)
            tok->max_piece_bytes = bytes;
        at += (uint32_t)bytes;
        tok->piece_begin[id + 1] = at;
    }
    return 0;
}

/* With ignore_merges, a piece that is in the vocabulary becomes its token. */
static int fill_words(struct loader *l, const struct alphabet *alphabet, struct fm_error *err)
{
    struct tokenizer *tok = l->tok;
    const json_t *model = json_object_get(l->doc->root, "model");
    if (!json_is_true(json_object_get(model, "ignore_merges")))
        return 0;
    int rc = word_map_init(&tok->words, (uint32_t)json_object_size(l->vocab), tok->pieces,
                           tok->piece_begin, err);
    const char *text;
    json_t *id;
    json_object_foreach((json_t *)l->vocab, text, id)
    {
        bool is_bytes;
        (void)text_to_bytes(alphabet, text, NULL, &is_bytes);
        if (rc == 0 && is_bytes)
            (void)word_map_add(&tok->words, (uint32_t)json_integer_value(id));
    }
    return rc;
}

/* Adds the tokens that are one character. */
static int fill_characters(struct loader *l, struct fm_error *err)
{
    const char *text;
    json_t *id;
    int rc = spm_init(&l->tok->spm, (uint32_t)json_object_size(l->vocab), err);
    json_object_foreach((json_t *)l->vocab, text, id)
    {
        uint32_t c;
        if (rc == 0 && utf8_get((const uint8_t *)text, &c) == strlen(text))
            spm_add(&l->tok->spm, c, (uint32_t)json_integer_value(id));
    }
    return rc;
}

/* Returns whether valid UTF-8 has the byte. GPT-NeoX has no tokens for the others. */
static bool is_in_utf8(unsigned byte)
{
    return byte != 0xc0 && byte != 0xc1 && byte < 0xf5;
}

static int find_byte_ids(struct loader *l, const struct alphabet *alphabet, struct fm_error *err)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8] = {0};
        if (l->tok->is_spm)
            (void)snprintf(text, sizeof text, "<0x%02X>", byte);
        else
            (void)utf8_put(alphabet->characters[byte], (uint8_t *)text);
        const json_t *id = json_object_get(l->vocab, text);
        if (id == NULL && !is_in_utf8(byte))
            continue;
        if (id == NULL)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: model.vocab has no token for byte 0x%02x ('%s')", l->doc->file,
                           byte, text);
        l->tok->byte_ids[byte] = (uint32_t)json_integer_value(id);
    }
    return 0;
}

/* ---- merges ------------------------------------------------------------------------------ */

/* Writes both parts of a merge, "a b" or ["a", "b"], to l->joined without the space. *left_bytes is
 * where the right part begins. */
static int join_merge(struct loader *l, const json_t *merge, size_t rank, size_t *left_bytes,
                      struct fm_error *err)
{
    const char *left = NULL, *right = NULL;
    size_t n_left = 0;
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        const char *space = strchr(text, ' ');
        if (space != NULL && strchr(space + 1, ' ') == NULL) {
            left = text;
            n_left = (size_t)(space - text);
            right = space + 1;
        }
    } else if (json_array_size(merge) == 2) {
        left = json_string_value(json_array_get(merge, 0));
        right = json_string_value(json_array_get(merge, 1));
        n_left = left != NULL ? strlen(left) : 0;
    }
    if (left == NULL || right == NULL) {
        char shown[80];
        return err_set(err, FM_ERR_FORMAT, "%s: model.merges[%zu] is %s, expected two tokens",
                       l->doc->file, rank, jdoc_show(merge, shown, sizeof shown));
    }
    const size_t n_right = strlen(right);
    void *array = l->joined;
    const int rc = mem_grow(&array, &l->joined_capacity, n_left + n_right + 1, 1, "merges", err);
    l->joined = array;
    if (rc != 0)
        return rc;
    memcpy(l->joined, left, n_left);
    memcpy(l->joined + n_left, right, n_right + 1);
    *left_bytes = n_left;
    return 0;
}

/* Finds the id of `text`, a part of merge number `rank`, in the vocabulary. */
static int find_part(struct loader *l, const json_t *merge, size_t rank, const char *text,
                     uint32_t *id, struct fm_error *err)
{
    const json_t *value = json_object_get(l->vocab, text);
    if (value == NULL) {
        char shown[80];
        return err_set(err, FM_ERR_FORMAT,
                       "%s: model.merges[%zu] (%s): '%.60s' is not in model.vocab", l->doc->file,
                       rank, jdoc_show(merge, shown, sizeof shown), text);
    }
    *id = (uint32_t)json_integer_value(value);
    return 0;
}

static int load_merge(struct loader *l, const json_t *merge, size_t rank, struct fm_error *err)
{
    struct bpe_merge entry = {.rank = (uint32_t)rank};
    size_t n_left = 0;
    int rc = join_merge(l, merge, rank, &n_left, err);
    if (rc == 0)
        rc = find_part(l, merge, rank, l->joined, &entry.result, err);
    if (rc == 0)
        rc = find_part(l, merge, rank, l->joined + n_left, &entry.right, err);
    if (rc != 0)
        return rc;
    if (l->tok->is_spm)
        spm_note_merge(&l->tok->spm, l->joined, n_left, l->joined + n_left);
    l->joined[n_left] = '\0';
    rc = find_part(l, merge, rank, l->joined, &entry.left, err);
    if (rc == 0 && !bpe_table_add(&l->tok->merges, &entry)) {
        char shown[80];
        rc = err_set(err, FM_ERR_FORMAT, "%s: model.merges[%zu] (%s) occurs twice", l->doc->file,
                     rank, jdoc_show(merge, shown, sizeof shown));
    }
    return rc;
}

static int load_merges(struct loader *l, struct fm_error *err)
{
    const json_t *merges = json_object_get(json_object_get(l->doc->root, "model"), "merges");
    const size_t n = json_array_size(merges);
    if (!json_is_array(merges) || n >= LIMIT_VOCAB)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'model.merges' is not a list of fewer than %u merges",
                       l->doc->file, LIMIT_VOCAB);
    int rc = bpe_table_init(&l->tok->merges, (uint32_t)n, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = load_merge(l, json_array_get(merges, i), i, err);
    return rc;
}

/* ------------------------------------------------------------------------------------------ */

static int load_tokens(struct loader *l, struct fm_error *err)
{
    struct tokenizer *tok = l->tok;
    const json_t *added = jdoc_find(l->doc->root, "added_tokens");
    if (!json_is_object(l->vocab))
        return err_set(err, FM_ERR_FORMAT, "%s: field 'model.vocab' is not an object",
                       l->doc->file);
    if (added != NULL && !json_is_array(added))
        return err_set(err, FM_ERR_FORMAT, "%s: field 'added_tokens' is not a list", l->doc->file);
    int rc = count_ids(l, added, err);
    if (rc != 0)
        return rc;
    tok->flags = mem_new(tok->n_ids, 1, "the vocabulary", err);
    l->texts = mem_new(tok->n_ids, sizeof *l->texts, "the vocabulary", err);
    if (tok->flags == NULL || l->texts == NULL)
        return FM_ERR_NOMEM;
    rc = index_vocab(l, err);
    for (size_t i = 0; rc == 0 && i < json_array_size(added); i++)
        rc = index_added(l, json_array_get(added, i), err);
    struct alphabet alphabet;
    alphabet_init(&alphabet);
    if (rc == 0)
        rc = sort_added(l, added, false, &tok->added, err);
    if (rc == 0)
        rc = sort_added(l, added, true, &tok->added_normalized, err);
    if (rc == 0)
        rc = find_byte_ids(l, &alphabet, err);
    if (rc == 0)
        rc = fill_pieces(l, &alphabet, err);
    if (rc == 0)
        rc = tok->is_spm ? fill_characters(l, err) : fill_words(l, &alphabet, err);
    if (rc == 0)
        rc = load_merges(l, err);
    for (size_t i = 0; rc == 0 && i < tok->n_prefix; i++)
        if (!tokenizer_has_id(tok, tok->prefix[i]))
            rc = err_set(err, FM_ERR_FORMAT, "%s: field 'post_processor' has id %d, which has no "
                         "token", l->doc->file, tok->prefix[i]);
    return rc;
}

int tokenizer_load_tokens(struct tokenizer *tok, const struct jdoc *doc, struct fm_error *err)
{
    struct loader l = {
        .tok = tok,
        .doc = doc,
        .vocab = json_object_get(json_object_get(doc->root, "model"), "vocab"),
    };
    const int rc = load_tokens(&l, err);
    mem_free(l.texts);
    mem_free(l.joined);
    return rc;
}
