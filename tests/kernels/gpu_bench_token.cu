/* Measures all kernels of one decoded token of a model of Coder-Next's shape with 24 layers, in the
 * order in which the backend launches them, without the host. It is no part of the build:
 *
 *   nvcc -O2 -std=c++17 -arch=sm_90 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true \
 *        -diag-suppress 177 -Isrc -Iinclude -o gpu_bench_token tests/kernels/gpu_bench_token.cu
 *   ./gpu_bench_token [POSITION]
 *
 * The first line is the whole token as one graph, in which a kernel may start before the one ahead
 * has ended, as in the backend; the second is the same without that. A line below is what the token
 * takes less when the launches of that name are left out. Values are random and mean nothing. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

/* kernels_all.h without what many inputs need, which takes a minute to compile. */
#include "backend/cuda/language.h"

#include "backend/cuda/kernels_mix.h"
#include "backend/not_finite.h"
#include "backend/peak.h"
#include "backend/prefer.h"
#include "backend/router.h"
#include "base/limits.h"
#include "quant/blocks.h"
#include "quant/codes.h"

#include "backend/cuda/k_rows.h"
#include "backend/cuda/k_products.h"
#include "backend/cuda/k_readers.h"
#include "backend/cuda/k_plain.h"
#include "backend/cuda/k_row_chain.h"
#include "backend/cuda/k_route.h"
#include "backend/cuda/k_one.h"
#include "backend/cuda/k_head.h"
#include "backend/cuda/k_kv.h"
#include "backend/cuda/k_attention.h"
#include "backend/cuda/k_delta.h"

#define N_LAYERS 24
#define N_EXPERTS 512u
#define N_CHOSEN 10u
#define WIDTH 2048u
#define INNER 512u
#define N_ROUNDS 9
#define POOL_BYTES (28ull << 30)

static void check(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(rc));
    exit(1);
}
#define CHECK(call) check((call), #call)

/* ---- memory ---------------------------------------------------------------------------------- */

static char *pool;
static size_t pool_used;

/* Words that are small numbers as floats, as two halves and as codes. */
static __global__ void make_values(uint32_t *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t h = (uint32_t)(i ^ i >> 17) * 2654435761u, r = h ^ h >> 15;
        x[i] = 0x3c003c00u | (r & 0x80ff80ffu);
    }
}

static void *take_bytes(size_t bytes)
{
    void *at = pool + pool_used;
    pool_used += (bytes + 255) / 256 * 256;
    if (pool_used > POOL_BYTES)
        check(cudaErrorMemoryAllocation, "the pool");
    return at;
}

static float *take(size_t n)
{
    return (float *)take_bytes(n * sizeof(float));
}

template <class T> static T *send(const std::vector<T> &list)
{
    T *at = (T *)take_bytes(list.size() * sizeof(T));
    CHECK(cudaMemcpy(at, list.data(), list.size() * sizeof(T), cudaMemcpyHostToDevice));
    return at;
}

/* ---- launches -------------------------------------------------------------------------------- */

struct step {
    std::string name;
    std::function<void(cudaStream_t, bool)> run; /* the second: may start early */
};

static std::vector<step> steps;

template <class Args>
static void add(const char *name, void (*kernel)(Args), uint32_t x, uint32_t y, uint32_t threads,
                const Args &args)
{
    steps.push_back({name, [=](cudaStream_t stream, bool is_early) {
                         cudaLaunchAttribute early = {};
                         early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
                         early.val.programmaticStreamSerializationAllowed = 1;
                         cudaLaunchConfig_t how = {};
                         how.gridDim = dim3(x, y);
                         how.blockDim = dim3(threads);
                         how.stream = stream;
                         how.attrs = &early;
                         how.numAttrs = is_early;
                         CHECK(cudaLaunchKernelEx(&how, kernel, args));
                     }});
}

/* The median microseconds of the steps that are not called `without`, as a graph. */
static double time_of(const std::string &without, bool is_early)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    std::vector<float> times(N_ROUNDS);
    bool is_first = true;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (const step &s : steps)
        if (s.name != without) {
            s.run(stream, is_early && !is_first);
            is_first = false;
        }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    for (float &ms : times) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    std::sort(times.begin(), times.end());
    return times[N_ROUNDS / 2] * 1000.0;
}

/* ---- products -------------------------------------------------------------------------------- */

static struct gpu_weight affine(uint32_t n_rows, uint32_t n_cols)
{
    struct gpu_weight w = {};
    w.format.codes = QUANT_CODES_AFFINE;
    w.format.scale = GPU_PLAIN_BF16;
    w.format.bits = 4;
    w.format.has_bias = 1;
    w.format.block = w.format.group = 64;
    w.format.part_block_bytes[0] = 32;
    w.format.part_block_bytes[1] = w.format.part_block_bytes[2] = 2;
    w.format.part_rows[0] = w.format.part_rows[1] = w.format.part_rows[2] = 1;
    w.n_rows = n_rows;
    w.n_cols = n_cols;
    w.is_interleaved = 1;
    return w;
}

