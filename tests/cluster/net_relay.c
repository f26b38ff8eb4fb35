/* A network between namespaces, in place of a cable: bandwidth, latency, jitter and loss.
 *
 * net_relay RATE_MBIT DELAY_US JITTER_US LOSS_PERCENT BASE DEVICE NAMESPACE...
 *
 * Makes a TUN device in each network namespace (a path such as /run/netns/a, or "." for its own),
 * prints "ready", and carries IPv4 packets from device to device: host number i has the address
 * BASE with i + 1 as its last number (10.77.0.0 gives 10.77.0.1 for the first). Each host sends
 * with the given rate; each packet arrives DELAY_US later, and a random part of JITTER_US. Packets
 * of two hosts keep their order. A queue holds 50 ms. It needs root, and a kernel with TUN, but not
 * netem.
 *
 * Without loss, packets of up to 64 KB travel whole (segmentation offload), as between real network
 * cards; with it they have the size of the MTU, so that each is lost for itself. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MAX_HOSTS 16
#define MAX_BYTES (65536 + 64)
#define HEADER 10 /* struct virtio_net_hdr */
#define MAX_WAIT_NS 50000000ull
#define N_PACKETS 4096

struct packet {
    uint64_t due_ns;
    uint32_t to, bytes;
    struct packet *next;
    unsigned char data[MAX_BYTES];
};

static struct {
    double rate_bits_per_ns, loss;
    uint64_t delay_ns, jitter_ns;
    uint32_t base;
    unsigned n_hosts;
    int fds[MAX_HOSTS];
    uint64_t free_ns[MAX_HOSTS];                /* when a host has sent what it has so far */
    uint64_t arrival_ns[MAX_HOSTS][MAX_HOSTS];  /* of the last packet between two */
    struct packet *first, *unused;              /* sorted by due_ns */
} net;

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void end(const char *what)
{
    (void)fprintf(stderr, "net_relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Makes the device in the namespace of this process. */
static int make_device(const char *name)
{
    struct ifreq how = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    (void)snprintf(how.ifr_name, sizeof how.ifr_name, "%s", name);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &how) != 0)
        end("cannot make a TUN device");
    if (net.loss == 0 && ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0)
        end("cannot set the offload of a TUN device");
    return fd;
}

static void open_devices(char **namespaces, const char *name)
{
    const int own = open("/proc/self/ns/net", O_RDONLY);
    for (unsigned i = 0; i < net.n_hosts; i++) {
        const bool is_own = strcmp(namespaces[i], ".") == 0;
        const int fd = is_own ? own : open(namespaces[i], O_RDONLY);
        if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
            end(namespaces[i]);
        net.fds[i] = make_device(name);
    }
    if (setns(own, CLONE_NEWNET) != 0)
        end("cannot return to the own namespace");
}

static void insert(struct packet *packet)
{
    struct packet **at = &net.first;
    while (*at != NULL && (*at)->due_ns <= packet->due_ns)
        at = &(*at)->next;
    packet->next = *at;
    *at = packet;
}

/* Decides when a packet arrives. Returns false: never. */
static bool plan(struct packet *packet, uint32_t from, uint64_t now)
{
    uint32_t address;
    memcpy(&address, packet->data + HEADER + 16, sizeof address);
    packet->to = ntohl(address) - net.base - 1;
    if (packet->data[HEADER] >> 4 != 4 || packet->to >= net.n_hosts || packet->to == from)
        return false;
    uint64_t begin = net.free_ns[from] > now ? net.free_ns[from] : now;
    if (begin - now > MAX_WAIT_NS)
        return false;
    net.free_ns[from] = begin + (uint64_t)((packet->bytes - HEADER) * 8.0 / net.rate_bits_per_ns);
    if (net.loss > 0 && drand48() < net.loss)
        return false;
    packet->due_ns = net.free_ns[from] + net.delay_ns +
                     (uint64_t)((double)net.jitter_ns * drand48());
    uint64_t *last = &net.arrival_ns[from][packet->to];
    packet->due_ns = packet->due_ns > *last ? packet->due_ns : *last;
    *last = packet->due_ns;
    return true;
}

static void take_packets(uint32_t from)
{
    while (net.unused != NULL) {
        struct packet *packet = net.unused;
        const ssize_t n = read(net.fds[from], packet->data, MAX_BYTES);
        if (n < HEADER + 20)
            return;
        packet->bytes = (uint32_t)n;
        if (!plan(packet, from, now_ns()))
            continue;
        net.unused = packet->next;
        insert(packet);
    }
}

/* Hands over what is due. A device that is down refuses it: it is lost. */
static void give_packets(void)
{
    while (net.first != NULL && net.first->due_ns <= now_ns()) {
        struct packet *packet = net.first;
        net.first = packet->next;
        (void)!write(net.fds[packet->to], packet->data, packet->bytes);
        packet->next = net.unused;
        net.unused = packet;
    }
}

static void carry(void)
{
    struct pollfd polls[MAX_HOSTS];
    for (unsigned i = 0; i < net.n_hosts; i++)
        polls[i] = (struct pollfd){.fd = net.fds[i], .events = POLLIN};
    for (;;) {
        const uint64_t now = now_ns();
        const uint64_t wait = net.first == NULL ? 1000000000u
                              : net.first->due_ns > now ? net.first->due_ns - now : 0;
        const struct timespec time = {.tv_sec = (time_t)(wait / 1000000000u),
                                      .tv_nsec = (long)(wait % 1000000000u)};
        if (ppoll(polls, net.n_hosts, &time, NULL) < 0 && errno != EINTR)
            end("poll");
        give_packets();
        for (unsigned i = 0; i < net.n_hosts; i++)
            if ((polls[i].revents & POLLIN) != 0)
                take_packets(i);
        give_packets();
    }
}

int main(int argc, char **argv)
{
    struct in_addr base;
    if (argc < 9 || argc - 7 > MAX_HOSTS || inet_aton(argv[5], &base) == 0) {
        (void)fprintf(stderr, "usage: net_relay RATE_MBIT DELAY_US JITTER_US LOSS_PERCENT BASE "
                              "DEVICE NAMESPACE...\n");
        return 2;
    }
    net.rate_bits_per_ns = atof(argv[1]) / 1000;
    net.delay_ns = (uint64_t)(atof(argv[2]) * 1000);
    net.jitter_ns = (uint64_t)(atof(argv[3]) * 1000);
    net.loss = atof(argv[4]) / 100;
    net.base = ntohl(base.s_addr);
    net.n_hosts = (unsigned)argc - 7;
    if (net.rate_bits_per_ns <= 0) {
        (void)fprintf(stderr, "net_relay: the rate is '%s'\n", argv[1]);
        return 2;
    }
    srand48(1);
    (void)prctl(PR_SET_TIMERSLACK, 1ul);
    /* A cable does not wait for a processor. */
    (void)sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 10});
    struct packet *packets = calloc(N_PACKETS, sizeof *packets);
    if (packets == NULL)
        end("packets");
    for (unsigned i = 0; i < N_PACKETS; i++) {
        packets[i].next = net.unused;
        net.unused = &packets[i];
    }
    open_devices(argv + 7, argv[6]);
    (void)printf("ready\n");
    (void)fflush(stdout);
    carry();
}
