/*
 * Promises of cablewayd as a program: who may come in, one broker at a time, its end, its limits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define CONTAINS(text, part)                                                                       \
    do {                                                                                           \
        if (!strstr((text), (part)))                                                               \
            fail_msg("\"%s\" is not in: %s", (part), (text));                                      \
    } while (0)

static struct raw_mail mail;

static void hello_brings_root_session_and_bells(void **state) {
    (void)state;
    struct raw_broker broker;
    struct raw_client client;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(client.instance, client.root->header.instance);
    assert_int_equal(client.shared->session, client.session);
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_clients), 1);
    struct cw_monitor_client *row = &broker.root->clients[0];
    assert_int_equal(CW_LOAD(M1, &row->pid, relaxed), getpid());
    assert_memory_equal((const void *)row->comm, "raw", 4);
    raw_bye(&client);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 0));
    assert_int_equal(raw_counter(&broker, CW_COUNTER_clients_died), 0);
    raw_broker_remove(&broker);
}

/* The answer comes in the middle of the broker's turn: the figures must be there before it. */
static void figures_are_there_with_the_answer(void **state) {
    (void)state;
    struct raw_broker broker;
    struct raw_client client, other;
    struct raw_slab slab;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_slab_add(&client, 1 << 20, 16, &slab), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), 1);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(raw_put(&client, slab.id, 0, gen, 100, "x", 0), 0);
        assert_int_equal(raw_gauge(&broker, CW_GAUGE_names), 1);
        CW_ADD(X1, &client.shared->routes[CW_ROUTE_STAGED], 7, relaxed);
        assert_int_equal(raw_remove(&client, "x"), 0);
        assert_int_equal(raw_counter(&broker, CW_COUNTER_bytes_staged), 7 * (i + 1));
        assert_int_equal(raw_gauge(&broker, CW_GAUGE_names), 0);
    }
    for (int i = 0; i < 200; i++) {
        assert_int_equal(raw_connect(&broker, &other), 0);
        assert_int_equal(raw_gauge(&broker, CW_GAUGE_clients), 2);
        raw_bye(&other);
        assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 1));
    }
    raw_bye(&client);
    raw_slab_close(&slab);
    raw_broker_remove(&broker);
}

static int refused(struct raw_broker *broker, uint32_t least, uint32_t most, int pidfd,
                   char *sentence) {
    int sock = raw_dial(broker);
    assert_true(sock >= 0);
    assert_int_equal(raw_say_hello(sock, least, most, pidfd), 0);
    assert_int_equal(raw_receive(sock, &mail, RAW_TIMEOUT_MS), 1);
    int status = mail.head.status;
    memcpy(sentence, mail.body, mail.body_bytes);
    sentence[mail.body_bytes] = 0;
    assert_int_equal(mail.fd_count, 0);
    assert_int_equal(raw_receive(sock, &mail, RAW_TIMEOUT_MS), 0);
    close(sock);
    return status;
}

static void a_client_that_dies_as_it_connects_is_told_of_as_that(void **state) {
    struct raw_broker broker;
    char line[128];
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(kill(broker.pid, SIGSTOP), 0);
    pid_t child = fork();
    if (child == 0) {
        int sock = raw_dial(&broker), own = raw_pidfd(getpid());
        _exit(raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, own) != 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(kill(broker.pid, SIGCONT), 0);
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_refused) == 1));
    snprintf(line, sizeof line, "(pid %d): it ended before it was connected\n", (int)child);
    assert_true(RAW_UNTIL(strstr(raw_broker_said(&broker), line)));
    raw_broker_remove(&broker);
}

static void other_versions_and_wrong_pidfds_are_refused(void **state) {
    (void)state;
    struct raw_broker broker;
    char sentence[CW_MESSAGE_MAX];
    assert_true(raw_broker_start(&broker, NULL, NULL));
    int own = raw_pidfd(getpid()), parent = raw_pidfd(getppid()), null = open("/dev/null", O_RDWR);
    assert_int_equal(refused(&broker, CW_PROTOCOL_VERSION + 1, 7, own, sentence), -EPROTO);
    CONTAINS(sentence, "version 4, the client 5 to 7");
    assert_int_equal(refused(&broker, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, -1, sentence),
                     -EPROTO);
    CONTAINS(sentence, "pidfd");
    assert_int_equal(refused(&broker, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, null, sentence),
                     -EPROTO);
    if (parent >= 0)
        assert_int_equal(
            refused(&broker, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, parent, sentence), -EPROTO);
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_refused) == 3u + (parent >= 0)));
    struct raw_client client; /* a range that holds our version is welcome */
    assert_int_equal(raw_connect(&broker, &client), 0);
    raw_bye(&client);
    close(own);
    close(null);
    if (parent >= 0)
        close(parent);
    raw_broker_remove(&broker);
}

