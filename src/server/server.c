/* The HTTP daemon and its loop. */
#include "server/server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/plat_socket.h"
#include "server/http_internal.h"

#define PING_NS 5000000000u
#define TICK_MS 100
#define PEEKS_PER_TICK 64
#define BODY_NS 120000000000u /* maximum time for a body to arrive */
#define FLUSH_NS 2000000000u  /* at shutdown, for the last bytes to be sent */
#define CALL_TEXTS_BYTES ((size_t)32 << 20)
#define CALL_TEXTS_CALLS 4096
#define N_CONNECTIONS 2048 /* default maximum */
#define HEADER_BYTES (32u << 10)
#define CONNECTION_BYTES (HEADER_BYTES + (4u << 10)) /* the library's memory and ours, for each */
#define UNREAD_BYTES (32 << 10) /* maximum unread bytes behind a request */
/* Bounds of the unsent bytes above which a stream waits for its client. */
#define UNSENT_MIN (8u << 10)
#define UNSENT_MAX (1u << 20)

/* ---- waking --------------------------------------------------------------------------------- */

static void wake(void *ctx)
{
    struct server *s = ctx;
    const char one = 1;
    const ssize_t n = write(s->wake[1], &one, 1); /* a full pipe wakes it as well */
    (void)n;
}

void server_stop(struct server *s)
{
    const int kept = errno; /* this may run in a signal handler */
    s->n_stops++;
    wake(s);
    errno = kept;
}

void server_hang_up(struct server *s)
{
    const int kept = errno;
    s->n_hang_ups++;
    wake(s);
    errno = kept;
}

static void drain(struct server *s)
{
    char bytes[64];
    while (read(s->wake[0], bytes, sizeof bytes) > 0)
        ;
}

/* ---- connections ---------------------------------------------------------------------------- */

static void client_changed(void *ctx, struct MHD_Connection *connection, void **socket_context,
                           enum MHD_ConnectionNotificationCode code)
{
    struct server *s = ctx;
    struct client *c = *socket_context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        c = mem_new(1, sizeof *c, "a connection", NULL);
        *socket_context = c;
        if (c == NULL)
            return; /* still served, but without an idle limit */
        c->fd = info != NULL ? info->connect_fd : -1;
        c->since_ns = plat_now_ns();
        c->after = s->clients;
        if (s->clients != NULL)
            s->clients->before = c;
        s->clients = c;
        s->n_clients++;
    } else if (c != NULL) {
        *(c->before != NULL ? &c->before->after : &s->clients) = c->after;
        if (c->after != NULL)
            c->after->before = c->before;
        if (c->request != NULL)
            c->request->client = NULL;
        s->n_clients--;
        mem_free(c);
        *socket_context = NULL;
    }
}

/* Returns whether the peer has closed; while a connection waits for its job nobody else checks.
 * Unread bytes, as of a next request, may precede the end. */
static bool is_closed(int fd)
{
#ifdef POLLRDHUP
    struct pollfd one = {.fd = fd, .events = POLLRDHUP};
    return poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
#else
    char byte; /* if such bytes hide the end, sending the response detects it */
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
#endif
}

/* Leaves bytes behind a waiting request to the library, which reads them afterwards. Too many would
 * fill the connection, and its end would never arrive: then they are discarded, and the connection
 * is closed after the response. */
static void drop_unread(struct client *c)
{
    char bytes[16384];
    int n_unread = 0;
    if (!c->is_dropping && (ioctl(c->fd, FIONREAD, &n_unread) != 0 || n_unread < UNREAD_BYTES))
        return;
    c->is_dropping = true;
    for (int i = 0; i < 64 && recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0; i++)
        ;
}

/* Returns whether the peer closed before its request was complete; the library misses an end that
 * arrives with the last bytes. Two checks must agree: between them the library turns what it has
 * read into requests. */
static bool is_left(struct client *c)
{
    int n_unread = 0;
    const bool was_closed = c->was_closed;
    c->was_closed = is_closed(c->fd) && ioctl(c->fd, FIONREAD, &n_unread) == 0 && n_unread == 0;
    return was_closed && c->was_closed;
}

