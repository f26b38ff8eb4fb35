/* How the memory budget of a stage is divided: program, dense weights, sequences, scratch, and the
 * rest for slots of experts. A stage on a GPU has two budgets: that of the GPU's memory, and that
 * of the host's memory beside it. Plain numbers; allocates nothing. One thread at a time. */
#ifndef FLASHMOE_ENGINE_BUDGET_H
#define FLASHMOE_ENGINE_BUDGET_H

#include "engine/sequence.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whose memory a budget divides. */
enum budget_place {
    BUDGET_HOST,       /* the host's, where the stage computes */
    BUDGET_DEVICE,     /* the GPU's, where the stage computes */
    BUDGET_BESIDE,     /* the host's beside a GPU */
};

/* All fields in bytes unless named otherwise. */
struct budget {
    enum budget_place place;
    uint64_t total;       /* now */
    uint64_t min, max; /* what it may become */
    uint64_t reserve;     /* left to other processes */
    /* Resident before the model's own memory, counted in the first stage; buffers of reads, a
     * margin. */
    uint64_t program;
    uint64_t caller;  /* left to the caller: a server's requests */
    uint64_t dense, scratch, cache;
    uint64_t sessions; /* but for keys and values */
    uint64_t kv;       /* keys and values now, at least one block per session */
    struct sequence_blocks blocks;
    uint64_t need; /* with the fewest experts that work */
    uint32_t n_slots, n_min, n_max; /* experts cached: now, and what that may become */
    uint32_t n_context, n_sessions, n_marks, n_drafts, max_rows, n_threads;
    uint32_t n_row_copies; /* of a batch's rows, on their way to and from other ranks */
    uint32_t n_passes;     /* that may be under way; 0: one */
};

/* Refuses a budget above the limit of the process's memory cgroup, which `file` states. `left` is
 * what is left of the limit now, `own` what this process has of it. */
int budget_check_limit(uint64_t asked, uint64_t limit, const char *file, uint64_t left,
                       uint64_t own, struct fm_error *err);
/* What a budget is made from beside the model. */
struct budget_terms {
    enum budget_place place;
    const struct kv_format *kv_format;
    uint64_t reader_bytes; /* buffers of reads */
    bool is_elastic;
    bool has_program; /* and what a caller needs: several stages count it once */
    uint32_t n_row_copies, n_passes;
    uint64_t device_bytes;       /* BUDGET_DEVICE: the total */
    uint32_t n_experts_on_device; /* BUDGET_BESIDE: slots for experts that the GPU has */
};

/* Divides the budget of a stage, whose layers `model` has, or says with the arithmetic why it
 * cannot. The budget beside a GPU takes context and prefill chunk as they are in the GPU's. */
int budget_plan(struct budget *b, const struct model *model, const struct budget_terms *terms,
                const struct fm_model_options *options, struct fm_error *err);
/* Raises the number of experts that must have a slot, up to the maximum. FM_ERR_BUDGET: they do not
 * fit the total. */
int budget_require(struct budget *b, const struct model *model, uint32_t n_min,
                   struct fm_error *err);
/* Changes the total, within `min` and `max`, and what depends on it. */
void budget_change(struct budget *b, const struct model *model, uint64_t total);
/* Makes the present total the maximum. */
void budget_stop_growth(struct budget *b, const struct model *model);
/* Shrinks the budget to the minimum number of experts. */
void budget_shrink(struct budget *b, const struct model *model);
/* Adds the budget of a stage to `sum`. What stages have in common is taken from the first; stages
 * compute one after the other, so the threads are those of the stage that has the most. */
void budget_add(struct budget *sum, const struct budget *b);
/* Says with the arithmetic that `need` bytes do not fit into the total of b. */
int budget_does_not_fit(const struct budget *b, const struct model *model, uint64_t need,
                        struct fm_error *err);
/* Returns the least total with `kv` bytes of keys and values. */
uint64_t budget_min_with_kv(const struct budget *b, const struct model *model, uint64_t kv);
/* Counts `kv` bytes for keys and values from now on; the total grows where they need it. Returns
 * false, and changes nothing, when it would exceed `max`. */
bool budget_change_kv(struct budget *b, const struct model *model, uint64_t kv, uint64_t max);
/* Returns the largest total that the stage can use: all slots, and full sessions. It is not below
 * `min` and not above `max`. */
uint64_t budget_usable(const struct budget *b, const struct model *model);
/* Returns the bytes of keys and values when all sessions are full. */
uint64_t budget_kv_max(const struct budget *b);

#ifdef __cplusplus
}
#endif
#endif
