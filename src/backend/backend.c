#include "backend/backend.h"

#include <string.h>

#define BACKEND(name, open, scratch_bytes)                                                         \
    int open(const struct backend_options *options, struct backend **out, struct fm_error *err);   \
    uint64_t scratch_bytes(const struct backend_options *options);
#include "backend/backend_list.h"
#undef BACKEND

struct backend_entry {
    const char *name;
    int (*open)(const struct backend_options *options, struct backend **out, struct fm_error *err);
    uint64_t (*scratch_bytes)(const struct backend_options *options);
};

static const struct backend_entry all_backends[] = {
#define BACKEND(name, open, scratch_bytes) {name, open, scratch_bytes},
#include "backend/backend_list.h"
#undef BACKEND
};

/* Returns the first backend if name is NULL, and NULL if no backend has that name. */
static const struct backend_entry *find_backend(const char *name)
{
    for (size_t i = 0; i < sizeof all_backends / sizeof all_backends[0]; i++)
        if (name == NULL || strcmp(name, all_backends[i].name) == 0)
            return &all_backends[i];
    return NULL;
}

int backend_open(const char *name, const struct backend_options *options, struct backend **out,
                 struct fm_error *err)
{
    *out = NULL;
    const struct backend_entry *entry = find_backend(name);
    if (entry == NULL)
        return err_set(err, FM_ERR_ARG, "there is no backend '%s'", name);
    return entry->open(options, out, err);
}

void backend_close(struct backend *be)
{
    if (be != NULL)
        be->ops->close(be);
}

uint64_t backend_scratch_bytes(const char *name, const struct backend_options *options)
{
    const struct backend_entry *entry = find_backend(name);
    return entry != NULL ? entry->scratch_bytes(options) : 0;
}
