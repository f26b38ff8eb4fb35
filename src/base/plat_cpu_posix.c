/* The part of plat.h about processors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __linux__
#include <sched.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "base/limits.h"
#include "base/plat.h"

/* Reads the first line of a file without its newline. Returns false if there is none. */
static bool line_of_file(const char *path, char *line, size_t bytes)
{
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    bool is_there = fgets(line, (int)bytes, f) != NULL;
    (void)fclose(f);
    if (is_there)
        line[strcspn(line, "\n")] = '\0';
    return is_there;
}

unsigned plat_n_cpus_of_machine(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (unsigned)n : 1;
}

/* ---- cores ---------------------------------------------------------------------------------- */

/* Returns the lowest allowed number of a list such as "0-3,8,10-11", or `fallback`. */
static unsigned lowest_allowed(const char *list, const bool is_allowed[], unsigned fallback)
{
    while (*list >= '0' && *list <= '9') {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < PLAT_CPUS_MAX; i++)
            if (is_allowed[i])
                return (unsigned)i; /* the kernel writes lists in ascending order */
        list = *end == ',' ? end + 1 : end;
    }
    return fallback;
}

/* Returns true if the list in the file names no lower allowed processor, or if there is no file. */
static bool is_first_of(const char *path, const bool is_allowed[], unsigned cpu)
{
    char list[4 * PLAT_CPUS_MAX]; /* room for every second processor of the maximum, with commas */
    return !line_of_file(path, list, sizeof list) || lowest_allowed(list, is_allowed, cpu) == cpu;
}

unsigned plat_find_cores(const char *root, const bool is_allowed[PLAT_CPUS_MAX],
                         unsigned firsts[PLAT_CPUS_MAX])
{
    unsigned n = 0;
    for (unsigned cpu = 0; cpu < PLAT_CPUS_MAX; cpu++) {
        if (!is_allowed[cpu])
            continue;
        char path[LIMIT_PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/cpu%u/topology/thread_siblings_list", root, cpu);
        if (!is_first_of(path, is_allowed, cpu))
            continue;
        if (firsts != NULL)
            firsts[n] = cpu;
        n++;
    }
    return n;
}

/* Reads a file of cache number i of a processor. Returns false if there is none. */
static bool cache_line(const char *root, unsigned cpu, unsigned i, const char *name, char *line,
                       size_t bytes)
{
    char path[LIMIT_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/cpu%u/cache/index%u/%s", root, cpu, i, name);
    return line_of_file(path, line, bytes);
}

/* Returns the index of a processor's last-level cache, or -1 if it has none. */
static int last_cache(const char *root, unsigned cpu)
{
    char line[32];
    unsigned long highest = 0;
    int index = -1;
    for (unsigned i = 0; cache_line(root, cpu, i, "level", line, sizeof line); i++) {
        const unsigned long level = strtoul(line, NULL, 10);
        if (level > highest) {
            highest = level;
            index = (int)i;
        }
    }
    return index;
}

uint64_t plat_find_caches(const char *root, const bool is_allowed[PLAT_CPUS_MAX])
{
    uint64_t sum = 0;
    for (unsigned cpu = 0; cpu < PLAT_CPUS_MAX; cpu++) {
        const int i = is_allowed[cpu] ? last_cache(root, cpu) : -1;
        char path[LIMIT_PATH_BYTES], line[32], *end;
        if (i < 0 || !cache_line(root, cpu, (unsigned)i, "size", line, sizeof line))
            continue;
        (void)snprintf(path, sizeof path, "%s/cpu%u/cache/index%d/shared_cpu_list", root, cpu, i);
        if (!is_first_of(path, is_allowed, cpu))
            continue;
        const uint64_t bytes = strtoull(line, &end, 10); /* "32K", "307200K", "1M" */
        sum += bytes << (*end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0);
    }
    return sum;
}

#ifdef __linux__

#define CPU_ROOT "/sys/devices/system/cpu"

/* Finds the processors that the calling thread may use. Returns false if the system does not
 * say. */
static bool allowed_cpus(bool is_allowed[PLAT_CPUS_MAX])
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) == 0)
        return false;
    for (unsigned i = 0; i < PLAT_CPUS_MAX; i++)
        is_allowed[i] = i < CPU_SETSIZE && CPU_ISSET(i, &set);
    return true;
}

