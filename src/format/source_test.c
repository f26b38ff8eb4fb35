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

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "format/directory.h"
#include "format/source.h"

/* ---- a directory per test, in the directory the test runs in ----------------------------- */

static char dir[64];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "source_test.XXXXXX");
    return mkdtemp(dir) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    DIR *d = opendir(dir);
    if (d == NULL)
        return -1;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)remove(path);
    }
    (void)closedir(d);
    return rmdir(dir);
}

static void put(const char *name, const void *bytes, size_t n)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

/* A safetensors file whose n_data data bytes count up from `first`. */
static void put_tensors(const char *name, const char *json, unsigned n_data, unsigned first)
{
    unsigned char file[4096] = {0};
    size_t n = strlen(json);
    assert_true(8 + n + n_data <= sizeof file);
    file[0] = (unsigned char)n;
    file[1] = (unsigned char)(n >> 8);
    memcpy(file + 8, json, n);
    for (unsigned i = 0; i < n_data; i++)
        file[8 + n + i] = (unsigned char)(first + i);
    put(name, file, 8 + n + n_data);
}

static void check_refused_at(const char *path, int code, const char *message)
{
    struct source *source = NULL;
    struct fm_error err = {0};
    assert_int_equal(source_open(path, &(struct source_options){0}, &source, &err), code);
    assert_null(source);
    assert_string_equal(err.text, message);
    assert_int_equal(err.code, code);
}

/* Every %s of `format` stands for the directory. */
static void check_refused(int code, const char *format)
{
    char message[FM_ERROR_BYTES] = "";
    for (const char *p = format; *p != '\0'; p++) {
        bool is_dir = p[0] == '%' && p[1] == 's';
        size_t used = strlen(message);
        (void)snprintf(message + used, sizeof message - used, is_dir ? "%s" : "%.1s",
                       is_dir ? dir : p);
        p += is_dir;
    }
    check_refused_at(dir, code, message);
}

#define U8(name, n, begin, end) \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" n "],\"data_offsets\":[" begin "," end "]}"
#define INDEX(map) "{\"metadata\":{\"total_size\":1},\"weight_map\":{" map "}}"
#define IN(tensor, shard) "\"" tensor "\":\"" shard ".safetensors\""
#define EXPECTED SOURCE_EXPECTED
#define INDEX_NAME "model.safetensors.index.json"

/* ---- checkpoints that open --------------------------------------------------------------- */

static void check_bytes(const struct source *s, const char *name, unsigned n, unsigned first)
{
    const struct tensor_info *t = source_find(s, name);
    assert_non_null(t);
    assert_int_equal(t->parts[0].bytes, n);
    unsigned char bytes[64];
    assert_true(t->parts[0].file < s->n_files && n <= sizeof bytes);
    const struct source_file *f = &s->files[t->parts[0].file];
    assert_int_equal(plat_read_at(f->fd, f->path, bytes, n, t->parts[0].offset, NULL), 0);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(bytes[i], first + i);
}

static void test_single_file(void **state)
{
    (void)state;
    put_text("config.json", "{\"model_type\":\"m\"}");
    put_tensors("model.safetensors",
                "{\"w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                U8("b", "4", "0", "4") "}", 16, 100);
    char slashed[80];
    (void)snprintf(slashed, sizeof slashed, "%s/", dir);
    struct source *s = NULL;
    struct fm_error err = {0};
    assert_int_equal(source_open(slashed, &(struct source_options){0}, &s, &err), 0);
    assert_int_equal(s->n_files, 1);
    assert_int_equal(s->n_tensors, 2);
    assert_string_equal(s->tensors[0].name, "b");
    assert_string_equal(s->tensors[1].name, "w");
    assert_string_equal(json_string_value(jdoc_find(s->config.root, "model_type")), "m");
    check_bytes(s, "w", 12, 104);
    check_bytes(s, "b", 4, 100);
    assert_null(source_find(s, "a"));
    assert_null(source_find(s, "bb"));
    assert_null(source_find(s, "x"));
    source_close(s);
    source_close(NULL);
}

/* Writes three shards. In the second one, the data begins at an odd offset, and the tensors are
 * unordered with a gap between them. The index lists tensors in another order than the shards. */
static void put_sharded(void)
{
    put_text("config.json", "{}");
    put_tensors("s1.safetensors", "{" U8("a", "4", "0", "4") "," U8("d", "2", "4", "6") "}", 6, 10);
    const char *odd = "{" U8("e", "3", "9", "12") "," U8("b", "7", "0", "7") "} ";
    assert_int_equal(strlen(odd) % 2, 1);
    put_tensors("s2.safetensors", odd, 12, 40);
    put_tensors("s3.safetensors", "{" U8("c", "5", "0", "5") "}", 5, 80);
    put_text(INDEX_NAME, INDEX(IN("e", "s2") "," IN("a", "s1") "," IN("c", "s3") ","
                               IN("b", "s2") "," IN("d", "s1")));
}

