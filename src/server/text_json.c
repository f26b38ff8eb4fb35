#include "server/text_json.h"

#include <stdarg.h>
#include <stdio.h>

#include "text/unicode.h"

json_t *text_json(const char *text, size_t bytes)
{
    json_t *value = json_stringn(text != NULL ? text : "", bytes);
    if (value != NULL || bytes == 0)
        return value;
    const size_t n_bad = utf8_count_bad((const uint8_t *)text, bytes);
    uint8_t *valid = mem_new(bytes + 2 * n_bad + 1, 1, "a text", NULL);
    if (valid == NULL)
        return NULL;
    const size_t n = utf8_repair((const uint8_t *)text, bytes, valid, NULL);
    value = json_stringn((const char *)valid, n);
    mem_free(valid);
    return value;
}

json_t *json_float(float x)
{
    const double scaled = (double)x * 1e6;
    return json_real((double)(int64_t)(scaled + (scaled < 0 ? -0.5 : 0.5)) / 1e6);
}

static int add_piece(const char *text, size_t bytes, void *buffer)
{
    return text_buffer_add(buffer, text, bytes) ? 0 : -1;
}

bool text_add_json(struct text_buffer *buffer, const json_t *value)
{
    return value != NULL && json_dump_callback(value, add_piece, buffer,
                                               JSON_COMPACT | JSON_ENCODE_ANY |
                                                   JSON_REAL_PRECISION(9)) == 0;
}

bool text_add_string(struct text_buffer *buffer, const char *text)
{
    return text_buffer_add(buffer, text, strlen(text));
}

bool text_add_format(struct text_buffer *buffer, const char *fmt, ...)
{
    char line[512];
    va_list list;
    va_start(list, fmt);
    const int n = vsnprintf(line, sizeof line, fmt, list);
    va_end(list);
    return n >= 0 && text_buffer_add(buffer, line, (size_t)n < sizeof line ? (size_t)n
                                                                           : sizeof line - 1);
}
