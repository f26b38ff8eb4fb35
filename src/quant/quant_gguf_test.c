/* Compares the block formats with their oracles, bit for bit. tests/quant/make_gguf_golden.py made
 * the file and describes it; random_word, tame_halves, random_row and checksum repeat its
 * functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/splitmix.h"
#include "quant/quant.h"
#include "quant/weight.h"

enum { TAG_DECODE = 1, TAG_ENCODE = 2, TAG_FP8 = 3 };
enum { NAME_BYTES = 16, MAX_BLOCK = 256, ROW_COLUMNS = 32, N_CODES = 256 };
#define SCATTERED (UINT32_C(1) << 31)

static void add_to_checksum(uint64_t *sum, uint32_t word, uint64_t index)
{
    *sum += splitmix_mix((uint64_t)word << 32 | index);
}

static uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float power_of_two(int exponent)
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static unsigned get_half(const uint8_t *block, uint32_t at)
{
    const uint8_t *from = block + (at & ~SCATTERED);
    if (at < SCATTERED)
        return from[0] | (unsigned)from[1] << 8;
    return from[1] >> 4 | (from[3] & 0xf0u) | (from[5] & 0xf0u) << 4 | (from[7] & 0xf0u) << 8;
}

static void set_half(uint8_t *block, uint32_t at, unsigned half)
{
    uint8_t *to = block + (at & ~SCATTERED);
    if (at < SCATTERED) {
        to[0] = (uint8_t)half;
        to[1] = (uint8_t)(half >> 8);
        return;
    }
    for (unsigned k = 0; k < 4; k++)
        to[2 * k + 1] = (uint8_t)((to[2 * k + 1] & 15) | (half >> 4 * k & 15) << 4);
}

static void tame_halves(uint8_t *block, uint32_t b, uint32_t n_halves, const uint32_t *half_at)
{
    for (uint32_t k = 0; k < n_halves; k++) {
        unsigned half = get_half(block, half_at[k]);
        if ((half & 0x7c00) == 0x7c00)
            half &= 0xbfff;
        const uint32_t kind = (b >> 3 * k) % 8;
        if (kind == 0)
            half &= 0x8000;
        else if (kind == 1)
            half &= 0x83ff;
        set_half(block, half_at[k], half);
    }
}

static void random_row(uint64_t seed, uint32_t r, float *row)
{
    for (uint32_t i = 0; i < ROW_COLUMNS; i++) {
        const uint64_t w = splitmix_at(seed, (uint64_t)r * ROW_COLUMNS + i);
        const int32_t around_zero = (int32_t)(w >> 40) - (1 << 23);
        float v = (float)around_zero;
        if (r % 4 == 1)
            v = (float)(((int32_t)(w >> 59) - 16) * (1 << 18));
        else if (r % 4 == 2)
            v *= power_of_two(-(int)(w & 15));
        else if (r % 4 == 3)
            v = (float)(around_zero + (1 << 23) + 1);
        row[i] = v * power_of_two((int)(r / 4 % 44) - 48);
    }
}

static void read_exactly(FILE *f, void *dst, size_t bytes)
{
    assert_int_equal(fread(dst, 1, bytes, f), bytes);
}

/* Allocates exactly this size, so that a sanitizer sees an access past the end. */
static void *take(size_t bytes)
{
    void *memory = malloc(bytes);
    assert_non_null(memory);
    return memory;
}

static void check_bits(const char *name, const float *mine, const float *expected, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bits_of_float(mine[i]) != bits_of_float(expected[i]))
            fail_msg("%s: value %zu is %a, expected %a", name, i, (double)mine[i],
                     (double)expected[i]);
}

/* Decodes the blocks as one row from an odd address. */
static void decode_unaligned(const struct quant *q, const uint8_t *blocks, size_t bytes,
                             float *dst, size_t n)
{
    uint8_t *shifted = take(bytes + 1);
    memcpy(shifted + 1, blocks, bytes);
    const void *parts[] = {shifted + 1};
    q->decode_row(q, parts, dst, n);
    free(shifted);
}

static void check_many_decoded(const struct quant *q, const uint32_t *numbers, uint64_t seed,
                               uint64_t expected)
{
    const size_t size = q->part_block_bytes[0];
    uint8_t *block = take(size);
    float decoded[MAX_BLOCK];
    uint64_t sum = 0;
    for (uint32_t b = 0; b < numbers[6]; b++) {
        for (size_t i = 0; i < size; i++) {
            const uint64_t at = (uint64_t)b * size + i;
            block[i] = (uint8_t)(splitmix_at(seed, at / 8) >> 8 * (at % 8));
        }
        tame_halves(block, b, numbers[2], numbers + 3);
        const void *parts[] = {block};
        q->decode_row(q, parts, decoded, q->block);
        for (uint32_t i = 0; i < q->block; i++)
            add_to_checksum(&sum, bits_of_float(decoded[i]), (uint64_t)b * q->block + i);
    }
    free(block);
    if (sum != expected)
        fail_msg("%s: the checksum of %u decoded blocks differs", q->name, numbers[6]);
}

