/* prefix_test MODEL: prefixes that are kept, restored, saved and found again give the same bits as
 * computing them. Sequences in one batch give the same bits as alone. */
#include <signal.h>
#include <sys/wait.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "flashmoe_lab.h"
#include "prefix_fixture.h"

static void evaluate(struct fm_session *s, const struct text *t, unsigned from)
{
    struct fm_error err = {0};
    while (from < t->n) { /* a prompt, or tokens one by one */
        const unsigned left = t->n - from, n = next_random(3) == 0 ? 1 + next_random(left) : left;
        must(fm_session_eval(s, t->ids + from, n, &err), &err);
        from += n;
    }
}

static void same_logits(const struct fixture *f, const struct fm_session *a,
                        const struct fm_session *b)
{
    assert_int_equal(fm_session_position(a), fm_session_position(b));
    assert_memory_equal(fm_session_logits(a), fm_session_logits(b),
                        f->info.vocabulary * sizeof(float));
}

static void compute(const struct fixture *f, struct fm_session *fresh, const struct text *t,
                    const struct fm_session *like)
{
    struct fm_error err = {0};
    fm_session_reset(fresh);
    must(fm_session_eval(fresh, t->ids, t->n, &err), &err);
    same_logits(f, fresh, like);
}

static void change(const struct fixture *f, struct text *t)
{
    if (next_random(2) == 0)
        t->n = next_random(t->n); /* change the end */
    else if (t->n > 100)
        t->n -= next_random(20); /* change the last line */
    if (t->n + 60 > CONTEXT)
        t->n = CONTEXT / 2 + next_random(50);
    append(f, t, 1 + next_random(next_random(2) == 0 ? 4 : 150));
}

/* ---- going back ----------------------------------------------------------------------------- */

static void test_rewind(void **state)
{
    (void)state;
    struct fixture f;
    struct text t = {.n = 0};
    unsigned n_kept = 0, n_all = 0;
    set_up(&f, 2);
    for (int round = 0; round < 60; round++) {
        change(&f, &t);
        const unsigned from = fm_session_rewind(f.sessions[0], t.ids, t.n);
        assert_true(from < t.n && from == fm_session_position(f.sessions[0]));
        evaluate(f.sessions[0], &t, from);
        compute(&f, f.sessions[1], &t, f.sessions[0]);
        assert_memory_equal(fm_session_ids(f.sessions[0]), t.ids, t.n * sizeof t.ids[0]);
        /* For the same text again, the last token is recomputed to get its logits. */
        assert_true(fm_session_nearest(f.sessions[0], t.ids, t.n) < t.n);
        n_kept += from;
        n_all += t.n;
    }
    print_message("%u of %u tokens were not computed again\n", n_kept, n_all);
    assert_true(n_kept > n_all / 4);
    tear_down(&f);
}

/* A prompt whose last line changes recomputes little more than that line. */
static void test_last_line(void **state)
{
    (void)state;
    struct fixture f;
    struct text t = {.n = 0};
    set_up(&f, 1);
    for (unsigned n_line = 1; n_line < 40; n_line += 13) {
        t.n = 0;
        append(&f, &t, 380);
        fm_session_reset(f.sessions[0]);
        evaluate(f.sessions[0], &t, 0);
        t.n -= n_line;
        t.ids[t.n - 1] ^= 1;
        append(&f, &t, n_line);
        const unsigned from = fm_session_rewind(f.sessions[0], t.ids, t.n);
        assert_true(from >= 380 - n_line - 1 - 2 * 64);
    }
    tear_down(&f);
}

/* ---- together ------------------------------------------------------------------------------- */

