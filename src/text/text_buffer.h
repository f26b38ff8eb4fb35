/* A growing byte buffer. Owns its memory; one thread. The only failure is lack of memory, which
 * leaves the content unchanged. */
#ifndef FLASHMOE_TEXT_TEXT_BUFFER_H
#define FLASHMOE_TEXT_TEXT_BUFFER_H

#include <string.h>

#include "base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct text_buffer {
    void *data;
    size_t n, capacity;
};

/* Returns false if memory runs out. */
static inline bool text_buffer_add(struct text_buffer *b, const char *text, size_t bytes)
{
    if (b->capacity < b->n + bytes &&
        mem_grow(&b->data, &b->capacity, b->n + bytes, 1, "an answer", NULL) != 0)
        return false;
    if (bytes > 0)
        memcpy((char *)b->data + b->n, text, bytes);
    b->n += bytes;
    return true;
}

static inline const char *text_buffer_text(const struct text_buffer *b)
{
    return b->n > 0 ? (const char *)b->data : "";
}

static inline void text_buffer_clear(struct text_buffer *b)
{
    mem_free(b->data);
    *b = (struct text_buffer){0};
}

#ifdef __cplusplus
}
#endif
#endif
