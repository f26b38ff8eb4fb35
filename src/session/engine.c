/* fm_model: everything one open model needs, put together and taken apart. */
#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "flashmoe_lab.h"
#include "session/engine_internal.h"

void fm_log_to(fm_log_fn *sink, void *ctx)
{
    log_set_sink(sink, ctx);
}

const char *fm_version(void)
{
    return FLASHMOE_VERSION;
}

void fm_free(void *p)
{
    mem_free(p);
}

void fm_model_options_init(struct fm_model_options *options)
{
    *options = (struct fm_model_options){.n_sessions = 1};
}

/* ---- what lies beside the weights ----------------------------------------------------------- */

/* eos_token is a string or an object with its `content`. */
static int read_eos_token(struct fm_model *m, struct fm_error *err)
{
    struct jdoc doc;
    int rc = source_read_json(m->model->source, "tokenizer_config.json", LIMIT_CONFIG_JSON_BYTES,
                              &doc, err);
    if (rc == 0 && doc.root != NULL) {
        const json_t *eos = jdoc_find(doc.root, "eos_token");
        const char *text = json_string_value(json_is_object(eos) ? jdoc_find(eos, "content") : eos);
        int32_t id;
        if (text != NULL && tokenizer_find(m->tokenizer, text, &id) &&
            !model_add_stop_token(m->model, id))
            rc = err_set(err, FM_ERR_UNSUPPORTED,
                         "%s: field 'eos_token' is one stop token too many", doc.file);
    }
    jdoc_clear(&doc);
    return rc;
}

static int open_tokenizer(struct fm_model *m, struct fm_error *err)
{
    char label[LIMIT_PATH_BYTES], *text;
    size_t bytes;
    int rc = source_read_text(m->model->source, "tokenizer.json", LIMIT_TOKENIZER_JSON_BYTES,
                              &text, &bytes, label, err);
    if (rc != 0 || text == NULL)
        return rc;
    rc = tokenizer_parse(label, text, bytes, &m->tokenizer, err);
    mem_free(text);
    if (rc == 0 && tokenizer_n_ids(m->tokenizer) > m->model->shape.vocabulary)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: the highest token id is %zu, the model's vocab_size %u", label,
                     tokenizer_n_ids(m->tokenizer) - 1, m->model->shape.vocabulary);
    if (rc == 0)
        rc = read_eos_token(m, err);
    if (rc == 0)
        rc = model_grammars_open(m, err);
    return rc != 0 ? rc : chat_form_open(m, err);
}

static int read_default_sampling(struct fm_model *m, struct fm_error *err)
{
    struct fm_sampling *s = &m->default_sampling;
    *s = (struct fm_sampling){.temperature = 0, .top_p = 1};
    struct jdoc doc;
    bool does_sample = false;
    double temperature = 0, top_p = 1, min_p = 0, typical_p = 1, repetition = 1;
    uint64_t top_k = 0;
    int rc = source_read_json(m->model->source, "generation_config.json", LIMIT_CONFIG_JSON_BYTES,
                              &doc, err);
    const char *path = doc.file;
    if (rc == 0)
        rc = jdoc_bool_or(doc.root, path, "do_sample", false, &does_sample, err);
    if (rc == 0)
        rc = jdoc_number_or(doc.root, path, "temperature", 0, 100, 1, &temperature, err);
    if (rc == 0)
        rc = jdoc_number_or(doc.root, path, "top_p", 0, 1, 1, &top_p, err);
    if (rc == 0)
        rc = jdoc_number_or(doc.root, path, "min_p", 0, 1, 0, &min_p, err);
    if (rc == 0)
        rc = jdoc_uint_or(doc.root, path, "top_k", 0, LIMIT_VOCAB, 0, &top_k, err);
    if (rc == 0)
        rc = jdoc_number_or(doc.root, path, "typical_p", 0, 1, 1, &typical_p, err);
    if (rc == 0)
        rc = jdoc_number_or(doc.root, path, "repetition_penalty", 0, 100, 1, &repetition, err);
    jdoc_clear(&doc);
    if (rc == 0 && does_sample)
        *s = (struct fm_sampling){.temperature = (float)temperature, .top_k = (unsigned)top_k,
                                  .top_p = (float)top_p, .min_p = (float)min_p,
                                  .typical_p = (float)typical_p,
                                  .repetition_penalty = (float)repetition};
    return rc;
}

