/* A source: the files of a checkpoint, its tensors and its configuration, before anything is
 * known about the architecture. Every container format fills the same struct: names and
 * configuration are those of Hugging Face, whatever the files say.
 *
 * Every offset and size is checked against its file when the source opens: each part of a tensor
 * lies wholly inside its file, bytes follow from the dimensions and the format, and no name occurs
 * twice. A source is immutable after opening and may be read by any thread. Its files stay open
 * until source_close. */
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

/* Where one byte stream of a tensor lies. */
struct tensor_part {
    uint64_t offset; /* absolute within the file; may be odd */
    uint64_t bytes;  /* of all slabs together */
    uint64_t stride; /* from slab to slab of dims[0] slabs; 0: they lie end to end */
    unsigned file;   /* index into files */
};

struct packed_layer;

struct tensor_info {
    const char *name;
    const char *dtype; /* as the file spells it: "BF16", "U32", "Q4_K" */
    /* NULL for a dtype no weight is used in directly, and for MLX's affine groups, whose width
     * follows from the number of columns: tensor_info_affine. */
    const struct quant *quant;
    unsigned n_dims;
    uint64_t dims[LIMIT_TENSOR_DIMS]; /* outermost first; of MLX's codes: 32-bit words */
    unsigned n_parts;
    struct tensor_part parts[QUANT_MAX_PARTS]; /* of `quant` */
    /* MLX's affine groups only, otherwise NULL and 0. */
    const struct quant *scale;
    uint64_t n_scale_cols;
    /* The records of a packed model's layer that this tensor is part of, otherwise NULL. */
    const struct packed_layer *records;
};

struct source_file {
    char *path;
    int fd; /* -1: not opened, it has nothing for the layers that were asked for */
    uint64_t bytes;
    struct plat_file_info opened; /* as it was when it was opened */
};

enum source_kind { SOURCE_HUGGING_FACE, SOURCE_GGUF, SOURCE_PACKED };

/* What a converter has done to the values. */
struct source_conventions {
    bool has_final_norms; /* zero-centred norms are stored as 1 + w */
    bool has_final_decay; /* -exp(A_log) is stored in place of A_log */
    /* Value head h belongs to key head h % n_key_heads, not h / (n_value_heads / n_key_heads). */
    bool has_tiled_value_heads;
};

/* A file that exists in memory only: GGUF keeps the tokenizer in its metadata. */
struct source_text {
    const char *name; /* "tokenizer.json" */
    char *text;       /* NUL-terminated */
    size_t bytes;
};

#define SOURCE_MAX_TEXTS 4

struct source {
    enum source_kind kind;
    char *path; /* as it was given */
    struct source_file *files;
    unsigned n_files;
    struct tensor_info *tensors; /* sorted by name (strcmp), the names behind them */
    size_t n_tensors;
    struct jdoc config; /* config.json */
    struct source_conventions conventions;
    struct source_text texts[SOURCE_MAX_TEXTS];
    unsigned n_texts;
    struct packed *packed; /* what only a packed model has; otherwise NULL */
};

struct gguf_names;

struct source_options {
    /* What GGUF files are read with (format/gguf_family.h). NULL: all of them are refused. */
    const struct gguf_names *gguf;
    /* A file of the source that is not there is looked for, under its own name, in this directory:
     * packing keeps the headers of files it has removed there. NULL: nowhere. */
    const char *spare_dir;
    /* The layers [first_layer, end_layer) whose weights will be used: a file with weights of other
     * layers only is not opened, and may be missing. 0, 0: all layers. GGUF files are all opened,
     * since only their headers say what they hold. */
    uint32_t first_layer, end_layer;
};

/* False for a tensor of another layer ("...layers.17..."). */
bool source_wants_tensor(const struct source_options *options, const char *name);
bool source_wants_layer(const struct source_options *options, uint32_t layer);

/* A spare is a header, this magic and the length of the file it stands for, 8 bytes,
 * little-endian. */
#define SOURCE_SPARE_MAGIC "FMSPARE1"
#define SOURCE_SPARE_BYTES 16 /* behind the header */

/* Opens a model, whatever it is:
 *   a directory with model.json: packed;
 *   a directory with config.json and safetensors: Hugging Face or MLX;
 *   a .gguf file, the first of a split set or any other, or a directory that holds just one set.
 * Errors name the file, the tensor or field, and the value, and say what is expected. */
int source_open(const char *path, const struct source_options *options, struct source **out,
                struct fm_error *err);
void source_close(struct source *source); /* accepts NULL */

/* "Hugging Face directory", "GGUF", "packed model" */
const char *source_kind_name(const struct source *source);

/* Whether the open file has another size or time of change than when it was opened. */
bool source_file_has_changed(const struct source_file *file);
/* Says so of the file at `path`. */
int source_explain_change(const char *path, struct fm_error *err);
/* Opens a file once more, to be read past the page cache with plat_read_device. *fd is -1 when the
 * file system cannot, or when nothing has its path any more. Fails when another file has it by now,
 * or when the file has changed since it was opened. */
int source_reopen_direct(const struct source_file *file, int *fd, struct fm_error *err);

/* NULL when there is no such tensor. */
const struct tensor_info *source_find(const struct source *source, const char *name);

/* A file beside the weights (tokenizer.json, generation_config.json, ...). A packed model's is
 * held against its checksum, and must be there when model.json lists it. *text is NULL when there
 * is none; NUL-terminated, freed with mem_free. `label` (LIMIT_PATH_BYTES) receives its name for
 * messages. */
int source_read_text(const struct source *source, const char *name, size_t max_bytes, char **text,
                     size_t *bytes, char label[], struct fm_error *err);
/* The same, parsed; doc->root is NULL when there is none. */
int source_read_json(const struct source *source, const char *name, size_t max_bytes,
                     struct jdoc *doc, struct fm_error *err);

/* The affine format of MLX's codes if the tensor has n_cols columns; NULL when that cannot be. */
const struct quant *tensor_info_affine(const struct tensor_info *tensor, uint64_t n_cols);

/* "[16, 128]" for messages. */
const char *tensor_info_shape(const struct tensor_info *tensor, char *buffer, size_t bytes);

/* ---- for the readers of containers ------------------------------------------------------ */

/* Opens the files of a source by name. `named_by` is the file that names them, NULL when none
 * does; dir and spare_dir are where to look, the second may be NULL. `is_needed` says which ones,
 * NULL: all. */
int source_open_files(struct source *source, const char *dir, const char *spare_dir,
                      const char *const names[], const bool is_needed[], size_t n,
                      const char *named_by, struct fm_error *err);
/* Sorts the tensors; fails when a name occurs twice. */
int source_sort_tensors(struct source *source, struct fm_error *err);
/* Adds a text; it takes over `text` (mem_new), also on failure. */
int source_add_text(struct source *source, const char *name, char *text, size_t bytes,
                    struct fm_error *err);
/* DIR/NAME, freed with mem_free. */
char *source_join(const char *dir, const char *name, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
