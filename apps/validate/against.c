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

/* ---- what a report must have ----------------------------------------------------------------- */

static bool is_hex(const char *text, size_t digits)
{
    return text != NULL && strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

/* Checks that a prompt has a hash for every step of an answer. `digits`: of each; 0: any number,
 * but of whole layers. */
static int check_hashes(const struct validation *v, const json_t *prompt, const char *field,
                        size_t digits, struct fm_error *err)
{
    const char *name = json_string_value(json_object_get(prompt, "name"));
    const json_t *hashes = json_object_get(prompt, field);
    const size_t n = json_array_size(hashes), wanted = (size_t)v->n_tokens + 1;
    char why[256];
    if (n != wanted) {
        (void)snprintf(why, sizeof why, "'%s' of the prompt '%.80s' has %zu entries instead of %zu",
                       field, name, n, wanted);
        return not_ours(v, why, err);
    }
    for (size_t i = 0; i < n; i++) {
        const char *hash = json_string_value(json_array_get(hashes, i));
        const size_t own = hash != NULL ? strlen(hash) / HASH_DIGITS * HASH_DIGITS : 0;
        if (!is_hex(hash, digits > 0 ? digits : own) || own == 0) {
            (void)snprintf(why, sizeof why, "entry %zu of '%s' of the prompt '%.80s' is not a "
                           "hash: '%.40s'", i, field, name, hash != NULL ? hash : "(no string)");
            return not_ours(v, why, err);
        }
    }
    return 0;
}

/* Checks every prompt of the report, and that one of them is ours. */
static int check_prompts(const struct validation *v, const json_t *prompts, struct fm_error *err)
{
    unsigned n_ours = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(prompts); i++) {
        const json_t *one = json_array_get(prompts, i);
        if (json_string_value(json_object_get(one, "name")) == NULL)
            return not_ours(v, "a prompt has no 'name'", err);
        rc = check_hashes(v, one, "token_hashes", HASH_BYTES - 1, err);
        if (rc == 0)
            rc = check_hashes(v, one, "layer_hashes", 0, err);
    }
    for (unsigned i = 0; i < v->n_prompts; i++)
        n_ours += find_prompt(prompts, v->references[i].name) != NULL;
    return rc == 0 && n_ours == 0
               ? not_ours(v, "no 'name' of its 'prompts' is one of this run's prompts", err) : rc;
}

static int other_model(const struct validation *v, const char *field, const char *theirs,
                       const char *ours, struct fm_error *err)
{
    return err_set(err, FM_ERR_ARG, "--against '%s': it is a report of another model: %s is "
                   "'%.60s' there and '%.60s' in '%s'; give a report of this model",
                   v->against.path, field, theirs, ours, app_model_path(v->args));
}

/* Checks what makes answers of the same model differ: options that change the numbers. `theirs` and
 * `ours` are NULL where the option is not used. */
static int check_option(const struct validation *v, const char *option, const char *theirs,
                        const char *ours, struct fm_error *err)
{
    if (theirs == NULL ? ours == NULL : ours != NULL && strcmp(theirs, ours) == 0)
        return 0;
    return err_set(err, FM_ERR_ARG, "--against '%s': its answers were made with other options: %s "
                   "there is '%.160s' and here '%.160s', so they differ in a sound model too; use "
                   "the same options, or a report made with these", v->against.path, option,
                   theirs != NULL ? theirs : "not given", ours != NULL ? ours : "not given");
}

static int check_options(const struct validation *v, const json_t *model, struct fm_error *err)
{
    const char *approximate = json_string_value(json_object_get(model, "approximate"));
    const char *kv = json_string_value(json_object_get(model, "kv"));
    int rc = check_option(v, "--routes", json_string_value(json_object_get(model, "routes")),
                          v->routes[0] != '\0' ? v->routes : NULL, err);
    if (rc == 0)
        rc = check_option(v, "the approximation (--experts-per-token, --kv)", approximate,
                          v->approximate[0] != '\0' ? v->approximate : NULL, err);
    /* Reports before 'kv' was in them: an approximate one is known by the label. */
    if (rc == 0 && (kv != NULL || approximate == NULL))
        rc = check_option(v, "--kv", kv != NULL ? kv : "f16", args_text(v->args, "kv"), err);
    return rc;
}

/* Checks that a prompt has as many tokens as ours of this name. Otherwise the tokenizers differ,
 * not the layers. */
