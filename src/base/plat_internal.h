/* Functions that the platform files share; not for other code. Thread rules as in plat.h. */
#ifndef FLASHMOE_BASE_PLAT_INTERNAL_H
#define FLASHMOE_BASE_PLAT_INTERNAL_H

#include <sys/stat.h>

#include "base/plat.h"

#ifdef __cplusplus
extern "C" {
#endif

void plat_fill_info(const struct stat *st, struct plat_file_info *info);

/* Like plat_open for a name in an open directory, with additional flags; `path` is for messages. */
int plat_open_at(int dir_fd, const char *name, int flags, const char *path, int *fd,
                 uint64_t *file_bytes, struct fm_error *err);
/* Reads a whole open file like plat_read_file, and closes it. */
int plat_read_opened(int fd, const char *path, uint64_t file_bytes, size_t max_bytes, char **text,
                     size_t *bytes, struct fm_error *err);
/* Makes reads of an open file bypass the page cache. Returns false if the file system cannot. */
bool plat_make_direct(int fd);

#ifdef __cplusplus
}
#endif
#endif
