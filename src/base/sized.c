#include "base/sized.h"

#include <string.h>

/* More than any struct of the API will have: beyond it the size was not set. */
#define SIZE_MAX_BYTES ((size_t)16384)

static size_t size_of(const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static int is_plausible(size_t size)
{
    return size >= sizeof size && size <= SIZE_MAX_BYTES && size % _Alignof(size_t) == 0;
}

int sized_check(const void *given, const char *name, struct fm_error *err)
{
    const size_t size = size_of(given);
    if (is_plausible(size))
        return 0;
    return err_set(err, FM_ERR_ARG, "%s.size is %zu: set it to sizeof(struct %s)", name, size,
                   name);
}

int sized_take(void *own, size_t own_bytes, const void *given, const char *name,
               struct fm_error *err)
{
    memset(own, 0, own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    if (given == NULL)
        return 0;
    const int rc = sized_check(given, name, err);
    if (rc != 0)
        return rc;
    const size_t size = size_of(given);
    for (size_t i = own_bytes; i < size; i++)
        if (((const char *)given)[i] != 0)
            return err_set(err, FM_ERR_ARG, "%s has %zu bytes and this library knows the first "
                           "%zu: an option behind them is set, which needs a newer library", name,
                           size, own_bytes);
    memcpy(own, given, size < own_bytes ? size : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return 0;
}

int sized_give(void *given, const void *own, size_t own_bytes)
{
    const size_t size = size_of(given);
    if (!is_plausible(size))
        return FM_ERR_ARG;
    memset(given, 0, size);
    memcpy(given, own, size < own_bytes ? size : own_bytes);
    memcpy(given, &size, sizeof size);
    return 0;
}
