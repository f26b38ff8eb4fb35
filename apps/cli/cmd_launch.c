#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/launch.h"
#include "apps/cli/term.h"

#define ANSWER_ROOM 2048u /* context that an answer needs besides the first request */
#define NOT_RUN 127       /* exit status of a program that cannot be run, as in a shell */

static const char placeholder_key[] = "flashmoe"; /* for a server that requires no key */

/* ---- the server ------------------------------------------------------------------------- */

static int no_server(const struct http_url *url, int rc, struct fm_error *err)
{
    char why[sizeof err->text];
    (void)snprintf(why, sizeof why, "%s", err->text);
    return err_set(err, rc, "no server at %s: %s. Start one with 'flashmoe serve MODEL', or give "
                   "its address with --url", url->base, why);
}

static int ask(const struct launch *l, const char *path, const char *key,
               struct http_answer *answer, struct fm_error *err)
{
    const int rc = http_get(&l->url, path, key, answer, err);
    if (rc != 0)
        return no_server(&l->url, rc, err);
    if (answer->status == 200)
        return 0;
    const unsigned status = answer->status;
    mem_free(answer->body);
    answer->body = NULL;
    if (status == 403)
        return err_set(err, FM_ERR_IO, "the server at %s refuses requests to the host '%s' (403); "
                       "start it with --allowed-host %s, or use its IP address", l->url.base,
                       l->url.host, l->url.host);
    if (status == 401)
        return err_set(err, FM_ERR_IO, "the server at %s requires %s API key; use --api-key KEY or "
                       "FLASHMOE_API_KEY in the environment", l->url.base,
                       key != NULL ? "another" : "an");
    if (status == 503)
        return err_set(err, FM_ERR_IO, "the server at %s is not ready (503); try again when it has "
                       "loaded its model", l->url.base);
    return err_set(err, FM_ERR_IO, "%s%s answers %u: this is not a model server", l->url.base,
                   path, status);
}

/* Returns the first model of the list; its name stays in `list`. */
static int read_models(struct launch *l, const struct http_answer *answer, json_t **list,
                       struct fm_error *err)
{
    *list = json_loadb(answer->body, answer->body_bytes, 0, NULL);
    const json_t *first = json_array_get(json_object_get(*list, "data"), 0);
    const char *name = json_string_value(json_object_get(first, "id"));
    const json_int_t n = json_integer_value(json_object_get(first, "context_length"));
    if (name == NULL)
        return err_set(err, FM_ERR_IO, "%s/v1/models lists no model: this is not a model server",
                       l->url.base);
    l->model = l->model != NULL ? l->model : name;
    l->n_context = n > 0 && n <= LIMIT_CONTEXT ? (unsigned)n : 0;
    return 0;
}

static int check_server(struct launch *l, const char *key, json_t **list, struct fm_error *err)
{
    struct http_answer answer = {0};
    if (l->url.is_https && l->model == NULL)
        return err_set(err, FM_ERR_ARG, "cannot ask %s for its model, since this program has no "
                       "TLS; use --model NAME", l->url.base);
    if (l->url.is_https)
        return 0;
    int rc = ask(l, "/health", key, &answer, err);
    if (rc == 0) {
        mem_free(answer.body);
        rc = ask(l, "/v1/models", key, &answer, err);
    }
    if (rc == 0)
        rc = read_models(l, &answer, list, err);
    mem_free(answer.body);
    return rc;
}

static void check_context(const struct launch *l)
{
    const struct agent *agent = l->agent;
    if (l->n_context > 0 && l->n_context < agent->first_tokens + ANSWER_ROOM)
        say_warning("the server's context is %u tokens, but the first request of %s alone has "
                    "about %u. Start it with --context %u, if the model and the memory allow it",
                    l->n_context, agent->name, agent->first_tokens, agent->good_context);
}

/* ---- printing --------------------------------------------------------------------------- */

/* Prints one shell word, quoted if necessary. */
static void print_word(const char *text)
{
    const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+";
    if (text[0] != '\0' && text[strspn(text, plain)] == '\0') {
        (void)printf("%s", text);
        return;
    }
    (void)putchar('\'');
    for (; *text != '\0'; text++)
        (void)printf(*text == '\'' ? "'\\''" : "%c", *text);
    (void)putchar('\'');
}

/* Prints the equivalent shell commands. */
static void print_launch(const struct launch *l)
{
    const char *name;
    json_t *value;
    size_t i;
    json_object_foreach(l->environment, name, value) {
        (void)printf("export %s=", name);
        print_word(json_string_value(value));
        (void)putchar('\n');
    }
    if (l->file_name != NULL)
        (void)printf("flashmoe_dir=$(mktemp -d)\ncat > \"$flashmoe_dir/%s\" <<'END'\n%sEND\n",
                     l->file_name, l->file_text);
    (void)printf("%s", l->agent->program);
    json_array_foreach(l->arguments, i, value) {
        (void)putchar(' ');
        if (strcmp(json_string_value(value), LAUNCH_FILE) == 0 && l->file_name != NULL)
            (void)printf("\"$flashmoe_dir/%s\"", l->file_name);
        else
            print_word(json_string_value(value));
    }
    (void)putchar('\n');
}

