/* The layout of one expert: in memory, and byte for byte the same in a packed file except for the
 * order of rows. Gate, up and down follow each other. Each part of a matrix begins at the next
 * multiple of RECORD_PART_ALIGN; the record ends at the next multiple of RECORD_ALIGN. Pure
 * functions: any thread. */
#ifndef FLASHMOE_FORMAT_RECORD_H
#define FLASHMOE_FORMAT_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RECORD_PART_ALIGN 64
#define RECORD_ALIGN 4096

enum { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_MATRICES };

struct record_matrix {
    const struct quant *quant;
    uint32_t n_rows, n_cols;
    bool lies_interleaved; /* in the file (interleave.h) */
    bool is_interleaved;   /* in memory, if its layer is prepared for a backend */
    uint64_t part_offset[QUANT_MAX_PARTS]; /* from the start of the record */
};

struct record {
    struct record_matrix matrices[EXPERT_MATRICES];
    uint64_t data_bytes; /* without padding */
    uint64_t bytes;
    /* How an expert of a checkpoint lies in its file, and arrives in memory: record_settle puts it
     * in order. Both are false in a packed file. */
    bool lies_zipped;     /* one row of gate, one of up, and so on; up is placed behind gate */
    bool lies_transposed; /* floats, column by column; gate and up are one matrix if zipped */
};

/* Places the parts of a matrix from *at on and moves *at after the last part, without rounding.
 * Returns false on overflow. */
bool record_place(const struct quant *quant, uint64_t n_rows, uint64_t n_cols, uint64_t *at,
                  uint64_t part_offset[QUANT_MAX_PARTS]);
/* Computes part_offset and the sizes from the formats and shapes. Returns false on overflow. */
bool record_layout(struct record *record);

/* Puts the matrices of the record at `data` in order, in place, if they do not lie so. */
void record_settle(const struct record *record, void *data);
/* Returns whether record_settle changes anything. */
static inline bool record_is_settled(const struct record *record)
{
    return !record->lies_zipped && !record->lies_transposed;
}

/* Changes the rows of one matrix of the record at `data` to the order of interleave.h. */
void record_interleave(const struct record_matrix *matrix, void *data);

#ifdef __cplusplus
}
#endif
#endif
