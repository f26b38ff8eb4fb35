/* Compares the reference answers with those of an earlier report, made on any machine. */
#include <stdio.h>
#include <string.h>

#include "apps/validate/validate.h"
#include "base/mem.h"
#include "base/plat.h"

#define REPORT_BYTES_MAX ((size_t)64 << 20)

static int not_ours(const struct validation *v, const char *why, struct fm_error *err)
{
    return err_set(err, FM_ERR_ARG, "--against '%s': %s; give the JSON file of another 'flashmoe "
                   "validate'", v->against.path, why);
}

/* Returns the prompt of this name in the report, or NULL. */
static const json_t *find_prompt(const json_t *prompts, const char *name)
{
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *one = json_array_get(prompts, i);
        const char *theirs = json_string_value(json_object_get(one, "name"));
        if (theirs != NULL && strcmp(theirs, name) == 0)
            return one;
    }
    return NULL;
}

/* Returns the first token whose logits differ; -1: none. */
static int find_token(const struct validation *v, unsigned prompt, const json_t *theirs)
{
    const json_t *hashes = json_object_get(theirs, "token_hashes");
    for (unsigned i = 0; i <= v->n_tokens && i < json_array_size(hashes); i++) {
        const char *hash = json_string_value(json_array_get(hashes, i));
        if (hash == NULL || strcmp(hash, v->references[prompt].hashes[i]) != 0)
            return (int)i;
    }
    return -1;
}

const char *validation_step(const struct reference *r, unsigned step,
                            char text[HASH_DIGITS * (VALIDATE_LAYERS + 1) + 1])
{
    const unsigned first = step == 0 ? 0 : (unsigned)r->n_prompt + step - 1;
    const unsigned end = (unsigned)r->n_prompt + step;
    text[0] = '\0';
    for (unsigned i = 0; i < r->trail.n_layers && i <= VALIDATE_LAYERS; i++)
        (void)snprintf(text + (size_t)HASH_DIGITS * i, HASH_DIGITS + 1, "%08x",
                       (unsigned)trail_hash(&r->trail, i, first, end));
    return text;
}

/* Returns the first layer that differs; -1: none, or the embedding. */
static int find_layer(const struct validation *v, unsigned prompt, const json_t *theirs)
{
    const json_t *steps = json_object_get(theirs, "layer_hashes");
    const struct reference *r = &v->references[prompt];
    char ours[HASH_DIGITS * (VALIDATE_LAYERS + 1) + 1];
    for (unsigned step = 0; step <= v->n_tokens && step < json_array_size(steps); step++) {
        const char *text = json_string_value(json_array_get(steps, step));
        (void)validation_step(r, step, ours);
        size_t same = 0;
        while (text != NULL && ours[same] != '\0' && text[same] == ours[same])
            same++;
        if (text == NULL || ours[same] != text[same])
            return (int)(same / HASH_DIGITS) - 1;
    }
    return -1;
}

static void compare(struct validation *v, const json_t *report)
{
    const json_t *prompts = json_object_get(report, "prompts");
    for (unsigned i = 0; i < v->n_prompts && !validation_is_over(v); i++) {
        const struct reference *r = &v->references[i];
        const json_t *theirs = find_prompt(prompts, r->name);
        char layer_text[64] = "", what[32] = "a hidden state";
        if (theirs == NULL)
            continue;
        v->against.n_compared++;
        const int token = find_token(v, i, theirs), layer = find_layer(v, i, theirs);
        if (token < 0 && layer < 0)
            continue;
        if (layer >= 0)
            (void)snprintf(layer_text, sizeof layer_text, "; layer %d is the first that differs",
                           layer);
        if (token >= 0)
            (void)snprintf(what, sizeof what, "token %d", token + 1);
        validation_fail(v, &(struct failure){.prompt = r->name, .token = token, .layer = layer},
                        "prompt '%s': %s differs from the report '%.200s'%s", r->name, what,
                        v->against.path, layer_text);
    }
}

int validate_read_report(struct validation *v, struct fm_error *err)
{
    char *text = NULL;
    size_t bytes;
    json_error_t why;
    v->against.path = args_text(v->args, "against");
    if (v->against.path == NULL)
        return 0;
    const int rc = plat_read_file(v->against.path, REPORT_BYTES_MAX, &text, &bytes, err);
    if (rc != 0)
        return rc;
    v->against.report = json_loadb(text, bytes, 0, &why);
    mem_free(text);
    const json_t *report = v->against.report;
    const char *kind = json_string_value(json_object_get(report, "report"));
    const json_int_t n = json_integer_value(json_object_get(report, "n_tokens"));
    if (report == NULL)
        return not_ours(v, why.text, err);
    if (kind == NULL || strcmp(kind, "flashmoe validate") != 0)
        return not_ours(v, "it is not a report", err);
    if (json_array_size(json_object_get(report, "prompts")) == 0)
        return not_ours(v, "it has no answers", err);
    if (n != (json_int_t)v->n_tokens)
        return err_set(err, FM_ERR_ARG, "--against '%s': its answers have %lld tokens; use "
                       "--tokens %lld here too", v->against.path, (long long)n, (long long)n);
    return 0;
}

void validate_against(struct validation *v)
{
    if (v->against.report != NULL && !v->is_cut)
        compare(v, v->against.report);
}
