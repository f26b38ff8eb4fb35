/* Part of lanes.h: scores of many query heads with short keys. Lanes are positions here, so the
 * sixteen sums of a score are in registers of their own and their tree takes additions alone. Where
 * lanes are numbers of a key, it takes shuffles too: a third of the time with 128 numbers. The keys
 * are transposed for this, which takes too long for few heads. Long keys do not stay in the nearest
 * cache (docs/decisions/0066-rows-share-keys.md). */
#ifndef FLASHMOE_BACKEND_CPU_LANES_SCORES_H
#define FLASHMOE_BACKEND_CPU_LANES_SCORES_H

#ifdef LEVEL_HAS_TRANSPOSE /* vi_transpose, and 32 registers of 16 lanes */

#define TURNED_HEADS 16    /* at least */
#define TURNED_DIM 256     /* at most */
#define TURNED_VECTORS 2   /* of positions */
#define TURNED_POSITIONS (TURNED_VECTORS * LANES)
/* The first of the two lanes of each pass. The second is eight further. So each sum of the tree
 * needs the two sums before it. */
static const unsigned char turned_lanes[LANES / 2] = {0, 4, 2, 6, 1, 5, 3, 7};

/* Returns LANES numbers of a key, from d on. */
INLINE vf load_key(const struct kv_format *format, const char *row, size_t d)
{
    if (format == &kv_f16)
        return vf_load_f16(row + 2 * d);
    if (format->plain != NULL)
        return vf_load((const float *)(const void *)row + d);
    const unsigned bits = format->bits;
    const vl table = vl_load(format->levels);
    const char *p = row + d * bits / 8;
    return bits == 8   ? vf_load_levels(p, 8, table)
           : bits == 4 ? vf_load_levels(p, 4, table)
           : bits == 3 ? vf_load_levels(p, 3, table)
                       : vf_load_levels(p, 2, table);
}

/* Turns some keys, from position `first` on: pass p has the lanes turned_lanes[p] and that + 8 of
 * all vectors of a key, TURNED_POSITIONS numbers each. Missing positions repeat the first one. */
static void turn_keys(const struct kernel_attention *a, size_t first, float *to)
{
    const size_t row_bytes = kv_row_bytes(a->kv_format, a->head_dim), n = a->head_dim / LANES;
    for (unsigned v = 0; v < TURNED_VECTORS; v++) {
        const char *rows[LANES];
        for (unsigned r = 0; r < LANES; r++) {
            const size_t i = first + v * LANES + r;
            rows[r] = a->keys + (i < a->n_positions ? i : first) * row_bytes;
        }
        for (size_t i = 0; i < n; i++) {
            vi x[LANES];
            UNROLL for (unsigned r = 0; r < LANES; r++)
                x[r] = vi_bits_of(load_key(a->kv_format, rows[r], i * LANES));
            vi_transpose(x);
            UNROLL for (unsigned p = 0; p < LANES / 2; p++)
                UNROLL for (unsigned half = 0; half < 2; half++)
                    vf_store(to + ((p * n + i) * 2 + half) * TURNED_POSITIONS + v * LANES,
                             vf_of_bits(x[turned_lanes[p] + half * LANES / 2]));
        }
    }
}

/* Adds a pass's sums to what the tree has of the passes before. Returns true in the last pass. */
INLINE bool add_pass(unsigned pass, vf *sum, vf held[3])
{
    UNROLL for (unsigned level = 0; level < 3; level++) {
        if ((pass >> level & 1) == 0) {
            held[level] = *sum;
            return false;
        }
        *sum = vf_add(held[level], *sum);
    }
    return true;
}

/* Computes the scores of n_heads heads (a constant), from `head` on, with turned keys. `kept` has
 * the scale of each position, or is NULL. Heads that are not there are computed and dropped. */
