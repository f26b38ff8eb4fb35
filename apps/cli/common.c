#include "apps/cli/common.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat_dir.h"
#include "apps/cli/cluster.h"
#include "apps/cli/engine_words.h"
#include "apps/cli/gpu_report.h"
#include "apps/cli/term.h"
#include "apps/pull/store.h"
#include "flashmoe_lab.h"

/* Maximum text size. A text is in memory twice: as bytes and as token ids. */
#define TEXT_BYTES_MAX ((size_t)1 << 30)
/* A buffer smaller than this many caches measures partly the caches. */
#define BEYOND_CACHES 3

const char operand_model_help[] =
    "A packed model (NAME.fmoe), a GGUF file, a Hugging Face or MLX checkpoint directory, or the "
    "name of a pulled model (ORG/NAME). "
    "Default: $FLASHMOE_MODEL, or else the bundled nano model";

const char option_pin_help[] =
    "Pin every compute thread except the first to its own core. Helps when other programs compete "
    "for the cores, and hurts next to a program that pins its threads too";

const char option_cpu_help[] =
    "Instruction set to compute with; 'flashmoe doctor' lists the levels. Results are "
    "bit-identical at every level";

#define KV_OPTION                                                                                  \
    {.name = "kv", .kind = OPTION_STRING, .metavar = "FORMAT", .value = "f16",                     \
     .help = "Format of the KV cache. f16; f32, unrounded, at twice the memory; or rot8, rot4, "   \
             "rot3 or rot2, which are approximate: rotated and quantised to fewer bits. "          \
             "'flashmoe eval' measures the loss"}

