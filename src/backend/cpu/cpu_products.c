/* Products of weights with the input's rows. Work is first cut into pieces of equal cost. A piece
 * is a contiguous range of the list of weights, in units of weight rows. With few input rows there
 * is one piece per thread. With many there are smaller pieces, which the threads take in turn; the
 * input's rows are divided into blocks, too, so that each stays in the cache of few threads. */
#include <assert.h>

#include "backend/cpu/backend_cpu_internal.h"
#include "base/mem.h"

/* Rows of a unit: as many blocks as a kernel processes side by side, so that none is left over. */
#define UNIT_ROWS (4 * KERNEL_ROWS)
/* Minimum multiply-adds of a piece, about 100 us, and the maximum number of pieces per thread.
 * Smaller pieces shorten the wait for the last thread, but each piece has a fixed cost. */
#define MIN_PIECE_WORK (8u << 20)
#define MAX_PIECES 32
/* With many input rows, a piece has a block of them: at most so many bytes of codes, or so many
 * rows if that is more. A thread reads the block once for every few weight rows, so it should stay
 * in its L2 cache. */
#define BLOCK_BYTES (256u << 10)
#define BLOCK_ROWS 64
#define MAX_BLOCKS 64

/* ---- shares ---------------------------------------------------------------------------------- */

/* Returns the cost of one weight row: its bytes if few rows are multiplied with it, otherwise the
 * arithmetic, which costs more for floats than for codes. Only the balance depends on it. */
static uint64_t row_cost(const struct backend_cpu *cpu, const struct weight *w, size_t n)
{
    const uint64_t bytes = quant_row_bytes(w->quant, w->n_cols);
    const uint64_t factor = w->quant->codes != QUANT_NO_CODES ? 1 : 6;
    return n <= cpu->kernels.n_few ? bytes : bytes + n * w->n_cols * factor / 4;
}

/* Iterates over the units of a list. A piece has the units that begin inside its part of the total
 * cost. */
struct share {
    uint64_t begin, end; /* this piece's part */
    uint64_t at;         /* where the next item begins */
};

static struct share share_of(uint64_t total, size_t piece, size_t n_pieces)
{
    return (struct share){.begin = total / n_pieces * piece + total % n_pieces * piece / n_pieces,
                          .end = total / n_pieces * (piece + 1) +
                                 total % n_pieces * (piece + 1) / n_pieces};
}

static uint64_t first_at_or_after(uint64_t at, uint64_t start, uint64_t unit_cost, uint64_t n)
{
    if (at <= start)
        return 0;
    const uint64_t unit = (at - start + unit_cost - 1) / unit_cost;
    return unit < n ? unit : n;
}

