/* How experts travel: reader, store, cache and the heat that is kept from run to run. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cache/heat_file.h"
#include "flashmoe_lab.h"
#include "session/engine_internal.h"
#include "store/reader_measure.h"

#define DEFAULT_DEPTH 8

static bool is_word(const char *text, const char *word)
{
    return text != NULL && strcmp(text, word) == 0;
}

int streaming_choose(struct streaming *s, const struct fm_model_options *options,
                     struct fm_error *err)
{
    const char *io = options->io != NULL ? options->io : "auto";
    const char *reader = options->reader != NULL ? options->reader : "pread";
    *s = (struct streaming){
        .io = is_word(io, "page") ? STORE_PAGES : STORE_DIRECT,
        .wants_uring = is_word(reader, "uring"),
        .reader.depth = options->read_depth > 0 ? options->read_depth : DEFAULT_DEPTH,
        .policy = options->policy != NULL ? heat_policy_find(options->policy) : HEAT_LCP,
        .heat_path = options->heat_path,
        .is_auto = is_word(io, "auto"),
        .io_path = options->io_path,
    };
    if (!is_word(io, "auto") && !is_word(io, "page") && !is_word(io, "direct"))
        return err_set(err, FM_ERR_ARG, "experts cannot be read by '%s', only direct, page or auto",
                       io);
    if (!is_word(reader, "pread") && !is_word(reader, "uring"))
        return err_set(err, FM_ERR_ARG, "there is no reader '%s', only pread and uring", reader);
    const char *ahead = options->lookahead != NULL ? options->lookahead : "auto";
    s->lookahead = is_word(ahead, "on")    ? LOOKAHEAD_ON
                   : is_word(ahead, "off") ? LOOKAHEAD_OFF
                                           : LOOKAHEAD_AUTO;
    if (s->lookahead == LOOKAHEAD_AUTO && !is_word(ahead, "auto"))
        return err_set(err, FM_ERR_ARG, "looking ahead can be on, off or auto, not '%s'", ahead);
    if (s->policy == N_HEAT_POLICIES)
        return err_set(err, FM_ERR_ARG, "there is no cache policy '%s', only lcp and lru",
                       options->policy);
    if (s->reader.depth > READER_MAX_DEPTH)
        return err_set(err, FM_ERR_ARG, "%u reads at a time asked for, at most %d are possible",
                       s->reader.depth, READER_MAX_DEPTH);
    return 0;
}

void streaming_fit(struct streaming *s, const struct model *model)
{
    s->reader.bounce_bytes = expert_store_bounce_bytes(model, s->io);
}

uint64_t streaming_bytes(const struct streaming *s, const struct model *model)
{
    return reader_bytes(&s->reader) + s->reader.depth * expert_store_page_bytes(model, s->io);
}

int streaming_open_reader(const struct streaming *s, struct reader **reader, struct fm_error *err)
{
    struct fm_error why = {0};
    int rc = s->wants_uring ? reader_uring_open(&s->reader, reader, &why) : FM_ERR_UNSUPPORTED;
    if (rc == 0)
        return 0;
    if (rc != FM_ERR_UNSUPPORTED)
        return err_set(err, rc, "%s", why.text);
    if (s->wants_uring)
        log_info("reader", "%s; reading with threads", why.text);
    return reader_pread_open(&s->reader, reader, err);
}

/* The memory is the system's until an expert is read into it, so that a cache can have room for
 * what it may become; where the system counts it all the same, it cannot grow. */
static int open_cache(struct fm_model *m, struct fm_error *err)
{
    struct budget *b = &m->budget;
    const enum heat_policy policy = m->streaming.policy;
    int rc = expert_cache_open(m->model, m->store, m->be->memory, b->n_most, policy, &m->cache,
                           err);
    if (rc == FM_ERR_NOMEM && b->n_most > b->n_slots) {
        log_info("cache", "%s; the cache cannot grow", err != NULL ? err->text : "out of memory");
        budget_stop_growth(b, m->model);
        rc = expert_cache_open(m->model, m->store, m->be->memory, b->n_most, policy, &m->cache,
                           err);
    }
    if (rc == 0 && b->n_slots < b->n_most) {
        expert_cache_resize(m->cache, b->n_slots);
        expert_cache_settle(m->cache);
    }
    return rc;
}