static const struct option engine_options[] = {
    {.name = "memory", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1 << 20,
     .shown = "the memory that is free",
     .help = "Memory budget for everything: dense weights, expert cache, KV and scratch. A larger "
             "budget caches more experts"},
    {.name = "gpu", .kind = OPTION_STRING, .metavar = "WHICH", .value = "auto",
     .help = "GPU to compute on: off, auto or a number from 0 on. auto takes the first one if it "
             "can be used. Dense weights and KV go to its memory, and the hottest experts; the "
             "others are computed by the processor or sent to it, whichever is faster. Results are "
             "bit-identical"},
    {.name = "gpu-memory", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1 << 20,
     .shown = "what is free, less a margin", .help = "Budget of the GPU's memory"},
    {.name = "elastic", .kind = OPTION_STRING, .metavar = "WHEN", .value = "on",
     .help = "Return memory while other programs need it: on or off. The expert cache shrinks at "
             "once and grows back slowly, up to --memory or, without it, to what the machine has. "
             "Affects speed only; the answer stays bit-identical"},
    {.name = "threads", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_THREADS,
     .shown = "one per physical core", .as_unset = "-1", .help = "Number of compute threads"},
    {.name = "pin", .kind = OPTION_FLAG, .help = option_pin_help},
    {.name = "cpu", .kind = OPTION_STRING, .metavar = "LEVEL",
     .shown = "the best for this processor", .help = option_cpu_help},
    {.name = "prefill-chunk", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_CONTEXT,
     .shown = "chosen from the budget",
     .help = "Prompt tokens per batch. A larger chunk reads each expert fewer times per prompt and "
             "needs more scratch memory"},
    KV_OPTION,
    {.name = "io", .kind = OPTION_STRING, .metavar = "HOW", .value = "auto",
     .help = "How experts are read. direct bypasses the page cache, so that nothing is in memory "
             "twice. page uses it; the system then caches data outside --memory. auto takes the "
             "faster of the two for this model and disk, within --memory. It measures both at the "
             "first start and keeps the result in the user's cache folder ('flashmoe doctor MODEL' "
             "measures again); without such a folder it is direct"},
    {.name = "reader", .kind = OPTION_STRING, .metavar = "NAME", .value = "pread",
     .help = "I/O method: pread, threads with blocking reads, or uring, one thread with io_uring "
             "where the system allows it"},
    {.name = "read-depth", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 64, .value = "8",
     .help = "Maximum concurrent reads"},
    {.name = "policy", .kind = OPTION_STRING, .metavar = "NAME", .value = "lcp",
     .help = "Cache eviction policy: lcp evicts experts used rarely and long ago, lru the least "
             "recently used"},
    {.name = "lookahead", .kind = OPTION_STRING, .metavar = "WHEN", .value = "auto",
     .help = "Prefetch the experts that the next layer will probably choose: on, off, or auto, "
             "which tries both in turns and keeps the faster"},
    {.name = "draft", .kind = OPTION_STRING, .metavar = "WHICH", .value = "off",
     .help = "Guess tokens and compute them together with the next one, so that text needs fewer "
             "passes. No token and no logit changes. The model's own block for multi-token "
             "prediction guesses where the model has one; tokens that occurred before in the same "
             "order are guessed from there. auto: as many as have lately been worth their time; "
             "mtp, lookup: the same from that block or from earlier tokens alone; 1 to 8: always "
             "so many; off: none"},
    {.name = "heat", .kind = OPTION_PATH, .metavar = "FILE", .shown = "in the user's cache folder",
     .excludes = "no-heat",
     .help = "File that records which experts are used, so that the next start loads them first"},
    {.name = "no-heat", .kind = OPTION_FLAG, .help = "Neither read nor write a heat file"},
    {.name = "check", .kind = OPTION_STRING, .metavar = "WHEN", .value = "auto",
     .help = "Verify what is read: auto, on or off. auto compares every expert and dense tensor of "
             "a packed model with its checksum as it is read. GGUF and safetensors files have no "
             "checksums; auto only detects that such a file changes while the model is open. on "
             "also refuses models without checksums and verifies unused files. off verifies "
             "nothing"},
    {.name = "experts-per-token", .kind = OPTION_UINT, .metavar = "N", .min = 1,
     .max = LIMIT_TOP_K, .shown = "the model's own number",
     .help = "Approximate: route each token to fewer experts than the model was trained with. "
             "Reads and computes less; every output says so. 'flashmoe eval nll' measures the "
             "loss"},
    {.name = "cache-bias", .kind = OPTION_FLOAT, .metavar = "X", .float_min = 0, .float_max = 1,
     .value = "0",
     .help = "Approximate: prefer experts that are in memory while decoding. X is the bonus, as a "
             "fraction of the range of the router's scores. Reads less, but the answer then "
             "depends on what is cached: another budget or an earlier answer changes it. 0: off"},
    {.name = NULL},
};

static const struct option kv_options[] = {KV_OPTION, {.name = NULL}};

static const struct option context_options[] = {
    {.name = "context", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_CONTEXT,
     .shown = "the model's maximum, or what fits into --memory", .as_unset = "0",
     .help = "Maximum positions, shared by prompt and answer. The expert cache gives up memory for "
             "them as they are used. 0 means the default"},
    {.name = NULL},
};

static const struct option routes_options[] = {
    {.name = "routes", .kind = OPTION_PATH, .metavar = "SPEC|FILE",
     .shown = "the model's own routers",
     .help = "Replace the routers' choice of experts to measure speed; the text becomes "
             "meaningless. Random weights route almost uniformly, unlike a trained model. 'gen' "
             "generates routes with the statistics of Qwen3-30B. 'gen:KEY=VALUE,...' changes them: "
             "hot (size of a layer's hot set, in experts or percent), alpha (how popularity falls "
             "with rank), delta (how rare the other experts are), beta (how many experts a token "
             "keeps from the previous one), drift (hot set changes per token), topic (tokens per "
             "topic; 0: endless), topics (topics in rotation; 0: always new), seed, and recall "
             "(share of a token's experts that --lookahead predicts; 0, the default: it is off). A "
             "FILE is a recording made with --trace, or another route_trace v1 file; nothing is "
             "predicted of it"},
    {.name = NULL},
};

