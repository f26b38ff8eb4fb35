#include "base/limits.h"
#include "apps/bench/bench_common.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "flashmoe_lab.h"

static unsigned prefill_context(const struct bench *bench)
{
    return bench->n_tokens;
}

static void show_layer(void *ctx, uint64_t done, uint64_t total)
{
    struct bench *bench = ctx;
    const uint64_t before = bench->n_tokens_done / bench->n_tokens * bench->n_tokens;
    bench_progress(bench, before + (total > 0 ? done * bench->n_tokens / total : 0));
}

static int prefill_open(struct bench *bench, struct fm_error *err)
{
    bench->n_warm = 1;
    bench_observe(bench, (struct fm_observer){.progress = show_layer});
    return bench_make_prompt(bench, bench->n_tokens, err);
}

static int prefill_prompt(struct bench *bench, struct fm_error *err)
{
    const uint64_t before = bench->n_tokens_done;
    fm_session_reset(bench->session);
    int rc = fm_session_eval(bench->session, bench->prompt, bench->n_prompt, err);
    bench_progress(bench, before + bench->n_tokens);
    return rc;
}

/* ---- the result ------------------------------------------------------------------------------ */

static const struct bench_kind prefill_kind;

/* Returns a count between both ends of the measured prompts. */
static double counted(uint64_t before, uint64_t after)
{
    return after > before ? (double)(after - before) : 0;
}

/* Computes what disk, memory and int8 arithmetic allow. A batch reads the dense weights and every
 * expert that it uses once. Attention is left out: its share of a prompt depends on the length. */
static void prefill_limit(const struct bench *bench, double tok_per_s, struct limit *limit)
{
    const struct fm_model_info *info = &bench->info;
    const struct fm_stats *a = &bench->begin, *b = &bench->end;
    const double n = (double)bench->n_tokens * bench->n_repeat;
    const double k = (double)info->n_experts_per_token * info->n_moe_layers;
    const double expert = k > 0 ? (double)info->expert_token_bytes / k : 0;
    const double n_used = counted(a->n_expert_hits, b->n_expert_hits) +
                          counted(a->n_expert_misses, b->n_expert_misses);
    const double unused = expert * (counted(a->n_guesses, b->n_guesses) -
                                    counted(a->n_guesses_used, b->n_guesses_used));
    const double read = counted(a->bytes_read, b->bytes_read) - (unused > 0 ? unused : 0);
    const unsigned chunk = b->prefill_chunk > 0 ? b->prefill_chunk : bench->n_tokens;
    const double n_batches = (double)((bench->n_tokens + chunk - 1) / chunk);
    struct limit_load load = {
        .expert_bytes = n_used * expert / n,
        .dense_bytes = (double)info->dense_token_bytes * n_batches / bench->n_tokens,
        .miss_bytes = read > 0 ? read / n : 0,
        .mul_adds = (double)info->mul_adds_per_token +
                    (double)info->mul_adds_per_head / bench->n_tokens};
    limit_set_speeds(&load, &(struct limit_speeds){.disk = bench->disk.read.median,
                                                   .memory = bench->read.median,
                                                   .mul_adds = bench->int8.median / 2});
    limit_of(&load, tok_per_s, limit);
}

static int prefill_json(const struct bench *bench, double operations_per_s)
{
    const bool has_peak = bench->int8.median > 0;
    const bool is_compared = has_peak && bench->end.gpu == NULL;
    const double percent = is_compared ? 100 * operations_per_s / bench->int8.median : 0;
    struct limit limit;
    prefill_limit(bench, bench_tok_per_s(bench).median, &limit);
    json_t *more = json_pack(
        "{s:I, s:I, s:f, s:o, s:o, s:o, s:o, s:b, s:o}", "prefill_chunk",
        (json_int_t)bench->end.prefill_chunk, "mul_adds_per_token",
        (json_int_t)bench->info.mul_adds_per_token, "gop_per_s", operations_per_s * 1e-9,
        "int8_gop_per_s", has_peak ? json_real(bench->int8.median * 1e-9) : json_null(),
        "int8_gop_per_s_min", has_peak ? json_real(bench->int8.min * 1e-9) : json_null(),
        "int8_gop_per_s_max", has_peak ? json_real(bench->int8.max * 1e-9) : json_null(),
        "int8_percent",
        is_compared && !limit_is_exceeded(percent) ? json_real(percent) : json_null(),
        "was_busy", limit_is_exceeded(percent), "limit",
        bench->end.gpu == NULL ? limit_json(&limit) : json_null());
    return out_json(bench_json(bench, &prefill_kind, more)) ? STATUS_OK : STATUS_FAILED;
}

