/* gpu_tiers MODEL [N [LIBRARY]]: experts in the GPU's memory, in the host's and on disk give the
 * processor's bits, whatever the two budgets are and wherever an expert is computed: over the
 * emulator, or on a GPU with the library of its kernels. Where an expert goes is random. Exit
 * status 3 if bits differ or if a way was never taken, 77 if no GPU can be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device_emulated.h"
#include "backend/cuda/gpu_library.h"
#include "engine/forward_internal.h"
#include "flashmoe_lab.h"
#include "open_cuda.h"

#define MAX_PROMPT 400
#define N_MORE 14

static const char *library;
static int32_t prompt[MAX_PROMPT];
static size_t n_prompt = 8;
static uint32_t state = 12345;
static bool never_sends; /* experts arrive only by moving up */
static bool always_reaches; /* else every second pass */
static uint64_t n_reached; /* layers with experts that the GPU found in the host's memory */
static uint64_t n_sent, n_computed, n_up, n_down, n_gpu_hits; /* of all runs */

static uint32_t random_below(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

/* Linked with --wrap=gpu_library_open. */
struct gpu_device *__wrap_gpu_library_open(unsigned index, bool *is_there, char *why,
                                           size_t why_bytes);

struct gpu_device *__wrap_gpu_library_open(unsigned index, bool *is_there, char *why,
                                           size_t why_bytes)
{
    (void)index, (void)is_there;
    if (library == NULL)
        return device_emulated();
    struct gpu_device *device = open_cuda(library, why, why_bytes);
    if (device == NULL) {
        fprintf(stderr, "gpu_tiers: %s\n", why);
        exit(77);
    }
    return device;
}

/* Linked with --wrap=far_choose_split. */
uint32_t __wrap_far_choose_split(struct forward *f, const struct expert_item *items, uint32_t n);

uint32_t __wrap_far_choose_split(struct forward *f, const struct expert_item *items, uint32_t n)
{
    (void)items;
    const uint32_t few = never_sends ? 0 : random_below(n + 1);
    const uint32_t sent = f->step.n_rows > FAR_ROWS ? n : few;
    n_computed += n - sent;
    return sent;
}

/* Linked with --wrap=reach_begin and --wrap=expert_cache_reaches. */
bool __wrap_reach_begin(struct reach *reach, uint32_t n_rows, uint64_t n_misses);

bool __wrap_reach_begin(struct reach *reach, uint32_t n_rows, uint64_t n_misses)
{
    (void)reach, (void)n_rows, (void)n_misses;
    return always_reaches || random_below(2) == 0;
}

bool __real_expert_cache_reaches(struct expert_cache *cache, uint32_t layer,
                                 uint64_t *generation);
bool __wrap_expert_cache_reaches(struct expert_cache *cache, uint32_t layer,
                                 uint64_t *generation);

bool __wrap_expert_cache_reaches(struct expert_cache *cache, uint32_t layer,
                                 uint64_t *generation)
{
    uint64_t ignored;
    const bool reaches = __real_expert_cache_reaches(cache, layer, generation);
    n_reached += reaches && !expert_cache_has_all(cache, layer, &ignored);
    return reaches;
}

static void must(int rc, const struct fm_error *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "gpu_tiers: %s\n", err->text);
    exit(1);
}

