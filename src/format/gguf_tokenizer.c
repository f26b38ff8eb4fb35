/* Converts tokenizer.ggml.* to the files of a Hugging Face checkpoint. The vocabulary "gpt2" is a
 * byte-level BPE without prefix and without an unknown token. tokenizer.ggml.pre (struct
 * gguf_pattern) determines what GGUF does not say: the regular expressions, and whether NFC is
 * applied. The vocabulary "llama" is SentencePiece's: scores instead of merges. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/word_map.h"
#include "format/gguf_internal.h"

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

#define TOKENS_KEY "tokenizer.ggml.tokens"
#define TYPES_KEY "tokenizer.ggml.token_type"
#define MERGES_KEY "tokenizer.ggml.merges"
#define SCORES_KEY "tokenizer.ggml.scores"
/* Bounds the time to find the merges of SentencePiece's tokens, which have 16 characters. */
#define MAX_SPM_BYTES 512u
#define BYTE_LEVEL \
    "\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false"

struct token {
    const char *text;
    uint64_t bytes;
    int64_t type;
    float score; /* SentencePiece only: the highest merges first */
};

struct vocabulary {
    struct token *tokens;
    uint64_t n;
    bool is_spm;
};

/* ---- a growing text ---------------------------------------------------------------------- */

/* Keeps the first failure. */
struct writer {
    const char *path;
    char *text;
    size_t n, capacity;
    int rc;
    struct fm_error *err;
};

static void put_bytes(struct writer *w, const char *bytes, size_t n)
{
    if (w->rc == 0 && n > LIMIT_TOKENIZER_JSON_BYTES - w->n)
        w->rc = err_set(w->err, FM_ERR_FORMAT,
                        "%s: the tokenizer has more than %u bytes as JSON", w->path,
                        LIMIT_TOKENIZER_JSON_BYTES);
    if (w->rc == 0)
        w->rc = mem_grow((void **)&w->text, &w->capacity, w->n + n + 1, 1, "the tokenizer",
                         w->err);
    if (w->rc != 0)
        return;
    memcpy(w->text + w->n, bytes, n);
    w->n += n;
    w->text[w->n] = '\0';
}

static void put(struct writer *w, const char *text)
{
    put_bytes(w, text, strlen(text));
}

static void put_uint(struct writer *w, uint64_t n)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    put(w, text);
}

/* Writes a JSON string; the text is UTF-8. */
static void put_quoted(struct writer *w, const char *text, uint64_t bytes)
{
    put(w, "\"");
    uint64_t done = 0;
    for (uint64_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        char escape[8];
        (void)snprintf(escape, sizeof escape, "\\u%04x", c);
        put_bytes(w, text + done, (size_t)(i - done));
        put(w, escape);
        done = i + 1;
    }
    put_bytes(w, text + done, (size_t)(bytes - done));
    put(w, "\"");
}

/* Passes the text to the source, or frees it. */
static int finish(struct writer *w, struct source *source, const char *name)
{
    if (w->rc == 0)
        return source_add_text(source, name, w->text, w->n, w->err);
    mem_free(w->text);
    return w->rc;
}

/* ---- the vocabulary ---------------------------------------------------------------------- */

/* Returns the next string of an array, whose bounds were checked when the header was read. */
static const uint8_t *next_string(const uint8_t *at, const char **text, uint64_t *bytes)
{
    *bytes = gguf_get_le(at, 8);
    *text = (const char *)at + 8;
    return at + 8 + *bytes;
}

/* Returns a list of strings; NULL with an error if it is none. */
static const struct gguf_value *find_texts(const struct gguf *g, const char *key,
                                           struct fm_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (v != NULL && v->type == GGUF_ARRAY && v->element_type == GGUF_STRING &&
        v->n < LIMIT_VOCAB)
        return v;
    (void)err_set(err, FM_ERR_FORMAT, "%s: key '%s' is %s, expected a list of fewer than %u "
                  "strings",
                  g->path, key, v == NULL ? "missing" : "something else", LIMIT_VOCAB);
    return NULL;
}

