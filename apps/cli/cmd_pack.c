#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/plat.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "flashmoe_lab.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/work.h"

#define LEFT_OUT "vision, multi-token prediction and others, which this version does not use"

/* ---- before ---------------------------------------------------------------------------- */

/* Where the model goes: DST, or the folders of --to. */
struct places {
    char folders[FM_DISKS_MAX][LIMIT_PATH_BYTES];
    const char *others[FM_DISKS_MAX];
    double shares[FM_DISKS_MAX];
    unsigned n, n_shares;
};

/* Writes the base name of SRC without its suffix. */
static void base_name(const char *src, char out[LIMIT_PATH_BYTES])
{
    static const char *const suffixes[] = {".gguf", ".fmoe"};
    size_t n = strlen(src);
    while (n > 1 && src[n - 1] == '/')
        n--;
    size_t first = n;
    while (first > 0 && src[first - 1] != '/')
        first--;
    for (unsigned i = 0; i < 2; i++)
        if (n - first > 5 && strncmp(src + n - 5, suffixes[i], 5) == 0)
            n -= 5;
    (void)snprintf(out, LIMIT_PATH_BYTES, "%.*s", (int)(n - first), src + first);
}

/* Takes one word of --to. A folder that exists, such as a disk's, gets NAME.fmoe in it. */
static int add_place(struct places *places, const char *src, const char *word, size_t n,
                     struct fm_error *err)
{
    char name[LIMIT_PATH_BYTES], *folder = places->folders[places->n];
    struct plat_file_info info;
    if (places->n == FM_DISKS_MAX)
        return err_set(err, FM_ERR_ARG, "--to names more than %d folders", FM_DISKS_MAX);
    if (n == 0 || n >= LIMIT_PATH_BYTES)
        return err_set(err, FM_ERR_ARG, "--to: a folder's path is %s",
                       n == 0 ? "empty" : "too long");
    int length = snprintf(folder, LIMIT_PATH_BYTES, "%.*s", (int)n, word);
    base_name(src, name);
    const bool is_model = n > 5 && strncmp(word + n - 5, ".fmoe", 5) == 0;
    if (!is_model && plat_file_info(folder, &info) && (info.is_dir || info.is_link))
        length += snprintf(folder + length, LIMIT_PATH_BYTES - (size_t)length, "/%s.fmoe", name);
    if (length >= LIMIT_PATH_BYTES)
        return err_set(err, FM_ERR_ARG, "--to: a folder's path is too long");
    places->n++;
    return 0;
}

static int read_shares(struct places *places, const char *text, struct fm_error *err)
{
    const char *at = text;
    char *end = NULL;
    while (text != NULL && places->n_shares < FM_DISKS_MAX) {
        places->shares[places->n_shares++] = strtod(at, &end);
        if (end == at || *end != ',')
            break;
        at = end + 1;
    }
    if (text != NULL && (end == at || *end != '\0' || places->n_shares != places->n))
        return err_set(err, FM_ERR_ARG, "--shares '%.60s': expected one number for each of the %u "
                       "folders of --to, such as 2,1", text, places->n);
    return 0;
}

static int read_places(const struct args *args, struct places *places, struct fm_error *err)
{
    const char *to = args_text(args, "to"), *src = args_operand(args, 0);
    const char *dst = args_operand(args, 1);
    int rc = 0;
    if ((to != NULL) == (dst != NULL))
        return err_set(err, FM_ERR_ARG, to == NULL ? "DST is missing: the directory to create"
                                                   : "give DST or --to, not both");
    if (to == NULL && (args_flag(args, "mirror") || args_text(args, "shares") != NULL))
        return err_set(err, FM_ERR_ARG, "--mirror and --shares need --to with several folders");
    for (const char *at = to; rc == 0 && at != NULL;) {
        const size_t n = strcspn(at, ",");
        rc = add_place(places, src, at, n, err);
        at = at[n] == ',' ? at + n + 1 : NULL;
    }
    if (to == NULL) {
        (void)snprintf(places->folders[0], LIMIT_PATH_BYTES, "%s", dst);
        places->n = 1;
    }
    for (unsigned i = 1; i < places->n; i++)
        places->others[i - 1] = places->folders[i];
    return rc != 0 ? rc : read_shares(places, args_text(args, "shares"), err);
}

