/* The regimes: which commands measure them, with which budgets, and when one cannot be measured. */
#include <stdarg.h>
#include <string.h>

#include "apps/bench/all.h"
#include "apps/bench/own_server.h"

/* Of the free memory, what budgets may use. */
#define USABLE_SHARE 0.9
/* Beside a budget with room for every expert: the program's size varies between commands. */
#define ROOMY_BYTES (64ull << 20)
#define MARGIN_BYTES (2ull << 20)
#define DECODE_CHUNK 128
#define PROMPT_TOKENS 16
#define SERVER_ROOM_TOKENS 64
#define SERVER_SESSIONS_MORE 2
#define SERVER_MARKS 4
/* As 'flashmoe bench draft' opens the model. */
#define DRAFT_PROMPT 128
#define DRAFT_CHUNK 64
#define DRAFT_SIDES 2

static const char *const acceptance = "90,75,60"; /* of simulated drafts, when routes are given */

/* ---- making cases ---------------------------------------------------------------------------- */

static void leave_out(struct all *all, unsigned regime, const char *fmt, ...) ERR_PRINTF(3, 4);

static void leave_out(struct all *all, unsigned regime, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(all->left_out[regime], ALL_WHY_BYTES, fmt, args);
    va_end(args);
}

static void add_word(struct all_case *one, const char *word)
{
    if (one->n_words + 1 < ALL_WORDS_MAX)
        one->words[one->n_words++] = word;
}

static void add_number(struct all_case *one, const char *option, uint64_t n)
{
    char *at = one->store + one->store_used;
    const size_t room = sizeof one->store - one->store_used;
    const int bytes = snprintf(at, room, "%llu", (unsigned long long)n);
    if (bytes < 0 || (size_t)bytes >= room)
        return;
    one->store_used += (size_t)bytes + 1;
    add_word(one, option);
    add_word(one, at);
}

/* Adds the options of this command that all regimes have. */
static void add_given(const struct all *all, struct all_case *one, bool has_routes)
{
    static const char *const texts[] = {"cpu", "io"};
    static const char *const dashed[] = {"--cpu", "--io"};
    for (unsigned i = 0; i < 2; i++)
        if (args_given(all->args, texts[i])) {
            add_word(one, dashed[i]);
            add_word(one, args_text(all->args, texts[i]));
        }
    if (args_given(all->args, "kv")) {
        add_word(one, "--kv");
        add_word(one, args_text(all->args, "kv"));
    }
    if (args_flag(all->args, "pin"))
        add_word(one, "--pin");
    if (has_routes && args_text(all->args, "routes") != NULL) {
        add_word(one, "--routes");
        add_word(one, args_text(all->args, "routes"));
    }
}

/* Begins a case of "bench COMMAND". The processor alone computes unless `with_gpu`. */
static struct all_case *begin_case(struct all *all, unsigned regime, const char *command,
                                   bool with_gpu)
{
    if (all->n_cases == ALL_CASES_MAX)
        return NULL;
    struct all_case *one = &all->cases[all->n_cases++];
    *one = (struct all_case){.regime = regime};
    add_word(one, "bench");
    add_word(one, command);
    add_word(one, all->model);
    add_given(all, one, true);
    if (all->facts.gpu[0] != '\0' && !with_gpu) {
        add_word(one, "--gpu");
        add_word(one, "off");
    }
    add_word(one, "--json");
    add_word(one, "-q");
    return one;
}

static void set_label(struct all_case *one, double x, const char *fmt, ...) ERR_PRINTF(3, 4);

static void set_label(struct all_case *one, double x, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(one->label, sizeof one->label, fmt, args);
    va_end(args);
    one->x = x;
}

static void set_budget(struct all_case *one, uint64_t bytes)
{
    one->budget_bytes = bytes;
    add_number(one, "--memory", bytes);
}

/* ---- budgets --------------------------------------------------------------------------------- */

