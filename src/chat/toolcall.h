/* One tool call, byte by byte, from behind the text that opens it, in one of several dialects
 * (chat/dialect.h). What the first byte behind white space is tells which.
 *
 * Owns its buffers: init/clear, and begin for each call. One thread. Only want of memory fails: the
 * call breaks then, and is_out_of_memory is set. */
#ifndef FLASHMOE_CHAT_TOOLCALL_H
#define FLASHMOE_CHAT_TOOLCALL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "chat/marker.h"
#include "text/json_scan.h"
#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TOOLCALL_NAME_BYTES 256 /* of a function or a parameter */
#define TOOLCALL_PARAMETERS 256
#define TOOLCALL_TAIL_BYTES 96 /* of them, white space within the end of a value: 64 */

struct dialect;
struct dialect_opener;

enum toolcall_status {
    TOOLCALL_MORE,
    TOOLCALL_WHOLE,  /* this byte was the last */
    TOOLCALL_NEXT,   /* it was whole before the opener `next`, which ends with this byte */
    TOOLCALL_BROKEN, /* this byte cannot stand here and was not taken */
};

struct toolcall {
    const json_t *tools; /* borrowed; may be NULL */
    const struct dialect *const *dialects; /* borrowed, NULL-terminated */

    /* For the caller. */
    bool is_ready;    /* the name is whole, and arguments have begun */
    bool is_complete; /* only the closing tag may be missing */
    bool is_out_of_memory;
    const struct dialect_opener *opener; /* NULL while the dialect is not known */
    const char *next;
    struct text_buffer name; /* ends with a NUL that counts, once is_ready */
    struct text_buffer args; /* JSON; the caller takes it and sets n to 0 */

    const char *opening;
    const struct dialect *dialect;

    /* For the dialect; begin sets all of it to nothing. */
    uint8_t state;
    char tail[TOOLCALL_TAIL_BYTES]; /* what may be a tag, or the end of a value */
    size_t n_tail;

    struct json_scan scan, inner; /* the call; the string that holds its arguments */
    uint8_t field, seen, target;  /* the key before the value; all before; where a string goes */
    bool is_copying;              /* the bytes are those of the arguments */

    struct text_buffer keys; /* each with its NUL */
    size_t key_at;           /* where the last one begins */
    unsigned n_keys;
    struct utf8_scan utf8;
    unsigned types;           /* of the value in progress; 0: a string */
    bool has_begun;           /* the value has a byte */
    struct text_buffer value; /* kept while it is not known what it becomes */
};

void toolcall_init(struct toolcall *tc, const struct dialect *const *dialects,
                   const json_t *tools);
void toolcall_clear(struct toolcall *tc); /* accepts a zeroed one */
/* Behind the opener with this text, which must live as long as the call. */
void toolcall_begin(struct toolcall *tc, const char *opening);
enum toolcall_status toolcall_push(struct toolcall *tc, uint8_t byte);

/* ---- for dialects ------------------------------------------------------------------------ */

static inline bool toolcall_is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

/* False, and is_out_of_memory, for want of memory. */
bool toolcall_add(struct toolcall *tc, struct text_buffer *buffer, const char *text, size_t bytes);
bool toolcall_add_byte(struct toolcall *tc, struct text_buffer *buffer, uint8_t byte);

/* Skips white space, then takes one of a set of tags; *tag is 0 while it is not whole. False when
 * the byte does not fit. */
bool toolcall_push_tag(struct toolcall *tc, uint8_t byte, const struct marker *tags, unsigned set,
                       unsigned *tag);

/* The next byte of {"name": "f", "arguments": {...}}; is_complete is set behind the last one. The
 * keys come in any order, each once; other keys are skipped. The arguments are an object, given on
 * byte for byte, or a string that holds one, or null or absent, which mean none. */
enum toolcall_status toolcall_push_object(struct toolcall *tc, uint8_t byte);

#ifdef __cplusplus
}
#endif
#endif
