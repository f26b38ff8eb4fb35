/* Turns the bytes of a source into those of the pack: an ordered stream of bytes that is hashed and
 * written piece by piece, in memory that does not grow with the model.
 *
 * One worker's, used by its thread only. */
#ifndef FLASHMOE_PACK_ENCODE_H
#define FLASHMOE_PACK_ENCODE_H

#include "model/model.h"
#include "pack/crew.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of one worker. */
struct encoder {
    char *out; /* [out_bytes], MEM_PAGE-aligned; the stream's, also for reading back */
    uint64_t out_bytes;
    char *raw;   /* [raw_bytes] rows of the source */
    float *row;  /* [max_cols] */
    char *spare; /* [4 * max_cols] parts of a row that are not wanted */
    char *taken; /* [4 * max_cols] a row of an interleaved matrix */
    XXH3_state_t *hash;
};

/* What the memory must suffice for. */
struct encoder_needs {
    uint64_t out_bytes, raw_bytes, max_cols;
};

int encoder_init(struct encoder *e, const struct encoder_needs *needs, struct fm_error *err);
void encoder_clear(struct encoder *e); /* accepts a zeroed one */
/* Widens the needs by a matrix that is turned from one format into another. */
void encoder_needs_add(struct encoder_needs *needs, const struct quant *from, uint64_t n_cols);
/* Bytes of one worker. */
uint64_t encoder_bytes(const struct encoder_needs *needs);

/* Where the bytes go. */
struct stream {
    struct encoder *encoder;
    struct crew *crew;
    int fd;
    const char *path;
    uint64_t at;           /* where the buffer's first byte goes in the file */
    uint64_t used, hashed; /* bytes in the buffer; of them in the hash */
    bool is_direct;        /* `at` and all sizes written are multiples of MEM_PAGE */
};

void stream_begin(struct stream *s, struct encoder *e, struct crew *crew, int fd,
                  const char *path, bool is_direct, uint64_t at);
/* Zeros up to `to`, an offset in the file. */
int stream_pad(struct stream *s, uint64_t to, struct fm_error *err);
/* The checksum of everything since the last one. */
void stream_sum(struct stream *s, struct packed_sum *sum);
/* Writes what is left. */
int stream_end(struct stream *s, struct fm_error *err);

/* A matrix of the source: its parts lie in a slot, the slot in files. */
struct matrix_source {
    const struct source *source;
    const struct quant *quant;
    uint64_t n_rows, n_cols;
    const uint64_t *part_offset; /* in the slot */
    const struct extent *extents;
    unsigned n_extents;
    bool is_interleaved;
};

/* What becomes of it: its format, the order of its rows, and where its parts go in the file. One
 * that is interleaved and keeps its format stays so. */
struct matrix_target {
    const struct quant *quant;
    bool is_interleaved;
    const uint64_t *part_offset; /* from base on */
    uint64_t base;
};

/* Appends the matrix. */
int encode_matrix(struct stream *s, const struct matrix_source *from,
                  const struct matrix_target *to, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
