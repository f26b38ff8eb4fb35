/* Writes a plan: several threads generate pieces and write them past the page cache. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat_dir.h"
#include "flashmoe_lab.h"
#include "pack/crew.h"
#include "lab/synth_internal.h"

/* A thread mostly waits for the disk, so more threads than processors keep it busy. */
#define THREADS_PER_CPU 2
#define MIN_THREADS 4
#define MAX_THREADS 64
/* Not the packer's suffix: a directory of that name may hold the only copy of a source. */
#define PARTIAL ".synth-partial"

enum { WORK_PIECE, WORK_SYNC };

struct output {
    int fd;
    bool is_direct, is_synced;
    uint64_t n_pieces, n_left;
    char path[LIMIT_PATH_BYTES];
    struct plat_file_info made; /* identity of the file */
};

struct writer {
    struct synth_plan *plan;
    char dst[LIMIT_PATH_BYTES];
    char folder[LIMIT_PATH_BYTES]; /* where the files are written */
    struct plat_dir dir;           /* `folder`, once it exists */
    struct output *outputs;
    size_t n_outputs; /* created */
    size_t file, n_unsynced;
    uint64_t piece; /* the next one */
    char **buffers; /* [n_threads] */
    unsigned n_threads;
    bool has_headers_only;
};

/* ---- paths ----------------------------------------------------------------------------------- */

static int join(char path[], const char *folder, const char *name, const char *suffix,
                struct fm_error *err)
{
    int n = snprintf(path, LIMIT_PATH_BYTES, "%s/%s%s", folder, name, suffix);
    if (n > 0 && n < LIMIT_PATH_BYTES)
        return 0;
    return err_set(err, FM_ERR_ARG, "the path '%.200s...' is too long", folder);
}

