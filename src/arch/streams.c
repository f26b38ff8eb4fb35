#include "arch/streams.h"

#include <assert.h>

#include "arch/mix_attention.h"
#include "arch/mix_delta_net.h"
#include "base/limits.h"
#include "base/mem.h"

static const struct streams *streams_of(const struct transformer *t)
{
    return t->more;
}

static uint32_t width_of(const struct transformer *t)
{
    return t->n_streams * t->hidden;
}

/* ---- opening --------------------------------------------------------------------------------- */

int streams_read(struct transformer *t, const struct config *c, struct fm_error *err)
{
    struct ngram_shape ngram = {0};
    uint32_t rank = 0;
    int rc = config_uint_or(c, "hc_count", 2, LIMIT_STREAMS, 4, &t->n_streams, err);
    if (rc == 0)
        rc = config_uint_or(c, "hc_lowrank", 1, LIMIT_HIDDEN, 320, &rank, err);
    if (rc == 0 && (uint64_t)t->n_streams * t->hidden > LIMIT_HIDDEN)
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "%s: field 'hc_count' is %u with hidden_size %u; this version computes rows "
                     "of at most %u numbers", c->file, t->n_streams, t->hidden, LIMIT_HIDDEN);
    if (rc == 0)
        rc = ngram_read(&ngram, t, c, err);
    if (rc != 0)
        return rc;
    const size_t layers = sizeof(struct streams) + t->n_layers * sizeof(struct stream_layer);
    struct streams *s = mem_new(1, layers + ngram.n_tables * sizeof(struct ngram),
                                "the streams of a model", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    t->more = s;
    s->rank = rank;
    s->ngram = ngram;
    s->tables = (struct ngram *)(void *)((char *)s + layers);
    return 0;
}

/* A table's state follows that of the delta rule, whose layers alone have one. */
int streams_check(const struct transformer *t, const struct config *c, struct fm_error *err)
{
    const struct ngram_shape *ngram = &streams_of(t)->ngram;
    for (uint32_t i = 0; i < ngram->n_tables; i++)
        if (t->layers[ngram->layers[i]].mixer != &mixer_delta_net)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: field 'ple_layer_ids' names layer %u, which is not of type "
                           "\"linear_attention\" (layer_types, full_attention_interval)",
                           c->file, ngram->layers[i] + 1);
    return 0;
}

static void bind_gate(struct binder *b, const struct transformer *t, struct stream_gate *gate,
                      enum vector_transform norm, bool injects, const char *prefix,
                      const char *name)
{
    const uint32_t wide = width_of(t), rank = streams_of(t)->rank;
    binder_vector(b, &gate->norm, wide, norm, "%s%s.hc_norm.weight", prefix, name);
    binder_matrix(b, &gate->down, TENSOR_MATRIX, rank, wide, "%s%s.input_mix_weight_down.weight",
                  prefix, name);
    binder_matrix(b, &gate->up, TENSOR_MATRIX, wide, rank, "%s%s.input_mix_weight_up.weight",
                  prefix, name);
    if (injects)
        binder_matrix(b, &gate->inject, TENSOR_GATE, t->n_streams, wide,
                      "%s%s.block_inject_weight.weight", prefix, name);
}

void streams_bind(struct binder *b, const struct transformer *t, struct transformer_layer *l,
                  const struct layer_names *names)
{
    struct streams *s = t->more;
    struct stream_layer *layer = &s->layers[names->layer];
    (void)l;
    bind_gate(b, t, &layer->mix, names->norm, true, names->prefix, "attn_hyper_connection");
    bind_gate(b, t, &layer->ffn, names->norm, true, names->prefix, "mlp_hyper_connection");
    for (uint32_t i = 0; i < s->ngram.n_tables; i++)
        if (s->ngram.layers[i] == names->layer) {
            layer->ngram = &s->tables[i];
            ngram_bind(layer->ngram, &s->ngram, i, b, t, names);
        }
}

void streams_bind_last(struct binder *b, struct transformer *t, const struct layer_names *names)
{
    struct streams *s = t->more;
    static const char *const parts[] = {"hc_norm", "input_mix_weight_down", "input_mix_weight_up"};
    if (binder_has_head(b)) {
        bind_gate(b, t, &s->last, names->norm, false, names->prefix, "hyper_connection_mixer");
        return;
    }
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++)
        binder_leave(b, "%shyper_connection_mixer.%s.weight", names->prefix, parts[i]);
}

/* ---- buffers --------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Scratch of a gate, in floats of a row. */
static uint64_t gate_floats(const struct transformer *t)
{
    return 2ull * width_of(t) + streams_of(t)->rank;
}

/* Everything that lies in step->mix. */
struct buffers {
    struct mix_buffers mix;
    float *inject; /* [n, n_streams] from the gate to where the block's result is added */
    float *gate;   /* [n, gate_floats] */
};

static struct buffers buffers_of(const struct step *step)
{
    const struct transformer *t = transformer_of(step);
    const size_t n = step->n_rows;
    float *rope = step->mix, *block_rope = rope + n * t->rotary_dim;
    float *out = block_rope + n * t->rotary_dim, *inject = out + n * t->hidden;
    float *gate = inject + n * t->n_streams;
    return (struct buffers){
        .mix = {.rope = rope, .block_rope = block_rope, .out = out,
                .scratch = gate + n * gate_floats(t)},
        .inject = inject, .gate = gate};
}

