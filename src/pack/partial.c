/* The directory DST.partial, which holds a pack until it is complete:
 *   plan.json        what is packed, and into which formats; a different packing is refused
 *   NAME.tmp         a file that is being written
 *   NAME             a finished file: written, synced and read back
 *   NAME.sums        its checksums, so that a later process need not write it again
 *   source/NAME      a stub: the header of a source file that was removed
 *   model.json       written last; with it the pack is complete
 * Then the directory is renamed to DST, and everything but the pack itself is removed from it.
 * plan.json is removed last, because it tells the next process that there is something to clean
 * up. */
#include <stdio.h>
#include <string.h>

#include "arch/arch.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "flashmoe_lab.h"
#include "format/directory.h"
#include "format/disks.h"
#include "pack/pack_internal.h"

#define SUMS_SUFFIX ".sums"
#define TMP_SUFFIX ".tmp"
#define SUMS_MAGIC "FMSUMS1\n"
#define SUMS_MAGIC_BYTES (sizeof SUMS_MAGIC - 1)
#define FINISH_IT "finish it with the command it was begun with"
#define ADVICE_BYTES 900

int pack_path(const struct pack *pack, unsigned folder, const char *name, const char *suffix,
              char out[], struct fm_error *err)
{
    const char *partial = folder == 0 ? pack->partial : pack->others[folder - 1].partial;
    int n = snprintf(out, LIMIT_PATH_BYTES, "%s/%s%s", partial, name, suffix);
    if (n > 0 && n < LIMIT_PATH_BYTES)
        return 0;
    return err_set(err, FM_ERR_ARG, "the path '%.200s...' is too long", partial);
}

/* ---- small files ---------------------------------------------------------------------------- */

static int read_back(const struct plat_dir *dir, const char *name, const void *data, size_t bytes,
                     struct fm_error *err)
{
    char *text;
    size_t n;
    int fd;
    uint64_t file_bytes;
    /* Drops the page cache where possible; then the bytes are read through it. */
    int rc = plat_dir_open_device(dir, name, &fd, &file_bytes, err);
    if (rc != 0)
        return rc;
    plat_close(fd);
    rc = plat_dir_read_file(dir, name, bytes, &text, &n, err);
    if (rc == 0 && (n != bytes || memcmp(text, data, bytes) != 0))
        rc = err_set(err, FM_ERR_IO, "'%s/%s' is not what was written: the disk or the memory is "
                     "faulty", dir->path, name);
    mem_free(text);
    return rc;
}

static bool has(const struct pack *pack, const char *name)
{
    struct plat_file_info info;
    return plat_dir_info(&pack->dir, name, &info);
}

static int load_json(const struct pack *pack, const char *name, struct jdoc *doc,
                     struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    int rc = pack_path(pack, 0, name, "", path, err);
    if (rc == 0)
        rc = plat_dir_read_file(&pack->dir, name, LIMIT_INDEX_JSON_BYTES, &text, &bytes, err);
    if (rc == 0)
        rc = jdoc_parse(doc, path, text, bytes, err);
    mem_free(text);
    return rc;
}

int partial_write_in(const struct plat_dir *dir, const char *name, const void *data, size_t bytes,
                     struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], tmp[DIRECTORY_NAME_BYTES];
    struct plat_file_info is;
    bool is_direct = false;
    (void)snprintf(tmp, sizeof tmp, "%.200s%s", name, TMP_SUFFIX);
    (void)snprintf(path, sizeof path, "%.*s/%s", LIMIT_PATH_BYTES - DIRECTORY_NAME_BYTES - 2,
                   dir->path, tmp);
    int fd = -1, rc = plat_dir_create(dir, tmp, PLAT_SHARED, &is_direct, &fd, err);
    if (rc == 0 && !plat_open_file_info(fd, &is))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", path);
    if (rc == 0)
        rc = plat_write_at(fd, path, data, bytes, 0, err);
    if (rc == 0)
        rc = plat_sync(fd, path, err);
    plat_close(fd);
    if (rc == 0)
        rc = read_back(dir, tmp, data, bytes, err);
    if (rc == 0)
        rc = plat_dir_rename(dir, tmp, name, &is, err);
    return rc != 0 ? rc : plat_dir_sync(dir, err);
}

