#include "arch/ngram.h"

#include <assert.h>
#include <string.h>

#include "arch/recurrent.h"
#include "base/limits.h"
#include "base/splitmix.h"

/* ---- configuration --------------------------------------------------------------------------- */

static uint32_t n_heads_of(const struct ngram_shape *s)
{
    return (s->order - 1) * s->heads_per_order;
}

/* Reads ple_layer_ids, which count layers from 1, in any order. */
static int read_layers(struct ngram_shape *s, const struct transformer *t, const struct config *c,
                       struct fm_error *err)
{
    const json_t *list = config_find(c, "ple_layer_ids");
    if (list != NULL && !json_is_array(list))
        return err_set(err, FM_ERR_FORMAT, "%s: field 'ple_layer_ids' is not a list", c->file);
    bool has_table[LIMIT_LAYERS] = {false};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const json_int_t id = json_integer_value(entry);
        if (!json_is_integer(entry) || id < 1 || id > t->n_layers)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: field 'ple_layer_ids[%zu]' is no layer from 1 to %u "
                           "(num_hidden_layers)", c->file, i, t->n_layers);
        has_table[id - 1] = true;
    }
    for (uint32_t i = 0; i < t->n_layers; i++) {
        if (!has_table[i])
            continue;
        if (s->n_tables == MODEL_MAX_TABLES)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: field 'ple_layer_ids' names more than %d layers", c->file,
                           MODEL_MAX_TABLES);
        s->layers[s->n_tables++] = i;
    }
    return 0;
}

/* Reads a number of a list of ple_hash. */
static int read_hash_number(const struct ngram_shape *s, const struct config *c, const char *list,
                            uint32_t i, int64_t max, int64_t *out, struct fm_error *err)
{
    const json_t *value = json_array_get(json_object_get(s->hash, list), i);
    const json_int_t x = json_integer_value(value);
    if (!json_is_integer(value) || x < 0 || x > max)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: number %u of '%s' of the hash of n-grams is %s%lld, expected 0 to %lld",
                       c->file, i, list, json_is_integer(value) ? "" : "no integer: ",
                       (long long)x, (long long)max);
    *out = x;
    return 0;
}

/* Reads the numbers that a file has in place of the fields that they follow from. No product of a
 * token and a factor overflows, and no head has more rows than an index can name. */
static int read_hash(struct ngram_shape *s, const struct config *c, struct fm_error *err)
{
    const json_t *end = json_object_get(s->hash, "end_token");
    int rc = 0;
    if (s->n_tables != 1)
        return err_set(err, FM_ERR_UNSUPPORTED, "%s: the hash of n-grams is that of one table, but "
                       "%u layers have one", c->file, s->n_tables);
    for (uint32_t i = 0; rc == 0 && i < s->order; i++)
        rc = read_hash_number(s, c, "multipliers", i, INT64_MAX / s->vocabulary, &s->factors[i],
                              err);
    for (uint32_t h = 0; rc == 0 && h < n_heads_of(s); h++) {
        rc = read_hash_number(s, c, "sizes", h, INT32_MAX, &s->sizes[h], err);
        if (rc == 0)
            rc = read_hash_number(s, c, "offsets", h, INT64_MAX / 2, &s->offsets[h], err);
        if (rc == 0 && s->sizes[h] == 0)
            rc = err_set(err, FM_ERR_FORMAT, "%s: number %u of 'sizes' of the hash of n-grams is 0",
                         c->file, h);
    }
    if (rc == 0 && (!json_is_integer(end) || json_integer_value(end) < 0 ||
                    json_integer_value(end) >= s->vocabulary))
        rc = err_set(err, FM_ERR_FORMAT, "%s: the hash of n-grams has no end token below %u",
                     c->file, s->vocabulary);
    s->end_token = (uint32_t)json_integer_value(end);
    return rc;
}

/* The token that ends a text: n-grams do not reach over it. */
static int read_end_token(struct ngram_shape *s, const struct config *c, struct fm_error *err)
{
    const json_t *value = config_find(c, "eos_token_id");
    const json_t *first = json_is_array(value) ? json_array_get(value, 0) : value;
    const json_int_t id = json_integer_value(first);
    if (!json_is_integer(first) || id < 0 || id >= s->vocabulary)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'eos_token_id' has no token below %u (vocab_size), which "
                       "ple_layer_ids need", c->file, s->vocabulary);
    s->end_token = (uint32_t)id;
    return 0;
}