static size_t codes_bytes(const struct gpu_weight &w) { return (size_t)w.n_rows * w.n_cols / 2; }
static size_t scale_bytes(const struct gpu_weight &w) { return (size_t)w.n_rows * w.n_cols / 32; }

/* Parts one after the other, from there on. */
static struct gpu_weight place(struct gpu_weight w, const uint8_t *at)
{
    w.parts[0] = at;
    w.parts[1] = at + codes_bytes(w);
    w.parts[2] = w.parts[1] + scale_bytes(w);
    return w;
}

static size_t all_bytes(const struct gpu_weight &w) { return codes_bytes(w) + 2 * scale_bytes(w); }

static struct gpu_weight make(struct gpu_weight w)
{
    return place(w, (const uint8_t *)take_bytes(all_bytes(w)));
}

/* Routers have codes of eight bits. */
static struct gpu_weight make_bytes(uint32_t n_rows)
{
    struct gpu_weight w = affine(n_rows, WIDTH);
    w.format.bits = 8;
    w.format.has_wide_codes = 1;
    w.format.part_block_bytes[0] = 64;
    w.is_interleaved = n_rows % 16 == 0;
    w.parts[0] = (const uint8_t *)take_bytes((size_t)n_rows * WIDTH);
    w.parts[1] = (const uint8_t *)take_bytes(scale_bytes(w));
    w.parts[2] = (const uint8_t *)take_bytes(scale_bytes(w));
    return w;
}

struct list {
    std::vector<struct gpu_product> products;
    uint32_t n_blocks[GPU_N_MATMULS] = {};

    void add(const struct gpu_weight &w, const struct gpu_input &in, float *y)
    {
        struct gpu_product p = {};
        p.w = w;
        p.in = in;
        p.n = 1;
        p.y = y;
        add(p);
    }

    void add(struct gpu_product p)
    {
        p.end = p.w.n_rows;
        p.y_stride = p.w.n_rows;
        gpu_place_product(&p, n_blocks);
        products.push_back(p);
    }

    void launch(const char *name, const struct gpu_route_args *route = NULL) const
    {
        struct gpu_matmul_one_args args = {};
        args.list = {send(products), (uint32_t)products.size()};
        for (size_t i = 1; i < products.size() && products.size() <= GPU_ONE_FEW; i++)
            args.first[i - 1] = products[i].first_block[GPU_MATMUL_ONE];
        args.has_route = route != NULL;
        args.n_blocks = n_blocks[GPU_MATMUL_ONE];
        args.n_ended = send(std::vector<uint32_t>(1));
        if (route != NULL)
            args.route = *route;
        if (n_blocks[GPU_MATMUL_ONE] > 0)
            ::add<gpu_matmul_one_args>(name, gpu_matmul_one, n_blocks[GPU_MATMUL_ONE], 1,
                                       GPU_MATMUL_THREADS, args);
    }
};

/* ---- the token ------------------------------------------------------------------------------- */

/* Rows of a token, whole and rounded. */
struct rows {
    float *x;
    struct gpu_rounding rounding;
};

static struct rows take_rows(size_t n)
{
    return {take(n), {64, (int8_t *)take_bytes(n), take(n / 64), take(n / 64),
                      (int32_t *)take(n / 64)}};
}

static struct gpu_input input_of(const struct rows &r)
{
    return {r.x, r.rounding.q, r.rounding.scale, r.rounding.offset, r.rounding.sum};
}

struct token {
    float *residual, *parts, *gated, *gate, *weights, *mixed, *logits, *inner, *up;
    uint32_t *ids, *not_finite;
    struct rows normed, wide;
};

static void add_chain(const struct token &t, bool is_first, bool has_sum)
{
    struct gpu_row_chain_args a = {};
    a.dim = WIDTH;
    a.rows = is_first ? t.residual : t.mixed;
    if (!is_first)
        a.residual = t.residual;
    if (has_sum) {
        a.k = N_CHOSEN;
        a.parts = t.parts;
        a.weights = t.weights;
        a.gated = t.gated;
        a.gate = t.gate;
        a.not_finite = t.not_finite;
    }
    a.norm = take(WIDTH);
    a.normed = t.normed.x;
    a.eps = 1e-6f;
    a.rounding = t.normed.rounding;
    add(has_sum ? "row_chain with a sum" : "row_chain", gpu_row_chain, 1, 1, GPU_ROW_CHAIN_THREADS,
        a);
}

