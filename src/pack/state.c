/* What is on the disk while a pack is made: DST.partial/ holds
 *   plan.json        what is packed into what: continuing with something else is refused
 *   NAME.tmp         being written
 *   NAME             finished: written, synced, read back
 *   NAME.sums        its checksums, so that continuing need not read it again
 *   source/NAME      the header of a source file that was removed
 *   model.json       last of all; with it the pack is whole */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "format/directory.h"
#include "pack/pack_internal.h"

#define PLAN_NAME "plan.json"
#define SUMS_SUFFIX ".sums"
#define TMP_SUFFIX ".tmp"
#define SUMS_MAGIC "FMSUMS1\n"
#define SUMS_MAGIC_BYTES (sizeof SUMS_MAGIC - 1)
#define START_AFRESH "finish it with the command it was begun with, or begin again with --restart"

int pack_path(const struct pack *pack, const char *name, const char *suffix, char out[],
              struct fm_error *err)
{
    int n = snprintf(out, LIMIT_PATH_BYTES, "%s/%s%s", pack->partial, name, suffix);
    if (n > 0 && n < LIMIT_PATH_BYTES)
        return 0;
    return err_set(err, FM_ERR_ARG, "the path '%.200s...' is too long", pack->partial);
}

/* ---- small files ---------------------------------------------------------------------------- */

static int read_back(const char *path, const void *data, size_t bytes, struct fm_error *err)
{
    char *text;
    size_t n;
    int fd;
    uint64_t file_bytes;
    bool is_direct;
    /* Drops the page cache where it can; the bytes are then read through it. */
    int rc = plat_open_device(path, &fd, &file_bytes, &is_direct, err);
    if (rc != 0)
        return rc;
    plat_close(fd);
    rc = plat_read_file(path, bytes, &text, &n, err);
    if (rc == 0 && (n != bytes || memcmp(text, data, bytes) != 0))
        rc = err_set(err, FM_ERR_IO, "'%s' is not what was written: the disk or the memory is "
                     "faulty", path);
    mem_free(text);
    return rc;
}

int state_write(const struct pack *pack, const char *name, const void *data, size_t bytes,
                struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], tmp[LIMIT_PATH_BYTES];
    bool is_direct = false;
    int fd = -1, rc = pack_path(pack, name, "", path, err);
    if (rc == 0)
        rc = pack_path(pack, name, TMP_SUFFIX, tmp, err);
    if (rc == 0)
        rc = plat_create(tmp, &is_direct, &fd, err);
    if (rc == 0)
        rc = plat_write_at(fd, tmp, data, bytes, 0, err);
    if (rc == 0)
        rc = plat_sync(fd, tmp, err);
    plat_close(fd);
    if (rc == 0)
        rc = read_back(tmp, data, bytes, err);
    if (rc == 0)
        rc = plat_rename(tmp, path, err);
    return rc != 0 ? rc : plat_sync_dir(pack->partial, err);
}

/* ---- the plan ------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static json_t *files_json(const struct pack *pack)
{
    const struct source *source = pack->model->source;
    json_t *files = json_array();
    for (unsigned f = 0; f < source->n_files; f++) {
        struct plat_file_info info = {0};
        char path[LIMIT_PATH_BYTES];
        /* The file behind a link is the one that matters. */
        if (!plat_real_path(source->files[f].path, path) || !plat_file_info(path, &info))
            info.mtime_ns = 0;
        (void)json_array_append_new(
            files, json_pack("{s:s, s:I, s:I}", "name", base_name(source->files[f].path), "bytes",
                             (json_int_t)source->files[f].bytes, "mtime_ns",
                             (json_int_t)info.mtime_ns));
    }
    return files;
}

static json_t *formats_json(const struct fm_pack_options *o)
{
    return json_pack("{s:s, s:s, s:s, s:s}", "experts", o->experts != NULL ? o->experts : "default",
                     "dense", o->dense != NULL ? o->dense : "keep",
                     "embed", o->embed != NULL ? o->embed : "default",
                     "head", o->head != NULL ? o->head : "default");
}