static const struct option trace_options[] = {
    {.name = "trace", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Record the experts that every token uses, as CSV (route_trace v1)"},
    {.name = NULL},
};

static const struct option json_options[] = {
    {.name = "json", .kind = OPTION_FLAG, .help = "Print one JSON object instead of text"},
    {.name = NULL},
};

static const struct option message_options[] = {
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG, .excludes = "verbose",
     .help = "No progress, notes or summary line on standard error; errors and warnings remain"},
    {.name = "verbose", .letter = 'v', .kind = OPTION_FLAG,
     .help = "Show how the model was opened and how the budget is divided"},
    {.name = NULL},
};

static const struct option wrap_options[] = {
    {.name = "no-wrap", .kind = OPTION_FLAG,
     .help = "Let the terminal break lines, also within words. Otherwise answers break between "
             "words at its edge; nothing changes in a file or a pipe"},
    {.name = NULL},
};

static const struct option shape_options[] = {
    {.name = "experts", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_EXPERTS,
     .shown = "from the trace, or 128", .help = "Experts per layer"},
    {.name = "used", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_TOP_K,
     .shown = "from the trace, or 6", .help = "Experts per token"},
    {.name = "layers", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_LAYERS,
     .shown = "from the trace, or 48", .help = "Layers with experts"},
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 4096,
     .shown = "the decoded tokens of the trace, or 128",
     .help = "Tokens to measure, not counting the prompt"},
    {.name = NULL},
};

static const struct option help_options[] = {
    {.name = "help", .letter = 'h', .kind = OPTION_FLAG, .help = "Show this help"},
    {.name = NULL},
};

const struct option_group group_engine = {"Memory and speed", engine_options};
const struct option_group group_kv = {"Memory and speed", kv_options};
const struct option_group group_context = {"Memory and speed", context_options};
const struct option_group group_routes = {"Routing", routes_options};
const struct option_group group_shape = {"Shape", shape_options};
const struct option_group group_trace = {"Routing", trace_options};
const struct option_group group_json = {"Output", json_options};
const struct option_group group_messages = {"Output", message_options};
const struct option_group group_wrap = {"Output", wrap_options};
const struct option_group group_help = {"Output", help_options};

/* ---- models ---------------------------------------------------------------------------- */

static void say_plan(const struct fm_model *model)
{
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(model, &stats);
    char budget[UNIT_BYTES], program[UNIT_BYTES], dense[UNIT_BYTES], cache[UNIT_BYTES];
    char kv[UNIT_BYTES], max[UNIT_BYTES], scratch[UNIT_BYTES];
    char gpu[GPU_REPORT_BYTES];
    if (stats.gpu != NULL)
        say("GPU %s, %s", stats.gpu, gpu_report_division(&stats, gpu));
    say("memory budget %s: program %s, dense weights %s, expert cache %s (%llu slots), KV and "
        "state %s, up to %s, scratch %s", human_bytes(stats.memory_budget_bytes, budget),
        human_bytes(stats.memory_program_bytes, program),
        human_bytes(stats.memory_dense_bytes, dense), human_bytes(stats.memory_cache_bytes, cache),
        (unsigned long long)(stats.n_cache_slots - stats.n_gpu_slots),
        human_bytes(stats.memory_kv_bytes, kv),
        human_bytes(stats.memory_kv_max_bytes, max),
        human_bytes(stats.memory_scratch_bytes, scratch));
    say("context %u, prefill chunk %u, threads %u, level %s", stats.n_context,
        stats.prefill_chunk, stats.n_threads, gpu_report_cpu_level(&stats));
}

/* Where an installed program, or one in its build folder, finds the bundled model. Writes the i-th
 * place. Returns false when there are no more. */
