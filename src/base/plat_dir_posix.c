#include "base/plat_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/plat_internal.h"

#ifndef O_DIRECT
#define O_DIRECT 0
#endif

#define SHOWN_BYTES (LIMIT_PATH_BYTES + 256)

static const char *shown(const struct plat_dir *dir, const char *name, char buffer[SHOWN_BYTES])
{
    (void)snprintf(buffer, SHOWN_BYTES, "%s/%s", dir->path, name); /* truncation is acceptable */
    return buffer;
}

/* Keeps errno, because plat_was_full reads it. */
static int failed(struct fm_error *err, const char *what, const struct plat_dir *dir,
                  const char *name)
{
    char path[SHOWN_BYTES];
    const int why = errno;
    const int rc = err_set(err, FM_ERR_IO, "cannot %s '%s': %s", what,
                           name != NULL ? shown(dir, name, path) : dir->path, strerror(why));
    errno = why;
    return rc;
}

/* ---- directories ---------------------------------------------------------------------------- */

static bool is_own_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) != 0 || !S_ISLNK(st.st_mode) || st.st_uid == geteuid() ||
           st.st_uid == 0;
}

static int opened(int fd, const char *path, struct plat_dir *dir, struct fm_error *err)
{
    *dir = (struct plat_dir){.fd = fd, .path = path};
    if (fd >= 0)
        return 0;
    if (errno == ELOOP || errno == EMLINK || errno == ENOTDIR)
        return err_set(err, FM_ERR_ARG, "'%s' is a link or not a directory, and was not "
                       "changed; remove it or choose another path", path);
    return failed(err, "open", dir, NULL);
}

int plat_dir_open(const char *path, enum plat_links links, struct plat_dir *dir,
                  struct fm_error *err)
{
    int fd = -1;
    if (links == PLAT_OWN_LINK && !is_own_link(path))
        errno = ELOOP;
    else
        fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY |
                            (links == PLAT_NO_LINK ? O_NOFOLLOW : 0));
    return opened(fd, path, dir, err);
}

int plat_dir_open_in(const struct plat_dir *dir, const char *name, const char *path,
                     struct plat_dir *out, struct fm_error *err)
{
    const int fd = openat(dir->fd, name, O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW);
    return opened(fd, path, out, err);
}

void plat_dir_close(struct plat_dir *dir)
{
    plat_close(dir->fd);
    dir->fd = -1;
}

/* Returns whether `owner` is this user on a file system that maps user ids: there, files that this
 * process creates have another owner than its user id. */
static bool is_mapped_owner(int dir_fd, uid_t owner)
{
    char name[64];
    struct stat st;
    (void)snprintf(name, sizeof name, ".flashmoe-owner-%ld", (long)getpid());
    const int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    const bool is_it = fstat(fd, &st) == 0 && st.st_uid == owner;
    (void)unlinkat(dir_fd, name, 0); /* an empty file does no harm if it stays */
    plat_close(fd);
    return is_it;
}

static bool is_own(int dir_fd, uid_t owner)
{
    return owner == geteuid() || is_mapped_owner(dir_fd, owner);
}

int plat_dir_check_own(const struct plat_dir *dir, struct fm_error *err)
{
    struct stat st;
    if (fstat(dir->fd, &st) != 0)
        return failed(err, "examine", dir, NULL);
    if (is_own(dir->fd, st.st_uid))
        return 0;
    return err_set(err, FM_ERR_ARG, "'%s' belongs to user %lu, not to this user (%lu), so its "
                   "content cannot be trusted; remove it or choose another path", dir->path,
                   (unsigned long)st.st_uid, (unsigned long)geteuid());
}

