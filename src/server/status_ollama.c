/* Ollama's endpoints about the server and its model. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/splitmix.h"
#include "flashmoe_lab.h"
#include "server/fields.h"
#include "server/http_internal.h"
#include "server/infill.h"
#include "server/text_json.h"

/* The version of Ollama whose API this is. Some clients refuse servers before a certain one. */
#define OLLAMA_VERSION "0.12.11"
#define FOREVER_S (100ll * 365 * 24 * 3600) /* how long the model stays loaded, for clients */

static json_t *time_json(int64_t seconds)
{
    char text[40];
    const time_t at = (time_t)seconds;
    struct tm utc;
    (void)gmtime_r(&at, &utc); /* cannot fail before the year 2147485547 */
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_string(text);
}

/* Returns 64 hexadecimal digits that differ between models. */
static json_t *digest_json(const struct api_context *context)
{
    struct fm_model_info info = {.size = sizeof info};
    char text[65];
    fm_model_info(context->model, &info);
    uint64_t state = api_key_of(context->model_name) ^ splitmix_mix(info.n_parameters) ^
                     splitmix_mix(info.dense_bytes + 3 * info.experts_bytes);
    for (unsigned i = 0; i < 4; i++)
        (void)snprintf(text + (size_t)i * 16, sizeof text - (size_t)i * 16, "%016llx",
                       (unsigned long long)splitmix_next(&state));
    return json_string(text);
}

/* Returns the number format of most expert bytes, or of most dense ones. */
static const char *main_format(const struct fm_model *model)
{
    struct fm_format_info info = {.size = sizeof info}, best = {0};
    for (unsigned i = 0; fm_model_format(model, i, &info); i++)
        if (info.is_expert > best.is_expert ||
            (info.is_expert == best.is_expert && info.n_bytes > best.n_bytes))
            best = info;
    return best.name != NULL ? best.name : "unknown";
}

static void parameters_text(uint64_t n, char out[24])
{
    const double x = (double)n;
    (void)snprintf(out, 24, x >= 1e9 ? "%.1fB" : "%.1fM", x >= 1e9 ? x * 1e-9 : x * 1e-6);
}

static json_t *details_json(const struct fm_model *model)
{
    struct fm_model_info info = {.size = sizeof info};
    char n_parameters[24];
    fm_model_info(model, &info);
    parameters_text(info.n_parameters, n_parameters);
    return json_pack("{s:s, s:s, s:s, s:[s], s:s, s:s}", "parent_model", "", "format",
                     info.container, "family", info.architecture, "families", info.architecture,
                     "parameter_size", n_parameters, "quantization_level", main_format(model));
}

/* Returns what lists of models have of it. */
static json_t *model_json(const struct server *s)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(s->options.model, &info);
    return json_pack("{s:s, s:s, s:o, s:I, s:o, s:o}", "name", s->context.model_name, "model",
                     s->context.model_name, "modified_at", time_json(s->began_s), "size",
                     (json_int_t)(info.dense_bytes + info.experts_bytes), "digest",
                     digest_json(&s->context), "details", details_json(s->options.model));
}

enum MHD_Result get_ollama_version(struct request *r)
{
    return reply_json(r, json_pack("{s:s, s:s}", "version", OLLAMA_VERSION, "flashmoe",
                                   fm_version()));
}

enum MHD_Result get_ollama_tags(struct request *r)
{
    return reply_json(r, json_pack("{s:[o]}", "models", model_json(r->server)));
}

enum MHD_Result get_ollama_ps(struct request *r)
{
    struct jobs_stats stats;
    const struct fm_stats *m = &stats.model;
    json_t *model = model_json(r->server);
    jobs_stats(r->server->jobs, &stats);
    (void)json_object_del(model, "modified_at");
    (void)json_object_set_new(model, "expires_at", time_json(r->server->began_s + FOREVER_S));
    (void)json_object_set_new(model, "size_vram",
                              json_integer((json_int_t)(m->gpu_dense_bytes + m->gpu_cache_bytes +
                                                        m->gpu_kv_bytes + m->gpu_scratch_bytes)));
    (void)json_object_set_new(model, "context_length",
                              json_integer((json_int_t)r->server->context.n_context));
    return reply_json(r, json_pack("{s:[o]}", "models", model));
}

/* ---- /api/show ------------------------------------------------------------------------------ */

