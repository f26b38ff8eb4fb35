/* Several streams of the residual, and tables of n-grams. Sums and products here are written out,
 * and what needs exponentials uses kernels, so every level has the same bits. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backend_cpu_internal.h"
#include "base/fmath.h"

/* Columns that one work item has. */
#define COLUMNS 256

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t n_pieces(size_t dim)
{
    return (dim + COLUMNS - 1) / COLUMNS;
}

/* ---- streams --------------------------------------------------------------------------------- */

struct norm_job {
    struct backend_cpu *cpu;
    const struct backend_stream_norm *args;
    size_t n;
};

static void norm_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct norm_job *job = ctx;
    const struct backend_stream_norm *a = job->args;
    size_t begin, end;
    pool_range(job->n * a->n_streams, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++)
        job->cpu->kernels.rms_norm(a->x + i * a->dim, a->weight + i % a->n_streams * a->dim,
                                   a->eps, a->dim, a->y + i * a->dim);
}

static void stream_norm(struct backend *be, const struct backend_stream_norm *args, size_t n)
{
    struct norm_job job = {cpu_of(be), args, n};
    cpu_run(job.cpu, norm_part, &job, n * args->n_streams * args->dim);
}

struct mean_job {
    struct backend_cpu *cpu;
    const struct backend_stream_mean *args;
    size_t n;
};

/* Columns [begin, end) of row t. */
static void mean_columns(const struct mean_job *job, size_t t, size_t begin, size_t end)
{
    const struct backend_stream_mean *a = job->args;
    const struct kernels *kernels = &job->cpu->kernels;
    const size_t n = end - begin;
    float *out = a->out + t * a->dim + begin, term[COLUMNS];
    for (unsigned s = 0; s < a->n_streams; s++) {
        const size_t at = (t * a->n_streams + s) * a->dim + begin;
        memcpy(term, a->x + at, n * sizeof *term);
        kernels->attend_close(term, 1.0f, a->gate + at, n);
        if (s == 0)
            memcpy(out, term, n * sizeof *out);
        else
            kernels->add(out, term, n);
    }
    for (size_t i = 0; i < n; i++)
        out[i] /= (float)a->n_streams;
}

static void mean_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct mean_job *job = ctx;
    const size_t dim = job->args->dim, pieces = n_pieces(dim);
    size_t begin, end;
    pool_range(job->n * pieces, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const size_t first = i % pieces * COLUMNS;
        mean_columns(job, i / pieces, first, smaller(first + COLUMNS, dim));
    }
}

static void stream_mean(struct backend *be, const struct backend_stream_mean *args, size_t n)
{
    struct mean_job job = {cpu_of(be), args, n};
    cpu_run(job.cpu, mean_part, &job, 8 * n * args->n_streams * args->dim);
}

struct add_job {
    struct backend_cpu *cpu;
    const struct backend_stream_add *args;
    size_t n;
};

static void add_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct add_job *job = ctx;
    const struct backend_stream_add *a = job->args;
    const size_t pieces = n_pieces(a->dim);
    size_t begin, end;
    pool_range(job->n * pieces, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const size_t t = i / pieces, first = i % pieces * COLUMNS;
        const size_t n = smaller(first + COLUMNS, a->dim) - first;
        float twice[COLUMNS];
        for (size_t j = 0; j < n; j++)
            twice[j] = 2.0f * a->y[t * a->dim + first + j];
        for (unsigned s = 0; s < a->n_streams; s++)
            job->cpu->kernels.add_scaled_sigmoid(
                a->x + (t * a->n_streams + s) * a->dim + first, twice,
                a->gate[t * a->n_streams + s] / (float)a->n_streams, n);
    }
}

static void stream_add(struct backend *be, const struct backend_stream_add *args, size_t n)
{
    struct add_job job = {cpu_of(be), args, n};
    cpu_run(job.cpu, add_part, &job, n * args->n_streams * args->dim);
}

/* x = silu(x) */
static void silu(const struct kernels *kernels, float *x, size_t n)
{
    float ones[COLUMNS];
    for (size_t i = 0; i < COLUMNS; i++)
        ones[i] = 1.0f;
    for (size_t i = 0; i < n; i += COLUMNS)
        kernels->silu_mul(x + i, ones, smaller(n - i, COLUMNS));
}

static void stream_silu(struct backend *be, float *x, float divisor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] /= divisor;
    silu(&cpu_of(be)->kernels, x, n);
}

/* ---- n-grams --------------------------------------------------------------------------------- */

struct gate_job {
    const struct backend_ngram_gate *args;
    size_t n;
};