int ngram_read(struct ngram_shape *s, const struct transformer *t, const struct config *c,
               struct fm_error *err)
{
    int rc = read_layers(s, t, c, err);
    if (rc != 0 || s->n_tables == 0)
        return rc;
    s->vocabulary = t->vocabulary;
    rc = config_uint_or(c, "ngram_size", 2, MODEL_MAX_RECENT, 3, &s->order, err);
    if (rc == 0)
        rc = config_uint_or(c, "heads_per_ngram", 1, NGRAM_MAX_HEADS / (s->order - 1), 8,
                            &s->heads_per_order, err);
    if (rc == 0)
        rc = config_uint_or(c, "ple_embed_dim", 1, LIMIT_HIDDEN, t->hidden, &s->width, err);
    if (rc == 0)
        rc = config_uint_or(c, "ple_conv_kernel_size", 1, LIMIT_CONV_KERNEL, 4, &s->conv_kernel,
                            err);
    if (rc == 0)
        rc = config_uint_or(c, "ngram_vocab_size_base", 1, 1u << 30, 20000000, &s->first_size,
                            err);
    if (rc == 0)
        rc = config_uint_or(c, "make_ngram_vocab_size_divisible_by", 1, 1u << 20, 128,
                            &s->padding, err);
    if (rc == 0)
        rc = config_uint_or(c, "seed", 0, UINT32_MAX, 1234, &s->seed, err);
    if (rc == 0)
        rc = config_uint_or(c, "split_ngram_parts", 1, LIMIT_SHARDS, 512, &s->n_parts, err);
    s->hash = config_find(c, "ple_hash");
    if (rc == 0)
        rc = s->hash != NULL ? read_hash(s, c, err) : read_end_token(s, c, err);
    if (rc == 0 && s->width % n_heads_of(s) != 0)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: field 'ple_embed_dim' is %u, which the %u heads of ngram_size and "
                     "heads_per_ngram do not divide", c->file, s->width, n_heads_of(s));
    return rc;
}

/* ---- the hash -------------------------------------------------------------------------------- */

static bool is_prime(int64_t n)
{
    if (n < 4)
        return n > 1;
    if (n % 2 == 0)
        return false;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0)
            return false;
    return true;
}

/* All tables of a model use one sequence of primes: each head has as many rows as the next one
 * says, from first_size on. */
static int64_t make_sizes(struct ngram *n, const struct ngram_shape *s, uint32_t index)
{
    const uint32_t n_heads = n_heads_of(s);
    int64_t size = (int64_t)s->first_size - 1, all = 0;
    for (uint32_t i = 0; i < (index + 1) * n_heads; i++) {
        do
            size++;
        while (!is_prime(size));
        if (i < index * n_heads)
            continue;
        n->sizes[i % n_heads] = size;
        n->offsets[i % n_heads] = all;
        all += size;
    }
    return all;
}

/* Odd factors below 2^63 by the vocabulary, so that no product overflows. */
static void make_factors(struct ngram *n, const struct ngram_shape *s, uint32_t index)
{
    const uint64_t half = (uint64_t)INT64_MAX / s->vocabulary / 2;
    const uint64_t seed = s->seed + 10007ull * index;
    for (uint32_t i = 0; i < s->order; i++)
        n->factors[i] = (int64_t)(2 * (splitmix_at(seed, i + 1) % half) + 1);
}

