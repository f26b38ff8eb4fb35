/* What the measurements of changing topics decode.
 *
 * A model that routes itself continues the openings of six texts of different kinds, each in a
 * conversation of its own. The tokens are drawn with a fixed seed, so that they are the same
 * whatever the memory budget; the most likely ones would run in circles and need few experts. A
 * token that ends the text is passed over. Where routes are generated the topics are theirs and the
 * tokens mean nothing.
 *
 * A `struct topics` belongs to one open model and must be closed before it. One thread. */
#ifndef FLASHMOE_APPS_BENCH_TOPICS_H
#define FLASHMOE_APPS_BENCH_TOPICS_H

#include "apps/cli/common.h"

enum { TOPIC_C, TOPIC_VERSE, TOPIC_STORY, TOPIC_PYTHON, TOPIC_JAPANESE, TOPIC_SUMS, N_TOPICS };

/* What `--routes` must become: as given, completed with topics of so many tokens, or, for a model
 * that has no tokenizer, generated. NULL: the model routes itself. Free *routes with mem_free.
 * FM_ERR_ARG for generated routes that set their topics themselves, and for a recording unless
 * takes_trace. */
int topics_choose_routes(const struct args *args, unsigned n_topic_tokens, bool takes_trace,
                         char **routes, struct fm_error *err);

struct topics {
    const struct args *args;
    struct fm_model *model;
    struct fm_session *session; /* open as long as this is */
    struct fm_sampler *sampler;
    bool is_text; /* the openings are there */
    struct {
        int32_t *ids;
        size_t n_ids;
    } openings[N_TOPICS];
    int32_t *stops;
    size_t n_stops;
    float *logits; /* [vocabulary] */
    unsigned vocabulary;
};

const char *topic_name(unsigned topic);

/* Opens the model's session, which Ctrl-C cancels. Close after a failure too. */
int topics_open(struct topics *topics, const struct args *args, struct fm_model *model,
                struct fm_error *err);
void topics_close(struct topics *topics);

/* The next token after those that the session has. */
int topics_pick(struct topics *topics, int32_t *id, struct fm_error *err);

#endif
