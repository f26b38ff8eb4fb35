#include "server/call_texts.h"

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

struct call_texts {
    pthread_mutex_t lock;
    size_t max_bytes, bytes;
    uint64_t clock;
    unsigned n, max;
    struct call calls[];
};

int call_texts_open(size_t max_bytes, unsigned max_calls, struct call_texts **out,
                    struct fm_error *err)
{
    struct call_texts *t = mem_new(1, sizeof *t + (uint64_t)max_calls * sizeof t->calls[0],
                                   "the tool calls", err);
    *out = t;
    if (t == NULL)
        return FM_ERR_NOMEM;
    t->max_bytes = max_bytes;
    t->max = max_calls;
    (void)pthread_mutex_init(&t->lock, NULL); /* cannot fail with default attributes */
    return 0;
}

void call_texts_close(struct call_texts *t)
{
    if (t == NULL)
        return;
    for (unsigned i = 0; i < t->n; i++)
        mem_free(t->calls[i].text);
    (void)pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

static void forget_oldest(struct call_texts *t)
{
    unsigned oldest = 0;
    for (unsigned i = 1; i < t->n; i++)
        if (t->calls[i].used < t->calls[oldest].used)
            oldest = i;
    t->bytes -= t->calls[oldest].bytes + t->calls[oldest].argument_bytes;
    mem_free(t->calls[oldest].text);
    t->calls[oldest] = t->calls[--t->n];
}

void call_texts_add(struct call_texts *t, const char *id, const char *name,
                    const struct text_buffer *arguments, const char *text, size_t bytes)
{
    struct call call = {.bytes = bytes, .argument_bytes = arguments->n};
    const size_t both = bytes + arguments->n;
    if (both > t->max_bytes || strlen(id) >= sizeof call.id || strlen(name) >= sizeof call.name)
        return;
    call.text = mem_new(both + 1, 1, "a tool call", NULL);
    if (call.text == NULL)
        return;
    memcpy(call.text, text, bytes);
    memcpy(call.text + bytes, text_buffer_text(arguments), arguments->n);
    (void)snprintf(call.id, sizeof call.id, "%s", id);
    (void)snprintf(call.name, sizeof call.name, "%s", name);
    (void)pthread_mutex_lock(&t->lock);
    while (t->n > 0 && (t->n == t->max || t->bytes + both > t->max_bytes))
        forget_oldest(t);
    call.used = ++t->clock;
    t->calls[t->n++] = call;
    t->bytes += both;
    (void)pthread_mutex_unlock(&t->lock);
}

/* Copies the call with this id, including its text. The text is NULL if there is no such call. */
static struct call copy_of(struct call_texts *t, const char *id)
{
    struct call copy = {0};
    (void)pthread_mutex_lock(&t->lock);
    for (unsigned i = t->n; i-- > 0;) {
        struct call *call = &t->calls[i];
        if (strcmp(call->id, id) != 0)
            continue;
        const size_t both = call->bytes + call->argument_bytes;
        call->used = ++t->clock;
        copy = *call;
        copy.text = mem_new(both + 1, 1, "a tool call", NULL);
        if (copy.text != NULL)
            memcpy(copy.text, call->text, both);
        break;
    }
    (void)pthread_mutex_unlock(&t->lock);
    return copy;
}

char *call_texts_find(struct call_texts *t, const char *id, const char *name,
                      const json_t *arguments, size_t *bytes)
{
    const struct call call = copy_of(t, id);
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