static void check_decode(FILE *f, const struct quant *q)
{
    uint32_t numbers[7]; /* block, block_bytes, n_halves, half_at[2], n_shown, n_many */
    uint64_t seed_and_sum[2];
    read_exactly(f, numbers, sizeof numbers);
    read_exactly(f, seed_and_sum, sizeof seed_and_sum);
    assert_int_equal(q->kind, QUANT_BLOCK);
    assert_int_equal(q->n_parts, 1);
    assert_int_equal(q->block, numbers[0]);
    assert_int_equal(q->part_block_bytes[0], numbers[1]);
    const size_t n = (size_t)numbers[5] * numbers[0], bytes = (size_t)numbers[5] * numbers[1];
    uint8_t *blocks = take(bytes);
    float *expected = take(n * sizeof *expected), *decoded = take(n * sizeof *decoded);
    read_exactly(f, blocks, bytes);
    read_exactly(f, expected, n * sizeof *expected);
    const void *parts[] = {blocks};
    q->decode_row(q, parts, decoded, n);
    check_bits(q->name, decoded, expected, n);
    decode_unaligned(q, blocks, bytes, decoded, n);
    check_bits(q->name, decoded, expected, n);
    check_many_decoded(q, numbers, seed_and_sum[0], seed_and_sum[1]);
    free(blocks);
    free(expected);
    free(decoded);
}

static void check_many_encoded(const struct quant *q, uint32_t n_rows, uint64_t seed,
                               uint64_t expected)
{
    const size_t size = q->part_block_bytes[0];
    uint8_t *block = take(size);
    uint64_t sum = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        float row[ROW_COLUMNS];
        random_row(seed, r, row);
        void *parts[] = {block};
        q->encode_row(q, row, parts, ROW_COLUMNS);
        for (size_t i = 0; i < size; i++)
            add_to_checksum(&sum, block[i], (uint64_t)r * size + i);
    }
    free(block);
    if (sum != expected)
        fail_msg("%s: the checksum of %u encoded rows differs", q->name, n_rows);
}

static void check_encode(FILE *f, const struct quant *q)
{
    uint32_t numbers[4]; /* block, block_bytes, n_shown, n_many */
    uint64_t seed_and_sum[2];
    read_exactly(f, numbers, sizeof numbers);
    read_exactly(f, seed_and_sum, sizeof seed_and_sum);
    assert_int_equal(numbers[0], ROW_COLUMNS);
    assert_non_null(q->encode_row);
    const size_t n = (size_t)numbers[2] * ROW_COLUMNS, bytes = (size_t)numbers[2] * numbers[1];
    float *rows = take(n * sizeof *rows);
    uint8_t *expected = take(bytes), *encoded = take(bytes + 1);
    read_exactly(f, rows, n * sizeof *rows);
    read_exactly(f, expected, bytes);
    void *parts[] = {encoded + 1};
    q->encode_row(q, rows, parts, n);
    for (size_t i = 0; i < bytes; i++)
        if (encoded[1 + i] != expected[i])
            fail_msg("%s: row %zu, byte %zu is %02x, expected %02x", q->name, i / numbers[1],
                     i % numbers[1], encoded[1 + i], expected[i]);
    free(rows);
    free(expected);
    free(encoded);
    check_many_encoded(q, numbers[3], seed_and_sum[0], seed_and_sum[1]);
}

static void check_fp8(FILE *f, const struct quant *q)
{
    uint32_t numbers[2]; /* scale_bytes, n_scales */
    read_exactly(f, numbers, sizeof numbers);
    assert_int_equal(q->kind, QUANT_BLOCK);
    assert_int_equal(q->n_parts, 2);
    assert_int_equal(q->block, 128);
    assert_int_equal(q->part_block_bytes[0], 128);
    assert_int_equal(q->part_block_bytes[1], numbers[0]);
    assert_int_equal(quant_part_row(q, 0, 129), 129);
    assert_int_equal(quant_part_row(q, 1, 129), 1);
    uint8_t *codes = take(N_CODES + 1), *scales = take((size_t)numbers[1] * numbers[0]);
    for (unsigned i = 0; i < N_CODES; i++)
        codes[1 + i] = (uint8_t)i;
    read_exactly(f, scales, (size_t)numbers[1] * numbers[0]);
    for (uint32_t s = 0; s < numbers[1]; s++) {
        float expected[N_CODES], decoded[N_CODES];
        read_exactly(f, expected, sizeof expected);
        uint8_t *pair = take(2 * (size_t)numbers[0]); /* 256 columns are two blocks */
        memcpy(pair, scales + s * numbers[0], numbers[0]);
        memcpy(pair + numbers[0], pair, numbers[0]);
        const void *parts[] = {codes + 1, pair};
        q->decode_row(q, parts, decoded, N_CODES);
        for (unsigned i = 0; i < N_CODES; i++)
            if (expected[i] != expected[i])
                assert_true(decoded[i] != decoded[i]);
            else
                check_bits(q->name, decoded + i, expected + i, 1);
        free(pair);
    }
    free(codes);
    free(scales);
}