int partial_write(const struct pack *pack, const char *name, const void *data, size_t bytes,
                  struct fm_error *err)
{
    return partial_write_in(&pack->dir, name, data, bytes, err);
}

/* ---- the plan ------------------------------------------------------------------------------- */

static json_t *files_json(const struct pack *pack)
{
    const struct source *source = pack->model->source;
    json_t *files = json_array();
    for (unsigned f = 0; f < source->n_files; f++) {
        struct plat_file_info info = {0};
        char path[LIMIT_PATH_BYTES];
        /* Compares the target of a link. */
        const char *name = path_base(source->files[f].path), *digest = remote_digest(pack, name);
        if (digest != NULL || !plat_real_path(source->files[f].path, path) ||
            !plat_file_info(path, &info))
            info.mtime_ns = 0; /* a file that is fetched again has another time */
        (void)json_array_append_new(
            files, json_pack("{s:s, s:I, s:I, s:s*}", "name", name, "bytes",
                             (json_int_t)source->files[f].bytes, "mtime_ns",
                             (json_int_t)info.mtime_ns, "digest", digest));
    }
    return files;
}

static json_t *formats_json(const struct pack *pack)
{
    const struct fm_pack_options *o = pack->options;
    char to[80];
    (void)snprintf(to, sizeof to, pack->n_folders == 1 ? "one folder" : "%u folders, %s",
                   pack->n_folders, o->mirror ? DISKS_MIRROR : DISKS_SPLIT);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "layers", pack->layers, "to", to,
                     "experts", o->experts != NULL ? o->experts : "default",
                     "dense", o->dense != NULL ? o->dense : "keep",
                     "embed", o->embed != NULL ? o->embed : "default",
                     "head", o->head != NULL ? o->head : "default");
}

static json_t *plan_json(const struct pack *pack)
{
    json_t *plan = json_pack("{s:i, s:i, s:o, s:o}", "encoder", PACK_ENCODER, "version",
                             PACKED_VERSION_MIXED, "formats", formats_json(pack), "files",
                             files_json(pack));
    json_t *shares = pack->packed.n_parts > 1 && plan != NULL ? json_array() : NULL;
    for (unsigned i = 0; shares != NULL && i < pack->n_folders; i++)
        (void)json_array_append_new(shares, json_real(pack->shares[i]));
    if (shares != NULL)
        (void)json_object_set_new(plan, "shares", shares);
    return plan;
}

/* Says how to begin again. A download has no --restart: its files would have to go, too. */
static const char *advise(const struct pack *pack, char out[ADVICE_BYTES])
{
    if (pack->options->remote == NULL)
        (void)snprintf(out, ADVICE_BYTES, FINISH_IT ", or begin again with --restart");
    else
        (void)snprintf(out, ADVICE_BYTES, FINISH_IT ", or remove '%.400s' and '%.400s' and begin "
                       "again", pack->partial, pack->src);
    return out;
}

static int compare_formats(const struct pack *pack, const json_t *was, const json_t *is,
                           const char *advice, struct fm_error *err)
{
    static const char *const names[] = {"experts", "dense", "embed", "head", "layers", "to"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        const json_t *a = json_object_get(json_object_get(was, "formats"), names[i]);
        const json_t *b = json_object_get(is, names[i]);
        if (json_equal(a, b))
            continue;
        /* Older versions packed all layers, into one folder. */
        if (a == NULL && strcmp(names[i], "layers") == 0 && !pack->is_part)
            continue;
        if (a == NULL && strcmp(names[i], "to") == 0 && pack->n_folders == 1)
            continue;
        char first[80], second[80];
        return err_set(err, FM_ERR_ARG, "'%s' was begun with --%s %s, and this is %s: %s",
                       pack->partial, names[i], jdoc_show(a, first, sizeof first),
                       jdoc_show(b, second, sizeof second), advice);
    }
    return 0;
}

static bool has_equal(const json_t *a, const json_t *b, const char *field)
{
    return json_equal(json_object_get(a, field), json_object_get(b, field));
}

/* Returns whether the content may be another one, although name and length are the same. */
static bool is_other_digest(const json_t *was, const json_t *is)
{
    const char *digest = json_string_value(json_object_get(is, "digest"));
    return digest != NULL && (digest[0] == '\0' || !has_equal(was, is, "digest"));
}

