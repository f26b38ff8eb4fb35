#include "apps/pull/parts.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "apps/pull/part_state.h"

/* A range of this size is one request. Small enough that a few connections share a file, large
 * enough that requests cost nothing. */
#define MIN_PIECE_BYTES (1u << 20)
#define MAX_PIECE_BYTES (32u << 20)
#define PIECES_PER_CONNECTION 4
#define HASH_BYTES (4u << 20)
#define SAVE_EVERY_NS 100000000u
/* A file whose digest is wrong is downloaded again once: the damage may be that of one transfer or
 * of an earlier process. */
#define MAX_BAD 2

enum part_step { PART_WAITING, PART_OPEN, PART_FINISHED };

struct part {
    struct part_item *item;
    enum part_step step;
    int fd;
    struct plat_file_info is;
    uint64_t piece_bytes;
    size_t n_pieces;
    uint32_t *filled; /* [n_pieces] bytes from the start of each piece */
    bool *is_busy;    /* [n_pieces] a connection has it */
    bool is_serial;
    uint64_t n_filled;
    unsigned generation, n_bad;
    bool is_dirty; /* the state on the disk is older */
    /* Of the thread alone. */
    struct sha sha;
    uint64_t hashed;
    unsigned sha_generation;
};

struct parts {
    const struct plat_dir *dir, *work;
    struct part *parts;
    size_t n_parts, first_open;
    unsigned n_connections;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t poke;
    /* All below, and the parts, are covered by the lock. */
    bool is_stopping;
    struct fm_error err; /* of the thread; code 0: none */
    uint64_t save_at_ns;
    char *buffer; /* [HASH_BYTES] of the thread */
};

static uint64_t piece_length(const struct part *p, size_t i)
{
    const uint64_t begin = i * p->piece_bytes, left = p->item->bytes - begin;
    return left < p->piece_bytes ? left : p->piece_bytes;
}

/* ---- opening ---------------------------------------------------------------------------- */

static int set_grid(struct part *p, unsigned n_connections, struct fm_error *err)
{
    uint64_t piece = p->item->bytes / (PIECES_PER_CONNECTION * (uint64_t)n_connections);
    piece = piece > MIN_PIECE_BYTES ? piece : MIN_PIECE_BYTES;
    piece = piece < MAX_PIECE_BYTES ? piece : MAX_PIECE_BYTES;
    p->piece_bytes = mem_round_up(piece, MEM_PAGE);
    p->n_pieces = (size_t)((p->item->bytes + p->piece_bytes - 1) / p->piece_bytes);
    p->filled = mem_new(p->n_pieces, sizeof *p->filled, "the ranges of a file", err);
    p->is_busy = mem_new(p->n_pieces, sizeof *p->is_busy, "the ranges of a file", err);
    return p->filled != NULL && p->is_busy != NULL ? 0 : FM_ERR_NOMEM;
}

/* Counts the bytes [first, end) of an earlier process. Each piece is filled from its start, so a
 * range that begins inside of one counts only if it continues what is there. */
static void count_range(void *ctx, uint64_t first, uint64_t end)
{
    struct part *p = ctx;
    end = end < p->item->bytes ? end : p->item->bytes;
    while (first < end) {
        const size_t i = (size_t)(first / p->piece_bytes);
        const uint64_t begin = i * p->piece_bytes, length = piece_length(p, i);
        const uint64_t stop = end < begin + length ? end : begin + length;
        if (begin + p->filled[i] == first) {
            p->n_filled += stop - first;
            p->filled[i] = (uint32_t)(stop - begin);
        }
        first = begin + length;
    }
}

static int part_init(struct parts *all, struct part *p, struct part_item *item,
                     struct fm_error *err)
{
    *p = (struct part){.item = item, .fd = -1,
                       .step = item->is_done ? PART_FINISHED : PART_WAITING};
    if (item->is_done)
        return 0;
    int rc = set_grid(p, all->n_connections, err);
    if (rc == 0)
        rc = part_state_load(all->work, item, count_range, p, err);
    return rc;
}

