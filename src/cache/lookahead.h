/* Lookahead: reading experts before their layer has chosen them. The next layer's router, applied
 * to this layer's hidden state, names them; those that are not there are guessed
 * (expert_cache_guess).
 *
 * Foreseeing costs a router's product per layer, and a wrong guess costs disk time, so it is tried:
 * in turns some tokens with it and some without, and whichever was faster stays for a while. Tokens
 * are only compared when experts are being read at all.
 *
 * Belongs to the thread that drives the plans. It changes when bytes travel and no result. */
#ifndef FLASHMOE_CACHE_LOOKAHEAD_H
#define FLASHMOE_CACHE_LOOKAHEAD_H

#include "cache/expert_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

enum lookahead_mode { LOOKAHEAD_AUTO, LOOKAHEAD_ON, LOOKAHEAD_OFF };

/* What one layer's guesses were worth. */
struct lookahead_layer {
    uint64_t n_needed, n_foreseen; /* experts that tokens used; of them, those foreseen */
};

struct lookahead {
    enum lookahead_mode mode;
    struct expert_cache *cache;
    struct lookahead_layer *layers; /* [n_layers] */
    uint32_t n_layers, n_used;
    uint32_t *foreseen; /* [n_used] */
    uint32_t foreseen_layer;
    bool is_on; /* for the token at hand */

    enum { LOOKAHEAD_WITHOUT, LOOKAHEAD_WITH, LOOKAHEAD_SETTLED } phase;
    uint32_t n_tokens_left; /* of the phase */
    uint32_t n_settled;     /* tokens the next settled phase lasts when it is without */
    uint64_t without_ns, with_ns, n_misses;
};

/* `layers` and `foreseen` are the caller's memory: lookahead_bytes, zeroed. */
uint64_t lookahead_bytes(uint32_t n_layers, uint32_t n_used);
void lookahead_init(struct lookahead *l, enum lookahead_mode mode, struct expert_cache *cache,
                    uint32_t n_layers, uint32_t n_used, void *memory);

/* Around every token that is decoded alone. lookahead->is_on says whether to foresee. */
void lookahead_begin_token(struct lookahead *l);
void lookahead_end_token(struct lookahead *l, uint64_t ns, uint64_t n_misses);

/* The experts that `layer` will probably use, ascending, and the weights it would give them:
 * guesses the likeliest of those that are missing. */
void lookahead_guess(struct lookahead *l, uint32_t layer, const uint32_t *ids,
                     const float *weights);
/* The experts that it does use. */
void lookahead_check(struct lookahead *l, uint32_t layer, const struct expert_use *uses,
                     uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
