/* same_bits MODEL [HASH [STEP [ROUTES [KV]]]]: the logits of every position of a prompt and of a
 * greedy continuation must have the same bits in all of these cases:
 * - every level of kernels, with 1, 2 and 4 threads
 * - prefill chunks of 1, 7, 64 and all
 * - budgets from the smallest allowed to everything
 * - a cold and a warm cache, both cache policies, with and without a heat file
 * - direct and buffered reads of both readers
 * - a cache that shrinks and grows before every token or every layer
 * - with another session in the same batch
 * - in a program that rounds upwards
 * HASH is the required value; "-" requires none. With STEP, only one in STEP combinations is run.
 * ROUTES replace the routers' choice of experts, unless they are "-". KV is the format of keys and
 * values. Exit status 3 if bits differ. */
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flashmoe_lab.h"

#define N_PROMPT 250 /* the continuation ends in the second block of attention */
#define N_MORE 12
#define CONTEXT 320

static int32_t prompt[N_PROMPT], other[N_PROMPT];
static char expected[33];
static const char *routes; /* NULL: the model's own */
static const char *kv;     /* NULL: f16 */
static const char *level;  /* of the kernels; NULL: the best */
static bool is_small;
static unsigned n_runs, n_different;
static unsigned variant; /* selects how experts are read and cached */
static char heat_path[64]; /* each run leaves it for the next */
static uint64_t min_slots = UINT64_MAX, max_slots, n_swings;

static void die(const struct fm_error *err)
{
    fprintf(stderr, "same_bits: %s\n", err->text);
    exit(1);
}

static void make_prompts(unsigned vocabulary)
{
    uint32_t state = 12345;
    for (unsigned i = 0; i < 2 * N_PROMPT; i++) {
        state = state * 1664525u + 1013904223u;
        (i < N_PROMPT ? prompt : other)[i % N_PROMPT] = (int32_t)((state >> 8) % vocabulary);
    }
}

static int try_open(const char *path, unsigned threads, unsigned chunk, uint64_t memory,
                    struct fm_model **model, struct fm_error *err)
{
    struct fm_model_options options = {.size = sizeof options};
    options.n_threads = threads;
    options.prefill_chunk = chunk;
    options.memory_bytes = memory;
    options.n_context = CONTEXT;
    options.n_sessions = 2;
    options.routes = routes;
    options.kv = kv;
    options.cpu = level;
    options.io = variant % 2 == 0 ? FM_IO_DIRECT : FM_IO_PAGE;
    options.reader = variant / 2 % 2 == 0 ? FM_READER_PREAD : FM_READER_URING;
    options.policy = variant % 3 == 0 ? FM_POLICY_LRU : FM_POLICY_LCP;
    options.lookahead = variant % 5 < 2 ? FM_ON : variant % 5 == 2 ? FM_OFF : FM_AUTO;
    options.read_depth = 1 + variant % 5 * 4;
    options.heat_path = variant % 3 == 1 ? heat_path : NULL;
    return fm_model_open(path, &options, model, err);
}

static struct fm_model *open_model(const char *path, unsigned threads, unsigned chunk,
                                   uint64_t memory)
{
    struct fm_model *model;
    struct fm_error err;
    if (try_open(path, threads, chunk, memory, &model, &err) != 0)
        die(&err);
    return model;
}

static struct fm_session *open_session(struct fm_model *model)
{
    struct fm_session *session;
    struct fm_error err;
    if (fm_session_open(model, &session, &err) != 0)
        die(&err);
    return session;
}

static void ignore_logits(void *ctx, unsigned position, const float *logits, unsigned n)
{
    (void)ctx, (void)position, (void)logits, (void)n; /* only asking for them matters */
}

static struct fm_stats stats_of(const struct fm_model *model)
{
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(model, &stats);
    return stats;
}

static void set_memory(struct fm_model *model, uint64_t bytes)
{
    struct fm_error err;
    if (fm_model_set_memory(model, bytes, &err) != 0)
        die(&err);
}

/* Returns how much more memory keys and values may take. */
static uint64_t kv_room(const struct fm_model *model)
{
    const struct fm_stats stats = stats_of(model);
    return stats.memory_kv_max_bytes - stats.memory_kv_bytes;
}

/* Returns whether the minimum number of slots, in whole pages, leaves room for all positions. */
static bool holds_all_positions(const struct fm_model *model)
{
    const struct fm_stats stats = stats_of(model);
    return stats.memory_min_bytes + kv_room(model) <= stats.memory_max_bytes;
}

