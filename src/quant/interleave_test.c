#include "quant/interleave.h"

#include <setjmp.h>
#include <stdarg.h>
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
    assert_memory_equal(m.bytes[1][0] + 16 * row_bytes + (3 * 16 + 5) * 4,
                        m.bytes[0][0] + 21 * row_bytes + 3 * 4, 4);
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
        cmocka_unit_test(test_what_suits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
