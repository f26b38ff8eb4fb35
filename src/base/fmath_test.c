/* Checks every function of fmath.h against its stated error bound and the double-precision libm.
 * The test may be compiled without hardware FMA, because fmaf is exact either way. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/fmath.h"

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Distance in ulps of the float nearest to the exact value. */
static double ulps(float got, double exact)
{
    float nearest = (float)exact;
    double unit = (double)nextafterf(fabsf(nearest), INFINITY) - (double)fabsf(nearest);
    return fabs((double)got - exact) / unit;
}

/* Visits about n floats of both signs up to `limit`, spread over all exponents. */
static double worst(float (*f)(float), double (*exact)(double), float limit, uint32_t step)
{
    double max = 0;
    for (uint32_t bits = 0; bits <= bits_of(limit); bits += step)
        for (int sign = 0; sign < 2; sign++) {
            float x = fmath_float_of_bits(bits | (uint32_t)sign << 31);
            double want = exact(x);
            if (fabs(want) < 1.2e-38 || fabs(want) > 3.4e38)
                continue;
            double e = ulps(f(x), want);
            max = e > max ? e : max;
        }
    return max;
}

static double exact_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double exact_silu(double x)
{
    return x / (1 + exp(-x));
}

static double exact_gelu(double x)
{
    return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static double exact_softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static void test_exp(void **state)
{
    (void)state;
    double e = worst(fmath_exp, exp, 89.0f, 997);
    print_message("exp: %.3f ulp\n", e);
    assert_true(e < 1);
    assert_true(fmath_exp(0.0f) == 1.0f);
    assert_true(fmath_exp(-INFINITY) == 0.0f);
    assert_true(fmath_exp(-1000.0f) == 0.0f);
    assert_true(fmath_exp(INFINITY) == INFINITY);
    assert_true(fmath_exp(1000.0f) == INFINITY);
    assert_true(isnan(fmath_exp(NAN)));
    assert_true(fabs((double)fmath_exp(-100.0f) - exp(-100.0)) < 2e-45);
    assert_int_equal(bits_of(fmath_exp_of(1.5f)), bits_of(fmath_exp(1.5f)));
}

static void test_sigmoid_silu_softplus(void **state)
{
    (void)state;
    double sigmoid = worst(fmath_sigmoid, exact_sigmoid, 80.0f, 1999);
    double silu = worst(fmath_silu, exact_silu, 80.0f, 1999);
    double softplus = worst(fmath_softplus, exact_softplus, 80.0f, 4001);
    print_message("sigmoid %.3f, silu %.3f, softplus %.3f ulp\n", sigmoid, silu, softplus);
    assert_true(sigmoid < 3);
    assert_true(silu < 4);
    assert_true(softplus < 2);
    assert_true(isnan(fmath_sigmoid(NAN)) && isnan(fmath_silu(NAN)));
    assert_true(isnan(fmath_softplus(NAN)) && isnan(fmath_softplus(-NAN)));
}

/* The argument of the exponential is rounded, so the error grows with it. */
static void test_gelu(void **state)
{
    (void)state;
    const double near = worst(fmath_gelu, exact_gelu, 1.0f, 1999);
    const double far = worst(fmath_gelu, exact_gelu, 8.0f, 1999);
    print_message("gelu %.3f ulp within 1, %.3f within 8\n", near, far);
    assert_true(near < 5);
    assert_true(far < 100);
    assert_true(fmath_gelu(20.0f) == 20.0f && fmath_gelu(-20.0f) == 0.0f);
    assert_true(fmath_gelu(INFINITY) == INFINITY && isnan(fmath_gelu(NAN)));
}

static void test_sincos(void **state)
{
    (void)state;
    double max = 0;
    for (uint32_t bits = 0; bits < bits_of(1e8f); bits += 3001)
        for (int sign = 0; sign < 2; sign++) {
            float x = fmath_float_of_bits(bits | (uint32_t)sign << 31), s, c;
            fmath_sincos(x, &s, &c);
            double e = fmax(fabs(s - sin((double)x)), fabs(c - cos((double)x)));
            max = e > max ? e : max;
        }
    print_message("sincos: %.3g\n", max);
    assert_true(max < 0x1p-24);
}

static void test_log_and_pow(void **state)
{
    (void)state;
    double max_log = 0, max_pow = 0;
    for (double x = 1e-300; x < 1e300; x *= 1.0137)
        max_log = fmax(max_log, fabs(fmath_log(x) - log(x)) / fmax(fabs(log(x)), 1e-3));
    for (double base = 1000; base < 2e7; base *= 1.7)
        for (double e = -1; e <= 1; e += 1.0 / 256)
            max_pow = fmax(max_pow, fabs(fmath_pow_of(base, e) / pow(base, e) - 1));
    print_message("log: %.3g, pow: %.3g relative\n", max_log, max_pow);
    assert_true(max_log < 1e-14);
    assert_true(fmath_log_of(1.0) == 0 && fmath_log_of(7.5) == fmath_log(7.5));
    assert_true(max_pow < 1e-14);
}

/* One bad value at any place must be found; every other bit pattern is finite. */
static void test_all_finite(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7f800001, 0xffc00000, 0x7fffffff,
                                   0xffffffff};
    static const uint32_t good[] = {0, 0x80000000, 1, 0x807fffff, 0x7f7fffff, 0xff7fffff,
                                    0x3f800000};
    float x[67];
    assert_true(fmath_all_finite(NULL, 0));
    for (size_t n = 1; n <= 67; n++)
        for (size_t at = 0; at < n; at++) {
            for (size_t i = 0; i < n; i++)
                x[i] = fmath_float_of_bits(good[(i + at) % 7]);
            assert_true(fmath_all_finite(x, n));
            for (size_t b = 0; b < 6; b++) {
                memcpy(&x[at], &bad[b], sizeof x[at]); /* a copy keeps a NaN's bits */
                assert_false(fmath_all_finite(x, n));
                assert_true(fmath_all_finite(x, at) && fmath_all_finite(x + at + 1, n - at - 1));
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_sigmoid_silu_softplus),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_sincos),
        cmocka_unit_test(test_log_and_pow),
        cmocka_unit_test(test_all_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
