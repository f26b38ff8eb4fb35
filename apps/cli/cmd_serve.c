#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>

#include "base/limits.h"
#include "base/plat.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/bench/limit.h"
#include "apps/cli/prefix_options.h"
#include "flashmoe_lab.h"
#include "server/server.h"
#include "apps/cli/term.h"

#define SESSIONS_MIN 4
/* Default memory for requests: a share of the budget, within these bounds. */
#define REQUEST_MEMORY_SHARE 16
#define REQUEST_MEMORY_MIN (8ull << 20) /* of --request-memory */
#define REQUEST_MEMORY_DEFAULT_MIN (48ull << 20)
#define REQUEST_MEMORY_MAX (256ull << 20)

static struct server *volatile running; /* for the signal handlers; NULL: signals are ignored */

struct serving {
    const struct args *args;
    struct fm_model *model;
    struct fm_snapshots *snapshots;
    struct fm_model_info info;
    struct app_speeds speeds; /* all 0: not measured */
    struct server *server;
    bool is_quiet;
};

static void on_stop(int signal_number)
{
    (void)signal_number;
    cluster_alarm_from_signal();
    if (running != NULL)
        server_stop(running);
}

static void on_stop_of_ranks(int signal_number)
{
    (void)signal_number;
    if (running != NULL)
        server_stop(running);
}

static void on_hang_up(int signal_number)
{
    (void)signal_number;
    if (running != NULL)
        server_hang_up(running);
}

/* Installs the handlers after the model is loaded; before that a signal kills. SIGHUP stays ignored
 * under `nohup`. mpirun passes SIGUSR1 on to the ranks and waits for them; SIGTERM it follows by a
 * SIGKILL. */
static void catch_signals(const struct fm_model *model)
{
    struct fm_rank_stats first = {.size = sizeof first};
    struct sigaction action = {.sa_handler = on_stop}, old = {.sa_handler = SIG_DFL};
    (void)sigemptyset(&action.sa_mask); /* cannot fail for a valid pointer */
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    if (fm_model_rank(model, 0, &first)) {
        action.sa_handler = on_stop_of_ranks;
        (void)sigaction(SIGUSR1, &action, NULL);
    }
    (void)sigaction(SIGHUP, NULL, &old);
    action.sa_handler = on_hang_up;
    if (old.sa_handler != SIG_IGN)
        (void)sigaction(SIGHUP, &action, NULL);
}

static void log_line(void *ctx, const char *line)
{
    const struct serving *s = ctx;
    char stamp[32];
    const time_t now = time(NULL);
    struct tm local = {0};
    if (s->is_quiet)
        return;
    (void)localtime_r(&now, &local);
    (void)strftime(stamp, sizeof stamp, "%H:%M:%S", &local);
    say("%s %s", stamp, line);
}

static double limit_share(void *ctx, const struct fm_stats *before, const struct fm_stats *after,
                          double position)
{
    const struct serving *s = ctx;
    struct limit limit;
    const struct limit_speeds speeds = {
        .disk = s->speeds.disk.read.median, .memory = s->speeds.machine.read.median,
        .gpu = s->speeds.gpu.memory.median, .link = s->speeds.gpu.send.median};
    limit_between(before, after, &s->info, position, &speeds, &limit);
    return limit.percent > 0 ? limit.percent / 100 : -1;
}

/* Copies the file's or directory's name without .fmoe or .gguf. */
static uint64_t request_memory(const struct args *args)
{
    struct fm_machine_info machine = {.size = sizeof machine};
    uint64_t budget = args_uint(args, "memory");
    if (args_given(args, "request-memory"))
        return args_uint(args, "request-memory");
    fm_machine_info(&machine);
    budget = (budget > 0 ? budget : machine.memory_available_bytes) / REQUEST_MEMORY_SHARE;
    budget = budget > REQUEST_MEMORY_DEFAULT_MIN ? budget : REQUEST_MEMORY_DEFAULT_MIN;
    return budget < REQUEST_MEMORY_MAX ? budget : REQUEST_MEMORY_MAX;
}

static int open_model(struct serving *s, unsigned n_sessions, uint64_t caller_bytes,
                      struct fm_error *err)
{
    const struct app_model_options how = {.n_context = (unsigned)args_uint(s->args, "context"),
                                          .n_marks = 4, .n_sessions = n_sessions,
                                          .caller_bytes = caller_bytes,
                                          .keeps_heat = true};
    return app_model_open(s->args, &how, &s->model, err);
}

static int measure(struct serving *s, struct fm_error *err)
{
    if (!args_flag(s->args, "measure"))
        return 0;
    if (!s->is_quiet)
        say("measuring the machine");
    const int rc = app_speeds_measure(s->args, true, NULL, &s->speeds, err);
    if (rc == 0)
        app_gpu_measure(s->args, &s->speeds.gpu);
    return rc;
}

