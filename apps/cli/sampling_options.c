#include "apps/cli/sampling_options.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/splitmix.h"
#include "apps/cli/term.h"

static const struct option sampling_options[] = {
    {.name = "greedy", .kind = OPTION_FLAG, .excludes = "temp",
     .help = "Always take the most likely token, like --temp 0"},
    {.name = "temp", .kind = OPTION_FLOAT, .metavar = "X", .float_min = 0, .float_max = 10,
     .shown = "the model's recommendation, or 0",
     .help = "Temperature. 0 takes the most likely token; higher values vary more"},
    {.name = "top-k", .kind = OPTION_UINT, .metavar = "N", .max = LIMIT_VOCAB,
     .shown = "the model's recommendation",
     .help = "Sample from the N most likely tokens; 0: off"},
    {.name = "top-p", .kind = OPTION_FLOAT, .metavar = "X", .float_min = 0, .float_max = 1,
     .shown = "the model's recommendation",
     .help = "Sample from the most likely tokens whose total probability is X; 1: off"},
    {.name = "min-p", .kind = OPTION_FLOAT, .metavar = "X", .float_min = 0, .float_max = 1,
     .shown = "the model's recommendation",
     .help = "Exclude tokens less likely than X times the most likely one; 0: off"},
    {.name = "typical-p", .kind = OPTION_FLOAT, .metavar = "X", .float_min = 0, .float_max = 1,
     .shown = "the model's recommendation",
     .help = "Locally typical sampling: from the tokens whose surprise is closest to the mean and "
             "whose total probability is X; 1: off"},
    {.name = "repeat-penalty", .kind = OPTION_FLOAT, .metavar = "X", .float_min = 0,
     .float_max = 100, .shown = "the model's recommendation",
     .help = "Penalise tokens of the prompt and the answer: positive logits are divided by X, "
             "negative ones multiplied; 1: off"},
    {.name = "presence-penalty", .kind = OPTION_FLOAT, .metavar = "X", .float_min = -100,
     .float_max = 100, .value = "0",
     .help = "Subtract X from the logits of tokens that occur in the answer"},
    {.name = "frequency-penalty", .kind = OPTION_FLOAT, .metavar = "X", .float_min = -100,
     .float_max = 100, .value = "0",
     .help = "Subtract X from a token's logit for each occurrence in the answer"},
    {.name = "repeat-window", .kind = OPTION_UINT, .metavar = "N", .max = LIMIT_CONTEXT,
     .value = "0", .help = "Apply penalties to the last N tokens only; 0: all"},
    {.name = "logit-bias", .kind = OPTION_STRING, .metavar = "ID=X", .is_many = true,
     .help = "Add X to the logit of token ID ('flashmoe tokenize' shows ids); -inf forbids it. "
             "Separate several with commas, or repeat the option"},
    {.name = "seed", .kind = OPTION_UINT, .metavar = "N", .max = INT64_MAX,
     .shown = "from the clock", .as_unset = "-1",
     .help = "Random seed. The summary line shows it, and the same seed gives the same answer. -1 "
             "means the default"},
    {.name = NULL},
};

const struct option_group group_sampling = {"Answer", sampling_options};

/* Returns 32 bits that differ between runs, short enough to retype. */
static uint64_t clock_seed(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    uint64_t x = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    x += (uint64_t)getpid() << 40;
    return splitmix_mix(x) & 0xffffffffu;
}

/* Parses "7=2.5,9=-inf" and appends to the list. */
static int add_bias(const char *text, struct fm_sampling *sampling, struct fm_logit_bias *bias,
                    struct fm_error *err)
{
    for (const char *rest = text;; rest++) {
        char *end;
        const long id = strtol(rest, &end, 10);
        if (!isdigit((unsigned char)*rest) || *end != '=' || id > INT32_MAX)
            return err_set(err, FM_ERR_ARG, "--logit-bias: '%s' is not ID=X, as in 151645=-5 or "
                           "11=2,13=-inf", text);
        const char *number = end + 1;
        const double x = strtod(number, &end);
        if (end == number || (*end != '\0' && *end != ',') || !(isfinite(x) || x == -INFINITY))
            return err_set(err, FM_ERR_ARG, "--logit-bias: '%s' has no number for token %ld", text,
                           id);
        if (sampling->n_logit_bias == SAMPLING_BIAS_MAX)
            return err_set(err, FM_ERR_ARG, "--logit-bias: at most %d tokens", SAMPLING_BIAS_MAX);
        bias[sampling->n_logit_bias++] = (struct fm_logit_bias){(int32_t)id, (float)x};
        rest = end;
        if (*rest == '\0')
            return 0;
    }
}

