/* An output file of an option, written as PATH.part and renamed when complete. Write errors are
 * reported on closing. One thread. */
#ifndef FLASHMOE_APPS_CLI_PART_FILE_H
#define FLASHMOE_APPS_CLI_PART_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/limits.h"
#include "base/plat_dir.h"

struct part_file {
    const char *option, *path; /* borrowed; path NULL: nothing is written */
    FILE *file; /* NULL: nothing is written */
    char *part; /* its temporary name */
    char folder[LIMIT_PATH_BYTES];
    struct plat_dir dir;
    struct plat_file_info is;
};

/* Opens the temporary file. A NULL `path` makes every call do nothing. `option` names the option in
 * errors, such as "--trace". Only this user can read a private file. */
int part_file_open(struct part_file *out, const char *option, const char *path,
                   enum plat_access access, struct fm_error *err);
/* Renames the file into place, or removes it if `is_whole` is false. */
int part_file_close(struct part_file *out, bool is_whole, struct fm_error *err);

#endif
