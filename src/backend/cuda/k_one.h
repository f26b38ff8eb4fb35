/* Products with one input, as a token has them: little work that must begin at once. Part of
 * kernels_all.h.
 *
 * Weights whose address is known are read before the launches ahead have ended. Everything that a
 * block needs of them is on its way before it needs the first. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ONE_H
#define FLASHMOE_BACKEND_CUDA_K_ONE_H

/* ---- codes of four and eight bits, sixteen rows side by side ---------------------------------
 *
 * A thread has a slice: 64 columns of four rows, or 32 of bytes. Its sums of groups go to shared
 * memory with what they are multiplied with; one thread for each row folds them in the order of the
 * groups. */

#define GPU_ONE_SLICES (GPU_ONE_WARPS * 8) /* of all warps, at a time */

/* The codes of an affine weight, of four bits or eight; of one without biases; or of MXFP4 in two
 * parts, where they name levels and a scale is a byte. */
enum gpu_one_kind { GPU_AFFINE, GPU_BYTES, GPU_INT4, GPU_FP4 };

/* What a thread reads of a weight. */
template <uint32_t GROUP, gpu_one_kind KIND> struct gpu_slice {
    enum : uint32_t {
        n_cols = KIND == GPU_BYTES ? GPU_ONE_BYTES_SLICE : GPU_ONE_SLICE,
        n_words = 8,
        n_groups = GROUP < n_cols ? n_cols / GROUP : 1,
        n_together = GROUP > n_cols ? GROUP / n_cols : 1, /* slices of a group */
        has_bias = KIND == GPU_AFFINE || KIND == GPU_BYTES,
    };
    struct gpu_four words[n_words]; /* of each row */
    struct gpu_pair scale[n_groups], bias[n_groups];

    /* Begins to read slice s of rows from `row` on. */
    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t s)
    {
        const uint32_t quarter = gpu_lane() % 4, g = s * n_cols / GROUP;
        const uint32_t row_bytes = KIND == GPU_BYTES ? w.n_cols : w.n_cols / 2;
        const uint8_t *at = w.parts[0] + (uint64_t)row * row_bytes + s * 512ull + quarter * 16;
        const uint64_t scale_at = (uint64_t)row * (w.n_cols / GROUP) + g * 16ull + quarter * 4;
        GPU_UNROLL
        for (uint32_t i = 0; i < n_words; i++)
            words[i] = gpu_stream_four(at + i * 64);
        GPU_UNROLL
        for (uint32_t j = 0; j < n_groups; j++) {
            if (KIND == GPU_FP4) {
                scale[j].low = gpu_load_word(w.parts[1] + scale_at + j * 16);
                continue;
            }
            scale[j] = gpu_stream_pair(w.parts[1] + 2 * (scale_at + j * 16));
            if (has_bias)
                bias[j] = gpu_stream_pair(w.parts[2] + 2 * (scale_at + j * 16));
        }
    }
};

/* The even and the odd ones of eight columns. */
GPU_FN struct gpu_pair gpu_even_and_odd(uint32_t first, uint32_t second)
{
    return {gpu_permute(first, second, 0x6420), gpu_permute(first, second, 0x7531)};
}

/* Value r of four halves. */
GPU_FN float gpu_half_of(unsigned plain, const struct gpu_pair &halves, uint32_t r)
{
    const uint32_t half = (r < 2 ? halves.low : halves.high) >> r % 2 * 16;
    return gpu_affine_scales<1, true>::value(plain, half);
}

/* Scale of row r of four. */
template <gpu_one_kind KIND>
GPU_FN float gpu_one_scale(unsigned plain, const struct gpu_pair &scales, uint32_t r)
{
    return KIND == GPU_FP4 ? codes_mxfp4_scale(scales.low >> 8 * r & 0xff)
                           : gpu_half_of(plain, scales, r);
}

