/* The expert store: reads whole experts. It has no cache and no policy: `submit` starts a read
 * into memory of the caller's, and `done` is called exactly once when all pieces have landed or
 * the last of them has failed, and what landed has been verified. Verifying takes time that the
 * caller may use: `landed`, where there is one, is called when all bytes are in place and only the
 * checksum is still to be compared. From then on both only read the destination, and what is
 * computed from it counts once `done` has said so. `landed` is not called where a piece failed,
 * where nothing remains to be done but to call `done`, and where the bytes are still to change
 * (model_prepare_for).
 *
 * The request and its destination belong to the caller until `done`. Both callbacks run on a reader
 * thread and must not block. submit may be called from any thread. */
#ifndef FLASHMOE_STORE_EXPERT_STORE_H
#define FLASHMOE_STORE_EXPERT_STORE_H

#include "model/model.h"
#include "store/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expert_store;

/* Operations one expert is read in, at most. */
#define EXPERT_MAX_OPS (EXPERT_MAX_EXTENTS + 15)

struct expert_read {
    uint32_t expert_layer, expert; /* index into model->expert_layers; expert of it */
    void *dst;                     /* [record.bytes] */
    enum read_urgency urgency;
    void (*landed)(struct expert_read *read); /* may be NULL */
    void (*done)(struct expert_read *read, bool ok);
    void *ctx;

    /* The store's. */
    struct expert_store *store;
    struct read_op ops[EXPERT_MAX_OPS];
    unsigned n_ops;
    uint32_t n_left;  /* atomic: pieces on their way */
    uint32_t pieces;  /* atomic: a bit for each piece that has landed, and IS_TAKING */
    unsigned n_taken; /* pieces hashed, from the first on; of the thread that has set IS_TAKING */
    struct store_hash *hash; /* of the pieces taken; NULL: none, or all at once at the end */
    int failed_op;           /* atomic: -1, or the index of a failed piece */
    int64_t failed_result;
};

enum store_io {
    STORE_PAGES,         /* through the page cache */
    STORE_PAGES_DROPPED, /* the same, and what was read is dropped from it at once */
    STORE_DIRECT,        /* past it, on file systems that can; on others STORE_PAGES_DROPPED */
};

/* What a reader's buffers must hold (struct reader_options); 0 when every direct read is of whole
 * pages into whole pages. */
uint64_t expert_store_bounce_bytes(const struct model *model, enum store_io io);

/* The most that the page cache holds of one operation until it is dropped; 0 where nothing is. */
uint64_t expert_store_page_bytes(const struct model *model, enum store_io io);

/* Takes over `reader`, also on failure. The model must outlive the store. With `checks` a read
 * fails unless the expert has its checksum or, where the model has none, its files still are as
 * they were when the model was opened. Fails when a file has been replaced or changed since. */
int expert_store_open(const struct model *model, struct reader *reader, enum store_io io,
                      bool checks, struct expert_store **out, struct fm_error *err);
void expert_store_close(struct expert_store *store); /* accepts NULL; waits for all reads */

void expert_store_submit(struct expert_store *store, struct expert_read *read);

/* Whose experts it reads. */
const struct model *expert_store_model(const struct expert_store *store);
/* Whether any file is read past the page cache. */
bool expert_store_is_direct(const struct expert_store *store);

/* After done(ok = false): writes what happened, with layer, expert, file and offset. */
int expert_store_explain(const struct expert_store *store, const struct expert_read *read,
                         struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
