/* The tokens that benchmarks of changing topics decode.
 *
 * A model with its own routers continues the openings of different texts, each in its own
 * conversation. Tokens are sampled with a fixed seed, so that they do not depend on the memory
 * budget; greedy decoding would loop and use few experts. Stop tokens are skipped. With generated
 * routes the topics come from the routes and the tokens have no meaning.
 *
 * `struct topics` owns its session, sampler and arrays. It belongs to one open model and must be
 * closed before it. One thread. */
#ifndef FLASHMOE_APPS_BENCH_TOPICS_H
#define FLASHMOE_APPS_BENCH_TOPICS_H

#include "apps/cli/common.h"

/* The first N_TOPICS are those of `bench stream` and of generated routes, the first N_OPENINGS
 * those of `bench draft`. `validate` has a list of its own. */
enum {
    TOPIC_C, TOPIC_VERSE, TOPIC_STORY, TOPIC_PYTHON, TOPIC_JAPANESE, TOPIC_SUMS, N_TOPICS,
    TOPIC_PROSE = N_TOPICS, TOPIC_CHAT, N_OPENINGS,
    TOPIC_REACT = N_OPENINGS, TOPIC_RUST, TOPIC_MATHS, TOPIC_LOGIC, TOPIC_TURNS, N_ALL_OPENINGS
};

/* Returns the routes to open the model with: those given, with topics of n_topic_tokens added, or
 * generated ones for a model without a tokenizer. NULL: the model's own routers. Free *routes with
 * mem_free. Fails with FM_ERR_ARG for generated routes that set their topics themselves, and for a
 * recording unless takes_trace. */
int topics_choose_routes(const struct args *args, unsigned n_topic_tokens, bool takes_trace,
                         char **routes, struct fm_error *err);

struct topics {
    const struct args *args;
    struct fm_model *model;
    struct fm_session *session; /* owned */
    struct fm_sampler *sampler;
    bool is_text; /* uses the openings */
    bool has_chat; /* a chat template of the model */
    struct {
        int32_t *ids;
        size_t n_ids;
    } openings[N_ALL_OPENINGS];
    int32_t *stops;
    size_t n_stops;
    float *logits; /* [vocabulary] */
    unsigned vocabulary;
    struct fm_sampling sampling; /* the seed apart */
};

const char *topic_name(unsigned topic);

/* Opens a session that Ctrl-C cancels. Call topics_close after a failure too. The caller may change
 * how tokens are sampled before topics_restart. */
int topics_open(struct topics *topics, const struct args *args, struct fm_model *model,
                struct fm_error *err);
void topics_close(struct topics *topics);

/* Begins a topic again: an empty session, and tokens that depend on the seed alone. */
int topics_restart(struct topics *topics, uint64_t seed, struct fm_error *err);
/* Samples the next token of the session. */
int topics_pick(struct topics *topics, int32_t *id, struct fm_error *err);

#endif
