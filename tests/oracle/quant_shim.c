/* The number formats as plain functions, for compare_gguf_blocks.py to load. */
#include "quant/quant.h"

int shim_decode(const char *name, const void *part0, const void *part1, float *dst, size_t n);
int shim_encode(const char *name, const float *src, void *dst, size_t n);

int shim_decode(const char *name, const void *part0, const void *part1, float *dst, size_t n)
{
    const struct quant *q = quant_find(name);
    if (q == NULL || n % q->block != 0)
        return -1;
    const void *parts[QUANT_MAX_PARTS] = {part0, part1};
    q->decode_row(q, parts, dst, n);
    return 0;
}

int shim_encode(const char *name, const float *src, void *dst, size_t n)
{
    const struct quant *q = quant_find(name);
    if (q == NULL || q->encode_row == NULL || n % q->block != 0)
        return -1;
    void *parts[QUANT_MAX_PARTS] = {dst};
    q->encode_row(q, src, parts, n);
    return 0;
}
