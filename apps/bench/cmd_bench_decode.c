#include "base/limits.h"
#include "apps/bench/as_asked.h"
#include "apps/bench/bench_common.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "flashmoe_lab.h"

static unsigned n_prompt_tokens(const struct bench *bench)
{
    return (unsigned)args_uint(bench->args, "prompt");
}

/* Returns the positions before the first measured token. */
static unsigned n_before(const struct bench *bench)
{
    const unsigned n = (unsigned)args_uint(bench->args, "context");
    return n > n_prompt_tokens(bench) ? n : n_prompt_tokens(bench);
}

static unsigned decode_context(const struct bench *bench)
{
    return n_before(bench) + bench->n_tokens * bench->n_repeat;
}

/* When every expert fits, decodes all measured tokens once before, so that no disk read is
 * measured. The tokens are the same the second time. */
static int decode_open(struct bench *bench, struct fm_error *err)
{
    const bool is_repeated = n_before(bench) > n_prompt_tokens(bench);
    const unsigned block = bench->info.kv_block_positions;
    bench->n_warm = bench->is_resident ? bench->n_repeat : 0;
    bench->n_before = n_before(bench);
    bench_observe(bench, (struct fm_observer){0});
    int rc = bench_make_prompt(bench, is_repeated && n_prompt_tokens(bench) < block
                                          ? block : n_prompt_tokens(bench), err);
    if (rc == 0)
        rc = fm_sampler_open(bench->model, &(struct fm_sampling){.size = sizeof(struct fm_sampling),
                                                                 .top_p = 1}, &bench->sampler,
                             err);
    return rc;
}

static int decode_start(struct bench *bench, struct fm_error *err)
{
    fm_session_reset(bench->session);
    const int rc = fm_session_eval(bench->session, bench->prompt, bench->n_prompt, err);
    return rc == 0 && bench->n_before > bench->n_prompt
               ? fm_session_repeat(bench->session, (unsigned)bench->n_before, err) : rc;
}

static int decode_stretch(struct bench *bench, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < bench->n_tokens; i++) {
        int32_t id = fm_sampler_pick(bench->sampler, fm_session_logits(bench->session));
        rc = id < 0 ? app_not_numbers(bench->args, err)
                    : fm_session_eval(bench->session, &id, 1, err);
        bench_progress(bench, bench->n_tokens_done + 1);
    }
    return rc;
}

/* ---- the result ------------------------------------------------------------------------------ */

static void print_recall(const struct bench *bench)
{
    double min = 2, max = -1, sum = 0;
    unsigned n = 0;
    for (size_t i = 0; i < json_array_size(bench->recall); i++) {
        const json_t *one = json_array_get(bench->recall, i);
        if (json_is_null(one))
            continue;
        const double recall = json_real_value(one);
        min = recall < min ? recall : min;
        max = recall > max ? recall : max;
        sum += recall;
        n++;
    }
    if (n > 0)
        (void)printf("prediction   %.0f%% recall of a layer's experts, %.0f%% to %.0f%%; %llu "
                     "prefetched, %llu of them used\n", 100 * sum / n, 100 * min, 100 * max,
                     (unsigned long long)bench->end.n_guesses,
                     (unsigned long long)bench->end.n_guesses_used);
}

/* Prints what attention computes, if it may take longer than memory. */
static void print_arithmetic(const struct bench *bench, const struct limit *limit)
{
    if (limit->fma_s <= limit->ram_s)
        return;
    if (limit->memory_percent > 0)
        (void)printf("             %.1f%% of the memory's speed; attention computes %.1f "
                     "multiply-adds per byte\n", limit->memory_percent,
                     limit->load.mul_adds / limit->memory_bytes);
    (void)printf("float peak   %.1f G multiply-adds/s, %.1f to %.1f, in registers\n",
                 bench->fma.median * 0.5e-9, bench->fma.min * 0.5e-9, bench->fma.max * 0.5e-9);
}

static const struct bench_kind decode_kind;

