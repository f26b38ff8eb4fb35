/* Checksums of bytes as the device holds them, read past the page cache where possible. A
 * device_file owns its descriptor. Functions fail with FM_ERR_IO or FM_ERR_NOMEM. One thread at a
 * time opens and closes a file; any number may compute checksums of it. */
#ifndef FLASHMOE_PACK_DEVICE_H
#define FLASHMOE_PACK_DEVICE_H

#include "base/plat_dir.h"
#include "format/packed.h"
#include "pack/crew.h"

#ifdef __cplusplus
extern "C" {
#endif

struct device_file {
    const char *path; /* borrowed */
    int fd;
    uint64_t bytes;
};

int device_open(struct device_file *file, const char *path, struct fm_error *err);
/* Opens a name in a directory; `path` is used in messages. */
int device_open_in(struct device_file *file, const struct plat_dir *dir, const char *path,
                   struct fm_error *err);
void device_close(struct device_file *file); /* accepts one that is not open (fd -1) */

/* A run of bytes in a file. */
struct device_range {
    const struct device_file *file;
    uint64_t offset, bytes;
};

/* Computes the checksum of all ranges together, in their order. The size of `buffer` and its
 * alignment are multiples of MEM_PAGE. Counts the bytes as done in the crew. */
int device_sum(const struct device_range ranges[], unsigned n, void *buffer,
               uint64_t buffer_bytes, struct crew *crew, struct packed_sum *sum,
               struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
