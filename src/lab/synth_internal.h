/* A synthetic model between its shape and its files: the tensors, where their bytes go, and how
 * those are made. fm_synth is the only caller from outside.
 *
 * A plan owns everything below it. It is built by one thread; afterwards the writing threads only
 * read it, except for the checksums of the pieces they write. */
#ifndef FLASHMOE_LAB_SYNTH_INTERNAL_H
#define FLASHMOE_LAB_SYNTH_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/jdoc.h"
#include "flashmoe_lab.h"
#include "format/packed.h"
#include "quant/quant.h"
#include "text/pretok.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- shape (synth_shape.c) ------------------------------------------------------------------- */

/* How the files of a family differ from those of the others. */
struct synth_family {
    const char *model_type, *class_name; /* of config.json; the former finds its GGUF names */
    /* The same of the multimodal checkpoint that MLX's form wraps it in; NULL: none. */
    const char *multimodal_type, *multimodal_class_name;
    uint32_t rotary_divisor;     /* one part in so many of a head is rotated */
    bool has_delta_net;          /* recurrent layers, all but every interval-th */
    bool has_attention_gate;     /* beside the queries */
    bool has_zero_centred_norms;
    bool has_fused_projections;  /* of the delta rule: qkvz and ba */
    bool has_stacked_experts;    /* Hugging Face's form has all experts of a layer in one tensor */
    bool has_rope_parameters;    /* config.json has the rotation in an object of its own */
};

struct synth_shape {
    const char *name;
    const struct synth_family *family;
    uint32_t n[FM_SYNTH_NUMBERS]; /* 0 where the family has no such number */
    uint32_t dense_width;         /* intermediate_size, which no layer uses; 0: none */
    double rope_theta;
};

/* The preset with the numbers of the options in place of its own, checked. */
int synth_shape_init(struct synth_shape *shape, const char *name,
                     const struct fm_synth_options *options, struct fm_error *err);
static inline bool synth_is_recurrent(const struct synth_shape *shape, uint32_t layer)
{
    return shape->family->has_delta_net && (layer + 1) % shape->n[FM_SYNTH_INTERVAL] != 0;
}
uint32_t synth_rotary_dims(const struct synth_shape *shape);
/* config.json as transformers writes it; NULL when memory ran out. */
json_t *synth_config(const struct synth_shape *shape);

/* ---- tensors (synth_tensors.c) --------------------------------------------------------------- */

enum synth_role { SYNTH_EXPERT, SYNTH_DENSE, SYNTH_EMBED, SYNTH_HEAD, SYNTH_GATE, SYNTH_VECTOR };

enum synth_values {
    SYNTH_WEIGHTS,     /* zero mean, standard deviation std */
    SYNTH_ONE,         /* 1 */
    SYNTH_CENTRED_ONE, /* 0, or 1 where norms are stored as they are used */
    SYNTH_DECAY,       /* A_log, or -exp(A_log) where that is stored */
    SYNTH_STEP,        /* dt_bias */
};

#define SYNTH_NAME_BYTES 128

struct synth_tensor {
    char stem[SYNTH_NAME_BYTES]; /* the whole name, or "model.layers.3.mlp.experts." */
    const char *matrix;          /* of an expert: "gate_proj"; otherwise NULL */
    enum synth_role role;
    enum synth_values values;
    float std;
    uint32_t layer, n_experts; /* n_experts matrices of n_rows x n_cols; 0: one tensor */
    unsigned n_dims;
    uint64_t dims[3]; /* of one matrix, outermost first */
    uint64_t n_rows, n_cols;
    const struct quant *quant;
};

/* "model.layers.3.mlp.experts.7.gate_proj.weight"; the name random streams are keyed by. */
void synth_tensor_name(const struct synth_tensor *t, uint32_t expert, char name[SYNTH_NAME_BYTES]);

/* ---- bytes (synth_fill.c) -------------------------------------------------------------------- */

/* One matrix whose bytes can be made, any of them in any order. */
struct synth_matrix {
    const struct quant *quant;
    enum synth_values values;
    struct source_conventions conventions;
    uint64_t keys[QUANT_MAX_PARTS];
    uint64_t keep, put;   /* floats: word & keep | put */
    uint16_t pairs[2][16]; /* affine: scales, and the bias of each */
    const struct synth_block *block;
    uint16_t d, min; /* block formats: f16 scale and minimum, or the exponent in d */
};

/* False when no bytes can be made in this format. */
bool synth_can_fill(const struct quant *quant);
void synth_matrix_init(struct synth_matrix *m, const struct synth_tensor *t, uint32_t expert,
                       const struct source_conventions *conventions, uint64_t seed);
