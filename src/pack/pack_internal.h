/* What the files of this folder share: one packing from its plan to the rename. */
#ifndef FLASHMOE_PACK_PACK_INTERNAL_H
#define FLASHMOE_PACK_PACK_INTERNAL_H

#include "base/limits.h"
#include "base/plat_dir.h"
#include "flashmoe_lab.h"
#include "pack/device.h"
#include "pack/encode.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLAN_NAME "plan.json"
#define SPARES_NAME "source"
#define PACK_MAX_FILES 16 /* beside the weights */
#define PACK_WINDOW 2     /* files on the way at the same time */
/* Grows when the same source and formats would give other bytes than before: what an earlier
 * number has begun is then not continued. */
#define PACK_ENCODER 2

/* An output file goes through these in order. */
enum pack_step {
    PACK_WAITING,
    PACK_WRITING,
    PACK_WRITTEN,
    PACK_SYNCING,
    PACK_READING, /* back */
    PACK_READ,
    PACK_NAMING,
    PACK_DONE
};

/* dense.bin, whose items are its tensors, or a layer, whose items are runs of experts. */
struct pack_file {
    char name[PACKED_NAME_BYTES];
    uint64_t bytes;
    const struct expert_layer *from; /* NULL for dense.bin */
    struct packed_layer *to;
    uint32_t run;     /* experts of one item */
    uint64_t n_items;
    bool was_found;   /* finished by an earlier run: begins with being read back */

    /* The crew's. */
    enum pack_step step;
    uint64_t n_taken, n_done; /* items of this step */
    bool is_damaged;          /* it was found, and is not what had been written */
    char path[LIMIT_PATH_BYTES]; /* NAME.tmp, or NAME when it was found */
    int fd;
    bool is_direct;
    struct plat_file_info made; /* what NAME.tmp is */
    struct device_file device;
};

struct pack {
    const char *src, *dst;
    const struct fm_pack_options *options;
    struct fm_pack_result *result;
    /* DST.partial; or DST, when an earlier run has renamed it but not tidied up. */
    char partial[LIMIT_PATH_BYTES], spares[LIMIT_PATH_BYTES];
    bool is_renamed;
    bool is_afresh; /* what is in DST.partial does not count: a plan for --restart */
    /* PARTIAL, locked: its names are reached through it. Not open for a plan without one. */
    struct plat_dir dir;

    struct model *model;
    struct packed packed;
    char *texts[PACK_MAX_FILES]; /* [packed.n_files] what is in them */
    const struct tensor_info **tensors; /* [packed.n_tensors] of the source */
    struct pack_file *files;            /* [n_layers + 1] */
    uint32_t n_files;
    /* Source file f is of no use once files[last_use[f]] is done; -1: nothing is taken of it. */
    int64_t *last_use;
    bool *is_spare; /* of each source file: only its header is left */
    struct plat_file_info *opened; /* of each source file, when it was opened */

    struct encoder_needs needs;
    struct encoder *encoders; /* [n_workers] */
    unsigned n_workers;
    uint64_t done_bytes, total_bytes; /* written and read back: each byte twice */
};

/* PARTIAL/NAME[SUFFIX] into out (LIMIT_PATH_BYTES). */
int pack_path(const struct pack *pack, const char *name, const char *suffix, char out[],
              struct fm_error *err);

/* The name of SRC without the folders it lies in, into out (LIMIT_PATH_BYTES). */
void pack_source_name(const struct pack *pack, char out[]);

/* ---- plan.c: which format and place everything gets ---- */
int plan_make(struct pack *pack, struct fm_error *err);
void plan_clear(struct pack *pack);

/* ---- state.c: what is on the disk ---- */
/* A small file: written aside, synced, read back, renamed. */
int state_write(const struct pack *pack, const char *name, const void *data, size_t bytes,
                struct fm_error *err);
/* Holds plan.json, if there is one, against this plan. */
int state_check_plan(const struct pack *pack, struct fm_error *err);
/* Writes plan.json unless it is there: from here on PARTIAL is ours. */
int state_begin(const struct pack *pack, struct fm_error *err);
/* Refuses a DST.partial that no packing has made, or that holds links: nothing in it is followed
 * or removed then. */
int state_check_own(const struct pack *pack, struct fm_error *err);
/* Refuses a whole pack that was made with other formats or of something else than what there is
 * of SRC: most of that may be gone. */
int state_check_whole(const struct pack *pack, struct fm_error *err);
/* Finds the files an earlier run has finished and removes what it has not. */
int state_find(struct pack *pack, struct fm_error *err);
/* Fails when a file must be made again and its source is gone. */
int state_check_source(const struct pack *pack, const struct pack_file *file,
                       struct fm_error *err);
/* The checksums of a file that is complete, then its name. */
int state_finish(struct pack *pack, struct pack_file *file, struct fm_error *err);
/* Removes all but the pack itself from DST. */
int state_clean(const struct pack *pack, struct fm_error *err);
/* Removes what is half written; faults do not matter, the next run does it again. */
void state_drop(const struct pack *pack);
/* Removes everything; refused where that would be the only copy. */
int state_check_discard(const struct pack *pack, struct fm_error *err);
int state_discard(const struct pack *pack, struct fm_error *err);

/* ---- space.c: the disk, and what may be removed of the source ---- */
int space_check(struct pack *pack, struct fm_error *err);
/* Whether `consume` may be done at all. */
int space_check_consume(struct pack *pack, struct fm_error *err);
/* Removes source files that no file behind `n_done` needs. */
int space_consume(struct pack *pack, uint32_t n_done, struct fm_error *err);

/* ---- pipeline.c: threads ---- */
int pipeline_run(struct pack *pack, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
