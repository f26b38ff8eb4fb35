/* gpu_speed MODEL LIBRARY LAYERS gpu|cpu: how fast a model of Coder-Next's shape is on a GPU, with
 * the library of its kernels, or on the processor. Makes the model if it is not there. Prints the
 * speed of three prompts of 2,048 tokens and of four times 64 tokens after them, and the hash of
 * the last logits, which must be the same on both. On a GPU, all experts are in its memory before
 * the answers begin; prints how often a token was submitted to it, and in how many layers it found
 * the experts without the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/backend_cuda.h"
#include "base/limits.h"
#include "base/plat.h"
#include "cache/expert_cache.h"
#include "flashmoe_lab.h"
#include "open_cuda.h"

#define N_PROMPT 2048
#define N_ANSWER 64

static const char *library; /* NULL: the processor */
static uint64_t n_submitted, n_found; /* to the GPU; layers whose experts it found by itself */

static void must(int rc, const struct fm_error *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "gpu_speed: %s\n", err->text);
    exit(1);
}

/* Linked with --wrap=backend_open. */
int __real_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);
int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);

static const struct gpu_device_ops *device_ops;

static void count_submit(struct gpu_device *d, const struct gpu_batch *batch)
{
    n_submitted++;
    device_ops->submit(d, batch);
}

int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err)
{
    static struct gpu_device_ops counting;
    char why[256];
    if (library == NULL)
        return __real_backend_open(name, options, out, err);
    struct gpu_device *device = open_cuda(library, why, sizeof why);
    if (device == NULL) {
        fprintf(stderr, "gpu_speed: %s\n", why);
        exit(1);
    }
    device_ops = device->ops;
    counting = *device_ops;
    counting.submit = count_submit;
    device->ops = &counting;
    return backend_cuda_open_on(device, options, out, err);
}

/* Linked with --wrap=expert_cache_count. */
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

/* Waits until all experts are in the GPU's memory, if they fit. */
static void wait_for_experts(const struct fm_model *model)
{
    static bool resident[LIMIT_EXPERTS];
    struct fm_model_info info = {.size = sizeof info};
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_info(model, &info);
    fm_model_stats(model, &stats);
    if (stats.n_cache_slots < (uint64_t)info.n_moe_layers * info.n_experts) {
        printf("%llu experts fit, not all\n", (unsigned long long)stats.n_cache_slots);
        return;
    }
    for (unsigned layer = 0; library != NULL && layer < info.n_moe_layers;) {
        (void)fm_model_experts(model, layer, resident, NULL);
        unsigned e = 0;
        while (e < info.n_experts && resident[e])
            e++;
        layer += e == info.n_experts;
        if (e < info.n_experts)
            (void)usleep(10000);
    }
}

static void make_model(const char *path, unsigned layers)
{
    uint32_t numbers[FM_SYNTH_NUMBERS] = {[FM_SYNTH_LAYERS] = layers};
    const struct fm_synth_options options = {.size = sizeof options, .numbers = numbers,
                                             .n_numbers = FM_SYNTH_NUMBERS};
    struct fm_error err;
    if (access(path, F_OK) != 0)
        must(fm_synth("coder-next", path, &options, NULL, &err), &err);
}

static void evaluate(struct fm_session *session, const int32_t *ids, size_t n, size_t n_together,
                     const char *what)
{
    struct fm_error err;
    const double n_calls = (double)n / (double)n_together;
    n_submitted = n_found = 0;
    const uint64_t begin_ns = plat_now_ns();
    for (size_t i = 0; i < n; i += n_together)
        must(fm_session_eval(session, ids + i, n_together, &err), &err);
    printf("%s: %.1f tok/s", what, (double)n * 1e9 / (double)(plat_now_ns() - begin_ns));
    if (library != NULL)
        printf(", %.1f submissions, %.1f layers without the host", (double)n_submitted / n_calls,
               (double)n_found / n_calls);
    printf("\n");
}

int main(int argc, char **argv)
{
    static int32_t ids[N_PROMPT];
    struct fm_model *model;
    struct fm_session *session;
    struct fm_error err;
    char hash[33];
    if (argc != 5) {
        fprintf(stderr, "usage: gpu_speed MODEL LIBRARY LAYERS gpu|cpu\n");
        return 1;
    }
    library = strcmp(argv[4], "gpu") == 0 ? argv[2] : NULL;
    make_model(argv[1], (unsigned)atoi(argv[3]));
    const struct fm_model_options options = {
        .size = sizeof options, .memory_bytes = 60ull << 30, .n_context = 2 * N_PROMPT,
        .prefill_chunk = N_PROMPT, .lookahead = FM_OFF, .elastic = FM_OFF};
    must(fm_model_open(argv[1], &options, &model, &err), &err);
    must(fm_session_open(model, &session, &err), &err);
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = 300 + i * 7 % 20000;
    for (int i = 0; i < 3; i++) { /* the first reads the experts */
        (void)fm_session_rewind(session, NULL, 0);
        evaluate(session, ids, N_PROMPT, N_PROMPT, "prompt");
    }
    wait_for_experts(model);
    for (int i = 0; i < 4; i++)
        evaluate(session, ids + (size_t)i * N_ANSWER, N_ANSWER, 1, "answer");
    fm_session_logits_hash(session, hash);
    printf("logits %s\n", hash);
    fm_session_close(session);
    fm_model_close(model);
    return 0;
}
