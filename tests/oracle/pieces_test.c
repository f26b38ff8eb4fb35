/* Compares the building blocks of layers with transformers' results in float64 (pieces.py):
 * routers, experts with biases and a clamped activation, a dense block with gelu, and attention
 * with windows, sinks, biases and norms over all heads.
 *
 *   pieces_test pieces.json
 *
 * The reference level must be within the tolerance of the file. Every other level must have the
 * same bits, with several threads and, in attention, however the rows are cut into batches. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/ffn.h"
#include "arch/mix_attention.h"
#include "backend/cpu/levels.h"

#define TOLERANCE 2e-6 /* as a share of the largest magnitude of the results */
#define MAX_OUT (1u << 16)

static json_t *at_hand; /* the current case */
static unsigned n_failed;

static void fail(const char *what, const char *level, size_t i, double got, double want)
{
    n_failed++;
    printf("FAILED: %s '%s', level %s: %s[%zu] is %.9g, expected %.9g\n",
           json_string_value(json_object_get(at_hand, "kind")),
           json_string_value(json_object_get(at_hand, "name")), level, what, i, got, want);
}

static uint32_t number(const char *field)
{
    return (uint32_t)json_integer_value(json_object_get(at_hand, field));
}

static float real_or(const char *field, double fallback)
{
    const json_t *value = json_object_get(at_hand, field);
    return (float)(value != NULL ? json_number_value(value) : fallback);
}

static bool flag(const char *field)
{
    return json_is_true(json_object_get(at_hand, field));
}

/* ---- values: the same as in pieces.py ------------------------------------------------------- */

static uint32_t state;

static float *take(size_t n, float scale)
{
    float *x = malloc(n * sizeof *x);
    if (x == NULL)
        exit(2);
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(((state >> 8) / 8388608.0 - 1.0) * (double)scale);
    }
    return x;
}

static struct weight matrix_of(const float *x, uint32_t n_rows, uint32_t n_cols)
{
    return (struct weight){.quant = &quant_f32, .n_rows = n_rows, .n_cols = n_cols, .parts = {x}};
}

static struct weight take_matrix(uint32_t n_rows, uint32_t n_cols, float scale)
{
    return matrix_of(take((size_t)n_rows * n_cols, scale), n_rows, n_cols);
}

static void drop(const struct weight *w)
{
    free((void *)(uintptr_t)w->parts[0]);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static void compare_numbers(const char *field, const char *level, const float *got)
{
    const json_t *want = json_object_get(at_hand, field);
    double largest = 0;
    for (size_t i = 0; i < json_array_size(want); i++)
        largest = fmax(largest, fabs(json_real_value(json_array_get(want, i))));
    for (size_t i = 0; i < json_array_size(want); i++) {
        const double x = json_real_value(json_array_get(want, i));
        if (!(fabs((double)got[i] - x) <= TOLERANCE * largest)) {
            fail(field, level, i, (double)got[i], x);
            return;
        }
    }
}

/* The first call of a case keeps its result. The others must have the same bits. */
static float first[MAX_OUT];
static size_t n_first;

static void compare_bits(const char *level, const float *got, size_t n)
{
    if (n_first == 0) {
        memcpy(first, got, n * sizeof *got);
        n_first = n;
    }
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &first[i], sizeof *got) != 0) {
            fail("bits", level, i, (double)got[i], (double)first[i]);
            return;
        }
}

/* ---- routers --------------------------------------------------------------------------------- */

static void check_router(struct backend *be)
{
    const bool is_sigmoid =
        strcmp(json_string_value(json_object_get(at_hand, "score")), "sigmoid") == 0;
    struct router r = {.score = is_sigmoid ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                       .n_experts = number("n_experts"), .k = number("k"),
                       .n_groups = number("n_groups"),
                       .n_groups_chosen = number("n_groups_chosen"),
                       .renormalises = flag("renormalises"), .scale = real_or("scale", 1)};
    const size_t n = number("n_rows");
    float *logits = take(n * r.n_experts, 4);
    float *bias = flag("has_bias") ? take(r.n_experts, 1) : NULL;
    float *correction = flag("has_correction") ? take(r.n_experts, 0.5f) : NULL;
    uint32_t *ids = calloc(n * r.k, sizeof *ids);
    float *weights = calloc(n * r.k, sizeof *weights);
    for (size_t i = 0; bias != NULL && i < n * r.n_experts; i++)
        logits[i] += bias[i % r.n_experts];
    r.correction = correction;
    be->ops->route(be, &r, logits, n, ids, weights);
    memory_finish(be->memory);
    for (size_t i = 0; i < n * r.k; i++) {
        const json_int_t id =
            json_integer_value(json_array_get(json_object_get(at_hand, "ids"), i));
        if (ids[i] != id)
            fail("ids", be->level, i, ids[i], (double)id);
    }
    compare_numbers("weights", be->level, weights);
    compare_bits(be->level, weights, n * r.k);
    free(logits), free(bias), free(correction), free(ids), free(weights);
}