void streams_sizes(const void *arch, struct arch_sizes *sizes)
{
    const struct transformer *t = arch;
    const struct streams *s = streams_of(t);
    blocks_sizes(arch, sizes);
    const uint64_t mixer = sizes->mix_floats_per_row - t->rotary_dim - t->hidden;
    sizes->mix_floats_per_row = 2ull * t->rotary_dim + t->hidden + t->n_streams + gate_floats(t) +
                                larger(mixer, ngram_floats_per_row(&s->ngram, t));
    sizes->max_cols = (uint32_t)larger(larger(sizes->max_cols, width_of(t)),
                                       larger(s->rank, s->ngram.width));
    sizes->head_floats_per_row = gate_floats(t);
}

void streams_state(const void *arch, uint32_t layer, struct layer_state *state)
{
    const struct transformer *t = arch;
    const struct ngram *ngram = streams_of(t)->layers[layer].ngram;
    blocks_state(arch, layer, state);
    if (ngram == NULL)
        return;
    assert(state->n_parts == NGRAM_CONV);
    layer_state_add(state, ngram_state(ngram, t));
}

/* ---- running --------------------------------------------------------------------------------- */

/* Each stream begins as the embedding. */
void streams_embed(struct step *step)
{
    const struct transformer *t = transformer_of(step);
    int32_t tokens[256];
    const uint32_t at_once = 256 / t->n_streams;
    for (uint32_t first = 0; first < step->n_rows; first += at_once) {
        const uint32_t left = step->n_rows - first, n = left < at_once ? left : at_once;
        for (uint32_t i = 0; i < n * t->n_streams; i++)
            tokens[i] = step->tokens[first + i / t->n_streams];
        step->be->ops->embed(step->be, &t->embedding, tokens, (size_t)n * t->n_streams,
                             step->x + (size_t)first * width_of(t));
    }
}

/* The second table is that of the first positions of the blocks that end at the rows. */
void streams_place(struct step *step)
{
    const struct transformer *t = transformer_of(step);
    const struct buffers b = buffers_of(step);
    uint32_t positions[256];
    blocks_place(step);
    for (uint32_t first = 0; first < step->n_rows; first += 256) {
        const uint32_t left = step->n_rows - first, n = left < 256 ? left : 256;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t at = step->positions[first + i];
            positions[i] = at + 1 > t->index_ratio ? at + 1 - t->index_ratio : 0;
        }
        step->be->ops->rope_table(step->be, positions, n, t->rope_frequencies, t->rotary_dim,
                                  (float)t->rope.attention_factor,
                                  (float *)b.mix.block_rope + (size_t)first * t->rotary_dim);
    }
}

/* Makes one row of the streams of each row of x, and the factors of `inject` unless it is NULL.
 * `scratch` is [n, gate_floats]. */
static void run_gate(const struct stream_gate *gate, struct step *step, const float *x, size_t n,
                     float *scratch, float *inject, float *out)
{
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t wide = width_of(t), rank = streams_of(t)->rank;
    float *normed = scratch, *shares = normed + n * wide, *low = shares + n * wide;
    const struct backend_product products[] = {{&gate->down, low, NULL},
                                               {&gate->inject, inject, NULL}};
    be->ops->streams->norm(be, &(struct backend_stream_norm){
        .x = x, .weight = gate->norm, .eps = t->eps, .n_streams = t->n_streams, .dim = t->hidden,
        .y = normed}, n);
    be->ops->input(be, normed, n, wide);
    be->ops->matmul(be, products, inject != NULL ? 2 : 1);
    be->ops->streams->silu(be, low, (float)t->n_streams, n * rank);
    be->ops->input(be, low, n, rank);
    be->ops->matmul(be, &(struct backend_product){&gate->up, shares, NULL}, 1);
    be->ops->streams->mean(be, &(struct backend_stream_mean){
        .x = normed, .gate = shares, .n_streams = t->n_streams, .dim = t->hidden, .out = out}, n);
}

static void add_block(struct step *step, const float *y, const float *inject)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->streams->add(step->be, &(struct backend_stream_add){
        .y = y, .gate = inject, .n_streams = t->n_streams, .dim = t->hidden, .x = step->x},
        step->n_rows);
}

void streams_mix(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    const struct stream_layer *s = &streams_of(t)->layers[layer];
    const struct transformer_layer *l = &t->layers[layer];
    const struct buffers b = buffers_of(step);
    if (s->ngram != NULL)
        ngram_run(s->ngram, step, b.mix.scratch);
    run_gate(&s->mix, step, step->x, step->n_rows, b.gate, b.inject, step->normed);
    l->mixer->run(l->mix, step, &b.mix);
    add_block(step, b.mix.out, b.inject);
}

void streams_route(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[layer];
    const struct buffers b = buffers_of(step);
    run_gate(&streams_of(t)->layers[layer].ffn, step, step->x, step->n_rows, b.gate, b.inject,
             step->normed);
    l->block->route(l->ffn, step);
}

void streams_predict(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[layer];
    run_gate(&streams_of(t)->layers[layer].ffn, step, step->x, step->n_rows,
             buffers_of(step).gate, NULL, step->ahead_normed);
    l->block->predict(l->ffn, step);
}

void streams_close(struct step *step, uint32_t layer)
{
    const struct transformer_layer *l = &transformer_of(step)->layers[layer];
    l->block->close(l->ffn, step);
    add_block(step, step->ffn, buffers_of(step).inject);
}

void streams_table_rows(const void *arch, uint32_t table, const int32_t *recent, uint64_t *rows)
{
    const struct streams *s = streams_of(arch);
    for (uint32_t i = 0; i < s->ngram.n_tables; i++)
        if (s->layers[s->ngram.layers[i]].ngram != NULL && s->tables[i].table == table) {
            ngram_rows(&s->tables[i], recent, rows);
            return;
        }
    assert(!"there is such a table");
}

void streams_final_norm(struct step *step, const float *x, uint32_t n, float *normed)
{
    run_gate(&streams_of(transformer_of(step))->last, step, x, n, step->head_scratch, NULL, normed);
}
