/* A snapshot is the state of a session in a file, so that its prefix need not be computed again. It
 * has the tokens, their keys and values, the recurrent state and its marks, and the identity of the
 * model and formats.
 *
 * A snapshot is written to a temporary file and renamed when it is complete. A checksum covers all
 * of it. Reading a damaged snapshot or one of another model fails with a message and leaves the
 * session empty. Only the thread that drives the session may call these functions. */
#ifndef FLASHMOE_SESSION_SNAPSHOT_H
#define FLASHMOE_SESSION_SNAPSHOT_H

#include "base/plat_dir.h"
#include "flashmoe.h"
#include "session/session_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is known of a snapshot without reading its state. The caller owns `ids`. */
struct snapshot_info {
    uint64_t bytes;
    uint32_t n_tokens, n_marks;
    uint32_t marks[SEQUENCE_MARKS]; /* positions to rewind to, besides the end */
    bool is_rewindable;             /* it can be rewound to every position */
    int32_t *ids;                   /* [n_tokens]; free with mem_free */
};

/* Computes the identity of everything that a state depends on: dense weights, configuration,
 * approximations, and the experts, by their checksums or by their places and samples of their
 * bytes. Fails with FM_ERR_ARG when routes replace the routers, or when a sample cannot be read. */
int snapshot_identity(const struct fm_model *m, uint64_t *identity, struct fm_error *err);

/* Returns the size of the file that snapshot_write would write. */
uint64_t snapshot_bytes(const struct fm_session *s);
/* Writes a file that only this user can read. Sets *is_full when it failed because the disk is
 * full. */
int snapshot_write(const struct fm_session *s, uint64_t model, const struct plat_dir *dir,
                   const char *name, bool *is_full, struct fm_error *err);
/* Reads header, tokens and marks, and verifies their own checksum. */
int snapshot_read_info(const struct fm_model *m, uint64_t model, const struct plat_dir *dir,
                       const char *name, struct snapshot_info *info, struct fm_error *err);
/* Replaces the session's state by that of a file. If the file cannot be opened, the session keeps
 * its state; after any other failure it is empty. */
int snapshot_read(struct fm_session *s, uint64_t model, const struct plat_dir *dir,
                  const char *name, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
