#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "apps/bench/bench_common.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "flashmoe_lab.h"

#define MAX_SEQUENCES 64

/* Sequences that are evaluated together. Several such groups are under way at a time if other ranks
 * have layers. */
struct group {
    unsigned first, n;
    struct fm_evaluation *evaluation;
};

/* The work of one stretch. */
struct stretch {
    struct fm_batch_item items[MAX_SEQUENCES];
    int32_t ids[MAX_SEQUENCES];
    struct group groups[MAX_SEQUENCES];
    unsigned n_groups;
};

static unsigned n_sequences(const struct bench *bench)
{
    return (unsigned)args_uint(bench->args, "sequences");
}

/* The sequences are at different positions: so even replaced routes differ among them. */
static unsigned n_prompt_of(const struct bench *bench, unsigned sequence)
{
    return (unsigned)args_uint(bench->args, "prompt") + sequence;
}

static unsigned batch_context(const struct bench *bench)
{
    return n_prompt_of(bench, bench->n_sequences) + bench->n_tokens * bench->n_repeat;
}

static struct fm_session *session_of(const struct bench *bench, unsigned sequence)
{
    return sequence == 0 ? bench->session : bench->others[sequence - 1];
}

static int batch_open(struct bench *bench, struct fm_error *err)
{
    bench->n_warm = bench->is_resident ? bench->n_repeat : 0;
    bench_observe(bench, (struct fm_observer){0});
    const int rc = bench_make_prompt(bench, 2 * n_prompt_of(bench, bench->n_sequences), err);
    return rc != 0 ? rc
                   : fm_sampler_open(bench->model,
                                     &(struct fm_sampling){.size = sizeof(struct fm_sampling),
                                                           .top_p = 1}, &bench->sampler, err);
}

/* Every sequence has another part of the text as its prompt. */
static int batch_start(struct bench *bench, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < bench->n_sequences; i++) {
        fm_session_reset(session_of(bench, i));
        rc = fm_session_eval(session_of(bench, i), bench->prompt + i, n_prompt_of(bench, i), err);
    }
    return rc;
}

/* Gives each sequence of a group its next token. */
static int begin_group(struct bench *bench, struct stretch *s, struct group *g,
                       struct fm_error *err)
{
    for (unsigned i = g->first; i < g->first + g->n; i++) {
        struct fm_session *session = session_of(bench, i);
        s->ids[i] = fm_sampler_pick(bench->sampler, fm_session_logits(session));
        if (s->ids[i] < 0)
            return app_not_numbers(bench->args, err);
        s->items[i] = (struct fm_batch_item){.session = session, .ids = &s->ids[i], .n_ids = 1};
    }
    return fm_eval_begin(bench->model, s->items + g->first, g->n, &g->evaluation, err);
}

static int end_group(struct group *g, struct fm_error *err)
{
    struct fm_evaluation *evaluation = g->evaluation;
    g->evaluation = NULL;
    return evaluation != NULL ? fm_eval_end(evaluation, err) : 0;
}

static void divide(const struct bench *bench, struct stretch *s)
{
    /* What is profiled is under way alone. */
    const unsigned n = profile_is_on(&bench->profile) ? 1 : fm_model_evaluations(bench->model);
    s->n_groups = n < bench->n_sequences ? n : bench->n_sequences;
    for (unsigned g = 0; g < s->n_groups; g++) {
        s->groups[g].first = g * bench->n_sequences / s->n_groups;
        s->groups[g].n = (g + 1) * bench->n_sequences / s->n_groups - s->groups[g].first;
    }
}

/* A group begins its next token when the others are under way. */
static int batch_stretch(struct bench *bench, struct fm_error *err)
{
    struct stretch s = {0};
    int rc = 0;
    divide(bench, &s);
    for (unsigned t = 0; rc == 0 && t < bench->n_tokens; t++)
        for (unsigned g = 0; rc == 0 && g < s.n_groups; g++) {
            rc = end_group(&s.groups[g], err);
            if (rc == 0)
                rc = begin_group(bench, &s, &s.groups[g], err);
            bench_progress(bench, bench->n_tokens_done + s.groups[g].n);
        }
    for (unsigned g = 0; g < s.n_groups; g++) {
        struct fm_error later;
        const int end = end_group(&s.groups[g], rc == 0 ? err : &later);
        rc = rc == 0 ? end : rc;
    }
    return rc;
}

/* ---- the result ------------------------------------------------------------------------------ */

static const struct bench_kind batch_kind;

static int batch_print(const struct bench *bench)
{
    const struct fm_speed speed = bench_tok_per_s(bench);
    if (args_flag(bench->args, "json"))
        return out_json(bench_json(bench, &batch_kind,
                                   json_pack("{s:I}", "n_sequences",
                                             (json_int_t)bench->n_sequences)))
                   ? STATUS_OK : STATUS_FAILED;
    char read[UNIT_BYTES];
    (void)printf("speed        %.2f tok/s median, %.2f to %.2f, of %u sequences together; %.2f "
                 "each\n", speed.median, speed.min, speed.max, bench->n_sequences,
                 speed.median / bench->n_sequences);
    (void)printf("stretches    %u of %u tokens of each sequence\n", bench->n_repeat,
                 bench->n_tokens);
    (void)printf("expert hits  %.1f%%\nread         %s per token\n", 100 * bench_hit_rate(bench),
                 human_bytes((uint64_t)bench_bytes_per_token(bench), read));
    bench_print_read(bench);
    bench_print_rest(bench);
    return STATUS_OK;
}

static const struct bench_kind batch_kind = {
    .measure = FM_MEASURE_READ,
    .pieces_name = "stretches",
    .n_context = batch_context,
    .n_sequences = n_sequences,
    .open = batch_open,
    .start = batch_start,
    .piece = batch_stretch,
    .print = batch_print,
};

static int run_batch(const struct args *args)
{
    return bench_run(args, &batch_kind);
}

static const struct option batch_options[] = {
    {.name = "sequences", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = MAX_SEQUENCES,
     .value = "8", .help = "Sequences that are decoded together"},
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 1u << 16,
     .value = "32", .help = "Tokens of each sequence per stretch"},
    {.name = "repeat", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = BENCH_REPEAT_MAX,
     .value = "5", .help = "Number of stretches"},
    {.name = "prompt", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_CONTEXT / 4,
     .value = "16", .help = "Tokens of the first sequence's prompt; each next one has one more"},
    {.name = NULL},
};
static const struct option_group group_batch = {"Measurement", batch_options};

const struct command cmd_bench_batch = {
    .name = "bench batch",
    .summary = "Measure how fast several sequences are decoded together",
    .description =
        "Reads a prompt for each sequence, then decodes all of them greedily, ignoring stop "
        "tokens, a token of each at a time, in stretches. Prints the median, lowest and highest "
        "speed, which counts the tokens of all sequences. If the budget holds every expert, "
        "everything is done twice and only the second time counts.\n"
        "On several ranks the sequences are divided into as many groups, which are on different "
        "ranks at a time. With --profile they are not.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_batch, &group_routes, &group_engine,
                                                   &group_ranks, &group_profile, &group_json,
                                                   &group_messages, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe bench batch MODEL --sequences 4", "Speed of four answers at a time"},
        {NULL, NULL}},
    .run = run_batch,
};
