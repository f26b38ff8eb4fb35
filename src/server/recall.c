#include "server/recall.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/text_json.h"

struct call {
    char id[64];
    char name[128];
    json_t *arguments; /* touched with the lock only */
    char *text;
    size_t bytes;
    uint64_t used;
};

struct recall {
    pthread_mutex_t lock;
    size_t most_bytes, bytes;
    uint64_t clock;
    unsigned n, most;
    struct call calls[];
};

int recall_open(size_t most_bytes, unsigned most_calls, struct recall **out, struct fm_error *err)
{
    struct recall *r = mem_new(1, sizeof *r + (uint64_t)most_calls * sizeof r->calls[0],
                               "the tool calls", err);
    *out = r;
    if (r == NULL)
        return FM_ERR_NOMEM;
    r->most_bytes = most_bytes;
    r->most = most_calls;
    (void)pthread_mutex_init(&r->lock, NULL); /* cannot fail with default attributes */
    return 0;
}

static void clear_call(struct call *call)
{
    json_decref(call->arguments);
    mem_free(call->text);
}

void recall_close(struct recall *r)
{
    if (r == NULL)
        return;
    for (unsigned i = 0; i < r->n; i++)
        clear_call(&r->calls[i]);
    (void)pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static void forget_oldest(struct recall *r)
{
    unsigned oldest = 0;
    for (unsigned i = 1; i < r->n; i++)
        if (r->calls[i].used < r->calls[oldest].used)
            oldest = i;
    r->bytes -= r->calls[oldest].bytes;
    clear_call(&r->calls[oldest]);
    r->calls[oldest] = r->calls[--r->n];
}

void recall_add(struct recall *r, const char *id, const char *name,
                const struct text_buffer *arguments, const char *text, size_t bytes)
{
    struct call call = {.bytes = bytes};
    json_error_t why;
    if (bytes > r->most_bytes || strlen(id) >= sizeof call.id || strlen(name) >= sizeof call.name)
        return;
    call.arguments = json_read(text_buffer_text(arguments), arguments->n, &why);
    call.text = mem_new(bytes + 1, 1, "a tool call", NULL);
    if (call.text == NULL || call.arguments == NULL) {
        clear_call(&call);
        return;
    }
    memcpy(call.text, text, bytes);
    (void)snprintf(call.id, sizeof call.id, "%s", id);
    (void)snprintf(call.name, sizeof call.name, "%s", name);
    (void)pthread_mutex_lock(&r->lock);
    while (r->n > 0 && (r->n == r->most || r->bytes + bytes > r->most_bytes))
        forget_oldest(r);
    call.used = ++r->clock;
    r->calls[r->n++] = call;
    r->bytes += bytes;
    (void)pthread_mutex_unlock(&r->lock);
}

char *recall_find(struct recall *r, const char *id, const char *name, const json_t *arguments,
                  size_t *bytes)
{
    char *copy = NULL;
    *bytes = 0;
    (void)pthread_mutex_lock(&r->lock);
    for (unsigned i = r->n; i-- > 0;) {
        struct call *call = &r->calls[i];
        if (strcmp(call->id, id) != 0)
            continue;
        if (strcmp(call->name, name) != 0 || !json_equal(call->arguments, arguments))
            break;
        call->used = ++r->clock;
        copy = mem_new(call->bytes + 1, 1, "a tool call", NULL);
        if (copy != NULL) {
            memcpy(copy, call->text, call->bytes);
            *bytes = call->bytes;
        }
        break;
    }
    (void)pthread_mutex_unlock(&r->lock);
    return copy;
}
