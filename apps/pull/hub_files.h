/* What a hub says about a repository: its commit and its files, and which of them are needed.
 * Everything is checked: names, sizes, digests, the number of files. Needs no network. One
 * thread. */
#ifndef FLASHMOE_APPS_PULL_HUB_FILES_H
#define FLASHMOE_APPS_PULL_HUB_FILES_H

#include <stdbool.h>

#include "apps/pull/model_name.h"
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

/* Sets the error for an answer that is not the hub's. */
int hub_bad_answer(const char *url, const char *why, struct fm_error *err);
/* Read an answer, JSON text, to a request for `url`: the commit of a revision, and a page of the
 * list of files, which are added. */
int hub_read_commit(const char *url, const char *text, size_t bytes, struct hub_repo *repo,
                    struct fm_error *err);
int hub_read_page(const char *url, const char *text, size_t bytes, struct hub_repo *repo,
                  struct fm_error *err);
void hub_clear(struct hub_repo *repo);

/* Chooses the files to download: a checkpoint with its configuration and tokenizer, or one GGUF.
 * Fails with the choices if there are several. */
int hub_choose(struct hub_repo *repo, const struct model_name *name, struct fm_error *err);

#endif