/* The input's columns of a slice, and what its groups are multiplied with. */
template <uint32_t GROUP, gpu_one_kind KIND> struct gpu_one_columns {
    using slice = gpu_slice<GROUP, KIND>;
    struct gpu_four q[slice::n_cols / 16];
    float scale[slice::n_groups];
    float offset[slice::n_groups]; /* of a weight with biases */
    int32_t sum[slice::n_groups];  /* of one without */
};

/* Where a thread finds its columns. */
struct gpu_one_global {
    const int8_t *q;
    const float *scale, *offset;
    const int32_t *sum;

    template <uint32_t GROUP, gpu_one_kind KIND>
    GPU_METHOD void take(uint32_t c, struct gpu_one_columns<GROUP, KIND> &to) const
    {
        using slice = gpu_slice<GROUP, KIND>;
        GPU_UNROLL
        for (uint32_t i = 0; i < slice::n_cols / 16; i++)
            to.q[i] = gpu_load_four_now(q + c + 16 * i);
        GPU_UNROLL
        for (uint32_t j = 0; j < slice::n_groups; j++) {
            to.scale[j] = gpu_load_float_now(scale + c / GROUP + j);
            if (slice::has_bias)
                to.offset[j] = gpu_load_float_now(offset + c / GROUP + j);
            else
                to.sum[j] = (int32_t)gpu_load_word_now(sum + c / GROUP + j);
        }
    }
};

/* The same in shared memory; four columns are the bits of a float. Weights without biases need
 * sums in place of offsets. */
struct gpu_one_shared {
    gpu_shared<float> q, scale, offset;

    template <uint32_t GROUP, gpu_one_kind KIND>
    GPU_METHOD void take(uint32_t c, struct gpu_one_columns<GROUP, KIND> &to) const
    {
        using slice = gpu_slice<GROUP, KIND>;
        GPU_UNROLL
        for (uint32_t i = 0; i < slice::n_cols / 16; i++) {
            const struct gpu_quad quad = gpu_take_quad(q, c / 4 + 4 * i);
            to.q[i] = {{fmath_bits_of_float(quad.x[0]), fmath_bits_of_float(quad.x[1]),
                        fmath_bits_of_float(quad.x[2]), fmath_bits_of_float(quad.x[3])}};
        }
        GPU_UNROLL
        for (uint32_t j = 0; j < slice::n_groups; j++) {
            to.scale[j] = scale[c / GROUP + j];
            to.offset[j] = offset[c / GROUP + j];
            to.sum[j] = (int32_t)to.offset[j];
        }
    }
};

/* Sums of a group's words of four bits, eight columns each, with the input's columns. High halves
 * of bytes stay where they are: they count sixteen times, and are added up apart. */
template <uint32_t N, gpu_one_kind KIND>
GPU_FN void gpu_one_dot(const struct gpu_four *words, const struct gpu_four *columns,
                        int32_t sum[4])
{
    int32_t high[4] = {0, 0, 0, 0};
    GPU_UNROLL
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t first = columns[i / 2].words[i % 2 * 2];
        const uint32_t second = columns[i / 2].words[i % 2 * 2 + 1];
        const struct gpu_pair x = KIND == GPU_FP4 ? gpu_pair{first, second}
                                                  : gpu_even_and_odd(first, second);
        GPU_UNROLL
        for (uint32_t r = 0; r < 4; r++) {
            const uint32_t codes = words[i].words[r];
            if (KIND == GPU_FP4) {
                sum[r] = gpu_dot4_unsigned(gpu_look_up(codes_fp4_doubled, codes), (int32_t)x.low,
                                           sum[r]);
                sum[r] = gpu_dot4_unsigned(gpu_look_up(codes_fp4_doubled, codes >> 16),
                                           (int32_t)x.high, sum[r]);
                continue;
            }
            sum[r] = gpu_dot4_unsigned(codes & GPU_NIBBLES, (int32_t)x.low, sum[r]);
            high[r] = gpu_dot4_unsigned(codes & ~GPU_NIBBLES, (int32_t)x.high, high[r]);
        }
    }
    GPU_UNROLL
    for (uint32_t r = 0; r < 4; r++)
        sum[r] += high[r] / 16;
}

