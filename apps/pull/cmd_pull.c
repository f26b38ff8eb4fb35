#include <stdio.h>
#include <string.h>

#include "base/path.h"
#include "base/plat.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/work.h"

#ifdef FLASHMOE_HAS_CURL

#include "apps/pull/gguf_name.h"
#include "apps/pull/pull.h"
#include "apps/pull/pull_pack.h"

struct pulling {
    const struct args *args;
    bool is_quiet, is_json;
    struct pull_env env;
    struct web web;
    struct model_name name;
    char text[MODEL_TEXT_BYTES]; /* the name, as other commands take it */
    struct pull_options options;
    struct pull_list list;
    struct store_dir dir;
    uint64_t missing_bytes;
    double seconds;
};

/* ---- before ----------------------------------------------------------------------------- */

static int check_sha256(const char *text, struct fm_error *err)
{
    if (text == NULL || (strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64))
        return 0;
    return err_set(err, FM_ERR_ARG, "--digest is '%.80s': expected 64 digits, 0 to 9 and a to f",
                   text);
}

static int read_arguments(struct pulling *p, struct fm_error *err)
{
    const char *sha256 = args_text(p->args, "digest");
    int rc = pull_env_read(&p->env, err);
    if (rc == 0)
        rc = model_name_parse(args_operand(p->args, 0), p->env.endpoint, &p->name, err);
    if (rc == 0)
        rc = check_sha256(sha256, err);
    if (rc == 0 && sha256 != NULL && p->name.url[0] == '\0')
        rc = err_set(err, FM_ERR_ARG, "--digest is for a URL; the hub has the digests of its own "
                     "files");
    if (rc == 0 && p->env.is_offline)
        rc = err_set(err, FM_ERR_ARG, "HF_HUB_OFFLINE is set, which forbids downloads");
    model_name_text(&p->name, p->text);
    p->web = (struct web){.env = &p->env, .is_stopped = interrupt_seen,
                          .timeout_s = (unsigned)args_uint(p->args, "timeout"),
                          .n_retries = (unsigned)args_uint(p->args, "retries")};
    p->options = (struct pull_options){
        .web = &p->web, .name = &p->name, .sha256 = sha256,
        .n_connections = (unsigned)args_uint(p->args, "connections")};
    return rc;
}

static void warn_token(const struct pulling *p)
{
    if (p->env.token[0] != '\0' && p->name.url[0] == '\0' &&
        !web_sends_token(&p->env, p->env.endpoint))
        say_warning("the token is not sent to %s: it has no https", p->env.endpoint);
}

/* ---- results ---------------------------------------------------------------------------- */

static bool print_json(const struct pulling *p, const char *path, bool is_cached)
{
    json_t *files = json_array();
    for (size_t i = 0; i < p->list.n; i++)
        (void)json_array_append_new(
            files, json_pack("{s:s, s:I, s:b}", "name", p->list.names[i], "bytes",
                             (json_int_t)p->list.items[i].bytes, "is_here",
                             (int)(is_cached || p->list.items[i].is_done)));
    return out_json(json_pack("{s:o, s:o, s:s, s:b, s:I, s:I, s:f, s:o}",
                              "model", json_text(p->text, strlen(p->text)),
                              "path", json_text(path, strlen(path)), "commit", p->list.commit,
                              "is_cached", (int)is_cached, "bytes", (json_int_t)p->list.bytes,
                              "missing_bytes", (json_int_t)p->missing_bytes,
                              "seconds", p->seconds, "files", files));
}

static int print_plan(const struct pulling *p, const char *path)
{
    char size[UNIT_BYTES], all[UNIT_BYTES], name[NAME_BYTES];
    if (p->is_json)
        return print_json(p, path, false) ? STATUS_OK : STATUS_FAILED;
    for (size_t i = 0; i < p->list.n; i++)
        (void)printf("%10s  %s%s\n", human_bytes(p->list.items[i].bytes, size),
                     out_name(p->list.names[i], name),
                     p->list.items[i].is_done ? "  (is here)" : "");
    (void)printf("%s of %s are to be downloaded to %s\n", human_bytes(p->missing_bytes, size),
                 human_bytes(p->list.bytes, all), out_name(path, name));
    return STATUS_OK;
}

/* Shows what is to be downloaded into `folder` to get `path`. Writes nothing. */
static int dry_run(struct pulling *p, const char *folder, const char *path, int *status,
                   struct fm_error *err)
{
    int rc = 0;
    p->missing_bytes = p->list.bytes;
    if (plat_file_exists(folder)) {
        rc = store_dir_look(&p->dir, folder, err);
        if (rc == 0)
            rc = pull_compare(&p->dir, &p->list, &p->missing_bytes, err);
    }
    if (rc == 0)
        *status = print_plan(p, path);
    return rc;
}

