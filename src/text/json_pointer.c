#include "text/json_pointer.h"

#include <string.h>

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Reads one byte of the fragment and decodes its percent escape. */
static char take_byte(struct json_pointer *p)
{
    const char c = *p->at++;
    if (c != '%' || p->end - p->at < 2 || hex_value(p->at[0]) < 0 || hex_value(p->at[1]) < 0)
        return c;
    const int value = hex_value(p->at[0]) << 4 | hex_value(p->at[1]);
    p->at += 2;
    return (char)value;
}

bool json_pointer_open(struct json_pointer *p, const char *fragment, size_t bytes)
{
    if (bytes == 0 || fragment[0] != '#')
        return false;
    *p = (struct json_pointer){.at = fragment + 1, .end = fragment + bytes};
    p->has_more = p->at < p->end;
    return !p->has_more || take_byte(p) == '/';
}

bool json_pointer_next(struct json_pointer *p)
{
    if (!p->has_more)
        return false;
    p->has_more = false;
    p->n_part = 0;
    while (p->at < p->end && !p->has_more) {
        char c = take_byte(p);
        if (c == '/') {
            p->has_more = true;
            continue;
        }
        if (c == '~' && p->at < p->end) {
            const char *before = p->at;
            const char next = take_byte(p);
            if (next == '0' || next == '1')
                c = next == '0' ? '~' : '/';
            else
                p->at = before;
        }
        if (p->n_part <= JSON_POINTER_PART_BYTES)
            p->part[p->n_part++] = c;
    }
    if (p->n_part > JSON_POINTER_PART_BYTES)
        memset(p->part, 0xff, p->n_part--);
    p->part[p->n_part] = '\0';
    return true;
}
