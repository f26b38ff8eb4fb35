#include "apps/bench/bench_common.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "apps/cli/disk_report.h"
#include "apps/cli/gpu_report.h"
#include "apps/cli/interrupt.h"
#include "flashmoe_lab.h"

/* ---- the machine ----------------------------------------------------------------------------- */

static void show_pass(void *ctx, uint64_t done, uint64_t total)
{
    progress_steps(ctx, done, total, "passes");
}

/* Merges two measurements; the first may be empty. */
static void join(struct fm_speed *a, const struct fm_speed *b)
{
    if (a->median == 0) {
        *a = *b;
        return;
    }
    a->median = (a->median + b->median) / 2;
    a->min = a->min < b->min ? a->min : b->min;
    a->max = a->max > b->max ? a->max : b->max;
}

static int measure_machine(struct bench *bench, unsigned what, struct fm_error *err)
{
    struct progress progress;
    progress_begin(&progress, "measuring the machine", !args_flag(bench->args, "quiet"));
    const struct fm_machine_options options = {
        .size = sizeof options,
        .what = what,
        .n_threads = (unsigned)args_uint(bench->args, "threads"),
        .pin_threads = args_flag(bench->args, "pin"),
        .cpu = args_text(bench->args, "cpu"),
        .quick = true,
        .progress = show_pass,
        .progress_ctx = &progress,
    };
    struct fm_machine_speeds speeds = {.size = sizeof speeds};
    int rc = fm_machine_measure(&options, &speeds, err);
    progress_end(&progress);
    if (rc != 0)
        return rc;
    join(&bench->read, &speeds.read);
    join(&bench->int8, &speeds.int8);
    join(&bench->fma, &speeds.fma);
    if (bench->n_measured++ == 0 || speeds.read_buffer_bytes < bench->read_buffer_bytes)
        bench->read_buffer_bytes = speeds.read_buffer_bytes;
    return 0;
}

/* ---- the work -------------------------------------------------------------------------------- */

/* A long text with several subjects, so that a prompt uses many experts. */
static const char prompt_text[] =
    "In the year the river froze, the clockmaker of Hallow Street stopped selling clocks. He said "
    "that time had become too cheap. \"Everyone has an hour,\" he told the baker, \"and nobody has "
    "an afternoon.\" Instead he built small machines that did one thing each: a brass beetle that "
    "sorted buttons, a lamp that knew when it was read by, a kettle that wrote down the weather."
    "\n\n"
    "Water boils at 100 degrees at sea level and at about 90 degrees at 3000 metres, because the "
    "pressure of the air is lower there. The same holds for 7 * 12 = 84 kettles."
    "\n\n"
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n"
    "    return total / len(values)"
    "\n\n"
    "To make soup: cut two onions, three carrots and a leek; fry them slowly in oil; add a litre "
    "of water and a spoon of salt; wait until the carrots are soft. Serve it with dark bread."
    "\n\n";

int bench_make_prompt(struct bench *bench, size_t n, struct fm_error *err)
{
    bench->prompt = mem_new(n, sizeof *bench->prompt, "the prompt", err);
    if (bench->prompt == NULL)
        return FM_ERR_NOMEM;
    bench->n_prompt = n;
    for (size_t i = 0; i < n; i++)
        bench->prompt[i] = (int32_t)(i * 7919 % bench->info.vocabulary);
    if (!bench->info.has_tokenizer)
        return 0;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = fm_tokenize(bench->model, prompt_text, strlen(prompt_text), FM_TEXT_PLAIN, &ids,
                         &n_ids, err);
    for (size_t i = 0; rc == 0 && n_ids > 0 && i < n; i++)
        bench->prompt[i] = ids[i % n_ids];
    fm_free(ids);
    return rc;
}

static void record_times(void *ctx, const struct fm_layer_profile *layer)
{
    struct bench *bench = ctx;
    if (bench->is_counting)
        profile_add(&bench->profile, layer);
}

void bench_observe(struct bench *bench, struct fm_observer observer)
{
    observer.size = sizeof observer;
    observer.ctx = bench;
    observer.profile = profile_is_on(&bench->profile) ? record_times : NULL;
    fm_session_observe(bench->session, &observer);
}