static void take_float(const struct args *args, const char *name, float *out)
{
    if (args_has(args, name))
        *out = (float)args_float(args, name);
}

int sampling_choose(const struct args *args, const struct fm_model *model, bool is_quiet,
                    struct fm_logit_bias *bias, struct fm_sampling *sampling, struct fm_error *err)
{
    static const char *const shapers[] = {"top-k", "top-p", "min-p", "typical-p"};
    sampling->size = sizeof *sampling;
    fm_sampling_default(model, sampling);
    take_float(args, "temp", &sampling->temperature);
    if (args_given(args, "top-k"))
        sampling->top_k = (unsigned)args_uint(args, "top-k");
    take_float(args, "top-p", &sampling->top_p);
    take_float(args, "min-p", &sampling->min_p);
    take_float(args, "typical-p", &sampling->typical_p);
    take_float(args, "repeat-penalty", &sampling->repetition_penalty);
    take_float(args, "presence-penalty", &sampling->presence_penalty);
    take_float(args, "frequency-penalty", &sampling->frequency_penalty);
    sampling->penalty_window = (unsigned)args_uint(args, "repeat-window");
    if (args_flag(args, "greedy"))
        sampling->temperature = 0;
    sampling->seed = args_given(args, "seed") ? args_uint(args, "seed") : clock_seed();
    sampling->logit_bias = bias;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < args_count(args, "logit-bias"); i++)
        rc = add_bias(args_text_at(args, "logit-bias", i), sampling, bias, err);
    for (size_t i = 0; i < sizeof shapers / sizeof shapers[0]; i++)
        if (sampling->temperature == 0 && args_given(args, shapers[i]) && !is_quiet)
            say("note: --%s has no effect at temperature 0; add --temp 0.7, for example",
                shapers[i]);
    return rc;
}

int stops_choose(const struct args *args, const char *stops[REPEATS_MAX], unsigned *n_stops,
                 struct fm_error *err)
{
    *n_stops = (unsigned)args_count(args, "stop");
    for (unsigned i = 0; i < *n_stops; i++) {
        stops[i] = args_text_at(args, "stop", i);
        const size_t bytes = strlen(stops[i]);
        if (bytes == 0 || bytes > LIMIT_STOP_STRING_BYTES)
            return err_set(err, FM_ERR_ARG, "--stop: a stop string has %zu bytes: expected 1 to %u",
                           bytes, LIMIT_STOP_STRING_BYTES);
    }
    return 0;
}

/* Returns the number as it was typed: 0.7, not 0.699999988. */
static double shown(float x)
{
    return round((double)x * 1e6) / 1e6;
}

/* Shows 1 instead of 0, which means the same. */
static double shown_or_off(float x)
{
    return x == 0 ? 1 : shown(x);
}

json_t *sampling_json(const struct fm_sampling *s)
{
    json_t *bias = json_array();
    for (unsigned i = 0; i < s->n_logit_bias; i++) {
        const float x = s->logit_bias[i].bias;
        json_t *value = isfinite(x) ? json_real(shown(x)) : json_string("-inf");
        (void)json_array_append_new(bias, json_pack("[i, o]", s->logit_bias[i].id, value));
    }
    return json_pack("{s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:o}",
                     "temperature", shown(s->temperature), "top_k", (json_int_t)s->top_k,
                     "top_p", shown(s->top_p), "min_p", shown(s->min_p),
                     "typical_p", shown_or_off(s->typical_p),
                     "repetition_penalty", shown_or_off(s->repetition_penalty),
                     "presence_penalty", shown(s->presence_penalty),
                     "frequency_penalty", shown(s->frequency_penalty),
                     "penalty_window", (json_int_t)s->penalty_window, "logit_bias", bias);
}
