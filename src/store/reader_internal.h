/* Code that both readers share: the queue of waiting operations, and the conversion of an operation
 * on a direct file into a read of whole pages. The reader owns its queue. The caller owns the
 * operations in it. */
#ifndef FLASHMOE_STORE_READER_INTERNAL_H
#define FLASHMOE_STORE_READER_INTERNAL_H

#include <pthread.h>

#include "base/mem.h"
#include "store/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A singly linked list through read_op.next. */
struct op_list {
    struct read_op *first, **last; /* last: the link that the next push sets */
};

/* Operations that wait for a thread, by urgency. */
struct op_queue {
    pthread_mutex_t lock; /* covers this struct; never held across a read or a callback */
    pthread_cond_t has_work;
    struct op_list needed, guessed;
    bool is_closing;
};

void op_queue_init(struct op_queue *queue);
/* Destroys the lock. No thread uses the queue and no operation is left in it. */
void op_queue_clear(struct op_queue *queue);
/* Appends an operation. The caller holds the lock and wakes a thread. */
void op_queue_push(struct op_queue *queue, struct read_op *op);
/* Removes the oldest needed operation, or the oldest guessed one when `allows_guesses` and none is
 * needed. Returns NULL when there is none. The caller holds the lock. */
struct read_op *op_queue_pop(struct op_queue *queue, bool allows_guesses);
/* Calls `serve` for one operation after another until the queue is closing and empty. The lock is
 * not held during `serve`. Any number of threads may run this. */
void op_queue_serve(struct op_queue *queue, void (*serve)(void *ctx, struct read_op *op),
                    void *ctx);

/* Returns the size of a buffer for the pages around one operation; 0 when the options ask for no
 * buffers. */
uint64_t reader_bounce_bytes(const struct reader_options *options);

/* The bytes that are read for an operation: its own, or the pages around them. */
struct op_span {
    char *at;                     /* op->dst, or a bounce buffer */
    uint64_t offset, bytes, skip; /* the operation's first byte is at[skip] */
};

/* Returns the span of an operation. Uses `bounce` when the file is direct and the operation is not
 * page-aligned. */
struct op_span op_span_of(const struct read_op *op, char *bounce);
/* Reads the span from byte `done` on and blocks until the bytes are there. Returns the bytes of the
 * span that are there then, or -errno. */
int64_t op_span_read(const struct read_op *op, const struct op_span *span, uint64_t done);
/* Converts the result of reading the span to the operation's result. Copies the bytes out of the
 * bounce buffer. */
int64_t op_span_finish(const struct read_op *op, const struct op_span *span, int64_t result);

/* Fails with FM_ERR_ARG when the depth is out of range. */
int reader_check_options(const struct reader_options *options, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
