/* Reads metadata: typed values with errors that name file, key and value. */
#include <stdio.h>
#include <string.h>

#include "format/gguf_internal.h"

#define SHOWN_BYTES 96
#define SHOWN_TEXT 60

static const char *const type_names[N_GGUF_TYPES] = {
    "a whole number", "a whole number", "a whole number", "a whole number", "a whole number",
    "a whole number", "a number",       "a truth value",  "a text",         "a list",
    "a whole number", "a whole number", "a number",
};

const struct gguf_value *gguf_look(const struct gguf *g, const char *key,
                                   char full_key[GGUF_KEY_BYTES])
{
    const struct gguf_value *architecture = NULL;
    if (key[0] == '.')
        architecture = gguf_find(g, "general.architecture");
    int prefix = 0;
    if (architecture != NULL && architecture->type == GGUF_STRING &&
        architecture->n <= LIMIT_GGUF_NAME_BYTES)
        prefix = (int)architecture->n;
    (void)snprintf(full_key, GGUF_KEY_BYTES, "%.*s%s", prefix,
                   prefix > 0 ? (const char *)architecture->data : "", key);
    return gguf_find(g, full_key);
}

static bool is_whole(uint32_t type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

static bool is_signed(uint32_t type)
{
    return type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
}

/* Reads an integer or a boolean. Returns false if it does not fit into int64_t. */
static bool get_whole(uint32_t type, const uint8_t *data, int64_t *out)
{
    const unsigned bytes = gguf_type_bytes(type);
    uint64_t bits = gguf_get_le(data, bytes);
    if (is_signed(type) && bytes < 8 && bits >> (8 * bytes - 1) != 0)
        bits |= UINT64_MAX << (8 * bytes);
    memcpy(out, &bits, sizeof bits);
    return is_signed(type) || bits <= INT64_MAX;
}

bool gguf_element(const struct gguf_value *array, uint64_t i, int64_t *out)
{
    const uint32_t type = array->element_type;
    return array->type == GGUF_ARRAY && i < array->n && (is_whole(type) || type == GGUF_BOOL) &&
           get_whole(type, array->data + i * gguf_type_bytes(type), out);
}

static double get_real(uint32_t type, const uint8_t *data)
{
    if (type == GGUF_F32) {
        const uint32_t bits = (uint32_t)gguf_get_le(data, 4);
        float x;
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    }
    const uint64_t bits = gguf_get_le(data, 8);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Formats a value for a message. */
static const char *show(const struct gguf_value *v, char buffer[SHOWN_BYTES])
{
    int64_t whole = 0;
    if (v->type == GGUF_STRING && v->n <= SHOWN_TEXT && gguf_is_text(v->data, v->n))
        (void)snprintf(buffer, SHOWN_BYTES, "\"%.*s\"", (int)v->n, (const char *)v->data);
    else if (v->type == GGUF_BOOL)
        (void)snprintf(buffer, SHOWN_BYTES, "%s", v->data[0] != 0 ? "true" : "false");
    else if (is_whole(v->type) && get_whole(v->type, v->data, &whole))
        (void)snprintf(buffer, SHOWN_BYTES, "%lld", (long long)whole);
    else if (is_whole(v->type))
        (void)snprintf(buffer, SHOWN_BYTES, "%llu", (unsigned long long)gguf_get_le(v->data, 8));
    else if (v->type == GGUF_F32 || v->type == GGUF_F64)
        (void)snprintf(buffer, SHOWN_BYTES, "%g", get_real(v->type, v->data));
    else if (v->type == GGUF_ARRAY)
        (void)snprintf(buffer, SHOWN_BYTES, "a list of %llu", (unsigned long long)v->n);
    else
        (void)snprintf(buffer, SHOWN_BYTES, "%s", type_names[v->type]);
    return buffer;
}

int gguf_refuse(const struct gguf *g, const char *key, const struct gguf_value *v,
                const char *expected, struct fm_error *err)
{
    char shown[SHOWN_BYTES];
    return err_set(err, FM_ERR_UNSUPPORTED, "%s: key '%s' is %s; this version reads only %s",
                   g->path, key, show(v, shown), expected);
}

static int missing(const struct gguf *g, const char *key, struct fm_error *err)
{
    return err_set(err, FM_ERR_FORMAT, "%s: key '%s' is missing", g->path, key);
}

static int wrong(const struct gguf *g, const char *key, const struct gguf_value *v,
                 const char *expected, struct fm_error *err)
{
    char shown[SHOWN_BYTES];
    return err_set(err, FM_ERR_FORMAT, "%s: key '%s' is %s, expected %s", g->path, key,
                   show(v, shown), expected);
}

/* Returns the number of a scalar, or of an array whose elements are all equal. */
static bool get_uniform(const struct gguf_value *v, int64_t *out)
{
    if (is_whole(v->type))
        return get_whole(v->type, v->data, out);
    int64_t other;
    if (!gguf_element(v, 0, out))
        return false;
    for (uint64_t i = 1; i < v->n; i++)
        if (!gguf_element(v, i, &other) || other != *out)
            return false;
    return true;
}

static int read_uint(const struct gguf *g, const char *key, const struct gguf_value *v,
                     uint64_t min, uint64_t max, uint64_t *out, struct fm_error *err)
{
    int64_t n;
    if (!get_uniform(v, &n) || n < 0 || (uint64_t)n < min || (uint64_t)n > max) {
        char expected[96];
        (void)snprintf(expected, sizeof expected, "a whole number from %llu to %llu",
                       (unsigned long long)min, (unsigned long long)max);
        return wrong(g, key, v, expected, err);
    }
    *out = (uint64_t)n;
    return 0;
}

int gguf_uint(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
              struct fm_error *err)
{
    char full[GGUF_KEY_BYTES];
    const struct gguf_value *v = gguf_look(g, key, full);
    return v == NULL ? missing(g, full, err) : read_uint(g, full, v, min, max, out, err);
}

int gguf_uint_or(const struct gguf *g, const char *key, uint64_t min, uint64_t max,
                 uint64_t fallback, uint64_t *out, struct fm_error *err)
{
    char full[GGUF_KEY_BYTES];
    const struct gguf_value *v = gguf_look(g, key, full);
    *out = fallback;
    return v == NULL ? 0 : read_uint(g, full, v, min, max, out, err);
}

int gguf_number_or(const struct gguf *g, const char *key, double min, double max, double fallback,
                   double *out, struct fm_error *err)
{
    char full[GGUF_KEY_BYTES];
    const struct gguf_value *v = gguf_look(g, key, full);
    *out = fallback;
    if (v == NULL)
        return 0;
    int64_t whole = 0;
    double x;
    bool is_number = true;
    if (v->type == GGUF_F32 || v->type == GGUF_F64) {
        x = get_real(v->type, v->data);
    } else {
        is_number = is_whole(v->type) && get_whole(v->type, v->data, &whole);
        x = (double)whole;
    }
    if (!is_number || !(x >= min && x <= max)) {
        char expected[96];
        (void)snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
        return wrong(g, full, v, expected, err);
    }
    *out = x;
    return 0;
}

int gguf_bool_or(const struct gguf *g, const char *key, bool fallback, bool *out,
                 struct fm_error *err)
{
    char full[GGUF_KEY_BYTES];
    const struct gguf_value *v = gguf_look(g, key, full);
    *out = fallback;
    if (v == NULL)
        return 0;
    if (v->type != GGUF_BOOL)
        return wrong(g, full, v, "true or false", err);
    *out = v->data[0] != 0;
    return 0;
}

int gguf_text_or_null(const struct gguf *g, const char *key, const char **text, uint64_t *bytes,
                      struct fm_error *err)
{
    char full[GGUF_KEY_BYTES];
    const struct gguf_value *v = gguf_look(g, key, full);
    *text = NULL;
    *bytes = 0;
    if (v == NULL)
        return 0;
    if (v->type != GGUF_STRING)
        return wrong(g, full, v, "a text", err);
    if (!gguf_is_text(v->data, v->n))
        return err_set(err, FM_ERR_FORMAT, "%s: key '%s' is not UTF-8 text", g->path, full);
    *text = (const char *)v->data;
    *bytes = v->n;
    return 0;
}

bool gguf_text_is(const char *text, uint64_t bytes, const char *wanted)
{
    return text != NULL && bytes == strlen(wanted) && memcmp(text, wanted, bytes) == 0;
}
