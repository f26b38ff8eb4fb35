/* Holds an answer to a GBNF grammar: which tokens may come next, and where the answer is.
 *
 * The answer so far may fit in several ways. Each is a stack of elements that are still to be read;
 * its top is always a set of characters. Stacks share their lower parts: a node is an element and
 * the node below it, and equal nodes are one. So what a node begins with is found once and kept, and
 * so are the masks of whole states. Every stack can be completed, so leaving some out, above the
 * limits, only removes choices.
 *
 * A machine belongs to one thread and borrows the trie. Functions fail for lack of memory, and
 * accepting also for a token that does not fit. The work for a token has a limit: above it, until
 * the next reset, accepting fails, no token is allowed and the answer may not end. */
#ifndef FLASHMOE_GRAMMAR_GBNF_MACHINE_H
#define FLASHMOE_GRAMMAR_GBNF_MACHINE_H

#include "grammar/gbnf.h"
#include "grammar/token_trie.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gbnf_machine;

/* Opens a machine for one answer. Takes over the grammar, also on failure. */
int gbnf_machine_open(struct gbnf *g, const struct token_trie *trie, struct gbnf_machine **out,
                      struct fm_error *err);
void gbnf_machine_close(struct gbnf_machine *m); /* accepts NULL */
void gbnf_machine_reset(struct gbnf_machine *m);

/* As in grammar.h. */
const uint32_t *gbnf_machine_mask(struct gbnf_machine *m);
int gbnf_machine_accept(struct gbnf_machine *m, int32_t id, struct fm_error *err);
int gbnf_machine_accept_bytes(struct gbnf_machine *m, const char *bytes, size_t n,
                              struct fm_error *err);
bool gbnf_machine_may_end(const struct gbnf_machine *m);
bool gbnf_machine_must_end(const struct gbnf_machine *m);

/* Fails with FM_ERR_ARG, and says why, if no token can follow and the answer may not end. */
int gbnf_machine_check(struct gbnf_machine *m, struct fm_error *err);

/* Returns the work of the last mask that was made, or of what was accepted since: nodes and ranges
 * that were looked at. */
uint64_t gbnf_machine_steps(const struct gbnf_machine *m);

#ifdef __cplusplus
}
#endif
#endif
