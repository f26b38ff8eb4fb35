/* Sparse attention: keys of blocks of positions, the choice of the blocks that a row attends to,
 * and attention to these. Part of kernels_all.h. On the processor: cpu_index.c and cpu_mix.c. */
#ifndef FLASHMOE_BACKEND_CUDA_K_CHOSEN_H
#define FLASHMOE_BACKEND_CUDA_K_CHOSEN_H

/* ---- the index ------------------------------------------------------------------------------- */

/* A row of the batch, and its place in its sequence. */
struct gpu_index_row {
    const struct backend_segment *segment;
    uint32_t row, position;
};

GPU_FN struct gpu_index_row gpu_index_row_of(const struct gpu_index &x, uint32_t y)
{
    const struct backend_segment *segment = x.i.segments;
    const uint32_t row = x.first_row + y;
    while (row >= segment->first_row + segment->n_rows)
        segment++;
    return {segment, row, segment->position + (row - segment->first_row)};
}

/* What is kept of a position. */
GPU_FN float *gpu_index_kept(const struct backend_index &a, const struct backend_segment *segment,
                             uint32_t position)
{
    char *first = (char *)segment->state[INDEX_KEYS];
    return (float *)(first + position / a.block_positions * a.block_bytes) +
           (size_t)(position % a.block_positions) * a.dim;
}

/* The key of a position: of this batch, or kept. Those of this batch may be written meanwhile. */
GPU_FN const float *gpu_index_key(const struct backend_index &a,
                                  const struct backend_segment *segment, uint32_t position)
{
    if (position < segment->position)
        return gpu_index_kept(a, segment, position);
    return a.key + (size_t)(segment->first_row + position - segment->position) * a.dim;
}

GPU_KERNEL void gpu_index_means(const struct gpu_index_means_args args)
{
    const struct backend_index &a = args.x.i;
    const uint32_t d = gpu_block_x() * gpu_n_threads() + gpu_thread();
    const struct gpu_index_row r = gpu_index_row_of(args.x, gpu_block_y());
    const uint32_t first = r.position + 1 - a.ratio; /* if a block ends here */
    float mean = 0;
    gpu_wait();
    if (d >= a.dim)
        return;
    gpu_index_kept(a, r.segment, r.position)[d] = a.key[(size_t)r.row * a.dim + d];
    if ((r.position + 1) % a.ratio == 0) {
        mean = gpu_index_key(a, r.segment, first)[d];
        for (uint32_t i = 1; i < a.ratio; i++)
            mean += gpu_index_key(a, r.segment, first + i)[d];
        mean /= (float)a.ratio;
    }
    a.mean[(size_t)r.row * a.dim + d] = mean;
}

GPU_KERNEL void gpu_index_keep(const struct gpu_index_keep_args args)
{
    const struct backend_index &a = args.x.i;
    const uint32_t d = gpu_block_x() * gpu_n_threads() + gpu_thread();
    const struct gpu_index_row r = gpu_index_row_of(args.x, gpu_block_y());
    gpu_wait();
    if (d < a.dim && (r.position + 1) % a.ratio == 0)
        gpu_index_kept(a, r.segment, r.position)[d] = a.mean[(size_t)r.row * a.dim + d];
}

GPU_KERNEL void gpu_index_score(const struct gpu_index_score_args args)
{
    const struct backend_index &a = args.x.i;
    const struct gpu_index_row r = gpu_index_row_of(args.x, gpu_block_y());
    const uint32_t n_blocks = (r.position + 1) / a.ratio, j = gpu_lane() & 15;
    const uint32_t block = gpu_block_x() * GPU_SCORE_BLOCKS + gpu_thread() / GPU_LANES;
    gpu_wait();
    if (n_blocks <= a.n_best || gpu_block_x() * GPU_SCORE_BLOCKS >= n_blocks)
        return;
    const uint32_t seen = block < n_blocks ? block : 0;
    const float *key = gpu_index_kept(a, r.segment, (seen + 1) * a.ratio - 1);
    const float *q = a.q + (size_t)r.row * a.q_row_stride;
    float sum = 0;
    for (uint32_t h = 0; h < a.n_heads; h++) {
        float lane = 0;
        for (uint32_t d = j; d < a.dim; d += GPU_LANES)
            lane += q[(size_t)h * a.dim + d] * key[d];
        const float product = gpu_sum_half_warp(lane);
        sum += product > 0 ? product : 0;
    }
    if (j == 0 && block < n_blocks)
        args.scores[gpu_block_y() * args.max_blocks + block] = sum;
}

/* ---- the choice ------------------------------------------------------------------------------ */

#define GPU_CHOOSE_WARPS (GPU_CHOOSE_THREADS / GPU_WARP)

/* Scores are not negative, so their bits have their order. */
GPU_FN uint32_t gpu_score_bits(const float *scores, uint32_t block)
{
    return fmath_bits_of_float(scores[block]);
}