/* ---- feed-forward blocks --------------------------------------------------------------------- */

static void check_dense(struct backend *be)
{
    const uint32_t n = number("n_rows"), hidden = number("hidden"), wide = number("intermediate");
    struct transformer t = {.hidden = hidden, .activation = {.kind = ACTIVATION_GELU}};
    struct ffn_dense ffn = {0};
    struct step step = {.arch = &t, .be = be, .n_rows = n, .normed = take((size_t)n * hidden, 1)};
    ffn.weights.gate = take_matrix(wide, hidden, 1);
    ffn.weights.up = take_matrix(wide, hidden, 1);
    ffn.weights.down = take_matrix(hidden, wide, 1);
    step.ffn = calloc((size_t)n * hidden, sizeof(float));
    ffn_block_dense.run(&ffn, &step);
    memory_finish(be->memory);
    compare_numbers("out", be->level, step.ffn);
    compare_bits(be->level, step.ffn, (size_t)n * hidden);
    drop(&ffn.weights.gate), drop(&ffn.weights.up), drop(&ffn.weights.down);
    free(step.normed), free(step.ffn);
}

/* Runs every expert on the rows that chose it, in two calls. */
static void run_experts(struct step *step, const struct ffn_routed *r,
                        const struct expert_layer *layer, char *slots, size_t slot_bytes)
{
    const uint32_t n_pairs = step->n_rows * r->rule.k;
    uint32_t rows[256], places[256], n_used = 0;
    struct step_expert experts[64];
    for (uint32_t e = 0; e < r->rule.n_experts; e++) {
        experts[e] = (struct step_expert){.slot = slots + e * slot_bytes, .expert = e,
                                          .rows = rows + n_used, .places = places + n_used};
        for (uint32_t pair = 0; pair < n_pairs; pair++)
            if (step->ids[pair] == e) {
                rows[n_used] = pair / r->rule.k;
                places[n_used++] = pair;
                experts[e].n++;
            }
    }
    ffn_block_routed.experts(r, step, layer, experts, 2, true);
    ffn_block_routed.experts(r, step, layer, experts + 2, r->rule.n_experts - 2, false);
}

