/* Transcendental functions that give the same bits on every machine: polynomials in IEEE arithmetic
 * with explicit fused multiply-adds. fmath_test.c checks the error bounds stated here against the
 * double-precision libm.
 *
 * The inline definitions are for files compiled with hardware FMA (kernels). All other code calls
 * the out-of-line fmath_*_of functions, which give the same bits without FMA but are slower. Pure
 * functions: any thread. */
#ifndef FLASHMOE_BASE_FMATH_H
#define FLASHMOE_BASE_FMATH_H

#include <math.h> /* only fmaf and fma: as instructions or from libm, both round once */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/shared_fn.h"

#ifdef __cplusplus
extern "C" {
#endif

float fmath_exp_of(float x);
double fmath_log_of(double x);
/* Returns base^exponent for base > 0, with a relative error below 1e-14. For tables that are built
 * when a model opens. */
double fmath_pow_of(double base, double exponent);

/* Returns true if no element of x[n] is NaN or infinite. Takes 0.1 ns per float. */
bool fmath_all_finite(const float *x, size_t n);

SHARED_FN float fmath_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

SHARED_FN uint32_t fmath_bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

SHARED_FN double fmath_double_of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* e^x, error below 1 ulp where the result is normal. 0 below -104, infinity above 88.8,
 * NaN for NaN. */
SHARED_FN float fmath_exp(float x)
{
    const float magic = 12582912.0f; /* adding it rounds to a whole number */
    const float lowest = -104.0f, highest = 89.0f;
    float c = x < lowest ? lowest : x;
    c = c > highest ? highest : c;
    float n = fmaf(c, 1.44269504088896341f, magic) - magic;
    float r = fmaf(n, -0x1.62e4p-1f, c); /* ln 2 in two parts, the first with 15 bits */
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6d7af4p-10f; /* fitted on [-ln2/2, ln2/2], error 3.2e-9 before rounding */
    p = fmaf(p, r, 0x1.1239f2p-7f);
    p = fmaf(p, r, 0x1.5554cp-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1p-1f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* 2^n in two factors, so that a denormal or huge result needs no special case. */
    int32_t whole = c == c ? (int32_t)n : 0;
    int32_t half = whole >> 1;
    float a = fmath_float_of_bits((uint32_t)(half + 127) << 23);
    float b = fmath_float_of_bits((uint32_t)(whole - half + 127) << 23);
    return p * a * b;
}

/* 1 / (1 + e^-x), error below 3 ulp. */
SHARED_FN float fmath_sigmoid(float x)
{
    return 1.0f / (1.0f + fmath_exp(-x));
}

/* x * sigmoid(x), error below 4 ulp. */
SHARED_FN float fmath_silu(float x)
{
    return x / (1.0f + fmath_exp(-x));
}

/* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), which is x * sigmoid(twice that
 * argument); error below 5 ulp for |x| < 1 and below 100 for |x| < 8, where the result of a
 * negative x is tiny. */
SHARED_FN float fmath_gelu(float x)
{
    const float inner = x * fmaf(x * x, 0x1.2444f2p-4f, 0x1.988454p+0f);
    return x / (1.0f + fmath_exp(-inner));
}

/* ln x for a normal x > 0, relative error below 1e-14. */
SHARED_FN double fmath_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    /* The mantissa in [sqrt(1/2), sqrt(2)), so that s below is at most 0.172. */
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    double m = fmath_double_of_bits((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent += 1;
    }
    double s = (m - 1.0) / (m + 1.0);
    double s2 = s * s;
    double p = 1.0 / 23;
    for (int k = 21; k >= 3; k -= 2)
        p = fma(p, s2, 1.0 / k);
    double log_m = fma(2.0 * s * s2, p, 2.0 * s);
    return fma((double)exponent, 0.6931471805599453, log_m);
}

/* ln(1 + e^x), error below 2 ulp; x itself above 20, as the reference models compute it. */
SHARED_FN float fmath_softplus(float x)
{
    if (x > 20.0f)
        return x;
    float y = fmath_exp(x);
    if (!(y >= 1e-9f)) /* ln(1 + y) equals y to within y/2 relative; also taken for NaN */
        return y;
    return (float)fmath_log(1.0 + (double)y);
}

/* Computes sin and cos for rotary angles, |x| < 2^30, with an error below 1 ulp of 1. */
SHARED_FN void fmath_sincos(float x, float *sin_x, float *cos_x)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    double n = fma((double)x, 0.6366197723675814, magic) - magic;
    double r = fma(n, -1.5707963267948966, (double)x); /* pi/2 in two parts */
    r = fma(n, -6.123233995736766e-17, r);
    double r2 = r * r;
    double s = fma(r2, -2.505210838544172e-8, 2.7557319223985893e-6);
    s = fma(s, r2, -1.984126984126984e-4);
    s = fma(s, r2, 8.333333333333333e-3);
    s = fma(s, r2, -0.16666666666666666);
    s = fma(s * r2, r, r);
    double c = fma(r2, 2.08767569878681e-9, -2.755731922398589e-7);
    c = fma(c, r2, 2.48015873015873e-5);
    c = fma(c, r2, -1.388888888888889e-3);
    c = fma(c, r2, 4.1666666666666664e-2);
    c = fma(c, r2, -0.5);
    c = fma(c, r2, 1.0);
    int64_t quarter = (int64_t)n & 3;
    double sine = quarter & 1 ? c : s;
    double cosine = quarter & 1 ? s : c;
    *sin_x = (float)(quarter & 2 ? -sine : sine);
    *cos_x = (float)(quarter == 1 || quarter == 2 ? -cosine : cosine);
}

#ifdef __cplusplus
}
#endif
#endif