/* ---- running ---------------------------------------------------------------------------- */

static bool is_on_path(const char *program)
{
    const char *path = getenv("PATH");
    char file[LIMIT_PATH_BYTES];
    while (path != NULL && *path != '\0') {
        const size_t n = strcspn(path, ":");
        const int bytes = snprintf(file, sizeof file, "%.*s/%s", n > 0 ? (int)n : 1,
                                   n > 0 ? path : ".", program);
        if (bytes > 0 && (size_t)bytes < sizeof file && access(file, X_OK) == 0)
            return true;
        path += n;
        path += *path == ':';
    }
    return false;
}

/* Runs the agent in place of this process; returns only on failure. `file` replaces LAUNCH_FILE. */
static void become(const struct launch *l, const char *file)
{
    const size_t n = json_array_size(l->arguments);
    const char *name;
    json_t *value;
    size_t i;
    char **argv = calloc(n + 2, sizeof *argv);
    if (argv == NULL)
        return;
    json_object_foreach(l->environment, name, value)
        if (setenv(name, json_string_value(value), 1) != 0)
            goto out;
    argv[0] = (char *)l->agent->program;
    json_array_foreach(l->arguments, i, value) {
        const char *word = json_string_value(value);
        argv[i + 1] = (char *)(file != NULL && strcmp(word, LAUNCH_FILE) == 0 ? file : word);
    }
    (void)signal(SIGPIPE, SIG_DFL); /* exec keeps ignored signals ignored */
    (void)execvp(l->agent->program, argv);
out:
    free(argv);
}

static volatile sig_atomic_t child_pid;

static void pass_on(int signal_number)
{
    (void)kill((pid_t)child_pid, signal_number);
}

/* Waits for the agent. The terminal sends signals to both processes; the agent handles them. */
static int wait_agent(pid_t child)
{
    const struct sigaction pass = {.sa_handler = pass_on};
    int status = 0;
    child_pid = child;
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGQUIT, SIG_IGN);
    (void)sigaction(SIGTERM, &pass, NULL);
    (void)sigaction(SIGHUP, &pass, NULL);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return STATUS_FAILED;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int write_file(const char *path, const char *text, struct fm_error *err)
{
    FILE *file = fopen(path, "wx");
    bool is_good = file != NULL && fputs(text, file) >= 0;
    if (file != NULL && fclose(file) != 0)
        is_good = false;
    return is_good ? 0 : err_set(err, FM_ERR_IO, "%s: %s", path, strerror(errno));
}

/* Creates the file, runs the agent, and removes the file when the agent ends. */
static int run_with_file(const struct launch *l, struct fm_error *err)
{
    const char *temporary = getenv("TMPDIR");
    char dir[LIMIT_PATH_BYTES - 64], file[LIMIT_PATH_BYTES];
    int status = STATUS_FAILED;
    (void)snprintf(dir, sizeof dir, "%s/flashmoe-XXXXXX",
                   temporary != NULL && temporary[0] == '/' ? temporary : "/tmp");
    if (mkdtemp(dir) == NULL) {
        (void)err_set(err, FM_ERR_IO, "%s: %s", dir, strerror(errno));
        return say_failed(err, STATUS_FAILED);
    }
    (void)snprintf(file, sizeof file, "%s/%s", dir, l->file_name);
    if (write_file(file, l->file_text, err) != 0) {
        (void)say_failed(err, STATUS_FAILED);
    } else {
        const pid_t child = fork();
        if (child == 0) {
            become(l, file);
            say("cannot run %s: %s", l->agent->program, strerror(errno));
            _exit(NOT_RUN);
        }
        if (child > 0)
            status = wait_agent(child);
        else
            say("cannot run %s: %s", l->agent->program, strerror(errno));
    }
    (void)unlink(file);
    (void)rmdir(dir);
    return status;
}

static int run_agent(const struct launch *l, struct fm_error *err)
{
    if (!is_on_path(l->agent->program)) {
        (void)err_set(err, FM_ERR_IO, "'%s' is not on PATH. Install it with 'npm install -g %s'; "
                      "--print shows how to run it elsewhere", l->agent->program,
                      l->agent->package);
        return say_failed(err, STATUS_FAILED);
    }
    if (l->file_name != NULL)
        return run_with_file(l, err);
    become(l, NULL);
    (void)err_set(err, FM_ERR_IO, "cannot run %s: %s", l->agent->program, strerror(errno));
    return say_failed(err, STATUS_FAILED);
}

