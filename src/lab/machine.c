/* fm_machine: describes the machine and measures its speed. */
#include "backend/machine.h"
#include "base/limits.h"
#include "base/plat.h"
#include "base/sized.h"
#include "flashmoe_lab.h"

#define PASSES 11
#define PASSES_QUICK 5

int fm_machine_info(struct fm_machine_info *out)
{
    struct fm_machine_info info = {
#if defined(__x86_64__)
        .architecture = "x86-64",
#elif defined(__aarch64__)
        .architecture = "aarch64",
#else
        .architecture = "other",
#endif
        .n_cpus = plat_n_cpus(),
        .n_cpus_of_machine = plat_n_cpus_of_machine(),
        .n_cores = plat_n_cores(),
        .cpu_quota = plat_cpu_quota(),
        .cache_bytes = plat_cache_bytes(),
        .memory_bytes = plat_memory_total(),
        .memory_available_bytes = plat_memory_available(),
    };
    plat_cpu_name(info.processor, sizeof info.processor);
    plat_huge_pages(info.huge_pages, sizeof info.huge_pages);
    return sized_give(out, &info, sizeof info);
}

bool fm_machine_level(unsigned i, struct fm_level_info *out)
{
    struct machine_level level;
    if (!machine_level(i, &level))
        return false;
    const struct fm_level_info info = {.name = level.name, .needs = level.needs,
                                       .is_usable = level.is_usable,
                                       .is_default = level.is_default};
    return sized_give(out, &info, sizeof info) == 0;
}

int fm_machine_check_level(const char *name, struct fm_error *err)
{
    struct machine_level level;
    return machine_level_find(name, &level, err);
}

/* ---- measuring ------------------------------------------------------------------------------ */

struct measurement {
    const struct fm_machine_options *options;
    struct machine_run run;
    uint64_t n_done, n_total; /* passes */
};

static void pass_done(void *ctx)
{
    struct measurement *m = ctx;
    m->n_done++;
    if (m->options->progress != NULL)
        m->options->progress(m->options->progress_ctx, m->n_done, m->n_total);
}

static int measure_one(struct measurement *m, unsigned n_threads, uint64_t bytes,
                       machine_peak_fn *peak, struct fm_speed *out, struct fm_error *err)
{
    m->run.n_threads = n_threads;
    return peak != NULL ? machine_measure_peak(&m->run, peak, out, err)
                        : machine_measure_read(&m->run, bytes, out, err);
}

/* Measures the operations of one kind, if this level has them. */
static int measure_peak(struct measurement *m, unsigned n_threads, bool has_one,
                        machine_peak_fn *peak, struct fm_speed *all, struct fm_speed *one,
                        struct fm_error *err)
{
    const int rc = peak != NULL && has_one ? measure_one(m, 1, 0, peak, one, err) : 0;
    return rc == 0 && peak != NULL ? measure_one(m, n_threads, 0, peak, all, err) : rc;
}

static int measure(const struct fm_machine_options *options, struct fm_machine_speeds *speeds,
                   struct fm_error *err)
{
    const unsigned usual = FM_MEASURE_READ | FM_MEASURE_INT8 | FM_MEASURE_ONE_THREAD;
    const unsigned all = usual | FM_MEASURE_FMA, peaks = FM_MEASURE_INT8 | FM_MEASURE_FMA;
    const unsigned what = options->what != 0 ? options->what : usual;
    struct machine_level level;
    if ((what & ~all) != 0)
        return err_set(err, FM_ERR_ARG, "fm_machine_options.what is %u: expected a sum of "
                       "FM_MEASURE_* values, at most %u", what, all);
    int rc = what & peaks ? machine_level_use(options->cpu, &level, err)
                          : machine_level_find(options->cpu, &level, err);
    if (rc != 0)
        return rc;
    if (options->n_threads > LIMIT_THREADS)
        return err_set(err, FM_ERR_ARG, "%u threads requested, the maximum is %d",
                       options->n_threads, LIMIT_THREADS);
    const unsigned n_cores = plat_n_cores() < LIMIT_THREADS ? plat_n_cores() : LIMIT_THREADS;
    const unsigned n = options->n_threads > 0 ? options->n_threads : n_cores;
    const bool has_read = what & FM_MEASURE_READ, has_one = what & FM_MEASURE_ONE_THREAD;
    machine_peak_fn *const int8 = what & FM_MEASURE_INT8 ? level.int8_peak : NULL;
    machine_peak_fn *const fma = what & FM_MEASURE_FMA ? level.fma_peak : NULL;
    struct measurement m = {.options = options};
    m.run = (struct machine_run){.is_pinned = options->pin_threads, .pass_done = pass_done,
                                 .n_passes = options->quick ? PASSES_QUICK : PASSES, .ctx = &m};
    m.n_total = (uint64_t)m.run.n_passes *
                (unsigned)(has_read + (int8 != NULL) + (fma != NULL)) * (has_one ? 2 : 1);
    speeds->n_threads = n;
    speeds->cpu_level = level.name;
    speeds->read_buffer_bytes = has_read ? machine_read_bytes(options->quick) : 0;
    if (has_read && has_one)
        rc = measure_one(&m, 1, speeds->read_buffer_bytes, NULL, &speeds->read_one, err);
    if (rc == 0 && has_read)
        rc = measure_one(&m, n, speeds->read_buffer_bytes, NULL, &speeds->read, err);
    if (rc == 0)
        rc = measure_peak(&m, n, has_one, int8, &speeds->int8, &speeds->int8_one, err);
    return rc != 0 ? rc : measure_peak(&m, n, has_one, fma, &speeds->fma, &speeds->fma_one, err);
}

int fm_machine_measure(const struct fm_machine_options *options, struct fm_machine_speeds *speeds,
                       struct fm_error *err)
{
    struct fm_machine_options own;
    struct fm_machine_speeds found = {0};
    int rc = sized_check(speeds, "fm_machine_speeds", err);
    if (rc == 0)
        rc = sized_take(&own, sizeof own, options, "fm_machine_options", err);
    if (rc == 0)
        rc = measure(&own, &found, err);
    (void)sized_give(speeds, &found, sizeof found); /* a wrong size was refused above */
    return rc;
}
