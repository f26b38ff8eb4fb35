/* fm_model: opens and closes a model with everything that belongs to it, and reports what is known
 * of it. */
#include <assert.h>
#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "backend/gpu.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/sized.h"
#include "engine/options.h"
#include "flashmoe_lab.h"
#include "session/session_internal.h"

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

/* ---- files besides the weights -------------------------------------------------------------- */

/* Reads eos_token, which is a string or an object with `content`. */
static int read_eos_token(struct fm_model *m, struct fm_error *err)
{
    struct jdoc doc;
    int rc = source_read_json(m->engine.model->source, "tokenizer_config.json",
                              LIMIT_CONFIG_JSON_BYTES, &doc, err);
    if (rc == 0 && doc.root != NULL) {
        const json_t *eos = jdoc_find(doc.root, "eos_token");
        const char *text = json_string_value(json_is_object(eos) ? jdoc_find(eos, "content") : eos);
        int32_t id;
        if (text != NULL && tokenizer_find(m->tokenizer, text, &id) &&
            !model_add_stop_token(m->engine.model, id))
            rc = err_set(err, FM_ERR_UNSUPPORTED,
                         "%s: field 'eos_token' adds more stop tokens than are supported",
                         doc.file);
    }
    jdoc_clear(&doc);
    return rc;
}

/* add_bos_token decides whether bos_token comes before a text. Without it the tokenizer's own
 * template does. */
static int read_prefix(struct fm_model *m, const struct jdoc *config, struct fm_error *err)
{
    const json_t *adds = jdoc_find(config->root, "add_bos_token");
    const json_t *bos = jdoc_find(config->root, "bos_token");
    const char *text = json_string_value(json_is_object(bos) ? jdoc_find(bos, "content") : bos);
    int32_t id;
    if (adds != NULL && !json_is_boolean(adds))
        return err_set(err, FM_ERR_FORMAT, "%s: field 'add_bos_token' is not true or false",
                       config->file);
    if (json_is_false(adds))
        tokenizer_set_prefix(m->tokenizer, NULL, 0);
    else if (adds != NULL && text != NULL && tokenizer_find(m->tokenizer, text, &id))
        tokenizer_set_prefix(m->tokenizer, &id, 1);
    return 0;
}

/* Reads tokenizer.json, or Kimi's tiktoken.model. `label` names the file. */
static int read_tokenizer(struct fm_model *m, char label[LIMIT_PATH_BYTES], struct fm_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tiktoken.model"};
    const struct source *source = m->engine.model->source;
    char *text = NULL;
    size_t bytes = 0;
    struct jdoc config = {0};
    int rc = 0;
    unsigned i = 0;
    for (; rc == 0 && text == NULL && i < 2; i++)
        rc = source_read_text(source, names[i], LIMIT_TOKENIZER_JSON_BYTES, &text, &bytes, label,
                              err);
    if (rc != 0 || text == NULL)
        return rc;
    rc = source_read_json(source, "tokenizer_config.json", LIMIT_CONFIG_JSON_BYTES, &config, err);
    if (rc == 0)
        rc = i == 1 ? tokenizer_parse(label, text, bytes, &m->tokenizer, err)
                    : tokenizer_parse_tiktoken(label, text, bytes, &config, &m->tokenizer, err);
    if (rc == 0)
        rc = read_prefix(m, &config, err);
    jdoc_clear(&config);
    mem_free(text);
    return rc;
}

/* Tokens that are a small part of the vocabulary, as synthetic models have them. */
#define FEW_PART 4

/* Lists the tokens that the tokenizer has, if they are few. */
static int list_few_tokens(struct fm_model *m, struct fm_error *err)
{
    const uint32_t vocabulary = m->engine.model->shape.vocabulary;
    uint32_t n = 0;
    for (uint32_t id = 0; id < vocabulary; id++)
        n += tokenizer_has_id(m->tokenizer, (int32_t)id);
    if (n >= vocabulary / FEW_PART)
        return 0;
    m->few_tokens = mem_new(n, sizeof *m->few_tokens, "the tokens", err);
    if (m->few_tokens == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t id = 0; id < vocabulary; id++)
        if (tokenizer_has_id(m->tokenizer, (int32_t)id))
            m->few_tokens[m->n_few_tokens++] = (int32_t)id;
    return 0;
}

