#include "apps/bench/serve_report.h"

#include <stdlib.h>
#include <string.h>

/* ---- measuring -------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values and returns their median. */
static double median_of(double *values, unsigned n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

static void compare_texts(struct serve_target *t, const struct serve_shape *shape, bool is_cached,
                          const struct serve_answer *answers)
{
    for (unsigned u = 0; u < shape->n_users; u++) {
        t->differs |= is_cached && t->hashes[u] != answers[u].text_hash;
        t->hashes[u] = answers[u].text_hash;
    }
}

void serve_report_note(struct serve_target *t, const struct serve_shape *shape, bool is_cached,
                       const struct serve_answer *answers)
{
    struct serve_part *part = &t->parts[is_cached];
    const unsigned i = part->n++, n = shape->n_users;
    double firsts[SERVE_USERS_MAX], speeds[SERVE_USERS_MAX], end_s = 0, n_tokens = 0;
    double n_prompt = 0, n_cached = 0;
    for (unsigned u = 0; u < n; u++) {
        const struct serve_answer *a = &answers[u];
        const double last_s = (double)a->last_ns * 1e-9, gap_s = (double)a->gap_ns * 1e-9;
        firsts[u] = (double)a->first_ns * 1e-9;
        speeds[u] = per_second(a->n_tokens - 1, a->last_ns - a->first_ns);
        end_s = last_s > end_s ? last_s : end_s;
        part->gap_s[i] = gap_s > part->gap_s[i] ? gap_s : part->gap_s[i];
        n_tokens += (double)a->n_tokens;
        n_prompt += (double)a->n_prompt;
        n_cached += (double)a->n_cached;
    }
    part->tok_per_s[i] = n_tokens / end_s;
    part->first_median_s[i] = median_of(firsts, n);
    part->first_s[i] = firsts[0];
    part->first_last_s[i] = firsts[n - 1];
    part->user_per_s[i] = median_of(speeds, n);
    part->user_min_per_s[i] = speeds[0];
    part->cached[i] = n_prompt > 0 ? n_cached / n_prompt : 0;
    compare_texts(t, shape, is_cached, answers);
}

void serve_report_count(struct serve_target *t, const struct fm_stats *before,
                        const struct fm_stats *after, uint64_t ns)
{
    struct serve_counts *c = &t->counts;
    const uint64_t n_guesses = after->n_guesses - before->n_guesses;
    const uint64_t n_used = after->n_guesses_used - before->n_guesses_used;
    c->ns += ns;
    c->n_passes += after->n_decode_passes - before->n_decode_passes;
    c->n_tokens += after->n_decode_tokens - before->n_decode_tokens;
    c->n_experts += after->n_expert_hits - before->n_expert_hits + after->n_expert_misses -
                    before->n_expert_misses;
    c->bytes_read += after->bytes_read - before->bytes_read;
    c->n_unused += n_guesses > n_used ? n_guesses - n_used : 0;
    c->has_prompts |= after->n_prefill_tokens != before->n_prefill_tokens;
}

/* Merges two measurements; the first may be empty. */
static void join(struct fm_speed *a, const struct fm_speed *b)
{
    const bool is_first = a->median == 0;
    a->median = is_first ? b->median : (a->median + b->median) / 2;
    a->min = is_first || b->min < a->min ? b->min : a->min;
    a->max = is_first || b->max > a->max ? b->max : a->max;
}

static void show_pass(void *ctx, uint64_t done, uint64_t total)
{
    progress_steps(ctx, done, total, "passes");
}

int serve_report_measure(struct serve_machine *machine, const struct args *args, const char *io,
                         struct fm_error *err)
{
    struct progress progress;
    struct fm_machine_speeds speeds = {.size = sizeof speeds};
    progress_begin(&progress, "measuring the machine", !args_flag(args, "quiet"));
    const struct fm_machine_options options = {
        .size = sizeof options, .what = FM_MEASURE_READ | FM_MEASURE_INT8,
        .n_threads = (unsigned)args_uint(args, "threads"), .pin_threads = args_flag(args, "pin"),
        .cpu = args_text(args, "cpu"), .quick = true, .progress = show_pass,
        .progress_ctx = &progress};
    int rc = fm_machine_measure(&options, &speeds, err);
    progress_end(&progress);
    if (rc != 0)
        return rc;
    join(&machine->read, &speeds.read);
    join(&machine->int8, &speeds.int8);
    machine->n_measured++;
    if (io != NULL && !machine->is_resident)
        rc = app_disk_measure(args, io[0] != '\0' ? io : NULL, &machine->disk, err);
    return rc;
}

/* ---- the limit -------------------------------------------------------------------------- */

/* Computes the limit of decoding for all users together. A token has its share of what a pass reads
 * once. Returns false if nothing is known. */
static bool batch_limit(const struct serve_target *t, const struct serve_shape *shape,
                        const struct serve_machine *m, struct limit *limit)
{
    const struct serve_counts *c = &t->counts;
    const double n = (double)c->n_tokens, k = m->info.n_experts_per_token;
    const double position = shape->n_prefix + shape->n_prompt + shape->n_tokens / 2.0;
    const double expert = k > 0 ? (double)m->info.expert_token_bytes / (k * m->info.n_moe_layers)
                                : 0;
    if (!t->is_own || c->n_tokens == 0 || c->n_passes == 0 || c->ns == 0 || c->has_prompts)
        return false;
    const double read = (double)c->bytes_read - (double)c->n_unused * expert;
    struct limit_load load = limit_load_of(&m->info, position, read > 0 ? read / n : 0);
    load.expert_bytes = (double)c->n_experts * expert / n;
    load.dense_bytes *= (double)c->n_passes / n;
    limit_set_speeds(&load, &(struct limit_speeds){.disk = m->disk.read.median,
                                                   .memory = m->read.median});
    limit_of(&load, per_second(c->n_tokens, c->ns), limit);
    return true;
}

/* Returns the share of the int8 peak that the matrix products of the answers took; 0: unknown. */
static double int8_share(const struct serve_target *t, const struct serve_machine *m)
{
    const double each = 2 * ((double)m->info.mul_adds_per_token +
                             (double)m->info.mul_adds_per_head);
    return m->int8.median > 0 ? per_second(t->counts.n_tokens, t->counts.ns) * each /
                                    m->int8.median : 0;
}

/* ---- printing --------------------------------------------------------------------------- */

static double mid(const double *values, unsigned n)
{
    return n > 0 ? bench_spread(values, n).median : 0;
}

static void print_part(const char *name, const struct serve_part *p)
{
    const struct fm_speed all = bench_spread(p->tok_per_s, p->n);
    const struct fm_speed gap = bench_spread(p->gap_s, p->n);
    (void)printf("%-8s %8.2f %7.2f %7.2f   %6.2f %6.2f %6.2f   %6.2f %6.2f   %6.0f %6.0f %6.0f%%\n",
                 name, all.median, all.min, all.max, mid(p->first_s, p->n),
                 mid(p->first_median_s, p->n), mid(p->first_last_s, p->n),
                 mid(p->user_per_s, p->n), mid(p->user_min_per_s, p->n), 1e3 * gap.median,
                 1e3 * gap.max, 100 * mid(p->cached, p->n));
}

static void print_limit(const struct serve_target *t, const struct serve_shape *shape,
                        const struct serve_machine *m)
{
    struct limit limit;
    char text[LIMIT_TEXT_BYTES], read[UNIT_BYTES], disk[UNIT_BYTES];
    char experts[UNIT_BYTES], dense[UNIT_BYTES], kv[UNIT_BYTES];
    if (!batch_limit(t, shape, m, &limit)) {
        (void)printf("limit        unknown: the users did not all get text at the same time; use "
                     "longer answers (--tokens)\n");
        return;
    }
    const double n = (double)t->counts.n_tokens / (double)t->counts.n_passes;
    (void)printf("answering    %.2f tok/s with %.1f tokens per pass, while all %u users got text\n",
                 limit.tok_per_s, n, shape->n_users);
    (void)printf("limit        %s\n", limit_text(&limit, text));
    (void)printf("a pass       %s of experts, %s of dense weights, %s of keys, values and state\n",
                 human_bytes((uint64_t)(limit.load.expert_bytes * n), experts),
                 human_bytes((uint64_t)(limit.load.dense_bytes * n), dense),
                 human_bytes((uint64_t)(limit.load.kv_bytes * n), kv));
    if (int8_share(t, m) > 0)
        (void)printf("arithmetic   %.1f%% of the %.1f GOP/s measured with int8\n",
                     100 * int8_share(t, m), m->int8.median * 1e-9);
    (void)printf("memory read  %s, measured %s\n", human_rate(m->read.median, read),
                 m->n_measured > 1 ? "before and after" : "after");
    if (m->disk.read.median > 0)
        (void)printf("disk read    %s, measured after\n",
                     human_rate(m->disk.read.median, disk));
}

static void print_target(const struct serve_target *t, const struct serve_shape *shape,
                         const struct serve_machine *m)
{
    (void)printf("\n%s\n", t->name);
    (void)printf("%-8s %-24s   %-20s   %-13s   %-13s %7s\n", "", "tok/s of all, min, max",
                 "first token s", "each tok/s", "longest gap ms", "cached");
    print_part("new", &t->parts[0]);
    print_part("cached", &t->parts[1]);
    if (t->is_own)
        print_limit(t, shape, m);
    (void)printf("texts        %s\n",
                 t->differs ? "differ when the same prompt is sent again"
                            : "the same for new and cached prompts");
}

static json_t *values_json(const double *values, unsigned n)
{
    const struct fm_speed s = bench_spread(values, n);
    return json_pack("{s:f, s:f, s:f}", "median", s.median, "min", s.min, "max", s.max);
}

static json_t *part_json(const struct serve_part *p)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "tok_per_s", values_json(p->tok_per_s, p->n),
                     "first_token_s", values_json(p->first_s, p->n),
                     "first_token_median_s", values_json(p->first_median_s, p->n),
                     "first_token_last_s", values_json(p->first_last_s, p->n),
                     "user_tok_per_s", values_json(p->user_per_s, p->n),
                     "user_tok_per_s_min", values_json(p->user_min_per_s, p->n),
                     "longest_gap_s", values_json(p->gap_s, p->n),
                     "cached_share", values_json(p->cached, p->n));
}

