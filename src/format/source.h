/* A source: the files of a checkpoint with its tensors and its configuration, before anything is
 * known about the architecture. Every container format fills the same struct with the names and the
 * configuration of Hugging Face.
 *
 * Opening checks every offset and size against its file: each part of a tensor lies inside its
 * file, sizes follow from dimensions and format, and no name occurs twice. The caller owns the
 * source (source_close). It is immutable after opening, so any thread may read it. Its files stay
 * open until it is closed. */
#ifndef FLASHMOE_FORMAT_SOURCE_H
#define FLASHMOE_FORMAT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/jdoc.h"
#include "base/limits.h"
#include "base/plat.h"
#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where one byte stream of a tensor is stored. */
struct tensor_part {
    uint64_t offset; /* absolute within the file; may be odd */
    uint64_t bytes;  /* of all slabs together */
    uint64_t stride; /* distance between the dims[0] slabs; 0 if they are contiguous */
    unsigned file;   /* index into files */
};

struct packed_layer;

struct tensor_info {
    const char *name;
    const char *dtype; /* as the file writes it: "BF16", "U32", "Q4_K" */
    /* NULL for a dtype that weights cannot use directly, and for MLX's affine groups, whose width
     * depends on the number of columns (tensor_info_affine). */
    const struct quant *quant;
    unsigned n_dims;
    uint64_t dims[LIMIT_TENSOR_DIMS]; /* outermost first; for MLX's codes in 32-bit words */
    unsigned n_parts;
    struct tensor_part parts[QUANT_MAX_PARTS]; /* the parts of `quant` */
    /* Only for MLX's affine groups, otherwise NULL and 0. */
    const struct quant *scale;
    uint64_t n_scale_cols;
    /* The records of a packed model's layer that contain this tensor, otherwise NULL. */
    const struct packed_layer *records;
};

struct source_file {
    char *path;
    int fd; /* -1 if it was not opened because it has nothing for the requested layers */
    uint64_t bytes;
    struct plat_file_info opened; /* its state when it was opened */
    unsigned disk; /* index into disks */
};

/* Where files of a model lie: a folder that disks.json names, or all files on one device. Each disk
 * is read on its own, so that a slow one does not hold up the others. */
struct source_disk {
    char *folder;
    bool is_lost; /* a mirror that cannot be used; none of its files is open */
};

#define SOURCE_MAX_DISKS 8

enum source_kind { SOURCE_HUGGING_FACE, SOURCE_GGUF, SOURCE_PACKED };

/* What a converter has done to the values. */
struct source_conventions {
    bool has_final_norms; /* zero-centred norms are stored as 1 + w */
    bool has_final_decay; /* -exp(A_log) is stored instead of A_log */
    /* Value head h belongs to key head h % n_key_heads instead of h / (n_value_heads /
     * n_key_heads). */
    bool has_tiled_value_heads;
    /* Rows of queries and keys that are rotated together are neighbours: row 2i + j of a head is
     * row j * dim / 2 + i of the model. */
    bool has_paired_rows;
};

/* A file that exists only in memory, because GGUF stores the tokenizer in its metadata. */
struct source_text {
    const char *name; /* "tokenizer.json" */
    char *text;       /* NUL-terminated */
    size_t bytes;
};

#define SOURCE_MAX_TEXTS 4

struct source {
    enum source_kind kind;
    char *path; /* as given by the caller */
    struct source_file *files;
    unsigned n_files;
    struct source_disk disks[SOURCE_MAX_DISKS]; /* the first has the folder that was opened */
    unsigned n_disks;
    bool is_mirrored; /* every disk has all experts (source_copy) */
    struct tensor_info *tensors; /* sorted by name (strcmp); the names follow in the same block */
    size_t n_tensors;
    struct jdoc config; /* config.json */
    struct source_conventions conventions;
    struct source_text texts[SOURCE_MAX_TEXTS];
    unsigned n_texts;
    struct packed *packed; /* NULL unless it is a packed model */
};

struct gguf_names;

struct source_options {
    /* Names for reading GGUF files (format/gguf_family.h). NULL refuses all of them. */
    const struct gguf_names *gguf;
    /* Files that are missing are searched under their name in this directory, where packing keeps
     * the headers of files that it has removed. NULL for none. */
    const char *spare_dir;
    /* The layers [first_layer, end_layer) whose weights will be used. A file that only has weights
     * of other layers is not opened and may be missing. 0, 0 means all layers. GGUF files are all
     * opened, because only their headers say what they contain. */
    uint32_t first_layer, end_layer;
    /* And those of the block for multi-token prediction, which follows layer n_layers - 1. */
    bool with_mtp;
    uint32_t n_layers; /* of the whole model; 0: it ends at end_layer */
    bool may_lack_experts; /* files of a packed model's experts may be missing */
    bool may_be_part;      /* those that another part of the model has may */
};

