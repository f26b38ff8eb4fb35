/* Builds GGUF files in memory, for unit tests. */
#ifndef FLASHMOE_TESTS_FORMAT_GGUF_FILE_H
#define FLASHMOE_TESTS_FORMAT_GGUF_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "format/gguf.h"

#define MAX_BYTES (1u << 20)

struct file {
    uint8_t *bytes;
    size_t n;
    unsigned n_values, n_tensors;
    uint64_t data_bytes;
};

static inline void put(struct file *f, const void *bytes, size_t n)
{
    assert_true(f->n + n <= MAX_BYTES);
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

static inline void put_uint(struct file *f, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++, value >>= 8)
        put(f, &(uint8_t){(uint8_t)value}, 1);
}

static inline void put_text(struct file *f, const char *text)
{
    put_uint(f, strlen(text), 8);
    put(f, text, strlen(text));
}

static inline void begin(struct file *f)
{
    *f = (struct file){.bytes = malloc(MAX_BYTES)};
    assert_non_null(f->bytes);
    put(f, "GGUF", 4);
    put_uint(f, 3, 4);
    put_uint(f, 0, 16); /* end() writes the counts */
}

/* Overwrites the bytes at `at`. */
static inline void set_uint(struct file *f, size_t at, uint64_t value, unsigned bytes)
{
    const size_t n = f->n;
    f->n = at;
    put_uint(f, value, bytes);
    f->n = n;
}

static inline void put_key(struct file *f, const char *key, enum gguf_type type)
{
    put_text(f, key);
    put_uint(f, type, 4);
    f->n_values++;
}

static inline void add_u32(struct file *f, const char *key, uint32_t value)
{
    put_key(f, key, GGUF_U32);
    put_uint(f, value, 4);
}

static inline void add_f32(struct file *f, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(f, key, GGUF_F32);
    put_uint(f, bits, 4);
}

static inline void add_text(struct file *f, const char *key, const char *value)
{
    put_key(f, key, GGUF_STRING);
    put_text(f, value);
}

static inline void add_texts(struct file *f, const char *key, const char *const *values,
                             size_t n)
{
    put_key(f, key, GGUF_ARRAY);
    put_uint(f, GGUF_STRING, 4);
    put_uint(f, n, 8);
    for (size_t i = 0; i < n; i++)
        put_text(f, values[i]);
}

/* Dimensions in ggml's order; 0 ends them. */
static inline void add_tensor(struct file *f, const char *name, uint32_t type, uint64_t a,
                              uint64_t b, uint64_t c)
{
    const uint64_t dims[] = {a, b, c};
    const unsigned n_dims = b == 0 ? 1 : c == 0 ? 2 : 3;
    const struct gguf_format *format = gguf_format_find(type);
    uint64_t bytes = format != NULL ? a / format->block * format->block_bytes : 0;
    put_text(f, name);
    put_uint(f, n_dims, 4);
    for (unsigned d = 0; d < n_dims; d++) {
        put_uint(f, dims[d], 8);
        bytes *= d > 0 ? dims[d] : 1;
    }
    put_uint(f, type, 4);
    put_uint(f, f->data_bytes, 8);
    f->data_bytes += mem_round_up(bytes, 32);
    f->n_tensors++;
}

static inline void end(struct file *f)
{
    set_uint(f, 8, f->n_tensors, 8);
    set_uint(f, 16, f->n_values, 8);
}

static inline uint64_t file_bytes(const struct file *f)
{
    return mem_round_up(f->n, 32) + f->data_bytes;
}

/* Parses exactly the bytes of the header, so that a sanitizer notices any byte read beyond it. */
static inline int parse(const struct file *f, uint64_t bytes, struct gguf *g, uint8_t **held,
                 struct fm_error *err)
{
    const size_t n = bytes < f->n ? (size_t)bytes : f->n;
    *held = malloc(n > 0 ? n : 1);
    assert_non_null(*held);
    memcpy(*held, f->bytes, n);
    const int rc = gguf_parse(g, "m", *held, n, bytes, err);
    if (rc != 0) {
        free(*held);
        *held = NULL;
    }
    return rc;
}

#endif
