#include <assert.h>

#include "store/reader_internal.h"

static void list_init(struct op_list *list)
{
    list->first = NULL;
    list->last = &list->first;
}

static struct read_op *list_pop(struct op_list *list)
{
    struct read_op *op = list->first;
    assert((op == NULL) == (list->last == &list->first));
    if (op == NULL)
        return NULL;
    list->first = op->next;
    if (list->first == NULL)
        list->last = &list->first;
    return op;
}

void op_queue_init(struct op_queue *queue)
{
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->has_work, NULL);
    list_init(&queue->needed);
    list_init(&queue->guessed);
    queue->is_closing = false;
}

void op_queue_clear(struct op_queue *queue)
{
    assert(queue->needed.first == NULL && queue->guessed.first == NULL);
    pthread_cond_destroy(&queue->has_work);
    pthread_mutex_destroy(&queue->lock);
}

void op_queue_push(struct op_queue *queue, struct read_op *op)
{
    struct op_list *list = op->urgency == READ_NEEDED ? &queue->needed : &queue->guessed;
    assert(*list->last == NULL);
    op->next = NULL;
    *list->last = op;
    list->last = &op->next;
}

struct read_op *op_queue_pop(struct op_queue *queue, bool allows_guesses)
{
    struct read_op *op = list_pop(&queue->needed);
    return op == NULL && allows_guesses ? list_pop(&queue->guessed) : op;
}

void op_queue_serve(struct op_queue *queue, void (*serve)(void *ctx, struct read_op *op), void *ctx)
{
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        struct read_op *op = op_queue_pop(queue, true);
        if (op == NULL && queue->is_closing)
            break;
        if (op == NULL) {
            pthread_cond_wait(&queue->has_work, &queue->lock);
            continue;
        }
        pthread_mutex_unlock(&queue->lock);
        serve(ctx, op);
        pthread_mutex_lock(&queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
}
