#include "quant/interleave.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS 48

struct matrix {
    struct weight by_rows, interleaved;
    char *bytes[2][QUANT_MAX_PARTS];
};

static void fill(struct matrix *m, const char *format, uint32_t n_cols)
{
    const struct quant *quant = quant_find(format);
    assert_non_null(quant);
    uint32_t x = 1;
    m->by_rows = (struct weight){.quant = quant, .n_rows = ROWS, .n_cols = n_cols};
    m->interleaved = m->by_rows;
    m->interleaved.is_interleaved = true;
    for (unsigned p = 0; p < quant->n_parts; p++) {
        const size_t bytes = (size_t)quant_part_bytes(quant, p, ROWS, n_cols);
        for (unsigned i = 0; i < 2; i++)
            m->bytes[i][p] = malloc(bytes);
        for (size_t i = 0; i < bytes; i++)
            m->bytes[0][p][i] = (char)((x = x * 1664525u + 1013904223u) >> 24);
        memcpy(m->bytes[1][p], m->bytes[0][p], bytes);
        m->by_rows.parts[p] = m->bytes[0][p];
        m->interleaved.parts[p] = m->bytes[1][p];
    }
}

static void clear(struct matrix *m)
{
    for (unsigned p = 0; p < QUANT_MAX_PARTS; p++)
        for (unsigned i = 0; i < 2; i++)
            free(m->bytes[i][p]);
}

/* Checks where the units of GGUF's blocks lie, byte by byte. */
static void check_blocks(const struct matrix *m, size_t row_bytes)
{
    const struct quant *quant = m->by_rows.quant;
    const size_t bytes = quant->part_block_bytes[0], odd = bytes % 4;
    const size_t head = quant->block == 32 ? odd : 0, n_words = bytes / 4;
    const char *by_rows = m->bytes[0][0], *side = m->bytes[1][0];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < row_bytes; i++) {
            const size_t in_block = i % bytes, b = i / bytes;
            const bool is_word = in_block >= head && in_block < head + 4 * n_words;
            const size_t unit = is_word ? 4 : odd;
            const size_t o = is_word ? head + (in_block - head) / 4 * 4
                                     : in_block < head ? 0 : 4 * n_words;
            const size_t at = r / 16 * 16 * row_bytes + b * 16 * bytes + 16 * o + r % 16 * unit;
            assert_int_equal(side[at + in_block - o], by_rows[r * row_bytes + i]);
        }
}

/* Checks that rows can be restored. */
static void check_restored(const struct matrix *m)
{
    const struct quant *quant = m->by_rows.quant;
    for (unsigned p = 0; p < quant->n_parts; p++) {
        const size_t row_bytes = (size_t)quant_part_row_bytes(quant, p, m->by_rows.n_cols);
        char *restored = malloc(16 * row_bytes);
        for (size_t r = 0; r < ROWS; r += 16) {
            interleave_restore(quant, p, m->by_rows.n_cols, m->bytes[1][p] + r * row_bytes,
                               restored);
            assert_memory_equal(restored, m->bytes[0][p] + r * row_bytes, 16 * row_bytes);
        }
        free(restored);
    }
}

/* Checks that every row is found again and that every unit lies where the header says. */
static void check(const char *format, uint32_t n_cols)
{
    struct matrix m = {0};
    fill(&m, format, n_cols);
    const struct quant *quant = m.by_rows.quant;
    void *parts[QUANT_MAX_PARTS];
    for (unsigned p = 0; p < quant->n_parts; p++)
        parts[p] = m.bytes[1][p];
    char *row = malloc((size_t)quant_row_bytes(quant, n_cols));
    interleave_blocks(quant, n_cols, parts, 0, 1);
    interleave_blocks(quant, n_cols, parts, 1, ROWS / INTERLEAVE_ROWS);
    for (unsigned r = 0; r < ROWS; r++) {
        const void *expected[QUANT_MAX_PARTS], *found[QUANT_MAX_PARTS];
        weight_row(&m.by_rows, r, expected);
        interleave_take_row(&m.interleaved, r, row, found);
        for (unsigned p = 0; p < quant->n_parts; p++)
            assert_memory_equal(expected[p], found[p],
                                (size_t)quant_part_row_bytes(quant, p, n_cols));
    }
    const size_t row_bytes = (size_t)quant_part_row_bytes(quant, 0, n_cols);
    if (quant->n_parts == 1) {
        check_blocks(&m, row_bytes);
    } else
        assert_memory_equal(m.bytes[1][0] + 16 * row_bytes + (3 * 16 + 5) * 4,
                            m.bytes[0][0] + 21 * row_bytes + 3 * 4, 4);
    for (unsigned p = 1; p < quant->n_parts; p++) {
        const size_t bytes = (size_t)quant_part_row_bytes(quant, p, n_cols);
        assert_memory_equal(m.bytes[1][p] + 16 * bytes + 5 * 2, m.bytes[0][p] + 21 * bytes, 2);
    }
    if (interleave_suits_memory(quant, ROWS, n_cols))
        check_restored(&m);
    free(row);
    clear(&m);
}

