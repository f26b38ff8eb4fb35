/* gpu_soak MODEL TOKENS GPU [MAX_GIB]: decodes with both budgets changing at random, and says
 * whether memory stays flat and whether the logits are those of a run without changes. GPU is as
 * --gpu has it. Run by hand: it takes minutes. Exit status 3 if logits differ or if memory grows by
 * more than a hundredth. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plat.h"
#include "flashmoe_lab.h"

#define STRETCH 250   /* tokens of a session */
#define N_POINTS 10   /* lines that are printed */
#define CHANGE_EVERY 7 /* tokens, on average */

static uint32_t rng = 12345;

static uint32_t any(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(rng >> 8) * n) >> 24);
}

static void stop(const char *what, const struct fm_error *err)
{
    (void)fprintf(stderr, "gpu_soak: %s: %s\n", what, err->text);
    exit(1);
}

static struct fm_stats stats_of(const struct fm_model *m)
{
    struct fm_stats stats = {.size = sizeof stats};
    (void)fm_model_stats(m, &stats);
    return stats;
}

/* A share of what lies between the limits; often one of them. */
static uint64_t any_budget(uint64_t min, uint64_t max)
{
    const uint32_t how = any(6);
    return how == 0 ? min : how == 1 ? max : min + (max - min) / 1000 * any(1000);
}

static void change_budgets(struct fm_model *m, uint64_t max_bytes)
{
    const struct fm_stats s = stats_of(m);
    const uint64_t max = max_bytes < s.memory_max_bytes ? max_bytes : s.memory_max_bytes;
    struct fm_error err;
    if (fm_model_set_memory(m, any_budget(s.memory_min_bytes, max), &err) != 0)
        stop("the memory", &err);
    if (s.gpu != NULL &&
        fm_model_set_gpu_memory(m, any_budget(s.gpu_min_bytes, s.gpu_max_bytes), &err) != 0)
        stop("the GPU's memory", &err);
}

/* Decodes a stretch from token `first` on; leaves the hash of its logits. */
static void decode(struct fm_model *m, struct fm_session *session, int32_t first, unsigned n,
                   uint64_t max_bytes, char hash[33])
{
    struct fm_error err;
    fm_session_reset(session);
    for (unsigned i = 0; i < n; i++) {
        const int32_t id = (int32_t)((unsigned)(first + (int32_t)i * 31) % 250u);
        if (max_bytes > 0 && any(CHANGE_EVERY) == 0)
            change_budgets(m, max_bytes);
        if (fm_session_eval(session, &id, 1, &err) != 0)
            stop("a token", &err);
    }
    fm_session_logits_hash(session, hash);
}

int main(int argc, char **argv)
{
    struct fm_error err;
    struct fm_model *m;
    struct fm_session *session;
    if (argc < 4 || argc > 5) {
        (void)fprintf(stderr, "usage: gpu_soak MODEL TOKENS GPU [MAX_GIB]\n");
        return 2;
    }
    const unsigned n_stretches = (unsigned)atoi(argv[2]) / STRETCH;
    const uint64_t max_bytes = (uint64_t)(argc > 4 ? atoi(argv[4]) : 8) << 30;
    struct fm_model_options options = {.size = sizeof options, .memory_bytes = max_bytes,
                                       .n_context = STRETCH, .gpu = argv[3]};
    if (fm_model_open(argv[1], &options, &m, &err) != 0)
        stop(argv[1], &err);
    if (fm_session_open(m, &session, &err) != 0)
        stop("a session", &err);
    char expected[33], hash[33];
    uint64_t first_resident = 0, resident = 0;
    bool is_same = true;
    decode(m, session, 1, STRETCH, 0, expected);
    for (unsigned i = 0; i < n_stretches; i++) {
        decode(m, session, 1, STRETCH, max_bytes, hash);
        is_same &= strcmp(hash, expected) == 0;
        if (n_stretches >= N_POINTS && (i + 1) % (n_stretches / N_POINTS) != 0)
            continue;
        /* All that the budgets allow, as it was after the first stretches. */
        const struct fm_stats s = stats_of(m);
        (void)fm_model_set_memory(m, s.memory_min_bytes, &err);
        if (s.gpu != NULL)
            (void)fm_model_set_gpu_memory(m, s.gpu_min_bytes, &err);
        resident = plat_resident_bytes();
        first_resident = first_resident > 0 ? first_resident : resident;
        const struct fm_stats now = stats_of(m);
        (void)printf("%6u tokens, resident %.1f MiB with the smallest budgets, GPU %.1f MiB, "
                     "%" PRIu64 " sent, %" PRIu64 " computed, %" PRIu64 " up, %" PRIu64
                     " down, logits %s\n",
                     (i + 1) * STRETCH, (double)resident / 1048576.0,
                     (double)(now.gpu_dense_bytes + now.gpu_cache_bytes + now.gpu_kv_bytes +
                              now.gpu_scratch_bytes) / 1048576.0,
                     now.n_experts_sent, now.n_experts_computed, now.n_experts_moved_up,
                     now.n_experts_moved_down, is_same ? "the same" : "DIFFERENT");
        (void)fflush(stdout);
    }
    fm_session_close(session);
    fm_model_close(m);
    return is_same && resident <= first_resident + first_resident / 100 ? 0 : 3;
}