void bench_progress(struct bench *bench, uint64_t n_tokens_done)
{
    bench->n_tokens_done = n_tokens_done;
    progress_steps(&bench->progress, n_tokens_done,
                   (uint64_t)(bench->n_warm + bench->n_repeat) * bench->n_tokens *
                       bench->n_sequences, "tokens");
}

static double hit_rate(const struct fm_stats *before, const struct fm_stats *after)
{
    const uint64_t hits = after->n_expert_hits - before->n_expert_hits;
    const uint64_t all = hits + after->n_expert_misses - before->n_expert_misses;
    return all > 0 ? (double)hits / (double)all : 0;
}

static int run_piece(struct bench *bench, const struct bench_kind *kind, struct bench_piece *piece,
                     struct fm_error *err)
{
    struct fm_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    fm_model_stats(bench->model, &before);
    const uint64_t begin_ns = plat_now_ns();
    int rc = interrupt_seen() ? FM_ERR_CANCELLED : kind->piece(bench, err);
    const uint64_t elapsed_ns = plat_now_ns() - begin_ns;
    fm_model_stats(bench->model, &after);
    *piece = (struct bench_piece){.tok_per_s = per_second((uint64_t)bench->n_tokens *
                                                              bench->n_sequences, elapsed_ns),
                                  .hit_rate = hit_rate(&before, &after),
                                  .bytes_read = after.bytes_read - before.bytes_read};
    return rc;
}

static int run_pieces(struct bench *bench, const struct bench_kind *kind, struct fm_error *err)
{
    struct bench_piece warm;
    progress_begin(&bench->progress, bench->args->command->name, !args_flag(bench->args, "quiet"));
    int rc = kind->start != NULL ? kind->start(bench, err) : 0;
    for (unsigned i = 0; rc == 0 && i < bench->n_warm; i++)
        rc = run_piece(bench, kind, &warm, err);
    if (rc == 0 && kind->start != NULL && bench->n_warm > 0)
        rc = kind->start(bench, err);
    bench->begin.size = sizeof bench->begin;
    fm_model_stats(bench->model, &bench->begin);
    bench->is_counting = true;
    for (unsigned i = 0; rc == 0 && i < bench->n_repeat; i++)
        rc = run_piece(bench, kind, &bench->pieces[i], err);
    bench->end.size = sizeof bench->end;
    fm_model_stats(bench->model, &bench->end);
    speed_report_take(&bench->report, bench->model, &bench->begin,
                      (double)(bench->n_before > 0 ? bench->n_before : bench->n_prompt));
    fm_session_logits_hash(bench->session, bench->logits_hash);
    double recall;
    for (unsigned i = 0; fm_model_recall(bench->model, i, &recall); i++)
        (void)json_array_append_new(bench->recall, recall >= 0 ? json_real(recall) : json_null());
    progress_end(&bench->progress);
    return rc;
}

static void close_all(struct bench *bench)
{
    interrupt_watch(NULL);
    fm_sampler_close(bench->sampler);
    fm_session_close(bench->session);
    for (unsigned i = 0; bench->others != NULL && i + 1 < bench->n_sequences; i++)
        fm_session_close(bench->others[i]);
    mem_free(bench->others);
    bench->others = NULL;
    fm_model_close(bench->model);
    bench->sampler = NULL;
    bench->session = NULL;
    bench->model = NULL;
}

static int open_sessions(struct bench *bench, struct fm_error *err)
{
    int rc = fm_session_open(bench->model, &bench->session, err);
    bench->others = mem_new(bench->n_sequences, sizeof bench->others[0], "the sessions", err);
    if (bench->others == NULL)
        return FM_ERR_NOMEM;
    for (unsigned i = 0; rc == 0 && i + 1 < bench->n_sequences; i++)
        rc = fm_session_open(bench->model, &bench->others[i], err);
    return rc;
}

