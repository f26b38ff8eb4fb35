/* Tables that stay on the disk, of which a token uses a few rows. Part of a model (model.h), which
 * owns them; immutable. */
#ifndef FLASHMOE_MODEL_ROW_TABLE_H
#define FLASHMOE_MODEL_ROW_TABLE_H

#include <stdint.h>

#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a part of a table lies. */
struct row_shard {
    uint32_t file;
    uint64_t offset, first_row;
};

/* A table that stays on the disk. A token uses a few of its rows, which follow from the token and
 * those before it (arch.h). */
struct row_table {
    uint32_t layer;       /* that uses it */
    uint32_t n_per_token; /* rows that a token uses, one after the other */
    uint32_t n_recent;    /* tokens that they follow from, its own included */
    uint32_t n_cols;
    uint64_t n_rows, shard_rows, row_bytes;
    const struct quant *quant;
    float scale; /* of all numbers; 1 unless the format is quant_fp8_codes */
    struct row_shard *shards; /* [n_shards], of shard_rows rows each */
    uint32_t n_shards;
};

#ifdef __cplusplus
}
#endif
#endif
