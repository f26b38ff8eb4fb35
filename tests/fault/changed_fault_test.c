/* Files without checksums that are replaced or modified between opening, reopening and reading.
 * Size, modification time and inode are changed one by one: if two of them stay the same, the third
 * must be noticed. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "flashmoe.h"
#include "store/expert_store.h"

static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
static char dir[] = "changed_fault_test_XXXXXX";
static char weights[64], other[64];

static void copy_file(const char *from, const char *to)
{
    char *text;
    size_t bytes;
    struct fm_error err = {0};
    if (plat_read_file(from, 64u << 20, &text, &bytes, &err) != 0 ||
        plat_replace_file(to, text, bytes, &err) != 0)
        fail_msg("%s", err.text);
    mem_free(text);
}

static int make_model(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        char from[256], to[64];
        (void)snprintf(from, sizeof from, FLASHMOE_TEST_DIR "/golden/qwen3_moe/%s", names[i]);
        (void)snprintf(to, sizeof to, "%s/%s", dir, names[i]);
        copy_file(from, to);
    }
    return 0;
}

static int make_dir(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL)
        return -1;
    (void)snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    (void)snprintf(other, sizeof other, "%s/other", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    return rmdir(dir);
}

static void set_mtime(const char *path, const struct timespec *mtime)
{
    const struct timespec times[2] = {*mtime, *mtime};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* ---- one thing that changes ------------------------------------------------------------------ */

enum change { TOUCHED, LONGER, REPLACED, N_CHANGES };

static void change(enum change what)
{
    struct stat st;
    assert_int_equal(stat(weights, &st), 0);
    struct timespec later = st.st_mtim;
    later.tv_sec++;
    if (what == TOUCHED)
        set_mtime(weights, &later);
    if (what == LONGER)
        assert_int_equal(truncate(weights, st.st_size + 1), 0);
    if (what == REPLACED) {
        copy_file(weights, other);
        assert_int_equal(rename(other, weights), 0);
    }
    if (what != TOUCHED)
        set_mtime(weights, &st.st_mtim);
}

static void check_message(int rc, const struct fm_error *err)
{
    assert_int_equal(rc, FM_ERR_IO);
    assert_non_null(strstr(err->text, weights));
    assert_non_null(strstr(err->text, "was changed or replaced after it was opened"));
}

static struct model *open_model(void)
{
    const struct model_options options = {.families = arch_families()};
    struct fm_error err = {0};
    struct model *model;
    if (model_open(dir, &options, &model, &err) != 0)
        fail_msg("%s", err.text);
    return model;
}

static void test_reopened(void **state)
{
    (void)state;
    for (int what = 0; what <= N_CHANGES; what++) {
        struct source *source;
        struct fm_error err = {0};
        int fd;
        assert_int_equal(make_model(NULL), 0);
        assert_int_equal(source_open(dir, &(struct source_options){0}, &source, NULL), 0);
        assert_int_equal(source_reopen_direct(&source->files[0], &fd, &err), 0);
        plat_close(fd);
        if (what < N_CHANGES) {
            change((enum change)what);
            check_message(source_reopen_direct(&source->files[0], &fd, &err), &err);
            assert_int_equal(fd, -1);
        } else { /* the path no longer exists: the open file is still the right one */
            assert_int_equal(unlink(weights), 0);
            assert_int_equal(source_reopen_direct(&source->files[0], &fd, &err), 0);
            assert_int_equal(fd, -1);
        }
        source_close(source);
    }
}

static void test_before_the_dense_weights(void **state)
{
    (void)state;
    for (int what = 0; what < N_CHANGES; what++) {
        assert_int_equal(make_model(NULL), 0);
        struct model *model = open_model();
        struct fm_error err = {0};
        change((enum change)what);
        check_message(model_load_dense(model, &memory_host, true, NULL, NULL, &err), &err);
        model_close(model);
    }
}

static void test_before_the_store(void **state)
{
    (void)state;
    for (int what = 0; what < N_CHANGES; what++) {
        assert_int_equal(make_model(NULL), 0);
        struct model *model = open_model();
        const struct reader_options options = {.depth = 1, .bounce_bytes = 1 << 20};
        struct reader *reader;
        struct expert_store *store;
        struct fm_error err = {0};
        change((enum change)what);
        assert_int_equal(reader_pread_open(&options, &reader, NULL), 0);
        check_message(expert_store_open(model, &reader, STORE_DIRECT, true, &store, &err), &err);
        assert_null(store);
        model_close(model);
    }
}

/* ---- read ahead ------------------------------------------------------------------------------ */

struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_done;
    bool ok;
};

