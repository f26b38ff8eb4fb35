/* Parts of the program that are libraries of their own, since they need what few machines have.
 * They are installed in the folder flashmoe/ of the libraries. One thread at a time may load the
 * same one. */
#ifndef FLASHMOE_BASE_PLAT_MODULE_H
#define FLASHMOE_BASE_PLAT_MODULE_H

#include <stdbool.h>
#include <stddef.h>

#define PLAT_MODULE_WHY_BYTES 512

/* Loads `name` (libflashmoe_X.so) from the folder of the program or of the library that has this
 * code. It is never unloaded: drivers do not expect that. is_global makes its symbols visible to
 * what it loads itself. Returns NULL and says why: `hint` says how one gets a module that is not
 * installed. */
void *plat_load_module(const char *name, bool is_global, const char *hint,
                       char why[PLAT_MODULE_WHY_BYTES]);

#endif
