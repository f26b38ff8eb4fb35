/* Emulates the tile instructions of AMX, which few processors have, in C. k_amx.c is compiled with
 * this header first: see check_tiles.sh. A product of tiles whose shapes do not fit together ends
 * the program, as the processor would. */
#ifndef FLASHMOE_TESTS_KERNELS_TILES_H
#define FLASHMOE_TESTS_KERNELS_TILES_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILES 8
#define TILE_MOST_ROWS 16
#define TILE_MOST_BYTES 64

struct emulated_tile {
    unsigned n_rows, row_bytes;
    uint8_t bytes[TILE_MOST_ROWS][TILE_MOST_BYTES];
};

static _Thread_local struct emulated_tile emulated_tiles[TILES];

static void emulated_stop(const char *why)
{
    fprintf(stderr, "tile instructions: %s\n", why);
    abort();
}

static struct emulated_tile *emulated_tile(unsigned i)
{
    struct emulated_tile *tile = &emulated_tiles[i];
    if (tile->n_rows == 0 || tile->row_bytes == 0)
        emulated_stop("a tile without a shape is used");
    return tile;
}

/* Offsets as in the processor's manual: 0 the palette, 16 bytes per row, 48 rows. */
static inline void emulated_configure(const void *from)
{
    const uint8_t *config = (const uint8_t *)from;
    if (config[0] != 1)
        emulated_stop("a palette other than 1");
    memset(emulated_tiles, 0, sizeof emulated_tiles);
    for (unsigned i = 0; i < TILES; i++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, config + 16 + 2 * i, sizeof row_bytes);
        if (row_bytes > TILE_MOST_BYTES || config[48 + i] > TILE_MOST_ROWS)
            emulated_stop("a tile larger than 16 rows of 64 bytes");
        emulated_tiles[i].row_bytes = row_bytes;
        emulated_tiles[i].n_rows = config[48 + i];
    }
}

static inline void emulated_release(void)
{
    memset(emulated_tiles, 0, sizeof emulated_tiles);
}

static inline void emulated_zero(unsigned i)
{
    struct emulated_tile *tile = emulated_tile(i);
    memset(tile->bytes, 0, sizeof tile->bytes);
}

static inline void emulated_load(unsigned i, const void *from, size_t stride)
{
    struct emulated_tile *tile = emulated_tile(i);
    memset(tile->bytes, 0, sizeof tile->bytes);
    for (unsigned r = 0; r < tile->n_rows; r++)
        memcpy(tile->bytes[r], (const uint8_t *)from + r * stride, tile->row_bytes);
}

static inline void emulated_store(unsigned i, void *to, size_t stride)
{
    const struct emulated_tile *tile = emulated_tile(i);
    for (unsigned r = 0; r < tile->n_rows; r++)
        memcpy((uint8_t *)to + r * stride, tile->bytes[r], tile->row_bytes);
}

/* sums += the products of four signed bytes of a with four unsigned ones of b. */
static inline void emulated_multiply(unsigned sums, unsigned a, unsigned b)
{
    struct emulated_tile *c = emulated_tile(sums);
    const struct emulated_tile *x = emulated_tile(a), *y = emulated_tile(b);
    if (x->row_bytes != 4 * y->n_rows || c->n_rows != x->n_rows || c->row_bytes != y->row_bytes)
        emulated_stop("the shapes of a product do not fit together");
    for (unsigned r = 0; r < c->n_rows; r++)
        for (unsigned col = 0; col < c->row_bytes / 4; col++) {
            int32_t sum;
            memcpy(&sum, c->bytes[r] + 4 * col, sizeof sum);
            for (unsigned k = 0; k < x->row_bytes; k++)
                sum += (int8_t)x->bytes[r][k] * y->bytes[k / 4][4 * col + k % 4];
            memcpy(c->bytes[r] + 4 * col, &sum, sizeof sum);
        }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig emulated_configure
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbsud emulated_multiply

#endif
