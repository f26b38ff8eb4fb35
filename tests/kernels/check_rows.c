/* Checks norms, rotation, the router, and everything that works element by element. */
#include <math.h>
#include <string.h>

#include "check.h"

#define MAX 400

static unsigned take_changed(struct check *c, const char *name, size_t n, enum values values)
{
    const unsigned x = take_output(c, name, FLOAT32, n, 4);
    rng_floats(&c->rng, values, out(c, x), n);
    return x;
}

void check_rms_norm(struct check *c)
{
    const size_t n = rng_length(&c->rng, MAX);
    const enum values values = rng_values(&c->rng);
    const bool is_in_place = rng_chance(&c->rng, 3);
    const float *weight = take_floats(c, "weight", n, rng_values(&c->rng));
    const float *x = is_in_place ? NULL : take_floats(c, "x", n, values);
    const unsigned y = is_in_place ? take_changed(c, "y", n, values)
                                   : take_output(c, "y", FLOAT32, n, 4);
    const float eps = rng_chance(&c->rng, 8) ? 0 : 1e-6f;
    describe(c, "n %zu%s, values %d", n, is_in_place ? " in place" : "", (int)values);
    EACH_SIDE(c, k)
        k->rms_norm(is_in_place ? out(c, y) : x, weight, eps, n, out(c, y));
}

void check_rope_angles(struct check *c)
{
    const size_t half = rng_length(&c->rng, 130);
    const uint32_t position =
        (uint32_t)rng_below(&c->rng, rng_chance(&c->rng, 2) ? 1u << 24 : 4096);
    float *frequencies = take_input(c, "frequencies", half * sizeof(float), 4);
    for (size_t i = 0; i < half; i++)
        frequencies[i] = rng_float(&c->rng, ORDINARY) * (rng_chance(&c->rng, 2) ? 1 : 0x1p-12f);
    const unsigned cosines = take_output(c, "cosines", FLOAT32, half, 4);
    const unsigned sines = take_output(c, "sines", FLOAT32, half, 4);
    describe(c, "position %u, half %zu", (unsigned)position, half);
    EACH_SIDE(c, k)
        k->rope_angles(position, frequencies, (unsigned)half, out(c, cosines), out(c, sines));
}

void check_rotate(struct check *c)
{
    const size_t half = rng_length(&c->rng, 130);
    const enum values values = rng_values(&c->rng);
    const float *cosines = take_floats(c, "cosines", half, ORDINARY);
    const float *sines = take_floats(c, "sines", half, rng_chance(&c->rng, 8) ? ZEROS : ORDINARY);
    const unsigned x = take_changed(c, "x", 2 * half, values);
    describe(c, "half %zu, values %d", half, (int)values);
    EACH_SIDE(c, k)
        k->rotate(out(c, x), cosines, sines, (unsigned)half);
}

void check_silu_mul(struct check *c)
{
    const size_t n = rng_length(&c->rng, MAX);
    const enum values values = rng_values(&c->rng);
    const float *up = take_floats(c, "up", n, rng_values(&c->rng));
    const unsigned gate = take_changed(c, "gate", n, values);
    describe(c, "n %zu, values %d", n, (int)values);
    EACH_SIDE(c, k)
        k->silu_mul(out(c, gate), up, n);
}

void check_gelu_mul(struct check *c)
{
    const size_t n = rng_length(&c->rng, MAX);
    const enum values values = rng_values(&c->rng);
    const float *up = take_floats(c, "up", n, rng_values(&c->rng));
    const unsigned gate = take_changed(c, "gate", n, values);
    describe(c, "n %zu, values %d", n, (int)values);
    EACH_SIDE(c, k)
        k->gelu_mul(out(c, gate), up, n);
}

void check_clamped_swiglu(struct check *c)
{
    const size_t n = rng_length(&c->rng, MAX);
    const enum values values = rng_values(&c->rng);
    const float limit = rng_chance(&c->rng, 2) ? 7.0f : 0.5f; /* some ordinary values are larger */
    const float alpha = rng_chance(&c->rng, 2) ? 1.702f : rng_float(&c->rng, ORDINARY);
    const float *up = take_floats(c, "up", n, rng_values(&c->rng));
    const unsigned gate = take_changed(c, "gate", n, values);
    describe(c, "n %zu, values %d, alpha %.9g, limit %g", n, (int)values, (double)alpha,
             (double)limit);
    EACH_SIDE(c, k)
        k->clamped_swiglu(out(c, gate), up, alpha, limit, n);
}

void check_weighted_sum(struct check *c)
{
    const size_t dim = rng_length(&c->rng, MAX);
    const size_t n = rng_between(&c->rng, 1, rng_chance(&c->rng, 4) ? 64 : 10);
    const float *parts = take_floats(c, "parts", n * dim, rng_values(&c->rng));
    const float *weights = take_floats(c, "weights", n, rng_values(&c->rng));
    const unsigned y = take_output(c, "out", FLOAT32, dim, 4);
    describe(c, "%zu parts of %zu", n, dim);
    EACH_SIDE(c, k)
        k->weighted_sum(parts, weights, (unsigned)n, dim, out(c, y));
}

void check_add_scaled_sigmoid(struct check *c)
{
    const size_t n = rng_length(&c->rng, MAX);
    const float *x = take_floats(c, "x", n, rng_values(&c->rng));
    const unsigned y = take_changed(c, "y", n, rng_values(&c->rng));
    const float gate = rng_float(&c->rng, rng_values(&c->rng));
    describe(c, "n %zu, gate %.9g", n, (double)gate);
    EACH_SIDE(c, k)
        k->add_scaled_sigmoid(out(c, y), x, gate, n);
}

