#include "apps/cli/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/select.h>

#include "apps/cli/term.h"

static struct fm_session *_Atomic watched; /* written by the main thread, read by the handler */
static volatile sig_atomic_t is_seen, is_held;

static void on_interrupt(int signal_number)
{
    struct fm_session *session = atomic_load(&watched);
    is_seen = 1;
    if (session != NULL)
        fm_session_cancel(session);
    if (session != NULL || is_held)
        return;
    progress_erase_from_signal();
    (void)raise(signal_number); /* SA_RESETHAND has restored the default, which kills */
}

void interrupt_install(void)
{
    /* Without SA_RESTART, Ctrl-C also ends a write into a full pipe. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND};
    (void)sigemptyset(&action.sa_mask); /* cannot fail for a valid pointer */
    (void)sigaction(SIGINT, &action, NULL);
}

static void on_patient_interrupt(int signal_number)
{
    struct fm_session *session = atomic_load(&watched);
    is_seen = is_seen + 1;
    if (is_seen == 2 && session != NULL)
        fm_session_cancel(session);
    if (is_seen <= 2)
        return;
    progress_erase_from_signal();
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

void interrupt_install_patient(void)
{
    struct sigaction action = {.sa_handler = on_patient_interrupt};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
}

bool interrupt_wait_input(int fd, bool (*is_pending)(void))
{
    sigset_t with, without;
    fd_set input;
    FD_ZERO(&input);
    FD_SET(fd, &input); /* standard input is below FD_SETSIZE */
    (void)sigemptyset(&with);
    (void)sigaddset(&with, SIGINT);
    (void)sigaddset(&with, SIGWINCH);
    (void)sigaddset(&with, SIGCONT);
    (void)sigprocmask(SIG_BLOCK, &with, &without);
    const bool is_due = is_seen || (is_pending != NULL && is_pending());
    const int n = is_due ? -1 : pselect(fd + 1, &input, NULL, NULL, NULL, &without);
    (void)sigprocmask(SIG_SETMASK, &without, NULL);
    return n > 0;
}

void interrupt_forget(void)
{
    is_seen = 0;
}

void interrupt_watch(struct fm_session *session)
{
    atomic_store(&watched, session);
}

void interrupt_hold(bool hold)
{
    is_held = hold;
}

bool interrupt_seen(void)
{
    return is_seen != 0;
}
