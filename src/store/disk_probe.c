#include "store/disk_probe.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "store/reader.h"

#define PROBE_NAME "probe.tmp" /* leftovers of this kind are removed */
#define PROBE_BYTES (256ull << 20)
#define PIECE_BYTES (512ull << 10)
#define N_PIECES (PROBE_BYTES / PIECE_BYTES)
#define DEPTH 8
/* A slow disk is measured by what it has read after this time. */
#define PROBE_NS 2000000000ull

struct probe {
    struct reader *reader;
    int fd;
    char *memory; /* [DEPTH, PIECE_BYTES] */
    struct read_op ops[DEPTH];
    pthread_mutex_t lock; /* covers what follows */
    pthread_cond_t is_done;
    unsigned n_begun, n_in_flight;
    uint64_t n_read, until_ns;
    int64_t failed; /* a result that is not PIECE_BYTES */
};

/* Steps through all pieces in an order that no disk foresees: an odd step visits each once. */
static uint64_t offset_of(unsigned i)
{
    return (uint64_t)i * 197 % N_PIECES * PIECE_BYTES;
}

static void piece_done(struct read_op *op, int64_t result)
{
    struct probe *p = op->ctx;
    pthread_mutex_lock(&p->lock);
    if (result == (int64_t)PIECE_BYTES)
        p->n_read += PIECE_BYTES;
    else
        p->failed = result < 0 ? result : -1;
    const bool goes_on = p->failed == 0 && p->n_begun < N_PIECES && plat_now_ns() < p->until_ns;
    if (goes_on)
        op->offset = offset_of(p->n_begun++);
    else if (--p->n_in_flight == 0)
        pthread_cond_signal(&p->is_done);
    pthread_mutex_unlock(&p->lock);
    if (goes_on)
        p->reader->ops->submit(p->reader, op);
}

static void run(struct probe *p, bool is_direct)
{
    p->n_begun = p->n_in_flight = DEPTH;
    for (unsigned i = 0; i < DEPTH; i++) {
        p->ops[i] = (struct read_op){.fd = p->fd, .is_direct = is_direct, .offset = offset_of(i),
                                     .bytes = PIECE_BYTES, .dst = p->memory + i * PIECE_BYTES,
                                     .done = piece_done, .ctx = p};
        p->reader->ops->submit(p->reader, &p->ops[i]);
    }
    pthread_mutex_lock(&p->lock);
    while (p->n_in_flight > 0)
        pthread_cond_wait(&p->is_done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static int measure(int fd, bool is_direct, double *speed, struct fm_error *err)
{
    const struct reader_options options = {.depth = DEPTH};
    struct probe p = {.fd = fd};
    p.memory = mem_new_aligned(MEM_PAGE, DEPTH * PIECE_BYTES, "a disk's measurement", err);
    int rc = p.memory == NULL ? FM_ERR_NOMEM : reader_pread_open(&options, &p.reader, err);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.is_done, NULL);
    if (rc == 0) {
        const uint64_t begin_ns = plat_now_ns();
        p.until_ns = begin_ns + PROBE_NS;
        run(&p, is_direct);
        const uint64_t ns = plat_now_ns() - begin_ns;
        p.reader->ops->close(p.reader);
        *speed = (double)p.n_read * 1e9 / (double)(ns > 0 ? ns : 1);
        if (p.failed != 0)
            rc = err_set(err, FM_ERR_IO, "cannot read what was written: %s",
                         strerror((int)-p.failed));
    }
    pthread_cond_destroy(&p.is_done);
    pthread_mutex_destroy(&p.lock);
    mem_free(p.memory);
    return rc;
}

static int write_pieces(int fd, const char *path, struct fm_error *err)
{
    char *piece = mem_new_aligned(MEM_PAGE, PIECE_BYTES, "a disk's measurement", err);
    uint64_t random = 1;
    int rc = piece == NULL ? FM_ERR_NOMEM : 0;
    for (uint64_t at = 0; rc == 0 && at < PROBE_BYTES; at += PIECE_BYTES) {
        for (uint64_t i = 0; i < PIECE_BYTES; i += sizeof random) { /* no disk compresses it */
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            memcpy(piece + i, &random, sizeof random);
        }
        rc = plat_write_at(fd, path, piece, PIECE_BYTES, at, err);
    }
    mem_free(piece);
    return rc != 0 ? rc : plat_sync(fd, path, err);
}

int disk_probe(const struct plat_dir *dir, double *speed, struct fm_error *err)
{
    bool is_direct = true;
    uint64_t bytes;
    int fd = -1;
    int rc = plat_dir_create(dir, PROBE_NAME, PLAT_PRIVATE, &is_direct, &fd, err);
    if (rc == 0)
        rc = write_pieces(fd, PROBE_NAME, err);
    plat_close(fd);
    fd = -1;
    if (rc == 0)
        rc = plat_dir_open_device(dir, PROBE_NAME, &fd, &bytes, err);
    if (rc == 0)
        rc = measure(fd, is_direct, speed, err);
    plat_close(fd);
    (void)plat_dir_remove(dir, PROBE_NAME, NULL, NULL);
    return rc != 0 ? err_wrap(err, rc, "the disk of '%s' cannot be measured (--shares gives the "
                              "shares instead)", dir->path) : 0;
}
