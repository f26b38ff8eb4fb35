/* JSON schemas to rules (grammar_rules.h). What a schema asks is enforced to the letter or refused
 * with a sentence that names the keyword and where it stands; docs/SCHEMA.md lists both.
 *
 * The program owns its memory and needs the schema no longer. One thread while it is compiled.
 * FM_ERR_ARG: the schema is no JSON, is no schema, asks for what cannot be enforced, allows no
 * value, or exceeds the limits. */
#ifndef FLASHMOE_GRAMMAR_SCHEMA_H
#define FLASHMOE_GRAMMAR_SCHEMA_H

#include "grammar/grammar_form.h"
#include "grammar/grammar_rules.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SCHEMA_VALUES 4096u           /* different places in an answer */
#define SCHEMA_ALTERNATIVES 256u      /* for one of them */
#define SCHEMA_CHOICES 48u            /* anyOf and oneOf that are taken apart within each other */
#define SCHEMA_FUEL (20u * 1000 * 1000) /* steps; about a second at most */
#define SCHEMA_MEMORY_BYTES (128u << 20) /* while compiling; what is kept is less */

int schema_compile(const char *text, size_t bytes, struct grammar_program **out,
                   struct fm_error *err);
/* An answer that is a value, a call, or either. A tool whose schema cannot be enforced may have any
 * object for its arguments, unless it is strict. FM_ERR_ARG also for a strict tool of that kind,
 * for no tools where a call has to come, and for more than GRAMMAR_PROPERTIES of them. */
int schema_compile_form(const struct grammar_form *form, struct grammar_program **out,
                        struct fm_error *err);
void grammar_program_free(struct grammar_program *program); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