/* The same of bytes, four columns in a word. */
template <uint32_t N>
GPU_FN void gpu_one_dot_bytes(const struct gpu_four *words, const struct gpu_four *columns,
                              int32_t sum[4])
{
    GPU_UNROLL
    for (uint32_t i = 0; i < N; i++)
        GPU_UNROLL
        for (uint32_t r = 0; r < 4; r++)
            sum[r] = gpu_dot4_unsigned(words[i].words[r], (int32_t)columns[i / 4].words[i % 4],
                                       sum[r]);
}

/* Multiplies slice s, or none, with the input's columns; leaves [groups, 16 rows] of factor, sum,
 * bias, offset in slot s - from. Row r lies at r % 4 * 4 + r / 4. The warp meets. */
template <uint32_t GROUP, gpu_one_kind KIND>
GPU_FN void gpu_one_multiply_columns(unsigned plain, const struct gpu_slice<GROUP, KIND> &slice,
                                     const struct gpu_one_columns<GROUP, KIND> &x, uint32_t s,
                                     uint32_t from, bool is_there, gpu_shared<float> to)
{
    using kind = gpu_slice<GROUP, KIND>;
    constexpr uint32_t n_groups = kind::n_groups, per_group = kind::n_words / n_groups;
    constexpr bool has_bias = kind::has_bias;
    constexpr int32_t zero = KIND == GPU_FP4 ? CODES_MXFP4_ZERO : CODES_INT4_ZERO;
    GPU_UNROLL
    for (uint32_t j = 0; j < n_groups; j++) {
        const float offset = has_bias ? x.offset[j] : 0;
        const int32_t start = has_bias ? 0 : -zero * x.sum[j];
        int32_t sum[4] = {start, start, start, start};
        if (KIND == GPU_BYTES)
            gpu_one_dot_bytes<per_group>(slice.words + j * per_group, x.q + j * per_group / 4,
                                         sum);
        else
            gpu_one_dot<per_group, KIND>(slice.words + j * per_group, x.q + j * per_group / 2,
                                         sum);
        const uint32_t slot = (s - from) * n_groups / kind::n_together + j;
        GPU_UNROLL
        for (uint32_t r = 0; r < 4; r++) {
            GPU_UNROLL
            for (uint32_t mask = 1; mask < kind::n_together; mask *= 2)
                sum[r] += gpu_shuffle_xor(sum[r], 4 * mask);
            if (is_there && s % kind::n_together == 0)
                gpu_put_quad(to, (slot * 16 + r * 4 + gpu_lane() % 4) * 4,
                             {{gpu_one_scale<KIND>(plain, slice.scale[j], r) * x.scale[j],
                               (float)sum[r],
                               has_bias ? gpu_half_of(plain, slice.bias[j], r) : 0, offset}});
        }
    }
}

/* The same with columns that are still to be read. */
template <uint32_t GROUP, gpu_one_kind KIND, class input>
GPU_FN void gpu_one_multiply(unsigned plain, const struct gpu_slice<GROUP, KIND> &slice,
                             const input &in, uint32_t s, uint32_t from, bool is_there,
                             gpu_shared<float> to)
{
    struct gpu_one_columns<GROUP, KIND> x;
    in.template take<GROUP, KIND>(is_there ? s * gpu_slice<GROUP, KIND>::n_cols : 0, x);
    gpu_one_multiply_columns<GROUP, KIND>(plain, slice, x, s, from, is_there, to);
}

/* Adds a group to the sum of a row. */
template <bool HAS_BIAS> GPU_FN float gpu_one_add(const struct gpu_quad &it, float acc)
{
    acc = fmaf(it.x[0], it.x[1], acc);
    return HAS_BIAS ? fmaf(it.x[2], it.x[3], acc) : acc;
}