static bool nano_place(size_t i, char path[LIMIT_PATH_BYTES])
{
    static const char *const places[] = {"../share/flashmoe/nano.fmoe", "../models/nano.fmoe"};
    char dir[LIMIT_PATH_BYTES / 2];
    if (i >= sizeof places / sizeof places[0] || !plat_program_dir(dir, sizeof dir))
        return false;
    (void)snprintf(path, LIMIT_PATH_BYTES, "%s/%s", dir, places[i]);
    return true;
}

static const char *find_nano(void)
{
    static char path[LIMIT_PATH_BYTES];
    for (size_t i = 0; nano_place(i, path); i++)
        if (plat_file_exists(path))
            return path;
    return NULL;
}

/* Returns FLASHMOE_MODEL, or NULL if it is not set or empty. */
static const char *model_variable(void)
{
    const char *given = getenv("FLASHMOE_MODEL");
    return given != NULL && given[0] != '\0' ? given : NULL;
}

static int no_bundled_model(bool is_default, struct fm_error *err)
{
    char first[LIMIT_PATH_BYTES] = "", second[LIMIT_PATH_BYTES] = "";
    (void)nano_place(0, first);
    (void)nano_place(1, second);
    return err_set(err, FM_ERR_ARG, "%sthe bundled model is neither '%.300s' nor '%.300s'. Give "
                   "the path of a model, set FLASHMOE_MODEL to one, or download one with 'flashmoe "
                   "pull ORG/NAME'; 'flashmoe list' shows those that were pulled",
                   is_default ? "no MODEL was given, and " : "", first, second);
}

int app_model_find(const char *text, char buffer[LIMIT_PATH_BYTES], const char **path,
                   struct fm_error *err)
{
    *path = text;
    if (plat_file_exists(text) || strcmp(text, "nano") != 0)
        return store_resolve(text, buffer, path, err);
    const char *nano = find_nano();
    if (nano == NULL)
        return no_bundled_model(false, err);
    *path = nano;
    return 0;
}

int app_model_check(const struct args *args, struct fm_error *err)
{
    static char path[LIMIT_PATH_BYTES];
    const struct operand *operand = &args->command->operands[0];
    const char *given = args_operand(args, 0);
    /* Other commands have a MODEL without a default. */
    const bool has_default = operand->name != NULL && operand->help == operand_model_help;
    if (!has_default)
        return 0;
    if (given != NULL)
        return 0; /* app_model_find says what is wrong */
    if (model_variable() == NULL)
        return find_nano() == NULL && !plat_file_exists("nano") ? no_bundled_model(true, err) : 0;
    int rc = app_model_find(model_variable(), path, &given, err);
    if (rc == 0 && !plat_file_exists(given))
        rc = err_set(err, FM_ERR_ARG, "there is no file '%s'; correct or unset the variable, or "
                     "give a MODEL", given);
    return rc != 0 ? err_wrap(err, rc, "FLASHMOE_MODEL") : 0;
}

const char *app_model_path(const struct args *args)
{
    static char path[LIMIT_PATH_BYTES];
    const char *given = args_operand(args, 0); /* main has replaced the name of a model */
    if (given != NULL)
        return given;
    const char *variable = model_variable();
    (void)app_model_find(variable != NULL ? variable : "nano", path, &given, NULL); /* checked */
    return given;
}

void app_model_name(const char *path, char name[APP_NAME_BYTES])
{
    char real[LIMIT_PATH_BYTES], folder[LIMIT_PATH_BYTES], repo[LIMIT_PATH_BYTES];
    const char *from = plat_real_path(path, real) ? real : path, *base = path_base(from);
    /* models--ORG--NAME/snapshots/COMMIT */
    path_folder(from, folder);
    path_folder(folder, repo);
    const char *org = strcmp(path_base(folder), "snapshots") == 0 &&
                              strncmp(path_base(repo), "models--", 8) == 0
                          ? strstr(path_base(repo) + 8, "--")
                          : NULL;
    (void)snprintf(name, APP_NAME_BYTES, "%.127s", org != NULL ? org + 2 : base);
    char *dot = strrchr(name, '.');
    if (dot != NULL && dot != name && (strcmp(dot, ".fmoe") == 0 || strcmp(dot, ".gguf") == 0))
        *dot = '\0';
}

