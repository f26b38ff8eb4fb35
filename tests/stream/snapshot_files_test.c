/* snapshot_files_test MODEL: checks who owns snapshot files, who may write them, which model they
 * belong to, and that every number in them is verified. */
#include <xxhash.h>

#include "prefix_fixture.h"

/* ---- owners ------------------------------------------------------------------------------- */

static unsigned mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 0777;
}

/* Others cannot read a snapshot, whatever the umask. Files that earlier versions left readable are
 * restricted. */
static void test_private(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    struct text t = {.n = 0};
    char path[512], saved[128], notes[128];
    const mode_t before = umask(0);
    clear_dir();
    (void)rmdir(dir);
    set_up(&f, 1);
    append(&f, &t, 101);
    struct fm_snapshots *store = open_store(&f, LIMIT);
    (void)keep(store, f.sessions[0], &t, 100);
    fm_snapshots_close(store);
    find_snapshot("", path);
    assert_int_equal(mode_of(dir), 0700);
    assert_int_equal(mode_of(path), 0600);
    assert_true(chmod(dir, 0755) == 0 && chmod(path, 0644) == 0);
    fm_snapshots_close(open_store(&f, LIMIT));
    assert_int_equal(mode_of(dir), 0700);
    assert_int_equal(mode_of(path), 0600);
    snprintf(saved, sizeof saved, "%s/mine.state", dir);
    must(fm_session_save(f.sessions[0], saved, &err), &err);
    assert_int_equal(mode_of(saved), 0600);
    assert_int_equal(chmod(saved, 0664), 0);
    must(fm_session_load(f.sessions[0], saved, &err), &err);
    assert_int_equal(mode_of(saved), 0600);
    /* A folder that holds something else keeps its permissions. */
    snprintf(notes, sizeof notes, "%s/notes.txt", dir);
    FILE *file = fopen(notes, "w");
    assert_non_null(file);
    fclose(file);
    assert_true(chmod(dir, 0755) == 0 && chmod(path, 0644) == 0 && chmod(notes, 0644) == 0);
    fm_snapshots_close(open_store(&f, LIMIT));
    assert_int_equal(mode_of(dir), 0755);
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(mode_of(notes), 0644);
    tear_down(&f);
    clear_dir();
    (void)chmod(dir, 0700);
    (void)umask(before);
}

