/* An architecture: one constant struct per family. forward.c owns the order of work and calls
 * these functions; they do arithmetic through the backend and nothing else: no file, no lock, no
 * cache, no look at a number format.
 *
 * All functions run on the thread that drives the forward pass. */
#ifndef FLASHMOE_ARCH_ARCH_H
#define FLASHMOE_ARCH_ARCH_H

#include <assert.h>

#include "backend/backend.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum state_kind {
    /* Rows for every position, which stay as they are: a sequence goes back by forgetting the later
     * ones. Memory for them grows with the sequence. */
    STATE_BY_POSITION,
    /* A fixed number of bytes that every token changes: a sequence goes back to its marks. Zero at
     * position 0. */
    STATE_RECURRENT,
};

/* A part of what one layer keeps per sequence. */
struct state_part {
    enum state_kind kind;
    uint32_t n_rows, n_values; /* by position: rows, and numbers of a row */
    uint64_t bytes;            /* recurrent: all of it, a multiple of 4 */
    const struct kv_format *format; /* of the rows; NULL: that of keys and values */
};

/* How a mixer describes the state of its layer. Part i is state[i] of backend_segment. */
struct layer_state {
    uint32_t n_parts;
    struct state_part parts[BACKEND_STATE_PARTS];
    /* Float multiply-adds of a token with every position before it; 0 if a window limits them. */
    uint64_t position_mul_adds;
};

static inline void layer_state_add(struct layer_state *state, struct state_part part)
{
    assert(state->n_parts < BACKEND_STATE_PARTS);
    state->parts[state->n_parts++] = part;
}

/* Bytes of a row of a part that is addressed by position. */
static inline uint64_t state_row_bytes(const struct state_part *part,
                                       const struct kv_format *format)
{
    return kv_row_bytes(part->format != NULL ? part->format : format, part->n_values);
}

/* A mixer whose rows take much memory for a short time computes so many rows together. */
#define ARCH_FEW_ROWS 64u

/* Sizes that scratch memory is made from. */
struct arch_sizes {
    uint32_t max_cols;           /* of any weight, and of any head */
    uint32_t max_intermediate;   /* of any feed-forward block */
    uint32_t max_routed_intermediate; /* of any block with experts */
    uint64_t mix_floats_per_row; /* the mixer's own scratch, batch-wide data included */
    uint64_t mix_floats_per_few; /* besides, for each of the first ARCH_FEW_ROWS rows */
    unsigned n_heads, head_dim, key_dim; /* of attention, and of the delta rule; 0: none */
    unsigned index_best;                 /* as in backend_options */
    uint64_t head_floats_per_row;        /* scratch of final_norm */
};

static inline uint64_t arch_mix_floats(const struct arch_sizes *sizes, uint64_t n_rows)
{
    return n_rows * sizes->mix_floats_per_row +
           (n_rows < ARCH_FEW_ROWS ? n_rows : ARCH_FEW_ROWS) * sizes->mix_floats_per_few;
}

#define ARCH_NO_EXPERTS UINT32_MAX

/* One batch of rows on its way through the model. Buffers are [n_rows, ...], lie in the backend's
 * memory and belong to forward.c. */
struct step {
    const void *arch; /* the family's model */
    const struct model *model;
    struct backend *be;
    const struct kv_format *kv_format;
    uint32_t kv_block_positions; /* as in backend_attention */
    uint64_t kv_block_bytes;

    uint32_t n_rows;
    const int32_t *tokens;     /* the host's */
    const uint32_t *positions; /* likewise */
    const struct backend_segment *segments; /* state pointers of the layer at hand */
    uint32_t n_segments;

    float *x;      /* [n_rows, row_floats] the residual stream, or several */
    float *normed; /* [n_rows, hidden] */
    float *mix;    /* arch_mix_floats: the architecture's own layout */
    float *router; /* [n_rows, n_experts] */
    uint32_t *ids; /* [n_rows, k] ascending */
    float *weights;      /* [n_rows, k] */
    float *shared_gate;  /* [n_rows] */
    float *shared;       /* [n_rows, hidden] */
    float *expert_parts; /* [n_rows, k, hidden] */
    float *ffn;          /* [n_rows, hidden] */
    /* Rows of the layer's table, if it has one: [n_rows, n_per_token * n_cols]. */
    float *looked_up;
    float *head_scratch; /* for final_norm */

    /* Approximate routing (backend_preference): the experts of the layer at hand that are in
     * memory; NULL: the router alone chooses. */
    const bool *resident; /* [n_experts], the host's */
    float cache_bias;
    float *scores; /* [n_experts] */