static uint64_t n_experts(const struct all *all)
{
    return (uint64_t)all->facts.n_experts * all->facts.n_moe_layers;
}

/* Says that `what` needs more memory than may be used. The difference is never shown as none, as
 * that of two rounded sizes could be. */
static void leave_out_large(struct all *all, unsigned regime, const char *what, uint64_t bytes)
{
    char needed[UNIT_BYTES], more[UNIT_BYTES], usable[UNIT_BYTES];
    leave_out(all, regime, "%s need %s of memory, %s more than the %s that may be used", what,
              human_bytes(bytes, needed), human_bytes(bytes - all->usable_bytes, more),
              human_bytes(all->usable_bytes, usable));
}

/* Finds a budget with room for this share of the experts beside what `fixed` says. Sets 0, and
 * leaves the regime out unless a reason is there, if more memory would be needed than may be
 * used. */
static void find_budget(struct all *all, unsigned regime, double share,
                        const struct all_fixed *fixed, uint64_t more_bytes, uint64_t *bytes)
{
    char what[64];
    const uint64_t experts = (uint64_t)(share * (double)n_experts(all)) * fixed->slot_bytes;
    *bytes = fixed->bytes + experts + more_bytes + (share >= 1 ? ROOMY_BYTES : MARGIN_BYTES);
    if (*bytes <= all->usable_bytes)
        return;
    (void)snprintf(what, sizeof what, "%.0f %% of the experts", 100 * share);
    if (all->left_out[regime][0] == '\0')
        leave_out_large(all, regime, what, *bytes);
    *bytes = 0;
}

static unsigned smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Whether there are experts to leave on the disk. */
static bool is_routed(struct all *all, unsigned regime)
{
    if (n_experts(all) == 0)
        leave_out(all, regime, "the model has no routed experts");
    return n_experts(all) > 0;
}

/* ---- decode ---------------------------------------------------------------------------------- */

static unsigned decode_tokens(const struct all *all)
{
    return all->is_quick ? 16 : 48;
}

static unsigned decode_pieces(const struct all *all)
{
    return all->is_quick ? 2 : 3;
}

/* Adds a case of bench decode with this share of the experts in memory. Sets *out to NULL if there
 * is too little memory. */
static int add_decode(struct all *all, unsigned regime, double share, struct all_case **out,
                      struct fm_error *err)
{
    const struct all_fixed *fixed;
    uint64_t bytes;
    const unsigned n = decode_tokens(all) * decode_pieces(all) + PROMPT_TOKENS;
    *out = NULL;
    const int rc = all_find_fixed(all, n, DECODE_CHUNK, false, &fixed, err);
    if (rc != 0)
        return rc;
    find_budget(all, regime, share, fixed, 0, &bytes);
    struct all_case *one = bytes > 0 ? begin_case(all, regime, "decode", false) : NULL;
    if (one == NULL)
        return 0;
    add_number(one, "--tokens", decode_tokens(all));
    add_number(one, "--repeat", decode_pieces(all));
    add_number(one, "--prefill-chunk", DECODE_CHUNK);
    set_budget(one, bytes);
    *out = one;
    return 0;
}

static int build_decode(struct all *all, unsigned regime, struct fm_error *err)
{
    struct all_case *one;
    const int rc = add_decode(all, regime, 1, &one, err);
    if (one != NULL)
        set_label(one, 1, "all experts in memory");
    return rc;
}

static int build_stream(struct all *all, unsigned regime, struct fm_error *err)
{
    static const double shares[] = {0.25, 0.5, 0.7};
    int rc = 0;
    if (!is_routed(all, regime))
        return 0;
    for (unsigned i = 0; rc == 0 && i < 3; i++) {
        struct all_case *one;
        if (all->is_quick && i == 1)
            continue;
        rc = add_decode(all, regime, shares[i], &one, err);
        if (one != NULL)
            set_label(one, 100 * shares[i], "%.0f %% of the experts", 100 * shares[i]);
    }
    return rc;
}

