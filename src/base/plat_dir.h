/* Directories held open, and the names in them.
 *
 * Somebody else may have prepared a directory that is written to, or may change it meanwhile. Its
 * descriptor stays that of the directory that was checked. No function here follows a link in it,
 * and none writes into a file that was there before. Any thread may call anything; the caller owns
 * the path, which is for messages and may change while the directory is open. */
#ifndef FLASHMOE_BASE_PLAT_DIR_H
#define FLASHMOE_BASE_PLAT_DIR_H

#include "base/plat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct plat_dir {
    int fd; /* -1: not open */
    const char *path;
};

enum plat_links { PLAT_NO_LINK, PLAT_OWN_LINK, PLAT_ANY_LINK };
/* Opens a directory. `links` says whether the path itself may be a link: never; if it belongs to
 * this user or to root; always. Close with plat_dir_close. */
int plat_dir_open(const char *path, enum plat_links links, struct plat_dir *dir,
                  struct fm_error *err);
/* The same for a directory in it, which must not be a link. `path` is its own, for messages. */
int plat_dir_open_in(const struct plat_dir *dir, const char *name, const char *path,
                     struct plat_dir *out, struct fm_error *err);
void plat_dir_close(struct plat_dir *dir); /* one that is not open is fine */

/* Fails with FM_ERR_ARG unless the directory belongs to this user. */
int plat_dir_check_own(const struct plat_dir *dir, struct fm_error *err);
/* One process at a time, until it is closed: FM_ERR_ARG when another one holds it. */
int plat_dir_lock(const struct plat_dir *dir, struct fm_error *err);
/* Makes the names in it durable: after create, rename, remove. */
int plat_dir_sync(const struct plat_dir *dir, struct fm_error *err);
/* Every name but "." and "..", in no order; stops when fn does not return 0. */
int plat_dir_each_name(const struct plat_dir *dir, plat_name_fn *fn, void *ctx,
                       struct fm_error *err);
/* A link is not followed. False when there is no such name. */
bool plat_dir_info(const struct plat_dir *dir, const char *name, struct plat_file_info *info);

enum plat_access { PLAT_SHARED, PLAT_PRIVATE }; /* 0666 less the umask, or 0600 */
/* Creates a file for reading and writing. A regular file of this user that has the name is removed
 * first, as an earlier run may have left it; anything else is refused and stays. `is_direct` as for
 * plat_create. */
int plat_dir_create(const struct plat_dir *dir, const char *name, enum plat_access access,
                    bool *is_direct, int *fd, struct fm_error *err);
/* Opens a regular file for reading. */
int plat_dir_read(const struct plat_dir *dir, const char *name, int *fd, uint64_t *file_bytes,
                  struct fm_error *err);
/* The whole file: see plat_read_file. */
int plat_dir_read_file(const struct plat_dir *dir, const char *name, size_t max_bytes, char **text,
                       size_t *bytes, struct fm_error *err);
/* Opens it to read what the device holds: see plat_open_device. */
int plat_dir_open_device(const struct plat_dir *dir, const char *name, int *fd,
                         uint64_t *file_bytes, struct fm_error *err);
/* Gives the file that has the name `from` the name `to`. Fails when `is` is given and `from` is
 * another file by now. */
int plat_dir_rename(const struct plat_dir *dir, const char *from, const char *to,
                    const struct plat_file_info *is, struct fm_error *err);
/* The same between two directories. */
int plat_dir_move(const struct plat_dir *dir, const char *from, const struct plat_dir *to_dir,
                  const char *to, const struct plat_file_info *is, struct fm_error *err);
/* A directory; one that exists is fine. */
int plat_dir_make(const struct plat_dir *dir, const char *name, struct fm_error *err);
/* A file, or a link itself; none there is fine. Fails when `is` is given and the name is another
 * file's. */
int plat_dir_remove(const struct plat_dir *dir, const char *name, const struct plat_file_info *is,
                    struct fm_error *err);
/* An empty directory; none there is fine. */
int plat_dir_remove_dir(const struct plat_dir *dir, const char *name, struct fm_error *err);

/* The file's mtime becomes now; a hint. */
void plat_dir_touch(const struct plat_dir *dir, const char *name);

/* Two names of one file. */
bool plat_is_same_file(const struct plat_file_info *a, const struct plat_file_info *b);
/* Takes the rights of everybody else away from an open file or directory of this user. */
void plat_make_private(int fd);
/* The same by path, a link not followed; a hint: nothing there is fine. */
void plat_make_path_private(const char *path);

#ifdef __cplusplus
}
#endif
#endif
