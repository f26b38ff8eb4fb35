#include "server/recall.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/text_json.h"

struct call {
    char id[64];
    char name[128];
    char *text; /* what the model wrote, then the arguments as JSON */
    size_t bytes, argument_bytes;
    uint64_t used;
};

struct recall {
    pthread_mutex_t lock;
    size_t max_bytes, bytes;
    uint64_t clock;
    unsigned n, max;
    struct call calls[];
};

int recall_open(size_t max_bytes, unsigned max_calls, struct recall **out, struct fm_error *err)
{
    struct recall *r = mem_new(1, sizeof *r + (uint64_t)max_calls * sizeof r->calls[0],
                               "the tool calls", err);
    *out = r;
    if (r == NULL)
        return FM_ERR_NOMEM;
    r->max_bytes = max_bytes;
    r->max = max_calls;
    (void)pthread_mutex_init(&r->lock, NULL); /* cannot fail with default attributes */
    return 0;
}

void recall_close(struct recall *r)
{
    if (r == NULL)
        return;
    for (unsigned i = 0; i < r->n; i++)
        mem_free(r->calls[i].text);
    (void)pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static void forget_oldest(struct recall *r)
{
    unsigned oldest = 0;
    for (unsigned i = 1; i < r->n; i++)
        if (r->calls[i].used < r->calls[oldest].used)
            oldest = i;
    r->bytes -= r->calls[oldest].bytes + r->calls[oldest].argument_bytes;
    mem_free(r->calls[oldest].text);
    r->calls[oldest] = r->calls[--r->n];
}

void recall_add(struct recall *r, const char *id, const char *name,
                const struct text_buffer *arguments, const char *text, size_t bytes)
{
    struct call call = {.bytes = bytes, .argument_bytes = arguments->n};
    const size_t both = bytes + arguments->n;
    if (both > r->max_bytes || strlen(id) >= sizeof call.id || strlen(name) >= sizeof call.name)
        return;
    call.text = mem_new(both + 1, 1, "a tool call", NULL);
    if (call.text == NULL)
        return;
    memcpy(call.text, text, bytes);
    memcpy(call.text + bytes, text_buffer_text(arguments), arguments->n);
    (void)snprintf(call.id, sizeof call.id, "%s", id);
    (void)snprintf(call.name, sizeof call.name, "%s", name);
    (void)pthread_mutex_lock(&r->lock);
    while (r->n > 0 && (r->n == r->max || r->bytes + both > r->max_bytes))
        forget_oldest(r);
    call.used = ++r->clock;
    r->calls[r->n++] = call;
    r->bytes += both;
    (void)pthread_mutex_unlock(&r->lock);
}

/* A copy of the call that has this id, with a text of its own; its text is NULL when there is
 * none. */
static struct call copy_of(struct recall *r, const char *id)
{
    struct call copy = {0};
    (void)pthread_mutex_lock(&r->lock);
    for (unsigned i = r->n; i-- > 0;) {
        struct call *call = &r->calls[i];
        if (strcmp(call->id, id) != 0)
            continue;
        const size_t both = call->bytes + call->argument_bytes;
        call->used = ++r->clock;
        copy = *call;
        copy.text = mem_new(both + 1, 1, "a tool call", NULL);
        if (copy.text != NULL)
            memcpy(copy.text, call->text, both);
        break;
    }
    (void)pthread_mutex_unlock(&r->lock);
    return copy;
}

char *recall_find(struct recall *r, const char *id, const char *name, const json_t *arguments,
                  size_t *bytes)
{
    const struct call call = copy_of(r, id);
    json_error_t why;
    *bytes = call.bytes;
    if (call.text == NULL)
        return NULL;
    json_t *sent = json_read(call.text + call.bytes, call.argument_bytes, &why);
    const bool is_same = strcmp(call.name, name) == 0 && json_equal(sent, arguments);
    json_decref(sent);
    if (is_same)
        return call.text;
    mem_free(call.text);
    return NULL;
}
