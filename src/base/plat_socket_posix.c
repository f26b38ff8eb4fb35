#include "base/plat_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Systems without the flag have SO_NOSIGPIPE, an option of the socket. */
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

static void close_quietly(int *fd)
{
    const int why = errno;
    if (*fd >= 0)
        (void)close(*fd); /* nothing was written */
    *fd = -1;
    errno = why;
}

static int set_up(int fd)
{
    return fcntl(fd, F_SETFL, O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ? -1 : 0;
}

int plat_socket(int family)
{
#ifdef SOCK_CLOEXEC
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
#else
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd >= 0 && set_up(fd) != 0)
        close_quietly(&fd);
#ifdef SO_NOSIGPIPE
    const int yes = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof yes) != 0)
        close_quietly(&fd);
#endif
    return fd;
#endif
}

int plat_pipe(int ends[2])
{
    ends[0] = ends[1] = -1;
    if (pipe(ends) != 0)
        return -1;
    if (set_up(ends[0]) == 0 && set_up(ends[1]) == 0)
        return 0;
    close_quietly(&ends[0]);
    close_quietly(&ends[1]);
    return -1;
}

ssize_t plat_send(int fd, const void *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}