/* Runs eight sequences of different lengths that join, leave and go back. */
static void test_batches(void **state)
{
    (void)state;
    struct fixture f;
    static struct text texts[N_SESSIONS];
    struct fm_error err = {0};
    set_up(&f, N_SESSIONS);
    for (int round = 0; round < 25; round++) {
        struct fm_batch_item items[N_SESSIONS];
        unsigned in_batch[N_SESSIONS];
        size_t n = 0;
        for (unsigned i = 0; i + 1 < N_SESSIONS; i++) {
            if (next_random(4) == 0)
                continue;
            unsigned from = texts[i].n;
            if (next_random(3) == 0 || texts[i].n > CONTEXT - 160) {
                if (texts[i].n == 0)
                    append(&f, &texts[i], 1);
                change(&f, &texts[i]);
                from = fm_session_rewind(f.sessions[i], texts[i].ids, texts[i].n);
            } else {
                append(&f, &texts[i], next_random(2) == 0 ? 1 : 1 + next_random(90));
            }
            items[n] = (struct fm_batch_item){f.sessions[i], texts[i].ids + from,
                                              texts[i].n - from, 0};
            in_batch[n++] = i;
        }
        if (n == 0)
            continue;
        must(fm_eval_batch(f.model, items, n, &err), &err);
        const unsigned i = in_batch[next_random((uint32_t)n)];
        compute(&f, f.sessions[N_SESSIONS - 1], &texts[i], f.sessions[i]);
    }
    tear_down(&f);
    memset(texts, 0, sizeof texts);
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Restores in the middle of a conversation, after a restart, and after others took the session. */
static void test_snapshots(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    static struct text texts[6];
    ptrdiff_t last = 0;
    clear_dir();
    for (int start = 0; start < 3; start++) {
#ifdef __GLIBC__
        (void)mallopt(M_PERTURB, 0x11 * (start + 1)); /* fresh memory has other bytes each time */
#endif
        set_up(&f, 2);
        struct fm_snapshots *store = open_store(&f, LIMIT);
        for (int round = 0; round < 12; round++) {
            struct text *t = &texts[round == 0 ? last : next_random(6)];
            if (t->n == 0)
                append(&f, t, 90);
            if (round == 0)
                append(&f, t, 1); /* continues where it was before the restart */
            else
                change(&f, t);
            const unsigned from = fm_snapshots_restore(store, f.sessions[0], t->ids, t->n);
            assert_true(from < t->n);
            evaluate(f.sessions[0], t, from);
            compute(&f, f.sessions[1], t, f.sessions[0]);
            must(fm_snapshots_keep(store, f.sessions[0], &err), &err);
            assert_true(start == 0 || round > 0 || from > 0);
            last = t - texts;
        }
        struct fm_snapshots_stats stats = {.size = sizeof stats};
        fm_snapshots_stats(store, &stats);
        assert_true(stats.n_written > 0 && stats.n_restored > 0 && stats.bytes <= LIMIT);
        fm_snapshots_close(store);
        tear_down(&f);
    }
#ifdef __GLIBC__
    (void)mallopt(M_PERTURB, 0);
#endif
    memset(texts, 0, sizeof texts);
}

/* The least recently used snapshots are evicted first, and one that does not fit is not kept. */
static void test_limit(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    struct fm_snapshots_stats stats = {.size = sizeof stats};
    struct text a = {.n = 0}, b = {.n = 0}, c = {.n = 0};
    clear_dir();
    set_up(&f, 1);
    append(&f, &a, 100);
    append(&f, &b, 100);
    append(&f, &c, 100);
    struct fm_snapshots *store = open_store(&f, LIMIT);
    must(fm_session_eval(f.sessions[0], a.ids, a.n, &err), &err); /* all of one size */
    must(fm_snapshots_keep(store, f.sessions[0], &err), &err);
    fm_snapshots_stats(store, &stats);
    const uint64_t one = stats.bytes;
    fm_snapshots_close(store);
    store = open_store(&f, one * 5 / 2);
    fm_session_reset(f.sessions[0]);
    must(fm_session_eval(f.sessions[0], b.ids, b.n, &err), &err);
    must(fm_snapshots_keep(store, f.sessions[0], &err), &err);
    append(&f, &a, 1);
    assert_true(fm_snapshots_restore(store, f.sessions[0], a.ids, a.n) == 100);
    fm_session_reset(f.sessions[0]);
    must(fm_session_eval(f.sessions[0], c.ids, c.n, &err), &err);
    must(fm_snapshots_keep(store, f.sessions[0], &err), &err);
    fm_snapshots_stats(store, &stats);
    assert_true(stats.n_files == 2 && stats.bytes <= one * 5 / 2);
    append(&f, &b, 1);
    assert_true(fm_snapshots_restore(store, f.sessions[0], b.ids, b.n) == 0); /* it was evicted */
    assert_true(fm_snapshots_restore(store, f.sessions[0], a.ids, a.n) == 100);
    fm_snapshots_close(store);
    store = open_store(&f, one / 2);
    fm_snapshots_stats(store, &stats);
    assert_true(stats.n_files == 0);
    must(fm_snapshots_keep(store, f.sessions[0], &err), &err);
    fm_snapshots_stats(store, &stats);
    assert_true(stats.n_files == 0);
    fm_snapshots_close(store);
    tear_down(&f);
}

/* A file with a changed byte or a missing end is not accepted, and the tokens are recomputed. */
static void test_damage(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    struct text t = {.n = 0};
    char path[128];
    clear_dir();
    set_up(&f, 2);
    append(&f, &t, 120);
    evaluate(f.sessions[0], &t, 0);
    snprintf(path, sizeof path, "%s/%032d.fmsnap", dir, 1); /* the name that the store gives it */
    must(fm_session_save(f.sessions[0], path, &err), &err);
    must(fm_session_load(f.sessions[1], path, &err), &err);
    assert_int_equal(fm_session_position(f.sessions[1]), 120);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    char *whole = malloc((size_t)st.st_size);
    FILE *file = fopen(path, "rb");
    assert_true(whole != NULL && file != NULL &&
                fread(whole, 1, (size_t)st.st_size, file) == (size_t)st.st_size);
    fclose(file);
    append(&f, &t, 3);
    for (int round = 0; round < 200; round++) {
        const size_t at = round < 96 ? (size_t)round
                                     : (size_t)((double)next_random(1 << 24) / (1 << 24) *
                                                (double)st.st_size);
        size_t n = (size_t)st.st_size;
        if (round % 10 == 9)
            n = at;
        else
            whole[at] = (char)(whole[at] ^ 0x10);
        file = fopen(path, "wb");
        assert_true(file != NULL && fwrite(whole, 1, n, file) == n);
        fclose(file);
        if (n == (size_t)st.st_size)
            whole[at] = (char)(whole[at] ^ 0x10);
        assert_true(fm_session_load(f.sessions[1], path, &err) != 0 && err.text[0] != '\0');
        assert_int_equal(fm_session_position(f.sessions[1]), 0);
        if (round % 20 > 0)
            continue;
        struct fm_snapshots *store = open_store(&f, LIMIT);
        assert_int_equal(fm_snapshots_restore(store, f.sessions[1], t.ids, t.n), 0);
        fm_snapshots_close(store);
    }
    free(whole);
    evaluate(f.sessions[1], &t, 0);
    evaluate(f.sessions[0], &t, 120);
    same_logits(&f, f.sessions[0], f.sessions[1]);
    tear_down(&f);
}

/* A session computed with another choice of experts does not belong to this model. */
static void test_approximate(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    struct fm_snapshots *store;
    struct text t = {.n = 0};
    char path[128];
    clear_dir();
    snprintf(path, sizeof path, "%s/%032d.fmsnap", dir, 1);
    set_up_with(&f, 1, 1, NULL);
    append(&f, &t, 100);
    evaluate(f.sessions[0], &t, 0);
    must(fm_session_save(f.sessions[0], path, &err), &err);
    must(fm_session_load(f.sessions[0], path, &err), &err);
    tear_down(&f);
    append(&f, &t, 1);
    set_up(&f, 1);
    assert_true(fm_session_load(f.sessions[0], path, &err) != 0);
    assert_non_null(strstr(err.text, "another model"));
    store = open_store(&f, LIMIT);
    assert_int_equal(fm_snapshots_restore(store, f.sessions[0], t.ids, t.n), 0);
    fm_snapshots_close(store);
    tear_down(&f);
    set_up_with(&f, 1, 0, "gen");
    evaluate(f.sessions[0], &t, 0);
    assert_true(fm_session_save(f.sessions[0], path, &err) != 0);
    assert_non_null(strstr(err.text, "routes"));
    assert_true(fm_snapshots_open(f.model, dir, LIMIT, &store, &err) != 0 && store == NULL);
    tear_down(&f);
}

static void change_byte(const char *path, long from_end)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
    const int c = fgetc(file);
    assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
    assert_true(fputc(c ^ 0x10, file) != EOF);
    fclose(file);
}

