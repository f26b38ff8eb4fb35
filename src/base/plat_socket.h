/* Sockets and pipes, where systems differ in how they are made. Any thread may call these. */
#ifndef FLASHMOE_BASE_PLAT_SOCKET_H
#define FLASHMOE_BASE_PLAT_SOCKET_H

#include <stddef.h>
#include <sys/types.h>

/* Makes a stream socket that does not block, is closed in started programs, and raises no SIGPIPE.
 * `family` is AF_INET or AF_INET6. Returns -1 and sets errno on failure. */
int plat_socket(int family);

/* Makes a pipe whose ends do not block and are closed in started programs. Returns 0, or -1 and
 * sets errno; then nothing is open and both ends are -1. */
int plat_pipe(int ends[2]);

/* Sends without blocking and without SIGPIPE. Returns what send() does. */
ssize_t plat_send(int fd, const void *bytes, size_t n);

#endif
