/* Prefetching weights that come next changes no result, so only this test sees which lines are
 * fetched: each line of the rows once, and none beyond. (Some levels fetch every second one.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes_macros.h"
#include "base/mem.h"

#define ROWS 64
#define COLS 4096

/* How often each line of the codes was fetched. */
static unsigned char times_fetched[2 * ROWS * COLS / MEM_CACHE_LINE];
static size_t n_lines;
static size_t n_elsewhere; /* lines of other parts */
static const char *codes;

static void record(const char *at)
{
    const uintptr_t line = ((uintptr_t)at - (uintptr_t)codes) / MEM_CACHE_LINE;
    if (line < n_lines)
        times_fetched[line]++;
    else
        n_elsewhere++;
}

#define __builtin_prefetch(at, rw, locality) record(at)
#include "backend/cpu/lanes_ahead.h"
#undef __builtin_prefetch

static struct weight weight_of(const char *format)
{
    struct weight w = {.quant = quant_find(format), .n_rows = ROWS, .n_cols = COLS};
    assert_non_null(w.quant);
    for (unsigned i = 0; i < w.quant->n_parts; i++) {
        w.parts[i] = mem_new_aligned(64, ROWS * quant_part_row_bytes(w.quant, i, COLS), "weight",
                                     NULL);
        assert_non_null(w.parts[i]);
    }
    codes = (const char *)w.parts[0];
    n_lines = ROWS * quant_part_row_bytes(w.quant, 0, COLS) / MEM_CACHE_LINE;
    assert_true(n_lines <= sizeof times_fetched);
    memset(times_fetched, 0, sizeof times_fetched);
    n_elsewhere = 0;
    return w;
}

static void free_weight(struct weight *w)
{
    for (unsigned i = 0; i < w->quant->n_parts; i++)
        mem_free((void *)(uintptr_t)w->parts[i]);
}

static void check_rows(size_t first, size_t n, size_t row_bytes)
{
    for (size_t line = 0; line < n_lines; line++) {
        const size_t row = line * MEM_CACHE_LINE / row_bytes;
        assert_int_equal(times_fetched[line], row >= first && row < first + n);
    }
}

static void test_all_lines_once(void **state)
{
    (void)state;
    struct weight w = weight_of("affine4-g64");
    struct ahead ahead = ahead_of(&w, 16, 32);
    const size_t n_steps = ahead.n_steps;
    for (size_t i = 0; i < n_steps; i += 5)
        ahead_fetch(&ahead, 5);
    check_rows(16, 32, COLS / 2);
    assert_int_equal(n_elsewhere, 2 * 32 * (COLS / 64 * 2) / MEM_CACHE_LINE); /* scales, biases */
    assert_int_equal(n_steps, 32 * (COLS / 2) / MEM_CACHE_LINE + n_elsewhere);
    free_weight(&w);
}

static void test_what_comes_next(void **state)
{
    (void)state;
    struct weight w = weight_of("q8_0"), next = weight_of("q8_0");
    const size_t row_bytes = quant_part_row_bytes(w.quant, 0, COLS);
    struct kernel_matmul m = {.w = &w, .end = 48, .next = &next, .next_row = 16};
    struct ahead ahead = ahead_after(&m, 32, 32); /* the weight has more rows of its own */
    assert_ptr_equal(ahead.rest[0].at, (const char *)w.parts[0] + 32 * row_bytes);
    ahead = ahead_after(&m, 48, 32);
    assert_ptr_equal(ahead.rest[0].at, (const char *)next.parts[0] + 16 * row_bytes);
    m.next_row = 48; /* sixteen rows are left */
    ahead = ahead_after(&m, 48, 32);
    assert_ptr_equal(ahead.rest[0].end, (const char *)next.parts[0] + ROWS * row_bytes);
    m.next = NULL;
    ahead = ahead_after(&m, 48, 32);
    assert_int_equal(ahead.n_steps, 0);
    ahead_fetch(&ahead, 3);
    check_rows(0, 0, row_bytes);
    free_weight(&w);
    free_weight(&next);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_lines_once),
                                       cmocka_unit_test(test_what_comes_next)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