/* Hashes a model's path (FNV-1a) for use in a file name. */
static unsigned long long path_hash(const char *path)
{
    unsigned long long hash = 0xcbf29ce484222325ull;
    for (; *path != '\0'; path++)
        hash = (hash ^ (unsigned char)*path) * 0x100000001b3ull;
    return hash;
}

bool app_cache_path(const char *file, char path[LIMIT_PATH_BYTES])
{
    char dir[LIMIT_PATH_BYTES / 2];
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool has_xdg = xdg != NULL && xdg[0] == '/';
    if (!has_xdg && (home == NULL || home[0] != '/'))
        return false;
    const int n = snprintf(dir, sizeof dir, "%s%s", has_xdg ? xdg : home,
                           has_xdg ? "" : "/.cache");
    if (n < 0 || (size_t)n + sizeof "/flashmoe" > sizeof dir ||
        plat_make_private_dir(dir, NULL) != 0)
        return false;
    (void)strncat(dir, "/flashmoe", sizeof dir - (size_t)n - 1);
    if (plat_make_private_dir(dir, NULL) != 0)
        return false;
    /* The files tell what was typed and used: refuses a folder of another user. */
    struct plat_dir own;
    const bool is_own = plat_dir_open(dir, PLAT_OWN_LINK, &own, NULL) == 0 &&
                        plat_dir_check_own(&own, NULL) == 0;
    plat_make_private(own.fd);
    plat_dir_close(&own);
    if (!is_own)
        return false;
    (void)snprintf(path, LIMIT_PATH_BYTES, "%s/%.200s", dir, file);
    return true;
}

bool app_kept_path(const char *model, const char *suffix, char path[LIMIT_PATH_BYTES])
{
    char real[LIMIT_PATH_BYTES], file[128];
    if (!plat_real_path(model, real))
        return false;
    const char *name = strrchr(real, '/');
    (void)snprintf(file, sizeof file, "%.80s-%016llx.%.16s", name != NULL ? name + 1 : real,
                   path_hash(real), suffix);
    return app_cache_path(file, path);
}

void app_keep_io(const char *model, struct fm_model_options *options, char path[LIMIT_PATH_BYTES])
{
    if (options->io == FM_IO_AUTO && app_kept_path(model, "io", path))
        options->io_path = path;
}

static int read_words(const struct args *args, struct fm_model_options *options,
                      struct fm_error *err)
{
    int elastic, check, io, reader, policy, lookahead;
    int rc = word_value(&words_io, args_text(args, "io"), &io, err);
    if (rc == 0)
        rc = word_value(&words_reader, args_text(args, "reader"), &reader, err);
    if (rc == 0)
        rc = word_value(&words_lookahead, args_text(args, "lookahead"), &lookahead, err);
    if (rc == 0)
        rc = word_value(&words_policy, args_text(args, "policy"), &policy, err);
    if (rc == 0)
        rc = word_value(&words_elastic, args_text(args, "elastic"), &elastic, err);
    if (rc == 0)
        rc = word_value(&words_check, args_text(args, "check"), &check, err);
    if (rc != 0)
        return rc;
    options->io = (enum fm_io)io;
    options->reader = (enum fm_reader)reader;
    options->lookahead = (enum fm_choice)lookahead;
    options->policy = (enum fm_policy)policy;
    options->elastic = (enum fm_choice)elastic;
    options->check = (enum fm_choice)check;
    return 0;
}

/* Drafts of `auto`, at most. */
#define AUTO_DRAFTS 4