/* Returns the i-th number of threads: powers of two, then all cores; 0 past the end. */
static unsigned threads_at(const struct all *all, unsigned i)
{
    unsigned n = 1;
    for (; i > 0 && n < all->machine.n_cores; i--)
        n = 2 * n < all->machine.n_cores ? 2 * n : all->machine.n_cores;
    return i > 0 ? 0 : n;
}

static bool has_threads(struct all *all, unsigned regime)
{
    if (all->machine.n_cores < 2)
        leave_out(all, regime, "this machine has one usable core");
    return all->machine.n_cores >= 2;
}

static void label_threads(struct all_case *one, unsigned n)
{
    add_number(one, "--threads", n);
    set_label(one, n, "%u thread%s", n, n == 1 ? "" : "s");
}

static int build_threads(struct all *all, unsigned regime, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0, n; has_threads(all, regime) && rc == 0 && (n = threads_at(all, i)) > 0;
         i++) {
        struct all_case *one;
        rc = add_decode(all, regime, 1, &one, err);
        if (one == NULL)
            break;
        label_threads(one, n);
    }
    return rc;
}

/* ---- prefill --------------------------------------------------------------------------------- */

static int add_prefill(struct all *all, unsigned regime, double share, unsigned n_tokens,
                       struct all_case **out, struct fm_error *err)
{
    const struct all_fixed *fixed;
    uint64_t bytes;
    *out = NULL;
    const int rc = all_find_fixed(all, n_tokens, n_tokens, false, &fixed, err);
    if (rc != 0)
        return rc;
    find_budget(all, regime, share, fixed, 0, &bytes);
    struct all_case *one = bytes > 0 ? begin_case(all, regime, "prefill", false) : NULL;
    if (one == NULL)
        return 0;
    add_number(one, "--tokens", n_tokens);
    add_number(one, "--repeat", all->is_quick ? 1 : 2);
    add_number(one, "--prefill-chunk", n_tokens);
    set_budget(one, bytes);
    *out = one;
    return 0;
}

static int build_prefill(struct all *all, unsigned regime, struct fm_error *err)
{
    static const unsigned lengths[] = {128, 512, 2048};
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 3; i++) {
        struct all_case *one;
        const unsigned n = smaller(lengths[i], all->facts.max_context);
        if ((i > 0 && n <= lengths[i - 1]) || (all->is_quick && i == 2))
            break;
        rc = add_prefill(all, regime, 1, n, &one, err);
        if (one == NULL)
            break;
        set_label(one, n, "%u tokens", n);
    }
    return rc;
}

static int build_prefill_threads(struct all *all, unsigned regime, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0, n; has_threads(all, regime) && rc == 0 && (n = threads_at(all, i)) > 0;
         i++) {
        struct all_case *one;
        rc = add_prefill(all, regime, 1, smaller(512, all->facts.max_context), &one, err);
        if (one == NULL)
            break;
        label_threads(one, n);
    }
    return rc;
}

static int build_prefill_stream(struct all *all, unsigned regime, struct fm_error *err)
{
    static const double shares[] = {0.25, 0.5};
    const unsigned n = smaller(2048, all->facts.max_context);
    int rc = 0;
    if (!is_routed(all, regime))
        return 0;
    for (unsigned i = 0; rc == 0 && i < (all->is_quick ? 1u : 2u); i++) {
        struct all_case *one;
        rc = add_prefill(all, regime, shares[i], n, &one, err);
        if (one != NULL)
            set_label(one, 100 * shares[i], "%.0f %% of the experts, chunks of %u",
                      100 * shares[i], n);
    }
    return rc;
}

/* ---- many users ------------------------------------------------------------------------------ */

