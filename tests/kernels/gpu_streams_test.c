/* Streams, tables of n-grams and sparse attention over the emulator, compared with the processor's
 * bits: several segments, sizes that are no multiple of anything, ties, and positions in several
 * blocks of attention. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/device_emulated.h"
#include "quant/kv.h"

#define MAX_ROWS 24
#define MAX_STREAMS 5
#define MAX_DIM 2100
#define MAX_FLOATS (MAX_ROWS * MAX_STREAMS * MAX_DIM)
#define N_POSITIONS 700
#define MAX_BEST 40

enum { CPU, GPU, N_BACKENDS };

static struct backend *backends[N_BACKENDS];
static uint32_t rng = 1;

static uint32_t any(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(rng >> 8) * n) >> 24);
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = any(30) == 0 ? 0 : ((float)any(1u << 20) / (1u << 19) - 1.0f) * (float)(1 + any(4));
}

static int open_backends(void **state)
{
    const struct backend_options options = {
        .n_threads = 2, .max_cols = 64, .max_rows = N_POSITIONS, .max_ffn_rows = 1,
        .max_intermediate = 64, .n_heads = 6, .head_dim = 32, .n_context = N_POSITIONS,
        .index_best = MAX_BEST};
    (void)state;
    assert_int_equal(backend_open("cpu", &options, &backends[CPU], NULL), 0);
    assert_int_equal(backend_cuda_open_on(device_emulated(), &options, &backends[GPU], NULL), 0);
    return 0;
}

static int close_backends(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_BACKENDS; i++)
        backend_close(backends[i]);
    return 0;
}

static const struct backend_stream_ops *ops(unsigned i)
{
    return backends[i]->ops->streams;
}

static void finish(unsigned i)
{
    memory_finish(backends[i]->memory);
    if (backends[i]->ops->failure != NULL)
        assert_null(backends[i]->ops->failure(backends[i]));
}

/* ---- rows ------------------------------------------------------------------------------------ */

static float x[MAX_FLOATS], gate[MAX_FLOATS], weight[MAX_STREAMS * MAX_DIM];
static float rows[MAX_ROWS * MAX_DIM], out[N_BACKENDS][MAX_FLOATS];

static const struct {
    unsigned n, n_streams, dim;
} shapes[] = {{1, 2, 1}, {3, 4, 17}, {2, 5, 48}, {5, 3, 301}, {1, 4, 2100}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void make_rows(void)
{
    fill(x, MAX_FLOATS);
    fill(gate, MAX_FLOATS);
    fill(weight, MAX_STREAMS * MAX_DIM);
    fill(rows, MAX_ROWS * MAX_DIM);
}

static void same(void)
{
    assert_memory_equal(out[GPU], out[CPU], sizeof out[CPU]);
}

static void test_rows(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_SHAPES; i++) {
        const unsigned n = shapes[i].n, n_streams = shapes[i].n_streams, dim = shapes[i].dim;
        make_rows();
        for (unsigned b = 0; b < N_BACKENDS; b++)
            ops(b)->norm(backends[b], &(struct backend_stream_norm){
                x, weight, 1e-6f, n_streams, dim, out[b]}, n), finish(b);
        same();
        for (unsigned b = 0; b < N_BACKENDS; b++)
            ops(b)->mean(backends[b], &(struct backend_stream_mean){
                x, gate, n_streams, dim, out[b]}, n), finish(b);
        same();
        for (unsigned b = 0; b < N_BACKENDS; b++) {
            memcpy(out[b], x, sizeof x);
            ops(b)->add(backends[b], &(struct backend_stream_add){
                rows, gate, n_streams, dim, out[b]}, n);
            finish(b);
        }
        same();
        for (unsigned b = 0; b < N_BACKENDS; b++)
            ops(b)->silu(backends[b], out[b], (float)n_streams, (size_t)n * dim), finish(b);
        same();
        for (unsigned b = 0; b < N_BACKENDS; b++)
            ops(b)->ngram_gate(backends[b], &(struct backend_ngram_gate){
                x, gate, rows, n_streams, dim, out[b]}, n), finish(b);
        same();
    }
}

