#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/quant.h"
#include "quant/weight.h"

static float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void test_every_half_survives_a_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = quant_f16_to_f32((uint16_t)h);
        if (x != x)
            assert_true((quant_f32_to_f16(x) & 0x7fff) > 0x7c00);
        else
            assert_int_equal(quant_f32_to_f16(x), h);
        float y = quant_bf16_to_f32((uint16_t)h);
        if (y != y)
            assert_true((quant_f32_to_bf16(y) & 0x7fff) > 0x7f80);
        else
            assert_int_equal(quant_f32_to_bf16(y), h);
    }
}

/* The compiler's _Float16 conversions are the oracle where they exist. */
static void test_rounding_to_half_is_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(quant_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(quant_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(quant_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(quant_f32_to_f16(0x1.8p-25f), 1);
    assert_int_equal(quant_f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(quant_f32_to_f16(1.0f + 0x1.8p-10f), 0x3c02);
    assert_int_equal(quant_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(quant_f32_to_bf16(1.0f + 0x1.8p-7f), 0x3f82);
#ifdef __FLT16_MAX__
    for (uint64_t i = 0; i < 0x100000000ull; i += 65519) {
        float x = float_of_bits((uint32_t)i);
        if (x != x)
            continue;
        __extension__ _Float16 expected = (_Float16)x;
        uint16_t bits;
        memcpy(&bits, &expected, sizeof bits);
        assert_int_equal(quant_f32_to_f16(x), bits);
    }
#else
    (void)float_of_bits;
#endif
}

static void test_formats_are_found_by_name(void **state)
{
    (void)state;
    assert_ptr_equal(quant_find("bf16"), &quant_bf16);
    assert_null(quant_find("affine7-g64"));
    const struct quant *q = quant_find("affine4-g64");
    assert_non_null(q);
    assert_int_equal(quant_row_bytes(q, 128), 64 + 4 + 4);
    for (unsigned i = 0; quant_at(i) != NULL; i++)
        assert_ptr_equal(quant_find(quant_at(i)->name), quant_at(i));
}

static void read_exactly(FILE *f, void *dst, size_t bytes)
{
    assert_int_equal(fread(dst, 1, bytes, f), bytes);
}

/* MLX's own quantiser made the file. Codes, scales and biases must have the same bits. */
static void test_affine_equals_mlx(void **state)
{
    (void)state;
    FILE *f = fopen(FLASHMOE_TEST_DIR "/quant/affine_mlx.bin", "rb");
    assert_non_null(f);
    uint32_t head[4];
    unsigned n_records = 0;
    while (fread(head, sizeof head[0], 4, f) == 4) {
        enum { N = 256 };
        float row[N], expected[N], decoded[N];
        uint8_t codes[N], my_codes[N];
        uint16_t scales[N / 32], biases[N / 32], my_scales[N / 32], my_biases[N / 32];
        const unsigned n = head[3], n_groups = n / head[1];
        assert_int_equal(n, N);
        read_exactly(f, row, n * 4);
        read_exactly(f, codes, n * head[0] / 8);
        read_exactly(f, scales, 2 * n_groups);
        read_exactly(f, biases, 2 * n_groups);
        read_exactly(f, expected, n * 4);
        char name[32];
        (void)snprintf(name, sizeof name, "affine%u-g%u%s", head[0], head[1],
                       head[2] ? "-f16" : "");
        const struct quant *q = quant_find(name);
        assert_non_null(q);
        void *mine[] = {my_codes, my_scales, my_biases};
        q->encode_row(q, row, mine, n);
        assert_memory_equal(my_codes, codes, n * head[0] / 8);
        assert_memory_equal(my_scales, scales, 2 * n_groups);
        assert_memory_equal(my_biases, biases, 2 * n_groups);
        const void *parts[] = {codes, scales, biases};
        q->decode_row(q, parts, decoded, n);
        /* MLX rounds the decoded value to the weight's type; here it stays f32. */
        for (unsigned i = 0; i < n; i++) {
            float rounded = head[2] ? quant_f16_to_f32(quant_f32_to_f16(decoded[i]))
                                    : quant_bf16_to_f32(quant_f32_to_bf16(decoded[i]));
            float slack = (head[2] ? 0x1p-10f : 0x1p-7f) * 4;
            float distance = rounded > expected[i] ? rounded - expected[i] : expected[i] - rounded;
            assert_true(distance <= slack);
        }
        n_records++;
    }
    (void)fclose(f);
    assert_int_equal(n_records, 36);
}

static void test_affine_error_is_within_a_step(void **state)
{
    (void)state;
    float row[128], back[128];
    uint32_t seed = 1;
    for (int i = 0; i < 128; i++) {
        seed = seed * 1664525u + 1013904223u;
        row[i] = (float)(int32_t)seed / 2147483648.0f;
    }
    for (unsigned i = 0; quant_at(i) != NULL; i++) {
        const struct quant *q = quant_at(i);
        if (q->kind != QUANT_AFFINE)
            continue;
        uint8_t codes[128], scales[8], biases[8];
        void *out[] = {codes, scales, biases};
        const void *in[] = {codes, scales, biases};
        q->encode_row(q, row, out, 128);
        q->decode_row(q, in, back, 128);
        float step = 2.0f / (float)((1u << q->bits) - 1);
        for (int k = 0; k < 128; k++) {
            float e = back[k] > row[k] ? back[k] - row[k] : row[k] - back[k];
            assert_true(e <= step + 0.02f);
        }
    }
}

static void test_weight_rows(void **state)
{
    (void)state;
    uint16_t data[6] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
    struct weight w = {.quant = &quant_bf16, .n_rows = 2, .n_cols = 3, .parts = {data}};
    const void *parts[QUANT_MAX_PARTS] = {NULL};
    weight_row(&w, 1, parts);
    float row[3];
    w.quant->decode_row(w.quant, parts, row, 3);
    assert_true(row[0] == 4 && row[1] == 5 && row[2] == 6);
    assert_int_equal(weight_bytes(&w), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_half_survives_a_round_trip),
        cmocka_unit_test(test_rounding_to_half_is_nearest_even),
        cmocka_unit_test(test_formats_are_found_by_name),
        cmocka_unit_test(test_affine_equals_mlx),
        cmocka_unit_test(test_affine_error_is_within_a_step),
        cmocka_unit_test(test_weight_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
