#include <pthread.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "store/reader.h"

struct op_queue {
    struct read_op *first, **last;
};

struct reader_pread {
    struct reader base;
    pthread_mutex_t lock; /* covers everything below; never held across a read or a callback */
    pthread_cond_t work_ready;
    struct op_queue needed, guessed;
    bool is_closing;
    unsigned n_started;
    pthread_t threads[LIMIT_THREADS];
};

static void queue_init(struct op_queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void queue_push(struct op_queue *queue, struct read_op *op)
{
    op->next = NULL;
    *queue->last = op;
    queue->last = &op->next;
}

static struct read_op *queue_pop(struct op_queue *queue)
{
    struct read_op *op = queue->first;
    if (op == NULL)
        return NULL;
    queue->first = op->next;
    if (queue->first == NULL)
        queue->last = &queue->first;
    return op;
}

static void *reader_main(void *arg)
{
    struct reader_pread *r = arg;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        struct read_op *op = queue_pop(&r->needed);
        if (op == NULL)
            op = queue_pop(&r->guessed);
        if (op == NULL && r->is_closing)
            break;
        if (op == NULL) {
            pthread_cond_wait(&r->work_ready, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        op->done(op, plat_read_some(op->fd, op->dst, op->bytes, op->offset));
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void pread_submit(struct reader *reader, struct read_op *op)
{
    struct reader_pread *r = (struct reader_pread *)reader;
    pthread_mutex_lock(&r->lock);
    queue_push(op->urgency == READ_NEEDED ? &r->needed : &r->guessed, op);
    pthread_mutex_unlock(&r->lock);
    pthread_cond_signal(&r->work_ready);
}

static void pread_close(struct reader *reader)
{
    struct reader_pread *r = (struct reader_pread *)reader;
    pthread_mutex_lock(&r->lock);
    r->is_closing = true;
    pthread_mutex_unlock(&r->lock);
    pthread_cond_broadcast(&r->work_ready);
    for (unsigned i = 0; i < r->n_started; i++)
        pthread_join(r->threads[i], NULL);
    pthread_cond_destroy(&r->work_ready);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static const struct reader_ops pread_ops = {
    .name = "pread",
    .submit = pread_submit,
    .close = pread_close,
};

int reader_pread_open(unsigned n_threads, struct reader **out, struct fm_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > LIMIT_THREADS)
        return err_set(err, FM_ERR_ARG, "%u reader threads asked for, expected 1 to %d", n_threads,
                       LIMIT_THREADS);
    struct reader_pread *r = mem_new(1, sizeof *r, "the reader", err);
    if (r == NULL)
        return FM_ERR_NOMEM;
    r->base.ops = &pread_ops;
    queue_init(&r->needed);
    queue_init(&r->guessed);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work_ready, NULL);
    for (unsigned i = 0; i < n_threads; i++) {
        int why = plat_thread_start(&r->threads[i], reader_main, r);
        if (why != 0) {
            pread_close(&r->base);
            return err_set(err, FM_ERR_NOMEM, "cannot start reader thread %u of %u: %s", i + 1,
                           n_threads, strerror(why));
        }
        r->n_started++;
    }
    *out = &r->base;
    return 0;
}