int plat_dir_lock(const struct plat_dir *dir, struct fm_error *err)
{
    if (flock(dir->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return 0; /* the file system has no locks: go on without one */
    return err_set(err, FM_ERR_ARG, "another process is working in '%s'; wait until it ends",
                   dir->path);
}

int plat_dir_sync(const struct plat_dir *dir, struct fm_error *err)
{
    /* Some file systems cannot sync a directory and do not need to. */
    return fsync(dir->fd) == 0 || errno == EINVAL ? 0 : failed(err, "sync", dir, NULL);
}

int plat_dir_each_name(const struct plat_dir *dir, plat_name_fn *fn, void *ctx,
                       struct fm_error *err)
{
    /* Not dup: a duplicate would share its position with other threads. */
    const int fd = openat(dir->fd, ".", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    DIR *names = fd >= 0 ? fdopendir(fd) : NULL;
    if (names == NULL) {
        const int rc = failed(err, "open", dir, NULL);
        plat_close(fd);
        return rc;
    }
    int rc = 0;
    for (const struct dirent *e = readdir(names); rc == 0 && e != NULL; e = readdir(names))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = fn(ctx, e->d_name, err);
    (void)closedir(names); /* opened for reading only: nothing can be lost */
    return rc;
}

/* ---- names ---------------------------------------------------------------------------------- */

bool plat_dir_info(const struct plat_dir *dir, const char *name, struct plat_file_info *info)
{
    struct stat st;
    if (fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    plat_fill_info(&st, info);
    return true;
}

bool plat_is_same_file(const struct plat_file_info *a, const struct plat_file_info *b)
{
    return a->device == b->device && a->inode == b->inode;
}

/* Returns true when the name is free now. Otherwise the error says what has the name. */
static bool remove_leftover(const struct plat_dir *dir, const char *name, struct fm_error *err)
{
    char path[SHOWN_BYTES];
    struct stat st;
    if (fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT;
    if (S_ISREG(st.st_mode) && is_own(dir->fd, st.st_uid))
        return plat_dir_remove(dir, name, NULL, err) == 0;
    (void)err_set(err, FM_ERR_ARG, "'%s' is in the way: it is %s; remove it and start the same "
                  "command again", shown(dir, name, path),
                  S_ISREG(st.st_mode)   ? "another user's"
                  : S_ISLNK(st.st_mode) ? "a link"
                                        : "not a regular file");
    return false;
}

int plat_dir_create(const struct plat_dir *dir, const char *name, enum plat_access access,
                    bool *is_direct, int *fd, struct fm_error *err)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const mode_t mode = access == PLAT_PRIVATE ? 0600 : 0666;
    *fd = openat(dir->fd, name, flags, mode);
    if (*fd < 0 && errno == EEXIST) {
        struct fm_error why;
        if (!remove_leftover(dir, name, &why)) {
            *is_direct = false;
            return err_set(err, why.code, "%s", why.text);
        }
        *fd = openat(dir->fd, name, flags, mode);
    }
    /* Not with open flags: a file system that lacks direct I/O would have created the file
     * already. */
    *is_direct = *is_direct && *fd >= 0 && O_DIRECT != 0 &&
                 fcntl(*fd, F_SETFL, O_DIRECT) == 0;
    return *fd >= 0 ? 0 : failed(err, "create", dir, name);
}

int plat_dir_continue(const struct plat_dir *dir, const char *name, int *fd, struct fm_error *err)
{
    char path[SHOWN_BYTES];
    struct stat st;
    *fd = openat(dir->fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return failed(err, "open", dir, name);
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1 &&
        is_own(dir->fd, st.st_uid))
        return 0;
    plat_close(*fd);
    *fd = -1;
    return err_set(err, FM_ERR_ARG, "'%s' is not a file that this user's process left: it was not "
                   "changed; remove it and start the same command again", shown(dir, name, path));
}

int plat_dir_read(const struct plat_dir *dir, const char *name, int *fd, uint64_t *file_bytes,
                  struct fm_error *err)
{
    char path[SHOWN_BYTES];
    return plat_open_at(dir->fd, name, O_NOFOLLOW, shown(dir, name, path), fd, file_bytes, err);
}

int plat_dir_read_file(const struct plat_dir *dir, const char *name, size_t max_bytes, char **text,
                       size_t *bytes, struct fm_error *err)
{
    char path[SHOWN_BYTES];
    uint64_t file_bytes;
    int fd;
    *text = NULL;
    *bytes = 0;
    const int rc = plat_dir_read(dir, name, &fd, &file_bytes, err);
    return rc != 0 ? rc : plat_read_opened(fd, shown(dir, name, path), file_bytes, max_bytes, text,
                                           bytes, err);
}

/* Returns an error unless the name still refers to the file `is`; NULL accepts any file. */
static int check_same(const struct plat_dir *dir, const char *name,
                      const struct plat_file_info *is, struct fm_error *err)
{
    char path[SHOWN_BYTES];
    struct plat_file_info now;
    if (is == NULL || (plat_dir_info(dir, name, &now) && plat_is_same_file(&now, is)))
        return 0;
    return err_set(err, FM_ERR_IO, "'%s' was replaced by another file in the meantime; that file "
                   "was not changed", shown(dir, name, path));
}

int plat_dir_move(const struct plat_dir *dir, const char *from, const struct plat_dir *to_dir,
                  const char *to, const struct plat_file_info *is, struct fm_error *err)
{
    char path[SHOWN_BYTES], to_path[SHOWN_BYTES];
    const int rc = check_same(dir, from, is, err);
    if (rc != 0 || renameat(dir->fd, from, to_dir->fd, to) == 0)
        return rc;
    const int why = errno;
    (void)err_set(err, FM_ERR_IO, "cannot rename '%s' to '%s': %s", shown(dir, from, path),
                  shown(to_dir, to, to_path), strerror(why));
    errno = why;
    return FM_ERR_IO;
}

int plat_dir_rename(const struct plat_dir *dir, const char *from, const char *to,
                    const struct plat_file_info *is, struct fm_error *err)
{
    return plat_dir_move(dir, from, dir, to, is, err);
}

int plat_dir_make(const struct plat_dir *dir, const char *name, struct fm_error *err)
{
    return mkdirat(dir->fd, name, 0777) == 0 || errno == EEXIST
               ? 0 : failed(err, "create", dir, name);
}

int plat_dir_remove(const struct plat_dir *dir, const char *name, const struct plat_file_info *is,
                    struct fm_error *err)
{
    struct plat_file_info now;
    const bool is_gone = is != NULL && !plat_dir_info(dir, name, &now);
    const int rc = is_gone ? 0 : check_same(dir, name, is, err);
    if (is_gone || rc != 0 || unlinkat(dir->fd, name, 0) == 0 || errno == ENOENT)
        return rc;
    return failed(err, "remove", dir, name);
}

int plat_dir_remove_dir(const struct plat_dir *dir, const char *name, struct fm_error *err)
{
    return unlinkat(dir->fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT
               ? 0 : failed(err, "remove", dir, name);
}

void plat_dir_touch(const struct plat_dir *dir, const char *name)
{
    (void)utimensat(dir->fd, name, NULL, AT_SYMLINK_NOFOLLOW);
}

int plat_dir_open_device(const struct plat_dir *dir, const char *name, int *fd,
                         uint64_t *file_bytes, struct fm_error *err)
{
    const int rc = plat_dir_read(dir, name, fd, file_bytes, err);
    if (rc == 0)
        (void)plat_make_direct(*fd); /* otherwise the page cache has dropped the file's pages */
    return rc;
}

void plat_make_private(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 077) != 0)
        (void)fchmod(fd, st.st_mode & 07700); /* a file system without access rights ignores this */
}

void plat_make_path_private(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    plat_make_private(fd);
    plat_close(fd);
}
