/* Whether experts are read past the page cache or through it: measured once for a model on a disk,
 * and kept in a small file. */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "session/engine_internal.h"
#include "store/reader_measure.h"

/* A pass takes about so long, of as many bytes as the disk gives in it. */
#define PASS_SECONDS 0.08
#define PROBE_BYTES (16ull << 20)
#define PASS_BYTES_MAX (512ull << 20)
/* The page cache holds twice what the expert cache has, and takes memory for it: it must be faster
 * by more than measurements differ. */
#define PAGE_GAIN 1.2
#define FILE_BYTES 512

static const char *chosen_io(const struct fm_io_speeds *speeds)
{
    return speeds->direct * PAGE_GAIN >= speeds->page ? "direct" : "page";
}

/* ---- the file -------------------------------------------------------------------------------- */

/* All that must be the same, and the figures: another text is another model's, or damaged. */
static void write_text(char text[FILE_BYTES], const struct model *model,
                       const struct fm_io_speeds *speeds)
{
    struct plat_file_info info = {0};
    const uint32_t file = model->expert_layers[0].extents[0].file;
    (void)plat_open_file_info(model->source->files[file].fd, &info); /* zeros say so too */
    (void)snprintf(text, FILE_BYTES,
                   "flashmoe io 1\nmodel %016llx\ndevice %llu\nbytes %llu\n"
                   "direct %.0f\npage %.0f\n",
                   (unsigned long long)model_identity(model), (unsigned long long)info.device,
                   (unsigned long long)info.bytes, speeds->direct, speeds->page);
}

static bool load(const char *path, const struct model *model, struct fm_io_speeds *speeds)
{
    char expected[FILE_BYTES], *text;
    size_t n;
    struct fm_error err;
    if (!plat_file_exists(path))
        return false;
    if (plat_read_file(path, FILE_BYTES, &text, &n, &err) != 0) {
        log_info("io", "what was measured before is ignored: %s", err.text);
        return false;
    }
    const char *figures = strstr(text, "\ndirect ");
    bool is_right = figures != NULL &&
                    sscanf(figures, " direct %lf page %lf", &speeds->direct, &speeds->page) == 2;
    if (is_right)
        write_text(expected, model, speeds);
    is_right = is_right && strlen(text) == n && strcmp(text, expected) == 0;
    if (!is_right)
        log_info("io", "'%s' is ignored: it is damaged, or of another model or disk", path);
    mem_free(text);
    return is_right;
}

static int save(const char *path, const struct model *model, const struct fm_io_speeds *speeds,
                struct fm_error *err)
{
    char text[FILE_BYTES], partial[LIMIT_PATH_BYTES];
    bool is_direct = false;
    int fd;
    if ((size_t)snprintf(partial, sizeof partial, "%s.partial", path) >= sizeof partial)
        return err_set(err, FM_ERR_ARG, "the path is too long: '%s'", path);
    write_text(text, model, speeds);
    int rc = plat_create(partial, &is_direct, &fd, err);
    if (rc != 0)
        return rc;
    rc = plat_write_at(fd, partial, text, strlen(text), 0, err);
    plat_close(fd);
    return rc == 0 ? plat_rename(partial, path, err) : rc;
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* One pass; *figure stays 0 where files cannot be read past the page cache. */
static int measure_pass(const struct model *model, struct streaming s, enum store_io io,
                        uint64_t bytes, uint64_t seed, double *figure, struct fm_error *err)
{
    struct expert_store *store;
    struct reader *reader;
    double figures[READER_PASSES_MAX];
    s.io = io;
    streaming_fit(&s, model);
    int rc = streaming_open_reader(&s, &reader, err);
    if (rc == 0)
        rc = expert_store_open(model, reader, io, false, &store, err);
    if (rc != 0)
        return rc;
    const struct reader_measurement how = {.n_experts_at_a_time = s.reader.depth, .n_passes = 1,
                                           .pass_bytes = bytes, .seed = seed,
                                           .is_cold = io == STORE_PAGES};
    if (io == STORE_PAGES || expert_store_is_direct(store))
        rc = reader_measure(model, store, &how, figures, err);
    else
        figures[0] = 0;
    expert_store_close(store);
    if (rc == 0 && figures[0] > *figure)
        *figure = figures[0];
    return rc;
}

static uint64_t pass_bytes(const struct model *model, double speed)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < model->n_expert_layers; i++)
        all += model->expert_layers[i].n_experts * model->expert_layers[i].read_bytes;
    const double bytes = speed * PASS_SECONDS;
    const uint64_t most = all < PASS_BYTES_MAX ? all : PASS_BYTES_MAX;
    if (bytes < (double)PROBE_BYTES)
        return PROBE_BYTES;
    return bytes < (double)most ? (uint64_t)bytes : most;
}

/* The better of two passes each, in turns, no expert order twice: a device has caches too. */
static int measure(const struct model *model, const struct streaming *s,
                   struct fm_io_speeds *speeds, struct fm_error *err)
{
    double probe = 0;
    *speeds = (struct fm_io_speeds){0};
    int rc = measure_pass(model, *s, STORE_DIRECT, PROBE_BYTES, 1, &probe, err);
    if (rc == 0 && probe == 0)
        rc = measure_pass(model, *s, STORE_PAGES, PROBE_BYTES, 1, &probe, err);
    const uint64_t bytes = pass_bytes(model, probe);
    for (unsigned i = 0; rc == 0 && i < 4; i++)
        rc = i == 0 || i == 3
                 ? measure_pass(model, *s, STORE_DIRECT, bytes, 2 + i, &speeds->direct, err)
                 : measure_pass(model, *s, STORE_PAGES, bytes, 2 + i, &speeds->page, err);
    speeds->io = chosen_io(speeds);
    return rc;
}

static int measure_and_keep(struct streaming *s, const struct model *model,
                            struct fm_io_speeds *speeds, struct fm_error *err)
{
    struct fm_error why;
    int rc = measure(model, s, speeds, err);
    if (rc == 0 && s->io_path != NULL && save(s->io_path, model, speeds, &why) != 0)
        log_info("io", "what was measured is not kept: %s", why.text);
    return rc;
}

void io_choose(struct streaming *s, const struct model *model)
{
    struct fm_io_speeds speeds;
    struct fm_error err;
    if (!s->is_auto || s->io_path == NULL || model->n_expert_layers == 0)
        return;
    if (!load(s->io_path, model, &speeds) && measure_and_keep(s, model, &speeds, &err) != 0) {
        log_info("io", "the disk could not be measured: %s", err.text);
        return;
    }
    log_info("io", "experts come with %.2f GB/s past the page cache, with %.2f GB/s through it",
             speeds.direct * 1e-9, speeds.page * 1e-9);
    s->io = strcmp(chosen_io(&speeds), "page") == 0 ? STORE_PAGES : STORE_DIRECT;
}

int fm_io_measure(const char *model_path, const struct fm_model_options *options,
                  struct fm_io_speeds *speeds, struct fm_error *err)
{
    struct fm_model_options defaults;
    struct streaming s;
    struct model *model = NULL;
    const struct model_options model_options = {.families = arch_families()};
    fm_model_options_init(&defaults);
    int rc = streaming_choose(&s, options != NULL ? options : &defaults, err);
    if (rc == 0)
        rc = model_open(model_path, &model_options, &model, err);
    if (rc == 0 && model->n_expert_layers == 0)
        rc = err_set(err, FM_ERR_ARG, "'%s' has no routed experts to read", model_path);
    if (rc == 0)
        rc = measure_and_keep(&s, model, speeds, err);
    model_close(model);
    return rc;
}