/* Products of no size, and tiny ones. */
static void test_small_gates(void **state)
{
    static const float sizes[] = {0, 1e-7f, -1e-7f, 1e-6f, -1e-3f};
    (void)state;
    make_rows();
    for (unsigned i = 0; i < 5 * 4; i++) {
        x[i] = i % 4 == 0 ? sizes[i / 4] : 0;
        gate[i] = 1;
    }
    for (unsigned b = 0; b < N_BACKENDS; b++)
        ops(b)->ngram_gate(backends[b], &(struct backend_ngram_gate){x, gate, rows, 5, 4, out[b]},
                           1), finish(b);
    same();
}

/* ---- the convolution ------------------------------------------------------------------------- */

#define CHANNELS 139
#define MAX_KEPT 9

/* What is kept of two sequences, over batches of different lengths. */
static void test_conv(void **state)
{
    static const unsigned lengths[][2] = {{1, 3}, {20, 1}, {2, 2}, {1, 1}, {5, 13}};
    static float kept[N_BACKENDS][2][MAX_KEPT * CHANNELS];
    (void)state;
    for (unsigned kernel = 1; kernel <= 4; kernel++) {
        memset(kept, 0, sizeof kept);
        for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            make_rows();
            for (unsigned b = 0; b < N_BACKENDS; b++) {
                struct backend_segment segments[2] = {
                    {.n_rows = lengths[i][0], .state = {[NGRAM_CONV] = kept[b][0]}},
                    {.first_row = lengths[i][0], .n_rows = lengths[i][1],
                     .state = {[NGRAM_CONV] = kept[b][1]}}};
                memcpy(out[b], weight, CHANNELS * sizeof *weight);
                ops(b)->ngram_conv(backends[b], &(struct backend_ngram_conv){
                    segments, 2, kernel, 3, CHANNELS, weight, x, gate, out[b]});
                finish(b);
            }
            same();
            assert_memory_equal(kept[GPU], kept[CPU], sizeof kept[CPU]);
        }
    }
}

/* ---- sparse attention ------------------------------------------------------------------------ */

#define N_HEADS 6
#define N_KV_HEADS 2
#define HEAD_DIM 32
#define INDEX_DIM 21
#define INDEX_HEADS 3
#define INDEX_ROW ((INDEX_HEADS + 1) * INDEX_DIM)
#define BLOCK 256

/* State of two sequences, in blocks of 256 positions that hold all three parts. */
#define PART_BYTES ((size_t)BLOCK * N_KV_HEADS * HEAD_DIM * sizeof(float))
#define N_BLOCKS (N_POSITIONS / BLOCK + 1)
static _Alignas(64) char kept[N_BACKENDS][2][N_BLOCKS][3][PART_BYTES];
static float q[N_BACKENDS][N_POSITIONS * N_HEADS * 2 * HEAD_DIM];
static float k[N_POSITIONS * N_KV_HEADS * HEAD_DIM], v[N_POSITIONS * N_KV_HEADS * HEAD_DIM];
static float index_q[N_POSITIONS * INDEX_ROW], keys[N_POSITIONS * INDEX_DIM];
static float mean[N_BACKENDS][N_POSITIONS * INDEX_DIM];
static uint32_t chosen[N_BACKENDS][N_POSITIONS * (1 + MAX_BEST)];
static float heads[N_BACKENDS][N_POSITIONS * N_HEADS * HEAD_DIM];
static float sinks[N_HEADS];

/* Small whole numbers: many scores are equal. */
static void make_index(bool has_ties)
{
    fill(index_q, N_POSITIONS * INDEX_ROW);
    fill(keys, N_POSITIONS * INDEX_DIM);
    for (unsigned i = 0; has_ties && i < N_POSITIONS * INDEX_ROW; i++)
        index_q[i] = (float)any(3) - 1.0f;
    for (unsigned i = 0; has_ties && i < N_POSITIONS * INDEX_DIM; i++)
        keys[i] = (float)any(2);
    fill(q[CPU], N_POSITIONS * N_HEADS * 2 * HEAD_DIM);
    memcpy(q[GPU], q[CPU], sizeof q[CPU]);
    fill(k, N_POSITIONS * N_KV_HEADS * HEAD_DIM);
    fill(v, N_POSITIONS * N_KV_HEADS * HEAD_DIM);
    fill(sinks, N_HEADS);
}

