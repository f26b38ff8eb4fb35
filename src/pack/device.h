/* Checksums of what the device holds. */
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
/* The same for a name in a directory, of which `path` is the path. */
int device_open_in(struct device_file *file, const struct plat_dir *dir, const char *path,
                   struct fm_error *err);
void device_close(struct device_file *file); /* accepts one that was not opened (fd -1) */

/* The checksum of bytes [offset, offset + bytes). `buffer` is aligned to MEM_PAGE and a multiple of
 * it long. Counts the bytes as done. */
int device_sum(const struct device_file *file, uint64_t offset, uint64_t bytes, void *buffer,
               uint64_t buffer_bytes, struct crew *crew, struct packed_sum *sum,
               struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
