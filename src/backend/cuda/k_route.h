/* The router: a block of threads for each row. Part of kernels_all.h; router.h of the CPU has the
 * arithmetic. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ROUTE_H
#define FLASHMOE_BACKEND_CUDA_K_ROUTE_H

/* The best candidate that any thread of the block has, for every thread. The block meets. */
GPU_FN struct gpu_candidate gpu_best(struct gpu_candidate mine, gpu_shared<float> values,
                                     gpu_shared<uint32_t> indices)
{
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2) {
        const struct gpu_candidate other = {gpu_shuffle_xor(mine.value, mask),
                                            gpu_shuffle_xor(mine.index, mask)};
        mine = gpu_is_better(other, mine) ? other : mine;
    }
    if (gpu_lane() == 0) {
        values[gpu_warp()] = mine.value;
        indices[gpu_warp()] = mine.index;
    }
    gpu_barrier();
    for (unsigned w = 0; w < gpu_n_threads() / GPU_WARP; w++) {
        const struct gpu_candidate other = {values[w], indices[w]};
        mine = gpu_is_better(other, mine) ? other : mine;
    }
    gpu_barrier();
    return mine;
}

/* What the threads of a row share. */
struct gpu_route_shared {
    gpu_shared<float> best_values;
    gpu_shared<uint32_t> best_indices;
    gpu_shared<uint32_t> chosen; /* [LIMIT_TOP_K] */
    gpu_shared<float> ratings;   /* [LIMIT_TOP_K], of the chosen */
    gpu_shared<float> exps;      /* [LIMIT_TOP_K], of the chosen */
    gpu_shared<uint32_t> groups; /* [LIMIT_TOP_K] */
    gpu_shared<float> lanes;     /* [ROUTER_LANES] */
    gpu_shared<float> keys;       /* [2 * GPU_WARP]: bits, of lanes and of good candidates */
    gpu_shared<uint32_t> indices; /* [GPU_WARP], of these */
};

/* Finds the k best of n candidates, best first. rating_of(i) is the value of candidate i. */
template <class Rating>
GPU_FN void gpu_choose(uint32_t n, unsigned k, Rating rating_of, const gpu_route_shared &s,
                       gpu_shared<uint32_t> chosen)
{
    struct gpu_candidate last = {INFINITY, 0};
    for (unsigned i = 0; i < k; i++) {
        struct gpu_candidate mine = {-INFINITY, GPU_NO_CANDIDATE};
        for (uint32_t c = gpu_thread(); c < n; c += gpu_n_threads()) {
            const struct gpu_candidate it = {rating_of(c), c};
            if ((i == 0 || gpu_is_better(last, it)) && gpu_is_better(it, mine))
                mine = it;
        }
        last = gpu_best(mine, s.best_values, s.best_indices);
        if (gpu_thread() == 0) {
            chosen[i] = last.index;
            s.ratings[i] = last.value;
        }
    }
    gpu_barrier();
}

/* ---- few experts: a warp has all of them ----------------------------------------------------- */

/* Candidates of a lane, at most: lane + 32 m. */
#define GPU_WARP_CANDIDATES (GPU_FEW_EXPERTS / GPU_WARP)