static void tick_request(struct server *s, struct client *c, uint64_t now_ns, bool peeks)
{
    struct request *r = c->request;
    const bool is_reading = !r->is_read && !r->is_suspended;
    if ((!r->is_read && now_ns - r->began_ns > BODY_NS) || (is_reading && peeks && is_left(c)))
        (void)shutdown(c->fd, SHUT_RDWR);
    if (!r->is_suspended)
        return;
    if (peeks)
        drop_unread(c);
    if (peeks && is_closed(c->fd)) {
        http_give_up(r);
    } else if (r->job != NULL && r->call.is_stream && !r->is_over &&
               now_ns - r->written_ns >= PING_NS) {
        r->written_ns = now_ns;
        if (text_buffer_add(&r->out, r->call.api->ping, strlen(r->call.api->ping)))
            http_resume(r);
    }
    (void)s;
}

/* Sends pings, and closes connections of clients that disconnected or are too slow. */
static void tick(struct server *s)
{
    const uint64_t now_ns = plat_now_ns();
    const uint64_t idle_ns = (uint64_t)s->options.idle_s * 1000000000u;
    uint64_t i = 0;
    struct client *next;
    for (struct client *c = s->clients; c != NULL; c = next, i++) {
        next = c->after;
        const uint64_t turn = i / PEEKS_PER_TICK;
        const uint64_t n_turns = s->n_clients / PEEKS_PER_TICK + 1;
        const bool peeks = turn == s->peek_turn % n_turns;
        if (c->request != NULL)
            tick_request(s, c, now_ns, peeks);
        else if (now_ns - c->since_ns > idle_ns || (peeks && is_left(c)))
            (void)shutdown(c->fd, SHUT_RDWR);
    }
    s->peek_turn++;
}

/* ---- the loop ------------------------------------------------------------------------------- */

static int wait_ms(struct server *s)
{
    MHD_UNSIGNED_LONG_LONG max = 0;
    unsigned own = s->n_clients > 0 || s->n_stops > 0 ? TICK_MS : 1000;
    const uint64_t now_ns = s->look_ns > 0 ? plat_now_ns() : 0;
    if (s->look_ns > 0)
        own = s->look_ns > now_ns ? (unsigned)((s->look_ns - now_ns + 999999) / 1000000) : 0;
    if (MHD_get_timeout(s->daemon, &max) == MHD_YES && max < own)
        return (int)max;
    return (int)own;
}

/* Waits for a connection, the runner or a signal. */
static int wait_epoll(struct server *s)
{
    struct pollfd fds[2] = {{.fd = s->epoll_fd, .events = POLLIN},
                            {.fd = s->wake[0], .events = POLLIN}};
    return poll(fds, 2, wait_ms(s));
}

static int wait_select(struct server *s)
{
    fd_set reads, writes, faults;
    MHD_socket max = s->wake[0];
    const int ms = wait_ms(s);
    struct timeval time = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_ZERO(&faults);
    FD_SET(s->wake[0], &reads);
    if (MHD_get_fdset(s->daemon, &reads, &writes, &faults, &max) != MHD_YES)
        return -1;
    return select(max + 1, &reads, &writes, &faults, &time);
}

static void take_news(struct server *s)
{
    for (struct prepare_task *task; (task = preparers_next_done(s->preparers)) != NULL;)
        http_prepared(task);
    for (struct job *job; (job = jobs_next_ready(s->jobs, &s->look_ns)) != NULL;) {
        struct request *r = job_owner(job);
        if (r != NULL)
            http_take_events(r);
        jobs_release(s->jobs, job);
    }
}

