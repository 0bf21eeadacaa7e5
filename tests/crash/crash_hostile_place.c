/*
 * Strangers at the door: another user, another protocol version, connections that say nothing or
 * nonsense, a folder that is not ours or open to others. Refused with a sentence; whoever belongs
 * here comes in beside them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/crash/support/hostile.h"

#define NOBODY 65534

static int become_nobody(void) {
    return setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0 ? 0 : -1;
}

static bool may_change_user(void) {
    if (geteuid() == 0)
        return true;
    print_message("skipped: only root can become another user\n");
    return false;
}

/* A connection by the plain path, without the checks that our own library makes. */
static int dial_plainly(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%.100s", hostile_broker.address.socket_path);
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(sock, (struct sockaddr *)&name, sizeof name) == 0)
        return sock;
    int code = -errno;
    close(sock);
    return code;
}

static int another_user_at_an_open_door(void) {
    static struct raw_mail mail;
    if (become_nobody() != 0)
        return HOSTILE_SKIP;
    int sock = dial_plainly();
    ACT(sock >= 0);
    ACT(raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, raw_pidfd(getpid())) == 0);
    ACT(raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 1);
    ACT(mail.head.status == -EPERM && mail.body_bytes > 0 && mail.fd_count == 0);
    ACT(raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 0);
    return 0;
}

static int another_user_at_a_closed_door(void) {
    if (become_nobody() != 0)
        return HOSTILE_SKIP;
    ACT(dial_plainly() == -EACCES);
    cw_client *client;
    ACT(cw_connect(NULL, NULL, 0, &client) == -EPERM); /* and starts no broker there either */
    ACT(strlen(cw_error()) > 0);
    return 0;
}

static void another_user_is_refused(void **state) {
    (void)state;
    if (!may_change_user())
        skip();
    uint64_t refused = world_counter(&hostile_world, CW_COUNTER_clients_refused);
    hostile_run(another_user_at_a_closed_door, 20000);
    assert_int_equal(chmod(hostile_world.folder, 0711), 0);
    assert_int_equal(chmod(hostile_broker.address.socket_path, 0777), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(another_user_at_an_open_door());
    int status;
    waitpid(pid, &status, 0);
    chmod(hostile_world.folder, 0700);
    assert_int_equal(status, 0);
    assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE), 0);
    assert_true(world_counter(&hostile_world, CW_COUNTER_clients_refused) > refused);
}

static int connect_there(void *folder) {
    cw_client *client;
    setenv("CABLEWAY_DIR", folder, 1);
    int code = cw_connect(NULL, NULL, 0, &client);
    if (code != -EPERM || !strstr(cw_error(), folder)) {
        printf("# %d: %s\n", code, code ? cw_error() : "");
        return 1;
    }
    return 0;
}

static int start_there(void *folder) {
    const char *program = world_program();
    setenv("CABLEWAY_DIR", folder, 1);
    if (!freopen("/dev/null", "w", stderr))
        return 99;
    execl(program, program, "--foreground", NULL);
    return 98;
}

static void a_folder_of_another_user_or_open_to_others_is_refused(void **state) {
    (void)state;
    char folder[] = "/tmp/cw-crash-XXXXXX", link[64];
    assert_non_null(mkdtemp(folder));
    snprintf(link, sizeof link, "%s.link", folder);
    assert_int_equal(symlink(folder, link), 0);
    assert_int_equal(in_child(connect_there, link), 0);
    assert_int_not_equal(in_child(start_there, link), 0);
    unlink(link);
    for (mode_t mode = 0701; mode <= 0777; mode += mode == 0701 ? 9 : 67) {
        assert_int_equal(chmod(folder, mode), 0);
        assert_int_equal(in_child(connect_there, folder), 0);
        assert_int_not_equal(in_child(start_there, folder), 0);
    }
    if (geteuid() == 0) {
        assert_int_equal(chmod(folder, 0700), 0);
        assert_int_equal(chown(folder, NOBODY, NOBODY), 0);
        assert_int_equal(in_child(connect_there, folder), 0);
        assert_int_not_equal(in_child(start_there, folder), 0);
    }
    assert_int_equal(rmdir(folder), 0); /* and nothing was put into it */
}

