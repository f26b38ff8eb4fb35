/* gpu_bits MODEL [N [KV [LIBRARY]]]: the CUDA backend must have the processor's bits: over the
 * emulator, or on a GPU with the library of its kernels. Each backend evaluates a prompt of N
 * tokens, in chunks of several sizes, and continues it; then each goes on from a snapshot that the
 * other has written. Tokens whose experts are all in the GPU's memory must not ask the host which
 * of them were chosen, and count them all the same. Drafts change nothing. Exit status 3 if bits
 * differ, 77 if no GPU can be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/device_emulated.h"
#include "backend/cuda/gpu_library.h"
#include "base/limits.h"
#include "cache/expert_cache.h"
#include "flashmoe_lab.h"
#include "open_cuda.h"
#include "session/session_internal.h"

#define MAX_PROMPT 400
#define N_MORE 3

static bool is_gpu, is_tight, is_biased, looks_ahead; /* of the next model that is opened */
static unsigned n_drafts;                             /* likewise */
static enum fm_draft_source draft_source = FM_DRAFT_LOOKUP; /* likewise */
static const char *kv, *library;
static int32_t prompt[MAX_PROMPT];
static size_t n_prompt = 24;

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
        fprintf(stderr, "gpu_bits: %s\n", why);
        exit(77);
    }
    return device;
}

/* Linked with --wrap=cuda_partial_floats. Gives room to one row's blocks: rows take turns. */
size_t __real_cuda_partial_floats(const struct backend_options *o);
size_t __wrap_cuda_partial_floats(const struct backend_options *o);

size_t __wrap_cuda_partial_floats(const struct backend_options *o)
{
    return is_tight ? (o->n_context / 256 + 2) * o->n_heads * (o->head_dim + 2ul)
                    : __real_cuda_partial_floats(o);
}

/* Linked with --wrap=expert_cache_count. Counts layers whose experts the GPU found by itself. */
static unsigned n_found;
void __real_expert_cache_count(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                               const struct expert_use *uses, uint32_t n);
void __wrap_expert_cache_count(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                               const struct expert_use *uses, uint32_t n);

void __wrap_expert_cache_count(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                               const struct expert_use *uses, uint32_t n)
{
    n_found++;
    __real_expert_cache_count(cache, layer, n_tokens, uses, n);
}

static void must(int rc, const struct fm_error *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "gpu_bits: %s\n", err->text);
    exit(1);
}

/* Changes the budget of the memory that is computed in, within its limits. */
static void set_memory(struct fm_model *model, uint64_t bytes)
{
    struct fm_stats s = {.size = sizeof s};
    struct fm_error err;
    fm_model_stats(model, &s);
    const uint64_t min = is_gpu ? s.gpu_min_bytes : s.memory_min_bytes;
    must((is_gpu ? fm_model_set_gpu_memory : fm_model_set_memory)(
             model, bytes > min ? bytes : min, &err), &err);
}

static struct fm_model *open_model(const char *path, unsigned chunk)
{
    struct fm_model_options options = {.size = sizeof options, .n_threads = 1,
                                       .prefill_chunk = chunk, .n_context = MAX_PROMPT + 8,
                                       .kv = kv, .n_sessions = 2, .gpu = is_gpu ? "0" : NULL,
                                       .lookahead = looks_ahead ? FM_ON : FM_OFF,
                                       .elastic = FM_OFF, .n_drafts = n_drafts,
                                       .draft = FM_ON, .draft_source = draft_source,
                                       .cache_bias = is_biased ? 0.4 : 0};
    struct fm_model *model;
    struct fm_error err;
    must(fm_model_open(path, &options, &model, &err), &err);
    return model;
}

static unsigned n_expert_layers(const struct fm_model *model)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    return info.n_moe_layers;
}