static void *thread_main(void *ctx);

int parts_open(const struct plat_dir *dir, const struct plat_dir *work, struct part_item *items,
               size_t n_items, unsigned n_connections, struct parts **out, struct fm_error *err)
{
    struct parts *parts = *out = mem_new(1, sizeof *parts, "the downloads", err);
    if (parts == NULL)
        return FM_ERR_NOMEM;
    parts->dir = dir;
    parts->work = work;
    parts->n_connections = n_connections;
    (void)pthread_mutex_init(&parts->lock, NULL);
    (void)pthread_cond_init(&parts->poke, NULL);
    parts->parts = mem_new(n_items, sizeof *parts->parts, "the downloads", err);
    parts->buffer = mem_new(HASH_BYTES, 1, "a buffer", err);
    int rc = parts->parts != NULL && parts->buffer != NULL ? 0 : FM_ERR_NOMEM;
    for (size_t i = 0; rc == 0 && i < n_items; i++) {
        parts->n_parts = i + 1;
        rc = part_init(parts, &parts->parts[i], &items[i], err);
    }
    if (rc == 0) {
        parts->has_thread = plat_thread_start(&parts->thread, thread_main, parts) == 0;
        rc = parts->has_thread ? 0 : err_set(err, FM_ERR_NOMEM, "cannot start a thread");
    }
    if (rc != 0) {
        parts_close(parts);
        *out = NULL;
    }
    return rc;
}

void parts_close(struct parts *parts)
{
    if (parts == NULL)
        return;
    (void)pthread_mutex_lock(&parts->lock);
    parts->is_stopping = true;
    (void)pthread_cond_signal(&parts->poke);
    (void)pthread_mutex_unlock(&parts->lock);
    if (parts->has_thread)
        (void)pthread_join(parts->thread, NULL);
    for (size_t i = 0; i < parts->n_parts; i++) {
        plat_close(parts->parts[i].fd);
        mem_free(parts->parts[i].filled);
        mem_free(parts->parts[i].is_busy);
    }
    (void)pthread_cond_destroy(&parts->poke);
    (void)pthread_mutex_destroy(&parts->lock);
    mem_free(parts->parts);
    mem_free(parts->buffer);
    mem_free(parts);
}

/* ---- for the downloader ----------------------------------------------------------------- */

static int open_part(struct parts *parts, struct part *p, struct fm_error *err)
{
    char name[PARTS_NAME_BYTES + 8];
    bool is_direct = false;
    (void)snprintf(name, sizeof name, "%s.part", p->item->name);
    int rc = p->n_filled > 0 ? plat_dir_continue(parts->work, name, &p->fd, err)
                             : plat_dir_create(parts->work, name, PLAT_SHARED, &is_direct, &p->fd,
                                               err);
    if (rc == 0 && !plat_open_file_info(p->fd, &p->is))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s/%s'", parts->work->path, name);
    if (rc == 0)
        rc = plat_set_size(p->fd, name, p->item->bytes, err);
    if (rc == 0)
        p->step = PART_OPEN;
    return rc;
}

/* Takes a range of this file. */
static bool take_piece(struct part *p, struct piece *piece)
{
    if (p->is_serial) {
        if (p->is_busy[0] || p->n_filled == p->item->bytes)
            return false;
        p->is_busy[0] = true;
        *piece = (struct piece){.end = p->item->bytes, .is_whole_file = true};
        return true;
    }
    for (size_t i = 0; i < p->n_pieces; i++) {
        if (p->is_busy[i] || p->filled[i] == piece_length(p, i))
            continue;
        p->is_busy[i] = true;
        *piece = (struct piece){.at = i * p->piece_bytes + p->filled[i],
                                .end = i * p->piece_bytes + piece_length(p, i)};
        piece->is_whole_file = piece->at == 0 && piece->end == p->item->bytes;
        return true;
    }
    return false;
}

