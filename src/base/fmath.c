#include "base/fmath.h"

float fmath_exp_of(float x)
{
    return fmath_exp(x);
}

double fmath_log_of(double x)
{
    return fmath_log(x);
}

/* e^x in double for |x| < 700, relative error below 1e-15. */
static double exp_double(double x)
{
    const double magic = 6755399441055744.0;
    double n = fma(x, 1.4426950408889634, magic) - magic;
    double r = fma(n, -0.6931471805599453, x);
    r = fma(n, -2.3190468138462996e-17, r);
    double p = 1.0;
    for (int k = 18; k >= 1; k--)
        p = fma(p, r / k, 1.0);
    return p * fmath_double_of_bits((uint64_t)((int64_t)n + 1023) << 52);
}

double fmath_pow_of(double base, double exponent)
{
    return exp_double(exponent * fmath_log(base));
}

bool fmath_all_finite(const float *x, size_t n)
{
    /* Adding one to an exponent of all ones carries into the sign bit. */
    uint32_t seen = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        seen |= (bits & 0x7fffffffu) + 0x00800000u;
    }
    return (seen & 0x80000000u) == 0;
}