/* How many of n scores have at least these bits, for every thread. The block meets. */
GPU_FN uint32_t gpu_count_scores(const float *scores, uint32_t n, uint32_t bits,
                                 gpu_shared<uint32_t> counts)
{
    uint32_t count = 0, all = 0;
    for (uint32_t i = gpu_thread(); i < n; i += GPU_CHOOSE_THREADS)
        count += gpu_score_bits(scores, i) >= bits;
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2)
        count += gpu_shuffle_xor(count, mask);
    gpu_barrier(); /* the counts before have been read */
    if (gpu_lane() == 0)
        counts[gpu_warp()] = count;
    gpu_barrier();
    for (unsigned w = 0; w < GPU_CHOOSE_WARPS; w++)
        all += counts[w];
    return all;
}

/* The bits of score number n_best, counted from the largest: bit by bit. */
GPU_FN uint32_t gpu_worst_chosen(const float *scores, uint32_t n, uint32_t n_best,
                                 gpu_shared<uint32_t> counts)
{
    uint32_t bits = 0;
    for (uint32_t bit = 1u << 31; bit > 0; bit >>= 1)
        if (gpu_count_scores(scores, n, bits | bit, counts) >= n_best)
            bits |= bit;
    return bits;
}

/* Writes the blocks in their order: all with more than these bits, and of those with exactly these
 * the first n_equal. */
GPU_FN void gpu_write_chosen(const float *scores, uint32_t n, uint32_t bits, uint32_t n_equal,
                             uint32_t *chosen, gpu_shared<uint32_t> counts)
{
    const uint32_t before_lane = (1u << gpu_lane()) - 1;
    uint32_t n_better = 0, n_same = 0; /* in front of what is looked at */
    for (uint32_t first = 0; first < n; first += GPU_CHOOSE_THREADS) {
        const uint32_t i = first + gpu_thread(), own = i < n ? gpu_score_bits(scores, i) : 0;
        const bool is_better = i < n && own > bits, is_same = i < n && own == bits;
        const uint32_t better = gpu_vote(is_better), same = gpu_vote(is_same);
        gpu_barrier();
        if (gpu_lane() == 0) {
            counts[gpu_warp()] = gpu_n_bits(better);
            counts[GPU_CHOOSE_WARPS + gpu_warp()] = gpu_n_bits(same);
        }
        gpu_barrier();
        uint32_t rank = n_better + gpu_n_bits(better & before_lane);
        uint32_t equal = n_same + gpu_n_bits(same & before_lane);
        for (unsigned w = 0; w < GPU_CHOOSE_WARPS; w++) {
            rank += w < gpu_warp() ? (uint32_t)counts[w] : 0;
            equal += w < gpu_warp() ? (uint32_t)counts[GPU_CHOOSE_WARPS + w] : 0;
            n_better += counts[w];
            n_same += counts[GPU_CHOOSE_WARPS + w];
        }
        if (is_better || (is_same && equal < n_equal))
            chosen[rank + (equal < n_equal ? equal : n_equal)] = i;
    }
}

GPU_KERNEL void gpu_index_choose(const struct gpu_index_choose_args args)
{
    GPU_SHARED(uint32_t, counts, 2 * GPU_CHOOSE_WARPS);
    const struct backend_index &a = args.x.i;
    const struct gpu_index_row r = gpu_index_row_of(args.x, gpu_block_x());
    const uint32_t n = (r.position + 1) / a.ratio;
    const float *scores = args.scores + gpu_block_x() * args.max_blocks;
    uint32_t *chosen = a.chosen + (size_t)r.row * (1ul + a.n_best);
    gpu_wait();
    if (n <= a.n_best) {
        if (gpu_thread() == 0)
            chosen[0] = INDEX_ALL;
        return;
    }
    const uint32_t bits = gpu_worst_chosen(scores, n, a.n_best, counts);
    const uint32_t n_better = gpu_count_scores(scores, n, bits + 1, counts);
    gpu_write_chosen(scores, n, bits, a.n_best - n_better, chosen + 1, counts);
    if (gpu_thread() == 0)
        chosen[0] = a.n_best;
}

/* ---- attention to what is chosen ------------------------------------------------------------- */

/* Whether a row sees a position that is not behind its own. */
GPU_FN bool gpu_is_seen(const struct gpu_sight &s, const uint32_t *chosen, uint32_t visible,
                        uint32_t position)
{
    const uint32_t block = position / s.ratio;
    uint32_t low = 0, high = chosen[0];
    if (chosen[0] == INDEX_ALL || block == visible / s.ratio)
        return true;
    while (low < high) { /* the first chosen block that is not before it */
        const uint32_t middle = (low + high) / 2;
        if (chosen[1 + middle] < block)
            low = middle + 1;
        else
            high = middle;
    }
    return low < chosen[0] && chosen[1 + low] == block;
}

#define GPU_LIST_WARPS (GPU_ATTENTION_BLOCK / GPU_WARP)

/* Lists the positions that a row sees of the block that begins there, counted from its first.
 * Returns how many. The block meets. */
