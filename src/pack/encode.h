/* Converts matrices of a source into the formats of a packed model. A writer takes the bytes in
 * order, hashes them and writes them in pieces, so memory does not grow with the model.
 *
 * An encoder and its writer belong to one worker, and only its thread may use them. */
#ifndef FLASHMOE_PACK_ENCODE_H
#define FLASHMOE_PACK_ENCODE_H

#include "model/model.h"
#include "pack/crew.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The buffers of one worker. */
struct encoder {
    char *out; /* [out_bytes], MEM_PAGE-aligned; the writer's buffer, also used to read back */
    uint64_t out_bytes;
    char *raw;   /* [raw_bytes] rows of the source */
    float *row;  /* [max_cols] */
    char *discarded; /* [4 * max_cols] parts of a row that are not needed */
    char *gathered; /* [4 * max_cols] a row gathered from an interleaved matrix */
    char *slot; /* [slot_bytes] an expert that does not lie in order */
    XXH3_state_t *hash;
};

/* The buffer sizes that a set of matrices needs. */
struct encoder_needs {
    uint64_t out_bytes, raw_bytes, max_cols, slot_bytes;
};

int encoder_init(struct encoder *e, const struct encoder_needs *needs, struct fm_error *err);
void encoder_clear(struct encoder *e); /* accepts a zeroed struct */
/* Increases the needs to those of a matrix that is converted from this format. */
void encoder_needs_add(struct encoder_needs *needs, const struct quant *from, uint64_t n_cols);
/* Returns the memory of one worker. */
uint64_t encoder_bytes(const struct encoder_needs *needs);

/* The files that the bytes of a writer go to. All get the same bytes; or each gets a part of every
 * record. Without files only checksums are made. */
struct writer_files {
    unsigned n;
    struct writer_file {
        int fd;
        const char *path;    /* borrowed */
        uint64_t part_bytes; /* of a record, in whole pages */
    } files[SOURCE_MAX_DISKS];
    uint64_t record_bytes; /* the sum of all parts; 0: all files get the same bytes */
    bool is_direct;        /* writes are whole pages */
};

/* A file that is being written. Borrows encoder and crew. */
struct writer {
    struct encoder *encoder;
    struct crew *crew;
    struct writer_files to;
    uint64_t at;           /* offset of the buffer's first byte in the file */
    uint64_t used, hashed; /* bytes in the buffer; bytes of them that are hashed */
};

void writer_begin(struct writer *s, struct encoder *e, struct crew *crew,
                  const struct writer_files *to, uint64_t at);
/* Writes zeros up to `to`, an offset in the file. */
int writer_pad(struct writer *s, uint64_t to, struct fm_error *err);
/* Computes the checksum of everything since the last call. */
void writer_sum(struct writer *s, struct packed_sum *sum);
/* Writes the rest of the buffer. */
int writer_end(struct writer *s, struct fm_error *err);

/* A matrix of the source. Its parts lie in a slot, whose bytes lie in files, or in memory. */
struct matrix_source {
    const struct source *source;
    const struct quant *quant;
    uint64_t n_rows, n_cols;
    const uint64_t *part_offset; /* in the slot */
    const struct extent *extents;
    unsigned n_extents;
    bool is_interleaved;
    const char *slot; /* NULL: in files */
};

/* The matrix as it is written: format, order of rows, and places of its parts in the file. An
 * interleaved matrix that keeps its format stays interleaved. */
struct matrix_target {
    const struct quant *quant;
    bool is_interleaved;
    const uint64_t *part_offset; /* relative to base */
    uint64_t base;
};

/* Reads an expert whole and puts it in order, at e->slot. Needs slot_bytes of record->bytes. */
int encoder_settle(struct encoder *e, const struct source *source, const struct record *record,
                   const struct extent *extents, unsigned n_extents, struct fm_error *err);

/* Converts and appends a matrix. Fails with FM_ERR_IO, FM_ERR_UNSUPPORTED or FM_ERR_CANCELLED. */
int encode_matrix(struct writer *s, const struct matrix_source *from,
                  const struct matrix_target *to, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