static int prefill_print(const struct bench *bench)
{
    const struct fm_speed speed = bench_tok_per_s(bench);
    const struct fm_model_info *info = &bench->info;
    const double per_token = 2 * ((double)info->mul_adds_per_token +
                                  (double)info->mul_adds_per_head / bench->n_tokens);
    const double operations_per_s = per_token * speed.median;
    if (args_flag(bench->args, "json"))
        return prefill_json(bench, operations_per_s);
    char read[UNIT_BYTES];
    (void)printf("speed        %.2f tok/s median, %.2f to %.2f, of %u prompts of %u tokens\n",
                 speed.median, speed.min, speed.max, bench->n_repeat, bench->n_tokens);
    (void)printf("arithmetic   %.1f GOP/s in matrix products", operations_per_s * 1e-9);
    const bool is_compared = bench->int8.median > 0 && bench->end.gpu == NULL;
    const double percent = is_compared ? 100 * operations_per_s / bench->int8.median : 0;
    if (limit_is_exceeded(percent))
        (void)printf(", above the %.1f GOP/s measured with int8: the machine was busy then",
                     bench->int8.median * 1e-9);
    else if (is_compared)
        (void)printf(", %.1f%% of the %.1f GOP/s measured with int8", percent,
                     bench->int8.median * 1e-9);
    (void)printf("\nchunk        %u tokens per batch\n", bench->end.prefill_chunk);
    if (bench->end.gpu == NULL) {
        struct limit limit;
        char text[LIMIT_TEXT_BYTES];
        prefill_limit(bench, speed.median, &limit);
        (void)printf("limit        %s\n", limit_text(&limit, text));
    }
    bench_print_disk(bench);
    (void)printf("expert hits  %.1f%%; after one prompt that is not counted\n",
                 100 * bench_hit_rate(bench));
    (void)printf("read         %s per token\n",
                 human_bytes((uint64_t)bench_bytes_per_token(bench), read));
    bench_print_rest(bench);
    return STATUS_OK;
}

static const struct bench_kind prefill_kind = {
    .measure = FM_MEASURE_READ | FM_MEASURE_INT8,
    .measures_disk = true,
    .pieces_name = "prompts",
    .n_context = prefill_context,
    .open = prefill_open,
    .piece = prefill_prompt,
    .print = prefill_print,
};

static int run_prefill(const struct args *args)
{
    return bench_run(args, &prefill_kind);
}

static const struct option prefill_options[] = {
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_CONTEXT,
     .value = "512", .help = "Tokens per prompt"},
    {.name = "repeat", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = BENCH_REPEAT_MAX,
     .value = "5", .help = "Number of measured prompts"},
    {.name = NULL},
};
static const struct option_group group_prefill = {"Measurement", prefill_options};

const struct command cmd_bench_prefill = {
    .name = "bench prefill",
    .summary = "Measure how fast a model reads a prompt",
    .description =
        "Evaluates a fixed text of the given length from an empty session, repeatedly. The first "
        "time fills the expert cache and does not count. Prints the median, lowest and highest "
        "speed of the others, and the operations in matrix products per second: two for every "
        "weight that a token uses. For comparison, shows what the same threads reach with int8 in "
        "registers. The limit is what disk, memory and that arithmetic allow, if a batch reads the "
        "dense weights and every expert that it uses once; attention is not part of it.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_prefill, &group_routes, &group_engine,
                                                   &group_ranks,
                                                   &group_profile, &group_json, &group_messages,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe bench prefill MODEL --tokens 2048", "Speed with a long prompt"},
        {NULL, NULL}},
    .run = run_prefill,
};