static int temporary_path(const struct writer *w, const char *name, char path[],
                          struct fm_error *err)
{
    return join(path, w->folder, name, w->plan->is_directory ? "" : PARTIAL, err);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Returns how many bytes of a file are written, from its start. */
static uint64_t written_bytes(const struct writer *w, const struct synth_file *file)
{
    return w->has_headers_only ? file->head_bytes : file->bytes;
}

static uint64_t count_pieces(const struct writer *w, const struct synth_file *file)
{
    const uint64_t bytes = written_bytes(w, file);
    if (file->sums == SYNTH_TENSOR_SUMS)
        return bytes > 0;
    return (bytes + file->piece_bytes - 1) / file->piece_bytes;
}

static int set_length(const struct writer *w, size_t f, struct fm_error *err)
{
    const struct output *out = &w->outputs[f];
    const uint64_t bytes = w->plan->files[f].bytes;
    return w->has_headers_only ? plat_set_size(out->fd, out->path, bytes, err)
                               : plat_reserve(out->fd, out->path, bytes, err);
}

static int write_piece(struct writer *w, size_t f, uint64_t offset, void *buffer, uint64_t *bytes,
                       struct fm_error *err)
{
    const struct synth_file *file = &w->plan->files[f];
    const struct output *out = &w->outputs[f];
    const uint64_t left = written_bytes(w, file) - offset;
    *bytes = left < file->piece_bytes ? left : file->piece_bytes;
    synth_file_fill(w->plan, file, offset, *bytes, buffer);
    for (unsigned m = 0; file->record != NULL && m < EXPERT_MATRICES; m++)
        if (file->record->matrices[m].lies_interleaved)
            record_interleave(&file->record->matrices[m], buffer);
    uint64_t n = *bytes;
    if (out->is_direct) { /* the last piece; the file is truncated at the end */
        n = mem_round_up(n, MEM_PAGE);
        memset((char *)buffer + *bytes, 0, n - *bytes);
    }
    return plat_write_at(out->fd, out->path, buffer, n, offset, err);
}

/* Hashes bytes [at, at + bytes) of dense.bin into the tensors that they belong to. */
static void sum_tensors(struct packed *packed, size_t *tensor, XXH3_state_t *state, uint64_t at,
                        const char *data, uint64_t bytes)
{
    while (bytes > 0 && *tensor < packed->n_tensors) {
        struct packed_tensor *t = &packed->tensors[*tensor];
        const uint64_t left = t->offset + t->bytes - at;
        const uint64_t n = left < bytes ? left : bytes;
        (void)XXH3_128bits_update(state, data, n); /* fails only for NULL */
        at += n;
        data += n;
        bytes -= n;
        if (n == left) {
            packed_sum_of_hash(state, &t->sum);
            (void)XXH3_128bits_reset(state);
            ++*tensor;
        }
    }
}

static int write_dense(struct writer *w, struct crew *crew, size_t f, void *buffer,
                       struct fm_error *err)
{
    const struct synth_file *file = &w->plan->files[f];
    XXH3_state_t *one = XXH3_createState();
    size_t tensor = 0;
    int rc = 0;
    if (one == NULL)
        rc = err_set(err, FM_ERR_NOMEM, "out of memory: cannot allocate a checksum");
    else
        (void)XXH3_128bits_reset(one); /* fails only for NULL */
    for (uint64_t at = 0; rc == 0 && at < file->bytes;) {
        uint64_t bytes;
        rc = write_piece(w, f, at, buffer, &bytes, err);
        if (rc == 0)
            rc = crew_advance(crew, bytes, err);
        if (rc != 0)
            break;
        sum_tensors(w->plan->packed, &tensor, one, at, buffer, bytes);
        at += bytes;
    }
    (void)XXH3_freeState(one); /* accepts NULL */
    return rc;
}

static int finish_file(struct writer *w, size_t f, struct fm_error *err)
{
    const struct output *out = &w->outputs[f];
    int rc = set_length(w, f, err);
    return rc != 0 ? rc : plat_sync(out->fd, out->path, err);
}

static int run_work(void *ctx, struct crew *crew, unsigned worker, struct crew_work *work,
                    struct fm_error *err)
{
    struct writer *w = ctx;
    const size_t f = work->first;
    const struct synth_file *file = &w->plan->files[f];
    char *buffer = w->buffers[worker];
    uint64_t bytes;
    if (work->kind == WORK_SYNC)
        return finish_file(w, f, err);
    if (file->sums == SYNTH_TENSOR_SUMS)
        return write_dense(w, crew, f, buffer, err);
    int rc = write_piece(w, f, work->second * file->piece_bytes, buffer, &bytes, err);
    if (rc == 0 && file->sums == SYNTH_PIECE_SUMS)
        packed_sum_of(buffer, bytes, &file->piece_sums[work->second]);
    return rc != 0 ? rc : crew_advance(crew, bytes, err);
}

/* ---- assigning work -------------------------------------------------------------------------- */

static enum crew_next next_work(void *ctx, struct crew_work *work)
{
    struct writer *w = ctx;
    for (size_t f = 0; f < w->n_outputs && w->n_unsynced > 0; f++) {
        struct output *out = &w->outputs[f];
        if (out->n_left > 0 || out->is_synced)
            continue;
        out->is_synced = true;
        w->n_unsynced--;
        *work = (struct crew_work){.kind = WORK_SYNC, .first = f};
        return CREW_WORK;
    }
    while (w->file < w->n_outputs && w->piece == w->outputs[w->file].n_pieces) {
        w->file++;
        w->piece = 0;
    }
    if (w->file == w->n_outputs)
        return w->n_unsynced > 0 ? CREW_WAIT : CREW_END;
    *work = (struct crew_work){.kind = WORK_PIECE, .first = w->file, .second = w->piece++};
    return CREW_WORK;
}

static void work_done(void *ctx, const struct crew_work *work)
{
    struct writer *w = ctx;
    if (work->kind == WORK_PIECE)
        w->outputs[work->first].n_left--;
}

static void work_label(void *ctx, char *text, size_t bytes)
{
    const struct writer *w = ctx;
    (void)snprintf(text, bytes, "%s",
                   w->file < w->n_outputs ? w->plan->files[w->file].name : "syncing");
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Creates the directory. Refuses an existing one, which others could have prepared. */
static int open_folder(struct writer *w, struct fm_error *err)
{
    const bool is_made = w->plan->is_directory;
    int rc = is_made ? plat_make_dir(w->folder, err) : 0;
    if (rc == 0)
        rc = plat_dir_open(w->folder, is_made ? PLAT_NO_LINK : PLAT_ANY_LINK, &w->dir, err);
    if (rc == 0 && is_made)
        rc = plat_dir_check_own(&w->dir, err);
    if (rc != 0)
        plat_dir_close(&w->dir);
    return rc;
}

static int create_files(struct writer *w, struct fm_error *err)
{
    struct synth_plan *plan = w->plan;
    int rc = open_folder(w, err);
    w->outputs = mem_new(plan->n_files, sizeof *w->outputs, "the files", err);
    if (rc == 0 && w->outputs == NULL)
        rc = FM_ERR_NOMEM;
    for (size_t f = 0; rc == 0 && f < plan->n_files; f++) {
        const struct synth_file *file = &plan->files[f];
        struct output *out = &w->outputs[f];
        out->fd = -1;
        out->n_pieces = count_pieces(w, file);
        out->n_left = out->n_pieces;
        out->is_direct = true;
        rc = temporary_path(w, file->name, out->path, err);
        if (rc == 0)
            rc = plat_dir_create(&w->dir, path_base(out->path), PLAT_SHARED, &out->is_direct,
                                 &out->fd, err);
        if (rc == 0 && !plat_open_file_info(out->fd, &out->made))
            rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", out->path);
        w->n_outputs += out->fd >= 0;
        if (rc == 0)
            rc = set_length(w, f, err);
    }
    w->n_unsynced = w->n_outputs;
    return rc;
}

static int write_text(struct writer *w, const char *name, const char *text, size_t bytes,
                      struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    bool is_direct = false;
    int fd = -1;
    int rc = temporary_path(w, name, path, err);
    if (rc == 0)
        rc = plat_dir_create(&w->dir, path_base(path), PLAT_SHARED, &is_direct, &fd, err);
    if (rc == 0)
        rc = plat_write_at(fd, path, text, bytes, 0, err);
    if (rc == 0)
        rc = plat_sync(fd, path, err);
    plat_close(fd);
    return rc;
}

static int write_texts(struct writer *w, struct fm_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < w->plan->n_texts; i++)
        rc = write_text(w, w->plan->texts[i].name, w->plan->texts[i].text,
                        w->plan->texts[i].bytes, err);
    if (rc != 0 || w->plan->packed == NULL)
        return rc;
    char *text;
    size_t bytes;
    rc = synth_packed_model(w->plan, &text, &bytes, err);
    if (rc == 0)
        rc = write_text(w, PACKED_MODEL_NAME, text, bytes, err);
    mem_free(text);
    return rc;
}

/* Removes the files that were written. Keeps other files, and then the directory. */
static void remove_all(struct writer *w)
{
    if (w->dir.fd < 0)
        return;
    for (size_t f = 0; f < w->n_outputs; f++)
        (void)plat_dir_remove(&w->dir, path_base(w->outputs[f].path), &w->outputs[f].made, NULL);
    for (size_t i = 0; w->plan->is_directory && i < w->plan->n_texts; i++)
        (void)plat_dir_remove(&w->dir, w->plan->texts[i].name, NULL, NULL);
    if (w->plan->is_directory && w->plan->packed != NULL)
        (void)plat_dir_remove(&w->dir, PACKED_MODEL_NAME, NULL, NULL);
    if (w->plan->is_directory)
        (void)plat_remove_dir(w->folder, NULL);
}

/* Removes what a killed process has left in such a directory. A single file is replaced when it is
 * created. */
static int remove_leftovers(struct writer *w, struct fm_error *err)
{
    struct plat_file_info info;
    if (!w->plan->is_directory || !plat_file_info(w->folder, &info))
        return 0;
    int rc = open_folder(w, err);
    for (size_t f = 0; rc == 0 && f < w->plan->n_files; f++)
        rc = plat_dir_remove(&w->dir, w->plan->files[f].name, NULL, err);
    if (rc == 0)
        remove_all(w); /* the texts, and the directory if it is empty then */
    plat_dir_close(&w->dir);
    if (rc == 0 && plat_file_info(w->folder, &info))
        rc = err_set(err, FM_ERR_ARG, "'%s' is in the way: it holds files of another kind; "
                     "remove it", w->folder);
    return rc;
}

/* Renames all files. The first one is renamed last, so that whoever finds it finds all. */
static int rename_all(struct writer *w, struct fm_error *err)
{
    char holder[LIMIT_PATH_BYTES];
    int rc = 0;
    path_folder(w->dst, holder);
    if (w->plan->is_directory) {
        rc = plat_dir_sync(&w->dir, err);
        if (rc == 0)
            rc = plat_rename(w->folder, w->dst, err);
    }
    for (size_t f = w->plan->n_files; rc == 0 && !w->plan->is_directory && f-- > 0;) {
        rc = plat_dir_rename(&w->dir, path_base(w->outputs[f].path), w->plan->files[f].name,
                             &w->outputs[f].made, err);
    }
    return rc != 0 ? rc : plat_sync_dir(holder, err);
}

/* ---- writing a model ------------------------------------------------------------------------- */

static int make_buffers(struct writer *w, unsigned n_threads, struct fm_error *err)
{
    uint64_t max = MEM_PAGE;
    for (size_t f = 0; f < w->plan->n_files; f++)
        max = w->plan->files[f].piece_bytes > max ? w->plan->files[f].piece_bytes : max;
    if (n_threads == 0) {
        n_threads = THREADS_PER_CPU * plat_n_cpus();
        n_threads = n_threads < MIN_THREADS ? MIN_THREADS : n_threads;
        n_threads = n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    }
    w->buffers = mem_new(n_threads, sizeof *w->buffers, "buffers", err);
    for (w->n_threads = 0; w->buffers != NULL && w->n_threads < n_threads; w->n_threads++) {
        w->buffers[w->n_threads] = mem_new_aligned(MEM_PAGE, max, "buffers", err);
        if (w->buffers[w->n_threads] == NULL)
            return FM_ERR_NOMEM;
    }
    return w->buffers == NULL ? FM_ERR_NOMEM : 0;
}

static int check_free(const struct writer *w, uint64_t total, struct fm_error *err)
{
    char holder[LIMIT_PATH_BYTES];
    path_folder(w->dst, holder);
    const uint64_t room = plat_free_bytes(holder);
    if (room >= total) /* also when it is unknown */
        return 0;
    return err_set(err, FM_ERR_IO, "'%s' takes %.1f GB, but '%s' has %.1f GB free", w->dst,
                   (double)total * 1e-9, holder, (double)room * 1e-9);
}

static int check_targets(struct writer *w, struct fm_error *err)
{
    struct plat_file_info info;
    char path[LIMIT_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s", w->dst);
    for (size_t f = 0; f < (w->plan->is_directory ? 1 : w->plan->n_files); f++) {
        if (!w->plan->is_directory)
            (void)join(path, w->folder, w->plan->files[f].name, "", NULL);
        if (plat_file_info(path, &info))
            return err_set(err, FM_ERR_ARG, "'%s' exists already; remove it or give another name",
                           path);
    }
    return remove_leftovers(w, err);
}

static int set_paths(struct writer *w, const char *dst, struct fm_error *err)
{
    size_t n = strlen(dst);
    while (n > 1 && dst[n - 1] == '/')
        n--;
    if (n == 0 || n + sizeof PARTIAL >= sizeof w->dst)
        return err_set(err, FM_ERR_ARG, "'%.200s' is not a path to write to", dst);
    (void)snprintf(w->dst, sizeof w->dst, "%.*s", (int)n, dst);
    if (w->plan->is_directory)
        (void)snprintf(w->folder, sizeof w->folder, "%.*s" PARTIAL, (int)n, dst);
    else
        path_folder(w->dst, w->folder);
    return 0;
}

int synth_write(struct synth_plan *plan, const char *dst, const struct fm_synth_options *options,
                struct fm_error *err)
{
    struct writer *w = mem_new(1, sizeof *w, "the files", err);
    if (w == NULL)
        return FM_ERR_NOMEM;
    w->plan = plan;
    w->has_headers_only = options->headers_only;
    w->dir.fd = -1;
    const struct crew_job job = {.ctx = w, .next = next_work, .run = run_work,
                                 .done = work_done, .label = work_label};
    struct crew_options crew_options = {.progress = options->progress,
                                        .progress_ctx = options->progress_ctx};
    for (size_t f = 0; f < plan->n_files; f++)
        crew_options.total_bytes += written_bytes(w, &plan->files[f]);
    bool is_begun = false;
    int rc = set_paths(w, dst, err);
    if (rc == 0)
        rc = check_targets(w, err);
    if (rc == 0)
        rc = check_free(w, crew_options.total_bytes, err);
    if (rc == 0)
        rc = make_buffers(w, options->n_threads, err);
    crew_options.n_threads = w->n_threads;
    if (rc == 0) {
        is_begun = true;
        rc = create_files(w, err);
    }
    if (rc == 0)
        rc = crew_run(&job, &crew_options, err);
    if (rc == 0)
        rc = write_texts(w, err);
    if (rc == 0)
        rc = rename_all(w, err);
    for (size_t f = 0; f < w->n_outputs; f++)
        plat_close(w->outputs[f].fd);
    if (rc != 0 && is_begun)
        remove_all(w);
    plat_dir_close(&w->dir);
    for (unsigned i = 0; w->buffers != NULL && i < w->n_threads; i++)
        mem_free(w->buffers[i]);
    mem_free(w->buffers);
    mem_free(w->outputs);
    mem_free(w);
    return rc;
}