static int open_tokenizer(struct fm_model *m, struct fm_error *err)
{
    char label[LIMIT_PATH_BYTES];
    int rc = read_tokenizer(m, label, err);
    if (rc == 0 && m->tokenizer == NULL)
        return 0;
    if (rc == 0 && tokenizer_n_ids(m->tokenizer) > m->engine.model->shape.vocabulary)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: the highest token id is %zu, the model's vocab_size %u", label,
                     tokenizer_n_ids(m->tokenizer) - 1, m->engine.model->shape.vocabulary);
    if (rc == 0)
        rc = list_few_tokens(m, err);
    if (rc == 0)
        rc = read_eos_token(m, err);
    if (rc == 0)
        rc = model_grammars_open(m, err);
    return rc != 0 ? rc : chat_form_open(m, err);
}

static int read_default_sampling(struct fm_model *m, struct fm_error *err)
{
    struct fm_sampling *s = &m->default_sampling;
    *s = (struct fm_sampling){.size = sizeof *s, .top_p = 1};
    struct jdoc doc;
    bool does_sample = false;
    double temperature = 0, top_p = 1, min_p = 0, typical_p = 1, repetition = 1;
    uint64_t top_k = 0;
    int rc = source_read_json(m->engine.model->source, "generation_config.json",
                              LIMIT_CONFIG_JSON_BYTES, &doc, err);
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
        *s = (struct fm_sampling){.size = sizeof *s, .temperature = (float)temperature,
                                  .top_k = (unsigned)top_k, .top_p = (float)top_p,
                                  .min_p = (float)min_p, .typical_p = (float)typical_p,
                                  .repetition_penalty = (float)repetition};
    return rc;
}

/* ---- open and close ------------------------------------------------------------------------- */

/* How many positions away the experts of a wrong draft are taken from: from the same topic, and not
 * those that the next tokens will use. */
#define STRAY_DISTANCE 97

/* Returns the position whose experts a token at a position gets. */
static uint32_t routed_position(const struct fm_model *m, uint32_t position)
{
    return position + (position >= m->engine.stray_position ? STRAY_DISTANCE : 0);
}

/* Gives the experts of a token for an engine (replace_ids_fn). */
static void replace_ids(void *ctx, uint32_t position, uint32_t layer, uint32_t *ids)
{
    const struct fm_model *m = ctx;
    routes_copy_ids(m->routes, routed_position(m, position), layer, ids);
}

static void predict_ids(void *ctx, uint32_t position, uint32_t layer, uint32_t *ids)
{
    const struct fm_model *m = ctx;
    routes_predict_ids(m->routes, routed_position(m, position), layer, ids);
}

/* Opens the routes. Called before the budget is divided, so that their memory already counts as
 * resident. */
static int open_routes(struct fm_model *m, const struct fm_model_options *options,
                       struct fm_error *err)
{
    const struct model_shape *s = &m->engine.model->shape;
    if (options->routes == NULL)
        return 0;
    if (m->engine.model->n_expert_layers == 0)
        return err_set(err, FM_ERR_ARG, "routes cannot be used: the model has no routed experts");
    const struct routes_shape shape = {
        .n_layers = model_n_own_expert_layers(m->engine.model),
        .n_experts = s->n_experts,
        .n_used = s->n_experts_per_token,
        .n_positions = options->n_context > 0 ? options->n_context : s->max_context,
    };
    m->engine.replace_ids = replace_ids;
    m->engine.replace_ctx = m;
    m->engine.stray_position = UINT32_MAX;
    int rc = routes_open(options->routes, &shape, &m->routes, err);
    if (rc == 0 && m->routes->recall > 0)
        m->engine.predict_ids = predict_ids;
    return rc;
}

