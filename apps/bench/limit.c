#include "apps/bench/limit.h"

#include <stdio.h>

#include "apps/cli/term.h"

struct limit_load limit_load_of(const struct fm_model_info *info, double position,
                                double miss_bytes)
{
    return (struct limit_load){
        .expert_bytes = (double)info->expert_token_bytes,
        .dense_bytes = (double)info->dense_token_bytes,
        .kv_bytes = (double)info->kv_position_bytes * position + 2 * (double)info->state_bytes,
        .miss_bytes = miss_bytes,
        .mul_adds = (double)info->mul_adds_per_position * position,
    };
}

void limit_set_speeds(struct limit_load *load, const struct limit_speeds *speeds)
{
    load->disk_per_s = speeds->disk;
    load->memory_per_s = speeds->memory;
    load->gpu_per_s = speeds->gpu;
    load->link_per_s = speeds->link;
    load->mul_adds_per_s = speeds->mul_adds;
}

const char *limit_bound_name(enum limit_bound bound)
{
    static const char *const names[] = {"disk", "memory", "gpu", "link", "arithmetic"};
    return names[bound];
}

/* Returns the seconds of so many bytes; negative: unknown. Nothing takes no time. */
static double seconds(double bytes, double per_s)
{
    return bytes <= 0 ? 0 : per_s > 0 ? bytes / per_s : -1;
}

static void count_bytes(const struct limit_load *load, struct limit *limit)
{
    const double all = load->expert_bytes + load->dense_bytes + load->kv_bytes;
    limit->memory_bytes = (load->has_gpu ? load->host_bytes + load->link_bytes : all) +
                          2 * load->miss_bytes;
    limit->gpu_bytes = load->has_gpu ? all - load->host_bytes + load->link_bytes : 0;
}

void limit_of(const struct limit_load *load, double tok_per_s, struct limit *limit)
{
    *limit = (struct limit){.load = *load, .tok_per_s = tok_per_s, .bound = LIMIT_MEMORY};
    count_bytes(load, limit);
    limit->io_s = seconds(load->miss_bytes, load->disk_per_s);
    limit->ram_s = load->has_gpu || load->memory_per_s > 0
                       ? seconds(limit->memory_bytes, load->memory_per_s) : -1;
    limit->gpu_s = seconds(limit->gpu_bytes, load->gpu_per_s);
    limit->link_s = seconds(load->has_gpu ? load->link_bytes : 0, load->link_per_s);
    limit->fma_s = load->mul_adds_per_s > 0 && !load->has_gpu
                       ? seconds(load->mul_adds, load->mul_adds_per_s) : 0;
    const double times[] = {limit->io_s, limit->ram_s, limit->gpu_s, limit->link_s, limit->fma_s};
    double sum = limit->fma_s > limit->ram_s ? limit->fma_s - limit->ram_s : 0;
    for (int i = LIMIT_DISK; i <= LIMIT_ARITHMETIC; i++)
        if (times[i] > times[limit->bound])
            limit->bound = (enum limit_bound)i;
    for (int i = LIMIT_DISK; i <= LIMIT_LINK; i++) {
        if (times[i] < 0)
            return;
        sum += times[i];
    }
    if (sum <= 0)
        return;
    limit->min_per_s = 1 / sum;
    limit->max_per_s = 1 / times[limit->bound];
    const double percent = 100 * tok_per_s / limit->max_per_s;
    limit->is_exceeded = limit_is_exceeded(percent);
    limit->percent = limit->is_exceeded ? 0 : percent;
    limit->memory_percent = limit->is_exceeded ? 0 : 100 * tok_per_s * limit->ram_s;
}

/* Returns the mean size of an expert. */
static double mean_bytes(const struct fm_model_info *info)
{
    const double n = (double)info->n_experts_per_token * info->n_moe_layers;
    return n > 0 ? (double)info->expert_token_bytes / n : 0;
}

/* Converts a count of unused experts into bytes, with the mean size. */
static double unused_bytes(const struct fm_stats *before, const struct fm_stats *after,
                           const struct fm_model_info *info)
{
    const double guesses = (double)(after->n_guesses - before->n_guesses);
    const double used = (double)(after->n_guesses_used - before->n_guesses_used);
    return guesses > used ? (guesses - used) * mean_bytes(info) : 0;
}

