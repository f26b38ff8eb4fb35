/* Loads Kimi's tokenizer: tiktoken.model lists the tokens, one "base64 rank" per line. Two
 * neighbours merge if together they are a token; the lowest rank goes first. 256 special tokens
 * follow, named by tokenizer_config.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "text/tokenizer_impl.h"

#define N_SPECIAL 256
/* Bounds the time to find the merges; real tokens have at most 256 bytes. */
#define MAX_TOKEN_BYTES 512u
/* Bytes that are hashed to find all merges: each cut of a token hashes all its bytes. Enough for
 * 160,000 tokens of 40 bytes each. */
#define MAX_HASHED_BYTES (256u << 20)
#define NAME_BYTES 32

struct line {
    const char *text; /* base64, NULL if there is none */
    size_t bytes;
};

struct loader {
    struct tokenizer *tok;
    const char *file;
    struct line *lines; /* [n] by rank */
    size_t n;
    struct fm_error *err;
};

static int fail_line(const struct loader *l, size_t line, const char *what)
{
    return err_set(l->err, FM_ERR_FORMAT, "%s: line %zu: %s", l->file, line + 1, what);
}

/* ---- lines ------------------------------------------------------------------------------- */

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes base64 with its padding. Returns the number of bytes, 0 if it is not base64. */
static size_t decode_base64(const char *text, size_t bytes, uint8_t *out)
{
    size_t n = 0, n_padding = 0;
    while (n_padding < 2 && n_padding < bytes && text[bytes - 1 - n_padding] == '=')
        n_padding++;
    if (bytes == 0 || bytes % 4 != 0)
        return 0;
    for (size_t at = 0; at < bytes; at += 4) {
        uint32_t group = 0;
        const size_t n_pad = at + 4 == bytes ? n_padding : 0;
        for (size_t i = 0; i < 4; i++) {
            const int value = i < 4 - n_pad ? base64_value(text[at + i]) : 0;
            if (value < 0)
                return 0;
            group = group << 6 | (uint32_t)value;
        }
        for (size_t i = 0; i < 3 - n_pad; i++)
            out[n++] = (uint8_t)(group >> (16 - 8 * i));
    }
    return n;
}

/* Reads "base64 rank". */
static int read_line(struct loader *l, const char *text, size_t bytes, size_t number)
{
    const char *space = memchr(text, ' ', bytes);
    if (space == NULL || space == text)
        return fail_line(l, number, "expected a token in base64, a space and its rank");
    const size_t n_digits = bytes - (size_t)(space + 1 - text);
    uint64_t rank = 0;
    for (size_t i = 0; i < n_digits; i++) {
        const char digit = space[1 + i];
        if (digit < '0' || digit > '9' || n_digits > 9)
            return fail_line(l, number, "the rank is not a number");
        rank = rank * 10 + (uint64_t)(digit - '0');
    }
    if (n_digits == 0 || rank >= l->n || l->lines[rank].text != NULL)
        return fail_line(l, number, "the ranks are not 0, 1, 2, ... without gaps");
    l->lines[rank] = (struct line){text, (size_t)(space - text)};
    return 0;
}

/* Calls read_line for every line, or counts them if there is no table yet. */
static int read_lines(struct loader *l, const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - text) - at : bytes - at;
        const size_t step = length + 1;
        if (length > 0 && text[at + length - 1] == '\r')
            length--;
        if (length > 0) {
            const int rc = l->lines != NULL ? read_line(l, text + at, length, n) : 0;
            if (rc != 0)
                return rc;
            n++;
        }
        at += step;
    }
    l->n = n;
    return 0;
}

/* ---- special tokens ---------------------------------------------------------------------- */

/* Returns the name of special token `id`: from the config, or a reserved one written to `own`. */
static const char *special_name(const json_t *names, size_t id, char own[NAME_BYTES],
                                bool *is_special)
{
    char key[NAME_BYTES];
    (void)snprintf(key, sizeof key, "%zu", id);
    const json_t *entry = json_object_get(names, key);
    const char *content = json_string_value(json_object_get(entry, "content"));
    const json_t *special = json_object_get(entry, "special");
    *is_special = special == NULL || !json_is_false(special);
    if (content != NULL)
        return content;
    (void)snprintf(own, NAME_BYTES, "<|reserved_token_%zu|>", id);
    return own;
}