static void test_sharded_odd_and_shuffled(void **state)
{
    (void)state;
    put_sharded();
    put_text("model.safetensors", "left alone: the index counts");
    struct source *s = NULL;
    struct fm_error err = {0};
    assert_int_equal(source_open(dir, &(struct source_options){0}, &s, &err), 0);
    assert_int_equal(s->n_files, 3);
    assert_int_equal(s->n_tensors, 5);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(s->tensors[i].name[0], 'a' + (int)i);
    assert_int_equal(source_find(s, "b")->parts[0].offset % 2, 1);
    check_bytes(s, "a", 4, 10);
    check_bytes(s, "b", 7, 40);
    check_bytes(s, "c", 5, 80);
    check_bytes(s, "d", 2, 14);
    check_bytes(s, "e", 3, 49);
    source_close(s);
}

static int n_lines;
static char last_line[FM_ERROR_BYTES];

static void record_line(void *ctx, int level, const char *module, const char *text)
{
    (void)ctx;
    n_lines += level == FM_LOG_WARN && strcmp(module, "format") == 0;
    (void)snprintf(last_line, sizeof last_line, "%s", text);
}

static void test_tensors_not_in_the_index_are_left_out(void **state)
{
    (void)state;
    put_text("config.json", "{}");
    put_tensors("s.safetensors", "{" U8("a", "1", "0", "1") "," U8("b", "1", "1", "2") ","
                U8("c", "1", "2", "3") "}", 3, 0);
    put_text(INDEX_NAME, INDEX(IN("b", "s")));
    n_lines = 0;
    log_set_sink(record_line, NULL);
    struct source *s = NULL;
    assert_int_equal(source_open(dir, &(struct source_options){0}, &s, NULL), 0);
    log_set_sink(NULL, NULL);
    assert_int_equal(n_lines, 1);
    assert_non_null(strstr(last_line, "does not list 2 tensors of the shards, which are ignored; "
                           "the first is 'a'"));
    assert_int_equal(s->n_tensors, 1);
    check_bytes(s, "b", 1, 1);
    assert_null(source_find(s, "a"));
    source_close(s);
}

/* ---- checkpoints that are refused -------------------------------------------------------- */

static void test_paths_that_are_no_checkpoint(void **state)
{
    (void)state;
    check_refused_at("", FM_ERR_ARG, "the path of the model is empty: " EXPECTED);
    check_refused_at("does/not/exist", FM_ERR_IO,
                     "cannot open 'does/not/exist': No such file or directory; " EXPECTED);
    check_refused(FM_ERR_FORMAT, "'%s' has neither model.json nor config.json: " EXPECTED);
    char path[128], message[FM_ERROR_BYTES];
    put_text("config.json", "{}");
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    (void)snprintf(message, sizeof message, "'%s' is not a directory: " EXPECTED, path);
    check_refused_at(path, FM_ERR_ARG, message);
}

static void test_directories_without_weights(void **state)
{
    (void)state;
    put_text("config.json", "{}");
    check_refused(FM_ERR_FORMAT, "'%s' has neither model.safetensors.index.json nor "
                                 "model.safetensors: " EXPECTED);
    put_text("pytorch_model.bin", "");
    check_refused(FM_ERR_UNSUPPORTED, "'%s' has its weights in 'pytorch_model.bin': this version "
                                      "reads safetensors and GGUF; " EXPECTED);
    put_text("consolidated.00.pth", "");
    check_refused(FM_ERR_UNSUPPORTED, "'%s' has its weights in 'consolidated.00.pth': this version "
                                      "reads safetensors and GGUF; " EXPECTED);
    put_text("model-00001-of-00002.safetensors", "");
    check_refused(FM_ERR_FORMAT,
                  "'%s' has 'model-00001-of-00002.safetensors', but neither "
                  "model.safetensors.index.json nor model.safetensors to say which files belong "
                  "to the model");
}

static void test_files_that_are_damaged(void **state)
{
    (void)state;
    put_text("config.json", "{}");
    put_text("model.safetensors", "short");
    check_refused(FM_ERR_FORMAT,
                  "%s/model.safetensors: 5 bytes, too short for a safetensors file, which begins "
                  "with 8 bytes of header length");
    put_tensors("model.safetensors", "{" U8("t", "4", "0", "4") "}", 3, 0);
    check_refused(FM_ERR_FORMAT,
                  "%s/model.safetensors: tensor 't': data_offsets [0, 4] end beyond the file, "
                  "which has 3 bytes after its header");
    put_text("config.json", "[]");
    check_refused(FM_ERR_FORMAT, "%s/config.json: the JSON root is not an object");
}