/* Adds n groups to the sum of row r. Four are on their way while four are added. */
template <bool HAS_BIAS>
GPU_FN float gpu_one_fold(gpu_shared<float> from, uint32_t n, uint32_t r, float acc)
{
    const gpu_shared<float> row = from + (r % 4 * 4 + r / 4) * 4;
    struct gpu_quad_ring ring;
    uint32_t k = 0;
    if (n >= 4)
        ring.load(row, 64);
    for (; k + 4 <= n; k += 4) {
        const struct gpu_quad_ring now = ring;
        if (k + 8 <= n)
            ring.load(row + (k + 4) * 64, 64);
        GPU_UNROLL
        for (uint32_t e = 0; e < 4; e++)
            acc = gpu_one_add<HAS_BIAS>(now.quads[e], acc);
    }
    for (; k < n; k++)
        acc = gpu_one_add<HAS_BIAS>(gpu_take_quad(row, k * 64), acc);
    return acc;
}

/* How the slices of a tile lie: warp w has sixteen rows from w / split * 16 on. */
struct gpu_one_plan {
    uint32_t split, n_slices;
    uint32_t at_a_time; /* slices of a row */
    uint32_t per_rows;  /* floats of sixteen rows in shared memory */
    uint32_t own, first; /* the warp's first row in the tile, the thread's first slice */
};

template <uint32_t GROUP, gpu_one_kind KIND>
GPU_FN struct gpu_one_plan gpu_one_plan_of(const struct gpu_product &p)
{
    constexpr uint32_t n_cols = gpu_slice<GROUP, KIND>::n_cols;
    const uint32_t split = 1u << p.log_split, set = gpu_warp() >> p.log_split;
    return {split, p.w.n_cols / n_cols, split * 8, split * 8 * n_cols / GROUP * 64, set * 16,
            (gpu_warp() - set * split) * 8 + gpu_lane() / 4};
}

/* Adds what all warps have multiplied of n slices to the sum of a thread's row. */
template <uint32_t GROUP, gpu_one_kind KIND>
GPU_FN float gpu_one_fold_slices(const struct gpu_one_plan &plan, uint32_t n, uint32_t row,
                                 gpu_shared<float> groups, float acc)
{
    using kind = gpu_slice<GROUP, KIND>;
    return gpu_one_fold<kind::has_bias != 0>(groups + row / 16 * plan.per_rows,
                                             n * kind::n_cols / GROUP, row % 16, acc);
}

/* Multiplies and folds. The slices have been read, or the first of them: with more columns than the
 * warps have at a time there are sixteen rows. */
template <uint32_t GROUP, gpu_one_kind KIND, class input>
GPU_FN void gpu_one_tile(const struct gpu_work &work, const struct gpu_one_plan &plan,
                         struct gpu_slice<GROUP, KIND> &slice, const input &in,
                         gpu_shared<float> groups)
{
    const struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    const uint32_t n_rows = tile.end - tile.first, row = gpu_thread();
    const gpu_shared<float> own = groups + plan.own / 16 * plan.per_rows;
    uint32_t from = 0;
    float acc = 0;
    for (; plan.n_slices - from > plan.at_a_time; from += plan.at_a_time) {
        const uint32_t next = from + plan.at_a_time + plan.first;
        gpu_one_multiply<GROUP, KIND>(p.w.format.scale, slice, in, from + plan.first, from,
                                      plan.own < n_rows, own);
        gpu_barrier();
        if (row < n_rows)
            acc = gpu_one_fold_slices<GROUP, KIND>(plan, plan.at_a_time, row, groups, acc);
        slice.read(p.w, tile.first + (plan.own < n_rows ? plan.own : 0),
                   next < plan.n_slices ? next : 0);
        gpu_barrier();
    }
    const uint32_t n = plan.n_slices - from;
    gpu_one_multiply<GROUP, KIND>(p.w.format.scale, slice, in, from + plan.first, from,
                                  plan.own < n_rows && plan.first < n, own);
    gpu_barrier();
    if (row < n_rows)
        gpu_write(p, tile.t, tile.first + row,
                  gpu_one_fold_slices<GROUP, KIND>(plan, n, row, groups, acc));
}