static int open_flight(struct flight *f, uint32_t n_sessions, struct fm_error *err)
{
    f->segments = mem_new(n_sessions, sizeof *f->segments, "the batch", err);
    f->items = mem_new(n_sessions, sizeof *f->items, "the batch", err);
    return f->segments == NULL || f->items == NULL ? FM_ERR_NOMEM : 0;
}

static void close_flight(struct flight *f)
{
    mem_free(f->segments);
    mem_free(f->items);
}

static int open_batch(struct fm_model *m, struct fm_error *err)
{
    const uint32_t n = engine_limits(&m->engine)->n_sessions;
    m->evaluations = mem_new(n, sizeof *m->evaluations, "the batch", err);
    m->flights = mem_new(m->engine.n_passes, sizeof *m->flights, "the batch", err);
    m->in_flight = mem_new(m->engine.n_passes, sizeof *m->in_flight, "the batch", err);
    if (m->evaluations == NULL || m->flights == NULL || m->in_flight == NULL)
        return FM_ERR_NOMEM;
    m->n_flights = m->engine.n_passes;
    for (uint32_t i = 0; i < m->n_flights; i++)
        if (open_flight(&m->flights[i], n, err) != 0)
            return FM_ERR_NOMEM;
    if (open_flight(&m->between_flight, n, err) != 0)
        return FM_ERR_NOMEM;
    if (!m->engine.model->has_mtp)
        return 0;
    const uint32_t missing = mtp_max_missing(engine_limits(&m->engine)->n_drafts);
    m->mtp_rows = mem_new(n > missing ? n : missing, sizeof *m->mtp_rows, "the batch", err);
    return m->mtp_rows == NULL ? FM_ERR_NOMEM : 0;
}

/* Returns the memory requested for all stages together; 0: use what is free. */
static uint64_t memory_asked(const struct fm_model_options *options)
{
    uint64_t sum = 0;
    if (options->n_stages <= 1)
        return options->memory_bytes;
    for (unsigned i = 0; i < options->n_stages; i++)
        if (!mem_add(sum, options->stages[i].memory_bytes, &sum))
            return UINT64_MAX;
    return sum;
}

static int open_into(struct fm_model *m, const char *path,
                     const struct fm_model_options *options, struct fm_error *err)
{
    m->is_metadata_only = options->metadata_only;
    m->engine.checks = options->check != FM_OFF;
    m->checks_all = options->check == FM_ON;
    draft_gate_init(&m->gate, options->draft == FM_ON);
    m->draft_source = options->draft_source;
    int rc = engine_choose(&m->engine, options, err);
    if (rc == 0)
        rc = fm_machine_check_level(options->cpu, err); /* before anything is read */
    if (rc == 0 && !options->metadata_only)
        rc = fm_machine_check_memory(memory_asked(options), err);
    if (rc == 0)
        rc = engine_open_model(&m->engine, path, options, err);
    if (rc == 0 && m->checks_all && m->engine.model->source->packed == NULL)
        rc = err_set(err, FM_ERR_ARG,
                     "'%s' is a %s and has no checksums to verify; make a packed model, which has "
                     "them, with 'flashmoe pack', or leave out --check on",
                     path, source_kind_name(m->engine.model->source));
    if (rc == 0)
        rc = approximate_choose(m, options, err);
    if (rc == 0 && (m->cluster == NULL || cluster_rank(m->cluster) == 0))
        rc = open_tokenizer(m, err);
    if (rc == 0)
        rc = read_default_sampling(m, err);
    if (rc != 0 || options->metadata_only)
        return rc;
    rc = open_routes(m, options, err);
    if (rc == 0 && m->checks_all)
        rc = packed_check_texts(m->engine.model->source, err);
    if (rc == 0 && m->cluster != NULL)
        rc = session_cluster_meet(m, options, err);
    if (rc == 0)
        rc = engine_open(&m->engine, path, options, err);
    return rc != 0 ? rc : open_batch(m, err);
}

