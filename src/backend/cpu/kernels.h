/* The kernel table: the inner loops of the CPU backend, one thread's share each. k_ref.c defines
 * every result. A faster level must reproduce its bits; tests/kernels checks that. Levels are
 * listed in levels.h.
 *
 * Float reductions: 16 lanes. Lane j takes elements j, j+16, ... with fused multiply-adds, then the
 * tree j += j+8, j+4, j+2, j+1.
 *
 * Formats that are codes (quant.h): the activation row is int8 per group of the weight's columns
 * (scale = max|x|/127, round to nearest even). Group dot products are exact integers. A row is the
 * left fold over groups acc = fmaf(s_w * s_x, dot, acc). If there is a bias, each group also adds
 * acc = fmaf(b_w, offset_x, acc) with offset_x = s_x * sum of the group's codes.
 *
 * Attention: each block of positions gives its largest score, the sum of exponentials and the
 * weighted values. The blocks are merged in ascending order, then the sink. If a window begins
 * within a block, only the block's positions inside the window count. If keys and values are
 * rotated (quant/kv.h), a score is (<q, levels> * the key's scale) * scale, and the share of a
 * value is multiplied with its scale before its levels. */
#ifndef FLASHMOE_BACKEND_CPU_KERNELS_H
#define FLASHMOE_BACKEND_CPU_KERNELS_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Positions in a block of attention. Blocks begin at position 0. */
#define KERNEL_ATTENTION_BLOCK 256
/* Floats of scratch for attention: scores, and some rows of keys or columns of values, padded. */
#define KERNEL_ATTENTION_SCRATCH(n_heads, head_dim)                                                \
    ((size_t)(n_heads) * KERNEL_ATTENTION_BLOCK + 8 * (size_t)(head_dim) + 64 * 96)
/* The number of weight rows that a kernel prefers to process together. Parts of a matrix should
 * begin and end at multiples of it, but need not. */
#define KERNEL_ROWS 16
/* The smallest group size of the formats that are codes. */
#define KERNEL_SMALLEST_GROUP 16
/* A smaller magnitude counts as zero when a group of activations is rounded. */
#define KERNEL_MIN_SCALED 0x1p-100f
/* Floats of scratch for a matmul with n_cols columns and n inputs: panels of the weight's rows, the
 * inputs in the kernel's own order, and the sums of two row blocks. n is rounded up to a multiple
 * of 16. */
#define KERNEL_MATMUL_SCRATCH(n_cols, n)                                                           \
    (12 * (size_t)(n_cols) + ((size_t)(n) + 15) / 16 * (7 * (n_cols) + 16 * 32) + 2048)

/* Activation rows in the form the weight's format needs: only `x` if it is not codes, the others if
 * it is. Arrays are aligned only to their element size, because one expert's intermediates follow
 * another's. */
struct kernel_input {
    const float *x;       /* [n, n_cols] */
    const int8_t *q;      /* [n, n_cols] */
    const float *scale;   /* [n, n_groups] */
    const float *offset;  /* [n, n_groups] */
    const int32_t *sum;   /* [n, n_groups] */
};

/* Rows [begin, end) of w against n inputs. For an interleaved w these are whole blocks. */
struct kernel_matmul {
    const struct weight *w;
    size_t begin, end;
    struct kernel_input in;
    size_t n;
    const uint32_t *pick; /* input t is row pick[t] of `in`; NULL: row t */
    float *y;
    size_t y_stride;       /* floats */
    const uint32_t *place; /* result t goes to row place[t] of y; NULL: row t */
    size_t y_first;        /* the weight row that goes to column 0 of y */
    float *scratch;        /* [KERNEL_MATMUL_SCRATCH], at a multiple of 64 bytes */
    /* The last product in this scratch had the same n, in and pick, and a weight of the same
     * format, layout and width. The kernel may reuse what it keeps there of the inputs. */
    bool has_same_inputs;
    /* The weight that this thread multiplies with next, and its first row. Its first rows are
     * prefetched while the last rows of this product are multiplied. NULL: not known. */
    const struct weight *next;
    size_t next_row;
};

/* Query heads that share a key and value head, of one row or of several that see the same
 * positions, against one block of them. */
struct kernel_attention {
    const struct kv_format *kv_format;
    const float *q; /* kernel_query finds a head's; rotated if the format is */
    size_t q_stride, q_row_stride;
    unsigned n_heads, head_dim; /* heads of all rows, row after row */
    unsigned row_heads;         /* heads of each row; 0: there is one row */
    unsigned value_dim;        /* numbers of a value that count: all head_dim if rotated */
    const char *keys, *values; /* [n_positions] rows of head_dim numbers */
    size_t n_positions;        /* at most KERNEL_ATTENTION_BLOCK */
    float scale;
    float *max, *total; /* [n_heads]: the largest score; the sum of exponentials */
    float *out;          /* [n_heads, value_dim], rotated if the format is */
    float *scratch;      /* [KERNEL_ATTENTION_SCRATCH] */
};

