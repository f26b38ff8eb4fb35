#include "format/fold.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "format/directory.h"
#include "format/refuse.h"

#define NAME_BYTES 512
#define FP8_BLOCK 128
#define FP4_BLOCK 32 /* columns with one scale, and */
#define FP4_BYTES 16 /* bytes of codes */
#define INT4_BLOCK 32 /* columns with one scale, and */
#define INT4_WORDS 4  /* words of eight codes */

static const char weight_suffix[] = ".weight";
static const char blocks_suffix[] = "_blocks";
static const char packed_suffix[] = ".weight_packed";

static const char *path_of(const struct source *s, const struct tensor_info *t)
{
    return s->files[t->parts[0].file].path;
}

/* Finds the tensor whose name is the name of `t` without `cut`, plus a suffix. */
static const struct tensor_info *find_beside(const struct source *s, const struct tensor_info *t,
                                             const char *cut, const char *suffix)
{
    char name[NAME_BYTES];
    size_t n = strlen(t->name) - strlen(cut);
    int length = snprintf(name, sizeof name, "%.*s%s", (int)n, t->name, suffix);
    if (length < 0 || (size_t)length >= sizeof name)
        return NULL;
    return source_find(s, name);
}

static int wrong_shapes(const struct source *s, const struct tensor_info *a,
                        const struct tensor_info *b, const char *expected, struct fm_error *err)
{
    char first[160], second[160];
    return err_set(err, FM_ERR_FORMAT,
                   "%s: tensors '%.160s' %s and '%.160s' %s do not belong together: %s",
                   path_of(s, a), a->name, tensor_info_shape(a, first, sizeof first), b->name,
                   tensor_info_shape(b, second, sizeof second), expected);
}

/* Returns whether all dimensions but the last `n_own` are equal. */
static bool has_same_outer(const struct tensor_info *a, const struct tensor_info *b,
                           unsigned n_own)
{
    if (a->n_dims != b->n_dims || a->n_dims < n_own)
        return false;
    for (unsigned d = 0; d + n_own < a->n_dims; d++)
        if (a->dims[d] != b->dims[d])
            return false;
    return true;
}

/* ---- MXFP4 ---------------------------------------------------------------------------------- */

/* Makes one tensor of codes and scales, whose shapes the caller has compared. */
static void fold_mxfp4(struct tensor_info *t, const struct tensor_info *scales, uint64_t n_cols)
{
    t->quant = quant_find("mxfp4-g32");
    t->dims[t->n_dims - 1] = n_cols;
    t->n_parts = 2;
    t->parts[1] = scales->parts[0];
}

/* [..., rows, blocks, 16] and [..., rows, blocks], as gpt-oss checkpoints have them. */
static int fold_blocks(struct source *s, struct tensor_info *t, const struct tensor_info *scales,
                       struct fm_error *err)
{
    const unsigned n = t->n_dims;
    bool fits = n >= 3 && scales->n_dims + 1 == n && t->dims[n - 1] == FP4_BYTES &&
                strcmp(scales->dtype, "U8") == 0;
    for (unsigned d = 0; fits && d + 1 < n; d++)
        fits = t->dims[d] == scales->dims[d];
    if (!fits)
        return wrong_shapes(s, t, scales,
                            "MXFP4 has 16 bytes and one U8 scale per 32 columns", err);
    t->n_dims = n - 1;
    t->dtype = "MXFP4";
    fold_mxfp4(t, scales, t->dims[n - 2] * FP4_BLOCK); /* cannot overflow: half of it is in bytes */
    return 0;
}

/* MLX's words of eight codes. Its other modes with U8 scales have as many words per scale. */
static int fold_words(struct source *s, struct tensor_info *t, const struct tensor_info *scales,
                      struct fm_error *err)
{
    const unsigned last = t->n_dims - 1;
    if (!has_same_outer(t, scales, 1) || t->n_dims < 2)
        return wrong_shapes(s, t, scales, "all but the columns must be equal", err);
    if (t->dims[last] / 4 != scales->dims[last] || t->dims[last] % 4 != 0)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: tensor '%.160s' has %llu words and %llu scales per row: of MLX's modes "
                       "this version reads affine and mxfp4",
                       path_of(s, t), t->name, (unsigned long long)t->dims[last],
                       (unsigned long long)scales->dims[last]);
    t->dtype = "U32 + U8 scales";
    fold_mxfp4(t, scales, scales->dims[last] * FP4_BLOCK);
    return 0;
}