unsigned plat_n_cpus(void)
{
    bool is_allowed[PLAT_CPUS_MAX];
    if (!allowed_cpus(is_allowed))
        return plat_n_cpus_of_machine();
    unsigned n = 0;
    for (unsigned i = 0; i < PLAT_CPUS_MAX; i++)
        n += is_allowed[i];
    return n;
}

static unsigned n_cores_allowed(void)
{
    bool is_allowed[PLAT_CPUS_MAX];
    return allowed_cpus(is_allowed) ? plat_find_cores(CPU_ROOT, is_allowed, NULL)
                                    : plat_n_cpus_of_machine();
}

bool plat_thread_pin(unsigned i)
{
    bool is_allowed[PLAT_CPUS_MAX];
    unsigned firsts[PLAT_CPUS_MAX];
    if (!allowed_cpus(is_allowed) || i >= plat_find_cores(CPU_ROOT, is_allowed, firsts))
        return false;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(firsts[i], &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

#else

#ifdef __APPLE__
static unsigned sysctl_count(const char *name)
{
    int n = 0;
    size_t bytes = sizeof n;
    return sysctlbyname(name, &n, &bytes, NULL, 0) == 0 && n > 0 ? (unsigned)n : 0;
}
#endif

unsigned plat_n_cpus(void)
{
    return plat_n_cpus_of_machine();
}

static unsigned n_cores_allowed(void)
{
    unsigned n = 0;
#ifdef __APPLE__
    n = sysctl_count("hw.perflevel0.physicalcpu");
    n = n > 0 ? n : sysctl_count("hw.physicalcpu");
#endif
    return n > 0 ? n : plat_n_cpus();
}

bool plat_thread_pin(unsigned i)
{
    (void)i; /* macOS has no such call */
    return false;
}

#endif

unsigned plat_n_cores(void)
{
    const unsigned n = n_cores_allowed();
    const double quota = plat_cpu_quota();
    if (quota == 0 || quota >= n)
        return n;
    /* Not one thread more: when threads exceed the quota, all are stopped until its period ends. */
    return quota >= 1 ? (unsigned)quota : 1;
}

/* ---- the cgroup's share --------------------------------------------------------------------- */

/* Returns one group's quota: "200000 100000" or "max 100000" in version 2, two files in version
 * 1. */
static double group_cpus(const char *group, bool is_v1)
{
    char path[LIMIT_PATH_BYTES + 32], line[64];
    double quota = 0, period = 0;
    (void)snprintf(path, sizeof path, "%s/%s", group, is_v1 ? "cpu.cfs_quota_us" : "cpu.max");
    if (!line_of_file(path, line, sizeof line))
        return 0;
    char *end;
    quota = strtod(line, &end);
    if (!is_v1)
        period = strtod(end, NULL);
    (void)snprintf(path, sizeof path, "%s/cpu.cfs_period_us", group);
    if (is_v1 && line_of_file(path, line, sizeof line))
        period = strtod(line, NULL);
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* Returns true for ":cpu", ":cpuacct,cpu" and the like. */
bool plat_has_controller(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *c = list; *c != '\0'; c += strcspn(c, ",")) {
        c++; /* the ':' or ',' */
        if (strncmp(c, name, n) == 0 && (c[n] == ',' || c[n] == '\0'))
            return true;
    }
    return false;
}

double plat_cgroup_cpus(const char *own_groups, const char *root)
{
    double min = 0;
    FILE *f = fopen(own_groups, "re");
    if (f == NULL)
        return 0;
    char line[LIMIT_PATH_BYTES], path[LIMIT_PATH_BYTES];
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        const bool is_v1 = strcmp(controllers, ":") != 0;
        if (is_v1 && !plat_has_controller(controllers, "cpu"))
            continue;
        const char *mounted = is_v1 ? "/sys/fs/cgroup/cpu" : "/sys/fs/cgroup";
        int n = snprintf(path, sizeof path, "%s%s", root != NULL ? root : mounted, group);
        const size_t root_bytes = strlen(root != NULL ? root : mounted);
        /* Walk upwards: any ancestor may have the limit. */
        for (char *end = n < (int)sizeof path ? path + n : NULL;
             end != NULL && (size_t)(end - path) >= root_bytes; end = strrchr(path, '/')) {
            *end = '\0';
            const double here = group_cpus(path, is_v1);
            min = here > 0 && (min == 0 || here < min) ? here : min;
        }
    }
    (void)fclose(f);
    return min;
}

double plat_cpu_quota(void)
{
    return plat_cgroup_cpus("/proc/self/cgroup", NULL);
}

/* ---- names and settings --------------------------------------------------------------------- */

#ifdef __linux__

/* Reads the text after "FIELD : " in /proc/cpuinfo. Returns false if there is none. */
static bool cpuinfo_field(const char *field, char *text, size_t bytes)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (f == NULL)
        return false;
    char line[1024];
    const size_t n = strlen(field);
    bool is_found = false;
    while (!is_found && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, field, n) != 0 || strchr(" \t:", line[n]) == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        (void)snprintf(text, bytes, "%s", colon + 1 + strspn(colon + 1, " \t"));
        is_found = true;
    }
    (void)fclose(f);
    return is_found;
}

