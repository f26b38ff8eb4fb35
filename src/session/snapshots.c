/* fm_snapshots: a directory of snapshots of one model, in which the longest known prefix of a
 * prompt is found. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sized.h"
#include "format/directory.h"
#include "session/snapshot.h"

#define SUFFIX ".fmsnap"
/* A name has 32 digits, for an owner a dash and 16 more digits, and the suffix. */
#define TOKEN_DIGITS 32
#define OWNER_DIGITS 16
#define NAME_BYTES 64

/* A snapshot in the directory. One that is damaged or belongs to another model has no ids and is
 * never restored, but its size counts. */
struct entry {
    char name[NAME_BYTES];
    uint64_t owner;
    struct snapshot_info info;
    int64_t used_ns; /* when it was last written or restored */
};

struct fm_snapshots {
    struct fm_model *model;
    uint64_t identity;
    char *path;
    struct plat_dir dir; /* owned by this user; links in it are not followed */
    uint64_t owner;      /* user id of the directory and of all files created in it */
    uint64_t max_bytes, bytes;
    bool is_writer; /* false: another process holds the lock; this one only reads */
    bool is_shared; /* the directory also holds other kinds of files */
    struct entry *entries;
    size_t n_entries, cap_entries;
    struct fm_snapshots_stats stats;
};

/* Returns whether the name has the form that this program gives to snapshots. Only such files are
 * listed, counted and removed. */
static bool is_own_name(const char *name)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = strspn(name, digits);
    if (n == TOKEN_DIGITS && name[n] == '-') /* an owner follows */
        n += 1 + strspn(name + n + 1, digits);
    return n >= TOKEN_DIGITS && n + strlen(SUFFIX) < NAME_BYTES && strcmp(name + n, SUFFIX) == 0;
}

/* Returns whether it is another rank's part of such a file (cluster/part_file.c). */
static bool is_part_name(const char *name)
{
    const char *rank = strstr(name, SUFFIX ".rank");
    return rank != NULL && strspn(name, "0123456789abcdef-") == (size_t)(rank - name);
}

/* ---- owners --------------------------------------------------------------------------------- */

/* Returns the model identity in the snapshots of an owner. A file that was renamed to another
 * owner's name therefore counts as another model's. */
static uint64_t identity_of(const struct fm_snapshots *store, uint64_t owner)
{
    return owner == 0 ? store->identity
                      : XXH3_64bits_withSeed(&owner, sizeof owner, store->identity);
}

/* Returns the owner in a file name; 0: none. */
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
    assert(i < store->n_entries && store->bytes >= store->entries[i].info.bytes);
    store->bytes -= store->entries[i].info.bytes;
    mem_free(store->entries[i].info.ids);
    store->entries[i] = store->entries[--store->n_entries];
    assert(store->n_entries > 0 || store->bytes == 0); /* the sum over all entries */
}

static void drop(struct fm_snapshots *store, size_t i)
{
    struct fm_error err;
    if (store->is_writer && plat_dir_remove(&store->dir, store->entries[i].name, NULL, &err) != 0)
        log_info("snapshots", "%s", err.text);
    char path[LIMIT_PATH_BYTES];
    if (store->is_writer && store->model->cluster != NULL &&
        snprintf(path, sizeof path, "%s/%s", store->dir.path, store->entries[i].name) <
            (int)sizeof path)
        cluster_drop(store->model->cluster, path);
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
    struct entry e = {.used_ns = used_ns};
    (void)snprintf(e.name, sizeof e.name, "%s", name); /* is_own_name: it fits */
    e.owner = owner_of(name);
    int rc = snapshot_read_info(store->model, identity_of(store, e.owner), &store->dir, name,
                                &e.info, err);
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
    (void)snprintf(unknown.name, sizeof unknown.name, "%s", name);
    return list(store, &unknown, err);
}