/* Finds the units [begin, end) of the next item that belong to this piece. */
static void share_next(struct share *s, uint64_t n_units, uint64_t unit_cost, size_t *begin,
                       size_t *end)
{
    *begin = (size_t)first_at_or_after(s->begin, s->at, unit_cost, n_units);
    *end = (size_t)first_at_or_after(s->end, s->at, unit_cost, n_units);
    s->at += n_units * unit_cost;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns how many pieces to cut `work` multiply-adds on n rows into. If memory bandwidth is the
 * limit, one contiguous range per thread is best. */
static size_t n_pieces_for(const struct backend_cpu *cpu, size_t n, size_t work)
{
    const size_t n_threads = cpu->limits.n_threads;
    if (n <= cpu->kernels.n_few || n_threads == 1)
        return n_threads;
    const size_t n_pieces = smaller(work / MIN_PIECE_WORK, MAX_PIECES * n_threads);
    return n_pieces > n_threads ? n_pieces : n_threads;
}

/* The inputs a thread last multiplied with in this job. A kernel reuses its own ordering of the
 * same inputs. Their address determines their number and width. */
struct inputs {
    const struct quant *quant;
    bool is_interleaved;
    const int8_t *q;
    const uint32_t *pick;
};

static void multiply(const struct backend_cpu *cpu, struct inputs *last, struct kernel_matmul *m)
{
    const struct inputs now = {m->w->quant, m->w->is_interleaved, m->in.q, m->pick};
    m->has_same_inputs = now.q != NULL && now.quant == last->quant && now.q == last->q &&
                         now.is_interleaved == last->is_interleaved && now.pick == last->pick;
    *last = now;
    cpu->kernels.matmul(m);
}

/* Adds the bias to the result of a product in `out`: columns [begin, end) of n rows. */
static void add_bias(const struct backend_cpu *cpu, const float *bias, float *out, size_t stride,
                     const uint32_t *places, size_t n, size_t begin, size_t end)
{
    for (size_t t = 0; bias != NULL && t < n; t++)
        cpu->kernels.add(out + (places != NULL ? places[t] : t) * stride + begin, bias + begin,
                         end - begin);
}

/* Returns how many blocks of equal size to cut n rows of n_cols codes into. */
static size_t n_blocks_for(size_t n, size_t n_cols)
{
    const size_t fit = BLOCK_BYTES / n_cols / KERNEL_ROWS * KERNEL_ROWS;
    const size_t rows = fit > BLOCK_ROWS ? fit : BLOCK_ROWS;
    return n > rows ? smaller((n + rows - 1) / rows, MAX_BLOCKS) : 1;
}

/* Returns the product with a block of the input's rows: whole groups of sixteen except at the
 * end. */
static struct kernel_matmul block_of(struct kernel_matmul m, size_t block, size_t n_blocks)
{
    const struct quant *quant = m.w->quant;
    const size_t n_groups = (m.n + KERNEL_ROWS - 1) / KERNEL_ROWS;
    const size_t begin = n_groups * block / n_blocks * KERNEL_ROWS;
    m.n = smaller(n_groups * (block + 1) / n_blocks * KERNEL_ROWS, m.n) - begin;
    if (m.place != NULL)
        m.place += begin;
    else
        m.y += begin * m.y_stride;
    if (m.pick != NULL) {
        m.pick += begin;
    } else if (quant->codes == QUANT_NO_CODES) {
        m.in.x += begin * m.w->n_cols;
    } else {
        const size_t first = begin * (m.w->n_cols / quant->group);
        m.in.q += begin * m.w->n_cols;
        m.in.scale += first;
        m.in.offset += first;
        m.in.sum += first;
    }
    return m;
}

/* Computes products with the same input rows, one block of these after the other. */
static void multiply_blocks(const struct backend_cpu *cpu, struct inputs *last,
                            const struct kernel_matmul *products, size_t n, size_t n_blocks)
{
    for (size_t block = 0; block < n_blocks; block++)
        for (size_t i = 0; i < n; i++) {
            struct kernel_matmul m = block_of(products[i], block, n_blocks);
            if (i + 1 == n && block + 1 < n_blocks) { /* these weights again, not the next ones */
                m.next = products[0].w;
                m.next_row = products[0].begin;
            }
            multiply(cpu, last, &m);
        }
}

/* ---- the input ------------------------------------------------------------------------------- */

void cpu_input(struct backend *be, const float *x, size_t n, size_t n_cols)
{
    struct backend_cpu *cpu = cpu_of(be);
    assert(n <= cpu->limits.max_rows && n_cols <= cpu->limits.max_cols);
    cpu->input.x = x;
    cpu->input.n = n;
    cpu->input.n_cols = n_cols;
    for (unsigned i = 0; i < CPU_GROUP_SIZES; i++)
        cpu->input.quantized[i].is_made = false;
}

struct quantize_job {
    const struct backend_cpu *cpu;
    const struct cpu_quantized *to;
};

static void quantize_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct quantize_job *job = ctx;
    const struct cpu_input *in = &job->cpu->input;
    const struct cpu_quantized *to = job->to;
    const size_t n_groups = in->n_cols / to->group;
    size_t begin, end;
    pool_range(in->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        job->cpu->kernels.quantize_row(in->x + t * in->n_cols, in->n_cols, to->group,
                                       to->q + t * in->n_cols, to->scale + t * n_groups,
                                       to->offset + t * n_groups, to->sum + t * n_groups);
}

static struct cpu_quantized *quantized_of(struct cpu_input *in, size_t group)
{
    unsigned i = 0;
    while (in->quantized[i].group != group)
        i++;
    return &in->quantized[i];
}

/* Converts the input to the form the weight's format needs, unless that is done already. */
static void prepare_input(struct backend_cpu *cpu, const struct weight *w)
{
    assert(w->n_cols == cpu->input.n_cols);
    if (w->quant->codes == QUANT_NO_CODES)
        return;
    struct cpu_quantized *to = quantized_of(&cpu->input, w->quant->group);
    if (to->is_made)
        return;
    cpu_run(cpu, quantize_part, &(struct quantize_job){cpu, to}, cpu->input.n * cpu->input.n_cols);
    to->is_made = true;
}

static struct kernel_input input_for(struct backend_cpu *cpu, const struct weight *w)
{
    if (w->quant->codes == QUANT_NO_CODES)
        return (struct kernel_input){.x = cpu->input.x};
    const struct cpu_quantized *from = quantized_of(&cpu->input, w->quant->group);
    return (struct kernel_input){.q = from->q, .scale = from->scale, .offset = from->offset,
                                 .sum = from->sum};
}

/* ---- matmul ---------------------------------------------------------------------------------- */

struct matmul_job {
    struct backend_cpu *cpu;
    const struct backend_product *products;
    size_t n_products;
    uint64_t total;
    size_t n_blocks; /* of the input's rows */
    size_t n_pieces; /* of the weights' rows, for each block */
    struct pool_list pieces[MAX_BLOCKS]; /* of each block */
};

static uint64_t n_units_of(size_t n_rows, size_t unit)
{
    return (n_rows + unit - 1) / unit;
}

/* A range of a weight's rows. */
struct run {
    const struct weight *w;
    size_t begin, end;
};

/* Returns the weight of rows that come next, or NULL if this piece has none of its rows. */
static const struct weight *weight_of(const struct run *next)
{
    return next->begin < next->end ? next->w : NULL;
}

/* Finds the rows of the i-th product that belong to this piece. None after the last product. */
static struct run matmul_run(const struct matmul_job *job, size_t i, struct share *share)
{
    size_t begin, end;
    if (i >= job->n_products)
        return (struct run){NULL, 0, 0};
    const struct weight *w = job->products[i].w;
    share_next(share, n_units_of(w->n_rows, UNIT_ROWS),
               UNIT_ROWS * row_cost(job->cpu, w, job->cpu->input.n), &begin, &end);
    return (struct run){w, begin * UNIT_ROWS, smaller(end * UNIT_ROWS, w->n_rows)};
}

static void matmul_piece(const struct matmul_job *job, size_t block, size_t piece,
                         struct inputs *last, float *scratch)
{
    struct backend_cpu *cpu = job->cpu;
    struct share share = share_of(job->total, piece, job->n_pieces);
    struct run run = matmul_run(job, 0, &share), next;
    for (size_t i = 0; i < job->n_products; i++, run = next) {
        const struct backend_product *product = &job->products[i];
        next = matmul_run(job, i + 1, &share);
        if (run.begin >= run.end)
            continue;
        const struct kernel_matmul all = {
            .w = run.w, .begin = run.begin, .end = run.end, .in = input_for(cpu, run.w),
            .n = cpu->input.n, .y = product->y, .y_stride = run.w->n_rows,
            .scratch = scratch, .next = weight_of(&next), .next_row = next.begin};
        struct kernel_matmul m = block_of(all, block, job->n_blocks);
        multiply(cpu, last, &m);
        add_bias(cpu, product->bias, m.y, run.w->n_rows, NULL, m.n, run.begin, run.end);
    }
}

/* Threads begin with different blocks and help the others when their own is done. So few threads
 * bring the same block into their caches and into the kernel's order. */
static void matmul_part(void *ctx, unsigned part, unsigned n_parts)
{
    struct matmul_job *job = ctx;
    struct inputs last = {0};
    const size_t own = part * job->n_blocks / n_parts;
    for (size_t i = 0; i < job->n_blocks; i++) {
        const size_t block = (own + i) % job->n_blocks;
        for (size_t piece; (piece = pool_take_of(&job->pieces[block])) < job->n_pieces;)
            matmul_piece(job, block, piece, &last, cpu_scratch(job->cpu, part));
    }
}

void cpu_matmul(struct backend *be, const struct backend_product *products, size_t n)
{
    struct matmul_job job = {.cpu = cpu_of(be), .products = products, .n_products = n};
    size_t work = 0;
    for (size_t i = 0; i < n; i++) {
        const struct weight *w = products[i].w;
        prepare_input(job.cpu, w);
        job.total += n_units_of(w->n_rows, UNIT_ROWS) * UNIT_ROWS *
                     row_cost(job.cpu, w, job.cpu->input.n);
        work += (size_t)w->n_rows * w->n_cols * job.cpu->input.n;
    }
    job.n_blocks = n_blocks_for(job.cpu->input.n, job.cpu->input.n_cols);
    job.n_pieces = n_pieces_for(job.cpu, job.cpu->input.n, work / job.n_blocks);
    cpu_run(job.cpu, matmul_part, &job, work);
}

/* ---- feed-forward blocks --------------------------------------------------------------------- */

struct ffn_job {
    struct backend_cpu *cpu;
    const struct backend_ffn *blocks;
    size_t n_blocks;
    uint64_t total;
    size_t n_pieces;
};

/* Returns how many rows of gate and up one thread computes together: whole groups of what down
 * reads, so that the thread can also quantize them. */
static size_t gate_unit(const struct backend_ffn *f)
{
    const size_t group = f->down.quant->group;
    return group > UNIT_ROWS ? group : UNIT_ROWS;
}

static uint64_t gate_unit_cost(const struct backend_cpu *cpu, const struct backend_ffn *f)
{
    return gate_unit(f) * (row_cost(cpu, &f->gate, f->n) + row_cost(cpu, &f->up, f->n));
}

/* Returns the offset, in elements, of the intermediates of the block after f. Each block has
 * [n, width], in the order of the blocks. */
static size_t hidden_behind(const struct backend_ffn *f, size_t at)
{
    return mem_round_up(at + f->n * f->gate.n_rows, CPU_HIDDEN_ALIGN);
}

/* Returns the offset of the scales of the intermediates at that offset. */
static size_t scale_at(size_t at)
{
    return at / KERNEL_SMALLEST_GROUP;
}

static void round_hidden(const struct backend_cpu *cpu, const struct backend_ffn *f, size_t at,
                         size_t begin, size_t end)
{
    const struct cpu_quantized *to = &cpu->hidden;
    const size_t width = f->gate.n_rows, group = f->down.quant->group;
    for (size_t t = 0; t < f->n; t++) {
        const size_t i = at + t * width + begin;
        const size_t g = scale_at(at) + (t * width + begin) / group;
        cpu->kernels.quantize_row(cpu->gate + i, end - begin, group, to->q + i, to->scale + g,
                                  to->offset + g, to->sum + g);
    }
}

static void activate(const struct backend_cpu *cpu, const struct activation *a, float *gate,
                     const float *up, size_t n)
{
    switch (a->kind) {
    case ACTIVATION_SILU: cpu->kernels.silu_mul(gate, up, n); return;
    case ACTIVATION_GELU: cpu->kernels.gelu_mul(gate, up, n); return;
    case ACTIVATION_CLAMPED_SWIGLU:
        cpu->kernels.clamped_swiglu(gate, up, a->alpha, a->limit, n);
        return;
    }
}

static void gate_rows(const struct ffn_job *job, const struct backend_ffn *f, size_t at,
                      size_t begin, size_t end, struct run next, struct inputs *last,
                      float *scratch)
{
    struct backend_cpu *cpu = job->cpu;
    const size_t width = f->gate.n_rows;
    const struct kernel_matmul gate = {
        .w = &f->gate, .begin = begin, .end = end, .in = input_for(cpu, &f->gate), .n = f->n,
        .pick = f->rows, .y = cpu->gate + at, .y_stride = width, .scratch = scratch,
        .next = &f->up, .next_row = begin};
    struct kernel_matmul up = gate;
    up.w = &f->up;
    up.in = input_for(cpu, &f->up);
    up.y = cpu->up + at;
    up.next = weight_of(&next);
    up.next_row = next.begin;
    multiply_blocks(cpu, last, (struct kernel_matmul[]){gate, up}, 2,
                    n_blocks_for(f->n, f->gate.n_cols));
    add_bias(cpu, f->gate_bias, cpu->gate + at, width, NULL, f->n, begin, end);
    add_bias(cpu, f->up_bias, cpu->up + at, width, NULL, f->n, begin, end);
    for (size_t i = at + begin; i < at + f->n * width; i += width)
        activate(cpu, &f->activation, cpu->gate + i, cpu->up + i, end - begin);
    if (f->down.quant->codes != QUANT_NO_CODES)
        round_hidden(cpu, f, at, begin, end);
}

static struct run gate_run(const struct ffn_job *job, size_t i, struct share *share)
{
    size_t begin, end;
    if (i >= job->n_blocks)
        return (struct run){NULL, 0, 0};
    const struct backend_ffn *f = &job->blocks[i];
    const size_t unit = gate_unit(f);
    share_next(share, n_units_of(f->gate.n_rows, unit), gate_unit_cost(job->cpu, f), &begin, &end);
    return (struct run){&f->gate, begin * unit, smaller(end * unit, f->gate.n_rows)};
}

static void gate_piece(const struct ffn_job *job, size_t piece, struct inputs *last, float *scratch)
{
    struct share share = share_of(job->total, piece, job->n_pieces);
    struct run run = gate_run(job, 0, &share), next;
    size_t at = 0;
    for (size_t i = 0; i < job->n_blocks; i++, run = next) {
        next = gate_run(job, i + 1, &share);
        if (run.begin < run.end)
            gate_rows(job, &job->blocks[i], at, run.begin, run.end, next, last, scratch);
        at = hidden_behind(&job->blocks[i], at);
    }
}

static void gate_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct ffn_job *job = ctx;
    struct inputs last = {0};
    (void)n_parts;
    for (size_t piece; (piece = pool_take(job->cpu->pool)) < job->n_pieces;)
        gate_piece(job, piece, &last, cpu_scratch(job->cpu, part));
}

