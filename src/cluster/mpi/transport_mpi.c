/* Messages over Open MPI, in a module of its own: the program loads it when mpirun has started it,
 * so that it needs no MPI otherwise. One thread at a time calls MPI.
 *
 * Errors of MPI are returned where the library lets them be: some of its components end the process
 * instead when a connection is lost. */
#include <mpi.h>
#include <stdio.h>
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
    const int rc = MPI_Isend(bytes, (int)n, MPI_BYTE, (int)to, (int)channel, own(t)->comm,
                             &request);
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
    if (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        is_done = 1; /* the rank is gone: whoever waits for it will notice */
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

static int mpi_receive(struct transport *t, uint32_t from, enum channel channel, void *bytes,
                       uint64_t max, uint64_t *n, struct fm_error *err)
{
    struct receipt *r = &own(t)->receipts[from][channel];
    int is_done = 0;
    *n = 0;
    int rc = r->is_busy ? 0 : begin(own(t), from, channel, bytes, max, err);
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
