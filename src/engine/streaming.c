#include "engine/streaming.h"

#include <string.h>

#include "arch/arch.h"
#include "base/log.h"

#define DEFAULT_DEPTH 8

static bool is_word(const char *text, const char *word)
{
    return text != NULL && strcmp(text, word) == 0;
}

int streaming_choose(struct streaming *s, const struct fm_model_options *options,
                     struct fm_error *err)
{
    const char *io = options->io != NULL ? options->io : "auto";
    const char *reader = options->reader != NULL ? options->reader : "pread";
    *s = (struct streaming){
        .io = is_word(io, "page") ? STORE_PAGES : STORE_DIRECT,
        .wants_uring = is_word(reader, "uring"),
        .reader.depth = options->read_depth > 0 ? options->read_depth : DEFAULT_DEPTH,
        .policy = options->policy != NULL ? heat_policy_find(options->policy) : HEAT_LCP,
        .heat_path = options->heat_path,
        .is_auto = is_word(io, "auto"),
        .io_path = options->io_path,
    };
    if (!is_word(io, "auto") && !is_word(io, "page") && !is_word(io, "direct"))
        return err_set(err, FM_ERR_ARG, "experts cannot be read by '%s', only direct, page or auto",
                       io);
    if (!is_word(reader, "pread") && !is_word(reader, "uring"))
        return err_set(err, FM_ERR_ARG, "there is no reader '%s', only pread and uring", reader);
    const char *ahead = options->lookahead != NULL ? options->lookahead : "auto";
    s->lookahead = is_word(ahead, "on")    ? LOOKAHEAD_ON
                   : is_word(ahead, "off") ? LOOKAHEAD_OFF
                                           : LOOKAHEAD_AUTO;
    if (s->lookahead == LOOKAHEAD_AUTO && !is_word(ahead, "auto"))
        return err_set(err, FM_ERR_ARG, "looking ahead can be on, off or auto, not '%s'", ahead);
    if (s->policy == N_HEAT_POLICIES)
        return err_set(err, FM_ERR_ARG, "there is no cache policy '%s', only lcp and lru",
                       options->policy);
    if (s->reader.depth > READER_MAX_DEPTH)
        return err_set(err, FM_ERR_ARG, "%u reads at a time asked for, at most %d are possible",
                       s->reader.depth, READER_MAX_DEPTH);
    return 0;
}

void streaming_fit(struct streaming *s, const struct model *model)
{
    s->reader.bounce_bytes = expert_store_bounce_bytes(model, s->io);
}

uint64_t streaming_bytes(const struct streaming *s, const struct model *model)
{
    return reader_bytes(&s->reader) + s->reader.depth * expert_store_page_bytes(model, s->io);
}

int streaming_open_reader(const struct streaming *s, struct reader **reader, struct fm_error *err)
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

int streaming_open_model(const char *model_path, const struct fm_model_options *options,
                         struct streaming *s, struct model **model, struct fm_error *err)
{
    const struct model_options model_options = {.families = arch_families()};
    *model = NULL;
    int rc = streaming_choose(s, options, err);
    if (rc == 0)
        rc = model_open(model_path, &model_options, model, err);
    if (rc == 0 && (*model)->n_expert_layers == 0)
        rc = err_set(err, FM_ERR_ARG, "'%s' has no routed experts to read", model_path);
    return rc;
}
