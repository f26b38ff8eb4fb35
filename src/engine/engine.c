#include "engine/engine.h"

#include <assert.h>
#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes_text.h"
#include "base/limits.h"
#include "base/link.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"

/* ---- choices --------------------------------------------------------------------------------- */

static int choose_kv_format(struct engine *e, const char *name, struct fm_error *err)
{
    e->kv_format = name == NULL ? &kv_f16 : kv_find(name);
    if (e->kv_format != NULL)
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

static int choose_stages(const struct fm_model_options *options, struct fm_error *err)
{
    for (unsigned i = 0; options->n_stages > 1 && i < options->n_stages; i++)
        if (options->stages[i].memory_bytes == 0 && !options->metadata_only)
            return err_set(err, FM_ERR_ARG,
                           "stage %u of %u has no memory budget: give one to every stage", i,
                           options->n_stages);
    return 0;
}

int engine_choose(struct engine *e, const struct fm_model_options *options, struct fm_error *err)
{
    int rc = choose_kv_format(e, options->kv, err);
    if (rc == 0)
        rc = streaming_choose(&e->streaming, options, err);
    if (rc == 0)
        rc = gpu_check(options, err);
    if (rc == 0)
        e->elastic.is_on = elastic_is_on(options);
    return rc != 0 ? rc : choose_stages(options, err);
}

static bool wants_mtp(const struct fm_model_options *options)
{
    return options->draft != FM_OFF && options->n_drafts > 0 &&
           options->draft_source != FM_DRAFT_LOOKUP;
}

/* Every slot has room for the largest expert, so larger ones that only draft are not worth it. */
static int leave_large_mtp(struct engine *e, const char *path, const struct model_options *options,
                           struct fm_error *err)
{
    struct model_options without = *options;
    if (!e->model->has_large_mtp)
        return 0;
    log_info("draft", "the block for multi-token prediction is not used: its experts are larger "
             "than the model's; 'flashmoe pack' gives all the same format");
    model_close(e->model);
    e->model = NULL;
    e->has_large_mtp = true;
    without.with_mtp = false;
    return model_open(path, &without, &e->model, err);
}

int engine_open_model(struct engine *e, const char *path, const struct fm_model_options *options,
                      struct fm_error *err)
{
    const struct model_options model_options = {
        .families = arch_families(),
        .metadata_only = options->metadata_only || options->n_stages > 1 ||
                         options->cluster != NULL,
        .may_lack_experts = options->cluster != NULL, .may_be_part = options->metadata_only,
        .experts_per_token = options->experts_per_token, .with_mtp = wants_mtp(options)};
    int rc = model_open(path, &model_options, &e->model, err);
    if (rc == 0)
        rc = leave_large_mtp(e, path, &model_options, err);
    if (rc == 0 && options->draft_source == FM_DRAFT_MTP && model_options.with_mtp &&
        !e->model->has_mtp)
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "'%s' has no block for multi-token prediction that this version can use "
                     "(--draft mtp); --draft auto looks tokens up", path);
    return rc != 0 ? rc : sequence_check(e->model, e->kv_format, err);
}

/* ---- the stages ------------------------------------------------------------------------------ */