/* A number that orders values as gpu_is_better does, both zeros alike; it is never 0. */
GPU_FN uint32_t gpu_rating_key(float value)
{
    const uint32_t bits = fmath_bits_of_float(value + 0.0f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/* The value with that key; of zeros the positive one. */
GPU_FN float gpu_rating_of_key(uint32_t key)
{
    return fmath_float_of_bits(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

/* The best of a lane's candidates and its index: the first one, if several are. */
GPU_FN void gpu_best_of_lane(const uint32_t keys[GPU_WARP_CANDIDATES], uint32_t *key,
                             uint32_t *index)
{
    *key = 0;
    *index = GPU_NO_CANDIDATE;
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_WARP_CANDIDATES; m++)
        if (keys[m] > *key) {
            *key = keys[m];
            *index = m * GPU_WARP + gpu_lane();
        }
}

/* Keys of the logits that a lane has. */
GPU_FN void gpu_load_keys(uint32_t n, const float *logits, uint32_t keys[GPU_WARP_CANDIDATES])
{
    float values[GPU_WARP_CANDIDATES];
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_WARP_CANDIDATES; m++) {
        const uint32_t c = m * GPU_WARP + gpu_lane();
        values[m] = gpu_load_float_new(logits + (c < n ? c : 0));
    }
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_WARP_CANDIDATES; m++)
        keys[m] = m * GPU_WARP + gpu_lane() < n ? gpu_rating_key(router_rank(values[m])) : 0;
}

/* How many of 32 keys are higher, or equal and at a place before. */
GPU_FN uint32_t gpu_rank_among(gpu_shared<float> keys, uint32_t key, uint32_t place)
{
    uint32_t rank = 0;
    GPU_UNROLL
    for (unsigned i = 0; i < GPU_WARP; i += 4) {
        const struct gpu_quad four = gpu_take_quad(keys, i);
        GPU_UNROLL
        for (unsigned j = 0; j < 4; j++) {
            const uint32_t other = fmath_bits_of_float(four.x[j]);
            rank += other > key || (other == key && i + j < place);
        }
    }
    return rank;
}

/* The candidates that are as good as the k-th best of the lanes' best ones: the chosen are among
 * them. Leaves up to 32 of them, in the order of their indices, and zeros behind them; returns how
 * many there are. */
GPU_FN uint32_t gpu_keep_good(unsigned k, const uint32_t keys[GPU_WARP_CANDIDATES],
                              const gpu_route_shared &s)
{
    uint32_t best = 0, n = 0;
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_WARP_CANDIDATES; m++)
        best = keys[m] > best ? keys[m] : best;
    s.keys[gpu_lane()] = fmath_float_of_bits(best);
    s.keys[GPU_WARP + gpu_lane()] = 0;
    gpu_warp_barrier();
    const uint32_t rank = gpu_rank_among(s.keys, best, gpu_lane());
    const uint32_t enough = gpu_max_of_warp(rank == k - 1 ? best : 0);
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_WARP_CANDIDATES; m++) {
        const bool is_good = keys[m] >= enough;
        const uint32_t all = gpu_vote(is_good);
        const uint32_t place = n + gpu_n_bits(all & ((1u << gpu_lane()) - 1));
        if (is_good && place < GPU_WARP) {
            s.keys[GPU_WARP + place] = fmath_float_of_bits(keys[m]);
            s.indices[place] = m * GPU_WARP + gpu_lane();
        }
        n += gpu_n_bits(all);
    }
    gpu_warp_barrier();
    return n;
}

/* Chooses one after the other: those that are chosen leave. */
GPU_FN void gpu_choose_in_turns(unsigned k, uint32_t keys[GPU_WARP_CANDIDATES],
                                const gpu_route_shared &s)
{
    uint32_t key, index;
    gpu_best_of_lane(keys, &key, &index);
    for (unsigned i = 0; i < k; i++) {
        const uint32_t best = gpu_max_of_warp(key);
        const uint32_t first = gpu_min_of_warp(key == best ? index : GPU_NO_CANDIDATE);
        if (index != first)
            continue;
        s.chosen[i] = first;
        s.ratings[i] = gpu_rating_of_key(best);
        GPU_UNROLL
        for (unsigned m = 0; m < GPU_WARP_CANDIDATES; m++)
            keys[m] = m == first / GPU_WARP ? 0 : keys[m];
        gpu_best_of_lane(keys, &key, &index);
    }
}

/* Where the i-th chosen one goes when they are sorted by id. */
GPU_FN unsigned gpu_place_of(unsigned k, unsigned i, gpu_shared<uint32_t> ids)
{
    unsigned place = 0;
    GPU_UNROLL_BY(8)
    for (unsigned j = 0; j < k; j++)
        place += ids[j] < ids[i];
    return place;
}

/* Chooses among up to 32 good candidates, in the order of their indices: a lane has one. */
GPU_FN void gpu_route_good(const struct router &r, uint32_t n_good, uint32_t *ids, float *weights,
                           const gpu_route_shared &s)
{
    const bool is_there = gpu_lane() < n_good;
    const uint32_t key = fmath_bits_of_float(s.keys[GPU_WARP + gpu_lane()]);
    const uint32_t index = is_there ? (uint32_t)s.indices[gpu_lane()] : GPU_NO_CANDIDATE;
    const uint32_t rank = gpu_rank_among(s.keys + GPU_WARP, key, gpu_lane());
    const bool is_chosen = is_there && rank < r.k;
    const float max = gpu_rating_of_key(gpu_max_of_warp(key));
    const float e = is_chosen ? fmath_exp(gpu_rating_of_key(key) - max) : 0;
    const uint32_t place = gpu_n_bits(gpu_vote(is_chosen) & ((1u << gpu_lane()) - 1));
    s.exps[is_chosen ? rank : r.k + gpu_lane() - place] = e; /* zeros behind the chosen */
    gpu_warp_barrier();
    float total = 0;
    GPU_UNROLL_BY(4)
    for (unsigned i = 0; i < r.k; i += 4) {
        const struct gpu_quad four = gpu_take_quad(s.exps, i);
        GPU_UNROLL
        for (unsigned j = 0; j < 4; j++)
            total += four.x[j]; /* a zero changes nothing */
    }
    if (is_chosen) {
        ids[place] = index;
        weights[place] = e / total * r.scale;
    }
}