/* *without_gpu: it failed because of a GPU that nobody asked for. */
static int open_model(const char *path, const struct fm_model_options *options,
                      struct fm_model **out, bool *without_gpu, struct fm_error *err)
{
    struct fm_model *m = mem_new(1, sizeof *m, "the model", err);
    if (m == NULL)
        return FM_ERR_NOMEM;
    fenv_t host;
    (void)feholdexcept(&host);  /* as in fm_eval_batch: this computes tables and norms */
    (void)fesetenv(FE_DFL_ENV);
    int rc = session_cluster_begin(m, path, options, err);
    if (rc == 0)
        rc = session_cluster_ready(m, open_into(m, path, options, err), err);
    (void)fesetenv(&host);
    *without_gpu = gpu_can_do_without(&m->engine.gpu);
    if (rc != 0)
        fm_model_close(m);
    else
        *out = m;
    return rc;
}

int fm_model_open(const char *path, const struct fm_model_options *options,
                  struct fm_model **out, struct fm_error *err)
{
    *out = NULL;
    struct own_options own;
    struct fm_error why;
    bool without_gpu = false;
    int rc = own_options_take(&own, options, err);
    if (rc == 0)
        rc = session_cluster_adapt(&own.o, err);
    if (rc == 0)
        rc = open_model(path, &own.o, out, &without_gpu, err != NULL ? err : &why);
    if (rc == 0 || !without_gpu)
        return rc;
    log_warn("gpu", "the processor computes alone: %s", err != NULL ? err->text : why.text);
    own.o.gpu = "off";
    own.o.gpu_memory_bytes = 0;
    return open_model(path, &own.o, out, &without_gpu, err);
}

void fm_model_close(struct fm_model *m)
{
    if (m == NULL)
        return;
    session_cluster_end(m);
    engine_close(&m->engine);
    chat_close(m->chat);
    model_grammars_close(m);
    tokenizer_close(m->tokenizer);
    mem_free(m->few_tokens);
    routes_close(m->routes);
    for (uint32_t i = 0; i < m->n_flights; i++)
        close_flight(&m->flights[i]);
    close_flight(&m->between_flight);
    mem_free(m->flights);
    mem_free(m->in_flight);
    mem_free(m->evaluations);
    mem_free(m->mtp_rows);
    mem_free(m);
}

/* ---- information ---------------------------------------------------------------------------- */

static void count_mtp(const struct model *model, struct fm_model_info *info)
{
    if (!model->has_mtp)
        return;
    const struct expert_layer *l = &model->expert_layers[model->n_expert_layers - 1];
    info->n_mtp_layers = 1;
    info->mtp_dense_bytes = model->mtp_dense_bytes;
    info->mtp_experts_bytes = l->n_experts * l->read_bytes;
}

int fm_model_info(const struct fm_model *m, struct fm_model_info *out)
{
    const struct model *model = m->engine.model;
    struct sequence_sizes sizes;
    struct sequence_blocks blocks;
    sequence_sizes(model, m->engine.kv_format, &sizes);
    sequence_blocks(model, m->engine.kv_format, model->shape.max_context, &blocks);
    struct fm_model_info info = {
        .container = source_kind_name(model->source),
        .architecture = model->model_type,
        .n_parameters = model->n_parameters,
        .n_layers = model->shape.n_layers,
        .n_moe_layers = model_n_own_expert_layers(model),
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
        .mul_adds_per_position = sizes.position_mul_adds,
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
        info.rope_scaling = rope_kind_name(model->shape.rope.kind);
        info.original_context = model->shape.rope.original_context;
    }
    for (uint32_t i = 0; i < model->n_row_tables; i++)
        info.table_bytes += model->row_tables[i].n_rows * model->row_tables[i].row_bytes;
    session_count_mul_adds(model, &info.mul_adds_per_token, &info.mul_adds_per_head);
    for (uint32_t i = 0; i < model_n_own_expert_layers(model); i++) {
        const struct expert_layer *l = &model->expert_layers[i];
        info.experts_bytes += l->n_experts * l->read_bytes;
        info.expert_token_bytes += model->shape.n_experts_per_token * l->read_bytes;
        info.expert_bytes = l->read_bytes > info.expert_bytes ? l->read_bytes : info.expert_bytes;
    }
    if (model->source->packed != NULL && packed_is_part(model->source->packed))
        (void)packed_layers_here(model->source->packed, info.layers_here);
    info.has_large_mtp = m->engine.has_large_mtp;
    count_mtp(model, &info);
    return sized_give(out, &info, sizeof info);
}

