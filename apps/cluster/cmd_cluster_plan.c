#include <stdlib.h>
#include <string.h>

#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/engine_words.h"
#include "apps/cli/term.h"
#include "apps/cluster/machines.h"
#include "apps/cluster/mpirun.h"
#include "base/mem.h"
#include "base/plat.h"
#include "flashmoe_lab.h"

#define REPLAY_TOKENS 256
#define USUAL_CONTEXT 4096u
/* The size of the program varies a little from run to run, and a plan should not. */
#define OVERHEAD_STEP (64ull << 20)

struct planner {
    const struct args *args;
    const char *path; /* of the model */
    char found[LIMIT_PATH_BYTES]; /* may hold it */
    struct hostfile hosts;
    struct fm_model_info info;
    unsigned n_context;
    struct machines machines;
    struct cut_layer *layers;
    struct cut_problem problem;
    struct cut cut;
    struct cut best[CUT_RANKS]; /* of the first 1, 2, ... machines; n_ranks 0: it does not fit */
    char layers_text[CUT_RANKS * 5];
};

static const char *machines_file(const struct planner *p)
{
    return args_text(p->args, "machines");
}

/* ---- the model ------------------------------------------------------------------------------- */

static int read_layers(struct planner *p, const struct fm_model *model, struct fm_error *err)
{
    const double position = p->n_context / 2.0;
    int rc = 0;
    p->layers = mem_new(p->info.n_layers, sizeof *p->layers, "the layers", err);
    if (p->layers == NULL)
        return FM_ERR_NOMEM;
    for (unsigned i = 0; rc == 0 && i < p->info.n_layers; i++) {
        struct fm_layer_info l = {.size = sizeof l};
        rc = fm_model_layer(model, i, &l, err);
        p->layers[i] = (struct cut_layer){
            .dense = (double)l.dense_bytes, .dense_token = (double)l.dense_token_bytes,
            .experts = (double)l.experts_bytes, .expert_token = (double)l.expert_token_bytes,
            .kv = (double)l.kv_position_bytes * p->n_context + (double)l.state_bytes,
            .kv_token = (double)l.kv_position_bytes * position + 2 * (double)l.state_bytes,
            .mul_adds = (double)l.mul_adds_per_token};
        if (i == 0)
            p->problem.head = (struct cut_layer){.dense = (double)l.head_bytes,
                                                 .dense_token = (double)l.head_token_bytes,
                                                 .mul_adds = (double)l.mul_adds_per_head};
    }
    p->problem.layers = p->layers;
    p->problem.n_layers = p->info.n_layers;
    return rc;
}

/* Takes what the program and its scratch memory need from a plan for one large machine. */
static int read_overhead(struct planner *p, const struct fm_model *model,
                         const struct fm_model_options *options, struct fm_error *err)
{
    struct fm_model_options large = *options;
    struct fm_plan plan = {.size = sizeof plan};
    large.metadata_only = false;
    large.memory_bytes = UINT64_MAX / 2;
    large.n_context = p->n_context;
    const int rc = fm_model_plan(model, &large, &plan, err);
    const uint64_t bytes = plan.memory_program_bytes + plan.memory_scratch_bytes;
    p->problem.overhead_bytes = (double)mem_round_up(bytes, OVERHEAD_STEP);
    return rc;
}

static int read_model(struct planner *p, struct fm_error *err)
{
    struct fm_model_options options;
    struct fm_model *model = NULL;
    int rc = app_engine_options(p->args, &options, err);
    if (rc != 0)
        return rc;
    options.metadata_only = true;
    options.memory_bytes = 0;
    options.gpu = "off";
    rc = fm_model_open(p->path, &options, &model, err);
    if (rc != 0)
        return rc;
    p->info.size = sizeof p->info;
    fm_model_info(model, &p->info);
    const unsigned asked = (unsigned)args_uint(p->args, "context");
    p->n_context = asked > 0 ? asked : USUAL_CONTEXT;
    p->n_context = p->n_context < p->info.max_context ? p->n_context : p->info.max_context;
    p->problem.message_bytes = (double)fm_model_message_bytes(model, 1, 1);
    rc = read_layers(p, model, err);
    if (rc == 0)
        rc = read_overhead(p, model, &options, err);
    fm_model_close(model);
    /* These belong to the model. */
    p->info.container = p->info.architecture = NULL;
    return rc;
}