/* Opens the headers of every stage's layers. A single stage uses the whole model's. */
static int open_stage_models(struct engine *e, const char *path,
                             const struct fm_model_options *options, struct fm_error *err)
{
    uint32_t first = 0;
    int rc = 0;
    if (e->cut.is_on) {
        const struct model_options model_options = {
            .families = arch_families(), .experts_per_token = options->experts_per_token,
            .first_layer = e->cut.first_layer, .end_layer = e->cut.end_layer,
            .n_layers = e->model->shape.n_layers,
            .head = e->cut.with_head ? HEAD_LOADED : HEAD_ELSEWHERE,
            .with_mtp = e->model->has_mtp && e->cut.with_head};
        return model_open(path, &model_options, &e->stages[0].model, err);
    }
    if (options->n_stages <= 1) {
        e->stages[0].model = e->model;
        return 0;
    }
    for (uint32_t i = 0; rc == 0 && i < e->n_stages; i++) {
        const uint32_t n = options->stages[i].n_layers, left = e->model->shape.n_layers - first;
        const uint32_t end = first + n;
        const struct model_options model_options = {
            .families = arch_families(), .experts_per_token = options->experts_per_token,
            .first_layer = first, .end_layer = end,
            .with_mtp = e->model->has_mtp && i + 1 == e->n_stages};
        if (n == 0 || n > left || (i + 1 == e->n_stages && n < left))
            return err_set(err, FM_ERR_ARG,
                           "stage %u has %u layers from layer %u on: every stage needs one, and "
                           "all together the %u layers of the model", i, n, first,
                           e->model->shape.n_layers);
        e->stages[i].index = i;
        rc = model_open(path, &model_options, &e->stages[i].model, err);
        first = end;
    }
    return rc;
}

/* Returns the options of one stage. */
static struct fm_model_options options_of(const struct fm_model_options *options, uint32_t stage)
{
    struct fm_model_options own = *options;
    if (options->n_stages > 1) {
        own.memory_bytes = options->stages[stage].memory_bytes;
        own.n_threads = options->stages[stage].n_threads;
    }
    return own;
}

static int plan_stages(struct engine *e, const struct fm_model_options *options,
                       struct fm_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < e->n_stages; i++) {
        struct stage *stage = &e->stages[i];
        const struct fm_model_options own = options_of(options, i);
        const struct budget_terms terms = {
            .kv_format = e->kv_format, .is_elastic = e->elastic.is_on,
            .has_program = stage->model->first_layer == 0 || e->cut.is_process,
            .n_row_copies = e->cut.n_row_copies, .n_passes = e->cut.n_passes,
            .reader_bytes = streaming_bytes(&e->streaming, stage->model)};
        rc = budget_plan(&stage->budget, stage->model, &terms, &own, err);
        if (rc != 0 && e->n_stages > 1)
            return err_wrap(err, rc, "stage %u", i);
    }
    return rc;
}

int engine_plan_gpu(const struct model *model, const struct budget_terms *host, uint64_t bytes,
                    const struct fm_model_options *options, struct budget *device,
                    struct budget *beside, struct fm_error *err)
{
    struct budget_terms terms = *host;
    struct fm_model_options own = *options;
    terms.place = BUDGET_DEVICE;
    terms.device_bytes = bytes;
    int rc = budget_plan(device, model, &terms, options, err);
    if (rc != 0)
        return rc;
    terms.place = BUDGET_BESIDE;
    terms.n_experts_on_device = device->n_slots;
    own.n_context = device->n_context;
    own.prefill_chunk = device->max_rows;
    rc = budget_plan(beside, model, &terms, &own, err);
    if (rc == 0 && beside->n_max == 0) /* then the GPU must keep those of a token */
        rc = budget_require(device, model,
                            model->shape.n_experts_per_token * model->n_expert_layers, err);
    return rc;
}

/* Divides the GPU's memory and the host's beside it. A GPU that was not asked for is left alone if
 * its memory is too small. */
static int plan_gpu(struct engine *e, const struct fm_model_options *options, struct fm_error *err)
{
    struct stage *stage = &e->stages[0];
    const struct budget_terms terms = {
        .kv_format = e->kv_format, .is_elastic = e->elastic.is_on, .has_program = true,
        .reader_bytes = streaming_bytes(&e->streaming, stage->model)};
    const int rc = engine_plan_gpu(stage->model, &terms, e->gpu.bytes, options, &stage->device,
                                   &stage->budget, err);
    stage->has_gpu = rc == 0;
    return rc != FM_ERR_BUDGET ? rc : gpu_refuse(&e->gpu, rc, err);
}

/* Divides every stage's memory. A batch and a sequence pass all stages, so the smallest context and
 * the smallest chunk of all stages count. */
