#include "format/record.h"

#include "base/mem.h"
#include "quant/interleave.h"

static bool round_up(uint64_t *n, uint64_t align)
{
    if (!mem_add(*n, align - 1, n))
        return false;
    *n -= *n % align;
    return true;
}

bool record_place(const struct quant *quant, uint64_t n_rows, uint64_t n_cols, uint64_t *at,
                  uint64_t part_offset[QUANT_MAX_PARTS])
{
    for (unsigned p = 0; p < quant->n_parts; p++) {
        uint64_t row_bytes, bytes;
        const uint64_t rows = n_rows > 0 ? quant_part_row(quant, p, n_rows - 1) + 1 : 0;
        if (!round_up(at, RECORD_PART_ALIGN) ||
            !mem_mul(n_cols / quant->block, quant->part_block_bytes[p], &row_bytes) ||
            !mem_mul(rows, row_bytes, &bytes))
            return false;
        part_offset[p] = *at;
        if (!mem_add(*at, bytes, at))
            return false;
    }
    return true;
}

bool record_layout(struct record *record)
{
    uint64_t at = 0;
    record->data_bytes = 0;
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        struct record_matrix *matrix = &record->matrices[m];
        if (!record_place(matrix->quant, matrix->n_rows, matrix->n_cols, &at,
                          matrix->part_offset))
            return false;
        record->data_bytes += quant_matrix_bytes(matrix->quant, matrix->n_rows, matrix->n_cols);
    }
    record->bytes = at;
    return round_up(&record->bytes, RECORD_ALIGN);
}

void record_interleave(const struct record_matrix *matrix, void *data)
{
    void *parts[QUANT_MAX_PARTS];
    for (unsigned p = 0; p < matrix->quant->n_parts; p++)
        parts[p] = (char *)data + matrix->part_offset[p];
    interleave_blocks(matrix->quant, matrix->n_cols, parts, 0, matrix->n_rows / INTERLEAVE_ROWS);
}
