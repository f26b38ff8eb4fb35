/* Part of lanes.h: the last step of all products with codes. A lane is a weight row, so each lane
 * folds its groups in order. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_FOLD_H
#define FLASHMOE_BACKEND_CPU_LANES_FOLD_H

/* Adds one group of sixteen rows to acc. */
INLINE vf fold(vf acc, vi dots, const float *scales, const float *biases, bool has_bias,
               float x_scale, float x_offset)
{
    const vf scale = vf_mul(vf_load(scales), vf_set1(x_scale));
    acc = vf_fma(scale, vf_of_vi(dots), acc);
    if (has_bias)
        acc = vf_fma(vf_load(biases), vf_set1(x_offset), acc);
    return acc;
}

/* What a product needs of one token, and of the rows' scales. */
struct fold_inputs {
    const float *scales, *biases; /* [n_groups, 16] */
    const float *x_scale, *x_offset;
    const int32_t *x_sum;
    int32_t zero;
};

/* Returns the excess of the level's integers per unit of the group's sum: the format's zero point,
 * minus what the level itself subtracts from wide codes. */
INLINE int32_t surplus(const struct fold_inputs *f, bool has_bias, bool is_wide)
{
    return (has_bias ? 0 : f->zero) - (is_wide ? WIDE_CODES_SHIFT : 0);
}

INLINE vf fold_span(vf acc, const vi *dots, const struct fold_inputs *f, size_t g, unsigned n,
                    bool has_bias, bool is_wide)
{
    const int32_t zero = surplus(f, has_bias, is_wide);
    const bool is_centred = has_bias && (!is_wide || WIDE_CODES_SHIFT == 0);
    for (unsigned i = 0; i < n; i++) {
        const vi centred = is_centred ? dots[i] : vi_sub(dots[i], vi_set1(zero * f->x_sum[g + i]));
        acc = fold(acc, centred, f->scales + (g + i) * LANES, f->biases + (g + i) * LANES,
                   has_bias, f->x_scale[g + i], f->x_offset[g + i]);
    }
    return acc;
}

static struct fold_inputs fold_inputs_of(const struct kernel_matmul *m, size_t t, size_t n_groups,
                                         const float *scales, const float *biases)
{
    const size_t from = kernel_pick(m, t) * n_groups;
    return (struct fold_inputs){.scales = scales, .biases = biases,
                                .x_scale = m->in.scale + from, .x_offset = m->in.offset + from,
                                .x_sum = m->in.sum + from, .zero = (int32_t)m->w->quant->zero};
}

/* Stores the results of rows [first, first + n) for one token. Row `first` is in lane `lane`. */
static void store_rows(const struct kernel_matmul *m, size_t first, size_t n, size_t lane,
                       size_t t, vf result)
{
    float *to = kernel_out(m, t, first);
    if (n == LANES) {
        vf_store(to, result);
    } else {
        float lanes[LANES];
        vf_store(lanes, result);
        memcpy(to, lanes + lane, n * sizeof *to);
    }
}

#endif