static int changed_file(const struct pack *pack, const json_t *was, const json_t *is,
                        struct fm_error *err)
{
    char advice[ADVICE_BYTES];
    const char *digest = json_string_value(json_object_get(is, "digest"));
    const char *name = json_string_value(json_object_get(is, "name"));
    if (!has_equal(was, is, "name"))
        return err_set(err, FM_ERR_ARG, "'%s' was begun with another source, which has no "
                       "'%s': %s", pack->partial, name, advise(pack, advice));
    if (has_equal(was, is, "bytes") && digest != NULL && digest[0] == '\0')
        return err_set(err, FM_ERR_ARG, "'%s' was begun with a '%s' that may be another one now: "
                       "the server gives no version of it: %s", pack->partial, name,
                       advise(pack, advice));
    if (has_equal(was, is, "bytes"))
        return err_set(err, FM_ERR_ARG, "'%s' was begun with an older '%s', which was changed "
                       "since: %s", pack->partial, name, advise(pack, advice));
    return err_set(err, FM_ERR_ARG, "'%s' was begun when '%s' had %lld bytes; it has %lld now and "
                   "was changed since: %s", pack->partial, name,
                   (long long)json_integer_value(json_object_get(was, "bytes")),
                   (long long)json_integer_value(json_object_get(is, "bytes")),
                   advise(pack, advice));
}

static int compare_files(const struct pack *pack, const json_t *was, const json_t *is,
                         struct fm_error *err)
{
    const json_t *a = json_object_get(was, "files"), *b = json_object_get(is, "files");
    char advice[ADVICE_BYTES];
    const size_t n = json_array_size(b);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(a, i), *y = json_array_get(b, i);
        /* A stub has its own time. */
        if (!has_equal(x, y, "name") || !has_equal(x, y, "bytes") ||
            is_other_digest(x, y) || (!pack->is_stub[i] && !has_equal(x, y, "mtime_ns")))
            return changed_file(pack, x, y, err);
    }
    if (json_array_size(a) != n)
        return err_set(err, FM_ERR_ARG, "'%s' was begun with another source, of %zu files, not "
                       "%zu: %s", pack->partial, json_array_size(a), n, advise(pack, advice));
    return 0;
}

static int compare_plans(const struct pack *pack, const json_t *is, struct fm_error *err)
{
    struct jdoc was = {0};
    char advice[ADVICE_BYTES];
    int rc = load_json(pack, PLAN_NAME, &was, err);
    advise(pack, advice);
    if (rc != 0)
        return err_wrap(err, rc, "'%s' cannot be continued; %s", pack->partial,
                        advice + strlen(FINISH_IT ", or "));
    if (!has_equal(was.root, is, "encoder") || !has_equal(was.root, is, "version"))
        rc = err_set(err, FM_ERR_ARG, "'%s' was begun with a version of flashmoe that packs other "
                     "bytes than this one: %s", pack->partial, advice);
    if (rc == 0)
        rc = compare_formats(pack, was.root, json_object_get(is, "formats"), advice, err);
    if (rc == 0)
        rc = compare_files(pack, was.root, is, err);
    jdoc_clear(&was);
    return rc;
}

struct foreign {
    bool has_heads; /* headers are fetched before there is a plan */
    char found[DIRECTORY_NAME_BYTES];
};

static int find_foreign(void *ctx, const char *name, struct fm_error *err)
{
    struct foreign *f = ctx;
    (void)err;
    if (strcmp(name, PLAN_NAME TMP_SUFFIX) != 0 &&
        !(f->has_heads && (strcmp(name, STUBS_NAME) == 0 || name_has_suffix(name, TMP_SUFFIX))))
        (void)snprintf(f->found, sizeof f->found, "%s", name);
    return 0;
}

struct checked_dir {
    const struct plat_dir *dir;
    uint64_t owner;
    bool has_stubs; /* it may contain the directory of stubs */
};

