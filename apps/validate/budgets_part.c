/* Every prompt at every budget, fresh and after another topic, against the largest budget. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "apps/cli/gpu_report.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/work.h"
#include "apps/validate/validate.h"
#include "base/mem.h"
#include "base/plat.h"

/* Positions of the budgets between the floor and the whole model. */
static const double all_shares[] = {0, 0.1, 0.25, 0.45, 0.7, 1}, quick_shares[] = {0, 0.5, 1};
#define PROMPT_POSITIONS 256 /* no prompt has more */
/* The program takes more or less memory from one opening to the next. */
#define FLOOR_MARGIN (4u << 20)
/* What is measured as the resident peak may exceed a budget by this much. */
#define PEAK_SHARE 1.10
#define PEAK_BYTES (16u << 20)

/* ---- files ----------------------------------------------------------------------------------- */

static void see_item(void *ctx, const struct fm_verify_item *item)
{
    struct validation *v = ctx;
    int layer = -1;
    if (!item->is_bad)
        return;
    const char *of = strstr(item->what, " of layer ");
    if (of != NULL)
        (void)sscanf(of, " of layer %d", &layer);
    if (v->files.what[0] == '\0')
        (void)snprintf(v->files.what, sizeof v->files.what, "%.255s", item->what);
    validation_fail(v, &(struct failure){.token = -1, .layer = layer},
                    "%.160s %.120s: '%.160s', %llu bytes at byte %llu", item->what, item->why,
                    item->file, (unsigned long long)item->bytes, (unsigned long long)item->offset);
}

int validate_files(struct validation *v, struct fm_error *err)
{
    struct work work;
    struct fm_verify_result result = {.size = sizeof result};
    const struct fm_verify_options options = {.size = sizeof options,
                                              .n_threads = (unsigned)args_uint(v->args, "threads"),
                                              .progress = work_show, .progress_ctx = &work,
                                              .found = see_item, .found_ctx = v};
    steps_part(&v->steps, "checksums of all files");
    steps_pause(&v->steps);
    work_begin(&work, "validate: verifying", args_flag(v->args, "quiet"));
    const int rc = fm_verify(app_model_path(v->args), &options, &result, err);
    v->files.seconds = work_seconds(&work);
    work_end(&work);
    interrupt_hold(true);
    v->files.was_run = true;
    if (rc == FM_ERR_UNSUPPORTED)
        return 0;
    if (rc != 0)
        return rc;
    v->files.has_checksums = true;
    v->files.n_bytes = result.n_bytes;
    v->files.n_experts = result.n_experts;
    v->files.n_tensors = result.n_tensors;
    v->files.n_bad = result.n_bad;
    return 0;
}

/* ---- the ends -------------------------------------------------------------------------------- */

static void copy_label(char *to, size_t bytes, const char *from)
{
    (void)snprintf(to, bytes, "%s", from != NULL ? from : "");
}

/* Copies what is needed after the model is closed. */
static void keep_facts(struct validation *v, const struct fm_model *model)
{
    struct fm_stats stats = {.size = sizeof stats};
    v->info.size = sizeof v->info;
    fm_model_info(model, &v->info);
    fm_model_stats(model, &stats);
    copy_label(v->architecture, sizeof v->architecture, v->info.architecture);
    copy_label(v->container, sizeof v->container, v->info.container);
    copy_label(v->routes, sizeof v->routes, stats.routes);
    copy_label(v->approximate, sizeof v->approximate, stats.approximate);
    copy_label(v->io, sizeof v->io, stats.io);
    copy_label(v->gpu, sizeof v->gpu, stats.gpu);
    copy_label(v->cpu_level, sizeof v->cpu_level, gpu_report_cpu_level(&stats));
    v->info.architecture = v->architecture;
    v->info.container = v->container;
    v->info.routes = v->info.approximate = v->info.rope_scaling = NULL;
    v->n_threads = stats.n_threads;
    v->is_text = v->info.has_tokenizer && v->routes[0] == '\0';
    v->n_layers = v->info.n_layers + 1;
}

