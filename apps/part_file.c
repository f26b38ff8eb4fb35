#include "part_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

int part_file_open(struct part_file *out, const char *option, const char *path,
                   struct fm_error *err)
{
    *out = (struct part_file){.option = option, .path = path};
    if (path == NULL)
        return 0;
    const size_t bytes = strlen(path) + sizeof ".part";
    out->part = mem_new(bytes, 1, "a path", err);
    if (out->part == NULL)
        return FM_ERR_NOMEM;
    (void)snprintf(out->part, bytes, "%s.part", path);
    out->file = fopen(out->part, "w");
    if (out->file == NULL) {
        int rc = err_set(err, FM_ERR_IO, "%s: cannot write '%s': %s", option, out->part,
                         strerror(errno));
        mem_free(out->part);
        out->part = NULL;
        return rc;
    }
    return 0;
}

int part_file_close(struct part_file *out, bool is_whole, struct fm_error *err)
{
    int rc = 0;
    if (out->file == NULL)
        return 0;
    bool is_written = fflush(out->file) == 0 && !ferror(out->file) &&
                      (!is_whole || fsync(fileno(out->file)) == 0 || errno == EINVAL);
    int why = errno;
    if (fclose(out->file) != 0 && is_written) {
        is_written = false;
        why = errno;
    }
    if (is_whole && is_written && rename(out->part, out->path) != 0) {
        is_written = false;
        why = errno;
    }
    if (is_whole && !is_written)
        rc = err_set(err, FM_ERR_IO, "%s: cannot write '%s': %s", out->option, out->path,
                     strerror(why));
    if (!is_whole || !is_written)
        (void)unlink(out->part); /* the fault is already reported */
    mem_free(out->part);
    *out = (struct part_file){0};
    return rc;
}
