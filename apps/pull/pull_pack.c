#include "apps/pull/pull_pack.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "apps/pull/gguf_name.h"

struct feed {
    const struct pull_pack_options *options;
    const struct store_dir *dir;
    struct pull_list *list;
    bool (*goes_on)(void *ctx); /* of the packer, during a fetch */
    void *goes_on_ctx;
    /* What the main thread shows; covered by the lock. */
    pthread_mutex_t lock;
    uint64_t done_bytes, now_bytes, total_bytes;
    char name[PARTS_NAME_BYTES];
};

static bool is_weights(const char *name)
{
    const size_t n = strlen(name), n_suffix = strlen(".safetensors");
    return gguf_is_model(name) || (n > n_suffix && strcmp(name + n - n_suffix,
                                                          ".safetensors") == 0);
}

/* ---- for the packer --------------------------------------------------------------------- */

static int read_range(void *ctx, size_t file, uint64_t offset, size_t bytes, void *out,
                      struct fm_error *err)
{
    const struct feed *feed = ctx;
    return web_get_range(feed->options->pull->web, feed->list->urls[file], offset, bytes, out,
                         err);
}

/* Runs on the thread that fetches. */
static bool note_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct feed *feed = ctx;
    const struct web *web = feed->options->pull->web;
    (void)what, (void)total;
    (void)pthread_mutex_lock(&feed->lock);
    feed->now_bytes = done;
    (void)pthread_mutex_unlock(&feed->lock);
    return feed->goes_on(feed->goes_on_ctx) && !(web->is_stopped != NULL && web->is_stopped());
}

static int fetch_file(void *ctx, size_t file, bool (*goes_on)(void *), void *goes_on_ctx,
                      struct fm_error *err)
{
    struct feed *feed = ctx;
    struct part_item *item = &feed->list->items[file];
    const struct fetch_options options = {
        .web = feed->options->pull->web, .dir = &feed->dir->dir, .work = &feed->dir->work,
        .n_connections = feed->options->pull->n_connections, .progress = note_progress,
        .progress_ctx = feed};
    feed->goes_on = goes_on;
    feed->goes_on_ctx = goes_on_ctx;
    item->is_done = false; /* it may have been removed after it was packed */
    (void)pthread_mutex_lock(&feed->lock);
    (void)snprintf(feed->name, sizeof feed->name, "%s", item->name);
    (void)pthread_mutex_unlock(&feed->lock);
    const int rc = fetch_run(&options, item, &feed->list->urls[file], 1, err);
    (void)pthread_mutex_lock(&feed->lock);
    feed->done_bytes += rc == 0 ? item->bytes : 0;
    feed->now_bytes = 0;
    feed->name[0] = '\0';
    (void)pthread_mutex_unlock(&feed->lock);
    return rc;
}

/* Runs on the main thread. Bytes are those of the download, which is what takes time. */
static bool show(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct feed *feed = ctx;
    const struct pull_options *o = feed->options->pull;
    char text[PARTS_NAME_BYTES + 96];
    (void)pthread_mutex_lock(&feed->lock);
    (void)snprintf(text, sizeof text, "%.60s%s%.80s", what, feed->name[0] != '\0' ? ", " : "",
                   feed->name);
    const bool has_download = feed->total_bytes > 0;
    const uint64_t sum = feed->done_bytes + feed->now_bytes;
    const uint64_t all = feed->total_bytes;
    (void)pthread_mutex_unlock(&feed->lock);
    return o->progress == NULL ||
           o->progress(o->progress_ctx, text, has_download ? (sum < all ? sum : all) : done,
                       has_download ? all : total);
}

/* ---- the whole -------------------------------------------------------------------------- */

/* Downloads the small files: configuration, tokenizer, licence. */
static int fetch_small(const struct feed *feed, struct fm_error *err)
{
    const struct pull_options *o = feed->options->pull;
    const struct pull_list *list = feed->list;
    const struct fetch_options options = {.web = o->web, .dir = &feed->dir->dir,
                                          .work = &feed->dir->work,
                                          .n_connections = o->n_connections,
                                          .progress = o->progress, .progress_ctx = o->progress_ctx};
    struct part_item *items = mem_new(list->n, sizeof *items, "the files", err);
    char **urls = mem_new(list->n, sizeof *urls, "the files", err);
    size_t n = 0;
    int rc = items != NULL && urls != NULL ? 0 : FM_ERR_NOMEM;
    for (size_t i = 0; rc == 0 && i < list->n; i++)
        if (!is_weights(list->names[i]) && !list->items[i].is_done) {
            items[n] = list->items[i];
            urls[n++] = list->urls[i];
        }
    if (rc == 0 && n > 0)
        rc = fetch_run(&options, items, urls, n, err);
    mem_free(items);
    mem_free(urls);
    return rc;
}

/* Counts what an earlier process has downloaded and packed. Its stub is as long as the file and
 * longer; one of a header alone is shorter. */
static void count_done(struct feed *feed, size_t i)
{
    char path[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    const struct part_item *item = &feed->list->items[i];
    const int n = snprintf(path, sizeof path, "%s.partial/source/%s", feed->options->dst,
                           item->name);
    const bool is_packed = n > 0 && n < LIMIT_PATH_BYTES && plat_file_info(path, &info) &&
                           info.bytes > item->bytes;
    feed->total_bytes += item->bytes;
    feed->done_bytes += item->is_done || is_packed ? item->bytes : 0;
}

int pull_pack(const struct pull_pack_options *o, const struct store_dir *dir,
              struct pull_list *list, struct fm_pack_result *result, struct fm_error *err)
{
    struct feed feed = {.options = o, .dir = dir, .list = list};
    struct fm_pack_options options = *o->pack;
    const char **names = mem_new(list->n, sizeof *names, "the files", err);
    const char **digests = mem_new(list->n, sizeof *digests, "the files", err);
    uint64_t *bytes = mem_new(list->n, sizeof *bytes, "the files", err);
    (void)pthread_mutex_init(&feed.lock, NULL);
    int rc = names != NULL && digests != NULL && bytes != NULL ? 0 : FM_ERR_NOMEM;
    for (size_t i = 0; rc == 0 && i < list->n; i++) {
        const struct part_item *item = &list->items[i];
        names[i] = item->name;
        bytes[i] = item->bytes;
        digests[i] = item->sha256[0] != '\0'   ? item->sha256
                     : item->git_id[0] != '\0' ? item->git_id
                                               : item->version;
        if (is_weights(item->name))
            count_done(&feed, i);
    }
    const struct fm_pack_remote remote = {.n_files = list->n, .names = names, .bytes = bytes,
                                          .digests = digests, .read = read_range,
                                          .fetch = fetch_file, .ctx = &feed};
    options.remote = &remote;
    options.progress = show;
    options.progress_ctx = &feed;
    if (rc == 0)
        rc = fetch_small(&feed, err);
    if (rc == 0)
        rc = fm_pack(dir->path, o->dst, &options, result, err);
    (void)pthread_mutex_destroy(&feed.lock);
    mem_free(names);
    mem_free(digests);
    mem_free(bytes);
    return rc;
}
