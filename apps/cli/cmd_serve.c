#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>

#include "base/limits.h"
#include "base/plat.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/bench/limit.h"
#include "apps/cli/prefix_options.h"
#include "flashmoe_lab.h"
#include "server/server.h"
#include "apps/cli/term.h"

#define SESSIONS_MIN 4
/* Memory for requests where none was asked for: a share of the budget, within these. */
#define REQUEST_MEMORY_SHARE 16
#define REQUEST_MEMORY_MIN (8ull << 20) /* that may be asked for */
#define REQUEST_MEMORY_DEFAULT_MIN (48ull << 20)
#define REQUEST_MEMORY_MAX (256ull << 20)

static struct server *volatile running; /* for the signal handlers; NULL: it takes no wishes */

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
    if (running != NULL)
        server_stop(running);
}

static void on_hang_up(int signal_number)
{
    (void)signal_number;
    if (running != NULL)
        server_hang_up(running);
}

/* Once the model is loaded; before that a signal kills. `nohup` has SIGHUP ignored: it stays so. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_stop}, old = {.sa_handler = SIG_DFL};
    (void)sigemptyset(&action.sa_mask); /* cannot fail for a valid pointer */
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
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
    limit_between(before, after, &s->info, position, s->speeds.disk.read.median,
                  s->speeds.machine.read.median, &limit);
    return limit.percent > 0 ? limit.percent / 100 : -1;
}

/* The file's or directory's name, without what only says its form. */
static void name_model(const char *path, char name[128])
{
    char real[LIMIT_PATH_BYTES];
    const char *from = plat_real_path(path, real) ? real : path;
    const char *slash = strrchr(from, '/');
    (void)snprintf(name, 128, "%.127s", slash != NULL ? slash + 1 : from);
    char *dot = strrchr(name, '.');
    if (dot != NULL && dot != name && (strcmp(dot, ".fmoe") == 0 || strcmp(dot, ".gguf") == 0))
        *dot = '\0';
}

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
    return app_speeds_measure(s->args, true, NULL, &s->speeds, err);
}

static void say_ready(const struct serving *s, const char *host, unsigned port, const char *name,
                      unsigned n_parallel, unsigned n_sessions)
{
    struct fm_stats stats = {.size = sizeof stats};
    char budget[UNIT_BYTES];
    const char *open = strchr(host, ':') != NULL ? "[" : "";
    fm_model_stats(s->model, &stats);
    say("%s (%s), %u tokens of context, %u together, %u conversations in memory, budget %s", name,
        s->info.architecture, stats.n_context, n_parallel, n_sessions,
        human_bytes(stats.memory_budget_bytes, budget));
    say("listening on http://%s%s%s:%u", open, host, open[0] != '\0' ? "]" : "", port);
}

/* ---- API keys --------------------------------------------------------------------------- */

/* The keys of the options, or else the one of the environment. */
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
        say_warning("every user of this machine may read the API keys '%s': run chmod 600 on it",
                    path);
    if (rc != 0)
        access_keys_clear(keys);
    return rc;
}

/* A terminal that was closed answers nothing but EIO. */
static bool is_terminal_gone(void)
{
    struct termios how;
    for (int fd = 0; fd <= 2; fd++)
        if (tcgetattr(fd, &how) != 0 && errno == EIO)
            return true;
    return false;
}

/* SIGHUP: the terminal was closed, or the key file is to be read again. */
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
        say_warning("the API keys stay as they were: %s", err.text);
        return;
    }
    const size_t n = keys.n;
    server_set_keys(s->server, &keys);
    say("%zu API keys are read again", n);
}

static void warn_of_access(const struct serving *s, const struct server_options *o, size_t n_keys)
{
    if (n_keys > 0)
        return;
    if (server_is_exposed(s->server))
        say_warning("everybody who can reach %s may use this server, as it requires no API key: "
                    "give --api-key-file, or listen on 127.0.0.1", o->host);
    if (access_allows_all(o->cors))
        say_warning("every web page that a browser on this machine shows may use this server: it "
                    "requires no API key, and --cors allows all origins");
    if (access_allows_all(o->hosts))
        say_warning("web pages can use this server by DNS rebinding: it requires no API key, and "
                    "--allowed-host allows all names");
}

/* ---- serving ---------------------------------------------------------------------------- */

