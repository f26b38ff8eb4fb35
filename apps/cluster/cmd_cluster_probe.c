#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"
#include "apps/cluster/machines.h"
#include "base/jdoc.h"
#include "base/plat.h"
#include "flashmoe_lab.h"

/* What a rank may have of the memory that is free: as a model that is opened on several ranks. */
#define SHARE_OF_FREE 0.9

struct probe {
    const struct args *args;
    uint64_t message_bytes; /* of rank 0 */
    struct machines machines;
};

/* Returns how many ranks mpirun has started on this machine. */
static unsigned n_ranks_here(void)
{
    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const unsigned long n = text != NULL ? strtoul(text, NULL, 10) : 1;
    return n > 0 && n <= CUT_RANKS ? (unsigned)n : 1;
}

/* Opens the headers of the model. A rank may lack files of other layers. */
static int open_headers(const struct args *args, struct fm_model **model, struct fm_error *err)
{
    const struct fm_model_options options = {.size = sizeof options, .metadata_only = true,
                                             .kv = args_text(args, "kv"),
                                             .cluster = cluster_of_process()};
    return fm_model_open(app_model_path(args), &options, model, err);
}

static double memory_of_rank(const struct args *args, const struct fm_machine_info *info)
{
    const uint64_t asked = args_uint(args, "memory");
    return asked > 0 ? (double)asked
                     : (double)info->memory_available_bytes * SHARE_OF_FREE / n_ranks_here();
}

static int measure_processor(const struct args *args, struct cut_machine *m, struct fm_error *err)
{
    const struct fm_machine_options options = {
        .size = sizeof options, .what = FM_MEASURE_READ | FM_MEASURE_INT8,
        .n_threads = (unsigned)args_uint(args, "threads"), .pin_threads = args_flag(args, "pin"),
        .cpu = args_text(args, "cpu"), .quick = true};
    struct fm_machine_speeds speeds = {.size = sizeof speeds};
    const int rc = fm_machine_measure(&options, &speeds, err);
    m->n_threads = speeds.n_threads;
    m->memory_per_s = speeds.read.median;
    m->mul_adds_per_s = speeds.int8.median / 2;
    return rc;
}

/* Measures the disk that the model's files are on. A model without experts reads none. */
static int measure_disk(const struct args *args, struct cut_machine *m, struct fm_error *err)
{
    struct fm_model_info info = {.size = sizeof info};
    struct fm_disk_speeds disk = {.size = sizeof disk};
    struct fm_model *model = NULL;
    int rc = open_headers(args, &model, err);
    if (rc != 0)
        return rc;
    fm_model_info(model, &info);
    fm_model_close(model);
    (void)snprintf(m->layers_here, sizeof m->layers_here, "%s", info.layers_here);
    if (info.n_moe_layers > 0)
        rc = app_disk_measure(args, NULL, &disk, err);
    m->disk_per_s = disk.read.median;
    return rc;
}

/* Measures this machine; the text is its JSON. */
static int measure(void *ctx, char *text, size_t bytes, struct fm_error *err)
{
    const struct args *args = ctx;
    struct fm_machine_info info = {.size = sizeof info};
    struct machines one = {.n = 1};
    struct cut_machine *m = &one.list[0];
    fm_machine_info(&info);
    (void)snprintf(m->processor, sizeof m->processor, "%s", info.processor);
    m->memory_bytes = memory_of_rank(args, &info);
    int rc = measure_disk(args, m, err);
    if (rc == 0)
        rc = measure_processor(args, m, err);
    if (rc != 0)
        return rc;
    json_t *list = machines_json(&one);
    const size_t n = json_dumpb(json_array_get(list, 0), text, bytes - 1, JSON_COMPACT);
    json_decref(list);
    if (n == 0 || n >= bytes)
        return err_set(err, FM_ERR_NOMEM, "out of memory: the measurement");
    text[n] = '\0';
    return 0;
}

/* ---- the first rank -------------------------------------------------------------------------- */

static int find_message_bytes(struct probe *p, struct fm_error *err)
{
    struct fm_model *model = NULL;
    const int rc = open_headers(p->args, &model, err);
    if (rc == 0)
        p->message_bytes = fm_model_message_bytes(model, 1, 1);
    fm_model_close(model);
    return rc;
}