/* Returns false for a tensor of a layer that was not requested ("...layers.17..."). */
bool source_wants_tensor(const struct source_options *options, const char *name);
bool source_wants_layer(const struct source_options *options, uint32_t layer);

/* A spare consists of a header, this magic and the length of the file it replaces (8 bytes,
 * little-endian). */
#define SOURCE_SPARE_MAGIC "FMSPARE1"
#define SOURCE_SPARE_BYTES 16 /* after the header */

/* Opens a model of any supported kind:
 *   a directory with model.json: packed;
 *   a directory with config.json and safetensors: Hugging Face or MLX;
 *   a .gguf file, any file of a split set, or a directory with exactly one set.
 * Errors name the file, the tensor or field, and the value, and say what is expected. */
int source_open(const char *path, const struct source_options *options, struct source **out,
                struct fm_error *err);
void source_close(struct source *source); /* accepts NULL */

/* Returns the index of the file on `disk` that has the same experts as `file`, one of the first
 * disk. */
unsigned source_copy(const struct source *source, unsigned file, unsigned disk);

/* "Hugging Face directory", "GGUF", "packed model" */
const char *source_kind_name(const struct source *source);

/* Returns whether the open file's size or modification time differs from when it was opened. */
bool source_file_has_changed(const struct source_file *file);
/* Returns the corresponding error for the file at `path`. */
int source_explain_change(const char *path, struct fm_error *err);
/* Opens a file again for reads that bypass the page cache (plat_read_device). *fd is -1 if the file
 * system cannot do that or if the path no longer exists. Fails if the path is now another file, or
 * if the file has changed since it was opened. */
int source_reopen_direct(const struct source_file *file, int *fd, struct fm_error *err);

/* Returns NULL if there is no such tensor. */
const struct tensor_info *source_find(const struct source *source, const char *name);

/* Reads a small file of the model (tokenizer.json, generation_config.json, ...). In a packed model
 * it must match its checksum and must exist if model.json lists it. *text is NULL if there is none,
 * otherwise NUL-terminated; free with mem_free. `label` (LIMIT_PATH_BYTES) receives its name for
 * messages. */
int source_read_text(const struct source *source, const char *name, size_t max_bytes, char **text,
                     size_t *bytes, char label[], struct fm_error *err);
/* Does the same and parses it; doc->root is NULL if there is none. */
int source_read_json(const struct source *source, const char *name, size_t max_bytes,
                     struct jdoc *doc, struct fm_error *err);

/* Returns the affine format of MLX's codes for n_cols columns; NULL if none fits. */
const struct quant *tensor_info_affine(const struct tensor_info *tensor, uint64_t n_cols);

/* Writes "[16, 128]" for messages. */
const char *tensor_info_shape(const struct tensor_info *tensor, char *buffer, size_t bytes);

/* ---- for the readers of containers ------------------------------------------------------ */

/* Opens files by name and appends them to those of the source. `named_by` is the file that lists
 * them, or NULL. Looks in `dir` and then in `spare_dir`, which may be NULL. `is_needed` selects
 * files; NULL selects all. A file that is not opened has a path all the same. */
int source_open_files(struct source *source, const char *dir, const char *spare_dir,
                      const char *const names[], const bool is_needed[], size_t n,
                      const char *named_by, struct fm_error *err);
/* Opens a file at its path. */
int source_file_open(struct source_file *file, struct fm_error *err);
/* Closes the files from `first` on. Their entries stay. */
void source_shut_files(struct source *source, unsigned first);
/* Appends a disk and takes ownership of `folder` (mem_strdup). The files from `first_file` on are
 * on it. */
void source_add_disk(struct source *source, char *folder, unsigned first_file);
/* Sorts the tensors. Fails if a name occurs twice. */
int source_sort_tensors(struct source *source, struct fm_error *err);
/* Adds a text and takes ownership of `text` (mem_new), also on failure. */
int source_add_text(struct source *source, const char *name, char *text, size_t bytes,
                    struct fm_error *err);
/* Returns DIR/NAME. Free with mem_free. */
char *source_join(const char *dir, const char *name, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