int streaming_open(struct fm_model *m, bool checks, struct fm_error *err)
{
    struct streaming *s = &m->streaming;
    if (m->model->n_expert_layers == 0)
        return 0;
    struct reader *reader;
    int rc = streaming_open_reader(s, &reader, err);
    if (rc != 0)
        return rc;
    m->reader_name = reader->ops->name;
    rc = expert_store_open(m->model, reader, s->io, checks, &m->store, err);
    if (rc == 0) {
        expert_store_interleave(m->store);
        rc = open_cache(m, err);
    }
    if (rc != 0 || s->heat_path == NULL)
        return rc;
    m->heat_path = mem_strdup(s->heat_path, err);
    s->heat_path = NULL;
    if (m->heat_path == NULL)
        return FM_ERR_NOMEM;
    if (heat_file_load(m->heat_path, m->model, expert_cache_heat(m->cache)))
        expert_cache_warm(m->cache);
    return 0;
}

void streaming_close(struct fm_model *m)
{
    struct fm_error err;
    if (m->heat_path != NULL && m->cache != NULL &&
        heat_file_save(m->heat_path, m->model, expert_cache_heat(m->cache), &err) != 0)
        log_warn("cache", "the heat file is not kept (--no-heat: none is made): %s", err.text);
    mem_free(m->heat_path);
    if (m->cache != NULL)
        expert_cache_stop_warming(m->cache);
    expert_store_close(m->store); /* before the cache: its slots are what reads write to */
    expert_cache_close(m->cache);
}

/* ---- measuring ------------------------------------------------------------------------------- */

#define PASSES 7
#define PASSES_QUICK 3
#define PASS_BYTES (512ull << 20)
/* More than processors' caches hold. */
#define MEASURE_MEMORY_BYTES (1ull << 30)

/* A quarter of what the model itself would take, so that the measurement stays far inside. */
static uint64_t measure_memory(uint64_t budget)
{
    const uint64_t quarter = (budget > 0 ? budget : plat_memory_available()) / 4;
    return quarter < MEASURE_MEMORY_BYTES ? quarter : MEASURE_MEMORY_BYTES;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Through the page cache, too, experts come from the disk: of a model that does not fit into memory
 * few pages are there. */
static int measure(const struct model *model, const struct streaming *s, bool quick,
                   uint64_t memory_bytes, struct fm_disk_speeds *speeds, struct fm_error *err)
{
    struct expert_store *store;
    struct reader *reader;
    double figures[READER_PASSES_MAX];
    int rc = streaming_open_reader(s, &reader, err);
    if (rc != 0)
        return rc;
    const struct reader_measurement how = {
        .n_experts_at_a_time = s->reader.depth,
        .n_passes = quick ? PASSES_QUICK : PASSES,
        .pass_bytes = quick ? PASS_BYTES / 2 : PASS_BYTES,
        .memory_bytes = memory_bytes,
    };
    speeds->reader = reader->ops->name;
    const enum store_io io = s->io == STORE_PAGES ? STORE_PAGES_DROPPED : s->io;
    rc = expert_store_open(model, reader, io, false, &store, err);
    if (rc != 0)
        return rc;
    speeds->io = expert_store_is_direct(store) ? "direct" : "page";
    rc = reader_measure(model, store, &how, figures, err);
    expert_store_close(store);
    if (rc != 0)
        return rc;
    qsort(figures, how.n_passes, sizeof figures[0], compare);
    speeds->read = (struct fm_speed){.median = figures[how.n_passes / 2], .least = figures[0],
                                     .most = figures[how.n_passes - 1]};
    return 0;
}

int streaming_open_model(const char *model_path, const struct fm_model_options *options,
                         struct streaming *s, struct model **model, struct fm_error *err)
{
    struct fm_model_options defaults;
    const struct model_options model_options = {.families = arch_families()};
    fm_model_options_init(&defaults);
    *model = NULL;
    int rc = streaming_choose(s, options != NULL ? options : &defaults, err);
    if (rc == 0)
        rc = model_open(model_path, &model_options, model, err);
    if (rc == 0 && (*model)->n_expert_layers == 0)
        rc = err_set(err, FM_ERR_ARG, "'%s' has no routed experts to read", model_path);
    return rc;
}

int fm_disk_measure(const char *model_path, const struct fm_model_options *options, bool quick,
                    struct fm_disk_speeds *speeds, struct fm_error *err)
{
    struct streaming s;
    struct model *model;
    *speeds = (struct fm_disk_speeds){0};
    int rc = streaming_open_model(model_path, options, &s, &model, err);
    if (rc == 0) {
        io_choose(&s, model, false);
        streaming_fit(&s, model);
        speeds->read_depth = s.reader.depth;
        for (uint32_t i = 0; i < model->n_expert_layers; i++)
            if (model->expert_layers[i].read_bytes > speeds->expert_bytes)
                speeds->expert_bytes = model->expert_layers[i].read_bytes;
        rc = measure(model, &s, quick,
                     measure_memory(options != NULL ? options->memory_bytes : 0), speeds, err);
    }
    model_close(model);
    return rc;
}