static int connect_as_other(void *context) {
    struct raw_broker *broker = context;
    int pidfd, sock = raw_dial(broker); /* as root: the folder lets us pass */
    if (sock < 0)
        return 1;
    close(sock);
    /* SO_PEERCRED tells who connect() was called by. */
    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int folder;
    struct sockaddr_un name;
    socklen_t length;
    if (cw_address_open_folder(&broker->address, false, &folder) != 0)
        return 2;
    if (chmod(broker->folder, 0777) || chmod(broker->address.socket_path, 0777))
        return 3;
    cw_address_sockaddr(&broker->address, folder, &name, &length);
    if (syscall(SYS_setresuid, 12345, 12345, 12345) != 0)
        return 4;
    struct sockaddr_un direct = {.sun_family = AF_UNIX};
    snprintf(direct.sun_path, sizeof direct.sun_path, "%.100s", broker->address.socket_path);
    if (connect(sock, (struct sockaddr *)&direct, sizeof direct) != 0)
        return 5;
    pidfd = raw_pidfd(getpid());
    if (raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, pidfd) != 0 ||
        raw_receive(sock, &mail, RAW_TIMEOUT_MS) != 1)
        return 6;
    return mail.head.status == -EPERM && mail.fd_count == 0 ? 0 : 7;
}

static void another_user_is_refused(void **state) {
    (void)state;
    struct raw_broker broker;
    if (geteuid() != 0) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(in_child(connect_as_other, &broker), 0);
    raw_broker_remove(&broker);
}

static void a_second_broker_names_the_first(void **state) {
    (void)state;
    struct raw_broker broker, second;
    char pid[32];
    assert_true(raw_broker_start(&broker, NULL, NULL));
    second = broker;
    second.errors = -1;
    second.said_bytes = 0;
    raw_broker_spawn(&second, NULL, NULL);
    assert_int_equal(raw_broker_reap(&second, RAW_TIMEOUT_MS), 3);
    snprintf(pid, sizeof pid, "pid %d", (int)broker.pid);
    CONTAINS(raw_broker_said(&second), pid);
    close(second.errors);
    struct raw_client client; /* and the first one took no harm */
    assert_int_equal(raw_connect(&broker, &client), 0);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void a_killed_brokers_socket_is_taken_over(void **state) {
    (void)state;
    struct raw_broker broker;
    struct raw_client client;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(raw_connect(&broker, &client), 0);
    uint64_t first = client.instance;
    kill(broker.pid, SIGKILL);
    assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 128 + SIGKILL);
    assert_int_equal(raw_reply(&client, &mail, 1000), 0); /* seen at once, asleep in poll */
    raw_close(&client);
    assert_int_equal(access(broker.address.socket_path, F_OK), 0);
    raw_broker_spawn(&broker, NULL, NULL);
    assert_true(raw_broker_ready(&broker));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_true(client.instance != first);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void a_signal_ends_it_cleanly(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT};
    for (unsigned i = 0; i < 2; i++) {
        struct raw_broker broker;
        struct raw_client client;
        struct stat status;
        assert_true(raw_broker_start(&broker, NULL, NULL));
        assert_int_equal(raw_connect(&broker, &client), 0);
        kill(broker.pid, signals[i]);
        assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 0);
        assert_int_equal(raw_reply(&client, &mail, RAW_TIMEOUT_MS), 0);
        assert_int_not_equal(access(broker.address.socket_path, F_OK), 0);
        assert_int_equal(stat(broker.address.lock_path, &status), 0);
        assert_int_equal(status.st_size, 0);
        raw_close(&client);
        raw_broker_remove(&broker);
    }
}

/* Who finds no line in the lock file may remove the folder. */
static void its_socket_goes_before_its_line(void **state) {
    (void)state;
    struct raw_broker broker;
    struct raw_client client;
    char told[8192] __attribute__((aligned(8)));
    bool gone = false, emptied = false;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(raw_connect(&broker, &client),
                     0); /* it is told of the line's writing no more */
    raw_bye(&client);
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    assert_true(watch >= 0 &&
                inotify_add_watch(watch, broker.address.folder, IN_DELETE | IN_MODIFY) >= 0);
    kill(broker.pid, SIGTERM);
    assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 0);
    ssize_t bytes = read(watch, told, sizeof told);
    for (ssize_t at = 0; at < bytes;) {
        const struct inotify_event *event = (const void *)(told + at);
        if (event->mask & IN_DELETE && strcmp(event->name, broker.address.socket_name) == 0)
            gone = true;
        if (event->mask & IN_MODIFY && strcmp(event->name, broker.address.lock_name) == 0) {
            assert_true(gone);
            emptied = true;
        }
        at += (ssize_t)(sizeof *event + event->len);
    }
    assert_true(gone && emptied);
    close(watch);
    raw_broker_remove(&broker);
}

static void stop_is_answered_before_the_end(void **state) {
    (void)state;
    struct raw_broker broker;
    struct raw_client client;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_call(&client, CW_OP_STOP, NULL, 0, &mail), 0);
    assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 0);
    raw_close(&client);
    raw_broker_remove(&broker);
}