static void read_options(const struct args *args, const struct places *places,
                         struct fm_pack_options *o)
{
    *o = (struct fm_pack_options){.size = sizeof *o};
    o->experts = args_text(args, "experts");
    o->dense = args_text(args, "dense");
    o->embed = args_text(args, "embed");
    o->head = args_text(args, "head");
    o->n_threads = (unsigned)args_uint(args, "threads");
    o->consume = args_flag(args, "consume");
    o->restart = args_flag(args, "restart");
    o->layers = args_text(args, "layers");
    o->mirror = args_flag(args, "mirror");
    o->others = places->others;
    o->n_others = places->n - 1;
    o->shares = places->n_shares > 0 ? places->shares : NULL;
}

/* Asks on the terminal; returns true for yes. */
static bool ask(const char *src, const struct fm_pack_result *plan)
{
    char size[UNIT_BYTES], answer[16];
    (void)fprintf(stderr, "flashmoe: --consume permanently removes %u file%s (%s) of '%s', each "
                  "after it is packed and verified.\n", plan->n_removable,
                  plan->n_removable == 1 ? "" : "s", human_bytes(plan->removable_bytes, size), src);
    if (plan->changes[0] != '\0')
        (void)fprintf(stderr, "Formats will change (%s).\n", plan->changes);
    if (plan->n_left_out > 0)
        (void)fprintf(stderr, "%u tensor%s will not be in the pack: " LEFT_OUT ".\n",
                      plan->n_left_out, plan->n_left_out == 1 ? "" : "s");
    (void)fprintf(stderr, "Continue? [y/N] ");
    (void)fflush(stderr);
    return fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}

/* Returns STATUS_OK to continue. */
static int confirm(const struct args *args, const char *dst,
                   const struct fm_pack_options *options)
{
    struct fm_pack_options plan_options = *options;
    struct fm_pack_result plan = {.size = sizeof plan};
    struct fm_error err = {0};
    plan_options.plan_only = true;
    if (!options->consume || args_flag(args, "yes"))
        return STATUS_OK;
    if (!isatty(STDIN_FILENO)) {
        say("--consume removes the source files; add --yes to confirm without a terminal");
        return STATUS_USAGE;
    }
    if (fm_pack(args_operand(args, 0), dst, &plan_options, &plan, &err) != 0)
        return say_failed(&err, STATUS_FAILED);
    if (plan.n_removable == 0 || ask(args_operand(args, 0), &plan))
        return STATUS_OK;
    say("nothing was changed");
    return STATUS_FAILED;
}

/* ---- after ----------------------------------------------------------------------------- */

