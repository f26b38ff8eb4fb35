#include "server/text_json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/lease.h"
#include "text/json_scan.h"
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

/* ---- numbers as they are -------------------------------------------------------------------- */

static size_t number_bytes(const char *text, size_t bytes)
{
    size_t n = 0;
    while (n < bytes && text[n] != '\0' && strchr("+-.0123456789eE", text[n]) != NULL)
        n++;
    return n;
}

typedef bool write_number(struct text_buffer *buffer, const char *text, size_t bytes);

/* Returns the bytes of a string, from its first quote to its last, or to the end of the text. */
static size_t string_bytes(const char *text, size_t bytes)
{
    size_t n = 1;
    while (n < bytes && text[n] != '"')
        n += text[n] == '\\' ? 2 : 1;
    return n < bytes ? n + 1 : bytes;
}

/* Appends a document of any depth with rewritten numbers; invalid JSON stays invalid. Returns false
 * when memory runs out. */
static bool add_with_numbers(struct text_buffer *buffer, const char *text, size_t bytes,
                             write_number *write)
{
    size_t done = 0, n;
    bool is_good = true;
    for (size_t i = 0; is_good && i < bytes; i += n) {
        const bool is_number = text[i] == '-' || (text[i] >= '0' && text[i] <= '9');
        n = text[i] == '"' ? string_bytes(text + i, bytes - i)
            : is_number    ? number_bytes(text + i, bytes - i) : 1;
        if (!is_number)
            continue;
        is_good = text_buffer_add(buffer, text + done, i - done) && write(buffer, text + i, n);
        done = i + n;
    }
    return is_good && text_buffer_add(buffer, text + done, bytes - done);
}

/* Writes the fewest digits that give the same double. */
static bool write_shortest(struct text_buffer *buffer, const char *text, size_t bytes)
{
    char number[40];
    if (bytes >= sizeof number || memchr(text, '.', bytes) == NULL)
        return text_buffer_add(buffer, text, bytes);
    memcpy(number, text, bytes);
    number[bytes] = '\0';
    const double value = strtod(number, NULL);
    for (int n_digits = 15; n_digits <= 17; n_digits++) {
        (void)snprintf(number, sizeof number, "%.*g", n_digits, value);
        if (strtod(number, NULL) == value)
            break;
    }
    return text_add_string(buffer, number);
}

bool text_add_json(struct text_buffer *buffer, const json_t *value)
{
    struct text_buffer full = {0};
    const size_t how = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17);
    const size_t n = buffer->n;
    bool is_good = value != NULL && json_dump_callback(value, add_piece, &full, how) == 0;
    if (is_good && !add_with_numbers(buffer, text_buffer_text(&full), full.n, write_shortest)) {
        buffer->n = n; /* too deep to scan: writes all digits */
        is_good = text_buffer_add(buffer, text_buffer_text(&full), full.n);
    }
    text_buffer_clear(&full);
    return is_good;
}

/* Writes integers that may exceed 64 bits as reals. */
static bool write_real(struct text_buffer *buffer, const char *text, size_t bytes)
{
    const bool is_long = bytes > 18 && memchr(text, '.', bytes) == NULL &&
                         memchr(text, 'e', bytes) == NULL && memchr(text, 'E', bytes) == NULL;
    return text_buffer_add(buffer, text, bytes) && (!is_long || text_add_string(buffer, ".0"));
}

/* Returns false, with the place, if a document is nested too deep. */
static bool is_flat(const char *text, size_t bytes, json_error_t *why)
{
    unsigned depth = 0;
    int line = 1, column = 1;
    for (size_t i = 0, n; i < bytes; i += n, column += (int)n) {
        const char c = text[i];
        n = c == '"' ? string_bytes(text + i, bytes - i) : 1;
        if (c == '\n') {
            line++;
            column = 0;
        }
        depth -= (c == '}' || c == ']') && depth > 0;
        depth += c == '{' || c == '[';
        if (depth <= JSON_READ_DEPTH)
            continue;
        *why = (json_error_t){.line = line, .column = column, .position = (int)i};
        (void)snprintf(why->text, sizeof why->text, "more than %u objects and arrays within each "
                       "other", JSON_READ_DEPTH);
        return false;
    }
    return true;
}