static int open_model(struct bench *bench, const struct bench_kind *kind, struct fm_error *err)
{
    bench->n_sequences = kind->n_sequences != NULL ? kind->n_sequences(bench) : 1;
    const struct app_model_options how = {.n_context = kind->n_context(bench),
                                          .n_sessions = bench->n_sequences,
                                          .routes = args_text(bench->args, "routes")};
    int rc = app_model_open(bench->args, &how, &bench->model, err);
    if (rc == 0)
        rc = open_sessions(bench, err);
    if (rc != 0)
        return rc;
    struct fm_stats stats = {.size = sizeof stats};
    bench->info.size = sizeof bench->info;
    fm_model_info(bench->model, &bench->info);
    fm_model_stats(bench->model, &stats);
    bench->is_resident = stats.n_cache_slots >=
                         (uint64_t)bench->info.n_experts * bench->info.n_moe_layers;
    interrupt_watch(bench->session);
    rc = profile_head(&bench->profile, &bench->info, err);
    return rc == 0 ? kind->open(bench, err) : rc;
}

/* Closes the model early: the following measurement needs its memory to exceed the caches. */
static int close_model(struct bench *bench, struct fm_error *err)
{
    const char *routes = bench->end.routes, *approximate = bench->end.approximate;
    bench->architecture = mem_strdup(bench->info.architecture, err);
    bench->routes = routes != NULL ? mem_strdup(routes, err) : NULL;
    bench->approximate = approximate != NULL ? mem_strdup(approximate, err) : NULL;
    const char *gpu = bench->end.gpu;
    bench->gpu = gpu != NULL ? mem_strdup(gpu, err) : NULL;
    if (bench->architecture == NULL || (routes != NULL && bench->routes == NULL) ||
        (approximate != NULL && bench->approximate == NULL) || (gpu != NULL && bench->gpu == NULL))
        return FM_ERR_NOMEM;
    bench->end.gpu = bench->begin.gpu = bench->gpu;
    bench->info.architecture = bench->architecture;
    bench->info.routes = bench->end.routes = bench->begin.routes = bench->routes;
    bench->info.approximate = bench->end.approximate = bench->begin.approximate =
        bench->approximate;
    close_all(bench);
    return 0;
}

static int run_all(struct bench *bench, const struct bench_kind *kind, struct fm_error *err)
{
    int rc = 0;
    /* The measured memory must not count as the model's. Where the peak cannot be reset, the
     * machine is measured only after the work. */
    if (plat_resident_peak_reset()) {
        rc = measure_machine(bench, kind->measure, err);
        (void)plat_resident_peak_reset(); /* it just worked */
    }
    if (rc == 0)
        rc = open_model(bench, kind, err);
    if (rc == 0)
        rc = run_pieces(bench, kind, err);
    if (rc == 0)
        rc = close_model(bench, err);
    if (rc == 0)
        rc = measure_machine(bench, kind->measure, err);
    if (rc == 0 && kind->measures_disk && !bench->is_resident)
        rc = app_disk_measure(bench->args, bench->end.io, &bench->disk, err);
    if (rc == 0 && bench->end.gpu != NULL)
        app_gpu_measure(bench->args, &bench->gpu_speeds);
    return rc;
}

int bench_run(const struct args *args, const struct bench_kind *kind)
{
    struct fm_error err = {0};
    struct bench *bench = mem_new(1, sizeof *bench, "the measurements", &err);
    if (bench == NULL)
        return say_failed(&err, STATUS_FAILED);
    bench->args = args;
    bench->recall = json_array();
    bench->n_tokens = (unsigned)args_uint(args, "tokens");
    bench->n_repeat = (unsigned)args_uint(args, "repeat");
    interrupt_install();
    int rc = profile_open(&bench->profile, args_text(args, "profile"), &err);
    if (rc == 0)
        rc = run_all(bench, kind, &err);
    int status = rc == 0 ? kind->print(bench) : STATUS_FAILED;
    if (rc == FM_ERR_CANCELLED) {
        say("interrupted; no result");
        status = STATUS_INTERRUPTED;
    } else if (rc != 0) {
        status = say_failed(&err, STATUS_FAILED);
    }
    if (profile_close(&bench->profile, rc == 0, &err) != 0)
        status = say_failed(&err, STATUS_FAILED);
    close_all(bench);
    mem_free(bench->architecture);
    mem_free(bench->routes);
    mem_free(bench->approximate);
    mem_free(bench->gpu);
    mem_free(bench->prompt);
    json_decref(bench->recall);
    mem_free(bench);
    return status;
}