bool fm_model_format(const struct fm_model *m, unsigned i, struct fm_format_info *out)
{
    if (i >= m->engine.model->n_formats)
        return false;
    const struct model_format_use *use = &m->engine.model->formats[i];
    const struct fm_format_info info = {.name = use->quant->name, .is_expert = use->is_expert,
                                        .n_tensors = use->n_tensors, .n_bytes = use->n_bytes};
    return sized_give(out, &info, sizeof info) == 0;
}

bool fm_number_format(unsigned i, struct fm_number_format *out)
{
    const struct quant *q = quant_at(i);
    if (q == NULL)
        return false;
    const unsigned cols = 128 * q->block, rows = 128; /* whole blocks in every format */
    const double bits = 8.0 * (double)quant_matrix_bytes(q, rows, cols);
    const struct fm_number_format format = {.name = q->name,
                                            .bits_per_weight = bits / ((double)rows * cols),
                                            .can_be_made = q->encode_row != NULL};
    return sized_give(out, &format, sizeof format) == 0;
}

bool fm_model_recall(const struct fm_model *m, unsigned i, double *recall)
{
    struct lookahead_layer layer;
    uint32_t within;
    const struct stage *stage = engine_find_expert_layer(&m->engine, i, &within);
    if (stage == NULL && m->cluster != NULL)
        return cluster_experts(m->cluster, i, NULL, NULL, NULL, recall);
    if (stage == NULL || !forward_recall(stage->forward, within, &layer))
        return false;
    *recall = layer.n_needed > 0 ? (double)layer.n_predicted / (double)layer.n_needed : -1;
    return true;
}

bool fm_model_experts(const struct fm_model *m, unsigned i, bool *resident, uint8_t *levels)
{
    uint32_t within;
    const struct stage *stage = engine_find_expert_layer(&m->engine, i, &within);
    if (stage == NULL)
        return m->cluster != NULL &&
               cluster_experts(m->cluster, i, resident, levels, NULL, NULL);
    const struct heat *heat = expert_cache_heat(stage->cache);
    if (resident != NULL)
        expert_cache_resident(stage->cache, within, resident);
    for (uint32_t e = 0; levels != NULL && e < m->engine.model->shape.n_experts; e++)
        levels[e] = (uint8_t)(heat_level(heat, within, e) * 255 + 0.5);
    return true;
}

bool fm_model_places(const struct fm_model *m, unsigned i, uint8_t *places)
{
    uint32_t within;
    const struct stage *stage = engine_find_expert_layer(&m->engine, i, &within);
    if (stage == NULL &&
        (m->cluster == NULL || !cluster_experts(m->cluster, i, NULL, NULL, places, NULL)))
        return false;
    const bool has_gpu = stage != NULL && stage->has_gpu;
    if (stage != NULL)
        expert_cache_tiers(stage->cache, within, places);
    for (uint32_t e = 0; e < m->engine.model->shape.n_experts; e++)
        places[e] = places[e] == CACHE_TIERS       ? FM_PLACE_DISK
                    : has_gpu && places[e] == 0 ? FM_PLACE_GPU
                                                       : FM_PLACE_MEMORY;
    return true;
}

double fm_model_hit_rate(const struct fm_model *m, uint64_t cache_bytes, unsigned *n_slots)
{
    const struct engine *engine = &m->engine;
    *n_slots = 0;
    if (engine->n_stages != 1 || engine->stages[0].cache == NULL || m->cluster != NULL)
        return -1;
    const struct model_shape *s = &m->engine.model->shape;
    const uint64_t min = (uint64_t)s->n_experts_per_token * m->engine.model->n_expert_layers;
    const uint64_t max = (uint64_t)s->n_experts * m->engine.model->n_expert_layers;
    const uint64_t base = expert_cache_bytes(m->engine.model, 0);
    const uint64_t one = expert_cache_bytes(engine->model, 1) - base;
    const uint64_t slots = cache_bytes > base ? (cache_bytes - base) / one : 0;
    *n_slots = (unsigned)(slots < min ? min : slots > max ? max : slots);
    return expert_cache_hits_with(engine->stages[0].cache, *n_slots);
}

