/* Messages over Open MPI, in a module of its own: the program loads it when mpirun has started it,
 * so that it needs no MPI otherwise. One thread at a time calls MPI: the one that drives the rank,
 * or the one that gives its signs of life.
 *
 * Errors of MPI are returned where the library lets them be: some of its components end the process
 * instead when a connection is lost. */
#include <dlfcn.h>
#include <link.h>
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/transport.h"

#pragma GCC visibility push(default)
int transport_mpi_open(struct transport **out, struct fm_error *err);
const char *transport_mpi_version(void);
#pragma GCC visibility pop

/* A message that is being received. */
struct receipt {
    bool is_busy;
    MPI_Request request;
    uint64_t n_bytes;
};

struct mpi_transport {
    struct transport t;
    MPI_Comm comm;
    struct receipt receipts[CLUSTER_RANKS][N_CHANNELS];
};

/* A process is one rank. */
static struct mpi_transport the_transport;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct mpi_transport *own(struct transport *t)
{
    return (struct mpi_transport *)t;
}

static int failed(const char *what, uint32_t rank, int code, struct fm_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    (void)MPI_Error_string(code, text, &n);
    if (err != NULL) {
        err->code = FM_ERR_IO;
        (void)snprintf(err->text, sizeof err->text, "MPI cannot %s rank %u: %s", what, rank, text);
    }
    return FM_ERR_IO;
}

static int mpi_send(struct transport *t, uint32_t to, enum channel channel, const void *bytes,
                    uint64_t n, struct transport_send *send, struct fm_error *err)
{
    MPI_Request request;
    if (n > INT32_MAX)
        return failed("send so much to", to, MPI_ERR_COUNT, err);
    pthread_mutex_lock(&lock);
    const int rc = MPI_Isend(bytes, (int)n, MPI_BYTE, (int)to, (int)channel, own(t)->comm,
                             &request);
    pthread_mutex_unlock(&lock);
    *send = (struct transport_send){.is_busy = rc == MPI_SUCCESS, .bytes = bytes, .n_bytes = n};
    if (rc != MPI_SUCCESS)
        return failed("send to", to, rc, err);
    memcpy(&send->request, &request, sizeof request);
    return 0;
}

