#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/work.h"
#include "flashmoe_lab.h"

#define NUMBER(option_name, option_max, option_help)                                               \
    {.name = option_name, .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = option_max,        \
     .shown = "from the shape", .help = option_help}

/* In the order of FM_SYNTH_LAYERS and the other FM_SYNTH_* indices. */
static const struct option number_options[] = {
    NUMBER("layers", LIMIT_LAYERS, "Layers"),
    NUMBER("hidden", LIMIT_HIDDEN, "Width of the residual stream"),
    NUMBER("heads", LIMIT_HEADS, "Attention heads"),
    NUMBER("kv-heads", LIMIT_HEADS, "Heads of keys and values"),
    NUMBER("head-dim", LIMIT_HEAD_DIM, "Width of an attention head"),
    NUMBER("experts", LIMIT_EXPERTS, "Experts per layer"),
    NUMBER("used", LIMIT_TOP_K, "Experts per token"),
    NUMBER("expert-width", LIMIT_INTERMEDIATE, "Width inside an expert"),
    NUMBER("shared-width", LIMIT_INTERMEDIATE, "Width inside the shared expert"),
    NUMBER("key-heads", LIMIT_HEADS, "Key heads of a recurrent layer"),
    NUMBER("value-heads", LIMIT_HEADS, "Value heads of a recurrent layer"),
    NUMBER("key-dim", LIMIT_HEAD_DIM, "Width of a key head"),
    NUMBER("value-dim", LIMIT_HEAD_DIM, "Width of a value head"),
    NUMBER("conv", LIMIT_CONV_KERNEL, "Width of the convolution"),
    NUMBER("interval", LIMIT_LAYERS, "Every Nth layer has full attention"),
    NUMBER("vocab", LIMIT_VOCAB, "Vocabulary size"),
    NUMBER("context", LIMIT_CONTEXT, "Maximum context that the model declares"),
    {.name = NULL},
};

static const struct option file_options[] = {
    {.name = "form", .kind = OPTION_STRING, .metavar = "FORM",
     .shown = "by the name of DST: gguf for .gguf, packed for .fmoe, otherwise safetensors",
     .help = "File format: packed, safetensors or gguf"},
    {.name = "experts-format", .kind = OPTION_STRING, .metavar = "NAME",
     .shown = "affine4-g64; safetensors: bf16; gguf: q4_k",
     .help = "Number format of the experts. Affine formats in safetensors produce an MLX "
             "directory"},
    {.name = "dense-format", .kind = OPTION_STRING, .metavar = "NAME",
     .shown = "affine4-g64; safetensors: bf16; gguf: q4_k",
     .help = "Number format of the other matrices"},
    {.name = "embed-format", .kind = OPTION_STRING, .metavar = "NAME",
     .shown = "--dense-format", .help = "Number format of the embedding"},
    {.name = "head-format", .kind = OPTION_STRING, .metavar = "NAME",
     .shown = "--dense-format; gguf: q6_k", .help = "Number format of the head"},
    {.name = "split-size", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1 << 10,
     .shown = "4 GB for safetensors, one file for gguf",
     .help = "Maximum file size; more files are written as needed"},
    {.name = "seed", .kind = OPTION_UINT, .metavar = "N", .max = INT64_MAX, .value = "1",
     .help = "Random seed; the same seed gives the same bytes"},
    {.name = "threads", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_THREADS,
     .shown = "two per processor", .help = "Threads that generate and write the weights"},
    {.name = "headers-only", .kind = OPTION_FLAG,
     .help = "Write no weights: the files have their full length, but take almost no space. The "
             "model can be inspected and planned, not run"},
    {.name = "dry-run", .kind = OPTION_FLAG, .help = "Print the sizes and write nothing"},
    {.name = NULL},
};

static const struct option quiet_options[] = {
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG,
     .help = "No progress and no summary line; errors remain"},
    {.name = NULL},
};

static const struct option_group group_numbers = {"Shape", number_options};
static const struct option_group group_files = {"Files", file_options};
static const struct option_group group_quiet = {"Output", quiet_options};

static const char *const form_names[] = {"packed", "safetensors", "gguf", NULL};

