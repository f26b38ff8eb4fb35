/* A directory of snapshots of one model: the longest known prefix of a prompt is found there. */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "format/directory.h"
#include "session/snapshot.h"

#define SUFFIX ".fmsnap"
/* 32 digits, for an owner a dash and 16 more, and the suffix. */
#define TOKEN_DIGITS 32
#define OWNER_DIGITS 16
#define NAME_BYTES 64

/* One of another model, or damaged, has no tokens here and is of no use; but it takes room like all
 * others. */
struct entry {
    char name[NAME_BYTES];
    uint64_t owner;
    struct snapshot_info info;
    int64_t used_ns; /* when it was written or restored last */
};

struct fm_snapshots {
    struct fm_model *model;
    uint64_t identity;
    char *dir;
    uint64_t most_bytes, bytes;
    int lock_fd; /* -1: another process has it, and this one only reads */
    struct entry *entries;
    size_t n_entries, cap_entries;
    struct fm_snapshots_stats stats;
};

static bool path_of(const struct fm_snapshots *store, const char *name,
                    char path[LIMIT_PATH_BYTES])
{
    return (size_t)snprintf(path, LIMIT_PATH_BYTES, "%s/%s", store->dir, name) < LIMIT_PATH_BYTES;
}

/* ---- owners --------------------------------------------------------------------------------- */

/* What a snapshot of this owner has as its model, so that a file which got another owner's name is
 * one of another model. */
static uint64_t identity_of(const struct fm_snapshots *store, uint64_t owner)
{
    return owner == 0 ? store->identity
                      : XXH3_64bits_withSeed(&owner, sizeof owner, store->identity);
}

/* The owner that a file's name tells; 0: none. */
static uint64_t owner_of(const char *name)
{
    uint64_t owner = 0;
    if (strlen(name) != TOKEN_DIGITS + 1 + OWNER_DIGITS + strlen(SUFFIX) ||
        name[TOKEN_DIGITS] != '-')
        return 0;
    for (const char *c = name + TOKEN_DIGITS + 1; *c != '.'; c++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = strchr(digits, *c);
        if (digit == NULL)
            return 0;
        owner = owner << 4 | (uint64_t)(digit - digits);
    }
    return owner;
}

/* ---- the list ------------------------------------------------------------------------------- */

static void forget(struct fm_snapshots *store, size_t i)
{
    store->bytes -= store->entries[i].info.bytes;
    mem_free(store->entries[i].info.ids);
    store->entries[i] = store->entries[--store->n_entries];
}

static void drop(struct fm_snapshots *store, size_t i)
{
    char path[LIMIT_PATH_BYTES];
    struct fm_error err;
    if (store->lock_fd >= 0 && path_of(store, store->entries[i].name, path) &&
        plat_remove(path, &err) != 0)
        log_info("snapshots", "%s", err.text);
    forget(store, i);
}

static int list(struct fm_snapshots *store, const struct entry *e, struct fm_error *err)
{
    const int rc = mem_grow((void **)&store->entries, &store->cap_entries, store->n_entries + 1,
                            sizeof *store->entries, "the list of snapshots", err);
    if (rc != 0)
        return rc;
    store->entries[store->n_entries++] = *e;
    store->bytes += e->info.bytes;
    return 0;
}

static int add(struct fm_snapshots *store, const char *name, int64_t used_ns, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct entry e = {.used_ns = used_ns};
    if (strlen(name) >= sizeof e.name || !path_of(store, name, path))
        return err_set(err, FM_ERR_ARG, "the path of snapshot '%s' is too long", name);
    (void)snprintf(e.name, sizeof e.name, "%s", name);
    e.owner = owner_of(name);
    int rc = snapshot_read_info(store->model, identity_of(store, e.owner), path, &e.info, err);
    if (rc == 0)
        rc = list(store, &e, err);
    if (rc != 0)
        mem_free(e.info.ids);
    return rc;
}

