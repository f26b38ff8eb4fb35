/* The commands, one cmd_*.c each. */
#ifndef FLASHMOE_APPS_CLI_CMD_H
#define FLASHMOE_APPS_CLI_CMD_H

#include "apps/cli/options.h"

extern const struct command cmd_run;
extern const struct command cmd_chat;
extern const struct command cmd_serve;
extern const struct command cmd_launch;
extern const struct command cmd_pull;
extern const struct command cmd_list;
extern const struct command cmd_du;
extern const struct command cmd_rm;
extern const struct command cmd_inspect;
extern const struct command cmd_tokenize;
extern const struct command cmd_template;
extern const struct command cmd_eval_nll;
extern const struct command cmd_eval_needle;
extern const struct command cmd_pack;
extern const struct command cmd_verify;
extern const struct command cmd_validate;
extern const struct command cmd_plan;
extern const struct command cmd_bench_all;
extern const struct command cmd_bench_batch;
extern const struct command cmd_cluster_plan;
extern const struct command cmd_cluster_probe;
extern const struct command cmd_bench_decode;
extern const struct command cmd_bench_draft;
extern const struct command cmd_bench_prefill;
extern const struct command cmd_bench_routes;
extern const struct command cmd_bench_replay;
extern const struct command cmd_bench_serve;
extern const struct command cmd_bench_stream;
extern const struct command cmd_bench_switch;
extern const struct command cmd_doctor;
extern const struct command cmd_synth;
extern const struct command cmd_completions;
extern const struct command cmd_help;

#endif
