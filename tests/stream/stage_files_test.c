/* stage_files_test: a stage needs only the files of its own layers, and has the same weights
 * whether or not the others exist. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "flashmoe_lab.h"

#define N_LAYERS 8
#define PATH_BYTES 512

static char folder[64];

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static void make_model_as(enum fm_synth_form form, const char *format, uint64_t split_bytes,
                          const char *name, char path[PATH_BYTES])
{
    const uint32_t numbers[FM_SYNTH_NUMBERS] = {
        [FM_SYNTH_LAYERS] = N_LAYERS, [FM_SYNTH_HIDDEN] = 64,
        [FM_SYNTH_HEADS] = 2,         [FM_SYNTH_KV_HEADS] = 1,
        [FM_SYNTH_HEAD_DIM] = 64,     [FM_SYNTH_EXPERTS] = 4,
        [FM_SYNTH_USED] = 2,          [FM_SYNTH_EXPERT_WIDTH] = 64,
        [FM_SYNTH_SHARED_WIDTH] = 64, [FM_SYNTH_KEY_HEADS] = 1,
        [FM_SYNTH_VALUE_HEADS] = 2,   [FM_SYNTH_KEY_DIM] = 64,
        [FM_SYNTH_VALUE_DIM] = 64,    [FM_SYNTH_VOCAB] = 512,
    };
    const struct fm_synth_options options = {
        .size = sizeof options, .form = form, .split_bytes = split_bytes, .numbers = numbers,
        .n_numbers = FM_SYNTH_NUMBERS, .experts = format, .dense = format, .seed = 1};
    struct fm_error err = {0};
    (void)snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    must(fm_synth("coder-next", path, &options, NULL, &err), &err);
}

static void make_model(enum fm_synth_form form, const char *name, char path[PATH_BYTES])
{
    make_model_as(form, NULL, 64 << 10, name, path); /* a layer is more than a file holds */
}

static int open_layers(const char *path, uint32_t first, uint32_t end, struct model **model,
                       struct fm_error *err)
{
    const struct model_options options = {.families = arch_families(), .first_layer = first,
                                          .end_layer = end};
    return model_open(path, &options, model, err);
}

/* Returns the layer that a tensor belongs to, or -1. */
static int layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    return at != NULL ? atoi(at + strlen("layers.")) : -1;
}

/* Removes the files that hold only weights of other layers. Returns their number. */
static unsigned remove_others(const char *path, int first, int end)
{
    struct model *whole;
    struct fm_error err = {0};
    unsigned n = 0;
    must(open_layers(path, 0, 0, &whole, &err), &err);
    const struct source *source = whole->source;
    for (unsigned f = 0; f < source->n_files; f++) {
        bool is_own = source->packed != NULL && f == 0; /* dense.bin */
        for (size_t i = 0; i < source->n_tensors; i++) {
            const int layer = layer_of(source->tensors[i].name);
            for (unsigned p = 0; p < source->tensors[i].n_parts; p++)
                is_own |= source->tensors[i].parts[p].file == f && layer >= first && layer < end;
        }
        if (is_own)
            continue;
        assert_int_equal(unlink(source->files[f].path), 0);
        n++;
    }
    model_close(whole);
    return n;
}

static void same_weights(const struct model *a, const struct model *b)
{
    assert_int_equal(a->n_expert_layers, b->n_expert_layers);
    assert_int_equal(a->first_expert_layer, b->first_expert_layer);
    assert_true(a->dense_bytes == b->dense_bytes && a->dense_bytes > 0);
    assert_memory_equal(a->dense, b->dense, a->dense_bytes);
    for (uint32_t i = 0; i < a->n_expert_layers; i++)
        assert_int_equal(a->expert_layers[i].layer, b->expert_layers[i].layer);
}

static void check_stage(const char *path, uint32_t first, uint32_t end)
{
    struct model *before, *after, *none;
    struct fm_error err = {0};
    must(open_layers(path, first, end, &before, &err), &err);
    must(model_load_dense(before, &memory_host, true, NULL, NULL, &err), &err);
    assert_int_equal(before->n_expert_layers, end - first);
    assert_int_equal(before->first_expert_layer, first);
    assert_true(remove_others(path, (int)first, (int)end) > 0);
    must(open_layers(path, first, end, &after, &err), &err);
    must(model_load_dense(after, &memory_host, true, NULL, NULL, &err), &err);
    same_weights(before, after);
    /* Other stages name the file they miss. */
    assert_int_equal(open_layers(path, 0, 0, &none, &err), FM_ERR_IO);
    assert_non_null(strstr(err.text, "is missing"));
    assert_int_equal(open_layers(path, first - 1, end, &none, &err), FM_ERR_IO);
    assert_non_null(strstr(err.text, "is missing"));
    model_close(before);
    model_close(after);
}

static void test_packed(void **state)
{
    char path[PATH_BYTES];
    (void)state;
    make_model(FM_SYNTH_PACKED, "packed.fmoe", path);
    check_stage(path, 2, 5);
}

