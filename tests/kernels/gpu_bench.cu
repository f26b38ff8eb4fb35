/* gpu_bench: the speed of the GPU's products, and their bits against the reference. It needs a GPU,
 * so it is no part of the tests. From the root of the tree:
 *
 *   gcc -c -O2 -ffp-contract=off -D_GNU_SOURCE -Isrc -Iinclude src/quant/[a-z]*.c \
 *       src/base/err.c src/base/fmath.c src/backend/cpu/k_ref.c src/backend/cuda/formats.c
 *   nvcc -std=c++17 -O2 -arch=sm_90 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true \
 *       -diag-suppress 177 -Isrc -Iinclude -o gpu_bench tests/kernels/gpu_bench.cu *.o
 *   ./gpu_bench [WORD]     only the lines whose name contains WORD
 *
 * (without the objects of *_test.c). Each line is one launch of products with weights that no launch
 * before has left in the cache: microseconds, bytes of weights per second, and how many of the rows
 * that were compared with the reference differ. The last lines are the products of a token and of
 * 2,048 tokens of a model of Coder-Next's shape with 24 layers. */
#include <cuda_runtime.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "backend/cpu/levels.h"
#include "backend/cuda/formats.h"
#include "backend/cuda/kernels_all.h"
#include "quant/interleave.h"

