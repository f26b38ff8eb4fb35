/* Experts are handed out while their checksums are still being computed. Here the checksums
 * complete when the cache waits for nothing else (landings.h; packed_sum_of and packed_sum_of_hash
 * are replaced at link time). Tests what is handed out in the meantime, what verify waits for,
 * what it reports, and that no slot is reused before. Uses nano, whose experts are read at once,
 * and a synthetic model, whose experts are read in pieces.
 *
 *   late_check_test NANO */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "cache/expert_cache.h"
#include "flashmoe_lab.h"
#include "landings.h"

#define N_PLANNED 12

static const char *model_path;

/* ---- checksums that wait --------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    long n_summed; /* number of computed checksums */
    long wrong_at; /* the checksum that is wrong, counted down; 0 for none, -1 for all */
} sums = {.lock = PTHREAD_MUTEX_INITIALIZER};

void __real_packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum);
void __wrap_packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum);
void __real_packed_sum_of_hash(const XXH3_state_t *hash, struct packed_sum *sum);
void __wrap_packed_sum_of_hash(const XXH3_state_t *hash, struct packed_sum *sum);

/* Returns true if the checksum shall be wrong. */
static bool begin_sum(void)
{
    landings_wait();
    pthread_mutex_lock(&sums.lock);
    const bool is_wrong = sums.wrong_at < 0 || (sums.wrong_at > 0 && --sums.wrong_at == 0);
    pthread_mutex_unlock(&sums.lock);
    return is_wrong;
}

static void end_sum(struct packed_sum *sum, bool is_wrong)
{
    sum->bytes[0] ^= is_wrong;
    pthread_mutex_lock(&sums.lock);
    sums.n_summed++;
    pthread_mutex_unlock(&sums.lock);
}

void __wrap_packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum)
{
    const bool is_wrong = begin_sum();
    __real_packed_sum_of(data, bytes, sum);
    end_sum(sum, is_wrong);
}

void __wrap_packed_sum_of_hash(const XXH3_state_t *hash, struct packed_sum *sum)
{
    const bool is_wrong = begin_sum();
    __real_packed_sum_of_hash(hash, sum);
    end_sum(sum, is_wrong);
}

static void set_sums(bool are_late, long wrong_at)
{
    pthread_mutex_lock(&sums.lock);
    sums.wrong_at = wrong_at;
    sums.n_summed = 0;
    pthread_mutex_unlock(&sums.lock);
    landings_hold(are_late);
}

static long n_summed(void)
{
    pthread_mutex_lock(&sums.lock);
    const long n = sums.n_summed;
    pthread_mutex_unlock(&sums.lock);
    return n;
}

/* ---- a cache over the model ------------------------------------------------------------------ */

struct fixture {
    struct model *model;
    struct expert_store *store;
    struct expert_cache *cache;
    struct expert_use uses[N_PLANNED];
};