static void test_rows_are_found_again(void **state)
{
    (void)state;
    check("affine4-g64", 2048);
    check("affine4-g32", 32);
    check("affine4-g32", 352);
    check("affine4-g128-f16", 768);
    check("affine8-g64", 192);
    check("affine8-g32", 32);
    check("affine4-g64", 16384);
    check("affine8-g64", 8192);
    check("int4-g32", 352);
    check("int4-g32-f16", 32);
}

static void test_blocks_of_gguf(void **state)
{
    (void)state;
    static const char *const formats[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4",
                                          "iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k",
                                          "q6_k"};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const struct quant *quant = quant_find(formats[i]);
        check(formats[i], quant->block);
        check(formats[i], 2048);
        check(formats[i], 3 * 256);
        assert_false(interleave_suits(quant, 16, 2048));
        assert_true(interleave_suits_memory(quant, 16, 2048));
        assert_false(interleave_suits_memory(quant, 24, 2048));
    }
    assert_true(interleave_suits_memory(quant_find("q4_k"), 16, 14336));
    assert_false(interleave_suits_memory(quant_find("q4_k"), 16, 14592));
    assert_false(interleave_suits_memory(quant_find("affine4-g64"), 16, 2048));
    assert_false(interleave_suits_memory(quant_find("iq3_s"), 16, 2048));
    assert_false(interleave_suits_memory(quant_find("bf16"), 16, 2048));
}

/* Affine codes that are no whole nibbles or bytes. */
static void test_odd_codes(void **state)
{
    (void)state;
    static const unsigned bits[] = {2, 3, 5, 6};
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "affine%u-g32", bits[i]);
        check(name, 64);
        check(name, 352);
        assert_int_equal(interleave_suits_memory(quant_find(name), 16, 32), bits[i] > 3);
        (void)snprintf(name, sizeof name, "affine%u-g64", bits[i]);
        check(name, 64);
        check(name, 2048);
        assert_false(interleave_suits(quant_find(name), 16, 2048));
        assert_true(interleave_suits_memory(quant_find(name), 32, 2048));
        assert_false(interleave_suits_memory(quant_find(name), 24, 2048));
        (void)snprintf(name, sizeof name, "affine%u-g128-f16", bits[i]);
        check(name, 384);
    }
    assert_true(interleave_suits_memory(quant_find("affine2-g64"), 16, 32768));
    assert_false(interleave_suits_memory(quant_find("affine2-g64"), 16, 32832));
}

/* The processor interleaves all of them, a GPU those of files only; nothing is done twice. */
static void test_preparers(void **state)
{
    (void)state;
    struct weight w = {.quant = quant_find("q4_k"), .n_rows = 32, .n_cols = 256};
    assert_true(interleave_all_preparer.changes(&w));
    assert_false(interleave_preparer.changes(&w));
    w.is_interleaved = true;
    assert_false(interleave_all_preparer.changes(&w));
    w = (struct weight){.quant = quant_find("affine4-g64"), .n_rows = 32, .n_cols = 256};
    assert_true(interleave_all_preparer.changes(&w));
    assert_true(interleave_preparer.changes(&w));
}

static void test_what_suits(void **state)
{
    (void)state;
    assert_true(interleave_suits(quant_find("affine4-g64"), 16, 2048));
    assert_true(interleave_suits(quant_find("affine8-g32-f16"), 512, 2048));
    assert_false(interleave_suits(quant_find("affine4-g64"), 17, 2048));
    assert_true(interleave_suits(quant_find("affine4-g64"), 16, 16384));
    assert_false(interleave_suits(quant_find("affine4-g64"), 16, 16448));
    assert_false(interleave_suits(quant_find("affine8-g64"), 16, 8256));
    assert_false(interleave_suits(quant_find("affine6-g64"), 16, 2048));
    assert_false(interleave_suits(quant_find("q4_k"), 16, 2048));
    assert_false(interleave_suits(quant_find("bf16"), 16, 2048));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_found_again),
        cmocka_unit_test(test_blocks_of_gguf),
        cmocka_unit_test(test_odd_codes),
        cmocka_unit_test(test_preparers),
        cmocka_unit_test(test_what_suits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
