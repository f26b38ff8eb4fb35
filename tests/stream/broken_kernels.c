/* The reference kernels with one of them spoilt: the product of a row depends on how many rows
 * are in the batch. Linked before the library's own table, it takes its place. */
#define kernels_ref kernels_whole
#include "../../src/backend/cpu/k_ref.c"
#undef kernels_ref

static void matmul_by_batch(const struct weight *w, size_t begin, size_t end,
                            const struct kernel_input *in, size_t n, float *y, size_t y_stride,
                            float *scratch)
{
    matmul(w, begin, end, in, n, y, y_stride, scratch);
    for (size_t t = 0; n > 1 && t < n; t++)
        for (size_t r = begin; r < end; r++)
            y[t * y_stride + r] *= 1.0f + 0x1p-23f; /* one unit in the last place */
}

extern const struct kernels kernels_ref;
const struct kernels kernels_ref = {
    .name = "broken",
    .quantize_row = quantize_row,
    .matmul = matmul_by_batch,
    .rms_norm = rms_norm,
    .rope_angles = rope_angles,
    .rotate = rotate,
    .attend = attend,
    .mul_sigmoid = mul_sigmoid,
    .conv_silu = conv_silu,
    .delta_head = delta_head,
    .route_row = route_row,
    .silu_mul = silu_mul,
    .weighted_sum = weighted_sum,
    .add_scaled_sigmoid = add_scaled_sigmoid,
    .add = add,
};
