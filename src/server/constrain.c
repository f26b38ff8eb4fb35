#include "server/constrain.h"

#include "server/text_json.h"

static int no_memory(struct api_call *call)
{
    return api_fail(&call->error, API_INTERNAL, NULL, "no memory for the schema");
}

/* NULL: any object. */
static int open_grammar(struct api_call *call, const json_t *schema, struct job_spec *spec,
                        struct fm_error *err)
{
    struct text_buffer text = {0};
    if (schema != NULL && !text_add_json(&text, schema)) {
        text_buffer_clear(&text);
        return err_set(err, FM_ERR_NOMEM, "no memory for the schema");
    }
    const int rc = fm_grammar_open_json(call->context->model,
                                        schema != NULL ? text_buffer_text(&text) : NULL, text.n,
                                        &spec->grammar, err);
    text_buffer_clear(&text);
    return rc;
}

/* From the request's own text, whose numbers have all their digits, where the schema is found
 * there. */
static int open_schema(struct api_call *call, const json_t *schema, const char *name,
                       bool is_wrapped, struct job_spec *spec, struct fm_error *err)
{
    const bool is_inner = strcmp(name, "text.format") == 0;
    const char *path[4];
    unsigned n = 0;
    size_t begin, end;
    if (is_inner)
        path[n++] = "text";
    path[n++] = is_inner ? "format" : name;
    if (is_wrapped)
        path[n++] = "json_schema";
    path[n++] = "schema";
    const char *text = text_buffer_text(call->body);
    if (!json_is_object(schema) || !json_find_object(text, call->body->n, path, n, &begin, &end))
        return open_grammar(call, schema, spec, err);
    return fm_grammar_open_json(call->context->model, text + begin, end - begin, &spec->grammar,
                                err);
}

int constrain_format(struct api_call *call, const json_t *format, const char *name,
                     struct job_spec *spec)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    const json_t *inner = json_object_get(format, "json_schema");
    const json_t *schema = json_object_get(inner != NULL ? inner : format, "schema");
    struct fm_error err = {0};
    if (format == NULL || (type != NULL && strcmp(type, "text") == 0))
        return 0;
    const bool is_schema = type != NULL && strcmp(type, "json_schema") == 0;
    if (!is_schema && (type == NULL || strcmp(type, "json_object") != 0))
        return api_fail(&call->error, API_BAD, name, "'%s' has type '%s'; text, json_object and "
                        "json_schema are known", name, type != NULL ? type : "none");
    if (is_schema && !json_is_object(schema) && !json_is_boolean(schema))
        return api_fail(&call->error, API_BAD, name, "'%s' has no schema", name);
    const int rc = is_schema ? open_schema(call, schema, name, inner != NULL, spec, &err)
                             : open_grammar(call, NULL, spec, &err);
    return rc == 0 ? 0 : api_fail(&call->error, api_fault_of(rc), name, "'%s': %s", name,
                                  err.text);
}

/* ---- calls that must come ------------------------------------------------------------------- */

static json_t *call_schema(const char *name, const json_t *parameters)
{
    json_t *arguments = parameters != NULL ? json_deep_copy(parameters)
                                           : json_pack("{s:s}", "type", "object");
    return json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s, s], s:b}", "type", "object", "properties",
                     "name", "const", name, "arguments", arguments, "required", "name",
                     "arguments", "additionalProperties", 0);
}

/* Whether the arguments can be held to the tool's schema. */
static bool is_enforceable(struct api_call *call, const char *name, const json_t *parameters)
{
    struct job_spec probe = {0};
    json_t *schema = call_schema(name, parameters);
    const bool is_good = json_is_object(json_object_get(parameters, "properties")) &&
                         open_grammar(call, schema, &probe, NULL) == 0;
    fm_grammar_close(probe.grammar);
    json_decref(schema);
    return is_good;
}

static json_t *calls_schema(const struct conversation *c, struct api_call *call)
{
    json_t *any = json_array();
    const json_t *tool;
    size_t i;
    json_array_foreach(c->tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const json_t *parameters = json_object_get(function, "parameters");
        if (c->forced_name != NULL && strcmp(c->forced_name, name) != 0)
            continue;
        (void)json_array_append_new(
            any, call_schema(name, is_enforceable(call, name, parameters) ? parameters : NULL));
    }
    return any;
}

/* The text that opens a call, behind the reasoning where the template has begun one. */
static int open_call(struct api_call *call, struct job_spec *spec, int32_t **ids, size_t *n_ids)
{
    struct fm_error err = {0};
    const char *lead = spec->is_thinking ? "\n</think>\n\n<tool_call>\n" : "<tool_call>\n";
    int32_t *more = NULL;
    size_t n_more = 0;
    int rc = fm_tokenize(call->context->model, lead, strlen(lead), FM_TEXT_WITH_SPECIAL, &more,
                         &n_more, &err);
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
    spec->lead = lead;
    spec->tail = "\n</tool_call>";
    return 0;
}

int constrain_call(const struct conversation *c, struct api_call *call, struct job_spec *spec,
                   int32_t **ids, size_t *n_ids)
{
    struct fm_error err = {0};
    json_t *any = calls_schema(c, call);
    if (spec->grammar != NULL || json_array_size(any) == 0) {
        const bool is_both = spec->grammar != NULL;
        json_decref(any);
        return api_fail(&call->error, API_BAD, "tool_choice",
                        is_both ? "'tool_choice' asks for a call and the format for JSON: only one "
                                  "of them can be"
                                : "'tool_choice' asks for a tool that 'tools' does not have");
    }
    json_t *schema = json_pack("{s:o}", "anyOf", any);
    const int rc = open_grammar(call, schema, spec, &err);
    json_decref(schema);
    if (rc != 0)
        return api_fail(&call->error, api_fault_of(rc), "tool_choice", "%s", err.text);
    return open_call(call, spec, ids, n_ids);
}