INLINE void turned_tile(const struct kernel_attention *a, const float *keys, unsigned head,
                        unsigned n_heads, const float *kept, float *scores)
{
    const size_t n = a->head_dim / LANES;
    const float *x[WIDE_HEADS];
    vf held[WIDE_HEADS][TURNED_VECTORS][3];
    for (unsigned h = 0; h < n_heads; h++)
        x[h] = kernel_query(a, head + h < a->n_heads ? head + h : head);
    for (unsigned pass = 0; pass < LANES / 2; pass++) {
        vf acc[2][WIDE_HEADS][TURNED_VECTORS];
        UNROLL for (unsigned half = 0; half < 2; half++)
            UNROLL for (unsigned h = 0; h < n_heads; h++)
                UNROLL for (unsigned v = 0; v < TURNED_VECTORS; v++)
                    acc[half][h][v] = vf_zero();
        for (size_t i = 0, at = turned_lanes[pass]; i < n; i++, at += LANES)
            UNROLL for (unsigned half = 0; half < 2; half++, keys += TURNED_POSITIONS) {
                vf key[TURNED_VECTORS];
                UNROLL for (unsigned v = 0; v < TURNED_VECTORS; v++)
                    key[v] = vf_load(keys + v * LANES);
                UNROLL for (unsigned h = 0; h < n_heads; h++) {
                    const vf in = vf_set1(x[h][at + half * LANES / 2]);
                    UNROLL for (unsigned v = 0; v < TURNED_VECTORS; v++)
                        acc[half][h][v] = vf_fma(key[v], in, acc[half][h][v]);
                }
            }
        UNROLL for (unsigned h = 0; h < n_heads; h++)
            UNROLL for (unsigned v = 0; v < TURNED_VECTORS; v++) {
                vf sum = vf_add(acc[0][h][v], acc[1][h][v]);
                if (!add_pass(pass, &sum, held[h][v]) || head + h >= a->n_heads)
                    continue;
                if (kept != NULL)
                    sum = vf_mul(sum, vf_load(kept + v * LANES));
                vf_store(scores + (head + h) * KERNEL_ATTENTION_BLOCK + v * LANES,
                         vf_mul(sum, vf_set1(a->scale)));
            }
    }
}

static bool can_turn(const struct kernel_attention *a)
{
    return a->n_heads >= TURNED_HEADS && a->head_dim <= TURNED_DIM && a->head_dim % LANES == 0;
}

static void turned_scores(const struct kernel_attention *a)
{
    _Static_assert(TURNED_DIM * TURNED_POSITIONS <= 8 * TURNED_DIM + 64 * 96,
                   "turned keys do not fit into KERNEL_ATTENTION_SCRATCH");
    const size_t row_bytes = kv_row_bytes(a->kv_format, a->head_dim);
    float *keys = a->scratch + a->n_heads * (size_t)KERNEL_ATTENTION_BLOCK;
    for (size_t first = 0; first < a->n_positions; first += TURNED_POSITIONS) {
        float kept[TURNED_POSITIONS] = {0};
        const bool is_rotated = a->kv_format->plain == NULL;
        turn_keys(a, first, keys);
        for (size_t i = 0; is_rotated && i < TURNED_POSITIONS && first + i < a->n_positions; i++)
            kept[i] = kv_load_scale(a->kv_format, a->keys + (first + i) * row_bytes, a->head_dim);
        for (unsigned head = 0; head < a->n_heads;) {
            const unsigned n = heads_of_tile(a->n_heads - head, WIDE_HEADS);
            if (n == WIDE_HEADS)
                turned_tile(a, keys, head, WIDE_HEADS, is_rotated ? kept : NULL,
                            a->scratch + first);
            else
                turned_tile(a, keys, head, 4, is_rotated ? kept : NULL, a->scratch + first);
            head += n < 4 ? 4 : n;
        }
    }
}

#else
static bool can_turn(const struct kernel_attention *a)
{
    (void)a;
    return false;
}

static void turned_scores(const struct kernel_attention *a)
{
    (void)a;
}
#endif

#endif