/* Waits until all experts are in the GPU's memory. */
static void wait_for_experts(const struct fm_model *model)
{
    static bool resident[LIMIT_EXPERTS];
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    for (unsigned layer = 0; is_gpu && layer < info.n_moe_layers;) {
        (void)fm_model_experts(model, layer, resident, NULL);
        unsigned e = 0;
        while (e < info.n_experts && resident[e])
            e++;
        layer += e == info.n_experts;
        if (e < info.n_experts)
            (void)usleep(1000);
    }
}

/* On the GPU, this many layers must have found their experts without the host since n_found was
 * set to 0. */
static int expect_found(const char *what, unsigned n)
{
    if (is_gpu && n_found != n)
        printf("%s: %u layers found their experts, not %u UNEXPECTED\n", what, n_found, n);
    return is_gpu && n_found != n ? 3 : 0;
}

static void ignore_logits(void *ctx, unsigned position, const float *logits, unsigned n)
{
    (void)ctx, (void)position, (void)logits, (void)n; /* asking for them is enough */
}

static int32_t best_token(const struct fm_session *session, unsigned vocabulary)
{
    const float *logits = fm_session_logits(session);
    unsigned best = 0;
    for (unsigned i = 1; i < vocabulary; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

/* Evaluates tokens, then a greedy continuation. */
static int evaluate(struct fm_model *model, struct fm_session *session, const int32_t *ids,
                    size_t n, char hash[33])
{
    struct fm_model_info info = {.size = sizeof info};
    struct fm_error err;
    fm_model_info(model, &info);
    must(fm_session_eval(session, ids, n, &err), &err);
    if (!is_biased)
        wait_for_experts(model);
    n_found = 0;
    for (unsigned i = 0; i < N_MORE; i++) {
        const int32_t token = best_token(session, info.vocabulary);
        must(fm_session_eval(session, &token, 1, &err), &err);
    }
    fm_session_logits_hash(session, hash);
    return expect_found("continuation", is_biased ? 0 : N_MORE * info.n_moe_layers);
}

/* Evaluates the prompt, all logits of it, in one batch with another session; leaves a snapshot in
 * the middle where `snapshot` says. */
static int run(const char *path, bool on_gpu, unsigned chunk, const char *snapshot, char hash[33])
{
    struct fm_session *session;
    struct fm_error err;
    is_gpu = on_gpu;
    struct fm_model *model = open_model(path, chunk);
    must(fm_session_open(model, &session, &err), &err);
    const struct fm_observer observer = {.size = sizeof observer, .logits = ignore_logits};
    fm_session_observe(session, &observer);
    const size_t middle = n_prompt / 2;
    struct fm_session *other;
    must(fm_session_open(model, &other, &err), &err);
    struct fm_batch_item both[] = {{other, prompt + 1, middle / 2, 0},
                                   {session, prompt, middle, 0}};
    must(fm_eval_batch(model, both, 2, &err), &err);
    fm_session_close(other);
    if (snapshot != NULL)
        must(fm_session_save(session, snapshot, &err), &err);
    const int status = evaluate(model, session, prompt + middle, n_prompt - middle, hash);
    fm_session_close(session);
    fm_model_close(model);
    return status;
}

/* Goes on from a snapshot. */
static int resume(const char *path, bool on_gpu, const char *snapshot, char hash[33])
{
    struct fm_session *session;
    struct fm_error err;
    is_gpu = on_gpu;
    struct fm_model *model = open_model(path, 16);
    must(fm_session_open(model, &session, &err), &err);
    must(fm_session_load(session, snapshot, &err), &err);
    const int status = evaluate(model, session, prompt + n_prompt / 2, n_prompt - n_prompt / 2,
                                hash);
    fm_session_close(session);
    fm_model_close(model);
    return status;
}

/* A device that fails ends the evaluation with its reason, and gives no logits. */
static int lose_device(const char *path)
{
    struct fm_session *session;
    struct fm_error err;
    is_gpu = true;
    struct fm_model *model = open_model(path, 16);
    must(fm_session_open(model, &session, &err), &err);
    device_emulated_fail("the GPU was taken out");
    const int rc = fm_session_eval(session, prompt, 3, &err);
    const bool is_good = rc == FM_ERR_IO && strstr(err.text, "the GPU was taken out") != NULL;
    device_emulated_fail(NULL);
    printf("a lost GPU: %d, %s%s\n", rc, err.text, is_good ? "" : " UNEXPECTED");
    fm_session_close(session);
    fm_model_close(model);
    return is_good ? 0 : 3;
}

static int compare(const char *what, const char *expected, const char *hash)
{
    printf("%s: %s%s\n", what, hash, strcmp(expected, hash) == 0 ? "" : " DIFFERS");
    return strcmp(expected, hash) == 0 ? 0 : 3;
}

/* ---- experts that the GPU finds -------------------------------------------------------------- */

/* What happens in the middle of a token, before the third layer and the fourth. */
struct events {
    struct fm_model *model;
    struct fm_session *cancelled; /* NULL: the cache shrinks, and grows again */
    unsigned n_layers;            /* begun */
};

static void before_layer(void *ctx, uint64_t done, uint64_t total)
{
    struct events *e = ctx;
    (void)done, (void)total;
    e->n_layers++;
    if (e->n_layers == 3 && e->cancelled != NULL)
        fm_session_cancel(e->cancelled);
    else if (e->n_layers == 3)
        set_memory(e->model, 1);
    else if (e->n_layers == 4 && e->cancelled == NULL)
        set_memory(e->model, UINT64_MAX);
}

static void observe(struct fm_session *session, struct events *events)
{
    struct fm_observer observer = {.size = sizeof observer, .ctx = events};
    observer.progress = events != NULL ? before_layer : NULL;
    fm_session_observe(session, &observer);
}

/* What one backend has computed and counted. */
struct outcome {
    char hashes[2][33];
    uint64_t n_used; /* experts, resident or not */
    double hit_rate;
    uint8_t heat[64][LIMIT_EXPERTS];
};

static void look(const struct fm_model *model, struct fm_session *const sessions[2],
                 struct outcome *o)
{
    struct fm_stats stats = {.size = sizeof stats};
    unsigned n_slots;
    memset(o, 0, sizeof *o);
    for (unsigned i = 0; i < 2; i++)
        fm_session_logits_hash(sessions[i], o->hashes[i]);
    fm_model_stats(model, &stats);
    o->n_used = stats.n_expert_hits + stats.n_expert_misses;
    o->hit_rate = fm_model_hit_rate(model, stats.memory_cache_bytes / 2, &n_slots);
    for (unsigned l = 0; l < 64 && fm_model_experts(model, l, NULL, o->heat[l]); l++)
        ;
}

static void decode(struct fm_session *session, const int32_t *ids, size_t n)
{
    struct fm_error err;
    for (size_t i = 0; i < n; i++)
        must(fm_session_eval(session, ids + i, 1, &err), &err);
}

/* Lets the cache become too small for all experts, and large again. */
static int shrink_and_grow(struct fm_model *model, struct fm_session *session)
{
    const unsigned n_layers = n_expert_layers(model);
    set_memory(model, 1);
    n_found = 0;
    decode(session, prompt, 2);
    int status = is_gpu && n_found == 2 * n_layers ? 3 : 0;
    if (status != 0)
        printf("a small cache has all experts UNEXPECTED\n");
    set_memory(model, UINT64_MAX);
    wait_for_experts(model);
    n_found = 0;
    decode(session, prompt + 2, 2);
    status |= expect_found("after growth", 2 * n_layers);
    struct events events = {.model = model};
    observe(session, &events);
    decode(session, prompt + 4, 1);
    observe(session, NULL);
    decode(session, prompt + 5, 1);
    return status;
}

/* Two sessions together; then one of them leaves in the middle of a token. */
static int decode_together(struct fm_model *model, struct fm_session *const sessions[2])
{
    struct fm_error err;
    wait_for_experts(model);
    n_found = 0;
    for (size_t i = 0; i < 2; i++) {
        struct fm_batch_item both[] = {{sessions[0], prompt + i, 1, 0},
                                       {sessions[1], prompt + 3 + i, 1, 0}};
        must(fm_eval_batch(model, both, 2, &err), &err);
    }
    const int status = expect_found("two sessions", 2 * n_expert_layers(model));
    struct events events = {.model = model, .cancelled = sessions[0]};
    struct fm_batch_item both[] = {{sessions[0], prompt, 1, 0}, {sessions[1], prompt, 1, 0}};
    observe(sessions[1], &events);
    (void)fm_eval_batch(model, both, 2, &err);
    observe(sessions[1], NULL);
    if (both[0].rc == 0 || both[1].rc != 0)
        printf("not the first session was cancelled UNEXPECTED\n");
    return both[0].rc == 0 || both[1].rc != 0 ? 3 : status;
}

static int find_experts(const char *path, bool on_gpu, struct outcome *o)
{
    struct fm_session *sessions[2];
    struct fm_error err;
    is_gpu = on_gpu;
    struct fm_model *model = open_model(path, 16);
    wait_for_experts(model);
    for (size_t i = 0; i < 2; i++) {
        must(fm_session_open(model, &sessions[i], &err), &err);
        must(fm_session_eval(sessions[i], prompt + i, 4 + i, &err), &err);
    }
    int status = decode_together(model, sessions);
    status |= shrink_and_grow(model, sessions[1]);
    look(model, sessions, o);
    for (size_t i = 0; i < 2; i++)
        fm_session_close(sessions[i]);
    fm_model_close(model);
    return status;
}

static int compare_found(const char *path)
{
    static struct outcome expected, found;
    looks_ahead = true;
    int status = find_experts(path, false, &expected) | find_experts(path, true, &found);
    looks_ahead = false;
    status |= compare("GPU, experts found there", expected.hashes[1], found.hashes[1]);
    status |= compare("GPU, a session that left", expected.hashes[0], found.hashes[0]);
    const bool is_same = expected.n_used == found.n_used && expected.hit_rate == found.hit_rate &&
                         memcmp(expected.heat, found.heat, sizeof found.heat) == 0;
    printf("%llu uses of experts, %.4f with half of the slots%s\n",
           (unsigned long long)found.n_used, found.hit_rate, is_same ? "" : " DIFFERS");
    return is_same ? status : 3;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* Decodes tokens that follow each other as before, with one that does not. Returns how many drafts
 * were right. */
static uint64_t decode_again(const char *path, bool on_gpu, unsigned with_drafts, char hash[33])
{
    struct fm_stats stats = {.size = sizeof stats};
    struct fm_session *session;
    struct fm_error err;
    is_gpu = on_gpu;
    n_drafts = with_drafts;
    struct fm_model *model = open_model(path, 16);
    must(fm_session_open(model, &session, &err), &err);
    must(fm_session_eval(session, prompt, 8, &err), &err);
    wait_for_experts(model);
    decode(session, prompt, 6);
    decode(session, prompt + 9, 1);
    decode(session, prompt + 1, 4);
    fm_session_logits_hash(session, hash);
    fm_model_stats(model, &stats);
    fm_session_close(session);
    fm_model_close(model);
    n_drafts = 0;
    return stats.n_drafts_accepted[0];
}

static int compare_drafted(const char *path)
{
    char expected[33], hash[33];
    (void)decode_again(path, false, 0, expected);
    const uint64_t n_right = decode_again(path, true, 3, hash);
    if (n_right == 0)
        printf("no draft was right UNEXPECTED\n");
    return compare("GPU, with drafts", expected, hash) | (n_right == 0 ? 3 : 0);
}

/* Gives a session N_DRAFTED tokens behind a prompt; `text` gets what the model's own block drafts,
 * with every fourth token another one, or has it already. Returns how many drafts were right. */
#define N_DRAFTED 24
static uint64_t decode_predicted(const char *path, bool on_gpu, bool is_known, int32_t *text,
                                 char hash[33])
{
    struct fm_stats stats = {.size = sizeof stats};
    struct fm_session *s;
    struct fm_error err;
    is_gpu = on_gpu;
    struct fm_model *model = open_model(path, 16);
    must(fm_session_open(model, &s, &err), &err);
    must(fm_session_eval(s, prompt, 8, &err), &err);
    for (unsigned i = 0; i < N_DRAFTED; i++) {
        if (!is_known)
            text[i] = i % 4 > 0 && s->draft.n_taken < s->draft.n
                          ? s->draft.tokens[1 + s->draft.n_taken] : prompt[8 + i];
        must(fm_session_eval(s, text + i, 1, &err), &err);
    }
    fm_session_logits_hash(s, hash);
    fm_model_stats(model, &stats);
    fm_session_close(s);
    fm_model_close(model);
    return stats.n_drafts_accepted[0];
}

/* Where the model has such a block. */
static int compare_predicted(const char *path)
{
    int32_t text[N_DRAFTED];
    char expected[33], hash[33];
    struct fm_model_options options = {.size = sizeof options, .n_drafts = 1,
                                       .draft_source = FM_DRAFT_MTP};
    struct fm_model *model;
    struct fm_error err;
    if (fm_model_open(path, &options, &model, &err) != 0)
        return 0;
    fm_model_close(model);
    n_drafts = 3;
    draft_source = FM_DRAFT_MTP;
    (void)decode_predicted(path, false, false, text, hash);
    const uint64_t n_right = decode_predicted(path, true, true, text, hash);
    n_drafts = 0;
    (void)decode_predicted(path, false, true, text, expected);
    draft_source = FM_DRAFT_LOOKUP;
    if (n_right == 0)
        printf("the block drafted nothing right UNEXPECTED\n");
    return compare("GPU, with drafts of its block", expected, hash) | (n_right == 0 ? 3 : 0);
}

int main(int argc, char **argv)
{
    char expected[33], hash[33], path[64], text[64];
    int status = 0;
    if (argc < 2)
        return 1;
    n_prompt = argc > 2 ? (size_t)atoi(argv[2]) : n_prompt;
    kv = argc > 3 ? argv[3] : NULL;
    library = argc > 4 ? argv[4] : NULL;
    struct fm_model *model = open_model(argv[1], 1);
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    fm_model_close(model);
    uint32_t state = 12345;
    for (size_t i = 0; i < MAX_PROMPT; i++) {
        state = state * 1664525u + 1013904223u;
        prompt[i] = (int32_t)((state >> 8) % info.vocabulary);
    }
    snprintf(path, sizeof path, "/tmp/gpu_bits.%ld", (long)getpid());
    status |= run(argv[1], false, 16, NULL, expected);
    const bool is_long = library == NULL && n_prompt > 100; /* minutes, one token at a time */
    for (unsigned chunk = 64; chunk > 0; chunk = chunk > 5 ? 5 : chunk > 1 && !is_long ? 1 : 0) {
        is_tight = chunk == 5;
        status |= run(argv[1], true, chunk, path, hash);
        snprintf(text, sizeof text, "GPU, %u tokens at a time", chunk);
        status |= compare(text, expected, hash);
    }
    char first[33];
    status |= resume(argv[1], false, path, first);
    status |= resume(argv[1], true, path, hash);
    status |= compare("GPU, from the GPU's snapshot", first, hash);
    status |= run(argv[1], false, 16, path, expected);
    status |= resume(argv[1], false, path, hash);
    status |= compare("processor, from its own", first, hash);
    status |= resume(argv[1], true, path, hash);
    status |= compare("GPU, from the processor's", first, hash);
    (void)unlink(path);
    if (library == NULL)
        status |= lose_device(argv[1]);
    if (is_long)
        return status;
    status |= compare_found(argv[1]);
    status |= compare_drafted(argv[1]);
    status |= compare_predicted(argv[1]);
    is_biased = true;
    status |= run(argv[1], false, 16, NULL, expected);
    status |= run(argv[1], true, 16, NULL, hash);
    status |= compare("GPU, experts in memory preferred", expected, hash);
    return status;
}