static int add_users(struct all *all, unsigned regime, unsigned n_users, double share,
                     struct fm_error *err)
{
    const unsigned n_prompt = all->is_quick ? 32 : 330, n_tokens = all->is_quick ? 64 : 48;
    const unsigned n_context = n_prompt + n_tokens + SERVER_ROOM_TOKENS;
    const struct all_fixed *fixed;
    uint64_t bytes;
    if (n_context > all->facts.max_context) {
        leave_out(all, regime, "the model has %u positions; a user needs %u",
                  all->facts.max_context, n_context);
        return 0;
    }
    const int rc = all_find_fixed(all, n_context, DECODE_CHUNK, false, &fixed, err);
    if (rc != 0)
        return rc;
    const uint64_t session = fixed->kv_bytes + SERVER_MARKS * all->facts.state_bytes;
    find_budget(all, regime, share, fixed,
                OWN_SERVER_REQUEST_BYTES + (n_users + SERVER_SESSIONS_MORE) * session, &bytes);
    struct all_case *one = bytes > 0 ? begin_case(all, regime, "serve", false) : NULL;
    if (one == NULL)
        return 0;
    one->kind = ALL_SERVE;
    add_number(one, "--users", n_users);
    add_number(one, "--prompt", n_prompt);
    add_number(one, "--tokens", n_tokens);
    add_number(one, "--repeat", 1);
    add_number(one, "--prefill-chunk", DECODE_CHUNK);
    set_budget(one, bytes);
    set_label(one, n_users, "%u users", n_users);
    return 0;
}

static int build_some_users(struct all *all, unsigned regime, double share, struct fm_error *err)
{
    static const unsigned users[] = {4, 8, 16, 32};
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < (all->is_quick ? 2u : 4u); i++)
        rc = add_users(all, regime, users[i], share, err);
    return rc;
}

static int build_users(struct all *all, unsigned regime, struct fm_error *err)
{
    return build_some_users(all, regime, 1, err);
}

static int build_users_half(struct all *all, unsigned regime, struct fm_error *err)
{
    return is_routed(all, regime) ? build_some_users(all, regime, 0.5, err) : 0;
}

/* ---- start ----------------------------------------------------------------------------------- */

static int build_start(struct all *all, unsigned regime, struct fm_error *err)
{
    const unsigned n_context = smaller(256, all->facts.max_context);
    const struct all_fixed *fixed;
    if (!all->facts.has_tokenizer) {
        leave_out(all, regime, "the model has no tokenizer, so there is no text to wait for");
        return 0;
    }
    const int rc = all_find_fixed(all, n_context, DECODE_CHUNK, false, &fixed, err);
    if (rc != 0)
        return rc;
    uint64_t bytes = fixed->bytes + n_experts(all) * fixed->slot_bytes + ROOMY_BYTES;
    if (bytes > all->usable_bytes)
        bytes = all->usable_bytes;
    if (bytes < fixed->bytes + MARGIN_BYTES) {
        leave_out_large(all, regime, "the dense weights alone", fixed->bytes + MARGIN_BYTES);
        return 0;
    }
    for (unsigned i = 0; i < 2 && all->n_cases < ALL_CASES_MAX; i++) {
        struct all_case *one = &all->cases[all->n_cases++];
        static const char *const words[] = {"-p", "x", "-n", "1", "--raw", "-q", "--heat"};
        *one = (struct all_case){.regime = regime, .kind = i == 0 ? ALL_COLD : ALL_WARM};
        add_word(one, "run");
        add_word(one, all->model);
        for (unsigned k = 0; k < sizeof words / sizeof words[0]; k++)
            add_word(one, words[k]);
        add_word(one, all->heat_path);
        add_number(one, "--context", n_context);
        add_number(one, "--prefill-chunk", DECODE_CHUNK);
        add_given(all, one, true);
        if (all->facts.gpu[0] != '\0') {
            add_word(one, "--gpu");
            add_word(one, "off");
        }
        set_budget(one, bytes);
        set_label(one, i, i == 0 ? "cold" : "warm");
    }
    return 0;
}