/* ---- open and close ------------------------------------------------------------------------- */

static struct forward_options forward_options_of(const struct fm_model *m)
{
    const struct budget *b = &m->budget;
    return (struct forward_options){.max_rows = b->max_rows,
                                    .max_segments = b->n_sessions,
                                    .n_context = b->n_context,
                                    .kv_format = m->kv_format,
                                    .lookahead = m->streaming.lookahead,
                                    .cache_bias = m->cache_bias,
                                    .routes = m->routes};
}

/* First of all that takes the model's memory: it is made by the backend. */
static int open_backend(struct fm_model *m, const struct fm_model_options *options,
                        struct fm_error *err)
{
    const struct budget *b = &m->budget;
    const struct forward_options forward = forward_options_of(m);
    struct backend_options backend = {.n_threads = b->n_threads, .cpu = options->cpu,
                                      .pin_threads = options->pin_threads};
    forward_backend_options(m->model, &forward, &backend);
    return backend_open(NULL, &backend, &m->be, err);
}

static int open_compute(struct fm_model *m, struct fm_error *err)
{
    const struct budget *b = &m->budget;
    const struct forward_options forward = forward_options_of(m);
    m->segments = mem_new(b->n_sessions, sizeof *m->segments, "the batch", err);
    m->segment_sessions = mem_new(b->n_sessions, sizeof *m->segment_sessions, "the batch", err);
    if (m->segments == NULL || m->segment_sessions == NULL)
        return FM_ERR_NOMEM;
    return forward_open(m->model, m->be, m->cache, &forward, &m->forward, err);
}

/* Opened before the budget is divided, so that they count as resident already. */
static int open_routes(struct fm_model *m, const struct fm_model_options *options,
                       struct fm_error *err)
{
    const struct model_shape *s = &m->model->shape;
    if (options->routes == NULL)
        return 0;
    if (m->model->n_expert_layers == 0)
        return err_set(err, FM_ERR_ARG, "routes cannot be used: the model has no routed experts");
    const struct routes_shape shape = {
        .n_layers = m->model->n_expert_layers,
        .n_experts = s->n_experts,
        .n_used = s->n_experts_per_token,
        .n_positions = options->n_context > 0 ? options->n_context : s->max_context,
    };
    return routes_open(options->routes, &shape, &m->routes, err);
}

static int choose_kv_format(struct fm_model *m, const char *name, struct fm_error *err)
{
    m->kv_format = name == NULL ? &kv_f16 : kv_find(name);
    if (m->kv_format != NULL)
        return 0;
    char names[64] = "";
    for (unsigned i = 0; kv_at(i) != NULL; i++) {
        const size_t used = strlen(names);
        (void)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "",
                       kv_at(i)->name);
    }
    return err_set(err, FM_ERR_ARG, "keys and values cannot be kept as '%s', only as one of %s",
                   name, names);
}

/* "on" asks for checksums; "auto" takes what the model has. */
static int choose_checks(struct fm_model *m, const char *word, struct fm_error *err)
{
    const bool is_on = word != NULL && strcmp(word, "on") == 0;
    m->checks = word == NULL || strcmp(word, "off") != 0;
    m->checks_all = is_on;
    if (m->checks && !is_on && word != NULL && strcmp(word, "auto") != 0)
        return err_set(err, FM_ERR_ARG, "--check can be auto, on or off, not '%s'", word);
    return 0;
}

