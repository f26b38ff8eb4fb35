/* Small JSON files of downloads, replaced as a whole. Any thread, one at a time per file. */
#ifndef FLASHMOE_APPS_PULL_WORK_FILE_H
#define FLASHMOE_APPS_PULL_WORK_FILE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/plat_dir.h"

/* Writes `root` as NAME: readers see the old or the new content. `is_synced` makes that hold after
 * a power failure, too. Borrows `root`; NULL means that memory ran out. */
int work_file_write(const struct plat_dir *dir, const char *name, const json_t *root,
                    bool is_synced, struct fm_error *err);

#endif
