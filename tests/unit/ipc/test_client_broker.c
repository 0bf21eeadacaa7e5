/*
 * The promises of cableway.h about brokers that are killed, stopped, about to end, or hang.
 */
#include "tests/unit/ipc/client_support.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "ipc/request/address.h"

static void *wait_for_ever(void *context) {
    return (void *)(intptr_t)cw_wait(context, "never", -1);
}

static void a_killed_broker_is_noticed_and_replaced(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 300000, 6), *got;
    OK(cw_array_put(array, "left", 0, NULL, 0));
    pthread_t waiters[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&waiters[i], NULL, wait_for_ever, client);
    EVENTUALLY(gauge(client, CW_GAUGE_waiting) == 3);
    kill(cw_client_broker_pid(client), SIGKILL);
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(waiters[i], &result);
        assert_int_equal((intptr_t)result, -ECONNRESET);
    }
    int code, turns = 0; /* of a millisecond: a second, on a machine that lets us run */
    while ((code = cw_get(client, "left", 0, &got)) == 0 && turns++ < 1000) {
        cw_array_close(got); /* also the call that asks nobody */
        usleep(1000);
    }
    assert_int_equal(code, -ECONNRESET);
    assert_non_null(strstr(cw_error(), ".log"));
    assert_int_equal(cw_client_check(client), -ECONNRESET);
    assert_int_equal(cw_ping(client), -ECONNRESET);
    assert_int_equal(cw_array_put(array, "more", 0, NULL, 0), -ECONNRESET);
    assert_null(bytes_new(client, 10, 1));
    assert_true(bytes_are(array, 300000, 6));
    cw_client *next = client_open(); /* takes the stale socket over */
    assert_int_not_equal(cw_client_instance(next), cw_client_instance(client));
    assert_int_equal(cw_get(next, "left", 0, &got), -ENOENT);
    cw_array *fresh = bytes_new(next, 300000, 1);
    OK(cw_array_write(fresh, 0, cw_array_data(array), 300000));
    assert_true(bytes_are(fresh, 300000, 6));
    cw_array_close(fresh);
    cw_array_close(array);
    cw_client_unref(next);
    cw_client_unref(client);
}

static void a_stopped_broker_is_lost(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    OK(cw_broker_stop(client));
    EVENTUALLY(cw_client_check(other) == -ECONNRESET);
    assert_int_equal(cw_ping(client), -ECONNRESET);
    cw_client_unref(other);
    cw_client_unref(client);
}

/* A broker that ends: it listens, and hangs up on who connects. */
struct leaving {
    struct cw_address address;
    int fd;
};

static void leaving_listen(struct leaving *leaving) {
    struct sockaddr_un place;
    socklen_t length;
    int folder;
    OK(cw_address_find(NULL, &leaving->address));
    OK(cw_address_open_folder(&leaving->address, true, &folder));
    cw_address_sockaddr(&leaving->address, folder, &place, &length);
    leaving->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(leaving->fd, (struct sockaddr *)&place, length), 0);
    assert_int_equal(listen(leaving->fd, 8), 0);
    close(folder);
}

static void *hang_up(void *context) {
    struct leaving *leaving = context;
    for (int i = 0; i < 3; i++) { /* before its HELLO, or with it unread */
        int sock = accept(leaving->fd, NULL, NULL);
        struct pollfd poller = {.fd = sock, .events = POLLIN};
        if (i > 0)
            (void)poll(&poller, 1, -1);
        close(sock);
    }
    unlink(leaving->address.socket_path);
    close(leaving->fd);
    return NULL;
}

static void who_meets_a_broker_that_ends_is_given_the_next(void **state) {
    (void)state;
    struct leaving leaving;
    cw_client *client = NULL;
    pthread_t thread;
    leaving_listen(&leaving);
    pthread_create(&thread, NULL, hang_up, &leaving);
    assert_int_equal(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client), -ECONNRESET);
    assert_non_null(strstr(cw_error(), "no broker answers"));
    assert_null(client);
    pthread_join(thread, NULL);
    leaving_listen(&leaving);
    pthread_create(&thread, NULL, hang_up, &leaving);
    OK(cw_connect(NULL, NULL, 0, &client));
    pthread_join(thread, NULL);
    OK(cw_ping(client));
    for (int i = 0; i < 20; i++) { /* a real one, at whatever moment of its end */
        kill(cw_client_broker_pid(client), SIGTERM);
        usleep(50 * (unsigned)i);
        cw_client *next;
        OK(cw_connect(NULL, NULL, 0, &next));
        cw_client_unref(client);
        client = next;
    }
    cw_client_unref(client);
}

static void on_signal(int number) {
    (void)number;
}

static void a_signal_ends_the_wait_for_a_hung_broker(void **state) {
    (void)state;
    cw_client *client = client_open();
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, NULL);
    kill(cw_client_broker_pid(client), SIGSTOP);
    struct itimerval every = {.it_interval = {0, 300000}, .it_value = {0, 300000}};
    setitimer(ITIMER_REAL, &every, NULL);
    int64_t begun = test_now_ns();
    assert_int_equal(cw_ping(client), -EINTR);
    assert_true(test_now_ns() - begun >= SECOND);
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    kill(cw_client_broker_pid(client), SIGCONT);
    OK(cw_ping(client)); /* the late reply is nobody's */
    cw_client_unref(client);
}

/* What a process tells a broker that stands still, while it holds what others wait for. */
static void who_may_not_wait_does_not_wait_for_room(void **state) {
    (void)state;
    cw_client *client = client_open();
    int pid = cw_client_broker_pid(client), code = 0;
    kill(pid, SIGSTOP);
    for (int i = 0; i < 100000 && code == 0; i++)
        code = cw_channel_offer(client, CW_OP_PING, NULL, 0);
    assert_int_equal(code, -EAGAIN);
    pthread_mutex_lock(&client->channel_lock); /* another thread waits there for room */
    assert_int_equal(cw_channel_offer(client, CW_OP_PING, NULL, 0), -EAGAIN);
    pthread_mutex_unlock(&client->channel_lock);
    kill(pid, SIGCONT);
    OK(cw_ping(client));
    OK(cw_channel_offer(client, CW_OP_PING, NULL, 0));
    OK(cw_ping(client));
    cw_client_unref(client);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(a_killed_broker_is_noticed_and_replaced),
        TEST(who_may_not_wait_does_not_wait_for_room),
        TEST(a_stopped_broker_is_lost),
        TEST(who_meets_a_broker_that_ends_is_given_the_next),
        TEST(a_signal_ends_the_wait_for_a_hung_broker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