/* Computes and rounds the input of a product with `up`. The block meets. */
GPU_FN void gpu_one_activate(const struct gpu_product &p, size_t row, const gpu_one_shared &to)
{
    const uint32_t n_cols = p.w.n_cols, group = p.w.format.group;
    const size_t at = row * n_cols;
    for (uint32_t first = gpu_warp() * GPU_UNIT; first < n_cols;
         first += GPU_ONE_WARPS * GPU_UNIT) {
        const uint32_t left = n_cols - first, n = left < GPU_UNIT ? left : GPU_UNIT;
        const uint32_t column = first + gpu_unit_column(0);
        float x[GPU_UNIT_VALUES], up[GPU_UNIT_VALUES];
        gpu_load_unit(p.in.x, at + first, n, x);
        gpu_load_unit(p.up, at + first, n, up);
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
            x[j] = gpu_activation(p.activation, x[j], up[j]);
        const struct gpu_rounded_unit rounded = gpu_round_values(x, n, group);
        if (column < n_cols)
            to.q[column / 4] = fmath_float_of_bits(rounded.packed);
        if (column < n_cols && column % group == 0) {
            to.scale[column / group] = rounded.scale;
            to.offset[column / group] =
                p.w.format.has_bias ? rounded.scale * (float)rounded.sum : (float)rounded.sum;
        }
    }
    gpu_barrier();
}

template <uint32_t GROUP, gpu_one_kind KIND>
GPU_FN void gpu_one_rows(struct gpu_work &work, gpu_shared<float> groups,
                         const gpu_one_shared &hidden)
{
    struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    const struct gpu_one_plan plan = gpu_one_plan_of<GROUP, KIND>(p);
    const bool is_late = p.bases != NULL && !p.has_old_ids;
    if (is_late)
        gpu_wait();
    gpu_find_expert(work);
    /* Threads without a slice read the first one. */
    const bool is_there = plan.own < tile.end - tile.first && plan.first < plan.n_slices;
    struct gpu_slice<GROUP, KIND> slice;
    slice.read(p.w, tile.first + (is_there ? plan.own : 0), is_there ? plan.first : 0);
    const size_t row = gpu_input_row(p, tile.t), g = row * (p.w.n_cols / GROUP);
    const gpu_one_global in = {p.in.q + row * p.w.n_cols, p.in.scale + g, p.in.offset + g,
                               p.in.sum + g};
    if (!is_late)
        gpu_wait();
    if (p.up != NULL) {
        gpu_one_activate(p, row, hidden);
        gpu_one_tile<GROUP, KIND>(work, plan, slice, hidden, groups);
        return;
    }
    gpu_one_tile<GROUP, KIND>(work, plan, slice, in, groups);
}

/* A few rows of bytes in groups of 64 that are not side by side: a warp has one of them, and a lane
 * one group at a time. */
struct gpu_one_group {
    struct gpu_four words[4];
    float scale, bias;

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t g)
    {
        const uint64_t at = (uint64_t)row * (w.n_cols / 64) + g;
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            words[i] = gpu_load_four_now(w.parts[0] + at * 64 + i * 16);
        scale = gpu_plain_value(w.format.scale, w.parts[1] + 2 * at);
        bias = gpu_plain_value(w.format.scale, w.parts[2] + 2 * at);
    }
};

