#include "text/unicode.h"

#include <string.h>

#include "text/unicode_tables.inc"

unsigned unicode_bits(uint32_t code_point)
{
    if (code_point < UNICODE_BLOCK) /* the first block is block 0 */
        return unicode_bits_of[code_point];
    if (code_point > 0x10ffff)
        return 0;
    const size_t block = unicode_block_of[code_point / UNICODE_BLOCK];
    return unicode_bits_of[block * UNICODE_BLOCK + code_point % UNICODE_BLOCK];
}

/* Returns the length that a lead byte announces, and the range of the second byte, which excludes
 * overlong forms, surrogates and values above U+10FFFF. Returns 0 for a byte that cannot lead. */
static size_t lead_length(uint8_t lead, uint8_t *second_min, uint8_t *second_max)
{
    *second_min = 0x80;
    *second_max = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 2;
    if (lead >= 0xe0 && lead <= 0xef) {
        if (lead == 0xe0)
            *second_min = 0xa0;
        if (lead == 0xed)
            *second_max = 0x9f;
        return 3;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        if (lead == 0xf0)
            *second_min = 0x90;
        if (lead == 0xf4)
            *second_max = 0x8f;
        return 4;
    }
    return 0;
}

enum utf8_status utf8_step(const uint8_t *text, size_t bytes, uint32_t *code_point, size_t *used)
{
    *used = 1;
    if (text[0] < 0x80) {
        *code_point = text[0];
        return UTF8_CHAR;
    }
    uint8_t min, max;
    const size_t length = lead_length(text[0], &min, &max);
    if (length == 0)
        return UTF8_BAD;
    while (*used < length) {
        if (*used == bytes)
            return UTF8_CUT;
        const uint8_t byte = text[*used];
        if (byte < min || byte > max)
            return UTF8_BAD;
        min = 0x80;
        max = 0xbf;
        *used += 1;
    }
    (void)utf8_get(text, code_point);
    return UTF8_CHAR;
}

size_t utf8_put(uint32_t code_point, uint8_t out[4])
{
    if (code_point < 0x80) {
        out[0] = (uint8_t)code_point;
        return 1;
    }
    const uint8_t last = (uint8_t)(0x80 | (code_point & 0x3f));
    if (code_point < 0x800) {
        out[0] = (uint8_t)(0xc0 | code_point >> 6);
        out[1] = last;
        return 2;
    }
    const uint8_t middle = (uint8_t)(0x80 | (code_point >> 6 & 0x3f));
    if (code_point < 0x10000) {
        out[0] = (uint8_t)(0xe0 | code_point >> 12);
        out[1] = middle;
        out[2] = last;
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | code_point >> 18);
    out[1] = (uint8_t)(0x80 | (code_point >> 12 & 0x3f));
    out[2] = middle;
    out[3] = last;
    return 4;
}

size_t utf8_count_bad(const uint8_t *text, size_t bytes)
{
    size_t n_bad = 0, used;
    uint32_t code_point;
    for (size_t at = 0; at < bytes; at += used)
        n_bad += utf8_step(text + at, bytes - at, &code_point, &used) != UTF8_CHAR;
    return n_bad;
}

size_t utf8_repair(const uint8_t *text, size_t bytes, uint8_t *out, size_t *used)
{
    size_t n_out = 0, at = 0, step;
    for (; at < bytes; at += step) {
        uint32_t code_point;
        const enum utf8_status status = utf8_step(text + at, bytes - at, &code_point, &step);
        if (status == UTF8_CUT && used != NULL)
            break;
        if (status == UTF8_CHAR) {
            memcpy(out + n_out, text + at, step);
            n_out += step;
        } else {
            n_out += utf8_put(0xfffd, out + n_out);
        }
    }
    if (used != NULL)
        *used = at;
    return n_out;
}