/* Nothing is read, written or removed through what others may have put there. */
static void test_prepared(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    struct fm_snapshots *store;
    struct text t = {.n = 0};
    struct stat st;
    char path[512], victim[160], part[640], mine[200], other[128];
    clear_dir();
    snprintf(other, sizeof other, "%s-other", dir);
    assert_int_equal(mkdir(other, 0700), 0);
    set_up(&f, 1);
    append(&f, &t, 101);
    store = open_store(&f, LIMIT);
    (void)keep(store, f.sessions[0], &t, 100);
    fm_snapshots_close(store);
    find_snapshot("", path);
    snprintf(victim, sizeof victim, "%s/victim", other);
    assert_int_equal(rename(path, victim), 0);
    /* A link is not a snapshot and is not removed to make room. */
    snprintf(part, sizeof part, "../%s", victim);
    assert_int_equal(symlink(part, path), 0);
    store = open_store(&f, 1);
    fm_session_reset(f.sessions[0]);
    assert_int_equal(fm_snapshots_restore(store, f.sessions[0], t.ids, t.n), 0);
    fm_snapshots_close(store);
    assert_true(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(unlink(path), 0);
    /* The temporary file is not written through a link either. */
    snprintf(mine, sizeof mine, "../%s", victim);
    snprintf(part, sizeof part, "%s.part", path);
    assert_int_equal(stat(victim, &st), 0);
    const off_t victim_bytes = st.st_size;
    assert_int_equal(symlink(mine, part), 0);
    store = open_store(&f, LIMIT);
    fm_session_reset(f.sessions[0]);
    must(fm_session_eval(f.sessions[0], t.ids, 100, &err), &err);
    assert_true(fm_snapshots_keep(store, f.sessions[0], &err) != 0);
    assert_non_null(strstr(err.text, "is in the way: it is a link"));
    fm_snapshots_close(store);
    assert_true(stat(victim, &st) == 0 && st.st_size == victim_bytes);
    assert_int_equal(unlink(part), 0);
    /* A snapshot that a user saved there has another name and is not evicted. */
    snprintf(mine, sizeof mine, "%s/mine.fmsnap", dir);
    assert_int_equal(rename(victim, mine), 0);
    fm_snapshots_close(open_store(&f, 1));
    assert_int_equal(stat(mine, &st), 0);
    tear_down(&f);
    (void)rmdir(other);
    clear_dir();
}

/* Refuses a folder or a file of another user. */
static void test_not_own(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    struct fm_snapshots *store;
    struct text t = {.n = 0};
    struct stat st;
    char path[512], other[128];
    if (geteuid() != 0)
        skip(); /* only root can give files away */
    clear_dir();
    snprintf(other, sizeof other, "%s-other", dir);
    assert_int_equal(mkdir(other, 0700), 0);
    set_up(&f, 1);
    append(&f, &t, 101);
    assert_int_equal(chown(other, 12345, 12345), 0);
    assert_true(fm_snapshots_open(f.model, other, LIMIT, &store, &err) != 0 && store == NULL);
    assert_non_null(strstr(err.text, "belongs to user 12345"));
    store = open_store(&f, LIMIT);
    (void)keep(store, f.sessions[0], &t, 100);
    fm_snapshots_close(store);
    find_snapshot("", path);
    assert_int_equal(chown(path, 12345, 12345), 0);
    fm_session_reset(f.sessions[0]);
    store = open_store(&f, 1);
    assert_int_equal(fm_snapshots_restore(store, f.sessions[0], t.ids, t.n), 0);
    fm_snapshots_close(store);
    assert_int_equal(stat(path, &st), 0);
    tear_down(&f);
    (void)rmdir(other);
    clear_dir();
}

/* Only one process writes; others only read. */
static void test_locked(void **state)
{
    (void)state;
    struct fixture f;
    struct text a = {.n = 0}, b = {.n = 0};
    struct stat st;
    char path[512], part[640];
    clear_dir();
    set_up(&f, 1);
    append(&f, &a, 101);
    append(&f, &b, 101);
    struct fm_snapshots *first = open_store(&f, LIMIT);
    const uint64_t one = keep(first, f.sessions[0], &a, 100).bytes;
    find_snapshot("", path);
    snprintf(part, sizeof part, "%s.part", path); /* as if the first were writing it */
    FILE *file = fopen(part, "w");
    assert_non_null(file);
    fclose(file);
    struct fm_snapshots *second = open_store(&f, one / 2);
    assert_true(stat(path, &st) == 0 && stat(part, &st) == 0);
    fm_session_reset(f.sessions[0]);
    assert_int_equal(fm_snapshots_restore(second, f.sessions[0], a.ids, a.n), 100);
    struct fm_snapshots_stats stats = keep(second, f.sessions[0], &b, 50);
    assert_int_equal(stats.n_written, 0);
    fm_snapshots_close(second);
    stats = keep(first, f.sessions[0], &b, 100);
    assert_true(stats.n_written == 2 && stats.n_files == 2);
    fm_snapshots_close(first);
    second = open_store(&f, LIMIT); /* the first has closed, so this one may write */
    assert_true(stat(part, &st) != 0);
    assert_int_equal(keep(second, f.sessions[0], &b, 50).n_written, 1);
    fm_snapshots_close(second);
    tear_down(&f);
    clear_dir();
}

/* ---- another model of the same shape -------------------------------------------------------- */

#define ROUTER "router"

/* Returns where a header has the tensor. The router of layer 2 has different names. */
static const char *find_tensor(const char *header, const char *tensor)
{
    static const char *const routers[] = {"\"model.layers.2.mlp.gate.weight\"",
                                          "\"model.layers.2.mlp.router.weight\"",
                                          "\"model.layers.2.block_sparse_moe.gate.weight\""};
    const char *at = strcmp(tensor, ROUTER) != 0 ? strstr(header, tensor) : NULL;
    for (size_t i = 0; strcmp(tensor, ROUTER) == 0 && at == NULL && i < 3; i++)
        at = strstr(header, routers[i]);
    return at;
}

static void copy_file(const char *from, const char *to, const char *tensor)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    struct stat st;
    assert_true(in != NULL && out != NULL && fstat(fileno(in), &st) == 0);
    const size_t n = (size_t)st.st_size;
    char *bytes = malloc(n + 1);
    assert_true(bytes != NULL && fread(bytes, 1, n, in) == n);
    bytes[n] = '\0';
    if (tensor != NULL) { /* flip one bit of its first weight */
        uint64_t header, offset;
        memcpy(&header, bytes, sizeof header);
        const char *at = find_tensor(bytes + 8, tensor);
        at = at != NULL ? strstr(at, "\"data_offsets\"") : NULL;
        at = at != NULL ? strchr(at, '[') : NULL;
        assert_non_null(at);
        offset = strtoull(at + 1, NULL, 10);
        bytes[8 + header + offset] ^= 1;
    }
    assert_true(fwrite(bytes, 1, n, out) == n);
    free(bytes);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* Copies the model to `to`, with one dense weight that differs in its last bit. */
static void copy_model(const char *to, const char *tensor)
{
    DIR *d = opendir(model_path);
    assert_true(d != NULL && mkdir(to, 0700) == 0);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char from[1024], path[1024];
        if (e->d_name[0] == '.')
            continue;
        snprintf(from, sizeof from, "%s/%s", model_path, e->d_name);
        snprintf(path, sizeof path, "%s/%s", to, e->d_name);
        struct stat st;
        if (stat(from, &st) == 0 && S_ISREG(st.st_mode))
            copy_file(from, path, strcmp(e->d_name, "model.safetensors") == 0 ? tensor : NULL);
    }
    closedir(d);
}

