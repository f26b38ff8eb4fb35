/* The forward pass of one stage: the order of work for rows on their way through its layers,
 * written once for all architectures. Prefill, decode of one and decode of many are the same code,
 * and no row's result depends on the rest of the batch. The stage with the first layer embeds the
 * tokens, the one with the last layer computes the head; between stages rows travel through the
 * host.
 *
 * A forward owns its scratch and borrows model, backend and cache. One thread at a time. */
#ifndef FLASHMOE_ENGINE_FORWARD_H
#define FLASHMOE_ENGINE_FORWARD_H

#include "cache/lookahead.h"
#include "engine/pass.h"

#ifdef __cplusplus
extern "C" {
#endif

struct forward;

/* Replaces the experts that the router chose for a token. `ids` is [k], ascending. `expert_layer`
 * counts all layers with experts. */
typedef void replace_ids_fn(void *ctx, uint32_t position, uint32_t expert_layer, uint32_t *ids);

struct forward_options {
    uint32_t stage;    /* its part of every sequence */
    uint32_t max_rows; /* tokens in a batch */
    uint32_t max_segments; /* sequences in a batch */
    uint32_t n_context;
    const struct kv_format *kv_format;
    enum lookahead_mode lookahead; /* off where ids are replaced and not predicted */
    uint32_t ahead_rows; /* of a pass that may look ahead, at most */
    float cache_bias; /* above 0: approximate routing, of tokens that are decoded (prefer.h) */
    replace_ids_fn *replace_ids; /* NULL: the routers choose */
    replace_ids_fn *predict_ids; /* replaces what lookahead predicts of them; NULL: nothing does */
    void *replace_ctx;
    /* Some experts are not in the backend's memory but in the host's, where host_be computes them
     * unless they are sent (forward_far.c). */
    bool has_far;
    struct backend *host_be;
    bool checks; /* verifies that files of tables have not changed */
};

/* Return the memory that a forward will take: in the backend's memory, and in the host's. */
uint64_t forward_row_bytes(const struct model *model, const struct forward_options *options);
uint64_t forward_host_bytes(const struct model *model, const struct forward_options *options);
/* Returns the bytes of the largest piece of the backend's memory that the host opens. */
uint64_t forward_piece_bytes(const struct model *model);
/* Fills in what the backend must be prepared for: everything but threads and level. */
void forward_backend_options(const struct model *model, const struct forward_options *options,
                             struct backend_options *backend);

/* The same for host_be. */
void forward_far_options(const struct model *model, struct backend_options *backend);

/* `cache` may be NULL for a model without routed experts. */
int forward_open(const struct model *model, struct backend *be, struct expert_cache *cache,
                 const struct forward_options *options, struct forward **out,
                 struct fm_error *err);
void forward_close(struct forward *forward); /* accepts NULL */

/* Tells how well experts of a layer were predicted so far; false when there is no such layer. */
bool forward_recall(const struct forward *f, uint32_t expert_layer, struct lookahead_layer *layer);

/* What became of experts that are not where the backend computes. */
struct far_stats {
    uint64_t n_computed;
    uint64_t send_ns, compute_ns; /* of an expert, lately; compute_ns of one row */
};
void forward_far_stats(const struct forward *f, struct far_stats *stats);

/* Takes the rows of the pass through the layers. Segments that are given up leave the pass. */
void forward_run(struct forward *forward, struct pass *pass);
/* Takes rows that other ranks have computed from the last layer into the head, where the stage has
 * it without that layer. */
void forward_run_head(struct forward *forward, struct pass *pass);

/* Returns whether a pass can be left between two layers for another one: its rows and the pass say
 * all that the next layer needs. */
bool forward_can_pause(const struct forward *f);
/* Rows of a pass that was left. Another one has the places behind them. */
uint32_t forward_held_rows(const struct forward *f);

/* Rows of the block for multi-token prediction, where the model has it: as in mtp.h. At most
 * max_rows of them. */
void forward_mtp_keep(struct forward *f, const struct mtp_row *rows, uint32_t n);
bool forward_mtp_draft(struct forward *f, struct mtp_row *rows, uint32_t n, uint32_t n_tokens);

#ifdef __cplusplus
}
#endif
#endif