/* ---- characters that cannot be -------------------------------------------------------------- */

#define NO_UNIT UINT32_MAX
#define ESCAPE_BYTES 6

/* Returns the UTF-16 unit of an escape; NO_UNIT if it is none. */
static uint32_t unit_at(const char *text, size_t bytes, size_t at)
{
    uint32_t unit = 0;
    if (bytes - at < ESCAPE_BYTES || text[at] != '\\' || text[at + 1] != 'u')
        return NO_UNIT;
    for (size_t i = at + 2; i < at + ESCAPE_BYTES; i++) {
        const char c = (char)(text[i] | 0x20);
        if ((text[i] < '0' || text[i] > '9') && (c < 'a' || c > 'f'))
            return NO_UNIT;
        unit = unit << 4 | (uint32_t)(text[i] <= '9' ? text[i] - '0' : c - 'a' + 10);
    }
    return unit;
}

/* Returns the offset of the next escape that is U+0000 or an unpaired surrogate; `bytes`: none. */
static size_t bad_escape(const char *text, size_t bytes, size_t from)
{
    const char *slash;
    for (size_t i = from; i < bytes && (slash = memchr(text + i, '\\', bytes - i)) != NULL;) {
        i = (size_t)(slash - text);
        const uint32_t unit = unit_at(text, bytes, i);
        if (unit == NO_UNIT) {
            i += 2; /* another escape, whose second byte may be a backslash too */
            continue;
        }
        const bool is_high = unit >= 0xd800 && unit <= 0xdbff;
        const uint32_t low = is_high ? unit_at(text, bytes, i + ESCAPE_BYTES) : 0;
        const bool is_pair = is_high && low >= 0xdc00 && low <= 0xdfff;
        if (unit == 0 || (unit >= 0xd800 && unit <= 0xdfff && !is_pair))
            return i;
        i += is_pair ? 2 * ESCAPE_BYTES : ESCAPE_BYTES;
    }
    return bytes;
}

/* Adds the document with U+FFFD in place of invalid escapes and bytes. */
static bool add_repaired(struct text_buffer *buffer, const char *text, size_t bytes)
{
    const size_t n_bad = utf8_count_bad((const uint8_t *)text, bytes);
    uint8_t *valid = mem_new(bytes + 2 * n_bad + 1, 1, "a text", NULL);
    if (valid == NULL)
        return false;
    const size_t n = utf8_repair((const uint8_t *)text, bytes, valid, NULL);
    for (size_t i = 0; (i = bad_escape((const char *)valid, n, i)) < n; i += ESCAPE_BYTES)
        memcpy(valid + i, "\\ufffd", ESCAPE_BYTES);
    const bool is_good = text_buffer_add(buffer, (const char *)valid, n);
    mem_free(valid);
    return is_good;
}

/* The rest of a text. */
struct rest {
    const char *text;
    size_t bytes;
};

/* Ends the text early if it takes more memory than the request may use. */
static size_t read_rest(void *to, size_t max, void *ctx)
{
    struct rest *rest = ctx;
    const size_t n = rest->bytes < max ? rest->bytes : max;
    if (mem_lease_is_over())
        return (size_t)-1;
    if (n > 0)
        memcpy(to, rest->text, n);
    rest->text += n;
    rest->bytes -= n;
    return n;
}

static json_t *load(const char *text, size_t bytes, json_error_t *why)
{
    struct rest rest = {text, bytes};
    return json_load_callback(read_rest, &rest, 0, why);
}