static unsigned wanted_context(const struct validation *v)
{
    return PROMPT_POSITIONS + (v->n_long > v->n_tokens ? v->n_long : v->n_tokens);
}

/* Asks for the smallest budget: it has a smaller prefill chunk than a large one. No model may be
 * open, since its memory would count as the program's. */
static int ask_floor(struct validation *v, const struct fm_model *model, struct fm_error *err)
{
    struct fm_model_options options;
    struct fm_plan plan = {.size = sizeof plan};
    struct fm_error ignored;
    const int rc = app_engine_options(v->args, &options, err);
    if (rc != 0)
        return rc;
    options.memory_bytes = 1; /* too little: the answer is what is needed */
    options.n_context = v->n_context;
    (void)fm_model_plan(model, &options, &plan, &ignored);
    v->min_bytes = plan.min_bytes;
    return 0;
}

/* Finds the context that the model allows, and the smallest budget for it. */
static int choose_context(struct validation *v, struct fm_error *err)
{
    struct fm_model *model;
    struct fm_model_info info = {.size = sizeof info};
    int rc = app_model_open_metadata(v->args, args_text(v->args, "kv"), &model, err);
    if (rc != 0)
        return rc;
    fm_model_info(model, &info);
    v->n_context = wanted_context(v);
    if (info.max_context > 0 && v->n_context > info.max_context)
        v->n_context = info.max_context;
    rc = ask_floor(v, model, err);
    fm_model_close(model);
    return rc;
}

static int choose_budgets(struct validation *v, struct fm_error *err)
{
    const char *list = args_text(v->args, "budgets");
    if (list != NULL)
        return budgets_read(&v->budgets, list, err);
    if (v->is_quick)
        budgets_take_shares(&v->budgets, quick_shares, sizeof quick_shares / sizeof(double));
    else
        budgets_take_shares(&v->budgets, all_shares, sizeof all_shares / sizeof(double));
    return 0;
}

/* Counts the tokens that will be evaluated, for the time that is left. */
static void count_steps(struct validation *v)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < v->n_prompts; i++)
        n += v->references[i].n_prompt + v->n_tokens;
    v->steps.total = n * (2 * v->budgets.n + 2) + 2 * v->n_long + v->n_cycles * (n / v->n_prompts);
}

/* Finds the budgets from how a large one is divided. */
static void find_ends(struct validation *v, const struct fm_stats *stats)
{
    const uint64_t slot = stats->memory_cache_bytes / stats->n_cache_slots + 1;
    /* The smallest budget has keys and values of the first positions only. The long answer needs
     * those of the whole context. */
    uint64_t kept = FLOOR_MARGIN + stats->memory_kv_max_bytes;
    for (unsigned i = 0; i < v->n_prompts; i++) /* the trails of the references */
        kept += (v->references[i].n_prompt + v->n_tokens) * (v->info.n_layers + 1) *
                (sizeof(uint64_t) + v->info.n_experts_per_token * sizeof(uint32_t));
    budgets_find_ends(&v->budgets, stats, &v->info);
    v->whole_bytes = v->budgets.fixed_bytes +
                     slot * (uint64_t)v->info.n_experts * v->info.n_moe_layers;
    if (v->min_bytes > 0 && v->min_bytes + kept < v->budgets.floor_bytes)
        v->budgets.floor_bytes = v->min_bytes + kept;
}

static int check_prompts(struct validation *v, const struct runner *r, struct fm_error *err)
{
    for (unsigned i = 0; i < v->n_prompts; i++) {
        struct reference *ref = &v->references[i];
        ref->n_prompt = r->topics.openings[ref->topic].n_ids;
        if (ref->n_prompt + v->n_tokens > v->n_context)
            return err_set(err, FM_ERR_ARG, "--tokens %u: the prompt '%s' has %zu tokens, and '%s' "
                           "allows %u positions", v->n_tokens, ref->name, ref->n_prompt,
                           app_model_path(v->args), v->n_context);
    }
    return 0;
}