static int read_probe(struct cut_machine *m, unsigned rank, const struct fm_probe *found,
                      struct fm_error *err)
{
    struct jdoc doc = {0};
    char name[32];
    (void)snprintf(name, sizeof name, "rank %u", rank);
    int rc = jdoc_parse(&doc, name, found->text, strlen(found->text), err);
    if (rc == 0)
        rc = machine_read(m, name, doc.root, err);
    jdoc_clear(&doc);
    (void)snprintf(m->host, sizeof m->host, "%s", found->host);
    m->latency_s = found->latency_s;
    m->message_s = found->message_s;
    m->bytes_per_s = found->bytes_per_s;
    return rc;
}

/* Measures all ranks; without mpirun, this machine is the only one. */
static int probe_all(struct probe *p, struct fm_error *err)
{
    struct fm_cluster *cluster = cluster_of_process();
    const unsigned n = cluster != NULL ? fm_cluster_n_ranks(cluster) : 1;
    static struct fm_probe found[CUT_RANKS];
    char host[64];
    found[0].size = sizeof found[0];
    for (unsigned i = 0; i < n; i++)
        found[i].size = sizeof found[i];
    plat_host_name(host, sizeof host);
    found[0].host = host;
    int rc = cluster != NULL ? fm_cluster_probe(cluster, measure, (void *)(uintptr_t)p->args,
                                                p->message_bytes, found, err)
                             : measure((void *)(uintptr_t)p->args, found[0].text,
                                       sizeof found[0].text, err);
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = read_probe(&p->machines.list[i], i, &found[i], err);
    p->machines.n = n;
    return rc;
}

static int print_probe(const struct probe *p)
{
    const char *path = app_model_path(p->args);
    if (args_flag(p->args, "json"))
        return out_json(json_pack("{s:o, s:I, s:o}", "model", json_text(path, strlen(path)),
                                  "message_bytes", (json_int_t)p->message_bytes, "machines",
                                  machines_json(&p->machines)))
                   ? STATUS_OK : STATUS_FAILED;
    machines_print(&p->machines);
    for (unsigned i = 0; p->machines.n > 1 && i < p->machines.n; i++)
        (void)printf("message      %llu bytes of a token from rank %u to rank %u: %.3f ms\n",
                     (unsigned long long)p->message_bytes, i, (i + 1) % p->machines.n,
                     p->machines.list[i].message_s * 1e3);
    return STATUS_OK;
}

static int run_probe(const struct args *args)
{
    struct fm_error err = {0};
    static struct probe p;
    struct fm_cluster *cluster = cluster_of_process();
    p.args = args;
    say_library_log(false);
    if (cluster != NULL && fm_cluster_rank(cluster) > 0)
        return fm_cluster_probe(cluster, measure, (void *)(uintptr_t)args, 0, NULL, &err) == 0
                   ? STATUS_OK : STATUS_FAILED; /* the first rank says why */
    int rc = find_message_bytes(&p, &err);
    if (rc == 0 || cluster != NULL) {
        struct fm_error why = {0};
        const int probed = probe_all(&p, rc == 0 ? &err : &why); /* the others wait for it */
        rc = rc != 0 ? rc : probed;
    }
    return rc != 0 ? say_failed(&err, STATUS_FAILED) : print_probe(&p);
}

const struct command cmd_cluster_probe = {
    .name = "cluster probe",
    .summary = "Measure the machines of a cluster",
    .description =
        "Start it with mpirun, as the model will be started. Every rank measures the memory that "
        "is free for it, how fast its processors read memory and multiply, and how fast its disk "
        "reads the model's experts; neighbours measure the way between them, with the messages "
        "that a token needs. Ranks of one machine take turns and share its memory. Without mpirun "
        "it measures this machine. 'flashmoe cluster plan' starts this itself, and also takes the "
        "JSON with --machines.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_engine, &group_json, &group_messages,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"mpirun --hostfile hosts --bind-to none flashmoe cluster probe MODEL --json",
         "Numbers for 'flashmoe cluster plan --machines'"},
        {NULL, NULL}},
    .run = run_probe,
    .is_for_all_ranks = true,
};