static int plan(struct engine *e, const struct fm_model_options *options, struct fm_error *err)
{
    struct fm_model_options common = *options;
    int rc = 0;
    if (e->gpu.device != NULL)
        rc = plan_gpu(e, options, err);
    if (rc != 0 || e->gpu.device != NULL)
        return rc;
    rc = plan_stages(e, options, err);
    if (rc != 0 || (e->n_stages == 1 && e->remote == NULL))
        return rc;
    common.n_context = UINT32_MAX;
    common.prefill_chunk = UINT32_MAX;
    for (uint32_t i = 0; i < e->n_stages; i++) {
        const struct budget *b = &e->stages[i].budget;
        common.n_context = b->n_context < common.n_context ? b->n_context : common.n_context;
        common.prefill_chunk = b->max_rows < common.prefill_chunk ? b->max_rows
                                                                  : common.prefill_chunk;
    }
    if (e->remote != NULL)
        rc = e->remote->agree(e->remote->ctx, &common.n_context, &common.prefill_chunk, err);
    return rc != 0 ? rc : plan_stages(e, &common, err);
}

/* Progress over the dense weights of all stages. */
struct load {
    fm_progress_fn *progress; /* NULL: nobody looks */
    void *ctx;
    const struct engine_remote *remote;
    uint64_t before, all;
};

static bool show_load(void *ctx, uint64_t done, uint64_t total)
{
    const struct load *load = ctx;
    (void)total;
    if (load->progress != NULL)
        load->progress(load->ctx, load->before + done, load->all);
    return load->remote == NULL || load->remote->goes_on(load->remote->ctx);
}

static int open_stages(struct engine *e, const struct fm_model_options *options,
                       struct fm_error *err)
{
    struct load load = {.progress = options->progress, .ctx = options->progress_ctx,
                        .remote = e->remote};
    const struct stage_options stage_options = {
        .streaming = &e->streaming, .kv_format = e->kv_format, .checks = e->checks,
        .cache_bias = e->cache_bias, .replace_ids = e->replace_ids,
        .predict_ids = e->predict_ids, .replace_ctx = e->replace_ctx, .cpu = options->cpu,
        .pin_threads = options->pin_threads, .progress = show_load, .progress_ctx = &load,
        .gpu = e->gpu.device};
    e->gpu.device = NULL; /* the stage's from here on */
    int rc = 0;
    for (uint32_t i = 0; i < e->n_stages; i++)
        load.all += model_dense_read_bytes(e->stages[i].model);
    for (uint32_t i = 0; rc == 0 && i < e->n_stages; i++) {
        const uint64_t bytes = model_dense_read_bytes(e->stages[i].model);
        rc = stage_open(&e->stages[i], &stage_options, err);
        e->gpu.has_failed |= e->stages[i].gpu_has_failed;
        load.before += bytes;
    }
    e->streaming.heat_path = NULL; /* borrowed until here */
    return rc;
}

/* Rows are in one place: a pass uses it while it is on the stages, not while it is away. */
static int open_passes(struct engine *e, const struct pass_options *options, struct fm_error *err)
{
    const uint32_t n = e->cut.n_passes > 1 ? e->cut.n_passes : 1;
    const struct pass_options without_rows = {.max_rows = options->max_rows,
                                              .max_segments = options->max_segments};
    int rc = 0;
    e->passes = mem_new(n, sizeof *e->passes, "the batches", err);
    e->away = mem_new(n, sizeof *e->away, "the batches", err);
    if (e->passes == NULL || e->away == NULL)
        return FM_ERR_NOMEM;
    e->n_passes = n;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        rc = pass_open(&e->passes[i], i == 0 ? options : &without_rows, err);
        e->passes[i].rows = e->passes[0].rows;
    }
    return rc == 0 && engine_can_pause(e) ? pass_open(&e->between, &without_rows, err) : rc;
}

bool engine_can_pause(const struct engine *e)
{
    return e->n_stages == 1 && !e->cut.is_on && forward_can_pause(e->stages[0].forward);
}