/* The choice and the softmax over the chosen, by one warp, with the candidates in registers. What
 * is computed of a rating does not depend on the sign of a zero. */
GPU_FN void gpu_route_few(const struct router &r, const float *logits, uint32_t *ids,
                          float *weights, const gpu_route_shared &s)
{
    uint32_t keys[GPU_WARP_CANDIDATES];
    gpu_load_keys(r.n_experts, logits, keys);
    const uint32_t n_good = r.k <= GPU_WARP ? gpu_keep_good(r.k, keys, s) : GPU_NO_CANDIDATE;
    if (n_good <= GPU_WARP) {
        gpu_route_good(r, n_good, ids, weights, s);
        return;
    }
    /* Many are equal, or many are chosen. */
    gpu_choose_in_turns(r.k, keys, s);
    gpu_warp_barrier();
    const float max = s.ratings[0];
    for (unsigned i = gpu_lane(); i < r.k; i += GPU_WARP)
        s.exps[i] = fmath_exp(s.ratings[i] - max);
    gpu_warp_barrier();
    float total = 0;
    for (unsigned i = 0; i < r.k; i++)
        total += s.exps[i];
    for (unsigned i = gpu_lane(); i < r.k; i += GPU_WARP) {
        const unsigned place = gpu_place_of(r.k, i, s.chosen);
        ids[place] = s.chosen[i];
        weights[place] = s.exps[i] / total * r.scale;
    }
}

/* ---- any experts: a block has them ----------------------------------------------------------- */

/* The sum of exp(logit - max) over all experts, in lanes; for every thread. */
GPU_FN float gpu_total_of(const float *logits, uint32_t n, float max, const gpu_route_shared &s)
{
    if (gpu_thread() < ROUTER_LANES) {
        float sum = 0;
        for (uint32_t e = gpu_thread(); e < n; e += ROUTER_LANES)
            sum += fmath_exp(logits[e] - max);
        s.lanes[gpu_thread()] = sum;
    }
    gpu_barrier();
    float lane[ROUTER_LANES];
    for (unsigned j = 0; j < ROUTER_LANES; j++)
        lane[j] = s.lanes[j];
    for (unsigned width = ROUTER_LANES / 2; width > 0; width /= 2)
        for (unsigned j = 0; j < width; j++)
            lane[j] += lane[j + width];
    gpu_barrier();
    return lane[0];
}

/* Sorts the chosen by id. One thread. */
GPU_FN void gpu_sort_chosen(unsigned k, gpu_shared<uint32_t> ids, gpu_shared<float> values)
{
    for (unsigned i = 1; i < k; i++) {
        const uint32_t id = ids[i];
        const float value = values[i];
        unsigned j = i;
        for (; j > 0 && ids[j - 1] > id; j--) {
            ids[j] = (uint32_t)ids[j - 1];
            values[j] = (float)values[j - 1];
        }
        ids[j] = id;
        values[j] = value;
    }
}

GPU_FN void gpu_route_plain(const struct router &r, const float *logits, uint32_t *ids,
                            float *weights, const gpu_route_shared &s)
{
    gpu_choose(r.n_experts, r.k, [&](uint32_t e) { return router_rank(logits[e]); }, s, s.chosen);
    const float max = s.ratings[0];
    float total = 0;
    if (!r.renormalises)
        total = gpu_total_of(logits, r.n_experts, max, s);
    for (unsigned i = 0; r.renormalises && i < r.k; i++)
        total += fmath_exp(s.ratings[i] - max);
    gpu_barrier();
    if (gpu_thread() != 0)
        return;
    for (unsigned i = 0; i < r.k; i++)
        s.ratings[i] = fmath_exp(s.ratings[i] - max) / total;
    gpu_sort_chosen(r.k, s.chosen, s.ratings);
    for (unsigned i = 0; i < r.k; i++) {
        ids[i] = s.chosen[i];
        weights[i] = s.ratings[i] * r.scale;
    }
}

