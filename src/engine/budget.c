#include "engine/budget.h"

#include <assert.h>
#include <stdio.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/bytes_text.h"
#include "cache/expert_cache.h"
#include "engine/stage.h"
#include "flashmoe_lab.h"

/* Allocated after the program's size was measured: thread stacks, readers, sampler. */
#define PROGRAM_MARGIN (12ull << 20)
/* Per session and word of the vocabulary: the logits and the next ones, and a sampler's
 * candidates. */
#define VOCABULARY_BYTES (2 * sizeof(float) + 2 * sizeof(int32_t))
/* Tokens of a prompt that are computed together. A larger chunk reads each expert fewer times per
 * prompt. When all experts are resident, a larger chunk gains FEW_THREADS nothing, so RESIDENT_ROWS
 * is used (decision 0023). */
#define DEFAULT_ROWS 2048
#define RESIDENT_ROWS 512
#define FEW_THREADS 4
#define MIN_ROWS 16
/* The chunk becomes smaller when scratch would take more than this share of the budget. */
#define SCRATCH_SHARE 16
/* On a device every chunk of a prompt carries the experts that are not there over the link. */
#define DEVICE_SCRATCH_SHARE 10

/* Fraction of free memory left to other processes. Smaller when the user set a budget, who may want
 * to use nearly all of it. */
#define RESERVE_SHARE 10
#define RESERVE_SHARE_GIVEN 40

static void choose_total(struct budget *b, const struct fm_model_options *options,
                         const struct budget_terms *terms)
{
    struct plat_pressure seen;
    if (b->place == BUDGET_DEVICE) {
        b->total = b->max = terms->device_bytes;
        return;
    }
    const uint64_t own = plat_memory_pressure(&seen) ? seen.own : plat_resident_bytes();
    const uint64_t free_bytes = plat_memory_available();
    const bool is_given = options->memory_bytes > 0;
    b->reserve = free_bytes / (is_given ? RESERVE_SHARE_GIVEN : RESERVE_SHARE);
    b->total = is_given ? options->memory_bytes : own + free_bytes - b->reserve;
    /* Memory of other processes may be free later. */
    const uint64_t machine = plat_memory_total() / RESERVE_SHARE * (RESERVE_SHARE - 1);
    b->max = !is_given && terms->is_elastic && machine > b->total ? machine : b->total;
}

int budget_check_limit(uint64_t asked, uint64_t limit, const char *file, uint64_t left,
                       uint64_t own, struct fm_error *err)
{
    char t[4][32];
    if (asked <= limit)
        return 0;
    const uint64_t max = left < limit && own < limit - left ? left + own : limit;
    return err_set(err, FM_ERR_BUDGET,
                   "a memory budget of %s was requested, but the cgroup of this process allows %s "
                   "(%s): %s limit - %s held by others in it = %s; lower the memory budget "
                   "(--memory) to that or raise the limit", bytes_text(asked, t[0]),
                   bytes_text(limit, t[1]), file, t[1], bytes_text(limit - max, t[2]),
                   bytes_text(max, t[3]));
}

int fm_machine_check_memory(uint64_t bytes, struct fm_error *err)
{
    char file[LIMIT_PATH_BYTES];
    const uint64_t limit = plat_memory_limit(file);
    return budget_check_limit(bytes, limit, file, plat_cgroup_left("/proc/self/cgroup", NULL),
                              plat_resident_bytes(), err);
}

static int does_not_fit_device(const struct budget *b, uint64_t need, struct fm_error *err)
{
    char t[6][32];
    return err_set(err, FM_ERR_BUDGET,
                   "the model needs at least %s of the GPU's memory and the budget is %s: %s dense "
                   "weights + %s state of %u session(s) + %s keys and values of %u positions in "
                   "each + %s scratch for %u tokens at a time; raise the GPU's budget "
                   "(--gpu-memory), lower the context (--context) or use the processor alone "
                   "(--gpu off)",
                   bytes_text(need, t[0]), bytes_text(b->total, t[1]), bytes_text(b->dense, t[2]),
                   bytes_text(b->sessions, t[3]), b->n_sessions, bytes_text(b->kv, t[4]),
                   b->blocks.n_positions, bytes_text(b->scratch, t[5]), b->max_rows);
}

