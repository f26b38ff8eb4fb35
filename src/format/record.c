#include "format/record.h"

#include "base/mem.h"
#include "base/reorder.h"
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

/* Places gate and up as one matrix whose rows alternate: each part of up behind that of gate. */
static bool place_zipped(struct record_matrix *gate, struct record_matrix *up, uint64_t *at)
{
    if (!record_place(gate->quant, 2ull * gate->n_rows, gate->n_cols, at, gate->part_offset))
        return false;
    for (unsigned p = 0; p < gate->quant->n_parts; p++)
        up->part_offset[p] = gate->part_offset[p] +
                             quant_part_bytes(gate->quant, p, gate->n_rows, gate->n_cols);
    return true;
}

bool record_layout(struct record *record)
{
    uint64_t at = 0;
    struct record_matrix *gate = &record->matrices[EXPERT_GATE];
    record->data_bytes = 0;
    if (record->lies_zipped && !place_zipped(gate, &record->matrices[EXPERT_UP], &at))
        return false;
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        struct record_matrix *matrix = &record->matrices[m];
        if (!(record->lies_zipped && m != EXPERT_DOWN) &&
            !record_place(matrix->quant, matrix->n_rows, matrix->n_cols, &at,
                          matrix->part_offset))
            return false;
        record->data_bytes += quant_matrix_bytes(matrix->quant, matrix->n_rows, matrix->n_cols);
    }
    record->bytes = at;
    return round_up(&record->bytes, RECORD_ALIGN);
}

/* [n_cols, n_rows] in the file becomes [n_rows, n_cols]. Floats have one part. */
static void turn(const struct record_matrix *matrix, uint64_t n_rows, void *data)
{
    reorder_transpose((char *)data + matrix->part_offset[0], matrix->n_cols, n_rows,
                      quant_row_bytes(matrix->quant, 1));
}

void record_settle(const struct record *record, void *data)
{
    const struct record_matrix *gate = &record->matrices[EXPERT_GATE];
    for (unsigned m = 0; record->lies_transposed && m < EXPERT_MATRICES; m++) {
        const struct record_matrix *matrix = &record->matrices[m];
        if (!record->lies_zipped || m == EXPERT_DOWN)
            turn(matrix, matrix->n_rows, data);
        else if (m == EXPERT_GATE)
            turn(matrix, 2ull * matrix->n_rows, data);
    }
    for (unsigned p = 0; record->lies_zipped && p < gate->quant->n_parts; p++)
        reorder_unzip((char *)data + gate->part_offset[p], gate->n_rows,
                      quant_part_row_bytes(gate->quant, p, gate->n_cols));
}

void record_interleave(const struct record_matrix *matrix, void *data)
{
    void *parts[QUANT_MAX_PARTS];
    for (unsigned p = 0; p < matrix->quant->n_parts; p++)
        parts[p] = (char *)data + matrix->part_offset[p];
    interleave_blocks(matrix->quant, matrix->n_cols, parts, 0, matrix->n_rows / INTERLEAVE_ROWS);
}
