#include "server/infill.h"

#include <string.h>

#include "base/mem.h"
#include "server/fields.h"

/* The tokens of a family of models. A prompt is PREFIX prefix SUFFIX suffix MIDDLE. */
struct family {
    const char *prefix, *suffix, *middle;
    const char *pad;        /* NULL: none */
    const char *repository; /* precedes the name of a repository, before its files; or NULL */
    const char *file;       /* precedes the name and the text of a file; or NULL */
};

static const struct family families[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>",
     "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<reponame>", "<file_sep>"},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL, NULL},
    {"<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>",
     NULL, NULL, NULL},
};

/* Stands between files where the model has no token for that. */
#define FILES_APART "\n\n"

/* Finds an added token. The same characters in ordinary text are other tokens. */
static bool find_token(const struct fm_model *model, const char *text, int32_t *id)
{
    int32_t *ids = NULL;
    size_t n = 0, bytes = 0;
    if (text == NULL)
        return false;
    const int rc = fm_tokenize(model, text, strlen(text), FM_TEXT_WITH_SPECIAL, &ids, &n, NULL);
    const bool is_one = rc == 0 && n == 1;
    *id = is_one ? ids[0] : -1;
    fm_free(ids);
    const char *piece = is_one ? fm_token_text(model, *id, &bytes) : NULL;
    return piece != NULL && bytes == strlen(text) && memcmp(piece, text, bytes) == 0;
}

static const struct family *find_family(const struct fm_model *model)
{
    int32_t id;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (find_token(model, families[i].prefix, &id) &&
            find_token(model, families[i].suffix, &id) &&
            find_token(model, families[i].middle, &id))
            return &families[i];
    return NULL;
}

bool infill_is_known(const struct fm_model *model)
{
    return find_family(model) != NULL;
}

/* A prompt as it is put together. */
struct building {
    struct api_call *call;
    const struct family *family;
    const char *field;
    int32_t *ids;
    size_t n, capacity;
};

static int add_ids(struct building *b, const int32_t *ids, size_t n)
{
    if (mem_grow((void **)&b->ids, &b->capacity, b->n + n, sizeof *b->ids, "a prompt", NULL) != 0)
        return api_fail(&b->call->error, API_INTERNAL, NULL, "out of memory for the prompt");
    if (n > 0)
        memcpy(b->ids + b->n, ids, n * sizeof *ids);
    b->n += n;
    return 0;
}

static int add_token(struct building *b, const char *text)
{
    int32_t id;
    return find_token(b->call->context->model, text, &id) ? add_ids(b, &id, 1) : 0;
}

/* Special tokens in the text are ordinary characters. */
static int add_text(struct building *b, const char *text, size_t bytes, int flags)
{
    struct fm_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = fm_tokenize(b->call->context->model, text, bytes, flags, &ids, &n, &err);
    rc = rc == 0 ? add_ids(b, ids, n)
                 : api_fail(&b->call->error, api_fault_of(rc), b->field, "%s", err.text);
    fm_free(ids);
    return rc;
}

static int add_json(struct building *b, const json_t *text)
{
    return json_string_length(text) == 0
               ? 0 : add_text(b, json_string_value(text), json_string_length(text), FM_TEXT_PLAIN);
}

static int add_word(struct building *b, const char *text)
{
    return add_text(b, text, strlen(text), FM_TEXT_PLAIN);
}

static int add_file(struct building *b, const json_t *file, size_t i)
{
    const json_t *text = json_object_get(file, "text"), *name = json_object_get(file, "filename");
    int32_t id;
    if (!json_is_string(text) || (name != NULL && !json_is_string(name)))
        return api_fail(&b->call->error, API_BAD, "input_extra", "'input_extra[%zu]' must have a "
                        "'text' and may have a 'filename', which are strings", i);
    if (!find_token(b->call->context->model, b->family->file, &id))
        return add_json(b, text) == 0 ? add_word(b, FILES_APART) : -1;
    int rc = add_ids(b, &id, 1);
    if (rc == 0)
        rc = add_word(b, json_string_length(name) > 0 ? json_string_value(name) : "file");
    if (rc == 0)
        rc = add_word(b, "\n");
    return rc == 0 ? add_json(b, text) : rc;
}

static int add_files(struct building *b, const json_t *extra)
{
    int32_t id;
    int rc = 0;
    if (json_array_size(extra) == 0)
        return 0;
    if (find_token(b->call->context->model, b->family->repository, &id)) {
        rc = add_ids(b, &id, 1);
        if (rc == 0)
            rc = add_word(b, "repository\n");
    }
    for (size_t i = 0; rc == 0 && i < json_array_size(extra); i++)
        rc = add_file(b, json_array_get(extra, i), i);
    if (rc == 0 && find_token(b->call->context->model, b->family->file, &id)) {
        rc = add_ids(b, &id, 1);
        if (rc == 0)
            rc = add_word(b, "current\n");
    }
    return rc;
}

static int build(struct building *b, const struct infill *what)
{
    int rc = add_text(b, "", 0, FM_TEXT_WITH_PREFIX);
    if (rc == 0)
        rc = add_files(b, what->extra);
    if (rc == 0)
        rc = add_token(b, b->family->prefix);
    if (rc == 0)
        rc = add_json(b, what->prefix);
    if (rc == 0)
        rc = add_json(b, what->more);
    if (rc == 0)
        rc = add_token(b, b->family->suffix);
    if (rc == 0)
        rc = add_json(b, what->suffix);
    return rc == 0 ? add_token(b, b->family->middle) : rc;
}

/* Ends the answer where the model goes on to something else. */
static void add_stops(const struct building *b, struct job_spec *spec)
{
    const struct family *f = b->family;
    const char *const texts[] = {f->prefix, f->suffix, f->middle, f->pad, f->repository, f->file};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int32_t id;
        if (find_token(b->call->context->model, texts[i], &id) &&
            spec->n_stop_tokens < JOB_STOP_TOKENS_MAX)
            spec->stop_tokens[spec->n_stop_tokens++] = id;
    }
}

/* Returns how many bytes of the request become tokens. */
static size_t count_bytes(const struct building *b, const struct infill *what)
{
    int32_t id;
    const bool has_names = find_token(b->call->context->model, b->family->file, &id);
    size_t bytes = json_string_length(what->prefix) + json_string_length(what->suffix) +
                   json_string_length(what->more);
    for (size_t i = 0; i < json_array_size(what->extra); i++) {
        const json_t *file = json_array_get(what->extra, i);
        bytes += json_string_length(json_object_get(file, "text"));
        if (has_names)
            bytes += json_string_length(json_object_get(file, "filename"));
    }
    return bytes;
}

int infill_add_prompt(struct api_call *call, struct job_spec *spec, const struct infill *what)
{
    struct building b = {.call = call, .family = find_family(call->context->model),
                         .field = what->field};
    if (b.family == NULL)
        return api_fail(&call->error, API_BAD, what->field, "'%s' is not supported by this model: "
                        "it has no tokens to fill in text, such as <|fim_prefix|>", what->field);
    if (api_check_bytes(call, count_bytes(&b, what), what->field) != 0 || build(&b, what) != 0) {
        mem_free(b.ids);
        return -1;
    }
    add_stops(&b, spec);
    if (call->echo != NULL)
        api_echo_tokens(call, b.ids, b.n);
    return api_add_prompt(call, spec, b.ids, b.n, what->field);
}
