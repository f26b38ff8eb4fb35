/* A record: how one expert lies in memory, and in a packed file byte for byte the same but for the
 * order of rows. Gate, up and down follow each other, each part of a matrix at the next multiple of
 * RECORD_PART_ALIGN; the record is as long as the next multiple of RECORD_ALIGN. */
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
    bool is_interleaved;   /* in memory, where its layer is prepared for a backend */
    uint64_t part_offset[QUANT_MAX_PARTS]; /* from the start of the record */
};

struct record {
    struct record_matrix matrices[EXPERT_MATRICES];
    uint64_t data_bytes; /* without padding */
    uint64_t bytes;
};

/* Places the parts of a matrix from *at on; *at moves behind the last part, not rounded. False on
 * overflow. */
bool record_place(const struct quant *quant, uint64_t n_rows, uint64_t n_cols, uint64_t *at,
                  uint64_t part_offset[QUANT_MAX_PARTS]);
/* Fills part_offset and the sizes from the formats and shapes. */
bool record_layout(struct record *record);

/* Brings the rows of one matrix of a record that lies at `data` into the order of interleave.h. */
void record_interleave(const struct record_matrix *matrix, void *data);

#ifdef __cplusplus
}
#endif
#endif
