/* Measures the speed of each level on one thread, next to the limit of the machine's
 * instructions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "quant/interleave.h"

#define N_COLS 2048
#define LONG_TOKENS 512
#define CACHED_BYTES (512u << 10)
#define PANEL_ROWS 256

/* ---- time ------------------------------------------------------------------------------------ */

struct job {
    void (*run)(struct job *job);
    const struct kernels *k;
    struct kernel_matmul matmul;
    struct kernel_attention attention;
    struct backend_delta_net net;
    struct backend_segment segment;
    float *floats[6];
    size_t n;
};

/* Returns the shortest of several runs. */
static double seconds_of(struct job *job)
{
    double best = 1e30, total = 0;
    for (unsigned i = 0; (i < 3 || total < 0.1) && total < 1; i++) {
        const double begin = seconds_now();
        job->run(job);
        const double now = seconds_now() - begin;
        total += now;
        best = now < best ? now : best;
    }
    return best;
}

static void *allocate(size_t bytes)
{
    void *at = aligned_alloc(64, (bytes + 4095) / 64 * 64);
    if (at == NULL) {
        fprintf(stderr, "checkkernel: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return at;
}

static float *random_floats(size_t n)
{
    struct rng rng = {n};
    float *x = allocate(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(&rng, ORDINARY);
    return x;
}

static void print_rate(double rate, double limit)
{
    char share[16] = "-";
    if (limit > 0)
        snprintf(share, sizeof share, "%.0f%%", 100 * rate / limit);
    printf(" %9.2f %5s", rate * 1e-9, share);
}

/* ---- matmul ---------------------------------------------------------------------------------- */

/* What all rows of the table share. */
struct machine {
    char *memory; /* [bytes] */
    size_t bytes; /* far more than the caches hold */
    double read, read_cached, int8, flt;
    float *x, *y, *scratch, *scale, *offset;
    int8_t *q;
    int32_t *sum;
};

static void machine_open(struct machine *m)
{
    long cache = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    m->bytes = cache > 0 ? 2 * (size_t)cache : 0;
    m->bytes = m->bytes < 256u << 20 ? 256u << 20 : m->bytes > 1u << 30 ? 1u << 30 : m->bytes;
    m->memory = allocate(m->bytes);
    memset(m->memory, 1, m->bytes);
    m->x = random_floats((size_t)LONG_TOKENS * N_COLS);
    m->q = allocate((size_t)LONG_TOKENS * N_COLS);
    m->scale = random_floats((size_t)LONG_TOKENS * N_COLS / KERNEL_SMALLEST_GROUP);
    m->offset = random_floats((size_t)LONG_TOKENS * N_COLS / KERNEL_SMALLEST_GROUP);
    m->sum = allocate((size_t)LONG_TOKENS * N_COLS / KERNEL_SMALLEST_GROUP * sizeof *m->sum);
    m->scratch = allocate(KERNEL_MATMUL_SCRATCH(N_COLS, LONG_TOKENS) * sizeof(float));
    m->y = allocate((m->bytes / N_COLS * 8 + LONG_TOKENS * PANEL_ROWS) * sizeof(float));
}

static void machine_close(struct machine *m)
{
    void *const all[] = {m->memory, m->x, m->q, m->scale, m->offset, m->sum, m->scratch, m->y};
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* Reorders the rows as the engine does. */
static void interleave(struct weight *w)
{
    void *parts[QUANT_MAX_PARTS];
    for (unsigned p = 0; p < w->quant->n_parts; p++)
        parts[p] = (void *)(uintptr_t)w->parts[p];
    interleave_blocks(w->quant, w->n_cols, parts, 0, w->n_rows / INTERLEAVE_ROWS);
    w->is_interleaved = true;
}

/* Makes as many rows as the memory holds, with one part after the other. Blocks repeat. */
static void make_weight(const struct machine *m, const struct kernels *k,
                        const struct quant *format, struct weight *w)
{
    struct pool pool;
    struct rng rng = {1};
    pool_init(&pool, format, 1);
    size_t n_rows = m->bytes / quant_row_bytes(format, N_COLS) / 256 * 256;
    *w = (struct weight){.quant = format, .n_rows = (uint32_t)n_rows, .n_cols = N_COLS};
    char *at = m->memory;
    for (unsigned p = 0; p < format->n_parts; p++) {
        const size_t bytes = quant_part_bytes(format, p, n_rows, N_COLS);
        const size_t block = format->part_block_bytes[p], first = 4096 * block;
        pool_fill(&pool, BLOCKS_ORDINARY, p, &rng, at,
                  (bytes < first ? bytes : first) / block);
        for (size_t i = first; i < bytes; i += first)
            memcpy(at + i, at, bytes - i < first ? bytes - i : first);
        w->parts[p] = at;
        at += (bytes + 63) / 64 * 64;
    }
    pool_clear(&pool);
    if (interleave_suits(format, n_rows, N_COLS) ||
        (k->takes_blocks && interleave_suits_memory(format, n_rows, N_COLS)))
        interleave(w);
}

static void run_matmul(struct job *job)
{
    job->k->matmul(&job->matmul);
}

/* Returns the product of n tokens with the first rows. */
static struct kernel_matmul matmul_of(const struct machine *m, const struct kernels *k,
                                      const struct weight *w, size_t n_rows, size_t n)
{
    const struct quant *format = w->quant;
    struct kernel_matmul matmul = {.w = w, .end = n_rows, .n = n, .y = m->y, .y_stride = n_rows,
                                   .scratch = m->scratch};
    if (format->codes == QUANT_NO_CODES) {
        matmul.in.x = m->x;
        return matmul;
    }
    const size_t n_groups = N_COLS / format->group;
    for (size_t t = 0; t < n; t++)
        k->quantize_row(m->x + t * N_COLS, N_COLS, format->group, m->q + t * N_COLS,
                        m->scale + t * n_groups, m->offset + t * n_groups, m->sum + t * n_groups);
    matmul.in = (struct kernel_input){.q = m->q, .scale = m->scale, .offset = m->offset,
                                      .sum = m->sum};
    return matmul;
}

static double matmul_seconds(const struct machine *m, const struct kernels *k,
                             const struct weight *w, size_t n_rows, size_t n)
{
    struct job job = {.run = run_matmul, .k = k, .matmul = matmul_of(m, k, w, n_rows, n)};
    return seconds_of(&job);
}

/* Tries often, because a busy machine rarely reaches the limit. */
static void bench_format(struct machine *m, const struct kernels *k, const struct weight *w)
{
    static const size_t tokens[] = {10, 64, LONG_TOKENS}; /* of an expert in a prompt, more, all */
    const double read = peak_read(k->name, m->memory, m->bytes);
    m->read = read > m->read ? read : m->read;
    const struct quant *format = w->quant;
    const size_t row_bytes = quant_row_bytes(format, N_COLS);
    const size_t few = CACHED_BYTES / row_bytes / 16 * 16;
    const double peak = format->codes == QUANT_NO_CODES ? m->flt : m->int8;
    printf("%-10s %-16s", k->name, format->name);
    print_rate((double)(w->n_rows * row_bytes) / matmul_seconds(m, k, w, w->n_rows, 1), m->read);
    print_rate((double)(few * row_bytes) / matmul_seconds(m, k, w, few, 1), m->read_cached);
    for (unsigned i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        print_rate(2.0 * PANEL_ROWS * N_COLS * (double)tokens[i] /
                       matmul_seconds(m, k, w, PANEL_ROWS, tokens[i]), peak);
    printf("\n");
    fflush(stdout);
}

/* ---- rows: weights from memory with a few tokens, as of several users ------------------------ */

/* Multiplies the whole matrix, one piece after the other as a thread takes them. */
static void run_pieces(struct job *job)
{
    const size_t n_rows = job->matmul.w->n_rows;
    for (size_t r = 0; r < n_rows; r += PANEL_ROWS) {
        struct kernel_matmul m = job->matmul;
        m.begin = m.y_first = r;
        m.end = r + PANEL_ROWS;
        m.next = m.w;
        m.next_row = m.end % n_rows;
        m.has_same_inputs = r > 0;
        job->k->matmul(&m);
    }
}

static void bench_rows(struct machine *m, const struct kernels *k, const struct weight *w)
{
    static const size_t tokens[] = {1, 2, 4, 5, 6, 8, 9, 10, 12, 16, 24, 32, 64};
    const double bytes = (double)w->n_rows * (double)quant_row_bytes(w->quant, N_COLS);
    for (unsigned i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        const size_t n = tokens[i];
        struct job job = {.run = run_pieces, .k = k,
                          .matmul = matmul_of(m, k, w, PANEL_ROWS, n)};
        const double seconds = seconds_of(&job);
        printf("%-10s %-16s %3zu tokens", k->name, w->quant->name, n);
        print_rate(bytes / seconds, m->read);
        print_rate(2.0 * w->n_rows * N_COLS * (double)n / seconds, m->int8);
        printf("\n");
        fflush(stdout);
    }
}

/* By default: the formats that models are stored in, with one group size per affine width. */
static bool is_format_chosen(const struct bench_options *o, const struct quant *format)
{
    static const char *const usual[] = {
        "affine2-g64", "affine3-g64", "affine4-g32", "affine4-g64", "affine5-g64", "affine6-g64",
        "affine8-g64", "bf16", "f16", "f32", "fp8-b128-f32", "int4-g32", "iq2_xxs", "iq3_s",
        "iq4_nl", "iq4_xs", "mxfp4", "mxfp4-g32", "q2_k", "q3_k", "q4_0", "q4_k", "q5_k",
        "q6_k", "q8_0"};
    if (o->format != NULL)
        return strcmp(o->format, "all") == 0 || strcmp(o->format, format->name) == 0;
    for (unsigned i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (strcmp(usual[i], format->name) == 0)
            return true;
    return false;
}

/* ---- attention and the delta rule ------------------------------------------------------------ */

enum { HEADS = 8, DIM = 128, ROWS = KERNEL_DELTA_ROWS };

static void run_attention(struct job *job)
{
    for (unsigned i = 0; i < 16; i++)
        job->k->attend(&job->attention);
}

static void bench_attention(const struct kernels *k, const struct kv_format *format,
                            double peak)
{
    const size_t n = KERNEL_ATTENTION_BLOCK * DIM;
    float *x = random_floats(n), *q = random_floats(HEADS * DIM);
    char *kv = allocate(n * sizeof(float));
    for (size_t i = 0; i < KERNEL_ATTENTION_BLOCK; i++)
        kv_store(format, KV_VALUE, x + i * DIM, DIM, kv + i * kv_row_bytes(format, DIM));
    float *results = allocate((2 * HEADS + HEADS * DIM + KERNEL_ATTENTION_SCRATCH(HEADS, DIM)) *
                              sizeof *results);
    struct job job = {.run = run_attention, .k = k};
    job.attention = (struct kernel_attention){
        .kv_format = format, .q = q, .q_stride = DIM, .n_heads = HEADS, .head_dim = DIM,
        .value_dim = DIM,
        .keys = kv, .values = kv, .n_positions = KERNEL_ATTENTION_BLOCK, .scale = 0.088f,
        .max = results, .total = results + HEADS, .out = results + 2 * HEADS,
        .scratch = results + 2 * HEADS + HEADS * DIM};
    const double ops = 16 * 4.0 * HEADS * (double)n;
    printf("%-10s attend %-4s, %d heads of %d, 256 positions    ", k->name, format->name, HEADS,
           DIM);
    print_rate(ops / seconds_of(&job), peak);
    printf("\n");
    free(x), free(q), free(kv), free(results);
}

static void run_delta(struct job *job)
{
    for (unsigned h = 0; h < HEADS; h++)
        job->k->delta_head(&job->net, &job->segment, h, job->floats[0]);
}

static void bench_delta(const struct kernels *k, double peak)
{
    struct job job = {.run = run_delta, .k = k};
    float *mixed = random_floats((size_t)ROWS * 3 * HEADS * DIM);
    float *z = random_floats((size_t)ROWS * HEADS * DIM), *ab = random_floats(ROWS * HEADS);
    float *one = random_floats(DIM), *state = random_floats((size_t)HEADS * DIM * DIM);
    float *results = allocate((size_t)ROWS * HEADS * DIM * sizeof *results);
    job.floats[0] = allocate(KERNEL_DELTA_SCRATCH(DIM) * sizeof(float));
    job.segment = (struct backend_segment){.n_rows = ROWS, .state = {[DELTA_NET_STATE] = state}};
    job.net = (struct backend_delta_net){
        .n_key_heads = HEADS, .n_value_heads = HEADS, .key_dim = DIM, .value_dim = DIM,
        .z = z, .b = ab, .a = ab, .decay = one, .dt_bias = one, .norm = one, .eps = 1e-6f,
        .mixed = mixed, .out = results};
    for (unsigned h = 0; h < HEADS; h++)
        one[h] = -0.5f;
    const double ops = 7.0 * HEADS * DIM * DIM * ROWS;
    printf("%-10s delta_head, %d heads of %d x %d, %d rows %*s", k->name, HEADS, DIM, DIM, ROWS, 7,
           "");
    print_rate(ops / seconds_of(&job), peak);
    printf("\n");
    free(mixed), free(z), free(ab), free(one), free(state), free(results), free(job.floats[0]);
}

/* ---- the rest: elements per second ----------------------------------------------------------- */

#define REPEAT(...)                                                                                \
    for (unsigned repeat = 0; repeat < 64; repeat++)                                               \
        __VA_ARGS__

static void run_quantize(struct job *j)
{
    REPEAT(j->k->quantize_row(j->floats[0], j->n, 64, (int8_t *)j->floats[1], j->floats[2],
                              j->floats[3], (int32_t *)(void *)j->floats[4]);)
}

static void run_rms_norm(struct job *j)
{
    REPEAT(j->k->rms_norm(j->floats[0], j->floats[1], 1e-6f, j->n, j->floats[2]);)
}

/* Uses fresh values every time: repeated on its own results, they would vanish. */
static void run_silu_mul(struct job *j)
{
    REPEAT({
        memcpy(j->floats[0], j->floats[5], j->n * sizeof(float));
        j->k->silu_mul(j->floats[0], j->floats[1], j->n);
    })
}

static void run_store_kv(struct job *j)
{
    REPEAT(j->k->store_kv(&kv_f16, KV_KEY, j->floats[0], j->n, j->floats[1]);)
}

static void run_route(struct job *j)
{
    REPEAT(j->k->route_row(j->floats[0], (unsigned)j->n, 10, false,
                           (uint32_t *)(void *)j->floats[1], j->floats[2]);)
}

static void run_weighted_sum(struct job *j)
{
    REPEAT(j->k->weighted_sum(j->floats[0], j->floats[1], 8, j->n / 8, j->floats[2]);)
}

static void run_add(struct job *j)
{
    REPEAT(j->k->add(j->floats[2], j->floats[1], j->n);)
}

static void bench_rest(const struct kernels *k)
{
    static const struct {
        const char *name;
        void (*run)(struct job *j);
        size_t n;
    } all[] = {{"quantize_row, groups of 64", run_quantize, 2048},
               {"rms_norm", run_rms_norm, 2048},
               {"silu_mul", run_silu_mul, 2048},
               {"store_kv f16", run_store_kv, 2048},
               {"route_row, 10 of 512", run_route, 512},
               {"weighted_sum of 8", run_weighted_sum, 16384},
               {"add", run_add, 2048}};
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct job job = {.k = k, .run = all[i].run, .n = all[i].n};
        for (unsigned f = 0; f < 6; f++)
            job.floats[f] = random_floats(16384);
        printf("%-10s %-28s n %5zu %8.3f elements/ns\n", k->name, all[i].name, all[i].n,
               64e-9 * (double)all[i].n / seconds_of(&job));
        for (unsigned f = 0; f < 6; f++)
            free(job.floats[f]);
    }
}

/* ---- the tables ------------------------------------------------------------------------------ */

static void bench_level(const struct bench_options *o, const struct level *level,
                        struct machine *m)
{
    struct kernels k;
    level_kernels(level, &k);
    m->read = peak_read(level->name, m->memory, m->bytes);
    m->read_cached = peak_read(level->name, m->memory, CACHED_BYTES);
    m->int8 = peak_int8(level->name);
    m->flt = peak_float(level->name);
    printf("\n%s: one thread reads %.1f GB/s, from the cache %.1f; int8 %.1f Gop/s, float %.1f\n",
           level->name, m->read * 1e-9, m->read_cached * 1e-9, m->int8 * 1e-9, m->flt * 1e-9);
    if (o->kernel == NULL || strcmp(o->kernel, "matmul") == 0) {
        printf("%-10s %-16s %15s %15s %15s %15s %15s\n", "level", "format", "matvec GB/s",
               "cached GB/s", "n=10 Gop/s", "n=64 Gop/s", "n=512 Gop/s");
        for (unsigned i = 0; quant_at(i) != NULL; i++) {
            struct weight w;
            if (!is_format_chosen(o, quant_at(i)))
                continue;
            make_weight(m, &k, quant_at(i), &w);
            bench_format(m, &k, &w);
        }
    }
    if (o->kernel != NULL && strcmp(o->kernel, "rows") == 0) {
        printf("%-10s %-27s %15s %15s\n", "level", "format", "weights GB/s", "Gop/s");
        for (unsigned i = 0; quant_at(i) != NULL; i++) {
            struct weight w;
            if (!is_format_chosen(o, quant_at(i)) || quant_at(i)->codes == QUANT_NO_CODES)
                continue;
            make_weight(m, &k, quant_at(i), &w);
            m->read = peak_read(level->name, m->memory, m->bytes);
            bench_rows(m, &k, &w);
        }
    }
    if (o->kernel == NULL || strcmp(o->kernel, "attend") == 0) {
        for (unsigned f = 0; kv_at(f) != NULL; f++)
            bench_attention(&k, kv_at(f), m->flt);
    }
    if (o->kernel == NULL || strcmp(o->kernel, "delta_head") == 0)
        bench_delta(&k, m->flt);
    if (o->kernel == NULL)
        bench_rest(&k);
}

int bench_run(const struct bench_options *o)
{
    struct machine m = {0};
    machine_open(&m);
    printf("weights of %zu MiB and of %u KiB, %d columns; percent of the limits measured here\n",
           m.bytes >> 20, CACHED_BYTES >> 10, N_COLS);
    for (unsigned i = 0; level_at(i) != NULL; i++) {
        const struct level *level;
        if ((o->level == NULL || strcmp(o->level, level_at(i)->name) == 0) &&
            level_use(level_at(i)->name, &level, NULL) == 0)
            bench_level(o, level, &m);
    }
    machine_close(&m);
    return 0;
}
