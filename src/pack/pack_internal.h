/* What the files of this folder share: one packing, from its plan to the final rename. `struct
 * pack` owns everything it points to except src, dst, options and result. Crew threads touch a
 * pack_file's progress only with the crew's lock held. All functions return 0 or a negative code
 * with a message. */
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
#define STUBS_NAME "source"
#define PACK_MAX_FILES 16 /* files besides the weights */
#define PACK_WINDOW 2     /* output files in progress at a time */
/* Version of the encoder. Increase it when the same source and formats give other bytes: a packing
 * that an older version began is then not continued. */
#define PACK_ENCODER 2

/* An output file goes through these steps in order. */
enum pack_step {
    PACK_WAITING,
    PACK_WRITING,
    PACK_WRITTEN,
    PACK_SYNCING,
    PACK_READING, /* being read back */
    PACK_READ,
    PACK_NAMING,
    PACK_DONE
};

/* An output file: dense.bin, whose items are tensors, or a layer, whose items are groups of
 * experts. */
struct pack_file {
    char name[PACKED_NAME_BYTES];
    uint64_t bytes;
    const struct expert_layer *from; /* NULL for dense.bin */
    struct packed_layer *to;
    uint32_t item_experts; /* experts per item */
    uint64_t n_items;
    /* It is not written, because another machine has it. Its records are made all the same, for
     * their checksums; if the source has these, there is nothing to do. */
    bool is_elsewhere;
    bool was_found;   /* finished by an earlier process: its first step is PACK_READING */

    struct pack_out *outs; /* [n_outs] in the first folders */
    unsigned n_outs;
    unsigned n_copies; /* of the file; 1 if it is split */
    bool is_direct;

    /* Progress, covered by the crew's lock. */
    enum pack_step step;
    uint64_t n_taken, n_done; /* items of this step */
    bool is_damaged;          /* it was found, but its bytes have changed */
};

/* The file in one of the folders: all of it, a copy, or a part of each record. */
struct pack_out {
    uint64_t bytes;
    char path[LIMIT_PATH_BYTES]; /* NAME.tmp, or NAME when it was found */
    int fd;
    struct plat_file_info made; /* identity of NAME.tmp */
    struct device_file device;
};

/* A folder beside the first one, on another disk. */
struct pack_folder {
    char dst[LIMIT_PATH_BYTES];     /* without links */
    char partial[LIMIT_PATH_BYTES]; /* DST.partial; or DST, once it is renamed */
    bool is_renamed;
    struct plat_dir dir; /* PARTIAL, locked */
};

struct pack {
    const char *src, *dst;
    const struct fm_pack_options *options;
    struct fm_pack_result *result;
    /* DST.partial; or DST, if an earlier process renamed it but did not clean up. */
    char partial[LIMIT_PATH_BYTES], stubs[LIMIT_PATH_BYTES];
    bool is_renamed;
    bool is_restart; /* ignores the content of DST.partial: a dry run of --restart */
    /* PARTIAL, locked; all names in it are opened through it. Not open in a dry run without a
     * PARTIAL. */
    struct plat_dir dir;
    char real_dst[LIMIT_PATH_BYTES]; /* DST without links, if there are others */
    struct pack_folder *others; /* [n_folders - 1] */
    unsigned n_folders;         /* with the first one */
    double shares[SOURCE_MAX_DISKS]; /* [n_folders] parts of each record, if it is split */

    struct model *model;
    struct packed packed;
    char *texts[PACK_MAX_FILES]; /* [packed.n_files] their content */
    const struct tensor_info **tensors; /* [packed.n_tensors] of the source */
    struct pack_file *files;            /* [n_layers + 1] */
    struct pack_out *outs;              /* [n_layers + 1, n_folders] */
    uint32_t n_files;
    bool is_part, is_chosen[LIMIT_LAYERS]; /* only the experts of these layers are written */
    char layers[PACKED_LAYERS_BYTES];      /* the same in one spelling, or "all" */
    /* Source file f is not needed after files[last_use[f]] is done; -1: it is never needed. */
    int64_t *last_use;
    bool *is_stub; /* per source file: only a stub with its header is there */
    bool *has_dense; /* per stub: it holds the dense tensors of its file too */
    struct plat_file_info *opened; /* per source file: its identity when it was opened */

    struct encoder_needs needs;
    struct encoder *encoders; /* [n_workers] */
    unsigned n_workers;
    uint64_t done_bytes, total_bytes; /* each byte counts twice: written and read back */
};

/* Writes PARTIAL/NAME[SUFFIX] of a folder to out (LIMIT_PATH_BYTES). */
int pack_path(const struct pack *pack, unsigned folder, const char *name, const char *suffix,
              char out[], struct fm_error *err);

/* Writes the base name of SRC to out (LIMIT_PATH_BYTES). */
void pack_source_name(const struct pack *pack, char out[]);

/* ---- layers.c: which layers are written ---- */
/* Reads the option. */
int layers_read(struct pack *pack, struct fm_error *err);
/* Compares it with the open model. */
int layers_check(const struct pack *pack, struct fm_error *err);
/* Returns whether the experts of a layer are written. */
bool layers_has(const struct pack *pack, uint32_t layer);

/* ---- plan.c: format and place of everything ---- */
int plan_make(struct pack *pack, struct fm_error *err);
void plan_clear(struct pack *pack);