GPU_FN void gpu_one_in_order(struct gpu_work &work, gpu_shared<float> groups)
{
    struct gpu_product &p = work.p;
    const uint32_t n_groups = p.w.n_cols / 64, warp_row = work.tile.first + gpu_warp();
    const bool is_there = warp_row < work.tile.end, is_known = p.bases == NULL;
    const uint32_t own = is_there ? warp_row : work.tile.first;
    const gpu_shared<float> quads = groups + gpu_warp() * GPU_WARP * 4;
    struct gpu_one_group codes;
    float acc = 0;
    if (is_known)
        codes.read(p.w, own, gpu_lane() < n_groups ? gpu_lane() : 0);
    gpu_wait();
    gpu_find_expert(work);
    const size_t row = gpu_input_row(p, work.tile.t);
    for (uint32_t from = 0; from < n_groups; from += GPU_WARP) {
        const uint32_t left = n_groups - from, n = left < GPU_WARP ? left : GPU_WARP;
        const uint32_t g = from + (gpu_lane() < n ? gpu_lane() : 0);
        const int8_t *q = p.in.q + row * p.w.n_cols + g * 64;
        struct gpu_four columns[4];
        int32_t sum = 0;
        if (from > 0 || !is_known)
            codes.read(p.w, own, g);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            columns[i] = gpu_load_four_now(q + i * 16);
        const float scale = gpu_load_float_now(p.in.scale + row * n_groups + g);
        const float offset = gpu_load_float_now(p.in.offset + row * n_groups + g);
        GPU_UNROLL
        for (uint32_t i = 0; i < 16; i++)
            sum = gpu_dot4_unsigned(codes.words[i / 4].words[i % 4],
                                    (int32_t)columns[i / 4].words[i % 4], sum);
        gpu_put_quad(quads, gpu_lane() * 4,
                     {{codes.scale * scale, (float)sum, codes.bias, offset}});
        gpu_warp_barrier();
        GPU_UNROLL_BY(8)
        for (uint32_t k = 0; k < n; k++) {
            const struct gpu_quad it = gpu_take_quad(quads, k * 4);
            acc = fmaf(it.x[2], it.x[3], fmaf(it.x[0], it.x[1], acc));
        }
        gpu_warp_barrier();
    }
    if (is_there && gpu_lane() == 0)
        gpu_write(p, work.tile.t, own, acc);
}

template <gpu_one_kind KIND>
GPU_FN void gpu_one_affine(struct gpu_work &work, gpu_shared<float> groups,
                           const gpu_one_shared &hidden)
{
    if (work.p.w.format.group == 64)
        gpu_one_rows<64, KIND>(work, groups, hidden);
    else if (work.p.w.format.group == 32)
        gpu_one_rows<32, KIND>(work, groups, hidden);
    else
        gpu_one_rows<128, KIND>(work, groups, hidden);
}

/* The block that ends last has all logits, and makes the choice of the row's experts. */
GPU_FN void gpu_one_choose(const struct gpu_matmul_one_args &a, gpu_shared<uint32_t> n_before,
                           const gpu_route_shared &s)
{
    const struct gpu_route_args &r = a.route;
    gpu_barrier();
    if (gpu_thread() == 0)
        n_before[0] = gpu_count_up(a.n_ended);
    gpu_barrier();
    if (n_before[0] != a.n_blocks - 1)
        return;
    if (gpu_thread() == 0)
        *a.n_ended = 0;
    if (gpu_warp() == 0)
        gpu_route_few(r.router, r.logits, r.ids, r.weights, s);
}

GPU_FN struct gpu_work gpu_find_one(const struct gpu_matmul_one_args &a)
{
    if (a.list.n > GPU_ONE_FEW)
        return gpu_find_tile(a.list, GPU_MATMUL_ONE);
    uint32_t i = 0;
    GPU_UNROLL
    for (uint32_t next = 1; next < GPU_ONE_FEW; next++)
        i += next < a.list.n && a.first[next - 1] <= gpu_block_x();
    return gpu_take_tile(a.list.products[i], GPU_MATMUL_ONE);
}

