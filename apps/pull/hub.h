/* The Hugging Face hub: which files a repository has at a revision, and which of them are needed.
 * Everything a hub says is checked: names, sizes, digests, the number of files. One thread. */
#ifndef FLASHMOE_APPS_PULL_HUB_H
#define FLASHMOE_APPS_PULL_HUB_H

#include "apps/pull/model_name.h"
#include "apps/pull/web.h"
#include "base/sha.h"

#define HUB_COMMIT_BYTES 41

struct hub_file {
    char path[MODEL_FILE_BYTES]; /* in the repository */
    uint64_t bytes;
    char sha256[SHA_HEX_BYTES], git_id[SHA_HEX_BYTES]; /* "" if unknown; one of them is known */
    bool is_chosen;
};

struct hub_repo {
    char commit[HUB_COMMIT_BYTES];
    struct hub_file *files;
    size_t n_files, capacity;
};

/* Lists the files. Free with hub_clear, also after a failure. */
int hub_list(const struct web *web, const struct model_name *name, struct hub_repo *repo,
             struct fm_error *err);
void hub_clear(struct hub_repo *repo);

/* Chooses the files to download: a checkpoint with its configuration and tokenizer, or one GGUF.
 * Fails with the choices if there are several. */
int hub_choose(struct hub_repo *repo, const struct model_name *name, struct fm_error *err);

/* Writes the URL of a file. Returns false if it is too long. */
bool hub_url(const struct pull_env *env, const struct model_name *name, const char *commit,
             const char *path, char out[MODEL_URL_BYTES]);

#endif
