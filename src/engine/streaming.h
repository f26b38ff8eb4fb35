/* How experts travel: reader, store, cache, and the heat that is kept from run to run. */
#ifndef FLASHMOE_ENGINE_STREAMING_H
#define FLASHMOE_ENGINE_STREAMING_H

#include "cache/lookahead.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The choice that options, the model and the disk lead to; the same for all stages. */
struct streaming {
    enum store_io io;
    bool wants_uring;
    struct reader_options reader;
    enum heat_policy policy;
    enum lookahead_mode lookahead;
    const char *heat_path; /* borrowed while the model opens */
    bool is_auto;          /* io is what was measured, here or before (io_choice.c) */
    const char *io_path;   /* where that is kept; borrowed likewise; NULL: nowhere */
};

/* Takes the options apart, or says what is wrong with one, before anything is opened. */
int streaming_choose(struct streaming *s, const struct fm_model_options *options,
                     struct fm_error *err);
/* Opens a reader for each disk of the model, and the store over them. */
int streaming_open_store(const struct streaming *s, const struct model *model, bool checks,
                         const char **reader_name, struct expert_store **store,
                         struct fm_error *err);
/* Decides `io` where the options left it open: takes what was kept from an earlier run, or measures
 * the disk where it may. Called once the model's headers are read. Never fails: without a figure,
 * experts are read past the page cache. */
void io_choose(struct streaming *s, const struct model *model, bool may_measure);
/* Fits the reader to the model's experts. Called after io_choose. */
void streaming_fit(struct streaming *s, const struct model *model);
/* Returns the memory that reads take on their way. Called after streaming_fit. */
uint64_t streaming_bytes(const struct streaming *s, const struct model *model);
/* Takes the options apart and opens the headers of a model whose disk is to be measured. Fails
 * without routed experts. The caller closes *model, also after a failure; NULL: it was not
 * opened. */
int streaming_open_model(const char *model_path, const struct fm_model_options *options,
                         struct streaming *s, struct model **model, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
