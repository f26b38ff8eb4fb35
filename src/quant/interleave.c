#include "quant/interleave.h"

#include <string.h>

#include "base/pool.h"

#define ROWS INTERLEAVE_ROWS

bool interleave_suits(const struct quant *quant, uint64_t n_rows, uint64_t n_cols)
{
    const bool has_order =
        quant->codes == QUANT_CODES_FP4 ||
        (quant->codes == QUANT_CODES_AFFINE && (quant->bits == 4 || quant->bits == 8));
    return has_order && n_rows % ROWS == 0 &&
           n_cols <= INTERLEAVE_BLOCK_BYTES / ROWS * 8 / quant->bits;
}

/* ---- transposing ------------------------------------------------------------------------------
 * Four by four words, or eight by eight halves, at a time, in vectors that every processor has. */

typedef uint32_t words __attribute__((vector_size(16)));
typedef uint16_t halves __attribute__((vector_size(16)));

/* Transposes 16 rows of n words into n columns of 16. */
static void turn_words(const char *from, size_t n, char *to)
{
    const size_t row_bytes = n * sizeof(uint32_t);
    for (size_t i = 0; i + 4 <= n; i += 4)
        for (size_t r = 0; r < ROWS; r += 4) {
            words x[4];
            for (size_t k = 0; k < 4; k++)
                memcpy(&x[k], from + (r + k) * row_bytes + i * sizeof(uint32_t), sizeof x[k]);
            const words a = __builtin_shufflevector(x[0], x[2], 0, 4, 1, 5);
            const words b = __builtin_shufflevector(x[1], x[3], 0, 4, 1, 5);
            const words c = __builtin_shufflevector(x[0], x[2], 2, 6, 3, 7);
            const words d = __builtin_shufflevector(x[1], x[3], 2, 6, 3, 7);
            const words y[4] = {__builtin_shufflevector(a, b, 0, 4, 1, 5),
                                __builtin_shufflevector(a, b, 2, 6, 3, 7),
                                __builtin_shufflevector(c, d, 0, 4, 1, 5),
                                __builtin_shufflevector(c, d, 2, 6, 3, 7)};
            for (size_t k = 0; k < 4; k++)
                memcpy(to + ((i + k) * ROWS + r) * sizeof(uint32_t), &y[k], sizeof y[k]);
        }
}

/* Interleave the low and high halves of two vectors. */
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

static void turn_eight(const halves x[8], halves y[8])
{
    halves a[8], b[8];
    for (size_t k = 0; k < 4; k++) {
        a[2 * k] = ZIP_LOW(x[k], x[k + 4]);
        a[2 * k + 1] = ZIP_HIGH(x[k], x[k + 4]);
    }
    for (size_t k = 0; k < 4; k++) {
        b[2 * k] = ZIP_LOW(a[k], a[k + 4]);
        b[2 * k + 1] = ZIP_HIGH(a[k], a[k + 4]);
    }
    for (size_t k = 0; k < 4; k++) {
        y[2 * k] = ZIP_LOW(b[k], b[k + 4]);
        y[2 * k + 1] = ZIP_HIGH(b[k], b[k + 4]);
    }
}

/* Transposes 16-bit halves in the same way. */
static void turn_halves(const char *from, size_t n, char *to)
{
    const size_t row_bytes = n * sizeof(uint16_t);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t r = 0; r < ROWS; r += 8) {
            halves x[8], y[8];
            for (size_t k = 0; k < 8; k++)
                memcpy(&x[k], from + (r + k) * row_bytes + i * sizeof(uint16_t), sizeof x[k]);
            turn_eight(x, y);
            for (size_t k = 0; k < 8; k++)
                memcpy(to + ((i + k) * ROWS + r) * sizeof(uint16_t), &y[k], sizeof y[k]);
        }
    for (; i < n; i++)
        for (size_t r = 0; r < ROWS; r++)
            memcpy(to + (i * ROWS + r) * sizeof(uint16_t),
                   from + r * row_bytes + i * sizeof(uint16_t), sizeof(uint16_t));
}

/* Transposes bytes. */
static void turn_bytes(const char *from, size_t n, char *to)
{
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < ROWS; r++)
            to[i * ROWS + r] = from[r * n + i];
}

/* ---- matrices -------------------------------------------------------------------------------- */

void interleave_part(const struct quant *quant, unsigned part, uint64_t n_cols, void *rows,
                     uint64_t n_blocks)
{
    _Alignas(64) char before[INTERLEAVE_BLOCK_BYTES];
    const size_t row_bytes = (size_t)quant_part_row_bytes(quant, part, n_cols);
    for (uint64_t b = 0; b < n_blocks; b++) {
        char *block = (char *)rows + b * ROWS * row_bytes;
        memcpy(before, block, ROWS * row_bytes);
        if (part == 0)
            turn_words(before, row_bytes / sizeof(uint32_t), block);
        else if (quant->part_block_bytes[part] == 1)
            turn_bytes(before, row_bytes, block);
        else
            turn_halves(before, row_bytes / sizeof(uint16_t), block);
    }
}

void interleave_blocks(const struct quant *quant, uint64_t n_cols, void *const parts[],
                       uint64_t begin, uint64_t end)
{
    for (unsigned p = 0; p < quant->n_parts; p++)
        interleave_part(quant, p, n_cols,
                        (char *)parts[p] + begin * ROWS * quant_part_row_bytes(quant, p, n_cols),
                        end - begin);
}

static bool interleave_changes(const struct weight *w)
{
    return !w->is_interleaved && interleave_suits(w->quant, w->n_rows, w->n_cols);
}

static void interleave_prepare(const struct weight *w, unsigned part, unsigned n_parts)
{
    void *parts[QUANT_MAX_PARTS];
    size_t begin, end;
    for (unsigned p = 0; p < w->quant->n_parts; p++)
        parts[p] = (void *)(uintptr_t)w->parts[p]; /* the caller may write there */
    pool_range(w->n_rows / ROWS, part, n_parts, &begin, &end);
    interleave_blocks(w->quant, w->n_cols, parts, begin, end);
}

const struct weight_preparer interleave_preparer = {.changes = interleave_changes,
                                                    .prepare = interleave_prepare};

void interleave_take_row(const struct weight *w, uint64_t r, void *to, const void *parts[])
{
    char *at = to;
    for (unsigned p = 0; p < w->quant->n_parts; p++) {
        const size_t row_bytes = (size_t)quant_part_row_bytes(w->quant, p, w->n_cols);
        const size_t unit = p == 0 ? sizeof(uint32_t) : w->quant->part_block_bytes[p];
        const char *from = w->parts[p];
        from += r / ROWS * ROWS * row_bytes + r % ROWS * unit;
        parts[p] = at;
        for (size_t i = 0; i < row_bytes; i += unit, at += unit, from += ROWS * unit)
            memcpy(at, from, unit);
    }
}