static int read_draft(const struct args *args, struct fm_model_options *options,
                      struct fm_error *err)
{
    const char *text = args_text(args, "draft");
    const bool is_number = text[0] >= '1' && text[0] <= '0' + FM_DRAFTS_MAX && text[1] == '\0';
    const bool is_mtp = strcmp(text, "mtp") == 0, is_lookup = strcmp(text, "lookup") == 0;
    const bool is_auto = is_mtp || is_lookup || strcmp(text, "auto") == 0;
    if (!is_number && !is_auto && strcmp(text, "off") != 0)
        return err_set(err, FM_ERR_ARG,
                       "--draft is '%s': expected auto, mtp, lookup, off or 1 to %d", text,
                       FM_DRAFTS_MAX);
    options->draft = is_number ? FM_ON : FM_AUTO;
    options->n_drafts = is_number ? (unsigned)(text[0] - '0') : is_auto ? AUTO_DRAFTS : 0;
    options->draft_source = is_mtp ? FM_DRAFT_MTP : is_lookup ? FM_DRAFT_LOOKUP : FM_DRAFT_ANY;
    return 0;
}

int app_engine_options(const struct args *args, struct fm_model_options *options,
                       struct fm_error *err)
{
    *options = (struct fm_model_options){.size = sizeof *options};
    options->memory_bytes = args_uint(args, "memory");
    options->n_threads = (unsigned)args_uint(args, "threads");
    options->pin_threads = args_flag(args, "pin");
    options->cpu = args_text(args, "cpu");
    options->gpu = args_text(args, "gpu");
    options->gpu_memory_bytes = args_uint(args, "gpu-memory");
    options->prefill_chunk = (unsigned)args_uint(args, "prefill-chunk");
    options->kv = args_text(args, "kv");
    options->read_depth = (unsigned)args_uint(args, "read-depth");
    options->heat_path = args_text(args, "heat");
    options->experts_per_token = (unsigned)args_uint(args, "experts-per-token");
    options->cache_bias = args_float(args, "cache-bias");
    const int rc = read_draft(args, options, err);
    return rc != 0 ? rc : read_words(args, options, err);
}

int app_model_open(const struct args *args, const struct app_model_options *how,
                   struct fm_model **out, struct fm_error *err)
{
    const bool is_verbose = args_flag(args, "verbose");
    say_library_log(is_verbose);
    struct progress progress;
    struct fm_model_options options;
    int rc = app_engine_options(args, &options, err);
    if (rc != 0)
        return rc;
    progress_begin(&progress, "loading", !args_flag(args, "quiet"));
    if (how->is_exact) {
        options.experts_per_token = 0;
        options.cache_bias = 0;
        if (strcmp(options.kv, "f32") != 0)
            options.kv = "f16";
    }
    options.n_context = how->n_context;
    options.n_marks = how->n_marks;
    if (how->n_sessions > 0)
        options.n_sessions = how->n_sessions;
    options.routes = how->routes;
    if (!args_given(args, "draft"))
        options.n_drafts = how->n_drafts;
    options.caller_bytes = how->caller_bytes;
    if (how->memory_bytes > 0)
        options.memory_bytes = how->memory_bytes;
    if (options.prefill_chunk == 0)
        options.prefill_chunk = how->prefill_chunk;
    char heat[LIMIT_PATH_BYTES], io[LIMIT_PATH_BYTES];
    if (options.heat_path == NULL && how->keeps_heat && !args_flag(args, "no-heat") &&
        app_kept_path(app_model_path(args), "heat", heat))
        options.heat_path = heat;
    app_keep_io(app_model_path(args), &options, io);
    options.progress = progress_bytes;
    options.progress_ctx = &progress;
    unsigned layers[CLUSTER_MAX_RANKS];
    rc = cluster_options(args, &options, layers, err);
    if (rc == 0)
        rc = fm_model_open(app_model_path(args), &options, out, err);
    progress_end(&progress);
    if (rc == 0 && is_verbose)
        say_plan(*out);
    if (rc != 0 || how->is_again)
        return rc;
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(*out, &stats);
    if (stats.routes != NULL)
        say_warning("routes: %s", stats.routes);
    if (stats.approximate != NULL)
        say_warning("%s", stats.approximate);
    return 0;
}