static void suggest(const struct pulling *p)
{
    if (args_text(p->args, "to") == NULL)
        say("try it: flashmoe run %s -p \"What is the Moon?\"", p->text);
}

static int report(const struct pulling *p, const char *path, bool is_cached)
{
    char size[UNIT_BYTES], rate[UNIT_BYTES], time[UNIT_BYTES];
    if (p->is_json)
        return print_json(p, path, is_cached) ? STATUS_OK : STATUS_FAILED;
    if (p->is_quiet)
        return STATUS_OK;
    human_bytes(p->list.bytes, size);
    if (is_cached)
        say("%s: %s, complete in huggingface_hub's cache, '%s'", p->text, size, path);
    else if (p->missing_bytes == 0)
        say("%s: %s, complete in '%s'; nothing was downloaded", p->text, size, path);
    else
        say("%s: %s in %s, %s, verified, in '%s'", p->text, size, human_seconds(p->seconds, time),
            human_rate(p->seconds > 0 ? (double)p->missing_bytes / p->seconds : 0, rate), path);
    suggest(p);
    return STATUS_OK;
}

/* ---- packing ---------------------------------------------------------------------------- */

static bool has_file(const char *folder, const char *name)
{
    char path[LIMIT_PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && n < LIMIT_PATH_BYTES && plat_file_exists(path);
}

/* Downloads and packs with one progress bar. */
static int pack_files(struct pulling *p, const char *dst, struct fm_pack_result *result,
                      struct fm_error *err)
{
    struct work work;
    const struct args *a = p->args;
    const struct fm_pack_options formats = {
        .size = sizeof formats, .experts = args_text(a, "experts"),
        .dense = args_text(a, "dense"), .embed = args_text(a, "embed"),
        .head = args_text(a, "head")};
    const struct pull_pack_options options = {.pull = &p->options, .pack = &formats, .dst = dst};
    work_begin(&work, "packing", p->is_quiet);
    p->options.progress = work_show;
    p->options.progress_ctx = &work;
    const int rc = pull_pack(&options, &p->dir, &p->list, result, err);
    p->seconds = work_seconds(&work);
    work_end(&work);
    return rc;
}

static json_t *size_json(uint64_t bytes)
{
    return bytes > 0 ? json_integer((json_int_t)bytes) : json_null();
}

/* Prints what a pack is; commit and sizes of one that was there before are not known. */
static int print_pack(const struct pulling *p, const char *dst, uint64_t packed_bytes)
{
    const char *commit = p->list.commit;
    return out_json(json_pack("{s:o, s:o, s:s?, s:o, s:o, s:f}", "model",
                              json_text(p->text, strlen(p->text)), "packed",
                              json_text(dst, strlen(dst)), "commit",
                              commit[0] != '\0' ? commit : NULL, "bytes",
                              size_json(p->list.bytes), "packed_bytes", size_json(packed_bytes),
                              "seconds", p->seconds))
               ? STATUS_OK
               : STATUS_FAILED;
}

static int report_pack(const struct pulling *p, const char *dst, const struct fm_pack_result *r)
{
    char size[UNIT_BYTES], from[UNIT_BYTES], time[UNIT_BYTES];
    if (p->is_json)
        return print_pack(p, dst, r->packed_bytes);
    if (p->is_quiet)
        return STATUS_OK;
    say("%s: %s of %s in %s, verified, in '%s'", p->text, human_bytes(r->packed_bytes, size),
        human_bytes(p->list.bytes, from), human_seconds(p->seconds, time), dst);
    suggest(p);
    return STATUS_OK;
}

/* Reports a pack that an earlier run has made. Fails if it is one of another model. */
static int report_old_pack(const struct pulling *p, const char *dst, int *status,
                           struct fm_error *err)
{
    bool has_formats = false;
    for (const struct option *o = group_formats.options; o->name != NULL; o++)
        has_formats = has_formats || args_given(p->args, o->name);
    if (!store_pack_is_of(dst, &p->name))
        return err_set(err, FM_ERR_ARG, "'%s' exists and was not made of '%s': move it away, or "
                       "choose another folder with --to", dst, p->text);
    *status = STATUS_OK;
    if (p->is_json)
        *status = print_pack(p, dst, 0);
    else if (!p->is_quiet)
        say("%s: complete in '%s'; nothing was downloaded", p->text, dst);
    if (has_formats)
        say_warning("'%s' keeps the formats that it has, which 'flashmoe inspect' shows; move it "
                    "away to pack with others", dst);
    return 0;
}

/* Returns what 'flashmoe pack' would name as the pack's source: the folder, or the first file of a
 * GGUF. */
static const char *source_name(const struct pulling *p)
{
    unsigned number;
    for (size_t i = 0; i < p->list.n; i++)
        if (gguf_is_model(p->list.names[i]) &&
            (gguf_set(p->list.names[i], &number) == 1 || number == 1))
            return p->list.names[i];
    return p->name.name;
}

/* Packs to `dst` while downloading. */
static int work_and_pack(struct pulling *p, const char *dst, int *status, struct fm_error *err)
{
    char source[LIMIT_PATH_BYTES], holder[LIMIT_PATH_BYTES];
    struct fm_pack_result result = {.size = sizeof result};
    if (!store_pack_source(dst, source_name(p), source))
        return err_set(err, FM_ERR_ARG, "the path '%.200s...' is too long", dst);
    if (args_flag(p->args, "dry-run"))
        return dry_run(p, source, dst, status, err);
    int rc = store_dir_open(&p->dir, source, err);
    if (rc == 0)
        rc = pull_compare(&p->dir, &p->list, &p->missing_bytes, err);
    if (rc == 0)
        rc = pull_begin(&p->options, &p->dir, &p->list, err);
    if (rc == 0)
        rc = pack_files(p, dst, &result, err);
    store_dir_close(&p->dir);
    path_folder(source, holder);
    if (rc == 0)
        rc = store_remove_folder(holder, err);
    if (rc == 0)
        *status = report_pack(p, dst, &result);
    return rc;
}

/* ---- work ------------------------------------------------------------------------------- */

/* Downloads with a progress bar. */
static int download(struct pulling *p, struct fm_error *err)
{
    struct work work;
    work_begin(&work, "downloading", p->is_quiet);
    p->options.progress = work_show;
    p->options.progress_ctx = &work;
    const int rc = pull_fetch(&p->options, &p->dir, &p->list, err);
    p->seconds = work_seconds(&work);
    work_end(&work);
    return rc;
}

static int work_in(struct pulling *p, const char *path, int *status, struct fm_error *err)
{
    if (args_flag(p->args, "dry-run"))
        return dry_run(p, path, path, status, err);
    int rc = store_dir_open(&p->dir, path, err);
    if (rc == 0)
        rc = pull_compare(&p->dir, &p->list, &p->missing_bytes, err);
    if (rc == 0)
        rc = download(p, err);
    if (rc == 0)
        *status = report(p, path, false);
    return rc;
}

/* Formats are for packing alone. */
static int check_formats(const struct pulling *p, bool is_pack, struct fm_error *err)
{
    for (const struct option *o = group_formats.options; !is_pack && o->name != NULL; o++)
        if (args_given(p->args, o->name))
            return err_set(err, FM_ERR_ARG, "--%s needs --pack", o->name);
    return 0;
}

static int pull(struct pulling *p, int *status, struct fm_error *err)
{
    const bool is_pack = args_flag(p->args, "pack");
    const char *to = args_text(p->args, "to");
    char path[LIMIT_PATH_BYTES], cached[LIMIT_PATH_BYTES];
    int rc = read_arguments(p, err);
    if (rc == 0 && to != NULL && strlen(to) >= sizeof path)
        rc = err_set(err, FM_ERR_ARG, "--to: the path is too long");
    if (rc == 0 && to != NULL)
        (void)snprintf(path, sizeof path, "%s", to);
    else if (rc == 0 && !store_path(&p->env, &p->name, path))
        rc = err_set(err, FM_ERR_ARG, "the path of the models folder is too long");
    if (rc == 0 && is_pack && to == NULL) {
        const size_t n = strlen(path);
        (void)snprintf(path + n, sizeof path - n, STORE_PACKED);
    }
    if (rc == 0)
        rc = check_formats(p, is_pack, err);
    if (rc == 0 && is_pack && has_file(path, "model.json") && !has_file(path, "plan.json"))
        return report_old_pack(p, path, status, err);
    if (rc == 0)
        rc = web_begin(err);
    if (rc != 0)
        return rc;
    warn_token(p);
    rc = pull_list_get(&p->options, &p->list, err);
    if (is_pack)
        return rc != 0 ? rc : work_and_pack(p, path, status, err);
    if (rc == 0 && to == NULL && !plat_file_exists(path) &&
        pull_is_cached(&p->options, &p->list, cached)) {
        *status = report(p, cached, true);
        return 0;
    }
    return rc != 0 ? rc : work_in(p, path, status, err);
}

static int run_pull(const struct args *args)
{
    struct pulling p = {.args = args, .is_quiet = args_flag(args, "quiet"),
                        .is_json = args_flag(args, "json"), .dir.dir.fd = -1, .dir.work.fd = -1};
    struct fm_error err = {0};
    int status = STATUS_FAILED;
    say_library_log(false);
    const int rc = pull(&p, &status, &err);
    store_dir_close(&p.dir);
    pull_list_clear(&p.list);
    if (rc == FM_ERR_CANCELLED) {
        say("stopped; run the same command again to continue");
        return STATUS_INTERRUPTED;
    }
    return rc == 0 ? status : say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
}

#else

static int run_pull(const struct args *args)
{
    const struct fm_error err = {
        .text = "this program was built without libcurl and cannot download; install libcurl's "
                "development package (Debian: libcurl4-openssl-dev) and build it again, or "
                "download the files by other means and give their folder as MODEL"};
    (void)args;
    return say_failed(&err, STATUS_FAILED);
}

#endif

static const struct option pull_command_options[] = {
    {.name = "to", .kind = OPTION_PATH, .metavar = "DIR", .shown = "below the models folder",
     .help = "Folder for the files. Give its path as MODEL afterwards"},
    {.name = "connections", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 64, .value = "8",
     .help = "Ranges to download at a time"},
    {.name = "retries", .kind = OPTION_UINT, .metavar = "N", .max = 1000, .value = "12",
     .help = "Failures in a row before giving up; each waits longer than the one before, up to 30 "
             "seconds, or as long as the server says"},
    {.name = "timeout", .kind = OPTION_UINT, .metavar = "SECONDS", .min = 1, .max = 3600,
     .value = "60",
     .help = "Give up a connection that has less than 512 bytes per second for so long, and retry"},
    {.name = "digest", .kind = OPTION_STRING, .metavar = "HEX",
     .help = "SHA-256 that the file at a URL must have. The hub's files are always compared with "
             "the hub's digests"},
    {.name = "pack", .kind = OPTION_FLAG,
     .help = "Pack while downloading: each file is packed when it has arrived and then removed, so "
             "that they are never all on the disk. The result is ORG/NAME.fmoe in the models "
             "folder, or DIR of --to"},
    {.name = "dry-run", .kind = OPTION_FLAG, .help = "Show what would be downloaded"},
    {.name = NULL},
};
static const struct option pull_quiet_options[] = {
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG,
     .help = "No progress and no summary; errors and warnings remain"},
    {.name = NULL},
};
static const struct option_group group_pull = {"Download", pull_command_options};
static const struct option_group group_pull_quiet = {"Output", pull_quiet_options};

