#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"
#include "flashmoe_lab.h"

#define POINTS_MAX 16
#define NAME_CHARACTERS 20
#define COLUMN_CHARACTERS 8
#define TIERS_CHARACTERS 12

struct replay {
    const char *name;
    struct fm_routes_stats stats;
    struct fm_replay_point points[POINTS_MAX];
    struct fm_replay_tiers tiers[POINTS_MAX];
    unsigned n_points;
};

/* Parses percentages: "6.25,12.5,...". */
static int parse_residency(const char *text, struct replay *replay, struct fm_error *err)
{
    const char *at = text;
    const bool is_plain = text[strspn(text, "0123456789.,")] == '\0';
    for (replay->n_points = 0; is_plain && replay->n_points < POINTS_MAX; replay->n_points++) {
        char *end = NULL;
        const double percent = isdigit((unsigned char)*at) ? strtod(at, &end) : 0;
        if (!(percent > 0 && percent <= 100) || (*end != ',' && *end != '\0'))
            break;
        replay->points[replay->n_points] = (struct fm_replay_point){
            .size = sizeof(struct fm_replay_point), .share = percent / 100};
        at = end + 1;
        if (*end == '\0') {
            replay->n_points++;
            return 0;
        }
    }
    return err_set(err, FM_ERR_ARG,
                   "--residency: expected up to %d percentages above 0, as in 12.5,25,50, found "
                   "'%s'", POINTS_MAX, text);
}

/* Parses a percentage. Returns what follows it, or NULL if there is none. */
static const char *parse_percent(const char *text, double *share)
{
    char *end = NULL;
    const double percent = isdigit((unsigned char)*text) ? strtod(text, &end) : 0;
    *share = percent / 100;
    return percent > 0 && percent <= 100 ? end : NULL;
}

/* Parses pairs of percentages: "10+20,25+25,...". */
static int parse_tiers(const char *text, struct replay *replay, struct fm_error *err)
{
    const char *at = text;
    const bool is_plain = text[strspn(text, "0123456789.,+")] == '\0';
    for (replay->n_points = 0; is_plain && replay->n_points < POINTS_MAX; replay->n_points++) {
        struct fm_replay_tiers *tiers = &replay->tiers[replay->n_points];
        *tiers = (struct fm_replay_tiers){.size = sizeof *tiers};
        at = parse_percent(at, &tiers->above);
        if (at == NULL || *at != '+')
            break;
        at = parse_percent(at + 1, &tiers->below);
        if (at == NULL || (*at != ',' && *at != '\0'))
            break;
        if (*at++ == '\0') {
            replay->n_points++;
            return 0;
        }
    }
    return err_set(err, FM_ERR_ARG,
                   "--tiers: expected up to %d pairs of percentages above 0 and at most 100, as in "
                   "10+20,25+50, found '%s'", POINTS_MAX, text);
}

/* ---- JSON ------------------------------------------------------------------------------ */

static json_t *hits_json(const double *hits)
{
    json_t *object = json_object();
    for (unsigned i = 0; fm_replay_policy_name(i) != NULL; i++)
        (void)json_object_set_new(object, fm_replay_policy_name(i),
                                  hits[i] < 0 ? json_null() : json_real(hits[i]));
    return object;
}

static json_t *points_json(const struct replay *replay)
{
    json_t *points = json_array();
    for (unsigned i = 0; i < replay->n_points; i++) {
        const struct fm_replay_point *p = &replay->points[i];
        (void)json_array_append_new(
            points, json_pack("{s:f, s:I, s:o, s:o}", "share", p->share, "n_slots",
                              (json_int_t)p->n_slots, "hits", hits_json(p->hits), "late_hits",
                              hits_json(p->late_hits)));
    }
    return points;
}

static json_t *moves_json(const struct fm_replay_tiers *p)
{
    json_t *object = json_object();
    for (unsigned i = 0; fm_replay_moves_name(i) != NULL; i++)
        (void)json_object_set_new(
            object, fm_replay_moves_name(i),
            json_pack("{s:f, s:f, s:f, s:f}", "hits_above", p->hits_above[i], "hits_below",
                      p->hits_below[i], "moved_up_per_token", p->moved_up[i],
                      "moved_down_per_token", p->moved_down[i]));
    return object;
}