/* Predicts hit rates for shares of the experts: of the second half of replayed tokens. */
static int read_curve(struct planner *p, struct fm_error *err)
{
    static const double shares[] = {0.02, 0.04, 0.06, 0.09, 0.12, 0.16, 0.2, 0.25, 0.3, 0.36,
                                    0.43, 0.5, 0.6, 0.7, 0.85};
    const unsigned n = sizeof shares / sizeof shares[0];
    struct fm_replay_point points[sizeof shares / sizeof shares[0]] = {{0}};
    struct fm_routes_stats stats = {.size = sizeof stats, .n_layers = p->info.n_moe_layers,
                                    .n_experts = p->info.n_experts,
                                    .n_used = p->info.n_experts_per_token,
                                    .n_tokens = REPLAY_TOKENS};
    unsigned policy = 0;
    if (p->info.n_moe_layers == 0)
        return 0;
    for (unsigned i = 0; i < n; i++)
        points[i] = (struct fm_replay_point){.size = sizeof points[i], .share = shares[i]};
    const int rc = fm_routes_replay(args_text(p->args, "routes"), &stats, points, n, err);
    while (fm_replay_policy_name(policy) != NULL &&
           strcmp(fm_replay_policy_name(policy), args_text(p->args, "policy")) != 0)
        policy++;
    p->problem.curve.n_points = n;
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        p->problem.curve.shares[i] = shares[i];
        p->problem.curve.hits[i] = points[i].late_hits[policy];
    }
    return rc;
}

/* ---- the machines ---------------------------------------------------------------------------- */

/* Returns the path of this program, which the other machines have, too. */
static int own_path(char path[LIMIT_PATH_BYTES], struct fm_error *err)
{
    const size_t n = plat_program_dir(path, LIMIT_PATH_BYTES - 16) ? strlen(path) : 0;
    if (n == 0)
        return err_set(err, FM_ERR_IO, "the path of this program cannot be found");
    (void)snprintf(path + n, LIMIT_PATH_BYTES - n, "/flashmoe");
    return 0;
}

static int probe_words(struct planner *p, struct mpirun_words *w, struct fm_error *err)
{
    char program[LIMIT_PATH_BYTES];
    int rc = own_path(program, err);
    if (rc == 0)
        rc = mpirun_begin(w, &p->hosts, args_text(p->args, "mpirun"), err);
    if (rc == 0)
        rc = mpirun_add(w, program, true, err);
    const char *const words[] = {"cluster", "probe", p->path, "--json", "--quiet"};
    for (size_t i = 0; rc == 0 && i < sizeof words / sizeof words[0]; i++)
        rc = mpirun_add(w, words[i], false, err);
    return rc != 0 ? rc : mpirun_add_given(w, p->args, &group_engine, err);
}

static int probe_machines(struct planner *p, struct fm_error *err)
{
    static struct mpirun_words words;
    struct progress progress;
    char *text = NULL;
    size_t bytes = 0;
    int rc = probe_words(p, &words, err);
    if (rc != 0)
        return rc;
    progress_begin(&progress, "measuring the machines", !args_flag(p->args, "quiet"));
    rc = mpirun_run(&words, &text, &bytes, err);
    progress_end(&progress);
    if (rc == 0)
        rc = machines_parse(&p->machines, "the measurement", text, bytes, err);
    if (rc == 0 && p->machines.n != p->hosts.n_ranks)
        rc = err_set(err, FM_ERR_FORMAT, "mpirun has started %u ranks, and '%s' has %u",
                     p->machines.n, p->hosts.path, p->hosts.n_ranks);
    mem_free(text);
    return rc;
}