uint32_t engine_max_rows(const struct engine *e)
{
    return engine_limits(e)->max_rows - forward_held_rows(e->stages[0].forward);
}

int engine_open(struct engine *e, const char *path, const struct fm_model_options *options,
                struct fm_error *err)
{
    e->n_stages = options->n_stages > 1 ? options->n_stages : 1;
    e->stages = mem_new(e->n_stages, sizeof *e->stages, "the stages", err);
    if (e->stages == NULL)
        return FM_ERR_NOMEM;
    int rc = open_stage_models(e, path, options, err);
    if (rc != 0)
        return rc;
    const struct model *own = e->n_stages == 1 ? e->stages[0].model : e->model;
    io_choose(&e->streaming, own, true);
    rc = gpu_choose(options, &e->gpu, err);
    if (rc != 0)
        return rc;
    plat_memory_trim(); /* the JSON trees are gone: do not count them as the program's */
    streaming_fit(&e->streaming, own);
    rc = plan(e, options, err);
    if (rc == 0)
        rc = open_stages(e, options, err);
    if (rc != 0)
        return rc;
    const struct budget *b = engine_limits(e);
    const struct pass_options pass = {
        .max_rows = b->max_rows, .max_segments = b->n_sessions,
        .row_floats = e->n_stages > 1 || e->cut.is_on ? e->model->shape.row_floats : 0};
    rc = open_passes(e, &pass, err);
    if (rc == 0)
        elastic_start(e);
    return rc;
}

void engine_close(struct engine *e)
{
    for (uint32_t i = 0; i < e->n_stages && e->stages != NULL; i++) {
        if (e->stages[i].model == e->model)
            e->model = NULL; /* the stage closes it */
        stage_close(&e->stages[i]);
    }
    gpu_drop(&e->gpu);
    mem_free(e->stages);
    model_close(e->model);
    for (uint32_t i = 0; i < e->n_passes; i++)
        pass_close(&e->passes[i]);
    pass_close(&e->between);
    mem_free(e->passes);
    mem_free(e->away);
    *e = (struct engine){0};
}

struct pass *engine_begin(struct engine *e, const struct batch *batch)
{
    const bool is_between = e->is_computing; /* two layers of another one */
    struct pass *pass = is_between ? &e->between : e->passes;
    const uint64_t begin_ns = plat_now_ns();
    while (!is_between && pass->is_used)
        pass++;
    assert(is_between ? engine_can_pause(e) && !pass->is_used : pass < e->passes + e->n_passes);
    pass->is_used = e->is_computing = true;
    pass_begin(pass, batch);
    for (uint32_t i = 0; i < e->n_stages && pass->n_segments > 0; i++)
        forward_run(e->stages[i].forward, pass);
    e->is_computing = is_between;
    e->busy_ns += is_between ? 0 : plat_now_ns() - begin_ns;
    if (e->remote != NULL && pass->n_segments > 0) {
        e->remote->send(e->remote->ctx, pass);
        pass->is_away = true;
        e->away[e->n_away++] = pass;
    }
    pass_end(pass);
    return pass;
}

/* Ends the pass that was sent first. */
static void land_first(struct engine *e)
{
    struct pass *pass = e->away[0];
    const struct batch_hooks *hooks = &pass->batch->hooks;
    memmove(e->away, e->away + 1, --e->n_away * sizeof *e->away);
    pass->is_away = false;
    e->is_computing = true;
    if (hooks->before_head != NULL)
        hooks->before_head(hooks->ctx);
    e->remote->receive(e->remote->ctx, pass);
    const uint64_t begin_ns = plat_now_ns();
    if (pass->n_segments > 0)
        forward_run_head(e->stages[0].forward, pass);
    e->is_computing = false;
    e->busy_ns += plat_now_ns() - begin_ns;
}

void engine_end(struct engine *e, struct pass *pass)
{
    while (pass->is_away)
        land_first(e);
    pass->is_used = false;
}