static int see_name(void *ctx, const char *name, struct fm_error *err)
{
    static const char part[] = ".part";
    struct fm_snapshots *store = ctx;
    const size_t n = strlen(name);
    struct plat_file_info info;
    struct fm_error why;
    char whole[NAME_BYTES] = "";
    if (is_part_name(name))
        return 0; /* other ranks on this machine have them */
    if (name_has_suffix(name, part) && n - strlen(part) < sizeof whole)
        (void)snprintf(whole, sizeof whole, "%.*s", (int)(n - strlen(part)), name);
    if (!is_own_name(name) && !is_own_name(whole)) {
        store->is_shared = true;
        return 0;
    }
    if (!plat_dir_info(&store->dir, name, &info))
        return 0;
    if (!info.is_file || info.owner != store->owner) {
        log_info("snapshots", "skipped: '%s/%s' %s", store->path, name,
                 info.is_file ? "belongs to another user" : "is not a regular file");
        return 0;
    }
    if (whole[0] == '\0')
        return see_snapshot(store, name, &info, err);
    if (store->is_writer)
        (void)plat_dir_remove(&store->dir, name, &info, &why); /* left by a killed process */
    return 0;
}

static void drop_oldest(struct fm_snapshots *store)
{
    size_t oldest = 0;
    assert(store->n_entries > 0);
    for (size_t i = 1; i < store->n_entries; i++)
        if (store->entries[i].used_ns < store->entries[oldest].used_ns)
            oldest = i;
    drop(store, oldest);
}

/* Makes room for `bytes`, at most the limit. Drops the least recently used snapshots first. */
static void make_room(struct fm_snapshots *store, uint64_t bytes)
{
    assert(bytes <= store->max_bytes);
    while (store->bytes > store->max_bytes - bytes)
        drop_oldest(store);
}

/* ---- open and close ------------------------------------------------------------------------- */

/* Opens and locks the directory. It must belong to this user, because snapshots hold
 * conversations. */
static int open_dir(struct fm_snapshots *store, struct fm_error *err)
{
    struct plat_file_info info;
    struct fm_error why;
    int rc = plat_make_private_dir(store->path, err);
    if (rc == 0)
        rc = plat_dir_open(store->path, PLAT_OWN_LINK, &store->dir, err);
    if (rc == 0)
        rc = plat_dir_check_own(&store->dir, err);
    if (rc == 0 && !plat_open_file_info(store->dir.fd, &info))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", store->path);
    if (rc != 0)
        return err_wrap(err, rc, "snapshots cannot be used");
    store->owner = info.owner;
    store->is_writer = plat_dir_lock(&store->dir, &why) == 0;
    if (!store->is_writer)
        log_info("snapshots", "no snapshots are written: %s", why.text);
    return 0;
}

/* Makes the directory private, unless it holds other files. Then only the snapshots are private. */
static void make_private(const struct fm_snapshots *store)
{
    if (!store->is_shared)
        plat_make_private(store->dir.fd);
    else
        log_info("snapshots", "'%s' also holds other files: its permissions are not changed",
                 store->path);
}

int fm_snapshots_open(struct fm_model *model, const char *dir, uint64_t max_bytes,
                      struct fm_snapshots **out, struct fm_error *err)
{
    *out = NULL;
    struct fm_snapshots *store = mem_new(1, sizeof *store, "the snapshots", err);
    if (store == NULL)
        return FM_ERR_NOMEM;
    store->model = model;
    store->max_bytes = max_bytes;
    store->dir.fd = -1;
    store->path = mem_strdup(dir, err);
    int rc = store->path == NULL ? FM_ERR_NOMEM : snapshot_identity(model, &store->identity, err);
    if (rc == 0)
        rc = open_dir(store, err);
    if (rc == 0)
        rc = plat_dir_each_name(&store->dir, see_name, store, err);
    if (rc != 0) {
        fm_snapshots_close(store);
        return rc;
    }
    make_private(store);
    if (store->is_writer && model->cluster != NULL)
        cluster_tidy(model->cluster, store->path);
    if (store->is_writer)
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
    plat_dir_close(&store->dir);
    mem_free(store->entries);
    mem_free(store->path);
    mem_free(store);
}