/* Adds what was counted beside a GPU during `n` tokens. */
static void load_beside_gpu(const struct fm_stats *before, const struct fm_stats *after,
                            const struct fm_model_info *info, double n, struct limit_load *load)
{
    const double computed = (double)(after->n_experts_computed - before->n_experts_computed);
    const double sent = (double)(after->n_experts_sent - before->n_experts_sent) +
                        (double)(after->n_experts_moved_up - before->n_experts_moved_up) +
                        (double)(after->n_experts_moved_down - before->n_experts_moved_down);
    const double host = computed * mean_bytes(info) / n;
    load->has_gpu = true;
    load->host_bytes = host < load->expert_bytes ? host : load->expert_bytes;
    load->link_bytes = sent * mean_bytes(info) / n;
}

void limit_between(const struct fm_stats *before, const struct fm_stats *after,
                   const struct fm_model_info *info, double first_position,
                   const struct limit_speeds *speeds, struct limit *limit)
{
    const uint64_t n_tokens = after->n_decode_tokens - before->n_decode_tokens;
    const uint64_t ns = after->decode_ns - before->decode_ns;
    const double n = n_tokens > 0 ? (double)n_tokens : 1;
    const double read = (double)(after->bytes_read - before->bytes_read);
    const double unused = unused_bytes(before, after, info);
    struct limit_load load = limit_load_of(info, first_position + (n - 1) / 2,
                                           (read > unused ? read - unused : 0) / n);
    if (after->gpu_budget_bytes > 0)
        load_beside_gpu(before, after, info, n, &load);
    limit_set_speeds(&load, speeds);
    limit_of(&load, per_second(n_tokens, ns), limit);
}

static json_t *known(double x, bool is_known)
{
    return is_known ? json_real(x) : json_null();
}

static json_t *put_arithmetic(json_t *object, const struct limit *limit)
{
    const bool is_known = limit->load.mul_adds_per_s > 0 && !limit->load.has_gpu;
    const bool has_share = limit->max_per_s > 0 && limit->tok_per_s > 0 && !limit->is_exceeded;
    json_t *more = json_pack("{s:o, s:f, s:o, s:o}", "t_fma_s", known(limit->fma_s, is_known),
                             "mul_adds", limit->load.mul_adds, "mul_adds_per_s",
                             known(limit->load.mul_adds_per_s, is_known), "memory_percent",
                             known(limit->memory_percent, has_share));
    (void)json_object_update(object, more); /* out_json reports what is NULL */
    json_decref(more);
    return object;
}

static json_t *put_gpu(json_t *object, const struct limit *limit)
{
    const struct limit_load *load = &limit->load;
    json_t *more = load->has_gpu
        ? json_pack("{s:o, s:o, s:f, s:f, s:f, s:o, s:o}",
                    "t_gpu_s", known(limit->gpu_s, limit->gpu_s >= 0),
                    "t_link_s", known(limit->link_s, limit->link_s >= 0),
                    "gpu_bytes", limit->gpu_bytes, "link_bytes", load->link_bytes,
                    "host_expert_bytes", load->host_bytes,
                    "gpu_bytes_per_s", known(load->gpu_per_s, load->gpu_per_s > 0),
                    "link_bytes_per_s", known(load->link_per_s, load->link_per_s > 0))
        : json_object();
    (void)json_object_update(object, more); /* out_json reports what is NULL */
    json_decref(more);
    return object;
}

json_t *limit_json(const struct limit *limit)
{
    const bool is_known = limit->max_per_s > 0;
    json_t *object = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}",
        "t_io_s", known(limit->io_s, limit->io_s >= 0),
        "t_ram_s", known(limit->ram_s, limit->ram_s >= 0),
        "bound_by", is_known ? json_string(limit_bound_name(limit->bound)) : json_null(),
        "overlapped_tok_per_s", known(limit->max_per_s, is_known),
        "serial_tok_per_s", known(limit->min_per_s, is_known),
        "percent", known(limit->percent, is_known && limit->tok_per_s > 0 && !limit->is_exceeded),
        "was_busy", limit->is_exceeded,
        "tok_per_s", limit->tok_per_s,
        "expert_bytes", limit->load.expert_bytes, "dense_bytes", limit->load.dense_bytes,
        "kv_bytes", limit->load.kv_bytes, "miss_bytes", limit->load.miss_bytes,
        "memory_bytes", limit->memory_bytes,
        "disk_bytes_per_s", known(limit->load.disk_per_s, limit->load.disk_per_s > 0),
        "memory_bytes_per_s", known(limit->load.memory_per_s, limit->load.memory_per_s > 0));
    return put_gpu(put_arithmetic(object, limit), limit);
}

