/* Measures how fast a disk reads, as experts are read: pieces of half a MiB in random order, eight
 * at a time, past the page cache where the file system can. Writes a file of 256 MiB into the
 * directory and removes it. Takes a few seconds at most. Any thread. */
#ifndef FLASHMOE_STORE_DISK_PROBE_H
#define FLASHMOE_STORE_DISK_PROBE_H

#include "base/plat_dir.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *speed to bytes per second. */
int disk_probe(const struct plat_dir *dir, double *speed, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
