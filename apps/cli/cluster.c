#include "apps/cli/cluster.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"

static const struct option ranks_options[] = {
    {.name = "layers", .kind = OPTION_STRING, .metavar = "N,...",
     .shown = "chosen from the memory of each rank",
     .help = "Layers of each rank, in their order: with 'mpirun -n 3', --layers 20,14,14 gives the "
             "first rank 20 layers. docs/CLUSTER.md describes models on several machines"},
    {.name = "stages", .kind = OPTION_UINT, .metavar = "N", .min = 2, .max = CLUSTER_MAX_RANKS,
     .help = "Divide the layers among N threads of this process, as mpirun divides them among "
             "machines. For tests; --memory is then divided, too"},
    {.name = "rank-timeout", .kind = OPTION_UINT, .metavar = "SECONDS", .min = 1, .max = 3600,
     .value = "8",
     .help = "A rank that does not answer for so long is lost, and with it all requests"},
    {.name = NULL},
};

const struct option_group group_ranks = {"Several machines", ranks_options};

static struct fm_cluster *cluster;

static unsigned variable(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? (unsigned)strtoul(text, NULL, 10) : 0;
}

static bool has_option(const struct args *args, const char *name)
{
    size_t i = 0;
    while (i < args->n_values && strcmp(args->values[i].option->name, name) != 0)
        i++;
    return i < args->n_values;
}

/* Writes the options that all ranks must have in common, one in a line. */
static void write_words(const struct args *args, char *words, size_t bytes)
{
    static const char *const shared[] = {"kv", "context", "prefill-chunk", "experts-per-token",
                                         "cache-bias", "routes", "draft", "check", "policy",
                                         "lookahead", "layers", "rank-timeout"};
    size_t used = 0;
    words[0] = '\0';
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        for (size_t v = 0; v < args->n_values; v++) {
            const struct arg_value *value = &args->values[v];
            if (strcmp(value->option->name, shared[i]) != 0 || !value->is_given)
                continue;
            const int n = snprintf(words + used, bytes - used, "--%s %s\n", shared[i],
                                   value->text != NULL ? value->text : "");
            used += n > 0 && (size_t)n < bytes - used ? (size_t)n : 0;
        }
}

