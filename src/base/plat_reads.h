/* Counts finished reads of files, so that a slow process can be told from one that hangs: not every
 * file system has a block device whose blocks the system counts. Any thread. */
#ifndef FLASHMOE_BASE_PLAT_READS_H
#define FLASHMOE_BASE_PLAT_READS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of plat.h that read files do this themselves. */
void plat_count_read(void);
uint64_t plat_reads_done(void);

/* Like plat_read_some, for files of the system: it is not counted, because a process may look at
 * these while it hangs. */
int64_t plat_read_system(int fd, void *dst, uint64_t bytes, uint64_t offset);

#ifdef __cplusplus
}
#endif
#endif
