/* The rotary embedding of a model: its frequencies, and how they are scaled for contexts longer
 * than the model was trained for. transformers (modeling_rope_utils.py) is the reference, including
 * where values are rounded to float. Pure functions: any thread may call. */
#ifndef FLASHMOE_MODEL_ROPE_H
#define FLASHMOE_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum rope_kind {
    ROPE_DEFAULT, /* not scaled */
    ROPE_LINEAR,  /* divides every frequency by the factor */
    ROPE_YARN,    /* divides low frequencies, keeps high ones, with a ramp between them */
};

struct rope {
    enum rope_kind kind;
    double theta;  /* base of the wavelengths */
    double factor; /* at least 1; 1 without scaling */
    uint32_t original_context; /* positions before scaling */
    double attention_factor; /* cosines and sines are multiplied by it */
    /* YaRN only. Keeps frequencies that turn more than beta_fast times within the original context,
     * and divides those that turn less than beta_slow times. */
    double beta_fast, beta_slow;
    bool truncates; /* the ramp begins and ends at whole dimensions */
};

/* Fills out[rotary_dim / 2]. */
void rope_frequencies(const struct rope *rope, unsigned rotary_dim, float *out);

/* Returns YaRN's attention factor for a scaling factor and the configuration's mscale and
 * mscale_all_dim, 0 if the configuration does not have them. */
double rope_attention_factor(double factor, double mscale, double mscale_all_dim);

/* Returns a factor of YaRN: 1 without scaling. */
double rope_mscale(double factor, double mscale);

/* Returns the longest context, given the configuration's max_position_embeddings. */
uint32_t rope_max_context(const struct rope *rope, uint32_t max_positions);

/* Returns the kind as configurations spell it. */
const char *rope_kind_name(enum rope_kind kind);

#ifdef __cplusplus
}
#endif
#endif