static void remove_model(const char *path)
{
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s'", path);
    assert_int_equal(system(command), 0);
}

/* Inserts text after the field's "name": in the copy's config.json. The field must occur once.
 * Returns false if this model cannot have the change: it has no such field, or has a scaling. */
static bool change_config(const char *copy, const char *field, const char *text)
{
    char path[256], bytes[8192];
    snprintf(path, sizeof path, "%s/config.json", copy);
    FILE *file = fopen(path, "rb");
    const size_t n = file != NULL ? fread(bytes, 1, sizeof bytes - 1, file) : 0;
    bytes[n] = '\0';
    const char *at = strstr(bytes, field);
    fclose(file);
    if (at == NULL || (strstr(text, "factor") != NULL && strstr(bytes, "\"factor\"") != NULL))
        return false;
    assert_null(strstr(at + 1, field));
    file = fopen(path, "wb");
    at += strlen(field);
    fprintf(file, "%.*s%s%s", (int)(at - bytes), bytes, text, at);
    assert_int_equal(fclose(file), 0);
    return true;
}

/* Saves 100 tokens of the model. Returns their text and the file's path. */
static struct text keep_some(char path[512])
{
    struct fixture f;
    struct text t = {.n = 0};
    clear_dir();
    set_up(&f, 1);
    append(&f, &t, 101);
    struct fm_snapshots *store = open_store(&f, LIMIT);
    (void)keep(store, f.sessions[0], &t, 100);
    fm_snapshots_close(store);
    find_snapshot("", path);
    tear_down(&f);
    return t;
}

/* Checks that the copy accepts or refuses the file from keep_some, then removes the copy. */
static void check_copy(const char *copy, const char *path, const struct text *t, bool is_same)
{
    const char *const original = model_path;
    struct fixture f;
    struct fm_error err = {0};
    model_path = copy;
    set_up(&f, 1);
    struct fm_snapshots *store = open_store(&f, LIMIT);
    assert_int_equal(fm_snapshots_restore(store, f.sessions[0], t->ids, t->n), is_same ? 100 : 0);
    fm_snapshots_close(store);
    const int rc = fm_session_load(f.sessions[0], path, &err);
    assert_true(is_same ? rc == 0 : rc != 0 && strstr(err.text, "another model") != NULL);
    tear_down(&f);
    model_path = original;
    remove_model(copy);
}

/* A model that was trained further has the same shape but other weights. */
static void test_other_weights(void **state)
{
    (void)state;
    static const char *const tensors[] = {"\"model.norm.weight\"",
                                          "\"model.embed_tokens.weight\"", ROUTER, NULL};
    char path[512], copy[128];
    const struct text t = keep_some(path);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        snprintf(copy, sizeof copy, "%s-copy", dir);
        copy_model(copy, tensors[i]);
        check_copy(copy, path, &t, tensors[i] == NULL);
    }
    clear_dir();
}

/* The same weights with another rotation, or any other field that changes the results. */
static void test_other_config(void **state)
{
    (void)state;
    static const struct {
        const char *field, *text;
    } changes[] = {
        {"\"rope_type\": ", "\"linear\", \"factor\": 2.0, \"type\": "},
        {"\"rope_type\": ", "\"yarn\", \"factor\": 2.0, \"type\": "},
        {"\"rope_type\": ", "\"yarn\", \"factor\": 4.0, \"type\": "},
        {"\"rope_type\": ", "\"yarn\", \"factor\": 2.0, \"attention_factor\": 1.5, \"type\": "},
        {"\"rope_theta\": ", "1"},
        {"\"rms_norm_eps\": ", "1"},
        {"\"swiglu_limit\": ", "1"},
        {"\"rope_theta\": ", ""},
    };
    char path[512], copy[128];
    unsigned n_changed = 0;
    const struct text t = keep_some(path);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        snprintf(copy, sizeof copy, "%s-copy", dir);
        copy_model(copy, NULL);
        if (change_config(copy, changes[i].field, changes[i].text)) {
            check_copy(copy, path, &t, changes[i].text[0] == '\0');
            n_changed++;
        } else {
            remove_model(copy);
        }
    }
    assert_true(n_changed >= 4);
    clear_dir();
}

