/* The folder of pulled models, and huggingface_hub's cache, which is only read.
 *
 *   MODELS/ORG/NAME/           a checkpoint, or GGUF files; ORG/NAME@REVISION for others than main
 *   MODELS/ORG/NAME/.pull/     manifest.json: what it should hold; FILE.part, FILE.state
 *   MODELS/ORG/NAME.fmoe/      the same, packed; NAME.fmoe.partial/ while it is packed, and
 *                              .pull-NAME.fmoe/NAME/ for files that are downloaded meanwhile; of
 *                              a GGUF .pull-NAME.fmoe/FILE.gguf/
 *
 * Called from the main thread. The caller owns every buffer. */
#ifndef FLASHMOE_APPS_PULL_STORE_H
#define FLASHMOE_APPS_PULL_STORE_H

#include <jansson.h>

#include "base/limits.h"
#include "base/plat_dir.h"
#include "apps/pull/model_name.h"
#include "apps/pull/pull_env.h"

#define STORE_WORK ".pull"
#define STORE_MANIFEST "manifest.json"
#define STORE_PACKED ".fmoe"

/* ---- from a name to a path -------------------------------------------------------------- */

/* Replaces the name of a pulled model by its path. Anything else, and every path that exists,
 * stays as it is: *path is then `text`; otherwise it is `buffer`. Fails with FM_ERR_ARG for a model
 * that was pulled in part, and for a name that no model has. */
int store_resolve(const char *text, char buffer[LIMIT_PATH_BYTES], const char **path,
                  struct fm_error *err);

/* Writes the folder for a model. Returns false if the path is too long. */
bool store_path(const struct pull_env *env, const struct model_name *name,
                char out[LIMIT_PATH_BYTES]);
/* Writes the folder of the source files while they are packed: DIR/.pull-PACK/NAME. The pack names
 * NAME as its source. Returns false if it is too long. */
bool store_pack_source(const char *dst, const char *name, char out[LIMIT_PATH_BYTES]);
/* Returns whether the pack was made of this model, as far as it says: it has the name of the
 * checkpoint's folder or of the GGUF file, but no organisation. */
bool store_pack_is_of(const char *pack, const struct model_name *name);
/* Finds the snapshot of a model in huggingface_hub's cache. `commit` NULL: the revision's. */
bool store_find_cached(const struct pull_env *env, const struct model_name *name,
                       const char *commit, char out[LIMIT_PATH_BYTES]);

/* ---- a model's folder ------------------------------------------------------------------- */

struct store_dir {
    char path[LIMIT_PATH_BYTES], work_path[LIMIT_PATH_BYTES];
    struct plat_dir dir, work;
};

/* Creates the folder and those above it, opens it and locks it. Fails if another process has it. */
int store_dir_open(struct store_dir *d, const char *path, struct fm_error *err);
/* Opens and locks a folder that exists, to remove files of it. `work` stays closed if there is no
 * .pull in it. */
int store_dir_take(struct store_dir *d, const char *path, struct fm_error *err);
/* Opens a folder that exists, to look at its files. Changes and locks nothing; `work` stays
 * closed. */
int store_dir_look(struct store_dir *d, const char *path, struct fm_error *err);
void store_dir_close(struct store_dir *d);

/* Returns the manifest of a folder, or NULL; the caller releases it. */
json_t *store_manifest(const char *path);
/* Returns how many bytes of its files are there and how many there should be. Without a manifest
 * both are 0. */
void store_progress(const char *path, uint64_t *there, uint64_t *all);

/* ---- all models ------------------------------------------------------------------------- */

struct store_model {
    const char *name; /* as a user can write it */
    const char *kind; /* "Hugging Face", "GGUF", "packed" */
    const char *path;
    const char *state; /* "complete", "partial", "packing" or "cache" */
    uint64_t bytes;    /* of the model's files that are there */
    uint64_t all_bytes; /* and those that should be */
};
typedef int store_model_fn(void *ctx, const struct store_model *model, struct fm_error *err);
/* Calls fn for every model, by name. Stops at a result other than 0. */
int store_each(const struct pull_env *env, store_model_fn *fn, void *ctx, struct fm_error *err);

/* Returns what a file or folder takes on the disk. Follows no links. */
uint64_t store_disk_bytes(const char *path);
/* Removes a folder and everything in it. Follows no links. Fails if another process has it. */
int store_remove_folder(const char *path, struct fm_error *err);
/* Removes a folder of the models folder, or one GGUF model in it (`file` not ""), with everything
 * that belongs to it. */
int store_remove(const struct pull_env *env, const struct model_name *name, struct fm_error *err);

#endif
