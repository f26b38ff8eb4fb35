/* Downloads files over several connections, in ranges, with retries. One thread, besides that of
 * parts.h. What has arrived stays after any failure; the next call with the same items and folders
 * continues there. */
#ifndef FLASHMOE_APPS_PULL_FETCH_H
#define FLASHMOE_APPS_PULL_FETCH_H

#include "flashmoe_lab.h"
#include "apps/pull/parts.h"
#include "apps/pull/web.h"

#define FETCH_MAX_CONNECTIONS 64

struct fetch_options {
    const struct web *web;
    const struct plat_dir *dir, *work; /* as in parts_open */
    unsigned n_connections;
    fm_work_fn *progress; /* returns false to stop */
    void *progress_ctx;
};

/* Downloads item i from urls[i]; items that are done are left alone. Fails with FM_ERR_CANCELLED
 * when progress returns false. */
int fetch_run(const struct fetch_options *options, struct part_item *items, char *const *urls,
              size_t n_items, struct fm_error *err);

#endif