/* Snapshots of another model in the same folder count, and the oldest is evicted. */
static void test_strangers(void **state)
{
    (void)state;
    struct fixture f;
    struct text a = {.n = 0}, b = {.n = 0};
    struct stat st;
    char path[512];
    clear_dir();
    set_up_with(&f, 1, 1, NULL);
    append(&f, &a, 100);
    append(&f, &b, 100);
    struct fm_snapshots *store = open_store(&f, LIMIT);
    const uint64_t one = keep(store, f.sessions[0], &a, a.n).bytes;
    fm_snapshots_close(store);
    tear_down(&f);
    find_snapshot("", path);
    set_up(&f, 1);
    store = open_store(&f, one * 5 / 2);
    struct fm_snapshots_stats stats = keep(store, f.sessions[0], &a, a.n);
    assert_true(stats.n_files == 1 && stats.bytes == 2 * one && stat(path, &st) == 0);
    stats = keep(store, f.sessions[0], &b, b.n);
    assert_true(stats.n_files == 2 && stats.bytes == 2 * one && stat(path, &st) != 0);
    fm_snapshots_close(store);
    tear_down(&f);
}

/* A damaged snapshot does not prevent using a good shorter one, or writing it again. */
static void test_damaged_is_replaced(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    struct text t = {.n = 0};
    char shorter[512], longer[512];
    clear_dir();
    set_up(&f, 1);
    append(&f, &t, 121);
    struct fm_snapshots *store = open_store(&f, LIMIT);
    (void)keep(store, f.sessions[0], &t, 60);
    find_snapshot("", shorter);
    (void)keep(store, f.sessions[0], &t, 120);
    find_snapshot(shorter, longer);
    change_byte(longer, 1); /* in its state: detected when it is restored */
    fm_session_reset(f.sessions[0]);
    assert_int_equal(fm_snapshots_restore(store, f.sessions[0], t.ids, t.n), 60);
    (void)keep(store, f.sessions[0], &t, 120);
    fm_snapshots_close(store);
    FILE *file = fopen(longer, "r+b"); /* in its head: detected when the folder is opened */
    assert_true(file != NULL && fputc('?', file) == '?');
    fclose(file);
    store = open_store(&f, LIMIT);
    assert_int_equal(keep(store, f.sessions[0], &t, 120).n_files, 2);
    fm_session_reset(f.sessions[0]);
    assert_int_equal(fm_snapshots_restore(store, f.sessions[0], t.ids, t.n), 120);
    must(fm_session_load(f.sessions[0], longer, &err), &err);
    fm_snapshots_close(store);
    tear_down(&f);
}

