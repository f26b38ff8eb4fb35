/* The rotary embedding of a model: its frequencies, and how they are scaled to contexts longer than
 * the model was trained for. transformers (modeling_rope_utils.py) is the reference, also for where
 * a value is rounded to float. Pure functions: any thread. */
#ifndef FLASHMOE_MODEL_ROPE_H
#define FLASHMOE_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum rope_kind {
    ROPE_DEFAULT, /* not scaled */
    ROPE_LINEAR,  /* every frequency divided by the factor */
    ROPE_YARN,    /* low frequencies divided by the factor, high ones kept, a ramp between them */
};

struct rope {
    enum rope_kind kind;
    double theta;  /* base of the wavelengths */
    double factor; /* 1 or more; 1 where nothing is scaled */
    uint32_t original_context; /* positions before scaling */
    double attention_factor; /* cosines and sines are multiplied by it */
    /* YaRN only: frequencies that turn more than beta_fast times within the original context are
     * kept, those that turn less than beta_slow times are divided. */
    double beta_fast, beta_slow;
    bool truncates; /* the ramp begins and ends at whole dimensions */
};

/* Fills out[rotary_dim / 2]. */
void rope_frequencies(const struct rope *rope, unsigned rotary_dim, float *out);

/* Returns YaRN's attention factor for a scaling factor and the configuration's mscale and
 * mscale_all_dim, of which 0 means that the configuration has none. */
double rope_attention_factor(double factor, double mscale, double mscale_all_dim);

/* Returns the longest context, given the configuration's max_position_embeddings. */
uint32_t rope_max_context(const struct rope *rope, uint32_t max_positions);

/* Returns the kind as configurations spell it. */
const char *rope_kind_name(enum rope_kind kind);

#ifdef __cplusplus
}
#endif
#endif
