/* The two origins of routes: the generator and recorded traces. The caller owns all structs. One
 * thread at a time. */
#ifndef FLASHMOE_LAB_ROUTES_INTERNAL_H
#define FLASHMOE_LAB_ROUTES_INTERNAL_H

#include "lab/routes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- generator -------------------------------------------------------------------------- */

/* Parameters of the generator, in millionths, so that a text means the same bits on every
 * machine. */
struct routes_gen {
    uint64_t hot;      /* experts in a layer's hot set */
    bool is_hot_share; /* `hot` is a share of the experts, not a count */
    uint64_t alpha; /* the popularity of rank r is r^-alpha */
    uint64_t delta; /* experts outside the hot set are e^-delta as popular */
    uint64_t beta;  /* experts of the last token are e^beta more probable */
    uint64_t drift; /* pairs that swap ranks, per token and layer */
    uint64_t topic; /* tokens until all ranks are drawn again; 0: never */
    uint64_t topics; /* number of topics before the first returns; 0: it never does */
    uint64_t seed;
    uint64_t recall; /* share of a token's experts that are predicted */
};

int routes_gen_parse(const char *text, struct routes_gen *gen, struct fm_error *err);
/* Replaces open values by the defaults for n_experts, and `hot` by a count. Writes a text that
 * names every value. */
void routes_gen_resolve(struct routes_gen *gen, uint32_t n_experts, char *text, size_t text_bytes);
int routes_gen_fill(const struct routes_gen *gen, struct routes *routes, struct fm_error *err);

/* ---- traces ------------------------------------------------------------------------------ */

#define TRACE_NO_EXPERT UINT16_MAX

struct trace {
    uint32_t n_tokens, n_layers, n_experts, n_used;
    uint32_t n_prefill; /* tokens before the first decoded one; 0 when none was decoded */
    uint16_t *ids;      /* [n_tokens, n_layers, n_used] in slot order, or TRACE_NO_EXPERT */
};

/* Parses a "# route_trace v1" CSV. Layers are numbered in their order, tokens by turn and step.
 * Keeps the first ROUTES_POSITIONS_MAX tokens. If a layer lacks a token, because some recorders
 * omit the prompt in the last layer, it takes the experts of the next token. `name` is for
 * messages. After an error the trace is empty. */
int trace_parse(struct trace *trace, const char *name, const char *text, size_t text_bytes,
                struct fm_error *err);
/* Parses bytes [n_tokens, 8 layers, 8 experts], each below 64. All tokens count as decoded. */
int trace_parse_raw(struct trace *trace, const char *name, const uint8_t *bytes, size_t n,
                    struct fm_error *err);
void trace_clear(struct trace *trace);

/* Fills the table from a trace of another shape. Layer l of the table takes layer l * (trace
 * layers) / (table layers) of the trace. With the same number of experts and experts per token,
 * that is all.
 *
 * With more experts, they form blocks of at most as many experts as the trace has. Each block
 * follows another layer of the trace, and the experts of a token go round the blocks, strongest
 * first, so that overlap and working set keep their share of all experts. With fewer experts,
 * neighbours are merged.
 *
 * Experts that a token still lacks come from tokens far away in the trace (half of its length, then
 * quarters, eighths and so on), so that no short distance gains overlap, and finally from the
 * tokens that follow. */
void trace_map(const struct trace *trace, struct routes *routes);

#ifdef __cplusplus
}
#endif
#endif