int fm_snapshots_stats(const struct fm_snapshots *store, struct fm_snapshots_stats *out)
{
    struct fm_snapshots_stats stats = store->stats;
    for (size_t i = 0; i < store->n_entries; i++)
        stats.n_files += store->entries[i].info.ids != NULL;
    stats.bytes = store->bytes;
    return sized_give(out, &stats, sizeof stats);
}

/* ---- saving --------------------------------------------------------------------------------- */

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
    e->used_ns = plat_wall_ns();
    if (store->is_writer)
        plat_dir_touch(&store->dir, e->name);
}

/* Returns whether the snapshot exists and is intact. */
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
        forget(store, i); /* it is written again */
        break;
    }
    return false;
}

/* Writes a snapshot. When the disk is full, drops the least recently used ones, unless all of them
 * together are too small. */
static int write_file(struct fm_snapshots *store, const struct fm_session *s, uint64_t identity,
                      const char *name, uint64_t bytes, struct fm_error *err)
{
    bool is_full;
    int rc;
    while ((rc = snapshot_write(s, identity, &store->dir, name, &is_full, err)) != 0 &&
           is_full && store->n_entries > 0) {
        const uint64_t free_bytes = plat_free_bytes(store->path);
        if (free_bytes < bytes && free_bytes + store->bytes < bytes)
            break;
        do
            drop_oldest(store);
        while (store->n_entries > 0 && plat_free_bytes(store->path) < bytes);
    }
    return rc;
}

int fm_snapshots_keep(struct fm_snapshots *store, const struct fm_session *s, struct fm_error *err)
{
    char name[NAME_BYTES];
    if (!store->is_writer || s->sequence->position == 0)
        return 0;
    const uint64_t identity = identity_of(store, s->prefix_owner);
    name_of(s, identity, name);
    if (is_kept(store, name))
        return 0;
    const uint64_t bytes = snapshot_bytes(s);
    if (bytes > store->max_bytes) {
        log_info("snapshots", "%u tokens take %llu bytes, the limit is %llu: not saved",
                 s->sequence->position, (unsigned long long)bytes,
                 (unsigned long long)store->max_bytes);
        return 0;
    }
    /* Old snapshots are dropped once the new one is complete, so a crash loses nothing. */
    int rc = write_file(store, s, identity, name, bytes, err);
    if (rc == 0) {
        make_room(store, bytes);
        rc = add(store, name, plat_wall_ns(), err);
    }
    store->stats.n_written += rc == 0;
    return rc;
}

/* ---- restoring ------------------------------------------------------------------------------ */

/* Returns the position from which a session restored from this snapshot could go on with these
 * tokens. */
static uint32_t usable(const struct entry *e, const int32_t *ids, size_t n_ids)
{
    const struct snapshot_info *info = &e->info;
    uint32_t n_common = 0, best = 0;
    while (n_common < info->n_tokens && n_common + 1 < n_ids &&
           info->ids[n_common] == ids[n_common])
        n_common++;
    if (n_common == info->n_tokens || info->is_rewindable)
        return n_common;
    for (uint32_t i = 0; i < info->n_marks; i++)
        if (info->marks[i] <= n_common && info->marks[i] > best)
            best = info->marks[i];
    return best;
}

/* Returns the owner's snapshot with the largest usable position above `min`, or NULL. */
static struct entry *find_best(const struct fm_snapshots *store, uint64_t owner,
                               const int32_t *ids, size_t n_ids, uint32_t min)
{
    struct entry *best = NULL;
    for (size_t i = 0; i < store->n_entries; i++) {
        const uint32_t n = usable(&store->entries[i], ids, n_ids);
        if (n > min && store->entries[i].owner == owner) {
            best = &store->entries[i];
            min = n;
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
        struct fm_error err = {0};
        if (snapshot_read(s, identity_of(store, e->owner), &store->dir, e->name, &err) == 0) {
            touch(store, e);
            store->stats.n_restored++;
            break;
        }
        log_info("snapshots", "skipped: %s", err.text);
        if (err.code == FM_ERR_BUDGET || err.code == FM_ERR_NOMEM)
            break; /* the snapshot itself is intact */
        drop(store, (size_t)(e - store->entries));
    }
    return fm_session_rewind(s, ids, n_ids);
}
