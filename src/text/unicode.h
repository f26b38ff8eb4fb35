/* Code points: reading and writing UTF-8, and the character classes that the pre-tokenizer needs.
 *
 * Owns only constant tables, which are generated from the official `tokenizers` package
 * (tools/gen_unicode.py). They therefore agree with that package, whatever Unicode version the
 * system has. Any thread; nothing allocates or fails. */
#ifndef FLASHMOE_TEXT_UNICODE_H
#define FLASHMOE_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    UNICODE_L = 1,      /* \p{L} */
    UNICODE_M = 2,      /* \p{M} */
    UNICODE_N = 4,      /* \p{N} */
    UNICODE_SPACE = 8,  /* \s */
    UNICODE_NFC = 16,   /* NFC may change it or join it to the character before it */
    UNICODE_UPPER = 32, /* [\p{Lu}\p{Lt}] */
    UNICODE_LOWER = 64, /* \p{Ll} */
    UNICODE_PS = 128,   /* [\p{P}\p{S}] */
    UNICODE_HAN = 256,  /* \p{Han} */
};

/* Returns the bits above; 0 for a value that is not a code point. */
unsigned unicode_bits(uint32_t code_point);

enum utf8_status {
    UTF8_CHAR, /* one character */
    UTF8_BAD,  /* `used` bytes that belong to no character: the maximal subpart */
    UTF8_CUT,  /* the text ends inside a character that may still become valid */
};

/* Reads the first character of `text`; `bytes` must be above 0. *used is at least 1. *code_point is
 * set only for UTF8_CHAR. */
enum utf8_status utf8_step(const uint8_t *text, size_t bytes, uint32_t *code_point, size_t *used);

/* Does the same for valid text. Returns the number of bytes used. */
static inline size_t utf8_get(const uint8_t *text, uint32_t *code_point)
{
    const uint32_t lead = text[0];
    if (lead < 0x80) {
        *code_point = lead;
        return 1;
    }
    const uint32_t second = text[1] & 0x3f;
    if (lead < 0xe0) {
        *code_point = (lead & 0x1f) << 6 | second;
        return 2;
    }
    const uint32_t third = text[2] & 0x3f;
    if (lead < 0xf0) {
        *code_point = (lead & 0x0f) << 12 | second << 6 | third;
        return 3;
    }
    *code_point = (lead & 0x07) << 18 | second << 12 | third << 6 | (text[3] & 0x3f);
    return 4;
}

/* Writes a valid code point. Returns the number of bytes. */
size_t utf8_put(uint32_t code_point, uint8_t out[4]);

/* Returns how often utf8_repair would write U+FFFD: 0 for valid text. */
size_t utf8_count_bad(const uint8_t *text, size_t bytes);

/* Copies `text` with U+FFFD for every maximal subpart that is not UTF-8, as Rust's
 * String::from_utf8_lossy does. `out` needs room for bytes + 2 * utf8_count_bad(text) bytes, at
 * most 3 * bytes. Returns the number of bytes written. A character cut off at the end counts as bad
 * if `used` is NULL; otherwise it is not copied and *used says where it begins. */
size_t utf8_repair(const uint8_t *text, size_t bytes, uint8_t *out, size_t *used);

#ifdef __cplusplus
}
#endif
#endif
