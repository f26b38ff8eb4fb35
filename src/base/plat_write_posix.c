/* The part of plat.h that writes. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat_dir.h"
#include "base/plat_internal.h"
#include "base/plat_reads.h"

#ifndef O_DIRECT
#define O_DIRECT 0
#endif

/* Keeps errno, because plat_was_full reads it. */
static int failed(struct fm_error *err, const char *what, const char *path)
{
    const int why = errno;
    const int rc = err_set(err, FM_ERR_IO, "cannot %s '%s': %s", what, path, strerror(why));
    errno = why;
    return rc;
}

int plat_create(const char *path, bool *is_direct, int *fd, struct fm_error *err)
{
    char folder[LIMIT_PATH_BYTES];
    struct plat_dir dir;
    path_folder(path, folder);
    *fd = -1;
    int rc = plat_dir_open(folder, PLAT_ANY_LINK, &dir, err);
    if (rc == 0)
        rc = plat_dir_create(&dir, path_base(path), PLAT_SHARED, is_direct, fd, err);
    plat_dir_close(&dir);
    return rc;
}

bool plat_make_direct(int fd)
{
#ifdef __linux__
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0)
        return true;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* a hint */
#elif defined(__APPLE__)
    return fcntl(fd, F_NOCACHE, 1) == 0;
#endif
    return false;
}

int plat_open_device(const char *path, int *fd, uint64_t *file_bytes, bool *is_direct,
                     struct fm_error *err)
{
    int rc = plat_open(path, fd, file_bytes, err);
    *is_direct = rc == 0 && plat_make_direct(*fd);
    return rc;
}

void plat_drop_pages(int fd, uint64_t offset, uint64_t bytes)
{
#ifdef __linux__
    if (bytes == 0) /* 0 would mean everything up to the end */
        return;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    /* whole pages only: the cache keeps a page that is dropped in part */
    const uint64_t end = mem_round_up(offset + bytes, page);
    (void)posix_fadvise(fd, (off_t)first, (off_t)(end - first), POSIX_FADV_DONTNEED); /* a hint */
#else
    (void)fd, (void)offset, (void)bytes;
#endif
}

void plat_expect_random(int fd, bool is_random)
{
#ifdef __linux__
    const int advice = is_random ? POSIX_FADV_RANDOM : POSIX_FADV_NORMAL;
    (void)posix_fadvise(fd, 0, 0, advice); /* a hint */
#else
    (void)fd, (void)is_random;
#endif
}

static int no_space(const char *path, uint64_t bytes, uint64_t offset, struct fm_error *err)
{
    const int why = errno;
    if (!plat_was_full())
        (void)err_set(err, FM_ERR_IO, "cannot write %llu bytes at byte %llu of '%s': %s",
                      (unsigned long long)bytes, (unsigned long long)offset, path, strerror(why));
    else
        (void)err_set(err, FM_ERR_IO, "the disk is full: cannot write %llu bytes at byte %llu of "
                      "'%s' (%s); free some space and start the same command again",
                      (unsigned long long)bytes, (unsigned long long)offset, path, strerror(why));
    errno = why;
    return FM_ERR_IO;
}

bool plat_was_full(void)
{
    return errno == ENOSPC || errno == EDQUOT;
}

int plat_set_size(int fd, const char *path, uint64_t bytes, struct fm_error *err)
{
    return ftruncate(fd, (off_t)bytes) == 0 ? 0 : no_space(path, bytes, 0, err);
}

int plat_reserve(int fd, const char *path, uint64_t bytes, struct fm_error *err)
{
#ifdef __linux__
    int rc;
    do
        rc = bytes > 0 ? fallocate(fd, 0, 0, (off_t)bytes) : 0;
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && (errno == ENOSPC || errno == EDQUOT))
        return no_space(path, bytes, 0, err);
#endif
    return plat_set_size(fd, path, bytes, err);
}

/* Switches the file to the page cache for good. After a partial page the rest is no longer a
 * multiple of the page size, and some file systems accept the flag but refuse the call. Returns
 * false if that was already so. */
static bool leave_direct(int fd)
{
#ifdef __linux__
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
#else
    (void)fd;
    return false;
#endif
}

static bool is_at_end(int fd, uint64_t offset)
{
    struct stat st;
    return fstat(fd, &st) == 0 && offset >= (uint64_t)st.st_size;
}

int64_t plat_read_device(int fd, void *dst, uint64_t bytes, uint64_t offset)
{
    ssize_t got;
    do
        got = pread(fd, dst, (size_t)bytes, (off_t)offset);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno != EINVAL)
        return -(int64_t)errno;
    if (got < 0)
        (void)leave_direct(fd); /* another thread may have done it; the read is repeated either
                                 * way */
    uint64_t done = got < 0 ? 0 : (uint64_t)got;
    if (got > 0)
        plat_count_read();
    if (got == 0 || done == bytes || (got > 0 && is_at_end(fd, offset + done)))
        return got;
    if (done % MEM_PAGE != 0)
        (void)leave_direct(fd);
    int64_t rest = plat_read_some(fd, (char *)dst + done, bytes - done, offset + done);
    return rest < 0 ? rest : (int64_t)done + rest;
}