struct kernels {
    const char *name;
    bool takes_blocks; /* rows interleaved that no file has so (interleave_suits_memory) */
    unsigned n_few; /* products with up to so many inputs take as long as reading the weight */

    /* Quantizes one row of n columns in groups of `group`. */
    void (*quantize_row)(const float *x, size_t n, size_t group, int8_t *q, float *scale,
                         float *offset, int32_t *sum);
    void (*matmul)(const struct kernel_matmul *args);
    void (*rms_norm)(const float *x, const float *weight, float eps, size_t n, float *y);
    void (*rope_angles)(uint32_t position, const float *frequencies, unsigned half,
                        float *cosines, float *sines);
    void (*rotate)(float *x, const float *cosines, const float *sines, unsigned half);
    /* Stores the vector of one head, n floats, in a row of keys or values. */
    void (*store_kv)(const struct kv_format *kv_format, enum kv_side side, const float *x, size_t n,
                     void *to);
    void (*attend)(const struct kernel_attention *args);
    /* Merges a later block's result into an earlier one's: max, total and out of one head. */
    void (*attend_merge)(float *max, float *total, float *out, float max_block,
                         float block_total, const float *block_out, size_t head_dim);
    /* Adds a score whose value vector is zero to the total of one head. */
    void (*attend_sink)(float max, float *total, float *out, float sink, size_t head_dim);
    /* out[i] /= total, times sigmoid(gate[i]) unless gate is NULL. */
    void (*attend_close)(float *out, float total, const float *gate, size_t head_dim);
    /* Channels [begin, end) of one segment: convolution over time, silu, new history. */
    void (*conv_silu)(const struct backend_delta_net *args, const struct backend_segment *segment,
                      size_t begin, size_t end);
    /* One value head of one segment, row after row. `scratch` holds KERNEL_DELTA_SCRATCH floats. */
    void (*delta_head)(const struct backend_delta_net *args,
                       const struct backend_segment *segment, unsigned head, float *scratch);
    /* First a plain router without its scale (router.h), then any router. */
    void (*route_row)(const float *logits, unsigned n_experts, unsigned k, bool renormalise,
                      uint32_t *ids, float *weights);
    void (*route_scored)(const struct router *router, const float *logits, uint32_t *ids,
                         float *weights);
    void (*silu_mul)(float *gate, const float *up, size_t n);
    void (*gelu_mul)(float *gate, const float *up, size_t n);
    void (*clamped_swiglu)(float *gate, const float *up, float alpha, float limit, size_t n);
    void (*weighted_sum)(const float *parts, const float *weights, unsigned k, size_t dim,
                         float *out);
    void (*add_scaled_sigmoid)(float *y, const float *x, float gate, size_t n);
    void (*add)(float *y, const float *x, size_t n);
    /* Multiplies bytes that stay in registers, as fast as this level can. Returns the number of
     * operations; a multiply-add counts as two. */
    uint64_t (*int8_peak)(uint64_t n_rounds);
    uint64_t (*fma_peak)(uint64_t n_rounds); /* the same with floats */
};

/* Floats of scratch for delta_head: keys, queries and two factors of the rows processed
 * together, and sixteen rows of a state. */
#define KERNEL_DELTA_ROWS 64
#define KERNEL_DELTA_SCRATCH(key_dim) \
    (KERNEL_DELTA_ROWS * (2 * (size_t)(key_dim) + 2) + 16 * (size_t)(key_dim) + 256)

/* Where a part of a segment's recurrent state lies: behind its row t, and before it. They are in
 * different slots if the rows leave a trail. */
static inline float *kernel_state_behind(const struct backend_segment *s, unsigned part, size_t t)
{
    if (s->n_slots == 0)
        return (float *)s->state[part];
    const uint64_t slot = (s->slot + t + 1) % s->n_slots;
    char *first = (char *)s->state[part] - s->slot * s->slot_bytes;
    return (float *)(void *)(first + slot * s->slot_bytes);
}

static inline const float *kernel_state_before(const struct backend_segment *s, unsigned part,
                                               size_t t)
{
    return t == 0 ? (const float *)s->state[part] : kernel_state_behind(s, part, t - 1);
}

/* Returns the query of head h. */
static inline const float *kernel_query(const struct kernel_attention *a, size_t h)
{
    if (a->row_heads == 0)
        return a->q + h * a->q_stride;
    return a->q + h / a->row_heads * a->q_row_stride + h % a->row_heads * a->q_stride;
}

/* Which input row product t reads, and where its result for weight row r goes. */
static inline size_t kernel_pick(const struct kernel_matmul *m, size_t t)
{
    return m->pick != NULL ? m->pick[t] : t;
}

static inline float *kernel_out(const struct kernel_matmul *m, size_t t, size_t r)
{
    return m->y + (m->place != NULL ? m->place[t] : t) * m->y_stride + (r - m->y_first);
}

#ifdef __cplusplus
}
#endif
#endif