/* Writes the times of a token. */
static void times_text(const struct limit *limit, char *text, size_t bytes)
{
    char miss[UNIT_BYTES], memory[UNIT_BYTES], gpu[UNIT_BYTES], link[UNIT_BYTES];
    char fma[LIMIT_TEXT_BYTES / 4] = "";
    if (limit->fma_s > limit->ram_s)
        (void)snprintf(fma, sizeof fma, " and %.3g ms of arithmetic (%.3g G multiply-adds)",
                       1e3 * limit->fma_s, 1e-9 * limit->load.mul_adds);
    (void)human_bytes((uint64_t)limit->load.miss_bytes, miss);
    (void)human_bytes((uint64_t)limit->memory_bytes, memory);
    (void)human_bytes((uint64_t)limit->gpu_bytes, gpu);
    (void)human_bytes((uint64_t)limit->load.link_bytes, link);
    if (limit->load.has_gpu)
        (void)snprintf(text, bytes, "%.3g ms of the GPU's memory (%s), %.3g ms of the link to it "
                       "(%s), %.3g ms of memory (%s) and %.3g ms of disk (%s)", 1e3 * limit->gpu_s,
                       gpu, 1e3 * limit->link_s, link, 1e3 * limit->ram_s, memory,
                       1e3 * limit->io_s, miss);
    else
        (void)snprintf(text, bytes, "%.3g ms of disk (%s)%s %.3g ms of memory (%s)%s",
                       1e3 * limit->io_s, miss, fma[0] != '\0' ? "," : " and",
                       1e3 * limit->ram_s, memory, fma);
}

static const char *unknown_text(const struct limit *limit, char text[LIMIT_TEXT_BYTES])
{
    char miss[UNIT_BYTES], memory[UNIT_BYTES], gpu[UNIT_BYTES];
    (void)human_bytes((uint64_t)limit->load.miss_bytes, miss);
    (void)human_bytes((uint64_t)limit->memory_bytes, memory);
    if (limit->load.has_gpu)
        (void)snprintf(text, LIMIT_TEXT_BYTES, "unknown: %s of the GPU's memory, %s of memory and "
                       "%s from the disk per token, but not all speeds were measured",
                       human_bytes((uint64_t)limit->gpu_bytes, gpu), memory, miss);
    else
        (void)snprintf(text, LIMIT_TEXT_BYTES, "unknown: %s from the disk and %s of memory per "
                       "token, but not both speeds were measured", miss, memory);
    return text;
}

const char *limit_text(const struct limit *limit, char text[LIMIT_TEXT_BYTES])
{
    static const char *const bounds[] = {"the disk", "memory", "the GPU's memory",
                                         "the link to the GPU", "arithmetic"};
    char times[LIMIT_TEXT_BYTES / 2], reached[LIMIT_TEXT_BYTES / 2] = "";
    if (limit->max_per_s <= 0)
        return unknown_text(limit, text);
    times_text(limit, times, sizeof times);
    if (limit->is_exceeded)
        (void)snprintf(reached, sizeof reached,
                       "no share: %.2f tok/s are above the limit (%s); ", limit->tok_per_s,
                       LIMIT_EXCEEDED_WHY);
    else if (limit->tok_per_s > 0)
        (void)snprintf(reached, sizeof reached, "%.1f%% of ", limit->percent);
    (void)snprintf(text, LIMIT_TEXT_BYTES, "%s%.2f tok/s, bound by %s: %s per token; %.2f tok/s "
                   "without overlap", reached, limit->max_per_s, bounds[limit->bound], times,
                   limit->min_per_s);
    return text;
}