/* ---- folders.c: other folders, on other disks ---- */
/* Takes the folders of the options; nothing exists yet. */
int folders_read(struct pack *pack, struct fm_error *err);
/* Creates or opens the other DST.partial. */
int folders_take(struct pack *pack, struct fm_error *err);
/* Decides which share of each record a folder gets: what an earlier process has used, what the
 * options say, or what the disks' speeds are. */
int folders_share(struct pack *pack, struct fm_error *err);
/* Cuts a record by the shares, in whole pages. */
int folders_cut(const struct pack *pack, struct packed_layer *layer, struct fm_error *err);
/* Returns the directory of a folder; 0 is the first one. */
const struct plat_dir *folders_dir(const struct pack *pack, unsigned folder);
/* Writes a small file to all other folders. */
int folders_write(const struct pack *pack, const char *name, const void *data, size_t bytes,
                  struct fm_error *err);
/* Copies plan.json to the other folders, which are ours from then on. */
int folders_write_plan(const struct pack *pack, struct fm_error *err);
/* Writes disks.json to every folder. */
int folders_write_list(const struct pack *pack, struct fm_error *err);
/* Renames the complete other folders; cleans them up after the first folder is renamed. */
int folders_rename(struct pack *pack, struct fm_error *err);
int folders_clean(const struct pack *pack, struct fm_error *err);
/* Removes the other folders that are empty, after a failure. */
void folders_leave(struct pack *pack);
void folders_clear(struct pack *pack);

/* ---- partial.c: the directory DST.partial ---- */
/* Writes a small file: to a temporary name, synced, read back, renamed. */
int partial_write(const struct pack *pack, const char *name, const void *data, size_t bytes,
                  struct fm_error *err);
int partial_write_in(const struct plat_dir *dir, const char *name, const void *data, size_t bytes,
                     struct fm_error *err);
/* Refuses a directory that has a link, a directory or a file of another user in it. */
int partial_check_names(const struct plat_dir *dir, bool has_stubs, struct fm_error *err);
/* Removes the files whose names end like this. */
int partial_remove(const struct plat_dir *dir, const char *suffix, struct fm_error *err);
/* Returns the shares of an earlier process; false if there was none. */
bool partial_read_shares(const struct pack *pack, double shares[SOURCE_MAX_DISKS]);
/* Renames a complete PARTIAL to its final name. */
int partial_rename(char partial[], const struct plat_dir *dir, struct fm_error *err);
/* Compares plan.json, if it exists, with this packing. Fails with FM_ERR_ARG when they differ. */
int partial_check_plan(const struct pack *pack, struct fm_error *err);
/* Writes plan.json if it does not exist. From then on PARTIAL belongs to this packing. */
int partial_begin(const struct pack *pack, struct fm_error *err);
/* Refuses a DST.partial that no packing has created, or that contains links. Nothing in it is
 * followed or removed then. */
int partial_check_own(const struct pack *pack, struct fm_error *err);
/* Refuses a complete pack that was made with other formats or from another source than SRC, whose
 * files may be gone. */
int partial_check_whole(const struct pack *pack, struct fm_error *err);
/* Finds the files that an earlier process has finished, and removes unfinished ones. */
int partial_find(struct pack *pack, struct fm_error *err);
/* Fails when a file must be written again and its source is gone. */
int partial_check_source(const struct pack *pack, const struct pack_file *file,
                         struct fm_error *err);
/* Writes the checksums of a complete file and gives it its final name. */
int partial_finish(struct pack *pack, struct pack_file *file, struct fm_error *err);
/* Removes everything but the pack itself from DST. */
int partial_clean(const struct pack *pack, struct fm_error *err);
/* Removes unfinished files. Ignores errors: the next process tries again. */
void partial_drop(const struct pack *pack);
/* discard removes everything in PARTIAL. check_discard refuses when PARTIAL is the only copy. */
int partial_check_discard(const struct pack *pack, struct fm_error *err);
int partial_discard(const struct pack *pack, struct fm_error *err);

/* ---- space.c: disk space, and removing source files ---- */
int space_check(struct pack *pack, struct fm_error *err);
/* Checks whether `consume` is possible: the source's files can be removed and are not links. */
int space_check_consume(struct pack *pack, struct fm_error *err);
/* Removes the source files that only the first `n_done` output files need. */
int space_consume(struct pack *pack, uint32_t n_done, struct fm_error *err);

/* Returns the number of bytes before the first tensor of source file f. */
uint64_t space_head_bytes(const struct pack *pack, unsigned f);
/* Ends a stub of `at` bytes that stands for a file of `bytes`, and syncs it. */
int space_end_stub(int fd, const char *path, uint64_t at, uint64_t bytes, struct fm_error *err);

/* ---- remote.c: source files that are fetched while packing ---- */
/* All but remote_digest do nothing without fm_pack_options.remote. Reads missing headers. */
int remote_headers(struct pack *pack, struct fm_error *err);
/* Returns the digest of a source file, or NULL. */
const char *remote_digest(const struct pack *pack, const char *name);
/* Fetches what an output file needs. One thread at a time. */
int remote_provide(struct pack *pack, struct crew *crew, const struct pack_file *file,
                   struct fm_error *err);
/* Reads from now on the stub of a source file that was removed. */
int remote_reopen_stub(struct pack *pack, unsigned f, struct fm_error *err);
/* Returns the disk space that source files and their dense tensors take at the peak. */
uint64_t remote_peak_bytes(const struct pack *pack);

/* ---- pipeline.c: threads ---- */
int pipeline_run(struct pack *pack, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