/* Whoever asks may have set another rounding mode; results must not depend on it. */
void engine_land(struct engine *e)
{
    fenv_t host;
    if (e->n_away == 0)
        return;
    (void)feholdexcept(&host);
    (void)fesetenv(FE_DFL_ENV);
    while (e->n_away > 0)
        land_first(e);
    (void)fesetenv(&host);
}

/* ---- sequences ------------------------------------------------------------------------------- */

int engine_new_sequence(const struct engine *e, struct sequence **out, struct fm_error *err)
{
    const struct budget *b = engine_limits(e);
    struct sequence_place places[SEQUENCE_PARTS];
    for (uint32_t i = 0; i < e->n_stages; i++)
        places[i] = (struct sequence_place){e->stages[i].model, e->stages[i].be->memory};
    struct sequence_sizes sizes;
    sequence_sizes(e->model, e->kv_format, &sizes);
    const struct sequence_room room = {b->n_context, b->n_marks, b->n_drafts,
                                       sizes.recurrent_bytes > 0};
    int rc = sequence_new(places, e->n_stages, e->kv_format, &room, out, err);
    if (rc != 0 || e->remote == NULL || e->remote->new_sequence == NULL)
        return rc;
    rc = e->remote->new_sequence(e->remote->ctx, &(*out)->far_id, err);
    if (rc == 0) {
        (*out)->far = e->remote->far;
        return 0;
    }
    sequence_free(*out);
    *out = NULL;
    return rc;
}

static int does_not_fit(const struct engine *e, const struct sequence *s, uint32_t n_positions,
                        const uint64_t *has, const uint64_t *wants, struct fm_error *err)
{
    char t[3][BYTES_TEXT];
    uint64_t all = 0, more = 0;
    for (uint32_t i = 0; i < e->n_stages; i++) {
        all += sequence_kv_bytes(&s->parts[i].blocks, n_positions);
        more += wants[i] > has[i] ? wants[i] - has[i] : 0;
    }
    return err_set(err, FM_ERR_BUDGET,
                   "keys and values of %u positions take %s, which is %s more than the session has "
                   "and than a budget of %s can give, with the fewest experts in memory; raise the "
                   "memory budget (--memory%s), free memory or use fewer positions (--context)",
                   n_positions, bytes_text(all, t[0]), bytes_text(more, t[1]),
                   bytes_text(elastic_kv_max(e), t[2]),
                   e->stages[0].has_gpu ? ", or --gpu-memory with a GPU" : "");
}

/* Counts `wants` bytes of the sequence's keys and values in a stage instead of `has`. */
static bool count_kv(struct engine *e, uint32_t stage, uint64_t has, uint64_t wants)
{
    struct stage *s = &e->stages[stage];
    const struct budget *b = stage_state_budget(s);
    assert(b->kv >= has);
    return elastic_change_kv(e, s, b->kv - has + wants);
}

/* Shrinks the caches of the stages that want more than they have. Returns how many stages were
 * looked at: all of them, or those before the first one that has no room. */
static uint32_t make_room(struct engine *e, const uint64_t *has, const uint64_t *wants)
{
    uint32_t n = 0;
    while (n < e->n_stages && (wants[n] <= has[n] || count_kv(e, n, has[n], wants[n])))
        n++;
    return n;
}

/* Has the budget of a stage count what `is` there, of the most that was counted. */
static void count_less(struct engine *e, uint32_t stage, uint64_t has, uint64_t wants, uint64_t is)
{
    const uint64_t counted = wants > has ? wants : has;
    if (is < counted)
        (void)count_kv(e, stage, counted, is); /* fewer bytes always fit */
}

/* Finds the bytes that a part of the sequence has, and those for n_positions. Blocks that other
 * sequences use, too, are theirs. For no more positions than the sequence has, it has enough: one
 * block counts even if all are shared. */
