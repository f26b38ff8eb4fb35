#include "server/fields.h"

#include <stdio.h>
#include <string.h>

#include "base/jdoc.h"

const json_t *fields_find(const struct fields *f, const char *name)
{
    const json_t *value = json_object_get(f->object, name);
    return json_is_null(value) ? NULL : value;
}

int fields_fail(const struct fields *f, const char *name, const char *what)
{
    char shown[96], param[96];
    const json_t *value = json_object_get(f->object, name);
    (void)snprintf(param, sizeof param, "%s%s", f->path, name);
    if (value == NULL)
        return api_fail(f->error, API_BAD, param, "'%s' %s", param, what);
    return api_fail(f->error, API_BAD, param, "'%s' %s, but it is %s", param, what,
                    jdoc_show(value, shown, sizeof shown));
}

bool fields_bool(const struct fields *f, const char *name, bool fallback)
{
    const json_t *value = fields_find(f, name);
    if (value == NULL || json_is_boolean(value))
        return value != NULL ? json_is_true(value) : fallback;
    (void)fields_fail(f, name, "must be true or false");
    return fallback;
}

double fields_number(const struct fields *f, const char *name, double min, double max,
                     double fallback)
{
    char what[96];
    const json_t *value = fields_find(f, name);
    if (value == NULL)
        return fallback;
    const double x = json_number_value(value);
    if (json_is_number(value) && x >= min && x <= max)
        return x;
    (void)snprintf(what, sizeof what, "must be a number from %g to %g", min, max);
    (void)fields_fail(f, name, what);
    return fallback;
}

uint64_t fields_uint(const struct fields *f, const char *name, uint64_t min, uint64_t max,
                     uint64_t fallback)
{
    char what[96];
    const json_t *value = fields_find(f, name);
    if (value == NULL)
        return fallback;
    double x = json_number_value(value);
    const bool is_whole = json_is_integer(value) ||
                          (json_is_real(value) && x >= 0 && x < 9e15 && x == (double)(uint64_t)x);
    const uint64_t n = json_is_integer(value) ? (uint64_t)json_integer_value(value)
                       : is_whole             ? (uint64_t)x
                                              : 0;
    if (is_whole && x >= 0 && n >= min && n <= max)
        return n;
    (void)snprintf(what, sizeof what, "must be a whole number from %llu to %llu",
                   (unsigned long long)min, (unsigned long long)max);
    (void)fields_fail(f, name, what);
    return fallback;
}

const char *fields_string(const struct fields *f, const char *name, const char *fallback)
{
    const json_t *value = fields_find(f, name);
    if (value == NULL || json_is_string(value))
        return value != NULL ? json_string_value(value) : fallback;
    (void)fields_fail(f, name, "must be a string");
    return fallback;
}

const json_t *fields_array(const struct fields *f, const char *name)
{
    const json_t *value = fields_find(f, name);
    if (value == NULL || json_is_array(value))
        return value;
    (void)fields_fail(f, name, "must be an array");
    return NULL;
}

const json_t *fields_object(const struct fields *f, const char *name)
{
    const json_t *value = fields_find(f, name);
    if (value == NULL || json_is_object(value))
        return value;
    (void)fields_fail(f, name, "must be an object");
    return NULL;
}
