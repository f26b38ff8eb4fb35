/* The choice of sparse attention, compared with a count of better blocks. Keys and queries are
 * small whole numbers, so sums are exact and many scores are equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/splitmix.h"

#define N_POSITIONS 300
#define DIM 5
#define N_HEADS 2
#define MAX_BEST 64
#define ROW ((N_HEADS + 1) * DIM)

struct fixture {
    struct backend *be;
    unsigned ratio, n_best;
    float q[N_POSITIONS * ROW], keys[N_POSITIONS * DIM], mean[N_POSITIONS * DIM];
    float kept[N_POSITIONS * DIM];
    uint32_t chosen[N_POSITIONS * (1 + MAX_BEST)];
};

static struct fixture f;

static void make_numbers(uint64_t seed)
{
    uint64_t state = seed;
    for (unsigned i = 0; i < N_POSITIONS * DIM; i++) /* a mean of them is a whole number */
        f.keys[i] = (float)(f.ratio * (splitmix_next(&state) % 3)) - (float)f.ratio;
    for (unsigned i = 0; i < N_POSITIONS * ROW; i++)
        f.q[i] = (float)(splitmix_next(&state) % 5) - 2.0f;
}

/* The score of a block, from the keys themselves. */
static double score(unsigned position, unsigned block)
{
    double sum = 0;
    for (unsigned h = 0; h < N_HEADS; h++) {
        double product = 0;
        for (unsigned i = block * f.ratio; i < (block + 1) * f.ratio; i++)
            for (unsigned d = 0; d < DIM; d++)
                product += (double)f.q[position * ROW + h * DIM + d] * f.keys[i * DIM + d];
        sum += product > 0 ? product / f.ratio : 0;
    }
    return sum;
}

/* A block is chosen if fewer than n_best come before it: better ones, and equal ones that are
 * earlier. */
static void check_row(unsigned position)
{
    const unsigned n_blocks = (position + 1) / f.ratio;
    const uint32_t *chosen = f.chosen + position * (1ul + f.n_best);
    unsigned n = 0;
    if (n_blocks <= f.n_best) {
        assert_true(chosen[0] == INDEX_ALL);
        return;
    }
    for (unsigned b = 0; b < n_blocks; b++) {
        unsigned n_before = 0;
        for (unsigned o = 0; o < n_blocks; o++)
            n_before += score(position, o) > score(position, b) ||
                        (o < b && score(position, o) == score(position, b));
        if (n_before < f.n_best)
            assert_int_equal(chosen[1 + n++], b);
    }
    assert_int_equal(chosen[0], n);
    assert_int_equal(n, f.n_best);
}

/* Computes all positions, so many at a time. */
static void choose(unsigned chunk)
{
    memset(f.kept, 0xa5, sizeof f.kept);
    memset(f.chosen, 0xa5, sizeof f.chosen);
    for (uint32_t at = 0; at < N_POSITIONS; at += chunk) {
        struct backend_segment segment = {
            .first_row = at, .n_rows = N_POSITIONS - at < chunk ? N_POSITIONS - at : chunk,
            .position = at, .state = {[INDEX_KEYS] = f.kept}};
        const struct backend_index args = {
            .segments = &segment, .n_segments = 1, .ratio = f.ratio, .dim = DIM,
            .n_heads = N_HEADS, .n_best = f.n_best, .block_positions = N_POSITIONS,
            .block_bytes = sizeof f.kept, .key = f.keys, .mean = f.mean, .q = f.q,
            .q_row_stride = ROW, .chosen = f.chosen};
        f.be->ops->streams->index_means(f.be, &args);
        f.be->ops->streams->index_choose(f.be, &args);
    }
}

static void test_choice(void **state)
{
    static const struct {
        unsigned ratio, n_best, chunk;
    } cases[] = {{1, 1, 1}, {1, 8, 300}, {2, 5, 7}, {3, 4, 64}, {4, 16, 1}, {4, 64, 33}, {7, 3, 5}};
    const struct backend_options options = {
        .n_threads = 3, .max_cols = 64, .max_rows = N_POSITIONS, .max_ffn_rows = 1,
        .max_intermediate = 64, .n_heads = 1, .head_dim = 16, .n_context = N_POSITIONS,
        .index_best = MAX_BEST};
    (void)state;
    assert_int_equal(backend_open("cpu", &options, &f.be, NULL), 0);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        f.ratio = cases[i].ratio;
        f.n_best = cases[i].n_best;
        make_numbers(i);
        choose(cases[i].chunk);
        for (unsigned p = 0; p < N_POSITIONS; p++)
            check_row(p);
    }
    backend_close(f.be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