static json_t *target_json(const struct serve_target *t, const struct serve_shape *shape,
                           const struct serve_machine *m)
{
    struct limit limit;
    const bool has_limit = batch_limit(t, shape, m, &limit);
    const double n_passes = (double)(t->counts.n_passes > 0 ? t->counts.n_passes : 1);
    return json_pack("{s:s, s:s, s:b, s:o, s:o, s:b, s:o, s:o, s:o}", "name", t->name, "url",
                     t->url->base, "is_own", t->is_own, "new", part_json(&t->parts[0]), "cached",
                     part_json(&t->parts[1]), "texts_differ", t->differs, "limit",
                     has_limit ? limit_json(&limit) : json_null(), "tokens_per_pass",
                     has_limit ? json_real((double)t->counts.n_tokens / n_passes) : json_null(),
                     "int8_percent",
                     has_limit ? json_real(100 * int8_share(t, m)) : json_null());
}

static int print_json(const struct serve_shape *shape, const struct serve_target *targets,
                      unsigned n_targets, const struct serve_machine *m)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < n_targets; i++)
        (void)json_array_append_new(list, target_json(&targets[i], shape, m));
    json_t *all = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:o, s:b, s:I, s:I, s:f, s:f}", "n_users",
        (json_int_t)shape->n_users, "n_prefix_tokens", (json_int_t)shape->n_prefix,
        "n_prompt_tokens", (json_int_t)shape->n_prompt, "n_tokens", (json_int_t)shape->n_tokens,
        "repeat", (json_int_t)shape->n_repeat, "servers", list, "is_resident", m->is_resident,
        "memory_bytes", (json_int_t)m->stats.memory_resident_peak_bytes, "memory_budget_bytes",
        (json_int_t)m->stats.memory_budget_bytes, "memory_read_gb_per_s", m->read.median * 1e-9,
        "disk_read_gb_per_s", m->disk.read.median * 1e-9);
    return out_json(all) ? STATUS_OK : STATUS_FAILED;
}

int serve_report_print(const struct args *args, const struct serve_shape *shape,
                       const struct serve_target *targets, unsigned n_targets,
                       const struct serve_machine *m)
{
    char peak[UNIT_BYTES], budget[UNIT_BYTES];
    if (args_flag(args, "json"))
        return print_json(shape, targets, n_targets, m);
    (void)printf("users        %u at a time, %u rounds: %u shared and %u own tokens each, answers "
                 "of %u\n", shape->n_users, shape->n_repeat, shape->n_prefix, shape->n_prompt,
                 shape->n_tokens);
    if (m->stats.memory_budget_bytes > 0)
        (void)printf("memory       %s of %s, %llu experts cached%s\n",
                     human_bytes(m->stats.memory_resident_peak_bytes, peak),
                     human_bytes(m->stats.memory_budget_bytes, budget),
                     (unsigned long long)m->stats.n_cache_slots,
                     m->is_resident ? ", all of them" : "");
    for (unsigned i = 0; i < n_targets; i++)
        print_target(&targets[i], shape, m);
    return STATUS_OK;
}