static void find_bytes(const struct sequence *s, const struct sequence_part *part,
                       uint32_t n_positions, uint64_t *has, uint64_t *wants)
{
    const uint32_t n = sequence_keeps_shared(s, part, n_positions);
    const uint64_t kept = n * part->blocks.bytes;
    const uint64_t all = sequence_kv_bytes(&part->blocks, n_positions);
    const uint64_t least = sequence_kv_bytes(&part->blocks, 0);
    *has = sequence_own_bytes(part, part->n_shared) + sequence_unshared_bytes(part, n);
    *wants = all > kept + least ? all - kept : least;
    assert(n_positions > s->position || *wants <= *has);
}

/* Shrinks the caches before the memory is taken, and grows them after it is given back. */
static int reach_here(struct engine *e, struct sequence *s, uint32_t n_positions,
                      struct fm_error *err)
{
    uint64_t has[SEQUENCE_PARTS], wants[SEQUENCE_PARTS];
    for (uint32_t i = 0; i < e->n_stages; i++)
        find_bytes(s, &s->parts[i], n_positions, &has[i], &wants[i]);
    const uint32_t n = make_room(e, has, wants);
    int rc = n < e->n_stages ? does_not_fit(e, s, n_positions, has, wants, err) : 0;
    if (rc == 0) {
        sequence_unshare(s, n_positions);
        rc = sequence_reach(s, n_positions, err);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t is, unused;
        find_bytes(s, &s->parts[i], n_positions, &is, &unused);
        count_less(e, i, has[i], wants[i], is);
    }
    return rc;
}

bool engine_can_share(const struct engine *e, const struct sequence *s)
{
    return !e->model->has_mtp && sequence_can_share(s);
}

/* Returns the bytes of a part of both sequences, those that `from` shares from block `first` on
 * included, if the two share so many blocks. */
static uint64_t shared_bytes(const struct sequence_part *to, uint32_t n_to,
                             const struct sequence_part *from, uint32_t n_from, uint32_t first)
{
    return sequence_own_bytes(to, n_to) + sequence_own_bytes(from, n_from) +
           (n_from - first) * from->blocks.bytes;
}

int engine_share(struct engine *e, struct sequence *to, struct sequence *from, uint32_t n_positions,
                 struct fm_error *err)
{
    uint64_t has[SEQUENCE_PARTS], wants[SEQUENCE_PARTS];
    uint32_t first[SEQUENCE_PARTS];
    assert(engine_can_share(e, to));
    for (uint32_t i = 0; i < e->n_stages; i++) {
        const struct sequence_part *dst = &to->parts[i], *src = &from->parts[i];
        const uint32_t n = n_positions / src->blocks.n_positions;
        first[i] = src->n_shared;
        has[i] = shared_bytes(dst, dst->n_shared, src, first[i], first[i]);
        wants[i] = shared_bytes(dst, n, src, n > first[i] ? n : first[i], first[i]);
    }
    const uint32_t n_ready = make_room(e, has, wants);
    const int rc = n_ready < e->n_stages ? does_not_fit(e, to, n_positions, has, wants, err)
                                         : sequence_share(to, from, n_positions, err);
    for (uint32_t i = 0; i < n_ready; i++) {
        const struct sequence_part *dst = &to->parts[i], *src = &from->parts[i];
        count_less(e, i, has[i], wants[i],
                   shared_bytes(dst, dst->n_shared, src, src->n_shared, first[i]));
    }
    return rc;
}

int engine_reach(struct engine *e, struct sequence *s, uint32_t n_positions, struct fm_error *err)
{
    const uint32_t had = s->far_positions;
    int rc = reach_here(e, s, n_positions, err);
    if (rc != 0 || s->far == NULL)
        return rc;
    rc = e->remote->reach(e->remote->ctx, s, n_positions, err);
    if (rc != 0)
        (void)reach_here(e, s, had < n_positions ? had : n_positions, NULL); /* fewer fit */
    return rc;
}

/* ---- knowing --------------------------------------------------------------------------------- */

