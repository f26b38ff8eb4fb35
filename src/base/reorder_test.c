/* Rows taken apart and matrices transposed in place, compared with copies. */
#include "base/reorder.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(uint8_t *at, size_t n)
{
    static uint32_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        at[i] = (uint8_t)(x >> 24);
    }
}

static int check_unzip(size_t n, size_t row_bytes)
{
    const size_t bytes = 2 * n * row_bytes;
    uint8_t *before = malloc(bytes), *after = malloc(bytes);
    fill(before, bytes);
    memcpy(after, before, bytes);
    reorder_unzip(after, n, row_bytes);
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        bad |= memcmp(after + i * row_bytes, before + 2 * i * row_bytes, row_bytes) != 0;
        bad |= memcmp(after + (n + i) * row_bytes, before + (2 * i + 1) * row_bytes, row_bytes);
    }
    if (bad)
        printf("unzip of 2 * %zu rows of %zu bytes is wrong\n", n, row_bytes);
    free(before);
    free(after);
    return bad != 0;
}

static int check_transpose(size_t n_rows, size_t n_cols, size_t size)
{
    const size_t bytes = n_rows * n_cols * size;
    uint8_t *before = malloc(bytes), *after = malloc(bytes);
    fill(before, bytes);
    memcpy(after, before, bytes);
    reorder_transpose(after, n_rows, n_cols, size);
    int bad = 0;
    for (size_t i = 0; i < n_rows; i++)
        for (size_t j = 0; j < n_cols; j++)
            bad |= memcmp(after + (j * n_rows + i) * size, before + (i * n_cols + j) * size, size);
    if (bad)
        printf("transpose of %zu x %zu elements of %zu bytes is wrong\n", n_rows, n_cols, size);
    free(before);
    free(after);
    return bad != 0;
}

int main(void)
{
    static const size_t rows[] = {1, 2, 3, 4, 5, 8, 17, 31, 32, 64, 90, 255, 256, 1000};
    static const size_t row_bytes[] = {1, 3, 90, 1440, 4096, 4097, 9000};
    static const size_t sides[] = {1, 2, 3, 4, 6, 7, 12, 17, 32, 64, 90, 128, 180, 191};
    const size_t n_sides = sizeof sides / sizeof sides[0];
    int n_bad = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t k = 0; k < sizeof row_bytes / sizeof row_bytes[0]; k++)
            n_bad += check_unzip(rows[i], row_bytes[k]);
    for (size_t i = 0; i < n_sides; i++)
        for (size_t k = 0; k < n_sides; k++)
            for (size_t size = 1; size <= 4; size *= 2)
                n_bad += check_transpose(sides[i], sides[k], size);
    n_bad += check_transpose(2880, 5760, 2);
    n_bad += check_transpose(5, REORDER_MAX_LINE / 4, 4);
    n_bad += check_transpose(REORDER_MAX_LINE / 4, 3, 4);
    n_bad += reorder_can_transpose(REORDER_MAX_LINE / 4 + 1, 1, 4) ||
             !reorder_can_transpose(REORDER_MAX_LINE / 4, 2, 4);
    printf("%d failures\n", n_bad);
    return n_bad != 0;
}
