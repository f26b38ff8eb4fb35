/* JSON, byte by byte: is this still the beginning of a document, and what does this byte do in it.
 * The grammar of RFC 8259 to the letter; strings must be UTF-8 and surrogates must be pairs, so
 * that every document that passes can be read by any parser. Keys are not compared.
 *
 * Owns no memory. One scanner belongs to one thread. Nothing fails but the document. */
#ifndef FLASHMOE_TEXT_JSON_SCAN_H
#define FLASHMOE_TEXT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Objects and arrays within each other; real arguments have fewer than ten. */
#define JSON_SCAN_DEPTH 128

/* UTF-8 byte by byte; all zero at the start of a character. */
struct utf8_scan {
    uint8_t n_left;  /* bytes still to come */
    uint8_t lo, hi;  /* what the next of them may be */
};
/* False for a byte that cannot stand there. */
bool utf8_scan_push(struct utf8_scan *u, uint8_t byte);

enum json_event {
    JSON_NOTHING,      /* the middle of something, or white space */
    JSON_OPENED,       /* an object or array; depth counts it already */
    JSON_CLOSED,       /* one; depth no longer counts it */
    JSON_STRING_BEGAN, /* with its quote */
    JSON_STRING_ENDED, /* likewise */
    JSON_SCALAR_BEGAN, /* a number, true, false or null */
};

struct json_scan {
    uint8_t state;
    uint8_t event;     /* of the last byte: enum json_event */
    uint8_t kind;      /* of the value that began last: its first byte, '0' for any number */
    bool is_key;       /* the string that began last is a key */
    uint16_t depth;
    uint8_t n_decoded; /* what the last byte added to the string in progress */
    uint8_t decoded[4];
    const char *literal; /* what is left of true, false or null */
    uint8_t n_hex;
    uint16_t unit, high; /* of \uXXXX; the first of a pair */
    struct utf8_scan utf8;
    uint8_t is_object[JSON_SCAN_DEPTH / 8];
};

void json_scan_init(struct json_scan *s);
/* False: no document begins like this, or it is too deep. The scanner is of no use then. */
bool json_scan_push(struct json_scan *s, uint8_t byte);
/* True when what was pushed is a whole document. */
bool json_scan_is_whole(const struct json_scan *s);

/* The first byte of the value ('0' for any number) when the whole text is one document, else 0. */
uint8_t json_scan_text(const char *text, size_t bytes);

/* `byte` as it stands in a JSON string: itself, or its escape. Returns the bytes of `out`. */
size_t json_escape(uint8_t byte, char out[6]);

#ifdef __cplusplus
}
#endif
#endif
