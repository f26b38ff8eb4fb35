/* prefix_speed MODEL [TOKENS [MEMORY [ROUNDS]]]: a long prompt, then the same with another last
 * line: in the same session, and in a new one from a snapshot on the disk. In turns; what each took
 * until its first token was known, and how many tokens it computed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/plat.h"
#include "flashmoe.h"

#define FOLDER "prefix-speed.snapshots"
#define LINE 20
#define MAX_TOKENS 65536
#define MAX_ROUNDS 100

static void check(int rc, const struct fm_error *err)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "prefix_speed: %s\n", err->text);
    exit(1);
}

static double run(struct fm_session *s, const int32_t *ids, size_t n, unsigned *from,
                  struct fm_snapshots *store)
{
    struct fm_error err;
    const uint64_t begin = plat_now_ns();
    *from = store != NULL ? fm_snapshots_restore(store, s, ids, n) : fm_session_rewind(s, ids, n);
    check(fm_session_eval(s, ids + *from, n - *from, &err), &err);
    return (double)(plat_now_ns() - begin) * 1e-9;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, double *s, unsigned n_rounds, size_t n_computed, double whole)
{
    qsort(s, n_rounds, sizeof *s, compare);
    (void)printf("%-28s %5zu tokens computed, %8.4f s median, %.4f to %.4f", name, n_computed,
                 s[n_rounds / 2], s[0], s[n_rounds - 1]);
    if (whole > 0)
        (void)printf(", %.1f times shorter", whole / s[n_rounds / 2]);
    (void)printf("\n");
}

static void remove_folder(struct fm_model *model)
{
    struct fm_snapshots *store;
    struct fm_error err;
    check(fm_snapshots_open(model, FOLDER, 1, &store, &err), &err); /* one byte: all of them go */
    fm_snapshots_close(store);
    if (rmdir(FOLDER) != 0)
        perror(FOLDER);
}

int main(int argc, char **argv)
{
    static int32_t ids[MAX_TOKENS];
    static double first[MAX_ROUNDS], again[MAX_ROUNDS], restored[MAX_ROUNDS];
    if (argc < 2)
        return 2;
    const size_t n = argc > 2 ? strtoul(argv[2], NULL, 10) : 4000;
    const unsigned n_rounds = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : 3;
    struct fm_model_options options = {.size = sizeof options};
    struct fm_model *model;
    struct fm_model_info info = {.size = sizeof info};
    struct fm_session *a, *b;
    struct fm_snapshots *store;
    struct fm_error err;
    unsigned from = 0, from_again = 0, from_disk = 0;
    if (n <= LINE || n > MAX_TOKENS || n_rounds < 1 || n_rounds > MAX_ROUNDS)
        return 2;
    options.n_sessions = 2;
    options.n_context = (unsigned)n;
    options.n_marks = 4;
    options.memory_bytes = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    check(fm_model_open(argv[1], &options, &model, &err), &err);
    fm_model_info(model, &info);
    check(fm_session_open(model, &a, &err), &err);
    check(fm_session_open(model, &b, &err), &err);
    check(fm_snapshots_open(model, FOLDER, UINT64_C(1) << 40, &store, &err), &err);
    uint32_t random = 1;
    for (unsigned r = 0; r < n_rounds; r++) {
        for (size_t i = 0; i < n; i++) {
            random = random * 1664525u + 1013904223u;
            ids[i] = (int32_t)((random >> 8) % info.vocabulary);
        }
        fm_session_reset(a);
        fm_session_reset(b);
        first[r] = run(a, ids, n, &from, NULL);
        check(fm_snapshots_keep(store, a, &err), &err);
        for (size_t i = n - LINE; i < n; i++)
            ids[i] = (int32_t)((uint32_t)(ids[i] + 1) % info.vocabulary);
        again[r] = run(a, ids, n, &from_again, NULL);
        restored[r] = run(b, ids, n, &from_disk, store);
        if (memcmp(fm_session_logits(a), fm_session_logits(b),
                   info.vocabulary * sizeof(float)) != 0) {
            (void)fprintf(stderr, "prefix_speed: restored bits differ\n");
            return 1;
        }
    }
    const double whole = (qsort(first, n_rounds, sizeof *first, compare), first[n_rounds / 2]);
    print("whole prompt", first, n_rounds, n - from, 0);
    print("another last line", again, n_rounds, n - from_again, whole);
    print("the same, from the disk", restored, n_rounds, n - from_disk, whole);
    fm_snapshots_close(store);
    remove_folder(model);
    fm_session_close(a);
    fm_session_close(b);
    fm_model_close(model);
    return 0;
}