static int read_machines(struct planner *p, struct fm_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    int rc = file_read(machines_file(p), &text, &bytes, err);
    if (rc == 0)
        rc = machines_parse(&p->machines, machines_file(p), text, bytes, err);
    for (unsigned i = 0; rc == 0 && i < p->machines.n; i++)
        if (args_given(p->args, "memory"))
            p->machines.list[i].memory_bytes = (double)args_uint(p->args, "memory");
    mem_free(text);
    return rc;
}

static int check_disks(const struct planner *p, struct fm_error *err)
{
    for (unsigned i = 0; p->info.n_moe_layers > 0 && i < p->machines.n; i++)
        if (p->machines.list[i].disk_per_s <= 0)
            return err_set(err, FM_ERR_FORMAT, "%s: machine %u: field 'disk_bytes_per_s' is "
                           "missing: the model's experts are read from the disk",
                           machines_file(p) != NULL ? machines_file(p) : "the measurement", i);
    return 0;
}

/* ---- the cut --------------------------------------------------------------------------------- */

static int given_cut(struct planner *p, struct fm_error *err)
{
    unsigned n_layers[CLUSTER_MAX_RANKS], n = 0, sum = 0;
    int rc = cluster_parse_layers(args_text(p->args, "layers"), n_layers, &n, err);
    for (unsigned i = 0; rc == 0 && i < n; i++)
        sum += n_layers[i];
    if (rc == 0 && (n != p->machines.n || sum != p->info.n_layers))
        rc = err_set(err, FM_ERR_ARG, "--layers is '%s': it gives %u ranks %u layers, and there "
                     "are %u machines and %u layers", args_text(p->args, "layers"), n, sum,
                     p->machines.n, p->info.n_layers);
    return rc != 0 ? rc : cut_of(&p->problem, n_layers, n, &p->cut, err);
}

/* Returns whether to say what the first n machines would do: all counts of a few. */
static bool is_shown(const struct planner *p, unsigned n)
{
    return n <= 8 || (n & (n - 1)) == 0 || n == p->machines.n;
}

static int find_cut(struct planner *p, struct fm_error *err)
{
    p->problem.machines = p->machines.list;
    p->problem.n_machines = p->machines.n;
    int rc = args_text(p->args, "layers") != NULL
                 ? given_cut(p, err) : cut_find(&p->problem, p->machines.n, &p->cut, err);
    for (unsigned n = 1; rc == 0 && n <= p->machines.n; n++) {
        if (!is_shown(p, n))
            continue;
        const int found = cut_find(&p->problem, n, &p->best[n - 1], NULL);
        if (found == FM_ERR_NOMEM)
            rc = err_set(err, found, "out of memory: the plan");
        if (found != 0)
            p->best[n - 1].n_ranks = 0;
    }
    size_t used = 0;
    for (unsigned r = 0; rc == 0 && r < p->cut.n_ranks; r++)
        used += (size_t)snprintf(p->layers_text + used, sizeof p->layers_text - used, "%s%u",
                                 r > 0 ? "," : "", p->cut.stages[r].n_layers);
    return rc;
}

static int make_plan(struct planner *p, struct fm_error *err)
{
    int rc = read_model(p, err);
    if (rc == 0)
        rc = machines_file(p) != NULL ? read_machines(p, err) : probe_machines(p, err);
    if (rc == 0)
        rc = check_disks(p, err);
    if (rc == 0)
        rc = read_curve(p, err);
    return rc != 0 ? rc : find_cut(p, err);
}

/* ---- the lines that start it ----------------------------------------------------------------- */

