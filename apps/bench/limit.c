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
    };
}

void limit_of(const struct limit_load *load, double tok_per_s, struct limit *limit)
{
    *limit = (struct limit){.load = *load, .io_s = -1, .ram_s = -1, .tok_per_s = tok_per_s};
    limit->memory_bytes =
        load->expert_bytes + load->dense_bytes + load->kv_bytes + 2 * load->miss_bytes;
    if (load->miss_bytes <= 0)
        limit->io_s = 0;
    else if (load->disk_per_s > 0)
        limit->io_s = load->miss_bytes / load->disk_per_s;
    if (load->memory_per_s > 0)
        limit->ram_s = limit->memory_bytes / load->memory_per_s;
    limit->is_io_bound = limit->io_s > limit->ram_s;
    if (limit->io_s < 0 || limit->ram_s < 0)
        return;
    const double longer = limit->is_io_bound ? limit->io_s : limit->ram_s;
    if (longer <= 0)
        return;
    limit->min_per_s = 1 / (limit->io_s + limit->ram_s);
    limit->max_per_s = 1 / longer;
    const double percent = 100 * tok_per_s / limit->max_per_s;
    limit->is_exceeded = limit_is_exceeded(percent);
    limit->percent = limit->is_exceeded ? 0 : percent;
}

/* Converts a count of unused experts into bytes, with the mean size. */
static double unused_bytes(const struct fm_stats *before, const struct fm_stats *after,
                           const struct fm_model_info *info)
{
    const double guesses = (double)(after->n_guesses - before->n_guesses);
    const double used = (double)(after->n_guesses_used - before->n_guesses_used);
    const double n = (double)info->n_experts_per_token * info->n_moe_layers;
    return guesses > used && n > 0 ? (guesses - used) * (double)info->expert_token_bytes / n : 0;
}

void limit_between(const struct fm_stats *before, const struct fm_stats *after,
                   const struct fm_model_info *info, double first_position, double disk_per_s,
                   double memory_per_s, struct limit *limit)
{
    const uint64_t n_tokens = after->n_decode_tokens - before->n_decode_tokens;
    const uint64_t ns = after->decode_ns - before->decode_ns;
    const double n = n_tokens > 0 ? (double)n_tokens : 1;
    const double read = (double)(after->bytes_read - before->bytes_read);
    const double unused = unused_bytes(before, after, info);
    struct limit_load load = limit_load_of(info, first_position + (n - 1) / 2,
                                           (read > unused ? read - unused : 0) / n);
    load.disk_per_s = disk_per_s;
    load.memory_per_s = memory_per_s;
    limit_of(&load, per_second(n_tokens, ns), limit);
}

static json_t *known(double x, bool is_known)
{
    return is_known ? json_real(x) : json_null();
}

json_t *limit_json(const struct limit *limit)
{
    const bool is_known = limit->max_per_s > 0;
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}",
        "t_io_s", known(limit->io_s, limit->io_s >= 0),
        "t_ram_s", known(limit->ram_s, limit->ram_s >= 0),
        "bound_by", is_known ? json_string(limit->is_io_bound ? "disk" : "memory") : json_null(),
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
}

const char *limit_text(const struct limit *limit, char text[LIMIT_TEXT_BYTES])
{
    char miss[UNIT_BYTES], memory[UNIT_BYTES], reached[LIMIT_TEXT_BYTES / 2] = "";
    (void)human_bytes((uint64_t)limit->load.miss_bytes, miss);
    (void)human_bytes((uint64_t)limit->memory_bytes, memory);
    if (limit->max_per_s <= 0) {
        (void)snprintf(text, LIMIT_TEXT_BYTES, "unknown: %s from the disk and %s of memory per "
                       "token, but not both speeds were measured", miss, memory);
        return text;
    }
    if (limit->is_exceeded)
        (void)snprintf(reached, sizeof reached,
                       "no share: %.2f tok/s are above the limit (%s); ", limit->tok_per_s,
                       LIMIT_EXCEEDED_WHY);
    else if (limit->tok_per_s > 0)
        (void)snprintf(reached, sizeof reached, "%.1f%% of ", limit->percent);
    (void)snprintf(text, LIMIT_TEXT_BYTES, "%s%.2f tok/s, bound by %s: %.3g ms of disk (%s) and "
                   "%.3g ms of memory (%s) per token; %.2f tok/s without overlap",
                   reached, limit->max_per_s, limit->is_io_bound ? "the disk" : "memory",
                   1e3 * limit->io_s, miss, 1e3 * limit->ram_s, memory, limit->min_per_s);
    return text;
}
