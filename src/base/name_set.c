#include "base/name_set.h"

#include <stdio.h>
#include <string.h>

#define MAX_DISTANCE 64

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies a name. A number that is a whole word between dots becomes N. */
static void collapse(char out[NAME_SET_BYTES], const char *name, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes && n + 1 < NAME_SET_BYTES;) {
        size_t end = i;
        while (end < bytes && is_digit(name[end]))
            end++;
        const bool is_word = end > i && (i == 0 || name[i - 1] == '.') &&
                             (end == bytes || name[end] == '.');
        out[n++] = is_word ? 'N' : name[i];
        i = is_word ? end : i + 1;
    }
    out[n] = '\0';
}

static bool has(const struct name_set *set, const char *name)
{
    unsigned i = 0;
    while (i < set->n && strcmp(set->names[i], name) != 0)
        i++;
    return i < set->n;
}

bool name_set_has(const struct name_set *set, const char *name, size_t bytes)
{
    char wanted[NAME_SET_BYTES];
    collapse(wanted, name, bytes);
    return has(set, wanted);
}

void name_set_add(struct name_set *set, const char *name, size_t bytes)
{
    char wanted[NAME_SET_BYTES];
    collapse(wanted, name, bytes);
    if (has(set, wanted))
        return;
    if (set->n == NAME_SET_MAX)
        set->is_full = true;
    else
        memcpy(set->names[set->n++], wanted, sizeof wanted);
}

const char *name_set_text(const struct name_set *set, unsigned max, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < set->n && i < max && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "",
                                 set->names[i]);
    if (set->n > max && used < bytes)
        (void)snprintf(text + used, bytes - used, " and %s%u more",
                       set->is_full ? "at least " : "", set->n - max);
    return text;
}

size_t name_distance(const char *a, const char *b)
{
    size_t row[MAX_DISTANCE + 1];
    const size_t n = strnlen(b, MAX_DISTANCE);
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; i < MAX_DISTANCE && a[i] != '\0'; i++) {
        size_t diagonal = row[0]++;
        for (size_t j = 0; j < n; j++) {
            size_t best = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j + 1] = best < diagonal + 1 ? best : diagonal + 1;
        }
    }
    return row[n];
}