static json_t *plan_json(const struct pack *pack)
{
    return json_pack("{s:s, s:i, s:o, s:o}", "flashmoe", fm_version(), "version", PACKED_VERSION,
                     "formats", formats_json(pack->options), "files", files_json(pack));
}

static int compare_formats(const struct pack *pack, const json_t *was, const json_t *is,
                           struct fm_error *err)
{
    static const char *const names[] = {"experts", "dense", "embed", "head"};
    for (unsigned i = 0; i < 4; i++) {
        const json_t *a = json_object_get(json_object_get(was, "formats"), names[i]);
        const json_t *b = json_object_get(is, names[i]);
        if (json_equal(a, b))
            continue;
        char first[80], second[80];
        return err_set(err, FM_ERR_ARG, "'%s' was begun with --%s %s, and this is %s: "
                       START_AFRESH, pack->partial, names[i], jdoc_show(a, first, sizeof first),
                       jdoc_show(b, second, sizeof second));
    }
    return 0;
}

static int compare_files(const struct pack *pack, const json_t *was, const json_t *is,
                         struct fm_error *err)
{
    const json_t *a = json_object_get(was, "files"), *b = json_object_get(is, "files");
    const size_t n = json_array_size(b);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        if (x != NULL && json_equal(x, y))
            continue;
        const char *name = json_string_value(json_object_get(y, "name"));
        const json_t *old_name = json_object_get(x, "name");
        if (!json_equal(old_name, json_object_get(y, "name")))
            return err_set(err, FM_ERR_ARG, "'%s' was begun with another source, in which there is "
                           "no '%s': " START_AFRESH, pack->partial, name);
        return err_set(err, FM_ERR_ARG, "'%s' was begun when '%s' had %lld bytes; it has %lld now "
                       "and was changed since: " START_AFRESH, pack->partial, name,
                       (long long)json_integer_value(json_object_get(x, "bytes")),
                       (long long)json_integer_value(json_object_get(y, "bytes")));
    }
    if (json_array_size(a) != n)
        return err_set(err, FM_ERR_ARG, "'%s' was begun with another source, of %zu files, not "
                       "%zu: " START_AFRESH, pack->partial, json_array_size(a), n);
    return 0;
}

static int compare_plans(const struct pack *pack, const char *path, const json_t *is,
                         struct fm_error *err)
{
    struct jdoc was;
    int rc = jdoc_load(&was, path, LIMIT_INDEX_JSON_BYTES, err);
    if (rc != 0)
        return err_wrap(err, rc, "'%s' cannot be continued; begin again with --restart",
                        pack->partial);
    const char *version = NULL;
    rc = jdoc_string(was.root, path, "flashmoe", &version, err);
    if (rc == 0 && strcmp(version, fm_version()) != 0)
        rc = err_set(err, FM_ERR_ARG, "'%s' was begun with flashmoe %.40s, and this is %s: "
                     START_AFRESH, pack->partial, version, fm_version());
    if (rc == 0)
        rc = compare_formats(pack, was.root, json_object_get(is, "formats"), err);
    if (rc == 0)
        rc = compare_files(pack, was.root, is, err);
    jdoc_clear(&was);
    return rc;
}

int state_check_formats(const struct pack *pack, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct jdoc was = {0};
    int rc = pack_path(pack, PLAN_NAME, "", path, err);
    if (rc != 0 || !plat_file_exists(path))
        return rc;
    json_t *formats = formats_json(pack->options);
    rc = formats == NULL ? err_set(err, FM_ERR_NOMEM, "out of memory: the plan")
                         : jdoc_load(&was, path, LIMIT_INDEX_JSON_BYTES, err);
    if (rc == 0)
        rc = compare_formats(pack, was.root, formats, err);
    jdoc_clear(&was);
    json_decref(formats);
    return rc;
}

