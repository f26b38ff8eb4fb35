#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "cmd.h"
#include "common.h"
#include "interrupt.h"
#include "term.h"

#define PROMPT_TOKENS 16
#define REPEAT_MAX 100

static const char prompt_text[] = "The moon rose over the quiet sea and the night was still.";

/* What one stretch of tokens took. */
struct stretch {
    double tok_per_s, hit_rate;
    uint64_t bytes_read;
};

struct bench {
    const struct args *args;
    unsigned n_tokens, n_repeat;
    struct fm_model *model;
    struct fm_session *session;
    struct fm_sampler *sampler;
    int32_t prompt[PROMPT_TOKENS];
    size_t n_prompt;
    struct stretch stretches[REPEAT_MAX];
    struct fm_stats before, after; /* all stretches */
};

/* The first tokens of a fixed text, or of a fixed sequence without a tokenizer. */
static int make_prompt(struct bench *bench, struct fm_error *err)
{
    struct fm_model_info info;
    fm_model_info(bench->model, &info);
    bench->n_prompt = PROMPT_TOKENS;
    for (size_t i = 0; i < PROMPT_TOKENS; i++)
        bench->prompt[i] = (int32_t)(i * 7919 % info.vocabulary);
    if (!info.has_tokenizer)
        return 0;
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = fm_tokenize(bench->model, prompt_text, strlen(prompt_text), FM_TEXT_PLAIN, &ids, &n,
                         err);
    if (rc == 0 && n > 0) {
        bench->n_prompt = n < PROMPT_TOKENS ? n : PROMPT_TOKENS;
        memcpy(bench->prompt, ids, bench->n_prompt * sizeof *ids);
    }
    fm_free(ids);
    return rc;
}

static int open_bench(struct bench *bench, struct fm_error *err)
{
    const unsigned n_context = PROMPT_TOKENS + bench->n_tokens * bench->n_repeat;
    int rc = app_model_open_routed(bench->args, n_context, args_text(bench->args, "routes"),
                                   &bench->model, err);
    if (rc == 0)
        rc = make_prompt(bench, err);
    if (rc == 0)
        rc = fm_sampler_open(bench->model, &(struct fm_sampling){.top_p = 1}, &bench->sampler,
                             err);
    if (rc == 0)
        rc = fm_session_open(bench->model, &bench->session, err);
    return rc;
}

static double hit_rate(const struct fm_stats *before, const struct fm_stats *after)
{
    const uint64_t hits = after->n_expert_hits - before->n_expert_hits;
    const uint64_t all = hits + after->n_expert_misses - before->n_expert_misses;
    return all > 0 ? (double)hits / (double)all : 0;
}

static int run_stretch(struct bench *bench, struct stretch *stretch, struct fm_error *err)
{
    struct fm_stats before, after;
    fm_model_stats(bench->model, &before);
    int rc = 0;
    const uint64_t start_ns = plat_now_ns();
    for (unsigned i = 0; rc == 0 && i < bench->n_tokens; i++) {
        int32_t id = fm_sampler_pick(bench->sampler, fm_session_logits(bench->session));
        rc = id < 0 ? err_set(err, FM_ERR_FORMAT, "'%s' gives logits that are not numbers (NaN)",
                              app_model_path(bench->args))
                    : fm_session_eval(bench->session, &id, 1, err);
    }
    const uint64_t elapsed_ns = plat_now_ns() - start_ns;
    fm_model_stats(bench->model, &after);
    *stretch = (struct stretch){.tok_per_s = per_second(bench->n_tokens, elapsed_ns),
                                .hit_rate = hit_rate(&before, &after),
                                .bytes_read = after.bytes_read - before.bytes_read};
    return rc;
}

static int run_all(struct bench *bench, struct fm_error *err)
{
    struct progress progress;
    interrupt_watch(bench->session);
    progress_begin(&progress, "decoding", !args_flag(bench->args, "quiet"));
    int rc = fm_session_eval(bench->session, bench->prompt, bench->n_prompt, err);
    fm_model_stats(bench->model, &bench->before);
    for (unsigned i = 0; rc == 0 && i < bench->n_repeat; i++) {
        rc = interrupt_seen() ? FM_ERR_CANCELLED : run_stretch(bench, &bench->stretches[i], err);
        progress_steps(&progress, i + 1, bench->n_repeat, "stretches");
    }
    fm_model_stats(bench->model, &bench->after);
    progress_end(&progress);
    return rc;
}

