#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Replaces control characters, so that a hostile file name or field cannot reach the terminal. */
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
    char context[FM_ERROR_BYTES];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(context, sizeof context - 2, fmt, args); /* truncation is acceptable */
    va_end(args);
    memcpy(context + strlen(context), ": ", 3);
    /* Moves the sentence to make room for the context; its end is cut off if it does not fit. */
    size_t room = sizeof err->text - 1 - strlen(context);
    size_t kept = strlen(err->text) < room ? strlen(err->text) : room;
    memmove(err->text + strlen(context), err->text, kept);
    memcpy(err->text, context, strlen(context));
    err->text[strlen(context) + kept] = '\0';
    make_printable(err->text);
    err->code = code;
    return code;
}