/* Starts the shutdown, and ends at once what would not end by itself. */
static void see_stops(struct server *s, int *n_seen)
{
    const uint64_t now_ns = plat_now_ns();
    if (s->n_stops > 0 && *n_seen == 0) {
        const MHD_socket fd = MHD_quiesce_daemon(s->daemon);
        if (fd != MHD_INVALID_SOCKET)
            (void)close(fd);
        s->listen_fd = -1;
        s->stop_ns = now_ns;
        preparers_stop(s->preparers, false);
        jobs_stop(s->jobs, false);
        *n_seen = 1;
    }
    const bool is_late = now_ns - s->stop_ns > (uint64_t)s->options.grace_s * 1000000000u;
    if (*n_seen == 1 && (s->n_stops > 1 || is_late)) {
        preparers_stop(s->preparers, true);
        jobs_stop(s->jobs, true);
        *n_seen = 2;
    }
}

static bool is_idle(struct server *s)
{
    struct preparers_stats reading;
    preparers_stats(s->preparers, &reading);
    return reading.n_queued + reading.n_running == 0 && jobs_is_idle(s->jobs);
}

/* Handles several hang-ups as one. */
static void see_hang_ups(struct server *s, int *n_seen)
{
    const int n = s->n_hang_ups;
    if (n == *n_seen)
        return;
    *n_seen = n;
    if (s->options.hung_up != NULL)
        s->options.hung_up(s->options.ctx);
}

int server_run(struct server *s, struct fm_error *err)
{
    int n_seen = 0, n_hang_ups = 0;
    struct fm_error lost = {0};
    bool is_good = true;
    uint64_t ticked_ns = 0, idle_ns = 0;
    for (;;) {
        const int n = s->epoll_fd >= 0 ? wait_epoll(s) : wait_select(s);
        if (n < 0 && errno != EINTR)
            return err_set(err, FM_ERR_IO, "cannot wait for connections: %s", strerror(errno));
        drain(s);
        take_news(s);
        if (plat_now_ns() - ticked_ns >= TICK_MS * 1000000u) {
            ticked_ns = plat_now_ns();
            /* Reads arrived bytes first: this thread may not have run for long, and a connection
             * with a waiting request is not idle. */
            is_good = MHD_run(s->daemon) == MHD_YES;
            tick(s);
        }
        if (!is_good || MHD_run(s->daemon) != MHD_YES)
            return err_set(err, FM_ERR_IO, "the HTTP library failed");
        see_hang_ups(s, &n_hang_ups);
        if (lost.code == 0 && jobs_lost(s->jobs, &lost))
            s->n_stops = n_seen + 2; /* at once: no answer can go on */
        see_stops(s, &n_seen);
        if (n_seen == 0 || !is_idle(s))
            continue;
        idle_ns = idle_ns > 0 ? idle_ns : plat_now_ns();
        if (s->n_requests == 0 || plat_now_ns() - idle_ns > FLUSH_NS)
            return lost.code != 0 ? err_set(err, lost.code, "%s", lost.text) : 0;
    }
}

/* ---- open and close ------------------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr_storage *at)
{
    if (at->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)at)->sin6_addr;
    return at->ss_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127));
}

/* Collects the names by which others reach this machine: its host name, with its domain, and its
 * mDNS name. */
static void name_machine(struct server *s)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_CANONNAME};
    struct addrinfo *info = NULL;
    char name[NI_MAXHOST] = "", local[NI_MAXHOST + 8];
    if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0')
        return;
    access_add_host(s->machine, sizeof s->machine, name);
    if (getaddrinfo(name, NULL, &hints, &info) == 0) {
        if (info->ai_canonname != NULL)
            access_add_host(s->machine, sizeof s->machine, info->ai_canonname);
        freeaddrinfo(info);
    }
    name[strcspn(name, ".")] = '\0';
    access_add_host(s->machine, sizeof s->machine, name);
    (void)snprintf(local, sizeof local, "%s.local", name);
    access_add_host(s->machine, sizeof s->machine, local);
}