int budget_does_not_fit(const struct budget *b, const struct model *model, uint64_t need,
                        struct fm_error *err)
{
    char t[8][32], caller[96] = "";
    if (b->place == BUDGET_DEVICE)
        return does_not_fit_device(b, need, err);
    if (b->caller > 0)
        (void)snprintf(caller, sizeof caller, " + %s for requests (--request-memory)",
                       bytes_text(b->caller, t[0]));
    return err_set(err, FM_ERR_BUDGET,
                   "the model needs at least %s of memory and the budget is %s: %s program%s + %s "
                   "dense weights + %s state of %u session(s) + %s keys and values of %u positions "
                   "in each + %s scratch for %u tokens at a time + %s for %u experts in each of %u "
                   "layers; raise the memory budget (--memory) or lower the context (--context)",
                   bytes_text(need, t[0]), bytes_text(b->total, t[1]), bytes_text(b->program, t[2]),
                   caller, bytes_text(b->dense, t[3]), bytes_text(b->sessions, t[4]), b->n_sessions,
                   bytes_text(b->kv, t[7]), b->blocks.n_positions, bytes_text(b->scratch, t[5]),
                   b->max_rows, bytes_text(b->cache, t[6]), model->shape.n_experts_per_token,
                   model->n_expert_layers);
}

static int read_options(struct budget *b, const struct model *model,
                        const struct fm_model_options *options, struct fm_error *err)
{
    const uint32_t longest = model->shape.max_context;
    b->n_threads = options->n_threads > 0 ? options->n_threads : plat_n_cores();
    b->n_threads = b->n_threads < LIMIT_THREADS ? b->n_threads : LIMIT_THREADS;
    b->n_sessions = options->n_sessions > 0 ? options->n_sessions : 1;
    b->n_marks = options->n_marks < SEQUENCE_MARKS ? options->n_marks : SEQUENCE_MARKS;
    if (options->draft != FM_OFF)
        b->n_drafts = options->n_drafts < SEQUENCE_DRAFTS ? options->n_drafts : SEQUENCE_DRAFTS;
    b->n_context = options->n_context > 0 ? options->n_context : longest;
    if (options->n_threads > LIMIT_THREADS)
        return err_set(err, FM_ERR_ARG, "%u threads requested, the maximum is %d",
                       options->n_threads, LIMIT_THREADS);
    if (b->n_context > longest)
        return err_set(err, FM_ERR_ARG,
                       "a context of %u positions was requested, but the model supports at most "
                       "%u: lower the context (--context), or scale the model's rope with YaRN "
                       "(rope_scaling in the checkpoint's config.json)",
                       b->n_context, longest);
    return 0;
}

static bool may_hold_all(const struct budget *b, const struct model *model)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < model->n_expert_layers; i++)
        n += model->expert_layers[i].n_experts;
    return b->total / (model->expert_slot_bytes + 1) >= n;
}

/* Returns the chunk that was asked for, or one that fits the budget comfortably. */
static uint32_t choose_rows(const struct budget *b, const struct model *model,
                            const struct kv_format *kv_format, uint32_t asked)
{
    const bool gains_nothing = b->place == BUDGET_HOST && b->n_threads <= FEW_THREADS &&
                               may_hold_all(b, model);
    uint32_t rows = gains_nothing ? RESIDENT_ROWS : DEFAULT_ROWS;
    const uint64_t share = b->place == BUDGET_DEVICE ? DEVICE_SCRATCH_SHARE : SCRATCH_SHARE;
    rows = asked > 0 ? asked : rows;
    rows = rows < b->n_context ? rows : b->n_context;
    while (asked == 0 && rows > MIN_ROWS &&
           stage_scratch_bytes(model, kv_format, b, rows) > b->total / share)
        rows /= 2;
    return rows > b->n_sessions ? rows : b->n_sessions;
}

