/* checkkernel: compares every level of the kernel table with the reference, bit for bit, with
 * random shapes and values, and measures the speed of each level. See --help. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#ifdef FLASHMOE_HAS_EMULATOR
#include "gpu_level.h"
#endif

/* The result of --hash on every machine: the bits of the reference, first of the kernels up to
 * int8_peak, then of those after it. They change if the reference or the test cases change. */
#define REFERENCE_HASH 0x29c81b2e596b7215u
#define LATER_HASH 0xb26fbf6eca90e364u
#define HASH_SEED 1
#define HASH_ROUNDS 4

#define MAX_LEVELS 8

/* The clock may have been faster in one measurement. A loop without the products is twice as
 * fast. */
#define PEAK_SLACK 1.4
#define PEAK_ROUNDS 1000000 /* a few milliseconds */

#define FAMILY(kernel, cases, of_formats)                                                          \
    {#kernel, offsetof(struct kernels, kernel), (cases), (of_formats), check_##kernel}

static const struct family families[] = {
    FAMILY(quantize_row, 16, NO_FORMAT),
    FAMILY(matmul, 2, WEIGHT_FORMATS),
    FAMILY(rms_norm, 16, NO_FORMAT),
    FAMILY(rope_angles, 8, NO_FORMAT),
    FAMILY(rotate, 16, NO_FORMAT),
    FAMILY(store_kv, 16, KV_FORMATS),
    FAMILY(attend, 12, KV_FORMATS),
    FAMILY(attend_merge, 16, NO_FORMAT),
    FAMILY(attend_close, 16, NO_FORMAT),
    FAMILY(conv_silu, 16, NO_FORMAT),
    FAMILY(delta_head, 12, NO_FORMAT),
    FAMILY(route_row, 32, NO_FORMAT),
    FAMILY(silu_mul, 16, NO_FORMAT),
    FAMILY(weighted_sum, 16, NO_FORMAT),
    FAMILY(add_scaled_sigmoid, 16, NO_FORMAT),
    FAMILY(add, 16, NO_FORMAT),
    FAMILY(int8_peak, 1, NO_FORMAT),
    FAMILY(route_scored, 64, NO_FORMAT),
    FAMILY(gelu_mul, 16, NO_FORMAT),
    FAMILY(clamped_swiglu, 16, NO_FORMAT),
    FAMILY(attend_sink, 16, NO_FORMAT),
    FAMILY(fma_peak, 1, NO_FORMAT),
};

#define N_FAMILIES (sizeof families / sizeof families[0])
#define N_FIRST 17 /* families in REFERENCE_HASH */
_Static_assert(sizeof(struct kernels) - offsetof(struct kernels, quantize_row) ==
                   N_FAMILIES * sizeof(void (*)(void)),
               "every kernel of the table is checked");

struct options {
    const char *level, *kernel, *format, *library;
    uint64_t seed, rounds, one_case;
    bool has_case, has_no_pages;
    enum { CHECK, LIST, BENCH, HASH, PEAK } what;
};

static struct kernels tables[MAX_LEVELS]; /* of level_at(i) */
#ifdef FLASHMOE_HAS_EMULATOR
static struct kernels gpu_table;
#endif
static unsigned n_failed, n_cases;

/* Returns the kernel's function, only for comparison. */
static const void *member_of(const struct kernels *table, const struct family *family)
{
    const void *function;
    memcpy(&function, (const char *)table + family->member, sizeof function);
    return function;
}

/* The GPU's kernels, over the emulator: slow, so only when they are asked for. */
static bool is_gpu(const struct options *o)
{
#ifdef FLASHMOE_HAS_EMULATOR
    return o->level != NULL && strcmp(o->level, "gpu") == 0;
#else
    (void)o;
    return false;
#endif
}

/* Chooses the reference, then the levels to check: the requested one, or all usable ones. */
static void choose_sides(const struct options *o, struct check *c)
{
    for (unsigned i = 0; level_at(i) != NULL && i < MAX_LEVELS; i++) {
        const struct level *level;
        if (level_use(level_at(i)->name, &level, NULL) != 0)
            continue;
        level_kernels(level, &tables[i]);
        if (i > 0 && o->level != NULL && strcmp(o->level, level->name) != 0)
            continue;
        c->tables[c->n_sides] = &tables[i];
        c->names[c->n_sides++] = level->name;
    }
#ifdef FLASHMOE_HAS_EMULATOR
    if (is_gpu(o)) {
        gpu_level(&tables[0], o->library, case_stop, &gpu_table);
        case_align(16); /* as rows in the GPU's memory */
        if (o->library != NULL)
            case_use_memory(gpu_level_memory);
        c->tables[c->n_sides] = &gpu_table;
        c->names[c->n_sides++] = gpu_table.name;
    }
#endif
}

/* Returns the name of the i-th format, or NULL past the end. */
static const char *format_at(const struct family *family, unsigned i)
{
    if (family->formats == KV_FORMATS)
        return kv_at(i) != NULL ? kv_at(i)->name : NULL;
    return quant_at(i) != NULL ? quant_at(i)->name : NULL;
}

static void report(const struct options *o, struct check *c, const struct family *family,
                   const char *format, uint64_t n)
{
    if (c->failures[0].n > 0) {
        n_failed++;
        printf("reference %s %s ... FAILED: %s\n", family->name, format, c->failures[0].text);
    }
    for (unsigned side = 1; side < c->n_sides; side++) {
        const struct failure *f = &c->failures[side];
        if (c->is_skipped[side])
            continue;
        n_cases += (unsigned)n;
        printf("%s %s%s%s ... ", c->names[side], family->name, *format != '\0' ? " " : "", format);
        if (f->n == 0) {
            printf("ok (%llu cases)\n", (unsigned long long)n);
            continue;
        }
        n_failed++;
        printf("FAILED (%u of %llu cases)\n  %s\n  again: --seed %llu --level %s --kernel %s%s%s"
               " --case %llu\n",
               f->n, (unsigned long long)n, f->text, (unsigned long long)o->seed, c->names[side],
               family->name, *format != '\0' ? " --format " : "", format,
               (unsigned long long)f->index);
    }
    fflush(stdout);
}

static void check_family(const struct options *o, struct check *c, const struct family *family,
                         const char *format)
{
    struct pool pool = {0};
    uint64_t seed = hash_text(hash_bytes(0xcbf29ce484222325u, &o->seed, sizeof o->seed),
                              family->name);
    seed = hash_text(seed, format);
    c->format = family->formats == WEIGHT_FORMATS ? quant_find(format) : NULL;
    c->kv = family->formats == KV_FORMATS ? kv_find(format) : NULL;
    if (family->formats == WEIGHT_FORMATS)
        pool_init(&pool, c->format, o->seed);
    c->pool = &pool;
    memset(c->failures, 0, sizeof c->failures);
    const uint64_t first = o->has_case ? o->one_case : 0;
    const uint64_t n = o->has_case ? 1 : o->rounds * family->weight;
    for (uint64_t i = first; i < first + n; i++)
        case_run(c, family->run, seed, i);
    if (o->what == CHECK)
        report(o, c, family, format, n);
    pool_clear(&pool);
}

static void check_all(const struct options *o, struct check *c, unsigned first, unsigned end)
{
    for (unsigned f = first; f < end; f++) {
        const struct family *family = &families[f];
        bool is_any = o->what == HASH;
        for (unsigned side = 1; side < c->n_sides; side++) {
            c->is_skipped[side] = member_of(c->tables[side], family) ==
                                  member_of(c->tables[side - 1], family);
            is_any = is_any || !c->is_skipped[side];
        }
        if (!is_any || (o->kernel != NULL && strcmp(o->kernel, family->name) != 0))
            continue;
        if (family->formats == NO_FORMAT) {
            check_family(o, c, family, "");
            continue;
        }
        for (unsigned i = 0; format_at(family, i) != NULL; i++)
            if (o->format == NULL || strcmp(o->format, format_at(family, i)) == 0)
                check_family(o, c, family, format_at(family, i));
    }
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Hashes only the reference, with the same cases whatever the options. */
static uint64_t reference_hash(unsigned first, unsigned end)
{
    static struct check c;
    const struct options o = {.what = HASH, .seed = HASH_SEED, .rounds = HASH_ROUNDS};
    level_kernels(level_at(0), &tables[0]);
    c.tables[0] = &tables[0];
    c.names[0] = level_at(0)->name;
    c.n_sides = 1;
    c.hash = 0xcbf29ce484222325u;
    check_all(&o, &c, first, end);
    return c.hash;
}

static int check_hash(bool is_alone, unsigned first, unsigned end, uint64_t expected)
{
    const uint64_t hash = reference_hash(first, end);
    if (is_alone)
        printf("%016llx\n", (unsigned long long)hash);
    if (hash == expected)
        return 0;
    printf("reference hash %016llx, expected %016llx\n", (unsigned long long)hash,
           (unsigned long long)expected);
    return 1;
}

static int run_hash(bool is_alone)
{
    const int first = check_hash(is_alone, 0, N_FIRST, REFERENCE_HASH);
    return check_hash(is_alone, N_FIRST, N_FAMILIES, LATER_HASH) | first;
}

/* A peak may not claim more operations per second than peak.c's loop, which reaches the same limit
 * in another way: then it leaves work out. Both are the best of several tries. On a quiet machine
 * the first few are enough. */
static int check_peak(const char *level, const char *name, uint64_t (*peak)(uint64_t n_rounds),
                      double (*limit_of)(const char *level))
{
    double limit = 0, claimed = 0;
    for (unsigned n = 0; n < 3 || (claimed > PEAK_SLACK * limit && n < 40); n++) {
        const double here = limit_of(level);
        const double begin = seconds_now();
        const double operations = (double)peak(PEAK_ROUNDS);
        const double speed = operations / (seconds_now() - begin);
        limit = here > limit ? here : limit;
        claimed = speed > claimed ? speed : claimed;
    }
    const bool is_ok = claimed <= PEAK_SLACK * limit;
    printf("%s %s %.1f Gop/s, the limit %.1f ... %s\n", level, name, claimed * 1e-9, limit * 1e-9,
           is_ok ? "ok" : "FAILED");
    return !is_ok;
}

static int run_peak(const struct options *o)
{
    int status = 0;
    for (unsigned i = 1; level_at(i) != NULL; i++) {
        const struct level *level;
        struct kernels k;
        if ((o->level != NULL && strcmp(o->level, level_at(i)->name) != 0) ||
            level_use(level_at(i)->name, &level, NULL) != 0)
            continue;
        level_kernels(level, &k);
        status |= check_peak(level->name, "int8_peak", k.int8_peak, peak_int8);
        status |= check_peak(level->name, "fma_peak", k.fma_peak, peak_float);
    }
    return status;
}

static int run_list(void)
{
    for (unsigned i = 0; level_at(i) != NULL; i++)
        printf("level %s (%s)%s\n", level_at(i)->name, level_at(i)->summary,
               level_at(i)->is_there() ? "" : ": not on this processor");
    for (unsigned f = 0; f < N_FAMILIES; f++)
        printf("kernel %s\n", families[f].name);
    for (unsigned i = 0; quant_at(i) != NULL; i++)
        printf("format %s\n", quant_at(i)->name);
    return 0;
}

static int run_check(const struct options *o)
{
    static struct check c;
    c.has_no_pages = o->has_no_pages;
    case_init();
    choose_sides(o, &c);
    check_all(o, &c, 0, N_FAMILIES);
    const bool is_whole = o->level == NULL && o->kernel == NULL && o->format == NULL &&
                          !o->has_case;
    if (is_whole && run_hash(false) != 0)
        n_failed++;
    if (c.n_sides == 1)
        printf("this processor has no level above the reference\n");
    printf("%u cases, %u failures; best level here: %s\n", n_cases, n_failed, level_best()->name);
    if (n_cases == 0 && c.n_sides > 1) {
        fprintf(stderr, "checkkernel: nothing was checked; see --list\n");
        return 1;
    }
    return n_failed > 0;
}

static const char help[] =
    "Usage: checkkernel [OPTION]...\n"
    "Holds every level of the kernel table that this processor has to the reference.\n"
    "  --level NAME   only this level"
#ifdef FLASHMOE_HAS_EMULATOR
    "; `gpu`: the GPU's kernels, over the emulator\n"
    "  --library FILE with `--level gpu`: on a GPU, with this library of its kernels, which was\n"
    "                 compiled with FLASHMOE_GPU_PIECES; exit status 77 without a GPU"
#endif
    "\n"
    "  --kernel NAME  only this kernel\n"
    "  --format NAME  only this format of weights, or of keys and values\n"
    "  --seed N       other random cases (1)\n"
    "  --rounds N     how many of them (64)\n"
    "  --case N       only this case\n"
    "  --no-pages     no buffer ends where memory does (for emulators with sloppy masked loads)\n"
    "  --list         the levels, kernels and formats there are\n"
    "  --hash         two numbers for all results of the reference\n"
    "  --peak         whether the peaks do what they count; for a real processor\n"
    "  --bench        how fast each level is, beside what the machine can do;\n"
    "                 `--kernel rows`: products of 1 to 64 tokens with weights from memory\n"
    "  --help         this\n"
    "Exit status: 0, or 1 when a level differs, or 2 for a fault of the program itself.\n";

static uint64_t number(const char *text)
{
    char *end;
    errno = 0;
    const unsigned long long n = strtoull(text, &end, 0);
    if (errno != 0 || *text == '\0' || *text == '-' || *end != '\0') {
        fprintf(stderr, "checkkernel: '%s' is not a number\n", text);
        exit(2);
    }
    return n;
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option known[] = {
        {"level", required_argument, NULL, 'l'},  {"kernel", required_argument, NULL, 'k'},
        {"format", required_argument, NULL, 'f'}, {"seed", required_argument, NULL, 's'},
        {"rounds", required_argument, NULL, 'r'}, {"case", required_argument, NULL, 'c'},
        {"no-pages", no_argument, NULL, 'n'},     {"list", no_argument, NULL, 'L'},
        {"hash", no_argument, NULL, 'H'},         {"bench", no_argument, NULL, 'B'},
        {"peak", no_argument, NULL, 'P'},         {"help", no_argument, NULL, 'h'},
#ifdef FLASHMOE_HAS_EMULATOR
        {"library", required_argument, NULL, 'G'},
#endif
        {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;)
        switch (option) {
        case 'l': o->level = optarg; break;
        case 'k': o->kernel = optarg; break;
        case 'f': o->format = optarg; break;
        case 's': o->seed = number(optarg); break;
        case 'r': o->rounds = number(optarg); break;
        case 'c': o->one_case = number(optarg), o->has_case = true; break;
        case 'n': o->has_no_pages = true; break;
        case 'L': o->what = LIST; break;
        case 'H': o->what = HASH; break;
        case 'B': o->what = BENCH; break;
        case 'P': o->what = PEAK; break;
        case 'G': o->library = optarg; break;
        case 'h': fputs(help, stdout); exit(0);
        default: fputs(help, stderr); exit(2);
        }
    if (optind < argc) {
        fprintf(stderr, "checkkernel: what is '%s'?\n", argv[optind]);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.seed = 1, .rounds = 64};
    parse(argc, argv, &o);
    const struct level *level;
    struct fm_error err;
    if (!is_gpu(&o) && level_find(o.level, &level, &err) != 0) {
        fprintf(stderr, "checkkernel: %s\n", err.text);
        return 2;
    }
    switch (o.what) {
    case LIST: return run_list();
    case HASH: return run_hash(true);
    case PEAK: return run_peak(&o);
    case BENCH:
        return bench_run(&(struct bench_options){o.level, o.kernel, o.format});
    default: return run_check(&o);
    }
}
