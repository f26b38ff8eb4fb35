#include "apps/bench/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "apps/cli/interrupt.h"
#include "base/mem.h"
#include "base/plat.h"

#define TICK_MS 200
#define KILL_AFTER_NS 5000000000u /* after SIGTERM */
#define OUT_MAX (64u << 20)
#define NOT_STARTED 127

struct running {
    pid_t pid;
    int out, messages; /* -1: at its end */
    size_t room;
    uint64_t begin_ns, told_ns; /* told_ns: when it was asked to end; 0: it was not */
    char tail[4 * CHILD_MESSAGE_BYTES];
    size_t n_tail;
};

/* Replaces this process, a child, by the program. */
static void become(const char *const *argv, const int *out, const int *messages, pid_t parent)
{
    const int nothing = open("/dev/null", O_RDONLY);
    (void)signal(SIGPIPE, SIG_DFL); /* exec keeps ignored signals ignored */
#ifdef __linux__
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
    if (getppid() == parent && nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
        dup2(out[1], STDOUT_FILENO) >= 0 && dup2(messages[1], STDERR_FILENO) >= 0) {
        (void)close(out[0]);
        (void)close(messages[0]);
        (void)execv(argv[0], (char *const *)(uintptr_t)argv);
    }
    _exit(NOT_STARTED);
}

/* Keeps the end of what the program says. */
static void keep_tail(struct running *r, const char *text, size_t n)
{
    const size_t max = sizeof r->tail - 1;
    if (n > max) {
        text += n - max;
        n = max;
    }
    if (r->n_tail + n > max) {
        const size_t gone = r->n_tail + n - max;
        memmove(r->tail, r->tail + gone, r->n_tail - gone);
        r->n_tail -= gone;
    }
    memcpy(r->tail + r->n_tail, text, n);
    r->n_tail += n;
}

static int keep_out(struct running *r, struct child *c, const char *text, size_t n,
                    struct fm_error *err)
{
    if (c->first_ns == 0)
        c->first_ns = plat_now_ns() - r->begin_ns;
    if (c->out_bytes + n > OUT_MAX)
        return err_set(err, FM_ERR_IO, "a program printed more than %u bytes", OUT_MAX);
    if (c->out_bytes + n + 1 > r->room) {
        const size_t room = 2 * (c->out_bytes + n) + 4096;
        char *more = mem_new(room, 1, "what a program printed", err);
        if (more == NULL)
            return FM_ERR_NOMEM;
        if (c->out != NULL)
            memcpy(more, c->out, c->out_bytes);
        mem_free(c->out);
        c->out = more;
        r->room = room;
    }
    memcpy(c->out + c->out_bytes, text, n);
    c->out_bytes += n;
    c->out[c->out_bytes] = '\0';
    return 0;
}

/* Reads what has come, and forgets it if `c` is NULL; closes the end of a pipe that has ended. */
static int read_some(struct running *r, int *fd, struct child *c, struct fm_error *err)
{
    char text[16384];
    const ssize_t n = read(*fd, text, sizeof text);
    if (n < 0 && errno == EINTR)
        return 0;
    if (n <= 0) {
        (void)close(*fd);
        *fd = -1;
        return 0;
    }
    if (fd == &r->messages) {
        keep_tail(r, text, (size_t)n);
        return 0;
    }
    return c != NULL ? keep_out(r, c, text, (size_t)n, err) : 0;
}

/* Asks the program to end, and ends it if it does not. */
static void stop(struct running *r)
{
    if (r->told_ns == 0) {
        r->told_ns = plat_now_ns();
        (void)kill(r->pid, SIGTERM);
    } else if (plat_now_ns() - r->told_ns > KILL_AFTER_NS) {
        (void)kill(r->pid, SIGKILL);
    }
}

static int watch(struct running *r, struct child *c, void (*tick)(void *ctx), void *ctx,
                 struct fm_error *err)
{
    int rc = 0;
    while (r->out >= 0 || r->messages >= 0) {
        struct pollfd fds[2] = {{.fd = r->out, .events = POLLIN},
                                {.fd = r->messages, .events = POLLIN}};
        const int n = poll(fds, 2, TICK_MS);
        if (interrupt_seen() || rc != 0)
            stop(r);
        if (n > 0 && fds[0].revents != 0) {
            const int read = read_some(r, &r->out, rc == 0 ? c : NULL, err);
            rc = rc == 0 ? read : rc;
        }
        if (n > 0 && fds[1].revents != 0)
            (void)read_some(r, &r->messages, NULL, err); /* only keeps the end */
        if (tick != NULL)
            tick(ctx);
    }
    return rc;
}

/* Takes the last line of what the program said. */
static void keep_message(struct running *r, struct child *c)
{
    static const char mark[] = "flashmoe: ";
    while (r->n_tail > 0 && (r->tail[r->n_tail - 1] == '\n' || r->tail[r->n_tail - 1] == '\r'))
        r->n_tail--;
    r->tail[r->n_tail] = '\0';
    const char *line = strrchr(r->tail, '\n');
    line = line != NULL ? line + 1 : r->tail;
    if (strncmp(line, mark, sizeof mark - 1) == 0)
        line += sizeof mark - 1;
    (void)snprintf(c->message, sizeof c->message, "%.*s", (int)sizeof c->message - 1, line);
}

static void close_pipe(const int *ends)
{
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static int start(struct running *r, const char *const *argv, struct fm_error *err)
{
    int out[2], messages[2];
    const pid_t parent = getpid();
    if (pipe(out) != 0)
        return err_set(err, FM_ERR_IO, "cannot start '%s': %s", argv[0], strerror(errno));
    if (pipe(messages) != 0) {
        const int why = errno;
        close_pipe(out);
        return err_set(err, FM_ERR_IO, "cannot start '%s': %s", argv[0], strerror(why));
    }
    (void)fflush(NULL);
    r->begin_ns = plat_now_ns();
    r->pid = fork();
    if (r->pid == 0)
        become(argv, out, messages, parent);
    const int why = errno;
    (void)close(out[1]);
    (void)close(messages[1]);
    r->out = out[0];
    r->messages = messages[0];
    if (r->pid > 0)
        return 0;
    (void)close(out[0]);
    (void)close(messages[0]);
    return err_set(err, FM_ERR_IO, "cannot start '%s': %s", argv[0], strerror(why));
}

int child_run(const char *const *argv, void (*tick)(void *ctx), void *ctx, struct child *c,
              struct fm_error *err)
{
    struct running r = {.out = -1, .messages = -1};
    int status = 0;
    *c = (struct child){0};
    int rc = start(&r, argv, err);
    if (rc != 0)
        return rc;
    rc = watch(&r, c, tick, ctx, err);
    while (waitpid(r.pid, &status, 0) < 0 && errno == EINTR)
        if (interrupt_seen())
            stop(&r);
    c->ns = plat_now_ns() - r.begin_ns;
    c->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    c->was_interrupted = interrupt_seen();
    keep_message(&r, c);
    if (rc == 0 && c->status == NOT_STARTED && c->message[0] == '\0' && c->out == NULL)
        rc = err_set(err, FM_ERR_ARG, "'%s' cannot be started as a program", argv[0]);
    return rc;
}

void child_free(struct child *c)
{
    mem_free(c->out);
    c->out = NULL;
}