GPU_FN uint32_t gpu_list_seen(const struct gpu_sight &s, const uint32_t *chosen, uint32_t visible,
                              uint32_t begin, gpu_shared<uint32_t> list,
                              gpu_shared<uint32_t> counts)
{
    const uint32_t i = gpu_thread();
    const bool is_seen = i < GPU_ATTENTION_BLOCK && begin + i < visible &&
                         gpu_is_seen(s, chosen, visible, begin + i);
    const uint32_t seen = gpu_vote(is_seen);
    uint32_t rank = gpu_n_bits(seen & ((1u << gpu_lane()) - 1)), n = 0;
    if (gpu_lane() == 0 && gpu_warp() < GPU_LIST_WARPS)
        counts[gpu_warp()] = gpu_n_bits(seen);
    gpu_barrier();
    for (unsigned w = 0; w < GPU_LIST_WARPS; w++) {
        rank += w < gpu_warp() ? (uint32_t)counts[w] : 0;
        n += counts[w];
    }
    if (is_seen)
        list[rank] = i;
    gpu_barrier();
    return n;
}

struct gpu_rows_listed {
    gpu_shared<uint32_t> list;
    GPU_METHOD uint32_t operator()(uint32_t i) const { return list[i]; }
};

GPU_KERNEL_FOR(GPU_ATTEND_THREADS, 1)
void gpu_attend_chosen(const struct gpu_attend_chosen_args args)
{
    GPU_SHARED(float, scores, GPU_ATTEND_HEADS * GPU_ATTENTION_BLOCK);
    GPU_SHARED(float, kept, GPU_ATTENTION_BLOCK);
    GPU_SHARED(uint32_t, list, GPU_ATTENTION_BLOCK);
    GPU_SHARED(uint32_t, counts, GPU_LIST_WARPS);
    const struct gpu_attention &a = args.a;
    const struct gpu_attend_heads heads = gpu_attend_heads_of(a, args.n_parts);
    const struct gpu_attention_row r = gpu_attention_row_of(a, heads.row);
    const uint32_t begin = heads.b * GPU_ATTENTION_BLOCK;
    const uint32_t *chosen = args.sight.chosen + (size_t)heads.row * (1ul + args.sight.n_best);
    gpu_wait();
    if (heads.b >= r.n_blocks)
        return;
    const uint64_t at = gpu_kv_at(a, heads.kv_head, begin);
    struct gpu_attend_part p = {};
    p.q_stride = a.q_head_stride;
    p.keys = (const uint8_t *)r.segment->state[ATTENTION_KEYS] + at;
    p.values = a.keys_have_values
                   ? p.keys : (const uint8_t *)r.segment->state[ATTENTION_VALUES] + at;
    p.n = gpu_list_seen(args.sight, chosen, r.position + 1, begin, list, counts);
    p.dim = a.head_dim;
    p.value_dim = a.value_dim;
    p.scale = a.scale;
    if (p.n > 0) {
        gpu_attend_rows(a, heads, p, scores, kept, gpu_rows_listed{list});
        return;
    }
    for (uint32_t h = heads.first; h < heads.end; h += GPU_ATTEND_HEADS) {
        gpu_attend_take(a, heads, h, &p);
        if (gpu_thread() < p.n_heads)
            p.total[gpu_thread()] = GPU_BLIND;
    }
}

GPU_KERNEL void gpu_merge_chosen(const struct gpu_merge_chosen_args args)
{
    GPU_SHARED(float, x, GPU_MAX_HEAD_DIM);
    const struct gpu_attention &a = args.a;
    const uint32_t head = gpu_block_x(), row = a.first_row + gpu_block_y(), dim = a.value_dim;
    const struct gpu_attention_row r = gpu_attention_row_of(a, row);
    const size_t first = (size_t)gpu_block_y() * a.n_blocks * a.n_heads + head;
    const float *gate = a.gate != NULL ? a.gate + row * a.q_row_stride + head * a.q_head_stride
                                       : NULL;
    struct gpu_running running = {};
    bool has_begun = false;
    gpu_wait();
    for (uint32_t b = 0; b < r.n_blocks; b++) {
        const size_t at = first + (size_t)b * a.n_heads;
        const float max = a.block_max[at], total = a.block_total[at];
        float keep = 0, share = 1;
        if (total == GPU_BLIND)
            continue;
        if (has_begun)
            gpu_merge_block(&running, max, total, &keep, &share);
        else
            running = {max, total};
        for (uint32_t d = gpu_thread(); d < dim; d += gpu_n_threads()) {
            const float value = a.block_out[at * dim + d];
            x[d] = has_begun ? fmaf(x[d], keep, value * share) : value;
        }
        has_begun = true;
    }
    if (a.sinks != NULL) {
        const float keep = gpu_merge_sink(running.max, &running.total, a.sinks[head]);
        for (uint32_t d = gpu_thread(); d < dim; d += gpu_n_threads())
            x[d] *= keep;
    }
    if (a.kv.plain == GPU_PLAIN_NONE)
        gpu_rotate(x, dim, true);
    for (uint32_t d = gpu_thread(); d < dim; d += gpu_n_threads())
        a.out[((size_t)row * a.n_heads + head) * dim + d] =
            gpu_close_value(x[d], running.total, gate, d);
}

#endif