static void open_cache(struct fixture *f, uint32_t n_slots)
{
    struct fm_error err;
    struct reader *reader;
    const struct model_options options = {.families = arch_families()};
    const struct reader_options depth = {.depth = 8};
    set_sums(false, 0);
    if (model_open(model_path, &options, &f->model, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(reader_pread_open(&depth, &reader, &err), 0);
    assert_int_equal(expert_store_open(f->model, &reader, STORE_PAGES, true, &f->store, &err), 0);
    set_sums(false, 0);
    const struct cache_tier tier = {&memory_host, n_slots};
    assert_int_equal(expert_cache_open(f->model, f->store, &tier, 1, HEAT_LCP,
                                       &f->cache, &err), 0);
    for (uint32_t i = 0; i < N_PLANNED; i++)
        f->uses[i] = (struct expert_use){.expert = 2 * i, .n_uses = 1};
}

static void close_cache(struct fixture *f)
{
    landings_hold(false); /* the store waits for its readers */
    expert_store_close(f->store);
    expert_cache_close(f->cache);
    model_close(f->model);
}

/* Takes everything that the plan hands out. Returns the number, and how many `next` reported as
 * damaged. */
static uint32_t take_all(struct fixture *f, uint32_t *n_damaged)
{
    struct expert_item item;
    struct fm_error err;
    uint32_t n_taken = 0, n;
    int rc;
    *n_damaged = 0;
    while ((rc = expert_cache_next(f->cache, false, &item, 1, &n, &err)) != 0) {
        *n_damaged += rc < 0;
        n_taken += n;
    }
    return n_taken;
}

static uint64_t n_misses(const struct fixture *f)
{
    struct expert_cache_stats stats;
    expert_cache_stats(f->cache, &stats);
    return stats.n_misses;
}

static void run_plan(struct fixture *f, uint32_t n)
{
    uint32_t n_damaged, index;
    struct fm_error err;
    expert_cache_begin(f->cache, 0, 1, f->uses, n);
    assert_int_equal(take_all(f, &n_damaged), n);
    assert_int_equal(n_damaged, 0);
    expert_cache_end(f->cache);
    assert_int_equal(expert_cache_verify(f->cache, &index, &err), 0);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* All experts are handed out and the plan ends before any checksum is known; verify waits for
 * them. */
static void test_handed_out_before(void **state)
{
    (void)state;
    struct fixture f;
    uint32_t n_damaged, index;
    struct fm_error err;
    open_cache(&f, 64);
    set_sums(true, 0);
    expert_cache_begin(f.cache, 0, 1, f.uses, 8);
    assert_int_equal(take_all(&f, &n_damaged), 8);
    expert_cache_end(f.cache);
    assert_int_equal(n_summed(), 0);
    assert_int_equal(expert_cache_verify(f.cache, &index, &err), 0);
    assert_int_equal(n_summed(), 8);
    const uint64_t n_before = n_misses(&f);
    run_plan(&f, 8);
    assert_int_equal(n_misses(&f), n_before); /* they stayed */
    close_cache(&f);
}

/* A damaged expert is reported once, by index and in words, and the next plan reads it again. */
static void test_damaged(void **state)
{
    (void)state;
    for (long wrong_at = 1; wrong_at <= 8; wrong_at++) {
        struct fixture f;
        uint32_t n_damaged, index = UINT32_MAX;
        unsigned expert, layer;
        struct fm_error err;
        open_cache(&f, 64);
        set_sums(true, wrong_at);
        expert_cache_begin(f.cache, 0, 1, f.uses, 8);
        assert_int_equal(take_all(&f, &n_damaged), 8);
        expert_cache_end(f.cache);
        assert_int_equal(expert_cache_verify(f.cache, &index, &err), FM_ERR_FORMAT);
        const int n = sscanf(err.text, "expert %u of layer %u is damaged: ", &expert, &layer);
        assert_int_equal(n, 2);
        assert_true(index < 8 && expert == f.uses[index].expert && layer == 0);
        assert_int_equal(expert_cache_verify(f.cache, &index, &err), 0);
        const uint64_t n_before = n_misses(&f);
        run_plan(&f, 8);
        assert_int_equal(n_misses(&f), n_before + 1);
        close_cache(&f);
    }
}

/* Few slots are reused, but not while a checksum is being computed from one, which would make it
 * wrong. A damaged expert is reported by then or by verify, and the plan continues. */
static void test_few_slots(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 30; round++) {
        struct fixture f;
        uint32_t n_damaged, index;
        struct fm_error err;
        const bool is_damaged = round % 3 == 2;
        open_cache(&f, 1 + round % 4);
        set_sums(round % 2 == 0, is_damaged ? 1 + round % N_PLANNED : 0);
        expert_cache_begin(f.cache, 0, 1, f.uses, N_PLANNED);
        const uint32_t n_taken = take_all(&f, &n_damaged);
        expert_cache_end(f.cache);
        while (expert_cache_verify(f.cache, &index, &err) < 0)
            n_damaged++;
        assert_int_equal(n_damaged, is_damaged);
        assert_true(n_taken == N_PLANNED || n_taken + n_damaged == N_PLANNED);
        assert_int_equal(n_summed(), N_PLANNED);
        run_plan(&f, N_PLANNED);
        close_cache(&f);
    }
}

/* A plan that is ended early leaves nothing unverified. */
static void test_ended_early(void **state)
{
    (void)state;
    for (uint32_t n_taken = 0; n_taken < 4; n_taken++) {
        struct fixture f;
        struct expert_item item;
        uint32_t n, index;
        struct fm_error err;
        open_cache(&f, 64);
        set_sums(true, 3);
        expert_cache_begin(f.cache, 0, 1, f.uses, 8);
        for (uint32_t i = 0; i < n_taken; i++)
            assert_int_equal(expert_cache_next(f.cache, false, &item, 1, &n, &err), 1);
        expert_cache_end(f.cache);
        assert_int_equal(expert_cache_verify(f.cache, &index, &err), FM_ERR_FORMAT);
        assert_int_equal(expert_cache_verify(f.cache, &index, &err), 0);
        assert_int_equal(n_summed(), 8);
        run_plan(&f, 8);
        close_cache(&f);
    }
}

/* The whole cache is given back before verify is called: a damaged expert does not block it. */
static void test_shrunk_before(void **state)
{
    (void)state;
    for (uint32_t n_slots = 1; n_slots <= 9; n_slots += 4) {
        struct fixture f;
        uint32_t n_damaged, index;
        struct fm_error err;
        open_cache(&f, 16);
        set_sums(true, 3);
        expert_cache_begin(f.cache, 0, 1, f.uses, 8);
        assert_int_equal(take_all(&f, &n_damaged), 8);
        expert_cache_end(f.cache);
        expert_cache_resize(f.cache, 0, n_slots);
        expert_cache_settle(f.cache);
        assert_int_equal(expert_cache_verify(f.cache, &index, &err), FM_ERR_FORMAT);
        assert_int_equal(expert_cache_verify(f.cache, &index, &err), 0);
        run_plan(&f, 8);
        close_cache(&f);
    }
}

/* Every checksum is wrong, for more experts than there are concurrent reads. */
static void test_all_damaged(void **state)
{
    (void)state;
    struct fixture f;
    struct expert_use uses[256];
    struct expert_item item;
    struct fm_error err;
    uint32_t n_damaged = 0, n, index;
    int rc;
    open_cache(&f, 4);
    const uint32_t n_experts = f.model->expert_layers[0].n_experts;
    for (uint32_t i = 0; i < n_experts; i++)
        uses[i] = (struct expert_use){.expert = i, .n_uses = 1};
    set_sums(false, -1);
    expert_cache_begin(f.cache, 0, 1, uses, n_experts);
    while ((rc = expert_cache_next(f.cache, false, &item, 1, &n, &err)) != 0)
        n_damaged += rc < 0;
    expert_cache_end(f.cache);
    while (expert_cache_verify(f.cache, &index, &err) < 0)
        n_damaged++;
    assert_int_equal(n_damaged, n_experts);
    set_sums(false, 0);
    run_plan(&f, N_PLANNED);
    close_cache(&f);
}

static char folder[] = "late-check-XXXXXX";

static void remove_folder(void)
{
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) != 0)
        (void)fprintf(stderr, "%s is left behind\n", folder);
}