static int open_into(struct fm_model *m, const char *path,
                     const struct fm_model_options *options, struct fm_error *err)
{
    const struct model_options model_options = {.families = arch_families(),
                                                .metadata_only = options->metadata_only,
                                                .experts_per_token =
                                                    options->experts_per_token};
    m->is_metadata_only = options->metadata_only;
    int rc = choose_kv_format(m, options->kv, err);
    if (rc == 0)
        rc = choose_checks(m, options->check, err);
    if (rc == 0)
        rc = streaming_choose(&m->streaming, options, err);
    if (rc == 0)
        rc = elastic_choose(&m->elastic, options, err);
    if (rc == 0)
        rc = fm_machine_check_level(options->cpu, err); /* before anything is read */
    if (rc == 0 && !options->metadata_only)
        rc = fm_machine_check_memory(options->memory_bytes, err);
    if (rc == 0)
        rc = model_open(path, &model_options, &m->model, err);
    if (rc == 0 && m->checks_all && m->model->source->packed == NULL)
        rc = err_set(err, FM_ERR_ARG,
                     "'%s' is a %s and has no checksums to verify; make a packed model, which has "
                     "them, with 'flashmoe pack', or leave out --check on",
                     path, source_kind_name(m->model->source));
    if (rc == 0)
        rc = sequence_check(m->model, m->kv_format, err);
    if (rc == 0)
        rc = approximate_choose(m, options, err);
    if (rc == 0)
        rc = open_tokenizer(m, err);
    if (rc == 0)
        rc = read_default_sampling(m, err);
    if (rc != 0 || options->metadata_only)
        return rc;
    rc = open_routes(m, options, err);
    if (rc != 0)
        return rc;
    io_choose(&m->streaming, m->model, true);
    plat_memory_trim(); /* the JSON trees are gone: do not count them as the program's */
    streaming_fit(&m->streaming, m->model);
    rc = budget_plan(&m->budget, m->model, m->kv_format, streaming_bytes(&m->streaming, m->model),
                     options, m->elastic.is_on, err);
    if (rc == 0 && m->checks_all)
        rc = packed_check_texts(m->model->source, err);
    if (rc == 0)
        rc = open_backend(m, options, err);
    if (rc == 0)
        rc = model_load_dense(m->model, m->be->memory, m->checks, options->progress,
                              options->progress_ctx, err);
    if (rc == 0)
        rc = streaming_open(m, m->checks, err);
    if (rc == 0)
        rc = open_compute(m, err);
    if (rc == 0)
        elastic_start(m);
    return rc;
}