    /* Of a few rows: what a later layer's router would choose now. */
    float *ahead_normed;   /* [n_rows, hidden] */
    uint32_t *ahead_ids;   /* [n_rows, k], each row ascending */
    float *ahead_weights;  /* [n_rows, k] */
};

struct arch_mtp;

/* An expert that is ready, and the rows it works on: row rows[i] of `normed` gives row places[i] of
 * `expert_parts`. */
struct step_expert {
    const void *slot;
    uint32_t expert; /* its index in the layer: which biases are its own */
    const uint32_t *rows, *places; /* [n] */
    uint32_t n;
};

/* All experts of a layer, which the backend finds by the ids that route has left: expert e lies
 * bases[e] bytes behind `slot`. */
struct step_routed {
    const void *slot;      /* in the backend's memory */
    const uint64_t *bases; /* [n_experts], likewise */
};

/* Experts given to one call at most. */
#define ARCH_EXPERTS_TOGETHER 64

struct arch {
    struct model_family family; /* first: forward.c goes from the family to its arch */

    void (*sizes)(const void *arch, struct arch_sizes *sizes);
    /* Describes what the layer keeps of every sequence. */
    void (*state)(const void *arch, uint32_t layer, struct layer_state *state);
    /* The layer's index in model->expert_layers, or ARCH_NO_EXPERTS for a dense block. */
    uint32_t (*expert_layer)(const void *arch, uint32_t layer);

    void (*embed)(struct step *step);
    /* Prepares what the mixers need of the rows' positions. Called before the first layer, and
     * again when rows have left the batch. */
    void (*place)(struct step *step);
    void (*mix)(struct step *step, uint32_t layer);   /* x += mixer(norm(x)) */
    void (*route)(struct step *step, uint32_t layer); /* normed, ids, weights */
    /* Predicts the experts of a later layer from x as it is now: fills ahead_ids and ahead_weights.
     * For a few rows, between route and experts of an earlier layer; the backend's input stays
     * `normed`. */
    void (*predict)(struct step *step, uint32_t layer);
    void (*dense)(struct step *step, uint32_t layer); /* the whole block when not routed */
    /* Computes experts on their rows, and the shared expert when asked to; n may be 0. */
    void (*experts)(struct step *step, uint32_t layer, const struct step_expert *experts,
                    uint32_t n, bool with_shared);
    /* Computes the experts that route chose, and the shared expert. For a backend with ffn_routed,
     * and within its limits. */
    void (*routed)(struct step *step, uint32_t layer, const struct step_routed *routed);
    void (*close)(struct step *step, uint32_t layer); /* x += all parts */
    /* Finds the rows of a table (model->row_tables) that a token uses. recent[0] is the token,
     * recent[i] the one i before it, or -1 if there is none. NULL: the family has no tables. */
    void (*table_rows)(const void *arch, uint32_t table, const int32_t *recent, uint64_t *rows);
    /* `x` is [n, row_floats]; the final norm goes to `normed`, logits to [n, vocabulary]. */
    void (*final_norm)(struct step *step, const float *x, uint32_t n, float *normed);
    void (*head)(struct step *step, const float *normed, uint32_t n, float *logits);
    const struct arch_mtp *mtp; /* NULL: the family has no block for multi-token prediction */
};

/* The block for multi-token prediction. A row of it is a token and the final norm's output at the
 * position before, or the block's own. It is a layer behind the last one: mix, route, experts and
 * close compute it. Where the model has it (model->has_mtp). */
struct arch_mtp {
    /* x = rows of step->tokens and of `hidden` [n_rows, hidden]. `pairs` is scratch,
     * [n_rows, 2 * hidden]. */
    void (*rows)(struct step *step, const float *hidden, float *pairs);
    /* Keeps the keys and values of the rows and computes nothing else. */
    void (*keep)(struct step *step);
    /* The block's own norm of x [n, hidden], which the head takes. */
    void (*norm)(struct step *step, const float *x, uint32_t n, float *normed);
    /* Logits [n, n_tokens] of the first n_tokens of the vocabulary. */
    void (*head)(struct step *step, const float *normed, uint32_t n, uint32_t n_tokens,
                 float *logits);
};

/* Every family, NULL-terminated, for model_open. */
const struct model_family *const *arch_families(void);
const struct arch *arch_of(const struct model *model);

#ifdef __cplusplus
}
#endif
#endif
