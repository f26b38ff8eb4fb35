/* Parses one tool call byte by byte, starting after the text that opens it, in one of several
 * dialects (chat/dialect.h). The first byte that is not white space decides which.
 *
 * Owns its buffers: init and clear, and begin for each call. One thread. The only failure is lack
 * of memory: the call then breaks and is_out_of_memory is set. */
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

#define TOOLCALL_NAME_BYTES 256 /* maximum for a function or a parameter */
#define TOOLCALL_PARAMETERS 256
#define TOOLCALL_TAIL_BYTES 128 /* with white space and a tag at the end of a value */

struct dialect;
struct dialect_opener;

enum toolcall_status {
    TOOLCALL_MORE,
    TOOLCALL_WHOLE,  /* this byte was the last */
    TOOLCALL_NEXT,   /* the call was complete before the opener `next`, which ends with this byte */
    TOOLCALL_BROKEN, /* this byte is not allowed here and was not consumed */
};

struct toolcall {
    const json_t *tools; /* borrowed; may be NULL */
    const struct dialect *const *dialects; /* borrowed, NULL-terminated */

    /* Read by the caller. */
    bool is_ready;    /* the name is complete and the arguments have begun */
    bool is_complete; /* only the closing tag may be missing */
    bool is_out_of_memory;
    const struct dialect_opener *opener; /* NULL until the dialect is known */
    const char *next;
    struct text_buffer name; /* once is_ready, ends with a NUL that is counted */
    struct text_buffer id;   /* that the model wrote, without a NUL; empty: none */
    struct text_buffer args; /* JSON; the caller consumes it and sets n to 0 */

    const char *opening;
    bool is_early; /* the call is inside reasoning */
    const struct dialect *dialect;

    /* Used by the dialect; toolcall_begin resets all of it. */
    uint8_t state;
    char tail[TOOLCALL_TAIL_BYTES]; /* text that may be a tag or the end of a value */
    size_t n_tail;

    struct json_scan scan, inner; /* the call; the string that contains its arguments */
    uint8_t field, seen, target;  /* key of the current value; all keys so far; destination of a
                                   * string */
    bool is_copying;              /* the bytes belong to the arguments */

    struct text_buffer keys; /* each with its NUL */
    size_t key_at;           /* where the last key begins */
    unsigned n_keys;
    struct utf8_scan utf8;
    unsigned types;           /* of the current value; 0 for a string */
    bool has_begun;           /* the value has at least one byte */
    struct text_buffer value; /* kept until its type is known */
};

void toolcall_init(struct toolcall *tc, const struct dialect *const *dialects,
                   const json_t *tools);
void toolcall_clear(struct toolcall *tc); /* accepts a zeroed one */
/* Starts a call after the opener with this text, which must outlive the call. Inside reasoning
 * (is_early) a call of a dialect whose opener does not end reasoning breaks. */
void toolcall_begin(struct toolcall *tc, const char *opening, bool is_early);
/* Sets the name of a call that began before its arguments. Returns false for a name that is too
 * long or is not text, or if memory runs out. */
bool toolcall_set_name(struct toolcall *tc, const char *name, size_t bytes);
enum toolcall_status toolcall_push(struct toolcall *tc, uint8_t byte);

/* ---- for dialects ------------------------------------------------------------------------ */

static inline bool toolcall_is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

/* Returns false and sets is_out_of_memory if memory runs out. */
bool toolcall_add(struct toolcall *tc, struct text_buffer *buffer, const char *text, size_t bytes);
bool toolcall_add_byte(struct toolcall *tc, struct text_buffer *buffer, uint8_t byte);

/* Skips white space, then reads one of a set of tags; *tag is 0 until it is complete. Returns false
 * if the byte does not match. */
bool toolcall_push_tag(struct toolcall *tc, uint8_t byte, const struct marker *tags, unsigned set,
                       unsigned *tag);

/* Takes the next byte of {"name": "f", "arguments": {...}} and sets is_complete after the last one.
 * The keys come in any order, each once; other keys are skipped. The arguments are an object, which
 * is passed on byte for byte, or a string that contains one. If they are null or absent, there are
 * none. */
enum toolcall_status toolcall_push_object(struct toolcall *tc, uint8_t byte);

#ifdef __cplusplus
}
#endif
#endif