int validate_ends(struct validation *v, struct fm_error *err)
{
    struct runner r;
    int rc = choose_context(v, err);
    if (rc != 0)
        return rc;
    steps_part(&v->steps, "finding the budgets");
    rc = runner_open(&r, v, 0, err);
    if (rc == 0) {
        keep_facts(v, r.model);
        rc = v->info.n_moe_layers == 0
                 ? err_set(err, FM_ERR_ARG, "'%s' has no routed experts: there are no budgets to "
                           "compare", app_model_path(v->args))
                 : check_prompts(v, &r, err);
    }
    if (rc == 0) {
        struct fm_stats stats = {.size = sizeof stats};
        fm_model_stats(r.model, &stats);
        find_ends(v, &stats);
        rc = choose_budgets(v, err);
    }
    if (rc == 0)
        count_steps(v);
    runner_close(&r);
    return rc;
}

/* ---- one answer ------------------------------------------------------------------------------ */

static int keep_text(struct validation *v, const struct runner *r, unsigned prompt,
                     struct fm_error *err)
{
    struct reference *ref = &v->references[prompt];
    struct fm_decoder *decoder = NULL;
    size_t used = 0;
    const char *text;
    size_t bytes;
    if (!v->is_text) {
        (void)snprintf(ref->text_hash, sizeof ref->text_hash, "%016llx",
                       (unsigned long long)XXH3_64bits(ref->ids,
                                                       v->n_tokens * sizeof *ref->ids));
        return 0;
    }
    const size_t max = (size_t)v->n_tokens * (v->info.max_token_bytes + 4) + 8;
    ref->text = mem_new(max, 1, "the text", err);
    int rc = ref->text != NULL ? fm_decoder_open(r->model, &decoder, err) : FM_ERR_NOMEM;
    for (unsigned i = 0; rc == 0 && i <= v->n_tokens; i++) {
        if (i < v->n_tokens)
            rc = fm_decoder_push(decoder, ref->ids[i], &text, &bytes, err);
        else
            fm_decoder_finish(decoder, &text, &bytes);
        if (rc == 0 && used + bytes < max) {
            memcpy(ref->text + used, text, bytes);
            used += bytes;
        }
    }
    fm_decoder_close(decoder);
    if (rc == 0)
        (void)snprintf(ref->text_hash, sizeof ref->text_hash, "%016llx",
                       (unsigned long long)XXH3_64bits(ref->text, used));
    return rc;
}

/* Answers once more, with the hidden states of every layer. */
static int follow(struct runner *r, unsigned prompt, struct trail *trail, struct spoken *out,
                  struct fm_error *err)
{
    const struct validation *v = r->v;
    struct answer ignored;
    int rc = trail_new(trail, (unsigned)v->references[prompt].n_prompt + v->n_tokens,
                       v->info.n_layers + 1, v->info.n_experts_per_token, err);
    if (rc != 0)
        return rc;
    trail_watch(trail, r->topics.session);
    rc = runner_answer(r, prompt, out, &ignored, err);
    trail_unwatch(r->topics.session);
    return rc;
}

/* ---- a difference ---------------------------------------------------------------------------- */

struct place {
    uint64_t budget_bytes;
    unsigned prompt, after, before; /* `before`: the prompt that was answered first */
    int token;
};

