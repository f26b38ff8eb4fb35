/* Measures the GPU's kernels that are no products, at the shapes of a model with 2048 columns, 16
 * key heads and 32 value heads of 128, 16 query heads and 2 key and value heads of 256, and 10 of
 * 512 experts. It is no part of the build:
 *
 *   nvcc -O3 -std=c++17 -arch=native -fmad=false -ftz=false -prec-div=true -prec-sqrt=true \
 *        -Isrc -Iinclude -o gpu_bench_rows tests/kernels/gpu_bench_rows.cu && ./gpu_bench_rows
 *
 * A line is a kernel: microseconds per launch with 1 row and with 512 rows. Launches are recorded
 * into a graph, as the backend does; each works on other memory, as the layers of a model do, so
 * that little of it lies in the cache. */
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/cuda/kernels_all.h"

#define COPIES 32
#define REPEATS 10
#define POOL_BYTES (24ull << 30)

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

static __global__ void make_values(float *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t h = (uint32_t)i * 2654435761u;
        x[i] = (float)(int32_t)(h ^ h >> 15) * 0x1p-32f;
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

/* ---- timing ---------------------------------------------------------------------------------- */

/* Microseconds of what launch(copy) launches for each copy. */
template <class Launch> static double time_of(Launch launch)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int copy = 0; copy < COPIES; copy++)
        launch(copy, stream);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(begin, stream));
    for (int i = 0; i < REPEATS; i++)
        CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return ms * 1000.0 / (COPIES * REPEATS);
}

/* Measures with 1 and with 512 rows; make(n) takes memory and returns what launches. */
template <class Make> static void measure(const char *name, Make make)
{
    printf("%-44s", name);
    for (uint32_t n : {1u, 512u}) {
        pool_used = 0;
        printf("%10.2f", time_of(make(n)));
        fflush(stdout);
    }
    printf("\n");
}

