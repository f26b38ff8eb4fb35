#include "backend/cpu/levels.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void)
{
    unsigned a, b, c, d; /* clang 14 has no name for F16C */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

#if defined(__x86_64__) && defined(__linux__)
enum { ARCH_GET_XCOMP_SUPP = 0x1021, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static bool has_amx(void)
{
    const unsigned amx_tile = 1u << 24, amx_int8 = 1u << 25;
    unsigned a, b, c, d;
    uint64_t supported = 0;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (d & amx_tile) != 0 && (d & amx_int8) != 0 &&
           syscall(SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &supported) == 0 &&
           (supported >> XFEATURE_XTILEDATA & 1) != 0;
}

/* Tiles are 8 KiB of state per thread. A process must ask the system for permission to use them,
 * because its signal frames grow by that much. */
static bool allow_amx(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

#if defined(__aarch64__) && defined(__linux__)
static bool has_dotprod(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

static bool has_i8mm(void)
{
    return has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
}
#elif defined(__aarch64__) && defined(__APPLE__)
static bool has_feature(const char *name)
{
    int has = 0;
    size_t bytes = sizeof has;
    return sysctlbyname(name, &has, &bytes, NULL, 0) == 0 && has != 0;
}

static bool has_dotprod(void)
{
    return has_feature("hw.optional.arm.FEAT_DotProd");
}

static bool has_i8mm(void)
{
    return has_dotprod() && has_feature("hw.optional.arm.FEAT_I8MM");
}
#elif defined(__aarch64__)
#error "how does this system tell what its processor can do?"
#endif

static const struct level levels[] = {
    {"reference", "any processor of this architecture", always, NULL, k_ref_init},
#if defined(__x86_64__)
    {"avx2", "AVX2, FMA, F16C", has_avx2, NULL, k_avx2_init},
    {"avx512", "AVX-512 F, BW, DQ, VL, VNNI", has_avx512, NULL, k_avx512_init},
#if defined(__linux__)
    {"amx", "AMX int8 tiles, and AVX-512 as above", has_amx, allow_amx, k_amx_init},
#endif
#elif defined(__aarch64__)
    {"dotprod", "Advanced SIMD with dot products", has_dotprod, NULL, k_dotprod_init},
    {"i8mm", "Advanced SIMD with int8 matrix products", has_i8mm, NULL, k_i8mm_init},
#endif
};

#define N_LEVELS (sizeof levels / sizeof levels[0])

const struct level *level_at(unsigned i)
{
    return i < N_LEVELS ? &levels[i] : NULL;
}

const struct level *level_best(void)
{
    unsigned best = N_LEVELS - 1;
    while (!levels[best].is_there())
        best--;
    return &levels[best];
}

static int unknown_level(const char *name, struct fm_error *err)
{
    char known[256] = "";
    size_t used = 0;
    for (unsigned i = 0; i < N_LEVELS && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "",
                                 levels[i].name);
    return err_set(err, FM_ERR_ARG, "there is no processor level '%s', expected one of %s",
                   name, known);
}

int level_find(const char *name, const struct level **out, struct fm_error *err)
{
    *out = level_best();
    if (name == NULL)
        return 0;
    for (unsigned i = 0; i < N_LEVELS; i++)
        if (strcmp(levels[i].name, name) == 0) {
            *out = &levels[i];
            if (levels[i].is_there())
                return 0;
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "this processor cannot run level '%s' (%s); its best is '%s'", name,
                           levels[i].summary, level_best()->name);
        }
    return unknown_level(name, err);
}

int level_use(const char *name, const struct level **out, struct fm_error *err)
{
    int rc = level_find(name, out, err);
    while (rc == 0 && (*out)->allow != NULL && !(*out)->allow()) {
        if (name != NULL)
            rc = err_set(err, FM_ERR_UNSUPPORTED, "the system refuses level '%s' (%s): %s", name,
                         (*out)->summary, strerror(errno));
        else
            (*out)--; /* a level includes all below it */
    }
    return rc;
}

void level_kernels(const struct level *level, struct kernels *out)
{
    for (const struct level *l = levels; l <= level; l++)
        l->init(out);
}
