/* Directories that are held open, and the files in them.
 *
 * Another user may have prepared a directory that we write to, or may change it at any time. The
 * open descriptor keeps referring to the directory that was checked. No function here follows a
 * link inside it, and only plat_dir_continue opens an existing file for writing. Any thread may
 * call every function. The caller owns the path; it is only used for messages and may be changed
 * while the directory is open. */
#ifndef FLASHMOE_BASE_PLAT_DIR_H
#define FLASHMOE_BASE_PLAT_DIR_H

#include "base/plat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct plat_dir {
    int fd; /* -1 when not open */
    const char *path;
};

enum plat_links { PLAT_NO_LINK, PLAT_OWN_LINK, PLAT_ANY_LINK };
/* Opens a directory. `links` says whether the path itself may be a link: never, only if it belongs
 * to this user or to root, or always. Close with plat_dir_close. */
int plat_dir_open(const char *path, enum plat_links links, struct plat_dir *dir,
                  struct fm_error *err);
/* Opens a directory inside `dir`, which must not be a link. `path` is its full path, for
 * messages. */
int plat_dir_open_in(const struct plat_dir *dir, const char *name, const char *path,
                     struct plat_dir *out, struct fm_error *err);
void plat_dir_close(struct plat_dir *dir); /* accepts one that is not open */

/* Fails with FM_ERR_ARG unless the directory belongs to this user. */
int plat_dir_check_own(const struct plat_dir *dir, struct fm_error *err);
/* Locks the directory for this process until it is closed. Fails with FM_ERR_ARG if another process
 * holds the lock. */
int plat_dir_lock(const struct plat_dir *dir, struct fm_error *err);
/* Makes created, renamed and removed names durable. */
int plat_dir_sync(const struct plat_dir *dir, struct fm_error *err);
/* Calls fn for every name except "." and "..", in no particular order. Stops at the first result
 * that is not 0 and returns it. */
int plat_dir_each_name(const struct plat_dir *dir, plat_name_fn *fn, void *ctx,
                       struct fm_error *err);
/* Does not follow a link. Returns false if the name does not exist. */
bool plat_dir_info(const struct plat_dir *dir, const char *name, struct plat_file_info *info);

enum plat_access { PLAT_SHARED, PLAT_PRIVATE }; /* mode 0666 less the umask, or mode 0600 */
/* Creates a file for reading and writing. If a regular file of this user has the name, perhaps left
 * by an earlier run, it is removed first. Anything else is refused and kept. `is_direct` works as
 * in plat_create. */
int plat_dir_create(const struct plat_dir *dir, const char *name, enum plat_access access,
                    bool *is_direct, int *fd, struct fm_error *err);
/* Opens a file that an earlier process left, for reading and writing. Refuses anything but a
 * regular file of this user with no other name. */
int plat_dir_continue(const struct plat_dir *dir, const char *name, int *fd, struct fm_error *err);
/* Opens a regular file for reading. */
int plat_dir_read(const struct plat_dir *dir, const char *name, int *fd, uint64_t *file_bytes,
                  struct fm_error *err);
/* Reads a whole file like plat_read_file. */
int plat_dir_read_file(const struct plat_dir *dir, const char *name, size_t max_bytes, char **text,
                       size_t *bytes, struct fm_error *err);
/* Opens a file like plat_open_device. */
int plat_dir_open_device(const struct plat_dir *dir, const char *name, int *fd,
                         uint64_t *file_bytes, struct fm_error *err);
/* Renames `from` to `to`. If `is` is not NULL, fails when `from` is no longer that file. */
int plat_dir_rename(const struct plat_dir *dir, const char *from, const char *to,
                    const struct plat_file_info *is, struct fm_error *err);
/* Does the same between two directories. */
int plat_dir_move(const struct plat_dir *dir, const char *from, const struct plat_dir *to_dir,
                  const char *to, const struct plat_file_info *is, struct fm_error *err);
/* Creates a directory; succeeds if it exists. */
int plat_dir_make(const struct plat_dir *dir, const char *name, struct fm_error *err);
/* Removes a file or the link itself; succeeds if there is none. If `is` is not NULL, fails when the
 * name now refers to another file. */
int plat_dir_remove(const struct plat_dir *dir, const char *name, const struct plat_file_info *is,
                    struct fm_error *err);
/* Removes an empty directory; succeeds if there is none. */
int plat_dir_remove_dir(const struct plat_dir *dir, const char *name, struct fm_error *err);

/* Sets the file's mtime to now. A hint: failures are ignored. */
void plat_dir_touch(const struct plat_dir *dir, const char *name);

/* Returns true if both describe the same file. */
bool plat_is_same_file(const struct plat_file_info *a, const struct plat_file_info *b);
/* Removes all access rights of other users from an open file or directory of this user. */
void plat_make_private(int fd);
/* Does the same by path without following a link. A hint: a missing file is ignored. */
void plat_make_path_private(const char *path);

#ifdef __cplusplus
}
#endif
#endif
