/* Downloads a model into a folder: what the hub or a URL has, compared with what is there.
 * One thread. The caller owns every struct. */
#ifndef FLASHMOE_APPS_PULL_PULL_H
#define FLASHMOE_APPS_PULL_PULL_H

#include "flashmoe_lab.h"
#include "apps/pull/fetch.h"
#include "apps/pull/hub.h"
#include "apps/pull/store.h"

/* The files of a model, and where each comes from. */
struct pull_list {
    char commit[HUB_COMMIT_BYTES]; /* "" for a URL */
    struct part_item *items;       /* [n] */
    char (*names)[PARTS_NAME_BYTES];
    char **urls;
    size_t n;
    uint64_t bytes;
};

struct pull_options {
    const struct web *web;
    const struct model_name *name;
    const char *sha256; /* expected digest of a URL's file, or NULL */
    unsigned n_connections;
    fm_work_fn *progress;
    void *progress_ctx;
};

/* Asks which files the model has. Free with pull_list_clear, also after a failure. */
int pull_list_get(const struct pull_options *options, struct pull_list *list,
                  struct fm_error *err);
void pull_list_clear(struct pull_list *list);

/* Returns whether huggingface_hub's cache has all these files; `path` is then where. */
bool pull_is_cached(const struct pull_options *options, const struct pull_list *list,
                    char path[LIMIT_PATH_BYTES]);

/* Marks the files that are in the folder already. Refuses files of other content that this program
 * has not put there. *missing counts the bytes of the others. */
int pull_compare(const struct store_dir *dir, struct pull_list *list, uint64_t *missing,
                 struct fm_error *err);
/* Removes listed files whose content is another one now, and writes the manifest of the folder.
 * pull_compare comes first. */
int pull_begin(const struct pull_options *options, const struct store_dir *dir,
               const struct pull_list *list, struct fm_error *err);
/* Does this, then downloads what is missing. */
int pull_fetch(const struct pull_options *options, const struct store_dir *dir,
               struct pull_list *list, struct fm_error *err);

#endif