/* Forgets all bytes of a file, with the lock held. */
static int begin_again(struct parts *parts, struct part *p, struct fm_error *err)
{
    memset(p->filled, 0, p->n_pieces * sizeof *p->filled);
    memset(p->is_busy, 0, p->n_pieces * sizeof *p->is_busy);
    p->n_filled = 0;
    p->generation++;
    p->is_dirty = true;
    return part_state_drop(parts->work, p->item, err);
}

int parts_take(struct parts *parts, struct piece *piece, bool *is_taken, struct fm_error *err)
{
    int rc = 0;
    *is_taken = false;
    (void)pthread_mutex_lock(&parts->lock);
    for (size_t i = parts->first_open; rc == 0 && !*is_taken && i < parts->n_parts; i++) {
        struct part *p = &parts->parts[i];
        if (p->step == PART_FINISHED)
            parts->first_open += i == parts->first_open;
        else if (p->step == PART_WAITING)
            rc = open_part(parts, p, err);
        /* What is there of a serial file cannot be continued. */
        if (rc == 0 && p->step == PART_OPEN && p->is_serial && !p->is_busy[0] &&
            p->n_filled > 0 && p->n_filled < p->item->bytes)
            rc = begin_again(parts, p, err);
        if (rc == 0 && p->step == PART_OPEN)
            *is_taken = take_piece(p, piece);
        if (*is_taken) {
            piece->item = i;
            piece->generation = p->generation;
        }
    }
    (void)pthread_mutex_unlock(&parts->lock);
    return rc;
}

/* Counts bytes that were written at `at`, with the lock held. */
static void advance(struct part *p, uint64_t at, size_t bytes)
{
    for (size_t left = bytes; left > 0;) {
        const size_t i = (size_t)(at / p->piece_bytes);
        const uint64_t room = i * p->piece_bytes + piece_length(p, i) - at;
        const size_t n = left < room ? left : (size_t)room;
        p->filled[i] += (uint32_t)n;
        at += n;
        left -= n;
    }
    p->n_filled += bytes;
    p->is_dirty = true;
}

int parts_write(struct parts *parts, struct piece *piece, const void *data, size_t bytes,
                struct fm_error *err)
{
    struct part *p = &parts->parts[piece->item];
    if (bytes > piece->end - piece->at)
        return err_set(err, FM_ERR_FORMAT, "'%s': the server sends more bytes than it was asked "
                       "for", p->item->name);
    (void)pthread_mutex_lock(&parts->lock);
    const bool is_same = piece->generation == p->generation;
    (void)pthread_mutex_unlock(&parts->lock);
    /* The thread begins only complete files again, and these have no open range. */
    if (!is_same)
        return err_set(err, FM_ERR_CANCELLED, "'%s' begins again", p->item->name);
    int rc = plat_write_at(p->fd, p->item->name, data, bytes, piece->at, err);
    if (rc != 0)
        return err_wrap(err, rc, "'%s'", parts->work->path);
    (void)pthread_mutex_lock(&parts->lock);
    advance(p, piece->at, bytes);
    piece->at += bytes;
    (void)pthread_cond_signal(&parts->poke);
    (void)pthread_mutex_unlock(&parts->lock);
    return 0;
}

void parts_release(struct parts *parts, const struct piece *piece)
{
    struct part *p = &parts->parts[piece->item];
    (void)pthread_mutex_lock(&parts->lock);
    if (piece->generation == p->generation)
        p->is_busy[p->is_serial ? 0 : (piece->at - (piece->at == piece->end)) / p->piece_bytes] =
            false;
    (void)pthread_mutex_unlock(&parts->lock);
}

int parts_make_serial(struct parts *parts, const struct piece *piece, struct fm_error *err)
{
    struct part *p = &parts->parts[piece->item];
    int rc = 0;
    (void)pthread_mutex_lock(&parts->lock);
    if (!p->is_serial && piece->generation == p->generation) {
        p->is_serial = true;
        rc = begin_again(parts, p, err);
    }
    (void)pthread_mutex_unlock(&parts->lock);
    return rc;
}