int app_disk_measure(const struct args *args, const char *io, struct fm_disk_speeds *speeds,
                     struct fm_error *err)
{
    struct fm_model_options options;
    char kept[LIMIT_PATH_BYTES];
    int used = FM_IO_AUTO, rc = app_engine_options(args, &options, err);
    if (rc == 0 && io != NULL)
        rc = word_value(&words_io, io, &used, err);
    if (rc != 0)
        return rc;
    options.io = io != NULL ? (enum fm_io)used : options.io;
    app_keep_io(app_model_path(args), &options, kept);
    speeds->size = sizeof *speeds;
    return fm_disk_measure(app_model_path(args), &options, true, speeds, err);
}

void app_gpu_measure(const struct args *args, struct fm_gpu_speeds *speeds)
{
    struct fm_error ignored;
    const char *gpu = args_text(args, "gpu");
    *speeds = (struct fm_gpu_speeds){.size = sizeof *speeds};
    if (strcmp(gpu, "off") != 0) /* "auto" is the first one */
        (void)fm_gpu_measure((unsigned)strtoul(gpu, NULL, 10), true, speeds, &ignored);
}

static void show_pass(void *ctx, uint64_t done, uint64_t total)
{
    progress_steps(ctx, done, total, "passes");
}

int app_speeds_measure(const struct args *args, bool with_disk, const char *io,
                       struct app_speeds *speeds, struct fm_error *err)
{
    struct progress progress;
    *speeds = (struct app_speeds){0};
    progress_begin(&progress, "measuring the machine", !args_flag(args, "quiet"));
    const struct fm_machine_options options = {
        .size = sizeof options,
        .what = FM_MEASURE_READ,
        .n_threads = (unsigned)args_uint(args, "threads"),
        .pin_threads = args_flag(args, "pin"),
        .cpu = args_text(args, "cpu"),
        .quick = true,
        .progress = show_pass,
        .progress_ctx = &progress,
    };
    speeds->machine.size = sizeof speeds->machine;
    int rc = fm_machine_measure(&options, &speeds->machine, err);
    if (rc == 0 && with_disk)
        rc = app_disk_measure(args, io, &speeds->disk, err);
    progress_end(&progress);
    if (rc != 0)
        *speeds = (struct app_speeds){0};
    return rc;
}

void app_note_template(const struct fm_model *model)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    if (!info.has_tokenizer || info.has_chat_template)
        return;
    const struct fm_chat_options now = app_chat_now();
    struct fm_error ignored = {0};
    int32_t *ids = NULL;
    size_t n_ids;
    if (fm_chat_tokenize_turn(model, NULL, "a", 1, &now, &ids, &n_ids, &ignored) == 0)
        say("note: this model has no chat template; using ChatML");
    fm_free(ids);
}

int app_not_numbers(const struct args *args, struct fm_error *err)
{
    const char *kv = args_text(args, "kv");
    return err_set(err, FM_ERR_FORMAT, "'%s' produced NaN logits: its weights are damaged%s",
                   app_model_path(args),
                   strcmp(kv, "f32") != 0
                       ? ", or its keys or values exceed the range of f16; try --kv f32"
                       : "");
}

const char *app_end_name(enum fm_end end)
{
    switch (end) {
    case FM_END_LENGTH:
        return "length";
    case FM_END_CONTEXT:
        return "context";
    case FM_END_CANCELLED:
        return "interrupted";
    case FM_END_TOKEN:
    case FM_END_STRING:
    case FM_END_CALL:
    case FM_END_GRAMMAR:
        break;
    }
    return "stop";
}