static json_t *tiers_json(const struct replay *replay)
{
    json_t *points = json_array();
    for (unsigned i = 0; i < replay->n_points; i++) {
        const struct fm_replay_tiers *p = &replay->tiers[i];
        (void)json_array_append_new(
            points, json_pack("{s:f, s:f, s:I, s:I, s:o}", "above", p->above, "below", p->below,
                              "n_above", (json_int_t)p->n_above, "n_below",
                              (json_int_t)p->n_below, "moves", moves_json(p)));
    }
    return points;
}

static int print_json(const struct replay *replay, bool has_tiers)
{
    const struct fm_routes_stats *s = &replay->stats;
    json_t *points = has_tiers ? tiers_json(replay) : points_json(replay);
    json_t *overlap = s->overlap[0] < 0 ? json_null() : json_real(s->overlap[0]);
    return out_json(json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "name",
                              json_text(replay->name, strlen(replay->name)), "n_layers",
                              (json_int_t)s->n_layers, "n_experts", (json_int_t)s->n_experts,
                              "n_used", (json_int_t)s->n_used, "n_warm", (json_int_t)s->n_warm,
                              "n_tokens", (json_int_t)s->n_tokens, "overlap", overlap, "points",
                              points))
               ? STATUS_OK
               : STATUS_FAILED;
}

/* ---- the table --------------------------------------------------------------------------- */

static void print_policies(const struct replay *replay, bool is_late)
{
    for (unsigned i = 0; fm_replay_policy_name(i) != NULL; i++) {
        const double *first =
            is_late ? replay->points[0].late_hits : replay->points[0].hits;
        if (first[i] < 0)
            continue;
        (void)printf("%-*s", NAME_CHARACTERS, fm_replay_policy_name(i));
        for (unsigned j = 0; j < replay->n_points; j++) {
            const struct fm_replay_point *p = &replay->points[j];
            (void)printf("%*.1f", COLUMN_CHARACTERS, 100 * (is_late ? p->late_hits : p->hits)[i]);
        }
        (void)printf("\n");
    }
}

static void print_head(const struct replay *replay)
{
    const struct fm_routes_stats *s = &replay->stats;
    (void)printf("%s: %u layers, %u of %u experts per token, %u warm-up tokens, %u measured\n\n",
                 replay->name, s->n_layers, s->n_used, s->n_experts, s->n_warm, s->n_tokens);
}

static void print_overlap(const struct replay *replay)
{
    if (replay->stats.overlap[0] >= 0)
        (void)printf("\nA token shares %.1f %% of its experts with the previous token.\n",
                     100 * replay->stats.overlap[0]);
}

/* Prints a line for each policy of moves: what it gives at each point. */
static void print_moves(const struct replay *replay, const char *title,
                        double (*value)(const struct fm_replay_tiers *, unsigned))
{
    (void)printf("\n%s\n", title);
    for (unsigned i = 0; fm_replay_moves_name(i) != NULL; i++) {
        (void)printf("%-*s", NAME_CHARACTERS, fm_replay_moves_name(i));
        for (unsigned j = 0; j < replay->n_points; j++)
            (void)printf("%*.1f", TIERS_CHARACTERS, value(&replay->tiers[j], i));
        (void)printf("\n");
    }
}

static double hits_above(const struct fm_replay_tiers *p, unsigned i)
{
    return 100 * p->hits_above[i];
}

static double hits_in_both(const struct fm_replay_tiers *p, unsigned i)
{
    return 100 * (p->hits_above[i] + p->hits_below[i]);
}

static double moved_up(const struct fm_replay_tiers *p, unsigned i)
{
    return p->moved_up[i];
}

static double moved_down(const struct fm_replay_tiers *p, unsigned i)
{
    return p->moved_down[i];
}

static int print_tiers(const struct replay *replay)
{
    char text[32];
    print_head(replay);
    (void)printf("%-*s", NAME_CHARACTERS, "resident, %");
    for (unsigned i = 0; i < replay->n_points; i++) {
        const struct fm_replay_tiers *p = &replay->tiers[i];
        (void)snprintf(text, sizeof text, "%.4g+%.4g", 100 * p->above, 100 * p->below);
        (void)printf("%*s", TIERS_CHARACTERS, text);
    }
    (void)printf("\n%-*s", NAME_CHARACTERS, "experts");
    for (unsigned i = 0; i < replay->n_points; i++) {
        (void)snprintf(text, sizeof text, "%u+%u", replay->tiers[i].n_above,
                       replay->tiers[i].n_below);
        (void)printf("%*s", TIERS_CHARACTERS, text);
    }
    (void)printf("\n");
    print_moves(replay, "hits in the first tier, %", hits_above);
    print_moves(replay, "hits in both, %", hits_in_both);
    print_moves(replay, "experts moved up per token", moved_up);
    print_moves(replay, "experts moved down per token", moved_down);
    print_overlap(replay);
    return STATUS_OK;
}

