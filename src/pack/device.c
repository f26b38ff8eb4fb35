#include "pack/device.h"

#include <string.h>

#include "base/mem.h"
#include "base/path.h"

int device_open(struct device_file *file, const char *path, struct fm_error *err)
{
    bool is_direct;
    file->path = path;
    return plat_open_device(path, &file->fd, &file->bytes, &is_direct, err);
}

int device_open_in(struct device_file *file, const struct plat_dir *dir, const char *path,
                   struct fm_error *err)
{
    file->path = path;
    return plat_dir_open_device(dir, path_base(path), &file->fd, &file->bytes, err);
}

void device_close(struct device_file *file)
{
    plat_close(file->fd);
    file->fd = -1;
}

static int ends_early(const struct device_file *file, uint64_t at, struct fm_error *err)
{
    return err_set(err, FM_ERR_IO, "'%s' ends early, at byte %llu", file->path,
                   (unsigned long long)at);
}

static int sum_pieces(const struct device_file *file, uint64_t offset, uint64_t bytes,
                      char *buffer, uint64_t buffer_bytes, struct crew *crew,
                      XXH3_state_t *state, struct fm_error *err)
{
    const uint64_t end = offset + bytes;
    for (uint64_t at = offset; at < end;) {
        const uint64_t begin = at - at % MEM_PAGE; /* reads start at a page */
        uint64_t n = mem_round_up(end, MEM_PAGE) - begin;
        n = n < buffer_bytes ? n : buffer_bytes;
        int64_t got = plat_read_device(file->fd, buffer, n, begin);
        if (got < 0)
            return err_set(err, FM_ERR_IO, "cannot read '%s' at byte %llu: %s", file->path,
                           (unsigned long long)begin, strerror((int)-got));
        uint64_t here = begin + n < end ? begin + n : end;
        if (begin + (uint64_t)got < here)
            return ends_early(file, begin + (uint64_t)got, err);
        (void)XXH3_128bits_update(state, buffer + (at - begin), here - at);
        int rc = crew_advance(crew, here - at, err);
        if (rc != 0)
            return rc;
        at = here;
    }
    return 0;
}

int device_sum(const struct device_range ranges[], unsigned n, void *buffer,
               uint64_t buffer_bytes, struct crew *crew, struct packed_sum *sum,
               struct fm_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot allocate a checksum");
    (void)XXH3_128bits_reset(state); /* fails only for NULL */
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = sum_pieces(ranges[i].file, ranges[i].offset, ranges[i].bytes, buffer, buffer_bytes,
                        crew, state, err);
    if (rc == 0)
        packed_sum_of_hash(state, sum);
    (void)XXH3_freeState(state); /* always succeeds */
    return rc;
}