/* ---- killed while it writes ----------------------------------------------------------------- */

static void write_until_killed(int round)
{
    struct fixture f;
    struct fm_error err = {0};
    set_up(&f, 1);
    struct fm_snapshots *store = open_store(&f, UINT64_C(1) << 40);
    random_state = 1000 + (uint32_t)round;
    for (;;) {
        struct text t = {.n = 0};
        append(&f, &t, 50 + next_random(300));
        fm_session_reset(f.sessions[0]);
        evaluate(f.sessions[0], &t, 0);
        (void)fm_snapshots_keep(store, f.sessions[0], &err);
    }
}

static unsigned count_names(const char *part)
{
    DIR *d = opendir(dir);
    unsigned n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

/* Waits until there is one more such file than before. */
static void wait_for_writing(const char *part, pid_t child)
{
    const unsigned n = count_names(part);
    for (int tries = 0; count_names(part) <= n; tries++) {
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0); /* the child never ends by itself */
        if (tries >= 600000) {
            (void)kill(child, SIGKILL); /* it would outlive this test */
            fail_msg("it has written nothing for two minutes");
        }
        (void)usleep(200);
    }
}

static void test_killed(void **state)
{
    (void)state;
    const char *rounds = getenv("PREFIX_TEST_KILLS");
    const int n_rounds = rounds != NULL ? atoi(rounds) : 8;
    struct fixture f;
    struct fm_error err = {0};
    struct text first = {.n = 0};
    unsigned n_parts = 0, n_files = 0;
    clear_dir();
    set_up(&f, 2);
    append(&f, &first, 200);
    evaluate(f.sessions[0], &first, 0);
    struct fm_snapshots *store = open_store(&f, UINT64_C(1) << 40);
    must(fm_snapshots_keep(store, f.sessions[0], &err), &err);
    fm_snapshots_close(store);
    append(&f, &first, 5);
    evaluate(f.sessions[0], &first, 200);
    tear_down(&f);
    for (int round = 0; round < n_rounds; round++) {
        const pid_t child = fork();
        if (child == 0)
            write_until_killed(round);
        wait_for_writing(round % 2 == 0 ? ".part" : ".fmsnap", child);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
        DIR *d = opendir(dir);
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            n_parts += strstr(e->d_name, ".part") != NULL;
            n_files += strstr(e->d_name, ".fmsnap") != NULL &&
                       strstr(e->d_name, ".rank") == NULL;
        }
        (void)closedir(d);
        set_up(&f, 2);
        store = open_store(&f, UINT64_C(1) << 40);
        assert_int_equal(fm_snapshots_restore(store, f.sessions[0], first.ids, first.n), 200);
        evaluate(f.sessions[0], &first, 200);
        compute(&f, f.sessions[1], &first, f.sessions[0]);
        fm_snapshots_close(store);
        d = opendir(dir);
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            char path[512];
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            assert_null(strstr(e->d_name, ".part")); /* opening has removed them */
            if (strstr(e->d_name, ".fmsnap") != NULL && strstr(e->d_name, ".rank") == NULL)
                must(fm_session_load(f.sessions[0], path, &err), &err);
        }
        (void)closedir(d);
        tear_down(&f);
    }
    print_message("%d kills, %u files written to the end seen, %u cut off\n", n_rounds, n_files,
                  n_parts);
    clear_dir();
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    model_path = argv[1];
    snprintf(dir, sizeof dir, "prefix-test-%d", (int)getpid());
    (void)mkdir(dir, 0700);
    /* test_killed runs first: a test that fails leaves the folder locked, and it needs the lock. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_rewind),    cmocka_unit_test(test_last_line),
        cmocka_unit_test(test_batches),   cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_limit),     cmocka_unit_test(test_damage),
        cmocka_unit_test(test_approximate), cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_damaged_is_replaced),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    clear_dir();
    (void)rmdir(dir);
    return rc;
}