/* Renders a conversation of one word; NULL if that is not possible. `more` continues the object. */
static char *rendered(const struct fm_model *model, const char *more)
{
    struct text_buffer text = {0};
    char *out = NULL;
    size_t bytes = 0;
    if (text_add_format(&text, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s}", more))
        (void)fm_chat_render(model, text_buffer_text(&text), text.n, NULL, &out, &bytes, NULL);
    text_buffer_clear(&text);
    return out;
}

/* Returns whether the template shows the model its tools. */
static bool has_tools(const struct fm_model *model)
{
    char *text = rendered(model, ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
                          "\"find_qzx\",\"description\":\"\",\"parameters\":{\"type\":\"object\","
                          "\"properties\":{}}}}]");
    const bool shows = text != NULL && strstr(text, "find_qzx") != NULL;
    fm_free(text);
    return shows;
}

static bool differ(const struct fm_model *model, const char *a, const char *b)
{
    char *one = rendered(model, a), *other = rendered(model, b);
    const bool differs = one != NULL && other != NULL && strcmp(one, other) != 0;
    fm_free(one);
    fm_free(other);
    return differs;
}

/* Returns whether the model reasons: its template opens the reasoning, or can be told whether to
 * reason. */
static bool has_thinking(const struct fm_model *model)
{
    static const char conversation[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";
    int32_t *ids = NULL;
    size_t n_ids = 0;
    const int rc = fm_chat_tokenize(model, conversation, sizeof conversation - 1, NULL, &ids,
                                    &n_ids, NULL);
    const bool opens = rc == 0 && fm_prompt_opens_reasoning(model, ids, n_ids);
    fm_free(ids);
    return opens || differ(model, ",\"enable_thinking\":true,\"thinking\":true",
                           ",\"enable_thinking\":false,\"thinking\":false") ||
           differ(model, ",\"reasoning_effort\":\"low\"", ",\"reasoning_effort\":\"high\"");
}

static json_t *capabilities_json(const struct fm_model *model)
{
    json_t *list = json_pack("[s]", "completion");
    if (has_tools(model))
        (void)json_array_append_new(list, json_string("tools"));
    if (has_thinking(model))
        (void)json_array_append_new(list, json_string("thinking"));
    if (infill_is_known(model))
        (void)json_array_append_new(list, json_string("insert"));
    return list;
}

static void set_size(json_t *object, const char *architecture, const char *name, uint64_t n)
{
    char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", architecture, name);
    (void)json_object_set_new(object, key, json_integer((json_int_t)n));
}

static json_t *sizes_json(const struct api_context *context)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(context->model, &info);
    json_t *all = json_pack("{s:s, s:s, s:I}", "general.architecture", info.architecture,
                            "general.basename", context->model_name, "general.parameter_count",
                            (json_int_t)info.n_parameters);
    set_size(all, info.architecture, "context_length", context->n_context);
    set_size(all, info.architecture, "embedding_length", info.hidden);
    set_size(all, info.architecture, "block_count", info.n_layers);
    set_size(all, info.architecture, "expert_count", info.n_experts);
    set_size(all, info.architecture, "expert_used_count", info.n_experts_per_token);
    set_size(all, info.architecture, "vocab_size", info.vocabulary);
    return all;
}

static json_t *parameters_json(const struct fm_model *model)
{
    struct fm_sampling d = {.size = sizeof d};
    char text[160];
    fm_sampling_default(model, &d);
    (void)snprintf(text, sizeof text, "temperature %g\ntop_k %u\ntop_p %g\nmin_p %g",
                   (double)d.temperature, d.top_k, (double)d.top_p, (double)d.min_p);
    return json_string(text);
}

int api_ollama_show(const struct api_context *context, const json_t *body,
                    struct text_buffer *answer, struct api_error *error)
{
    if (!json_is_object(body))
        return api_fail(error, API_BAD, NULL, "the body must be a JSON object");
    json_t *all = json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:o}", "modelfile", "", "parameters",
                            parameters_json(context->model), "template", "", "details",
                            details_json(context->model), "model_info", sizes_json(context),
                            "capabilities", capabilities_json(context->model), "modified_at",
                            time_json(context->began_s));
    const bool is_good = text_add_json(answer, all);
    json_decref(all);
    return is_good ? 0 : api_fail(error, API_INTERNAL, NULL, "out of memory for the answer");
}

/* ---- /api/pull ------------------------------------------------------------------------------ */

/* Returns whether the name, without the tag 'latest', is this model's. */
static bool is_served(const struct api_context *context, const char *name)
{
    const size_t n = strlen(context->model_name);
    return strncmp(name, context->model_name, n) == 0 &&
           (name[n] == '\0' || strcmp(name + n, ":latest") == 0);
}

int api_ollama_pull(const struct api_context *context, const json_t *body,
                    struct text_buffer *answer, struct api_error *error)
{
    const struct fields f = {body, error, ""};
    if (!json_is_object(body))
        return api_fail(error, API_BAD, NULL, "the body must be a JSON object");
    const char *name = fields_string(&f, "model", fields_string(&f, "name", ""));
    if (error->fault != API_GOOD)
        return -1;
    if (name[0] == '\0')
        return api_fail(error, API_BAD, "model", "'model' must be given");
    /* Programs pull the model that they are about to use. */
    if (!is_served(context, name))
        return api_fail(error, API_NOT_FOUND, "model", "'%.100s' cannot be pulled through this "
                        "API: 'flashmoe pull' downloads models, and this server has '%s'", name,
                        context->model_name);
    return text_add_string(answer, "{\"status\":\"success\"}\n")
               ? 0
               : api_fail(error, API_INTERNAL, NULL, "out of memory for the answer");
}