bool parts_is_serial(struct parts *parts, size_t item)
{
    return parts->parts[item].is_serial;
}

uint64_t parts_missing_bytes(struct parts *parts)
{
    uint64_t bytes = 0;
    (void)pthread_mutex_lock(&parts->lock);
    for (size_t i = 0; i < parts->n_parts; i++)
        if (parts->parts[i].step != PART_FINISHED)
            bytes += parts->parts[i].item->bytes - parts->parts[i].n_filled;
    (void)pthread_mutex_unlock(&parts->lock);
    return bytes;
}

int parts_check(struct parts *parts, struct parts_status *status, struct fm_error *err)
{
    *status = (struct parts_status){.n_items = parts->n_parts};
    (void)pthread_mutex_lock(&parts->lock);
    for (size_t i = 0; i < parts->n_parts; i++) {
        const struct part *p = &parts->parts[i];
        const bool is_finished = p->step == PART_FINISHED;
        status->n_finished += is_finished;
        status->total_bytes += p->item->bytes;
        status->done_bytes += is_finished ? p->item->bytes : p->n_filled;
        if (!is_finished && status->name == NULL)
            status->name = p->item->name;
    }
    const struct fm_error was = parts->err;
    (void)pthread_cond_signal(&parts->poke);
    (void)pthread_mutex_unlock(&parts->lock);
    if (was.code != 0 && err != NULL)
        *err = was;
    return was.code;
}

/* ---- the thread ------------------------------------------------------------------------- */

/* Returns how many bytes from the start are there. */
static uint64_t prefix_of(const struct part *p)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->n_pieces; i++) {
        n += p->filled[i];
        if (p->filled[i] < piece_length(p, i))
            break;
    }
    return n;
}

static void begin_digest(struct part *p)
{
    char head[48];
    const bool is_git = p->item->sha256[0] == '\0' && p->item->git_id[0] != '\0';
    sha_begin(&p->sha, is_git ? SHA_1 : SHA_256);
    if (is_git) {
        const int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)p->item->bytes);
        sha_add(&p->sha, head, (size_t)n + 1); /* git counts the NUL */
    }
    p->hashed = 0;
    p->sha_generation = p->generation;
}

/* Adds the next bytes to the digest; called without the lock. */
static int hash_some(struct parts *parts, struct part *p, uint64_t bytes, struct fm_error *err)
{
    bytes = bytes < HASH_BYTES ? bytes : HASH_BYTES;
    int rc = plat_read_at(p->fd, p->item->name, parts->buffer, bytes, p->hashed, err);
    if (rc == 0) {
        sha_add(&p->sha, parts->buffer, (size_t)bytes);
        p->hashed += bytes;
    }
    return rc;
}

/* Compares the digest of a complete file and gives it its name; called without the lock. */
static int finish(struct parts *parts, struct part *p, bool *is_bad, struct fm_error *err)
{
    struct part_item *item = p->item;
    char name[PARTS_NAME_BYTES + 8];
    const char *expected = item->sha256[0] != '\0' ? item->sha256 : item->git_id;
    sha_hex(&p->sha, item->found);
    *is_bad = expected[0] != '\0' && strcmp(expected, item->found) != 0;
    if (*is_bad)
        return 0;
    (void)snprintf(name, sizeof name, "%s.part", item->name);
    int rc = plat_sync(p->fd, item->name, err);
    if (rc == 0)
        rc = plat_dir_move(parts->work, name, parts->dir, item->name, &p->is, err);
    if (rc == 0)
        rc = plat_dir_sync(parts->dir, err);
    return rc != 0 ? rc : part_state_drop(parts->work, item, err);
}

/* Handles a wrong digest, with the lock held. */
static int refuse(struct parts *parts, struct part *p, struct fm_error *err)
{
    const char *expected = p->item->sha256[0] != '\0' ? p->item->sha256 : p->item->git_id;
    int rc = begin_again(parts, p, err);
    if (rc != 0)
        return rc;
    if (++p->n_bad < MAX_BAD) {
        log_warn("pull", "'%s' has the digest %s, not %s: downloading it again", p->item->name,
                 p->item->found, expected);
        return 0;
    }
    return err_set(err, FM_ERR_IO, "'%s' was downloaded twice and has the digest %s, not %s: the "
                   "server or something on the way sends wrong bytes; nothing of it was kept",
                   p->item->name, p->item->found, expected);
}

