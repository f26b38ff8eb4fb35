#include "apps/cluster/machines.h"

#include <stdio.h>
#include <string.h>

#include "apps/cli/common.h"
#include "apps/cli/term.h"
#include "base/jdoc.h"

#define MAX_RATE 1e18
#define MAX_SECONDS 1e6

static json_t *rate_json(double per_s)
{
    return per_s > 0 ? json_real(per_s) : json_null();
}

json_t *machines_json(const struct machines *machines)
{
    json_t *all = json_array();
    for (unsigned i = 0; i < machines->n; i++) {
        const struct cut_machine *m = &machines->list[i];
        (void)json_array_append_new(all, json_pack(
            "{s:i, s:o, s:o, s:i, s:o, s:I, s:f, s:o, s:o, s:f, s:o, s:o}", "rank", (int)i,
            "host", json_text(m->host, strlen(m->host)),
            "processor", json_text(m->processor, strlen(m->processor)),
            "n_threads", (int)m->n_threads,
            "layers_here", json_label(m->layers_here[0] != '\0' ? m->layers_here : NULL),
            "memory_bytes", (json_int_t)m->memory_bytes, "memory_bytes_per_s", m->memory_per_s,
            "disk_bytes_per_s", rate_json(m->disk_per_s),
            "mul_adds_per_s", rate_json(m->mul_adds_per_s), "latency_s", m->latency_s,
            "link_bytes_per_s", rate_json(m->bytes_per_s), "message_s", rate_json(m->message_s)));
    }
    return all;
}

/* Copies a text field that may be missing. */
static int copy_text(const json_t *object, const char *name, const char *field, char *out,
                     size_t bytes, struct fm_error *err)
{
    const char *text = NULL;
    const int rc = jdoc_find(object, field) != NULL ? jdoc_string(object, name, field, &text, err)
                                                    : 0;
    (void)snprintf(out, bytes, "%s", text != NULL ? text : "");
    return rc;
}

int machine_read(struct cut_machine *m, const char *name, const json_t *object,
                 struct fm_error *err)
{
    uint64_t memory = 0, n_threads = 0;
    *m = (struct cut_machine){0};
    int rc = copy_text(object, name, "host", m->host, sizeof m->host, err);
    if (rc == 0)
        rc = copy_text(object, name, "processor", m->processor, sizeof m->processor, err);
    if (rc == 0)
        rc = copy_text(object, name, "layers_here", m->layers_here, sizeof m->layers_here, err);
    if (rc == 0)
        rc = jdoc_uint_or(object, name, "n_threads", 0, LIMIT_THREADS, 0, &n_threads, err);
    if (rc == 0)
        rc = jdoc_uint(object, name, "memory_bytes", 1, INT64_MAX, &memory, err);
    if (rc == 0 && jdoc_find(object, "memory_bytes_per_s") == NULL)
        rc = err_set(err, FM_ERR_FORMAT, "%s: field 'memory_bytes_per_s' is missing", name);
    if (rc == 0)
        rc = jdoc_number_or(object, name, "memory_bytes_per_s", 1, MAX_RATE, 0, &m->memory_per_s,
                            err);
    if (rc == 0)
        rc = jdoc_number_or(object, name, "disk_bytes_per_s", 1, MAX_RATE, 0, &m->disk_per_s,
                            err);
    if (rc == 0)
        rc = jdoc_number_or(object, name, "mul_adds_per_s", 1, MAX_RATE, 0, &m->mul_adds_per_s,
                            err);
    if (rc == 0)
        rc = jdoc_number_or(object, name, "latency_s", 0, MAX_SECONDS, 0, &m->latency_s, err);
    if (rc == 0)
        rc = jdoc_number_or(object, name, "link_bytes_per_s", 1, MAX_RATE, 0, &m->bytes_per_s,
                            err);
    if (rc == 0)
        rc = jdoc_number_or(object, name, "message_s", 0, MAX_SECONDS, 0, &m->message_s, err);
    m->memory_bytes = (double)memory;
    m->n_threads = (unsigned)n_threads;
    return rc;
}

int machines_parse(struct machines *machines, const char *name, const char *text, size_t bytes,
                   struct fm_error *err)
{
    struct jdoc doc = {0};
    *machines = (struct machines){0};
    int rc = jdoc_parse(&doc, name, text, bytes, err);
    const json_t *list = json_object_get(doc.root, "machines");
    const size_t n = json_array_size(list);
    if (rc == 0 && (n == 0 || n > CUT_RANKS))
        rc = err_set(err, FM_ERR_FORMAT, "%s: field 'machines' has %zu entries, expected 1 to %d, "
                     "as 'flashmoe cluster probe --json' prints them", name, n, CUT_RANKS);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct cut_machine *m = &machines->list[i];
        char where[LIMIT_PATH_BYTES + 32];
        (void)snprintf(where, sizeof where, "%s: machine %zu", name, i);
        rc = machine_read(m, where, json_array_get(list, i), err);
        if (m->host[0] == '\0')
            (void)snprintf(m->host, sizeof m->host, "machine%zu", i);
        machines->n++;
    }
    jdoc_clear(&doc);
    return rc;
}

void machines_print(const struct machines *machines)
{
    (void)printf("  rank  %-16s %10s  %11s  %11s  %s\n", "host", "memory", "memory read",
                 "disk read", "to the next rank");
    for (unsigned i = 0; i < machines->n; i++) {
        const struct cut_machine *m = &machines->list[i];
        char memory[UNIT_BYTES], read[UNIT_BYTES], disk[UNIT_BYTES] = "-", rate[UNIT_BYTES] = "";
        char host[NAME_BYTES], link[UNIT_BYTES + 32] = "-";
        if (m->disk_per_s > 0)
            (void)human_rate(m->disk_per_s, disk);
        if (m->bytes_per_s > 0)
            (void)human_rate(m->bytes_per_s, rate);
        if (machines->n > 1)
            (void)snprintf(link, sizeof link, "%.3f ms%s%s", m->latency_s * 1e3,
                           rate[0] != '\0' ? ", " : "", rate);
        (void)printf("  %4u  %-16s %10s  %11s  %11s  %s\n", i, out_name(m->host, host),
                     human_bytes((uint64_t)m->memory_bytes, memory),
                     human_rate(m->memory_per_s, read), disk, link);
    }
}