GPU_KERNEL_FOR(GPU_MATMUL_THREADS, 3) void gpu_matmul_one(const struct gpu_matmul_one_args a)
{
    GPU_SHARED(float, groups, GPU_ONE_SLICES * 2 * 16 * 4);
    GPU_SHARED(float, q, GPU_ONE_HIDDEN / 4);
    GPU_SHARED(float, scale, GPU_ONE_HIDDEN / 32);
    GPU_SHARED(float, offset, GPU_ONE_HIDDEN / 32);
    GPU_SHARED(uint32_t, chosen, LIMIT_TOP_K);
    GPU_SHARED(float, ratings, LIMIT_TOP_K);
    GPU_SHARED(float, exps, LIMIT_TOP_K);
    GPU_SHARED(float, keys, 2 * GPU_WARP);
    GPU_SHARED(uint32_t, indices, GPU_WARP);
    GPU_SHARED(uint32_t, n_before, 1);
    gpu_read_args(a);
    struct gpu_work work = gpu_find_one(a);
    const gpu_one_shared hidden = {q, scale, offset};
    if (!work.p.w.is_interleaved)
        gpu_one_in_order(work, groups);
    else if (work.p.w.format.codes == QUANT_CODES_FP4)
        gpu_one_rows<32, GPU_FP4>(work, groups, hidden);
    else if (!work.p.w.format.has_bias)
        gpu_one_rows<32, GPU_INT4>(work, groups, hidden);
    else if (work.p.w.format.bits == 8)
        gpu_one_affine<GPU_BYTES>(work, groups, hidden);
    else
        gpu_one_affine<GPU_AFFINE>(work, groups, hidden);
    if (a.has_route)
        gpu_one_choose(a, n_before, {{}, {}, chosen, ratings, exps, {}, {}, keys, indices});
}

/* ---- floats and halves -----------------------------------------------------------------------
 *
 * A row has eight threads, each with two lanes of its sum: neighbouring columns. They hold what
 * they multiply in registers, so that a launch has all of it on the way before the one ahead
 * ends. */

#define GPU_PAIR_THREADS (GPU_LANES / 2) /* of a row */
#define GPU_PAIR_WORDS 128u              /* of a thread */
#define GPU_PAIR_STEPS 32u               /* without a branch */

/* What a thread reads of a weight at a time. */
template <gpu_plain PLAIN> struct gpu_pairs {
    enum : uint32_t {
        n_words = PLAIN == GPU_PLAIN_F32 ? 2 : 1,
        n = GPU_PAIR_WORDS / n_words,
        n_cols = n * GPU_LANES,
    };
    uint32_t words[GPU_PAIR_WORDS];

    /* Begins to read columns from `from` on, of which `width` are there: a multiple of 16. */
    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t from, uint32_t width)
    {
        const uint32_t own = gpu_lane() % GPU_PAIR_THREADS * 2;
        const uint8_t *at = w.parts[0] + ((uint64_t)row * w.n_cols + from + own) * (2 * n_words);
        GPU_UNROLL
        for (uint32_t m = 0; m < n; m++) {
            const uint8_t *place = at + (m * GPU_LANES < width ? m : 0) * (GPU_LANES * 2 * n_words);
            if (PLAIN == GPU_PLAIN_F32) {
                const struct gpu_pair pair = gpu_load_pair(place);
                words[2 * m] = pair.low;
                words[2 * m + 1] = pair.high;
            } else {
                words[m] = gpu_load_word(place);
            }
        }
    }

    GPU_METHOD float value(uint32_t m, uint32_t e) const
    {
        if (PLAIN == GPU_PLAIN_F32)
            return fmath_float_of_bits(words[2 * m + e]);
        const uint16_t half = (uint16_t)(words[m] >> e * 16);
        return PLAIN == GPU_PLAIN_F16 ? gpu_f16_to_f32(half) : gpu_bf16_to_f32(half);
    }
};

/* Adds up 16 lanes of which each of eight threads has two, for all of them. The warp meets. */
GPU_FN float gpu_sum_pairs(struct gpu_two lanes)
{
    GPU_UNROLL
    for (unsigned mask = GPU_PAIR_THREADS / 2; mask > 0; mask /= 2)
        GPU_UNROLL
        for (unsigned e = 0; e < 2; e++)
            lanes.x[e] += gpu_shuffle_xor(lanes.x[e], mask);
    return lanes.x[0] + lanes.x[1];
}