static void add_disk_stats(const struct engine *e, struct fm_stats *stats)
{
    for (uint32_t i = 0; i < e->n_stages; i++) {
        struct expert_store *store = e->stages[i].store;
        const struct source *source = e->stages[i].model->source;
        if (store == NULL || source->n_disks < 2)
            continue;
        stats->n_disks = source->n_disks;
        stats->is_mirrored = source->is_mirrored;
        for (unsigned d = 0; d < source->n_disks; d++) {
            const struct disk_load load = expert_store_disk(store, d);
            struct fm_disk_stats *disk = &stats->disks[d];
            disk->folder = source->disks[d].folder;
            disk->is_lost |= load.is_lost;
            disk->bytes_read += load.bytes;
            disk->busy_ns += load.busy_ns;
        }
    }
}

/* Adds the statistics of the expert caches. */
static void add_cache_stats(const struct engine *e, struct fm_stats *stats)
{
    struct expert_cache_stats cache;
    uint32_t within;
    const struct stage *stage = engine_find_expert_layer(e, 0, &within);
    if (stage == NULL || !engine_cache_stats(e, &cache))
        return;
    stats->n_cache_slots = cache.n_slots;
    stats->n_expert_hits = cache.n_hits;
    stats->n_expert_misses = cache.n_misses;
    stats->n_expert_hits_gpu = stage->has_gpu ? cache.n_hits - cache.n_hits_below : 0;
    stats->n_experts_sent = cache.n_sent;
    stats->n_experts_moved_up = cache.n_moved_up;
    stats->n_experts_moved_down = cache.n_moved_down;
    stats->n_expert_late = cache.n_late;
    stats->n_layers_read = cache.n_plans_read;
    stats->n_guesses = cache.n_guesses;
    stats->n_guesses_used = cache.n_guesses_used;
    stats->n_warmed = cache.n_warmed;
    stats->bytes_read = cache.bytes_read;
    stats->read_wait_ns = cache.wait_ns;
    stats->reader = stage->reader_name;
    stats->io = expert_store_is_direct(stage->store) ? "direct" : "page";
    stats->policy = heat_policy_name(e->streaming.policy);
    add_disk_stats(e, stats);
}

static void add_gpu_stats(const struct stage *stage, struct fm_stats *stats)
{
    const struct budget *b = &stage->device;
    stats->gpu = stage->be->level;
    stats->cpu_level = stage->host_be != NULL ? stage->host_be->level : stage->be->level;
    stats->gpu_budget_bytes = b->total;
    stats->gpu_dense_bytes = b->dense;
    stats->gpu_cache_bytes = b->cache;
    stats->gpu_kv_bytes = b->sessions + b->kv;
    stats->gpu_scratch_bytes = b->scratch;
    stats->n_gpu_slots = b->n_slots;
    stats->gpu_min_bytes = b->min;
    stats->gpu_max_bytes = b->max;
    if (stage->host_be == NULL)
        return;
    struct far_stats far;
    forward_far_stats(stage->forward, &far);
    stats->n_experts_computed = far.n_computed;
    stats->expert_send_ns = far.send_ns;
    stats->expert_compute_ns = far.compute_ns;
}

static void add_draft_stats(const struct fm_draft_counts *counts, struct fm_stats *stats)
{
    memcpy(stats->n_drafted_by, counts->n_drafted_by, sizeof stats->n_drafted_by);
    memcpy(stats->n_drafts_accepted_by, counts->n_drafts_accepted_by,
           sizeof stats->n_drafts_accepted_by);
    memcpy(stats->n_draft_passes, counts->n_draft_passes, sizeof stats->n_draft_passes);
    for (unsigned s = 0; s < FM_DRAFT_SOURCES; s++)
        for (unsigned i = 0; i < FM_DRAFTS_MAX; i++) {
            stats->n_drafted[i] += counts->n_drafted_by[s][i];
            stats->n_drafts_accepted[i] += counts->n_drafts_accepted_by[s][i];
        }
}