/* ---- results --------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct fm_speed bench_tok_per_s(const struct bench *bench)
{
    double values[BENCH_REPEAT_MAX];
    for (unsigned i = 0; i < bench->n_repeat; i++)
        values[i] = bench->pieces[i].tok_per_s;
    return bench_spread(values, bench->n_repeat);
}

struct fm_speed bench_spread(const double *values, unsigned n)
{
    double sorted[BENCH_REPEAT_MAX];
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof sorted[0], compare_doubles);
    return (struct fm_speed){.median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2,
                             .min = sorted[0], .max = sorted[n - 1]};
}

double bench_hit_rate(const struct bench *bench)
{
    return hit_rate(&bench->begin, &bench->end);
}

double bench_bytes_per_token(const struct bench *bench)
{
    return (double)(bench->end.bytes_read - bench->begin.bytes_read) /
           ((double)bench->n_tokens * bench->n_sequences * bench->n_repeat);
}

static json_t *pieces_json(const struct bench *bench)
{
    json_t *pieces = json_array();
    for (unsigned i = 0; i < bench->n_repeat; i++)
        (void)json_array_append_new(
            pieces, json_pack("{s:f, s:f, s:f}", "tok_per_s", bench->pieces[i].tok_per_s,
                              "hit_rate", bench->pieces[i].hit_rate, "bytes_per_token",
                              (double)bench->pieces[i].bytes_read /
                                  ((double)bench->n_tokens * bench->n_sequences)));
    return pieces;
}

static bool put_gpu_speeds(json_t *all, const struct bench *bench)
{
    const struct fm_gpu_speeds *s = &bench->gpu_speeds;
    return s->memory.median == 0 ||
           (json_object_set_new(all, "gpu_memory_gb_per_s",
                                json_real(s->memory.median * 1e-9)) == 0 &&
            json_object_set_new(all, "gpu_send_gb_per_s", json_real(s->send.median * 1e-9)) == 0);
}

json_t *bench_json(const struct bench *bench, const struct bench_kind *kind, json_t *more)
{
    const struct fm_stats *s = &bench->end;
    const struct fm_speed speed = bench_tok_per_s(bench);
    const char *path = app_model_path(bench->args);
    json_t *all = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:o, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:s, s:s,"
        " s:f, s:f, s:f, s:I, s:b, s:I, s:I, s:o, s:o, s:o, s:s}",
        "tok_per_s", speed.median, "tok_per_s_min", speed.min, "tok_per_s_max", speed.max,
        "hit_rate", bench_hit_rate(bench), "bytes_per_token", bench_bytes_per_token(bench),
        kind->pieces_name, pieces_json(bench), "n_tokens", (json_int_t)bench->n_tokens,
        "repeat", (json_int_t)bench->n_repeat,
        "n_warm_tokens", (json_int_t)bench->n_warm * bench->n_tokens,
        "n_prompt_tokens", (json_int_t)bench->n_prompt,
        "is_resident", bench->is_resident,
        "n_cache_slots", (json_int_t)s->n_cache_slots,
        "memory_bytes", (json_int_t)s->memory_resident_peak_bytes,
        "memory_budget_bytes", (json_int_t)s->memory_budget_bytes,
        "n_threads", (json_int_t)s->n_threads, "cpu_level",
        gpu_report_cpu_level(s),
        "logits_hash", bench->logits_hash, "memory_read_gb_per_s", bench->read.median * 1e-9,
        "memory_read_gb_per_s_min", bench->read.min * 1e-9,
        "memory_read_gb_per_s_max", bench->read.max * 1e-9,
        "read_buffer_bytes", (json_int_t)bench->read_buffer_bytes,
        "is_read_beyond_cache", app_is_beyond_cache(bench->read_buffer_bytes),
        "n_shrinks", (json_int_t)s->n_shrinks, "n_grows", (json_int_t)s->n_grows,
        "routes", json_label(s->routes),
        "approximate", json_label(s->approximate), "model", json_text(path, strlen(path)),
        "architecture", bench->info.architecture);
    if (all == NULL || more == NULL || json_object_update(all, more) != 0 ||
        !gpu_report_put(all, &bench->begin, s) || !put_gpu_speeds(all, bench)) {
        json_decref(all);
        all = NULL;
    }
    json_decref(more);
    return all;
}

void bench_print_read(const struct bench *bench)
{
    char median[UNIT_BYTES], min[UNIT_BYTES], max[UNIT_BYTES], cache[UNIT_BYTES];
    (void)printf("memory read  %s, %s to %s, measured %s\n",
                 human_rate(bench->read.median, median), human_rate(bench->read.min, min),
                 human_rate(bench->read.max, max),
                 bench->n_measured > 1 ? "before and after" : "after");
    if (!app_is_beyond_cache(bench->read_buffer_bytes))
        (void)printf("             partly the speed of the processor's cache (%s): too little "
                     "memory is free\n", human_bytes(plat_cache_bytes(), cache));
}

void bench_print_disk(const struct bench *bench)
{
    const struct fm_disk_speeds *s = &bench->disk;
    char median[UNIT_BYTES], min[UNIT_BYTES], max[UNIT_BYTES], expert[UNIT_BYTES];
    if (s->read.median > 0)
        (void)printf("disk read    %s, %s to %s, experts of %s, %u concurrent reads, %s, measured "
                     "after\n", human_rate(s->read.median, median),
                     human_rate(s->read.min, min), human_rate(s->read.max, max),
                     human_bytes(s->expert_bytes, expert), s->read_depth, s->io);
    disk_report_print_few(s);
    disk_report_print_speeds(s);
}

void bench_print_gpu(const struct bench *bench)
{
    const struct fm_gpu_speeds *s = &bench->gpu_speeds;
    char memory[UNIT_BYTES], send[UNIT_BYTES], text[GPU_REPORT_BYTES];
    if (bench->end.gpu == NULL)
        return;
    if (s->memory.median > 0)
        (void)printf("GPU copies   %s in its memory, %s to it, measured after\n",
                     human_rate(s->memory.median, memory), human_rate(s->send.median, send));
    (void)printf("GPU work     %s\n", gpu_report_work(&bench->begin, &bench->end, text));
}

struct limit_speeds bench_speeds(const struct bench *bench)
{
    return (struct limit_speeds){.disk = bench->disk.read.median, .memory = bench->read.median,
                                 .gpu = bench->gpu_speeds.memory.median,
                                 .link = bench->gpu_speeds.send.median,
                                 .mul_adds = bench->fma.median / 2};
}

static const char *times(uint64_t n, char text[UNIT_BYTES])
{
    (void)snprintf(text, UNIT_BYTES, "%llu time%s", (unsigned long long)n, n == 1 ? "" : "s");
    return text;
}

void bench_print_elastic(const char *where, uint64_t n_shrinks, uint64_t n_grows)
{
    char smaller[UNIT_BYTES], larger[UNIT_BYTES];
    if (n_shrinks + n_grows > 0)
        (void)printf("elastic      %sthe cache shrank %s and grew %s with the available memory "
                     "(--elastic off: fixed size)\n", where,
                     times(n_shrinks, smaller), times(n_grows, larger));
}

void bench_print_engine(const struct fm_stats *s)
{
    char peak[UNIT_BYTES], budget[UNIT_BYTES], gpu[GPU_REPORT_BYTES];
    if (s->gpu != NULL)
        (void)printf("GPU          %s, %s\n", s->gpu, gpu_report_division(s, gpu));
    (void)printf("memory       %s of %s, %llu experts cached\n",
                 human_bytes(s->memory_resident_peak_bytes, peak),
                 human_bytes(s->memory_budget_bytes, budget),
                 (unsigned long long)(s->n_cache_slots - s->n_gpu_slots));
    bench_print_elastic("", s->n_shrinks, s->n_grows);
    (void)printf("processor    level %s, %u thread%s\n", gpu_report_cpu_level(s), s->n_threads,
                 s->n_threads == 1 ? "" : "s");
    (void)printf("routes       %s\n", s->routes != NULL ? s->routes : "the model's own");
    if (s->approximate != NULL)
        (void)printf("%s\n", s->approximate);
}

void bench_print_rest(const struct bench *bench)
{
    bench_print_engine(&bench->end);
}
