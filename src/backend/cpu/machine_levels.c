#include <stdio.h>
#include <string.h>

#include "backend/machine.h"

static bool has_reference(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return true;
#endif
}

bool machine_level(unsigned i, struct machine_level *level)
{
    if (i > 0)
        return false;
    *level = (struct machine_level){.name = "reference", .is_usable = has_reference(),
                                    .is_default = true,
#if defined(__x86_64__)
                                    .needs = "AVX2, FMA"
#else
                                    .needs = "any processor of this architecture"
#endif
    };
    return true;
}

static int unknown_level(const char *name, struct fm_error *err)
{
    char known[256] = "";
    size_t used = 0;
    struct machine_level level;
    for (unsigned i = 0; machine_level(i, &level) && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "",
                                 level.name);
    return err_set(err, FM_ERR_ARG, "there is no processor level '%s'; there are %s", name, known);
}

int machine_level_find(const char *name, struct machine_level *level, struct fm_error *err)
{
    const char *best = "";
    for (unsigned i = 0; machine_level(i, level); i++) {
        if (level->is_default && name == NULL)
            return 0;
        if (level->is_default)
            best = level->name;
    }
    for (unsigned i = 0; machine_level(i, level); i++)
        if (strcmp(level->name, name) == 0)
            return level->is_usable
                       ? 0
                       : err_set(err, FM_ERR_UNSUPPORTED,
                                 "this processor cannot run level '%s' (%s); its best is '%s'",
                                 name, level->needs, best);
    return unknown_level(name, err);
}