int fm_model_stats(const struct fm_model *m, struct fm_stats *out)
{
    const struct engine *e = &m->engine;
    struct fm_stats stats = {.memory_resident_peak_bytes = plat_resident_peak_bytes(),
                             .approximate = approximate_label(m)};
    struct budget b;
    if (e->n_stages == 0) /* only headers were read */
        return sized_give(out, &stats, sizeof stats);
    session_cluster_refresh(m);
    engine_budget(e, &b);
    stats = (struct fm_stats){
        .memory_budget_bytes = b.total,
        .memory_min_bytes = b.min,
        .memory_max_bytes = b.max,
        .memory_program_bytes = b.program + b.caller,
        .memory_dense_bytes = b.dense,
        .memory_cache_bytes = b.cache,
        .memory_kv_bytes = b.sessions + b.kv,
        .memory_kv_max_bytes = b.sessions + budget_kv_max(&b),
        .memory_scratch_bytes = b.scratch,
        .memory_resident_peak_bytes = plat_resident_peak_bytes(),
        .n_shrinks = e->elastic.n_shrinks,
        .n_grows = e->elastic.n_grows,
        .prefill_chunk = b.max_rows,
        .n_context = b.n_context,
        .n_threads = b.n_threads,
        .cpu_level = e->stages[0].be->level,
        .n_prefill_tokens = m->n_prefill_tokens,
        .prefill_ns = m->prefill_ns,
        .n_decode_tokens = m->n_decode_tokens,
        .decode_ns = m->decode_ns,
        .n_decode_passes = m->n_decode_passes,
        .routes = m->routes != NULL ? m->routes->label : NULL,
        .approximate = approximate_label(m),
    };
    add_draft_stats(&m->draft_counts, &stats);
    add_cache_stats(e, &stats);
    if (e->stages[0].has_gpu)
        add_gpu_stats(&e->stages[0], &stats);
    return sized_give(out, &stats, sizeof stats);
}

int fm_model_set_memory(struct fm_model *m, uint64_t bytes, struct fm_error *err)
{
    if (m->is_metadata_only)
        return err_set(err, FM_ERR_ARG, "the model was opened for its metadata only");
    return elastic_set(&m->engine, bytes, err);
}

int fm_model_set_gpu_memory(struct fm_model *m, uint64_t bytes, struct fm_error *err)
{
    if (m->is_metadata_only || !m->engine.stages[0].has_gpu)
        return err_set(err, FM_ERR_ARG, "the model uses no GPU");
    return elastic_set_device(&m->engine, bytes, err);
}

/* What a plan is made of: one budget, or with a GPU two. */
struct planned {
    struct budget device, host; /* device.total is 0 without a GPU */
    uint64_t min_bytes;         /* the smallest budget of the host's memory; 0: unknown */
};

static int plan_gpu(const struct fm_model *m, const struct fm_model_options *options,
                    const struct budget_terms *terms, struct gpu_choice *gpu,
                    struct planned *made, struct fm_error *err)
{
    struct fm_model_options min = *options;
    struct budget device = {0}, smallest = {0};
    min.memory_bytes = 1; /* never enough */
    int rc = engine_plan_gpu(m->engine.model, terms, gpu->bytes, options, &made->device,
                             &made->host, err);
    if (rc == 0 || rc == FM_ERR_BUDGET)
        (void)engine_plan_gpu(m->engine.model, terms, gpu->bytes, &min, &device, &smallest, NULL);
    made->min_bytes = smallest.need;
    if (rc == FM_ERR_BUDGET || rc == FM_ERR_UNSUPPORTED)
        rc = gpu_refuse(gpu, rc, err);
    return rc;
}

