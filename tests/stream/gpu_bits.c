/* gpu_bits MODEL [N [KV [LIBRARY]]]: the CUDA backend must have the processor's bits: over the
 * emulator, or on a GPU with the library of its kernels. Each backend evaluates a prompt of N
 * tokens, in chunks of several sizes, and continues it; then each goes on from a snapshot that the
 * other has written. Exit status 3 if bits differ, 77 if no GPU can be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/device_emulated.h"
#include "flashmoe_lab.h"
#include "open_cuda.h"

#define MAX_PROMPT 400
#define N_MORE 3

static bool is_gpu, is_tight, is_biased; /* of the next model that is opened */
static const char *kv, *library;
static int32_t prompt[MAX_PROMPT];
static size_t n_prompt = 24;

/* Linked with --wrap=backend_open. */
int __real_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);
int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);

static struct gpu_device *open_device(void)
{
    char why[256];
    if (library == NULL)
        return device_emulated();
    struct gpu_device *device = open_cuda(library, why, sizeof why);
    if (device == NULL) {
        fprintf(stderr, "gpu_bits: %s\n", why);
        exit(77);
    }
    return device;
}

int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err)
{
    return is_gpu ? backend_cuda_open_on(open_device(), options, out, err)
                  : __real_backend_open(name, options, out, err);
}

/* Linked with --wrap=cuda_partial_floats. Gives room to one row's blocks: rows take turns. */
size_t __real_cuda_partial_floats(const struct backend_options *o);
size_t __wrap_cuda_partial_floats(const struct backend_options *o);

size_t __wrap_cuda_partial_floats(const struct backend_options *o)
{
    return is_tight ? (o->n_context / 256 + 2) * o->n_heads * (o->head_dim + 2ul)
                    : __real_cuda_partial_floats(o);
}

static void must(int rc, const struct fm_error *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "gpu_bits: %s\n", err->text);
    exit(1);
}

static struct fm_model *open_model(const char *path, unsigned chunk)
{
    struct fm_model_options options = {.size = sizeof options, .n_threads = 1,
                                       .prefill_chunk = chunk, .n_context = MAX_PROMPT + 8,
                                       .kv = kv, .n_sessions = 2, .lookahead = FM_OFF,
                                       .cache_bias = is_biased ? 0.4 : 0};
    struct fm_model *model;
    struct fm_error err;
    must(fm_model_open(path, &options, &model, &err), &err);
    return model;
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
static void evaluate(struct fm_model *model, struct fm_session *session, const int32_t *ids,
                     size_t n, char hash[33])
{
    struct fm_model_info info = {.size = sizeof info};
    struct fm_error err;
    fm_model_info(model, &info);
    must(fm_session_eval(session, ids, n, &err), &err);
    for (unsigned i = 0; i < N_MORE; i++) {
        const int32_t token = best_token(session, info.vocabulary);
        must(fm_session_eval(session, &token, 1, &err), &err);
    }
    fm_session_logits_hash(session, hash);
}

/* Evaluates the prompt, all logits of it, in one batch with another session; leaves a snapshot in
 * the middle where `snapshot` says. */
static void run(const char *path, bool on_gpu, unsigned chunk, const char *snapshot, char hash[33])
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
    evaluate(model, session, prompt + middle, n_prompt - middle, hash);
    fm_session_close(session);
    fm_model_close(model);
}

/* Goes on from a snapshot. */
static void resume(const char *path, bool on_gpu, const char *snapshot, char hash[33])
{
    struct fm_session *session;
    struct fm_error err;
    is_gpu = on_gpu;
    struct fm_model *model = open_model(path, 16);
    must(fm_session_open(model, &session, &err), &err);
    must(fm_session_load(session, snapshot, &err), &err);
    evaluate(model, session, prompt + n_prompt / 2, n_prompt - n_prompt / 2, hash);
    fm_session_close(session);
    fm_model_close(model);
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
    run(argv[1], false, 16, NULL, expected);
    const bool is_long = library == NULL && n_prompt > 100; /* minutes, one token at a time */
    for (unsigned chunk = 64; chunk > 0; chunk = chunk > 5 ? 5 : chunk > 1 && !is_long ? 1 : 0) {
        is_tight = chunk == 5;
        run(argv[1], true, chunk, path, hash);
        snprintf(text, sizeof text, "GPU, %u tokens at a time", chunk);
        status |= compare(text, expected, hash);
    }
    char first[33];
    resume(argv[1], false, path, first);
    resume(argv[1], true, path, hash);
    status |= compare("GPU, from the GPU's snapshot", first, hash);
    run(argv[1], false, 16, path, expected);
    resume(argv[1], false, path, hash);
    status |= compare("processor, from its own", first, hash);
    resume(argv[1], true, path, hash);
    status |= compare("GPU, from the processor's", first, hash);
    (void)unlink(path);
    if (library == NULL)
        status |= lose_device(argv[1]);
    if (is_long)
        return status;
    is_biased = true;
    run(argv[1], false, 16, NULL, expected);
    run(argv[1], true, 16, NULL, hash);
    status |= compare("GPU, experts in memory preferred", expected, hash);
    return status;
}