static int check_type(const struct gguf *g, const struct gguf_value *types, uint64_t i,
                      bool is_spm, struct token *token, struct fm_error *err)
{
    if (!gguf_element(types, i, &token->type))
        return err_set(err, FM_ERR_FORMAT,
                       "%s: key '" TYPES_KEY "' is not a list with one number per token",
                       g->path);
    if (is_spm && (token->type == TOKEN_UNKNOWN || token->type == TOKEN_BYTE))
        return 0;
    if (token->type != TOKEN_NORMAL && token->type != TOKEN_CONTROL &&
        token->type != TOKEN_USER_DEFINED && token->type != TOKEN_UNUSED)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: key '" TYPES_KEY "': token %llu has type %lld; this version reads only "
                       "1 (normal), 3 (control), 4 (user-defined) and 5 (unused)",
                       g->path, (unsigned long long)i, (long long)token->type);
    return 0;
}

static int read_vocabulary(const struct gguf *g, struct vocabulary *v, struct fm_error *err)
{
    const struct gguf_value *list = find_texts(g, TOKENS_KEY, err);
    const struct gguf_value *types = gguf_find(g, TYPES_KEY);
    if (list == NULL)
        return FM_ERR_FORMAT;
    if (types == NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: key '" TYPES_KEY "' is missing", g->path);
    v->tokens = mem_new(list->n, sizeof *v->tokens, "the vocabulary", err);
    if (v->tokens == NULL)
        return FM_ERR_NOMEM;
    v->n = list->n;
    const uint8_t *at = list->data;
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < list->n; i++) {
        struct token *token = &v->tokens[i];
        at = next_string(at, &token->text, &token->bytes);
        if (!gguf_is_text((const uint8_t *)token->text, token->bytes))
            rc = err_set(err, FM_ERR_FORMAT, "%s: key '" TOKENS_KEY "': token %llu is not UTF-8",
                         g->path, (unsigned long long)i);
        else
            rc = check_type(g, types, i, v->is_spm, token, err);
    }
    return rc;
}

static bool is_special(const struct token *token)
{
    return token->type == TOKEN_CONTROL || token->type == TOKEN_UNKNOWN;
}

static bool is_added(const struct token *token)
{
    return is_special(token) || token->type == TOKEN_USER_DEFINED;
}

/* Reads the score of every token. */
static int read_scores(const struct gguf *g, struct vocabulary *v, struct fm_error *err)
{
    const struct gguf_value *list = gguf_find(g, SCORES_KEY);
    if (list == NULL || list->type != GGUF_ARRAY || list->element_type != GGUF_F32 ||
        list->n != v->n)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: key '" SCORES_KEY "' is not a list with one 32-bit float per token",
                       g->path);
    for (uint64_t i = 0; i < v->n; i++) {
        const uint32_t bits = (uint32_t)gguf_get_le((const uint8_t *)list->data + 4 * i, 4);
        memcpy(&v->tokens[i].score, &bits, sizeof bits);
        if (v->tokens[i].score != v->tokens[i].score)
            return err_set(err, FM_ERR_FORMAT, "%s: key '" SCORES_KEY "': the score of token %llu "
                           "is not a number",
                           g->path, (unsigned long long)i);
    }
    return 0;
}

/* ---- tokenizer.json ---------------------------------------------------------------------- */

static bool has_name(const struct gguf_pattern *pattern, unsigned k)
{
    unsigned n = 0;
    while (pattern->names[n] != NULL)
        n++;
    return k < n;
}

/* Fails and lists the names of all patterns: the main names first, then the aliases. */
static int refuse_pattern(const struct gguf *g, const char *key,
                          const struct gguf_pattern *patterns, struct fm_error *err)
{
    char known[512] = "";
    unsigned n_left = 0;
    for (const struct gguf_pattern *p = patterns; p->names != NULL; p++)
        for (unsigned k = 0; has_name(p, k); k++)
            n_left++;
    for (unsigned k = 0; n_left > 0; k++)
        for (const struct gguf_pattern *p = patterns; p->names != NULL; p++) {
            const size_t used = strlen(known);
            if (!has_name(p, k))
                continue;
            n_left--;
            (void)snprintf(known + used, sizeof known - used, "%s\"%s\"",
                           used == 0 ? "" : n_left > 0 ? ", " : " and ", p->names[k]);
        }
    return gguf_refuse(g, key, gguf_find(g, key), known, err);
}

