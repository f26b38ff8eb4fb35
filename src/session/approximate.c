/* Approximations: options that change results compared with the original model. All are off by
 * default, and every output names them. */
#include <stdio.h>
#include <string.h>

#include "session/session_internal.h"

static const char mark[] = "approximate: ";

static void add(struct fm_model *m, const char *text)
{
    const size_t used = strlen(m->approximate);
    (void)snprintf(m->approximate + used, sizeof m->approximate - used, "%s%s",
                   used > 0 ? "; " : mark, text);
}

int approximate_choose(struct fm_model *m, const struct fm_model_options *options,
                       struct fm_error *err)
{
    const struct model_shape *s = &m->engine.model->shape;
    char text[96];
    if (!(options->cache_bias >= 0 && options->cache_bias <= 1))
        return err_set(err, FM_ERR_ARG, "a cache bias of %g was requested, expected 0 to 1",
                       options->cache_bias);
    if ((options->experts_per_token > 0 || options->cache_bias > 0) &&
        m->engine.model->n_expert_layers == 0)
        return err_set(err, FM_ERR_ARG,
                       "experts per token and cache bias cannot be used: the model has no routed "
                       "experts");
    if (options->cache_bias > 0 && options->routes != NULL)
        return err_set(err, FM_ERR_ARG, "a cache bias cannot be used with routes, which take the "
                       "place of the routers");
    m->engine.cache_bias = (float)options->cache_bias;
    if (s->n_experts_per_token < s->n_experts_trained) {
        (void)snprintf(text, sizeof text, "%u of %u experts per token", s->n_experts_per_token,
                       s->n_experts_trained);
        add(m, text);
    }
    if (options->cache_bias > 0) {
        (void)snprintf(text, sizeof text, "experts in memory preferred (cache bias %g)",
                       options->cache_bias);
        add(m, text);
    }
    const struct kv_format *kv = m->engine.kv_format;
    if (kv->bits < kv_f16.bits) {
        (void)snprintf(text, sizeof text, "keys and values in %u bits (%s)", kv->bits, kv->name);
        add(m, text);
    }
    return 0;
}

const char *approximate_label(const struct fm_model *m)
{
    return m->approximate[0] != '\0' ? m->approximate : NULL;
}
