/* abi_user MODEL DIRECTORY [STRUCT]: uses every struct of the API that begins with its size, and
 * prints what must be the same with every version of the library. It is compiled against the frozen
 * headers and against grown ones. The latter sets the field `grown` of STRUCT, and prints that of
 * every result. Memory behind the structs must stay as it is. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "flashmoe_lab.h"
#include "grown.h"

enum { N_BEHIND = 256 };

static const char *set_name = "";
static int n_wrong;

static void fail(const char *what, const char *why)
{
    (void)fprintf(stderr, "abi_user: %s: %s\n", what, why);
    n_wrong++;
}

static void must(int rc, const char *what, const struct fm_error *err)
{
    if (rc != 0)
        fail(what, err != NULL && err->text[0] != 0 ? err->text : "failed");
}

/* A struct with memory behind it that belongs to somebody else. */
#define GUARDED(type, name)                                                                        \
    struct {                                                                                       \
        struct type s;                                                                             \
        unsigned char behind[N_BEHIND];                                                            \
    } name;                                                                                        \
    memset(&(name), 0xff, sizeof(name));                                                           \
    memset(&(name).s, 0, sizeof(name).s);                                                          \
    (name).s.size = sizeof(name).s;                                                                \
    (void)printf("uses %s\n", #type)

static void check_behind(const unsigned char *behind, const char *type)
{
    for (unsigned i = 0; i < N_BEHIND; i++)
        if (behind[i] != 0xff) {
            fail(type, "memory behind it was written to");
            return;
        }
}

#ifdef FM_GROWN
#define OPTIONS(type, name)                                                                        \
    GUARDED(type, name);                                                                           \
    (name).s.grown = strcmp(set_name, #type) == 0 ? GROWN_VALUE : 0
#define RESULT(type, name)                                                                         \
    GUARDED(type, name);                                                                           \
    (name).s.grown = UINT64_MAX
#define CHECK_RESULT(type, name)                                                                   \
    (void)printf("grown %s %" PRIu64 "\n", #type, (name).s.grown);                                 \
    CHECK_OPTIONS(type, name)
#else
#define OPTIONS(type, name) GUARDED(type, name)
#define RESULT(type, name) GUARDED(type, name)
#define CHECK_RESULT(type, name) CHECK_OPTIONS(type, name)
#endif
#define CHECK_OPTIONS(type, name)                                                                  \
    check_behind((name).behind, #type);                                                            \
    if ((name).s.size != sizeof(name).s)                                                           \
    fail(#type, "its size has changed")

/* ---- machine and routing --------------------------------------------------------------------- */

static void use_machine(void)
{
    struct fm_error err = {0};
    RESULT(fm_machine_info, info);
    must(fm_machine_info(&info.s), "fm_machine_info", NULL);
    (void)printf("%s, %s\n", info.s.architecture, info.s.memory_bytes > 0 ? "memory" : "none");
    CHECK_RESULT(fm_machine_info, info);

    RESULT(fm_level_info, level);
    for (unsigned i = 0; fm_machine_level(i, &level.s); i++)
        (void)printf("%s %s %d %d\n", level.s.name, level.s.needs, level.s.is_usable,
                     level.s.is_default);
    CHECK_RESULT(fm_level_info, level);

    /* A level that does not exist: nothing is measured. */
    OPTIONS(fm_machine_options, options);
    RESULT(fm_machine_speeds, speeds);
    options.s.what = FM_MEASURE_INT8;
    options.s.cpu = "none";
    if (fm_machine_measure(&options.s, &speeds.s, &err) != FM_ERR_ARG ||
        strstr(err.text, "none") == NULL)
        fail("fm_machine_measure", err.text);
    (void)printf("%s\n", err.text);
    CHECK_OPTIONS(fm_machine_options, options);
    CHECK_RESULT(fm_machine_speeds, speeds);

    RESULT(fm_number_format, format);
    for (unsigned i = 0; fm_number_format(i, &format.s); i++)
        (void)printf("%s %g %d\n", format.s.name, format.s.bits_per_weight, format.s.can_be_made);
    CHECK_RESULT(fm_number_format, format);
}

static void use_routes(void)
{
    struct fm_error err = {0};
    RESULT(fm_routes_stats, stats);
    stats.s.n_layers = 2;
    stats.s.n_experts = 16;
    stats.s.n_used = 2;
    stats.s.n_tokens = 64;
#ifdef FM_GROWN
    stats.s.grown = 0; /* it goes in as well */
#endif
    must(fm_routes_measure("gen:seed=3", &stats.s, &err), "fm_routes_measure", &err);
    (void)printf("%u %u %.17g %.17g\n", stats.s.n_layers, stats.s.n_tokens, stats.s.overlap[0],
                 stats.s.lru_hits[FM_ROUTES_POINTS - 1]);
    CHECK_RESULT(fm_routes_stats, stats);

    struct {
        struct fm_replay_point s[2];
        unsigned char behind[N_BEHIND];
    } points;
    memset(&points, 0xff, sizeof points);
    memset(points.s, 0, sizeof points.s);
    (void)printf("uses fm_replay_point\n");
    points.s[0].size = points.s[1].size = sizeof points.s[0];
    points.s[0].share = 0.25;
    points.s[1].share = 0.5;
    memset(&stats.s, 0, sizeof stats.s);
    stats.s.size = sizeof stats.s;
    stats.s.n_layers = 2;
    stats.s.n_experts = 16;
    stats.s.n_used = 2;
    stats.s.n_tokens = 64;
    must(fm_routes_replay("gen:seed=3", &stats.s, points.s, 2, &err), "fm_routes_replay", &err);
    for (unsigned i = 0; i < 2; i++) {
        (void)printf("%g %u %.17g %.17g\n", points.s[i].share, points.s[i].n_slots,
                     points.s[i].hits[0], points.s[i].late_hits[1]);
#ifdef FM_GROWN
        (void)printf("grown fm_replay_point %" PRIu64 "\n", points.s[i].grown);
#endif
    }
    CHECK_RESULT(fm_routes_stats, stats);
    check_behind(points.behind, "fm_replay_point");
}

/* ---- models of random weights ---------------------------------------------------------------- */

static void count(void *ctx, const struct fm_verify_item *item)
{
    (void)item;
    ++*(unsigned *)ctx;
}

static void make_models(const char *made, const char *packed)
{
    static const uint32_t numbers[FM_SYNTH_NUMBERS] = {
        [FM_SYNTH_LAYERS] = 4,        [FM_SYNTH_HIDDEN] = 64,      [FM_SYNTH_HEADS] = 2,
        [FM_SYNTH_KV_HEADS] = 1,      [FM_SYNTH_HEAD_DIM] = 64,    [FM_SYNTH_EXPERTS] = 4,
        [FM_SYNTH_USED] = 2,          [FM_SYNTH_EXPERT_WIDTH] = 64,
        [FM_SYNTH_SHARED_WIDTH] = 64, [FM_SYNTH_KEY_HEADS] = 1,    [FM_SYNTH_VALUE_HEADS] = 2,
        [FM_SYNTH_KEY_DIM] = 64,      [FM_SYNTH_VALUE_DIM] = 64,   [FM_SYNTH_VOCAB] = 512,
    };
    struct fm_error err = {0};
    OPTIONS(fm_synth_options, how);
    RESULT(fm_synth_result, result);
    how.s.form = FM_SYNTH_SAFETENSORS;
    how.s.numbers = numbers;
    how.s.n_numbers = FM_SYNTH_NUMBERS;
    how.s.seed = 5;
    must(fm_synth("coder-next", made, &how.s, &result.s, &err), "fm_synth", &err);
    (void)printf("%s %" PRIu64 " %" PRIu64 "\n", result.s.architecture, result.s.n_parameters,
                 result.s.expert_token_bytes);
    CHECK_OPTIONS(fm_synth_options, how);
    CHECK_RESULT(fm_synth_result, result);

    OPTIONS(fm_pack_options, pack);
    RESULT(fm_pack_result, became);
    pack.s.experts = "keep";
    pack.s.n_threads = 1;
    must(fm_pack(made, packed, &pack.s, &became.s, &err), "fm_pack", &err);
    (void)printf("%" PRIu64 " [%s] %d\n", became.s.packed_bytes, became.s.changes,
                 became.s.was_whole);
    CHECK_OPTIONS(fm_pack_options, pack);
    CHECK_RESULT(fm_pack_result, became);

    unsigned n_found = 0;
    OPTIONS(fm_verify_options, verify);
    RESULT(fm_verify_result, verdict);
    verify.s.found = count;
    verify.s.found_ctx = &n_found;
    must(fm_verify(packed, &verify.s, &verdict.s, &err), "fm_verify", &err);
    (void)printf("%" PRIu64 " %" PRIu64 " %u\n", verdict.s.n_experts, verdict.s.n_bad, n_found);
    CHECK_OPTIONS(fm_verify_options, verify);
    CHECK_RESULT(fm_verify_result, verdict);
}

/* Options of a file that does not exist: nothing is measured. */
static void use_disk(const char *missing)
{
    struct fm_error err = {0};
    RESULT(fm_disk_speeds, disk);
    if (fm_disk_measure(missing, NULL, true, &disk.s, &err) == 0 || disk.s.read.median != 0)
        fail("fm_disk_measure", "a missing model was measured");
    CHECK_RESULT(fm_disk_speeds, disk);
    RESULT(fm_io_speeds, io);
    if (fm_io_measure(missing, NULL, &io.s, &err) == 0 || io.s.direct != 0)
        fail("fm_io_measure", "a missing model was measured");
    CHECK_RESULT(fm_io_speeds, io);
}

/* ---- sessions and answers -------------------------------------------------------------------- */

static void show_info(const struct fm_model *model)
{
    RESULT(fm_model_info, info);
    must(fm_model_info(model, &info.s), "fm_model_info", NULL);
    (void)printf("%s %s %" PRIu64 " %u %u %g %u\n", info.s.container, info.s.architecture,
                 info.s.n_parameters, info.s.n_layers, info.s.max_context, info.s.rope_factor,
                 info.s.original_context);
    CHECK_RESULT(fm_model_info, info);
    RESULT(fm_format_info, format);
    for (unsigned i = 0; fm_model_format(model, i, &format.s); i++)
        (void)printf("%s %d %" PRIu64 "\n", format.s.name, format.s.is_expert, format.s.n_bytes);
    CHECK_RESULT(fm_format_info, format);
}

static void show_plan(const struct fm_model *model, const struct fm_model_options *options)
{
    struct fm_error err = {0};
    RESULT(fm_plan, plan);
    must(fm_model_plan(model, options, &plan.s, &err), "fm_model_plan", &err);
    (void)printf("%u %u %" PRIu64 "\n", plan.s.n_context, plan.s.n_threads,
                 plan.s.memory_dense_bytes);
    CHECK_RESULT(fm_plan, plan);
}

static void see(void *ctx, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    ++*(unsigned *)ctx;
}

/* Evaluates a few tokens, keeps a snapshot, and shows what the model counts. */
static void evaluate(struct fm_model *model, const char *snapshots_dir)
{
    static const int32_t ids[] = {1, 2, 3, 5, 8};
    struct fm_error err = {0};
    struct fm_session *session = NULL;
    struct fm_snapshots *snapshots = NULL;
    unsigned n_seen = 0;
    char hash[33] = "";
    OPTIONS(fm_observer, observer);
    observer.s.ctx = &n_seen;
    observer.s.progress = see;
    must(fm_session_open(model, &session, &err), "fm_session_open", &err);
    must(fm_session_observe(session, &observer.s), "fm_session_observe", NULL);
    must(fm_session_eval(session, ids, 5, &err), "fm_session_eval", &err);
    fm_session_logits_hash(session, hash);
    (void)printf("%s after %u calls\n", hash, n_seen);
    CHECK_OPTIONS(fm_observer, observer);

    RESULT(fm_snapshots_stats, kept);
    must(fm_snapshots_open(model, snapshots_dir, 1 << 24, &snapshots, &err), "fm_snapshots_open",
         &err);
    must(fm_snapshots_keep(snapshots, session, &err), "fm_snapshots_keep", &err);
    must(fm_snapshots_stats(snapshots, &kept.s), "fm_snapshots_stats", NULL);
    (void)printf("%" PRIu64 " files, %" PRIu64 " written\n", kept.s.n_files, kept.s.n_written);
    CHECK_RESULT(fm_snapshots_stats, kept);
    fm_snapshots_close(snapshots);

    RESULT(fm_stats, stats);
    must(fm_model_stats(model, &stats.s), "fm_model_stats", NULL);
    (void)printf("%" PRIu64 " tokens, %u positions, %u threads, %s\n", stats.s.n_prefill_tokens,
                 stats.s.n_context, stats.s.n_threads,
                 stats.s.approximate == NULL ? "exact" : stats.s.approximate);
    CHECK_RESULT(fm_stats, stats);
    fm_session_close(session);
}

/* Opens a model in two stages. */
static void use_stages(const char *path, const char *snapshots_dir)
{
    struct fm_error err = {0};
    struct fm_model *model = NULL;
    unsigned n_seen = 0;
    struct {
        struct fm_stage_options s[2];
        unsigned char behind[N_BEHIND];
    } stages;
    memset(&stages, 0xff, sizeof stages);
    memset(&stages.s, 0, sizeof stages.s);
    (void)printf("uses fm_stage_options\n");
    for (unsigned i = 0; i < 2; i++) {
        stages.s[i].size = sizeof stages.s[i];
        stages.s[i].n_layers = i == 0 ? 1 : 3;
        stages.s[i].memory_bytes = 64 << 20;
        stages.s[i].n_threads = i == 0 ? 3 : 1;
#ifdef FM_GROWN
        stages.s[i].grown = strcmp(set_name, "fm_stage_options") == 0 ? GROWN_VALUE : 0;
#endif
    }
    OPTIONS(fm_model_options, options);
    options.s.n_context = 64;
    options.s.prefill_chunk = 2;
    options.s.kv = "rot8";
    options.s.progress = see;
    options.s.progress_ctx = &n_seen;
    options.s.stages = stages.s;
    options.s.n_stages = 2;
    must(fm_model_open(path, &options.s, &model, &err), "fm_model_open", &err);
    CHECK_OPTIONS(fm_model_options, options);
    check_behind(stages.behind, "fm_stage_options");
    (void)printf("progress: %s\n", n_seen > 0 ? "some" : "none");
    if (model != NULL)
        evaluate(model, snapshots_dir);
    fm_model_close(model);
}

static int print(void *ctx, const struct fm_answer_event *event, struct fm_error *err)
{
    (void)ctx, (void)err;
    if (event->kind == FM_EVENT_TEXT)
        (void)printf("text: %.*s\n", (int)event->text_bytes, event->text);
    if (event->kind == FM_EVENT_FINISHED)
        (void)printf("end: %d\n", (int)event->end);
    return 0;
}

/* Writes a conversation and answers it. */
static void answer(struct fm_model *model)
{
    static const char talk[] = "[{\"role\": \"user\", \"content\": \"Tell me a story.\"}]";
    static const char *const stops[] = {"zzz"};
    struct fm_error err = {0};
    struct fm_session *session = NULL;
    struct fm_answer *answer = NULL;
    int32_t *ids = NULL, id = 0;
    size_t n_ids = 0;
    OPTIONS(fm_chat_options, chat);
    chat.s.max_tokens = 1000;
    OPTIONS(fm_sampling, sampling);
    sampling.s.temperature = 0.7f;
    sampling.s.top_p = 1;
    sampling.s.seed = 11;
    sampling.s.frequency_penalty = 0.25f;
    OPTIONS(fm_answer_options, how);
    how.s.event = print;
    how.s.sampling = &sampling.s;
    how.s.max_tokens = 12;
    how.s.stops = stops;
    how.s.n_stops = 1;
    how.s.is_chat = true;
    int rc = fm_chat_tokenize(model, talk, strlen(talk), &chat.s, &ids, &n_ids, &err);
    if (rc == 0)
        rc = fm_session_open(model, &session, &err);
    if (rc == 0)
        rc = fm_session_eval(session, ids, n_ids, &err);
    if (rc == 0)
        rc = fm_answer_open(model, &how.s, &answer, &err);
    while (rc == 0 && (rc = fm_answer_step(answer, session, &id, &err)) == 0 && id >= 0)
        rc = fm_session_eval(session, &id, 1, &err);
    if (rc == 0)
        rc = fm_answer_finish(answer, &err);
    must(rc, "an answer", &err);
    CHECK_OPTIONS(fm_chat_options, chat);
    CHECK_OPTIONS(fm_sampling, sampling);
    CHECK_OPTIONS(fm_answer_options, how);
    fm_answer_close(answer);
    fm_session_close(session);
    fm_free(ids);
}

int main(int argc, char **argv)
{
    struct fm_error err = {0};
    struct fm_model *model = NULL;
    char made[4096], packed[4096], missing[4096];
    if (argc < 3)
        return 2;
    set_name = argc > 3 ? argv[3] : "";
    (void)snprintf(made, sizeof made, "%s/made", argv[2]);
    (void)snprintf(packed, sizeof packed, "%s/packed.fmoe", argv[2]);
    (void)snprintf(missing, sizeof missing, "%s/missing", argv[2]);
    (void)printf("version %s\n", fm_version());
    use_machine();
    use_routes();
    make_models(made, packed);
    use_disk(missing);
    use_stages(packed, argv[2]);
    const struct fm_model_options options = {.size = sizeof options, .n_threads = 1,
                                             .n_context = 128};
    must(fm_model_open(argv[1], &options, &model, &err), "fm_model_open", &err);
    if (model != NULL) {
        show_info(model);
        show_plan(model, &options);
        answer(model);
    }
    fm_model_close(model);
    return n_wrong > 0;
}
