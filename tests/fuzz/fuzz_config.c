/* Fuzzes config.json. The input replaces the configuration of a golden checkpoint, whose weights
 * are real. A model that opens must keep the promises of model.h and evaluate two tokens. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define GOLDEN FLASHMOE_TEST_DIR "/golden/"
#define CONTEXT 4

static void require(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

/* Returns the checkpoint whose model type the bytes contain, so that many inputs can fit. */
static const char *template_for(const uint8_t *data, size_t size)
{
    static const struct {
        const char *model_type, *golden;
    } known[] = {
        {"qwen3_moe", GOLDEN "qwen3_moe"}, {"qwen3_5_moe", GOLDEN "qwen3_5_moe_text"},
        {"glm4_moe", GOLDEN "glm4_moe"},   {"minimax_m2", GOLDEN "minimax_m2"},
        {"mixtral", GOLDEN "mixtral"},     {"olmoe", GOLDEN "olmoe"},
        {"qwen2_moe", GOLDEN "qwen2_moe"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (memmem(data, size, known[i].model_type, strlen(known[i].model_type)) != NULL)
            return known[i].golden;
    return GOLDEN "qwen3_next";
}

static void check_experts(const struct model *model)
{
    for (uint32_t l = 0; l < model->n_expert_layers; l++) {
        const struct expert_layer *layer = &model->expert_layers[l];
        require(layer->layer < model->shape.n_layers, "an expert layer is a layer");
        require(layer->n_experts == model->shape.n_experts, "all layers have the same experts");
        require(layer->record.bytes <= model->expert_slot_bytes, "a slot holds any expert");
        for (uint64_t i = 0; i < (uint64_t)layer->n_experts * layer->n_extents; i++) {
            const struct extent *e = &layer->extents[i];
            require(e->file < model->source->n_files, "an extent has a file");
            require(e->offset + e->bytes <= model->source->files[e->file].bytes,
                    "an extent lies inside its file");
            require(e->slot_offset + e->bytes <= layer->record.bytes,
                    "an extent lies inside its slot");
        }
    }
}

static void check_sizes(const struct model *model)
{
    const struct model_shape *s = &model->shape;
    require(s->n_layers >= 1 && s->n_layers <= LIMIT_LAYERS, "the number of layers is bounded");
    require(s->n_experts_per_token >= 1 && s->n_experts_per_token <= s->n_experts &&
                s->n_experts_per_token <= LIMIT_TOP_K, "top-k is possible");
    require(s->max_context >= 1 && s->max_context <= LIMIT_CONTEXT, "the context is bounded");
    require(model->dense_token_bytes <= model->dense_bytes, "a token reads what is there");
    require(model->n_stop_tokens <= LIMIT_STOP_TOKENS, "the stop tokens are bounded");
    uint64_t smaller = 0;
    static const uint32_t rows[] = {1, 64, 512, LIMIT_CONTEXT};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct forward_options options = {.max_rows = rows[i], .max_segments = 1,
                                                .n_context = s->max_context,
                                                .kv_format = &kv_f32};
        const uint64_t scratch = forward_row_bytes(model, &options) +
                                 forward_host_bytes(model, &options);
        struct sequence_blocks blocks;
        require(scratch > smaller, "more rows take more scratch");
        sequence_blocks(model, &kv_f32, rows[i], &blocks);
        require(sequence_kv_bytes(&blocks, rows[i]) < UINT64_MAX, "a sequence has a size");
        smaller = scratch;
    }
}

/* What a forward pass needs. */
struct engine {
    struct reader *reader;
    struct expert_store *store;
    struct expert_cache *cache;
    struct backend *be;
    struct forward *forward;
    struct sequence *sequence;
    struct pass pass;
};

static void pass_by(void *ctx, uint32_t layer)
{
    (void)ctx, (void)layer;
}

struct outcome {
    int n_logits;
    bool is_given_up;
};

static bool is_given_up(void *ctx, uint32_t segment)
{
    (void)segment;
    return ((struct outcome *)ctx)->is_given_up;
}

/* Hostile values may give results that are not finite. Every expert can be read. */
static void take_fault(void *ctx, uint32_t segment, const struct batch_fault *fault)
{
    (void)segment;
    require(fault->expert < 0 && fault->err.code == FM_ERR_FORMAT, fault->err.text);
    ((struct outcome *)ctx)->is_given_up = true;
}

static void count_logits(void *ctx, uint32_t segment, uint32_t row, const float *logits)
{
    (void)segment, (void)row, (void)logits;
    ((struct outcome *)ctx)->n_logits++;
}

static void set_up(struct model *model, struct engine *e)
{
    const struct forward_options options = {.max_rows = 2, .max_segments = 2,
                                            .n_context = CONTEXT, .kv_format = &kv_f32};
    struct backend_options backend = {.n_threads = 1};
    forward_backend_options(model, &options, &backend);
    int rc = model_load_dense(model, &memory_host, true, NULL, NULL, NULL);
    if (rc == 0 && model->n_expert_layers > 0) {
        rc = reader_pread_open(&(struct reader_options){.depth = 1}, &e->reader, NULL);
        if (rc == 0)
            rc = expert_store_open(model, &e->reader, STORE_PAGES, false, &e->store, NULL);
        if (rc == 0)
            rc = expert_cache_open(model, e->store, &(struct cache_tier){&memory_host, 2}, 1,
                                   HEAT_LCP, &e->cache, NULL);
    }
    if (rc == 0)
        rc = backend_open(NULL, &backend, &e->be, NULL);
    if (rc == 0)
        rc = forward_open(model, e->be, e->cache, &options, &e->forward, NULL);
    if (rc == 0)
        rc = sequence_new(&(struct sequence_place){model, &memory_host}, 1, &kv_f32,
                          &(struct sequence_room){.n_context = CONTEXT}, &e->sequence, NULL);
    if (rc == 0)
        rc = pass_open(&e->pass, &(struct pass_options){.max_rows = 2, .max_segments = 1}, NULL);
    require(rc == 0, "a model that opened can be set up");
}

static void run_tokens(struct engine *e)
{
    static const int32_t tokens[] = {0, 5};
    struct outcome outcome = {0};
    const struct batch_segment segment = {.sequence = e->sequence, .tokens = tokens,
                                          .n_tokens = 2, .wants_last_logits = true};
    const struct batch batch = {.segments = &segment, .n_segments = 1,
                                .hooks = {.ctx = &outcome, .before_layer = pass_by,
                                          .is_given_up = is_given_up, .fault = take_fault,
                                          .logits = count_logits}};
    pass_begin(&e->pass, &batch);
    forward_run(e->forward, &e->pass);
    pass_end(&e->pass);
    require(outcome.n_logits == !outcome.is_given_up, "two tokens give one row of logits");
    require(outcome.is_given_up || e->sequence->position == 2, "the sequence has moved on");
}

static void engine_clear(struct engine *e)
{
    pass_close(&e->pass);
    sequence_free(e->sequence);
    forward_close(e->forward);
    backend_close(e->be);
    expert_store_close(e->store);
    expert_cache_close(e->cache);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct model_options options = {.families = arch_families()};
    struct source *source;
    struct model *model;
    struct fm_error err = {0};
    require(model_source_open(template_for(data, size), &options, &source, &err) == 0, err.text);
    jdoc_clear(&source->config);
    if (jdoc_parse(&source->config, "config.json", (const char *)data, size, &err) != 0) {
        source_close(source);
        return 0;
    }
    int rc = model_open_source(source, &options, &model, &err);
    if (rc != 0) {
        require(rc < 0 && err.code == rc && err.text[0] != '\0', "an error has code and text");
        require(model == NULL, "nothing is left after an error");
        return 0;
    }
    check_experts(model);
    check_sizes(model);
    struct engine engine = {0};
    set_up(model, &engine);
    run_tokens(&engine);
    engine_clear(&engine);
    model_close(model);
    return 0;
}