static int run_words(const struct planner *p, struct mpirun_words *w, struct fm_error *err)
{
    char program[LIMIT_PATH_BYTES];
    struct hostfile hosts = p->hosts;
    if (hosts.path == NULL)
        hosts = (struct hostfile){.path = "HOSTFILE", .n_ranks = p->machines.n,
                                  .has_slots = true};
    int rc = own_path(program, err);
    if (rc == 0)
        rc = mpirun_begin(w, &hosts, args_text(p->args, "mpirun"), err);
    if (rc == 0)
        rc = mpirun_add(w, program, true, err);
    const char *const words[] = {"serve", p->path, "--layers", p->layers_text};
    for (size_t i = 0; rc == 0 && i < sizeof words / sizeof words[0]; i++)
        rc = mpirun_add(w, words[i], false, err);
    if (rc == 0)
        rc = mpirun_add_given(w, p->args, &group_engine, err);
    return rc != 0 ? rc : mpirun_add_given(w, p->args, &group_context, err);
}

/* ---- text ------------------------------------------------------------------------------------ */

static const char *host_of(const struct planner *p, unsigned rank, char name[NAME_BYTES])
{
    return out_name(p->machines.list[rank].host, name);
}

static void print_model(const struct planner *p)
{
    char name[NAME_BYTES], dense[UNIT_BYTES], experts[UNIT_BYTES];
    (void)printf("model        %s: %u layers, %s of dense weights, %s of experts\n",
                 out_name(p->path, name), p->info.n_layers,
                 human_bytes(p->info.dense_bytes, dense),
                 human_bytes(p->info.experts_bytes, experts));
    (void)printf("message      %.0f bytes per token from rank to rank\n",
                 p->problem.message_bytes);
    (void)printf("machines     %s\n", machines_file(p) != NULL ? "as given" : "measured now");
    machines_print(&p->machines);
}

static void print_cut(const struct planner *p)
{
    (void)printf("cut          %s\n", args_text(p->args, "layers") != NULL ? "as given"
                                                                           : "the best one");
    (void)printf("  rank  %-16s %11s  %10s  %7s  %6s  %17s  %s\n", "host", "layers", "cache",
                 "experts", "hits", "ms per token", "bound by");
    for (unsigned r = 0; r < p->cut.n_ranks; r++) {
        const struct cut_stage *s = &p->cut.stages[r];
        char name[NAME_BYTES], layers[32], cache[UNIT_BYTES], times[40];
        (void)snprintf(layers, sizeof layers, "%u-%u", s->first_layer,
                       s->first_layer + s->n_layers - 1);
        (void)snprintf(times, sizeof times, "%.2f - %.2f", s->min_s * 1e3, s->max_s * 1e3);
        (void)printf("  %4u  %-16s %11s  %10s  %6.1f%%  %5.1f%%  %17s  %s\n", r,
                     host_of(p, r, name), layers, human_bytes((uint64_t)s->cache_bytes, cache),
                     100 * s->share, 100 * s->hit_rate, times, limit_bound_name(s->limit.bound));
    }
}

static void print_speeds(const struct planner *p)
{
    const struct cut *c = &p->cut;
    const struct cut_stage *slow = &c->stages[c->slowest_stage];
    char name[NAME_BYTES], other[NAME_BYTES];
    (void)printf("one answer   %.2f - %.2f tok/s: %.2f - %.2f ms of stages, %.3f ms of hops\n",
                 1 / c->max_s, 1 / c->min_s, (c->min_s - c->hops_s) * 1e3,
                 (c->max_s - c->hops_s) * 1e3, c->hops_s * 1e3);
    (void)printf("several      at most %.2f - %.2f tok/s together, with an answer in every stage: "
                 "rank %u (%s) is the slowest\n", 1 / slow->max_s, 1 / slow->min_s,
                 c->slowest_stage, host_of(p, c->slowest_stage, name));
    if (c->n_ranks > 1)
        (void)printf("slowest hop  %.3f ms, rank %u (%s) to rank %u (%s)\n",
                     c->stages[c->slowest_hop].hop_s * 1e3, c->slowest_hop,
                     host_of(p, c->slowest_hop, name), (c->slowest_hop + 1) % c->n_ranks,
                     host_of(p, (c->slowest_hop + 1) % c->n_ranks, other));
    (void)printf("fewer        ");
    for (unsigned n = 1; n <= p->machines.n; n++) {
        const struct cut *best = &p->best[n - 1];
        if (is_shown(p, n))
            (void)printf("%s%u: ", n > 1 ? ", " : "", n);
        if (best->n_ranks > 0)
            (void)printf("%.2f - %.2f", 1 / best->max_s, 1 / best->min_s);
        else if (is_shown(p, n))
            (void)printf("-");
    }
    (void)printf(" tok/s with the first machines\n");
}

