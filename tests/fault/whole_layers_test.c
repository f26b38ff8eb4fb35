/* Layers that a backend uses without a plan: the cache says where all their experts are, says when
 * that has changed, and waits for queued operations before it has another expert read into a slot.
 * And layers that are read ahead for a prompt, which other plans leave alone.
 * The memory here is the host's but claims to be another's; the reader reads at once, or when it
 * is told to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "base/mem.h"
#include "base/plat.h"
#include "cache/expert_cache.h"

#define GOLDEN FLASHMOE_TEST_DIR "/golden/"
#define MAX_LAYERS 8
#define MAX_EXPERTS 16

/* ---- a memory with a queue, and a reader ---------------------------------------------------- */

static uint64_t n_queued, n_done; /* operations */

static uint64_t fence(const struct memory *m)
{
    (void)m;
    return n_queued > n_done ? n_queued : 0;
}

static void wait_for(const struct memory *m, uint64_t until)
{
    (void)m;
    n_done = until > n_done ? until : n_done;
}

static bool is_held; /* reads wait */
static struct read_op *held;

static void read_now(struct reader *reader, struct read_op *op)
{
    (void)reader;
    assert_int_equal(n_done, n_queued); /* nothing that is queued may still use the slot */
    if (is_held) {
        op->next = held;
        held = op;
        return;
    }
    op->done(op, plat_read_some(op->fd, op->dst, op->bytes, op->offset));
}

static void read_held(struct reader *reader)
{
    is_held = false;
    while (held != NULL) {
        struct read_op *op = held;
        held = op->next;
        read_now(reader, op);
    }
}

static void close_reader(struct reader *reader)
{
    mem_free(reader);
}

static const struct reader_ops reader_ops = {"at once", read_now, close_reader};

/* ---- the cache ------------------------------------------------------------------------------ */

struct fixture {
    struct model *model;
    struct memory_ops ops;
    struct memory memory;
    struct expert_store *store;
    struct expert_cache *cache;
    uint32_t n_all; /* experts */
    /* What a backend would have written down. */
    uint64_t generations[MAX_LAYERS], bases[MAX_LAYERS][MAX_EXPERTS];
};

static void set_up(struct fixture *f, bool is_host)
{
    struct fm_error err;
    const struct model_options options = {.families = arch_families()};
    *f = (struct fixture){.ops = *memory_host.ops};
    if (model_open(GOLDEN "qwen3_moe", &options, &f->model, &err) != 0)
        fail_msg("%s", err.text);
    assert_true(f->model->n_expert_layers <= MAX_LAYERS);
    for (uint32_t l = 0; l < f->model->n_expert_layers; l++) {
        assert_true(f->model->expert_layers[l].n_experts <= MAX_EXPERTS);
        f->n_all += f->model->expert_layers[l].n_experts;
    }
    f->ops.fence = fence;
    f->ops.wait = wait_for;
    f->memory = (struct memory){.ops = &f->ops, .is_host = is_host};
    n_queued = n_done = 0;
    struct reader *reader = mem_new(1, sizeof *reader, "the reader", NULL);
    assert_non_null(reader);
    reader->ops = &reader_ops;
    assert_int_equal(expert_store_open(f->model, &reader, STORE_PAGES, false, &f->store, NULL), 0);
    const struct cache_tier tier = {&f->memory, f->n_all};
    assert_int_equal(expert_cache_open(f->model, f->store, &tier, 1, HEAT_LCP, &f->cache, NULL), 0);
}

static void tear_down(struct fixture *f)
{
    expert_cache_stop_warming(f->cache);
    expert_store_close(f->store);
    expert_cache_close(f->cache);
    model_close(f->model);
}

/* Compares an expert with the file. */
static void check_expert(const struct fixture *f, uint32_t l, uint32_t e, const char *slot)
{
    const struct expert_layer *layer = &f->model->expert_layers[l];
    static char want[1 << 16];
    for (uint32_t i = 0; i < layer->n_extents; i++) {
        const struct extent *x = &layer->extents[(size_t)e * layer->n_extents + i];
        const struct source_file *file = &f->model->source->files[x->file];
        assert_true(x->bytes <= sizeof want);
        assert_int_equal(plat_read_at(file->fd, file->path, want, x->bytes, x->offset, NULL), 0);
        assert_memory_equal(slot + x->slot_offset, want, x->bytes);
    }
}

/* Uses a layer as a backend does: with the addresses that it wrote down for this generation.
 * Returns false if an expert is missing. */
static bool use_layer(struct fixture *f, uint32_t l)
{
    uint64_t generation;
    if (!expert_cache_has_all(f->cache, l, &generation))
        return false;
    assert_true(generation > 0);
    if (generation != f->generations[l])
        expert_cache_bases(f->cache, l, f->bases[l]);
    f->generations[l] = generation;
    for (uint32_t e = 0; e < f->model->expert_layers[l].n_experts; e++)
        check_expert(f, l, e, (const char *)expert_cache_origin(f->cache) + f->bases[l][e]);
    n_queued++;
    expert_cache_use_all(f->cache);
    return true;
}

/* Returns how many layers are whole. */
static uint32_t use_layers(struct fixture *f)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < f->model->n_expert_layers; l++)
        n += use_layer(f, l);
    return n;
}

static void resize(struct fixture *f, uint32_t n_slots)
{
    expert_cache_resize(f->cache, 0, n_slots);
    expert_cache_settle(f->cache);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_all_are_read(void **state)
{
    (void)state;
    struct fixture f;
    struct expert_cache_stats stats;
    set_up(&f, false);
    assert_int_equal(use_layers(&f), 0);
    expert_cache_read_all(f.cache);
    assert_int_equal(use_layers(&f), f.model->n_expert_layers);
    expert_cache_stats(f.cache, &stats);
    assert_int_equal(stats.n_warmed, f.n_all);
    tear_down(&f);
}

/* The host's own memory has no use for experts that nobody asked for. */
static void test_not_for_the_host(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, true);
    expert_cache_read_all(f.cache);
    resize(&f, f.n_all / 2);
    resize(&f, f.n_all);
    assert_int_equal(use_layers(&f), 0);
    tear_down(&f);
}