static bool has_suffix(const char *text, const char *suffix)
{
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

static int choose_form(const struct args *args, enum fm_synth_form *form, struct fm_error *err)
{
    const char *dst = args_operand(args, 1), *name = args_text(args, "form");
    *form = has_suffix(dst, ".gguf")   ? FM_SYNTH_GGUF
            : has_suffix(dst, ".fmoe") ? FM_SYNTH_PACKED
                                       : FM_SYNTH_SAFETENSORS;
    if (name == NULL)
        return 0;
    for (int i = 0; form_names[i] != NULL; i++)
        if (strcmp(form_names[i], name) == 0) {
            *form = (enum fm_synth_form)i;
            return 0;
        }
    return err_set(err, FM_ERR_ARG, "--form must be packed, safetensors or gguf, not '%s'", name);
}

/* ---- output ---------------------------------------------------------------------------- */

static void print_size(const char *what, uint64_t bytes)
{
    char human[UNIT_BYTES], exact[UNIT_BYTES];
    (void)printf("  %-36s %11s  %19s bytes\n", what, human_bytes(bytes, human),
                 grouped_digits(bytes, exact));
}

static void print_result(const char *dst, int form, const struct fm_synth_result *r)
{
    char human[UNIT_BYTES], exact[UNIT_BYTES];
    (void)printf("Model         %s (%s)\n", dst, form_names[form]);
    (void)printf("Architecture  %s\n", r->architecture);
    (void)printf("Parameters    %s (%s)\n", human_count(r->n_parameters, human),
                 grouped_digits(r->n_parameters, exact));
    (void)printf("Files         %llu\n\nSizes\n", (unsigned long long)r->n_files);
    print_size("all files", r->file_bytes);
    print_size("free on that disk", r->free_bytes);
    print_size("dense weights", r->dense_bytes);
    print_size("all experts", r->experts_bytes);
    print_size("one expert", r->expert_bytes);
    (void)printf("\nOne token reads\n");
    print_size("expert weights", r->expert_token_bytes);
    print_size("dense weights", r->dense_token_bytes);
}

static bool print_json(const char *dst, int form, const struct fm_synth_result *r, double seconds)
{
    return out_json(json_pack(
        "{s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}",
        "model", json_text(dst, strlen(dst)), "form", form_names[form],
        "architecture", r->architecture,
        "n_parameters", (json_int_t)r->n_parameters,
        "n_tensors", (json_int_t)r->n_tensors,
        "n_files", (json_int_t)r->n_files,
        "file_bytes", (json_int_t)r->file_bytes,
        "free_bytes", (json_int_t)r->free_bytes,
        "dense_bytes", (json_int_t)r->dense_bytes,
        "experts_bytes", (json_int_t)r->experts_bytes,
        "expert_bytes", (json_int_t)r->expert_bytes,
        "expert_token_bytes", (json_int_t)r->expert_token_bytes,
        "dense_token_bytes", (json_int_t)r->dense_token_bytes,
        "seconds", seconds));
}

/* ---- the command ----------------------------------------------------------------------- */

static void fill_options(const struct args *args, uint32_t numbers[FM_SYNTH_NUMBERS],
                         struct fm_synth_options *options)
{
    for (unsigned i = 0; i < FM_SYNTH_NUMBERS; i++)
        numbers[i] = (uint32_t)args_uint(args, number_options[i].name);
    options->numbers = numbers;
    options->n_numbers = FM_SYNTH_NUMBERS;
    options->experts = args_text(args, "experts-format");
    options->dense = args_text(args, "dense-format");
    options->embed = args_text(args, "embed-format");
    options->head = args_text(args, "head-format");
    options->seed = args_uint(args, "seed");
    options->split_bytes = args_uint(args, "split-size");
    options->n_threads = (unsigned)args_uint(args, "threads");
    options->headers_only = args_flag(args, "headers-only");
    options->plan_only = args_flag(args, "dry-run");
}

static int run_synth(const struct args *args)
{
    const char *dst = args_operand(args, 1);
    const bool is_quiet = args_flag(args, "quiet"), is_json = args_flag(args, "json");
    struct fm_error err = {0};
    struct fm_synth_options options = {.size = sizeof options};
    struct fm_synth_result result = {.size = sizeof result};
    uint32_t numbers[FM_SYNTH_NUMBERS];
    struct work work;
    if (choose_form(args, &options.form, &err) != 0)
        return say_failed(&err, STATUS_USAGE);
    fill_options(args, numbers, &options);
    options.progress = work_show;
    options.progress_ctx = &work;
    work_begin(&work, "writing", is_quiet);
    int rc = fm_synth(args_operand(args, 0), dst, &options, &result, &err);
    const double seconds = work_seconds(&work);
    work_end(&work);
    if (rc == FM_ERR_CANCELLED)
        say("stopped; removed the unfinished '%s'", dst);
    if (rc != 0)
        return rc == FM_ERR_CANCELLED ? STATUS_INTERRUPTED
                                      : say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE
                                                                          : STATUS_FAILED);
    if (is_json)
        return print_json(dst, options.form, &result, seconds) ? STATUS_OK : STATUS_FAILED;
    if (options.plan_only)
        print_result(dst, options.form, &result);
    else if (!is_quiet) {
        char bytes[UNIT_BYTES], rate[UNIT_BYTES], time[UNIT_BYTES];
        say("%s in %s, %s", human_bytes(result.file_bytes, bytes),
            human_seconds(seconds, time),
            human_rate((double)result.file_bytes / seconds, rate));
    }
    return STATUS_OK;
}

const struct command cmd_synth = {
    .name = "synth",
    .summary = "Write a model with random weights in the shape of a public one",
    .description =
        "For measuring speed without a download: file sizes and bytes read per token equal those "
        "of the real model; the text is gibberish. The bytes depend only on the shape, the formats "
        "and the seed.\n"
        "Every number of the shape can be changed, so --layers 8 gives a small model. DST must not "
        "exist; files are written next to it and renamed when complete.",
    .operands = (const struct operand[]){
        {.name = "SHAPE", .help = "Model to take the shape from",
         .choice = fm_synth_shape_name},
        {.name = "DST", .help = "Output: NAME.fmoe, NAME.gguf, or a directory"},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_numbers, &group_files, &group_json,
                                                   &group_quiet, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe synth coder-next big.fmoe", "80 billion parameters in 4 bits, 45 GB"},
        {"flashmoe synth coder-next short.fmoe --layers 8 --experts 64", "A small model"},
        {"flashmoe synth 397b any.fmoe --dry-run", "Only print the sizes"},
        {"flashmoe synth 397b plan.fmoe --headers-only", "For 'flashmoe plan plan.fmoe'"},
        {NULL, NULL}},
    .run = run_synth,
};
