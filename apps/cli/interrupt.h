/* Handles Ctrl-C. The first one cancels the watched session, so that the command can end cleanly;
 * the second one kills. Without a watched session, as while a model loads, the first one kills,
 * unless interrupts are held: then it is only recorded for work that polls interrupt_seen.
 *
 * Owns the SIGINT handler. Call from the main thread. */
#ifndef FLASHMOE_APPS_CLI_INTERRUPT_H
#define FLASHMOE_APPS_CLI_INTERRUPT_H

#include <stdbool.h>

#include "flashmoe.h"

void interrupt_install(void);
/* Sets the session that Ctrl-C cancels. Pass NULL before the session is closed. */
void interrupt_watch(struct fm_session *session);
void interrupt_hold(bool hold);
bool interrupt_seen(void);

/* Installs a handler for a program that continues after Ctrl-C: the first one is only recorded, the
 * second cancels the watched session, the third kills. System calls in progress are interrupted. */
void interrupt_install_patient(void);
/* Waits until `fd` can be read and returns true. Returns false after any signal, including a Ctrl-C
 * that came before the call: none is lost between checking and waiting. So is no SIGWINCH or
 * SIGCONT that `is_pending`, which may be NULL, reports. */
bool interrupt_wait_input(int fd, bool (*is_pending)(void));
/* Resets the count of Ctrl-C presses. */
void interrupt_forget(void);

#endif
