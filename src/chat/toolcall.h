/* One tool call, byte by byte, from behind the marker that opens it. Two forms:
 *
 *   {"name": "f", "arguments": {...}} </tool_call>                                       (Qwen3)
 *   <function=f> <parameter=K> V </parameter> ... </function> </tool_call>    (Coder, Qwen3.5)
 *
 * The first byte that is no white space tells which. The second form may also stand alone; then it
 * begins behind "<function=" and ends with "</function>".
 *
 * JSON: the keys come in any order, each once; other keys are skipped. The arguments are an object,
 * given on byte for byte, or a string that holds one, or null or absent, which mean none.
 *
 * XML: becomes {"K": V, ...}. A value ends at "</parameter>", white space and one of "<parameter="
 * and "</function>", so that it may hold any other text, that tag included. One newline at either
 * end of it is dropped. It is a string, unless the schema of the tool says otherwise: where no
 * string is allowed, what reads as JSON is JSON; where a string and other types are, what reads as
 * JSON of one of those others is; true, false and null may be written with capitals, and None is
 * null; everything else is a string.
 *
 * Owns its buffers: init/clear, and begin for each call. One thread. Only want of memory fails: the
 * call breaks then, and is_out_of_memory is set. */
#ifndef FLASHMOE_CHAT_TOOLCALL_H
#define FLASHMOE_CHAT_TOOLCALL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "text/json_scan.h"
#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TOOLCALL_NAME_BYTES 256 /* of a function or a parameter */
#define TOOLCALL_PARAMETERS 256
#define TOOLCALL_TAIL_BYTES 96 /* of them, white space within the end of a value: 64 */

enum toolcall_form {
    TOOLCALL_JSON = 1,
    TOOLCALL_XML = 2,
};

enum toolcall_status {
    TOOLCALL_MORE,
    TOOLCALL_WHOLE,  /* this byte was the last */
    TOOLCALL_NEXT,   /* it was whole before "<function=", which ends with this byte */
    TOOLCALL_BROKEN, /* this byte cannot stand here and was not taken */
};

struct toolcall {
    const json_t *tools; /* borrowed; may be NULL */
    unsigned forms;      /* enum toolcall_form */

    /* For the caller. */
    bool is_ready;    /* the name is whole, and arguments have begun */
    bool is_complete; /* only the closing tag may be missing */
    bool is_out_of_memory;
    struct text_buffer name; /* ends with a NUL that counts, once is_ready */
    struct text_buffer args; /* JSON; the caller takes it and sets n to 0 */

    uint8_t state;
    bool is_bare;
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

void toolcall_init(struct toolcall *tc, unsigned forms, const json_t *tools);
void toolcall_clear(struct toolcall *tc); /* accepts a zeroed one */
/* `is_bare`: behind "<function=", otherwise behind "<tool_call>". */
void toolcall_begin(struct toolcall *tc, bool is_bare);
enum toolcall_status toolcall_push(struct toolcall *tc, uint8_t byte);

#ifdef __cplusplus
}
#endif
#endif