static int check_name(void *ctx, const char *name, struct fm_error *err)
{
    const struct checked_dir *c = ctx;
    struct plat_file_info info;
    if (!plat_dir_info(c->dir, name, &info))
        return 0;
    const bool is_spares = c->has_stubs && strcmp(name, STUBS_NAME) == 0;
    if (info.owner == c->owner && (is_spares ? info.is_dir : info.is_file))
        return 0;
    return err_set(err, FM_ERR_ARG, "'%s/%.200s' %s: packing has not created it and does not "
                   "change it; remove it or choose another destination", c->dir->path, name,
                   info.is_link             ? "is a link"
                   : info.owner != c->owner ? "belongs to another user"
                   : info.is_dir            ? "is a directory"
                                            : "is not a regular file");
}

int partial_check_names(const struct plat_dir *dir, bool has_stubs, struct fm_error *err)
{
    struct plat_file_info info;
    if (!plat_open_file_info(dir->fd, &info))
        return err_set(err, FM_ERR_IO, "cannot get the status of '%s'", dir->path);
    struct checked_dir checked = {dir, info.owner, has_stubs};
    return plat_dir_each_name(dir, check_name, &checked, err);
}

int partial_check_own(const struct pack *pack, struct fm_error *err)
{
    struct foreign foreign = {.has_heads = pack->options->remote != NULL};
    struct plat_dir stubs = {.fd = -1};
    int rc = partial_check_names(&pack->dir, true, err);
    if (rc == 0 && has(pack, STUBS_NAME)) {
        rc = plat_dir_open_in(&pack->dir, STUBS_NAME, pack->stubs, &stubs, err);
        if (rc == 0)
            rc = partial_check_names(&stubs, false, err);
        plat_dir_close(&stubs);
    }
    if (rc != 0 || has(pack, PLAN_NAME) || has(pack, PACKED_MODEL_NAME))
        return rc;
    rc = plat_dir_each_name(&pack->dir, find_foreign, &foreign, err);
    if (rc == 0 && foreign.found[0] != '\0')
        rc = err_set(err, FM_ERR_ARG, "'%s' holds '%.200s' and no " PLAN_NAME ": no packing has "
                     "created it; move it away or choose another destination", pack->partial,
                     foreign.found);
    return rc;
}

/* ---- a complete pack ------------------------------------------------------------------------ */