/* ---- the command ------------------------------------------------------------------------ */

static int find_agent(const char *name, const struct agent **out, struct fm_error *err)
{
    const char *names[AGENTS_MAX + 1] = {NULL};
    size_t n = 0;
    for (const struct agent *agent = agents; agent->name != NULL; agent++) {
        if (strcmp(agent->name, name) == 0) {
            *out = agent;
            return 0;
        }
        names[n++] = agent->name;
    }
    const char *nearest = nearest_word(name, names);
    if (nearest != NULL)
        return err_set(err, FM_ERR_ARG, "unknown agent '%s'; did you mean '%s'?", name,
                       nearest);
    return err_set(err, FM_ERR_ARG, "unknown agent '%s'; the known ones are claude, codex, "
                   "opencode, qwen and pi. Others can use the OpenAI API at URL/v1 or the "
                   "Anthropic API at URL", name);
}

/* Checks that the key can be sent in a header. */
static int check_key(const char *key, struct fm_error *err)
{
    for (const char *c = key; c != NULL && *c != '\0'; c++)
        if (*c <= ' ' || *c > '~')
            return err_set(err, FM_ERR_ARG, "the API key has a character that a header cannot "
                           "contain");
    return 0;
}

static int prepare(const struct args *args, struct launch *l, json_t **list, struct fm_error *err)
{
    const char *key = args_text(args, "api-key");
    if (key == NULL)
        key = getenv("FLASHMOE_API_KEY");
    if (key != NULL && key[0] == '\0')
        key = NULL;
    l->model = args_text(args, "model");
    int rc = find_agent(args_operand(args, 0), &l->agent, err);
    if (rc == 0)
        rc = http_url_parse(args_text(args, "url"), &l->url, err);
    if (rc == 0)
        rc = check_key(key, err);
    if (rc == 0)
        rc = check_server(l, key, list, err);
    if (rc != 0)
        return rc;
    check_context(l);
    l->api_key = key != NULL ? key : placeholder_key;
    bool is_good = launch_fill(l);
    for (size_t i = 1; is_good && i < args->n_operands; i++)
        is_good = json_array_append_new(l->arguments, json_string(args->operands[i])) == 0;
    return is_good ? 0 : err_set(err, FM_ERR_ARG, "the model's name or an argument is not UTF-8");
}

static int run_launch(const struct args *args)
{
    struct fm_error err = {0};
    struct launch launch = {0};
    json_t *list = NULL;
    int status = STATUS_OK;
    const int rc = prepare(args, &launch, &list, &err);
    if (rc != 0)
        status = say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    else if (args_flag(args, "print"))
        print_launch(&launch);
    else
        status = run_agent(&launch, &err);
    launch_clear(&launch);
    json_decref(list);
    return status;
}

static const struct option launch_options[] = {
    {.name = "url", .letter = 'u', .kind = OPTION_STRING, .metavar = "URL",
     .value = "http://127.0.0.1:8080", .help = "Address of the server, without /v1"},
    {.name = "api-key", .kind = OPTION_STRING, .metavar = "KEY",
     .shown = "FLASHMOE_API_KEY, or none", .help = "API key of the server"},
    {.name = "model", .kind = OPTION_STRING, .metavar = "NAME", .shown = "what the server reports",
     .help = "Model name to give to the agent"},
    {.name = "print", .kind = OPTION_FLAG,
     .help = "Print the equivalent shell commands instead of running the agent"},
    {.name = NULL},
};
static const struct option_group group_launch = {"Launching", launch_options};

const struct command cmd_launch = {
    .name = "launch",
    .summary = "Run a coding agent on a flashmoe server",
    .description =
        "Asks the server for its model and context size, and runs the agent, which must be on "
        "PATH, configured to use them: through environment variables, arguments, or a file that is "
        "removed at the end. The user's own settings for the agent stay unchanged. Arguments after "
        "-- go to the agent.\n"
        "The exit status is that of the agent, or 1 if the server does not answer or the agent is "
        "not installed.",
    .operands = (const struct operand[]){
        {.name = "AGENT", .help = "claude, codex, opencode, qwen or pi",
         .choices = "claude codex opencode qwen pi"},
        {.name = "ARGUMENT", .help = "Passed to the agent; after -- if it begins with -",
         .is_optional = true, .is_many = true},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_launch, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe launch claude", "Use the server of 'flashmoe serve', in this folder"},
        {"flashmoe launch codex -- exec \"What is in this folder?\"", "Ask a single question"},
        {"flashmoe launch opencode --url http://server:8080 --print",
         "Show how to run it elsewhere"},
        {NULL, NULL}},
    .run = run_launch,
};