int state_begin(const struct pack *pack, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    int rc = pack_path(pack, PLAN_NAME, "", path, err);
    json_t *plan = plan_json(pack);
    if (rc == 0 && plan == NULL)
        rc = err_set(err, FM_ERR_NOMEM, "out of memory: the plan");
    if (rc == 0 && plat_file_exists(path)) {
        rc = compare_plans(pack, path, plan, err);
    } else if (rc == 0 && !pack->options->plan_only) {
        const size_t n = json_dumpb(plan, NULL, 0, JSON_INDENT(1));
        char *text = mem_new(n + 1, 1, "the plan", err);
        rc = text == NULL ? FM_ERR_NOMEM : 0;
        if (rc == 0) {
            (void)json_dumpb(plan, text, n, JSON_INDENT(1));
            rc = state_write(pack, PLAN_NAME, text, n, err);
        }
        mem_free(text);
    }
    json_decref(plan);
    return rc;
}

/* ---- finished files ------------------------------------------------------------------------- */

static uint64_t n_sums(const struct pack *pack, const struct pack_file *file)
{
    return file->to != NULL ? file->to->n_experts : pack->packed.n_tensors;
}

static struct packed_sum *sum_at(struct pack *pack, struct pack_file *file, uint64_t i)
{
    return file->to != NULL ? &file->to->sums[i] : &pack->packed.tensors[i].sum;
}

int state_finish(struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    char name[PACKED_NAME_BYTES + 8], path[LIMIT_PATH_BYTES];
    const size_t one = sizeof(struct packed_sum), n = n_sums(pack, file);
    const size_t bytes = SUMS_MAGIC_BYTES + (n + 1) * one;
    char *sums = mem_new(bytes, 1, "checksums", err);
    if (sums == NULL)
        return FM_ERR_NOMEM;
    memcpy(sums, SUMS_MAGIC, SUMS_MAGIC_BYTES);
    for (size_t i = 0; i < n; i++)
        memcpy(sums + SUMS_MAGIC_BYTES + i * one, sum_at(pack, file, i), one);
    struct packed_sum own;
    packed_sum_of(sums, bytes - one, &own);
    memcpy(sums + bytes - one, &own, one);
    (void)snprintf(name, sizeof name, "%s%s", file->name, SUMS_SUFFIX);
    int rc = state_write(pack, name, sums, bytes, err);
    mem_free(sums);
    if (rc == 0)
        rc = pack_path(pack, file->name, "", path, err);
    if (rc == 0)
        rc = plat_rename(file->tmp_path, path, err);
    return rc != 0 ? rc : plat_sync_dir(pack->partial, err);
}

/* False when there are none that can be trusted. */
static bool read_sums(struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], *text = NULL;
    const size_t one = sizeof(struct packed_sum), n = n_sums(pack, file);
    const size_t expected = SUMS_MAGIC_BYTES + (n + 1) * one;
    size_t bytes = 0;
    if (pack_path(pack, file->name, SUMS_SUFFIX, path, err) != 0 || !plat_file_exists(path) ||
        plat_read_file(path, expected, &text, &bytes, err) != 0)
        return false;
    struct packed_sum own;
    packed_sum_of(text, bytes > one ? bytes - one : 0, &own);
    bool ok = bytes == expected && memcmp(text, SUMS_MAGIC, SUMS_MAGIC_BYTES) == 0 &&
              memcmp(text + bytes - one, &own, one) == 0;
    for (size_t i = 0; ok && i < n; i++)
        memcpy(sum_at(pack, file, i), text + SUMS_MAGIC_BYTES + i * one, one);
    mem_free(text);
    return ok;
}

/* A file whose source is gone must have been finished. */
static int check_source(const struct pack *pack, const struct pack_file *file,
                        struct fm_error *err)
{
    const struct source *source = pack->model->source;
    const int64_t index = file - pack->files;
    for (unsigned f = 0; f < source->n_files; f++)
        if (pack->is_spare[f] && pack->last_use[f] >= index)
            return err_set(err, FM_ERR_FORMAT, "'%s/%s' must be made again, but '%s' was removed "
                           "from the source after it had been packed", pack->partial, file->name,
                           base_name(source->files[f].path));
    return 0;
}

