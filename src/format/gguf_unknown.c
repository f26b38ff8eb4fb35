/* Refuses files of an architecture that no family has. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/name_set.h"
#include "format/gguf_internal.h"

#define MAX_SHOWN 4

static void list_architectures(const struct gguf_family *const *families, char *text,
                               size_t bytes)
{
    size_t used = 0;
    for (; families != NULL && *families != NULL; families++)
        for (const char *const *name = (*families)->architectures; *name != NULL; name++)
            if (used < bytes)
                used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "",
                                         *name);
}

/* Collects the tensors that the family has no name for. */
static void collect(const struct gguf *g, const struct gguf_family *family, struct name_set *set)
{
    *set = (struct name_set){.n = 0};
    for (size_t i = 0; i < g->n_tensors; i++)
        if (!gguf_family_names(family, &g->tensors[i]))
            name_set_add(set, g->tensors[i].name, g->tensors[i].name_bytes);
}

/* Returns the family that knows the most tensors and, among those, has the nearest name. Leaves the
 * tensors that it does not know in *others. */
static const struct gguf_family *find_nearest(const struct gguf *g,
                                              const struct gguf_family *const *families,
                                              const char *name, struct name_set *others)
{
    const struct gguf_family *nearest = NULL;
    size_t min_distance = SIZE_MAX;
    unsigned min = UINT_MAX;
    for (; families != NULL && *families != NULL; families++) {
        const size_t distance = name_distance(name, (*families)->architectures[0]);
        collect(g, *families, others);
        if (others->n > min || (others->n == min && distance >= min_distance))
            continue;
        nearest = *families;
        min = others->n;
        min_distance = distance;
    }
    if (nearest != NULL)
        collect(g, nearest, others);
    return nearest;
}

static int refuse(const struct gguf *g, const struct gguf_family *const *families,
                  const char *name, const char *known, struct fm_error *err)
{
    char shown[MAX_SHOWN * NAME_SET_BYTES + 32];
    struct name_set *others = mem_new(1, sizeof *others, "the comparison of families", err);
    if (others == NULL)
        return FM_ERR_NOMEM;
    const struct gguf_family *nearest = find_nearest(g, families, name, others);
    const bool has_others = nearest != NULL && others->n > 0;
    const int rc = err_set(
        err, FM_ERR_UNSUPPORTED,
        "%s: key 'general.architecture' is \"%s\"; this version reads only %s%s%s%s%s%s", g->path,
        name, known, nearest != NULL ? ", of which \"" : "",
        nearest != NULL ? nearest->architectures[0] : "",
        nearest != NULL ? "\" is the nearest" : "",
        has_others ? "; tensors it does not know: " : "",
        has_others ? name_set_text(others, MAX_SHOWN, shown, sizeof shown) : "");
    mem_free(others);
    return rc;
}

int gguf_refuse_architecture(const struct gguf *g, const struct gguf_family *const *families,
                             const char *text, uint64_t bytes, struct fm_error *err)
{
    char name[64], known[256] = "", key[GGUF_KEY_BYTES];
    const bool is_text = gguf_is_text((const uint8_t *)text, bytes);
    const int shown = bytes < sizeof name ? (int)bytes : (int)sizeof name;
    (void)snprintf(name, sizeof name, "%.*s", is_text ? shown : 0, text);
    list_architectures(families, known, sizeof known);
    if (gguf_look(g, ".expert_count", key) != NULL || families == NULL)
        return refuse(g, families, name, known, err);
    return err_set(err, FM_ERR_UNSUPPORTED,
                   "%s: key 'general.architecture' is \"%s\", and there is no key '%s': this "
                   "version runs models with experts only, and reads %s", g->path, name, key,
                   known);
}