void engine_budget(const struct engine *e, struct budget *sum)
{
    *sum = (struct budget){0};
    for (uint32_t i = 0; i < e->n_stages; i++)
        budget_add(sum, &e->stages[i].budget);
}

struct stage *engine_find_expert_layer(const struct engine *e, uint32_t expert_layer,
                                       uint32_t *within)
{
    for (uint32_t i = 0; i < e->n_stages; i++) {
        const struct model *model = e->stages[i].model;
        *within = expert_layer - model->first_expert_layer;
        if (expert_layer >= model->first_expert_layer && *within < model_n_own_expert_layers(model))
            return &e->stages[i];
    }
    return NULL;
}

/* The way to the memory of the last stage, or NULL: it is the host's. */
static const struct memory *far_memory(const struct engine *e)
{
    const struct memory *memory = e->stages[e->n_stages - 1].be->memory;
    return memory->link != NULL ? memory : NULL;
}

int engine_make_pages(const struct engine *e, uint64_t bytes, const char *what,
                      struct engine_pages *pages, struct fm_error *err)
{
    const struct memory *memory = far_memory(e);
    *pages = (struct engine_pages){.bytes = mem_round_up(bytes, MEM_PAGE)};
    pages->at = mem_new_aligned(MEM_PAGE, pages->bytes, what, err);
    if (pages->at == NULL)
        return FM_ERR_NOMEM;
    if (memory != NULL)
        pages->is_locked = memory->link->pin(memory, pages->at, pages->bytes);
    return 0;
}

void engine_free_pages(const struct engine *e, struct engine_pages *pages)
{
    const struct memory *memory = far_memory(e);
    if (pages->is_locked)
        memory->link->unpin(memory, pages->at, pages->bytes);
    mem_free(pages->at);
    *pages = (struct engine_pages){0};
}

void engine_accept_draft(struct engine *e, const struct sequence *sequence, uint32_t draft,
                         const uint32_t *ids)
{
    struct expert_use uses[LIMIT_TOP_K];
    const uint32_t k = e->model->shape.n_experts_per_token;
    assert(k <= LIMIT_TOP_K);
    for (uint32_t l = 0; l < model_n_own_expert_layers(e->model); l++) {
        uint32_t within = 0;
        struct stage *stage = engine_find_expert_layer(e, l, &within);
        for (uint32_t i = 0; i < k; i++)
            uses[i] = (struct expert_use){.expert = ids[l * k + i], .n_uses = 1};
        if (stage != NULL)
            expert_cache_accept(stage->cache, within, uses, k);
    }
    if (sequence->far != NULL)
        e->remote->accept(e->remote->ctx, sequence->far_id, draft);
}

bool engine_cache_stats(const struct engine *e, struct expert_cache_stats *sum)
{
    bool has_cache = false;
    *sum = (struct expert_cache_stats){0};
    for (uint32_t i = 0; i < e->n_stages; i++) {
        struct expert_cache_stats s;
        if (e->stages[i].cache == NULL)
            continue;
        has_cache = true;
        expert_cache_stats(e->stages[i].cache, &s);
        sum->n_slots += s.n_slots;
        sum->n_hits += s.n_hits;
        sum->n_misses += s.n_misses;
        sum->n_hits_below += s.n_hits_below;
        sum->n_plans_read += s.n_plans_read;
        sum->n_moved_up += s.n_moved_up;
        sum->n_moved_down += s.n_moved_down;
        sum->n_sent += s.n_sent;
        sum->n_late += s.n_late;
        sum->n_guesses += s.n_guesses;
        sum->n_guesses_used += s.n_guesses_used;
        sum->n_warmed += s.n_warmed;
        sum->bytes_read += s.bytes_read;
        sum->wait_ns += s.wait_ns;
    }
    if (e->remote != NULL && e->remote->add_cache_stats != NULL)
        e->remote->add_cache_stats(e->remote->ctx, sum);
    return has_cache;
}
