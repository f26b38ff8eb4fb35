/* Divides every model that a test opens among ranks that are threads. Linked with
 * --wrap=fm_model_open and --wrap=fm_model_close it turns a test of the whole engine into one of
 * clusters: whatever the test compares must not depend on the ranks. RANKS says how many there are,
 * at most as many as layers. LAYERS says whether the ranks get about as many layers each (even),
 * or the first or the last one gets all but one of each other (first, last). */
#include <stdlib.h>
#include <string.h>

#include "flashmoe.h"

#define MAX_RANKS 64
#define MAX_MODELS 64
#define MIB (1ull << 20)

int __real_fm_model_open(const char *path, const struct fm_model_options *options,
                         struct fm_model **out, struct fm_error *err);
int __wrap_fm_model_open(const char *path, const struct fm_model_options *options,
                         struct fm_model **out, struct fm_error *err);
void __real_fm_model_close(struct fm_model *model);
void __wrap_fm_model_close(struct fm_model *model);

/* The clusters of open models. The library itself opens the models of the other ranks: calls within
 * it are not wrapped. */
static struct {
    struct fm_model *model;
    struct fm_cluster *cluster;
} open_models[MAX_MODELS];

static unsigned count_layers(const char *path)
{
    struct fm_model_options headers = {.size = sizeof headers};
    struct fm_model_info info = {.size = sizeof info};
    struct fm_model *model;
    struct fm_error err;
    headers.metadata_only = true;
    if (__real_fm_model_open(path, &headers, &model, &err) != 0)
        return 0;
    fm_model_info(model, &info);
    __real_fm_model_close(model);
    return info.n_layers;
}

static void cut(unsigned *layers, unsigned n, unsigned n_layers)
{
    const char *how = getenv("LAYERS");
    const unsigned large = how != NULL && strcmp(how, "last") == 0 ? n - 1 : 0;
    for (unsigned i = 0; i < n; i++)
        layers[i] = how == NULL || strcmp(how, "even") == 0
                        ? n_layers / n + (i >= n - n_layers % n)
                        : i == large ? n_layers - (n - 1) : 1;
}

/* A budget for the whole model is too small for some ranks, which have buffers of their own: they
 * get the smallest of a few shares that works, and room for keys and values, which ranks cannot
 * lend each other. */
static int open_with(const char *path, struct fm_model_options *options, unsigned n,
                     struct fm_model **out, struct fm_error *err)
{
    const uint64_t all = options->memory_bytes > 0 ? options->memory_bytes : 256 * MIB * n;
    int rc;
    options->memory_bytes = all;
    while ((rc = __real_fm_model_open(path, options, out, err)) == FM_ERR_BUDGET &&
           options->memory_bytes < 8 * all * n)
        options->memory_bytes += options->memory_bytes / 8;
    if (rc != 0)
        return rc;
    __real_fm_model_close(*out);
    options->memory_bytes += 4 * n * MIB;
    return __real_fm_model_open(path, options, out, err);
}

int __wrap_fm_model_open(const char *path, const struct fm_model_options *options,
                         struct fm_model **out, struct fm_error *err)
{
    const char *wanted = getenv("RANKS");
    const unsigned n_layers = options == NULL || options->metadata_only ? 0 : count_layers(path);
    unsigned n = wanted != NULL ? (unsigned)strtoul(wanted, NULL, 10) : 2, at = 0;
    unsigned layers[MAX_RANKS];
    n = n < n_layers ? n : n_layers;
    if (n < 2 || options->n_stages > 1 || options->cluster != NULL)
        return __real_fm_model_open(path, options, out, err);
    struct fm_cluster_options joining = {.size = sizeof joining, .n_threads = n};
    struct fm_model_options own = {.size = sizeof own};
    struct fm_cluster *cluster;
    memcpy(&own, options, options->size < sizeof own ? options->size : sizeof own);
    own.size = sizeof own;
    *out = NULL;
    int rc = fm_cluster_join(&joining, &cluster, err);
    if (rc != 0)
        return rc;
    cut(layers, n, n_layers);
    own.cluster = cluster;
    own.layers_of_ranks = layers;
    own.n_layers_of_ranks = n;
    rc = open_with(path, &own, n, out, err);
    while (at < MAX_MODELS && open_models[at].cluster != NULL)
        at++;
    if (rc != 0 || at == MAX_MODELS) {
        fm_cluster_close(cluster);
        return rc;
    }
    open_models[at].model = *out;
    open_models[at].cluster = cluster;
    return 0;
}

void __wrap_fm_model_close(struct fm_model *model)
{
    __real_fm_model_close(model);
    for (unsigned i = 0; model != NULL && i < MAX_MODELS; i++)
        if (open_models[i].model == model) {
            fm_cluster_close(open_models[i].cluster);
            open_models[i].model = NULL;
            open_models[i].cluster = NULL;
        }
}
