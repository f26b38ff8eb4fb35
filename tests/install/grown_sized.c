/* base/sized.h in the grown library of install.abi: each struct has one more uint64_t at its end.
 * Its default is not 0 in results, and options check what has arrived in it. */
#define sized_take plain_take
#define sized_give plain_give
#include "base/sized.c"
#undef sized_take
#undef sized_give

#include <stdbool.h>
#include <stdint.h>

#include "grown.h"

/* Their prototypes in base/sized.h became those of the plain functions above. */
int sized_take(void *own, size_t own_bytes, const void *given, const char *name,
               struct fm_error *err);
int sized_give(void *given, const void *own, size_t own_bytes);

int sized_take(void *own, size_t own_bytes, const void *given, const char *name,
               struct fm_error *err)
{
    const int rc = plain_take(own, own_bytes, given, name, err);
    if (rc != 0)
        return rc;
    const bool is_newer = given != NULL && size_of(given) >= own_bytes;
    uint64_t grown, expected = 0;
    memcpy(&grown, (const char *)own + own_bytes - sizeof grown, sizeof grown);
    if (is_newer)
        memcpy(&expected, (const char *)given + own_bytes - sizeof grown, sizeof grown);
    if (grown != expected || (grown != 0 && grown != GROWN_VALUE))
        return err_set(err, FM_ERR_ARG, "%s.grown is %llu: the caller has not set it", name,
                       (unsigned long long)grown);
    return 0;
}

int sized_give(void *given, const void *own, size_t own_bytes)
{
    const uint64_t grown = GROWN_VALUE;
    unsigned char filled[SIZE_MAX_BYTES];
    memcpy(filled, own, own_bytes);
    memcpy(filled + own_bytes - sizeof grown, &grown, sizeof grown);
    return plain_give(given, filled, own_bytes);
}
