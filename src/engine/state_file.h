/* The state of sequences in files: what snapshots, and the parts of them on other ranks, are made
 * of. A file is written or read from its beginning to its end, and hashed on the way. Belongs to
 * the thread that drives the sequences. */
#ifndef FLASHMOE_ENGINE_STATE_FILE_H
#define FLASHMOE_ENGINE_STATE_FILE_H

#include <xxhash.h>

#include "engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A file that is being read or written. Does nothing after the first error. */
struct state_file {
    int fd;
    bool writes;
    const char *path;
    uint64_t at;
    XXH3_state_t *hash; /* the caller frees it */
    int rc;
    bool is_full; /* it failed because the disk is full */
    struct fm_error *err;
};

int state_file_begin(struct state_file *f, struct fm_error *err);
/* Writes or reads n bytes at the file's position and adds them to the hash. */
void state_transfer(struct state_file *f, void *bytes, uint64_t n);
/* The recurrent state of all layers: the sequence's own, or that of a mark. */
void state_transfer_recurrent(struct state_file *f, const struct sequence *s, bool is_mark,
                              uint32_t mark);
/* What is addressed by position, layer by layer. */
void state_transfer_kv(struct state_file *f, const struct engine *e, const struct sequence *s,
                       uint32_t n_positions);

#ifdef __cplusplus
}
#endif
#endif
