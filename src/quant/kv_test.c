#include "quant/kv.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 256, ROW_BYTES = MAX + 2 };

static const unsigned dims[] = {16, 32, 48, 64, 80, 128, 192, 256};
#define N_DIMS (sizeof dims / sizeof dims[0])

static uint64_t random_state = 88172645463325252u;

static double uniform(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}

static float normal(void)
{
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

/* Fills a vector like a key: some coordinates are much larger than others. */
static void fill(float *x, unsigned dim)
{
    for (unsigned i = 0; i < dim; i++)
        x[i] = normal() * (i % 16 == 3 ? 6.0f : 1.0f) + (i % 32 == 5 ? 4.0f : 0.0f);
}

static double dot(const float *a, const float *b, unsigned dim)
{
    double sum = 0;
    for (unsigned i = 0; i < dim; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void test_rotation_is_orthogonal(void **state)
{
    (void)state;
    for (unsigned k = 0; k < N_DIMS; k++) {
        const unsigned dim = dims[k];
        float a[MAX], b[MAX], at[MAX], bt[MAX];
        fill(a, dim), fill(b, dim);
        memcpy(at, a, sizeof a), memcpy(bt, b, sizeof b);
        kv_rotate(at, dim), kv_rotate(bt, dim);
        const double size = sqrt(dot(a, a, dim) * dot(b, b, dim));
        assert_true(fabs(dot(at, bt, dim) - dot(a, b, dim)) < 1e-6 * size);
        assert_true(fabs(dot(at, at, dim) / dot(a, a, dim) - 1) < 1e-6);
        kv_rotate_back(at, dim);
        for (unsigned i = 0; i < dim; i++)
            assert_true(fabsf(at[i] - a[i]) < 1e-5f);
    }
}

/* One coordinate spreads over its whole block with equal magnitudes and about as many signs of each
 * kind. */
static void test_rotation_spreads(void **state)
{
    (void)state;
    unsigned n_negative = 0;
    for (unsigned from = 0; from < 128; from++) {
        float x[128] = {0};
        x[from] = 1;
        kv_rotate(x, 128);
        for (unsigned i = 0; i < 128; i++)
            assert_true(fabsf(fabsf(x[i]) - 0.088388348f) < 1e-7f);
        n_negative += x[0] < 0; /* only the sign of the coordinate */
    }
    assert_in_range(n_negative, 44, 84);
}

/* Printed by tests/quant/make_lloyd_max.py. */
static const struct codebook {
    const struct kv_format *format;
    double upper[8], error;
} codebooks[] = {
    {&kv_rot2, {0.452780035, 1.510417608}, 0.117481848},
    {&kv_rot3, {0.245094179, 0.756005281, 1.343909279, 2.151945705}, 0.034547761},
    {&kv_rot4, {0.128395030, 0.388048299, 0.656759119, 0.942340456, 1.256231197, 1.618046386,
                2.069017227, 2.732589571}, 0.009501008},
};

static double nearest(const struct kv_format *format, double x)
{
    double best = 1e30;
    for (unsigned k = 0; k < 1u << format->bits; k++) {
        const double level = (double)format->unit * format->levels[k];
        best = fabs(x - level) < fabs(x - best) ? level : best;
    }
    return best;
}

static void test_codebooks_are_lloyd_max(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 3; c++) {
        const struct kv_format *f = codebooks[c].format;
        const unsigned half = 1u << (f->bits - 1);
        for (unsigned k = 0; k < half; k++) {
            const double level = (double)f->unit * f->levels[half + k];
            assert_int_equal(f->levels[half - 1 - k], -f->levels[half + k]);
            assert_true(fabs(level - codebooks[c].upper[k]) <= 0.5 * (double)f->unit);
        }
        double error = 0;
        for (double x = -8 + 0.5e-4; x < 8; x += 1e-4) {
            const double off = x - nearest(f, x);
            error += 1e-4 * off * off * exp(-x * x / 2) * 0.3989422804014327;
        }
        assert_true(error > 0.9999 * codebooks[c].error && error < 1.001 * codebooks[c].error);
    }
}

/* Loads the row's coordinates, still rotated. */
static void load(const struct kv_format *format, const void *row, unsigned dim, float *y)
{
    int8_t levels[MAX];
    const float scale = kv_load_scale(format, row, dim);
    kv_load_levels(format, row, dim, levels);
    for (unsigned i = 0; i < dim; i++)
        y[i] = scale * (float)levels[i];
}

static void test_rows_keep_the_nearest_levels(void **state)
{
    (void)state;
    for (unsigned f = 0; kv_at(f) != NULL; f++)
        for (unsigned k = 0; k < N_DIMS && kv_at(f)->plain == NULL; k++) {
            const struct kv_format *format = kv_at(f);
            const unsigned dim = dims[k];
            float x[MAX], y[MAX];
            int8_t levels[MAX];
            uint8_t row[ROW_BYTES + 1];
            fill(x, dim);
            const uint64_t bytes = kv_row_bytes(format, dim);
            assert_int_equal(bytes, dim * format->bits / 8 + 2);
            row[bytes] = 0xa5;
            kv_store(format, KV_VALUE, x, dim, row);
            assert_int_equal(row[bytes], 0xa5);
            kv_load_levels(format, row, dim, levels);
            kv_rotate(x, dim);
            const double size = sqrt(dot(x, x, dim) / dim);
            load(format, row, dim, y);
            for (unsigned i = 0; i < dim; i++) {
                if (format == &kv_rot8) {
                    assert_true(fabsf(y[i] - x[i]) <= 0.51f * kv_load_scale(format, row, dim));
                    continue;
                }
                const double level = (double)format->unit * levels[i];
                assert_true(fabs(x[i] / size - level) <=
                            fabs(x[i] / size - nearest(format, x[i] / size)) + 1e-5);
            }
        }
}

/* Returns the slope of stored against true inner products, with queries that are correlated with
 * the keys, and its standard error. */
static double slope(const struct kv_format *format, enum kv_side side, double *off)
{
    enum { DIM = 128, N = 20000 };
    double both = 0, squares = 0, spread = 0;
    for (unsigned n = 0; n < N; n++) {
        float x[DIM], q[DIM], y[DIM];
        uint8_t row[ROW_BYTES];
        fill(x, DIM);
        for (unsigned i = 0; i < DIM; i++)
            q[i] = x[i] + 2 * normal();
        kv_store(format, side, x, DIM, row);
        load(format, row, DIM, y);
        const double exact = dot(q, x, DIM);
        kv_rotate(q, DIM);
        const double kept = dot(q, y, DIM);
        both += kept * exact;
        squares += exact * exact;
        spread += (kept - exact) * (kept - exact) * exact * exact;
    }
    *off = sqrt(spread) / squares;
    return both / squares;
}

static void test_keys_are_unbiased(void **state)
{
    (void)state;
    for (unsigned f = 0; kv_at(f) != NULL; f++) {
        const struct kv_format *format = kv_at(f);
        double off;
        if (format->plain != NULL)
            continue;
        const double of_keys = slope(format, KV_KEY, &off);
        assert_true(fabs(of_keys - 1) < 4 * off + 2e-5); /* plus the rounding of the scale */
        assert_true(off < 0.002);
        if (format->bits > 4)
            continue;
        /* A value's scale minimises the error and shrinks the vector: a key stored like that would
         * be noticed. */
        const double of_values = slope(format, KV_VALUE, &off), min = format->bits == 2   ? 0.117
                                                                        : format->bits == 3 ? 0.034
                                                                                            : 0.009;
        assert_true(fabs(1 - of_values - min) < 0.2 * min);
    }
}

static void test_odd_vectors(void **state)
{
    (void)state;
    for (unsigned f = 0; kv_at(f) != NULL; f++)
        for (enum kv_side side = KV_KEY; kv_at(f)->plain == NULL && side <= KV_VALUE; side++) {
            float x[64] = {0}, y[64];
            uint8_t row[ROW_BYTES];
            kv_store(kv_at(f), side, x, 64, row);
            load(kv_at(f), row, 64, y);
            for (unsigned i = 0; i < 64; i++)
                assert_true(y[i] == 0);
            x[7] = 1e-30f; /* nearly zero */
            kv_store(kv_at(f), side, x, 64, row);
            assert_true(kv_load_scale(kv_at(f), row, 64) == 0);
            x[7] = NAN;
            kv_store(kv_at(f), side, x, 64, row);
            assert_true(isnan(kv_load_scale(kv_at(f), row, 64)));
            x[7] = 3e38f; /* too large for the scale: detected, not clamped */
            kv_store(kv_at(f), side, x, 64, row);
            assert_false(isfinite(kv_load_scale(kv_at(f), row, 64)));
        }
}

static void test_names(void **state)
{
    (void)state;
    assert_ptr_equal(kv_find("rot4"), &kv_rot4);
    assert_null(kv_find("q4_0"));
    assert_true(kv_fits(&kv_rot4, 80) && kv_fits(&kv_f16, 7));
    assert_false(kv_fits(&kv_rot8, 72));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotation_is_orthogonal),
        cmocka_unit_test(test_rotation_spreads),
        cmocka_unit_test(test_codebooks_are_lloyd_max),
        cmocka_unit_test(test_rows_keep_the_nearest_levels),
        cmocka_unit_test(test_keys_are_unbiased),
        cmocka_unit_test(test_odd_vectors),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