static int32_t best_token(const struct fm_session *session, unsigned vocabulary)
{
    const float *logits = fm_session_logits(session);
    unsigned best = 0;
    for (unsigned i = 1; i < vocabulary; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

/* The budgets of a run; 0: what is free. */
struct run {
    const char *routes; /* NULL: the model's own */
    bool is_gpu;
    bool changes; /* the GPU's budget is another one for every token */
    uint64_t gpu_bytes, bytes;
    unsigned chunk;
};

static struct fm_model *open_model(const char *path, const struct run *run)
{
    struct fm_model_options options = {.size = sizeof options, .n_threads = 1,
                                       .prefill_chunk = run->chunk, .n_context = MAX_PROMPT + 32,
                                       .n_sessions = 2, .lookahead = FM_OFF,
                                       .elastic = FM_OFF, .routes = run->routes,
                                       .gpu = run->is_gpu ? "0" : NULL,
                                       .memory_bytes = run->bytes,
                                       .gpu_memory_bytes = run->gpu_bytes};
    struct fm_model *model;
    struct fm_error err;
    must(fm_model_open(path, &options, &model, &err), &err);
    return model;
}

static void count(const struct fm_model *model)
{
    struct fm_stats s = {.size = sizeof s};
    fm_model_stats(model, &s);
    n_sent += s.n_experts_sent;
    n_up += s.n_experts_moved_up;
    n_down += s.n_experts_moved_down;
    n_gpu_hits += s.n_expert_hits_gpu;
    printf("  %llu + %llu slots, %llu hits (%llu on the GPU), %llu misses, %llu sent, %llu up, "
           "%llu down\n", (unsigned long long)s.n_gpu_slots,
           (unsigned long long)(s.n_cache_slots - s.n_gpu_slots),
           (unsigned long long)s.n_expert_hits, (unsigned long long)s.n_expert_hits_gpu,
           (unsigned long long)s.n_expert_misses, (unsigned long long)s.n_experts_sent,
           (unsigned long long)s.n_experts_moved_up, (unsigned long long)s.n_experts_moved_down);
}

static void set_gpu_memory(struct fm_model *model, uint64_t bytes)
{
    struct fm_stats s = {.size = sizeof s};
    struct fm_error err;
    fm_model_stats(model, &s);
    must(fm_model_set_gpu_memory(model, bytes > s.gpu_min_bytes ? bytes : s.gpu_min_bytes, &err),
         &err);
}

/* Evaluates the prompt, then a greedy continuation beside another session now and then. */
static void evaluate(const char *path, const struct run *run, char hash[33])
{
    struct fm_session *session, *other;
    struct fm_error err;
    struct fm_model_info info = {.size = sizeof info};
    struct fm_model *model = open_model(path, run);
    fm_model_info(model, &info);
    must(fm_session_open(model, &session, &err), &err);
    must(fm_session_open(model, &other, &err), &err);
    must(fm_session_eval(session, prompt, n_prompt, &err), &err);
    must(fm_session_eval(other, prompt + 1, n_prompt, &err), &err);
    for (unsigned i = 0; i < N_MORE; i++) {
        const int32_t token = best_token(session, info.vocabulary);
        struct fm_batch_item items[] = {{session, &token, 1, 0}, {other, prompt + i, 1, 0}};
        if (run->changes)
            set_gpu_memory(model, random_below(5) * (run->gpu_bytes / 4));
        must(fm_eval_batch(model, items, 1 + (i % 4 == 0), &err), &err);
    }
    fm_session_logits_hash(session, hash);
    if (run->is_gpu)
        count(model);
    fm_session_close(other);
    fm_session_close(session);
    fm_model_close(model);
}

/* Returns what the GPU's memory holds beside slots of experts, and the smallest budget of the
 * host's. */
static void find_floors(const char *path, uint64_t gpu_bytes, uint64_t *gpu, uint64_t *host)
{
    const struct run run = {.is_gpu = true, .chunk = 16, .gpu_bytes = gpu_bytes};
    struct fm_model *model = open_model(path, &run);
    struct fm_model_info info = {.size = sizeof info};
    struct fm_stats s = {.size = sizeof s};
    fm_model_info(model, &info);
    fm_model_stats(model, &s);
    *gpu = s.gpu_dense_bytes + s.gpu_kv_bytes + s.gpu_scratch_bytes + s.gpu_cache_bytes -
           s.n_gpu_slots * info.expert_bytes;
    *host = s.memory_min_bytes;
    fm_model_close(model);
}

static int compare(const char *what, const char *expected, const char *hash)
{
    const bool is_same = strcmp(expected, hash) == 0;
    printf("%s: %s%s\n", what, hash, is_same ? "" : " DIFFERS");
    return is_same ? 0 : 3;
}

static unsigned n_resident(const struct fm_model *model)
{
    static bool resident[LIMIT_EXPERTS];
    struct fm_model_info info = {.size = sizeof info};
    unsigned n = 0;
    fm_model_info(model, &info);
    for (unsigned layer = 0; layer < info.n_moe_layers; layer++) {
        (void)fm_model_experts(model, layer, resident, NULL);
        for (unsigned e = 0; e < info.n_experts; e++)
            n += resident[e];
    }
    return n;
}

/* Experts that must leave the GPU's memory move to the host's, which has room. */
static int squeeze(const char *path, const struct run *run)
{
    struct fm_model *model = open_model(path, run);
    struct fm_session *session;
    struct fm_stats s = {.size = sizeof s};
    struct fm_error err;
    must(fm_session_open(model, &session, &err), &err);
    must(fm_session_eval(session, prompt, n_prompt, &err), &err);
    const unsigned before = n_resident(model);
    set_gpu_memory(model, 0);
    const unsigned after = n_resident(model);
    fm_model_stats(model, &s);
    const bool is_kept = after == before && s.n_gpu_slots <= 1 && s.n_experts_moved_down > 0;
    printf("the GPU's memory shrinks: %u experts in memory, then %u%s\n", before, after,
           is_kept ? "" : ", and none may be lost");
    fm_session_close(session);
    fm_model_close(model);
    return is_kept ? 0 : 3;
}

static int must_happen(const char *what, uint64_t n)
{
    printf("%s: %llu%s\n", what, (unsigned long long)n, n > 0 ? "" : ", and it must happen");
    return n > 0 ? 0 : 3;
}

/* Every pass reads experts where they are, with the model's own routes and with others. */
static int read_in_place(const char *path, struct run run, const char *expected)
{
    char given[33], hash[33];
    const struct run alone = {.chunk = 16, .routes = "gen"};
    always_reaches = true;
    evaluate(path, &run, hash);
    int status = compare("read where they are", expected, hash);
    run.routes = "gen";
    evaluate(path, &alone, given);
    evaluate(path, &run, hash);
    status |= compare("other routes", given, hash);
    always_reaches = false;
    return status;
}

int main(int argc, char **argv)
{
    char expected[33], hash[33], text[96];
    struct run run = {.chunk = 16};
    uint64_t gpu_floor, host_floor;
    int status = 0;
    if (argc < 2)
        return 1;
    n_prompt = argc > 2 ? (size_t)atoi(argv[2]) : n_prompt;
    library = argc > 3 ? argv[3] : NULL;
    struct fm_model *model = open_model(argv[1], &run);
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    fm_model_close(model);
    for (size_t i = 0; i < MAX_PROMPT; i++)
        prompt[i] = (int32_t)random_below(info.vocabulary);
    evaluate(argv[1], &run, expected);
    find_floors(argv[1], 0, &gpu_floor, &host_floor);
    const unsigned n_all = info.n_experts * info.n_moe_layers;
    const unsigned slots[] = {1, n_all / 8, n_all / 2, n_all};
    run.is_gpu = true;
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        run.gpu_bytes = gpu_floor + (slots[i] + 1) * (info.expert_bytes + 4096);
        run.bytes = 0;
        run.chunk = i % 2 == 0 ? 16 : 3;
        snprintf(text, sizeof text, "%u slots on the GPU", slots[i]);
        evaluate(argv[1], &run, hash);
        status |= compare(text, expected, hash);
    }
    run.gpu_bytes = gpu_floor + (n_all / 4 + 1) * (info.expert_bytes + 4096);
    never_sends = true;
    evaluate(argv[1], &run, hash);
    status |= compare("nothing is sent", expected, hash);
    never_sends = false;
    status |= squeeze(argv[1], &run);
    run.changes = true;
    evaluate(argv[1], &run, hash);
    status |= compare("budgets that change", expected, hash);
    run.changes = false;
    status |= read_in_place(argv[1], run, expected);
    /* Little of both memories: experts come from the disk again and again. */
    run.gpu_bytes = gpu_floor + (n_all / 8 + 1) * (info.expert_bytes + 4096);
    find_floors(argv[1], run.gpu_bytes, &gpu_floor, &host_floor);
    run.bytes = host_floor + (1 << 20);
    evaluate(argv[1], &run, hash);
    status |= compare("little memory", expected, hash);
    status |= must_happen("layers that the GPU found in both memories", n_reached);
    status |= must_happen("experts that were sent", n_sent);
    status |= must_happen("experts that the processor computed", n_computed);
    status |= must_happen("experts that moved up", n_up);
    status |= must_happen("experts that moved down", n_down);
    status |= must_happen("experts found on the GPU", n_gpu_hits);
    return status;
}