int fm_model_open(const char *path, const struct fm_model_options *options,
                  struct fm_model **out, struct fm_error *err)
{
    *out = NULL;
    struct fm_model_options defaults;
    fm_model_options_init(&defaults);
    struct fm_model *m = mem_new(1, sizeof *m, "the model", err);
    if (m == NULL)
        return FM_ERR_NOMEM;
    fenv_t host;
    (void)feholdexcept(&host);  /* as in fm_eval_batch: tables and norms are made here */
    (void)fesetenv(FE_DFL_ENV);
    int rc = open_into(m, path, options != NULL ? options : &defaults, err);
    (void)fesetenv(&host);
    if (rc != 0) {
        fm_model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void fm_model_close(struct fm_model *m)
{
    if (m == NULL)
        return;
    forward_close(m->forward);
    streaming_close(m);
    chat_close(m->chat);
    model_grammars_close(m);
    tokenizer_close(m->tokenizer);
    routes_close(m->routes);
    model_close(m->model);
    backend_close(m->be); /* after all that lies in its memory */
    mem_free(m->segments);
    mem_free(m->segment_sessions);
    mem_free(m);
}

/* ---- knowing -------------------------------------------------------------------------------- */

/* One per weight that a token meets: every matrix, the chosen experts' share of all experts. */
static void count_mul_adds(const struct model *model, struct fm_model_info *info)
{
    uint64_t experts = 0;
    for (size_t i = 0; i < model->source->n_tensors; i++) {
        const struct tensor_use *use = &model->uses[i];
        const uint64_t n = use->n_rows * use->n_cols;
        if (use->role == TENSOR_MATRIX || use->role == TENSOR_GATE)
            info->mul_adds_per_token += n;
        else if (use->role == TENSOR_EXPERT)
            experts += n;
        else if (use->role == TENSOR_HEAD) /* a tied embedding too */
            info->mul_adds_per_head += n;
    }
    if (model->shape.n_experts > 0)
        info->mul_adds_per_token +=
            experts / model->shape.n_experts * model->shape.n_experts_per_token;
}

void fm_model_info(const struct fm_model *m, struct fm_model_info *info)
{
    const struct model *model = m->model;
    struct sequence_sizes sizes;
    struct sequence_blocks blocks;
    sequence_sizes(model, m->kv_format, &sizes);
    sequence_blocks(model, m->kv_format, model->shape.max_context, &blocks);
    *info = (struct fm_model_info){
        .container = source_kind_name(model->source),
        .architecture = model->model_type,
        .n_parameters = model->n_parameters,
        .n_layers = model->shape.n_layers,
        .n_moe_layers = model->n_expert_layers,
        .n_attention_layers = model->shape.n_attention_layers,
        .hidden = model->shape.hidden,
        .vocabulary = model->shape.vocabulary,
        .n_experts = model->shape.n_experts,
        .n_experts_per_token = model->shape.n_experts_per_token,
        .max_context = model->shape.max_context,
        .dense_bytes = model->dense_bytes,
        .dense_token_bytes = model->dense_token_bytes,
        .kv_position_bytes = sizes.kv_position_bytes,
        .kv_block_positions = blocks.n_positions,
        .state_bytes = sizes.recurrent_bytes,
        .n_ignored_tensors = model->n_ignored_tensors,
        .max_token_bytes = m->tokenizer != NULL
                               ? (unsigned)tokenizer_max_token_bytes(m->tokenizer) : 0,
        .has_tokenizer = m->tokenizer != NULL,
        .has_chat_template = m->chat != NULL && chat_has_template(m->chat),
        .has_tied_head = model->shape.has_tied_head,
        .has_checksums = model->source->packed != NULL,
        .routes = m->routes != NULL ? m->routes->label : NULL,
        .approximate = approximate_label(m),
        .rope_factor = model->shape.rope.factor,
        .attention_factor = model->shape.rope.attention_factor,
        .original_context = model->shape.max_context,
    };
    if (model->shape.rope.kind != ROPE_DEFAULT) {
        info->rope_scaling = rope_kind_name(model->shape.rope.kind);
        info->original_context = model->shape.rope.original_context;
    }
    count_mul_adds(model, info);
    for (uint32_t i = 0; i < model->n_expert_layers; i++) {
        const struct expert_layer *l = &model->expert_layers[i];
        info->experts_bytes += l->n_experts * l->read_bytes;
        info->expert_token_bytes += model->shape.n_experts_per_token * l->read_bytes;
        info->expert_bytes = l->read_bytes > info->expert_bytes ? l->read_bytes
                                                                : info->expert_bytes;
    }
}

bool fm_model_format(const struct fm_model *m, unsigned i, struct fm_format_info *info)
{
    if (i >= m->model->n_formats)
        return false;
    const struct model_format_use *use = &m->model->formats[i];
    *info = (struct fm_format_info){use->quant->name, use->is_expert, use->n_tensors,
                                    use->n_bytes};
    return true;
}

bool fm_number_format(unsigned i, struct fm_number_format *format)
{
    const struct quant *q = quant_at(i);
    if (q == NULL)
        return false;
    const unsigned cols = 128 * q->block, rows = 128; /* whole blocks of every part */
    const double bits = 8.0 * (double)quant_matrix_bytes(q, rows, cols);
    *format = (struct fm_number_format){q->name, bits / ((double)rows * cols),
                                        q->encode_row != NULL};
    return true;
}

bool fm_model_recall(const struct fm_model *m, unsigned i, double *recall)
{
    struct lookahead_layer layer;
    if (m->forward == NULL || !forward_recall(m->forward, i, &layer))
        return false;
    *recall = layer.n_needed > 0 ? (double)layer.n_foreseen / (double)layer.n_needed : -1;
    return true;
}

bool fm_model_experts(const struct fm_model *m, unsigned i, bool *resident, uint8_t *levels)
{
    if (m->cache == NULL || i >= m->model->n_expert_layers)
        return false;
    const struct heat *heat = expert_cache_heat(m->cache);
    if (resident != NULL)
        expert_cache_resident(m->cache, i, resident);
    for (uint32_t e = 0; levels != NULL && e < m->model->expert_layers[i].n_experts; e++)
        levels[e] = (uint8_t)(heat_level(heat, i, e) * 255 + 0.5);
    return true;
}

bool fm_model_miss_curve(const struct fm_model *m, uint64_t cache_bytes,
                         struct fm_cache_point *point)
{
    if (m->cache == NULL)
        return false;
    const struct model_shape *s = &m->model->shape;
    const uint64_t fewest = (uint64_t)s->n_experts_per_token * m->model->n_expert_layers;
    const uint64_t most = (uint64_t)s->n_experts * m->model->n_expert_layers;
    const uint64_t base = expert_cache_bytes(m->model, 0);
    const uint64_t slots = cache_bytes > base
                               ? (cache_bytes - base) / (expert_cache_bytes(m->model, 1) - base)
                               : 0;
    point->n_slots = (unsigned)(slots < fewest ? fewest : slots > most ? most : slots);
    point->hit_rate = expert_cache_hits_with(m->cache, point->n_slots);
    return true;
}

void fm_model_stats(const struct fm_model *m, struct fm_stats *stats)
{
    const struct budget *b = &m->budget;
    *stats = (struct fm_stats){
        .memory_budget_bytes = b->total,
        .memory_least_bytes = b->least,
        .memory_most_bytes = b->most,
        .memory_program_bytes = b->program + b->caller,
        .memory_dense_bytes = b->dense,
        .memory_cache_bytes = b->cache,
        .memory_kv_bytes = b->sessions + b->kv,
        .memory_kv_most_bytes = b->sessions + budget_kv_most(b),
        .memory_scratch_bytes = b->scratch,
        .memory_resident_peak_bytes = plat_resident_peak_bytes(),
        .n_shrinks = m->elastic.n_shrinks,
        .n_grows = m->elastic.n_grows,
        .prefill_chunk = b->max_rows,
        .n_context = b->n_context,
        .n_threads = b->n_threads,
        .cpu_level = m->be != NULL ? m->be->level : NULL,
        .n_prefill_tokens = m->n_prefill_tokens,
        .prefill_ns = m->prefill_ns,
        .n_decode_tokens = m->n_decode_tokens,
        .decode_ns = m->decode_ns,
        .routes = m->routes != NULL ? m->routes->label : NULL,
        .approximate = approximate_label(m),
    };
    if (m->cache == NULL)
        return;
    struct expert_cache_stats cache;
    expert_cache_stats(m->cache, &cache);
    stats->n_cache_slots = cache.n_slots;
    stats->n_expert_hits = cache.n_hits;
    stats->n_expert_misses = cache.n_misses;
    stats->n_expert_late = cache.n_late;
    stats->n_guesses = cache.n_guesses;
    stats->n_guesses_used = cache.n_guesses_used;
    stats->n_warmed = cache.n_warmed;
    stats->bytes_read = cache.bytes_read;
    stats->read_wait_ns = cache.wait_ns;
    stats->reader = m->reader_name;
    stats->io = expert_store_is_direct(m->store) ? "direct" : "page";
    stats->policy = heat_policy_name(m->streaming.policy);
}