static void say_ready(const struct serving *s, const struct fm_stats *stats, const char *host,
                      unsigned port, const char *name, unsigned n_parallel, unsigned n_sessions)
{
    char budget[UNIT_BYTES];
    const char *open = strchr(host, ':') != NULL ? "[" : "";
    say("%s (%s), context %u tokens, %u parallel, %u sessions in memory, budget %s", name,
        s->info.architecture, stats->n_context, n_parallel, n_sessions,
        human_bytes(stats->memory_budget_bytes, budget));
    say("listening on http://%s%s%s:%u", open, host, open[0] != '\0' ? "]" : "", port);
}

/* ---- API keys --------------------------------------------------------------------------- */

/* Reads the keys of the options, or else of the environment. */
static int read_keys(const struct args *args, struct access_keys *keys, struct fm_error *err)
{
    const char *key = args_text(args, "api-key"), *path = args_text(args, "api-key-file");
    const char *variable = getenv("FLASHMOE_API_KEY");
    bool is_exposed = false;
    int rc = 0;
    if (key != NULL)
        rc = access_keys_add(keys, key, strlen(key), "--api-key", err);
    if (rc == 0 && path != NULL)
        rc = access_keys_read(keys, path, &is_exposed, err);
    if (key == NULL && path == NULL && variable != NULL)
        rc = access_keys_add(keys, variable, strlen(variable),
                             "FLASHMOE_API_KEY in the environment", err);
    if (rc == 0 && is_exposed)
        say_warning("every user of this machine can read the API keys in '%s': run chmod 600 on it",
                    path);
    if (rc != 0)
        access_keys_clear(keys);
    return rc;
}

/* Returns whether the terminal was closed: it then fails with EIO. */
static bool is_terminal_gone(void)
{
    struct termios how;
    for (int fd = 0; fd <= 2; fd++)
        if (tcgetattr(fd, &how) != 0 && errno == EIO)
            return true;
    return false;
}

/* Handles SIGHUP: stops the server if the terminal was closed, else reads the key file again. */
static void hung_up(void *ctx)
{
    const struct serving *s = ctx;
    struct access_keys keys = {0};
    struct fm_error err = {0};
    if (args_text(s->args, "api-key-file") == NULL || is_terminal_gone()) {
        server_stop(s->server);
        return;
    }
    if (read_keys(s->args, &keys, &err) != 0) {
        say_warning("the API keys are unchanged: %s", err.text);
        return;
    }
    const size_t n = keys.n;
    server_set_keys(s->server, &keys);
    say("%zu API keys read again", n);
}

static void warn_of_access(const struct serving *s, const struct server_options *o, size_t n_keys)
{
    if (n_keys > 0)
        return;
    if (server_is_exposed(s->server))
        say_warning("anyone who can reach %s can use this server, since it requires no API key; "
                    "use --api-key-file, or listen on 127.0.0.1", o->host);
    if (access_allows_all(o->cors))
        say_warning("any web page open in a browser on this machine can use this server, since it "
                    "requires no API key and --cors allows all origins");
    if (access_allows_all(o->hosts))
        say_warning("web pages can use this server through DNS rebinding, since it requires no API "
                    "key and --allowed-host allows all names");
}

/* ---- serving ---------------------------------------------------------------------------- */

/* Runs the server until it stops. Signals reach it from here on. */
static int run_server(struct serving *s, const struct server_options *o, struct access_keys *keys,
                      struct fm_error *err)
{
    const size_t n_keys = keys->n;
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(s->model, &stats); /* before the server's thread uses the model */
    int rc = server_open(o, &s->server, err);
    if (rc != 0)
        return rc;
    server_set_keys(s->server, keys);
    running = s->server;
    catch_signals(s->model);
    warn_of_access(s, o, n_keys);
    say_ready(s, &stats, o->host, server_port(s->server), o->model_name, o->n_parallel,
              o->n_sessions);
    rc = server_run(s->server, err);
    running = NULL; /* a late signal must not cut the shutdown short */
    if (!s->is_quiet)
        say("stopped");
    server_close(s->server);
    s->server = NULL;
    return rc;
}

