/* A file that an option asks for, written aside as PATH.part and renamed when it is whole. Faults
 * of writing are reported at the end. One thread. */
#ifndef FLASHMOE_APPS_CLI_PART_FILE_H
#define FLASHMOE_APPS_CLI_PART_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/limits.h"
#include "base/plat_dir.h"

struct part_file {
    const char *option, *path; /* borrowed; path NULL: nothing is written */
    FILE *file; /* NULL: nothing is written */
    char *part; /* its name while it is written */
    char folder[LIMIT_PATH_BYTES];
    struct plat_dir dir;
    struct plat_file_info is;
};

/* `path` NULL makes one that does nothing. `option` is named in errors: "--trace". A private file
 * is for this user alone. */
int part_file_open(struct part_file *out, const char *option, const char *path,
                   enum plat_access access, struct fm_error *err);
/* Puts the whole file in place, or with `is_whole` false removes what there is. */
int part_file_close(struct part_file *out, bool is_whole, struct fm_error *err);

#endif