/* ---- MLX ------------------------------------------------------------------------------------ */

/* The number of columns, and so the width of a code, is not known here. Checks what follows from
 * the shapes alone; the binder calls tensor_info_affine later. */
static int fold_affine(struct source *s, struct tensor_info *t, const struct tensor_info *scales,
                       const struct tensor_info *biases, struct fm_error *err)
{
    if (biases == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: tensor '%.160s' has scales but no biases: this version reads only "
                       "MLX's affine quantisation",
                       path_of(s, t), t->name);
    const struct tensor_info *const both[] = {scales, biases};
    for (unsigned i = 0; i < 2; i++) {
        if (both[i]->quant != &quant_bf16 && both[i]->quant != &quant_f16)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: tensor '%.160s' has dtype %s; scales and biases must be BF16 or "
                           "F16",
                           path_of(s, both[i]), both[i]->name, both[i]->dtype);
        if (!has_same_outer(t, both[i], 1) || t->n_dims < 2)
            return wrong_shapes(s, t, both[i], "all but the columns must be equal", err);
    }
    if (scales->quant != biases->quant ||
        scales->dims[t->n_dims - 1] != biases->dims[t->n_dims - 1])
        return wrong_shapes(s, scales, biases, "scales and biases must be alike", err);
    t->dtype = "U32 + scales";
    t->scale = scales->quant;
    t->n_scale_cols = scales->dims[t->n_dims - 1];
    t->n_parts = 3;
    t->parts[1] = scales->parts[0];
    t->parts[2] = biases->parts[0];
    return 0;
}

/* ---- FP8 ------------------------------------------------------------------------------------ */

static const struct quant *fp8_quant(const struct tensor_info *scales)
{
    if (scales->quant == &quant_f32)
        return quant_find("fp8-b128-f32");
    if (scales->quant == &quant_bf16)
        return quant_find("fp8-b128-bf16");
    return scales->quant == &quant_f16 ? quant_find("fp8-b128-f16") : NULL;
}

static int fold_fp8(struct source *s, struct tensor_info *t, const struct tensor_info *scales,
                    struct fm_error *err)
{
    const struct quant *quant = fp8_quant(scales);
    if (quant == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: tensor '%.160s' has dtype %s; FP8 scales must be F32, BF16 or F16",
                       path_of(s, scales), scales->name, scales->dtype);
    const unsigned last = t->n_dims - 1;
    bool fits = t->n_dims >= 2 && has_same_outer(t, scales, 2);
    for (unsigned d = last - 1; fits && d <= last; d++)
        fits = scales->dims[d] == t->dims[d] / FP8_BLOCK + (t->dims[d] % FP8_BLOCK != 0);
    if (!fits)
        return wrong_shapes(s, t, scales, "one scale per 128 x 128 weights is expected", err);
    if (t->dims[last] % FP8_BLOCK != 0)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: tensor '%.160s' has %llu columns; FP8 needs a multiple of %d",
                       path_of(s, t), t->name, (unsigned long long)t->dims[last], FP8_BLOCK);
    t->quant = quant;
    t->n_parts = 2;
    t->parts[1] = scales->parts[0];
    return 0;
}

/* Returns the scale that all shards of a table have in common: beside NAME.shard_N.weight, or
 * NAME.weight, it is NAME.weight_scale. NULL if there is none with one number. */
static const struct tensor_info *scale_of_table(const struct source *s, const struct tensor_info *t)
{
    const char *cut = strstr(t->name, ".shard_");
    if (cut == NULL && name_has_suffix(t->name, weight_suffix))
        cut = t->name + strlen(t->name) - strlen(weight_suffix);
    const struct tensor_info *scale = cut != NULL ? find_beside(s, t, cut, ".weight_scale") : NULL;
    for (unsigned d = 0; scale != NULL && d < scale->n_dims; d++)
        if (scale->dims[d] != 1)
            return NULL;
    return scale;
}

/* ---- compressed-tensors ---------------------------------------------------------------------- */

