/* Byte-pair merging. A table maps a pair of neighbouring ids to the rank of its merge and to the
 * resulting id. A piece is merged in order of rank; equal ranks from left to right.
 *
 * The table is written while a tokenizer is loaded; after that any number of threads may read it. A
 * bpe_work is the scratch memory of one thread. The only failure is FM_ERR_NOMEM. */
#ifndef FLASHMOE_TEXT_BPE_H
#define FLASHMOE_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bpe_merge {
    uint32_t left, right;
    uint32_t rank; /* BPE_NO_RANK for a free slot */
    uint32_t result;
};

#define BPE_NO_RANK UINT32_MAX

struct bpe_table {
    struct bpe_merge *slots; /* open addressing, linear probing */
    uint32_t n_slots;
};

/* Allocates room for `n_merges` merges. */
int bpe_table_init(struct bpe_table *table, uint32_t n_merges, struct fm_error *err);
void bpe_table_clear(struct bpe_table *table); /* accepts a zeroed one */
/* Returns false if the pair is already there. At most `n_merges` may be added. */
bool bpe_table_add(struct bpe_table *table, const struct bpe_merge *merge);
/* Returns NULL if the pair does not merge. */
const struct bpe_merge *bpe_table_find(const struct bpe_table *table, uint32_t left,
                                       uint32_t right);

struct bpe_symbol;

struct bpe_work {
    int32_t *ids; /* the result; every bpe_encode appends to it */
    size_t n_ids, ids_capacity;
    uint32_t *input; /* ids of a piece that bpe_encode_symbols will merge */
    size_t n_symbols, input_capacity;
    struct bpe_symbol *symbols;
    size_t symbols_capacity;
    uint64_t *heap; /* rank << 32 | symbol, smallest first */
    size_t n_heap, heap_capacity;
};

void bpe_work_clear(struct bpe_work *work); /* accepts a zeroed one */

int bpe_push_id(struct bpe_work *work, uint32_t id, struct fm_error *err);

/* Appends the ids of one piece. `byte_ids` are the ids of the 256 single bytes; `bytes` must be
 * below 2^32. O(n log n). */
int bpe_encode(const struct bpe_table *table, const uint32_t byte_ids[256], struct bpe_work *work,
               const uint8_t *piece, size_t bytes, struct fm_error *err);

/* Does the same for a piece whose ids are given one by one: push them, then encode. */
int bpe_push_symbol(struct bpe_work *work, uint32_t id, struct fm_error *err);
int bpe_encode_symbols(const struct bpe_table *table, struct bpe_work *work, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