bool app_is_beyond_cache(uint64_t buffer_bytes)
{
    return buffer_bytes >= BEYOND_CACHES * plat_cache_bytes();
}

json_t *json_label(const char *label)
{
    return label != NULL ? json_text(label, strlen(label)) : json_null();
}

static void csv_label(FILE *out, const char *title, const char *label)
{
    if (label == NULL)
        return;
    (void)fprintf(out, "# %s", title);
    for (; *label != '\0'; label++) /* it may contain a path with any bytes */
        (void)fputc(iscntrl((unsigned char)*label) ? '?' : *label, out);
    (void)fputc('\n', out);
}

void csv_labels(FILE *out, const struct fm_model_info *info)
{
    csv_label(out, "routes: ", info->routes);
    csv_label(out, "", info->approximate);
}

struct fm_chat_options app_chat_now(void)
{
    const time_t now = time(NULL);
    struct tm local = {0};
    (void)localtime_r(&now, &local);
    return (struct fm_chat_options){.size = sizeof(struct fm_chat_options),
                                    .now_s = now, .now_offset_s = (int32_t)local.tm_gmtoff};
}

int app_model_open_metadata(const struct args *args, const char *kv, struct fm_model **out,
                            struct fm_error *err)
{
    say_library_log(false);
    struct fm_model_options options = {.size = sizeof options};
    options.metadata_only = true;
    options.kv = kv;
    return fm_model_open(app_model_path(args), &options, out, err);
}

/* ---- text ------------------------------------------------------------------------------ */

static int stream_read(FILE *file, const char *name, char **text, size_t *text_bytes,
                       struct fm_error *err)
{
    size_t used = 0, capacity = 0;
    void *buffer = NULL;
    int rc = 0;
    for (;;) {
        if (used > TEXT_BYTES_MAX)
            rc = err_set(err, FM_ERR_FORMAT, "%s has more than %zu bytes", name, TEXT_BYTES_MAX);
        if (rc == 0)
            rc = mem_grow(&buffer, &capacity, used + 65536, 1, "the text", err);
        if (rc != 0)
            break;
        size_t n = fread((char *)buffer + used, 1, capacity - used - 1, file);
        used += n;
        if (n > 0)
            continue;
        if (ferror(file))
            rc = err_set(err, FM_ERR_IO, "cannot read %s: %s", name, strerror(errno));
        break;
    }
    if (rc != 0) {
        mem_free(buffer);
        return rc;
    }
    ((char *)buffer)[used] = '\0';
    *text = buffer;
    *text_bytes = used;
    return 0;
}

int file_read(const char *path, char **text, size_t *text_bytes, struct fm_error *err)
{
    if (strcmp(path, "-") == 0)
        return stream_read(stdin, "standard input", text, text_bytes, err);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return err_set(err, FM_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    char name[LIMIT_PATH_BYTES];
    (void)snprintf(name, sizeof name, "'%s'", path);
    int rc = stream_read(file, name, text, text_bytes, err);
    (void)fclose(file); /* read-only: nothing can be lost */
    return rc;
}

int prompt_read(const struct args *args, char **text, size_t *text_bytes, struct fm_error *err)
{
    const char *prompt = args_text(args, "prompt");
    const char *path = args_text(args, "file");
    if (prompt != NULL) {
        *text = mem_strdup(prompt, err);
        *text_bytes = strlen(prompt);
        return *text != NULL ? 0 : FM_ERR_NOMEM;
    }
    if (path == NULL && isatty(STDIN_FILENO))
        return err_set(err, FM_ERR_ARG, "no text given; use -p TEXT, -f FILE or standard input "
                       "(echo TEXT | flashmoe %s)", args->command->name);
    return file_read(path != NULL ? path : "-", text, text_bytes, err);
}