static int find_file(struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    int rc = pack_path(pack, file->name, "", path, err);
    if (rc != 0)
        return rc;
    file->was_found = plat_file_info(path, &info) && info.bytes == file->bytes && !info.is_link &&
                      read_sums(pack, file, NULL);
    if (!file->was_found)
        return check_source(pack, file, err);
    file->step = PACK_DONE;
    pack->result->found_bytes += file->bytes;
    return 0;
}

struct leftovers {
    const struct pack *pack;
    const char *suffix;
};

static int remove_leftover(void *ctx, const char *name, struct fm_error *err)
{
    const struct leftovers *l = ctx;
    char path[LIMIT_PATH_BYTES];
    if (!name_has_suffix(name, l->suffix))
        return 0;
    int rc = pack_path(l->pack, name, "", path, err);
    return rc != 0 ? rc : plat_remove(path, err);
}

int state_find(struct pack *pack, struct fm_error *err)
{
    struct leftovers leftovers = {pack, TMP_SUFFIX};
    int rc = pack->options->plan_only && !plat_file_exists(pack->partial)
                 ? 0 : plat_each_name(pack->partial, remove_leftover, &leftovers, err);
    for (uint32_t i = 0; rc == 0 && i < pack->n_files; i++)
        rc = find_file(pack, &pack->files[i], err);
    return rc;
}

/* ---- the end -------------------------------------------------------------------------------- */

static int remove_spare(void *ctx, const char *name, struct fm_error *err)
{
    const struct pack *pack = ctx;
    char path[LIMIT_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", pack->spares, name);
    if (n < 0 || n >= LIMIT_PATH_BYTES)
        return 0;
    return plat_remove(path, err);
}

static int remove_spares(const struct pack *pack, struct fm_error *err)
{
    if (!plat_file_exists(pack->spares))
        return 0;
    int rc = plat_each_name(pack->spares, remove_spare, (void *)(uintptr_t)pack, err);
    return rc != 0 ? rc : plat_remove_dir(pack->spares, err);
}

int state_clean(const struct pack *pack, struct fm_error *err)
{
    struct leftovers sums = {pack, SUMS_SUFFIX}, tmp = {pack, TMP_SUFFIX};
    char plan[LIMIT_PATH_BYTES];
    int rc = pack_path(pack, PLAN_NAME, "", plan, err);
    if (rc == 0)
        rc = plat_each_name(pack->partial, remove_leftover, &sums, err);
    if (rc == 0)
        rc = plat_each_name(pack->partial, remove_leftover, &tmp, err);
    if (rc == 0)
        rc = remove_spares(pack, err);
    if (rc == 0)
        rc = plat_remove(plan, err);
    return rc != 0 ? rc : plat_sync_dir(pack->partial, err);
}

void state_drop(const struct pack *pack)
{
    struct leftovers tmp = {pack, TMP_SUFFIX};
    (void)plat_each_name(pack->partial, remove_leftover, &tmp, NULL);
}

static int remove_any(void *ctx, const char *name, struct fm_error *err)
{
    const struct pack *pack = ctx;
    char path[LIMIT_PATH_BYTES];
    int rc = pack_path(pack, name, "", path, err);
    return rc != 0 ? rc : plat_remove(path, err);
}

int state_discard(const struct pack *pack, struct fm_error *err)
{
    /* Headers of removed source files: what was packed of them exists nowhere else. */
    if (plat_file_exists(pack->spares))
        return err_set(err, FM_ERR_ARG, "'%s' holds what was taken from source files that are "
                       "removed already: it can be continued, but not begun again",
                       pack->partial);
    return plat_each_name(pack->partial, remove_any, (void *)(uintptr_t)pack, err);
}