static int size_sessions(struct budget *b, const struct model *model,
                         const struct kv_format *kv_format, struct fm_error *err)
{
    struct sequence_sizes sizes;
    uint64_t one;
    sequence_sizes(model, kv_format, &sizes);
    sequence_blocks(model, kv_format, b->n_context, &b->blocks);
    /* The first stage counts what a session has only once. */
    const bool has_none = model->first_layer > 0 || b->place == BUDGET_DEVICE;
    const uint64_t ids = b->n_row_copies > 0 ? (uint64_t)b->n_context * sizeof(int32_t) : 0;
    const uint64_t once = has_none ? ids /* every rank knows the tokens */
                                   : model->shape.vocabulary *
                                             (VOCABULARY_BYTES + b->n_drafts * sizeof(float)) +
                                         (uint64_t)b->n_drafts * model_n_own_expert_layers(model) *
                                             model->shape.n_experts_per_token * sizeof(uint32_t) +
                                         (uint64_t)b->n_context * sizeof(int32_t);
    if (b->place == BUDGET_BESIDE) { /* the rest lies in the GPU's memory */
        sizes.recurrent_bytes = 0;
        b->blocks.bytes = 0;
    }
    const bool has_mtp = model->has_mtp && b->place != BUDGET_DEVICE;
    const uint64_t mtp =
        has_mtp ? mtp_state_bytes(b->n_context, b->n_drafts, model->shape.hidden) : 0;
    bool fits = mem_mul(sizes.recurrent_bytes, sequence_n_states(b->n_drafts, b->n_marks), &one) &&
                mem_add(one, once, &one) && mem_add(one, mtp, &one) &&
                mem_mul(one, b->n_sessions, &b->sessions) &&
                mem_mul(sequence_kv_bytes(&b->blocks, 0), b->n_sessions, &b->kv);
    return fits ? 0 : err_set(err, FM_ERR_BUDGET, "size overflow: %u sessions of %u positions",
                              b->n_sessions, b->n_context);
}

/* Returns what everything takes with max_rows tokens at a time and the minimum of experts. */
static uint64_t size_with_rows(struct budget *b, const struct model *model,
                               const struct kv_format *kv_format)
{
    b->scratch = stage_scratch_bytes(model, kv_format, b, b->max_rows);
    uint64_t sum = b->program;
    if (!mem_add(sum, b->caller, &sum) || !mem_add(sum, b->dense, &sum) ||
        !mem_add(sum, b->sessions, &sum) || !mem_add(sum, b->kv, &sum) ||
        !mem_add(sum, b->scratch, &sum) || !mem_add(sum, b->cache, &sum))
        sum = UINT64_MAX;
    return sum;
}

/* ---- the expert cache ------------------------------------------------------------------------ */

/* Returns the bytes of a cache of n slots that has room for n_max. A model without experts has no
 * cache. */
static uint64_t cache_bytes(const struct model *model, uint64_t n, uint64_t n_max)
{
    if (model->n_expert_layers == 0)
        return 0;
    return expert_cache_bytes(model, n_max) - (n_max - n) * model->expert_slot_bytes;
}

/* Returns how many slots fit into so many bytes. The last page they touch must fit as well: only
 * the memory behind it is given back to the system. */
static uint64_t slots_in(const struct budget *b, const struct model *model, uint64_t bytes)
{
    const uint64_t page = mem_bulk_page(b->n_max * model->expert_slot_bytes);
    return bytes / page * page / model->expert_slot_bytes;
}

/* Returns the bytes of everything but the slots. */
static uint64_t bytes_beside_slots(const struct budget *b, const struct model *model)
{
    return b->program + b->caller + b->dense + b->sessions + b->kv + b->scratch +
           cache_bytes(model, 0, b->n_max);
}

void budget_change(struct budget *b, const struct model *model, uint64_t total)
{
    assert(total >= bytes_beside_slots(b, model) + b->n_min * model->expert_slot_bytes);
    b->total = total;
    if (model->n_expert_layers == 0)
        return;
    const uint64_t bytes = total - bytes_beside_slots(b, model);
    uint64_t n = slots_in(b, model, bytes);
    n = bytes / model->expert_slot_bytes >= b->n_max ? b->n_max : n;
    b->n_slots = n > b->n_min ? (uint32_t)n : b->n_min;
    b->cache = cache_bytes(model, b->n_slots, b->n_max);
    assert(b->n_min <= b->n_slots && b->n_slots <= b->n_max);
    assert(bytes_beside_slots(b, model) + b->n_slots * model->expert_slot_bytes <= total);
}

/* Returns the bytes of the minimum of slots, whose last page they may share with further ones. */
static uint64_t min_total(const struct budget *b, const struct model *model)
{
    const uint64_t all = b->n_max * model->expert_slot_bytes;
    const uint64_t slots = mem_round_up(b->n_min * model->expert_slot_bytes, mem_bulk_page(all));
    return bytes_beside_slots(b, model) + (slots < all ? slots : all);
}

uint64_t budget_min_with_kv(const struct budget *b, const struct model *model, uint64_t kv)
{
    struct budget after = *b;
    after.kv = kv;
    return min_total(&after, model);
}