static float gate_of(const struct backend_ngram_gate *a, size_t at)
{
    const float product = cpu_dot(a->key + at, a->query + at, a->dim) / sqrtf((float)a->dim);
    const float size = fabsf(product);
    const float root = sqrtf(size < 1e-6f ? 1e-6f : size);
    return product == 0 ? 0.0f : copysignf(root, product);
}

static void gate_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct gate_job *job = ctx;
    const struct backend_ngram_gate *a = job->args;
    size_t begin, end;
    pool_range(job->n * a->n_streams, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const float share = 1.0f / (1.0f + fmath_exp_of(-gate_of(a, i * a->dim)));
        const float *value = a->value + i / a->n_streams * a->dim;
        for (size_t j = 0; j < a->dim; j++)
            a->out[i * a->dim + j] = share * value[j];
    }
}

static void ngram_gate(struct backend *be, const struct backend_ngram_gate *args, size_t n)
{
    struct gate_job job = {args, n};
    cpu_run(cpu_of(be), gate_part, &job, n * args->n_streams * args->dim);
}

struct conv_job {
    struct backend_cpu *cpu;
    const struct backend_ngram_conv *args;
};

/* Rows that are kept of a sequence. */
static size_t n_kept(const struct backend_ngram_conv *a)
{
    return (a->kernel - 1ul) * a->distance;
}

/* Row t of the segment, or a kept one if t is negative, from channel `begin` on. */
static const float *conv_row(const struct backend_ngram_conv *a,
                             const struct backend_segment *segment, int64_t t, size_t begin)
{
    const float *kept = segment->state[NGRAM_CONV];
    return (t < 0 ? kept + ((size_t)((int64_t)n_kept(a) + t)) * a->channels
                  : a->normed + (segment->first_row + (size_t)t) * a->channels) + begin;
}

static void conv_channels(const struct conv_job *job, const struct backend_segment *segment,
                          size_t t, size_t begin, size_t n)
{
    const struct backend_ngram_conv *a = job->args;
    const size_t at = (segment->first_row + t) * a->channels + begin;
    float sum[COLUMNS];
    for (unsigned k = 0; k < a->kernel; k++) {
        const int64_t from = (int64_t)t - (int64_t)(a->kernel - 1 - k) * a->distance;
        const float *x = conv_row(a, segment, from, begin);
        const float *w = a->weight + k * (size_t)a->channels + begin;
        for (size_t i = 0; i < n; i++)
            sum[i] = k == 0 ? w[i] * x[i] : sum[i] + w[i] * x[i];
    }
    silu(&job->cpu->kernels, sum, n);
    for (size_t i = 0; i < n; i++)
        a->x[at + i] += a->gated[at + i] + sum[i];
}

/* Makes the last rows those that are kept. */
static void keep_channels(const struct backend_ngram_conv *a, const struct backend_segment *segment,
                          size_t begin, size_t n)
{
    float *kept = segment->state[NGRAM_CONV];
    for (size_t i = 0; i < n_kept(a); i++) {
        const int64_t from = (int64_t)segment->n_rows - (int64_t)n_kept(a) + (int64_t)i;
        memmove(kept + i * a->channels + begin, conv_row(a, segment, from, begin),
                n * sizeof *kept);
    }
}

static void conv_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct conv_job *job = ctx;
    const struct backend_ngram_conv *a = job->args;
    const size_t pieces = n_pieces(a->channels);
    size_t first, last;
    pool_range(a->n_segments * pieces, part, n_parts, &first, &last);
    for (size_t i = first; i < last; i++) {
        const struct backend_segment *segment = &a->segments[i / pieces];
        const size_t begin = i % pieces * COLUMNS;
        const size_t n = smaller(begin + COLUMNS, a->channels) - begin;
        for (size_t t = 0; t < segment->n_rows; t++)
            conv_channels(job, segment, t, begin, n);
        keep_channels(a, segment, begin, n);
    }
}

static void ngram_conv(struct backend *be, const struct backend_ngram_conv *args)
{
    struct conv_job job = {cpu_of(be), args};
    size_t n_rows = 0;
    for (size_t s = 0; s < args->n_segments; s++)
        n_rows += args->segments[s].n_rows;
    cpu_run(job.cpu, conv_part, &job, n_rows * args->channels * (args->kernel + 8ul));
}

const struct backend_stream_ops cpu_stream_ops = {
    .norm = stream_norm,
    .mean = stream_mean,
    .add = stream_add,
    .silu = stream_silu,
    .ngram_gate = ngram_gate,
    .ngram_conv = ngram_conv,
    .index_means = cpu_index_means,
    .index_choose = cpu_index_choose,
};
