/* Fuzzes the messages of the ring: what another rank does with anything that reaches it, and the
 * first rank with anything that comes back. A model on two ranks, which are threads, is opened
 * once. Then both have a transport that hands out the input instead.
 *
 * The first byte of an input says who receives: 0 to 127 the other rank, else the first. Messages
 * follow, each as its length in two bytes, little-endian, and its bytes. One that begins like a
 * message and is too short for the counts in its head is filled up with zeros, because no mutation
 * would guess them: rows take thousands of bytes.
 *
 * cluster_serve is replaced at link time: the rank's thread hands its cluster over and waits. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster/cluster_internal.h"
#include "flashmoe.h"
#include "session/session_internal.h"

#define MODEL FLASHMOE_TEST_DIR "/golden/qwen3_next"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int __wrap_cluster_serve(struct cluster *c, struct fm_error *err);
int __real_cluster_serve(struct cluster *c, struct fm_error *err);

static struct {
    pthread_mutex_t lock;
    pthread_cond_t has_come;
    struct cluster *other;
    struct fm_model *model;
    struct fm_session *session;
    const uint8_t *data;
    size_t size, at;
    bool is_over;           /* all messages were taken */
    int own_folder, folder; /* where parts of snapshots go while an input runs */
} fuzz = {.lock = PTHREAD_MUTEX_INITIALIZER, .has_come = PTHREAD_COND_INITIALIZER};

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

int __wrap_cluster_serve(struct cluster *c, struct fm_error *err)
{
    (void)err;
    pthread_mutex_lock(&fuzz.lock);
    fuzz.other = c;
    (void)pthread_cond_signal(&fuzz.has_come);
    pthread_mutex_unlock(&fuzz.lock);
    for (;;)
        (void)pause(); /* the process ends with it */
}

/* ---- the transport: messages come from the input and go nowhere */

static int take_send(struct transport *t, uint32_t to, enum channel channel, const void *bytes,
                     uint64_t n, struct transport_send *send, struct fm_error *err)
{
    volatile unsigned sum = 0;
    (void)t, (void)to, (void)channel, (void)err;
    for (uint64_t i = 0; i < n; i++) /* a sanitizer sees what must not be read */
        sum = sum + ((const unsigned char *)bytes)[i];
    (void)sum;
    *send = (struct transport_send){0};
    return 0;
}

static bool was_sent(struct transport *t, struct transport_send *send)
{
    (void)t, (void)send;
    return true;
}

/* Fills a message up to the size that its head demands. Returns the size. */
static uint64_t fill_up(char *bytes, uint64_t n, uint64_t max)
{
    struct wire_head h;
    if (n < sizeof h)
        return n;
    memcpy(&h, bytes, sizeof h);
    const uint64_t row = fuzz.other->limits.row_floats * sizeof(float);
    uint64_t all = sizeof h + (uint64_t)h.n_ops * sizeof(struct wire_op) +
                   (uint64_t)h.n_segments * sizeof(struct wire_segment) +
                   (uint64_t)h.n_tokens * sizeof(int32_t) + h.question_bytes;
    all = ((all + 7) / 8 * 8 + h.result_bytes + 63) / 64 * 64 + h.n_rows * row;
    if (h.magic != WIRE_MAGIC || all <= n || all > max)
        return n;
    memset(bytes + n, 0, all - n);
    return all;
}

/* Names of files in a question stay in the folder for them. */
static void tame_paths(char *bytes, uint64_t n)
{
    struct wire_head h;
    struct question q;
    if (n < sizeof h)
        return;
    memcpy(&h, bytes, sizeof h);
    const uint64_t at = sizeof h + (uint64_t)h.n_ops * sizeof(struct wire_op) +
                        (uint64_t)h.n_segments * sizeof(struct wire_segment) +
                        (uint64_t)h.n_tokens * sizeof(int32_t);
    if (at > n || n - at < sizeof q)
        return;
    memcpy(&q, bytes + at, sizeof q);
    if (q.kind < ASK_SAVE)
        return;
    for (uint64_t i = at + sizeof q; i < n; i++)
        bytes[i] = (char)(bytes[i] == '/' ? '_' : bytes[i]);
}