static uint64_t down_unit_cost(const struct backend_cpu *cpu, const struct backend_ffn *f)
{
    return UNIT_ROWS * row_cost(cpu, &f->down, f->n);
}

static struct run down_run(const struct ffn_job *job, size_t i, struct share *share)
{
    size_t begin, end;
    if (i >= job->n_blocks)
        return (struct run){NULL, 0, 0};
    const struct backend_ffn *f = &job->blocks[i];
    share_next(share, n_units_of(f->down.n_rows, UNIT_ROWS), down_unit_cost(job->cpu, f), &begin,
               &end);
    return (struct run){&f->down, begin * UNIT_ROWS, smaller(end * UNIT_ROWS, f->down.n_rows)};
}

static void down_piece(const struct ffn_job *job, size_t piece, struct inputs *last, float *scratch)
{
    struct backend_cpu *cpu = job->cpu;
    struct share share = share_of(job->total, piece, job->n_pieces);
    struct run run = down_run(job, 0, &share), next;
    size_t at = 0;
    for (size_t i = 0; i < job->n_blocks; at = hidden_behind(&job->blocks[i], at), i++) {
        const struct backend_ffn *f = &job->blocks[i];
        next = down_run(job, i + 1, &share);
        const struct kernel_input in = {.x = cpu->gate + at, .q = cpu->hidden.q + at,
                                        .scale = cpu->hidden.scale + scale_at(at),
                                        .offset = cpu->hidden.offset + scale_at(at),
                                        .sum = cpu->hidden.sum + scale_at(at)};
        if (run.begin < run.end) {
            const struct kernel_matmul m = {
                .w = run.w, .begin = run.begin, .end = run.end, .in = in, .n = f->n, .y = f->out,
                .y_stride = run.w->n_rows, .place = f->places, .scratch = scratch,
                .next = weight_of(&next), .next_row = next.begin};
            multiply_blocks(cpu, last, &m, 1, n_blocks_for(f->n, run.w->n_cols));
            add_bias(cpu, f->down_bias, f->out, run.w->n_rows, f->places, f->n, run.begin,
                     run.end);
        }
        run = next;
    }
}