/* ---- drafts, levels, other files, disks, GPUs ------------------------------------------------ */

static int build_drafts(struct all *all, unsigned regime, struct fm_error *err)
{
    static const double shares[] = {0.25, 0.5, 1};
    const bool is_simulated = args_text(all->args, "routes") != NULL;
    const unsigned n_tokens = all->is_quick ? 16 : 48, n_repeat = all->is_quick ? 1 : 2;
    const unsigned n_runs = is_simulated ? (n_repeat + 1) * DRAFT_SIDES : 1;
    const struct all_fixed *fixed;
    if (!all->facts.has_mtp || !is_routed(all, regime)) {
        leave_out(all, regime, "the model has no block for multi-token prediction that can be "
                  "used");
        return 0;
    }
    const int rc = all_find_fixed(all, DRAFT_PROMPT + n_runs * n_tokens, DRAFT_CHUNK, true, &fixed,
                                  err);
    for (unsigned i = 0; rc == 0 && i < 3; i++) {
        uint64_t bytes = 0;
        if (!all->is_quick || i == 1)
            find_budget(all, regime, shares[i], fixed, 0, &bytes);
        struct all_case *one = bytes > 0 ? begin_case(all, regime, "draft", false) : NULL;
        if (one == NULL)
            continue;
        one->kind = ALL_DRAFT;
        one->budget_bytes = bytes;
        add_number(one, "--budgets", bytes);
        add_number(one, "--tokens", n_tokens);
        add_number(one, "--repeat", n_repeat);
        if (is_simulated) {
            add_word(one, "--acceptance");
            add_word(one, acceptance);
        }
        set_label(one, 100 * shares[i], "%.0f %% of the experts", 100 * shares[i]);
    }
    return rc;
}

static int build_levels(struct all *all, unsigned regime, struct fm_error *err)
{
    struct fm_level_info level = {.size = sizeof level};
    unsigned n_usable = 0;
    int rc = 0;
    for (unsigned i = 0; fm_machine_level(i, &level); i++)
        n_usable += level.is_usable && strcmp(level.name, "reference") != 0;
    if (args_given(all->args, "cpu") || n_usable < 2) {
        leave_out(all, regime, n_usable < 2 ? "this processor has one level"
                                            : "--cpu names the level of all regimes");
        return 0;
    }
    for (unsigned i = 0; rc == 0 && fm_machine_level(i, &level); i++)
        for (unsigned k = 0; rc == 0 && k < 2; k++) {
            struct all_case *one;
            if (!level.is_usable || strcmp(level.name, "reference") == 0)
                continue;
            rc = k == 0 ? add_decode(all, regime, 1, &one, err)
                        : add_prefill(all, regime, 1, smaller(512, all->facts.max_context), &one,
                                      err);
            if (one == NULL)
                return rc;
            add_word(one, "--cpu");
            add_word(one, level.name);
            set_label(one, i, "%s, %s", level.name, k == 0 ? "decode" : "prefill");
        }
    return rc;
}

static int build_source(struct all *all, unsigned regime, struct fm_error *err)
{
    if (all->facts.is_packed) {
        leave_out(all, regime, "the model is packed; this regime is for GGUF files and "
                  "checkpoint directories");
        return 0;
    }
    if (all->packed == NULL) {
        leave_out(all, regime, "there is no packed copy to compare with (--packed); the other "
                  "regimes measure the %s as it is", all->facts.container);
        return 0;
    }
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 2; i++) {
        struct all_case *one;
        rc = add_decode(all, regime, 1, &one, err);
        if (one == NULL)
            break;
        if (i == 1)
            one->words[2] = all->packed;
        set_label(one, i, "%s", i == 0 ? all->facts.container : "packed");
    }
    return rc;
}