static int give(struct transport *t, uint32_t from, enum channel channel, void *bytes,
                uint64_t max, uint64_t *n, struct fm_error *err)
{
    (void)t, (void)from;
    *n = 0;
    if (channel != CHANNEL_RING)
        return 0;
    if (fuzz.size - fuzz.at < 2) {
        fuzz.is_over = true;
        return err_set(err, FM_ERR_IO, "the input ends");
    }
    uint64_t length = fuzz.data[fuzz.at] | (uint64_t)fuzz.data[fuzz.at + 1] << 8;
    fuzz.at += 2;
    length = length < fuzz.size - fuzz.at ? length : fuzz.size - fuzz.at;
    length = length < max ? length : max;
    if (length > 0)
        memcpy(bytes, fuzz.data + fuzz.at, length);
    fuzz.at += length;
    *n = fill_up(bytes, length, max);
    tame_paths(bytes, *n);
    return 0;
}

static void do_nothing(struct transport *t)
{
    (void)t;
}

static const struct transport_ops ops = {.name = "fuzz", .send = take_send, .is_sent = was_sent,
                                         .receive = give, .abandon = do_nothing,
                                         .close = do_nothing};
static struct transport ends[2] = {{&ops, 0, 2}, {&ops, 1, 2}};

/* ---- the ranks */

static char folder[] = "/tmp/fuzz-wire-XXXXXX";

static void remove_folder(void)
{
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    (void)!system(command);
}

static void open_ranks(void)
{
    static const unsigned layers[] = {2, 2};
    struct fm_cluster_options joining = {.size = sizeof joining, .n_threads = 2,
                                         .timeout_s = 3600};
    struct fm_model_options options = {.size = sizeof options};
    struct fm_cluster *cluster;
    struct fm_error err = {0};
    if (fm_cluster_join(&joining, &cluster, &err) != 0)
        require(false, err.text);
    options.cluster = cluster;
    options.layers_of_ranks = layers;
    options.n_layers_of_ranks = 2;
    options.n_sessions = 2;
    options.n_context = 256;
    options.n_marks = 2;
    options.n_threads = 1;
    options.prefill_chunk = 16;
    options.memory_bytes = 128u << 20;
    options.elastic = FM_OFF;
    if (fm_model_open(MODEL, &options, &fuzz.model, &err) != 0)
        require(false, err.text);
    pthread_mutex_lock(&fuzz.lock);
    while (fuzz.other == NULL)
        (void)pthread_cond_wait(&fuzz.has_come, &fuzz.lock);
    pthread_mutex_unlock(&fuzz.lock);
    fuzz.other->t = &ends[1];
    fuzz.model->cluster->t = &ends[0];
    require(mkdtemp(folder) != NULL, "a folder can be made");
    (void)atexit(remove_folder);
    fuzz.own_folder = open(".", O_RDONLY | O_DIRECTORY);
    fuzz.folder = open(folder, O_RDONLY | O_DIRECTORY);
    require(fuzz.own_folder >= 0 && fuzz.folder >= 0, "folders can be opened");
}

/* The other rank takes all messages. A refusal has a reason; the rank then ends, and the next input
 * finds it without sequences. */
static void feed_other(void)
{
    struct cluster *c = fuzz.other;
    while (!fuzz.is_over) {
        struct fm_error err = {0};
        const int rc = __real_cluster_serve(c, &err);
        require(rc == 0 || err.text[0] != '\0', "an error has a text");
        c->is_lost = false;
    }
    for (uint32_t i = 0; i < c->limits.max_segments; i++)
        if (c->member.sequences[i].sequence != NULL)
            (void)engine_reach(c->engine, c->member.sequences[i].sequence,
                               c->member.sequences[i].sequence->position = 0, NULL);
}

/* The first rank computes three tokens with whatever comes back. Its numbers of messages begin with
 * 1 again, so that inputs can have them. */
static void feed_first(void)
{
    static const int32_t ids[] = {5, 6, 7};
    struct cluster *c = fuzz.model->cluster;
    struct fm_error err = {0};
    c->number = 0;
    if (fuzz.session == NULL && fm_session_open(fuzz.model, &fuzz.session, &err) != 0)
        fuzz.session = NULL;
    if (fuzz.session != NULL) {
        const int rc = fm_session_eval(fuzz.session, ids, 3, &err);
        require(rc == 0 || err.text[0] != '\0', "an error has a text");
        require(rc != 0 || fm_session_position(fuzz.session) == 3, "three tokens were computed");
        fm_session_close(fuzz.session);
        fuzz.session = NULL;
    }
    c->is_lost = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (fuzz.model == NULL)
        open_ranks();
    if (size == 0)
        return 0;
    fuzz.data = data;
    fuzz.size = size;
    fuzz.at = 1;
    fuzz.is_over = false;
    require(fchdir(fuzz.folder) == 0, "the folder is there");
    if (data[0] < 128)
        feed_other();
    else
        feed_first();
    require(fchdir(fuzz.own_folder) == 0, "the folder is there");
    return 0;
}