int plat_write_at(int fd, const char *path, const void *src, uint64_t bytes, uint64_t offset,
                  struct fm_error *err)
{
    const uint64_t max_per_call = 1u << 30;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t want = bytes - done < max_per_call ? bytes - done : max_per_call;
        ssize_t n = pwrite(fd, (const char *)src + done, (size_t)want, (off_t)(offset + done));
        if (n < 0 && (errno == EINTR || (errno == EINVAL && leave_direct(fd))))
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return no_space(path, bytes - done, offset + done, err);
        done += (uint64_t)n;
        if (done < bytes && done % MEM_PAGE != 0)
            (void)leave_direct(fd);
    }
    return 0;
}

void plat_write_behind(int fd, uint64_t offset, uint64_t bytes)
{
#ifdef __linux__
    (void)sync_file_range(fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE); /* a hint */
#else
    (void)fd, (void)offset, (void)bytes;
#endif
}

int plat_sync(int fd, const char *path, struct fm_error *err)
{
#ifdef __APPLE__
    int rc = fcntl(fd, F_FULLFSYNC);
#else
    int rc = fsync(fd);
#endif
    return rc == 0 ? 0 : failed(err, "sync", path);
}

int plat_sync_dir(const char *path, struct fm_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (fd < 0)
        return failed(err, "open", path);
    int rc = fsync(fd);
    /* Some file systems cannot sync a directory and do not need to. */
    rc = rc == 0 || errno == EINVAL ? 0 : failed(err, "sync", path);
    plat_close(fd);
    return rc;
}

int plat_rename(const char *from, const char *to, struct fm_error *err)
{
    if (rename(from, to) == 0)
        return 0;
    return err_set(err, FM_ERR_IO, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
}

int plat_replace_file(const char *path, const void *bytes, uint64_t n, struct fm_error *err)
{
    char aside[LIMIT_PATH_BYTES];
    if ((size_t)snprintf(aside, sizeof aside, "%s.XXXXXX", path) >= sizeof aside)
        return err_set(err, FM_ERR_ARG, "the path is too long: '%s'", path);
    int fd = mkstemp(aside);
    if (fd < 0)
        return failed(err, "create", aside);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* it cannot fail */
    int rc = plat_write_at(fd, aside, bytes, n, 0, err);
    if (rc == 0)
        rc = plat_sync(fd, aside, err);
    plat_close(fd);
    if (rc == 0)
        rc = plat_rename(aside, path, err);
    if (rc != 0)
        (void)unlink(aside); /* the first error is the one to report */
    return rc;
}

int plat_make_dir(const char *path, struct fm_error *err)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST ? 0 : failed(err, "create", path);
}

int plat_make_private_dir(const char *path, struct fm_error *err)
{
    return mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : failed(err, "create", path);
}

int plat_remove_dir(const char *path, struct fm_error *err)
{
    return rmdir(path) == 0 || errno == ENOENT ? 0 : failed(err, "remove", path);
}

void plat_fill_info(const struct stat *st, struct plat_file_info *info)
{
#ifdef __APPLE__
    const struct timespec mtime = st->st_mtimespec;
#else
    const struct timespec mtime = st->st_mtim;
#endif
    *info = (struct plat_file_info){
        .bytes = (uint64_t)st->st_size,
        .device = (uint64_t)st->st_dev,
        .inode = (uint64_t)st->st_ino,
        .n_links = (uint64_t)st->st_nlink,
        .mtime_ns = (int64_t)mtime.tv_sec * 1000000000 + mtime.tv_nsec,
        .is_link = S_ISLNK(st->st_mode),
        .is_dir = S_ISDIR(st->st_mode),
        .is_file = S_ISREG(st->st_mode),
        .owner = (uint64_t)st->st_uid,
    };
}

bool plat_file_info(const char *path, struct plat_file_info *info)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return false;
    plat_fill_info(&st, info);
    return true;
}

bool plat_open_file_info(int fd, struct plat_file_info *info)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return false;
    plat_fill_info(&st, info);
    return true;
}

bool plat_may_change_dir(const char *path)
{
    return access(path, W_OK | X_OK) == 0;
}

uint64_t plat_free_bytes(const char *path)
{
    struct statvfs fs;
    return statvfs(path, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
}

bool plat_real_path(const char *path, char out[])
{
    char resolved[PATH_MAX > LIMIT_PATH_BYTES ? PATH_MAX : LIMIT_PATH_BYTES];
    if (realpath(path, resolved) == NULL || strlen(resolved) >= LIMIT_PATH_BYTES)
        return false;
    memcpy(out, resolved, strlen(resolved) + 1);
    return true;
}
