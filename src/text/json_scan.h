/* Scans JSON byte by byte: checks that the text is still the beginning of a document, and reports
 * what each byte does. Follows RFC 8259 exactly; strings must be UTF-8 and surrogates must be
 * paired, so any parser can read a document that passes. Keys are not compared.
 *
 * Owns no memory. A scanner belongs to one thread. Nothing fails except the document. */
#ifndef FLASHMOE_TEXT_JSON_SCAN_H
#define FLASHMOE_TEXT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum nesting of objects and arrays; real arguments have fewer than ten levels. */
#define JSON_SCAN_DEPTH 128

/* Scans UTF-8 byte by byte; all zero at the start of a character. */
struct utf8_scan {
    uint8_t n_left;  /* bytes still to come */
    uint8_t lo, hi;  /* range of the next byte */
};
/* Returns false for a byte that is not allowed there. */
bool utf8_scan_push(struct utf8_scan *u, uint8_t byte);

enum json_event {
    JSON_NOTHING,      /* inside a token, or white space */
    JSON_OPENED,       /* an object or array was opened; depth includes it */
    JSON_CLOSED,       /* one was closed; depth no longer includes it */
    JSON_STRING_BEGAN, /* at its quote */
    JSON_STRING_ENDED, /* at its quote */
    JSON_SCALAR_BEGAN, /* a number, true, false or null */
};

struct json_scan {
    uint8_t state;
    uint8_t event;     /* enum json_event of the last byte */
    uint8_t kind;      /* first byte of the value that started last, '0' for any number */
    bool is_key;       /* the string that started last is a key */
    uint16_t depth;
    uint8_t n_decoded; /* bytes that the last byte added to the decoded string */
    uint8_t decoded[4];
    const char *literal; /* the rest of true, false or null */
    uint8_t n_hex;
    uint16_t unit, high; /* of \uXXXX; the high surrogate of a pair */
    struct utf8_scan utf8;
    uint8_t is_object[JSON_SCAN_DEPTH / 8];
};

void json_scan_init(struct json_scan *s);
/* Returns false if no document begins like this or if it is too deep. The scanner must not be used
 * after that. */
bool json_scan_push(struct json_scan *s, uint8_t byte);
/* Returns true if the bytes so far are a complete document. */
bool json_scan_is_whole(const struct json_scan *s);

/* Returns the first byte of the value ('0' for any number) if the whole text is one document,
 * otherwise 0. */
uint8_t json_scan_text(const char *text, size_t bytes);

/* Writes `byte` as it appears in a JSON string: itself or its escape. Returns the number of
 * bytes. */
size_t json_escape(uint8_t byte, char out[6]);

#ifdef __cplusplus
}
#endif
#endif