/* The highest logit, NaN aside; of equal ones the first. */
GPU_FN float gpu_max_logit(const float *logits, uint32_t n, const gpu_route_shared &s)
{
    struct gpu_candidate mine = {-INFINITY, GPU_NO_CANDIDATE};
    for (uint32_t e = gpu_thread(); e < n; e += gpu_n_threads()) {
        const struct gpu_candidate it = {router_rank(logits[e]), e};
        mine = gpu_is_better(it, mine) ? it : mine;
    }
    return gpu_best(mine, s.best_values, s.best_indices).value;
}

GPU_FN void gpu_route_scored(const struct router &r, const float *logits, uint32_t *ids,
                             float *weights, const gpu_route_shared &s)
{
    struct router_row row = {-INFINITY, 0};
    if (r.score == ROUTER_SOFTMAX) {
        row.max = gpu_max_logit(logits, r.n_experts, s);
        row.total = gpu_total_of(logits, r.n_experts, row.max, s);
    }
    const uint32_t size = router_group_size(&r);
    unsigned n_groups = 1;
    if (r.n_groups > 1) {
        n_groups = r.n_groups_chosen;
        gpu_choose(r.n_groups, n_groups,
                   [&](uint32_t g) {
                       const struct router_pair pair =
                           router_pair_of(&r, &row, logits, g * size, (g + 1) * size);
                       return router_rank(pair.first + pair.second);
                   },
                   s, s.groups);
        if (gpu_thread() == 0)
            gpu_sort_chosen(n_groups, s.groups, s.ratings);
    } else if (gpu_thread() == 0) {
        s.groups[0] = 0;
    }
    gpu_barrier();
    gpu_choose(n_groups * size, r.k,
               [&](uint32_t c) {
                   return router_choice(&r, &row, logits, s.groups[c / size] * size + c % size);
               },
               s, s.chosen);
    if (gpu_thread() != 0)
        return;
    for (unsigned i = 0; i < r.k; i++)
        s.chosen[i] = s.groups[s.chosen[i] / size] * size + s.chosen[i] % size;
    gpu_sort_chosen(r.k, s.chosen, s.ratings);
    float total = 0;
    for (unsigned i = 0; i < r.k; i++) {
        ids[i] = s.chosen[i];
        weights[i] = router_score_of(&r, &row, logits[ids[i]]);
        total += weights[i];
    }
    for (unsigned i = 0; i < r.k; i++)
        weights[i] = (r.renormalises ? weights[i] / (total + 1e-20f) : weights[i]) * r.scale;
}

GPU_KERNEL void gpu_route(const struct gpu_route_args a)
{
    GPU_SHARED(float, best_values, 8);
    GPU_SHARED(uint32_t, best_indices, 8);
    GPU_SHARED(uint32_t, chosen, LIMIT_TOP_K);
    GPU_SHARED(float, ratings, LIMIT_TOP_K);
    GPU_SHARED(float, exps, LIMIT_TOP_K);
    GPU_SHARED(uint32_t, groups, LIMIT_TOP_K);
    GPU_SHARED(float, lanes, ROUTER_LANES);
    GPU_SHARED(float, keys, 2 * GPU_WARP);
    GPU_SHARED(uint32_t, indices, GPU_WARP);
    const gpu_route_shared s = {best_values, best_indices, chosen, ratings, exps, groups,
                                lanes, keys, indices};
    const float *logits = a.logits + (size_t)gpu_block_x() * a.router.n_experts;
    uint32_t *ids = a.ids + (size_t)gpu_block_x() * a.router.k;
    float *weights = a.weights + (size_t)gpu_block_x() * a.router.k;
    gpu_wait();
    if (gpu_has_few(&a)) {
        if (gpu_warp() == 0)
            gpu_route_few(a.router, logits, ids, weights, s);
    } else if (a.is_plain)
        gpu_route_plain(a.router, logits, ids, weights, s);
    else
        gpu_route_scored(a.router, logits, ids, weights, s);
}

GPU_KERNEL void gpu_prefer(const struct gpu_prefer_args a)
{
    struct backend_preference p = a.p;
    p.router = &a.router;
    gpu_wait();
    if (gpu_thread() == 0)
        prefer_resident(&p);
}

#endif
