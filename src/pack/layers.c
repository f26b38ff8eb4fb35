/* Which layers of a model are written: "0-19", "0-9,30-39". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashmoe_lab.h"
#include "pack/pack_internal.h"

static int wrong(const char *text, const char *why, struct fm_error *err)
{
    return err_set(err, FM_ERR_ARG, "layers '%.60s': %s; expected numbers from 0 and ranges of "
                   "them, such as 0-19 or 0-9,30-39", text, why);
}

/* Reads "3" or "3-7" at *at and moves on behind it. */
static bool read_range(const char **at, unsigned long *first, unsigned long *last)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    *first = *last = strtoul(*at, &end, 10);
    if (*end == '-' && end[1] >= '0' && end[1] <= '9')
        *last = strtoul(end + 1, &end, 10);
    *at = end;
    return *end == ',' || *end == '\0';
}

/* Writes the chosen layers in one spelling, so that two runs can be compared. */
static bool spell(struct pack *pack)
{
    size_t used = 0;
    for (uint32_t i = 0; i < LIMIT_LAYERS; i++) {
        const uint32_t first = i;
        if (!pack->is_chosen[i])
            continue;
        while (i + 1 < LIMIT_LAYERS && pack->is_chosen[i + 1])
            i++;
        const int n = snprintf(pack->layers + used, sizeof pack->layers - used,
                               first < i ? "%s%u-%u" : "%s%u", used > 0 ? "," : "", first, i);
        used += n > 0 ? (size_t)n : 0;
        if (used >= sizeof pack->layers)
            return false;
    }
    return true;
}

int layers_read(struct pack *pack, struct fm_error *err)
{
    const char *text = pack->options->layers, *at = text;
    (void)snprintf(pack->layers, sizeof pack->layers, "all");
    if (text == NULL)
        return 0;
    pack->is_part = true;
    for (;;) {
        unsigned long first, last;
        if (!read_range(&at, &first, &last))
            return wrong(text, "it cannot be read", err);
        if (first > last)
            return wrong(text, "a range ends before it begins", err);
        if (last >= LIMIT_LAYERS)
            return wrong(text, "no model has so many layers", err);
        for (unsigned long i = first; i <= last; i++)
            pack->is_chosen[i] = true;
        if (*at == '\0')
            break;
        at++;
    }
    return spell(pack) ? 0 : wrong(text, "it has too many ranges", err);
}

int layers_check(const struct pack *pack, struct fm_error *err)
{
    const uint32_t n = pack->model->shape.n_layers;
    for (uint32_t i = n; pack->is_part && i < LIMIT_LAYERS; i++)
        if (pack->is_chosen[i])
            return err_set(err, FM_ERR_ARG, "layers '%.60s': '%s' has the layers 0 to %u",
                           pack->options->layers, pack->src, n - 1);
    return 0;
}

bool layers_has(const struct pack *pack, uint32_t layer)
{
    /* The block for multi-token prediction belongs to the head, which the first rank has. */
    const uint32_t of = layer < pack->model->shape.n_layers ? layer : 0;
    return !pack->is_part || pack->is_chosen[of];
}
