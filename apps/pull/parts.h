/* Files that are being downloaded. Each is written as WORK/NAME.part, in pieces that arrive in any
 * order, and renamed to DIR/NAME when every byte is there, its digest is right and it is synced.
 * WORK/NAME.state lists the bytes that are safely on the disk, so that a later process continues
 * there, even after a power failure.
 *
 * Owns the files, one lock and one thread, which computes digests as the bytes arrive, writes the
 * states and finishes files. The functions are for one other thread, the downloader. The caller
 * owns the items and both directories until parts_close. */
#ifndef FLASHMOE_APPS_PULL_PARTS_H
#define FLASHMOE_APPS_PULL_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/plat_dir.h"
#include "base/sha.h"

#define PARTS_NAME_BYTES 256

/* A file to download. */
struct part_item {
    const char *name;      /* of the file, checked with model_file_is_good */
    uint64_t bytes;
    char sha256[SHA_HEX_BYTES]; /* "" if unknown */
    char git_id[SHA_HEX_BYTES]; /* of the git blob, if sha256 is unknown; or "" */
    char version[256];     /* identifies the content when there is no digest, such as an ETag */
    bool is_done;          /* it need not be downloaded; set when it is finished */
    char found[SHA_HEX_BYTES]; /* the digest, once it is finished */
};

/* A range that one connection downloads. */
struct piece {
    size_t item;
    uint64_t at, end;     /* the next byte, and the end of the range */
    unsigned generation;  /* of the file: it may have begun again since */
    bool is_whole_file;   /* the range is the whole file */
};

struct parts;

int parts_open(const struct plat_dir *dir, const struct plat_dir *work, struct part_item *items,
               size_t n_items, unsigned n_connections, struct parts **out, struct fm_error *err);
/* Writes the states and stops. What is not finished stays for a later process. */
void parts_close(struct parts *parts);

/* Returns how many bytes are still to be downloaded. */
uint64_t parts_missing_bytes(struct parts *parts);

/* Takes the next range that nobody has. *is_taken is false if there is none at the moment. */
int parts_take(struct parts *parts, struct piece *piece, bool *is_taken, struct fm_error *err);
/* Writes bytes at piece->at and advances it. Returns FM_ERR_CANCELLED if the file has begun again,
 * and FM_ERR_FORMAT if there are more bytes than the range has. */
int parts_write(struct parts *parts, struct piece *piece, const void *data, size_t bytes,
                struct fm_error *err);
/* Gives the range back, whether it is complete or not. */
void parts_release(struct parts *parts, const struct piece *piece);
/* Begins a file again without ranges: its server sends whole files only. */
int parts_make_serial(struct parts *parts, const struct piece *piece, struct fm_error *err);
/* Returns whether the file is downloaded in one range. */
bool parts_is_serial(struct parts *parts, size_t item);

struct parts_status {
    uint64_t done_bytes, total_bytes;
    size_t n_finished, n_items;
    const char *name; /* of the first unfinished file */
};
/* Wakes the thread and reports. Fails with the error that ended it, such as a wrong digest. */
int parts_check(struct parts *parts, struct parts_status *status, struct fm_error *err);

#endif
