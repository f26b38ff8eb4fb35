/* Rates over the last two seconds, from sampled counters. Owns no memory. One thread; cannot
 * fail. */
#ifndef FLASHMOE_SERVER_WINDOW_H
#define FLASHMOE_SERVER_WINDOW_H

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WINDOW_NS 2000000000u
#define WINDOW_SAMPLES 32

struct window_sample {
    uint64_t ns;
    uint64_t n_prompt, n_answer;
    struct fm_stats model;
};

struct window {
    struct window_sample samples[WINDOW_SAMPLES]; /* a ring */
    unsigned n, next;
};

void window_note(struct window *w, const struct window_sample *sample);
/* Returns the oldest and the newest sample of the last two seconds; false with fewer than two. */
bool window_ends(const struct window *w, uint64_t now_ns, const struct window_sample **oldest,
                 const struct window_sample **newest);

#ifdef __cplusplus
}
#endif
#endif
