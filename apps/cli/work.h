/* Progress and Ctrl-C for the long work of pack and verify: a bar on a terminal, lines otherwise.
 * One thread; the caller owns the struct and the strings it points to. */
#ifndef FLASHMOE_APPS_CLI_WORK_H
#define FLASHMOE_APPS_CLI_WORK_H

#include "apps/cli/term.h"
#include "flashmoe_lab.h"

struct work {
    const char *verb; /* "packing" */
    bool is_quiet;
    struct progress bar;
    char label[160];
    uint64_t begin_ns, said_ns;
    uint64_t first_bytes; /* already done at the start */
    bool has_first;
};

void work_begin(struct work *work, const char *verb, bool is_quiet);
/* Shows progress; an fm_work_fn whose ctx is the struct. Returns false after Ctrl-C. */
bool work_show(void *work, const char *what, uint64_t done_bytes, uint64_t total_bytes);
void work_end(struct work *work);
/* Returns the seconds since work_begin. */
double work_seconds(const struct work *work);

#endif