static int check_names(const struct loader *l, const struct jdoc *config, const json_t *names)
{
    static const char *const field = "added_tokens_decoder";
    const char *key;
    json_t *entry;
    const json_t *kind = config != NULL ? jdoc_find(config->root, "tokenizer_class") : NULL;
    char shown[80];
    if (kind != NULL && !(json_is_string(kind) &&
                          strcmp(json_string_value(kind), "TikTokenTokenizer") == 0))
        return err_set(l->err, FM_ERR_UNSUPPORTED,
                       "%s: field 'tokenizer_class' is %s; beside tiktoken.model only "
                       "\"TikTokenTokenizer\" (Kimi) is supported",
                       config->file, jdoc_show(kind, shown, sizeof shown));
    if (names != NULL && !json_is_object(names))
        return err_set(l->err, FM_ERR_FORMAT, "%s: field '%s' is not an object", config->file,
                       field);
    json_object_foreach((json_t *)names, key, entry)
    {
        char *end;
        const unsigned long long id = strtoull(key, &end, 10);
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (*end != '\0' || id < l->n || id >= l->n + N_SPECIAL)
            return err_set(l->err, FM_ERR_FORMAT,
                           "%s: field '%s' has id '%.20s'; special tokens have %zu to %zu",
                           config->file, field, key, l->n, l->n + N_SPECIAL - 1);
        if (content == NULL || content[0] == '\0' || strlen(content) > TOKENIZER_ADDED_BYTES)
            return err_set(l->err, FM_ERR_FORMAT, "%s: field '%s.%s' has no usable content",
                           config->file, field, key);
    }
    return 0;
}

/* ---- tables ------------------------------------------------------------------------------ */

/* Appends a piece for the next id. The room was counted before. */
static void add_piece(struct tokenizer *tok, size_t id, const void *text, size_t bytes)
{
    const uint32_t begin = tok->piece_begin[id];
    if (text != NULL)
        memcpy(tok->pieces + begin, text, bytes);
    tok->piece_begin[id + 1] = begin + (uint32_t)bytes;
    tok->flags[id] |= TOKEN_PRESENT;
    if (bytes > tok->max_piece_bytes)
        tok->max_piece_bytes = bytes;
}

static int fill_tokens(struct loader *l)
{
    struct tokenizer *tok = l->tok;
    for (size_t id = 0; id < l->n; id++) {
        uint8_t *out = tok->pieces + tok->piece_begin[id];
        const size_t n = l->lines[id].bytes > 2 * MAX_TOKEN_BYTES
                             ? 0 : decode_base64(l->lines[id].text, l->lines[id].bytes, out);
        if (n == 0 || n > MAX_TOKEN_BYTES)
            return err_set(l->err, FM_ERR_FORMAT,
                           "%s: the token of rank %zu ('%.*s') is not base64 of at most %u bytes",
                           l->file, id, (int)(l->lines[id].bytes < 40 ? l->lines[id].bytes : 40),
                           l->lines[id].text, MAX_TOKEN_BYTES);
        add_piece(tok, id, NULL, n);
    }
    return 0;
}

static int fill_special(struct loader *l, const json_t *names)
{
    struct tokenizer *tok = l->tok;
    struct added_token added[N_SPECIAL];
    for (size_t i = 0; i < N_SPECIAL; i++) {
        const size_t id = l->n + i;
        char own[NAME_BYTES];
        bool is_special;
        const char *name = special_name(names, id, own, &is_special);
        add_piece(tok, id, name, strlen(name));
        tok->flags[id] |= TOKEN_ADDED | (is_special ? TOKEN_SPECIAL : 0);
        added[i] = (struct added_token){(const char *)tok->pieces + tok->piece_begin[id],
                                        (uint32_t)strlen(name), (uint32_t)id};
    }
    return added_set_init(&tok->added, l->file, added, N_SPECIAL, l->err);
}

static int fill_words(struct loader *l)
{
    struct tokenizer *tok = l->tok;
    const int rc = word_map_init(&tok->words, (uint32_t)l->n, tok->pieces, tok->piece_begin,
                                 l->err);
    for (uint32_t id = 0; rc == 0 && id < l->n; id++)
        if (!word_map_add(&tok->words, id))
            return err_set(l->err, FM_ERR_FORMAT, "%s: the token of rank %u occurs twice", l->file,
                           id);
    for (unsigned byte = 0; rc == 0 && byte < 256; byte++) {
        const uint8_t text = (uint8_t)byte;
        tok->byte_ids[byte] = word_map_find(&tok->words, &text, 1);
        if (tok->byte_ids[byte] == WORD_MAP_NONE)
            return err_set(l->err, FM_ERR_FORMAT, "%s: there is no token for byte 0x%02x", l->file,
                           byte);
    }
    return rc;
}