/* Tensors beside packed codes that would change what the codes mean. */
static int refuse_beside_packed(const struct source *s, const struct tensor_info *t,
                                struct fm_error *err)
{
    static const char *const suffixes[] = {".weight_zero_point", ".weight_g_idx",
                                           ".weight_global_scale"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        const struct tensor_info *other = find_beside(s, t, packed_suffix, suffixes[i]);
        if (other != NULL)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: tensor '%.160s' belongs to '%.160s': this version reads packed "
                           "weights of symmetric groups in the order of the columns only",
                           path_of(s, other), other->name, t->name);
    }
    return 0;
}

static uint64_t little_endian(const uint8_t *at, size_t bytes)
{
    uint64_t x = 0;
    for (size_t i = bytes; i > 0; i--)
        x = x << 8 | at[i - 1];
    return x;
}

/* Compares weight_shape, two numbers in the file, with the shape that the codes have. Only the
 * header of a removed file is left, so there is nothing to compare with. */
static int check_packed_shape(const struct source *s, const struct tensor_info *t,
                              const struct tensor_info *shape, struct fm_error *err)
{
    const struct source_file *file = &s->files[shape->parts[0].file];
    const size_t bytes = strcmp(shape->dtype, "I32") == 0 ? 4
                         : strcmp(shape->dtype, "I64") == 0 ? 8 : 0;
    uint8_t numbers[16] = {0};
    if (bytes == 0 || shape->n_dims != 1 || shape->dims[0] != 2) {
        char shown[160];
        return err_set(err, FM_ERR_FORMAT,
                       "%s: tensor '%.160s' is %s %s, expected two numbers in I32 or I64",
                       file->path, shape->name, shape->dtype,
                       tensor_info_shape(shape, shown, sizeof shown));
    }
    if (file->bytes != file->opened.bytes)
        return 0;
    const int rc = plat_read_at(file->fd, file->path, numbers, 2 * bytes, shape->parts[0].offset,
                                err);
    const uint64_t rows = little_endian(numbers, bytes);
    const uint64_t cols = little_endian(numbers + bytes, bytes);
    if (rc == 0 && (rows != t->dims[0] || cols != t->dims[1]))
        return err_set(err, FM_ERR_FORMAT,
                       "%s: tensor '%.160s' has the values [%llu, %llu], but the codes and scales "
                       "of '%.160s' are [%llu, %llu]",
                       file->path, shape->name, (unsigned long long)rows, (unsigned long long)cols,
                       t->name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1]);
    return rc;
}

static int fold_packed(struct source *s, struct tensor_info *t, const struct tensor_info *scales,
                       const struct tensor_info *shape, struct fm_error *err)
{
    const struct quant *quant = scales->quant == &quant_bf16  ? quant_find("int4-g32")
                                : scales->quant == &quant_f16 ? quant_find("int4-g32-f16") : NULL;
    if (!refuse_expects_packed(&s->config))
        return err_set(err, FM_ERR_FORMAT,
                       "%s: tensor '%.160s' is packed, but %s has no quantization_config with "
                       "quant_method \"compressed-tensors\" to say how",
                       path_of(s, t), t->name, s->config.file);
    if (quant == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: tensor '%.160s' has dtype %s; scales of packed weights must be BF16 "
                       "or F16",
                       path_of(s, scales), scales->name, scales->dtype);
    if (t->n_dims != 2 || !has_same_outer(t, scales, 1) ||
        t->dims[1] / INT4_WORDS != scales->dims[1] || t->dims[1] % INT4_WORDS != 0)
        return wrong_shapes(s, t, scales, "4 words and one scale per 32 columns are expected", err);
    t->quant = quant;
    t->dtype = "I32 + scales";
    t->dims[1] = scales->dims[1] * INT4_BLOCK; /* cannot overflow: half of it is in bytes */
    t->n_parts = 2;
    t->parts[1] = scales->parts[0];
    return check_packed_shape(s, t, shape, err);
}

/* Gives folded tensors the name that they have where nothing is packed. */
static int rename_packed(struct source *s, struct fm_error *err)
{
    const size_t cut = strlen(packed_suffix) - strlen(weight_suffix);
    size_t n = 0;
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct tensor_info *t = &s->tensors[i];
        if (t->n_parts != 2 || !name_has_suffix(t->name, packed_suffix))
            continue;
        char *name = (char *)(uintptr_t)t->name; /* the source owns it */
        name[strlen(name) - cut] = '\0';
        n++;
    }
    return n > 0 ? source_sort_tensors(s, err) : 0;
}