static int check_prompt(const struct validation *v, const json_t *prompt, struct fm_error *err)
{
    const char *name = json_string_value(json_object_get(prompt, "name"));
    const json_t *n = json_object_get(prompt, "n_prompt_tokens");
    for (unsigned i = 0; i < v->n_prompts; i++) {
        const struct reference *r = &v->references[i];
        if (strcmp(r->name, name) == 0 && n != NULL &&
            json_integer_value(n) != (json_int_t)r->n_prompt)
            return err_set(err, FM_ERR_ARG, "--against '%s': the prompt '%s' has %lld tokens there "
                           "and %zu here: the tokenizer or the chat template is another one; give "
                           "a report of this model", v->against.path, r->name,
                           (long long)json_integer_value(n), r->n_prompt);
    }
    return 0;
}

int validate_same_model(const struct validation *v, struct fm_error *err)
{
    const struct fm_model_info *info = &v->info;
    const struct {
        const char *name;
        uint64_t value;
    } shape[] = {{"n_layers", info->n_layers},
                 {"n_experts", info->n_experts},
                 {"n_experts_per_token", info->n_experts_per_token},
                 {"n_parameters", info->n_parameters}};
    const json_t *model = json_object_get(v->against.report, "model");
    const char *architecture = json_string_value(json_object_get(model, "architecture"));
    int rc = 0;
    if (v->against.report == NULL)
        return 0;
    if (architecture != NULL && strcmp(architecture, v->architecture) != 0)
        return other_model(v, "'architecture'", architecture, v->architecture, err);
    rc = check_options(v, model, err);
    if (rc != 0)
        return rc;
    for (unsigned i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        const json_t *theirs = json_object_get(model, shape[i].name);
        char field[64], there[32], here[32];
        if (theirs == NULL || json_integer_value(theirs) == (json_int_t)shape[i].value)
            continue;
        (void)snprintf(field, sizeof field, "'%s'", shape[i].name);
        (void)snprintf(there, sizeof there, "%lld", (long long)json_integer_value(theirs));
        (void)snprintf(here, sizeof here, "%llu", (unsigned long long)shape[i].value);
        return other_model(v, field, there, here, err);
    }
    const json_t *prompts = json_object_get(v->against.report, "prompts");
    for (size_t i = 0; rc == 0 && i < json_array_size(prompts); i++) {
        rc = check_prompt(v, json_array_get(prompts, i), err);
        if (rc == 0)
            rc = check_hashes(v, json_array_get(prompts, i), "layer_hashes",
                              (size_t)HASH_DIGITS * (info->n_layers + 1), err);
    }
    return rc;
}

/* ---- the comparison -------------------------------------------------------------------------- */

/* Returns the first token whose logits differ; -1: none. */
static int find_token(const struct validation *v, unsigned prompt, const json_t *theirs)
{
    const json_t *hashes = json_object_get(theirs, "token_hashes");
    for (unsigned i = 0; i <= v->n_tokens; i++) {
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

/* Returns whether a hidden state differs, and gives the first layer; -1: the embedding. */
static bool find_layer(const struct validation *v, unsigned prompt, const json_t *theirs,
                       int *layer)
{
    const json_t *steps = json_object_get(theirs, "layer_hashes");
    const struct reference *r = &v->references[prompt];
    char ours[HASH_DIGITS * (VALIDATE_LAYERS + 1) + 1];
    for (unsigned step = 0; step <= v->n_tokens; step++) {
        const char *text = json_string_value(json_array_get(steps, step));
        (void)validation_step(r, step, ours);
        size_t same = 0;
        while (text != NULL && ours[same] != '\0' && text[same] == ours[same])
            same++;
        if (text == NULL || ours[same] != text[same]) {
            *layer = (int)(same / HASH_DIGITS) - 1;
            return true;
        }
    }
    return false;
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
        int layer = -1;
        const int token = find_token(v, i, theirs);
        const bool has_layer = find_layer(v, i, theirs, &layer);
        if (token < 0 && !has_layer)
            continue;
        v->against.n_different++;
        if (layer >= 0)
            (void)snprintf(layer_text, sizeof layer_text, "; layer %d is the first that differs",
                           layer);
        else
            (void)snprintf(layer_text, sizeof layer_text, "%s", has_layer
                           ? "; the embedding is the first that differs"
                           : "; all layers agree");
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
    if (n < 1 || n > VALIDATE_TOKENS)
        return not_ours(v, "'n_tokens' is not a number of tokens", err);
    if (n != (json_int_t)v->n_tokens)
        return err_set(err, FM_ERR_ARG, "--against '%s': its answers have %lld tokens; use "
                       "--tokens %lld here too", v->against.path, (long long)n, (long long)n);
    return check_prompts(v, json_object_get(report, "prompts"), err);
}

void validate_against(struct validation *v)
{
    if (v->against.report != NULL && !v->is_cut)
        compare(v, v->against.report);
}