/* Adds the merges that make token `id`, or only counts them. */
static uint32_t add_merges(struct tokenizer *tok, uint32_t id, bool only_counts)
{
    const uint8_t *text = tok->pieces + tok->piece_begin[id];
    const size_t bytes = tok->piece_begin[id + 1] - tok->piece_begin[id];
    uint32_t n = 0;
    for (size_t cut = 1; cut < bytes; cut++) {
        struct bpe_merge merge = {.rank = id, .result = id};
        merge.left = word_map_find(&tok->words, text, cut);
        if (merge.left == WORD_MAP_NONE)
            continue;
        merge.right = word_map_find(&tok->words, text + cut, bytes - cut);
        if (merge.right == WORD_MAP_NONE)
            continue;
        n++;
        if (!only_counts)
            (void)bpe_table_add(&tok->merges, &merge);
    }
    return n;
}

static int fill_merges(struct loader *l)
{
    struct tokenizer *tok = l->tok;
    uint64_t n = 0, n_hashed = 0;
    for (uint32_t id = 0; id < l->n && n < LIMIT_VOCAB; id++) {
        const uint64_t bytes = tok->piece_begin[id + 1] - tok->piece_begin[id];
        n_hashed += bytes * bytes;
        if (n_hashed > MAX_HASHED_BYTES)
            return err_set(l->err, FM_ERR_FORMAT,
                           "%s: the tokens up to rank %u are too long: finding their merges "
                           "compares more than %u bytes", l->file, id, MAX_HASHED_BYTES);
        n += add_merges(tok, id, true);
    }
    if (n >= LIMIT_VOCAB)
        return err_set(l->err, FM_ERR_FORMAT, "%s: the tokens have more than %u merges", l->file,
                       LIMIT_VOCAB - 1);
    const int rc = bpe_table_init(&tok->merges, (uint32_t)n, l->err);
    for (uint32_t id = 0; rc == 0 && id < l->n; id++)
        (void)add_merges(tok, id, false);
    return rc;
}

/* ------------------------------------------------------------------------------------------ */

static int load(struct loader *l, const char *text, size_t bytes, const struct jdoc *config)
{
    static const char name[] = "kimi-k2";
    struct tokenizer *tok = l->tok;
    const json_t *names = config != NULL ? jdoc_find(config->root, "added_tokens_decoder") : NULL;
    tok->pretok = pretok_find_gguf(name, sizeof name - 1);
    int rc = read_lines(l, text, bytes);
    if (rc == 0 && l->n > LIMIT_VOCAB - N_SPECIAL)
        return err_set(l->err, FM_ERR_FORMAT, "%s: %zu tokens are too many", l->file, l->n);
    if (rc == 0)
        rc = check_names(l, config, names);
    if (rc != 0)
        return rc;
    tok->n_ids = l->n + N_SPECIAL;
    l->lines = mem_new(l->n, sizeof *l->lines, "the vocabulary", l->err);
    tok->flags = mem_new(tok->n_ids, 1, "the vocabulary", l->err);
    tok->piece_begin = mem_new(tok->n_ids + 1, sizeof *tok->piece_begin, "token texts", l->err);
    tok->pieces = mem_new((uint64_t)bytes + N_SPECIAL * (TOKENIZER_ADDED_BYTES + NAME_BYTES), 1,
                          "token texts", l->err);
    if (l->lines == NULL || tok->flags == NULL || tok->piece_begin == NULL || tok->pieces == NULL)
        return FM_ERR_NOMEM;
    rc = read_lines(l, text, bytes);
    if (rc == 0)
        rc = fill_tokens(l);
    if (rc == 0)
        rc = fill_special(l, names);
    if (rc == 0)
        rc = fill_words(l);
    return rc != 0 ? rc : fill_merges(l);
}

int tokenizer_parse_tiktoken(const char *name, const char *text, size_t bytes,
                             const struct jdoc *config, struct tokenizer **out,
                             struct fm_error *err)
{
    *out = NULL;
    struct tokenizer *tok = mem_new(1, sizeof *tok, "a tokenizer", err);
    if (tok == NULL)
        return FM_ERR_NOMEM;
    struct loader l = {.tok = tok, .file = name, .err = err};
    const int rc = load(&l, text, bytes, config);
    mem_free(l.lines);
    if (rc != 0) {
        tokenizer_close(tok);
        return rc;
    }
    *out = tok;
    return 0;
}