static int plan_host(const struct fm_model *m, const struct fm_model_options *options,
                     const struct budget_terms *terms, struct planned *made, struct fm_error *err)
{
    struct fm_model_options min = *options;
    struct budget smallest;
    min.memory_bytes = 1;
    made->device = (struct budget){0};
    const int rc = budget_plan(&made->host, m->engine.model, terms, options, err);
    if (rc != 0 && (rc != FM_ERR_BUDGET || made->host.need == 0))
        return rc; /* a larger budget would not help */
    /* One byte is never enough, so this computes the minimum. It comes second so that memory made
     * resident by the first call is counted. */
    (void)budget_plan(&smallest, m->engine.model, terms, &min, NULL);
    made->min_bytes = smallest.need;
    return rc;
}

static void fill_plan(const struct planned *made, const char *gpu, struct fm_plan *plan)
{
    const struct budget *b = &made->host, *d = &made->device;
    assert(b->program + b->caller + b->dense + b->sessions + b->kv + b->scratch + b->cache <=
           b->total);
    *plan = (struct fm_plan){
        .memory_budget_bytes = b->total,
        .memory_program_bytes = b->program + b->caller,
        .memory_dense_bytes = b->dense,
        .memory_cache_bytes = b->cache,
        .memory_kv_bytes = b->sessions + b->kv,
        .memory_kv_max_bytes = b->sessions + budget_kv_max(b),
        .memory_scratch_bytes = b->scratch,
        .n_cache_slots = (uint64_t)b->n_slots + d->n_slots,
        .prefill_chunk = b->max_rows,
        .n_context = b->n_context,
        .n_threads = b->n_threads,
        .min_bytes = made->min_bytes,
    };
    if (gpu == NULL)
        return;
    (void)snprintf(plan->gpu, sizeof plan->gpu, "%s", gpu);
    plan->gpu_budget_bytes = d->total;
    plan->gpu_dense_bytes = d->dense;
    plan->gpu_cache_bytes = d->cache;
    plan->gpu_kv_bytes = d->sessions + d->kv;
    plan->gpu_kv_max_bytes = d->sessions + budget_kv_max(d);
    plan->gpu_scratch_bytes = d->scratch;
    plan->n_gpu_slots = d->n_slots;
}

static int make_plan(const struct fm_model *m, const struct fm_model_options *options,
                     struct fm_plan *plan, struct fm_error *err)
{
    struct streaming streaming;
    struct planned made = {0};
    struct gpu_choice gpu = {0};
    if (options->n_stages > 1)
        return err_set(err, FM_ERR_ARG, "a plan is made for one stage, not for %u",
                       options->n_stages);
    int rc = streaming_choose(&streaming, options, err);
    if (rc == 0)
        rc = gpu_check(options, err);
    if (rc == 0)
        rc = gpu_choose(options, &gpu, err);
    if (rc != 0) {
        gpu_drop(&gpu);
        return rc;
    }
    plat_memory_trim();
    io_choose(&streaming, m->engine.model, false);
    streaming_fit(&streaming, m->engine.model);
    const struct budget_terms terms = {
        .kv_format = m->engine.kv_format, .is_elastic = elastic_is_on(options),
        .has_program = true,
        .reader_bytes = streaming_bytes(&streaming, m->engine.model)};
    if (gpu.device != NULL)
        rc = plan_gpu(m, options, &terms, &gpu, &made, err);
    if (rc == 0 && gpu.device == NULL)
        rc = plan_host(m, options, &terms, &made, err);
    plan->min_bytes = made.min_bytes;
    if (rc == 0)
        fill_plan(&made, gpu.device != NULL ? gpu_name(gpu.device) : NULL, plan);
    gpu_drop(&gpu);
    return rc;
}

int fm_model_plan(const struct fm_model *m, const struct fm_model_options *options,
                  struct fm_plan *plan, struct fm_error *err)
{
    struct own_options own;
    struct fm_plan made = {0};
    int rc = sized_check(plan, "fm_plan", err);
    if (rc == 0)
        rc = own_options_take(&own, options, err);
    if (rc == 0)
        rc = make_plan(m, &own.o, &made, err);
    /* also after a failure; a wrong size was refused above */
    (void)sized_give(plan, &made, sizeof made);
    return rc;
}
