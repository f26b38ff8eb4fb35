#include "apps/bench/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "apps/cli/common.h"

#define ROWS 4096

struct profile_row {
    uint64_t evaluation;
    struct fm_layer_profile layer;
};

static const char *const columns[] = {"evaluation", "position", "n_tokens", "layer", "mix_ns",
                                      "route_ns", "wait_ns", "read_ns", "compute_ns", "hits",
                                      "misses", "bytes_read"};
#define N_COLUMNS (sizeof columns / sizeof columns[0])

static const struct option profile_options[] = {
    {.name = "profile", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Record for every evaluation and layer the nanoseconds of mixing, routing, waiting "
             "for experts and computing, and the expert hits, misses and bytes read; the last "
             "layer is the head. read_ns overlaps wait_ns and compute_ns: it is the time from the "
             "first read of the layer until its last missing expert is used, 0 without a miss. "
             "Writes CSV, or JSON if FILE ends in .json"},
    {.name = NULL},
};
const struct option_group group_profile = {"Output", profile_options};

static bool ends_in_json(const char *path)
{
    const size_t n = strlen(path);
    return n >= 5 && strcmp(path + n - 5, ".json") == 0;
}

int profile_open(struct profile *profile, const char *path, struct fm_error *err)
{
    *profile = (struct profile){.is_json = path != NULL && ends_in_json(path)};
    int rc = part_file_open(&profile->out, "--profile", path, PLAT_SHARED, err);
    if (rc != 0 || path == NULL)
        return rc;
    profile->rows = mem_new(ROWS, sizeof *profile->rows, "the profile", err);
    if (profile->rows == NULL) {
        (void)part_file_close(&profile->out, false, NULL);
        return FM_ERR_NOMEM;
    }
    return 0;
}

static int write_json_head(FILE *out, const struct fm_model_info *info, struct fm_error *err)
{
    json_t *labels = json_pack("{s:o, s:o}", "routes", json_label(info->routes), "approximate",
                               json_label(info->approximate));
    char *text = labels != NULL ? json_dumps(labels, 0) : NULL;
    json_decref(labels);
    if (text == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory for the profile's labels");
    const size_t n = strlen(text) - 1; /* leaves the object open */
    (void)fprintf(out, "%.*s, \"rows\": [", (int)n, text);
    free(text);
    return 0;
}

int profile_head(struct profile *profile, const struct fm_model_info *info, struct fm_error *err)
{
    FILE *out = profile->out.file;
    if (out == NULL)
        return 0;
    if (profile->is_json)
        return write_json_head(out, info, err);
    csv_labels(out, info);
    for (size_t i = 0; i < N_COLUMNS; i++)
        (void)fprintf(out, "%s%s", columns[i], i + 1 < N_COLUMNS ? "," : "\n");
    return 0;
}

static void write_row(struct profile *profile, const struct profile_row *row)
{
    const struct fm_layer_profile *l = &row->layer;
    const uint64_t values[N_COLUMNS] = {row->evaluation, l->position, l->n_tokens, l->layer,
                                        l->mix_ns, l->route_ns, l->wait_ns, l->read_ns,
                                        l->compute_ns, l->n_hits, l->n_misses, l->bytes_read};
    FILE *file = profile->out.file;
    if (profile->is_json)
        (void)fputs(profile->n_written == 0 ? "\n{" : ",\n{", file);
    for (size_t i = 0; i < N_COLUMNS; i++) {
        if (profile->is_json)
            (void)fprintf(file, "\"%s\": ", columns[i]);
        (void)fprintf(file, "%llu%s", (unsigned long long)values[i],
                      i + 1 < N_COLUMNS  ? profile->is_json ? ", " : ","
                      : profile->is_json ? "}"
                                         : "\n");
    }
    profile->n_written++;
}

static void flush_rows(struct profile *profile)
{
    for (unsigned i = 0; i < profile->n_rows; i++)
        write_row(profile, &profile->rows[i]);
    profile->n_rows = 0;
}

void profile_add(struct profile *profile, const struct fm_layer_profile *layer)
{
    if (profile->n_rows == ROWS)
        flush_rows(profile);
    profile->n_evaluations += layer->layer == 0;
    profile->rows[profile->n_rows++] = (struct profile_row){profile->n_evaluations, *layer};
}

int profile_close(struct profile *profile, bool is_whole, struct fm_error *err)
{
    if (!profile_is_on(profile))
        return 0;
    flush_rows(profile);
    if (profile->is_json)
        (void)fputs(profile->n_written == 0 ? "]}\n" : "\n]}\n", profile->out.file);
    mem_free(profile->rows);
    profile->rows = NULL;
    return part_file_close(&profile->out, is_whole, err);
}
