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

#define ANSWER_ROOM 2048u /* what an answer wants besides the first request */
#define NOT_RUN 127       /* of the child, as a shell has it */

static const char placeholder_key[] = "flashmoe"; /* for a server that wants none */

/* ---- the server ------------------------------------------------------------------------- */

static int no_server(const struct http_url *url, int rc, struct fm_error *err)
{
    char why[sizeof err->text];
    (void)snprintf(why, sizeof why, "%s", err->text);
    return err_set(err, rc, "no server at %s: %s. Start one with 'flashmoe serve MODEL', or name "
                   "it with --url", url->base, why);
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
        return err_set(err, FM_ERR_IO, "the server at %s refuses requests to the host '%s' (403): "
                       "start it with --allowed-host %s, or use its address", l->url.base,
                       l->url.host, l->url.host);
    if (status == 401)
        return err_set(err, FM_ERR_IO, "the server at %s wants %s API key: --api-key KEY, or "
                       "FLASHMOE_API_KEY in the environment", l->url.base,
                       key != NULL ? "another" : "an");
    if (status == 503)
        return err_set(err, FM_ERR_IO, "the server at %s is not ready yet (503): try again when it "
                       "has loaded its model", l->url.base);
    return err_set(err, FM_ERR_IO, "%s%s answers %u: that is no server of models", l->url.base,
                   path, status);
}

/* The first model of the list; its name stays in `list`. */
static int read_models(struct launch *l, const struct http_answer *answer, json_t **list,
                       struct fm_error *err)
{
    *list = json_loadb(answer->body, answer->body_bytes, 0, NULL);
    const json_t *first = json_array_get(json_object_get(*list, "data"), 0);
    const char *name = json_string_value(json_object_get(first, "id"));
    const json_int_t n = json_integer_value(json_object_get(first, "context_length"));
    if (name == NULL)
        return err_set(err, FM_ERR_IO, "%s/v1/models lists no model: that is no server of models",
                       l->url.base);
    l->model = l->model != NULL ? l->model : name;
    l->n_context = n > 0 && n <= LIMIT_CONTEXT ? (unsigned)n : 0;
    return 0;
}

static int check_server(struct launch *l, const char *key, json_t **list, struct fm_error *err)
{
    struct http_answer answer = {0};
    if (l->url.is_https && l->model == NULL)
        return err_set(err, FM_ERR_ARG, "%s cannot be asked for its model, as this program speaks "
                       "no TLS: give --model NAME", l->url.base);
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
        say_warning("the server has %u tokens of context, and the first request of %s alone has "
                    "about %u. Start it with --context %u, if the model and the memory allow it",
                    l->n_context, agent->name, agent->first_tokens, agent->good_context);
}

/* ---- printing --------------------------------------------------------------------------- */

/* One word of a shell. */
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

/* What a shell would have to do. */
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

/* Comes back only when it failed. `file` stands for LAUNCH_FILE. */
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
    (void)signal(SIGPIPE, SIG_DFL); /* ignored signals stay ignored in a new program */
    (void)execvp(l->agent->program, argv);
out:
    free(argv);
}

static volatile sig_atomic_t child_pid;

static void pass_on(int signal_number)
{
    (void)kill((pid_t)child_pid, signal_number);
}

/* Waits for the agent. The terminal sends its signals to both: they are the agent's to handle. */
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

/* The file lives as long as the agent. */
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
            say("%s cannot be run: %s", l->agent->program, strerror(errno));
            _exit(NOT_RUN);
        }
        if (child > 0)
            status = wait_agent(child);
        else
            say("%s cannot be run: %s", l->agent->program, strerror(errno));
    }
    (void)unlink(file);
    (void)rmdir(dir);
    return status;
}

static int run_agent(const struct launch *l, struct fm_error *err)
{
    if (!is_on_path(l->agent->program)) {
        (void)err_set(err, FM_ERR_IO, "there is no '%s' on PATH. 'npm install -g %s' brings it; "
                      "--print shows how to run it from elsewhere", l->agent->program,
                      l->agent->package);
        return say_failed(err, STATUS_FAILED);
    }
    if (l->file_name != NULL)
        return run_with_file(l, err);
    become(l, NULL);
    (void)err_set(err, FM_ERR_IO, "%s cannot be run: %s", l->agent->program, strerror(errno));
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
        return err_set(err, FM_ERR_ARG, "no agent '%s' is known; did you mean '%s'?", name,
                       nearest);
    return err_set(err, FM_ERR_ARG, "no agent '%s' is known: claude, codex, opencode, qwen and pi "
                   "are. Others take OpenAI's API at URL/v1, or Anthropic's at URL", name);
}

/* A key goes into a header. */
static int check_key(const char *key, struct fm_error *err)
{
    for (const char *c = key; c != NULL && *c != '\0'; c++)
        if (*c <= ' ' || *c > '~')
            return err_set(err, FM_ERR_ARG, "the API key has a character that no header can have");
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
     .value = "http://127.0.0.1:8080", .help = "Where the server is, without /v1"},
    {.name = "api-key", .kind = OPTION_STRING, .metavar = "KEY",
     .shown = "FLASHMOE_API_KEY, or none", .help = "The key that the server wants"},
    {.name = "model", .kind = OPTION_STRING, .metavar = "NAME", .shown = "what the server says",
     .help = "The model's name in the agent"},
    {.name = "print", .kind = OPTION_FLAG,
     .help = "Print the commands of a shell that would do the same, and run nothing"},
    {.name = NULL},
};
static const struct option_group group_launch = {"Launching", launch_options};

const struct command cmd_launch = {
    .name = "launch",
    .summary = "Run a coding agent with a server of this program",
    .description =
        "Asks the server for its model and its context, and runs the agent, which must be on "
        "PATH, with what makes it use them: variables of the environment, arguments, or a file "
        "that is removed at the end. The settings that the user keeps for the agent are not "
        "changed. What follows -- goes to the agent.\n"
        "The exit status is that of the agent, or 1 when the server does not answer or the agent "
        "is not there.",
    .operands = (const struct operand[]){
        {.name = "AGENT", .help = "claude, codex, opencode, qwen or pi",
         .choices = "claude codex opencode qwen pi"},
        {.name = "ARGUMENT", .help = "For the agent; those that begin with - stand behind --",
         .is_optional = true, .is_many = true},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_launch, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe launch claude", "With the server of 'flashmoe serve', in this folder"},
        {"flashmoe launch codex -- exec \"What is in this folder?\"", "One question, one answer"},
        {"flashmoe launch opencode --url http://server:8080 --print",
         "How to run it somewhere else"},
        {NULL, NULL}},
    .run = run_launch,
};