/* ---- the result ------------------------------------------------------------------------ */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int print_json(const struct bench *bench, const double *sorted, double median)
{
    const char *path = app_model_path(bench->args);
    const struct fm_stats *s = &bench->after;
    const double n = (double)bench->n_tokens * bench->n_repeat;
    struct fm_model_info info;
    fm_model_info(bench->model, &info);
    json_t *stretches = json_array();
    for (unsigned i = 0; i < bench->n_repeat; i++)
        (void)json_array_append_new(
            stretches, json_pack("{s:f, s:f, s:f}", "tok_per_s", bench->stretches[i].tok_per_s,
                                 "hit_rate", bench->stretches[i].hit_rate, "bytes_per_token",
                                 (double)bench->stretches[i].bytes_read / bench->n_tokens));
    char hash[33];
    fm_session_logits_hash(bench->session, hash);
    return out_json(json_pack(
               "{s:f, s:f, s:f, s:f, s:f, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:o,"
               " s:s}",
               "tok_per_s", median, "tok_per_s_min", sorted[0], "tok_per_s_max",
               sorted[bench->n_repeat - 1], "hit_rate", hit_rate(&bench->before, s),
               "bytes_per_token", (double)(s->bytes_read - bench->before.bytes_read) / n,
               "stretches", stretches, "n_tokens", (json_int_t)bench->n_tokens,
               "repeat", (json_int_t)bench->n_repeat,
               "n_prompt_tokens", (json_int_t)bench->n_prompt,
               "n_cache_slots", (json_int_t)s->n_cache_slots,
               "memory_bytes", (json_int_t)s->memory_resident_peak_bytes,
               "memory_budget_bytes", (json_int_t)s->memory_budget_bytes,
               "n_threads", (json_int_t)s->n_threads, "logits_hash", hash,
               "routes", json_routes(s->routes), "model", json_text(path, strlen(path)),
               "architecture", info.architecture))
               ? STATUS_OK
               : STATUS_FAILED;
}

static int print_bench(const struct bench *bench)
{
    double sorted[REPEAT_MAX];
    const unsigned n = bench->n_repeat;
    for (unsigned i = 0; i < n; i++)
        sorted[i] = bench->stretches[i].tok_per_s;
    qsort(sorted, n, sizeof sorted[0], compare_doubles);
    const double median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
    if (args_flag(bench->args, "json"))
        return print_json(bench, sorted, median);
    const struct fm_stats *s = &bench->after;
    const uint64_t bytes = s->bytes_read - bench->before.bytes_read;
    char read[UNIT_BYTES], peak[UNIT_BYTES], budget[UNIT_BYTES];
    (void)printf("speed        %.2f tok/s median, %.2f to %.2f, of %u stretches of %u tokens\n",
                 median, sorted[0], sorted[n - 1], n, bench->n_tokens);
    (void)printf("expert hits  %.1f%%\n", 100 * hit_rate(&bench->before, s));
    (void)printf("read         %s per token\n",
                 human_bytes(bytes / ((uint64_t)n * bench->n_tokens), read));
    (void)printf("memory       %s of %s, %llu experts cached\n",
                 human_bytes(s->memory_resident_peak_bytes, peak),
                 human_bytes(s->memory_budget_bytes, budget),
                 (unsigned long long)s->n_cache_slots);
    (void)printf("routes       %s\n", s->routes != NULL ? s->routes : "the model's own");
    return STATUS_OK;
}

static int run_bench(const struct args *args)
{
    struct fm_error err = {0};
    struct bench *bench = mem_new(1, sizeof *bench, "the measurements", &err);
    if (bench == NULL)
        return say_failed(&err, STATUS_FAILED);
    bench->args = args;
    bench->n_tokens = (unsigned)args_uint(args, "tokens");
    bench->n_repeat = (unsigned)args_uint(args, "repeat");
    interrupt_install();
    int rc = open_bench(bench, &err);
    if (rc == 0)
        rc = run_all(bench, &err);
    int status = rc == 0 ? print_bench(bench) : STATUS_FAILED;
    if (rc == FM_ERR_CANCELLED) {
        say("interrupted; there is no result");
        status = STATUS_INTERRUPTED;
    } else if (rc != 0) {
        status = say_failed(&err, STATUS_FAILED);
    }
    interrupt_watch(NULL);
    fm_session_close(bench->session);
    fm_sampler_close(bench->sampler);
    fm_model_close(bench->model);
    mem_free(bench);
    return status;
}

static const struct option bench_options[] = {
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 1u << 16,
     .value = "32", .help = "Tokens in a stretch"},
    {.name = "repeat", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = REPEAT_MAX,
     .value = "5", .help = "Stretches, one after the other"},
    {.name = NULL},
};
static const struct option_group group_bench = {"Measurement", bench_options};

const struct command cmd_bench_decode = {
    .name = "bench decode",
    .summary = "Measure how fast a model generates tokens",
    .description =
        "A short fixed prompt is read and not counted. Then the most likely tokens are decoded, "
        "stop tokens or not, in stretches that follow each other in one session: repeating the "
        "same tokens would find their experts in the cache. Printed are the median, the lowest "
        "and the highest speed of the stretches, and over all of them the expert hit rate and "
        "the bytes read per token. The first stretch begins with the cache as the prompt left "
        "it.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_bench, &group_routes, &group_engine,
                                                   &group_json, &group_messages, &group_help,
                                                   NULL},
    .examples = (const struct example[]){
        {"flashmoe bench decode MODEL --memory 8G --routes gen",
         "The speed with 8 GiB, with experts chosen as real models do"},
        {NULL, NULL}},
    .run = run_bench,
};