void check_add(struct check *c)
{
    const size_t n = rng_length(&c->rng, MAX);
    const float *x = take_floats(c, "x", n, rng_values(&c->rng));
    const unsigned y = take_changed(c, "y", n, rng_values(&c->rng));
    describe(c, "n %zu", n);
    EACH_SIDE(c, k)
        k->add(out(c, y), x, n);
}

/* A few different logits give many ties. Sorted logits are the most work. */
static void make_logits(struct check *c, float *logits, size_t n)
{
    const size_t kind = rng_below(&c->rng, 6);
    rng_floats(&c->rng, kind == 0 ? rng_values(&c->rng) : kind == 1 ? SPECIAL : ORDINARY, logits,
               n);
    for (size_t i = 0; i < n; i++) {
        if (kind == 2)
            logits[i] = (float)(int)rng_below(&c->rng, 3) - 1.0f;
        else if (kind == 3)
            logits[i] = (float)(int)i * 0.125f;
        else if (kind == 4 && rng_chance(&c->rng, 3))
            logits[i] = rng_chance(&c->rng, 2) ? NAN : -INFINITY;
        else if (kind == 5)
            logits[i] *= 100.0f;
    }
    if (kind == 4 && rng_chance(&c->rng, 8))
        for (size_t i = 0; i < n; i++)
            logits[i] = NAN;
}

void check_route_row(struct check *c)
{
    const size_t n_experts = rng_length(&c->rng, rng_chance(&c->rng, 4) ? 520 : 130);
    const size_t max = n_experts < 64 ? n_experts : 64;
    const size_t k_chosen = rng_chance(&c->rng, 4) ? max
                                                   : rng_between(&c->rng, 1, max < 12 ? max : 12);
    const bool renormalise = rng_chance(&c->rng, 2);
    float *logits = take_input(c, "logits", n_experts * sizeof *logits, 4);
    make_logits(c, logits, n_experts);
    const unsigned ids = take_output(c, "ids", INT32, k_chosen, 4);
    const unsigned weights = take_output(c, "weights", FLOAT32, k_chosen, 4);
    describe(c, "%zu of %zu experts%s", k_chosen, n_experts, renormalise ? ", renormalised" : "");
    EACH_SIDE(c, k)
        k->route_row(logits, (unsigned)n_experts, (unsigned)k_chosen, renormalise, out(c, ids),
                     out(c, weights));
}

/* Chooses groups of at least two experts, and enough of them to have k experts. */
static void choose_groups(struct rng *rng, struct router *r)
{
    r->n_groups = (unsigned)rng_between(rng, 0, 9);
    const size_t size = rng_between(rng, 2, r->n_groups > 4 ? 20 : 70);
    r->n_experts = (unsigned)(r->n_groups > 1 ? r->n_groups * size : rng_length(rng, 300));
    r->n_groups_chosen = (unsigned)rng_between(rng, 1, r->n_groups > 1 ? r->n_groups : 1);
    const size_t max = r->n_groups > 1 ? r->n_groups_chosen * size : r->n_experts;
    r->k = (unsigned)rng_between(rng, 1, max < 64 ? max : 64);
    if (!rng_chance(rng, 4) && r->k > 12)
        r->k = 12;
}

/* Corrections are as large as the scores. Some are equal, so that experts and groups tie. */
void check_route_scored(struct check *c)
{
    struct rng *rng = &c->rng;
    struct router r = {.score = rng_chance(rng, 3) ? ROUTER_SOFTMAX : ROUTER_SIGMOID,
                       .renormalises = rng_chance(rng, 2),
                       .scale = rng_chance(rng, 3) ? 1.0f : 2.5f};
    choose_groups(rng, &r);
    float *logits = take_input(c, "logits", r.n_experts * sizeof *logits, 4);
    make_logits(c, logits, r.n_experts);
    if (!rng_chance(rng, 4)) {
        const enum values values = rng_chance(rng, 8) ? SPECIAL : ORDINARY;
        float *correction = take_floats(c, "correction", r.n_experts, values);
        for (size_t e = 0; values == ORDINARY && rng_chance(rng, 3) && e < r.n_experts; e++)
            correction[e] = (float)(int)rng_below(rng, 3) * 0.25f;
        r.correction = correction;
    }
    const unsigned ids = take_output(c, "ids", INT32, r.k, 4);
    const unsigned weights = take_output(c, "weights", FLOAT32, r.k, 4);
    describe(c, "%s, %u of %u experts, %u of %u groups%s%s",
             r.score == ROUTER_SIGMOID ? "sigmoid" : "softmax", r.k, r.n_experts,
             r.n_groups_chosen, r.n_groups, r.correction != NULL ? ", corrected" : "",
             r.renormalises ? ", renormalised" : "");
    EACH_SIDE(c, k)
        k->route_scored(&r, logits, out(c, ids), out(c, weights));
}

/* The amount of work depends on the level. The function only has to return. */
void check_int8_peak(struct check *c)
{
    const uint64_t n_rounds = rng_below(&c->rng, 20);
    describe(c, "%u rounds", (unsigned)n_rounds);
    EACH_SIDE(c, k)
        if ((k->int8_peak(n_rounds) > 0) != (n_rounds > 0))
            side_fail(c, c->side, "counts what it did not do, or does not count");
}

void check_fma_peak(struct check *c)
{
    const uint64_t n_rounds = rng_below(&c->rng, 20);
    describe(c, "%u rounds", (unsigned)n_rounds);
    EACH_SIDE(c, k)
        if ((k->fma_peak(n_rounds) > 0) != (n_rounds > 0))
            side_fail(c, c->side, "counts what it did not do, or does not count");
}