#define MUST(call)                                                                                 \
    do {                                                                                           \
        const cudaError_t error = (call);                                                          \
        if (error != cudaSuccess) {                                                                \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t state = 88172645463325252u;

static uint32_t random_word()
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

template <class T> static T *to_gpu(const T *from, size_t n)
{
    T *at;
    MUST(cudaMalloc(&at, n * sizeof(T)));
    MUST(cudaMemcpy(at, from, n * sizeof(T), cudaMemcpyHostToDevice));
    return at;
}

/* ---- weights and inputs ---------------------------------------------------------------------- */

/* Where blocks keep halves that are scales. */
static void set_scales(const struct quant *quant, uint8_t *block)
{
    const std::string name = quant->name;
    auto put = [&](size_t at, unsigned half) { memcpy(block + at, &half, 2); };
    const unsigned small = 0x2000 + random_word() % 0x400;
    if (name == "q4_k" || name == "q5_k" || name == "q4_1" || name == "q5_1") {
        put(0, small);
        put(2, small);
    } else if (name == "q6_k") {
        put(208, small);
    } else if (name == "q3_k") {
        put(108, small);
    } else if (name == "q2_k") {
        put(80, small);
        put(82, small);
    } else if (name == "mxfp4") {
        block[0] = (uint8_t)(110 + random_word() % 16);
    } else {
        put(0, small);
    }
}

/* A matrix of random codes, on the host and as several copies on the GPU. */
struct matrix {
    struct weight host;
    std::vector<uint8_t> bytes;
    std::vector<uint64_t> part_at;
    std::vector<uint8_t *> copies;
    uint8_t *pool;
};

static void fill(struct matrix &m)
{
    const struct quant *quant = m.host.quant;
    for (size_t i = 0; i + 4 <= m.bytes.size(); i += 4) {
        const uint32_t word = random_word();
        memcpy(&m.bytes[i], &word, 4);
    }
    for (unsigned p = 0; p < quant->n_parts; p++) {
        uint8_t *at = &m.bytes[m.part_at[p]];
        const size_t n = quant_part_bytes(quant, p, m.host.n_rows, m.host.n_cols) /
                         quant->part_block_bytes[p];
        if (quant->codes == QUANT_NO_CODES) {
            std::vector<float> x(m.host.n_cols);
            void *to[1];
            for (size_t r = 0; r < m.host.n_rows; r++) {
                for (float &value : x)
                    value = (float)(int32_t)random_word() * 0x1p-32f;
                to[0] = at + r * quant_part_row_bytes(quant, 0, m.host.n_cols);
                quant->encode_row(quant, x.data(), to, m.host.n_cols);
            }
        } else if (quant->kind == QUANT_AFFINE && p > 0) {
            for (size_t i = 0; i < n; i++) {
                const uint16_t half = (uint16_t)((random_word() & 0x8000) + 0x3b00 +
                                                 random_word() % 256);
                memcpy(at + 2 * i, &half, 2);
            }
        } else if (quant->kind != QUANT_AFFINE) {
            for (size_t i = 0; i < n; i++)
                set_scales(quant, at + i * quant->part_block_bytes[p]);
        }
        m.host.parts[p] = at;
    }
}

static struct matrix make_matrix(const char *format, uint32_t n_rows, uint32_t n_cols,
                                 size_t n_copies)
{
    struct matrix m;
    m.host = {quant_find(format), n_rows, n_cols, false, {}};
    size_t bytes = 0;
    for (unsigned p = 0; p < m.host.quant->n_parts; p++) {
        m.part_at.push_back(bytes);
        bytes += (quant_part_bytes(m.host.quant, p, n_rows, n_cols) + 255) / 256 * 256;
    }
    m.bytes.resize(bytes);
    fill(m);
    if (interleave_suits(m.host.quant, n_rows, n_cols)) {
        void *parts[QUANT_MAX_PARTS];
        for (unsigned p = 0; p < m.host.quant->n_parts; p++)
            parts[p] = &m.bytes[m.part_at[p]];
        interleave_blocks(m.host.quant, n_cols, parts, 0, n_rows / 16);
        m.host.is_interleaved = true;
    }
    MUST(cudaMalloc(&m.pool, bytes * n_copies));
    for (size_t i = 0; i < n_copies; i++) {
        m.copies.push_back(m.pool + i * bytes);
        MUST(i == 0 ? cudaMemcpy(m.pool, m.bytes.data(), bytes, cudaMemcpyHostToDevice)
                    : cudaMemcpy(m.copies[i], m.pool, bytes, cudaMemcpyDeviceToDevice));
    }
    return m;
}

static struct gpu_weight copy_of(const struct matrix &m, size_t i)
{
    struct gpu_weight w = gpu_weight_of(&m.host);
    for (size_t p = 0; p < m.part_at.size(); p++)
        w.parts[p] = m.copies[i % m.copies.size()] + m.part_at[p];
    return w;
}

/* Rows of the input, on the host and on the GPU. */
struct rows {
    std::vector<float> x, scale, offset;
    std::vector<int8_t> q;
    std::vector<int32_t> sum;
    struct gpu_input gpu;
};

static struct rows make_rows(const struct kernels &reference, size_t n, uint32_t n_cols,
                             uint32_t group)
{
    struct rows rows;
    group = group > 0 ? group : n_cols;
    const size_t n_groups = n * n_cols / group;
    rows.x.resize(n * n_cols);
    for (float &x : rows.x)
        x = (float)(int32_t)random_word() * 0x1p-31f;
    rows.q.resize(n * n_cols);
    rows.scale.resize(n_groups);
    rows.offset.resize(n_groups);
    rows.sum.resize(n_groups);
    if (group <= 128)
        reference.quantize_row(rows.x.data(), n * n_cols, group, rows.q.data(), rows.scale.data(),
                               rows.offset.data(), rows.sum.data());
    rows.gpu = {to_gpu(rows.x.data(), rows.x.size()), to_gpu(rows.q.data(), rows.q.size()),
                to_gpu(rows.scale.data(), n_groups), to_gpu(rows.offset.data(), n_groups),
                to_gpu(rows.sum.data(), n_groups)};
    return rows;
}

static void free_rows(struct rows &rows)
{
    for (const void *at : {(const void *)rows.gpu.x, (const void *)rows.gpu.q,
                           (const void *)rows.gpu.scale, (const void *)rows.gpu.offset,
                           (const void *)rows.gpu.sum})
        MUST(cudaFree((void *)at));
}

/* ---- launches -------------------------------------------------------------------------------- */

struct launch {
    std::vector<struct gpu_product> products;
    const struct gpu_product *gpu;
    uint32_t n_blocks[GPU_N_MATMULS];
};

static void add(struct launch &l, struct gpu_product p)
{
    p.end = p.w.n_rows;
    p.y_stride = p.w.n_rows;
    gpu_place_product(&p, l.n_blocks);
    l.products.push_back(p);
}

static void send(struct launch &l)
{
    l.gpu = to_gpu(l.products.data(), l.products.size());
}

template <class Args>
static void start(void (*kernel)(Args), uint32_t n_blocks, const struct gpu_products &all,
                  cudaStream_t stream, uint32_t n_threads = GPU_MATMUL_THREADS)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3(n_blocks);
    how.blockDim = dim3(n_threads);
    how.stream = stream;
    how.attrs = &early;
    how.numAttrs = 1;
    if (n_blocks > 0)
        MUST(cudaLaunchKernelEx(&how, kernel, Args{all}));
}

/* Starts as the backend does: a kernel may start before the one ahead has ended. */
static void run(const struct launch &l, cudaStream_t stream)
{
    const struct gpu_products all = {l.gpu, (uint32_t)l.products.size()};
    const uint32_t *n = l.n_blocks;
    start(gpu_matmul_few, n[GPU_MATMUL_FEW], all, stream);
    start(gpu_matmul_many, n[GPU_MATMUL_MANY], all, stream);
    start(gpu_matmul_one, n[GPU_MATMUL_ONE], all, stream);
    start(gpu_matmul_plain, n[GPU_MATMUL_PLAIN], all, stream);
    start(gpu_matmul_plain_many, n[GPU_MATMUL_PLAIN_MANY], all, stream);
    start(gpu_matmul_plain_one, n[GPU_MATMUL_PLAIN_ONE], all, stream, GPU_PLAIN_ONE_THREADS);
    start(gpu_matmul_plain_tiles, n[GPU_MATMUL_PLAIN_TILES], all, stream);
}

/* Microseconds of all launches, as one graph. */
static double time_all(const std::vector<struct launch> &launches)
{
    const int n_rounds = 5;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms;
    MUST(cudaStreamCreate(&stream));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (const struct launch &l : launches)
        run(l, stream);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaEventRecord(begin, stream));
    for (int i = 0; i < n_rounds; i++)
        MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaEventElapsedTime(&ms, begin, end));
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    return ms * 1000.0 / n_rounds;
}

