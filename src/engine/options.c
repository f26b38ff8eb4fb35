#include "engine/options.h"

#include "base/sized.h"

/* The caller's stages follow each other at the distance of their own size. */
static int take_stages(struct own_options *own, struct fm_error *err)
{
    const char *given = (const char *)own->o.stages;
    const unsigned n = own->o.n_stages;
    if (n > SEQUENCE_PARTS)
        return err_set(err, FM_ERR_ARG, "%u stages requested, the maximum is %d", n,
                       SEQUENCE_PARTS);
    if (given == NULL)
        return err_set(err, FM_ERR_ARG, "fm_model_options.stages is NULL and "
                       "n_stages is %u: give an element for each stage", n);
    const size_t size = own->o.stages->size;
    for (unsigned i = 0; i < n; i++) {
        const void *stage = given + i * size;
        const size_t own_size = ((const struct fm_stage_options *)stage)->size;
        if (own_size != size)
            return err_set(err, FM_ERR_ARG, "fm_stage_options.size is %zu in stage %u and %zu in "
                           "stage 0: give all stages the same size", own_size, i, size);
        const int rc = sized_take(&own->stages[i], sizeof own->stages[i], stage,
                                  "fm_stage_options", err);
        if (rc != 0)
            return rc;
    }
    own->o.stages = own->stages;
    return 0;
}

static int check_enums(const struct fm_model_options *o, struct fm_error *err)
{
    const struct {
        const char *name;
        int value, max;
    } fields[] = {{"elastic", (int)o->elastic, FM_OFF},     {"check", (int)o->check, FM_OFF},
                  {"lookahead", (int)o->lookahead, FM_OFF}, {"draft", (int)o->draft, FM_OFF},
                  {"draft_source", (int)o->draft_source, FM_DRAFT_LOOKUP},
                  {"io", (int)o->io, FM_IO_PAGE},
                  {"reader", (int)o->reader, FM_READER_URING},
                  {"policy", (int)o->policy, FM_POLICY_LRU}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value < 0 || fields[i].value > fields[i].max)
            return err_set(err, FM_ERR_ARG, "fm_model_options.%s is %d: expected 0 to %d",
                           fields[i].name, fields[i].value, fields[i].max);
    return 0;
}

int own_options_take(struct own_options *own, const struct fm_model_options *given,
                     struct fm_error *err)
{
    int rc = sized_take(&own->o, sizeof own->o, given, "fm_model_options", err);
    if (rc == 0)
        rc = check_enums(&own->o, err);
    if (rc != 0 || own->o.n_stages > 1)
        return rc != 0 ? rc : take_stages(own, err);
    own->o.stages = NULL;
    return 0;
}
