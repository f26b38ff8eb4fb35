/* Rows of the gated delta rule that leave a trail: the state behind each row lies in a slot of its
 * own. Every level must leave the bits there that it leaves in one place, row after row, and give
 * the same results; wherever the slots lie in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/levels.h"
#include "base/mem.h"

#define ROWS 5
#define SLOTS 7
#define KEY_HEADS 2
#define VALUE_HEADS 4
#define MAX_DIM 128

struct shape {
    unsigned key_dim, value_dim;
    unsigned shift; /* of the slots, in floats */
};

/* What rows are computed from. */
struct inputs {
    struct backend_delta_net args;
    float *mixed, *z, *b, *a, *norm, *decay, *dt_bias;
    float scratch[KERNEL_DELTA_SCRATCH(MAX_DIM)];
};

static uint32_t seed = 3;

static float *random_floats(size_t n)
{
    float *x = mem_new_aligned(MEM_CACHE_LINE, n * sizeof *x, "floats", NULL);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
    }
    return x;
}

static void make_inputs(struct inputs *in, const struct shape *s)
{
    const size_t channels = 2 * (size_t)KEY_HEADS * s->key_dim + VALUE_HEADS * s->value_dim;
    in->mixed = random_floats(ROWS * channels);
    in->z = random_floats(ROWS * (size_t)VALUE_HEADS * s->value_dim);
    in->b = random_floats(ROWS * VALUE_HEADS);
    in->a = random_floats(ROWS * VALUE_HEADS);
    in->norm = random_floats(s->value_dim);
    in->decay = random_floats(VALUE_HEADS);
    in->dt_bias = random_floats(VALUE_HEADS);
    in->args = (struct backend_delta_net){
        .n_key_heads = KEY_HEADS, .n_value_heads = VALUE_HEADS, .key_dim = s->key_dim,
        .value_dim = s->value_dim, .mixed = in->mixed, .z = in->z, .b = in->b, .a = in->a,
        .norm = in->norm, .decay = in->decay, .dt_bias = in->dt_bias, .eps = 1e-6f};
}

static void free_inputs(struct inputs *in)
{
    mem_free(in->mixed);
    mem_free(in->z);
    mem_free(in->b);
    mem_free(in->a);
    mem_free(in->norm);
    mem_free(in->decay);
    mem_free(in->dt_bias);
}

static void run(const struct kernels *k, struct inputs *in, struct backend_segment *segment,
                float *out)
{
    in->args.out = out;
    for (unsigned h = 0; h < VALUE_HEADS; h++)
        k->delta_head(&in->args, segment, h, in->scratch);
}

static void compare(const struct kernels *k, const struct shape *s, uint32_t slot)
{
    static struct inputs in;
    const size_t n_state = (size_t)VALUE_HEADS * s->key_dim * s->value_dim;
    const size_t n_out = ROWS * (size_t)VALUE_HEADS * s->value_dim;
    float *slots = random_floats(SLOTS * n_state + s->shift), *state = random_floats(n_state);
    float *out = random_floats(n_out), *alone = random_floats(n_out);
    make_inputs(&in, s);
    float *first = slots + s->shift;
    memcpy(state, first + slot * n_state, n_state * sizeof *state);
    struct backend_segment trail = {.n_rows = ROWS, .n_slots = SLOTS, .slot = slot,
                                    .slot_bytes = n_state * sizeof *state,
                                    .state = {[DELTA_NET_STATE] = first + slot * n_state}};
    struct backend_segment row = {.n_rows = 1, .state = {[DELTA_NET_STATE] = state}};
    run(k, &in, &trail, out);
    for (uint32_t t = 0; t < ROWS; t++) {
        row.first_row = t;
        run(k, &in, &row, alone);
        assert_memory_equal(first + (slot + t + 1) % SLOTS * n_state, state,
                            n_state * sizeof *state);
    }
    assert_memory_equal(out, alone, n_out * sizeof *out);
    mem_free(slots);
    mem_free(state);
    mem_free(out);
    mem_free(alone);
    free_inputs(&in);
}

static void test_trails(void **state)
{
    (void)state;
    static const struct shape shapes[] = {{128, 128, 0}, {128, 128, 4}, {32, 32, 0}, {32, 48, 0},
                                          {32, 40, 0},   {20, 32, 0},   {16, 16, 8}, {8, 8, 0}};
    for (unsigned i = 0; level_at(i) != NULL; i++) {
        const struct level *level = level_at(i), *used;
        struct kernels kernels;
        if (!level->is_there() || level_use(level->name, &used, NULL) != 0)
            continue;
        level_kernels(level, &kernels);
        print_message("%s\n", level->name);
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (uint32_t slot = 0; slot < SLOTS; slot++)
                compare(&kernels, &shapes[s], slot);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