static void test_shards(void **state)
{
    char path[PATH_BYTES];
    (void)state;
    make_model(FM_SYNTH_SAFETENSORS, "shards", path);
    check_stage(path, 3, 6);
}

/* Codes, scales and biases of one matrix may be in different shards, in the same and in other
 * layers. */
static void test_quantised_shards(void **state)
{
    (void)state;
    for (unsigned kib = 2; kib <= 40; kib++) {
        char name[32], path[PATH_BYTES];
        (void)snprintf(name, sizeof name, "mlx-%u", kib);
        make_model_as(FM_SYNTH_SAFETENSORS, "affine4-g64", kib << 10, name, path);
        check_stage(path, 3, 6);
    }
}

struct seen {
    uint64_t done, total;
};

static void see(void *ctx, uint64_t done, uint64_t total)
{
    *(struct seen *)ctx = (struct seen){done, total};
}

/* Progress ends at its total, in one stage and in two. */
static void test_progress(void **state)
{
    char path[PATH_BYTES];
    (void)state;
    make_model(FM_SYNTH_PACKED, "progress.fmoe", path);
    const struct fm_stage_options stages[] = {
        {.size = sizeof stages[0], .n_layers = 3, .memory_bytes = 64 << 20, .n_threads = 1},
        {.size = sizeof stages[0], .n_layers = 5, .memory_bytes = 64 << 20, .n_threads = 1}};
    for (unsigned n = 0; n <= 2; n += 2) {
        struct seen seen = {0, 0};
        const struct fm_model_options options = {
            .size = sizeof options, .memory_bytes = 64 << 20, .n_context = 64, .progress = see,
            .progress_ctx = &seen, .stages = stages, .n_stages = n};
        struct fm_model *model;
        struct fm_error err = {0};
        must(fm_model_open(path, &options, &model, &err), &err);
        assert_true(seen.total > 0 && seen.done == seen.total);
        fm_model_close(model);
    }
}

/* A model without its weights has no snapshots and no plan for stages. */
static void test_headers_only(void **state)
{
    char path[PATH_BYTES];
    (void)state;
    make_model(FM_SYNTH_PACKED, "headers.fmoe", path);
    const struct fm_model_options headers = {.size = sizeof headers, .metadata_only = true};
    const struct fm_stage_options stages[] = {{.size = sizeof stages[0], .n_layers = 4},
                                              {.size = sizeof stages[0], .n_layers = 4}};
    const struct fm_model_options cut = {.size = sizeof cut, .stages = stages, .n_stages = 2};
    struct fm_plan plan = {.size = sizeof plan};
    struct fm_snapshots *snapshots;
    struct fm_model *model;
    struct fm_error err = {0};
    must(fm_model_open(path, &headers, &model, &err), &err);
    assert_int_equal(fm_snapshots_open(model, folder, 1 << 20, &snapshots, &err), FM_ERR_ARG);
    assert_int_equal(fm_model_plan(model, &cut, &plan, &err), FM_ERR_ARG);
    fm_model_close(model);
}

/* The first and last layer of a stage must exist in the model. */
static void test_wrong_layers(void **state)
{
    static const uint32_t wrong[][2] = {{4, 4}, {5, 4}, {0, N_LAYERS + 1}, {N_LAYERS, 9}};
    char path[PATH_BYTES];
    struct model *model;
    (void)state;
    make_model(FM_SYNTH_PACKED, "whole.fmoe", path);
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct fm_error err = {0};
        assert_int_equal(open_layers(path, wrong[i][0], wrong[i][1], &model, &err), FM_ERR_ARG);
        assert_non_null(strstr(err.text, "has the layers 0 to 7"));
    }
}

/* A stage without layers, too many of them, and one without memory are refused. */
static void test_wrong_stages(void **state)
{
    static const struct {
        unsigned n_layers;
        uint64_t memory_bytes; /* of the second stage */
    } wrong[] = {{0, 64 << 20}, {5, 64 << 20}, {3, 64 << 20}, {(unsigned)-4, 64 << 20}, {4, 0}};
    char path[PATH_BYTES];
    struct fm_model *model;
    (void)state;
    make_model(FM_SYNTH_PACKED, "cut.fmoe", path);
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct fm_error err = {0};
        const struct fm_stage_options stages[] = {
            {.size = sizeof stages[0], .n_layers = wrong[i].n_layers == 0 ? N_LAYERS : 4,
             .memory_bytes = 64 << 20, .n_threads = 1},
            {.size = sizeof stages[0], .n_layers = wrong[i].n_layers,
             .memory_bytes = wrong[i].memory_bytes, .n_threads = 1}};
        const struct fm_model_options options = {.size = sizeof options, .stages = stages,
                                                 .n_stages = 2};
        assert_int_equal(fm_model_open(path, &options, &model, &err), FM_ERR_ARG);
        assert_non_null(strstr(err.text, "stage 1"));
    }
}

static int make_folder(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%.40s/flashmoe-XXXXXX", tmp != NULL ? tmp : "/tmp");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_quantised_shards),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_headers_only),
        cmocka_unit_test(test_wrong_layers),
        cmocka_unit_test(test_wrong_stages),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
