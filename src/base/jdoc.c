#include "base/jdoc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"

/* Returns the integer that a real number equals, or NULL if a double does not hold it exactly. */
static json_t *integer_of(const json_t *value)
{
    const double max = 9007199254740992.0; /* 2^53 */
    const double x = json_is_real(value) ? json_real_value(value) : max;
    if (!(x > -max && x < max) || x != (double)(json_int_t)x)
        return NULL;
    return json_integer((json_int_t)x);
}

static void restore_integers(json_t *value)
{
    json_t *integer;
    for (void *at = json_object_iter(value); at != NULL; at = json_object_iter_next(value, at)) {
        if ((integer = integer_of(json_object_iter_value(at))) != NULL)
            (void)json_object_iter_set_new(value, at, integer);
        else
            restore_integers(json_object_iter_value(at));
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if ((integer = integer_of(json_array_get(value, i))) != NULL)
            (void)json_array_set_new(value, i, integer);
        else
            restore_integers(json_array_get(value, i));
    }
}

/* transformers writes 1000000000000000019884624838656 for "no limit", which no 64-bit integer
 * holds. Such a document is read with all numbers as doubles. */
static json_t *load_text(const char *text, size_t bytes, json_error_t *why)
{
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, why);
    if (root != NULL || json_error_code(why) != json_error_numeric_overflow)
        return root;
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, why);
    restore_integers(root);
    return root;
}

int jdoc_parse(struct jdoc *doc, const char *file, const char *text, size_t bytes,
               struct fm_error *err)
{
    *doc = (struct jdoc){0};
    json_error_t why;
    json_t *root = load_text(text, bytes, &why);
    if (root == NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: not valid JSON at byte %d (line %d): %s", file,
                       why.position, why.line, why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(err, FM_ERR_FORMAT, "%s: the JSON root is not an object", file);
    }
    doc->file = mem_strdup(file, err);
    if (doc->file == NULL) {
        json_decref(root);
        return FM_ERR_NOMEM;
    }
    doc->root = root;
    return 0;
}

int jdoc_load(struct jdoc *doc, const char *path, size_t max_bytes, struct fm_error *err)
{
    *doc = (struct jdoc){0};
    char *text = NULL;
    size_t bytes = 0;
    int rc = plat_read_file(path, max_bytes, &text, &bytes, err);
    if (rc == 0)
        rc = jdoc_parse(doc, path, text, bytes, err);
    mem_free(text);
    return rc;
}

void jdoc_clear(struct jdoc *doc)
{
    json_decref(doc->root);
    mem_free(doc->file);
    *doc = (struct jdoc){0};
}

const json_t *jdoc_find(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return value == NULL || json_is_null(value) ? NULL : value;
}

const char *jdoc_show(const json_t *value, char *buffer, size_t buffer_bytes)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const size_t shown = 60;
    if (text == NULL)
        (void)snprintf(buffer, buffer_bytes, "?");
    else if (strlen(text) > shown)
        (void)snprintf(buffer, buffer_bytes, "%.*s...", (int)shown, text);
    else
        (void)snprintf(buffer, buffer_bytes, "%s", text);
    free(text);
    return buffer;
}

static int missing(const char *file, const char *field, struct fm_error *err)
{
    return err_set(err, FM_ERR_FORMAT, "%s: field '%s' is missing", file, field);
}

static int wrong(const json_t *value, const char *file, const char *field, const char *expected,
                 struct fm_error *err)
{
    char shown[80];
    return err_set(err, FM_ERR_FORMAT, "%s: field '%s' is %s, expected %s", file, field,
                   jdoc_show(value, shown, sizeof shown), expected);
}

static int read_uint(const json_t *value, const char *file, const char *field, uint64_t min,
                     uint64_t max, uint64_t *out, struct fm_error *err)
{
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || (uint64_t)n < min || (uint64_t)n > max) {
        char expected[96];
        (void)snprintf(expected, sizeof expected, "a whole number from %llu to %llu",
                       (unsigned long long)min, (unsigned long long)max);
        return wrong(value, file, field, expected, err);
    }
    *out = (uint64_t)n;
    return 0;
}

int jdoc_uint(const json_t *object, const char *file, const char *field, uint64_t min,
              uint64_t max, uint64_t *out, struct fm_error *err)
{
    const json_t *value = jdoc_find(object, field);
    if (value == NULL)
        return missing(file, field, err);
    return read_uint(value, file, field, min, max, out, err);
}

int jdoc_uint_or(const json_t *object, const char *file, const char *field, uint64_t min,
                 uint64_t max, uint64_t fallback, uint64_t *out, struct fm_error *err)
{
    const json_t *value = jdoc_find(object, field);
    if (value == NULL) {
        *out = fallback;
        return 0;
    }
    return read_uint(value, file, field, min, max, out, err);
}

int jdoc_number_or(const json_t *object, const char *file, const char *field, double min,
                   double max, double fallback, double *out, struct fm_error *err)
{
    const json_t *value = jdoc_find(object, field);
    if (value == NULL) {
        *out = fallback;
        return 0;
    }
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= min && x <= max)) {
        char expected[96];
        (void)snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
        return wrong(value, file, field, expected, err);
    }
    *out = x;
    return 0;
}

int jdoc_bool_or(const json_t *object, const char *file, const char *field, bool fallback,
                 bool *out, struct fm_error *err)
{
    const json_t *value = jdoc_find(object, field);
    if (value == NULL) {
        *out = fallback;
        return 0;
    }
    if (!json_is_boolean(value))
        return wrong(value, file, field, "true or false", err);
    *out = json_is_true(value);
    return 0;
}

int jdoc_string(const json_t *object, const char *file, const char *field, const char **out,
                struct fm_error *err)
{
    const json_t *value = jdoc_find(object, field);
    if (value == NULL)
        return missing(file, field, err);
    if (!json_is_string(value))
        return wrong(value, file, field, "a string", err);
    *out = json_string_value(value);
    return 0;
}
