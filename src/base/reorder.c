#include "base/reorder.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

/* ---- rows that alternate --------------------------------------------------------------------- */

/* Bytes of a row that are moved at a time. */
#define PIECE_BYTES 4096u

/* Returns which row comes to place `to`. */
static size_t unzip_source(size_t to, size_t n)
{
    return to < n ? 2 * to : 2 * (to - n) + 1;
}

/* Returns whether `place` is the smallest of its cycle, from which the cycle is moved. */
static bool leads_cycle(size_t place, size_t n)
{
    size_t from = unzip_source(place, n);
    while (from > place)
        from = unzip_source(from, n);
    return from == place;
}

/* Moves `bytes` bytes of the rows of one cycle. */
static void move_cycle(char *rows, size_t n, size_t row_bytes, size_t leader, size_t bytes)
{
    char kept[PIECE_BYTES];
    size_t to = leader, from = unzip_source(to, n);
    memcpy(kept, rows + leader * row_bytes, bytes);
    for (; from != leader; to = from, from = unzip_source(from, n))
        memcpy(rows + to * row_bytes, rows + from * row_bytes, bytes);
    memcpy(rows + to * row_bytes, kept, bytes);
}

void reorder_unzip(void *rows, size_t n, size_t row_bytes)
{
    /* The first row and the last one stay. */
    for (size_t leader = 1; leader + 1 < 2 * n; leader++) {
        if (!leads_cycle(leader, n))
            continue;
        for (size_t at = 0; at < row_bytes; at += PIECE_BYTES) {
            const size_t left = row_bytes - at;
            move_cycle((char *)rows + at, n, row_bytes, leader,
                       left < PIECE_BYTES ? left : PIECE_BYTES);
        }
    }
}

/* ---- transposing ------------------------------------------------------------------------------
 * A rectangle becomes its transpose by three permutations: of each column, of each row, and of each
 * column again (Catanzaro, Keller and Garland, "A decomposition for in-place matrix
 * transposition", 2014). Each needs room for one row or column only. */

/* Columns that are permuted together: lines of the processor's cache are used whole. */
#define MAX_COLUMNS 64u

struct shape {
    size_t n_rows, n_cols;
    size_t a, b; /* rows and columns, divided by their greatest common divisor */
    size_t bytes; /* of an element */
};

static size_t greatest_divisor(size_t a, size_t b)
{
    while (b != 0) {
        const size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

bool reorder_can_transpose(size_t n_rows, size_t n_cols, size_t element_bytes)
{
    return n_rows <= REORDER_MAX_LINE / element_bytes && n_cols <= REORDER_MAX_LINE / element_bytes;
}

static inline void copy_element(char *to, const char *from, size_t bytes)
{
    if (bytes == 2)
        memcpy(to, from, 2);
    else if (bytes == 4)
        memcpy(to, from, 4);
    else
        *to = *from;
}

/* Moves the columns [first, first + n) up: column j by j / b rows, the first rows to the end. */
static void turn_columns(char *at, const struct shape *s, size_t first, size_t n, char *room)
{
    const size_t size = s->bytes, row_bytes = s->n_cols * size;
    for (size_t i = 0; i < s->n_rows; i++)
        memcpy(room + i * n * size, at + i * row_bytes + first * size, n * size);
    for (size_t k = 0; k < n; k++) {
        size_t from = (first + k) / s->b % s->n_rows;
        for (size_t i = 0; i < s->n_rows; i++, from = from + 1 < s->n_rows ? from + 1 : 0)
            copy_element(at + i * row_bytes + (first + k) * size, room + (from * n + k) * size,
                         size);
    }
}

static void shuffle_row(char *row, const struct shape *s, size_t i, char *room)
{
    for (size_t j = 0; j < s->n_cols; j++) {
        const size_t to = ((i + j / s->b) % s->n_rows + j * s->n_rows) % s->n_cols;
        copy_element(room + to * s->bytes, row + j * s->bytes, s->bytes);
    }
    memcpy(row, room, s->n_cols * s->bytes);
}

static void shuffle_columns(char *at, const struct shape *s, size_t first, size_t n, char *room)
{
    const size_t size = s->bytes, row_bytes = s->n_cols * size;
    for (size_t i = 0; i < s->n_rows; i++)
        memcpy(room + i * n * size, at + i * row_bytes + first * size, n * size);
    for (size_t i = 0; i < s->n_rows; i++) {
        /* i / a is at most n_cols * i, so nothing is negative */
        size_t from = (first + i * s->n_cols - i / s->a) % s->n_rows;
        for (size_t k = 0; k < n; k++, from = from + 1 < s->n_rows ? from + 1 : 0)
            copy_element(at + i * row_bytes + (first + k) * size, room + (from * n + k) * size,
                         size);
    }
}

void reorder_transpose(void *at, size_t n_rows, size_t n_cols, size_t element_bytes)
{
    _Alignas(64) char room[REORDER_MAX_LINE];
    if (n_rows <= 1 || n_cols <= 1)
        return;
    assert(reorder_can_transpose(n_rows, n_cols, element_bytes));
    const size_t divisor = greatest_divisor(n_rows, n_cols);
    const struct shape s = {n_rows, n_cols, n_rows / divisor, n_cols / divisor, element_bytes};
    size_t step = REORDER_MAX_LINE / (n_rows * element_bytes);
    step = step < MAX_COLUMNS ? step : MAX_COLUMNS;
    for (size_t j = 0; divisor > 1 && j < n_cols; j += step)
        turn_columns(at, &s, j, n_cols - j < step ? n_cols - j : step, room);
    for (size_t i = 0; i < n_rows; i++)
        shuffle_row((char *)at + i * n_cols * element_bytes, &s, i, room);
    for (size_t j = 0; j < n_cols; j += step)
        shuffle_columns(at, &s, j, n_cols - j < step ? n_cols - j : step, room);
}
