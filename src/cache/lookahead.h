/* Lookahead prefetches experts before their layer has chosen them. It applies the next layer's
 * router to this layer's hidden state and guesses the predicted experts that are missing
 * (expert_cache_guess).
 *
 * A prediction costs one router product per layer, and a wrong guess costs disk time. So lookahead
 * is tried: some tokens run with it and some without, and the faster choice stays for a while.
 * Tokens are compared only when experts are being read at all.
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
};

struct lookahead {
    enum lookahead_mode mode;
    struct expert_cache *cache;
    struct lookahead_layer *layers; /* [n_layers] */
    uint32_t n_layers, n_used;
    uint32_t *predicted; /* [n_used], for predicted_layer */
    uint32_t predicted_layer;
    bool is_on; /* for the current token */

    enum { LOOKAHEAD_WITHOUT, LOOKAHEAD_WITH, LOOKAHEAD_SETTLED } phase;
    uint32_t n_tokens_left; /* in the phase */
    uint32_t n_settled;     /* tokens of the next settled phase without lookahead */
    uint64_t without_ns, with_ns, n_misses;
};

/* Returns the size of the memory to pass to lookahead_init, which must be zeroed. */
uint64_t lookahead_bytes(uint32_t n_layers, uint32_t n_used);
void lookahead_init(struct lookahead *l, enum lookahead_mode mode, struct expert_cache *cache,
                    uint32_t n_layers, uint32_t n_used, void *memory);

/* Called before and after every token that is decoded alone. After begin, is_on says whether to
 * predict. */
void lookahead_begin_token(struct lookahead *l);
void lookahead_end_token(struct lookahead *l, uint64_t ns, uint64_t n_misses);

/* Takes the experts that `layer` will probably use, ascending, and their router weights. Guesses
 * the missing ones with the largest weights. */
void lookahead_guess(struct lookahead *l, uint32_t layer, const uint32_t *ids,
                     const float *weights);
/* Compares the prediction with the experts that the layer really uses, ascending. */
void lookahead_check(struct lookahead *l, uint32_t layer, const struct expert_use *uses,
                     uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