/* Writes the folder that holds, or held, the files of SRC. */
static void source_folder(const struct pack *pack, char folder[LIMIT_PATH_BYTES])
{
    char path[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    const bool is_dir = plat_real_path(pack->src, path) && plat_file_info(path, &info) &&
                        info.is_dir;
    if (!is_dir && name_has_suffix(pack->src, ".gguf"))
        path_folder(pack->src, folder);
    else
        (void)snprintf(folder, LIMIT_PATH_BYTES, "%s", pack->src);
}

/* Returns whether a file of the plan is in the folder unchanged. Sets *is_there when a file of its
 * name exists. */
static bool is_original(const json_t *entry, const char *folder, bool *is_there)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    char path[LIMIT_PATH_BYTES], real[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    int n = name != NULL ? snprintf(path, sizeof path, "%s/%s", folder, name) : -1;
    *is_there = n > 0 && n < LIMIT_PATH_BYTES && plat_real_path(path, real) &&
                plat_file_info(real, &info);
    return *is_there &&
           json_integer_value(json_object_get(entry, "bytes")) == (json_int_t)info.bytes &&
           json_integer_value(json_object_get(entry, "mtime_ns")) == (json_int_t)info.mtime_ns;
}

static int check_whole_plan(const struct pack *pack, struct fm_error *err)
{
    char folder[LIMIT_PATH_BYTES];
    struct jdoc was = {0};
    if (!has(pack, PLAN_NAME))
        return 0;
    json_t *formats = formats_json(pack);
    int rc = formats == NULL ? err_set(err, FM_ERR_NOMEM, "out of memory: cannot create the plan")
                             : load_json(pack, PLAN_NAME, &was, err);
    if (rc == 0)
        rc = compare_formats(pack, was.root, formats, FINISH_IT, err);
    source_folder(pack, folder);
    const json_t *files = json_object_get(was.root, "files");
    for (size_t i = 0; rc == 0 && i < json_array_size(files); i++) {
        const json_t *entry = json_array_get(files, i);
        bool is_there;
        /* A file that was fetched has its digest in place of a time. */
        if (json_object_get(entry, "digest") == NULL &&
            !is_original(entry, folder, &is_there) && is_there)
            rc = err_set(err, FM_ERR_ARG, "'%s' is complete and was made from another '%s' than "
                         "the one in '%s': " FINISH_IT, pack->partial,
                         json_string_value(json_object_get(entry, "name")), folder);
    }
    jdoc_clear(&was);
    json_decref(formats);
    return rc;
}

int partial_check_whole(const struct pack *pack, struct fm_error *err)
{
    char name[LIMIT_PATH_BYTES];
    struct jdoc model = {0};
    struct source *source = NULL;
    const struct model_options options = {.families = arch_families(), .spare_dir = pack->stubs};
    int rc = load_json(pack, PACKED_MODEL_NAME, &model, err);
    const json_t *of = json_object_get(model.root, "provenance");
    const char *was = json_string_value(json_object_get(of, "source"));
    const char *kind = json_string_value(json_object_get(of, "kind"));
    pack_source_name(pack, name);
    /* Nothing is read from it now, so it need not open. Without its stubs it may look like
     * something else. */
    if (!pack->is_renamed)
        (void)model_source_open(pack->src, &options, &source, NULL);
    const bool is_other = was == NULL || (was[0] != '\0' && strcmp(was, name) != 0) ||
                          (source != NULL && kind != NULL &&
                           strcmp(kind, source_kind_name(source)) != 0);
    if (rc == 0 && is_other)
        rc = err_set(err, FM_ERR_ARG, "'%s' is complete and was made from '%.200s' (%.40s), not "
                     "'%s': " FINISH_IT, pack->partial, was != NULL ? was : "?",
                     kind != NULL ? kind : "?", pack->src);
    source_close(source);
    jdoc_clear(&model);
    return rc != 0 ? rc : check_whole_plan(pack, err);
}

/* ---- plan.json ------------------------------------------------------------------------------ */

int partial_check_plan(const struct pack *pack, struct fm_error *err)
{
    if (pack->is_restart || !has(pack, PLAN_NAME))
        return 0;
    json_t *plan = plan_json(pack);
    int rc = plan == NULL ? err_set(err, FM_ERR_NOMEM, "out of memory: cannot create the plan")
                          : compare_plans(pack, plan, err);
    json_decref(plan);
    return rc;
}

bool partial_read_shares(const struct pack *pack, double shares[SOURCE_MAX_DISKS])
{
    struct jdoc plan = {0};
    if (pack->dir.fd < 0 || pack->is_restart || !has(pack, PLAN_NAME) ||
        load_json(pack, PLAN_NAME, &plan, NULL) != 0)
        return false;
    const json_t *list = json_object_get(plan.root, "shares");
    bool ok = json_array_size(list) == pack->n_folders;
    for (unsigned i = 0; ok && i < pack->n_folders; i++) {
        shares[i] = json_real_value(json_array_get(list, i));
        ok = shares[i] > 0 && shares[i] < 1;
    }
    jdoc_clear(&plan);
    return ok;
}

static int write_plan(const struct pack *pack, struct fm_error *err)
{
    json_t *plan = plan_json(pack);
    const size_t n = plan != NULL ? json_dumpb(plan, NULL, 0, JSON_INDENT(1)) : 0;
    char *text = n > 0 ? mem_new(n + 1, 1, "the plan", err) : NULL;
    int rc = text == NULL ? err_set(err, FM_ERR_NOMEM, "out of memory: cannot create the plan") : 0;
    if (rc == 0) {
        (void)json_dumpb(plan, text, n, JSON_INDENT(1));
        rc = partial_write(pack, PLAN_NAME, text, n, err);
    }
    mem_free(text);
    json_decref(plan);
    return rc;
}

int partial_begin(const struct pack *pack, struct fm_error *err)
{
    if (pack->options->plan_only)
        return 0;
    int rc = pack->is_restart || !has(pack, PLAN_NAME) ? write_plan(pack, err) : 0;
    return rc != 0 ? rc : folders_write_plan(pack, err);
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

int partial_finish(struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    char name[PACKED_NAME_BYTES + 8];
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
    int rc = partial_write(pack, name, sums, bytes, err);
    mem_free(sums);
    for (unsigned i = 0; rc == 0 && !file->is_elsewhere && i < file->n_outs; i++) {
        const struct pack_out *out = &file->outs[i];
        const struct plat_dir *dir = folders_dir(pack, i);
        rc = plat_dir_rename(dir, path_base(out->path), file->name, &out->made, err);
        if (rc == 0)
            rc = plat_dir_sync(dir, err);
    }
    return rc != 0 ? rc : plat_dir_sync(&pack->dir, err);
}

/* Reads the checksums of a file. Returns false when they are missing or damaged. */
static bool read_sums(struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    char name[PACKED_NAME_BYTES + 8], *text = NULL;
    const size_t one = sizeof(struct packed_sum), n = n_sums(pack, file);
    const size_t expected = SUMS_MAGIC_BYTES + (n + 1) * one;
    size_t bytes = 0;
    (void)snprintf(name, sizeof name, "%s%s", file->name, SUMS_SUFFIX);
    if (!has(pack, name) ||
        plat_dir_read_file(&pack->dir, name, expected, &text, &bytes, err) != 0)
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

int partial_check_source(const struct pack *pack, const struct pack_file *file,
                         struct fm_error *err)
{
    const struct source *source = pack->model->source;
    const int64_t index = file - pack->files;
    if (pack->options->remote != NULL)
        return 0; /* it is fetched again */
    for (unsigned f = 0; f < source->n_files; f++)
        if (pack->last_use[f] >= index && pack->is_stub[f])
            return err_set(err, FM_ERR_FORMAT, "'%s/%s' is damaged and cannot be written again: "
                           "'%s' was removed from the source after packing it", pack->partial,
                           file->name,
                           path_base(source->files[f].path));
    return 0;
}

static int find_file(struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    if (file->is_elsewhere) {
        if (file->step != PACK_DONE && read_sums(pack, file, NULL))
            file->step = PACK_DONE;
        return 0;
    }
    file->was_found = true;
    for (unsigned i = 0; i < file->n_outs; i++) {
        struct plat_file_info info;
        int rc = pack_path(pack, i, file->name, "", file->outs[i].path, err);
        if (rc != 0)
            return rc;
        const struct plat_dir *dir = folders_dir(pack, i);
        file->was_found = file->was_found && dir->fd >= 0 &&
                          plat_dir_info(dir, file->name, &info) && info.is_file &&
                          info.bytes == file->outs[i].bytes;
    }
    file->was_found = file->was_found && read_sums(pack, file, NULL);
    if (!file->was_found)
        return partial_check_source(pack, file, err);
    file->step = PACK_WRITTEN;
    pack->result->found_bytes += file->n_copies * file->bytes;
    return 0;
}

struct leftovers {
    const struct plat_dir *dir;
    const char *suffix;
};

static int remove_leftover(void *ctx, const char *name, struct fm_error *err)
{
    const struct leftovers *l = ctx;
    return name_has_suffix(name, l->suffix) ? plat_dir_remove(l->dir, name, NULL, err) : 0;
}

int partial_remove(const struct plat_dir *dir, const char *suffix, struct fm_error *err)
{
    struct leftovers leftovers = {dir, suffix};
    return plat_dir_each_name(dir, remove_leftover, &leftovers, err);
}

int partial_find(struct pack *pack, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && !pack->options->plan_only && i < pack->n_folders; i++)
        rc = partial_remove(folders_dir(pack, i), TMP_SUFFIX, err);
    for (uint32_t i = 0; rc == 0 && !pack->is_restart && i < pack->n_files; i++)
        rc = find_file(pack, &pack->files[i], err);
    return rc;
}

/* ---- cleaning up ---------------------------------------------------------------------------- */

/* Removes a stub. Refuses any other file, whatever its name is. */
static int remove_stub(void *ctx, const char *name, struct fm_error *err)
{
    const struct plat_dir *dir = ctx;
    char end[SOURCE_SPARE_BYTES] = {0};
    struct plat_file_info is;
    uint64_t bytes;
    int fd;
    int rc = plat_dir_read(dir, name, &fd, &bytes, err);
    if (rc != 0)
        return rc;
    const bool is_stub = plat_open_file_info(fd, &is) && bytes >= sizeof end &&
                          plat_read_some(fd, end, sizeof end, bytes - sizeof end) ==
                              (int64_t)sizeof end &&
                          memcmp(end, SOURCE_SPARE_MAGIC, sizeof SOURCE_SPARE_MAGIC - 1) == 0;
    if (is_stub)
        rc = plat_dir_remove(dir, name, &is, err);
    else
        rc = err_set(err, FM_ERR_ARG, "'%s/%.200s' is not a stub that packing has written: it was "
                     "not changed; move it away and start the same command again", dir->path, name);
    plat_close(fd);
    return rc;
}

static int remove_spares(const struct pack *pack, struct fm_error *err)
{
    struct plat_dir stubs;
    if (!has(pack, STUBS_NAME))
        return 0;
    int rc = plat_dir_open_in(&pack->dir, STUBS_NAME, pack->stubs, &stubs, err);
    if (rc == 0)
        rc = plat_dir_each_name(&stubs, remove_stub, &stubs, err);
    plat_dir_close(&stubs);
    return rc != 0 ? rc : plat_dir_remove_dir(&pack->dir, STUBS_NAME, err);
}

int partial_clean(const struct pack *pack, struct fm_error *err)
{
    int rc = partial_remove(&pack->dir, SUMS_SUFFIX, err);
    if (rc == 0)
        rc = partial_remove(&pack->dir, TMP_SUFFIX, err);
    if (rc == 0)
        rc = remove_spares(pack, err);
    if (rc == 0)
        rc = plat_dir_remove(&pack->dir, PLAN_NAME, NULL, err);
    return rc != 0 ? rc : plat_dir_sync(&pack->dir, err);
}

void partial_drop(const struct pack *pack)
{
    for (unsigned i = 0; i < pack->n_folders; i++)
        (void)partial_remove(folders_dir(pack, i), TMP_SUFFIX, NULL);
}

static int remove_any(void *ctx, const char *name, struct fm_error *err)
{
    const struct pack *pack = ctx;
    return strcmp(name, PLAN_NAME) == 0 ? 0 : plat_dir_remove(&pack->dir, name, NULL, err);
}

struct stubs {
    const json_t *files; /* of the plan */
    char folder[LIMIT_PATH_BYTES];
};

/* Fails for a stub whose source file no longer exists. */
static int check_stub(void *ctx, const char *name, struct fm_error *err)
{
    const struct stubs *s = ctx;
    bool is_there;
    for (size_t i = 0; i < json_array_size(s->files); i++) {
        const json_t *entry = json_array_get(s->files, i);
        const char *of = json_string_value(json_object_get(entry, "name"));
        if (of != NULL && strcmp(of, name) == 0 && is_original(entry, s->folder, &is_there))
            return 0;
    }
    return err_set(err, FM_ERR_ARG, "'%.200s' is gone", name);
}

int partial_check_discard(const struct pack *pack, struct fm_error *err)
{
    struct jdoc plan = {0};
    struct plat_dir dir = {.fd = -1};
    if (has(pack, PACKED_MODEL_NAME))
        return err_set(err, FM_ERR_ARG, "'%s' is complete: the same command without --restart "
                       "finishes it", pack->partial);
    if (!has(pack, STUBS_NAME))
        return 0;
    /* What was packed from a source file with a stub exists nowhere else. */
    struct stubs stubs;
    source_folder(pack, stubs.folder);
    int rc = load_json(pack, PLAN_NAME, &plan, err);
    if (rc == 0)
        rc = plat_dir_open_in(&pack->dir, STUBS_NAME, pack->stubs, &dir, err);
    stubs.files = json_object_get(plan.root, "files");
    if (rc == 0)
        rc = plat_dir_each_name(&dir, check_stub, &stubs, err);
    plat_dir_close(&dir);
    jdoc_clear(&plan);
    if (rc == 0 || rc == FM_ERR_NOMEM)
        return rc;
    return err_set(err, FM_ERR_ARG, "'%s' holds the only copy of source files that were removed: "
                   "it can be continued, but not restarted", pack->partial);
}

int partial_discard(const struct pack *pack, struct fm_error *err)
{
    int rc = partial_check_discard(pack, err);
    if (rc == 0)
        rc = remove_spares(pack, err);
    if (rc == 0)
        rc = plat_dir_each_name(&pack->dir, remove_any, (void *)(uintptr_t)pack, err);
    if (rc != 0)
        return rc;
    /* last: without it PARTIAL is not ours */
    return plat_dir_remove(&pack->dir, PLAN_NAME, NULL, err);
}
