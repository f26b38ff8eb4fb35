#include "base/plat_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/plat.h"

static void assert_set_up(int fd)
{
    assert_true(fd >= 0);
    assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

static void test_pipes_do_not_block(void **state)
{
    (void)state;
    int ends[2];
    char byte = 'x';
    assert_int_equal(plat_pipe(ends), 0);
    assert_set_up(ends[0]);
    assert_set_up(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(write(ends[1], &byte, 1), 1);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* A peer that has gone is an error of the call; SIGPIPE would end this program. */
static void test_a_closed_connection_raises_no_signal(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    const int listening = plat_socket(AF_INET), fd = plat_socket(AF_INET);
    assert_set_up(listening);
    assert_set_up(fd);
    assert_int_equal(bind(listening, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&at, &bytes), 0);
    assert_true(connect(fd, (struct sockaddr *)&at, sizeof at) == 0 || errno == EINPROGRESS);
    int peer;
    while ((peer = accept(listening, NULL, NULL)) < 0)
        assert_true(errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    assert_int_equal(setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    (void)close(peer); /* with a reset */
    ssize_t n;
    while ((n = plat_send(fd, "x", 1)) > 0 || errno == EAGAIN)
        ;
    assert_int_equal(n, -1);
    assert_int_equal(plat_send(fd, "x", 1), -1);
    assert_int_equal(errno, EPIPE);
    (void)close(fd);
    (void)close(listening);
}

static void test_a_family_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(plat_socket(-1), -1);
    assert_int_not_equal(errno, 0);
}

static void test_conditions_wait_for_the_clock_of_the_program(void **state)
{
    (void)state;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    plat_cond_open(&cond);
    (void)pthread_mutex_lock(&lock);
    assert_int_equal(plat_cond_wait(&cond, &lock, plat_now_ns()), ETIMEDOUT);
    const uint64_t until_ns = plat_now_ns() + 2000000;
    int rc;
    while ((rc = plat_cond_wait(&cond, &lock, until_ns)) == 0)
        ;
    assert_int_equal(rc, ETIMEDOUT);
    assert_true(plat_now_ns() >= until_ns);
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_cond_destroy(&cond);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipes_do_not_block),
        cmocka_unit_test(test_a_closed_connection_raises_no_signal),
        cmocka_unit_test(test_a_family_that_is_not_there_is_an_error),
        cmocka_unit_test(test_conditions_wait_for_the_clock_of_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
