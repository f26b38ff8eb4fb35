/* The expert store reads whole experts. It has no cache and no policy. submit starts a read into
 * memory of the caller. `done` is called exactly once, when all pieces have landed or failed and
 * the expert was verified.
 *
 * Verification takes time that the caller may use. `landed` is called when all bytes are there and
 * only the checksum is missing. From then on store and caller only read the destination, and
 * results computed from it count only if `done` says ok. `landed` is not called after a failed
 * piece, when there is nothing to verify, or when the backend still has to convert the bytes
 * (model_prepare_for).
 *
 * The caller owns the request and its destination until `done`. Both callbacks run on a reader
 * thread and must not block. submit may be called from any thread. The store owns its reader. */
#ifndef FLASHMOE_STORE_EXPERT_STORE_H
#define FLASHMOE_STORE_EXPERT_STORE_H

#include "model/model.h"
#include "store/disk_share.h"
#include "store/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expert_store;

/* Maximum number of operations per expert. */
#define EXPERT_MAX_OPS (EXPERT_MAX_EXTENTS + 15)

struct expert_read {
    uint32_t expert_layer, expert; /* index into model->expert_layers; index of the expert in it */
    void *dst;                     /* [record.bytes] */
    enum read_urgency urgency;
    void (*landed)(struct expert_read *read); /* may be NULL */
    void (*done)(struct expert_read *read, bool ok);
    void *ctx;

    /* Owned by the store: */
    struct expert_store *store;
    struct read_op ops[EXPERT_MAX_OPS];
    uint8_t disks[EXPERT_MAX_OPS]; /* that serve them */
    unsigned n_ops;
    unsigned n_tries; /* disks that a damaged expert was read from again */
    uint32_t n_left;  /* atomic: pieces in flight */
    uint32_t pieces;  /* atomic: a bit per landed piece, and IS_HASHING */
    unsigned n_hashed; /* pieces hashed, from the first on; only the thread that set IS_HASHING */
    /* of the hashed pieces; NULL: the expert is hashed at the end, or not at all */
    struct store_hash *hash;
    int failed_op;           /* atomic: index of a failed piece, or -1 */
    int64_t failed_result;
};

enum store_io {
    STORE_PAGES,         /* through the page cache */
    STORE_PAGES_DROPPED, /* the same, but pages are dropped after the read */
    STORE_DIRECT, /* past the page cache where the file system can, else STORE_PAGES_DROPPED */
};

/* Returns the bounce_bytes that a reader needs (struct reader_options); 0 when every direct read is
 * page-aligned. */
uint64_t expert_store_bounce_bytes(const struct model *model, enum store_io io);

/* Returns the maximum bytes of one operation that the page cache holds until they are dropped; 0
 * when nothing is dropped. */
uint64_t expert_store_page_bytes(const struct model *model, enum store_io io);

/* Returns the number of disks, each with a reader of its own. */
unsigned expert_store_n_disks(const struct model *model);

/* Opens a store that takes over the readers, one for each disk, also on failure. The model must
 * outlive it. With `checks`, a read fails when the expert does not have its checksum or, for a
 * model without checksums, when a file was modified since the model was opened. Fails when a file
 * was replaced or modified before this call, or with FM_ERR_NOMEM.
 *
 * A mirrored expert is read from all disks, each piece from the one that is expected to have it
 * first. A disk that fails is not read again: its mirrors go on, with one line in the log. A
 * damaged expert is read again from each copy. */
int expert_store_open(const struct model *model, struct reader *const readers[], enum store_io io,
                      bool checks, struct expert_store **out, struct fm_error *err);
void expert_store_close(struct expert_store *store); /* accepts NULL; waits for all reads */

void expert_store_submit(struct expert_store *store, struct expert_read *read);

/* Reads only what is on one disk, to measure it; -1 is all disks. What an expert has elsewhere is
 * not read, so the store must be open without checks. */
void expert_store_read_only(struct expert_store *store, int disk);
/* Returns what a disk has read so far, and how fast. */
struct disk_load expert_store_disk(struct expert_store *store, unsigned disk);

/* Returns the model whose experts it reads. */
const struct model *expert_store_model(const struct expert_store *store);
/* Returns whether any file is read past the page cache. */
bool expert_store_is_direct(const struct expert_store *store);

/* Explains a read after done(ok = false): layer, expert, file and offset. Returns the error
 * code. */
int expert_store_explain(const struct expert_store *store, const struct expert_read *read,
                         struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