static uint32_t over(size_t n, size_t unit)
{
    return (uint32_t)((n + unit - 1) / unit);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const uint32_t hidden = 2048;

static struct gpu_rounding take_rounding(size_t elements)
{
    return {64, (int8_t *)take_bytes(elements), take(elements / 64), take(elements / 64),
            (int32_t *)take(elements / 64)};
}

enum { SUM = 1, ADD = 2, NORM = 4, ROUND = 8 };

static auto chain(unsigned stages)
{
    return [=](uint32_t n) {
        std::vector<gpu_row_chain_args> args(COPIES);
        const size_t elements = (size_t)n * hidden;
        for (gpu_row_chain_args &a : args) {
            a = {};
            a.dim = hidden;
            a.rows = take(elements);
            if (stages & SUM) {
                a.k = 10;
                a.parts = take(elements * 10);
                a.weights = take((size_t)n * 10);
                a.gated = take(elements);
                a.gate = take(n);
                a.residual = take(elements);
            }
            if (stages & ADD)
                a.added = take(elements);
            if (stages & NORM) {
                a.norm = take(hidden);
                a.normed = take(elements);
                a.eps = 1e-6f;
            }
            if (stages & ROUND)
                a.rounding = take_rounding(elements);
        }
        return [=](int copy, cudaStream_t s) {
            gpu_row_chain<<<n, GPU_ROW_CHAIN_THREADS, 0, s>>>(args[copy]);
        };
    };
}

static void measure_rows()
{
    measure("row_chain: sum, gated, add, norm, round", chain(SUM | NORM | ROUND));
    measure("row_chain: sum, gated, add", chain(SUM));
    measure("row_chain: add, norm, round", chain(ADD | NORM | ROUND));
    measure("rms_norm", [](uint32_t n) {
        const gpu_rms_norm_args a = {take((size_t)n * hidden), take(hidden),
                                     take((size_t)n * hidden), 1e-6f, hidden};
        return [=](int, cudaStream_t s) { gpu_rms_norm<<<n, GPU_ROW_THREADS, 0, s>>>(a); };
    });
    measure("quantize", [](uint32_t n) {
        const size_t elements = (size_t)n * hidden;
        const float *x = take(elements);
        const gpu_rounding r = take_rounding(elements);
        const gpu_quantize_args a = {x, elements / 64, 64, r.q, r.scale, r.offset, r.sum};
        return [=](int, cudaStream_t s) {
            gpu_quantize<<<over(elements / 64, GPU_QUANTIZE_WARPS), 32 * GPU_QUANTIZE_WARPS, 0,
                           s>>>(a);
        };
    });
    measure("expert_sum", [](uint32_t n) {
        std::vector<gpu_expert_sum_args> args(COPIES);
        for (gpu_expert_sum_args &a : args)
            a = {take((size_t)n * hidden * 10), take((size_t)n * 10), 10, hidden,
                 take((size_t)n * hidden)};
        return [=](int copy, cudaStream_t s) {
            gpu_expert_sum<<<dim3(n, over(hidden, 256)), 256, 0, s>>>(args[copy]);
        };
    });
    measure("add", [](uint32_t n) {
        const gpu_add_args a = {take((size_t)n * hidden), take((size_t)n * hidden),
                                (uint64_t)n * hidden};
        return [=](int, cudaStream_t s) { gpu_add<<<over(a.n, 256), 256, 0, s>>>(a); };
    });
}

static void measure_route()
{
    for (bool renormalises : {true, false})
        measure(renormalises ? "route: 10 of 512" : "route: 10 of 512, over all", [=](uint32_t n) {
            std::vector<gpu_route_args> args(COPIES);
            for (gpu_route_args &a : args) {
                a = {};
                a.router.n_experts = 512;
                a.router.k = 10;
                a.router.renormalises = renormalises;
                a.router.scale = 1;
                a.is_plain = true;
                a.logits = take((size_t)n * 512);
                a.ids = (uint32_t *)take((size_t)n * 10);
                a.weights = take((size_t)n * 10);
            }
            return [=](int copy, cudaStream_t s) { gpu_route<<<n, 256, 0, s>>>(args[copy]); };
        });
}

/* ---- the delta rule -------------------------------------------------------------------------- */

static gpu_delta_net take_net(uint32_t n)
{
    gpu_delta_net d = {};
    backend_segment segment = {};
    d.channels = 8192;
    d.n_rows = n;
    segment.n_rows = n;
    segment.state[DELTA_NET_CONV] = take(3 * 8192);
    segment.state[DELTA_NET_STATE] = take(32 * 128 * 128);
    d.net.segments = send(std::vector<backend_segment>{segment});
    d.net.n_segments = 1;
    d.net.n_key_heads = 16;
    d.net.n_value_heads = 32;
    d.net.key_dim = d.net.value_dim = 128;
    d.net.kernel = 4;
    d.net.qkv = take((size_t)n * 8192);
    d.net.z = take((size_t)n * 4096);
    d.net.b = take((size_t)n * 32);
    d.net.a = take((size_t)n * 32);
    d.net.conv_weight = take(4 * 8192);
    d.net.decay = take(32);
    d.net.dt_bias = take(32);
    d.net.norm = take(128);
    d.net.eps = 1e-6f;
    d.net.mixed = take((size_t)n * 8192);
    d.net.out = take((size_t)n * 4096);
    return d;
}

static std::vector<gpu_delta_net> take_nets(uint32_t n)
{
    std::vector<gpu_delta_net> nets;
    for (int copy = 0; copy < COPIES; copy++)
        nets.push_back(take_net(n));
    return nets;
}

static void measure_delta()
{
    measure("delta_token, rounded (1 row only)", [](uint32_t n) {
        std::vector<gpu_delta_token_args> args;
        for (const gpu_delta_net &d : take_nets(1))
            args.push_back({d, (uint32_t *)take(16), take_rounding(4096)});
        return [=](int copy, cudaStream_t s) {
            if (n == 1)
                gpu_delta_token<<<32, 4 * GPU_TOKEN_DIM, 0, s>>>(args[copy]);
        };
    });
    measure("conv_silu", [](uint32_t n) {
        const std::vector<gpu_delta_net> nets = take_nets(n);
        return [=](int copy, cudaStream_t s) {
            gpu_conv_silu<<<64 * over(n, GPU_CONV_ROWS), 128, 0, s>>>({nets[copy], 0, 8192});
        };
    });
    measure("delta_head", [](uint32_t n) {
        const std::vector<gpu_delta_net> nets = take_nets(n);
        return [=](int copy, cudaStream_t s) {
            gpu_delta_head<<<32 * 128 / GPU_DELTA_COLUMNS, 4 * GPU_DELTA_COLUMNS, 0, s>>>(
                {nets[copy], 0});
        };
    });
    measure("delta_close, rounded", [](uint32_t n) {
        std::vector<gpu_delta_close_args> args;
        for (const gpu_delta_net &d : take_nets(n))
            args.push_back({d, 0, 32, take_rounding((size_t)n * 4096)});
        return [=](int copy, cudaStream_t s) {
            gpu_delta_close<<<over((size_t)n * 32, 4), 128, 0, s>>>(args[copy]);
        };
    });
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Rows that end at `position`, with keys and values in f16. */
static gpu_attention take_attention(uint32_t n, uint32_t position)
{
    gpu_attention a = {};
    backend_segment segment = {};
    const uint32_t n_blocks = position / GPU_ATTENTION_BLOCK + 1;
    const size_t heads = (size_t)n * n_blocks * 16;
    segment.n_rows = n;
    segment.position = position + 1 - n;
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
    a.q = take((size_t)n * 16 * 512);
    a.gate = a.q + 256;
    a.q_row_stride = 16 * 512;
    a.q_head_stride = 512;
    a.k = take((size_t)n * 512);
    a.v = take((size_t)n * 512);
    a.scale = 0.0625f;
    a.out = take((size_t)n * 4096);
    a.block_max = take(heads);
    a.block_total = take(heads);
    a.block_out = take(heads * 256);
    a.n_blocks = n_blocks;
    return a;
}

static void measure_attention()
{
    measure("norm_rope, 16 heads", [](uint32_t n) {
        gpu_norm_rope_args a = {};
        a.x = take((size_t)n * 16 * 512);
        a.row_stride = 16 * 512;
        a.head_stride = 512;
        a.head_dim = 256;
        a.rotary_dim = 64;
        a.norm = take(256);
        a.eps = 1e-6f;
        a.rope = take((size_t)n * 64);
        return [=](int, cudaStream_t s) { gpu_norm_rope<<<dim3(n, 16), 64, 0, s>>>(a); };
    });
    measure("store_kv", [](uint32_t n) {
        const gpu_attention a = take_attention(n, 1023);
        return [=](int, cudaStream_t s) { gpu_store_kv<<<dim3(2, n), 128, 0, s>>>({a}); };
    });
    for (uint32_t position : {600u, 4095u, 32767u}) {
        char name[64];
        snprintf(name, sizeof name, "attend, position %u (8 rows, not 512)", position);
        measure(name, [=](uint32_t n) {
            const gpu_attention a = take_attention(n == 1 ? 1 : 8, position);
            const uint32_t n_parts = position > 4096 ? 1 : n > 1 || position > 1024 ? 4 : 8;
            const dim3 grid(n_parts * a.n_kv_heads * a.n_blocks, n == 1 ? 1 : 8);
            return [=](int, cudaStream_t s) { gpu_attend<<<grid, GPU_ATTEND_THREADS, 0, s>>>({a, n_parts}); };
        });
        snprintf(name, sizeof name, "merge, position %u (8 rows, not 512)", position);
        measure(name, [=](uint32_t n) {
            const gpu_attention a = take_attention(n == 1 ? 1 : 8, position);
            const dim3 grid(a.n_heads, n == 1 ? 1 : 8);
            return [=](int, cudaStream_t s) { gpu_merge<<<grid, 128, 0, s>>>({a, {}}); };
        });
    }
    measure("attend, position 511 (512 rows)", [](uint32_t n) {
        const gpu_attention a = take_attention(n, 511);
        const dim3 grid(a.n_kv_heads * a.n_blocks, n);
        return [=](int, cudaStream_t s) { gpu_attend<<<grid, GPU_ATTEND_THREADS, 0, s>>>({a, 1}); };
    });
}

int main()
{
    CHECK(cudaMalloc(&pool, POOL_BYTES));
    make_values<<<4096, 256>>>((float *)pool, POOL_BYTES / sizeof(float));
    CHECK(cudaDeviceSynchronize());
    printf("%-44s%10s%10s\n", "us per launch", "1 row", "512 rows");
    measure("an empty kernel", [](uint32_t) {
        const gpu_add_args a = {take(1), take(1), 0};
        return [=](int, cudaStream_t s) { gpu_add<<<1, 32, 0, s>>>(a); };
    });
    measure_rows();
    measure_route();
    measure_delta();
    measure_attention();
    return 0;
}