static bool is_same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* Compares some rows of all inputs with the reference; returns how many results differ. */
static size_t n_different(const struct kernels &reference, const struct matrix &m,
                          const struct rows &rows, size_t n, const uint32_t *pick, const float *y)
{
    const size_t n_rows = m.host.n_rows;
    std::vector<float> all(n * n_rows), scratch(KERNEL_MATMUL_SCRATCH(m.host.n_cols, n) + 16);
    MUST(cudaMemcpy(all.data(), y, all.size() * sizeof(float), cudaMemcpyDeviceToHost));
    size_t n_wrong = 0;
    const size_t n_blocks = (n_rows + 15) / 16, n_wanted = n > 64 ? 2 : 5;
    const size_t n_compared = n_blocks < n_wanted ? n_blocks : n_wanted;
    for (size_t i = 0; i < n_compared; i++) {
        const size_t begin = (i == 0 ? n_blocks - 1 : random_word() % n_blocks) * 16;
        const size_t end = begin + 16 < n_rows ? begin + 16 : n_rows;
        std::vector<float> right(n * 16);
        struct kernel_matmul product = {};
        product.w = &m.host;
        product.begin = begin;
        product.end = end;
        product.in = {rows.x.data(), rows.q.data(), rows.scale.data(), rows.offset.data(),
                      rows.sum.data()};
        product.n = n;
        product.pick = pick;
        product.y = right.data();
        product.y_stride = 16;
        product.y_first = begin;
        product.scratch = (float *)(((uintptr_t)scratch.data() + 63) / 64 * 64);
        reference.matmul(&product);
        for (size_t t = 0; t < n; t++)
            for (size_t r = begin; r < end; r++)
                n_wrong += !is_same(right[t * 16 + r - begin], all[t * n_rows + r]);
    }
    return n_wrong;
}

/* ---- single launches ------------------------------------------------------------------------- */

struct line {
    const char *format;
    uint32_t n_rows, n_cols, n_products, n_inputs;
};

