/* `run [MODEL] [QUESTION]`: which word is the model and which the question, and the prompt that
 * follows from the question and standard input. Main thread. */
#ifndef FLASHMOE_APPS_CLI_QUESTION_H
#define FLASHMOE_APPS_CLI_QUESTION_H

#include "apps/cli/options.h"
#include "flashmoe.h"

/* Decides for commands whose second operand is a question. Afterwards operand 0 is the model, or
 * NULL for the default, and operand 1 the question, or NULL. Two words are the model and the
 * question. A single word is the model if -p or -f gives the prompt. Otherwise it is
 *   - the model, if it is a path that exists, "nano", or the name of a pulled model;
 *   - the model, which then cannot be found, if it looks like a path or like ORG/NAME;
 *   - the question, if it has blanks, characters that no name has, or only letters.
 * What remains, such as "qwen3-30b", could be either. Fails with FM_ERR_ARG for that, for a
 * question that is given twice or before the model, and for one of several words behind -m; the
 * message has what to type. */
int question_split(struct args *args, struct fm_error *err);

/* Reads the prompt of `run`, NUL-terminated; free it with mem_free. With a question or -p, standard
 * input is context and comes first, unless it is a terminal: with a blank line between them, or as
 * it is with --raw. Otherwise it is -f or standard input alone. */
int question_read(const struct args *args, char **text, size_t *text_bytes, struct fm_error *err);

/* Fail with FM_ERR_ARG if a prompt cannot fit into the context: one of `n` tokens, or one of which
 * only the bytes are known. The message has what to do. */
int question_check_tokens(size_t n, const struct fm_model_info *info, unsigned n_context,
                          struct fm_error *err);
int question_check_bytes(size_t bytes, const struct fm_model_info *info, unsigned n_context,
                         struct fm_error *err);

#endif
