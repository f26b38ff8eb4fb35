/* Questions to the program before anything is measured. */
#include <string.h>

#include "apps/bench/all.h"
#include "apps/bench/child.h"

#define ASK_WORDS (ALL_WORDS_MAX + 2)

double all_number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

uint64_t all_count(const json_t *object, const char *name)
{
    const double x = all_number(object, name);
    return x > 0 ? (uint64_t)x : 0;
}

const char *all_string(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

int all_ask(const struct all *all, const char *const *words, json_t **out, struct fm_error *err)
{
    const char *argv[ASK_WORDS] = {all->programs[ALL_THIS]};
    struct child child;
    unsigned n = 1;
    *out = NULL;
    for (; *words != NULL && n + 1 < ASK_WORDS; words++)
        argv[n++] = *words;
    int rc = child_run(argv, NULL, NULL, &child, err);
    if (rc == 0 && child.was_interrupted)
        rc = FM_ERR_CANCELLED;
    if (rc == 0 && child.status != 0)
        rc = err_set(err, FM_ERR_IO, "%s", child.message[0] != '\0' ? child.message
                                                                    : "the program has failed");
    if (rc == 0) {
        *out = json_loadb(child.out != NULL ? child.out : "", child.out_bytes, 0, NULL);
        if (*out == NULL)
            rc = err_set(err, FM_ERR_FORMAT, "'flashmoe %s %s' printed no JSON", argv[1], argv[2]);
    }
    child_free(&child);
    return rc;
}

/* The division of a budget does not depend on speeds, so any will do and none is measured. */
static int ask_fixed(const struct all *all, struct all_fixed *fixed, struct fm_error *err)
{
    char memory[32], context[32], chunk[32];
    const struct all_facts *f = &all->facts;
    json_t *plan;
    /* More than anything takes: the division is then that of a model with all its experts. */
    const uint64_t bytes = 2 * (f->dense_bytes + f->experts_bytes) + ((uint64_t)1 << 36);
    (void)snprintf(memory, sizeof memory, "%llu", (unsigned long long)bytes);
    (void)snprintf(context, sizeof context, "%u", fixed->n_context);
    (void)snprintf(chunk, sizeof chunk, "%u", fixed->chunk);
    const char *words[] = {"plan", all->model, "--json", "-q", "--memory", memory, "--context",
                           context, "--prefill-chunk", chunk, "--disk-speed", "1",
                           "--memory-speed", "1", "--kv", args_text(all->args, "kv"),
                           fixed->with_drafts ? "--draft" : NULL, "auto", NULL};
    int rc = all_ask(all, words, &plan, err);
    if (rc != 0)
        return rc;
    const json_t *row = json_array_get(json_object_get(plan, "budgets"),
                                       (size_t)all_number(plan, "chosen"));
    const uint64_t n_slots = all_count(row, "n_cache_slots");
    fixed->kv_bytes = all_count(row, "memory_kv_max_bytes");
    fixed->bytes = all_count(row, "memory_program_bytes") + all_count(row, "memory_dense_bytes") +
                   fixed->kv_bytes + all_count(row, "memory_scratch_bytes");
    fixed->slot_bytes = n_slots > 0 ? all_count(row, "memory_cache_bytes") / n_slots + 1 : 0;
    if (fixed->bytes == 0)
        rc = err_set(err, FM_ERR_FORMAT, "'flashmoe plan' does not tell how a budget is divided");
    json_decref(plan);
    return rc;
}

int all_find_fixed(struct all *all, unsigned n_context, unsigned chunk, bool with_drafts,
                   const struct all_fixed **out, struct fm_error *err)
{
    for (unsigned i = 0; i < all->n_fixed; i++)
        if (all->fixed[i].n_context == n_context && all->fixed[i].chunk == chunk &&
            all->fixed[i].with_drafts == with_drafts) {
            *out = &all->fixed[i];
            return 0;
        }
    if (all->n_fixed == ALL_FIXED_MAX)
        return err_set(err, FM_ERR_ARG, "more than %d shapes of budgets", ALL_FIXED_MAX);
    struct all_fixed *fixed = &all->fixed[all->n_fixed];
    *fixed = (struct all_fixed){.n_context = n_context, .chunk = chunk,
                                .with_drafts = with_drafts};
    *out = fixed;
    const int rc = ask_fixed(all, fixed, err);
    all->n_fixed += rc == 0;
    return rc;
}
