#include "text/pretok.h"

#include <string.h>

#define PRETOK(descriptor) extern const struct pretok descriptor;
#include "text/pretok_list.h"
#undef PRETOK

static const struct pretok *const patterns[] = {
#define PRETOK(descriptor) &descriptor,
#include "text/pretok_list.h"
#undef PRETOK
    NULL,
};

const struct pretok *pretok_at(unsigned i)
{
    return i < sizeof patterns / sizeof patterns[0] ? patterns[i] : NULL;
}

static bool has_regexes(const struct pretok *pattern, const char *const *regexes, size_t n)
{
    size_t i = 0;
    while (i < n && pattern->regexes[i] != NULL && strcmp(pattern->regexes[i], regexes[i]) == 0)
        i++;
    return i == n && pattern->regexes[i] == NULL;
}

const struct pretok *pretok_find(const char *const *regexes, size_t n)
{
    for (unsigned i = 0; patterns[i] != NULL; i++)
        if (has_regexes(patterns[i], regexes, n))
            return patterns[i];
    return NULL;
}

const struct pretok *pretok_find_gguf(const char *name, size_t bytes)
{
    for (unsigned i = 0; patterns[i] != NULL; i++)
        for (const char *const *known = patterns[i]->gguf_names; *known != NULL; known++)
            if (strlen(*known) == bytes && memcmp(*known, name, bytes) == 0)
                return patterns[i];
    return NULL;
}