static void add_delta(const struct token &t)
{
    struct gpu_delta_token_args a = {};
    backend_segment segment = {};
    struct list in;
    segment.n_rows = 1;
    segment.state[DELTA_NET_CONV] = take(3 * 8192);
    segment.state[DELTA_NET_STATE] = take(32 * 128 * 128);
    a.d.channels = 8192;
    a.d.n_rows = 1;
    a.d.net.segments = send(std::vector<backend_segment>{segment});
    a.d.net.n_segments = 1;
    a.d.net.n_key_heads = 16;
    a.d.net.n_value_heads = 32;
    a.d.net.key_dim = a.d.net.value_dim = 128;
    a.d.net.kernel = 4;
    a.d.net.qkv = take(8192);
    a.d.net.z = take(4096);
    a.d.net.b = take(32);
    a.d.net.a = take(32);
    a.d.net.conv_weight = take(4 * 8192);
    a.d.net.decay = take(32);
    a.d.net.dt_bias = take(32);
    a.d.net.norm = take(128);
    a.d.net.eps = 1e-6f;
    a.d.net.out = t.wide.x;
    a.rounding = t.wide.rounding;
    in.add(make(affine(8192, WIDTH)), input_of(t.normed), (float *)a.d.net.qkv);
    in.add(make(affine(4096, WIDTH)), input_of(t.normed), (float *)a.d.net.z);
    in.add(make(affine(32, WIDTH)), input_of(t.normed), (float *)a.d.net.b);
    in.add(make(affine(32, WIDTH)), input_of(t.normed), (float *)a.d.net.a);
    in.launch("mixer in");
    a.n_read = (uint32_t *)send(std::vector<uint32_t>(16));
    add("delta_token", gpu_delta_token, 32, 1, 4 * GPU_TOKEN_DIM, a);
}

static void add_attention(const struct token &t, uint32_t position)
{
    struct gpu_attention a = {};
    backend_segment segment = {};
    struct list in;
    uint32_t n_blocks = 1, n_parts = 1;
    while (n_blocks * GPU_ATTENTION_BLOCK <= position)
        n_blocks *= 2;
    while (n_parts < 8 && n_blocks * 2 * n_parts < 128)
        n_parts *= 2;
    segment.n_rows = 1;
    segment.position = position;
    segment.state[ATTENTION_KEYS] = take((size_t)(position + 1) * 256);
    segment.state[ATTENTION_VALUES] = take((size_t)(position + 1) * 256);
    a.kv.plain = GPU_PLAIN_F16;
    a.n_heads = 16;
    a.n_kv_heads = 2;
    a.head_dim = 256;
    a.value_dim = 256;
    a.block_positions = position + 1;
    a.segments = send(std::vector<backend_segment>{segment});
    a.n_segments = 1;
    a.q = take(16 * 512);
    a.gate = a.q + 256;
    a.q_row_stride = 16 * 512;
    a.q_head_stride = 512;
    a.k = take(512);
    a.v = take(512);
    a.scale = 0.0625f;
    a.out = t.wide.x;
    a.block_max = take(n_blocks * 16);
    a.block_total = take(n_blocks * 16);
    a.block_out = take(n_blocks * 16 * 256);
    a.n_blocks = n_blocks;
    in.add(make(affine(8192, WIDTH)), input_of(t.normed), a.q);
    in.add(make(affine(512, WIDTH)), input_of(t.normed), (float *)a.k);
    in.add(make(affine(512, WIDTH)), input_of(t.normed), (float *)a.v);
    in.launch("mixer in");
    struct gpu_place_heads_args h = {};
    h.q.x = a.q;
    h.q.row_stride = 16 * 512;
    h.q.head_stride = 512;
    h.q.head_dim = 256;
    h.q.rotary_dim = 64;
    h.q.norm = take(256);
    h.q.eps = 1e-6f;
    h.q.rope = take(64);
    h.k = h.q;
    h.k.x = (float *)a.k;
    h.k.row_stride = 512;
    h.k.head_stride = 256;
    h.a = a;
    add("place_heads", gpu_place_heads, 18, 1, 128, h);
    add<gpu_attend_args>("attend", gpu_attend, n_parts * 2 * n_blocks, 1, GPU_ATTEND_THREADS,
                         {a, n_parts});
    add<gpu_merge_args>("merge", gpu_merge, 16, 1, 128, {a, t.wide.rounding});
}