/* Bytes [at, at + bytes) of a part. */
void synth_fill(const struct synth_matrix *m, unsigned part, uint64_t at, uint64_t bytes,
                void *dst);

/* ---- plan (synth_plan.c) --------------------------------------------------------------------- */

/* One part of one matrix in a file. */
struct synth_span {
    uint64_t offset, bytes;
    uint32_t tensor, expert, part;
};

enum synth_sums {
    SYNTH_NO_SUMS,
    SYNTH_PIECE_SUMS,  /* of each piece: the records of a packed layer */
    SYNTH_TENSOR_SUMS, /* of dense.bin and its tensors: one thread writes it from end to end */
};

struct synth_file {
    char name[256]; /* in the directory, or beside it for a file by itself */
    uint64_t bytes;
    char *head; /* what lies before the first span; may be NULL */
    size_t head_bytes;
    struct synth_span *spans; /* ascending, gaps are zero */
    size_t n_spans, cap_spans;
    uint64_t piece_bytes; /* written together, a multiple of 4096 */
    enum synth_sums sums;
    struct packed_sum *piece_sums; /* borrowed */
    const struct record *record;   /* of each piece, to be interleaved; borrowed, may be NULL */
};

struct synth_plan {
    struct synth_shape shape;
    uint64_t seed;
    struct source_conventions conventions; /* of the form */
    bool has_split_projections; /* qwen3_next: qkv and z apart, as GGUF has them */
    struct synth_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct synth_file *files;
    size_t n_files, cap_files;
    struct source_text *texts; /* small files, complete */
    size_t n_texts, cap_texts;
    bool is_directory; /* the files lie in the directory `path`; otherwise beside `path` */
    struct packed *packed; /* the packed form only */
    json_t *config;
};

int synth_plan_tensors(struct synth_plan *plan, struct fm_error *err);
int synth_plan_formats(struct synth_plan *plan, const struct fm_synth_options *options,
                       struct fm_error *err);
/* The next file, empty; pointers to earlier ones become invalid. */
struct synth_file *synth_plan_file(struct synth_plan *plan, struct fm_error *err);
int synth_file_add(struct synth_file *file, struct synth_span span, struct fm_error *err);
/* All parts of one matrix one behind the other from *at on, which moves behind them. */
int synth_file_add_matrix(struct synth_plan *plan, struct synth_file *file, uint32_t tensor,
                          uint32_t expert, uint64_t *at, struct fm_error *err);
/* A small file; takes the text over (mem_new), also on failure. */
int synth_plan_text(struct synth_plan *plan, const char *name, char *text, size_t bytes,
                    struct fm_error *err);
/* The same from JSON; takes the reference, NULL means that memory ran out. */
int synth_plan_json(struct synth_plan *plan, const char *name, json_t *value,
                    struct fm_error *err);
/* The text of a JSON value, mem_new; takes the reference as above. */
int synth_json_text(json_t *value, size_t flags, char **text, size_t *bytes, struct fm_error *err);
/* Makes bytes [offset, offset + bytes) of a file. */
void synth_file_fill(const struct synth_plan *plan, const struct synth_file *file, uint64_t offset,
                     uint64_t bytes, void *dst);
void synth_plan_clear(struct synth_plan *plan);

/* ---- forms ----------------------------------------------------------------------------------- */

#define SYNTH_END_OF_TEXT 256 /* ids of the special tokens, behind the 256 bytes */
#define SYNTH_IM_START 257
#define SYNTH_IM_END 258
#define SYNTH_N_TOKENS 259
extern const char *const synth_special_tokens[3];
extern const char synth_chat_template[];

/* The pre-tokenizer of all synthetic models. */
const struct pretok *synth_pattern(void);
/* The character that stands for a byte in a byte-level vocabulary, as UTF-8. */
void synth_byte_character(unsigned byte, char utf8[4]);
/* tokenizer.json, tokenizer_config.json and generation_config.json. */
int synth_plan_tokenizer(struct synth_plan *plan, struct fm_error *err);

int synth_plan_packed(struct synth_plan *plan, struct fm_error *err);
/* model.json, once the checksums are known. */
int synth_packed_model(struct synth_plan *plan, char **text, size_t *bytes, struct fm_error *err);
int synth_plan_safetensors(struct synth_plan *plan, uint64_t split_bytes, struct fm_error *err);
int synth_plan_gguf(struct synth_plan *plan, const char *path, uint64_t split_bytes,
                    struct fm_error *err);

/* ---- writing (synth_write.c) ----------------------------------------------------------------- */

/* Everything beside `dst`, then renamed; nothing is left after a failure. */
int synth_write(struct synth_plan *plan, const char *dst, const struct fm_synth_options *options,
                struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
