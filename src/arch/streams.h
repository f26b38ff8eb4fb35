/* A residual of several streams. Before a mixer or a feed-forward block a gate makes one row of all
 * streams, and a factor for each stream that the block's result is added with. It stands in for the
 * norms of other families. */
#ifndef FLASHMOE_ARCH_STREAMS_H
#define FLASHMOE_ARCH_STREAMS_H

#include "arch/ngram.h"

#ifdef __cplusplus
extern "C" {
#endif

struct stream_gate {
    const float *norm;  /* [n_streams, hidden] */
    struct weight down; /* [rank, n_streams * hidden] */
    struct weight up;   /* [n_streams * hidden, rank] */
    struct weight inject; /* [n_streams, n_streams * hidden]; without rows: behind the last layer */
};

struct stream_layer {
    struct stream_gate mix, ffn;
    struct ngram *ngram; /* NULL: none */
};

/* What a transformer has beside the pieces of blocks.h: its `more`. */
struct streams {
    uint32_t rank;
    struct ngram_shape ngram;
    struct ngram *tables; /* [ngram.n_tables], in the same block */
    struct stream_gate last;
    struct stream_layer layers[];
};

/* As in transformer_traits. */
int streams_read(struct transformer *t, const struct config *c, struct fm_error *err);
int streams_check(const struct transformer *t, const struct config *c, struct fm_error *err);
void streams_bind(struct binder *b, const struct transformer *t, struct transformer_layer *l,
                  const struct layer_names *names);
void streams_bind_last(struct binder *b, struct transformer *t, const struct layer_names *names);

/* As in struct arch. */
void streams_sizes(const void *arch, struct arch_sizes *sizes);
void streams_state(const void *arch, uint32_t layer, struct layer_state *state);
void streams_embed(struct step *step);
void streams_place(struct step *step);
void streams_mix(struct step *step, uint32_t layer);
void streams_route(struct step *step, uint32_t layer);
void streams_predict(struct step *step, uint32_t layer);
void streams_close(struct step *step, uint32_t layer);
void streams_table_rows(const void *arch, uint32_t table, const int32_t *recent, uint64_t *rows);
void streams_final_norm(struct step *step, const float *x, uint32_t n, float *normed);

#ifdef __cplusplus
}
#endif
#endif
