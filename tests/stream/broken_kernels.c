/* Replaces one kernel with a broken one: the product of a row depends on how many rows are in the
 * batch. Linked before the library's own levels.c, it replaces that file. */
#define level_kernels whole_kernels
#include "../../src/backend/cpu/levels.c"
#undef level_kernels

static struct kernels whole;

static void matmul_by_batch(const struct kernel_matmul *m)
{
    whole.matmul(m);
    for (size_t t = 0; m->n > 1 && t < m->n; t++)
        for (size_t r = m->begin; r < m->end; r++)
            *kernel_out(m, t, r) *= 1.0f + 0x1p-23f; /* one unit in the last place */
}

void level_kernels(const struct level *level, struct kernels *out);
void level_kernels(const struct level *level, struct kernels *out)
{
    whole_kernels(level, &whole);
    *out = whole;
    out->matmul = matmul_by_batch;
}
