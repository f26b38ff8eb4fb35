/* The Hugging Face hub: which files a repository has at a revision (hub_files.h checks what it
 * says), and their URLs. One thread. */
#ifndef FLASHMOE_APPS_PULL_HUB_H
#define FLASHMOE_APPS_PULL_HUB_H

#include "apps/pull/hub_files.h"
#include "apps/pull/web.h"

/* Lists the files. Free with hub_clear, also after a failure. */
int hub_list(const struct web *web, const struct model_name *name, struct hub_repo *repo,
             struct fm_error *err);

/* Writes the URL of a file. Returns false if it is too long. */
bool hub_url(const struct pull_env *env, const struct model_name *name, const char *commit,
             const char *path, char out[MODEL_URL_BYTES]);

#endif
