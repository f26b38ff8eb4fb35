#include "apps/cli/part_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/path.h"

static int create(struct part_file *out, enum plat_access access, struct fm_error *err)
{
    bool is_direct = false;
    int fd = -1;
    path_folder(out->path, out->folder);
    int rc = plat_dir_open(out->folder, PLAT_ANY_LINK, &out->dir, err);
    if (rc != 0)
        rc = err_wrap(err, rc, "cannot write '%s'", out->path);
    if (rc == 0)
        rc = plat_dir_create(&out->dir, out->part, access, &is_direct, &fd, err);
    if (rc == 0)
        out->file = plat_open_file_info(fd, &out->is) ? fdopen(fd, "w") : NULL;
    if (rc == 0 && out->file == NULL)
        rc = err_set(err, FM_ERR_IO, "cannot write '%s': %s", out->path, strerror(errno));
    if (rc != 0)
        plat_close(fd);
    return rc != 0 ? err_wrap(err, rc, "%s", out->option) : 0;
}

int part_file_open(struct part_file *out, const char *option, const char *path,
                   enum plat_access access, struct fm_error *err)
{
    *out = (struct part_file){.option = option, .path = path, .dir.fd = -1};
    if (path == NULL)
        return 0;
    const char *name = path_base(path);
    const size_t bytes = strlen(name) + sizeof ".part";
    out->part = mem_new(bytes, 1, "a path", err);
    if (out->part == NULL)
        return FM_ERR_NOMEM;
    (void)snprintf(out->part, bytes, "%s.part", name);
    int rc = create(out, access, err);
    if (rc != 0) {
        plat_dir_close(&out->dir);
        mem_free(out->part);
        out->part = NULL;
    }
    return rc;
}

int part_file_close(struct part_file *out, bool is_whole, struct fm_error *err)
{
    struct fm_error why = {0};
    if (out->file == NULL)
        return 0;
    bool is_written = fflush(out->file) == 0 && !ferror(out->file) &&
                      (!is_whole || fsync(fileno(out->file)) == 0 || errno == EINVAL);
    int rc = is_written ? 0 : err_set(&why, FM_ERR_IO, "%s", strerror(errno));
    if (fclose(out->file) != 0 && rc == 0)
        rc = err_set(&why, FM_ERR_IO, "%s", strerror(errno));
    if (is_whole && rc == 0)
        rc = plat_dir_rename(&out->dir, out->part, path_base(out->path), &out->is, &why);
    if (!is_whole || rc != 0)
        (void)plat_dir_remove(&out->dir, out->part, &out->is, NULL); /* the first error counts */
    if (is_whole && rc != 0)
        (void)err_set(err, rc, "%s: cannot write '%s': %s", out->option, out->path, why.text);
    plat_dir_close(&out->dir);
    mem_free(out->part);
    *out = (struct part_file){.dir.fd = -1};
    return is_whole ? rc : 0;
}
