#include "quant/interleave.h"

#include <string.h>

#include "base/pool.h"

#define ROWS INTERLEAVE_ROWS
#define WORD sizeof(uint32_t)
#define MIN_WORDS 4 /* of a row, or of a block of GGUF */

bool interleave_suits(const struct quant *quant, uint64_t n_rows, uint64_t n_cols)
{
    const bool has_order =
        quant->codes == QUANT_CODES_FP4 ||
        (quant->codes == QUANT_CODES_AFFINE && (quant->bits == 4 || quant->bits == 8));
    return has_order && n_rows % ROWS == 0 &&
           n_cols <= INTERLEAVE_BLOCK_BYTES / ROWS * 8 / quant->bits;
}

/* GGUF's blocks hold codes and scales in one part. */
static bool has_whole_blocks(const struct quant *quant)
{
    return quant->codes != QUANT_NO_CODES && quant->n_parts == 1;
}

/* Codes that are no whole nibbles or bytes, with scales apart. */
static bool has_odd_codes(const struct quant *quant)
{
    return quant->codes == QUANT_CODES_AFFINE && quant->bits != 4 && quant->bits != 8;
}

bool interleave_suits_memory(const struct quant *quant, uint64_t n_rows, uint64_t n_cols)
{
    const uint64_t bytes = quant_part_row_bytes(quant, 0, n_cols);
    return (has_whole_blocks(quant) || has_odd_codes(quant)) && n_rows % ROWS == 0 &&
           bytes >= MIN_WORDS * WORD && bytes <= INTERLEAVE_BLOCK_BYTES / ROWS;
}

/* ---- transposing ------------------------------------------------------------------------------
 * Four by four words, or eight by eight halves, at a time, in vectors that every processor has. */

typedef uint32_t words __attribute__((vector_size(16)));
typedef uint16_t halves __attribute__((vector_size(16)));

/* Transposes four vectors of four words that are from_step bytes apart, to to_step. */
static inline void turn_four(const char *from, size_t from_step, char *to, size_t to_step)
{
    words x[4];
    for (size_t k = 0; k < 4; k++)
        memcpy(&x[k], from + k * from_step, sizeof x[k]);
    const words a = __builtin_shufflevector(x[0], x[2], 0, 4, 1, 5);
    const words b = __builtin_shufflevector(x[1], x[3], 0, 4, 1, 5);
    const words c = __builtin_shufflevector(x[0], x[2], 2, 6, 3, 7);
    const words d = __builtin_shufflevector(x[1], x[3], 2, 6, 3, 7);
    const words y[4] = {__builtin_shufflevector(a, b, 0, 4, 1, 5),
                        __builtin_shufflevector(a, b, 2, 6, 3, 7),
                        __builtin_shufflevector(c, d, 0, 4, 1, 5),
                        __builtin_shufflevector(c, d, 2, 6, 3, 7)};
    for (size_t k = 0; k < 4; k++)
        memcpy(to + k * to_step, &y[k], sizeof y[k]);
}

#define COLUMN (ROWS * WORD) /* bytes of one word of each row */

/* Words are turned four at a time. Returns the first of those after i. There are n, at least
 * MIN_WORDS; the last four may overlap those before. */
static size_t next_four(size_t i, size_t n)
{
    return i + 4 < n && i + 8 > n ? n - 4 : i + 4;
}

/* Transposes 16 rows of n words, row_bytes apart, into n columns of 16. */
static void turn_words(const char *from, size_t row_bytes, size_t n, char *to)
{
    for (size_t i = 0; i < n; i = next_four(i, n))
        for (size_t r = 0; r < ROWS; r += 4)
            turn_four(from + r * row_bytes + i * WORD, row_bytes, to + i * COLUMN + r * WORD,
                      COLUMN);
}