static int serve(struct serving *s, struct access_keys *keys, struct fm_error *err)
{
    const struct args *args = s->args;
    const unsigned n_parallel = (unsigned)args_uint(args, "parallel");
    unsigned n_sessions = (unsigned)args_uint(args, "sessions");
    const uint64_t request_bytes = request_memory(args);
    char name[APP_NAME_BYTES];
    if (n_sessions == 0)
        n_sessions = n_parallel + 2 > SESSIONS_MIN ? n_parallel + 2 : SESSIONS_MIN;
    if (n_sessions < n_parallel)
        return err_set(err, FM_ERR_ARG, "--sessions %u is less than --parallel %u: each answer "
                       "needs a session", n_sessions, n_parallel);
    if (request_bytes < REQUEST_MEMORY_MIN)
        return err_set(err, FM_ERR_ARG, "--request-memory is %llu bytes; the minimum is 8M",
                       (unsigned long long)request_bytes);
    int rc = access_check_lists(args_text(args, "allowed-host"), args_text(args, "cors"), err);
    if (rc == 0)
        rc = read_keys(args, keys, err);
    if (rc == 0)
        rc = measure(s, err);
    if (rc == 0)
        rc = open_model(s, n_sessions, request_bytes, err);
    if (rc == 0)
        rc = prefix_open_snapshots(s->args, s->model, &s->snapshots, err);
    if (rc != 0)
        return rc;
    s->info.size = sizeof s->info;
    fm_model_info(s->model, &s->info);
    if (!s->is_quiet)
        app_note_template(s->model);
    app_model_name(app_model_path(args), name);
    const struct server_options options = {
        .model = s->model, .snapshots = s->snapshots,
        .model_name = args_text(args, "name") != NULL ? args_text(args, "name") : name,
        .model_path = app_model_path(args), .host = args_text(args, "host"),
        .port = (unsigned)args_uint(args, "port"), .n_parallel = n_parallel,
        .n_sessions = n_sessions, .n_queue = (unsigned)args_uint(args, "queue"),
        .n_connections = (unsigned)args_uint(args, "connections"),
        .hosts = args_text(args, "allowed-host"), .cors = args_text(args, "cors"),
        .shares_prefixes = args_flag(args, "share-prefixes"),
        .request_bytes = args_uint(args, "request-limit"), .request_memory = request_bytes,
        .n_answer = args_uint(args, "n-tokens"),
        .request_s = (unsigned)args_uint(args, "time-limit"),
        .idle_s = (unsigned)args_uint(args, "idle-limit"),
        .grace_s = (unsigned)args_uint(args, "grace"),
        .stall_ms = (unsigned)args_uint(args, "max-stall"),
        .limit_share = args_flag(args, "measure") ? limit_share : NULL, .log = log_line,
        .hung_up = hung_up, .ctx = s};
    return run_server(s, &options, keys, err);
}

static int run_serve(const struct args *args)
{
    struct fm_error err = {0};
    struct serving s = {.args = args, .is_quiet = args_flag(args, "quiet")};
    struct access_keys keys = {0};
    const int rc = serve(&s, &keys, &err);
    access_keys_clear(&keys);
    fm_snapshots_close(s.snapshots);
    fm_model_close(s.model);
    return rc == 0 ? STATUS_OK : say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
}