static int listen_on(struct server *s, const struct addrinfo *info, struct fm_error *err)
{
    const struct server_options *o = &s->options;
    const int yes = 1;
    s->listen_fd = plat_socket(info->ai_family);
    if (s->listen_fd < 0)
        return err_set(err, FM_ERR_IO, "cannot create a socket: %s", strerror(errno));
    (void)setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes); /* for restarts */
    if (bind(s->listen_fd, info->ai_addr, info->ai_addrlen) != 0 || listen(s->listen_fd, 511) != 0)
        return err_set(err, FM_ERR_IO, "cannot listen on %s:%u: %s", o->host, o->port,
                       strerror(errno));
    struct sockaddr_storage bound = {0};
    socklen_t bytes = sizeof bound;
    char port[NI_MAXSERV];
    s->port = o->port;
    if (getsockname(s->listen_fd, (struct sockaddr *)&bound, &bytes) == 0 &&
        getnameinfo((struct sockaddr *)&bound, bytes, NULL, 0, port, sizeof port,
                    NI_NUMERICSERV) == 0)
        s->port = (unsigned)strtoul(port, NULL, 10);
    s->rules = (struct access_rules){.is_local = is_loopback(&bound), .host = o->host,
                                     .hosts = o->hosts, .machine = s->machine, .cors = o->cors};
    if (!s->rules.is_local)
        name_machine(s);
    return 0;
}

static int open_socket(struct server *s, struct fm_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *info = NULL;
    char port[16];
    (void)snprintf(port, sizeof port, "%u", s->options.port);
    const int rc = getaddrinfo(s->options.host, port, &hints, &info);
    if (rc != 0)
        return err_set(err, FM_ERR_ARG, "'%s' is not an address to listen on: %s", s->options.host,
                       gai_strerror(rc));
    const int result = listen_on(s, info, err);
    freeaddrinfo(info);
    return result;
}

static void log_nothing(void *ctx, const char *fmt, va_list list)
{
    (void)ctx; /* the library reports bad requests, which have their own log line */
    (void)fmt;
    (void)list;
}

static int open_daemon(struct server *s, struct fm_error *err)
{
    const bool has_epoll = MHD_is_feature_supported(MHD_FEATURE_EPOLL) == MHD_YES;
    const unsigned flags = MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                           (has_epoll ? MHD_USE_EPOLL : 0);
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, http_handle, s, MHD_OPTION_EXTERNAL_LOGGER, log_nothing, s,
        MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        s->options.n_connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES,
        MHD_OPTION_CONNECTION_TIMEOUT, 120u, MHD_OPTION_NOTIFY_COMPLETED, http_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, client_changed, s, MHD_OPTION_END);
    if (s->daemon == NULL)
        return err_set(err, FM_ERR_IO, "the HTTP library cannot start");
    const union MHD_DaemonInfo *info =
        has_epoll ? MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    s->epoll_fd = info != NULL ? info->epoll_fd : -1;
    return 0;
}

/* Divides the memory for requests: connections, texts of tool calls, and the rest. */
static void divide_memory(struct server *s, size_t *texts_bytes)
{
    struct server_options *o = &s->options;
    const uint64_t max = o->request_memory / 2 / CONNECTION_BYTES;
    if (o->n_connections == 0)
        o->n_connections = max < N_CONNECTIONS ? (unsigned)max : N_CONNECTIONS;
    if (o->n_connections > max) {
        log_warn("server", "at most %llu connections instead of %u: half of the %llu bytes of "
                 "memory for requests hold no more (--request-memory)", (unsigned long long)max,
                 o->n_connections, (unsigned long long)o->request_memory);
        o->n_connections = (unsigned)max;
    }
    const uint64_t eighth = o->request_memory / 8;
    *texts_bytes = eighth < CALL_TEXTS_BYTES ? (size_t)eighth : CALL_TEXTS_BYTES;
    s->account.limit = o->request_memory - *texts_bytes -
                       (uint64_t)o->n_connections * CONNECTION_BYTES;
}

/* Returns how many unsent bytes a stream may have. Events, the text made of them and the growth of
 * its buffer take about six times as much; with that, the reserve for answers, a sixteenth of the
 * account, is enough for all streams unless there are so many that each gets the minimum. */
