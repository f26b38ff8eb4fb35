/* Lookahead prefetches experts before their layer has chosen them. It applies the next layer's
 * router to this layer's hidden state and guesses the predicted experts that are missing
 * (expert_cache_guess).
 *
 * A pass may have several rows: tokens and the drafts behind them. The union of what they will use
 * is guessed then.
 *
 * A prediction costs one router product per layer, and a wrong guess costs disk time. So lookahead
 * is tried: some passes run with it and some without, and the faster choice stays for a while.
 * Passes are compared only with others that have as many rows, and only when experts are being read
 * at all.
 *
 * Lookahead changes when bytes are read and never a result. The struct uses memory of the caller.
 * It belongs to the thread that drives the plans. */
#ifndef FLASHMOE_CACHE_LOOKAHEAD_H
#define FLASHMOE_CACHE_LOOKAHEAD_H

#include "cache/expert_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

enum lookahead_mode { LOOKAHEAD_AUTO, LOOKAHEAD_ON, LOOKAHEAD_OFF };

/* How good the predictions for one layer were. */
struct lookahead_layer {
    uint64_t n_needed, n_predicted; /* experts used; of them, predicted */
    uint64_t n_wanted;              /* experts predicted, right or wrong */
};

/* Whether passes of one number of rows are faster with lookahead. */
struct lookahead_trial {
    enum { LOOKAHEAD_WITHOUT, LOOKAHEAD_WITH, LOOKAHEAD_SETTLED } phase;
    uint32_t n_passes_left; /* in the phase */
    uint32_t n_settled;     /* passes of the next settled phase without lookahead */
    uint64_t without_ns, with_ns, n_misses;
};

struct lookahead {
    enum lookahead_mode mode;
    struct expert_cache *cache;
    struct lookahead_layer *layers; /* [n_layers] */
    uint32_t n_layers, n_used, max_rows;
    uint32_t *predicted; /* [n_predicted] ascending, for predicted_layer */
    uint32_t n_predicted, predicted_layer;
    bool is_on; /* for the current pass */
    struct lookahead_trial *trials; /* [max_rows] */
    struct lookahead_trial *trial;  /* of the current pass */
};

/* What a model and its passes need: layers with experts, experts of a row, and rows at most. */
struct lookahead_sizes {
    uint32_t n_layers, n_used, max_rows;
};

/* Returns the size of the memory to pass to lookahead_init, which must be zeroed. */
uint64_t lookahead_bytes(const struct lookahead_sizes *sizes);
void lookahead_init(struct lookahead *l, enum lookahead_mode mode, struct expert_cache *cache,
                    const struct lookahead_sizes *sizes, void *memory);

/* Called before and after every decoding pass with at most max_rows rows. After begin, is_on says
 * whether to predict. */
void lookahead_begin(struct lookahead *l, uint32_t n_rows);
void lookahead_end(struct lookahead *l, uint64_t ns, uint64_t n_misses);

/* Takes the experts that the rows of `layer` will probably use, those of each row ascending. */
void lookahead_predict(struct lookahead *l, uint32_t layer, const uint32_t *ids, uint32_t n_rows);
/* Does so, and takes their router weights. Guesses the missing ones: of one row those with the
 * largest weights first, of several rows their union in the order of the disk. */
void lookahead_guess(struct lookahead *l, uint32_t layer, const uint32_t *ids,
                     const float *weights, uint32_t n_rows);
/* Compares the prediction with the experts that the layer really uses, ascending. */
void lookahead_check(struct lookahead *l, uint32_t layer, const struct expert_use *uses,
                     uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
