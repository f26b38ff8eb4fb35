/* draft_fault_test MODEL: a draft that cannot be computed ends nothing. MODEL is copied, and the
 * embedding of one token becomes NaN there. Drafts of that token fail; the token before them is
 * computed all the same, with the bits that it has without drafts. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "flashmoe_lab.h"

#define BAD_TOKEN 7
#define N_TEXT 24

static const char *model_path;
static char copy_path[64];
static unsigned n_bad_drafts;

uint32_t __wrap_draft_look_up(const int32_t *ids, uint32_t n, int32_t id, uint32_t min_match,
                              int32_t *drafts, uint32_t max, uint32_t *match);

/* Every third token gets drafts of the bad token, the others get some of a good one. */
uint32_t __wrap_draft_look_up(const int32_t *ids, uint32_t n, int32_t id, uint32_t min_match,
                              int32_t *drafts, uint32_t max, uint32_t *match)
{
    (void)ids, (void)id;
    *match = min_match;
    for (uint32_t i = 0; i < max; i++)
        drafts[i] = n % 3 == 0 && i + 1 == max ? BAD_TOKEN : 20;
    n_bad_drafts += n % 3 == 0 && max > 0;
    return max;
}

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

/* ---- the copy -------------------------------------------------------------------------------- */

static char *read_file(const char *folder, const char *name, size_t *bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    data[*bytes] = '\0';
    fclose(file);
    return data;
}

static void write_copy(const char *name, const char *data, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", copy_path, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Fills the token's row of the embedding, [vocabulary, hidden], with ones in all bits: NaN. */
static void spoil_embedding(char *data, unsigned vocabulary)
{
    static const char name[] = "\"model.embed_tokens.weight\"", key[] = "\"data_offsets\":";
    uint64_t header_bytes;
    memcpy(&header_bytes, data, sizeof header_bytes);
    char *header = data + sizeof header_bytes, *at = strstr(header, name);
    assert_non_null(at);
    at = strstr(at, key);
    assert_non_null(at);
    at = strchr(at, '[') + 1;
    const uint64_t begin = strtoull(at, &at, 10), end = strtoull(strchr(at, ',') + 1, NULL, 10);
    const uint64_t row = (end - begin) / vocabulary;
    memset(header + header_bytes + begin + BAD_TOKEN * row, 0xff, row);
}

static void make_copy(unsigned vocabulary)
{
    DIR *dir = opendir(model_path);
    assert_non_null(dir);
    snprintf(copy_path, sizeof copy_path, "draft_fault-XXXXXX");
    assert_non_null(mkdtemp(copy_path));
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        size_t bytes;
        char *data = read_file(model_path, entry->d_name, &bytes);
        if (strcmp(entry->d_name, "model.safetensors") == 0)
            spoil_embedding(data, vocabulary);
        write_copy(entry->d_name, data, bytes);
        free(data);
    }
    closedir(dir);
}

static void remove_copy(void)
{
    DIR *dir = opendir(copy_path);
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (entry->d_name[0] != '.')
            assert_int_equal(unlinkat(dirfd(dir), entry->d_name, 0), 0);
    closedir(dir);
    assert_int_equal(rmdir(copy_path), 0);
}

/* ---- the test -------------------------------------------------------------------------------- */

static struct fm_stats run(unsigned n_drafts, char hash[33])
{
    struct fm_model_options o = {.size = sizeof o, .n_context = 64, .n_drafts = n_drafts,
                                 .draft = FM_ON, .n_threads = 1};
    struct fm_stats stats = {.size = sizeof stats};
    struct fm_error err = {0};
    struct fm_model *model;
    struct fm_session *session;
    must(fm_model_open(copy_path, &o, &model, &err), &err);
    must(fm_session_open(model, &session, &err), &err);
    for (int32_t i = 0; i < N_TEXT; i++) {
        const int32_t id = 8 + i * 5;
        must(fm_session_eval(session, &id, 1, &err), &err);
        assert_int_equal(fm_session_failure(session)->code, 0);
        assert_int_equal(fm_session_position(session), i + 1);
    }
    fm_session_logits_hash(session, hash);
    assert_int_equal(fm_model_stats(model, &stats), 0);
    const int32_t bad = BAD_TOKEN; /* given by the caller, it fails */
    assert_int_equal(fm_session_eval(session, &bad, 1, &err), FM_ERR_FORMAT);
    fm_session_close(session);
    fm_model_close(model);
    return stats;
}

static void test_bad_drafts(void **state)
{
    struct fm_model_options o = {.size = sizeof o, .metadata_only = true};
    struct fm_model_info info = {.size = sizeof info};
    struct fm_error err = {0};
    struct fm_model *model;
    char plain[33], drafted[33];
    (void)state;
    must(fm_model_open(model_path, &o, &model, &err), &err);
    fm_model_info(model, &info);
    fm_model_close(model);
    make_copy(info.vocabulary);
    (void)run(0, plain);
    n_bad_drafts = 0;
    for (unsigned n = 1; n <= 4; n++) {
        const struct fm_stats stats = run(n, drafted);
        assert_string_equal(drafted, plain);
        assert_true(stats.n_drafted[0] > 0);                    /* the good drafts */
        assert_true(stats.n_decode_passes > stats.n_decode_tokens); /* the bad ones, again */
    }
    assert_true(n_bad_drafts > 4);
    remove_copy();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bad_drafts)};
    model_path = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
