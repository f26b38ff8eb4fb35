#include "lab/routes.h"

#include <stdio.h>
#include <string.h>

#include "lab/routes_internal.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/splitmix.h"

/* The shape that the generator is fitted to: the decode of a Qwen3-30B trace. */
static const struct routes_shape fitted_shape = {48, 128, 6, 156, 28};

static bool is_generated(const char *text)
{
    return strcmp(text, "gen") == 0 || strncmp(text, "gen:", 4) == 0;
}

static int make_label(struct routes *routes, const char *kind, const char *origin,
                      struct fm_error *err)
{
    static const char warning[] = "the text is meaningless, speed only";
    const size_t bytes = strlen(kind) + strlen(origin) + sizeof warning + 8;
    routes->label = mem_new(bytes, 1, "the routes' label", err);
    if (routes->label == NULL)
        return FM_ERR_NOMEM;
    (void)snprintf(routes->label, bytes, "%s (%s) - %s", kind, origin, warning);
    return 0;
}

static void take_default(uint32_t *field, uint32_t value)
{
    if (*field == 0)
        *field = value;
}

/* Completes and checks the shape, and allocates the table. */
static int make_table(struct routes *routes, const struct routes_shape *own, struct fm_error *err)
{
    struct routes_shape *s = &routes->shape;
    take_default(&s->n_layers, own->n_layers);
    take_default(&s->n_experts, own->n_experts);
    take_default(&s->n_used, own->n_used);
    if (s->n_positions > ROUTES_POSITIONS_MAX)
        s->n_positions = ROUTES_POSITIONS_MAX;
    take_default(&s->n_positions, own->n_positions);
    s->n_warm = own->n_warm;
    if (s->n_layers > LIMIT_LAYERS || s->n_experts > LIMIT_EXPERTS || s->n_used > LIMIT_TOP_K ||
        s->n_used > s->n_experts)
        return err_set(err, FM_ERR_ARG,
                       "routes of %u of %u experts in %u layers are not supported; the maximum is "
                       "%d of %d in %d", s->n_used, s->n_experts, s->n_layers, LIMIT_TOP_K,
                       LIMIT_EXPERTS, LIMIT_LAYERS);
    routes->ids = mem_new((uint64_t)s->n_positions * s->n_layers * s->n_used, sizeof *routes->ids,
                          "the routes", err);
    return routes->ids != NULL ? 0 : FM_ERR_NOMEM;
}

static int open_generated(struct routes *routes, const char *text, struct fm_error *err)
{
    struct routes_gen gen;
    int rc = routes_gen_parse(text, &gen, err);
    if (rc == 0)
        rc = make_table(routes, &fitted_shape, err);
    if (rc != 0)
        return rc;
    char resolved[256];
    routes_gen_resolve(&gen, routes->shape.n_experts, resolved, sizeof resolved);
    rc = make_label(routes, "generated", resolved, err);
    return rc == 0 ? routes_gen_fill(&gen, routes, err) : rc;
}

static bool is_raw(const char *path)
{
    const size_t n = strlen(path);
    return n >= 3 && strcmp(path + n - 3, ".u8") == 0;
}

static int open_trace(struct routes *routes, const char *path, struct fm_error *err)
{
    struct trace trace = {0};
    char *text = NULL;
    size_t text_bytes = 0;
    int rc = plat_read_file(path, LIMIT_ROUTES_BYTES, &text, &text_bytes, err);
    if (rc == 0 && is_raw(path))
        rc = trace_parse_raw(&trace, path, (const uint8_t *)text, text_bytes, err);
    else if (rc == 0)
        rc = trace_parse(&trace, path, text, text_bytes, err);
    mem_free(text);
    if (rc == 0) {
        const struct routes_shape own = {trace.n_layers, trace.n_experts, trace.n_used,
                                         trace.n_tokens, trace.n_prefill};
        if (routes->shape.n_positions > trace.n_tokens)
            routes->shape.n_positions = trace.n_tokens;
        rc = make_table(routes, &own, err);
    }
    if (rc == 0)
        rc = make_label(routes, "replayed", path, err);
    if (rc == 0)
        trace_map(&trace, routes);
    trace_clear(&trace);
    return rc;
}

int routes_open(const char *text, const struct routes_shape *shape, struct routes **out,
                struct fm_error *err)
{
    *out = NULL;
    struct routes *routes = mem_new(1, sizeof *routes, "the routes", err);
    if (routes == NULL)
        return FM_ERR_NOMEM;
    routes->shape = *shape;
    int rc = is_generated(text) ? open_generated(routes, text, err)
                                : open_trace(routes, text, err);
    if (rc != 0) {
        routes_close(routes);
        return err_wrap(err, rc, "routes");
    }
    *out = routes;
    return 0;
}

void routes_close(struct routes *routes)
{
    if (routes == NULL)
        return;
    mem_free(routes->label);
    mem_free(routes->ids);
    mem_free(routes);
}

void routes_copy_ids(void *ctx, uint32_t position, uint32_t layer, uint32_t *ids)
{
    const struct routes *routes = ctx;
    const uint16_t *at = routes_at(routes, position, layer);
    for (uint32_t i = 0; i < routes->shape.n_used; i++)
        ids[i] = at[i];
}

/* Returns whether one of n ids is this expert. */
static bool has_id(const uint32_t *ids, uint32_t n, uint32_t expert)
{
    uint32_t i = 0;
    while (i < n && ids[i] != expert)
        i++;
    return i < n;
}

/* How far away wrong predictions are taken from, and how often before any expert will do. They are
 * then about as popular as right ones, like those of a router, so most of them are resident. */
#define WRONG_DISTANCE 97
#define WRONG_TRIES 16

void routes_predict_ids(void *ctx, uint32_t position, uint32_t layer, uint32_t *ids)
{
    const struct routes *routes = ctx;
    const struct routes_shape *s = &routes->shape;
    const uint32_t k = s->n_used;
    uint32_t used[LIMIT_TOP_K];
    uint64_t random = routes->seed << 32 ^ (uint64_t)(position % s->n_positions) << 12 ^ layer;
    random = splitmix_next(&random);
    routes_copy_ids(ctx, position, layer, used);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t expert = used[i];
        /* Without as many unused experts, some are predicted that are right after all. */
        const bool is_wrong =
            splitmix_next(&random) % 1000000 >= routes->recall && 2 * k <= s->n_experts;
        for (uint32_t t = 1; is_wrong && (has_id(used, k, expert) || has_id(ids, i, expert)); t++) {
            const uint64_t any = splitmix_next(&random);
            expert = t > WRONG_TRIES
                         ? (uint32_t)(any % s->n_experts)
                         : routes_at(routes, position + t * WRONG_DISTANCE, layer)[any % k];
        }
        uint32_t at = i;
        for (; at > 0 && ids[at - 1] > expert; at--)
            ids[at] = ids[at - 1];
        ids[at] = expert;
    }
}