static int build_disks(struct all *all, unsigned regime, struct fm_error *err)
{
    struct all_case *one;
    if (all->facts.n_disks < 2) {
        leave_out(all, regime, "the model lies on one disk ('flashmoe pack --to DIR1,DIR2' divides "
                  "it)");
        return 0;
    }
    const int rc = add_decode(all, regime, 0.25, &one, err);
    if (one != NULL)
        set_label(one, 25, "25 %% of the experts, %u disks", all->facts.n_disks);
    return rc;
}

/* Adds decoding with this share of what the GPU could hold of the experts. */
static void add_gpu(struct all *all, unsigned regime, const char *command, double share)
{
    const struct all_facts *f = &all->facts;
    const bool holds_all = f->n_gpu_slots >= n_experts(all);
    const bool is_decode = strcmp(command, "decode") == 0;
    struct all_case *one = begin_case(all, regime, command, true);
    if (one == NULL)
        return;
    add_number(one, "--tokens", is_decode ? decode_tokens(all) : 2048);
    add_number(one, "--repeat", is_decode ? decode_pieces(all) : 2);
    set_budget(one, all->usable_bytes);
    if (share < 1)
        add_number(one, "--gpu-memory", f->gpu_fixed_bytes +
                                            (uint64_t)(share * (double)f->gpu_cache_bytes));
    set_label(one, 100 * share, "%s, %s", command,
              share < 1 ? "half of them on the GPU"
                        : holds_all ? "all experts on the GPU" : "what fits on the GPU");
}

static int build_gpu(struct all *all, unsigned regime, struct fm_error *err)
{
    (void)err;
    if (all->facts.gpu[0] == '\0') {
        leave_out(all, regime, "no GPU can be used");
        return 0;
    }
    add_gpu(all, regime, "decode", 1);
    add_gpu(all, regime, "decode", 0.5);
    if (all->facts.max_context >= 2048)
        add_gpu(all, regime, "prefill", 1);
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define DECODE_EXTRAS {{"residency", "%", 100}, {"hits", "%", 100}, {"read", "MB/token", 1e-6}, \
                       {NULL, NULL, 0}}
#define USERS_EXTRAS {{"first token", "s", 1}, {"longest gap", "ms", 1e3}, \
                      {"each", "tok/s", 1}, {"with prompts", "tok/s", 1}}
#define NO_EXTRAS {{NULL, NULL, 0}}

const struct all_regime all_regimes[] = {
    {"decode", "Decode, all experts in memory", "Decodes with every expert in memory",
     NULL, NULL, "tok/s", DECODE_EXTRAS, build_decode},
    {"stream", "Decode, experts from the disk",
     "Decodes with 25, 50 and 70 % of the experts in memory", "experts in memory", "%", "tok/s",
     DECODE_EXTRAS, build_stream},
    {"threads", "Decode by threads", "Decodes with 1 thread up to one per core", "threads", "",
     "tok/s", DECODE_EXTRAS, build_threads},
    {"prefill", "Prefill by length", "Reads prompts of 128, 512 and 2,048 tokens, all experts in "
     "memory", "tokens of the prompt", "", "tok/s", DECODE_EXTRAS, build_prefill},
    {"prefill-threads", "Prefill by threads", "Reads prompts of 512 tokens with 1 thread up to one "
     "per core", "threads", "", "tok/s", DECODE_EXTRAS, build_prefill_threads},
    {"prefill-stream", "Prefill, experts from the disk", "Reads prompts in chunks of 2,048 tokens "
     "with 25 and 50 % of the experts in memory", "experts in memory", "%", "tok/s",
     DECODE_EXTRAS, build_prefill_stream},
    {"users", "Many users, all experts in memory", "Serves 4, 8, 16 and 32 users at a time",
     "users", "", "tok/s", USERS_EXTRAS, build_users},
    {"users-half", "Many users, half of the experts in memory", "The same with half of the experts "
     "in memory", "users", "", "tok/s", USERS_EXTRAS, build_users_half},
    {"start", "First text after a start", "Starts with the model's files out of the page cache and "
     "no heat file (cold), and again right after that (warm)", NULL, NULL, "s", NO_EXTRAS,
     build_start},
    {"drafts", "Decode with drafts", "Decodes with drafts of the model's own block and without, in "
     "turns", "experts in memory", "%", "tok/s",
     {{"residency", "%", 100}, {"speed-up", "x", 1}, {"tokens a pass", "", 1}, {NULL, NULL, 0}},
     build_drafts},
    {"levels", "Instruction sets", "Decodes and reads prompts with each instruction set", NULL,
     NULL, "tok/s", DECODE_EXTRAS, build_levels},
    {"source", "The file as it is, and packed", "Decodes a GGUF file or a checkpoint directory "
     "beside a packed copy of it (--packed)", NULL, NULL, "tok/s", DECODE_EXTRAS, build_source},
    {"disks", "Several disks", "Decodes a model that lies on several disks", NULL, NULL, "tok/s",
     DECODE_EXTRAS, build_disks},
    {"gpu", "On the GPU", "Decodes with all experts and with half of them in the GPU's memory, and "
     "reads a prompt of 2,048 tokens", NULL, NULL, "tok/s", DECODE_EXTRAS, build_gpu},
    {.name = NULL},
};

