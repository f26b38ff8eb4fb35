#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Control characters of a hostile file name or field must not reach a terminal. */
static void make_printable(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p != '\0'; p++)
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
}

int err_set(struct fm_error *err, int code, const char *fmt, ...)
{
    if (err == NULL)
        return code;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(err->text, sizeof err->text, fmt, args); /* truncation is acceptable */
    va_end(args);
    make_printable(err->text);
    err->code = code;
    return code;
}

int err_wrap(struct fm_error *err, int code, const char *fmt, ...)
{
    if (err == NULL)
        return code;
    char inner[FM_ERROR_BYTES];
    memcpy(inner, err->text, sizeof inner);
    va_list args;
    va_start(args, fmt);
    int used = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof err->text)
        (void)snprintf(err->text + used, sizeof err->text - (size_t)used, ": %s", inner);
    make_printable(err->text);
    err->code = code;
    return code;
}
