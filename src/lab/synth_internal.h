/* A synthetic model between its shape and its files: its tensors, where their bytes go, and how
 * they are generated. Only fm_synth uses this from outside.
 *
 * A plan owns everything in it. One thread builds it. Afterwards the writing threads only read it,
 * except for the checksums of the pieces that they write. */
#ifndef FLASHMOE_LAB_SYNTH_INTERNAL_H
#define FLASHMOE_LAB_SYNTH_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arch/blocks.h"
#include "base/jdoc.h"
#include "flashmoe_lab.h"
#include "format/packed.h"
#include "quant/quant.h"
#include "text/pretok.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- shape (synth_shape.c) ------------------------------------------------------------------- */

/* How the files of a family differ from those of other families. */
struct synth_family {
    /* in config.json; model_type also selects the GGUF names */
    const char *model_type, *class_name;
    /* The same for the multimodal checkpoint that wraps it in MLX form; NULL: none. */
    const char *multimodal_type, *multimodal_class_name;
    uint32_t rotary_divisor;     /* 1 / this part of a head is rotated */
    bool has_delta_net;          /* recurrent layers, except every interval-th */
    bool has_attention_gate;     /* stored with the queries */
    bool has_zero_centred_norms;
    bool has_fused_projections;  /* the delta rule has qkvz and ba */
    bool has_stacked_experts;    /* in Hugging Face form all experts of a layer are one tensor */
    bool has_rope_parameters;    /* config.json has the rope in an object of its own */
    double eps;                  /* of norms; 0: 1e-6 */
    enum head_norms norms;       /* of queries and keys */
    enum shared_experts shared;
    const char *bias_field;      /* queries, keys and values have biases, as this field says */
    const char *experts_field;   /* the number of experts; NULL: num_experts */
    bool has_even_layers;        /* intermediate_size is the width of the experts */
    const char *block;           /* of routed layers; its matrices are w1, w3, w2; NULL: "mlp." */
    const char *correction;      /* of a sigmoid router, below the block; NULL: softmax */
    bool has_groups;             /* config.json says how it chooses among groups */
    const struct synth_latent *latent; /* latent attention; NULL: none */
    const struct synth_streams *streams; /* streams, an index and a table; NULL: none */
    bool is_gpt_oss; /* biases, sinks and windows, no norms of heads, experts in MXFP4 */
};

struct synth_shape {
    const char *name;
    const struct synth_family *family;
    uint32_t n[FM_SYNTH_NUMBERS]; /* 0 where the family has no such number */
    uint32_t dense_width;         /* intermediate_size, of the first layers; 0: none */
    double rope_theta;
    uint32_t n_dense;   /* first layers that have no experts */
    double route_scale; /* routed_scaling_factor; 0: none */
};

/* Sizes of latent attention beside the numbers of a shape, whose head-dim is what turns. */
struct synth_latent {
    uint32_t q_rank, rank, plain_dim, value_dim;
    uint32_t n_groups, n_groups_chosen; /* of experts */
};

/* Sizes of qwen4_exp. A token uses (ngram_size - 1) * heads rows: hidden numbers together. */
struct synth_streams {
    uint32_t n_streams, rank;
    uint32_t index_heads, index_dim, ratio, budget;
    uint32_t table_layer; /* counted from 1 */
    uint32_t ngram_size, heads, first_size, padding, n_parts, conv, n_rows; /* of the table */
};

/* Makes the shape of a preset, with the numbers of the options in place of its own. Fails with
 * FM_ERR_ARG. */
int synth_shape_init(struct synth_shape *shape, const char *name,
                     const struct fm_synth_options *options, struct fm_error *err);
static inline bool synth_is_recurrent(const struct synth_shape *shape, uint32_t layer)
{
    return shape->family->has_delta_net && (layer + 1) % shape->n[FM_SYNTH_INTERVAL] != 0;
}
uint32_t synth_rotary_dims(const struct synth_shape *shape);
double synth_eps(const struct synth_shape *shape);
/* Returns the name of a routed block below its layer, "mlp." */
const char *synth_block(const struct synth_shape *shape);
/* Returns config.json as transformers writes it, or NULL when memory ran out. The caller owns
 * it. */
json_t *synth_config(const struct synth_shape *shape);

/* ---- tensors (synth_tensors.c) --------------------------------------------------------------- */

/* A table stays on the disk. */
enum synth_role { SYNTH_EXPERT, SYNTH_DENSE, SYNTH_EMBED, SYNTH_HEAD, SYNTH_GATE, SYNTH_VECTOR,
                  SYNTH_TABLE };

enum synth_values {
    SYNTH_WEIGHTS,     /* zero mean, standard deviation std */
    SYNTH_ONE,         /* 1 */
    SYNTH_CENTRED_ONE, /* 0, or 1 in forms that store norms with 1 added */
    SYNTH_DECAY,       /* A_log, or -exp(A_log) in forms that store that */
    SYNTH_STEP,        /* dt_bias */
    SYNTH_SMALL,       /* biases and sinks: -0.05 to 0.05 */
};

#define SYNTH_NAME_BYTES 128

struct synth_tensor {
    char stem[SYNTH_NAME_BYTES]; /* the whole name, or for example "model.layers.3.mlp.experts." */
    const char *matrix;          /* of an expert, for example "gate_proj"; otherwise NULL */
    const char *short_matrix;    /* as the family's own checkpoints name it; NULL: the same */
    enum synth_role role;
    enum synth_values values;
    float std;
    uint32_t layer, n_experts; /* n_experts matrices of n_rows x n_cols; 0: one tensor */
    unsigned n_dims;
    uint64_t dims[3]; /* of one matrix, outermost first */
    uint64_t n_rows, n_cols;
    const struct quant *quant;
};