static bool mpi_is_sent(struct transport *t, struct transport_send *send)
{
    MPI_Request request;
    int is_done = 0;
    (void)t;
    if (!send->is_busy)
        return true;
    memcpy(&request, &send->request, sizeof request);
    pthread_mutex_lock(&lock);
    if (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        is_done = 1; /* the rank is gone: whoever waits for it will notice */
    pthread_mutex_unlock(&lock);
    memcpy(&send->request, &request, sizeof request);
    send->is_busy = !is_done;
    return is_done;
}

/* Begins to receive a message if there is one. */
static int begin(struct mpi_transport *m, uint32_t from, enum channel channel, void *bytes,
                 uint64_t max, struct fm_error *err)
{
    struct receipt *r = &m->receipts[from][channel];
    MPI_Message message;
    MPI_Status status;
    int is_there = 0, n = 0;
    int rc = MPI_Improbe((int)from, (int)channel, m->comm, &is_there, &message, &status);
    if (rc != MPI_SUCCESS)
        return failed("receive from", from, rc, err);
    if (!is_there)
        return 0;
    (void)MPI_Get_count(&status, MPI_BYTE, &n);
    if (n < 0 || (uint64_t)n > max) {
        if (err != NULL) {
            err->code = FM_ERR_FORMAT;
            (void)snprintf(err->text, sizeof err->text,
                           "rank %u has sent a message of %d bytes, at most %llu are expected",
                           from, n, (unsigned long long)max);
        }
        return FM_ERR_FORMAT;
    }
    rc = MPI_Imrecv(bytes, n, MPI_BYTE, &message, &r->request);
    if (rc != MPI_SUCCESS)
        return failed("receive from", from, rc, err);
    r->is_busy = true;
    r->n_bytes = (uint64_t)n;
    return 0;
}

static int receive(struct mpi_transport *m, uint32_t from, enum channel channel, void *bytes,
                   uint64_t max, uint64_t *n, struct fm_error *err)
{
    struct receipt *r = &m->receipts[from][channel];
    int is_done = 0;
    *n = 0;
    int rc = r->is_busy ? 0 : begin(m, from, channel, bytes, max, err);
    if (rc != 0 || !r->is_busy)
        return rc;
    rc = MPI_Test(&r->request, &is_done, MPI_STATUS_IGNORE);
    if (rc != MPI_SUCCESS)
        return failed("receive from", from, rc, err);
    if (is_done) {
        r->is_busy = false;
        *n = r->n_bytes;
    }
    return 0;
}

static int mpi_receive(struct transport *t, uint32_t from, enum channel channel, void *bytes,
                       uint64_t max, uint64_t *n, struct fm_error *err)
{
    pthread_mutex_lock(&lock);
    const int rc = receive(own(t), from, channel, bytes, max, n, err);
    pthread_mutex_unlock(&lock);
    return rc;
}

static void mpi_abandon(struct transport *t)
{
    (void)MPI_Abort(own(t)->comm, 1);
}

static void mpi_close(struct transport *t)
{
    (void)t;
    (void)MPI_Finalize();
}

static const struct transport_ops ops_mpi = {
    .name = "Open MPI", .send = mpi_send, .is_sent = mpi_is_sent, .receive = mpi_receive,
    .abandon = mpi_abandon, .close = mpi_close};

const char *transport_mpi_version(void)
{
    return FLASHMOE_VERSION;
}

/* ---- what Open MPI has to say */

typedef int show_fn(const char *file, const char *topic, int with_header, ...);
typedef char *show_text_fn(const char *file, const char *topic, int with_header, va_list words);

static show_text_fn *show_text;

/* Prints a message of Open MPI as it is. Open MPI's own function sends it to mpirun and waits until
 * that has taken it. But mpirun sleeps while it ends a job: a rank that sees that another one is
 * gone, and wants to say so, would be killed before it can. */
static int show_here(const char *file, const char *topic, int with_header, ...)
{
    va_list words;
    if (strcmp(topic, "mpi-abort") == 0)
        return 0; /* the rank has said why it ends the job */
    va_start(words, with_header);
    char *text = show_text(file, topic, with_header, words);
    va_end(words);
    if (text != NULL)
        (void)fputs(text, stderr);
    free(text);
    return 0;
}

/* Open MPI 4 and 5 have a variable for it. Where it is not there, or not a variable, all stays as
 * it is. */
static void show_messages_here(void)
{
    void *const found[] = {dlsym(RTLD_DEFAULT, "opal_show_help"),
                           dlsym(RTLD_DEFAULT, "opal_show_help_vstring")};
    show_fn *const show = show_here;
    Dl_info info;
    ElfW(Sym) *symbol = NULL;
    if (found[0] == NULL || found[1] == NULL ||
        dladdr1(found[0], &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL ||
        ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || symbol->st_size != sizeof show)
        return;
    memcpy(&show_text, &found[1], sizeof show_text);
    memcpy(found[0], &show, sizeof show);
}

static int refuse(struct fm_error *err, int code, const char *text)
{
    if (err != NULL) {
        err->code = code;
        (void)snprintf(err->text, sizeof err->text, "%s", text);
    }
    return code;
}

int transport_mpi_open(struct transport **out, struct fm_error *err)
{
    struct mpi_transport *m = &the_transport;
    int given = 0, rank = 0, n = 0;
    _Static_assert(sizeof(MPI_Request) <= sizeof(((struct transport_send *)0)->request),
                   "a request of this MPI is larger");
    *out = NULL;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given) != MPI_SUCCESS ||
        given < MPI_THREAD_SERIALIZED)
        return refuse(err, FM_ERR_IO, "MPI cannot be started");
    show_messages_here();
    m->comm = MPI_COMM_WORLD;
    (void)MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    (void)MPI_Comm_rank(m->comm, &rank);
    (void)MPI_Comm_size(m->comm, &n);
    m->t = (struct transport){&ops_mpi, (uint32_t)rank, (uint32_t)n};
    if (n > CLUSTER_RANKS) {
        (void)MPI_Finalize();
        return refuse(err, FM_ERR_ARG, "mpirun has started more ranks than are supported (64)");
    }
    *out = &m->t;
    return 0;
}
