#include "engine/streaming.h"

#include "arch/arch.h"
#include "base/log.h"

#define DEFAULT_DEPTH 8

_Static_assert((int)FM_POLICY_LCP == HEAT_LCP && (int)FM_POLICY_LRU == HEAT_LRU,
               "policies have the numbers of the cache");

static const enum lookahead_mode modes[] = {
    [FM_AUTO] = LOOKAHEAD_AUTO, [FM_ON] = LOOKAHEAD_ON, [FM_OFF] = LOOKAHEAD_OFF};

int streaming_choose(struct streaming *s, const struct fm_model_options *options,
                     struct fm_error *err)
{
    *s = (struct streaming){
        .io = options->io == FM_IO_PAGE ? STORE_PAGES : STORE_DIRECT,
        .wants_uring = options->reader == FM_READER_URING,
        .reader.depth = options->read_depth > 0 ? options->read_depth : DEFAULT_DEPTH,
        .policy = (enum heat_policy)options->policy,
        .lookahead = modes[options->lookahead],
        .heat_path = options->heat_path,
        .is_auto = options->io == FM_IO_AUTO,
        .io_path = options->io_path,
    };
    if (s->reader.depth > READER_MAX_DEPTH)
        return err_set(err, FM_ERR_ARG, "%u concurrent reads requested, the maximum is %d",
                       s->reader.depth, READER_MAX_DEPTH);
    return 0;
}

void streaming_fit(struct streaming *s, const struct model *model)
{
    s->reader.bounce_bytes = expert_store_bounce_bytes(model, s->io);
}

uint64_t streaming_bytes(const struct streaming *s, const struct model *model)
{
    if (model->n_expert_layers == 0) /* no reader is opened */
        return 0;
    const uint64_t one =
        reader_bytes(&s->reader) + s->reader.depth * expert_store_page_bytes(model, s->io);
    return expert_store_n_disks(model) * one;
}

static int open_reader(const struct streaming *s, struct reader **reader, struct fm_error *err)
{
    struct fm_error why = {0};
    int rc = s->wants_uring ? reader_uring_open(&s->reader, reader, &why) : FM_ERR_UNSUPPORTED;
    if (rc == 0)
        return 0;
    if (rc != FM_ERR_UNSUPPORTED)
        return err_set(err, rc, "%s", why.text);
    if (s->wants_uring)
        log_info("reader", "%s; reading with threads", why.text);
    return reader_pread_open(&s->reader, reader, err);
}

int streaming_open_store(const struct streaming *s, const struct model *model, bool checks,
                         const char **reader_name, struct expert_store **store,
                         struct fm_error *err)
{
    struct reader *readers[SOURCE_MAX_DISKS];
    const unsigned n_disks = expert_store_n_disks(model);
    *store = NULL;
    for (unsigned i = 0; i < n_disks; i++) {
        int rc = open_reader(s, &readers[i], err);
        while (rc != 0 && i > 0) {
            i--;
            readers[i]->ops->close(readers[i]);
        }
        if (rc != 0)
            return rc;
    }
    *reader_name = readers[0]->ops->name;
    return expert_store_open(model, readers, s->io, checks, store, err);
}

int streaming_open_model(const char *model_path, const struct fm_model_options *options,
                         struct streaming *s, struct model **model, struct fm_error *err)
{
    const struct model_options model_options = {.families = arch_families(),
                                                .may_lack_experts = true};
    *model = NULL;
    int rc = streaming_choose(s, options, err);
    if (rc == 0)
        rc = model_open(model_path, &model_options, model, err);
    if (rc == 0 && (*model)->n_expert_layers == 0)
        rc = err_set(err, FM_ERR_ARG, "'%s' has no routed experts to read", model_path);
    return rc;
}