static int decode_print(const struct bench *bench)
{
    const struct fm_speed speed = bench_tok_per_s(bench);
    struct speed_report report = bench->report;
    const struct limit_speeds speeds = bench_speeds(bench);
    speed_report_finish(&report, &speeds);
    speed_report_set_speed(&report, speed.median);
    struct as_asked asked;
    as_asked_of(&bench->begin, &bench->end, &bench->disk, &report.limit, &asked);
    if (args_flag(bench->args, "json")) {
        json_t *more = speed_report_json(&report);
        (void)json_object_set(more, "recall", bench->recall); /* bench_json handles NULL */
        (void)json_object_set_new(more, "as_asked", as_asked_json(&asked));
        (void)json_object_set_new(more, "n_context_tokens", json_integer((json_int_t)
                                                                         bench->n_before));
        return out_json(bench_json(bench, &decode_kind, more)) ? STATUS_OK : STATUS_FAILED;
    }
    char limit[LIMIT_TEXT_BYTES], text[SPEED_REPORT_BYTES], read[UNIT_BYTES];
    char reads[AS_ASKED_BYTES];
    (void)printf("speed        %.2f tok/s median, %.2f to %.2f, of %u stretches of %u tokens\n",
                 speed.median, speed.min, speed.max, bench->n_repeat, bench->n_tokens);
    (void)printf("limit        %s\n", limit_text(&report.limit, limit));
    if (asked.max_per_s > 0)
        (void)printf("as asked     %s\n", as_asked_text(&asked, reads));
    print_arithmetic(bench, &report.limit);
    bench_print_read(bench);
    bench_print_disk(bench);
    bench_print_gpu(bench);
    (void)printf("expert hits  %.1f%%%s\n", 100 * bench_hit_rate(bench),
                 bench->is_resident ? "; every expert is resident, the same tokens were decoded "
                                      "once before"
                                    : "");
    (void)printf("read         %s per token\n",
                 human_bytes((uint64_t)bench_bytes_per_token(bench), read));
    if (!bench->is_resident) {
        (void)printf("miss curve   %s\n", speed_report_curve_text(&report, text));
        (void)printf("+1 GiB       %s\n", speed_report_more_text(&report, text));
    }
    print_recall(bench);
    bench_print_rest(bench);
    return STATUS_OK;
}

static const struct bench_kind decode_kind = {
    .measure = FM_MEASURE_READ | FM_MEASURE_FMA,
    .measures_disk = true,
    .pieces_name = "stretches",
    .n_context = decode_context,
    .open = decode_open,
    .start = decode_start,
    .piece = decode_stretch,
    .print = decode_print,
};

static int run_decode(const struct args *args)
{
    return bench_run(args, &decode_kind);
}

static const struct option decode_options[] = {
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 1u << 16,
     .value = "32", .help = "Tokens per stretch"},
    {.name = "repeat", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = BENCH_REPEAT_MAX,
     .value = "5", .help = "Number of stretches"},
    {.name = "prompt", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_CONTEXT / 2,
     .value = "16",
     .help = "Tokens of the prompt. A long prompt fills the cache, as in real use"},
    {.name = "context", .kind = OPTION_UINT, .metavar = "N", .min = 0, .max = LIMIT_CONTEXT / 2,
     .value = "0",
     .help = "Positions before the first measured token. Behind the prompt, its keys and values "
             "are repeated, which takes no time"},
    {.name = NULL},
};
static const struct option_group group_decode = {"Measurement", decode_options};

const struct command cmd_bench_decode = {
    .name = "bench decode",
    .summary = "Measure how fast a model generates tokens",
    .description =
        "Reads a fixed prompt, then decodes greedily, ignoring stop tokens, in consecutive "
        "stretches of one session. Repeating the same tokens would find their experts in the "
        "cache. Prints the median, lowest and highest speed of the stretches, and the overall "
        "expert hit rate and bytes read per token. The first stretch starts with the cache as the "
        "prompt left it.\n"
        "If the budget holds every expert, everything is done twice and only the second time "
        "counts: then every expert is resident and no disk read is measured.\n"
        "Also measures how fast the same number of threads reads memory, before opening and after "
        "closing the model, and, if experts had to be read, how fast random ones come from the "
        "disk. From these follows the limit. Per token, the disk must deliver the missing experts, "
        "and memory the dense weights, the experts, the KV cache at the middle position, the "
        "recurrent state (read and written) and twice the bytes from the disk. With full overlap, "
        "the slower of the two sets the limit. If attention's float multiply-adds take longer, at "
        "the speed that the threads reach in registers, they set it. Prefetched experts that were "
        "not used do not count. "
        "The percentage is the share of the limit that the median speed reaches. A model that fits "
        "into the processor's cache can exceed it.\n"
        "The limit takes the disk's speed with many reads at a time. Decode asks for a layer's "
        "experts when its router has chosen, which are one or two where most are in memory, and a "
        "disk gives less then. 'as asked' is the limit with that speed, where nothing was "
        "prefetched.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_decode, &group_routes, &group_engine,
                                                   &group_ranks,
                                                   &group_profile, &group_json, &group_messages,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe bench decode MODEL --memory 8G --routes gen",
         "Speed with 8 GiB and realistic routing"},
        {NULL, NULL}},
    .run = run_decode,
};