/* From here on signals are wishes to the server, until it has done all it was asked for. */
static int run_server(struct serving *s, const struct server_options *o, struct access_keys *keys,
                      struct fm_error *err)
{
    const size_t n_keys = keys->n;
    int rc = server_open(o, &s->server, err);
    if (rc != 0)
        return rc;
    server_set_keys(s->server, keys);
    running = s->server;
    catch_signals();
    warn_of_access(s, o, n_keys);
    say_ready(s, o->host, server_port(s->server), o->model_name, o->n_parallel, o->n_sessions);
    rc = server_run(s->server, err);
    running = NULL; /* a signal that comes late finds nobody, and does not hurry the end */
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
    char name[128];
    if (n_sessions == 0)
        n_sessions = n_parallel + 2 > SESSIONS_MIN ? n_parallel + 2 : SESSIONS_MIN;
    if (n_sessions < n_parallel)
        return err_set(err, FM_ERR_ARG, "--sessions %u is less than --parallel %u: each answer "
                       "needs one", n_sessions, n_parallel);
    if (request_bytes < REQUEST_MEMORY_MIN)
        return err_set(err, FM_ERR_ARG, "--request-memory is %llu bytes: give 8M or more, or leave "
                       "the option out", (unsigned long long)request_bytes);
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
    name_model(app_model_path(args), name);
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
     .help = "Address to listen on. The default is reached from this machine alone; 0.0.0.0 from "
             "everywhere, which wants --api-key-file and a reverse proxy with TLS"},
    {.name = "port", .letter = 'P', .kind = OPTION_UINT, .metavar = "N", .max = 65535,
     .value = "8080", .help = "Port to listen on; 0 takes one that is free"},
    {.name = "name", .kind = OPTION_STRING, .metavar = "TEXT", .shown = "the file's name",
     .help = "The model's name in the API. Requests may ask for any"},
    {.name = "api-key", .kind = OPTION_STRING, .metavar = "KEY",
     .shown = "FLASHMOE_API_KEY, or none",
     .help = "Require this key, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'. In a file or "
             "in the environment, others on the machine do not see it"},
    {.name = "api-key-file", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Require one of the keys in this file, one per line; SIGHUP reads it again. Each key "
             "has cached prefixes of its own"},
    {.name = "share-prefixes", .kind = OPTION_FLAG,
     .help = "Let all API keys use the same cached prefixes, as where they are one person's. "
             "Otherwise cached_tokens never tells what another key has sent"},
    {.name = "allowed-host", .kind = OPTION_STRING, .metavar = "NAME,...",
     .shown = "localhost; beyond loopback, every IP address and this machine's name",
     .help = "Further host names that requests may be sent to, as behind a proxy; * for all. "
             "Others get 403, against DNS rebinding"},
    {.name = "cors", .kind = OPTION_STRING, .metavar = "ORIGIN,...",
     .help = "Allowed CORS origins beside pages of this machine, as https://a.example or "
             "app://obsidian.md; * for all. Pages of other origins get 403"},
    {.name = "parallel", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 256, .value = "4",
     .help = "Requests answered together: each pass over the model computes a token of each"},
    {.name = "sessions", .kind = OPTION_UINT, .metavar = "N", .max = 1024, .value = "0",
     .help = "Conversations whose state stays in memory; 0: --parallel and two, at least four"},
    {.name = "queue", .kind = OPTION_UINT, .metavar = "N", .max = 65536, .value = "64",
     .help = "Requests that may wait. More are told to come back (503, or 529 for Anthropic's "
             "clients)"},
    {.name = "connections", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 60000,
     .shown = "2048, or what half of --request-memory holds", .help = "Connections at a time"},
    {.name = "request-limit", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1024, .value = "32M",
     .help = "Bytes of a request at most"},
    {.name = "request-memory", .kind = OPTION_BYTES, .metavar = "SIZE",
     .shown = "a sixteenth of the budget, 48M to 256M",
     .help = "Memory for connections, requests, what is made of them, and answers that wait to be "
             "sent, together. It is part of --memory. Requests beyond it get 503, and one that "
             "alone takes more 413"},
    {.name = "n-tokens", .letter = 'n', .kind = OPTION_UINT, .metavar = "N", .max = 1u << 30,
     .value = "0", .help = "Tokens of an answer at most, also where a request asks for more; 0: as "
                           "many as the context holds"},
    {.name = "time-limit", .kind = OPTION_UINT, .metavar = "SECONDS", .max = 1u << 30,
     .value = "0", .help = "A request that takes longer fails; 0: none does"},
    {.name = "idle-limit", .kind = OPTION_UINT, .metavar = "SECONDS", .min = 1, .max = 86400,
     .value = "60", .help = "A connection without a request is closed after this time"},
    {.name = "grace", .kind = OPTION_UINT, .metavar = "SECONDS", .max = 86400, .value = "30",
     .help = "Time that running answers have to finish when the server is stopped"},
    {.name = "measure", .kind = OPTION_FLAG,
     .help = "Measure memory and disk at the start, in a few seconds, so that the page can show "
             "how near decoding comes to what the machine allows"},
    {.name = NULL},
};

static const struct option kept_options[] = {
    {.name = "snapshots", .kind = OPTION_PATH, .metavar = "DIR",
     .help = "Keep conversations in this folder when they leave memory, in idle time, and at the "
             "end, so that none is computed again"},
    {.name = "snapshot-limit", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1 << 20,
     .value = "8G",
     .help = "Most that the folder may hold; what was used longest ago goes first"},
    {.name = NULL},
};

static const struct option_group group_server = {"Server", server_options};
static const struct option_group group_kept = {"Conversations", kept_options};

const struct command cmd_serve = {
    .name = "serve",
    .summary = "Serve a model over HTTP: OpenAI's and Anthropic's API, and a page",
    .description =
        "Answers /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages, streamed "
        "or whole, with tools and reasoning; /v1/models, /v1/messages/count_tokens, /tokenize, "
        "/detokenize, /apply-template, /health, /metrics, /props, /slots, /stats and /experts; "
        "and a page to chat with at /. docs/SERVER.md describes all of it.\n"
        "Requests are answered together, --parallel at a time, with the bits that each would get "
        "alone. A conversation that goes on computes only what is new.\n"
        "Ctrl-C or SIGTERM takes no more requests, lets those that run finish within --grace, and "
        "keeps conversations where --snapshots says; a second one ends them at once. SIGHUP reads "
        "--api-key-file again; without one, or when the terminal was closed, it ends the server "
        "likewise. Each request gets one line on standard error.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_server, &group_kept, &group_engine,
                                                   &group_context, &group_messages, &group_help,
                                                   NULL},
    .examples = (const struct example[]){
        {"flashmoe serve", "The nano model, at http://127.0.0.1:8080"},
        {"flashmoe serve MODEL --memory 12G --snapshots ~/.cache/serve",
         "A large one, whose conversations survive a restart"},
        {"flashmoe serve MODEL --host 0.0.0.0 --api-key-file ~/keys --parallel 8",
         "For others, eight at a time"},
        {NULL, NULL}},
    .run = run_serve,
};