bool budget_change_kv(struct budget *b, const struct model *model, uint64_t kv, uint64_t max)
{
    struct budget after = *b;
    after.kv = kv;
    after.min = budget_min_with_kv(b, model, kv);
    if (kv > b->kv && after.min > max)
        return false;
    budget_change(&after, model, after.min > b->total ? after.min : b->total);
    *b = after;
    return true;
}

uint64_t budget_kv_max(const struct budget *b)
{
    uint64_t all;
    return mem_mul(sequence_kv_bytes(&b->blocks, b->n_context), b->n_sessions, &all) ? all
                                                                                     : UINT64_MAX;
}

uint64_t budget_usable(const struct budget *b, const struct model *model)
{
    const uint64_t slots = b->n_max * model->expert_slot_bytes, kv_max = budget_kv_max(b);
    uint64_t all;
    if (!mem_add(bytes_beside_slots(b, model) + slots, kv_max > b->kv ? kv_max - b->kv : 0, &all))
        all = UINT64_MAX;
    all = all < b->max ? all : b->max;
    return all > b->min ? all : b->min;
}

void budget_stop_growth(struct budget *b, const struct model *model)
{
    b->n_max = b->n_slots;
    b->max = b->total;
    budget_change(b, model, b->total);
    b->min = min_total(b, model);
}

void budget_shrink(struct budget *b, const struct model *model)
{
    b->n_slots = b->n_min;
    b->cache = cache_bytes(model, b->n_min, b->n_max);
    b->total = b->min;
}

void budget_add(struct budget *sum, const struct budget *b)
{
    if (sum->n_sessions == 0) {
        *sum = *b;
        return;
    }
    sum->total += b->total;
    sum->min += b->min;
    sum->max += b->max;
    sum->program += b->program;
    sum->caller += b->caller;
    sum->dense += b->dense;
    sum->scratch += b->scratch;
    sum->cache += b->cache;
    sum->sessions += b->sessions;
    sum->kv += b->kv;
    sum->blocks.bytes += b->blocks.bytes;
    sum->need += b->need;
    sum->n_slots += b->n_slots;
    sum->n_min += b->n_min;
    sum->n_max += b->n_max;
    sum->n_threads = b->n_threads > sum->n_threads ? b->n_threads : sum->n_threads;
}

/* Returns what a slot takes beside its expert's bytes, also while it is not in use. */
static uint64_t slot_overhead(const struct model *model)
{
    return expert_cache_bytes(model, 1) - expert_cache_bytes(model, 0) - model->expert_slot_bytes;
}

/* Returns the maximum number of slots. Their bookkeeping must leave room for the minimum now. */
static uint64_t max_slots(const struct budget *b, const struct model *model)
{
    const uint64_t overhead = slot_overhead(model);
    const uint64_t n_experts = (uint64_t)model->shape.n_experts * model->n_expert_layers;
    assert(b->need <= b->total && b->total <= b->max);
    const uint64_t later = (b->max - b->need) / (model->expert_slot_bytes + overhead);
    const uint64_t now = (b->total - b->need) / overhead;
    const uint64_t n = b->n_min + (later < now ? later : now);
    return n < n_experts ? n : n_experts;
}

/* Gives the cache what is left of the total. */
static void divide_cache(struct budget *b, const struct model *model)
{
    b->n_max = (uint32_t)max_slots(b, model);
    const uint64_t n_all = b->n_max, slot_bytes = model->expert_slot_bytes;
    const uint64_t bytes = b->total - bytes_beside_slots(b, model);
    const uint64_t exact = bytes / slot_bytes, rounded = slots_in(b, model, bytes);
    if (b->max > b->total && exact < n_all && rounded >= b->n_min) {
        b->n_slots = (uint32_t)rounded;
    } else {
        b->n_slots = b->n_max = (uint32_t)(exact < n_all ? exact : n_all);
        b->max = b->total;
    }
    b->cache = cache_bytes(model, b->n_slots, b->n_max);
    b->min = min_total(b, model);
    assert(b->n_min <= b->n_slots && b->n_slots <= b->n_max);
    assert(b->min <= b->total && b->total <= b->max);
}

/* ---- the context ----------------------------------------------------------------------------- */

/* Returns whether one session could have so many positions beside the minimum of experts. */
static bool holds_context(const struct budget *b, const struct model *model,
                          const struct kv_format *kv_format, uint32_t n_context)
{
    struct budget with = *b;
    with.n_context = n_context;
    if (size_sessions(&with, model, kv_format, NULL) != 0)
        return false;
    with.need = size_with_rows(&with, model, kv_format);
    const uint64_t first = sequence_kv_bytes(&with.blocks, 0);
    const uint64_t all = sequence_kv_bytes(&with.blocks, n_context);
    if (with.need > b->total || all - first > b->total)
        return false;
    if (model->n_expert_layers > 0)
        divide_cache(&with, model);
    with.kv += all - first;
    return min_total(&with, model) <= b->total;
}

