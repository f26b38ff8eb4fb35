#include <pthread.h>
#include <string.h>

#include "base/plat.h"
#include "store/reader_internal.h"

struct reader_pread {
    struct reader base;
    pthread_mutex_t lock; /* covers everything below; never held across a read or a callback */
    pthread_cond_t work_ready;
    struct op_queue needed, guessed;
    bool is_closing;
    unsigned n_started;
    struct pread_thread {
        struct reader_pread *reader;
        char *bounce; /* [reader_bounce_bytes] */
        pthread_t thread;
    } threads[READER_MAX_DEPTH];
    char *bounces;
};

static int64_t serve(const struct read_op *op, char *bounce)
{
    const struct op_span span = op_span_of(op, bounce);
    return op_span_finish(op, &span, op_span_read(op, &span, 0));
}

static void *reader_main(void *arg)
{
    struct pread_thread *self = arg;
    struct reader_pread *r = self->reader;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        struct read_op *op = op_queue_pop(&r->needed);
        if (op == NULL)
            op = op_queue_pop(&r->guessed);
        if (op == NULL && r->is_closing)
            break;
        if (op == NULL) {
            pthread_cond_wait(&r->work_ready, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        op->done(op, serve(op, self->bounce));
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void pread_submit(struct reader *reader, struct read_op *op)
{
    struct reader_pread *r = (struct reader_pread *)reader;
    pthread_mutex_lock(&r->lock);
    op_queue_push(op->urgency == READ_NEEDED ? &r->needed : &r->guessed, op);
    pthread_cond_signal(&r->work_ready); /* unlocked, the reader might be closed by now */
    pthread_mutex_unlock(&r->lock);
}

static void pread_close(struct reader *reader)
{
    struct reader_pread *r = (struct reader_pread *)reader;
    pthread_mutex_lock(&r->lock);
    r->is_closing = true;
    pthread_mutex_unlock(&r->lock);
    pthread_cond_broadcast(&r->work_ready);
    for (unsigned i = 0; i < r->n_started; i++)
        pthread_join(r->threads[i].thread, NULL);
    pthread_cond_destroy(&r->work_ready);
    pthread_mutex_destroy(&r->lock);
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
    op_queue_init(&r->needed);
    op_queue_init(&r->guessed);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work_ready, NULL);
    if (options->bounce_bytes > 0)
        r->bounces = mem_new_aligned(MEM_PAGE, reader_bytes(options), "read buffers", err);
    if (options->bounce_bytes > 0 && r->bounces == NULL) {
        pread_close(&r->base);
        return FM_ERR_NOMEM;
    }
    for (unsigned i = 0; i < options->depth; i++) {
        struct pread_thread *t = &r->threads[i];
        t->reader = r;
        t->bounce = r->bounces + i * (size_t)reader_bounce_bytes(options);
        int why = plat_thread_start(&t->thread, reader_main, t);
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
