#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/disk_report.h"
#include "apps/cli/engine_words.h"
#include "apps/cli/term.h"
#include "flashmoe_lab.h"

#define FINDINGS_MAX 16
#define FINDING_BYTES 320
#define LEVELS_MAX 16
#define GPUS_MAX 16
#define COLUMNS 80
#define INDENT 4

struct doctor {
    const struct args *args;
    struct fm_machine_info info;
    struct fm_level_info levels[LEVELS_MAX];
    unsigned n_levels;
    const struct fm_level_info *level; /* in use; NULL: this processor supports none */
    struct fm_gpu_info gpus[GPUS_MAX];
    struct fm_gpu_speeds gpu_speeds[GPUS_MAX];
    unsigned n_gpus;
    struct fm_error no_gpu; /* why there is no further one */
    struct fm_machine_speeds speeds;
    const char *model; /* measures the disk it is on; NULL: none */
    struct fm_disk_speeds disk;
    struct fm_io_speeds io; /* the basis of --io auto */
    char findings[FINDINGS_MAX][FINDING_BYTES]; /* suggestions, most important first */
    unsigned n_findings;
};

static void find(struct doctor *d, const char *fmt, ...) ERR_PRINTF(2, 3);

static void find(struct doctor *d, const char *fmt, ...)
{
    if (d->n_findings == FINDINGS_MAX)
        return;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(d->findings[d->n_findings++], FINDING_BYTES, fmt, args);
    va_end(args);
}

/* ---- looking --------------------------------------------------------------------------------- */

static void find_levels(struct doctor *d)
{
    const char *asked = args_text(d->args, "cpu");
    for (unsigned i = 0; i < LEVELS_MAX; i++)
        d->levels[i].size = sizeof d->levels[i];
    while (d->n_levels < LEVELS_MAX && fm_machine_level(d->n_levels, &d->levels[d->n_levels]))
        d->n_levels++;
    for (unsigned i = 0; i < d->n_levels; i++) {
        const struct fm_level_info *level = &d->levels[i];
        if (level->is_usable &&
            (asked != NULL ? strcmp(level->name, asked) == 0 : level->is_default))
            d->level = level;
    }
}

static void find_gpus(struct doctor *d)
{
    int rc = 0;
    while (rc == 0 && d->n_gpus < GPUS_MAX) {
        struct fm_gpu_info *gpu = &d->gpus[d->n_gpus];
        struct fm_gpu_speeds *speeds = &d->gpu_speeds[d->n_gpus];
        struct fm_error ignored;
        gpu->size = sizeof *gpu;
        speeds->size = sizeof *speeds;
        rc = fm_gpu_info(d->n_gpus, gpu, &d->no_gpu);
        if (rc == 0)
            (void)fm_gpu_measure(d->n_gpus++, args_flag(d->args, "quick"), speeds, &ignored);
    }
}

static void judge_levels(struct doctor *d)
{
    const struct fm_level_info *best = NULL;
    for (unsigned i = 0; i < d->n_levels; i++)
        if (d->levels[i].is_usable)
            best = &d->levels[i];
    if (best == NULL) {
        find(d, "This processor is not supported: the lowest level needs %s.", d->levels[0].needs);
        return;
    }
    if (d->level != NULL && d->level != best)
        find(d, "--cpu selects level '%s'; the default here is '%s'.", d->level->name, best->name);
    const struct fm_level_info *top = &d->levels[d->n_levels - 1];
    if (best != top)
        find(d, "The best level here is '%s'. A processor with %s runs '%s', which is faster; a "
             "virtual machine must expose these instructions.", best->name, top->needs,
             top->name);
}

