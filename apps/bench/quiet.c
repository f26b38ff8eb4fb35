#include "apps/bench/quiet.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/plat.h"

#define PROCESSES_MAX 8192
#define SHOWN_MIN 0.02 /* processors of a process that is named */

/* ---- counters ------------------------------------------------------------------------------ */

static double ticks_per_s(void)
{
    const long n = sysconf(_SC_CLK_TCK);
    return n > 0 ? (double)n : 100;
}

static double seconds_of(const struct rusage *use)
{
    return (double)use->ru_utime.tv_sec + (double)use->ru_stime.tv_sec +
           1e-6 * ((double)use->ru_utime.tv_usec + (double)use->ru_stime.tv_usec);
}

static double own_seconds(void)
{
    struct rusage self, children;
    if (getrusage(RUSAGE_SELF, &self) != 0 || getrusage(RUSAGE_CHILDREN, &children) != 0)
        return 0;
    return seconds_of(&self) + seconds_of(&children);
}

void quiet_take(const char *proc, struct quiet_sample *s)
{
    char path[256], line[512];
    unsigned long long user, nice, system, idle, wait, irq, soft, steal = 0;
    *s = (struct quiet_sample){.ns = plat_now_ns(), .own_s = own_seconds()};
    (void)snprintf(path, sizeof path, "%s/stat", proc);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    /* Interrupts are left out: the disk's are those of the reads that are measured. */
    if (fgets(line, sizeof line, file) != NULL &&
        sscanf(line, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle,
               &wait, &irq, &soft, &steal) == 8) {
        s->busy_s = (double)(user + nice + system) / ticks_per_s();
        s->stolen_s = (double)steal / ticks_per_s();
        s->is_known = true;
    }
    (void)fclose(file);
}

static double positive(double x)
{
    return x > 0 ? x : 0;
}

void quiet_between(const struct quiet_sample *before, const struct quiet_sample *after,
                   unsigned n_cpus, struct quiet_view *v)
{
    const double s = (double)(after->ns - before->ns) * 1e-9;
    *v = (struct quiet_view){.n_cpus = n_cpus, .load = -1};
    if (getloadavg(&v->load, 1) != 1)
        v->load = -1;
    v->is_known = before->is_known && after->is_known && s > 0;
    if (!v->is_known)
        return;
    v->others = positive((after->busy_s - before->busy_s) - (after->own_s - before->own_s)) / s;
    v->stolen = positive(after->stolen_s - before->stolen_s) / s;
    const double share = QUIET_OTHERS_SHARE * n_cpus;
    v->is_quiet = v->others <= (share > QUIET_OTHERS_MAX ? share : QUIET_OTHERS_MAX) &&
                  v->stolen <= QUIET_STOLEN_SHARE * n_cpus;
}

/* ---- processes ----------------------------------------------------------------------------- */

struct process {
    long pid;
    unsigned long long ticks;
    char name[32];
};

struct process_list {
    struct process list[PROCESSES_MAX];
    unsigned n;
};

/* Reads "PID (NAME) S ..." with the user and system time as fields 14 and 15. A name may have
 * blanks and brackets. */
static bool read_process(const char *proc, long pid, struct process *p)
{
    char path[256], text[1024];
    unsigned long long user, system;
    (void)snprintf(path, sizeof path, "%s/%ld/stat", proc, pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    const size_t n = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    const char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (open == NULL || close == NULL || close < open ||
        sscanf(close + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user,
               &system) != 2)
        return false;
    *p = (struct process){.pid = pid, .ticks = user + system};
    (void)snprintf(p->name, sizeof p->name, "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

static void list_processes(const char *proc, struct process_list *out)
{
    DIR *dir = opendir(proc);
    out->n = 0;
    for (const struct dirent *one; dir != NULL && out->n < PROCESSES_MAX &&
                                   (one = readdir(dir)) != NULL;) {
        char *end;
        const long pid = strtol(one->d_name, &end, 10);
        if (*end == '\0' && pid > 0 && pid != (long)getpid() &&
            read_process(proc, pid, &out->list[out->n]))
            out->n++;
    }
    if (dir != NULL)
        (void)closedir(dir);
}

static unsigned long long ticks_before(const struct process_list *before, long pid)
{
    for (unsigned i = 0; i < before->n; i++)
        if (before->list[i].pid == pid)
            return before->list[i].ticks;
    return 0;
}

static void add_process(struct quiet_view *v, const char *name, double n_cpus)
{
    unsigned at = v->n_processes;
    while (at > 0 && v->processes[at - 1].n_cpus < n_cpus)
        at--;
    if (n_cpus < SHOWN_MIN || at == QUIET_PROCESSES)
        return;
    v->n_processes += v->n_processes < QUIET_PROCESSES;
    for (unsigned i = v->n_processes - 1; i > at; i--)
        v->processes[i] = v->processes[i - 1];
    (void)snprintf(v->processes[at].name, sizeof v->processes[at].name, "%s", name);
    v->processes[at].n_cpus = n_cpus;
}

void quiet_watch(const char *proc, unsigned n_cpus, uint64_t ns, struct quiet_view *v)
{
    struct fm_error ignored;
    struct quiet_sample before, after;
    struct process_list *lists = mem_new(2, sizeof *lists, "the processes", &ignored);
    quiet_take(proc, &before);
    if (lists != NULL)
        list_processes(proc, &lists[0]);
    plat_sleep_ns(ns);
    if (lists != NULL)
        list_processes(proc, &lists[1]);
    quiet_take(proc, &after);
    quiet_between(&before, &after, n_cpus, v);
    const double s = (double)(after.ns - before.ns) * 1e-9;
    for (unsigned i = 0; lists != NULL && s > 0 && i < lists[1].n; i++) {
        const struct process *p = &lists[1].list[i];
        const unsigned long long then = ticks_before(&lists[0], p->pid);
        if (p->ticks > then)
            add_process(v, p->name, (double)(p->ticks - then) / ticks_per_s() / s);
    }
    mem_free(lists);
}

/* ---- text ---------------------------------------------------------------------------------- */

const char *quiet_text(const struct quiet_view *v, char text[QUIET_TEXT_BYTES])
{
    char load[48] = "";
    if (v->load >= 0)
        (void)snprintf(load, sizeof load, ", load %.2f", v->load);
    if (!v->is_known) {
        (void)snprintf(text, QUIET_TEXT_BYTES, "unknown: this system does not tell%s", load);
        return text;
    }
    int n = snprintf(text, QUIET_TEXT_BYTES, "%s: other programs use %.2f of %u processors",
                     v->is_quiet ? "quiet" : "not quiet", v->others, v->n_cpus);
    for (unsigned i = 0; i < v->n_processes; i++)
        n += snprintf(text + n, (size_t)(QUIET_TEXT_BYTES - n), "%s%s %.2f", i == 0 ? " (" : ", ",
                      v->processes[i].name, v->processes[i].n_cpus);
    (void)snprintf(text + n, (size_t)(QUIET_TEXT_BYTES - n), "%s, stolen %.2f%s",
                   v->n_processes > 0 ? ")" : "", v->stolen, load);
    return text;
}
