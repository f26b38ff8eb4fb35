/* Compiles JSON schemas to rules (grammar_rules.h). Every demand of a schema is either enforced
 * exactly or refused with a sentence that names the keyword and its position. docs/SCHEMA.md lists
 * both kinds.
 *
 * The program owns its memory and does not need the schema any more. One thread while compiling.
 * Fails with FM_ERR_ARG if the schema is not JSON, is not a schema, demands something that cannot
 * be enforced, allows no value, or exceeds the limits. */
#ifndef FLASHMOE_GRAMMAR_SCHEMA_H
#define FLASHMOE_GRAMMAR_SCHEMA_H

#include "grammar/grammar_form.h"
#include "grammar/grammar_rules.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SCHEMA_VALUES 4096u           /* maximum number of distinct values */
#define SCHEMA_ALTERNATIVES 256u      /* maximum rules of one value */
#define SCHEMA_CHOICES 48u            /* maximum nesting of anyOf and oneOf that must be expanded */
#define SCHEMA_FUEL (20u * 1000 * 1000) /* in steps; about a second at most */
#define SCHEMA_MEMORY_BYTES (128u << 20) /* while compiling; the program is smaller */

int schema_compile(const char *text, size_t bytes, struct grammar_program **out,
                   struct fm_error *err);
/* Compiles an answer that is a value, a call, or either. The arguments of a tool whose schema
 * cannot be enforced may be any object, unless the tool is strict. Also fails with FM_ERR_ARG for a
 * strict tool of that kind, if a call is required and there are no tools, and for more than
 * GRAMMAR_PROPERTIES tools. */
int schema_compile_form(const struct grammar_form *form, struct grammar_program **out,
                        struct fm_error *err);
void grammar_program_free(struct grammar_program *program); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