static void bench(const struct kernels &reference, const struct line &line, const char *word)
{
    char name[100];
    snprintf(name, sizeof name, "%s %ux%u, %u products, %u inputs", line.format, line.n_rows,
             line.n_cols, line.n_products, line.n_inputs);
    if (word != NULL && strstr(name, word) == NULL)
        return;
    const struct quant *quant = quant_find(line.format);
    const double bytes = (double)quant_matrix_bytes(quant, line.n_rows, line.n_cols);
    const size_t n_copies = (size_t)(400e6 / bytes) + 2 * line.n_products;
    struct matrix m = make_matrix(line.format, line.n_rows, line.n_cols, n_copies);
    struct rows rows = make_rows(reference, line.n_inputs, line.n_cols, quant->group);
    const size_t n_results = (size_t)line.n_inputs * line.n_rows;
    float *y;
    MUST(cudaMalloc(&y, n_results * line.n_products * sizeof(float)));
    MUST(cudaMemset(y, 0xff, n_results * line.n_products * sizeof(float)));
    size_t n_launches = n_copies / line.n_products;
    n_launches = n_launches > 64 ? 64 : n_launches;
    std::vector<struct launch> launches(n_launches);
    for (size_t i = 0; i < n_launches; i++) {
        for (size_t k = 0; k < line.n_products; k++) {
            struct gpu_product p = {};
            p.w = copy_of(m, i * line.n_products + k);
            p.in = rows.gpu;
            p.n = line.n_inputs;
            p.y = y + k * n_results;
            add(launches[i], p);
        }
        send(launches[i]);
    }
    const double us = time_all(launches) / (double)n_launches;
    size_t n_wrong = 0;
    for (size_t k = 0; k < line.n_products; k += line.n_products > 1 ? line.n_products - 1 : 1)
        n_wrong += n_different(reference, m, rows, line.n_inputs, NULL, y + k * n_results);
    printf("%-50s %9.2f us %7.0f GB/s %8.1f TOP/s  %zu differ\n", name, us,
           bytes * line.n_products / us / 1e3,
           2.0 * line.n_rows * line.n_cols * line.n_inputs * line.n_products / us / 1e6, n_wrong);
    fflush(stdout);
    for (struct launch &l : launches)
        MUST(cudaFree((void *)l.gpu));
    MUST(cudaFree(y));
    MUST(cudaFree(m.pool));
    free_rows(rows);
}

static void measure_copy()
{
    const size_t bytes = 2ull << 30;
    char *a, *b;
    cudaEvent_t begin, end;
    float ms;
    MUST(cudaMalloc(&a, bytes));
    MUST(cudaMalloc(&b, bytes));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaMemcpy(b, a, bytes, cudaMemcpyDeviceToDevice));
    MUST(cudaEventRecord(begin));
    for (int i = 0; i < 5; i++)
        MUST(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice));
    MUST(cudaEventRecord(end));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventElapsedTime(&ms, begin, end));
    printf("copy: %.0f GB/s read and written\n", 10.0 * (double)bytes / ms / 1e6);
    MUST(cudaFree(a));
    MUST(cudaFree(b));
}

/* ---- a model --------------------------------------------------------------------------------- */

#define N_LAYERS 24
#define N_EXPERTS 512
#define N_CHOSEN 10
#define WIDTH 2048
#define INNER 512

struct model {
    struct matrix in, out, router, shared_gate, gate, down, head;
    struct rows rows, wide, inner;
    float *y, *hidden;
};

/* Experts of eight layers, so that they are not in the cache. */
static struct model make_model(const struct kernels &reference, size_t n)
{
    struct model m;
    m.in = make_matrix("affine4-g64", 12288, WIDTH, N_LAYERS);
    m.out = make_matrix("affine4-g64", WIDTH, 4096, N_LAYERS);
    m.router = make_matrix("bf16", N_EXPERTS, WIDTH, N_LAYERS);
    m.gate = make_matrix("affine4-g64", INNER, WIDTH, 16 * N_EXPERTS);
    m.down = make_matrix("affine4-g64", WIDTH, INNER, 8 * N_EXPERTS);
    m.head = make_matrix("affine4-g64", 151936, WIDTH, 1);
    m.rows = make_rows(reference, n, WIDTH, 64);
    m.wide = make_rows(reference, n, 4096, 64);
    m.inner = make_rows(reference, n * (N_CHOSEN + 1), INNER, 64);
    MUST(cudaMalloc(&m.y, (n < 2048 ? 1ul << 26 : 1ul << 30)));
    m.hidden = m.y;
    return m;
}

