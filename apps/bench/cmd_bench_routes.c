#include <string.h>

#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"
#include "flashmoe_lab.h"

#define COLUMNS_MAX 5 /* these routes and the references */
#define COLUMN_CHARACTERS 16

struct column {
    const char *name;
    struct fm_routes_stats stats;
};

static size_t find_references(struct column *columns)
{
    size_t n = 0;
    for (size_t i = 0; i + 1 < COLUMNS_MAX; i++)
        columns[i].stats.size = sizeof columns[i].stats;
    while (n + 1 < COLUMNS_MAX && fm_routes_reference((unsigned)n, &columns[n].name,
                                                      &columns[n].stats))
        n++;
    return n;
}

/* ---- JSON ------------------------------------------------------------------------------ */

static json_t *points_json(const double *points)
{
    json_t *array = json_array();
    for (unsigned i = 0; i < FM_ROUTES_POINTS; i++)
        (void)json_array_append_new(array, points[i] < 0 ? json_null() : json_real(points[i]));
    return array;
}

static json_t *stats_json(const struct column *column)
{
    const struct fm_routes_stats *s = &column->stats;
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "name",
                     json_text(column->name, strlen(column->name)), "n_layers",
                     (json_int_t)s->n_layers, "n_experts", (json_int_t)s->n_experts, "n_used",
                     (json_int_t)s->n_used, "n_warm", (json_int_t)s->n_warm, "n_tokens",
                     (json_int_t)s->n_tokens, "overlap", points_json(s->overlap), "distinct",
                     points_json(s->distinct), "lru_hits", points_json(s->lru_hits));
}

static int print_json(const struct column *columns, size_t n)
{
    json_t *references = json_array();
    for (size_t i = 1; i < n; i++)
        (void)json_array_append_new(references, stats_json(&columns[i]));
    json_t *lags = json_array(), *windows = json_array(), *capacities = json_array();
    for (unsigned i = 0; i < FM_ROUTES_POINTS; i++) {
        (void)json_array_append_new(lags, json_integer(1 << i));
        (void)json_array_append_new(windows, json_integer(2 << i));
        (void)json_array_append_new(capacities, json_real(fm_routes_capacity(32, i) / 32.0));
    }
    return out_json(json_pack("{s:o, s:o, s:o, s:o, s:o}", "routes", stats_json(&columns[0]),
                              "references", references, "lags", lags, "windows", windows,
                              "capacities", capacities))
               ? STATUS_OK
               : STATUS_FAILED;
}

/* ---- the table --------------------------------------------------------------------------- */

static void print_counts(const char *title, const struct column *columns, size_t n, size_t offset)
{
    (void)printf("%-24s", title);
    for (size_t i = 0; i < n; i++) {
        unsigned count;
        memcpy(&count, (const char *)&columns[i].stats + offset, sizeof count);
        (void)printf("%*u", COLUMN_CHARACTERS, count);
    }
    (void)printf("\n");
}

static void print_points(const char *title, const struct column *columns, size_t n, size_t offset,
                         unsigned point, double scale)
{
    (void)printf("%-24s", title);
    for (size_t i = 0; i < n; i++) {
        double points[FM_ROUTES_POINTS];
        memcpy(points, (const char *)&columns[i].stats + offset, sizeof points);
        if (points[point] < 0)
            (void)printf("%*s", COLUMN_CHARACTERS, "-");
        else
            (void)printf("%*.1f", COLUMN_CHARACTERS, points[point] * scale);
    }
    (void)printf("\n");
}

static int print_table(const struct column *columns, size_t n)
{
    static const char *const shares[FM_ROUTES_POINTS] = {"6.25", "9.4", "12.5", "18.75",
                                                         "25", "37.5", "50"};
    (void)printf("%s\n\n%-24s", columns[0].name, "");
    for (size_t i = 0; i < n; i++)
        (void)printf("%*s", COLUMN_CHARACTERS, i == 0 ? "these routes" : columns[i].name);
    (void)printf("\n");
    print_counts("layers", columns, n, offsetof(struct fm_routes_stats, n_layers));
    print_counts("experts", columns, n, offsetof(struct fm_routes_stats, n_experts));
    print_counts("experts per token", columns, n, offsetof(struct fm_routes_stats, n_used));
    print_counts("warm-up tokens", columns, n, offsetof(struct fm_routes_stats, n_warm));
    print_counts("tokens measured", columns, n, offsetof(struct fm_routes_stats, n_tokens));
    char title[64];
    for (unsigned i = 0; i < FM_ROUTES_POINTS; i++) {
        (void)snprintf(title, sizeof title, "%s %u, %%", "overlap, lag", 1u << i);
        print_points(title, columns, n, offsetof(struct fm_routes_stats, overlap), i, 100);
    }
    for (unsigned i = 0; i < FM_ROUTES_POINTS; i++) {
        (void)snprintf(title, sizeof title, "distinct in %u", 2u << i);
        print_points(title, columns, n, offsetof(struct fm_routes_stats, distinct), i, 1);
    }
    for (unsigned i = 0; i < FM_ROUTES_POINTS; i++) {
        (void)snprintf(title, sizeof title, "LRU of %s%%, hits %%", shares[i]);
        print_points(title, columns, n, offsetof(struct fm_routes_stats, lru_hits), i, 100);
    }
    return STATUS_OK;
}

static int run_bench_routes(const struct args *args)
{
    struct fm_error err = {0};
    struct column columns[COLUMNS_MAX] = {{.name = args_operand(args, 0)}};
    columns[0].stats = (struct fm_routes_stats){
        .size = sizeof(struct fm_routes_stats),
        .n_layers = (unsigned)args_uint(args, "layers"),
        .n_experts = (unsigned)args_uint(args, "experts"),
        .n_used = (unsigned)args_uint(args, "used"),
        .n_tokens = (unsigned)args_uint(args, "tokens"),
    };
    if (fm_routes_measure(columns[0].name, &columns[0].stats, &err) != 0)
        return say_failed(&err, err.code == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    const size_t n = 1 + find_references(columns + 1);
    return args_flag(args, "json") ? print_json(columns, n) : print_table(columns, n);
}

const struct command cmd_bench_routes = {
    .name = "bench routes",
    .summary = "Compare the expert reuse of a routing with that of real models",
    .description =
        "Prints one table of means over the layers: how many of a token's experts an earlier token "
        "also used, how many distinct experts a number of tokens use, and the hit rate of an LRU "
        "cache that holds a share of all experts. Further columns show recorded traces of real "
        "models.",
    .operands = (const struct operand[]){
        {.name = "ROUTES", .help = "As for --routes: gen, gen:KEY=VALUE,... or a trace"},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_shape, &group_json, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe bench routes gen --experts 512 --used 10",
         "Statistics of generated routes for 512 experts"},
        {"flashmoe bench routes trace.csv", "A recording of 'flashmoe run --trace trace.csv'"},
        {NULL, NULL}},
    .run = run_bench_routes,
};