void ngram_rows(const struct ngram *n, const int32_t *recent, uint64_t *rows)
{
    int64_t mixed = recent[0] * n->factors[0];
    bool has_ended = false; /* the text that the token belongs to begins behind it */
    for (uint32_t i = 1; i < n->order; i++) {
        has_ended = has_ended || recent[i] < 0 || (uint32_t)recent[i] == n->end_token;
        mixed ^= (has_ended ? (int64_t)n->end_token : recent[i]) * n->factors[i];
        for (uint32_t h = (i - 1) * n->heads_per_order; h < i * n->heads_per_order; h++)
            rows[h] = (uint64_t)(mixed % n->sizes[h] + n->offsets[h]);
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Copies the numbers of the hash. Returns the rows that they name; the table may have more. */
static uint64_t copy_hash(struct ngram *n, const struct ngram_shape *s)
{
    uint64_t end = 0;
    memcpy(n->factors, s->factors, sizeof n->factors);
    memcpy(n->sizes, s->sizes, sizeof n->sizes);
    memcpy(n->offsets, s->offsets, sizeof n->offsets);
    for (uint32_t h = 0; h < n_heads_of(s); h++) {
        const uint64_t own = (uint64_t)(s->offsets[h] + s->sizes[h]);
        end = own > end ? own : end;
    }
    return end;
}

/* The rows of a table whose padding is not known: as many as the tensor has. */
static uint64_t rows_found(struct binder *b, uint64_t used, const char *prefix)
{
    const struct tensor_info *t = binder_find(b, "%sweight", prefix);
    return t != NULL && t->n_dims == 2 && t->dims[0] > used ? t->dims[0] : used;
}

static void bind_table(struct ngram *n, const struct ngram_shape *s, uint32_t index,
                       struct binder *b, const struct layer_names *names)
{
    const uint32_t n_heads = n_heads_of(s);
    const uint64_t used = s->hash != NULL ? copy_hash(n, s) : (uint64_t)make_sizes(n, s, index);
    uint64_t n_rows = (used + s->padding - 1) / s->padding * s->padding;
    const struct row_table shape = {.layer = names->layer, .n_per_token = n_heads,
                                    .n_recent = s->order, .n_cols = s->width / n_heads};
    char prefix[LAYER_PREFIX_BYTES + 64];
    (void)snprintf(prefix, sizeof prefix, "%sple.ple_embedding.", names->prefix);
    binder_expect_integers(b, n->factors, s->order, "%slayer_multipliers", prefix);
    binder_expect_integers(b, n->sizes, n_heads, "%sngram_heads_vocab_sizes", prefix);
    binder_expect_integers(b, n->offsets, n_heads, "%sngram_heads_offsets", prefix);
    (void)snprintf(prefix, sizeof prefix, "%sple.ple_embedding.ngram_embedding.", names->prefix);
    if (s->hash != NULL)
        n_rows = rows_found(b, used, prefix);
    n->table = binder_row_table(b, &shape, n_rows, s->n_parts, prefix);
}

void ngram_bind(struct ngram *n, const struct ngram_shape *s, uint32_t index, struct binder *b,
                const struct transformer *t, const struct layer_names *names)
{
    const uint32_t wide = t->n_streams * t->hidden;
    const char *prefix = names->prefix;
    n->order = s->order;
    n->heads_per_order = s->heads_per_order;
    n->end_token = s->end_token;
    n->width = s->width;
    n->conv_kernel = s->conv_kernel;
    if (s->hash == NULL)
        make_factors(n, s, index);
    bind_table(n, s, index, b, names);
    binder_matrix(b, &n->key, TENSOR_MATRIX, wide, s->width, "%sple.key_proj.weight", prefix);
    binder_matrix(b, &n->value, TENSOR_MATRIX, t->hidden, s->width, "%sple.value_proj.weight",
                  prefix);
    binder_vector(b, &n->norm_key, wide, names->norm, "%sple.norm_key.weight", prefix);
    binder_vector(b, &n->norm_query, wide, names->norm, "%sple.norm_query.weight", prefix);
    binder_vector(b, &n->norm_conv, wide, names->norm, "%sple.norm_conv.weight", prefix);
    binder_table(b, &n->conv, wide, s->conv_kernel, "%sple.conv1d.weight", prefix);
}

/* ---- running --------------------------------------------------------------------------------- */

struct state_part ngram_state(const struct ngram *n, const struct transformer *t)
{
    const uint64_t kept = (n->conv_kernel - 1ull) * n->order;
    return (struct state_part){.kind = STATE_RECURRENT,
                               .bytes = kept * t->n_streams * t->hidden * sizeof(float)};
}

uint64_t ngram_floats_per_row(const struct ngram_shape *s, const struct transformer *t)
{
    return s->n_tables > 0 ? (3ull * t->n_streams + 1) * t->hidden : 0;
}

static void run_segments(void *ctx, struct backend *be, const struct backend_segment *segments,
                         size_t n)
{
    struct backend_ngram_conv *args = ctx;
    args->segments = segments;
    args->n_segments = n;
    be->ops->streams->ngram_conv(be, args);
}

static void norm(struct step *step, const float *x, const float *weight, float *y)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->streams->norm(step->be, &(struct backend_stream_norm){
        .x = x, .weight = weight, .eps = t->eps, .n_streams = t->n_streams, .dim = t->hidden,
        .y = y}, step->n_rows);
}

void ngram_run(const struct ngram *n, struct step *step, float *scratch)
{
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t rows = step->n_rows, wide = (size_t)t->n_streams * t->hidden;
    float *key = scratch, *query = key + rows * wide, *gated = query + rows * wide;
    float *value = gated + rows * wide;
    const struct backend_product products[] = {{&n->key, key, NULL}, {&n->value, value, NULL}};
    be->ops->input(be, step->looked_up, rows, n->width);
    be->ops->matmul(be, products, 2);
    norm(step, key, n->norm_key, key);
    norm(step, step->x, n->norm_query, query);
    be->ops->streams->ngram_gate(be, &(struct backend_ngram_gate){
        .key = key, .query = query, .value = value, .n_streams = t->n_streams, .dim = t->hidden,
        .out = gated}, rows);
    norm(step, gated, n->norm_conv, query);
    /* The mixer copies its own parts at a mark. */
    struct layer_state state = {.n_parts = NGRAM_CONV + 1};
    state.parts[NGRAM_CONV] = ngram_state(n, t);
    struct backend_ngram_conv conv = {
        .kernel = n->conv_kernel, .distance = n->order, .channels = (unsigned)wide,
        .weight = n->conv, .gated = gated, .normed = query, .x = step->x};
    recurrent_run(be, &state, step->segments, step->n_segments, false, run_segments,
                  &conv);
}
