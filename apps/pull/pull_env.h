/* What the environment says about the hub, with the names that other programs use: HF_ENDPOINT,
 * HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE; and where models are kept:
 * FLASHMOE_MODELS. Called from the main thread. */
#ifndef FLASHMOE_APPS_PULL_PULL_ENV_H
#define FLASHMOE_APPS_PULL_PULL_ENV_H

#include <stdbool.h>

#include "base/err.h"
#include "base/limits.h"

#define PULL_TOKEN_BYTES 512
#define PULL_ENDPOINT_BYTES 512

struct pull_env {
    char endpoint[PULL_ENDPOINT_BYTES]; /* without a trailing slash */
    char token[PULL_TOKEN_BYTES];       /* "" if there is none */
    char models[LIMIT_PATH_BYTES];      /* the folder of pulled models */
    char hub_cache[LIMIT_PATH_BYTES];   /* that of huggingface_hub; "" if there can be none */
    const char *ca_bundle;              /* a file of certificates, or NULL */
    bool is_offline;
};

/* Fails with FM_ERR_ARG when a value cannot be used, or when there is no home folder. */
int pull_env_read(struct pull_env *env, struct fm_error *err);
/* Reads only the folders. Fails with FM_ERR_ARG when there is no home folder, or FLASHMOE_MODELS is
 * no absolute path. */
int pull_env_folders(struct pull_env *env, struct fm_error *err);
/* Returns whether FLASHMOE_MODELS is set. */
bool pull_env_has_models(void);

#endif
