/* Ctrl-C. The first one cancels the watched session so that the command can end in order; the
 * second one kills. While no session is watched, as when a model loads, the first one kills, unless
 * it is held: then it is only noted, for work that looks at interrupt_seen. */
#ifndef FLASHMOE_APPS_CLI_INTERRUPT_H
#define FLASHMOE_APPS_CLI_INTERRUPT_H

#include <stdbool.h>

#include "flashmoe.h"

void interrupt_install(void);
/* NULL before the session is closed. */
void interrupt_watch(struct fm_session *session);
void interrupt_hold(bool hold);
bool interrupt_seen(void);

/* For a program that goes on after Ctrl-C: the first one is only noted, the second cancels the
 * watched session, the third kills. Reads and writes in progress end. */
void interrupt_install_patient(void);
/* Waits until there is something to read: true. False after any signal, Ctrl-C that came before it
 * included: none is missed between looking and waiting. */
bool interrupt_wait_input(int fd);
/* Counts from the first one again. */
void interrupt_forget(void);

#endif