static void say_where(struct validation *v, const struct place *at, int layer, const char *more)
{
    const struct reference *ref = &v->references[at->prompt];
    char budget[UNIT_BYTES], largest[UNIT_BYTES], layer_text[64] = "", switched[96] = "";
    if (at->after == AFTER_SWITCH)
        (void)snprintf(switched, sizeof switched, " after '%s'", v->references[at->before].name);
    if (layer >= 0)
        (void)snprintf(layer_text, sizeof layer_text, "; layer %d is the first that differs",
                       layer);
    validation_fail(v, &(struct failure){.budget_bytes = at->budget_bytes, .prompt = ref->name,
                                         .token = at->token, .layer = layer},
                    "at %s, prompt '%s'%s: token %d differs from the one at %s%s%s",
                    human_bytes(at->budget_bytes, budget), ref->name, switched, at->token + 1,
                    human_bytes(v->budgets.bytes[v->budgets.n - 1], largest), layer_text, more);
}

/* Repeats an answer that was wrong and finds the layer. */
static int find_layer(struct validation *v, const struct place *at, struct fm_error *err)
{
    struct runner r = {0};
    struct trail trail = {0};
    const struct spoken ref = reference_spoken(v, at->prompt);
    struct spoken said;
    struct answer ignored;
    unsigned position;
    int layer = -1;
    char more[256] = "";
    int rc = spoken_new(&said, v->n_tokens, err);
    if (rc == 0)
        rc = runner_open(&r, v, at->budget_bytes, err);
    if (rc == 0 && at->after == AFTER_SWITCH)
        rc = runner_answer(&r, at->before, &said, &ignored, err);
    if (rc == 0)
        rc = follow(&r, at->prompt, &trail, &said, err);
    if (rc == 0 && trail_differs(&v->references[at->prompt].trail, &trail, &position, &layer)) {
        char experts[160];
        trail_experts(&trail, position, layer < 0 ? 0 : (unsigned)layer, experts, sizeof experts);
        (void)snprintf(more, sizeof more, layer < 0 ? "; the embedding is the first that differs"
                       : experts[0] != '\0' ? " at position %u, where it uses the experts %s"
                                            : " at position %u", position, experts);
    } else if (rc == 0) { /* the trail ends before the final norm */
        (void)snprintf(more, sizeof more, "%s", spoken_differs(&ref, &said) >= 0
                       ? "; all layers agree: the final norm or the output head differs"
                       : "; the same answer was right when it was repeated: memory or the disk "
                         "gave wrong bytes once");
    }
    if (rc != 0 && rc != FM_ERR_CANCELLED)
        (void)snprintf(more, sizeof more, "; repeating it failed: %.160s", err->text);
    runner_close(&r);
    trail_free(&trail);
    spoken_free(&said);
    if (rc == FM_ERR_CANCELLED)
        return rc;
    say_where(v, at, layer, more);
    return 0;
}

