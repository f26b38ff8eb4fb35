/* The forward pass: the order of work for one batch of rows, written once for all architectures.
 * A batch is segments of (sequence, tokens); prefill, decode of one and decode of many are the
 * same code, and no row's result depends on the rest of the batch.
 *
 * A forward owns its scratch and borrows model, backend and cache. One thread at a time. */
#ifndef FLASHMOE_ARCH_FORWARD_H
#define FLASHMOE_ARCH_FORWARD_H

#include "arch/routes.h"
#include "arch/state.h"
#include "cache/lookahead.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct forward;

struct forward_options {
    uint32_t max_rows;     /* tokens in a batch */
    uint32_t max_segments; /* sequences in a batch */
    uint32_t n_context;
    const struct kv_format *kv_format;
    enum lookahead_mode lookahead; /* off where routes take the routers' place */
    float cache_bias; /* above 0: approximate routing, of tokens that are decoded (prefer.h) */
    const struct routes *routes; /* borrowed, of the model's shape; NULL: the routers choose */
};

struct batch_segment {
    struct sequence *sequence;
    const int32_t *tokens; /* checked by the caller: 0 <= token < vocabulary */
    uint32_t n_tokens;
    bool wants_last_logits, wants_all_logits, wants_hidden, wants_routes;
};

/* Where the time of a layer went; fm_layer_profile says what is what. */
struct batch_times {
    uint64_t mix_ns, route_ns, wait_ns, compute_ns, read_ns;
    uint64_t n_hits, n_misses, bytes_read;
};

/* Why a segment cannot be computed. */
struct batch_fault {
    int layer, expert;   /* the weights it came from; -1: not of one layer, not of an expert */
    struct fm_error err; /* code and sentence, which may name files */
};

/* Called during the pass. `segment` and `row` count within the batch and the segment. */
struct batch_hooks {
    void *ctx;
    void (*before_layer)(void *ctx, uint32_t layer);
    /* True: the segment is given up, and stays so. Asked before every layer, its experts and the
     * head, where its rows leave the batch, and between experts, where the pass ends when it was
     * the last one. */
    bool (*is_given_up)(void *ctx, uint32_t segment);
    /* Rows of the segment chose an expert that cannot be read, or gave a value that is not finite.
     * That an expert is damaged may be known when the next layer has begun; nobody was shown
     * anything that came of it.
     * From here on is_given_up must return true for it. The other segments go on. May be called
     * again for the same segment. */
    void (*fault)(void *ctx, uint32_t segment, const struct batch_fault *fault);
    void (*hidden)(void *ctx, uint32_t segment, uint32_t row, uint32_t layer, const float *x);
    void (*route)(void *ctx, uint32_t segment, uint32_t row, uint32_t layer, const uint32_t *ids,
                  const float *weights);
    void (*logits)(void *ctx, uint32_t segment, uint32_t row, const float *logits);
    /* After every layer, and once more after the head; NULL: no clock is looked at. */
    void (*times)(void *ctx, uint32_t layer, const struct batch_times *times);
};

struct batch {
    const struct batch_segment *segments;
    uint32_t n_segments;
    struct batch_hooks hooks;
};

/* Memory a forward will take. */
uint64_t forward_bytes(const struct model *model, const struct forward_options *options);
/* Fills in what the backend must be prepared for: everything but threads and level. */
void forward_backend_options(const struct model *model, const struct forward_options *options,
                             struct backend_options *backend);

/* `cache` may be NULL for a model without routed experts. */
int forward_open(const struct model *model, struct backend *be, struct expert_cache *cache,
                 const struct forward_options *options, struct forward **out,
                 struct fm_error *err);
void forward_close(struct forward *forward); /* accepts NULL */

/* What looking ahead has foreseen in an expert layer so far; false when there is no such layer. */
bool forward_recall(const struct forward *f, uint32_t expert_layer, struct lookahead_layer *layer);

/* Advances every sequence by its tokens, but for those that are given up. These have to go back:
 * sequence_rewind. */
void forward_run(struct forward *forward, const struct batch *batch);

#ifdef __cplusplus
}
#endif
#endif