/* Experts lose their slots and get others. No address stays behind, and no slot is filled while
 * operations that may use it are queued. */
static void test_sizes(void **state)
{
    (void)state;
    struct fixture f;
    uint32_t random = 3, n_whole = 0;
    set_up(&f, false);
    expert_cache_read_all(f.cache);
    for (int round = 0; round < 200; round++) {
        random = random * 1664525u + 1013904223u;
        const uint32_t n_slots = 1 + (uint32_t)((uint64_t)(random >> 8) * f.n_all >> 24);
        resize(&f, n_slots);
        n_whole += use_layers(&f);
        if (round % 3 == 0) {
            resize(&f, f.n_all);
            assert_int_equal(use_layers(&f), f.model->n_expert_layers);
        }
    }
    assert_true(n_whole > 0); /* in caches that do not have all layers, too */
    tear_down(&f);
}

/* A cache that becomes smaller and larger while it still reads all experts reads all of them. */
static void test_growth_while_reading(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, false);
    is_held = true;
    expert_cache_read_all(f.cache);
    for (uint32_t n = f.n_all - 1; n > f.n_all / 2; n -= 5) {
        expert_cache_resize(f.cache, 0, n);
        (void)expert_cache_shrink(f.cache, UINT64_MAX);
        expert_cache_resize(f.cache, 0, f.n_all);
    }
    assert_int_equal(use_layers(&f), 0);
    read_held(NULL);
    assert_int_equal(use_layers(&f), f.model->n_expert_layers);
    tear_down(&f);
}

/* What was used without a plan counts as with one. */
static void test_counts(void **state)
{
    (void)state;
    struct fixture a, b;
    struct expert_cache_stats with, without;
    const struct expert_use uses[] = {{2, 1, 0}, {5, 2, 1}, {11, 0, 0}};
    struct expert_item items[3];
    uint32_t n;
    set_up(&a, false);
    set_up(&b, false);
    expert_cache_read_all(a.cache);
    expert_cache_read_all(b.cache);
    for (int round = 0; round < 9; round++) {
        const uint32_t layer = (uint32_t)round % a.model->n_expert_layers;
        assert_true(use_layer(&a, layer));
        expert_cache_count(a.cache, layer, 1 + (uint32_t)round % 2, uses, 3);
        expert_cache_begin(b.cache, layer, 1 + (uint32_t)round % 2, uses, 3);
        assert_int_equal(expert_cache_next(b.cache, false, items, 3, &n, NULL), 1);
        assert_int_equal(n, 3);
        expert_cache_end(b.cache);
    }
    expert_cache_stats(a.cache, &without);
    expert_cache_stats(b.cache, &with);
    assert_int_equal(without.n_hits, with.n_hits);
    assert_int_equal(without.n_misses, with.n_misses);
    assert_true(expert_cache_hits_with(a.cache, 20) == expert_cache_hits_with(b.cache, 20));
    const struct heat *x = expert_cache_heat(a.cache), *y = expert_cache_heat(b.cache);
    assert_int_equal(x->n_uses, y->n_uses);
    for (uint32_t l = 0; l < a.model->n_expert_layers; l++)
        for (uint32_t e = 0; e < a.model->expert_layers[l].n_experts; e++)
            assert_true(heat_key(x, l, e) == heat_key(y, l, e));
    /* The coldest go first in both: the same experts stay. */
    bool stays[2][MAX_EXPERTS];
    resize(&a, 9);
    resize(&b, 9);
    for (uint32_t l = 0; l < a.model->n_expert_layers; l++) {
        expert_cache_resident(a.cache, l, stays[0]);
        expert_cache_resident(b.cache, l, stays[1]);
        assert_memory_equal(stays[0], stays[1], a.model->expert_layers[l].n_experts);
    }
    tear_down(&a);
    tear_down(&b);
}

/* Begins and ends a plan that wants nothing. */
static void run_empty_plan(struct fixture *f, uint32_t layer)
{
    struct expert_item item;
    uint32_t n;
    expert_cache_begin(f->cache, layer, 1, NULL, 0);
    assert_int_equal(expert_cache_next(f->cache, false, &item, 1, &n, NULL), 0);
    expert_cache_end(f->cache);
}

/* A plan ends the sweep before it, but not while the prompt is held for plans of others. */
static void test_sweep_is_kept(void **state)
{
    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        struct fixture f;
        bool is_there[MAX_EXPERTS];
        uint32_t n = 0;
        set_up(&f, true);
        is_held = true;
        expert_cache_sweep(f.cache, 0); /* all its reads begin */
        expert_cache_sweep(f.cache, 1); /* so most of these are queued */
        expert_cache_keep_sweep(f.cache, keeps);
        run_empty_plan(&f, 0);
        run_empty_plan(&f, 1);
        read_held(NULL);
        run_empty_plan(&f, 0); /* collects what was read */
        expert_cache_keep_sweep(f.cache, false);
        expert_cache_resident(f.cache, 1, is_there);
        for (uint32_t e = 0; e < f.model->expert_layers[1].n_experts; e++)
            n += is_there[e];
        assert_true(keeps ? n == f.n_all / 8 : n < f.n_all / 8);
        tear_down(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_read), cmocka_unit_test(test_not_for_the_host),
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_growth_while_reading),
        cmocka_unit_test(test_counts), cmocka_unit_test(test_sweep_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