/* The way back. */
static void turn_words_back(const char *from, size_t n, char *to, size_t row_bytes)
{
    for (size_t i = 0; i < n; i = next_four(i, n))
        for (size_t r = 0; r < ROWS; r += 4)
            turn_four(from + i * COLUMN + r * WORD, COLUMN, to + r * row_bytes + i * WORD,
                      row_bytes);
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

/* ---- blocks of GGUF ----------------------------------------------------------------------------
 * A scale in front of the words, or behind them, is shorter than a word. */

struct units {
    size_t bytes, head, n_words, tail;
};

static struct units units_of(const struct quant *quant)
{
    const size_t bytes = quant->part_block_bytes[0], odd = bytes % WORD;
    return (struct units){.bytes = bytes, .head = quant->block == 32 ? odd : 0,
                          .n_words = bytes / WORD, .tail = quant->block == 32 ? 0 : odd};
}

/* Copies one unit of one or two bytes of each row. */
static void copy_odd(const char *from, size_t from_step, char *to, size_t to_step, size_t n)
{
    for (size_t r = 0; n == 1 && r < ROWS; r++)
        to[r * to_step] = from[r * from_step];
    for (size_t r = 0; n == 2 && r < ROWS; r++)
        memcpy(to + r * to_step, from + r * from_step, sizeof(uint16_t));
}

/* Interleaves n_blocks blocks of sixteen rows. */
static void turn_blocks(struct units u, const char *from, size_t n_blocks, char *to)
{
    const size_t row_bytes = n_blocks * u.bytes, tail = u.bytes - u.tail;
    for (size_t b = 0; b < n_blocks; b++, from += u.bytes, to += ROWS * u.bytes) {
        copy_odd(from, row_bytes, to, u.head, u.head);
        turn_words(from + u.head, row_bytes, u.n_words, to + ROWS * u.head);
        copy_odd(from + tail, row_bytes, to + ROWS * tail, u.tail, u.tail);
    }
}

static void restore_blocks(const struct quant *quant, uint64_t n_cols, const char *from, char *to)
{
    const struct units u = units_of(quant);
    const size_t row_bytes = (size_t)quant_part_row_bytes(quant, 0, n_cols);
    const size_t tail = u.bytes - u.tail;
    for (const char *end = to + row_bytes; to < end; to += u.bytes, from += ROWS * u.bytes) {
        copy_odd(from, u.head, to, row_bytes, u.head);
        turn_words_back(from + ROWS * u.head, u.n_words, to + u.head, row_bytes);
        copy_odd(from + ROWS * tail, u.tail, to + tail, row_bytes, u.tail);
    }
}

void interleave_restore(const struct quant *quant, unsigned part, uint64_t n_cols,
                        const void *from, void *to)
{
    const size_t row_bytes = (size_t)quant_part_row_bytes(quant, part, n_cols);
    const size_t half = sizeof(uint16_t);
    if (has_whole_blocks(quant))
        restore_blocks(quant, n_cols, from, to);
    else if (part == 0)
        turn_words_back(from, row_bytes / WORD, to, row_bytes);
    else
        for (size_t at = 0; at < row_bytes; at += half)
            copy_odd((const char *)from + ROWS * at, half, (char *)to + at, row_bytes, half);
}

/* Copies the units of row r among sixteen. */
static void take_blocks(struct units u, const char *from, size_t r, size_t n_blocks, char *to)
{
    const size_t tail = u.bytes - u.tail;
    for (size_t b = 0; b < n_blocks; b++, from += ROWS * u.bytes, to += u.bytes) {
        memcpy(to, from + r * u.head, u.head);
        for (size_t i = 0; i < u.n_words; i++)
            memcpy(to + u.head + i * WORD, from + ROWS * u.head + i * COLUMN + r * WORD, WORD);
        memcpy(to + tail, from + ROWS * tail + r * u.tail, u.tail);
    }
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
        if (has_whole_blocks(quant))
            turn_blocks(units_of(quant), before, (size_t)(n_cols / quant->block), block);
        else if (part == 0)
            turn_words(before, row_bytes, row_bytes / WORD, block);
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

static bool all_changes(const struct weight *w)
{
    return interleave_changes(w) ||
           (!w->is_interleaved && interleave_suits_memory(w->quant, w->n_rows, w->n_cols));
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
const struct weight_preparer interleave_all_preparer = {.changes = all_changes,
                                                        .prepare = interleave_prepare};

void interleave_take_row(const struct weight *w, uint64_t r, void *to, const void *parts[])
{
    char *at = to;
    if (has_whole_blocks(w->quant)) {
        const uint64_t row_bytes = quant_part_row_bytes(w->quant, 0, w->n_cols);
        take_blocks(units_of(w->quant), (const char *)w->parts[0] + r / ROWS * ROWS * row_bytes,
                    r % ROWS, w->n_cols / w->quant->block, at);
        parts[0] = at;
        return;
    }
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