/* Does one step for a file. Called with the lock, which is released in between. Returns true if
 * there was something to do. */
static bool work_on(struct parts *parts, struct part *p)
{
    struct fm_error err = {0};
    bool is_bad = false;
    if (p->step != PART_OPEN)
        return false;
    if (p->sha_generation != p->generation || (p->hashed == 0 && p->sha.n_bytes == 0))
        begin_digest(p);
    const uint64_t prefix = prefix_of(p);
    const bool is_complete = p->hashed == p->item->bytes;
    if (!is_complete && prefix <= p->hashed)
        return false;
    (void)pthread_mutex_unlock(&parts->lock);
    int rc = is_complete ? finish(parts, p, &is_bad, &err)
                         : hash_some(parts, p, prefix - p->hashed, &err);
    (void)pthread_mutex_lock(&parts->lock);
    if (rc == 0 && is_bad)
        rc = refuse(parts, p, &err);
    else if (rc == 0 && is_complete) {
        plat_close(p->fd);
        p->fd = -1;
        p->step = PART_FINISHED;
        p->item->is_done = true;
    }
    if (rc != 0 && parts->err.code == 0)
        parts->err = err;
    return rc == 0;
}

/* Copies what is there, so that it can be written without the lock. */
static void copy_ranges(const struct part *p, struct part_ranges *ranges)
{
    ranges->n = 0;
    for (size_t i = 0; i < p->n_pieces; i++)
        if (p->filled[i] > 0)
            part_ranges_add(ranges, i * p->piece_bytes, i * p->piece_bytes + p->filled[i]);
}

/* Syncs a file, then lists its bytes; with the lock, which is released in between. A serial file
 * cannot be continued, so it has no state. */
static void save(struct parts *parts, struct part *p)
{
    struct part_ranges ranges;
    struct fm_error err = {0};
    if (p->step != PART_OPEN || !p->is_dirty || p->is_serial)
        return;
    copy_ranges(p, &ranges);
    p->is_dirty = false;
    const unsigned generation = p->generation;
    (void)pthread_mutex_unlock(&parts->lock);
    int rc = plat_sync(p->fd, p->item->name, &err);
    (void)pthread_mutex_lock(&parts->lock);
    if (rc == 0 && generation == p->generation) /* short: a few hundred bytes, not synced */
        rc = part_state_save(parts->work, p->item, &ranges, &err);
    /* A disk that is too full for it fails the next write too; the state only saves time. */
    p->is_dirty = p->is_dirty || rc != 0;
}

static void save_all(struct parts *parts)
{
    const uint64_t begin_ns = plat_now_ns();
    for (size_t i = parts->first_open; i < parts->n_parts; i++)
        save(parts, &parts->parts[i]);
    /* On a slow disk, syncing takes a fifth of the time at most. */
    const uint64_t took_ns = plat_now_ns() - begin_ns;
    parts->save_at_ns = plat_now_ns() + SAVE_EVERY_NS + 4 * took_ns;
}

static void *thread_main(void *ctx)
{
    struct parts *parts = ctx;
    (void)pthread_mutex_lock(&parts->lock);
    while (!parts->is_stopping) {
        bool has_worked = false;
        for (size_t i = parts->first_open; i < parts->n_parts && parts->err.code == 0; i++)
            has_worked = work_on(parts, &parts->parts[i]) || has_worked;
        if (plat_now_ns() >= parts->save_at_ns)
            save_all(parts);
        if (!has_worked && !parts->is_stopping)
            (void)pthread_cond_wait(&parts->poke, &parts->lock);
    }
    save_all(parts);
    (void)pthread_mutex_unlock(&parts->lock);
    return NULL;
}
