/* A program that was compiled against the first version of the structs, with a library whose
 * structs have grown since. The first version is written out here and never changes. */
#include <stdio.h>
#include <string.h>

#include "flashmoe.h"

struct first_model_options {
    size_t size;
    uint64_t memory_bytes, caller_bytes;
    enum fm_choice elastic;
    unsigned n_threads;
    bool pin_threads;
    const char *cpu;
    unsigned n_sessions, n_context, n_marks, prefill_chunk;
    enum fm_choice check;
    bool metadata_only;
    const char *routes, *kv;
    enum fm_io io;
    enum fm_reader reader;
    const char *io_path;
    unsigned read_depth;
    enum fm_choice lookahead;
    enum fm_policy policy;
    const char *heat_path;
    unsigned experts_per_token;
    double cache_bias;
    fm_progress_fn *progress;
    void *progress_ctx;
};

struct first_sampling {
    size_t size;
    float temperature;
    unsigned top_k;
    float top_p, min_p;
    uint64_t seed;
};

struct first_answer_options {
    size_t size;
    fm_answer_fn *event;
    void *ctx;
    const struct first_sampling *sampling;
    const int32_t *prompt;
    size_t n_prompt;
    uint64_t max_tokens;
};

struct first_model_info {
    size_t size;
    const char *container, *architecture;
    uint64_t n_parameters;
};

static int n_wrong;

static void check(bool is_right, const char *what)
{
    if (!is_right)
        (void)fprintf(stderr, "old_options: %s\n", what);
    n_wrong += !is_right;
}

#define SAME(name, field)                                                                         \
    check(offsetof(struct first_##name, field) == offsetof(struct fm_##name, field) &&            \
              sizeof ((struct first_##name *)0)->field == sizeof ((struct fm_##name *)0)->field,  \
          "fm_" #name "." #field " has moved")
/* Grown: the first version ends before today's struct does, and new fields stand behind its end. */
#define GROWN(name, field)                                                                        \
    check(offsetof(struct fm_##name, field) >= sizeof(struct first_##name),                       \
          "fm_" #name "." #field " stands inside the first version")

static void check_layouts(void)
{
    SAME(model_options, memory_bytes);
    SAME(model_options, elastic);
    SAME(model_options, n_threads);
    SAME(model_options, pin_threads);
    SAME(model_options, cpu);
    SAME(model_options, n_sessions);
    SAME(model_options, prefill_chunk);
    SAME(model_options, check);
    SAME(model_options, metadata_only);
    SAME(model_options, kv);
    SAME(model_options, io);
    SAME(model_options, reader);
    SAME(model_options, io_path);
    SAME(model_options, read_depth);
    SAME(model_options, lookahead);
    SAME(model_options, policy);
    SAME(model_options, heat_path);
    SAME(model_options, experts_per_token);
    SAME(model_options, cache_bias);
    SAME(model_options, progress_ctx);
    GROWN(model_options, stages);
    SAME(sampling, temperature);
    SAME(sampling, min_p);
    SAME(sampling, seed);
    GROWN(sampling, typical_p);
    SAME(answer_options, ctx);
    SAME(answer_options, sampling);
    SAME(answer_options, max_tokens);
    GROWN(answer_options, stops);
    SAME(model_info, architecture);
    SAME(model_info, n_parameters);
    GROWN(model_info, n_layers);
}

/* The old program's structs, each with memory behind it that is not the library's to touch. */
static struct {
    struct first_model_options options;
    unsigned char behind_options[256];
    struct first_sampling sampling;
    unsigned char behind_sampling[256];
    struct first_answer_options answer;
    unsigned char behind_answer[256];
    struct first_model_info info;
    unsigned char behind_info[256];
} old;

static void check_behind(const unsigned char *bytes, const char *what)
{
    for (size_t i = 0; i < 256; i++)
        if (bytes[i] != 0xff) {
            check(false, what);
            return;
        }
}

static int count_text(void *ctx, const struct fm_answer_event *event, struct fm_error *err)
{
    (void)err;
    if (event->kind == FM_EVENT_TEXT)
        *(size_t *)ctx += event->text_bytes;
    return 0;
}

static int run(const char *path, struct fm_error *err)
{
    struct fm_model *model = NULL;
    struct fm_session *session = NULL;
    struct fm_answer *answer = NULL;
    int32_t *ids = NULL, id = 0;
    size_t n_ids = 0, n_text = 0;
    old.answer.ctx = &n_text;
    int rc = fm_model_open(path, (const struct fm_model_options *)&old.options, &model, err);
    if (rc == 0)
        rc = fm_model_info(model, (struct fm_model_info *)&old.info);
    if (rc == 0)
        rc = fm_tokenize(model, "Hello", 5, FM_TEXT_PLAIN, &ids, &n_ids, err);
    if (rc == 0)
        rc = fm_session_open(model, &session, err);
    if (rc == 0)
        rc = fm_session_eval(session, ids, n_ids, err);
    if (rc == 0)
        rc = fm_answer_open(model, (const struct fm_answer_options *)&old.answer, &answer, err);
    while (rc == 0 && (rc = fm_answer_step(answer, session, &id, err)) == 0 && id >= 0)
        rc = fm_session_eval(session, &id, 1, err);
    if (rc == 0)
        rc = fm_answer_finish(answer, err);
    check(rc != 0 || n_text > 0, "the answer has no text");
    fm_answer_close(answer);
    fm_session_close(session);
    fm_free(ids);
    fm_model_close(model);
    return rc;
}

int main(int argc, char **argv)
{
    struct fm_error err = {0};
    if (argc != 2)
        return 2;
    check_layouts();
    memset(&old, 0xff, sizeof old);
    old.options = (struct first_model_options){.size = sizeof old.options, .n_threads = 1,
                                               .n_context = 64};
    old.sampling = (struct first_sampling){.size = sizeof old.sampling, .top_p = 1};
    old.answer = (struct first_answer_options){.size = sizeof old.answer, .event = count_text,
                                               .sampling = &old.sampling, .max_tokens = 8};
    old.info.size = sizeof old.info;
    if (n_wrong == 0 && run(argv[1], &err) != 0)
        check(false, err.text);
    check(n_wrong > 0 || old.info.n_parameters > 0, "fm_model_info has filled nothing in");
    check(n_wrong > 0 || old.info.size == sizeof old.info, "fm_model_info has changed the size");
    check_behind(old.behind_options, "memory behind the model options was written to");
    check_behind(old.behind_sampling, "memory behind the sampling was written to");
    check_behind(old.behind_answer, "memory behind the answer options was written to");
    check_behind(old.behind_info, "memory behind the model info was written to");
    return n_wrong > 0;
}