static void say_result(const struct args *args, const struct places *places,
                       const struct fm_pack_result *r, double seconds)
{
    char size[UNIT_BYTES], rate[UNIT_BYTES], time[UNIT_BYTES], gone[UNIT_BYTES];
    const uint64_t made = r->packed_bytes - r->found_bytes;
    if (r->was_whole) {
        say("'%s': %s, complete: an earlier run packed and verified it",
            places->folders[0], human_bytes(r->packed_bytes, size));
        if (args_flag(args, "consume"))
            say("this run removed no source file");
        return;
    }
    say("'%s': %s in %s, %s, verified", places->folders[0], human_bytes(r->packed_bytes, size),
        human_seconds(seconds, time), human_rate(seconds > 0 ? (double)made / seconds : 0, rate));
    for (unsigned i = 0; places->n > 1 && i < places->n; i++)
        say("'%s' %s", places->folders[i],
            args_flag(args, "mirror") ? "has a copy of everything"
            : i == 0                  ? "is the model to open, with a part of every expert"
                                      : "has another part of every expert");
    if (r->n_layers_elsewhere > 0)
        say("part of a model: it has the experts of %u layers, and other machines need those of "
            "the other %u", r->n_layers_here, r->n_layers_elsewhere);
    if (r->found_bytes > 0)
        say("resumed: %s were already packed", human_bytes(r->found_bytes, size));
    if (r->n_left_out > 0)
        say("%u tensor%s not in the pack: " LEFT_OUT, r->n_left_out,
            r->n_left_out == 1 ? " is" : "s are");
    if (r->n_too_narrow > 0)
        say("%u matrices keep their format: their column count is not a multiple of the new "
            "format's block size", r->n_too_narrow);
    if (!args_flag(args, "consume"))
        return;
    say("%u source file%s removed (%s)%s%s%s", r->n_removable, r->n_removable == 1 ? "" : "s",
        human_bytes(r->removable_bytes, gone), r->left[0] != '\0' ? "; '" : "", r->left,
        r->left[0] == '\0'         ? ""
        : r->n_layers_elsewhere > 0 ? "' was kept: layers that are not packed may need it"
                                    : "' was kept: the pack uses nothing from it");
}

static bool print_json(const struct args *args, const struct places *places,
                       const struct fm_pack_result *r, double seconds)
{
    json_t *folders = json_array();
    for (unsigned i = 0; i < places->n; i++)
        (void)json_array_append_new(folders, json_text(places->folders[i],
                                                       strlen(places->folders[i])));
    return out_json(json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:f}",
        "source", json_text(args_operand(args, 0), strlen(args_operand(args, 0))),
        "packed", json_text(places->folders[0], strlen(places->folders[0])),
        "folders", folders,
        "packed_bytes", (json_int_t)r->packed_bytes,
        "found_bytes", (json_int_t)r->found_bytes,
        "need_bytes", (json_int_t)r->need_bytes,
        "free_bytes", (json_int_t)r->free_bytes,
        "removable_bytes", (json_int_t)r->removable_bytes,
        "n_removable", (int)r->n_removable,
        "n_left_out", (int)r->n_left_out,
        "n_too_narrow", (int)r->n_too_narrow,
        "n_layers_here", (int)r->n_layers_here,
        "n_layers_elsewhere", (int)r->n_layers_elsewhere,
        "seconds", seconds));
}

static int pack(const struct args *args, const struct places *places)
{
    struct fm_error err = {0};
    struct fm_pack_options options = {.size = sizeof options};
    struct fm_pack_result result = {.size = sizeof result};
    struct work work;
    const bool is_quiet = args_flag(args, "quiet");
    read_options(args, places, &options);
    int status = confirm(args, places->folders[0], &options);
    if (status != STATUS_OK)
        return status;
    work_begin(&work, "packing", is_quiet);
    options.progress = work_show;
    options.progress_ctx = &work;
    int rc = fm_pack(args_operand(args, 0), places->folders[0], &options, &result, &err);
    const double seconds = work_seconds(&work);
    work_end(&work);
    if (rc == FM_ERR_CANCELLED) {
        say("stopped; run the same command again to continue");
        return STATUS_INTERRUPTED;
    }
    if (rc != 0)
        return say_failed(&err, STATUS_FAILED);
    if (args_flag(args, "json"))
        return print_json(args, places, &result, seconds) ? STATUS_OK : STATUS_FAILED;
    if (!is_quiet)
        say_result(args, places, &result, seconds);
    return STATUS_OK;
}

static int run_pack(const struct args *args)
{
    struct places places = {.n = 0};
    struct fm_error err = {0};
    say_library_log(args_flag(args, "verbose"));
    if (read_places(args, &places, &err) != 0)
        return say_failed(&err, STATUS_USAGE);
    return pack(args, &places);
}

