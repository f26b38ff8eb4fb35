#include "apps/bench/budgets.h"

#include <stdlib.h>
#include <string.h>

#include "apps/cli/options.h"
#include "base/err.h"

/* The size of the program varies between openings. */
#define BUDGET_MARGIN (2u << 20)
#define WORD_MAX 64

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void budgets_find_ends(struct budgets *b, const struct fm_stats *stats,
                       const struct fm_model_info *info)
{
    const uint64_t slot = stats->memory_cache_bytes / stats->n_cache_slots + 1;
    const uint64_t n_layers = (uint64_t)info->n_moe_layers + info->n_mtp_layers;
    const uint64_t n_all = info->n_experts * n_layers;
    const uint64_t max = stats->memory_budget_bytes;
    b->n_experts = n_all;
    b->fixed_bytes = stats->memory_program_bytes + stats->memory_dense_bytes +
                     stats->memory_kv_max_bytes + stats->memory_scratch_bytes + BUDGET_MARGIN;
    b->all_bytes = smaller(b->fixed_bytes + slot * n_all, max);
    b->floor_bytes = smaller(b->fixed_bytes + slot * info->n_experts_per_token * n_layers,
                             b->all_bytes);
    b->half_bytes = smaller(b->fixed_bytes + slot * (n_all / 2), max);
    b->quarter_bytes = smaller(b->fixed_bytes + slot * (n_all / 4), max);
}

static int find_word(const struct budgets *b, const char *text, uint64_t available,
                     uint64_t *bytes, struct fm_error *err)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } words[] = {{"floor", b->floor_bytes}, {"quarter", b->quarter_bytes},
                 {"half", b->half_bytes}, {"all", b->all_bytes}};
    struct fm_error why = {0};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(text, words[i].name) == 0) {
            *bytes = words[i].bytes;
            return 0;
        }
    if (bytes_parse(text, available, bytes, &why) != 0)
        return err_set(err, FM_ERR_ARG, "--budgets: expected floor, quarter, half, all or sizes as "
                       "for --memory, separated by commas: %.200s", why.text);
    return 0;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sort(struct budgets *b)
{
    unsigned n = 0;
    qsort(b->bytes, b->n, sizeof b->bytes[0], compare);
    for (unsigned i = 0; i < b->n; i++)
        if (n == 0 || b->bytes[i] != b->bytes[n - 1])
            b->bytes[n++] = b->bytes[i];
    b->n = n;
}

int budgets_read(struct budgets *b, const char *list, struct fm_error *err)
{
    struct fm_machine_info machine = {.size = sizeof machine};
    int rc = 0;
    fm_machine_info(&machine);
    b->n = 0;
    while (rc == 0 && list != NULL) {
        char text[WORD_MAX];
        const size_t n = strcspn(list, ",");
        if (n >= sizeof text)
            return err_set(err, FM_ERR_ARG, "--budgets: '%.40s...' is not a size", list);
        if (b->n == BUDGETS_MAX)
            return err_set(err, FM_ERR_ARG, "--budgets: more than %d budgets", BUDGETS_MAX);
        memcpy(text, list, n);
        text[n] = '\0';
        rc = find_word(b, text, machine.memory_available_bytes, &b->bytes[b->n++], err);
        list = list[n] == ',' ? list + n + 1 : NULL;
    }
    sort(b);
    return rc;
}

void budgets_take_shares(struct budgets *b, const double *shares, unsigned n)
{
    const double range = (double)(b->all_bytes - b->floor_bytes);
    b->n = 0;
    for (unsigned i = 0; i < n; i++)
        b->bytes[b->n++] = b->floor_bytes + (uint64_t)(shares[i] * range);
    sort(b);
}
