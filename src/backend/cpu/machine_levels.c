#include "backend/cpu/levels.h"
#include "backend/machine.h"

static struct machine_level described(const struct level *level)
{
    struct kernels kernels = {0};
    const bool is_usable = level->is_there();
    if (is_usable) /* even the init function is compiled for the level */
        level_kernels(level, &kernels);
    return (struct machine_level){.name = level->name, .needs = level->summary,
                                  .is_usable = is_usable,
                                  .is_default = level == level_best(),
                                  .int8_peak = kernels.int8_peak,
                                  .fma_peak = kernels.fma_peak};
}

bool machine_level(unsigned i, struct machine_level *level)
{
    const struct level *found = level_at(i);
    if (found == NULL)
        return false;
    *level = described(found);
    return true;
}

int machine_level_find(const char *name, struct machine_level *level, struct fm_error *err)
{
    const struct level *found;
    int rc = level_find(name, &found, err);
    *level = described(found);
    return rc;
}

int machine_level_use(const char *name, struct machine_level *level, struct fm_error *err)
{
    const struct level *found;
    int rc = level_use(name, &found, err);
    *level = described(found);
    return rc;
}
