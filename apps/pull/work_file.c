#include "apps/pull/work_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plat.h"

int work_file_write(const struct plat_dir *dir, const char *name, const json_t *root,
                    bool is_synced, struct fm_error *err)
{
    char tmp[LIMIT_PATH_BYTES];
    bool is_direct = false;
    int fd = -1;
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    if (text == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot write '%s'", name);
    (void)snprintf(tmp, sizeof tmp, "%.300s.tmp", name);
    int rc = plat_dir_create(dir, tmp, PLAT_SHARED, &is_direct, &fd, err);
    if (rc == 0)
        rc = plat_write_at(fd, tmp, text, strlen(text), 0, err);
    if (rc == 0 && is_synced)
        rc = plat_sync(fd, tmp, err);
    if (rc == 0)
        rc = plat_dir_rename(dir, tmp, name, NULL, err);
    if (rc != 0 && fd >= 0)
        (void)plat_dir_remove(dir, tmp, NULL, NULL); /* on a full disk it would stay */
    plat_close(fd);
    if (rc == 0 && is_synced)
        rc = plat_dir_sync(dir, err);
    free(text); /* jansson's */
    return rc;
}