static void check_experts(struct backend *be)
{
    const uint32_t n = number("n_rows"), hidden = number("hidden"), wide = number("intermediate");
    const uint32_t n_experts = number("n_experts"), k = number("k");
    struct transformer t = {
        .hidden = hidden, .expert_intermediate = wide,
        .activation = {ACTIVATION_CLAMPED_SWIGLU, real_or("alpha", 0), real_or("limit", 0)}};
    struct ffn_routed r = {.rule = {.n_experts = n_experts, .k = k, .renormalises = true,
                                    .scale = 1}};
    struct step step = {.arch = &t, .be = be, .n_rows = n, .normed = take((size_t)n * hidden, 2)};
    r.router = take_matrix(n_experts, hidden, 1);
    float *router_bias = take(n_experts, 1);
    const size_t matrix = (size_t)wide * hidden, slot = 3 * matrix;
    float *parts[3], *slots = malloc(n_experts * slot * sizeof *slots);
    struct expert_layer layer = {.n_experts = n_experts};
    for (unsigned m = 0; m < 3; m++) {
        parts[m] = take(n_experts * matrix, 1);
        layer.record.matrices[m].quant = &quant_f32;
        layer.record.matrices[m].n_rows = m == EXPERT_DOWN ? hidden : wide;
        layer.record.matrices[m].n_cols = m == EXPERT_DOWN ? wide : hidden;
        layer.record.matrices[m].part_offset[0] = m * matrix * sizeof(float);
        for (uint32_t e = 0; e < n_experts; e++)
            memcpy(slots + e * slot + m * matrix, parts[m] + e * matrix, matrix * sizeof(float));
    }
    float *gate_bias = take((size_t)n_experts * wide, 4);
    float *up_bias = take((size_t)n_experts * wide, 4);
    float *down_bias = take((size_t)n_experts * hidden, 4);
    r.router_bias = router_bias;
    r.biases = r.host_biases = (struct expert_biases){gate_bias, up_bias, down_bias};
    step.router = calloc((size_t)n * n_experts, sizeof(float));
    step.ids = calloc((size_t)n * k, sizeof(uint32_t));
    step.weights = calloc((size_t)n * k, sizeof(float));
    step.expert_parts = calloc((size_t)n * k * hidden, sizeof(float));
    step.ffn = calloc((size_t)n * hidden, sizeof(float));
    ffn_block_routed.route(&r, &step);
    memory_finish(be->memory);
    run_experts(&step, &r, &layer, (char *)slots, slot * sizeof(float));
    ffn_block_routed.close(&r, &step);
    memory_finish(be->memory);
    compare_numbers("out", be->level, step.ffn);
    compare_bits(be->level, step.ffn, (size_t)n * hidden);
    for (unsigned m = 0; m < 3; m++)
        free(parts[m]);
    drop(&r.router), free(router_bias), free(slots), free(gate_bias), free(up_bias);
    free(down_bias), free(step.normed), free(step.router), free(step.ids), free(step.weights);
    free(step.expert_parts), free(step.ffn);
}

/* ---- attention ------------------------------------------------------------------------------- */

static void take_attention(struct attention *a, uint32_t hidden)
{
    const uint32_t q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim;
    a->q = take_matrix(q, hidden, 0.5f);
    a->k = take_matrix(kv, hidden, 0.5f);
    a->v = take_matrix(kv, hidden, 0.5f);
    a->o = take_matrix(hidden, q, 0.5f);
    if (flag("has_bias")) {
        a->q_bias = take(q, 1), a->k_bias = take(kv, 1), a->v_bias = take(kv, 1);
        a->o_bias = take(hidden, 1);
    }
    a->sinks = flag("has_sinks") ? take(a->n_heads, 4) : NULL;
    if (a->norms == NORM_ALL_HEADS)
        a->q_norm = take(q, 1), a->k_norm = take(kv, 1);
}

static void drop_attention(const struct attention *a)
{
    const float *all[] = {a->q_bias, a->k_bias, a->v_bias, a->o_bias,
                          a->sinks,  a->q_norm, a->k_norm};
    drop(&a->q), drop(&a->k), drop(&a->v), drop(&a->o);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free((void *)(uintptr_t)all[i]);
}

/* Runs the positions of one sequence in batches of this many rows. out is [n, hidden]. */
static void run_attention(const struct attention *a, struct step *step, const float *x, uint32_t n,
                          uint32_t batch, const float *frequencies, float *out)
{
    const struct transformer *t = step->arch;
    const size_t row_bytes = kv_row_bytes(step->kv_format, a->head_dim);
    const size_t half = a->n_kv_heads * row_bytes * step->kv_block_positions;
    struct mixer_sizes sizes = {0};
    mixer_attention.sizes(a, &sizes);
    char *kv = calloc(1, 2 * half * (n / step->kv_block_positions + 1));
    float *rope = malloc((size_t)n * t->rotary_dim * sizeof *rope);
    float *scratch = malloc(n * sizes.floats_per_row * sizeof *scratch);
    step->kv_block_bytes = 2 * half;
    for (uint32_t at = 0; at < n; at += batch) {
        struct backend_segment segment = {.n_rows = n - at < batch ? n - at : batch,
                                          .position = at,
                                          .state = {[ATTENTION_KEYS] = kv,
                                                    [ATTENTION_VALUES] = kv + half}};
        uint32_t positions[512];
        for (uint32_t i = 0; i < segment.n_rows; i++)
            positions[i] = at + i;
        step->be->ops->rope_table(step->be, positions, segment.n_rows, frequencies, t->rotary_dim,
                                  1, rope);
        step->n_rows = segment.n_rows;
        step->segments = &segment;
        step->n_segments = 1;
        step->normed = (float *)(uintptr_t)(x + (size_t)at * t->hidden);
        mixer_attention.run(a, step, &(struct mix_buffers){
            .rope = rope, .out = out + (size_t)at * t->hidden, .scratch = scratch});
    }
    memory_finish(step->be->memory);
    free(kv), free(rope), free(scratch);
}