/* ---- choosing -------------------------------------------------------------------------------- */

int all_choose(struct all *all, const char *list, struct fm_error *err)
{
    for (unsigned i = 0; all_regimes[i].name != NULL; i++)
        all->is_chosen[i] = list == NULL;
    while (list != NULL) {
        const size_t n = strcspn(list, ",");
        unsigned i = 0;
        while (all_regimes[i].name != NULL &&
               (strlen(all_regimes[i].name) != n || strncmp(all_regimes[i].name, list, n) != 0))
            i++;
        if (all_regimes[i].name == NULL) {
            char names[256] = "";
            size_t at = 0;
            for (unsigned k = 0; all_regimes[k].name != NULL && at < sizeof names; k++)
                at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", k > 0 ? ", " : "",
                                       all_regimes[k].name);
            return err_set(err, FM_ERR_ARG, "--only: there is no regime '%.*s'; there are %s",
                           (int)smaller((unsigned)n, 40), list, names);
        }
        all->is_chosen[i] = true;
        list = list[n] == ',' ? list + n + 1 : NULL;
    }
    return 0;
}

int all_build(struct all *all, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && all_regimes[i].name != NULL; i++) {
        if (!all->is_chosen[i])
            continue;
        const unsigned n = all->n_cases;
        rc = all_regimes[i].build(all, i, err);
        if (rc == 0 && all->n_cases == n && all->left_out[i][0] == '\0')
            leave_out(all, i, "there are more than %d cases", ALL_CASES_MAX);
    }
    return rc;
}

/* ---- facts ----------------------------------------------------------------------------------- */

/* Keeps the formats of the weights: those of experts first. */
static void read_formats(struct all_facts *f, const json_t *formats)
{
    size_t at = 0, i;
    json_t *one;
    for (int is_expert = 1; is_expert >= 0; is_expert--)
        json_array_foreach(formats, i, one) {
            const bool is_main = all_number(one, "n_bytes") * 20 >
                                 (double)(is_expert ? f->experts_bytes : f->dense_bytes);
            if (json_is_true(json_object_get(one, "is_expert")) != is_expert || !is_main ||
                at >= sizeof f->formats)
                continue;
            const int n = snprintf(f->formats + at, sizeof f->formats - at, "%s%s%s",
                                   at > 0 ? ", " : "", all_string(one, "name"),
                                   is_expert ? " experts" : "");
            at += n > 0 ? (size_t)n : 0;
        }
}

static void copy_text(char *to, size_t bytes, const char *text)
{
    (void)snprintf(to, bytes, "%s", text);
}