static int other_versions(void) {
    static struct raw_mail mail;
    const uint32_t versions[][2] = {{0, 0},
                                    {0, CW_PROTOCOL_VERSION - 1},
                                    {CW_PROTOCOL_VERSION + 1, CW_PROTOCOL_VERSION + 1},
                                    {CW_PROTOCOL_VERSION + 1, UINT32_MAX},
                                    {UINT32_MAX, UINT32_MAX}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        int sock = raw_dial(&hostile_broker);
        ACT(sock >= 0);
        int pidfd = raw_pidfd(getpid());
        ACT(raw_say_hello(sock, versions[i][0], versions[i][1], pidfd) == 0);
        ACT(raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 1);
        ACT(mail.head.status == -EPROTO && mail.body_bytes > 0);
        ACT(memmem(mail.body, mail.body_bytes, "version", 7) != NULL);
        ACT(raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 0);
        close(pidfd);
        close(sock);
    }
    return 0;
}

static int datagrams_that_are_no_messages(void) {
    static uint8_t bytes[70000];
    static struct raw_mail mail;
    struct chance chance = chance_init(1);
    for (int round = 0; round < 150; round++) {
        struct raw_client client = {.sock = -1};
        bool after_hello = round % 2;
        if (after_hello)
            ACT(raw_connect(&hostile_broker, &client) == 0);
        int sock = after_hello ? client.sock : raw_dial(&hostile_broker);
        ACT(sock >= 0);
        size_t size = round < 60    ? (size_t)round
                      : round < 100 ? CW_MESSAGE_MAX + chance_below(&chance, 3) - 1
                                    : chance_below(&chance, sizeof bytes);
        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)chance_next(&chance);
        if (round % 3 == 0 && size >= 8)
            memcpy(bytes, &(uint32_t){(uint32_t)size}, 4);
        (void)send(sock, bytes, size, MSG_NOSIGNAL);
        /* A last word perhaps, and the end. */
        struct timeval limit = {.tv_sec = 10};
        setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        int code = raw_receive(sock, &mail, RAW_TIMEOUT_MS);
        if (code == 1 && mail.head.status < 0)
            code = raw_receive(sock, &mail, RAW_TIMEOUT_MS);
        ACT(code <= 0);
        if (after_hello)
            raw_close(&client);
        else
            close(sock);
    }
    return 0;
}

/* Ten and more that say nothing: others come in, and the silent are sent away. */
static int silent_connections(void) {
    static struct raw_mail mail;
    int socks[40];
    for (int i = 0; i < 40; i++)
        ACT((socks[i] = raw_dial(&hostile_broker)) >= 0);
    cw_client *client;
    int64_t begun_ns = test_now_ns();
    ACT(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) == 0);
    ACT(cw_ping(client) == 0);
    ACT(test_now_ns() - begun_ns < 2000000000);
    for (int i = 0; i < 40; i++) {
        int code = raw_receive(socks[i], &mail, RAW_TIMEOUT_MS);
        if (code == 1)
            code = raw_receive(socks[i], &mail, RAW_TIMEOUT_MS);
        ACT(code <= 0 && code != -ETIMEDOUT);
        close(socks[i]);
    }
    cw_client_unref(client);
    return 0;
}

/* Hundreds of connections made and left at once. */
static int a_flood_of_connections(void) {
    for (int round = 0; round < 2000; round++) {
        int sock = raw_dial(&hostile_broker);
        if (sock >= 0)
            close(sock);
    }
    return 0;
}

static void test(void **state) {
    hostile_run((int (*)(void))(uintptr_t)*state, 30000);
}

#define HOSTILE(act)                                                                               \
    { #act, test, NULL, NULL, (void *)(uintptr_t)(act) }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_user_is_refused),
        cmocka_unit_test(a_folder_of_another_user_or_open_to_others_is_refused),
        HOSTILE(other_versions),
        HOSTILE(datagrams_that_are_no_messages),
        HOSTILE(silent_connections),
        HOSTILE(a_flood_of_connections),
    };
    return cmocka_run_group_tests(tests, hostile_set_up, hostile_tear_down);
}