static void an_idle_broker_ends_after_its_time(void **state) {
    (void)state;
    static const char *const arguments[] = {"--idle-exit", "0", NULL};
    static const char *const linger[] = {"CABLEWAY_NAMES_LINGER_SECONDS=0", NULL};
    struct raw_broker broker;
    struct raw_client client;
    struct raw_slab slab;
    /* Nobody ever came. */
    raw_broker_folder(&broker);
    raw_broker_spawn(&broker, arguments, linger);
    assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 0);
    /* A kept name holds it. */
    static const char *const second[] = {"--idle-exit", "1", NULL};
    raw_broker_spawn(&broker, second, linger);
    assert_true(raw_broker_ready(&broker));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_slab_add(&client, 1 << 20, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 100, "kept", CW_PUT_KEEP), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 100, "not kept", 0), 0);
    raw_bye(&client);
    raw_slab_close(&slab);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_names) == 1));
    assert_int_equal(raw_broker_reap(&broker, 1500), -1);
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_remove(&client, "kept"), 0);
    raw_bye(&client);
    assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 0);
    raw_broker_remove(&broker);
}

static void names_linger_after_the_last_client(void **state) {
    (void)state;
    static const char *const linger[] = {"CABLEWAY_NAMES_LINGER_SECONDS=3600", NULL};
    struct raw_broker broker;
    struct raw_client client;
    struct raw_slab slab;
    assert_true(raw_broker_start(&broker, NULL, linger));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_slab_add(&client, 1 << 20, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 100, "lingers", 0), 0);
    raw_bye(&client);
    raw_slab_close(&slab);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 0));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_names), 1);
    assert_int_equal(raw_remove(&client, "lingers"), 0);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void untrusted_folders_are_refused(void **state) {
    (void)state;
    struct raw_broker broker;
    char target[80];
    raw_broker_folder(&broker);
    assert_int_equal(chmod(broker.folder, 0755), 0);
    raw_broker_spawn(&broker, NULL, NULL);
    assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 4);
    CONTAINS(raw_broker_said(&broker), "chmod 700");
    /* A symbolic link to a good folder is none. */
    assert_int_equal(chmod(broker.folder, 0700), 0);
    snprintf(target, sizeof target, "%s.real", broker.folder);
    assert_int_equal(rename(broker.folder, target), 0);
    assert_int_equal(symlink(target, broker.folder), 0);
    broker.said_bytes = 0;
    raw_broker_spawn(&broker, NULL, NULL);
    assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 4);
    CONTAINS(raw_broker_said(&broker), "symbolic link");
    unlink(broker.folder);
    assert_int_equal(rename(target, broker.folder), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(broker.folder, 12345, 12345), 0);
        broker.said_bytes = 0;
        raw_broker_spawn(&broker, NULL, NULL);
        assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 4);
        CONTAINS(raw_broker_said(&broker), "belongs to uid 12345");
    }
    raw_broker_remove(&broker);
}

static void an_idle_broker_takes_no_cpu_and_little_memory(void **state) {
    (void)state;
    struct raw_broker broker;
    struct raw_client client;
    struct raw_slab slab;
    char path[64], line[256], name[32];
    unsigned long resident = 0;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    assert_int_equal(raw_connect(&broker, &client), 0);
    assert_int_equal(raw_slab_add(&client, 1 << 20, 128, &slab), 0);
    for (uint32_t i = 0; i < 100; i++) {
        uint64_t gen = raw_carve(&client, &slab, i, i * 4096, 4096);
        snprintf(name, sizeof name, "name/%u", i);
        assert_int_equal(raw_put(&client, slab.id, i, gen, 4096, name, 0), 0);
    }
    /* It sleeps, and nothing wakes it. */
    assert_true(RAW_UNTIL(CW_LOAD(W2, &client.root->broker.asleep, relaxed) == 1));
    assert_true(RAW_UNTIL(raw_rests(&broker, 300)));
    snprintf(path, sizeof path, "/proc/%d/status", (int)broker.pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        (void)sscanf(line, "VmRSS: %lu", &resident);
    fclose(file);
    if (!CW_TEST_SANITIZED)
        assert_in_range(resident, 100, 8 * 1024);
    raw_bye(&client);
    raw_slab_close(&slab);
    raw_broker_remove(&broker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_brings_root_session_and_bells),
        cmocka_unit_test(figures_are_there_with_the_answer),
        cmocka_unit_test(a_client_that_dies_as_it_connects_is_told_of_as_that),
        cmocka_unit_test(other_versions_and_wrong_pidfds_are_refused),
        cmocka_unit_test(another_user_is_refused),
        cmocka_unit_test(a_second_broker_names_the_first),
        cmocka_unit_test(a_killed_brokers_socket_is_taken_over),
        cmocka_unit_test(a_signal_ends_it_cleanly),
        cmocka_unit_test(its_socket_goes_before_its_line),
        cmocka_unit_test(stop_is_answered_before_the_end),
        cmocka_unit_test(an_idle_broker_ends_after_its_time),
        cmocka_unit_test(names_linger_after_the_last_client),
        cmocka_unit_test(untrusted_folders_are_refused),
        cmocka_unit_test(an_idle_broker_takes_no_cpu_and_little_memory),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
