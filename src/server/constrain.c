#include "server/constrain.h"

#include <math.h>
#include <stdio.h>

#include "chat/message.h"
#include "flashmoe_lab.h"
#include "server/fields.h"
#include "server/text_json.h"
#include "session/grammar_calls.h"

#define PATH_PARTS 5
#define ONLY_JSON "is not supported: use 'response_format' for a JSON schema, or 'grammar' for GBNF"

static int no_memory(struct api_call *call)
{
    return api_fail(&call->error, API_INTERNAL, NULL, "out of memory for the schema");
}

/* Returns the member, or NULL if it is null. */
static const json_t *find(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

/* ---- the schema of a request ---------------------------------------------------------------- */

static int take_schema(struct api_call *call, const char *name, const char *text, size_t bytes)
{
    if (call->schema_field[0] != '\0')
        return api_fail(&call->error, API_BAD, name, "'%s' and '%s' both define the form of the "
                        "answer: send one of them", call->schema_field, name);
    (void)snprintf(call->schema_field, sizeof call->schema_field, "%s", name);
    return text_buffer_add(&call->schema, text, bytes) ? 0 : no_memory(call);
}

/* Finds the value at the path of names, joined by dots, and `more` in the text of the request,
 * which still has all digits of its numbers. */
static bool find_text(const struct api_call *call, const char *name, const char *const *more,
                      unsigned n_more, size_t *begin, size_t *end)
{
    const char *path[PATH_PARTS];
    char parts[96];
    unsigned n = 0;
    (void)snprintf(parts, sizeof parts, "%s", name);
    for (char *part = parts; part != NULL && n + n_more < PATH_PARTS;) {
        char *dot = strchr(part, '.');
        path[n++] = part;
        if (dot != NULL)
            *dot++ = '\0';
        part = dot;
    }
    for (unsigned i = 0; i < n_more; i++)
        path[n++] = more[i];
    return json_find_object(text_buffer_text(call->body), call->body->n, path, n, begin, end);
}

static int take_schema_at(struct api_call *call, const json_t *schema, const char *name,
                          const char *const *more, unsigned n_more)
{
    struct text_buffer text = {0};
    size_t begin, end;
    if (json_is_object(schema) && find_text(call, name, more, n_more, &begin, &end))
        return take_schema(call, name, text_buffer_text(call->body) + begin, end - begin);
    const int rc = text_add_json(&text, schema)
                       ? take_schema(call, name, text_buffer_text(&text), text.n)
                       : no_memory(call);
    text_buffer_clear(&text);
    return rc;
}

static int take_object(struct api_call *call, const char *name)
{
    static const char any[] = "{\"type\": \"object\"}";
    return take_schema(call, name, any, sizeof any - 1);
}

int constrain_format(struct api_call *call, const json_t *format, const char *name)
{
    static const char *const wrapped[] = {"json_schema", "schema"};
    const char *type = json_string_value(find(format, "type"));
    const json_t *inner = find(format, "json_schema");
    const json_t *schema = find(inner != NULL ? inner : format, "schema");
    const bool has_schema = json_is_object(schema) || json_is_boolean(schema);
    const bool is_object = type != NULL && strcmp(type, "json_object") == 0;
    if (format == NULL || json_is_null(format) || (type != NULL && strcmp(type, "text") == 0))
        return 0;
    if (!is_object && (type == NULL || strcmp(type, "json_schema") != 0))
        return api_fail(&call->error, API_BAD, name, "'%s' has type '%s'; text, json_object and "
                        "json_schema are known", name, type != NULL ? type : "none");
    if (is_object && schema == NULL)
        return take_object(call, name);
    if (!has_schema)
        return api_fail(&call->error, API_BAD, name, schema == NULL ? "'%s' has no schema" :
                        "the schema of '%s' must be an object", name);
    return take_schema_at(call, schema, name, wrapped + (inner == NULL), inner != NULL ? 2 : 1);
}

/* Reads a schema as JSON, or as a string with JSON. */
static int take_json(struct api_call *call, const json_t *value, const char *name)
{
    if (json_is_string(value))
        return take_schema(call, name, json_string_value(value), json_string_length(value));
    if (!json_is_object(value) && !json_is_boolean(value))
        return api_fail(&call->error, API_BAD, name, "'%s' must be a JSON schema", name);
    return take_schema_at(call, value, name, NULL, 0);
}

int constrain_value(struct api_call *call, const json_t *format, const char *name)
{
    const char *word = json_string_value(format);
    if (format == NULL || (word != NULL && word[0] == '\0'))
        return 0;
    if (word != NULL && strcmp(word, "json") == 0)
        return take_object(call, name);
    if (!json_is_object(format))
        return api_fail(&call->error, API_BAD, name, "'%s' must be \"json\" or a JSON schema",
                        name);
    return take_json(call, format, name);
}

static bool is_empty(const json_t *value)
{
    return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Takes a grammar in GBNF; NULL or an empty text: none. */
static int take_grammar(struct api_call *call, const json_t *value, const char *name)
{
    if (value == NULL || is_empty(value))
        return 0;
    if (!json_is_string(value))
        return api_fail(&call->error, API_BAD, name, "'%s' must be a grammar, as a string", name);
    call->is_gbnf = true;
    return take_schema(call, name, json_string_value(value), json_string_length(value));
}

/* Reads vLLM's field: one member defines the form of the answer. */
static int read_structured(struct api_call *call, const struct fields *f)
{
    const json_t *all = fields_object(f, "structured_outputs"), *value;
    const char *key;
    int rc = 0;
    json_object_foreach((json_t *)all, key, value) {
        const bool is_set = !json_is_null(value) && !json_is_false(value);
        if (strcmp(key, "json") == 0 && is_set)
            rc = take_json(call, value, "structured_outputs.json");
        else if (strcmp(key, "json_object") == 0 && is_set)
            rc = take_object(call, "structured_outputs.json_object");
        else if (strcmp(key, "grammar") == 0)
            rc = take_grammar(call, value, "structured_outputs.grammar");
        else if (is_set && strncmp(key, "disable_", 8) != 0)
            rc = fields_fail(&(struct fields){all, &call->error, "structured_outputs."}, key,
                             ONLY_JSON);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- what is refused ------------------------------------------------------------------------ */

static bool is_word(const json_t *value, const char *word)
{
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

/* Returns whether the field asks only for what happens anyway. */
static bool is_harmless(const char *name, const json_t *value)
{
    if (value == NULL)
        return true;
    if (strcmp(name, "skip_special_tokens") == 0 || strcmp(name, "add_generation_prompt") == 0)
        return json_is_true(value);
    if (strcmp(name, "function_call") == 0)
        return is_word(value, "auto") || is_word(value, "none");
    if (strcmp(name, "best_of") == 0)
        return json_is_number(value) && json_number_value(value) <= 1;
    if (strcmp(name, "modalities") == 0) {
        for (size_t i = 0; i < json_array_size(value); i++)
            if (!is_word(json_array_get(value, i), "text"))
                return false;
        return json_is_array(value);
    }
    return is_empty(value);
}

/* Reads a grammar, under the names of several servers. */
static int read_grammars(struct api_call *call, const struct fields *f)
{
    static const char *const names[] = {"grammar", "guided_grammar", "ebnf"};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof names / sizeof names[0]; i++)
        rc = take_grammar(call, fields_find(f, names[i]), names[i]);
    return rc;
}

int constrain_fields(struct api_call *call, const struct fields *f, unsigned own)
{
    const bool continues = json_is_true(fields_find(f, "continue_final_message"));
    const struct {
        const char *name, *why;
        unsigned own; /* who reads it */
    } refused[] = {
        {"guided_regex", ONLY_JSON, 0},
        {"guided_choice", ONLY_JSON, 0},
        {"guided_whitespace_pattern", ONLY_JSON, 0},
        {"structural_tag", ONLY_JSON, 0},
        {"regex", ONLY_JSON, 0},
        {"functions", "is not supported: send them as 'tools'", CONSTRAIN_OWN_FUNCTIONS},
        {"function_call", "is not supported: send 'tools' and 'tool_choice'",
         CONSTRAIN_OWN_FUNCTIONS},
        {"conversation", "is not supported: this server stores none; send all messages with the "
                         "request", 0},
        {"modalities", "must contain only text", 0},
        {"stop_token_ids", "is not supported: send their texts as stop strings", 0},
        {"allowed_token_ids", "is not supported", 0},
        {"bad_words", "is not supported: 'logit_bias' forbids tokens", 0},
        {"min_tokens", "is not supported", 0},
        {"use_beam_search", "is not supported", 0},
        {"include_stop_str_in_output", "is not supported", 0},
        {"skip_special_tokens", "must be true", 0},
        {"add_generation_prompt", "must be true", continues ? CONSTRAIN_OWN_TURN : 0},
        {"continue_final_message", "is not supported here", CONSTRAIN_OWN_TURN},
        {"suffix", "is not supported here", CONSTRAIN_OWN_TEXT},
        {"echo", "is not supported here", CONSTRAIN_OWN_TEXT},
        {"best_of", "is not supported here", CONSTRAIN_OWN_TEXT},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if ((own & refused[i].own) == 0 &&
            !is_harmless(refused[i].name, fields_find(f, refused[i].name)))
            return fields_fail(f, refused[i].name, refused[i].why);
    if (read_grammars(call, f) != 0)
        return -1;
    const json_t *schema = fields_find(f, "json_schema"), *guided = fields_find(f, "guided_json");
    if (schema != NULL && take_json(call, schema, "json_schema") != 0)
        return -1;
    if (guided != NULL && take_json(call, guided, "guided_json") != 0)
        return -1;
    return read_structured(call, f);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* The tools to constrain to, and the texts of their schemas. */
struct tools {
    struct grammar_tool *at;
    size_t n;
    struct text_buffer text;
};

static void tools_clear(struct tools *t)
{
    mem_free(t->at);
    text_buffer_clear(&t->text);
}

/* Collects all tools of the conversation, or the named one. */
static bool tools_fill(struct tools *t, const struct conversation *c)
{
    const size_t n_all = c != NULL ? json_array_size(c->tools) : 0;
    *t = (struct tools){.at = mem_new(n_all + 1, sizeof *t->at, "the tools", NULL)};
    bool is_good = t->at != NULL;
    for (size_t i = 0; is_good && i < n_all; i++) {
        const json_t *function = json_object_get(json_array_get(c->tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const size_t begin = t->text.n;
        if (c->forced_name != NULL && strcmp(c->forced_name, name) != 0)
            continue;
        is_good = text_add_json(&t->text, json_object_get(function, "parameters"));
        t->at[t->n++] = (struct grammar_tool){
            .name = name, .schema_bytes = t->text.n - begin,
            .is_strict = json_is_true(json_array_get(c->strict, i))};
    }
    const char *at = text_buffer_text(&t->text); /* it is not reallocated any more */
    for (size_t i = 0; is_good && i < t->n; i++) {
        t->at[i].schema = at;
        at += t->at[i].schema_bytes;
    }
    return is_good;
}

/* Returns the field that the tools came from. */
static const char *tools_field(const struct api_call *call)
{
    return call->has_functions ? "functions" : "tools";
}

/* Refuses names that chat/toolcall.h cannot parse in a call. */
static int check_names(struct api_call *call, const struct tools *t)
{
    const char *field = tools_field(call);
    const struct dialect *const *dialects = model_dialects(call->context->model);
    for (size_t i = 0; i < t->n; i++) {
        const char *name = t->at[i].name;
        const size_t n = strlen(name);
        bool is_good = n > 0 && n < sizeof ((struct job_event *)NULL)->name;
        for (size_t k = 0; is_good && k < n; k++)
            is_good = (unsigned char)name[k] >= ' ';
        if (!is_good)
            return api_fail(&call->error, API_BAD, field, "'%s' has the name '%.40s' of %zu "
                            "bytes; a name must have 1 to 255 bytes and no control "
                            "characters", field, name, n);
        if (!message_can_name(dialects, name))
            return api_fail(&call->error, API_BAD, field, "'%s' has the name '%.80s', which "
                            "cannot be told from markup in this model's calls; use letters, "
                            "digits, '_' and '-'", field, name);
    }
    return 0;
}

/* Checks that some token can start the answer. */
static int check_bias(struct api_call *call, const struct job_spec *spec, const char *name)
{
    struct fm_model_info info = {.size = sizeof info};
    unsigned n_forbidden = 0, n_left = 0;
    for (unsigned i = 0; i < spec->sampling.n_logit_bias; i++)
        n_forbidden += isinf(spec->bias[i].bias) != 0;
    if (n_forbidden == 0)
        return 0;
    fm_model_info(call->context->model, &info);
    float *logits = mem_new(info.vocabulary, sizeof *logits, "the schema", NULL);
    if (logits == NULL)
        return no_memory(call);
    fm_grammar_mask(spec->grammar, logits);
    for (unsigned i = 0; i < spec->sampling.n_logit_bias; i++)
        logits[spec->bias[i].id] += spec->bias[i].bias;
    for (unsigned i = 0; i < info.vocabulary; i++)
        n_left += !isinf(logits[i]);
    mem_free(logits);
    return n_left > 0 ? 0 : api_fail(&call->error, API_BAD, "logit_bias", "'logit_bias' forbids "
                                     "every token that '%s' allows at the start", name);
}

static bool has_strict(const struct grammar_form *form)
{
    bool found = false;
    for (size_t i = 0; i < form->n_tools; i++)
        found = found || form->tools[i].is_strict;
    return found;
}

/* Compiles the grammar. `name` is the field that asks for it; if a tool's schema is at fault, the
 * error names 'tools' or 'functions' instead. */
static int open_form(struct api_call *call, struct grammar_form form, const char *name,
                     struct job_spec *spec)
{
    struct fm_error err = {0};
    bool blames_tools = false;
    form.blames_tools = &blames_tools;
    if (spec->ignores_stops)
        return api_fail(&call->error, API_BAD, "ignore_eos", "'ignore_eos' cannot be combined with "
                        "'%s', which says where the answer ends", name);
    if (spec->is_continued)
        return api_fail(&call->error, API_BAD, name, "'%s' cannot be combined with a last message "
                        "of the assistant that is continued: end with another message", name);
    const int rc = call->is_gbnf
                       ? fm_grammar_open_gbnf(call->context->model, text_buffer_text(&call->schema),
                                              call->schema.n, &spec->grammar, &err)
                       : fm_grammar_open_form(call->context->model, &form, &spec->grammar, &err);
    if (rc == 0)
        return check_bias(call, spec, name);
    const char *blamed = blames_tools ? tools_field(call) : name;
    return api_fail(&call->error, api_fault_of(rc), blamed, "'%s': %s%s", blamed, err.text,
                    blames_tools && rc == FM_ERR_ARG && has_strict(&form)
                        ? "; change it, or leave out 'strict'" : "");
}

int constrain_answer(const struct conversation *c, struct api_call *call, struct job_spec *spec)
{
    struct tools tools;
    if (call->schema_field[0] == '\0')
        return 0; /* optional calls are not constrained */
    if (call->is_gbnf && c != NULL && json_array_size(c->tools) > 0)
        return api_fail(&call->error, API_BAD, call->schema_field, "'%s' cannot be combined with "
                        "'%s': a grammar says all that the answer may be", call->schema_field,
                        tools_field(call));
    int rc = tools_fill(&tools, c) ? 0 : no_memory(call);
    const struct grammar_form form = {.schema = text_buffer_text(&call->schema),
                                      .schema_bytes = call->schema.n, .tools = tools.at,
                                      .n_tools = tools.n,
                                      .is_one_call = c != NULL && c->is_one_call};
    if (rc == 0)
        rc = check_names(call, &tools);
    if (rc == 0)
        rc = open_form(call, form, call->schema_field, spec);
    tools_clear(&tools);
    return rc;
}

/* Returns the text that opens a call, after the reasoning if the template has opened one. */
static int open_call(struct api_call *call, struct job_spec *spec, int32_t **ids, size_t *n_ids)
{
    struct fm_error err = {0};
    const struct fm_model *model = call->context->model;
    const char *lead = spec->forced.lead;
    int32_t *more = NULL;
    size_t n_more = 0;
    int rc = answer_forced_call(model, *ids, *n_ids, &spec->forced, &err);
    if (rc == 0)
        rc = fm_tokenize(model, lead, strlen(lead), FM_TEXT_WITH_SPECIAL, &more, &n_more, &err);
    if (rc != 0)
        return api_fail(&call->error, api_fault_of(rc), "tool_choice", "%s", err.text);
    int32_t *both = mem_new(*n_ids + n_more, sizeof *both, "the prompt", NULL);
    if (both == NULL) {
        fm_free(more);
        return no_memory(call);
    }
    memcpy(both, *ids, *n_ids * sizeof *both);
    memcpy(both + *n_ids, more, n_more * sizeof *both);
    fm_free(more);
    fm_free(*ids);
    *ids = both;
    *n_ids += n_more;
    spec->is_forced = true;
    return 0;
}

int constrain_call(const struct conversation *c, struct api_call *call, struct job_spec *spec,
                   int32_t **ids, size_t *n_ids)
{
    struct tools tools;
    int rc = tools_fill(&tools, c) ? 0 : no_memory(call);
    if (rc == 0 && tools.n == 0)
        rc = api_fail(&call->error, API_BAD, "tool_choice", "'tool_choice' names a tool that is "
                      "not in 'tools'");
    const struct grammar_form form = {.tools = tools.at, .n_tools = tools.n, .is_one_call = true,
                                      .is_opened = true};
    if (rc == 0 && call->is_gbnf)
        rc = api_fail(&call->error, API_BAD, call->schema_field, "'%s' cannot be combined with a "
                      "call that must come", call->schema_field);
    if (rc == 0)
        rc = check_names(call, &tools);
    if (rc == 0)
        rc = open_form(call, form, tools_field(call), spec);
    tools_clear(&tools);
    return rc == 0 ? open_call(call, spec, ids, n_ids) : rc;
}