const struct command cmd_pull = {
    .name = "pull",
    .summary = "Download a model from the Hugging Face hub or a URL",
    .description =
        "Downloads the files that a model needs, over several connections, and compares their "
        "sizes and digests. After any interruption, run the same command again: it continues "
        "where it was. Afterwards the name can be given wherever a command takes MODEL. A model "
        "that huggingface_hub's cache has is used from there.\n"
        "HF_TOKEN, or the file that 'hf auth login' writes, gives access to private and gated "
        "models. The token is sent to the hub alone. HF_ENDPOINT names another hub; HTTPS_PROXY, "
        "http_proxy and NO_PROXY name proxies. FLASHMOE_MODELS is the models folder, by default "
        "~/.local/share/flashmoe/models.",
    .operands = (const struct operand[]){
        {.name = "NAME", .is_pulled_name = true,
         .help = "ORG/NAME; ORG/NAME@REVISION for a branch, tag or commit; ORG/NAME:Q4_K_M or "
                 "ORG/NAME:FILE for one GGUF of a repository; or a URL: the hub's page of any of "
                 "these, or a GGUF file elsewhere"},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_pull, &group_formats, &group_json,
                                                   &group_pull_quiet, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe pull Qwen/Qwen3-Coder-Next", "Then: flashmoe run Qwen/Qwen3-Coder-Next"},
        {"flashmoe pull unsloth/gpt-oss-20b-GGUF:Q4_K_M", "One GGUF of a repository"},
        {"flashmoe pull Qwen/Qwen3-Coder-Next --pack",
         "160 GB become 46 GB, and little more is ever on the disk"},
        {"flashmoe pull https://example.org/model.gguf", "A file that is not the hub's"},
        {NULL, NULL}},
    .run = run_pull,
};