static void judge_cores(struct doctor *d)
{
    const struct fm_machine_info *m = &d->info;
    if (m->n_cpus < m->n_cpus_of_machine)
        find(d, "This process may use only %u of the machine's %u processors (taskset, a cpuset or "
             "a container).", m->n_cpus, m->n_cpus_of_machine);
    if (m->cpu_quota > 0 && m->cpu_quota < m->n_cpus)
        find(d, "A cgroup limits this process to the time of %.3g of %u processors (cpu.max).",
             m->cpu_quota, m->n_cpus);
    if (m->n_cores == 1)
        find(d, "Only one core is usable: nothing runs in parallel.");
    if (d->speeds.n_threads > m->n_cores)
        find(d, "%u threads share %u usable core%s: use fewer threads.",
             d->speeds.n_threads, m->n_cores, m->n_cores == 1 ? "" : "s");
    double load;
    if (getloadavg(&load, 1) == 1 && load > 0.5 && load > 0.25 * m->n_cpus_of_machine)
        find(d, "Other programs are running (load average %.1f on %u processors); they slow down "
             "these measurements.", load, m->n_cpus_of_machine);
}

static void judge_memory(struct doctor *d)
{
    const struct fm_machine_info *m = &d->info;
    char available[UNIT_BYTES], total[UNIT_BYTES];
    if (m->memory_bytes > 0 && m->memory_available_bytes < m->memory_bytes / 4)
        find(d, "Only %s of %s of memory is available: other programs or a cgroup hold the rest.",
             human_bytes(m->memory_available_bytes, available),
             human_bytes(m->memory_bytes, total));
    if (strcmp(m->huge_pages, "never") == 0)
        find(d, "Transparent huge pages are off, which slows down memory access. As root: echo "
             "madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    const struct fm_speed *read = &d->speeds.read;
    if (read->median > 0 && read->max - read->min > 0.25 * read->median)
        find(d, "Memory speed varied by %.0f%% during the measurement: other programs are using "
             "the machine.", 100 * (read->max - read->min) / read->median);
    if (!app_is_beyond_cache(d->speeds.read_buffer_bytes))
        find(d, "Too little memory is free to measure it beyond the processor's cache of %s.",
             human_bytes(m->cache_bytes, total));
}

/* ---- measuring ------------------------------------------------------------------------------- */

static void show_pass(void *ctx, uint64_t done, uint64_t total)
{
    progress_steps(ctx, done, total, "passes");
}

/* Measures which --io mode is faster, stores it for the next start, and measures that mode. */
static int measure_disk(struct doctor *d, bool quick, struct fm_error *err)
{
    struct fm_model_options options = {.size = sizeof options};
    char path[LIMIT_PATH_BYTES];
    if (app_kept_path(d->model, "io", path))
        options.io_path = path;
    int rc = fm_io_measure(d->model, &options, &d->io, err);
    options.io = d->io.io;
    return rc == 0 ? fm_disk_measure(d->model, &options, quick, &d->disk, err) : rc;
}

static int measure(struct doctor *d, struct fm_error *err)
{
    struct progress progress;
    progress_begin(&progress, "measuring", !args_flag(d->args, "quiet"));
    const struct fm_machine_options options = {
        .size = sizeof options,
        .n_threads = (unsigned)args_uint(d->args, "threads"),
        .pin_threads = args_flag(d->args, "pin"),
        .cpu = args_text(d->args, "cpu"),
        .quick = args_flag(d->args, "quick"),
        .progress = show_pass,
        .progress_ctx = &progress,
    };
    int rc = d->model != NULL ? measure_disk(d, options.quick, err) : 0;
    if (rc == 0)
        rc = fm_machine_measure(&options, &d->speeds, err);
    progress_end(&progress);
    return rc;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_processor(const struct doctor *d)
{
    const struct fm_machine_info *m = &d->info;
    char cache[UNIT_BYTES];
    (void)printf("processor    %s (%s)\n", m->processor[0] != '\0' ? m->processor : "unknown",
                 m->architecture);
    (void)printf("cores        %u usable, %u processor%s", m->n_cores, m->n_cpus,
                 m->n_cpus == 1 ? "" : "s");
    if (m->n_cpus < m->n_cpus_of_machine)
        (void)printf(" of %u", m->n_cpus_of_machine);
    if (m->cache_bytes > 0)
        (void)printf(", %s of cache", human_bytes(m->cache_bytes, cache));
    (void)printf("\n");
    for (unsigned i = 0; i < d->n_levels; i++) {
        const struct fm_level_info *level = &d->levels[i];
        (void)printf("%-12s %-10s %-10s %s\n", i == 0 ? "levels" : "", level->name,
                     level == d->level  ? "in use"
                     : level->is_usable ? "available"
                                        : "missing",
                     level->needs);
    }
}

static void print_memory(const struct doctor *d)
{
    const struct fm_machine_info *m = &d->info;
    char total[UNIT_BYTES], available[UNIT_BYTES];
    (void)printf("memory       %s, %s available\n", human_bytes(m->memory_bytes, total),
                 human_bytes(m->memory_available_bytes, available));
    (void)printf("huge pages   %s\n", m->huge_pages[0] != '\0' ? m->huge_pages : "unknown");
}

static void print_gpus(const struct doctor *d)
{
    char total[UNIT_BYTES], available[UNIT_BYTES], memory[UNIT_BYTES], send[UNIT_BYTES];
    if (d->n_gpus == 0)
        (void)printf("GPU          none: %s\n", d->no_gpu.text);
    for (unsigned i = 0; i < d->n_gpus; i++) {
        const struct fm_gpu_speeds *speeds = &d->gpu_speeds[i];
        (void)printf("GPU %-8u %s, %s of memory, %s free\n", i, d->gpus[i].name,
                     human_bytes(d->gpus[i].memory_bytes, total),
                     human_bytes(d->gpus[i].memory_free_bytes, available));
        if (speeds->memory.median > 0)
            (void)printf("             %s in its memory, %s to it\n",
                         human_rate(speeds->memory.median, memory),
                         human_rate(speeds->send.median, send));
    }
}

static void print_threads(unsigned n_threads)
{
    (void)printf(" with %u thread%s\n", n_threads, n_threads == 1 ? "" : "s");
}

static void print_reads(const char *title, const struct fm_speed *speed, unsigned n_threads)
{
    char median[UNIT_BYTES], min[UNIT_BYTES], max[UNIT_BYTES];
    (void)printf("%-12s %s, %s to %s,", title, human_rate(speed->median, median),
                 human_rate(speed->min, min), human_rate(speed->max, max));
    print_threads(n_threads);
}

static void print_operations(const char *title, const struct fm_speed *speed, unsigned n_threads)
{
    (void)printf("%-12s %.1f GOP/s, %.1f to %.1f,", title, speed->median * 1e-9,
                 speed->min * 1e-9, speed->max * 1e-9);
    print_threads(n_threads);
}

static void print_speeds(const struct doctor *d)
{
    const struct fm_machine_speeds *s = &d->speeds;
    if (s->read.median > 0) {
        print_reads("memory read", &s->read_one, 1);
        print_reads("", &s->read, s->n_threads);
    }
    if (s->int8.median > 0) {
        print_operations("int8", &s->int8_one, 1);
        print_operations("", &s->int8, s->n_threads);
    }
}

static void print_disk(const struct doctor *d)
{
    const struct fm_disk_speeds *s = &d->disk;
    char median[UNIT_BYTES], min[UNIT_BYTES], max[UNIT_BYTES], expert[UNIT_BYTES];
    if (d->model == NULL)
        return;
    (void)printf("disk read    %s, %s to %s, experts of %s, %u concurrent reads, %s\n",
                 human_rate(s->read.median, median), human_rate(s->read.min, min),
                 human_rate(s->read.max, max), human_bytes(s->expert_bytes, expert),
                 s->read_depth, s->io);
    disk_report_print_few(s);
    disk_report_print_speeds(s);
    char direct[UNIT_BYTES], page[UNIT_BYTES];
    (void)printf("io auto      %s: %s direct, %s through the page cache\n",
                 word_text(&words_io, (int)d->io.io),
                 d->io.direct > 0 ? human_rate(d->io.direct, direct) : "impossible",
                 d->io.page > 0 ? human_rate(d->io.page, page) : "not measured (slow)");
}

/* Prints text wrapped at COLUMNS, with all lines but the first indented. */
static void print_wrapped(const char *text)
{
    size_t column = INDENT;
    while (*text != '\0') {
        const size_t n = strcspn(text, " ");
        if (column > INDENT && column + 1 + n > COLUMNS) {
            (void)printf("\n%*s", INDENT, "");
            column = INDENT;
        }
        column += (size_t)printf("%s%.*s", column > INDENT ? " " : "", (int)n, text);
        text += n + (text[n] == ' ');
    }
    (void)printf("\n");
}

static void print_findings(const struct doctor *d)
{
    if (d->n_findings == 0)
        (void)printf("\nNo suggestions: nothing to improve was found.\n");
    else
        (void)printf("\nSuggestions:\n");
    for (unsigned i = 0; i < d->n_findings; i++) {
        (void)printf("%2u. ", i + 1);
        print_wrapped(d->findings[i]);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *text_or_null(const char *text)
{
    return text != NULL && text[0] != '\0' ? json_text(text, strlen(text)) : json_null();
}

/* Adds NAME, NAME_min and NAME_max, divided by 1e9. */
static int put_speed(json_t *object, const char *name, const struct fm_speed *speed)
{
    static const char *const suffixes[] = {"", "_min", "_max"};
    const double values[] = {speed->median, speed->min, speed->max};
    int rc = 0;
    for (unsigned i = 0; i < 3; i++) {
        char key[64];
        (void)snprintf(key, sizeof key, "%s%s", name, suffixes[i]);
        rc |= json_object_set_new(object, key, speed->median > 0 ? json_real(values[i] * 1e-9)
                                                                 : json_null());
    }
    return rc;
}

static json_t *rate_or_null(double rate)
{
    return rate > 0 ? json_real(rate * 1e-9) : json_null();
}

static int put_io(json_t *object, const struct fm_io_speeds *io)
{
    const char *word = io->io != FM_IO_AUTO ? word_text(&words_io, (int)io->io) : NULL;
    return json_object_set_new(object, "io_auto", text_or_null(word)) |
           json_object_set_new(object, "io_direct_gb_per_s", rate_or_null(io->direct)) |
           json_object_set_new(object, "io_page_gb_per_s", rate_or_null(io->page));
}

static int put_gpus(json_t *object, const struct doctor *d)
{
    json_t *gpus = json_array();
    for (unsigned i = 0; i < d->n_gpus; i++)
        (void)json_array_append_new(
            gpus, json_pack("{s:o, s:I, s:I, s:o, s:o}", "name", text_or_null(d->gpus[i].name),
                            "memory_bytes", (json_int_t)d->gpus[i].memory_bytes,
                            "memory_free_bytes", (json_int_t)d->gpus[i].memory_free_bytes,
                            "memory_gb_per_s", rate_or_null(d->gpu_speeds[i].memory.median),
                            "send_gb_per_s", rate_or_null(d->gpu_speeds[i].send.median)));
    return json_object_set_new(object, "gpus", gpus) |
           json_object_set_new(object, "no_gpu", d->n_gpus == 0 ? text_or_null(d->no_gpu.text)
                                                               : json_null());
}

static int print_json(const struct doctor *d)
{
    const struct fm_machine_info *m = &d->info;
    json_t *levels = json_array(), *findings = json_array();
    for (unsigned i = 0; i < d->n_levels; i++)
        (void)json_array_append_new(
            levels, json_pack("{s:s, s:s, s:b, s:b}", "name", d->levels[i].name, "needs",
                              d->levels[i].needs, "is_usable", d->levels[i].is_usable,
                              "is_default", d->levels[i].is_default));
    for (unsigned i = 0; i < d->n_findings; i++)
        (void)json_array_append_new(findings, json_string(d->findings[i]));
    json_t *all = json_pack(
        "{s:s, s:o, s:s, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:o}",
        "version", fm_version(), "processor", text_or_null(m->processor),
        "architecture", m->architecture, "n_cpus", (json_int_t)m->n_cpus,
        "n_cpus_of_machine", (json_int_t)m->n_cpus_of_machine,
        "n_cores", (json_int_t)m->n_cores,
        "cpu_quota", m->cpu_quota > 0 ? json_real(m->cpu_quota) : json_null(),
        "cache_bytes", (json_int_t)m->cache_bytes, "memory_bytes", (json_int_t)m->memory_bytes,
        "memory_available_bytes", (json_int_t)m->memory_available_bytes,
        "huge_pages", text_or_null(m->huge_pages),
        "cpu_level", text_or_null(d->level != NULL ? d->level->name : NULL), "levels", levels,
        "n_threads", (json_int_t)d->speeds.n_threads,
        "read_buffer_bytes", (json_int_t)d->speeds.read_buffer_bytes, "findings", findings);
    const struct fm_machine_speeds *s = &d->speeds;
    if (all == NULL || put_io(all, &d->io) != 0 || put_gpus(all, d) != 0 ||
        put_speed(all, "disk_read_gb_per_s", &d->disk.read) != 0 ||
        put_speed(all, "memory_read_gb_per_s", &s->read) != 0 ||
        put_speed(all, "memory_read_one_thread_gb_per_s", &s->read_one) != 0 ||
        put_speed(all, "int8_gop_per_s", &s->int8) != 0 ||
        put_speed(all, "int8_one_thread_gop_per_s", &s->int8_one) != 0) {
        json_decref(all);
        all = NULL;
    }
    if (all != NULL)
        disk_report_put_speeds(all, &d->disk);
    return out_json(all) ? STATUS_OK : STATUS_FAILED;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run_doctor(const struct args *args)
{
    struct fm_error err = {0};
    struct doctor d = {.args = args, .model = args_operand(args, 0)};
    const bool is_json = args_flag(args, "json");
    d.info.size = sizeof d.info;
    d.speeds.size = sizeof d.speeds;
    d.disk.size = sizeof d.disk;
    d.io.size = sizeof d.io;
    fm_machine_info(&d.info);
    find_levels(&d);
    find_gpus(&d);
    if (measure(&d, &err) != 0)
        return say_failed(&err, STATUS_FAILED);
    judge_levels(&d);
    judge_cores(&d);
    judge_memory(&d);
    if (is_json)
        return print_json(&d);
    print_processor(&d);
    print_memory(&d);
    print_gpus(&d);
    print_speeds(&d);
    print_disk(&d);
    print_findings(&d);
    return STATUS_OK;
}

static const struct option doctor_options[] = {
    {.name = "quick", .kind = OPTION_FLAG,
     .help = "Measure fewer passes over less memory; less precise"},
    {.name = "threads", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_THREADS,
     .shown = "one per physical core", .help = "Threads to measure with, besides one thread"},
    {.name = "pin", .kind = OPTION_FLAG, .help = option_pin_help},
    {.name = "cpu", .kind = OPTION_STRING, .metavar = "LEVEL",
     .shown = "the best for this processor", .help = option_cpu_help},
    {.name = NULL},
};
static const struct option quiet_options[] = {
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG,
     .help = "No progress on standard error"},
    {.name = NULL},
};
static const struct option_group group_doctor = {"Measurement", doctor_options};
static const struct option_group group_quiet = {"Output", quiet_options};

const struct command cmd_doctor = {
    .name = "doctor",
    .summary = "Show what this machine can do and what slows it down",
    .description =
        "Prints the processor, the usable cores, the instruction levels that Flash-MoE supports, "
        "the memory and the GPUs. Then measures the memory read speed, which limits how fast "
        "tokens are generated, and the int8 multiplication speed, which limits how fast prompts "
        "are read. Each is the median of several passes, followed by the slowest and the fastest. "
        "With MODEL, also measures how fast random experts are read from its disk, many at a time, "
        "one and two, directly and through the page cache; '--io auto' uses the result. Ends with "
        "suggestions.\n"
        "Takes a few seconds and up to an eighth of the available memory.",
    .operands = (const struct operand[]){{.name = "MODEL", .is_optional = true,
                                          .help = "Also measure the disk of this model"},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_doctor, &group_json, &group_quiet,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe doctor --json", "Print the report for a program"},
        {NULL, NULL}},
    .run = run_doctor,
};