static struct gpu_product product(const struct matrix &w, size_t copy, const struct rows &in,
                                  size_t n, float *y)
{
    struct gpu_product p = {};
    p.w = copy_of(w, copy);
    p.in = in.gpu;
    p.n = (uint32_t)n;
    p.y = y;
    return p;
}

/* The products of a token. The experts are found on the GPU. */
static std::vector<struct launch> token_launches(const struct model &m)
{
    std::vector<struct launch> launches;
    std::vector<uint64_t> gates, downs;
    std::vector<uint32_t> ids(N_LAYERS * (N_CHOSEN + 1));
    for (const uint8_t *at : m.gate.copies)
        gates.push_back((uint64_t)(uintptr_t)at);
    for (const uint8_t *at : m.down.copies)
        downs.push_back((uint64_t)(uintptr_t)at);
    for (uint32_t &id : ids)
        id = random_word() % N_EXPERTS;
    const uint64_t *gate_bases = to_gpu(gates.data(), gates.size());
    const uint64_t *down_bases = to_gpu(downs.data(), downs.size());
    const uint32_t *id = to_gpu(ids.data(), ids.size());
    for (size_t l = 0; l < N_LAYERS; l++) {
        struct launch in = {}, out = {}, router = {}, up = {}, down = {};
        add(in, product(m.in, l, m.rows, 1, m.y));
        add(out, product(m.out, l, m.wide, 1, m.y));
        add(router, product(m.router, l, m.rows, 1, m.y));
        for (size_t i = 0; i <= N_CHOSEN; i++) {
            struct gpu_product p = product(m.gate, 0, m.rows, 1, m.y);
            for (size_t part = 0; part < 3; part++)
                p.w.parts[part] = (const uint8_t *)(uintptr_t)m.gate.part_at[part];
            p.id = id + l * (N_CHOSEN + 1) + i;
            p.bases = gate_bases + l % 8 * 2 * N_EXPERTS;
            add(up, p);
            p.bases += N_EXPERTS;
            add(up, p);
            p.w = copy_of(m.down, 0);
            for (size_t part = 0; part < 3; part++)
                p.w.parts[part] = (const uint8_t *)(uintptr_t)m.down.part_at[part];
            p.bases = down_bases + l % 8 * N_EXPERTS;
            p.in = m.inner.gpu;
            add(down, p);
        }
        for (struct launch *launch : {&in, &out, &router, &up, &down}) {
            send(*launch);
            launches.push_back(*launch);
        }
    }
    struct launch head = {};
    add(head, product(m.head, 0, m.rows, 1, m.y));
    send(head);
    launches.push_back(head);
    return launches;
}

static void bench_token(const struct kernels &reference, const char *word)
{
    if (word != NULL && strstr("token", word) == NULL)
        return;
    struct model m = make_model(reference, 1);
    const std::vector<struct launch> launches = token_launches(m);
    const double us = time_all(launches);
    printf("token: %zu launches, %.1f us = %.0f tok/s\n", launches.size(), us, 1e6 / us);
    const char *const names[] = {"in", "out", "router", "gate and up", "down"};
    for (size_t part = 0; part < 5; part++) {
        std::vector<struct launch> some;
        for (size_t l = 0; l < N_LAYERS; l++)
            some.push_back(launches[5 * l + part]);
        printf("  %s: %.1f us in all layers\n", names[part], time_all(some));
    }
    printf("  head: %.1f us\n", time_all({launches.back()}));
    for (const struct matrix *w : {&m.in, &m.out, &m.router, &m.gate, &m.down, &m.head})
        MUST(cudaFree(w->pool));
}

/* The products of n tokens, of which each expert gets its share: products of one layer with the
 * weights of all eight layers that there are, in turns. */