static const struct option format_options[] = {
    {.name = "experts", .kind = OPTION_STRING, .metavar = "FORMAT",
     .shown = "affine4-g64 for floats, else keep",
     .help = "Format of the routed experts: a name that 'flashmoe inspect' shows, or keep"},
    {.name = "dense", .kind = OPTION_STRING, .metavar = "FORMAT", .shown = "keep",
     .help = "Format of the other matrices; routers keep at least 8 bits, vectors are unchanged"},
    {.name = "embed", .kind = OPTION_STRING, .metavar = "FORMAT", .shown = "keep",
     .help = "Format of the embedding"},
    {.name = "head", .kind = OPTION_STRING, .metavar = "FORMAT", .shown = "keep",
     .help = "Format of the output head; a tied head has the format of the embedding"},
    {.name = NULL},
};

static const struct option file_options[] = {
    {.name = "to", .kind = OPTION_STRING, .metavar = "DIR1,DIR2,...",
     .help = "Write to folders on several disks, instead of DST, so that all disks read at once. "
             "Each gets a part of every expert, as large as its disk is fast; DIR1 also gets the "
             "rest, and is the model to open. A folder that exists gets NAME.fmoe in it"},
    {.name = "mirror", .kind = OPTION_FLAG,
     .help = "With --to: each folder gets a copy of everything. Reads go to the disk that is "
             "expected to finish first, and any folder works alone when the others fail"},
    {.name = "shares", .kind = OPTION_STRING, .metavar = "N,N,...", .excludes = "mirror",
     .shown = "measured", .help = "With --to: the shares of the folders, such as 2,1"},
    {.name = "layers", .kind = OPTION_STRING, .metavar = "A-B,...", .shown = "all",
     .help = "Write only the experts of these layers, counted from 0, for a machine that has only "
             "them (docs/CLUSTER.md); with layer 0 also those that draft tokens. The other layers "
             "are converted for their checksums, unless SRC is packed and keeps its formats"},
    {.name = "consume", .kind = OPTION_FLAG,
     .help = "Remove each source file after everything used from it is packed and verified, to "
             "need little free space. With --layers, files with experts of other layers stay. "
             "Asks first"},
    {.name = "yes", .kind = OPTION_FLAG, .help = "Do not ask"},
    {.name = "restart", .kind = OPTION_FLAG,
     .help = "Discard the result of an interrupted run and start again; refused if it is the only "
             "copy of the data"},
    {.name = "threads", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_THREADS,
     .shown = "one per processor", .help = "Number of compute threads"},
    {.name = NULL},
};

const struct option_group group_formats = {"Formats", format_options};
static const struct option_group group_files = {"Files", file_options};

const struct command cmd_pack = {
    .name = "pack",
    .summary = "Convert a model to the packed form, which runs fastest",
    .description =
        "DST is a new directory, by convention NAME.fmoe. Every expert becomes one aligned record "
        "that a cache miss reads at once; everything has a checksum. Quantised weights stay "
        "bit-identical unless a format is given.\n"
        "The work is done in DST.partial: each file is written, synced and read back before it is "
        "renamed. After any interruption, even a power failure, run the same command again: it "
        "verifies what was finished, continues and produces the same bytes. Memory use stays below "
        "1 GiB for any model size.",
    .operands = (const struct operand[]){
        {.name = "SRC", .help = "A Hugging Face or MLX directory, a GGUF file or a packed model"},
        {.name = "DST", .help = "The directory to create; not with --to", .is_optional = true},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_formats, &group_files, &group_json,
                                                   &group_messages, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe pack Qwen3-Next qwen.fmoe", "Experts to 4 bits, everything else unchanged"},
        {"flashmoe pack model.gguf model.fmoe --experts keep", "The same weights, bit for bit"},
        {"flashmoe pack big big.fmoe --consume", "With little free space on the disk"},
        {"flashmoe pack big.fmoe --to /ssd1,/ssd2", "On two disks, read at the same time"},
        {"flashmoe pack big.fmoe part.fmoe --layers 20-39", "The part of one machine of several"},
        {NULL, NULL}},
    .run = run_pack,
};