static void segment_of(unsigned b, unsigned s, uint32_t first_row, uint32_t position, uint32_t n,
                       struct backend_segment *segment)
{
    *segment = (struct backend_segment){.first_row = first_row, .n_rows = n, .position = position};
    for (unsigned i = 0; i < 3; i++)
        segment->state[i] = kept[b][s][0][i];
}

struct sparse {
    const struct kv_format *kv;
    unsigned ratio, n_best;
    bool has_ties, has_gate, has_sinks;
};

static void run_batch(unsigned b, const struct sparse *c, const struct backend_segment *segments)
{
    struct backend *be = backends[b];
    const struct backend_index index = {
        .segments = segments, .n_segments = 2, .ratio = c->ratio, .dim = INDEX_DIM,
        .n_heads = INDEX_HEADS, .n_best = c->n_best, .block_positions = BLOCK,
        .block_bytes = sizeof kept[b][0][0], .key = keys, .mean = mean[b], .q = index_q,
        .q_row_stride = INDEX_ROW, .chosen = chosen[b]};
    ops(b)->index_means(be, &index);
    ops(b)->index_choose(be, &index);
    be->ops->attention(be, &(struct backend_attention){
        .segments = segments, .n_segments = 2, .kv_format = c->kv, .n_heads = N_HEADS,
        .n_kv_heads = N_KV_HEADS, .head_dim = HEAD_DIM, .value_dim = HEAD_DIM,
        .block_positions = BLOCK, .block_bytes = sizeof kept[b][0][0], .q = q[b],
        .gate = c->has_gate ? q[b] + HEAD_DIM : NULL, .q_row_stride = N_HEADS * 2ul * HEAD_DIM,
        .q_head_stride = 2ul * HEAD_DIM, .k = k, .v = v, .scale = 0.2f,
        .sinks = c->has_sinks ? sinks : NULL, .chosen = chosen[b], .ratio = c->ratio,
        .n_best = c->n_best, .out = heads[b]});
    finish(b);
}

/* Two sequences, of which one is long. The processor alone begins them. */
static void check_sparse(const struct sparse *c)
{
    static const uint32_t lengths[][2] = {{300, 1}, {290, 7}, {1, 2}, {6, 1}, {13, 20}};
    enum { BEGINNINGS = 2 };
    uint32_t at[2] = {0};
    memset(kept, 0, sizeof kept);
    for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        make_index(c->has_ties);
        memset(chosen, 0xff, sizeof chosen);
        for (unsigned b = 0; b < (i < BEGINNINGS ? GPU : N_BACKENDS); b++) {
            struct backend_segment segments[2];
            segment_of(b, 0, 0, at[0], lengths[i][0], &segments[0]);
            segment_of(b, 1, lengths[i][0], at[1], lengths[i][1], &segments[1]);
            run_batch(b, c, segments);
        }
        at[0] += lengths[i][0];
        at[1] += lengths[i][1];
        const size_t n = lengths[i][0] + lengths[i][1];
        if (i < BEGINNINGS) {
            memcpy(kept[GPU], kept[CPU], sizeof kept[CPU]);
            continue;
        }
        assert_memory_equal(mean[GPU], mean[CPU], n * INDEX_DIM * sizeof(float));
        for (size_t t = 0; t < n; t++) {
            const size_t row = t * (1 + c->n_best);
            const size_t count = chosen[CPU][row] == INDEX_ALL ? 1 : 1 + c->n_best;
            assert_memory_equal(chosen[GPU] + row, chosen[CPU] + row, count * sizeof(uint32_t));
        }
        assert_memory_equal(kept[GPU], kept[CPU], sizeof kept[CPU]);
        assert_memory_equal(heads[GPU], heads[CPU], n * N_HEADS * HEAD_DIM * sizeof(float));
    }
    assert_true(at[0] <= N_POSITIONS && at[0] / c->ratio > c->n_best);
}

static void test_sparse(void **state)
{
    const struct sparse cases[] = {
        {&kv_f16, 4, 12, true, true, false}, {&kv_f32, 1, 40, false, false, true},
        {&kv_rot4, 3, 5, false, true, true}, {&kv_f16, 7, 1, true, false, false}};
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_sparse(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_small_gates),
                                       cmocka_unit_test(test_conv), cmocka_unit_test(test_sparse)};
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