static int see_snapshot(struct fm_snapshots *store, const char *name,
                        const struct plat_file_info *info, struct fm_error *err)
{
    struct entry unknown = {.info.bytes = info->bytes, .used_ns = info->mtime_ns};
    struct fm_error why;
    if (add(store, name, info->mtime_ns, &why) == 0)
        return 0;
    log_info("snapshots", "skipped: %s", why.text);
    if ((size_t)snprintf(unknown.name, sizeof unknown.name, "%s", name) >= sizeof unknown.name)
        return 0; /* not a name that this program gives */
    return list(store, &unknown, err);
}

static int see_name(void *ctx, const char *name, struct fm_error *err)
{
    struct fm_snapshots *store = ctx;
    char path[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    struct fm_error why;
    if (!path_of(store, name, path) || !plat_file_info(path, &info) || info.is_dir)
        return 0;
    if (name_has_suffix(name, SUFFIX ".part") && store->lock_fd >= 0)
        (void)plat_remove(path, &why); /* left by a process that was killed */
    return name_has_suffix(name, SUFFIX) ? see_snapshot(store, name, &info, err) : 0;
}

/* Makes room for so many bytes, at most the limit: what was used longest ago goes first. */
static void make_room(struct fm_snapshots *store, uint64_t bytes)
{
    while (store->bytes > store->most_bytes - bytes) {
        size_t oldest = 0;
        for (size_t i = 1; i < store->n_entries; i++)
            if (store->entries[i].used_ns < store->entries[oldest].used_ns)
                oldest = i;
        drop(store, oldest);
    }
}

/* ---- open and close ------------------------------------------------------------------------- */

int fm_snapshots_open(struct fm_model *model, const char *dir, uint64_t most_bytes,
                      struct fm_snapshots **out, struct fm_error *err)
{
    *out = NULL;
    int rc = plat_make_dir(dir, err);
    if (rc != 0)
        return rc;
    struct fm_snapshots *store = mem_new(1, sizeof *store, "the snapshots", err);
    if (store == NULL)
        return FM_ERR_NOMEM;
    struct fm_error why;
    store->model = model;
    store->most_bytes = most_bytes;
    store->lock_fd = -1;
    store->dir = mem_strdup(dir, err);
    rc = store->dir == NULL ? FM_ERR_NOMEM : snapshot_model(model, &store->identity, err);
    if (rc == 0 && plat_lock_dir(dir, &store->lock_fd, &why) != 0) {
        store->lock_fd = -1;
        log_info("snapshots", "none are written: %s", why.text);
    }
    if (rc == 0)
        rc = plat_each_name(dir, see_name, store, err);
    if (rc != 0) {
        fm_snapshots_close(store);
        return rc;
    }
    if (store->lock_fd >= 0)
        make_room(store, 0);
    *out = store;
    return 0;
}

void fm_snapshots_close(struct fm_snapshots *store)
{
    if (store == NULL)
        return;
    while (store->n_entries > 0)
        forget(store, store->n_entries - 1);
    plat_close(store->lock_fd);
    mem_free(store->entries);
    mem_free(store->dir);
    mem_free(store);
}

void fm_snapshots_stats(const struct fm_snapshots *store, struct fm_snapshots_stats *stats)
{
    *stats = store->stats;
    for (size_t i = 0; i < store->n_entries; i++)
        stats->n_files += store->entries[i].info.ids != NULL;
    stats->bytes = store->bytes;
}

/* ---- keeping -------------------------------------------------------------------------------- */

static void name_of(const struct fm_session *s, uint64_t identity, char name[NAME_BYTES])
{
    char owner[OWNER_DIGITS + 2] = "";
    const XXH128_hash_t h =
        XXH3_128bits_withSeed(s->ids, s->sequence->position * sizeof *s->ids, identity);
    if (s->prefix_owner != 0)
        (void)snprintf(owner, sizeof owner, "-%016llx", (unsigned long long)s->prefix_owner);
    (void)snprintf(name, NAME_BYTES, "%016llx%016llx%s" SUFFIX, (unsigned long long)h.high64,
                   (unsigned long long)h.low64, owner);
}

static void touch(struct fm_snapshots *store, struct entry *e)
{
    char path[LIMIT_PATH_BYTES];
    e->used_ns = plat_wall_ns();
    if (store->lock_fd >= 0 && path_of(store, e->name, path))
        plat_touch(path);
}

/* Whether the file is there and good. */
static bool is_kept(struct fm_snapshots *store, const char *name)
{
    for (size_t i = 0; i < store->n_entries; i++) {
        struct entry *e = &store->entries[i];
        if (strcmp(e->name, name) != 0)
            continue;
        if (e->info.ids != NULL) {
            touch(store, e);
            return true;
        }
        forget(store, i); /* about to be written again */
        break;
    }
    return false;
}

int fm_snapshots_keep(struct fm_snapshots *store, const struct fm_session *s, struct fm_error *err)
{
    char name[NAME_BYTES], path[LIMIT_PATH_BYTES];
    if (store->lock_fd < 0 || s->sequence->position == 0)
        return 0;
    const uint64_t identity = identity_of(store, s->prefix_owner);
    name_of(s, identity, name);
    if (is_kept(store, name))
        return 0;
    const uint64_t bytes = snapshot_bytes(s);
    if (bytes > store->most_bytes) {
        log_info("snapshots", "%u tokens take %llu bytes and the limit is %llu: not kept",
                 s->sequence->position, (unsigned long long)bytes,
                 (unsigned long long)store->most_bytes);
        return 0;
    }
    if (!path_of(store, name, path))
        return err_set(err, FM_ERR_ARG, "the path of snapshot '%s' is too long", name);
    /* The old ones go when the new one is whole: killed or out of space, nothing is lost. */
    int rc = snapshot_write(s, identity, path, err);
    if (rc == 0) {
        make_room(store, bytes);
        rc = add(store, name, plat_wall_ns(), err);
    }
    store->stats.n_written += rc == 0;
    return rc;
}

/* ---- finding -------------------------------------------------------------------------------- */

/* Where a session restored from it could go on with these tokens. */
static uint32_t usable(const struct entry *e, const int32_t *ids, size_t n_ids)
{
    const struct snapshot_info *info = &e->info;
    uint32_t n_common = 0, best = 0;
    while (n_common < info->n_tokens && n_common + 1 < n_ids &&
           info->ids[n_common] == ids[n_common])
        n_common++;
    if (n_common == info->n_tokens || info->is_attention_only)
        return n_common;
    for (uint32_t i = 0; i < info->n_marks; i++)
        if (info->marks[i] <= n_common && info->marks[i] > best)
            best = info->marks[i];
    return best;
}

/* The owner's best one that is more than `least`; NULL: none. */
static struct entry *find_best(const struct fm_snapshots *store, uint64_t owner,
                               const int32_t *ids, size_t n_ids, uint32_t least)
{
    struct entry *best = NULL;
    for (size_t i = 0; i < store->n_entries; i++) {
        const uint32_t n = usable(&store->entries[i], ids, n_ids);
        if (n > least && store->entries[i].owner == owner) {
            best = &store->entries[i];
            least = n;
        }
    }
    return best;
}

unsigned fm_snapshots_restore(struct fm_snapshots *store, struct fm_session *s, const int32_t *ids,
                              size_t n_ids)
{
    struct entry *e;
    while ((e = find_best(store, s->prefix_owner, ids, n_ids,
                          fm_session_nearest(s, ids, n_ids))) != NULL) {
        char path[LIMIT_PATH_BYTES];
        struct fm_error err = {0};
        if (path_of(store, e->name, path) &&
            snapshot_read(s, identity_of(store, e->owner), path, &err) == 0) {
            touch(store, e);
            store->stats.n_restored++;
            break;
        }
        log_info("snapshots", "skipped: %s", err.text);
        if (err.code == FM_ERR_BUDGET || err.code == FM_ERR_NOMEM)
            break; /* nothing is wrong with it */
        drop(store, (size_t)(e - store->entries));
    }
    return fm_session_rewind(s, ids, n_ids);
}