/* Adds the products of steps [first, first + N), of which all are there or the first `n`. */
template <uint32_t N, bool ALL, gpu_plain PLAIN>
GPU_FN void gpu_add_pairs(const struct gpu_pairs<PLAIN> &pairs, gpu_shared<float> x, uint32_t first,
                          uint32_t n, struct gpu_two &lanes)
{
    GPU_UNROLL
    for (uint32_t m = first; m < first + N; m++) {
        if (!ALL && m >= n)
            break;
        const struct gpu_two two =
            gpu_take_two(x, m * GPU_LANES + gpu_lane() % GPU_PAIR_THREADS * 2);
        GPU_UNROLL
        for (uint32_t e = 0; e < 2; e++)
            lanes.x[e] = fmaf(pairs.value(m, e), two.x[e], lanes.x[e]);
    }
}

/* Fetches columns of the input for all threads. */
GPU_FN void gpu_fetch_input(const float *in, uint32_t width, gpu_shared<float> x)
{
    constexpr uint32_t n = GPU_PAIR_WORDS * GPU_LANES / (GPU_PLAIN_ONE_THREADS * 4);
    struct gpu_quad quads[n];
    GPU_UNROLL
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = (k * GPU_PLAIN_ONE_THREADS + gpu_thread()) * 4;
        quads[k] = gpu_load_quad_now(in + (i < width ? i : 0));
    }
    GPU_UNROLL
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = (k * GPU_PLAIN_ONE_THREADS + gpu_thread()) * 4;
        if (i < width)
            gpu_put_quad(x, i, quads[k]);
    }
}

template <gpu_plain PLAIN>
GPU_FN void gpu_plain_rows(struct gpu_work &work, gpu_shared<float> x)
{
    struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    const uint32_t n_cols = p.w.n_cols, own = tile.first + gpu_thread() / GPU_PAIR_THREADS;
    const uint32_t row = own < tile.end ? own : tile.first;
    const bool is_known = p.bases == NULL;
    struct gpu_pairs<PLAIN> pairs;
    struct gpu_two lanes = {};
    if (is_known)
        pairs.read(p.w, row, 0, n_cols);
    gpu_wait();
    gpu_find_expert(work);
    const float *in = p.in.x + gpu_input_row(p, tile.t) * n_cols;
    for (uint32_t from = 0; from < n_cols; from += gpu_pairs<PLAIN>::n_cols) {
        const uint32_t left = n_cols - from;
        const uint32_t width = left < gpu_pairs<PLAIN>::n_cols ? left : gpu_pairs<PLAIN>::n_cols;
        gpu_fetch_input(in + from, width, x);
        if (from > 0 || !is_known)
            pairs.read(p.w, row, from, width);
        gpu_barrier();
        const uint32_t n = width / GPU_LANES;
        GPU_UNROLL
        for (uint32_t m = 0; m < gpu_pairs<PLAIN>::n; m += GPU_PAIR_STEPS) {
            if (m + GPU_PAIR_STEPS <= n)
                gpu_add_pairs<GPU_PAIR_STEPS, true, PLAIN>(pairs, x, m, n, lanes);
            else if (m < n)
                gpu_add_pairs<GPU_PAIR_STEPS, false, PLAIN>(pairs, x, m, n, lanes);
        }
        gpu_barrier();
    }
    const float sum = gpu_sum_pairs(lanes);
    if (gpu_lane() % GPU_PAIR_THREADS == 0 && own < tile.end)
        gpu_write(p, tile.t, own, sum);
}

GPU_KERNEL_FOR(GPU_PLAIN_ONE_THREADS, 1)
void gpu_matmul_plain_one(const struct gpu_matmul_plain_one_args a)
{
    GPU_SHARED(float, x, GPU_PAIR_WORDS * GPU_LANES);
    struct gpu_work work = gpu_find_tile(a.list, GPU_MATMUL_PLAIN_ONE);
    switch (work.p.w.format.plain) {
    case GPU_PLAIN_F32: gpu_plain_rows<GPU_PLAIN_F32>(work, x); break;
    case GPU_PLAIN_F16: gpu_plain_rows<GPU_PLAIN_F16>(work, x); break;
    default: gpu_plain_rows<GPU_PLAIN_BF16>(work, x); break;
    }
}

#endif