static int inspect(struct all *all, struct fm_error *err)
{
    const char *words[] = {"inspect", all->model, "--json", "--kv", args_text(all->args, "kv"),
                           NULL};
    struct all_facts *f = &all->facts;
    json_t *model;
    const int rc = all_ask(all, words, &model, err);
    if (rc != 0)
        return rc;
    app_model_name(all->model, f->name);
    copy_text(f->container, sizeof f->container, all_string(model, "container"));
    copy_text(f->architecture, sizeof f->architecture, all_string(model, "architecture"));
    f->dense_bytes = all_count(model, "dense_bytes");
    f->experts_bytes = all_count(model, "experts_bytes");
    f->n_parameters = all_count(model, "n_parameters");
    f->state_bytes = all_count(model, "state_bytes");
    f->n_layers = (unsigned)all_count(model, "n_layers");
    f->n_moe_layers = (unsigned)all_count(model, "n_moe_layers");
    f->n_experts = (unsigned)all_count(model, "n_experts");
    f->n_experts_per_token = (unsigned)all_count(model, "n_experts_per_token");
    f->max_context = (unsigned)all_count(model, "max_context");
    f->has_tokenizer = json_is_true(json_object_get(model, "has_tokenizer"));
    f->has_mtp = json_is_true(json_object_get(json_object_get(model, "mtp"), "is_usable"));
    f->is_packed = strcmp(f->container, "packed model") == 0;
    read_formats(f, json_object_get(model, "formats"));
    json_decref(model);
    return 0;
}

/* Asks whether the program would use a GPU, and how many disks the experts lie on. */
static int look_around(struct all *all, struct fm_error *err)
{
    char memory[32];
    struct all_facts *f = &all->facts;
    json_t *plan;
    (void)snprintf(memory, sizeof memory, "%llu", (unsigned long long)all->usable_bytes);
    const char *words[] = {"plan", all->model, "--json", "-q", "--memory", memory, NULL};
    const int rc = all_ask(all, words, &plan, err);
    if (rc != 0)
        return rc;
    const json_t *disks = json_object_get(plan, "disks");
    const size_t n_disks = json_array_size(disks);
    const json_t *row = json_array_get(json_object_get(plan, "budgets"),
                                       (size_t)all_number(plan, "chosen"));
    const json_t *gpu = json_object_get(row, "gpu");
    f->n_disks = n_disks > 1 ? smaller((unsigned)n_disks, FM_DISKS_MAX) : 1;
    for (unsigned i = 0; i < f->n_disks; i++)
        copy_text(f->disk_folders[i], sizeof f->disk_folders[i],
                  all_string(json_array_get(disks, i), "folder"));
    copy_text(f->gpu, sizeof f->gpu, all_string(gpu, "name"));
    f->gpu_cache_bytes = all_count(gpu, "cache_bytes");
    f->n_gpu_slots = all_count(gpu, "n_slots");
    f->gpu_fixed_bytes = all_count(gpu, "dense_bytes") + all_count(gpu, "kv_max_bytes") +
                         all_count(gpu, "scratch_bytes");
    json_decref(plan);
    return 0;
}

int all_find_facts(struct all *all, struct fm_error *err)
{
    struct fm_level_info level = {.size = sizeof level};
    const char *cpu = args_text(all->args, "cpu");
    all->machine.size = sizeof all->machine;
    int rc = fm_machine_info(&all->machine);
    for (unsigned i = 0; fm_machine_level(i, &level); i++)
        if (level.is_default)
            copy_text(all->cpu_level, sizeof all->cpu_level, cpu != NULL ? cpu : level.name);
    all->usable_bytes = (uint64_t)(USABLE_SHARE * (double)all->machine.memory_available_bytes);
    const uint64_t given = args_uint(all->args, "memory");
    if (given > 0 && given < all->usable_bytes)
        all->usable_bytes = given;
    if (rc == 0)
        rc = inspect(all, err);
    return rc == 0 ? look_around(all, err) : rc;
}
