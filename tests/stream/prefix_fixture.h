/* What the tests of prefixes and of snapshot files share: a model, sessions, tokens, a folder. */
#ifndef FLASHMOE_TESTS_PREFIX_FIXTURE_H
#define FLASHMOE_TESTS_PREFIX_FIXTURE_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "flashmoe.h"

#define CONTEXT 400
#define N_SESSIONS 9 /* one of them recomputes everything */
#define LIMIT (64u << 20)

static const char *model_path;
static char dir[64];
static uint32_t random_state = 1;

static inline uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * below) >> 24);
}

struct fixture {
    struct fm_model *model;
    struct fm_model_info info;
    struct fm_session *sessions[N_SESSIONS];
};

static inline void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static inline void set_up_with(struct fixture *f, unsigned n_sessions, unsigned experts_per_token,
                               const char *routes)
{
    struct fm_model_options options = {.size = sizeof options};
    struct fm_error err = {0};
    options.experts_per_token = experts_per_token;
    options.routes = routes;
    options.n_threads = 2;
    options.n_sessions = N_SESSIONS;
    options.n_context = CONTEXT;
    options.n_marks = 4;
    options.prefill_chunk = 100;
    *f = (struct fixture){0};
    must(fm_model_open(model_path, &options, &f->model, &err), &err);
    f->info.size = sizeof f->info;
    fm_model_info(f->model, &f->info);
    for (unsigned i = 0; i < n_sessions; i++)
        must(fm_session_open(f->model, &f->sessions[i], &err), &err);
}

static inline void set_up(struct fixture *f, unsigned n_sessions)
{
    set_up_with(f, n_sessions, 0, NULL);
}

static inline void tear_down(struct fixture *f)
{
    for (unsigned i = 0; i < N_SESSIONS; i++)
        fm_session_close(f->sessions[i]);
    fm_model_close(f->model);
}

struct text {
    int32_t ids[CONTEXT];
    unsigned n;
};

static inline void append(const struct fixture *f, struct text *t, unsigned n)
{
    for (unsigned i = 0; i < n && t->n < CONTEXT; i++)
        t->ids[t->n++] = (int32_t)next_random(f->info.vocabulary);
}

static inline void clear_dir(void)
{
    DIR *d = opendir(dir);
    char path[512];
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        (void)unlink(path);
    }
    if (d != NULL)
        (void)closedir(d);
}

static inline struct fm_snapshots *open_store(const struct fixture *f, uint64_t limit)
{
    struct fm_snapshots *store;
    struct fm_error err = {0};
    must(fm_snapshots_open(f->model, dir, limit, &store, &err), &err);
    return store;
}

/* Finds the one snapshot in the folder besides `not_this`. */
static inline void find_snapshot(const char *not_this, char path[512])
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    path[0] = '\0';
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strstr(e->d_name, ".fmsnap") != NULL && strstr(e->d_name, ".rank") == NULL &&
            strstr(not_this, e->d_name) == NULL)
            snprintf(path, 512, "%s/%s", dir, e->d_name);
    closedir(d);
    assert_true(path[0] != '\0');
}

static inline struct fm_snapshots_stats keep(struct fm_snapshots *store, struct fm_session *s,
                                      const struct text *t, size_t n)
{
    struct fm_error err = {0};
    struct fm_snapshots_stats stats = {.size = sizeof stats};
    fm_session_reset(s);
    must(fm_session_eval(s, t->ids, n, &err), &err);
    must(fm_snapshots_keep(store, s, &err), &err);
    fm_snapshots_stats(store, &stats);
    return stats;
}

#endif