/* Writes the full name, for example "model.layers.3.mlp.experts.7.gate_proj.weight". It is the key
 * of the tensor's random words. */
void synth_tensor_name(const struct synth_tensor *t, uint32_t expert, char name[SYNTH_NAME_BYTES]);

/* ---- bytes (synth_fill.c) -------------------------------------------------------------------- */

/* A matrix whose bytes can be generated, any range in any order. */
struct synth_matrix {
    const struct quant *quant;
    enum synth_values values;
    struct source_conventions conventions;
    uint64_t keys[QUANT_MAX_PARTS];
    uint64_t keep, put;   /* floats are word & keep | put */
    uint16_t pairs[2][16]; /* affine: scales, and the bias of each scale */
    const struct synth_block *block;
    uint16_t d, min; /* block formats: f16 scale and minimum, or the exponent in d */
};

/* Returns whether bytes can be generated in this format. */
bool synth_can_fill(const struct quant *quant);
void synth_matrix_init(struct synth_matrix *m, const struct synth_tensor *t, uint32_t expert,
                       const struct source_conventions *conventions, uint64_t seed);
/* Generates bytes [at, at + bytes) of a part. */
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
    SYNTH_PIECE_SUMS,  /* per piece: the records of a packed layer */
    SYNTH_TENSOR_SUMS, /* of dense.bin and its tensors: one thread writes it in order */
};

struct synth_file {
    char name[256]; /* relative to the directory, or to the folder of a single file */
    uint64_t bytes;
    char *head; /* bytes before the first span; may be NULL */
    size_t head_bytes;
    struct synth_span *spans; /* ascending; gaps are zero */
    size_t n_spans, cap_spans;
    uint64_t piece_bytes; /* written by one call; a multiple of 4096 */
    enum synth_sums sums;
    struct packed_sum *piece_sums; /* borrowed */
    /* layout of each piece, if it is interleaved; borrowed, may be NULL */
    const struct record *record;
};

struct synth_plan {
    struct synth_shape shape;
    uint64_t seed;
    struct source_conventions conventions; /* of the form */
    bool has_split_projections; /* qwen3_next: qkv and z are separate, as in GGUF */
    bool has_cut_heads;         /* latent attention: keys and values by head, as in GGUF */
    struct synth_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct synth_file *files;
    size_t n_files, cap_files;
    struct source_text *texts; /* small files with their whole content */
    size_t n_texts, cap_texts;
    bool is_directory; /* true: the files are in the directory `path`; false: next to `path` */
    struct packed *packed; /* only in packed form */
    json_t *config;
};

int synth_plan_tensors(struct synth_plan *plan, struct fm_error *err);
int synth_plan_formats(struct synth_plan *plan, const struct fm_synth_options *options,
                       struct fm_error *err);
/* Appends an empty file. Pointers to earlier files become invalid. Returns NULL with
 * FM_ERR_NOMEM. */
struct synth_file *synth_plan_file(struct synth_plan *plan, struct fm_error *err);
int synth_file_add(struct synth_file *file, struct synth_span span, struct fm_error *err);
/* Appends all parts of one matrix at *at and advances *at. */
int synth_file_add_matrix(struct synth_plan *plan, struct synth_file *file, uint32_t tensor,
                          uint32_t expert, uint64_t *at, struct fm_error *err);
/* Adds a small file. Takes over the text (mem_new), also on failure. */
int synth_plan_text(struct synth_plan *plan, const char *name, char *text, size_t bytes,
                    struct fm_error *err);
/* Adds a small file from JSON. Takes over the reference; NULL means that memory ran out. */
int synth_plan_json(struct synth_plan *plan, const char *name, json_t *value,
                    struct fm_error *err);
/* Writes a JSON value as text (mem_new). Takes over the reference like synth_plan_json. */
int synth_json_text(json_t *value, size_t flags, char **text, size_t *bytes, struct fm_error *err);
/* Generates bytes [offset, offset + bytes) of a file. */
void synth_file_fill(const struct synth_plan *plan, const struct synth_file *file, uint64_t offset,
                     uint64_t bytes, void *dst);
void synth_plan_clear(struct synth_plan *plan);

/* ---- forms ----------------------------------------------------------------------------------- */

#define SYNTH_END_OF_TEXT 256 /* ids of the special tokens, after the 256 bytes */
#define SYNTH_IM_START 257
#define SYNTH_IM_END 258
#define SYNTH_N_TOKENS 259
extern const char *const synth_special_tokens[3];
extern const char synth_chat_template[];

/* Returns the pre-tokenizer pattern of all synthetic models. */
const struct pretok *synth_pattern(void);
/* Writes the UTF-8 character that represents a byte in a byte-level vocabulary. */
void synth_byte_character(unsigned byte, char utf8[4]);
/* Adds tokenizer.json, tokenizer_config.json and generation_config.json. */
int synth_plan_tokenizer(struct synth_plan *plan, struct fm_error *err);

int synth_plan_packed(struct synth_plan *plan, struct fm_error *err);
/* Writes model.json. Called when the checksums are known. */
int synth_packed_model(struct synth_plan *plan, char **text, size_t *bytes, struct fm_error *err);
int synth_plan_safetensors(struct synth_plan *plan, uint64_t split_bytes, struct fm_error *err);
int synth_plan_gguf(struct synth_plan *plan, const char *path, uint64_t split_bytes,
                    struct fm_error *err);

/* ---- writing (synth_write.c) ----------------------------------------------------------------- */

/* Writes all files next to `dst` and renames them. Leaves nothing behind after a failure. */
int synth_write(struct synth_plan *plan, const char *dst, const struct fm_synth_options *options,
                struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
