/* A file that an option asks for, written aside as PATH.part and renamed when it is whole. Faults
 * of writing are reported at the end. One thread. */
#ifndef FLASHMOE_APPS_PART_FILE_H
#define FLASHMOE_APPS_PART_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"

struct part_file {
    const char *option, *path; /* borrowed; path NULL: nothing is written */
    char *part;
    FILE *file; /* NULL: nothing is written */
};

/* `path` NULL makes one that does nothing. `option` is named in errors: "--trace". */
int part_file_open(struct part_file *out, const char *option, const char *path,
                   struct fm_error *err);
/* Puts the whole file in place, or with `is_whole` false removes what there is. */
int part_file_close(struct part_file *out, bool is_whole, struct fm_error *err);

#endif
