/* Whether the machine is quiet: how much processor time other programs use, and how much the host
 * of a virtual machine takes away. Reads /proc; where there is none, nothing is known. Keeps no
 * state. One thread. */
#ifndef FLASHMOE_APPS_BENCH_QUIET_H
#define FLASHMOE_APPS_BENCH_QUIET_H

#include <stdbool.h>
#include <stdint.h>

#define QUIET_PROCESSES 3

/* The counters at one moment. */
struct quiet_sample {
    bool is_known;
    uint64_t ns;
    double busy_s, stolen_s; /* of all processors, since the machine started */
    double own_s;            /* of this process and of its children that have ended */
};

struct quiet_process {
    char name[32];
    double n_cpus; /* processors that it kept busy */
};

/* What happened between two moments. */
struct quiet_view {
    bool is_known, is_quiet; /* not quiet unless that is known */
    double others, stolen; /* processors, in the mean */
    double load;           /* of the last minute; negative: unknown */
    unsigned n_cpus;
    struct quiet_process processes[QUIET_PROCESSES]; /* the busiest others, busiest first */
    unsigned n_processes;
};

/* Above these, figures are marked: processors that others use, or a share of all processors if
 * that is more; and the share of all processors that the host takes away. */
#define QUIET_OTHERS_MAX 0.10
#define QUIET_OTHERS_SHARE 0.02
#define QUIET_STOLEN_SHARE 0.02

/* Take the counters below `proc` ("/proc"). */
void quiet_take(const char *proc, struct quiet_sample *sample);
/* Compares two samples of a machine with this many processors. Has no processes. */
void quiet_between(const struct quiet_sample *before, const struct quiet_sample *after,
                   unsigned n_cpus, struct quiet_view *view);
/* Watches the machine for so long and finds the busiest processes. */
void quiet_watch(const char *proc, unsigned n_cpus, uint64_t ns, struct quiet_view *view);

/* Writes one line such as "not quiet: other programs use 1.80 of 2 processors (cc1 0.95)". */
#define QUIET_TEXT_BYTES 320
const char *quiet_text(const struct quiet_view *view, char text[QUIET_TEXT_BYTES]);

#endif