static void print_parts(const struct planner *p)
{
    (void)printf("\nA machine needs only the experts of its layers:\n");
    for (unsigned r = 0; r < p->cut.n_ranks; r++) {
        const struct cut_stage *s = &p->cut.stages[r];
        const char *here = p->machines.list[r].layers_here;
        char name[NAME_BYTES], path[NAME_BYTES];
        (void)printf("  rank %u (%s): flashmoe pack %s PART --layers %u-%u%s%s\n", r,
                     host_of(p, r, name), out_name(p->path, path), s->first_layer,
                     s->first_layer + s->n_layers - 1,
                     here[0] != '\0' ? "   # it has layers " : "", here);
    }
}

static int print_text(const struct planner *p, const struct mpirun_words *words)
{
    print_model(p);
    print_cut(p);
    print_speeds(p);
    (void)printf("\nms per token and tok/s: range from no overlap of disk and memory to full "
                 "overlap, at position %u.\nexperts: share that fits into the rank's cache. hits: "
                 "hit rate of a warm cache.\n\n", p->n_context / 2);
    mpirun_print(words);
    if (p->cut.n_ranks > 1)
        print_parts(p);
    return STATUS_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *stage_json(const struct cut_stage *s, unsigned rank)
{
    return json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:f}",
                     "rank", (int)rank, "first_layer", (int)s->first_layer,
                     "n_layers", (int)s->n_layers,
                     "need_bytes", (json_int_t)s->need_bytes,
                     "cache_bytes", (json_int_t)s->cache_bytes,
                     "experts_bytes", (json_int_t)s->experts_bytes, "share", s->share, "hit_rate",
                     s->hit_rate, "io_s", s->limit.io_s, "ram_s", s->limit.ram_s,
                     "min_s", s->min_s, "max_s", s->max_s,
                     "bound", limit_bound_name(s->limit.bound), "hop_s", s->hop_s);
}

static json_t *fewer_json(const struct planner *p)
{
    json_t *all = json_array();
    for (unsigned n = 1; n <= p->machines.n; n++) {
        const struct cut *c = &p->best[n - 1];
        json_t *one = c->n_ranks == 0 ? json_null()
                                      : json_pack("{s:i, s:f, s:f}", "n_ranks", (int)n, "min_s",
                                                  c->min_s, "max_s", c->max_s);
        if (is_shown(p, n))
            (void)json_array_append_new(all, one);
        else
            json_decref(one);
    }
    return all;
}

static json_t *words_json(const struct mpirun_words *words)
{
    json_t *all = json_array();
    for (unsigned i = 0; i < words->n; i++)
        (void)json_array_append_new(all, json_text(words->words[i], strlen(words->words[i])));
    return all;
}

