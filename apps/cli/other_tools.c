#include "apps/cli/other_tools.h"

#include <stdio.h>
#include <string.h>

const struct other_option other_options[] = {
    {"-m --model", OTHER_MODEL, NULL},
    {"-c --ctx-size --context-length --max-model-len", "context", NULL},
    {"-n --n-predict --predict --max-tokens --max-new-tokens", "n-tokens", NULL},
    {"--temperature", "temp", NULL},
    {"--typical", "typical-p", NULL},
    {"--repetition-penalty", "repeat-penalty", NULL},
    {"-s", "seed", NULL},
    {"-r --reverse-prompt --extra-eos-token", "stop", NULL},
    {"-sys --system-prompt", "system", NULL},
    {"-sysf --system-prompt-file", "system-file", NULL},
    {"--ignore-chat-template", "raw", NULL},
    {"--nowordwrap", "no-wrap", NULL},
    {"-t --n-threads", "threads", NULL},
    {"-np --max-num-seqs", "parallel", NULL},
    {"-a --alias --served-model-name", "name", NULL},
    {"--log-disable", "quiet", NULL},
    {"-ngl --n-gpu-layers --gpu-layers", "gpu-memory",
     "use --gpu-memory SIZE: weights and the hottest experts go to the GPU by themselves; "
     "--gpu off uses none"},
    {"-cmoe --cpu-moe -ncmoe --n-cpu-moe -ot --override-tensor", "gpu-memory",
     "leave it out: experts go where they fit; --memory SIZE and --gpu-memory SIZE are the limits"},
    {"-ts --tensor-split -sm --split-mode -mg --main-gpu --tensor-parallel-size -dev --device",
     "gpu", "use --gpu N: one GPU computes; --gpu off uses none"},
    {"--gpu-memory-utilization", "gpu-memory", "use --gpu-memory SIZE, as in 20G"},
    {"--mmap --no-mmap --mlock -dio --direct-io", "io",
     "use --io direct or --io page; --memory SIZE limits what stays in memory"},
    {"-fa --flash-attn --no-warmup --warmup -kvo -nkvo --no-kv-offload", "memory",
     "leave it out: it is not needed here"},
    {"-ctk --cache-type-k -ctv --cache-type-v --kv-bits --kv-cache-dtype", "kv",
     "use --kv FORMAT: f16, f32, rot8, rot4, rot3 or rot2"},
    {"-b --batch-size -ub --ubatch-size --prefill-step-size", "prefill-chunk",
     "use --prefill-chunk N"},
    {"--numa -C --cpu-mask", "threads", "use --threads N and --pin"},
    {"--rope-scaling --rope-freq-base --rope-freq-scale --yarn-orig-ctx", "context",
     "leave it out: the model's files say it; --context N is the length"},
    {"--dtype --quantization --load-format --trust-remote-code --enforce-eager", "memory",
     "leave it out: the model's files say their formats, and no code in them is run"},
    {"--max-kv-size", "context", "use --context N: every position of it is kept"},
    {"--keepalive", "n-tokens",
     "use 'flashmoe serve', which keeps the model open; 'flashmoe run' ends after the answer"},
    {"-cnv --conversation -i --interactive -if --interactive-first", "n-tokens",
     "use 'flashmoe chat', which is a conversation"},
    {"-no-cnv --no-conversation -st --single-turn", "n-tokens",
     "use 'flashmoe run', which answers once; --raw leaves out the chat template"},
    {"--think --reasoning --reasoning-budget --hidethinking", "n-tokens",
     "use '/think on' or '/think off' in 'flashmoe chat'"},
    {"--jinja --no-jinja --chat-template --chat-template-file --use-default-chat-template",
     "n-tokens",
     "leave it out: the model's own chat template is used, and 'flashmoe template' shows it"},
    {"-e --escape --no-escape -co --color --no-display-prompt --simple-io --verbose-prompt",
     "n-tokens", "leave it out: it is not needed here"},
    {"--grammar --grammar-file -j --format", "json-schema",
     "use --json-object or --json-schema FILE"},
    {"--repeat-last-n", "repeat-window", "use --repeat-window N, where 0 means all tokens"},
    {"--mirostat --xtc-probability --dry-multiplier --dynatemp-range", "temp",
     "use --temp, --top-k, --top-p, --min-p or --typical-p"},
    {"--prompt-cache --prompt-cache-file --slot-save-path", "snapshots", "use --snapshots DIR"},
    {"-md --model-draft --draft-model --draft-max --draft-min --num-draft-tokens", "draft",
     "use --draft auto, which needs no second model"},
    {"--lora --adapter-path", "n-tokens",
     "adapters are not supported: merge it into the checkpoint first"},
    {"-hf -hfr --hf-repo -hff --hf-file -mu --model-url", NULL,
     "use 'flashmoe pull ORG/NAME' or 'flashmoe pull ORG/NAME:FILE', then ORG/NAME as the MODEL"},
    {NULL, NULL, NULL},
};

size_t other_option_next(const char **rest, char spelling[OTHER_BYTES])
{
    *rest += strspn(*rest, " ");
    const size_t n = strcspn(*rest, " ");
    (void)snprintf(spelling, OTHER_BYTES, "%.*s", (int)n, *rest);
    *rest += n;
    return n;
}

const struct other_option *other_option_find(const char *word, size_t bytes)
{
    char spelling[OTHER_BYTES];
    for (const struct other_option *other = other_options; other->spellings != NULL; other++)
        for (const char *rest = other->spellings; other_option_next(&rest, spelling) > 0;)
            if (strlen(spelling) == bytes && strncmp(spelling, word, bytes) == 0)
                return other;
    return NULL;
}

const char *other_command_find(const char *word)
{
    static const char *const pairs[][2] = {
        {"ls", "list"},         {"models", "list"},        {"tags", "list"},
        {"remove", "rm"},       {"delete", "rm"},          {"download", "pull"},
        {"fetch", "pull"},      {"get", "pull"},           {"show", "inspect"},
        {"info", "inspect"},    {"server", "serve"},       {"start", "serve"},
        {"generate", "run"},    {"ask", "run"},            {"cli", "run"},
        {"completion", "run"},  {"convert", "pack"},       {"quantize", "pack"},
        {"create", "pack"},     {"perplexity", "eval nll"}, {"benchmark", "bench decode"},
        {"version", "--version"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (strcmp(word, pairs[i][0]) == 0)
            return pairs[i][1];
    return NULL;
}