/* Compares the rows that the file has. */
static void compare_rows(const char *level, const float *out, uint32_t hidden)
{
    const json_t *rows = json_object_get(at_hand, "rows");
    float *chosen = malloc(json_array_size(rows) * hidden * sizeof *chosen);
    for (size_t i = 0; i < json_array_size(rows); i++)
        memcpy(chosen + i * hidden,
               out + (size_t)json_integer_value(json_array_get(rows, i)) * hidden,
               hidden * sizeof *chosen);
    compare_numbers("out", level, chosen);
    free(chosen);
}

static void check_attention(struct backend *be)
{
    static const uint32_t batches[] = {512, 37, 1};
    const uint32_t n = number("n_rows"), hidden = number("hidden");
    const bool has_norms = strcmp(json_string_value(json_object_get(at_hand, "norms")), "all") == 0;
    struct transformer t = {.hidden = hidden, .rotary_dim = number("rotary_dim")};
    struct attention a = {.n_heads = number("n_heads"), .n_kv_heads = number("n_kv_heads"),
                          .head_dim = number("head_dim"), .eps = real_or("eps", 0),
                          .window = number("window"),
                          .norms = has_norms ? NORM_ALL_HEADS : NORM_NO_HEADS};
    struct step step = {.arch = &t, .be = be, .kv_format = &kv_f32, .kv_block_positions = 256};
    float frequencies[64];
    const struct rope rope = {.kind = ROPE_DEFAULT, .theta = (double)real_or("theta", 0),
                              .factor = 1, .attention_factor = 1};
    rope_frequencies(&rope, t.rotary_dim, frequencies);
    a.scale = 1.0f / sqrtf((float)a.head_dim);
    float *x = take((size_t)n * hidden, 1), *out = malloc((size_t)n * hidden * sizeof *out);
    take_attention(&a, hidden);
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        run_attention(&a, &step, x, n, batches[i], frequencies, out);
        compare_rows(be->level, out, hidden);
        compare_bits(be->level, out, (size_t)n * hidden);
    }
    drop_attention(&a);
    free(x), free(out);
}

/* ---- all cases on all levels ----------------------------------------------------------------- */

static void check_case(const char *level, unsigned n_threads)
{
    static const struct {
        const char *kind;
        void (*check)(struct backend *be);
    } kinds[] = {{"router", check_router}, {"dense", check_dense}, {"experts", check_experts},
                 {"attention", check_attention}};
    const struct backend_options options = {
        .n_threads = n_threads, .cpu = level, .max_cols = 128, .max_rows = 512,
        .max_ffn_rows = 128, .max_intermediate = 64, .n_heads = 8, .head_dim = 16,
        .n_context = 1024};
    const char *kind = json_string_value(json_object_get(at_hand, "kind"));
    struct fm_error err;
    struct backend *be;
    if (backend_open(NULL, &options, &be, &err) != 0) {
        printf("pieces_test: %s\n", err.text);
        exit(2);
    }
    state = number("seed");
    size_t i = 0;
    while (strcmp(kinds[i].kind, kind) != 0)
        i++;
    kinds[i].check(be);
    backend_close(be);
}

int main(int argc, char **argv)
{
    json_error_t error;
    json_t *cases = argc == 2 ? json_load_file(argv[1], 0, &error) : NULL;
    if (cases == NULL) {
        fprintf(stderr, "usage: pieces_test pieces.json\n");
        return 2;
    }
    for (size_t i = 0; i < json_array_size(cases); i++) {
        at_hand = json_array_get(cases, i);
        n_first = 0;
        for (unsigned l = 0; level_at(l) != NULL; l++)
            if (level_at(l)->is_there()) {
                check_case(level_at(l)->name, 1);
                check_case(level_at(l)->name, 3);
            }
    }
    printf("%zu cases, %u failures\n", json_array_size(cases), n_failed);
    json_decref(cases);
    return n_failed > 0;
}
