/* The origins of routes: the generator and recorded traces. */
#ifndef FLASHMOE_LAB_ROUTES_INTERNAL_H
#define FLASHMOE_LAB_ROUTES_INTERNAL_H

#include "lab/routes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- generator -------------------------------------------------------------------------- */

/* All in millionths, so that a text means the same bits everywhere. */
struct routes_gen {
    uint64_t hot;      /* experts in a layer's hot set */
    bool is_hot_share; /* hot is a share of the experts, not their number */
    uint64_t alpha; /* popularity of the r-th expert falls as r^-alpha */
    uint64_t delta; /* ln of how much less likely the others are */
    uint64_t beta;  /* ln of how much likelier what the last token used is */
    uint64_t drift; /* pairs that swap their popularity, per token and layer */
    uint64_t topic; /* tokens until all popularity is drawn anew; 0: never */
    uint64_t topics; /* after so many the first popularity comes again; 0: never */
    uint64_t seed;
};

int routes_gen_parse(const char *text, struct routes_gen *gen, struct fm_error *err);
/* Open values become those for n_experts, `hot` a number of experts; the text names every value. */
void routes_gen_resolve(struct routes_gen *gen, uint32_t n_experts, char *text, size_t text_bytes);
int routes_gen_fill(const struct routes_gen *gen, struct routes *routes, struct fm_error *err);

/* ---- traces ------------------------------------------------------------------------------ */

#define TRACE_NO_EXPERT UINT16_MAX

struct trace {
    uint32_t n_tokens, n_layers, n_experts, n_used;
    uint32_t n_prefill; /* tokens before the first decoded one; 0 when none was decoded */
    uint16_t *ids;      /* [n_tokens, n_layers, n_used] in slot order, or TRACE_NO_EXPERT */
};

/* "# route_trace v1" CSV. Layers are numbered by their order, tokens by turn and step; the first
 * ROUTES_POSITIONS_MAX tokens are kept. A token that a layer does not have (some recorders leave
 * the prompt out of the last layer) takes that of the next token. Nothing is left after an
 * error. `name` is for messages. */
int trace_parse(struct trace *trace, const char *name, const char *text, size_t text_bytes,
                struct fm_error *err);
/* Bytes [n_tokens, 8 layers, 8 experts], each below 64; all of them are decoded tokens. */
int trace_parse_raw(struct trace *trace, const char *name, const uint8_t *bytes, size_t n,
                    struct fm_error *err);
void trace_clear(struct trace *trace);

/* Fills the table from a trace of another shape. Our layer l is the trace's l * its layers / our
 * layers. With as many experts and as many per token, that is the trace itself. With more experts,
 * they form blocks of at most as many as the trace has; each block follows another layer of the
 * trace, and a token's experts go round the blocks, strongest first, so that overlap and working
 * set keep their share of all experts. With fewer, neighbours fall together. What a token still
 * lacks comes from tokens far away in the trace (half of it, then quarters, eighths, ...), so that
 * no short distance gains overlap, and last from its following tokens. */
void trace_map(const struct trace *trace, struct routes *routes);

#ifdef __cplusplus
}
#endif
#endif
