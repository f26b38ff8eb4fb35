#include "apps/cli/prefix_options.h"

#include <string.h>

#include "base/mem.h"
#include "apps/cli/common.h"

int prefix_read_system(const struct args *args, char **text, size_t *text_bytes,
                       struct fm_error *err)
{
    const char *given = args_text(args, "system"), *path = args_text(args, "system-file");
    *text = NULL;
    *text_bytes = 0;
    if (path != NULL) {
        const int rc = file_read(path, text, text_bytes, err);
        if (rc != 0)
            return rc;
    } else if (given != NULL) {
        *text = mem_strdup(given, err);
        if (*text == NULL)
            return FM_ERR_NOMEM;
        *text_bytes = strlen(given);
    }
    while (path != NULL && *text_bytes > 0 && (*text)[*text_bytes - 1] == '\n')
        (*text)[--*text_bytes] = '\0';
    if (*text == NULL || memchr(*text, '\0', *text_bytes) == NULL)
        return 0;
    mem_free(*text);
    *text = NULL;
    return err_set(err, FM_ERR_FORMAT, "'%s' is not text: it contains a zero byte", path);
}

int prefix_open_snapshots(const struct args *args, struct fm_model *model,
                          struct fm_snapshots **out, struct fm_error *err)
{
    const char *dir = args_text(args, "snapshots");
    *out = NULL;
    return dir == NULL ? 0
                       : fm_snapshots_open(model, dir, args_uint(args, "snapshot-limit"), out, err);
}

size_t prefix_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

static const struct option prefix_options[] = {
    {.name = "system", .kind = OPTION_STRING, .metavar = "TEXT", .excludes = "system-file raw",
     .help = "System message"},
    {.name = "system-file", .kind = OPTION_PATH, .metavar = "FILE", .excludes = "raw",
     .help = "Read the system message from a file; drops trailing newlines"},
    {.name = "snapshots", .kind = OPTION_PATH, .metavar = "DIR", .excludes = "routes trace",
     .help = "Save computed state to this folder: the system message, and the conversation so far. "
             "The next start does not compute it again"},
    {.name = "snapshot-limit", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1 << 20,
     .value = "8G",
     .help = "Maximum size of the folder; the least recently used snapshots are removed first"},
    {.name = NULL},
};

const struct option_group group_prefix = {"System message and snapshots", prefix_options};