/* Changes the size of the cache: the minimum, some more, the maximum, and a size in between. */
static void swing(struct fm_model *model)
{
    static unsigned n;
    const struct fm_stats stats = stats_of(model);
    const uint64_t min = stats.memory_min_bytes + kv_room(model);
    const uint64_t more = stats.memory_max_bytes - min;
    const uint64_t budgets[] = {min, min + more / 3, min + more, min + more / 2};
    set_memory(model, budgets[n++ % 4]);
}

static void swing_in_mid_token(void *ctx, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    swing(ctx);
}

static void compare(const char *what, const struct fm_session *session)
{
    char hash[33];
    fm_session_logits_hash(session, hash);
    n_runs++;
    if (expected[0] == '\0')
        memcpy(expected, hash, sizeof hash);
    if (strcmp(expected, hash) != 0) {
        printf("DIFFERENT %s: %s, expected %s\n", what, hash, expected);
        n_different++;
    }
}

static int32_t best(const float *logits, unsigned n)
{
    unsigned at = 0;
    for (unsigned i = 1; i < n; i++)
        at = logits[i] > logits[at] ? i : at;
    return (int32_t)at;
}

/* Evaluates the prompt and a continuation. If `beside` is not NULL, that session decodes in the
 * same batches. */
static void run_one(struct fm_model *model, struct fm_session *session,
                    struct fm_session *beside, unsigned vocabulary)
{
    struct fm_error err;
    fm_session_reset(session);
    const bool swings = variant % 4 == 1, swings_in_mid_token = variant % 4 == 2;
    const struct fm_observer observer = {.size = sizeof observer,
                                         .ctx = model, .logits = ignore_logits,
                                         .progress = swings_in_mid_token ? swing_in_mid_token
                                                                         : NULL};
    fm_session_observe(session, &observer);
    /* The other session's tokens come first, so that ours begin and are cut at any row. */
    struct fm_batch_item alone = {session, prompt, N_PROMPT, 0};
    struct fm_batch_item company[] = {{beside, other, N_PROMPT / 2 - 3, 0}, alone};
    if (beside != NULL)
        fm_session_reset(beside);
    if (fm_eval_batch(model, beside != NULL ? company : &alone, beside != NULL ? 2 : 1, &err) != 0)
        die(&err);
    for (unsigned i = 0; i < N_MORE; i++) {
        int32_t id = best(fm_session_logits(session), vocabulary);
        if (swings)
            swing(model);
        /* One more token of ours, with one or a few of the other session's. */
        struct fm_batch_item items[] = {{session, &id, 1, 0}, {beside, other + i, 1 + i % 3, 0}};
        if (fm_eval_batch(model, items, beside != NULL ? 2 : 1, &err) != 0)
            die(&err);
    }
}

/* Opens a model with the minimum memory, to about 1 MiB, plus `more`. If `more` is 0, the cache
 * then shrinks to its minimum, which may be less than a MiB smaller. The memory of the process
 * itself counts too and grows, so the search starts over each time. */
static struct fm_model *open_smallest(const char *path, unsigned threads, unsigned chunk,
                                      uint64_t more)
{
    struct fm_model *model = NULL;
    uint64_t too_small = 0, enough = 1 << 20;
    while (try_open(path, threads, chunk, enough, &model, NULL) != 0)
        too_small = enough, enough *= 2;
    while (enough - too_small > 1 << 20) {
        uint64_t middle = too_small + (enough - too_small) / 2;
        fm_model_close(model);
        if (try_open(path, threads, chunk, middle, &model, NULL) == 0) {
            enough = middle;
        } else {
            too_small = middle;
            model = NULL;
        }
    }
    if (model == NULL && try_open(path, threads, chunk, enough, &model, NULL) != 0)
        model = NULL;
    const uint64_t room = model != NULL ? kv_room(model) : 0;
    fm_model_close(model);
    while (try_open(path, threads, chunk, enough + more + room, &model, NULL) != 0 ||
           !holds_all_positions(model)) {
        fm_model_close(model);
        enough += 1 << 20;
    }
    if (more == 0)
        set_memory(model, stats_of(model).memory_min_bytes + kv_room(model));
    return model;
}

/* Returns every level of kernels that this machine has, in turn. The reference level, whose fused
 * multiply-adds may be library calls, is used only for small models. */
static const char *level_of(unsigned i)
{
    static const char *usable[16];
    static unsigned n;
    static bool is_listed;
    struct fm_level_info info = {.size = sizeof info};
    for (unsigned k = 0; !is_listed && fm_machine_level(k, &info); k++)
        if (info.is_usable && (k > 0 || is_small))
            usable[n++] = info.name;
    is_listed = true;
    return usable[i % n];
}

