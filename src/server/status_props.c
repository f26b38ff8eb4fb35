/* GET /props: the model, how its budget is divided, and the defaults of requests. */
#include "flashmoe_lab.h"
#include "server/http_internal.h"
#include "server/text_json.h"

static json_t *bytes_json(uint64_t n)
{
    return json_integer((json_int_t)n);
}

/* Returns the number formats of the weights, experts and dense ones apart. */
static json_t *formats_json(const struct fm_model *model)
{
    struct fm_format_info info = {.size = sizeof info};
    json_t *list = json_array();
    for (unsigned i = 0; fm_model_format(model, i, &info); i++)
        (void)json_array_append_new(
            list, json_pack("{s:s, s:b, s:I, s:I}", "name", info.name, "is_expert", info.is_expert,
                            "n_tensors", (json_int_t)info.n_tensors, "n_bytes",
                            (json_int_t)info.n_bytes));
    return list;
}

static json_t *sizes_json(const struct fm_model_info *info)
{
    return json_pack("{s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:b, s:s?}",
                     "container", info->container, "n_parameters", (json_int_t)info->n_parameters,
                     "n_layers", (int)info->n_layers, "n_moe_layers", (int)info->n_moe_layers,
                     "n_experts", (int)info->n_experts, "n_experts_per_token",
                     (int)info->n_experts_per_token, "hidden", (int)info->hidden, "vocabulary",
                     (int)info->vocabulary, "max_context", (int)info->max_context, "dense_bytes",
                     bytes_json(info->dense_bytes), "experts_bytes",
                     bytes_json(info->experts_bytes), "expert_token_bytes",
                     bytes_json(info->expert_token_bytes), "has_checksums", info->has_checksums,
                     "rope_scaling", info->rope_scaling);
}

static json_t *memory_json(const struct fm_stats *m)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "budget_bytes",
                     bytes_json(m->memory_budget_bytes), "min_bytes",
                     bytes_json(m->memory_min_bytes), "program_bytes",
                     bytes_json(m->memory_program_bytes), "dense_bytes",
                     bytes_json(m->memory_dense_bytes), "cache_bytes",
                     bytes_json(m->memory_cache_bytes), "kv_bytes",
                     bytes_json(m->memory_kv_bytes), "kv_max_bytes",
                     bytes_json(m->memory_kv_max_bytes), "scratch_bytes",
                     bytes_json(m->memory_scratch_bytes), "n_slots",
                     bytes_json(m->n_cache_slots));
}

static json_t *sampling_json(const struct fm_model *model)
{
    struct fm_sampling d = {.size = sizeof d};
    fm_sampling_default(model, &d);
    return json_pack("{s:o, s:i, s:o, s:o}", "temperature", json_float(d.temperature), "top_k",
                     (int)d.top_k, "top_p", json_float(d.top_p), "min_p", json_float(d.min_p));
}

enum MHD_Result get_props(struct request *r)
{
    const struct server *s = r->server;
    struct fm_model_info info = {.size = sizeof info};
    struct jobs_stats stats;
    fm_model_info(s->options.model, &info);
    jobs_stats(s->jobs, &stats);
    json_t *sampling = sampling_json(s->options.model);
    json_t *props =
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:b, s:s?, s:s?, s:o, s:{s:o, s:i}}",
                  "version", fm_version(), "model", s->context.model_name, "model_path",
                  s->options.model_path, "architecture", info.architecture, "n_ctx",
                  (int)s->context.n_context, "total_slots", (int)stats.n_parallel, "queue",
                  (int)stats.n_queue, "prefill_chunk", (int)stats.model.prefill_chunk,
                  "has_chat_template", info.has_chat_template, "approximate", info.approximate,
                  "routes", info.routes, "sampling", json_incref(sampling),
                  "default_generation_settings", "params", sampling, "n_ctx",
                  (int)s->context.n_context);
    (void)json_object_set_new(props, "max_tokens", s->options.n_answer > 0
                                                       ? bytes_json(s->options.n_answer)
                                                       : json_null());
    (void)json_object_set_new(props, "sizes", sizes_json(&info));
    (void)json_object_set_new(props, "formats", formats_json(s->options.model));
    (void)json_object_set_new(props, "memory", memory_json(&stats.model));
    (void)json_object_set_new(props, "n_threads", json_integer(stats.model.n_threads));
    if (stats.model.cpu_level != NULL)
        (void)json_object_set_new(props, "cpu_level", json_string(stats.model.cpu_level));
    if (stats.model.gpu != NULL)
        (void)json_object_set_new(props, "gpu", json_string(stats.model.gpu));
    return reply_json(r, props);
}