static json_t *read_numbers(const char *text, size_t bytes, json_error_t *why)
{
    struct text_buffer reals = {0};
    json_t *value = load(text, bytes, why);
    if (value == NULL && json_error_code(why) == json_error_numeric_overflow &&
        add_with_numbers(&reals, text, bytes, write_real))
        value = load(text_buffer_text(&reals), reals.n, why);
    text_buffer_clear(&reals);
    return value;
}

json_t *json_read(const char *text, size_t bytes, json_error_t *why)
{
    struct text_buffer repaired = {0};
    json_t *value = NULL;
    if (!is_flat(text, bytes, why))
        return NULL;
    if (bad_escape(text, bytes, 0) == bytes) {
        value = read_numbers(text, bytes, why);
        if (value != NULL || json_error_code(why) != json_error_invalid_utf8)
            return value;
    }
    if (add_repaired(&repaired, text, bytes))
        value = read_numbers(text_buffer_text(&repaired), repaired.n, why);
    else
        (void)snprintf(why->text, sizeof why->text, "out of memory to read it");
    text_buffer_clear(&repaired);
    return value;
}

/* ---- a part of a document ------------------------------------------------------------------- */

#define KEY_BYTES 32

struct finder {
    struct json_scan scan;
    const char *const *path;
    unsigned n_path;
    unsigned n_open;  /* open objects on the path, not counting the outermost */
    bool is_next;     /* the next value is the one that path[n_open] names */
    char key[KEY_BYTES];
    size_t n_key;     /* may exceed the buffer */
    size_t begin, end;
    bool is_inside;   /* inside the value that is searched */
};

static void finder_value(struct finder *f, size_t at)
{
    const bool is_object = f->scan.event == JSON_OPENED && f->scan.kind == '{';
    f->is_next = false;
    f->begin = f->end = 0; /* of two members with the same name the second counts */
    if (f->n_open + 1 == f->n_path) {
        f->begin = at;
        f->is_inside = is_object;
    } else if (is_object) {
        f->n_open++;
    }
}

static void finder_take(struct finder *f, size_t at)
{
    const struct json_scan *s = &f->scan;
    /* Handles a member of the innermost object on the path. */
    const bool is_here = !f->is_inside && s->depth == f->n_open + 1;
    const bool is_value = s->event == JSON_SCALAR_BEGAN || s->event == JSON_OPENED ||
                          (s->event == JSON_STRING_BEGAN && !s->is_key);
    if (s->event == JSON_CLOSED && f->is_inside && s->depth == f->n_open + 1) {
        f->is_inside = false;
        f->end = at + 1;
    } else if (s->event == JSON_CLOSED && !f->is_inside && f->n_open > 0 &&
               s->depth == f->n_open) {
        f->n_open--;
    } else if (is_value && f->is_next) {
        finder_value(f, at);
    } else if (is_here && s->is_key && s->event == JSON_STRING_BEGAN) {
        f->n_key = 0;
    } else if (is_here && s->is_key && s->event == JSON_STRING_ENDED) {
        const char *name = f->path[f->n_open];
        f->is_next = f->n_key == strlen(name) && memcmp(f->key, name, f->n_key) == 0;
    } else if (is_here && s->is_key && s->event == JSON_NOTHING) {
        for (unsigned i = 0; i < s->n_decoded; i++, f->n_key++)
            if (f->n_key < KEY_BYTES)
                f->key[f->n_key] = (char)s->decoded[i];
    }
}

bool json_find_object(const char *text, size_t bytes, const char *const *path, unsigned n_path,
                      size_t *begin, size_t *end)
{
    struct finder f = {.path = path, .n_path = n_path};
    json_scan_init(&f.scan);
    for (size_t i = 0; i < bytes; i++) {
        if (!json_scan_push(&f.scan, (uint8_t)text[i]))
            return false;
        finder_take(&f, i);
    }
    *begin = f.begin;
    *end = f.end;
    return json_scan_is_whole(&f.scan) && f.end > f.begin;
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