static uint64_t unsent_max(const struct server *s)
{
    const uint64_t share = s->account.limit / 16 / 6 / s->options.n_parallel;
    if (share < UNSENT_MIN)
        return UNSENT_MIN;
    return share < UNSENT_MAX ? share : UNSENT_MAX;
}

static int open_jobs(struct server *s, struct fm_error *err)
{
    const struct server_options *o = &s->options;
    struct fm_stats stats = {.size = sizeof stats};
    size_t texts_bytes;
    fm_model_stats(o->model, &stats); /* before the thread that uses the model starts */
    divide_memory(s, &texts_bytes);
    int rc = call_texts_open(texts_bytes, CALL_TEXTS_CALLS, &s->texts, err);
    const unsigned n_wait = o->n_queue + o->n_parallel;
    const struct preparers_options reading = {.account = &s->account,
                                              .n_queue = n_wait > 16 ? n_wait : 16,
                                              .notify = wake, .ctx = s};
    if (rc == 0)
        rc = preparers_open(&reading, &s->preparers, err);
    if (rc != 0)
        return rc;
    s->context = (struct api_context){.model = o->model, .texts = s->texts,
                                      .n_context = stats.n_context, .n_answer = o->n_answer,
                                      .limit_ns = (uint64_t)o->request_s * 1000000000u,
                                      .began_s = s->began_s};
    (void)snprintf(s->context.model_name, sizeof s->context.model_name, "%s", o->model_name);
    const struct jobs_options how = {.model = o->model, .snapshots = o->snapshots,
                                     .texts = s->texts, .account = &s->account,
                                     .preparers = s->preparers, .n_parallel = o->n_parallel,
                                     .n_sessions = o->n_sessions, .n_queue = o->n_queue,
                                     .stall_ns = (uint64_t)o->stall_ms * 1000000u,
                                     .unsent_max = unsent_max(s),
                                     .notify = wake, .ctx = s};
    return jobs_open(&how, &s->jobs, err);
}

int server_open(const struct server_options *options, struct server **out, struct fm_error *err)
{
    *out = NULL;
    struct server *s = mem_new(1, sizeof *s, "the server", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    s->options = *options;
    s->listen_fd = s->epoll_fd = s->wake[0] = s->wake[1] = -1;
    json_set_alloc_funcs(mem_new_counted, mem_free); /* lets leases count JSON */
    plat_memory_return_large();
    s->begin_ns = plat_now_ns();
    s->began_s = plat_wall_ns() / 1000000000;
    int rc = plat_pipe(s->wake) == 0 ? 0 : err_set(err, FM_ERR_IO, "cannot create a pipe: %s",
                                                   strerror(errno));
    if (rc == 0)
        rc = open_socket(s, err);
    if (rc == 0)
        rc = open_jobs(s, err);
    if (rc == 0)
        rc = open_daemon(s, err);
    if (rc != 0) {
        server_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

unsigned server_port(const struct server *s)
{
    return s->port;
}

void server_counts(struct server *s, struct server_counts *counts)
{
    struct jobs_stats stats;
    jobs_stats(s->jobs, &stats);
    *counts = (struct server_counts){.model = stats.model, .passed_ns = stats.passed_ns};
}

bool server_is_exposed(const struct server *s)
{
    return !s->rules.is_local;
}

void server_set_keys(struct server *s, struct access_keys *keys)
{
    access_keys_clear(&s->keys);
    s->keys = *keys;
    *keys = (struct access_keys){0};
}

void server_close(struct server *s)
{
    if (s == NULL)
        return;
    if (s->daemon != NULL) {
        for (struct client *c = s->clients; c != NULL; c = c->after)
            if (c->request != NULL)
                http_give_up(c->request);
        MHD_stop_daemon(s->daemon);
    }
    jobs_close(s->jobs);
    preparers_close(s->preparers);
    call_texts_close(s->texts);
    access_keys_clear(&s->keys);
    plat_close(s->daemon == NULL ? s->listen_fd : -1);
    plat_close(s->wake[0]);
    plat_close(s->wake[1]);
    mem_free(s);
}