static void run_all(const char *path, unsigned vocabulary, unsigned step)
{
    static const unsigned threads[] = {1, 2, 4}, chunks[] = {1, 7, 64, CONTEXT};
    enum { SMALLEST, SOME_MORE, EVERYTHING };
    /* Threads, chunk, budget and level. The level is taken modulo the number of levels. With two,
     * three or four levels, the rows cover all pairs of values of two columns, except for six pairs
     * with four levels. The first four or six rows already have every value of every column. */
    static const unsigned rows[12][4] = {
        {1, 3, 1, 2}, {0, 1, 0, 7}, {2, 0, 2, 4}, {0, 2, 2, 9}, {2, 1, 1, 9}, {1, 0, 0, 9},
        {0, 0, 1, 2}, {1, 1, 2, 8}, {0, 3, 0, 0}, {1, 2, 1, 7}, {2, 2, 0, 2}, {2, 3, 2, 7},
    };
    for (unsigned i = 0; i < (11 + step) / step; i++) {
        const unsigned t = rows[i][0], c = rows[i][1], b = rows[i][2];
        level = level_of(rows[i][3]);
        variant = i;
        struct fm_model *model =
            b == EVERYTHING ? open_model(path, threads[t], chunks[c], 0)
                            : open_smallest(path, threads[t], chunks[c],
                                            b == SOME_MORE ? 32 << 20 : 0);
        struct fm_session *session = open_session(model), *beside = open_session(model);
        struct fm_stats stats = stats_of(model);
        min_slots = stats.n_cache_slots < min_slots ? stats.n_cache_slots : min_slots;
        max_slots = stats.n_cache_slots > max_slots ? stats.n_cache_slots : max_slots;
        char what[128];
        snprintf(what, sizeof what, "level %s, threads %u, chunk %u, %llu expert slots", level,
                 threads[t], chunks[c], (unsigned long long)stats.n_cache_slots);
        run_one(model, session, NULL, vocabulary);
        compare(what, session); /* cold */
        run_one(model, session, beside, vocabulary);
        compare(what, session); /* warm, and in a batch with another session */
        stats = stats_of(model);
        n_swings += stats.n_shrinks + stats.n_grows;
        fm_session_close(beside);
        fm_session_close(session);
        fm_model_close(model);
    }
}

/* A host with another rounding mode gets the same bits and keeps its mode. */
static void run_rounding_upwards(const char *path, unsigned vocabulary)
{
    level = NULL; /* the best */
    fesetround(FE_UPWARD);
    struct fm_model *model = open_model(path, 2, 64, 0);
    struct fm_session *session = open_session(model);
    run_one(model, session, NULL, vocabulary);
    if (fegetround() != FE_UPWARD) {
        printf("DIFFERENT: the rounding mode of the host was not restored\n");
        n_different++;
    }
    fesetround(FE_TONEAREST);
    compare("rounding upwards", session);
    fm_session_close(session);
    fm_model_close(model);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    if (argc > 2 && strcmp(argv[2], "-") != 0)
        snprintf(expected, sizeof expected, "%s", argv[2]);
    routes = argc > 4 && strcmp(argv[4], "-") != 0 ? argv[4] : NULL;
    kv = argc > 5 ? argv[5] : NULL;
    snprintf(heat_path, sizeof heat_path, "same_bits-%ld.heat", (long)getpid());
    struct fm_model *model = open_model(argv[1], 1, 1, 0);
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    fm_model_close(model);
    struct fm_level_info second = {.size = sizeof second};
    is_small = info.n_parameters < 20000000 || !fm_machine_level(1, &second) || !second.is_usable;
    make_prompts(info.vocabulary);
    const int step = argc > 3 ? atoi(argv[3]) : 1;
    run_all(argv[1], info.vocabulary, step > 0 ? (unsigned)step : 1);
    run_rounding_upwards(argv[1], info.vocabulary);
    printf("%u runs, %u different, caches of %llu to %llu experts that changed size %llu times, "
           "logits hash %s\n", n_runs, n_different, (unsigned long long)min_slots,
           (unsigned long long)max_slots, (unsigned long long)n_swings, expected);
    (void)remove(heat_path);
    if (min_slots >= max_slots || n_swings < N_MORE)
        return 4; /* the budgets made no difference: the test showed nothing */
    return n_different > 0 ? 3 : 0;
}