/* Writes a model whose experts are read in pieces to a new folder. */
static int make_wide(char *path, size_t bytes)
{
    const uint32_t numbers[FM_SYNTH_NUMBERS] = {
        [FM_SYNTH_LAYERS] = 1,    [FM_SYNTH_EXPERTS] = 2 * N_PLANNED,
        [FM_SYNTH_USED] = 2,      [FM_SYNTH_HIDDEN] = 512,
        [FM_SYNTH_VOCAB] = 1024,  [FM_SYNTH_EXPERT_WIDTH] = 1024,
    };
    const struct fm_synth_options options = {.size = sizeof options, .numbers = numbers,
                                             .n_numbers = FM_SYNTH_NUMBERS, .seed = 1};
    struct fm_error err = {0};
    if (mkdtemp(folder) == NULL || atexit(remove_folder) != 0)
        return -1;
    (void)snprintf(path, bytes, "%s/wide.fmoe", folder);
    if (fm_synth("coder-next", path, &options, NULL, &err) != 0)
        fail_msg("%s", err.text);
    return 0;
}

int main(int argc, char **argv)
{
    char wide[64];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handed_out_before),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_few_slots),
        cmocka_unit_test(test_ended_early),
        cmocka_unit_test(test_shrunk_before),
        cmocka_unit_test(test_all_damaged),
    };
    if (argc != 2 || make_wide(wide, sizeof wide) != 0)
        return 2;
    (void)alarm(600); /* ends an endless loop; a wait without end is noticed at once */
    model_path = argv[1];
    int n_failed = cmocka_run_group_tests_name("nano", tests, NULL, NULL);
    model_path = wide;
    n_failed += cmocka_run_group_tests_name("in pieces", tests, NULL, NULL);
    return n_failed != 0;
}