static void test_block_formats_equal_their_oracles(void **state)
{
    (void)state;
    FILE *f = fopen(FLASHMOE_TEST_DIR "/quant/gguf_blocks.bin", "rb");
    assert_non_null(f);
    uint32_t tag;
    unsigned n_records[4] = {0};
    while (fread(&tag, sizeof tag, 1, f) == 1) {
        char name[NAME_BYTES];
        read_exactly(f, name, sizeof name);
        name[NAME_BYTES - 1] = '\0';
        const struct quant *q = quant_find(name);
        if (q == NULL)
            fail_msg("there is no format %s", name);
        assert_in_range(tag, TAG_DECODE, TAG_FP8);
        if (tag == TAG_DECODE)
            check_decode(f, q);
        else if (tag == TAG_ENCODE)
            check_encode(f, q);
        else
            check_fp8(f, q);
        n_records[tag]++;
    }
    (void)fclose(f);
    assert_int_equal(n_records[TAG_DECODE], 22);
    assert_int_equal(n_records[TAG_ENCODE], 6);
    assert_int_equal(n_records[TAG_FP8], 3);
}

/* There is no oracle here: this only checks that nothing is undefined for infinities, NaN, and
 * scales whose reciprocal overflows. */
static void test_encoders_accept_any_float(void **state)
{
    (void)state;
    static const uint32_t odd[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f7fffff,
                                   0xff7fffff, 0x00000001, 0x80000001, 0x001fffff, 0x00000000};
    enum { N_ODD = sizeof odd / sizeof odd[0] };
    for (unsigned i = 0; quant_at(i) != NULL; i++) {
        const struct quant *q = quant_at(i);
        if (q->kind != QUANT_BLOCK || q->encode_row == NULL)
            continue;
        for (unsigned a = 0; a < N_ODD; a++)
            for (unsigned b = 0; b < N_ODD; b++) {
                float row[ROW_COLUMNS], decoded[ROW_COLUMNS];
                for (unsigned k = 0; k < ROW_COLUMNS; k++)
                    memcpy(&row[k], &odd[k % 2 ? a : b], sizeof row[k]);
                void *out[QUANT_MAX_PARTS] = {NULL};
                const void *in[QUANT_MAX_PARTS] = {NULL};
                for (unsigned p = 0; p < q->n_parts; p++)
                    in[p] = out[p] = take(quant_part_row_bytes(q, p, ROW_COLUMNS));
                q->encode_row(q, row, out, ROW_COLUMNS);
                q->decode_row(q, in, decoded, ROW_COLUMNS);
                for (unsigned p = 0; p < q->n_parts; p++)
                    free(out[p]);
            }
    }
}

/* Any bytes are a valid block: a file cannot make a decoder access other memory. */
static void test_decoders_accept_any_bytes(void **state)
{
    (void)state;
    for (unsigned i = 0; quant_at(i) != NULL; i++) {
        const struct quant *q = quant_at(i);
        if (q->kind != QUANT_BLOCK)
            continue;
        for (unsigned round = 0; round < 258; round++) {
            uint8_t *memory[QUANT_MAX_PARTS] = {NULL};
            const void *parts[QUANT_MAX_PARTS] = {NULL};
            for (unsigned p = 0; p < q->n_parts; p++) {
                const size_t bytes = q->part_block_bytes[p];
                parts[p] = memory[p] = take(bytes);
                for (size_t k = 0; k < bytes; k++)
                    memory[p][k] = (uint8_t)(round < 256 ? round : splitmix_at(round, k));
            }
            float *decoded = take(q->block * sizeof *decoded);
            q->decode_row(q, parts, decoded, q->block);
            free(decoded);
            for (unsigned p = 0; p < q->n_parts; p++)
                free(memory[p]);
        }
    }
}

static void test_fp8_rows_share_scales(void **state)
{
    (void)state;
    enum { ROWS = 130, COLUMNS = 256 };
    const struct quant *q = quant_find("fp8-b128-f32");
    assert_non_null(q);
    uint8_t *codes = take((size_t)ROWS * COLUMNS);
    memset(codes, 0x38, (size_t)ROWS * COLUMNS); /* 1.0 */
    const float scales[] = {1, 2, 3, 4};
    struct weight w = {.quant = q, .n_rows = ROWS, .n_cols = COLUMNS, .parts = {codes, scales}};
    assert_int_equal(weight_bytes(&w), ROWS * COLUMNS + sizeof scales);
    for (size_t r = 0; r < ROWS; r++) {
        const void *parts[QUANT_MAX_PARTS] = {NULL};
        float row[COLUMNS];
        weight_row(&w, r, parts);
        q->decode_row(q, parts, row, COLUMNS);
        for (unsigned i = 0; i < COLUMNS; i++)
            assert_true(row[i] == scales[r / 128 * 2 + i / 128]);
    }
    free(codes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_formats_equal_their_oracles),
        cmocka_unit_test(test_encoders_accept_any_float),
        cmocka_unit_test(test_decoders_accept_any_bytes),
        cmocka_unit_test(test_fp8_rows_share_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