static int find_pattern(const struct gguf *g, const struct gguf_pattern *patterns,
                        const struct gguf_pattern **out, struct fm_error *err)
{
    static const struct gguf_pattern none[1];
    const char *key = "tokenizer.ggml.pre", *text;
    uint64_t bytes;
    int rc = gguf_text_or_null(g, key, &text, &bytes, err);
    if (rc != 0)
        return rc;
    if (text == NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: key '%s' is missing", g->path, key);
    patterns = patterns != NULL ? patterns : none;
    for (const struct gguf_pattern *p = patterns; p->names != NULL; p++)
        for (const char *const *name = p->names; *name != NULL; name++)
            if (gguf_text_is(text, bytes, *name)) {
                *out = p;
                return 0;
            }
    return refuse_pattern(g, key, patterns, err);
}

static void put_added(struct writer *w, const struct vocabulary *v)
{
    const char *comma = "";
    put(w, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (uint64_t i = 0; i < v->n; i++) {
        const struct token *t = &v->tokens[i];
        if (!is_added(t))
            continue;
        put(w, comma);
        put(w, "{\"id\":");
        put_uint(w, i);
        put(w, ",\"content\":");
        put_quoted(w, t->text, t->bytes);
        put(w, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
               "\"special\":");
        put(w, is_special(t) ? "true}" : "false}");
        comma = ",";
    }
    put(w, "],");
}

static void put_splits(struct writer *w, const struct gguf_pattern *pattern)
{
    put(w, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (const char *const *regex = pattern->regexes; *regex != NULL; regex++) {
        put(w, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        put_quoted(w, *regex, strlen(*regex));
        put(w, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    put(w, "{" BYTE_LEVEL ",\"use_regex\":false}]},");
}

static void put_settings(struct writer *w, const struct gguf_pattern *pattern)
{
    put(w, pattern->has_nfc ? "\"normalizer\":{\"type\":\"NFC\"}," : "\"normalizer\":null,");
    if (pattern->regexes[0] != NULL)
        put_splits(w, pattern);
    else
        put(w, "\"pre_tokenizer\":{" BYTE_LEVEL ",\"use_regex\":true},");
    put(w, "\"post_processor\":null,\"decoder\":{" BYTE_LEVEL ",\"use_regex\":false},");
}

static void put_vocabulary(struct writer *w, const struct vocabulary *v)
{
    const char *comma = "";
    put(w, "\"vocab\":{");
    for (uint64_t i = 0; i < v->n; i++) {
        const struct token *t = &v->tokens[i];
        if (t->type != TOKEN_NORMAL && t->type != TOKEN_BYTE)
            continue;
        put(w, comma);
        put_quoted(w, t->text, t->bytes);
        put(w, ":");
        put_uint(w, i);
        comma = ",";
    }
    put(w, "},\"merges\":[");
}

static int put_model(struct writer *w, const struct gguf *g, const struct vocabulary *v,
                     bool ignores_merges)
{
    const struct gguf_value *merges = find_texts(g, MERGES_KEY, w->err);
    if (merges == NULL)
        return FM_ERR_FORMAT;
    put(w, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
           "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
           "\"byte_fallback\":false,\"ignore_merges\":");
    put(w, ignores_merges ? "true," : "false,");
    put_vocabulary(w, v);
    const uint8_t *at = merges->data;
    for (uint64_t i = 0; i < merges->n; i++) {
        const char *text;
        uint64_t bytes;
        at = next_string(at, &text, &bytes);
        if (!gguf_is_text((const uint8_t *)text, bytes))
            return err_set(w->err, FM_ERR_FORMAT, "%s: key '" MERGES_KEY "': merge %llu is not "
                           "UTF-8",
                           g->path, (unsigned long long)i);
        put(w, i > 0 ? "," : "");
        put_quoted(w, text, bytes);
    }
    put(w, "]}}");
    return 0;
}

/* ---- SentencePiece ----------------------------------------------------------------------- */

struct rank {
    float score;
    uint32_t id;
};

/* What is needed to find tokens by text. */
struct parts {
    const struct vocabulary *v;
    struct word_map words;
    uint8_t *texts;
    uint32_t *begin; /* [n + 1] */
    struct rank *order; /* [n_order] normal tokens: the highest score first, then the lowest id */
    uint64_t n_order;
};

static void parts_clear(struct parts *p)
{
    word_map_clear(&p->words);
    mem_free(p->texts);
    mem_free(p->begin);
    mem_free(p->order);
}

static int compare_ranks(const void *a, const void *b)
{
    const struct rank *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Indexes the normal tokens. */
static int parts_init(struct parts *p, const struct gguf *g, struct fm_error *err)
{
    const struct vocabulary *v = p->v;
    uint64_t total = 0;
    for (uint64_t i = 0; i < v->n; i++)
        total += v->tokens[i].bytes;
    p->texts = mem_new(total, 1, "the vocabulary", err);
    p->begin = mem_new(v->n + 1, sizeof *p->begin, "the vocabulary", err);
    p->order = mem_new(v->n, sizeof *p->order, "the vocabulary", err);
    if (p->texts == NULL || p->begin == NULL || p->order == NULL)
        return FM_ERR_NOMEM;
    if (total > LIMIT_TOKENIZER_JSON_BYTES)
        return err_set(err, FM_ERR_FORMAT, "%s: the tokens have %llu bytes, more than %u", g->path,
                       (unsigned long long)total, LIMIT_TOKENIZER_JSON_BYTES);
    int rc = word_map_init(&p->words, (uint32_t)v->n, p->texts, p->begin, err);
    for (uint32_t i = 0; rc == 0 && i < v->n; i++) {
        const struct token *t = &v->tokens[i];
        const bool is_normal = t->type == TOKEN_NORMAL;
        const uint32_t bytes = is_normal ? (uint32_t)t->bytes : 0;
        memcpy(p->texts + p->begin[i], t->text, bytes);
        p->begin[i + 1] = p->begin[i] + bytes;
        if (!is_normal)
            continue;
        if (bytes == 0 || bytes > MAX_SPM_BYTES || !word_map_add(&p->words, i))
            return err_set(err, FM_ERR_FORMAT,
                           "%s: key '" TOKENS_KEY "': token %u is empty, longer than %u bytes or "
                           "there twice",
                           g->path, i, MAX_SPM_BYTES);
        p->order[p->n_order++] = (struct rank){t->score, i};
    }
    return rc;
}

struct pair {
    uint32_t left, right;
};

static int compare_pairs(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

/* Writes the merges that make token `id`, in the order that Hugging Face's converter gives them. */
static void put_pairs(struct writer *w, const struct parts *p, uint32_t id, const char **comma)
{
    struct pair pairs[MAX_SPM_BYTES];
    size_t n = 0;
    const uint8_t *text = p->texts + p->begin[id];
    const size_t bytes = p->begin[id + 1] - p->begin[id];
    for (size_t cut = 1; cut < bytes; cut++) {
        if ((text[cut] & 0xc0) == 0x80) /* inside a character */
            continue;
        const struct pair pair = {word_map_find(&p->words, text, cut),
                                  word_map_find(&p->words, text + cut, bytes - cut)};
        if (pair.left != WORD_MAP_NONE && pair.right != WORD_MAP_NONE)
            pairs[n++] = pair;
    }
    qsort(pairs, n, sizeof pairs[0], compare_pairs);
    for (size_t i = 0; i < n; i++) {
        const struct token *left = &p->v->tokens[pairs[i].left];
        const struct token *right = &p->v->tokens[pairs[i].right];
        put(w, *comma);
        put(w, "[");
        put_quoted(w, left->text, left->bytes);
        put(w, ",");
        put_quoted(w, right->text, right->bytes);
        put(w, "]");
        *comma = ",";
    }
}

static int put_spm_model(struct writer *w, const struct gguf *g, const struct vocabulary *v)
{
    struct parts p = {.v = v};
    const int rc = parts_init(&p, g, w->err);
    if (rc == 0) {
        put(w, "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,");
        put_vocabulary(w, v);
        qsort(p.order, p.n_order, sizeof *p.order, compare_ranks);
        const char *comma = "";
        for (uint64_t i = 0; i < p.n_order && w->rc == 0; i++)
            put_pairs(w, &p, p.order[i].id, &comma);
        put(w, "]}}");
    }
    parts_clear(&p);
    return rc;
}

static int add_spm(struct source *source, const struct gguf *g, struct vocabulary *v,
                   struct fm_error *err)
{
    struct writer w = {.path = g->path, .err = err};
    bool has_prefix = true;
    w.rc = gguf_bool_or(g, "tokenizer.ggml.add_space_prefix", true, &has_prefix, err);
    if (w.rc == 0)
        w.rc = read_scores(g, v, err);
    if (w.rc == 0) {
        put_added(&w, v);
        put(&w, has_prefix
                    ? "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
                      "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},{\"type\":\"Replace\","
                      "\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},"
                      "\"pre_tokenizer\":null,"
                    : "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\","
                      "\"replacement\":\"\u2581\",\"prepend_scheme\":\"never\",\"split\":false},");
        put(&w, "\"post_processor\":null,\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
                "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"},"
                "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
        put(&w, has_prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
                           : "]},");
        const int rc = put_spm_model(&w, g, v);
        if (w.rc == 0)
            w.rc = rc;
    }
    return finish(&w, source, "tokenizer.json");
}

static int add_tokenizer(struct source *source, const struct gguf *g, const struct vocabulary *v,
                         const struct gguf_pattern *patterns, struct fm_error *err)
{
    struct writer w = {.path = g->path, .err = err};
    const struct gguf_pattern *pattern = NULL;
    w.rc = find_pattern(g, patterns, &pattern, err);
    if (w.rc == 0) {
        put_added(&w, v);
        put_settings(&w, pattern);
        const int rc = put_model(&w, g, v, pattern->ignores_merges);
        if (w.rc == 0)
            w.rc = rc;
    }
    return finish(&w, source, "tokenizer.json");
}

/* ---- stop tokens, sampling, chat template ------------------------------------------------ */

/* Finds an id by its key; UINT64_MAX if there is none or it has no token. */
static int find_id(const struct gguf *g, const struct vocabulary *v, const char *key,
                   uint64_t *id, struct fm_error *err)
{
    int rc = gguf_uint_or(g, key, 0, UINT32_MAX, UINT64_MAX, id, err);
    if (rc == 0 && *id >= v->n)
        *id = UINT64_MAX;
    return rc;
}

/* Finds a control token by its text. */
static uint64_t find_control(const struct vocabulary *v, const char *text)
{
    for (uint64_t i = 0; i < v->n; i++)
        if (v->tokens[i].type == TOKEN_CONTROL &&
            gguf_text_is(v->tokens[i].text, v->tokens[i].bytes, text))
            return i;
    return UINT64_MAX;
}

/* Writes an id unless it was written before. */
static void put_stop_token(struct writer *w, uint64_t id, uint64_t ids[], unsigned *n)
{
    if (id == UINT64_MAX || *n == LIMIT_STOP_TOKENS)
        return;
    for (unsigned i = 0; i < *n; i++)
        if (ids[i] == id)
            return;
    put(w, *n > 0 ? "," : "");
    put_uint(w, id);
    ids[(*n)++] = id;
}

/* Writes every id that ends an answer. GGUF stores only one; the original files of chat models name
 * both the end of a turn and the end of the text. */
static int put_stop_tokens(struct writer *w, const struct gguf *g, const struct vocabulary *v,
                           const char *const *texts)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    uint64_t ids[LIMIT_STOP_TOKENS];
    unsigned n = 0;
    put(w, "{\"eos_token_id\":[");
    for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint64_t id;
        int rc = find_id(g, v, keys[i], &id, w->err);
        if (rc != 0)
            return rc;
        put_stop_token(w, id, ids, &n);
    }
    for (const char *const *text = texts; text != NULL && *text != NULL; text++)
        put_stop_token(w, find_control(v, *text), ids, &n);
    put(w, "]");
    return 0;
}

static int put_sampling(struct writer *w, const struct gguf *g)
{
    static const struct {
        const char *key, *field;
        double max;
    } settings[] = {
        {"general.sampling.temp", "temperature", 100},
        {"general.sampling.top_k", "top_k", LIMIT_VOCAB},
        {"general.sampling.top_p", "top_p", 1},
        {"general.sampling.min_p", "min_p", 1},
    };
    for (unsigned i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        double x;
        int rc = gguf_number_or(g, settings[i].key, -1e9, settings[i].max, -1, &x, w->err);
        if (rc != 0)
            return rc;
        if (x < 0) /* absent or disabled */
            continue;
        char text[64];
        (void)snprintf(text, sizeof text, ",\"%s\":%.9g", settings[i].field, x);
        put(w, i == 0 && x > 0 ? ",\"do_sample\":true" : "");
        put(w, text);
    }
    return 0;
}

static int add_generation_config(struct source *source, const struct gguf *g,
                                 const struct vocabulary *v, const char *const *stop_tokens,
                                 struct fm_error *err)
{
    struct writer w = {.path = g->path, .err = err};
    int rc = put_stop_tokens(&w, g, v, stop_tokens);
    if (rc == 0)
        rc = put_sampling(&w, g);
    put(&w, "}");
    if (w.rc == 0)
        w.rc = rc;
    return finish(&w, source, "generation_config.json");
}

static int add_tokenizer_config(struct source *source, const struct gguf *g,
                                const struct vocabulary *v, struct fm_error *err)
{
    struct writer w = {.path = g->path, .err = err};
    uint64_t eos = UINT64_MAX, bos = UINT64_MAX, template_bytes = 0;
    const char *template = NULL;
    bool adds_bos = false;
    int rc = find_id(g, v, "tokenizer.ggml.eos_token_id", &eos, err);
    if (rc == 0)
        rc = find_id(g, v, "tokenizer.ggml.bos_token_id", &bos, err);
    if (rc == 0)
        rc = gguf_bool_or(g, "tokenizer.ggml.add_bos_token", v->is_spm, &adds_bos, err);
    if (rc == 0)
        rc = gguf_text_or_null(g, "tokenizer.chat_template", &template, &template_bytes, err);
    w.rc = rc;
    put(&w, "{\"add_bos_token\":");
    put(&w, adds_bos ? "true" : "false");
    if (eos != UINT64_MAX) {
        put(&w, ",\"eos_token\":");
        put_quoted(&w, v->tokens[eos].text, v->tokens[eos].bytes);
    }
    if (bos != UINT64_MAX) {
        put(&w, ",\"bos_token\":");
        put_quoted(&w, v->tokens[bos].text, v->tokens[bos].bytes);
    }
    if (template != NULL) {
        put(&w, ",\"chat_template\":");
        put_quoted(&w, template, template_bytes);
    }
    put(&w, "}");
    return finish(&w, source, "tokenizer_config.json");
}

int gguf_add_texts(struct source *source, const struct gguf *g,
                   const struct gguf_pattern *patterns, const char *const *stop_tokens,
                   struct fm_error *err)
{
    const char *key = "tokenizer.ggml.model", *text;
    uint64_t bytes;
    int rc = gguf_text_or_null(g, key, &text, &bytes, err);
    if (rc != 0 || text == NULL || gguf_text_is(text, bytes, "none") ||
        gguf_text_is(text, bytes, "no_vocab"))
        return rc;
    struct vocabulary v = {.is_spm = gguf_text_is(text, bytes, "llama")};
    if (!v.is_spm && !gguf_text_is(text, bytes, "gpt2"))
        return gguf_refuse(g, key, gguf_find(g, key), "\"gpt2\" and \"llama\"", err);
    rc = read_vocabulary(g, &v, err);
    if (rc == 0)
        rc = v.is_spm ? add_spm(source, g, &v, err) : add_tokenizer(source, g, &v, patterns, err);
    if (rc == 0)
        rc = add_generation_config(source, g, &v, stop_tokens, err);
    if (rc == 0)
        rc = add_tokenizer_config(source, g, &v, err);
    mem_free(v.tokens);
    return rc;
}