void plat_cpu_name(char *buffer, size_t bytes)
{
    char maker[32], part[32];
    buffer[0] = '\0';
    if (cpuinfo_field("model name", buffer, bytes))
        return;
    /* For ARM processors, Linux reports only numbers. */
    if (cpuinfo_field("CPU implementer", maker, sizeof maker) &&
        cpuinfo_field("CPU part", part, sizeof part))
        (void)snprintf(buffer, bytes, "ARM implementer %s, part %s", maker, part);
}

uint64_t plat_cache_bytes(void)
{
    bool is_allowed[PLAT_CPUS_MAX];
    return allowed_cpus(is_allowed) ? plat_find_caches(CPU_ROOT, is_allowed) : 0;
}

void plat_huge_pages(char *buffer, size_t bytes)
{
    char line[128];
    buffer[0] = '\0';
    if (!line_of_file("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line))
        return;
    const char *begin = strchr(line, '[');
    const size_t n = begin != NULL ? strcspn(begin + 1, "]") : 0;
    (void)snprintf(buffer, bytes, "%.*s", (int)n, n > 0 ? begin + 1 : "");
}

#else

void plat_cpu_name(char *buffer, size_t bytes)
{
    buffer[0] = '\0';
#ifdef __APPLE__
    size_t n = bytes;
    if (sysctlbyname("machdep.cpu.brand_string", buffer, &n, NULL, 0) != 0)
        buffer[0] = '\0';
#else
    (void)bytes;
#endif
}

uint64_t plat_cache_bytes(void)
{
#ifdef __APPLE__
    static const char *const names[] = {"hw.l3cachesize", "hw.perflevel0.l2cachesize",
                                        "hw.l2cachesize"};
    for (unsigned i = 0; i < 3; i++) {
        uint64_t bytes = 0;
        size_t n = sizeof bytes;
        if (sysctlbyname(names[i], &bytes, &n, NULL, 0) == 0 && bytes > 0)
            return bytes;
    }
#endif
    return 0;
}

void plat_huge_pages(char *buffer, size_t bytes)
{
    (void)bytes;
    buffer[0] = '\0'; /* Linux only */
}

#endif
