/* A snapshot: the state of a session in a file, so that its prefix is never computed again. It has
 * the tokens, keys and values of their positions, the recurrent state and its marks, and says which
 * model and format they are of.
 *
 * Written aside and renamed when it is whole; a checksum covers everything. Reading one that is
 * damaged or another model's fails with a sentence, and the session is then empty. The thread that
 * drives the session. */
#ifndef FLASHMOE_SESSION_SNAPSHOT_H
#define FLASHMOE_SESSION_SNAPSHOT_H

#include "base/plat_dir.h"
#include "flashmoe.h"
#include "session/session_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What can be known of a snapshot without its state. */
struct snapshot_info {
    uint64_t bytes;
    uint32_t n_tokens, n_marks;
    uint32_t marks[SEQUENCE_MARKS]; /* positions to go back to beside the end */
    bool is_rewindable;             /* every position is one */
    int32_t *ids;                   /* [n_tokens]; free with mem_free */
};

/* What a state was computed with: the dense weights, the configuration, the experts by their
 * checksums or by where they lie and the first bytes of some, and how exactly. Fails where it was
 * not the model that chose the experts, or when one cannot be read. */
int snapshot_model(const struct fm_model *m, uint64_t *identity, struct fm_error *err);

uint64_t snapshot_bytes(const struct fm_session *s);
/* Writes a file that only this user can read. *is_full: it failed because the disk is full. */
int snapshot_write(const struct fm_session *s, uint64_t model, const struct plat_dir *dir,
                   const char *name, bool *is_full, struct fm_error *err);
/* Header and tokens; held against their own checksum. */
int snapshot_read_info(const struct fm_model *m, uint64_t model, const struct plat_dir *dir,
                       const char *name, struct snapshot_info *info, struct fm_error *err);
int snapshot_read(struct fm_session *s, uint64_t model, const struct plat_dir *dir,
                  const char *name, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
