#include "model/rope.h"

#include <math.h>

#include "base/fmath.h"
#include "base/limits.h"

#define TWO_PI 6.283185307179586

/* Returns the dimension, as a real number, whose frequency turns n_turns times within the original
 * context. */
static double dimension_of(const struct rope *rope, unsigned rotary_dim, double n_turns)
{
    return rotary_dim * fmath_log_of(rope->original_context / (n_turns * TWO_PI)) /
           (2 * fmath_log_of(rope->theta));
}

struct ramp {
    double begin, end; /* dimensions; the end may lie before the beginning */
};

static struct ramp ramp_of(const struct rope *rope, unsigned rotary_dim)
{
    struct ramp ramp = {dimension_of(rope, rotary_dim, rope->beta_fast),
                        dimension_of(rope, rotary_dim, rope->beta_slow)};
    if (rope->truncates)
        ramp = (struct ramp){floor(ramp.begin), ceil(ramp.end)};
    ramp.begin = ramp.begin > 0 ? ramp.begin : 0;
    ramp.end = ramp.end < rotary_dim - 1.0 ? ramp.end : rotary_dim - 1.0;
    if (ramp.begin == ramp.end)
        ramp.end += 0.001;
    return ramp;
}

/* `power` is the wavelength of dimension i, divided by two pi. Each step is rounded to float, as
 * the reference does it. */
static float yarn_frequency(const struct rope *rope, const struct ramp *ramp, unsigned i,
                            float power)
{
    const float kept = 1.0f / power, divided = 1.0f / ((float)rope->factor * power);
    float at = ((float)i - (float)ramp->begin) / (float)(ramp->end - ramp->begin);
    at = at < 0 ? 0 : at;
    at = at > 1 ? 1 : at;
    const float share = 1.0f - at;
    return divided * (1.0f - share) + kept * share;
}

void rope_frequencies(const struct rope *rope, unsigned rotary_dim, float *out)
{
    struct ramp ramp = {0};
    if (rope->kind == ROPE_YARN)
        ramp = ramp_of(rope, rotary_dim);
    for (unsigned i = 0; i < rotary_dim / 2; i++) {
        /* Rounded to float where the reference models round: the power, then its reciprocal. */
        const float power = (float)fmath_pow_of(rope->theta, (double)(2 * i) / rotary_dim);
        out[i] = rope->kind == ROPE_YARN ? yarn_frequency(rope, &ramp, i, power) : 1.0f / power;
        if (rope->kind == ROPE_LINEAR)
            out[i] /= (float)rope->factor;
    }
}

double rope_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * fmath_log_of(factor) + 1;
}

double rope_attention_factor(double factor, double mscale, double mscale_all_dim)
{
    if (mscale != 0 && mscale_all_dim != 0)
        return rope_mscale(factor, mscale) / rope_mscale(factor, mscale_all_dim);
    return rope_mscale(factor, 1);
}

uint32_t rope_max_context(const struct rope *rope, uint32_t max_positions)
{
    if (rope->kind == ROPE_DEFAULT)
        return max_positions;
    const double scaled = rope->factor * rope->original_context;
    const uint32_t n = scaled < LIMIT_CONTEXT ? (uint32_t)scaled : LIMIT_CONTEXT;
    return n > max_positions ? n : max_positions;
}

const char *rope_kind_name(enum rope_kind kind)
{
    static const char *const names[] = {"default", "linear", "yarn"};
    return names[kind];
}