/* Records that an answer could not be computed. Returns 0 unless the command has to end. */
static int fail_answer(struct validation *v, const struct place *at, int rc,
                       const struct fm_failure *why, const struct fm_error *err)
{
    char budget[UNIT_BYTES];
    if (rc == FM_ERR_CANCELLED || rc == FM_ERR_NOMEM || rc == FM_ERR_ARG)
        return rc;
    const int layer = why != NULL && why->code != 0 ? why->layer : -1;
    validation_fail(v, &(struct failure){.budget_bytes = at->budget_bytes, .token = -1,
                                         .layer = layer,
                                         .prompt = v->references[at->prompt].name},
                    "at %s, prompt '%s': %.380s", human_bytes(at->budget_bytes, budget),
                    v->references[at->prompt].name, err->text);
    return 0;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* Answers a prompt at the largest budget, and once more with the hidden states. */
static int make_reference(struct runner *r, unsigned prompt, struct fm_error *err)
{
    struct validation *v = r->v;
    struct reference *ref = &v->references[prompt];
    struct spoken said = reference_spoken(v, prompt), again;
    struct answer ignored;
    int rc = spoken_new(&again, v->n_tokens, err);
    if (rc == 0)
        rc = runner_answer(r, prompt, &said, &ignored, err);
    if (rc == 0)
        rc = keep_text(v, r, prompt, err);
    if (rc == 0)
        rc = follow(r, prompt, &ref->trail, &again, err);
    const int token = rc == 0 ? spoken_differs(&said, &again) : -1;
    spoken_free(&again);
    if (token >= 0)
        validation_fail(v, &(struct failure){.prompt = ref->name, .token = token, .layer = -1,
                                             .budget_bytes = v->budgets.bytes[v->budgets.n - 1]},
                        "prompt '%s' at the largest budget: token %d differs when the answer is "
                        "repeated", ref->name, token + 1);
    return rc;
}

int validate_references(struct validation *v, struct fm_error *err)
{
    const uint64_t largest = v->budgets.bytes[v->budgets.n - 1];
    struct runner r;
    char budget[UNIT_BYTES];
    steps_part(&v->steps, "%u prompts at %s, the reference", v->n_prompts,
               human_bytes(largest, budget));
    int rc = runner_open(&r, v, largest, err);
    for (unsigned i = 0; rc == 0 && i < v->n_prompts; i++) {
        rc = make_reference(&r, i, err);
        if (rc != 0) {
            const struct place at = {.budget_bytes = largest, .prompt = i};
            rc = fail_answer(v, &at, rc, fm_session_failure(r.topics.session), err);
            v->is_cut = true;
            break;
        }
    }
    runner_close(&r);
    return rc;
}

/* ---- one budget ------------------------------------------------------------------------------ */

/* Answers one prompt and compares it. at->token becomes the first one that differs, or -1. */
static int check_answer(struct runner *r, struct point *point, struct place *at,
                        struct fm_error *err)
{
    struct validation *v = r->v;
    struct answer *answer = &point->answers[at->prompt][at->after];
    const struct spoken ref = reference_spoken(v, at->prompt);
    struct spoken said;
    int rc = spoken_new(&said, v->n_tokens, err);
    if (rc == 0)
        rc = runner_answer(r, at->prompt, &said, answer, err);
    if (rc == 0) {
        at->token = spoken_differs(&ref, &said);
        answer->is_same = at->token < 0;
        answer->open_s = at->after == AFTER_OPENING ? r->open_s : 0;
    }
    spoken_free(&said);
    return rc;
}

static void keep_point(struct point *point, const struct runner *r, bool has_peak)
{
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(r->model, &stats);
    point->n_slots = stats.n_cache_slots;
    point->n_shrinks += stats.n_shrinks;
    point->n_grows += stats.n_grows;
    if (has_peak && stats.memory_resident_peak_bytes > point->peak_bytes)
        point->peak_bytes = stats.memory_resident_peak_bytes;
}

/* Opens the model, answers a prompt with an empty cache, then the next one. */
static int run_pair(struct validation *v, struct point *point, unsigned prompt,
                    struct fm_error *err)
{
    struct place places[N_AFTER] = {
        {.budget_bytes = point->budget_bytes, .prompt = prompt, .after = AFTER_OPENING,
         .token = -1},
        {.budget_bytes = point->budget_bytes, .prompt = (prompt + 1) % v->n_prompts,
         .after = AFTER_SWITCH, .before = prompt, .token = -1}};
    struct runner r;
    unsigned n = 0;
    const bool has_peak = plat_resident_peak_reset();
    int rc = runner_open(&r, v, point->budget_bytes, err);
    const bool is_open = rc == 0;
    while (rc == 0 && n < N_AFTER) {
        rc = check_answer(&r, point, &places[n], err);
        n += rc == 0;
    }
    if (is_open && rc != 0)
        rc = fail_answer(v, &places[n], rc, fm_session_failure(r.topics.session), err);
    else if (rc == 0)
        keep_point(point, &r, has_peak);
    runner_close(&r);
    for (unsigned i = 0; rc == 0 && i < n; i++)
        if (places[i].token >= 0 && !validation_is_over(v))
            rc = find_layer(v, &places[i], err);
    return rc;
}

static void check_peak(struct validation *v, const struct point *point)
{
    char peak[UNIT_BYTES], budget[UNIT_BYTES];
    if ((double)point->peak_bytes > PEAK_SHARE * (double)point->budget_bytes + PEAK_BYTES)
        validation_fail(v, &(struct failure){.budget_bytes = point->budget_bytes, .token = -1,
                                             .layer = -1},
                        "at %s: the program took %s of memory",
                        human_bytes(point->budget_bytes, budget),
                        human_bytes(point->peak_bytes, peak));
}

int validate_budgets(struct validation *v, struct fm_error *err)
{
    int rc = 0;
    for (unsigned n = v->budgets.n; rc == 0 && n-- > 0 && !validation_is_over(v);) {
        struct point *point = &v->points[n];
        char budget[UNIT_BYTES];
        point->budget_bytes = v->budgets.bytes[n];
        steps_part(&v->steps, "%u prompts at %s", v->n_prompts,
                   human_bytes(point->budget_bytes, budget));
        for (unsigned i = 0; rc == 0 && i < v->n_prompts && !validation_is_over(v); i++)
            rc = run_pair(v, point, i, err);
        if (rc == 0)
            check_peak(v, point);
    }
    return rc;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static double mean_of(const struct validation *v, double (*get)(const struct app_speeds *))
{
    double sum = 0;
    for (unsigned i = 0; i < v->n_measured; i++)
        sum += get(&v->speeds[i]) / v->n_measured;
    return sum;
}

static double disk_of(const struct app_speeds *s)
{
    return s->disk.read.median;
}

static double memory_of(const struct app_speeds *s)
{
    return s->machine.read.median;
}

static void add_stats(struct fm_stats *sum, const struct answer *a)
{
    sum->n_decode_tokens += a->after.n_decode_tokens - a->before.n_decode_tokens;
    sum->decode_ns += a->after.decode_ns - a->before.decode_ns;
    sum->bytes_read += a->after.bytes_read - a->before.bytes_read;
    sum->n_guesses += a->after.n_guesses - a->before.n_guesses;
    sum->n_guesses_used += a->after.n_guesses_used - a->before.n_guesses_used;
    sum->n_experts_computed += a->after.n_experts_computed - a->before.n_experts_computed;
    sum->n_experts_sent += a->after.n_experts_sent - a->before.n_experts_sent;
    sum->n_experts_moved_up += a->after.n_experts_moved_up - a->before.n_experts_moved_up;
    sum->n_experts_moved_down += a->after.n_experts_moved_down - a->before.n_experts_moved_down;
    sum->gpu_budget_bytes = a->after.gpu_budget_bytes;
}

void validate_limits(struct validation *v)
{
    const struct limit_speeds speeds = {.disk = mean_of(v, disk_of),
                                        .memory = mean_of(v, memory_of),
                                        .gpu = v->speeds[0].gpu.memory.median,
                                        .link = v->speeds[0].gpu.send.median};
    const struct fm_stats zero = {0};
    for (unsigned n = 0; n < v->budgets.n; n++)
        for (unsigned after = 0; after < N_AFTER; after++) {
            struct fm_stats sum = {.size = sizeof sum};
            double position = 0;
            unsigned n_run = 0;
            for (unsigned i = 0; i < v->n_prompts; i++) {
                if (!v->points[n].answers[i][after].was_run)
                    continue;
                add_stats(&sum, &v->points[n].answers[i][after]);
                position += (double)v->references[i].n_prompt + v->n_tokens / 2.0;
                n_run++;
            }
            /* limit_between adds half the number of tokens to get the mean position. */
            const double mean = n_run > 0 ? position / n_run : 0;
            limit_between(&zero, &sum, &v->info, mean - (double)sum.n_decode_tokens / 2, &speeds,
                          &v->points[n].limits[after]);
        }
}
