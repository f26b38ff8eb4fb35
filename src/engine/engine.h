/* An engine: one running model, cut into stages that rows pass one after the other. It owns the
 * stages and what they share: the batch at hand, the choice of how experts travel, and the budget
 * that follows the machine's memory. One thread at a time. */
#ifndef FLASHMOE_ENGINE_ENGINE_H
#define FLASHMOE_ENGINE_ENGINE_H

#include "engine/gpu.h"
#include "engine/pressure.h"
#include "engine/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The budget that follows the machine's memory (elastic.c). */
struct elastic {
    bool is_on;
    struct pressure pressure; /* of all stages together */
    struct pressure device;   /* of the GPU's memory, where there is one */
    uint64_t next_ns;         /* when it is looked at again */
    uint64_t n_shrinks, n_grows;
};

/* The layers that this process has of a model on several ranks (src/cluster). They are one
 * stage. */
struct engine_cut {
    bool is_on;
    uint32_t first_layer, end_layer;
    bool with_head;       /* the first rank has it */
    bool is_process;      /* the budget counts the program; of several threads, the first one's */
    uint32_t n_row_copies; /* of a batch's rows, on their way to and from other ranks */
    uint32_t n_passes;     /* that may be under way */
};

/* What other ranks do for this one. All functions are called on the thread that drives the engine.
 * The first rank has all of them, the others only `agree` and `goes_on`. */
struct engine_remote {
    void *ctx;
    /* Context and rows of a batch become what all ranks have room for. */
    int (*agree)(void *ctx, uint32_t *n_context, uint32_t *max_rows, struct fm_error *err);
    /* While this rank loads: hears the others. Returns false: one is lost, so loading is over. */
    bool (*goes_on)(void *ctx);
    /* Sends the rows of the pass on their way through the layers of the other ranks. The sequences
     * have not advanced yet. */
    void (*send)(void *ctx, const struct pass *pass);
    /* Waits for the rows of the pass that was sent first of those that are away. Segments that have
     * failed leave the pass: the fault hook is called. */
    void (*receive)(void *ctx, struct pass *pass);
    const struct sequence_far *far;
    int (*new_sequence)(void *ctx, uint32_t *id, struct fm_error *err);
    int (*reach)(void *ctx, struct sequence *sequence, uint32_t n_positions,
                 struct fm_error *err);
    /* Counts the experts of a draft of the last pass. */
    void (*accept)(void *ctx, uint32_t sequence, uint32_t draft);
    void (*add_cache_stats)(void *ctx, struct expert_cache_stats *sum);
};

struct engine {
    struct model *model; /* the whole: its headers */
    const struct kv_format *kv_format;
    struct streaming streaming;
    struct elastic elastic;
    struct gpu_choice gpu; /* until the stage takes it */
    bool checks; /* verifies what is read */
    bool has_large_mtp; /* the model has a block that drafts, which is left alone */
    float cache_bias;
    replace_ids_fn *replace_ids; /* NULL: the model's routers choose */
    replace_ids_fn *predict_ids; /* as in struct forward_options */
    void *replace_ctx;
    uint32_t stray_position; /* from here on replaced ids are those of other tokens */
    struct engine_cut cut;
    const struct engine_remote *remote; /* NULL: all layers are here */
    struct stage *stages; /* [n_stages]; none before engine_open */
    uint32_t n_stages;
    struct pass *passes; /* [n_passes] */
    struct pass between; /* one that runs between two layers of another */
    struct pass **away;  /* [n_passes]: those whose rows other ranks have, in their order */
    uint32_t n_passes, n_away;
    bool is_computing; /* a pass is on the stages */
    uint64_t busy_ns;  /* that passes were */
};

/* Takes the options apart that concern the engine, or says what is wrong with one, before anything
 * is opened. */
int engine_choose(struct engine *e, const struct fm_model_options *options, struct fm_error *err);
/* Reads the headers of the model at `path`, whole; the engine owns it from here on. */
int engine_open_model(struct engine *e, const char *path, const struct fm_model_options *options,
                      struct fm_error *err);
/* Divides the memory, loads the dense weights and opens the stages. engine_close follows, also
 * after a failure. */
int engine_open(struct engine *e, const char *path, const struct fm_model_options *options,
                struct fm_error *err);
void engine_close(struct engine *e); /* accepts a zeroed one */