/* ---- with correct checksums ----------------------------------------------------------------- */

#define AT_RECURRENT_BYTES 24
#define AT_N_TOKENS 56
#define AT_N_MARKS 60
#define AT_CHECKSUM 64
#define AT_IDS 72

static uint32_t number_at(const char *bytes, size_t at)
{
    uint32_t x;
    memcpy(&x, bytes + at, sizeof x);
    return x;
}

/* Writes the file with one number changed and with correct checksums. */
static void forge(const char *path, const char *sound, size_t n, size_t at, uint32_t number)
{
    char *bytes = malloc(n);
    assert_non_null(bytes);
    memcpy(bytes, sound, n);
    memcpy(bytes + at, &number, sizeof number);
    const size_t n_ids = number_at(bytes, AT_N_TOKENS) * sizeof(int32_t);
    const uint64_t sums[] = {XXH3_64bits(bytes, AT_CHECKSUM), XXH3_64bits(bytes + AT_IDS, n_ids),
                             XXH3_64bits(bytes + AT_IDS + n_ids,
                                         number_at(bytes, AT_N_MARKS) * sizeof(uint32_t))};
    const uint64_t head = XXH3_64bits(sums, sizeof sums);
    memcpy(bytes + AT_CHECKSUM, &head, sizeof head);
    const XXH128_hash_t all = XXH3_128bits(bytes, n - sizeof all);
    memcpy(bytes + n - sizeof all, &all, sizeof all);
    FILE *file = fopen(path, "wb");
    assert_true(file != NULL && fwrite(bytes, 1, n, file) == n);
    fclose(file);
    free(bytes);
}

/* Anyone who makes a file can make its checksums, so every number is checked on its own. */
static void test_forged(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    struct fm_model_options options = {.size = sizeof options};
    struct text t = {.n = 0};
    struct stat st;
    char path[128];
    set_up(&f, 2);
    append(&f, &t, 120);
    must(fm_session_eval(f.sessions[0], t.ids, 100, &err), &err);
    must(fm_session_eval(f.sessions[0], t.ids + 100, 20, &err), &err);
    snprintf(path, sizeof path, "%s/forged.state", dir);
    must(fm_session_save(f.sessions[0], path, &err), &err);
    assert_int_equal(stat(path, &st), 0);
    const size_t n = (size_t)st.st_size;
    char *sound = malloc(n);
    FILE *file = fopen(path, "rb");
    assert_true(sound != NULL && file != NULL && fread(sound, 1, n, file) == n);
    fclose(file);
    const uint32_t n_marks = number_at(sound, AT_N_MARKS);
    assert_true(n_marks > 0 || number_at(sound, AT_RECURRENT_BYTES) == 0);
    const size_t first_mark = AT_IDS + 120 * sizeof(int32_t);
    const struct {
        size_t at;
        uint32_t number;
    } lies[] = {{AT_IDS, f.info.vocabulary}, {AT_IDS + 4, UINT32_MAX}, {first_mark, 0},
                {first_mark, 121}};
    forge(path, sound, n, AT_IDS, number_at(sound, AT_IDS));
    must(fm_session_load(f.sessions[1], path, &err), &err); /* the session still works */
    for (unsigned i = 0; i < (n_marks > 0 ? 4 : 2); i++) {
        forge(path, sound, n, lies[i].at, lies[i].number);
        assert_true(fm_session_load(f.sessions[1], path, &err) != 0);
        assert_non_null(strstr(err.text, "is damaged"));
        assert_int_equal(fm_session_position(f.sessions[1]), 0);
    }
    must(fm_session_save(f.sessions[0], path, &err), &err);
    tear_down(&f);

    /* A good file with a longer context. */
    f = (struct fixture){0};
    options.n_context = 100;
    options.n_marks = 4;
    must(fm_model_open(model_path, &options, &f.model, &err), &err);
    must(fm_session_open(f.model, &f.sessions[0], &err), &err);
    assert_true(fm_session_load(f.sessions[0], path, &err) != 0);
    assert_non_null(strstr(err.text, "--context"));
    tear_down(&f);
    free(sound);
    clear_dir();
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    model_path = argv[1];
    snprintf(dir, sizeof dir, "snapshot-files-%d", (int)getpid());
    (void)mkdir(dir, 0700);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_private), cmocka_unit_test(test_prepared),
        cmocka_unit_test(test_not_own), cmocka_unit_test(test_locked),
        cmocka_unit_test(test_other_weights), cmocka_unit_test(test_other_config),
        cmocka_unit_test(test_forged),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    clear_dir();
    (void)rmdir(dir);
    return rc;
}