/* ---- all of them ---------------------------------------------------------------------------- */

/* Drops a tensor that was folded into another one or is not used. */
static void drop(const struct source *s, const struct tensor_info *t, bool *is_gone)
{
    is_gone[t - s->tensors] = true;
}

static int fold_one_packed(struct source *s, struct tensor_info *t, bool *is_gone,
                           struct fm_error *err)
{
    const struct tensor_info *scales = find_beside(s, t, packed_suffix, ".weight_scale");
    const struct tensor_info *shape = find_beside(s, t, packed_suffix, ".weight_shape");
    if (scales == NULL || shape == NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: tensor '%.160s' has no '%s' beside it",
                       path_of(s, t), t->name, scales == NULL ? "weight_scale" : "weight_shape");
    int rc = refuse_beside_packed(s, t, err);
    if (rc == 0)
        rc = fold_packed(s, t, scales, shape, err);
    if (rc == 0) {
        drop(s, scales, is_gone);
        drop(s, shape, is_gone);
    }
    return rc;
}

static int fold_one(struct source *s, struct tensor_info *t, bool *is_gone, struct fm_error *err)
{
    if (strcmp(t->dtype, "U32") == 0 && name_has_suffix(t->name, weight_suffix)) {
        const struct tensor_info *scales = find_beside(s, t, weight_suffix, ".scales");
        const struct tensor_info *biases = find_beside(s, t, weight_suffix, ".biases");
        if (scales == NULL)
            return 0;
        if (biases == NULL && strcmp(scales->dtype, "U8") == 0) {
            drop(s, scales, is_gone);
            return fold_words(s, t, scales, err);
        }
        int rc = fold_affine(s, t, scales, biases, err);
        if (rc == 0) {
            drop(s, scales, is_gone);
            drop(s, biases, is_gone);
        }
        return rc;
    }
    if (strcmp(t->dtype, "U8") == 0 && name_has_suffix(t->name, blocks_suffix)) {
        const struct tensor_info *scales = find_beside(s, t, blocks_suffix, "_scales");
        if (scales == NULL)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: tensor '%.160s' has no scales: MXFP4 needs a tensor '..._scales'",
                           path_of(s, t), t->name);
        drop(s, scales, is_gone);
        return fold_blocks(s, t, scales, err);
    }
    if (strcmp(t->dtype, "I32") == 0 && name_has_suffix(t->name, packed_suffix))
        return fold_one_packed(s, t, is_gone, err);
    if (strcmp(t->dtype, "F8_E4M3") == 0) {
        const struct tensor_info *scales = find_beside(s, t, "", "_scale_inv");
        if (scales == NULL && scale_of_table(s, t) != NULL) {
            t->quant = &quant_fp8_codes; /* who binds the table takes the scale */
            return 0;
        }
        if (scales == NULL)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: tensor '%.160s' is F8_E4M3 without '%.160s_scale_inv': this "
                           "version reads FP8 with one scale per 128 x 128 weights",
                           path_of(s, t), t->name, t->name);
        int rc = fold_fp8(s, t, scales, err);
        if (rc == 0)
            drop(s, scales, is_gone);
        return rc;
    }
    if (name_has_suffix(t->name, ".activation_scale") || name_has_suffix(t->name, ".input_scale"))
        drop(s, t, is_gone);
    return 0;
}

int fold_quantised(struct source *source, const struct source_options *options,
                   struct fm_error *err)
{
    bool *is_gone = mem_new(source->n_tensors, sizeof *is_gone, "the tensor list", err);
    if (is_gone == NULL)
        return FM_ERR_NOMEM;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < source->n_tensors; i++)
        if (source_wants_tensor(options, source->tensors[i].name))
            rc = fold_one(source, &source->tensors[i], is_gone, err);
    size_t n_kept = 0;
    for (size_t i = 0; i < source->n_tensors; i++)
        if (!is_gone[i])
            source->tensors[n_kept++] = source->tensors[i];
    source->n_tensors = n_kept;
    mem_free(is_gone);
    return rc != 0 ? rc : rename_packed(source, err);
}