/* Divides the GPU's memory and the host's beside it, from what the host's budget is made of. */
int engine_plan_gpu(const struct model *model, const struct budget_terms *host, uint64_t bytes,
                    const struct fm_model_options *options, struct budget *device,
                    struct budget *beside, struct fm_error *err);

/* Takes a batch through the stages that are here and advances its sequences, but for those that are
 * given up. Other ranks may have further layers: other passes can begin meanwhile, also of the same
 * sequences, as long as one is free. `batch` stays where it is until engine_end. */
struct pass *engine_begin(struct engine *e, const struct batch *batch);
/* Waits for what other ranks compute of the pass, and of those that began before it, and computes
 * their heads. Sequences of segments that were given up have to go back: sequence_rewind. */
void engine_end(struct engine *e, struct pass *pass);
/* Returns whether another batch may run between two layers of one (batch_hooks.pause): all layers
 * are in one stage, which computes in the host's memory. */
bool engine_can_pause(const struct engine *e);
/* Returns how many rows the next batch may have. */
uint32_t engine_max_rows(const struct engine *e);
/* Computes all passes that are away to their ends. engine_end follows for each. */
void engine_land(struct engine *e);

/* A sequence with a part in every stage. */
int engine_new_sequence(const struct engine *e, struct sequence **out, struct fm_error *err);
/* Memory for keys and values of so many positions, inside the budget; the caches become smaller or
 * larger for it. FM_ERR_BUDGET, FM_ERR_NOMEM: nothing has changed. No batch is inside a
 * layer. */
int engine_reach(struct engine *e, struct sequence *sequence, uint32_t n_positions,
                 struct fm_error *err);

/* Returns whether sequences can use the same memory for a common beginning. The block for
 * multi-token prediction writes before the position, so models with it cannot. */
bool engine_can_share(const struct engine *e, const struct sequence *sequence);
/* sequence_share within the budget: what is shared counts once. No batch is inside a layer. */
int engine_share(struct engine *e, struct sequence *to, struct sequence *from, uint32_t n_positions,
                 struct fm_error *err);

/* Whole pages of the host that the last stage can write to: logits_place of a batch. */
struct engine_pages {
    void *at;
    uint64_t bytes;
    bool is_locked;
};
int engine_make_pages(const struct engine *e, uint64_t bytes, const char *what,
                      struct engine_pages *pages, struct fm_error *err);
/* Accepts a zeroed one. */
void engine_free_pages(const struct engine *e, struct engine_pages *pages);

/* ---- knowing */

/* What all stages have in common (n_context, n_sessions, max_rows), and the sum of the rest. */
void engine_budget(const struct engine *e, struct budget *sum);
/* The limits of every batch and sequence. */
static inline const struct budget *engine_limits(const struct engine *e)
{
    return &e->stages[0].budget;
}
/* Counts the experts of an accepted draft, counted from 0, of a sequence's last pass. `ids` is
 * [expert layers, k] as the draft_experts hook has told them. */
void engine_accept_draft(struct engine *e, const struct sequence *sequence, uint32_t draft,
                         const uint32_t *ids);
/* The stage that has an expert layer, counted among all of the model, and its number there; NULL:
 * there is none. */
struct stage *engine_find_expert_layer(const struct engine *e, uint32_t expert_layer,
                                       uint32_t *within);
/* False without routed experts. */
bool engine_cache_stats(const struct engine *e, struct expert_cache_stats *sum);

/* ---- the budget of an open engine (elastic.c) */

/* True if the options want an elastic budget and the system tells about its memory. */
bool elastic_is_on(const struct fm_model_options *options);
/* Once the stages are open. */
void elastic_start(struct engine *e);
/* Keys and values of a stage take so many bytes from now on: its cache becomes smaller before it
 * returns, or larger. False: the budget has no room for them, and nothing has changed. No plan is
 * open. */
bool elastic_change_kv(struct engine *e, struct stage *stage, uint64_t kv);
/* What the budget may become for their sake; without a fixed one, as memory is free now. */
uint64_t elastic_kv_max(const struct engine *e);
/* Before every layer: looks at the machine's memory when it is time, and moves a few experts where
 * a cache is to become smaller. No plan is open. */
void elastic_step(struct engine *e);
/* Another budget, which becomes no larger by itself. FM_ERR_BUDGET: too small for what is open. */
int elastic_set(struct engine *e, uint64_t bytes, struct fm_error *err);
/* The same for the memory of the GPU that it has. */
int elastic_set_device(struct engine *e, uint64_t bytes, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
