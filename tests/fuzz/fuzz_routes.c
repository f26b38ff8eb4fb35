/* Fuzzes routes: the text of --routes if it begins with "gen", otherwise a routing trace, as CSV
 * and as raw bytes. What is accepted must give every token distinct experts in ascending order, in
 * any shape. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/routes_internal.h"
#include "base/limits.h"
#include "base/mem.h"
#include "flashmoe_lab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define POSITIONS 40

static const struct routes_shape shapes[] = {
    {3, 16, 4, POSITIONS, 0}, {5, 130, 9, POSITIONS, 0}, {1, 3, 3, POSITIONS, 0},
    {2, 40, 1, POSITIONS, 0},
};

static void require(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void check_table(const struct routes *routes)
{
    const struct routes_shape *s = &routes->shape;
    for (uint32_t p = 0; p < 2 * s->n_positions; p++)
        for (uint32_t layer = 0; layer < s->n_layers; layer++) {
            const uint16_t *ids = routes_at(routes, p, layer);
            for (uint32_t i = 0; i < s->n_used; i++) {
                require(ids[i] < s->n_experts, "an expert exists");
                require(i == 0 || ids[i - 1] < ids[i], "the experts ascend");
            }
        }
    struct fm_routes_stats stats = {.size = sizeof stats};
    require(routes_measure(routes, 8, &stats, NULL) == 0, "a routing can be measured");
    for (unsigned i = 0; i < FM_ROUTES_POINTS; i++)
        require(stats.lru_hits[i] >= 0 && stats.lru_hits[i] <= 1 && stats.overlap[i] <= 1,
                "a share is at most 1");
}

static void check_error(int rc, const struct fm_error *err)
{
    require(rc < 0 && err->code == rc && err->text[0] != '\0', "an error has code and text");
}

static void run_spec(const char *text)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct routes *routes;
        struct fm_error err = {0};
        int rc = routes_open(text, &shapes[i], &routes, &err);
        if (rc != 0) {
            check_error(rc, &err);
            require(routes == NULL, "nothing is left after an error");
            return;
        }
        require(strstr(routes->label, "speed only") != NULL, "a label warns");
        check_table(routes);
        routes_close(routes);
    }
}

static void run_trace(const char *text, size_t size, bool is_raw)
{
    struct trace trace;
    struct fm_error err = {0};
    int rc = is_raw ? trace_parse_raw(&trace, "fuzz.u8", (const uint8_t *)text, size, &err)
                    : trace_parse(&trace, "fuzz.csv", text, size, &err);
    if (rc != 0) {
        check_error(rc, &err);
        require(trace.ids == NULL && trace.n_tokens == 0, "nothing is left after an error");
        return;
    }
    require(trace.n_tokens >= 1 && (is_raw || trace.n_tokens <= ROUTES_POSITIONS_MAX) &&
                trace.n_layers >= 1 && trace.n_layers <= LIMIT_LAYERS &&
                trace.n_prefill < trace.n_tokens, "the sizes are bounded");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct routes routes = {.shape = shapes[i]};
        routes.ids = mem_new((uint64_t)POSITIONS * routes.shape.n_layers * routes.shape.n_used,
                             sizeof *routes.ids, "the routes", NULL);
        if (routes.ids == NULL)
            break;
        trace_map(&trace, &routes);
        check_table(&routes);
        mem_free(routes.ids);
    }
    trace_clear(&trace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (strcmp(text, "gen") == 0 || strncmp(text, "gen:", 4) == 0) {
        run_spec(text);
    } else { /* without the NUL, so that reading it is a fault */
        run_trace((const char *)data, size, false);
        run_trace((const char *)data, size, true);
    }
    free(text);
    return 0;
}
