/* What the readers share: queues by urgency, and how an operation on a file that bypasses the page
 * cache becomes one of whole pages. */
#ifndef FLASHMOE_STORE_READER_INTERNAL_H
#define FLASHMOE_STORE_READER_INTERNAL_H

#include "base/mem.h"
#include "store/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

struct op_queue {
    struct read_op *first, **last;
};

void op_queue_init(struct op_queue *queue);
void op_queue_push(struct op_queue *queue, struct read_op *op);
struct read_op *op_queue_pop(struct op_queue *queue); /* NULL when empty */

/* A buffer for the pages around an operation; 0 when the options ask for none. */
uint64_t reader_bounce_bytes(const struct reader_options *options);

/* What is really read for an operation: itself, or the pages around it into `bounce`. */
struct op_span {
    char *at;
    uint64_t offset, bytes, skip; /* the operation begins `skip` bytes behind `at` */
};

struct op_span op_span_of(const struct read_op *op, char *bounce);
/* Reads the span from byte `done` on, waiting; bytes of the span that are there then, or -errno. */
int64_t op_span_read(const struct read_op *op, const struct op_span *span, uint64_t done);
/* The operation's result from the span's; copies out of the bounce buffer. */
int64_t op_span_finish(const struct read_op *op, const struct op_span *span, int64_t result);

int reader_check_options(const struct reader_options *options, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