/* Returns the maximum number of positions that fit the budget, in whole blocks, at least one. */
static uint32_t longest_context(const struct budget *b, const struct model *model,
                                const struct kv_format *kv_format)
{
    const uint32_t longest = model->shape.max_context, block = b->blocks.n_positions;
    uint32_t min = 1, max = (longest - 1) / block;
    if (holds_context(b, model, kv_format, longest))
        return longest;
    while (min < max) {
        const uint32_t middle = max - (max - min) / 2;
        if (holds_context(b, model, kv_format, middle * block))
            min = middle;
        else
            max = middle - 1;
    }
    return min * block;
}

/* Chooses the context when none was asked for, and sums up what is needed. */
static int fit_context(struct budget *b, const struct model *model,
                       const struct kv_format *kv_format, const struct fm_model_options *options,
                       struct fm_error *err)
{
    if (options->n_context == 0)
        b->n_context = longest_context(b, model, kv_format);
    const int rc = size_sessions(b, model, kv_format, err);
    b->need = size_with_rows(b, model, kv_format);
    return rc;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Returns the fewest experts that must have a slot. A GPU needs one: the host's memory beside it
 * has those of a token. That needs none while all experts are on the GPU; its slots are for those
 * that keys and values drive out. */
static uint32_t fewest_experts(const struct model *model, const struct budget_terms *terms)
{
    const uint32_t n = model->shape.n_experts_per_token * model->n_expert_layers;
    const uint64_t all = (uint64_t)model->shape.n_experts * model->n_expert_layers;
    if (terms->place == BUDGET_DEVICE)
        return n > 0;
    return terms->place == BUDGET_BESIDE && terms->n_experts_on_device >= all ? 0 : n;
}

int budget_plan(struct budget *b, const struct model *model, const struct budget_terms *terms,
                const struct fm_model_options *options, struct fm_error *err)
{
    const struct kv_format *kv_format = terms->kv_format;
    *b = (struct budget){.place = terms->place, .n_row_copies = terms->n_row_copies,
                         .n_passes = terms->n_passes};
    choose_total(b, options, terms);
    if (b->place != BUDGET_DEVICE) {
        b->program = (terms->has_program ? plat_program_bytes() : 0) + PROGRAM_MARGIN +
                     terms->reader_bytes;
        b->caller = model->first_layer > 0 ? 0 : options->caller_bytes;
    }
    b->dense = b->place == BUDGET_BESIDE ? model->host_copy_bytes : model->dense_bytes;
    int rc = read_options(b, model, options, err);
    if (rc == 0)
        rc = size_sessions(b, model, kv_format, err);
    if (rc != 0)
        return rc;
    b->n_min = b->n_max = fewest_experts(model, terms);
    b->cache = cache_bytes(model, b->n_min, b->n_max);
    b->max_rows = choose_rows(b, model, kv_format, options->prefill_chunk);
    rc = fit_context(b, model, kv_format, options, err);
    if (rc == 0 && b->need > b->total && options->prefill_chunk == 0 && b->max_rows > MIN_ROWS) {
        b->max_rows = b->n_sessions > MIN_ROWS ? b->n_sessions : MIN_ROWS;
        rc = fit_context(b, model, kv_format, options, err);
    }
    if (rc != 0)
        return rc;
    if (b->need > b->total)
        return budget_does_not_fit(b, model, b->need, err);
    b->min = b->need;
    if (model->n_expert_layers == 0)
        b->max = b->total;
    else
        divide_cache(b, model);
    if (b->place == BUDGET_BESIDE && b->n_min == 0 && b->n_slots == 0)
        b->n_max = 0; /* no tier at all */
    else if (b->place == BUDGET_BESIDE && b->n_min == 0)
        (void)budget_require(b, model, 1, NULL); /* experts may leave the GPU later */
    return 0;
}

int budget_require(struct budget *b, const struct model *model, uint32_t n_min,
                   struct fm_error *err)
{
    if (model->n_expert_layers == 0)
        return 0;
    b->n_min = n_min < b->n_max ? n_min : b->n_max;
    b->min = min_total(b, model);
    return b->min <= b->total ? 0 : budget_does_not_fit(b, model, b->min, err);
}
