#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/docs.h"
#include "apps/cli/question.h"
#include "flashmoe_lab.h"
#include "apps/cli/term.h"

const struct command *const command_list[] = {
    &cmd_run, &cmd_chat, &cmd_serve, &cmd_launch, &cmd_pull, &cmd_list, &cmd_du, &cmd_rm,
    &cmd_inspect, &cmd_pack, &cmd_verify, &cmd_validate, &cmd_tokenize, &cmd_template,
    &cmd_eval_nll, &cmd_eval_needle, &cmd_plan, &cmd_cluster_plan, &cmd_cluster_probe,
    &cmd_bench_all, &cmd_bench_decode,
    &cmd_bench_prefill, &cmd_bench_batch, &cmd_bench_serve, &cmd_bench_stream, &cmd_bench_draft,
    &cmd_bench_switch,
    &cmd_bench_routes, &cmd_bench_replay, &cmd_doctor, &cmd_synth, &cmd_completions, &cmd_help,
    NULL,
};

/* Opens /dev/null for closed descriptors 0 to 2, so that no model file gets one of them. It is read
 * only, so that writing to a closed standard output still fails and is reported. */
static void fill_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)open("/dev/null", O_RDONLY);
}

/* Checks --cpu, if the command has it, before any work. */
static int check_level(const struct args *args, struct fm_error *err)
{
    for (size_t i = 0; i < args->n_values; i++)
        if (strcmp(args->values[i].option->name, "cpu") == 0)
            return fm_machine_check_level(args->values[i].text, err);
    return 0;
}

/* Replaces the name of a pulled model, or of the bundled one, by its path, for every command. */
static int find_models(struct args *args, struct fm_error *err)
{
    static char path[LIMIT_PATH_BYTES];
    int rc = app_model_check(args, err);
    for (size_t i = 0; rc == 0 && i < args->n_operands; i++) {
        const struct operand *operand = &args->command->operands[i];
        if (operand->name == NULL)
            break;
        if (operand_is_model(operand) && args->operands[i] != NULL)
            rc = app_model_find(args->operands[i], path, &args->operands[i], err);
        if (operand->is_many)
            break;
    }
    return rc;
}

static int run_command(int argc, char **argv)
{
    struct fm_error err = {0};
    const struct command *command;
    int n_words;
    if (command_is_group(command_list, argv[0]) && words_ask_help(argc - 1, argv + 1)) {
        docs_group(stdout, command_list, argv[0]);
        return STATUS_OK;
    }
    if (command_find(command_list, argc, argv, &command, &n_words, &err) != 0)
        return cluster_refuse(&err, STATUS_USAGE);
    struct args args;
    if (args_parse(command_list, command, argc - n_words, argv + n_words, &args, &err) != 0)
        return cluster_refuse(&err, STATUS_USAGE);
    if (args.wants_help) {
        docs_help(stdout, command);
        return STATUS_OK;
    }
    if (question_split(&args, &err) != 0)
        return cluster_refuse(&err, STATUS_USAGE);
    if (find_models(&args, &err) != 0)
        return cluster_refuse(&err, STATUS_FAILED);
    int rc = check_level(&args, &err);
    if (rc == 0)
        rc = cluster_enter(&args, &err);
    if (rc != 0)
        return cluster_refuse(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    const bool works = cluster_is_worker() && !command->is_for_all_ranks;
    const int status = works ? cluster_work(&args) : command->run(&args);
    cluster_exit();
    return status;
}

int main(int argc, char **argv)
{
    fill_standard_files();
    (void)signal(SIGPIPE, SIG_IGN); /* write() reports a reader that went away */
    const char *first = argc > 1 ? argv[1] : "--help";
    int status = STATUS_OK;
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0)
        docs_overview(stdout, command_list);
    else if (strcmp(first, "--version") == 0)
        (void)printf("flashmoe %s\n", fm_version());
    else if (first[0] == '-')
        status = say_failed(&(struct fm_error){.text = "the command must come first, as in "
                                                       "'flashmoe run MODEL -p TEXT'; 'flashmoe "
                                                       "help' lists the commands"}, STATUS_USAGE);
    else
        status = run_command(argc - 1, argv + 1);
    status = out_finish(status);
    if (ferror(stdout))
        _exit(status); /* exit() would try to write the rest and could block */
    return status;
}
