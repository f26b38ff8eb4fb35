/* Long work of pack and verify: progress on a terminal or line by line, and Ctrl-C. */
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
    uint64_t first_bytes; /* done when it began */
    bool has_first;
};

void work_begin(struct work *work, const char *verb, bool is_quiet);
/* An fm_work_fn whose ctx is the struct; false after Ctrl-C. */
bool work_show(void *work, const char *what, uint64_t done_bytes, uint64_t total_bytes);
void work_end(struct work *work);
/* Seconds since it began, and bytes done since then per second. */
double work_seconds(const struct work *work);

#endif