static void down_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct ffn_job *job = ctx;
    struct inputs last = {0};
    (void)n_parts;
    for (size_t piece; (piece = pool_take(job->cpu->pool)) < job->n_pieces;)
        down_piece(job, piece, &last, cpu_scratch(job->cpu, part));
}

void cpu_ffn(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks)
{
    struct ffn_job job = {.cpu = cpu_of(be), .blocks = blocks, .n_blocks = n_blocks};
    size_t work = 0, n_rows = 0;
    uint64_t gate_total = 0, down_total = 0;
    for (size_t i = 0; i < n_blocks; i++) {
        const struct backend_ffn *f = &blocks[i];
        prepare_input(job.cpu, &f->gate);
        prepare_input(job.cpu, &f->up);
        gate_total += n_units_of(f->gate.n_rows, gate_unit(f)) * gate_unit_cost(job.cpu, f);
        down_total += n_units_of(f->down.n_rows, UNIT_ROWS) * down_unit_cost(job.cpu, f);
        work += (size_t)f->down.n_rows * f->down.n_cols * f->n;
        n_rows += f->n;
    }
    assert(n_rows <= job.cpu->limits.max_ffn_rows);
    job.total = gate_total;
    job.n_pieces = n_pieces_for(job.cpu, n_rows / n_blocks, work);
    cpu_run(job.cpu, gate_part, &job, 2 * work);
    job.total = down_total;
    cpu_run(job.cpu, down_part, &job, work);
}
