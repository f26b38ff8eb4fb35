/* Chooses whether experts are read past the page cache or through it. Measured once for a model on
 * a disk, and kept in a small file. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat_dir.h"
#include "base/sized.h"
#include "engine/options.h"
#include "engine/streaming.h"
#include "flashmoe_lab.h"
#include "store/reader_measure.h"

/* Duration of a pass; it reads as many bytes as the disk delivers in that time. */
#define PASS_SECONDS 0.08
#define PROBE_BYTES (16ull << 20)
#define PASS_BYTES_MAX (128ull << 20)
/* A disk whose first try takes longer is not measured further. */
#define PROBE_NS_MAX 300000000ull
/* The page cache must be faster by more than the measurements vary, since it copies every read. */
#define PAGE_GAIN 1.2
#define FILE_BYTES 512

static enum fm_io chosen_io(const struct fm_io_speeds *speeds)
{
    return speeds->direct * PAGE_GAIN >= speeds->page ? FM_IO_DIRECT : FM_IO_PAGE;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* The text of the file: what must be the same, and the figures. Any other text belongs to another
 * model or is damaged. */
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
    plat_make_path_private(path);
    if (plat_read_file(path, FILE_BYTES, &text, &n, &err) != 0) {
        log_info("io", "the saved disk measurement is ignored: %s", err.text);
        return false;
    }
    const char *figures = strstr(text, "\ndirect ");
    bool is_right = figures != NULL &&
                    sscanf(figures, " direct %lf page %lf", &speeds->direct, &speeds->page) == 2;
    if (is_right)
        write_text(expected, model, speeds);
    is_right = is_right && strlen(text) == n && strcmp(text, expected) == 0;
    if (!is_right)
        log_info("io", "'%s' is ignored: it is damaged or belongs to another model or disk", path);
    mem_free(text);
    return is_right;
}

static int save(const char *path, const struct model *model, const struct fm_io_speeds *speeds,
                struct fm_error *err)
{
    char text[FILE_BYTES];
    write_text(text, model, speeds);
    return plat_replace_file(path, text, strlen(text), err);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Bytes of the largest expert, and of all experts. */
static uint64_t expert_bytes(const struct model *model, uint64_t *all)
{
    uint64_t max = 1;
    *all = 0;
    for (uint32_t i = 0; i < model->n_expert_layers; i++) {
        const struct expert_layer *l = &model->expert_layers[i];
        max = l->read_bytes > max ? l->read_bytes : max;
        *all += l->n_experts * l->read_bytes;
    }
    return max;
}

/* Runs one pass with the default reader, whatever the options say: the figure is kept for later
 * starts. *figure stays 0 when files cannot be read past the page cache. */
static int measure_pass(const struct model *model, enum store_io io, uint64_t bytes, uint64_t seed,
                        double *figure, struct fm_error *err)
{
    const struct fm_model_options defaults = {.size = sizeof defaults};
    struct streaming s;
    struct expert_store *store;
    const char *reader_name;
    double figures[READER_PASSES_MAX] = {0};
    uint64_t all;
    int rc = streaming_choose(&s, &defaults, err);
    s.io = io;
    streaming_fit(&s, model);
    if (rc == 0)
        rc = streaming_open_store(&s, model, false, &reader_name, &store, err);
    if (rc != 0)
        return rc;
    /* A large expert is read in many pieces, so fewer experts fill the queue. */
    const uint64_t at_a_time = 1 + bytes / expert_bytes(model, &all);
    const struct reader_measurement how = {
        .n_experts_at_a_time = at_a_time < s.reader.depth ? (unsigned)at_a_time : s.reader.depth,
        .n_passes = 1, .pass_bytes = bytes, .seed = seed, .disk = -1};
    if (io != STORE_DIRECT || expert_store_is_direct(store))
        rc = reader_measure(model, store, &how, figures, err);
    expert_store_close(store);
    if (rc == 0 && figures[0] > *figure)
        *figure = figures[0];
    return rc;
}

static uint64_t measured_bytes(const struct model *model, double speed)
{
    uint64_t all;
    (void)expert_bytes(model, &all);
    const double bytes = speed * PASS_SECONDS;
    const uint64_t max = all < PASS_BYTES_MAX ? all : PASS_BYTES_MAX;
    if (bytes < (double)PROBE_BYTES)
        return PROBE_BYTES;
    return bytes < (double)max ? (uint64_t)bytes : max;
}

/* Takes the better of two passes each, in turns. No order of experts is used twice, since a device
 * has caches too. A disk that is slow at the first try is read past the page cache, without further
 * measurements. */
static int measure(const struct model *model, struct fm_io_speeds *speeds, struct fm_error *err)
{
    double direct = 0, page = 0;
    const uint64_t begin_ns = plat_now_ns();
    int rc = measure_pass(model, STORE_DIRECT, PROBE_BYTES, 1, &direct, err);
    if (rc == 0 && direct == 0)
        rc = measure_pass(model, STORE_PAGES_DROPPED, PROBE_BYTES, 1, &page, err);
    *speeds = (struct fm_io_speeds){.direct = direct, .page = page};
    if (plat_now_ns() - begin_ns < PROBE_NS_MAX) {
        const uint64_t bytes = measured_bytes(model, direct > 0 ? direct : page);
        *speeds = (struct fm_io_speeds){0};
        for (unsigned i = 0; rc == 0 && i < 4; i++)
            rc = i == 0 || i == 3
                     ? measure_pass(model, STORE_DIRECT, bytes, 2 + i, &speeds->direct, err)
                     : measure_pass(model, STORE_PAGES_DROPPED, bytes, 2 + i, &speeds->page, err);
    }
    speeds->io = chosen_io(speeds);
    return rc;
}

static int measure_and_keep(const char *path, const struct model *model,
                            struct fm_io_speeds *speeds, struct fm_error *err)
{
    struct fm_error why;
    int rc = measure(model, speeds, err);
    if (rc == 0 && path != NULL && save(path, model, speeds, &why) != 0)
        log_info("io", "cannot save the disk measurement: %s", why.text);
    return rc;
}

void io_choose(struct streaming *s, const struct model *model, bool may_measure)
{
    struct fm_io_speeds speeds;
    struct fm_error err;
    if (!s->is_auto || s->io_path == NULL || model->n_expert_layers == 0)
        return;
    const bool is_kept = load(s->io_path, model, &speeds);
    if (!is_kept && !may_measure)
        return;
    if (!is_kept && measure_and_keep(s->io_path, model, &speeds, &err) != 0) {
        log_info("io", "cannot measure the disk: %s", err.text);
        return;
    }
    log_info("io", "reading experts: %.2f GB/s directly, %.2f GB/s through the page cache "
             "(0: not measured)", speeds.direct * 1e-9, speeds.page * 1e-9);
    s->io = chosen_io(&speeds) == FM_IO_PAGE ? STORE_PAGES_DROPPED : STORE_DIRECT;
}

int fm_io_measure(const char *model_path, const struct fm_model_options *options,
                  struct fm_io_speeds *speeds, struct fm_error *err)
{
    struct own_options own;
    struct fm_io_speeds found = {0};
    struct streaming s;
    struct model *model = NULL;
    int rc = sized_check(speeds, "fm_io_speeds", err);
    if (rc == 0)
        rc = own_options_take(&own, options, err);
    if (rc == 0)
        rc = streaming_open_model(model_path, &own.o, &s, &model, err);
    if (rc == 0)
        rc = measure_and_keep(s.io_path, model, &found, err);
    (void)sized_give(speeds, &found, sizeof found); /* a wrong size was refused */
    model_close(model);
    return rc;
}
