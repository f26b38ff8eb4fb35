/* The reader that calls pread on threads of its own. */
#include <pthread.h>
#include <string.h>

#include "base/plat.h"
#include "store/reader_internal.h"

struct reader_pread {
    struct reader base;
    struct op_queue queue;
    unsigned n_started;
    struct pread_thread {
        struct reader_pread *reader;
        char *bounce; /* [reader_bounce_bytes] */
        pthread_t thread;
    } threads[READER_MAX_DEPTH];
    char *bounces;
};

static void serve(void *ctx, struct read_op *op)
{
    const struct pread_thread *self = ctx;
    const struct op_span span = op_span_of(op, self->bounce);
    op->done(op, op_span_finish(op, &span, op_span_read(op, &span, 0)));
}

static void *pread_main(void *arg)
{
    struct pread_thread *self = arg;
    op_queue_serve(&self->reader->queue, serve, self);
    return NULL;
}

static void pread_submit(struct reader *reader, struct read_op *op)
{
    struct reader_pread *r = (struct reader_pread *)reader;
    pthread_mutex_lock(&r->queue.lock);
    op_queue_push(&r->queue, op);
    /* Signals with the lock held: once it is released, another thread may close the reader. */
    pthread_cond_signal(&r->queue.has_work);
    pthread_mutex_unlock(&r->queue.lock);
}

static void pread_close(struct reader *reader)
{
    struct reader_pread *r = (struct reader_pread *)reader;
    pthread_mutex_lock(&r->queue.lock);
    r->queue.is_closing = true;
    pthread_mutex_unlock(&r->queue.lock);
    pthread_cond_broadcast(&r->queue.has_work);
    for (unsigned i = 0; i < r->n_started; i++)
        pthread_join(r->threads[i].thread, NULL);
    op_queue_clear(&r->queue);
    mem_free(r->bounces);
    mem_free(r);
}

static const struct reader_ops pread_ops = {
    .name = "pread",
    .submit = pread_submit,
    .close = pread_close,
};

int reader_pread_open(const struct reader_options *options, struct reader **out,
                      struct fm_error *err)
{
    *out = NULL;
    int rc = reader_check_options(options, err);
    if (rc != 0)
        return rc;
    struct reader_pread *r = mem_new(1, sizeof *r, "the reader", err);
    if (r == NULL)
        return FM_ERR_NOMEM;
    r->base.ops = &pread_ops;
    op_queue_init(&r->queue);
    if (options->bounce_bytes > 0)
        r->bounces = mem_new_aligned(MEM_PAGE, reader_bytes(options), "read buffers", err);
    if (options->bounce_bytes > 0 && r->bounces == NULL) {
        pread_close(&r->base);
        return FM_ERR_NOMEM;
    }
    for (unsigned i = 0; i < options->depth; i++) {
        struct pread_thread *t = &r->threads[i];
        t->reader = r;
        if (r->bounces != NULL)
            t->bounce = r->bounces + i * (size_t)reader_bounce_bytes(options);
        int why = plat_thread_start(&t->thread, pread_main, t);
        if (why != 0) {
            pread_close(&r->base);
            return err_set(err, FM_ERR_NOMEM, "cannot start reader thread %u of %u: %s", i + 1,
                           options->depth, strerror(why));
        }
        r->n_started++;
    }
    *out = &r->base;
    return 0;
}
