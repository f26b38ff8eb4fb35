#include "apps/validate/holder.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <fcntl.h>
#include <sys/prctl.h>
#endif

#include "base/plat.h"

#define MAX_PIECES 16384
#define TICK_MS 10

/* ---- the process itself ---------------------------------------------------------------------- */

struct pieces {
    void *at[MAX_PIECES];
    unsigned n;
    struct holder_report report;
};

static void release_last(struct pieces *p)
{
    (void)munmap(p->at[--p->n], HOLDER_PIECE_BYTES);
    p->report.held_bytes -= HOLDER_PIECE_BYTES;
}

static bool take_one(struct pieces *p)
{
    if (p->n == MAX_PIECES)
        return false;
    void *at = mmap(NULL, HOLDER_PIECE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                    -1, 0);
    if (at == MAP_FAILED)
        return false;
    memset(at, 0x5a, HOLDER_PIECE_BYTES); /* takes the pages */
    p->at[p->n++] = at;
    p->report.held_bytes += HOLDER_PIECE_BYTES;
    if (p->report.held_bytes > p->report.max_held_bytes)
        p->report.max_held_bytes = p->report.held_bytes;
    return true;
}

static void follow_target(struct pieces *p, uint64_t target, uint64_t floor_bytes)
{
    const uint64_t available = plat_memory_available();
    if (available < p->report.min_free_bytes)
        p->report.min_free_bytes = available;
    if (available < floor_bytes / 2 && p->n > 0) {
        p->report.gave_back = true;
        for (unsigned n = p->n / 4 + 1; n > 0 && p->n > 0; n--)
            release_last(p);
        return;
    }
    while (p->n > 0 && p->report.held_bytes > target)
        release_last(p);
    if (p->report.held_bytes + HOLDER_PIECE_BYTES <= target &&
        available > floor_bytes + HOLDER_PIECE_BYTES)
        (void)take_one(p);
}

static void prefer_to_be_killed(void)
{
#ifdef __linux__
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!write(fd, "1000", 4); /* without it the largest process is killed */
        (void)close(fd);
    }
#endif
}

/* Ends with _exit: nothing of the parent's may be flushed or freed here. */
static void hold(int from, int to, uint64_t floor_bytes, pid_t parent)
{
    static struct pieces p;
    uint64_t target = 0;
    p.report.min_free_bytes = UINT64_MAX;
    (void)signal(SIGINT, SIG_IGN); /* the parent ends it */
    prefer_to_be_killed();
    while (getppid() == parent) {
        struct pollfd wait = {.fd = from, .events = POLLIN};
        const int n = poll(&wait, 1, TICK_MS);
        if (n > 0) {
            if (read(from, &target, sizeof target) != (ssize_t)sizeof target)
                break;
            if (write(to, &p.report, sizeof p.report) != (ssize_t)sizeof p.report)
                break;
        }
        follow_target(&p, target, floor_bytes);
    }
    _exit(0);
}

/* ---- its parent ------------------------------------------------------------------------------ */

int holder_start(struct holder *h, uint64_t floor_bytes, struct fm_error *err)
{
    int down[2], up[2];
    *h = (struct holder){.to = -1, .from = -1};
    if (pipe(down) != 0)
        return err_set(err, FM_ERR_IO, "cannot make a pipe: %s", strerror(errno));
    if (pipe(up) != 0) {
        (void)err_set(err, FM_ERR_IO, "cannot make a pipe: %s", strerror(errno));
        (void)close(down[0]);
        (void)close(down[1]);
        return FM_ERR_IO;
    }
    const pid_t parent = getpid();
    h->pid = fork();
    if (h->pid == 0) {
        (void)close(down[1]);
        (void)close(up[0]);
        hold(down[0], up[1], floor_bytes, parent);
    }
    const int why = errno;
    (void)close(down[0]);
    (void)close(up[1]);
    h->to = down[1];
    h->from = up[0];
    if (h->pid > 0)
        return 0;
    h->pid = 0;
    holder_stop(h);
    return err_set(err, FM_ERR_IO, "cannot start another process: %s", strerror(why));
}

bool holder_ask(struct holder *h, uint64_t bytes, struct holder_report *report)
{
    if (h->pid == 0 || write(h->to, &bytes, sizeof bytes) != (ssize_t)sizeof bytes)
        return false;
    ssize_t n;
    do
        n = read(h->from, report, sizeof *report);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *report;
}

void holder_stop(struct holder *h)
{
    if (h->pid > 0) {
        (void)kill(h->pid, SIGKILL);
        while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    if (h->to >= 0)
        (void)close(h->to);
    if (h->from >= 0)
        (void)close(h->from);
    *h = (struct holder){.to = -1, .from = -1};
}