static int print_json(const struct planner *p, const struct mpirun_words *words)
{
    const struct cut *c = &p->cut;
    const struct cut_stage *slow = &c->stages[c->slowest_stage];
    json_t *stages = json_array();
    for (unsigned r = 0; r < c->n_ranks; r++)
        (void)json_array_append_new(stages, stage_json(&c->stages[r], r));
    return out_json(json_pack(
               "{s:o, s:i, s:I, s:o, s:s, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:o, "
               "s:o}",
               "model", json_text(p->path, strlen(p->path)), "n_layers", (int)p->info.n_layers,
               "message_bytes", (json_int_t)p->problem.message_bytes,
               "machines", machines_json(&p->machines), "layers", p->layers_text,
               "stages", stages, "token_min_s", c->min_s, "token_max_s", c->max_s,
               "hops_s", c->hops_s, "tok_per_s_min", 1 / c->max_s, "tok_per_s_max", 1 / c->min_s,
               "pipelined_tok_per_s_min", 1 / slow->max_s,
               "pipelined_tok_per_s_max", 1 / slow->min_s,
               "slowest_stage", (int)c->slowest_stage, "slowest_hop", (int)c->slowest_hop,
               "fewer", fewer_json(p), "command", words_json(words)))
               ? STATUS_OK : STATUS_FAILED;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* The operands are HOSTFILE MODEL, or MODEL with --machines. */
static int read_operands(struct planner *p, struct fm_error *err)
{
    const char *first = args_operand(p->args, 0), *second = args_operand(p->args, 1);
    if (machines_file(p) != NULL && second != NULL)
        return err_set(err, FM_ERR_ARG, "--machines replaces HOSTFILE: give MODEL alone");
    if (machines_file(p) == NULL && second == NULL)
        return err_set(err, FM_ERR_ARG, "HOSTFILE and MODEL are needed, or MODEL and --machines "
                       "FILE to plan from numbers");
    if (machines_file(p) != NULL) /* main has taken the MODEL for a HOSTFILE */
        return app_model_find(first, p->found, &p->path, err);
    p->path = second;
    return hostfile_read(&p->hosts, first, err);
}

static int run_plan(const struct args *args)
{
    static struct planner p;
    static struct mpirun_words words;
    struct fm_error err = {0};
    p.args = args;
    say_library_log(false);
    int rc = read_operands(&p, &err);
    if (rc != 0)
        return say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    rc = make_plan(&p, &err);
    if (rc == 0)
        rc = run_words(&p, &words, &err);
    const int status = rc != 0 ? say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED)
                       : args_flag(args, "json") ? print_json(&p, &words)
                                                 : print_text(&p, &words);
    mem_free(p.layers);
    return status;
}

static const struct option plan_options[] = {
    {.name = "machines", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Plan for the machines of this JSON file, as 'flashmoe cluster probe --json' and this "
             "command print it, instead of measuring: for machines that are not there. --memory "
             "replaces the memory of each"},
    {.name = "layers", .kind = OPTION_STRING, .metavar = "N,...", .shown = "the best cut",
     .help = "Predict this cut instead: the layers of each rank"},
    {.name = "mpirun", .kind = OPTION_STRING, .metavar = "WORDS",
     .help = "Further options of mpirun, such as '--mca btl_tcp_if_include 10.0.0.0/24'"},
    {.name = "routes", .kind = OPTION_PATH, .metavar = "SPEC|FILE", .value = "gen",
     .help = "Routing that hit rates are predicted for, as in 'flashmoe plan'"},
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG,
     .help = "No progress on standard error"},
    {.name = NULL},
};
static const struct option_group group_plan = {"Plan", plan_options};

const struct command cmd_cluster_plan = {
    .name = "cluster plan",
    .summary = "Divide a model among several machines",
    .description =
        "Measures the machines of HOSTFILE ('flashmoe cluster probe' under mpirun) and finds the "
        "cut with which one answer is fastest: which layers each rank gets, from its memory, disk "
        "and processors and from the network. Of cuts that are equally fast for one answer within "
        "1 %, it takes the one that is best for several. Predicts tok/s as 'flashmoe plan' does, "
        "names the slowest stage and hop, and prints the line that starts the ranks. Rank 0, the "
        "first machine, also has the embedding and the head.\n"
        "--memory, --threads and the other options of the engine are for each rank, as in "
        "'flashmoe run'.",
    .operands = (const struct operand[]){
        {.name = "HOSTFILE", .help = "Machines, one per line, as for mpirun: 'a slots=1'. Not with "
                                     "--machines"},
        {.name = "MODEL", .help = "The model, at the same path on all machines",
         .is_optional = true},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_plan, &group_engine, &group_context,
                                                   &group_json, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe cluster plan hosts big.fmoe", "Measure, divide, and print the mpirun line"},
        {"flashmoe cluster plan big.fmoe --machines machines.json --memory 64G",
         "What the same machines with more memory would do"},
        {NULL, NULL}},
    .run = run_plan,
};