static void add_experts(const struct token &t)
{
    const struct gpu_weight gate = affine(INNER, WIDTH), down = affine(WIDTH, INNER);
    const size_t each = 2 * all_bytes(gate) + all_bytes(down);
    const uint8_t *experts = (const uint8_t *)take_bytes(each * (N_EXPERTS + 1));
    std::vector<uint64_t> at;
    struct list router, gates, downs;
    router.add(make_bytes(N_EXPERTS), input_of(t.normed), t.logits);
    router.add(make_bytes(1), input_of(t.normed), t.gate);
    gpu_route_args r = {};
    r.router.n_experts = N_EXPERTS;
    r.router.k = N_CHOSEN;
    r.router.renormalises = true;
    r.router.scale = 1;
    r.is_plain = true;
    r.logits = t.logits;
    r.ids = t.ids;
    r.weights = t.weights;
    router.launch("router", &r);
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        at.push_back((uint64_t)(uintptr_t)(experts + e * each));
    /* The shared expert, then those that the router chose, found by the GPU. */
    for (bool is_routed : {false, true}) {
        struct gpu_product p = {};
        const uint8_t *from = is_routed ? NULL : experts + N_EXPERTS * each;
        const size_t own = is_routed ? INNER : 0;
        p.n = is_routed ? N_CHOSEN : 1;
        p.bases = is_routed ? send(at) : NULL;
        p.id = is_routed ? t.ids : NULL;
        p.pick = is_routed ? send(std::vector<uint32_t>(N_CHOSEN)) : NULL;
        p.in = input_of(t.normed);
        p.w = place(gate, from);
        p.y = t.inner + own;
        gates.add(p);
        p.w = place(gate, from + all_bytes(gate));
        p.y = t.up + own;
        gates.add(p);
        p.has_old_ids = 1;
        p.w = place(down, from + 2 * all_bytes(gate));
        p.pick = NULL;
        p.in = {t.inner + own};
        p.up = t.up + own;
        p.y = is_routed ? t.parts : t.gated;
        downs.add(p);
    }
    gates.launch("gate and up");
    downs.launch("down");
}

static void add_token(uint32_t position)
{
    struct token t = {};
    t.residual = take(WIDTH);
    t.parts = take(N_CHOSEN * WIDTH);
    t.gated = take(WIDTH);
    t.gate = take(1);
    t.weights = take(N_CHOSEN);
    t.mixed = take(WIDTH);
    t.logits = take(N_EXPERTS);
    t.inner = take((N_CHOSEN + 1) * INNER);
    t.up = take((N_CHOSEN + 1) * INNER);
    t.ids = send(std::vector<uint32_t>(N_CHOSEN));
    t.not_finite = send(std::vector<uint32_t>(1));
    t.normed = take_rows(WIDTH);
    t.wide = take_rows(4096);
    for (int l = 0; l < N_LAYERS; l++) {
        struct list out, head;
        add_chain(t, l == 0, l > 0);
        if (l % 4 == 3)
            add_attention(t, position);
        else
            add_delta(t);
        out.add(make(affine(WIDTH, 4096)), input_of(t.wide), t.mixed);
        out.launch("mixer out");
        add_chain(t, false, false);
        add_experts(t);
    }
    struct list head;
    add_chain(t, false, true);
    head.add(make(affine(151936, WIDTH)), input_of(t.normed), take(151936));
    struct gpu_matmul_head_args last = {head.products[0]};
    last.n_tiles = (last.p.n_across + GPU_HEAD_BLOCKS - 1) / GPU_HEAD_BLOCKS;
    last.found = t.not_finite;
    last.peak = (uint64_t *)take(2);
    CHECK(cudaMallocHost((void **)&last.copy, 151936 * sizeof(float)));
    add("head", gpu_matmul_head, (last.p.n_across + last.n_tiles - 1) / last.n_tiles, 1,
        GPU_MATMUL_THREADS, last);
}

int main(int argc, char **argv)
{
    std::vector<std::string> names;
    CHECK(cudaMalloc(&pool, POOL_BYTES));
    make_values<<<4096, 256>>>((uint32_t *)pool, POOL_BYTES / 4);
    CHECK(cudaDeviceSynchronize());
    add_token(argc > 1 ? (uint32_t)atoi(argv[1]) : 600);
    const double whole = time_of("", true);
    printf("token: %zu launches, %.1f us = %.0f tok/s\n", steps.size(), whole, 1e6 / whole);
    printf("token, each launch after the one before: %.1f us\n", time_of("", false));
    for (const step &s : steps)
        if (std::find(names.begin(), names.end(), s.name) == names.end())
            names.push_back(s.name);
    for (const std::string &name : names) {
        const auto n = std::count_if(steps.begin(), steps.end(),
                                     [&](const step &s) { return s.name == name; });
        const double part = whole - time_of(name, true);
        printf("  %-22s %4d launches %8.1f us, %6.2f us each\n", name.c_str(), (int)n, part,
               part / (double)n);
    }
    return 0;
}
