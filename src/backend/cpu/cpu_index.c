/* Sparse attention: keys of blocks of positions, and the choice of the blocks that a row attends
 * to. */
#include <assert.h>
#include <string.h>

#include "backend/cpu/backend_cpu_internal.h"

float cpu_dot(const float *a, const float *b, size_t n)
{
    float lanes[16] = {0};
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; j++)
            lanes[j] += a[i + j] * b[i + j];
    for (size_t j = 0; i < n; i++, j++)
        lanes[j] += a[i] * b[i];
    for (size_t step = 8; step > 0; step /= 2)
        for (size_t j = 0; j < step; j++)
            lanes[j] += lanes[j + step];
    return lanes[0];
}

struct index_job {
    struct backend_cpu *cpu;
    const struct backend_index *args;
    const struct backend_segment *segment;
};

/* The row that is kept of a position. */
static float *kept_row(const struct index_job *job, size_t position)
{
    const struct backend_index *a = job->args;
    const int64_t *shift = segment_shift(job->segment, INDEX_KEYS);
    char *first = job->segment->state[INDEX_KEYS];
    first += shift != NULL ? shift[position / a->block_positions] : 0;
    return (float *)(void *)(first + position / a->block_positions * a->block_bytes) +
           position % a->block_positions * a->dim;
}

/* Calls fn for every row, in parts. */
static void run_segments(struct backend *be, const struct backend_index *args, pool_fn *fn,
                         size_t work)
{
    struct index_job job = {.cpu = cpu_of(be), .args = args};
    for (size_t s = 0; s < args->n_segments; s++) {
        job.segment = &args->segments[s];
        const size_t n = job.segment->n_rows;
        cpu_run(job.cpu, fn, &job, n * work * (work > args->dim ? job.segment->position + n : 1));
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The key of a position: of this batch, or kept. Those of this batch may be written meanwhile. */
static const float *key_at(const struct index_job *job, size_t position)
{
    const struct backend_segment *segment = job->segment;
    if (position < segment->position)
        return kept_row(job, position);
    return job->args->key + (segment->first_row + position - segment->position) * job->args->dim;
}

static void means_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct index_job *job = ctx;
    const struct backend_index *a = job->args;
    const struct backend_segment *segment = job->segment;
    size_t begin, end;
    pool_range(segment->n_rows, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++) {
        const size_t position = segment->position + t;
        float *mean = a->mean + (segment->first_row + t) * a->dim;
        memcpy(kept_row(job, position), key_at(job, position), a->dim * sizeof *mean);
        memset(mean, 0, a->dim * sizeof *mean);
        if ((position + 1) % a->ratio != 0)
            continue;
        memcpy(mean, key_at(job, position + 1 - a->ratio), a->dim * sizeof *mean);
        for (unsigned i = 1; i < a->ratio; i++)
            for (unsigned d = 0; d < a->dim; d++)
                mean[d] += key_at(job, position + 1 - a->ratio + i)[d];
        for (unsigned d = 0; d < a->dim; d++)
            mean[d] /= (float)a->ratio;
    }
}

void cpu_index_means(struct backend *be, const struct backend_index *args)
{
    run_segments(be, args, means_part, args->dim);
}

/* The last position of a block gets the key of the block. */
static void keep_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct index_job *job = ctx;
    const struct backend_index *a = job->args;
    const struct backend_segment *segment = job->segment;
    size_t begin, end;
    pool_range(segment->n_rows, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        if ((segment->position + t + 1) % a->ratio == 0)
            memcpy(kept_row(job, segment->position + t),
                   a->mean + (segment->first_row + t) * a->dim, a->dim * sizeof *a->mean);
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* The best blocks so far, the worst of them first: a heap. */
struct best {
    float *scores;    /* [n] */
    uint32_t *blocks; /* [n] */
    uint32_t n;
};

/* Whether i is further from being chosen than j. */
static bool is_worse(const struct best *b, size_t i, size_t j)
{
    return b->scores[i] < b->scores[j] ||
           (b->scores[i] == b->scores[j] && b->blocks[i] > b->blocks[j]);
}

static void swap(struct best *b, size_t i, size_t j)
{
    const float score = b->scores[i];
    const uint32_t block = b->blocks[i];
    b->scores[i] = b->scores[j];
    b->blocks[i] = b->blocks[j];
    b->scores[j] = score;
    b->blocks[j] = block;
}

static void sink(struct best *b, size_t i, size_t n)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_worse(b, child + 1, child))
            child++;
        if (!is_worse(b, child, i))
            return;
        swap(b, i, child);
    }
}

/* Blocks come in ascending order, so a later one must be better, not equal. */
static void offer(struct best *b, uint32_t n_best, uint32_t block, float score)
{
    if (b->n < n_best) {
        b->scores[b->n] = score;
        b->blocks[b->n++] = block;
        for (size_t i = b->n / 2; b->n == n_best && i-- > 0;)
            sink(b, i, b->n);
    } else if (score > b->scores[0]) {
        b->scores[0] = score;
        b->blocks[0] = block;
        sink(b, 0, b->n);
    }
}

/* Sorts the blocks: with equal scores the worst is the last block, and goes to the end first. */
static void sort_blocks(struct best *b)
{
    memset(b->scores, 0, b->n * sizeof *b->scores);
    for (size_t i = b->n / 2; i-- > 0;)
        sink(b, i, b->n);
    for (size_t n = b->n; n-- > 1;) {
        swap(b, 0, n);
        sink(b, 0, n);
    }
}

static float score_block(const struct index_job *job, const float *q, size_t block)
{
    const struct backend_index *a = job->args;
    const float *key = kept_row(job, (block + 1) * a->ratio - 1);
    float sum = 0;
    for (unsigned h = 0; h < a->n_heads; h++) {
        const float product = cpu_dot(q + h * (size_t)a->dim, key, a->dim);
        sum += product > 0 ? product : 0;
    }
    return sum;
}

static void choose_row(const struct index_job *job, size_t t, float *scratch)
{
    const struct backend_index *a = job->args;
    const size_t row = job->segment->first_row + t;
    const size_t n_blocks = (job->segment->position + t + 1) / a->ratio;
    uint32_t *chosen = a->chosen + row * (1ul + a->n_best);
    chosen[0] = INDEX_ALL;
    if (n_blocks <= a->n_best)
        return;
    struct best best = {.scores = scratch, .blocks = chosen + 1};
    for (size_t b = 0; b < n_blocks; b++)
        offer(&best, a->n_best, (uint32_t)b, score_block(job, a->q + row * a->q_row_stride, b));
    sort_blocks(&best);
    chosen[0] = best.n;
}

static void choose_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct index_job *job = ctx;
    (void)n_parts;
    for (size_t t; (t = pool_take(job->cpu->pool)) < job->segment->n_rows;)
        choose_row(job, t, cpu_scratch(job->cpu, part));
}

void cpu_index_choose(struct backend *be, const struct backend_index *args)
{
    assert(args->n_best > 0 && args->n_best <= cpu_of(be)->limits.index_best);
    run_segments(be, args, keep_part, args->dim);
    run_segments(be, args, choose_part, (size_t)args->n_heads * args->dim + 1);
}