static void bench_prompt(const struct kernels &reference, const char *word, size_t n)
{
    if (word != NULL && strstr("prompt", word) == NULL)
        return;
    struct model m = make_model(reference, n);
    std::vector<uint32_t> pick(N_EXPERTS * N_CHOSEN * n / N_EXPERTS);
    for (uint32_t &row : pick)
        row = random_word() % (uint32_t)n;
    const uint32_t *gpu_pick = to_gpu(pick.data(), pick.size());
    const char *const names[] = {"in", "out", "router", "gate and up", "down"};
    const size_t n_some = 8;
    double all = 0;
    for (size_t part = 0; part < 5; part++) {
        std::vector<struct launch> launches(n_some);
        for (size_t l = 0; l < n_some; l++) {
            struct launch &launch = launches[l];
            if (part == 0)
                add(launch, product(m.in, l, m.rows, n, m.y));
            if (part == 1)
                add(launch, product(m.out, l, m.wide, n, m.y));
            if (part == 2)
                add(launch, product(m.router, l, m.rows, n, m.y));
            /* Shares differ: from 3 / 8 to 13 / 8 of the mean. */
            for (size_t e = 0, at = 0; part > 2 && e < N_EXPERTS && at < pick.size(); e++) {
                const size_t mean = n * N_CHOSEN / N_EXPERTS;
                size_t share = mean * (3 + e % 11) / 8;
                share = share < pick.size() - at ? share : pick.size() - at;
                for (size_t k = 0; k < (part == 3 ? 2 : 1); k++) {
                    const struct matrix &w = part == 3 ? m.gate : m.down;
                    struct gpu_product p =
                        product(w, (l * (part == 3 ? 2 : 1) + k) * N_EXPERTS + e,
                                part == 3 ? m.rows : m.inner, share, m.y + at * w.host.n_rows);
                    p.pick = part == 3 ? gpu_pick + at : NULL;
                    add(launch, p);
                }
                at += share;
            }
            send(launch);
        }
        const double us = time_all(launches) / (double)n_some * N_LAYERS;
        all += us;
        printf("  prompt of %zu, %s: %.0f us in all layers\n", n, names[part], us);
        fflush(stdout);
    }
    printf("prompt of %zu: %.1f ms = %.0f tok/s, %.4f ms a token\n", n, all / 1000,
           (double)n / all * 1e6, all / 1000 / (double)n);
}

int main(int argc, char **argv)
{
    static const struct line lines[] = {
        {"affine4-g64", 151936, 2048, 1, 1}, {"affine4-g64", 12288, 2048, 1, 1},
        {"affine4-g64", 2048, 4096, 1, 1},   {"affine4-g64", 512, 2048, 22, 1},
        {"affine4-g64", 2048, 512, 11, 1},   {"affine4-g64", 12288, 2048, 1, 4},
        {"affine4-g64", 12288, 2048, 1, 8},  {"affine4-g64", 512, 2048, 22, 8},
        {"bf16", 512, 2048, 1, 1},           {"f32", 512, 2048, 1, 1},
        {"affine8-g64", 12288, 2048, 1, 1},  {"affine8-g64", 512, 2048, 22, 1},
        {"affine4-g32", 12288, 2048, 1, 1},  {"affine4-g128", 12288, 2048, 1, 1},
        {"q4_0", 12288, 2048, 1, 1},         {"q8_0", 12288, 2048, 1, 1},
        {"q4_k", 12288, 2048, 1, 1},         {"q5_k", 12288, 2048, 1, 1},
        {"q6_k", 12288, 2048, 1, 1},         {"mxfp4", 12288, 2048, 1, 1},
        {"affine4-g64", 12288, 2048, 1, 2048}, {"affine4-g64", 512, 2048, 64, 40},
        {"affine4-g64", 2048, 512, 32, 40},  {"affine4-g64", 512, 2048, 64, 9},
        {"bf16", 512, 2048, 1, 2048},        {"affine8-g64", 12288, 2048, 1, 512},
        {"q4_0", 12288, 2048, 1, 512},       {"q8_0", 12288, 2048, 1, 512},
        {"q4_k", 12288, 2048, 1, 512},       {"q5_k", 12288, 2048, 1, 512},
        {"q6_k", 12288, 2048, 1, 512},       {"mxfp4", 12288, 2048, 1, 512},
    };
    const char *word = argc > 1 ? argv[1] : NULL;
    struct kernels reference;
    k_ref_init(&reference);
    measure_copy();
    for (const struct line &line : lines)
        bench(reference, line, word);
    bench_token(reference, word);
    bench_prompt(reference, word, 2048);
    return 0;
}