static const struct option server_options[] = {
    {.name = "host", .kind = OPTION_STRING, .metavar = "ADDRESS", .value = "127.0.0.1",
     .help = "Address to listen on. The default accepts connections from this machine only, "
             "0.0.0.0 from everywhere; then use --api-key-file and a reverse proxy with TLS"},
    {.name = "port", .letter = 'P', .kind = OPTION_UINT, .metavar = "N", .max = 65535,
     .value = "8080", .help = "Port to listen on; 0 picks a free one"},
    {.name = "name", .kind = OPTION_STRING, .metavar = "TEXT", .shown = "the file's name",
     .help = "Model name in the API. Requests may name any model"},
    {.name = "api-key", .kind = OPTION_STRING, .metavar = "KEY",
     .shown = "FLASHMOE_API_KEY, or none",
     .help = "Require this key, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'. Other users of "
             "the machine can see a command line; use a file or the environment to hide the key"},
    {.name = "api-key-file", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Require one of the keys in this file, one per line. SIGHUP reads it again. Each key "
             "has its own cached prefixes"},
    {.name = "share-prefixes", .kind = OPTION_FLAG,
     .help = "Share cached prefixes between all API keys, for keys of one person. Otherwise "
             "cached_tokens reveals nothing about the requests of another key"},
    {.name = "allowed-host", .kind = OPTION_STRING, .metavar = "NAME,...",
     .shown = "localhost; beyond loopback, every IP address and this machine's name",
     .help = "Additional host names that requests may be sent to, for example behind a proxy; * "
             "allows all. Other names get 403, to prevent DNS rebinding"},
    {.name = "cors", .kind = OPTION_STRING, .metavar = "ORIGIN,...",
     .help = "Allowed CORS origins besides pages of this machine, such as https://a.example or "
             "app://obsidian.md; * allows all. Pages of other origins get 403"},
    {.name = "parallel", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 256, .value = "4",
     .as_unset = "-1",
     .help = "Requests decoded together; each pass over the model computes one token of each"},
    {.name = "sessions", .kind = OPTION_UINT, .metavar = "N", .max = 1024, .value = "0",
     .help = "Sessions kept in memory. 0 means max(4, parallel + 2)"},
    {.name = "queue", .kind = OPTION_UINT, .metavar = "N", .max = 65536, .value = "64",
     .help = "Maximum waiting requests. Further requests get 503 with Retry-After (529 in "
             "Anthropic's API)"},
    {.name = "connections", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 60000,
     .shown = "2048, or what half of --request-memory holds", .help = "Maximum connections"},
    {.name = "request-limit", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1024, .value = "32M",
     .help = "Maximum request size in bytes"},
    {.name = "request-memory", .kind = OPTION_BYTES, .metavar = "SIZE",
     .shown = "a sixteenth of the budget, 48M to 256M",
     .help = "Memory for connections, requests, their parsed form and unsent answers. It is part "
             "of --memory. Requests beyond it get 503; one that alone exceeds it gets 413"},
    {.name = "n-tokens", .letter = 'n', .kind = OPTION_UINT, .metavar = "N", .max = 1u << 30,
     .value = "0", .as_unset = "-1 -2",
     .help = "Maximum tokens per answer; larger requests are capped. 0 or -1: limited by the "
             "context only"},
    {.name = "time-limit", .kind = OPTION_UINT, .metavar = "SECONDS", .max = 1u << 30,
     .value = "0", .help = "Maximum time per request; a slower one fails. 0: no limit"},
    {.name = "idle-limit", .kind = OPTION_UINT, .metavar = "SECONDS", .min = 1, .max = 86400,
     .value = "60", .help = "Close a connection without a request after this time"},
    {.name = "grace", .kind = OPTION_UINT, .metavar = "SECONDS", .max = 86400, .value = "30",
     .help = "Time that running answers have to finish when the server stops"},
    {.name = "max-stall", .kind = OPTION_UINT, .metavar = "MS", .min = 1, .max = 60000,
     .value = "200",
     .help = "Longest time in milliseconds that the prompt of another request adds to the wait for "
             "an answer's next token. A longer one lets prompts be read in larger parts, which is "
             "faster, above all with experts on the disk"},
    {.name = "measure", .kind = OPTION_FLAG,
     .help = "Measure memory and disk at the start, which takes a few seconds, so that the page "
             "can show the share of the hardware limit that decoding reaches"},
    {.name = NULL},
};

static const struct option kept_options[] = {
    {.name = "snapshots", .kind = OPTION_PATH, .metavar = "DIR",
     .help = "Save sessions to this folder when they leave memory, when idle and on exit, so that "
             "no prefix is computed twice"},
    {.name = "snapshot-limit", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1 << 20,
     .value = "8G",
     .help = "Maximum size of the folder; the least recently used snapshots are removed first"},
    {.name = NULL},
};

static const struct option_group group_server = {"Server", server_options};
static const struct option_group group_kept = {"Conversations", kept_options};

const struct command cmd_serve = {
    .name = "serve",
    .summary = "Serve the OpenAI, Anthropic and Ollama APIs and a chat page",
    .description =
        "Endpoints: /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages, "
        "streamed or not, with tools and reasoning; /v1/models, /v1/messages/count_tokens, "
        "/tokenize, /detokenize, /apply-template, /health, /metrics, /props, /slots, /stats and "
        "/experts; and a chat page at /. docs/SERVER.md describes them.\n"
        "Up to --parallel requests are decoded together, each with the same bits as alone. A "
        "continued conversation computes only its new tokens.\n"
        "Ctrl-C or SIGTERM stops accepting requests, lets running ones finish within --grace, and "
        "saves sessions to --snapshots; a second one ends them at once. SIGHUP reads "
        "--api-key-file again; without one, or when the terminal is closed, it stops the server "
        "the same way. Under mpirun, SIGUSR1 to mpirun stops it. Each request logs one line on "
        "standard error.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_server, &group_kept, &group_engine,
                                                   &group_ranks,
                                                   &group_context, &group_messages, &group_help,
                                                   NULL},
    .examples = (const struct example[]){
        {"flashmoe serve", "Serve the nano model at http://127.0.0.1:8080"},
        {"flashmoe serve MODEL --memory 12G --snapshots ~/.cache/serve",
         "Serve a large model whose sessions survive a restart"},
        {"flashmoe serve MODEL --host 0.0.0.0 --api-key-file ~/keys --parallel 8",
         "Serve other machines, eight requests at a time"},
        {NULL, NULL}},
    .run = run_serve,
};