static int print_table(const struct replay *replay)
{
    print_head(replay);
    (void)printf("%-*s", NAME_CHARACTERS, "resident, %");
    for (unsigned i = 0; i < replay->n_points; i++)
        (void)printf("%*.4g", COLUMN_CHARACTERS, 100 * replay->points[i].share);
    (void)printf("\n%-*s", NAME_CHARACTERS, "experts");
    for (unsigned i = 0; i < replay->n_points; i++)
        (void)printf("%*u", COLUMN_CHARACTERS, replay->points[i].n_slots);
    (void)printf("\n\nhits, %%\n");
    print_policies(replay, false);
    (void)printf("\nhits in the second half, %%\n");
    print_policies(replay, true);
    print_overlap(replay);
    return STATUS_OK;
}

static int run_bench_replay(const struct args *args)
{
    struct fm_error err = {0};
    struct replay replay = {.name = args_operand(args, 0)};
    replay.stats = (struct fm_routes_stats){
        .size = sizeof(struct fm_routes_stats),
        .n_layers = (unsigned)args_uint(args, "layers"),
        .n_experts = (unsigned)args_uint(args, "experts"),
        .n_used = (unsigned)args_uint(args, "used"),
        .n_tokens = (unsigned)args_uint(args, "tokens"),
    };
    const char *tiers = args_text(args, "tiers");
    int rc = tiers != NULL ? parse_tiers(tiers, &replay, &err)
                           : parse_residency(args_text(args, "residency"), &replay, &err);
    if (rc == 0)
        rc = tiers != NULL ? fm_routes_replay_tiers(replay.name, &replay.stats, replay.tiers,
                                                    replay.n_points, &err)
                           : fm_routes_replay(replay.name, &replay.stats, replay.points,
                                              replay.n_points, &err);
    if (rc != 0)
        return say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    if (args_flag(args, "json"))
        return print_json(&replay, tiers != NULL);
    return tiers != NULL ? print_tiers(&replay) : print_table(&replay);
}

static const struct option replay_options[] = {
    {.name = "residency", .kind = OPTION_STRING, .metavar = "LIST",
     .value = "6.25,12.5,18.75,25,37.5,50",
     .help = "Cache sizes as percentages of all experts, separated by commas"},
    {.name = "tiers", .kind = OPTION_STRING, .metavar = "LIST",
     .help = "Instead: GPU memory above host memory, in percent: 10+20,25+50. Compares "
             "what happens to experts that leave the GPU's memory"},
    {.name = NULL},
};
static const struct option_group group_replay = {"Cache", replay_options};

const struct command cmd_bench_replay = {
    .name = "bench replay",
    .summary = "Show the hit rates of cache policies on a recorded routing",
    .description =
        "Prints the hit rate for several cache sizes. lru and lcp are the engine's own policies, "
        "with one pool for all layers. layer-lru and layer-lfu give each layer the same number of "
        "slots. static keeps the experts most used in the first half of the tokens and is measured "
        "in the second half. belady knows the future, per layer or for all together: the upper "
        "bound. "
        "With --tiers there are two tiers of slots, with the engine's policy. An expert of the "
        "first tier that a hotter one replaces is dropped (drop) or moves to the second tier "
        "(down); or no expert ever moves (none).",
    .operands = (const struct operand[]){
        {.name = "TRACE",
         .help = "As for --routes: a trace, gen or gen:KEY=VALUE,...; or nano's routes, *.u8"},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_replay, &group_shape, &group_json,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe bench replay trace.csv", "A recording of 'flashmoe run --trace trace.csv'"},
        {"flashmoe bench replay gen --experts 512 --used 10 --residency 10,20,40",
         "Generated routes for a model with 512 experts"},
        {"flashmoe bench replay trace.csv --tiers 10+20,20+40",
         "10 % of the experts in the GPU's memory and 20 % in the host's; 20 % and 40 %"},
        {NULL, NULL}},
    .run = run_bench_replay,
};