/* mpirun sends SIGTERM to all ranks when one has died. */
static void on_end(int signal_number)
{
    if (cluster != NULL) {
        fm_cluster_alarm(cluster, true);
        return;
    }
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

void cluster_alarm_from_signal(void)
{
    if (cluster != NULL)
        fm_cluster_alarm(cluster, false);
}

/* MPI begins when all ranks have begun. It waits for ever for one that hangs before that, or has
 * ended with status 0 because it is another program. After so many seconds the first rank says that
 * it waits, and after so many, or --rank-timeout if that is longer, it ends the job. */
#define WONDER_S 5
#define GIVE_UP_S 60

static unsigned give_up_s;
static char ends[100];

static void on_delay(int signal_number)
{
    static const char waits[] = "flashmoe: rank 0 waits for ranks that have not begun: is the same "
                                "flashmoe on all machines, and do their disks answer?\n";
    static volatile sig_atomic_t has_said;
    const ssize_t n = has_said ? write(STDERR_FILENO, ends, strlen(ends))
                               : write(STDERR_FILENO, waits, sizeof waits - 1);
    (void)n; /* nothing can be done about it in a signal handler */
    (void)signal_number;
    if (has_said)
        _exit(STATUS_FAILED);
    has_said = 1;
    (void)alarm(give_up_s - WONDER_S);
}

/* Joins the other ranks. */
static int join(const struct fm_cluster_options *options, unsigned n_ranks, struct fm_error *err)
{
    const bool is_watched = n_ranks > 1 && variable("OMPI_COMM_WORLD_RANK") == 0;
    if (is_watched) {
        give_up_s = options->timeout_s > GIVE_UP_S ? options->timeout_s : GIVE_UP_S;
        (void)snprintf(ends, sizeof ends, "flashmoe: not all ranks have begun after %u s: the job "
                       "ends\n", give_up_s);
        (void)signal(SIGALRM, on_delay);
        (void)alarm(WONDER_S);
    }
    const int rc = fm_cluster_join(options, &cluster, err);
    if (is_watched) {
        (void)alarm(0);
        (void)signal(SIGALRM, SIG_DFL);
    }
    return rc;
}

int cluster_enter(const struct args *args, struct fm_error *err)
{
    const unsigned n_ranks = variable("OMPI_COMM_WORLD_SIZE");
    const bool can = has_option(args, "stages");
    const unsigned n_stages = can ? (unsigned)args_uint(args, "stages") : 0;
    char words[4096];
    if (n_ranks <= 1 && n_stages == 0)
        return can && args_text(args, "layers") != NULL
                   ? err_set(err, FM_ERR_ARG, "--layers divides a model among ranks: start "
                             "flashmoe with mpirun")
                   : 0;
    if (!can && !args->command->is_for_all_ranks)
        return err_set(err, FM_ERR_ARG, "'flashmoe %s' runs on one machine: start it without "
                       "mpirun", args->command->name);
    if (n_ranks > 1 && n_stages > 0)
        return err_set(err, FM_ERR_ARG, "--stages is for one process, and mpirun has started %u",
                       n_ranks);
    if (n_ranks > 1) {
        (void)signal(SIGTERM, on_end);
        (void)signal(SIGUSR1, SIG_IGN); /* mpirun passes it on to all; a server stops */
        say_library_log(false); /* joining may end the process */
    }
    write_words(args, words, sizeof words);
    const struct fm_cluster_options options = {
        .size = sizeof options, .n_threads = n_stages, .words = words,
        .timeout_s = can ? (unsigned)args_uint(args, "rank-timeout") : 0};
    return join(&options, n_ranks, err);
}

struct fm_cluster *cluster_of_process(void)
{
    return cluster;
}

/* All ranks have the same words, so the first one most often fails for the same reason and says it.
 * mpirun ends all ranks when one of them fails: a rank that ended at once could keep the first one
 * from saying anything. Where the first one has not failed, each rank that has says it, before the
 * first one wonders where the others are. */
#define FIRST_SAYS_S 3
_Static_assert(FIRST_SAYS_S < WONDER_S, "the reason comes first");

int cluster_refuse(const struct fm_error *err, int status)
{
    const unsigned rank = variable("OMPI_COMM_WORLD_RANK");
    struct fm_error own;
    if (rank == 0)
        return say_failed(err, status);
    (void)sleep(FIRST_SAYS_S);
    if (strncmp(err->text, "rank ", 5) == 0)
        return say_failed(err, status);
    (void)err_set(&own, err->code, "rank %u: %s", rank, err->text);
    return say_failed(&own, status);
}

void cluster_exit(void)
{
    if (cluster == NULL)
        return;
    /* Nobody looks for an alarm from now on, and closing waits for the other ranks. */
    (void)signal(SIGTERM, SIG_DFL);
    fm_cluster_close(cluster);
    cluster = NULL;
}

bool cluster_is_worker(void)
{
    return cluster != NULL && fm_cluster_rank(cluster) > 0;
}

int cluster_work(const struct args *args)
{
    struct fm_error err = {0};
    struct fm_model_options options;
    char heat[LIMIT_PATH_BYTES], io[LIMIT_PATH_BYTES];
    /* mpirun sends these to all ranks; the first one decides when the others may end. SIGTERM has
     * its own handler. */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    int rc = app_engine_options(args, &options, &err);
    if (rc != 0)
        return say_failed(&err, STATUS_USAGE);
    if (options.heat_path == NULL && !args_flag(args, "no-heat") &&
        app_kept_path(app_model_path(args), "heat", heat))
        options.heat_path = heat;
    app_keep_io(app_model_path(args), &options, io);
    rc = fm_cluster_work(cluster, app_model_path(args), &options, &err);
    return rc == 0 ? STATUS_OK : say_failed(&err, STATUS_FAILED);
}

int cluster_parse_layers(const char *text, unsigned layers[CLUSTER_MAX_RANKS], unsigned *n,
                         struct fm_error *err)
{
    const char *at = text;
    *n = 0;
    while (*n < CLUSTER_MAX_RANKS) {
        char *end;
        const unsigned long value = strtoul(at, &end, 10);
        if (end == at || *at == '-' || value == 0 || value > LIMIT_LAYERS ||
            (*end != ',' && *end != '\0'))
            return err_set(err, FM_ERR_ARG, "--layers is '%s': expected the layers of each rank, "
                           "such as 20,14,14", text);
        layers[(*n)++] = (unsigned)value;
        if (*end == '\0')
            break;
        at = end + 1;
    }
    return 0;
}

int cluster_options(const struct args *args, struct fm_model_options *options,
                    unsigned layers[CLUSTER_MAX_RANKS], struct fm_error *err)
{
    const char *text = has_option(args, "layers") ? args_text(args, "layers") : NULL;
    unsigned n = 0;
    options->cluster = cluster;
    if (cluster == NULL || text == NULL)
        return 0;
    const int rc = cluster_parse_layers(text, layers, &n, err);
    options->layers_of_ranks = layers;
    options->n_layers_of_ranks = n;
    return rc;
}

/* ---- what the ranks do ----------------------------------------------------------------------- */

static double share(uint64_t part, uint64_t rest)
{
    return part + rest > 0 ? (double)part / (double)(part + rest) : 0;
}

static void say_away(const struct fm_rank_stats *first)
{
    const double lone = (double)first->n_lone_passes;
    say("passes were with other ranks for %.2f s", (double)first->away_ns / 1e9);
    if (lone > 0)
        say("of %.0f that were there alone, each was %.3f ms in the network, in %u hops", lone,
            (double)first->network_ns / 1e6 / lone, fm_cluster_n_ranks(cluster));
}

void cluster_say(const struct fm_model *model)
{
    struct fm_rank_stats s = {.size = sizeof s};
    char read[UNIT_BYTES], sent[UNIT_BYTES], budget[UNIT_BYTES];
    for (unsigned i = 0; fm_model_rank(model, i, &s); i++) {
        say("rank %u (%s): layers %u to %u, budget %s, hits %.1f %%, read %s, waited %.2f s for "
            "the disk, busy %.2f s, sent %s in %llu messages", i, s.host, s.first_layer,
            s.first_layer + s.n_layers - 1, human_bytes(s.memory_budget_bytes, budget),
            100 * share(s.n_expert_hits, s.n_expert_misses), human_bytes(s.bytes_read, read),
            (double)s.read_wait_ns / 1e9, (double)s.busy_ns / 1e9,
            human_bytes(s.bytes_sent, sent), (unsigned long long)s.n_messages);
        if (i == 0)
            say_away(&s);
    }
}

void cluster_put(json_t *to, const struct fm_model *model)
{
    struct fm_rank_stats s = {.size = sizeof s};
    json_t *all = json_array();
    for (unsigned i = 0; fm_model_rank(model, i, &s); i++)
        (void)json_array_append_new(all, json_pack(
            "{s:i, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:f, s:f, s:I}",
            "rank", (int)i, "host", s.host, "first_layer", (int)s.first_layer, "n_layers",
            (int)s.n_layers, "memory_budget_bytes", (json_int_t)s.memory_budget_bytes,
            "cache_slots", (json_int_t)s.n_cache_slots, "expert_hits",
            (json_int_t)s.n_expert_hits, "expert_misses", (json_int_t)s.n_expert_misses,
            "bytes_read", (json_int_t)s.bytes_read, "read_wait_s", (double)s.read_wait_ns / 1e9,
            "busy_s", (double)s.busy_ns / 1e9, "bytes_sent", (json_int_t)s.bytes_sent, "messages",
            (json_int_t)s.n_messages, "away_s", (double)s.away_ns / 1e9, "network_s",
            (double)s.network_ns / 1e9, "lone_passes", (json_int_t)s.n_lone_passes));
    if (json_array_size(all) > 0)
        (void)json_object_set(to, "ranks", all);
    json_decref(all);
}