static void test_indexes_that_are_refused(void **state)
{
    (void)state;
    put_text("config.json", "{}");
    put_text(INDEX_NAME, "{}");
    check_refused(FM_ERR_FORMAT, "%s/" INDEX_NAME ": field 'weight_map' is missing, expected an "
                                 "object that names the shard of each tensor");
    put_text(INDEX_NAME, "{\"weight_map\":[\"x\"]}");
    check_refused(FM_ERR_FORMAT, "%s/" INDEX_NAME ": field 'weight_map' is [\"x\"], expected an "
                                 "object that names the shard of each tensor");
    put_text(INDEX_NAME, INDEX(""));
    check_refused(FM_ERR_FORMAT, "%s/" INDEX_NAME ": field 'weight_map' is {}, expected an "
                                 "object that names the shard of each tensor");
    const char *const bad[] = {"7", "\"\"", "\"../s\"", "\"a/s\"", "\"..\"", "\"/etc/s\""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[256], message[FM_ERROR_BYTES];
        (void)snprintf(text, sizeof text, "{\"weight_map\":{\"t\":%s}}", bad[i]);
        put_text(INDEX_NAME, text);
        (void)snprintf(message, sizeof message,
                       "%s/" INDEX_NAME ": weight_map places tensor 't' in %s, expected the name "
                       "of a file in the same directory", "%s", bad[i]);
        check_refused(FM_ERR_FORMAT, message);
    }
    put_text(INDEX_NAME, INDEX(IN("t", "s")));
    check_refused(FM_ERR_IO, "'s.safetensors' is missing, but '%s/" INDEX_NAME "' names it");
}

static void test_too_many_shards(void **state)
{
    (void)state;
    put_text("config.json", "{}");
    size_t capacity = (LIMIT_SHARDS + 1) * 32, used = 0;
    char *text = malloc(capacity);
    assert_non_null(text);
    used += (size_t)snprintf(text, capacity, "{\"weight_map\":{");
    for (unsigned i = 0; i <= LIMIT_SHARDS; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s\"%u\":\"s%u\"",
                                 i == 0 ? "" : ",", i, i);
    (void)snprintf(text + used, capacity - used, "}}");
    put_text(INDEX_NAME, text);
    free(text);
    check_refused(FM_ERR_FORMAT, "%s/" INDEX_NAME ": lists 4097 shards, more than the limit of "
                  "4096");
}

static void test_shards_that_contradict_the_index(void **state)
{
    (void)state;
    put_text("config.json", "{}");
    put_tensors("s1.safetensors", "{" U8("a", "1", "0", "1") "}", 1, 0);
    put_tensors("s2.safetensors", "{" U8("b", "1", "0", "1") "}", 1, 0);
    put_text(INDEX_NAME, INDEX(IN("a", "s1") "," IN("b", "s2") "," IN("c", "s2")));
    check_refused(FM_ERR_FORMAT, "%s/" INDEX_NAME ": places tensor 'c' in shard 's2.safetensors', "
                  "which does not contain it");
    put_text(INDEX_NAME, INDEX(IN("a", "s2") "," IN("b", "s1")));
    check_refused(FM_ERR_FORMAT, "%s/" INDEX_NAME ": places tensor 'a' in shard 's2.safetensors', "
                  "which does not contain it");
    put_tensors("s2.safetensors", "{" U8("b", "1", "0", "1") "," U8("a", "1", "1", "2") "}", 2, 0);
    put_text(INDEX_NAME, INDEX(IN("a", "s1") "," IN("b", "s2")));
    check_refused(FM_ERR_FORMAT, "tensor 'a' occurs twice: in '%s/s1.safetensors' and "
                  "'%s/s2.safetensors'");
}

static unsigned n_open_files(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += lseek(fd, 0, SEEK_CUR) >= 0;
    return n;
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    put_sharded();
    unsigned n_open = n_open_files();
    long nth = 1;
    for (;; nth++) {
        struct source *s = NULL;
        struct fm_error err = {0};
        mem_fail_at(nth);
        int rc = source_open(dir, &(struct source_options){0}, &s, &err);
        mem_fail_at(0);
        if (rc == 0) {
            source_close(s);
            break;
        }
        assert_int_equal(rc, FM_ERR_NOMEM);
        assert_int_equal(err.code, FM_ERR_NOMEM);
        assert_null(s);
        assert_int_equal(n_open_files(), n_open);
    }
    assert_true(nth > 10);
    assert_int_equal(n_open_files(), n_open);
}

static void test_shape_text(void **state)
{
    (void)state;
    struct tensor_info t = {.n_dims = 3, .dims = {16, 128, UINT64_MAX}};
    char text[64], small[8], one[1];
    assert_string_equal(tensor_info_shape(&t, text, sizeof text),
                        "[16, 128, 18446744073709551615]");
    assert_string_equal(tensor_info_shape(&t, small, sizeof small), "[16, 12");
    assert_string_equal(tensor_info_shape(&t, one, sizeof one), "");
    t.n_dims = 0;
    assert_string_equal(tensor_info_shape(&t, text, sizeof text), "[]");
}

#define IN_DIRECTORY(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(test_single_file),
        IN_DIRECTORY(test_sharded_odd_and_shuffled),
        IN_DIRECTORY(test_tensors_not_in_the_index_are_left_out),
        IN_DIRECTORY(test_paths_that_are_no_checkpoint),
        IN_DIRECTORY(test_directories_without_weights),
        IN_DIRECTORY(test_files_that_are_damaged),
        IN_DIRECTORY(test_indexes_that_are_refused),
        IN_DIRECTORY(test_too_many_shards),
        IN_DIRECTORY(test_shards_that_contradict_the_index),
        IN_DIRECTORY(test_every_allocation_may_fail),
        cmocka_unit_test(test_shape_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