static void landed(struct expert_read *read, bool ok)
{
    struct waiting *w = read->ctx;
    pthread_mutex_lock(&w->lock);
    w->n_done++;
    w->ok = ok;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static bool read_expert(struct expert_store *store, void *slot, enum read_urgency urgency)
{
    struct waiting w = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct expert_read read = {.dst = slot, .urgency = urgency, .done = landed, .ctx = &w};
    expert_store_submit(store, &read);
    pthread_mutex_lock(&w.lock);
    while (w.n_done == 0)
        pthread_cond_wait(&w.changed, &w.lock);
    pthread_mutex_unlock(&w.lock);
    return w.ok;
}

static int n_warnings, n_notes;

static void count_line(void *ctx, int level, const char *module, const char *text)
{
    (void)ctx, (void)module;
    if (strstr(text, "expert 0 of layer 0") == NULL || strstr(text, "dropped") == NULL)
        return;
    *(level == FM_LOG_WARN ? &n_warnings : &n_notes) += 1;
}

/* Nobody waits for the read, so a log line reports the error; the first one is a warning. */
static void test_read_ahead_is_logged(void **state)
{
    (void)state;
    assert_int_equal(make_model(NULL), 0);
    struct model *model = open_model();
    const struct reader_options options = {.depth = 1, .bounce_bytes = 1 << 20};
    struct reader *reader;
    struct expert_store *store;
    void *slot = mem_new_aligned(MEM_PAGE, model->expert_slot_bytes, "a slot", NULL);
    assert_int_equal(reader_pread_open(&options, &reader, NULL), 0);
    assert_int_equal(expert_store_open(model, &reader, STORE_DIRECT, true, &store, NULL), 0);
    log_set_sink(count_line, NULL);
    assert_true(read_expert(store, slot, READ_GUESSED));
    change(TOUCHED);
    assert_false(read_expert(store, slot, READ_NEEDED));
    assert_int_equal(n_warnings + n_notes, 0);
    assert_false(read_expert(store, slot, READ_GUESSED));
    assert_int_equal(n_warnings, 1);
    assert_false(read_expert(store, slot, READ_GUESSED));
    assert_int_equal(n_warnings, 1);
    assert_int_equal(n_notes, 1);
    log_set_sink(NULL, NULL);
    expert_store_close(store);
    mem_free(slot);
    model_close(model);
}

/* ---- while the model runs -------------------------------------------------------------------- */

static struct fm_model *open_running(enum fm_io io, enum fm_choice check,
                                     struct fm_session **session)
{
    struct fm_model_options options = {.size = sizeof options};
    struct fm_model *model;
    struct fm_error err = {0};
    options.io = io;
    options.check = check;
    options.n_context = 64;
    options.lookahead = FM_OFF;
    options.elastic = FM_OFF; /* the machine's free memory must not change what is read */
    if (fm_model_open(dir, &options, &model, &err) != 0 ||
        fm_session_open(model, session, &err) != 0)
        fail_msg("%s", err.text);
    return model;
}

/* An expert that is read after the change fails the request; with FM_OFF it does not. A file that
 * was replaced is still open and valid. */
static void test_while_it_runs(void **state)
{
    (void)state;
    const enum fm_io ios[] = {FM_IO_DIRECT, FM_IO_PAGE};
    const enum fm_choice checks[] = {FM_AUTO, FM_OFF};
    for (unsigned i = 0; i < 2 * 2 * N_CHANGES; i++) {
        const enum change what = (enum change)(i / 4);
        const int32_t ids[] = {1, 2, 3, 4, 5, 6};
        struct fm_session *session;
        struct fm_error err = {0};
        assert_int_equal(make_model(NULL), 0);
        struct fm_model *model = open_running(ios[i % 2], checks[i / 2 % 2], &session);
        change(what);
        int rc = fm_session_eval(session, ids, 6, &err);
        if (what == REPLACED || i / 2 % 2 == 1) {
            assert_int_equal(rc, 0);
        } else {
            check_message(rc, &err);
            assert_non_null(strstr(err.text, "cannot use expert "));
            assert_non_null(strstr(err.text, " of layer 0: "));
        }
        fm_session_close(session);
        fm_model_close(model);
    }
}

/* Resident experts are not checked again; evicted ones are when they are read again. */
static void test_after_the_cache_shrank(void **state)
{
    (void)state;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    struct fm_session *session;
    struct fm_error err = {0};
    struct fm_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    assert_int_equal(make_model(NULL), 0);
    struct fm_model *model = open_running(FM_IO_DIRECT, FM_AUTO, &session);
    assert_int_equal(fm_session_eval(session, ids, 12, &err), 0);
    change(TOUCHED);
    fm_model_stats(model, &before);
    fm_session_reset(session);
    assert_int_equal(fm_session_eval(session, ids, 12, &err), 0);
    fm_model_stats(model, &after);
    assert_int_equal(after.bytes_read, before.bytes_read);
    assert_int_equal(fm_model_set_memory(model, before.memory_min_bytes, &err), 0);
    assert_int_equal(fm_model_set_memory(model, before.memory_budget_bytes, &err), 0);
    fm_session_reset(session);
    check_message(fm_session_eval(session, ids, 12, &err), &err);
    fm_session_close(session);
    fm_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reopened),
        cmocka_unit_test(test_before_the_dense_weights),
        cmocka_unit_test(test_before_the_store),
        cmocka_unit_test(test_read_ahead_is_logged),
        cmocka_unit_test(test_while_it_runs),
        cmocka_unit_test(test_after_the_cache_shrank),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
