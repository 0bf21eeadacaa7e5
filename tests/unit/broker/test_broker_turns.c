/*
 * Turns of the broker's loop: what one client's breach, death or silence does to a turn in which
 * others are served. After each test an honest client is answered.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define SLAB_BYTES (1u << 20)

static struct raw_mail mail;
static struct raw_broker broker;
static struct raw_client honest;
static struct raw_slab honest_slab;
static uint64_t honest_gen;

static int start(void **state) {
    (void)state;
    if (!raw_broker_start(&broker, NULL, NULL) || raw_connect(&broker, &honest) != 0 ||
        raw_slab_add(&honest, SLAB_BYTES, 64, &honest_slab) != 0)
        return -1;
    honest_gen = raw_carve(&honest, &honest_slab, 0, 0, 4096);
    return 0;
}

static int finish(void **state) {
    (void)state;
    bool well = raw_broker_reap(&broker, 0) == -1 && raw_ping(&honest) == 0;
    if (!well)
        print_error("broker: %s\n", raw_broker_said(&broker));
    raw_slab_close(&honest_slab);
    raw_close(&honest);
    raw_broker_remove(&broker);
    return well ? 0 : -1;
}

static int put(const char *name) {
    return raw_put(&honest, honest_slab.id, 0, honest_gen, 4096, name, CW_PUT_REPLACE);
}

/* The broker answers a wait and finds that the client lies: all that it asked for ends, while the
 * broker still walks the list of who waits for this name. */
static void a_liar_with_many_waits_for_a_name_is_dropped_and_nobody_else(void **state) {
    (void)state;
    for (int waits = 1; waits <= 4; waits++) {
        struct raw_client liar, patient;
        assert_int_equal(raw_connect(&broker, &liar), 0);
        assert_int_equal(raw_connect(&broker, &patient), 0);
        for (int i = 0; i < waits; i++) { /* where it is alone, what it waits in goes with it */
            raw_wait(&liar, "trap");
            raw_wait(&liar, "another");
            if (waits % 2)
                raw_wait(&patient, "trap");
        }
        assert_int_equal(raw_ping(&patient), 0);
        assert_int_equal(raw_ping(&liar), 0);
        /* The position up to which it has read: none that can be. */
        atomic_store(&liar.replies.ring->head, 8 * 12345678ull);
        assert_int_equal(put("trap"), 0);
        for (int i = 0; i < waits && waits % 2; i++)
            assert_int_equal(raw_reply(&patient, &mail, RAW_TIMEOUT_MS), 1);
        assert_true(raw_dropped(&liar));
        assert_non_null(strstr(liar.sentence, "reply ring"));
        raw_close(&liar);
        assert_int_equal(raw_remove(&honest, "trap"), 0);
        assert_int_equal(put("another"), 0);
        assert_int_equal(raw_remove(&honest, "another"), 0);
        raw_bye(&patient);
        assert_int_equal(raw_broker_reap(&broker, 0), -1);
    }
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_waiting) == 0));
}

static void ignore(struct raw_client *client, uint16_t op, const void *body, uint32_t body_bytes) {
    CW_ASSERT(raw_post(client, op, ++client->next_id, body, body_bytes) == 0);
}

/* What stands in a dead client's ring counts if it changes something; nobody is there to be told.
 */
static void of_a_dead_clients_requests_only_those_with_an_effect_are_done(void **state) {
    (void)state;
    assert_int_equal(put("before"), 0);
    int go[2], ready[2];
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client victim;
        uint8_t body[CW_MESSAGE_MAX];
        struct cw_block_ref ref = {.slab = honest_slab.id, .block = 0, .gen = honest_gen};
        char byte = 0;
        CW_ASSERT(raw_connect(&broker, &victim) == 0 && raw_ping(&victim) == 0);
        CW_ASSERT(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        for (int i = 0; i < 100; i++) {
            ignore(&victim, CW_OP_HOLDERS, &ref, sizeof ref);
            ignore(&victim, CW_OP_WAIT, body, raw_key("never", body));
            ignore(&victim, CW_OP_PING, NULL, 0);
        }
        ignore(&victim, CW_OP_REMOVE, body, raw_key("before", body));
        _exit(0);
    }
    char byte = 0;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    uint64_t waits = raw_counter(&broker, CW_COUNTER_waits);
    kill(broker.pid, SIGSTOP);
    int status;
    assert_int_equal(waitpid(broker.pid, &status, WUNTRACED), broker.pid);
    assert_int_equal(write(go[1], &byte, 1), 1);
    waitpid(pid, NULL, 0);
    kill(broker.pid, SIGCONT);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_names) == 0));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 1));
    assert_int_equal(raw_ping(&honest), 0);
    /* A turn or two may come before the broker looks at its sockets. */
    assert_in_range(raw_counter(&broker, CW_COUNTER_waits) - waits, 0, 4);
    for (int i = 0; i < 2; i++) {
        close(go[i]);
        close(ready[i]);
    }
}

/* A process that lives on, and whose connects timed out, holds nothing. */
static void who_gives_up_while_connecting_leaves_nothing(void **state) {
    (void)state;
    uint64_t fds = raw_gauge(&broker, CW_GAUGE_fds);
    int pidfd = raw_pidfd(getpid());
    for (int i = 0; i < 20; i++) {
        int sock = raw_dial(&broker);
        assert_true(sock >= 0);
        assert_int_equal(raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, pidfd), 0);
        close(sock);
    }
    close(pidfd);
    assert_int_equal(raw_ping(&honest), 0);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 1));
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_fds) == fds));
}

/* A breach in what a client leaves behind is one breach, though its end comes in two parts. */
static void who_dies_after_a_breach_is_dropped_once(void **state) {
    (void)state;
    uint64_t dropped = raw_counter(&broker, CW_COUNTER_clients_dropped);
    int go[2];
    assert_int_equal(pipe(go), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client client;
        char byte;
        CW_ASSERT(raw_connect(&broker, &client) == 0 && raw_ping(&client) == 0);
        uint64_t next = client.requests.tail % CW_CHANNEL_BYTES;
        CW_STORE(R1, (cw_a64 *)(void *)(client.requests.ring->records + next), 1ull << 32, seq_cst);
        raw_close(&client);
        _exit(read(go[0], &byte, 1) == 1 ? 0 : 1);
    }
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_dropped) == dropped + 1));
    assert_int_equal(write(go[1], "", 1), 1);
    waitpid(pid, NULL, 0);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 1));
    assert_int_equal(raw_ping(&honest), 0);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_clients_dropped), dropped + 1);
    close(go[0]);
    close(go[1]);
}

#define BATCH 40 /* of one process; max_pid_log_lines does not bound so few */

/* So many connections of another process, each of which is refused. */
static void connect_badly(void) {
    int status;
    pid_t pid = fork();
    for (int i = 0; pid == 0 && i < BATCH; i++) {
        int sock = raw_dial(&broker);
        if (sock < 0 || raw_say_hello(sock, CW_PROTOCOL_VERSION + 1, CW_PROTOCOL_VERSION + 1, -1) ||
            raw_receive(sock, &mail, RAW_TIMEOUT_MS) != 1)
            _exit(1);
        close(sock);
    }
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* The broker says all that it has to say, and waits for nobody who should read it. */
static void a_log_that_nobody_reads_holds_up_nobody(void **state) {
    (void)state;
    for (int i = 0; i < 2000; i += BATCH)
        connect_badly();
    assert_int_equal(raw_ping(&honest), 0);
}

/* Reads what it said on standard error so far: how many lines, and whether one tells of others. */
static unsigned lines_said(bool *told) {
    static char text[65536];
    unsigned lines = 0;
    struct pollfd end = {.fd = broker.errors, .events = POLLIN};
    while (poll(&end, 1, 0) == 1 && end.revents & POLLIN) {
        ssize_t length = read(broker.errors, text, sizeof text - 1);
        if (length <= 0)
            break;
        text[length] = 0;
        *told |= strstr(text, "were left out") != NULL;
        for (ssize_t i = 0; i < length; i++)
            lines += text[i] == '\n';
    }
    return lines;
}

/* 500 lines at once, then 20 a second, however many are caused; and how many were left out. */
static void bad_connections_do_not_fill_the_log(void **state) {
    (void)state;
    unsigned lines = 0, most;
    bool told = false;
    int64_t begun_ns = cw_now_ns();
    for (int i = 0; i < 4000; i += BATCH) {
        connect_badly();
        lines += lines_said(&told);
    }
    most = 500 + 20 * (1 + (unsigned)((cw_now_ns() - begun_ns) / 1000000000));
    assert_in_range(lines, 500, 2 * most); /* each after a pause may tell of those left out */
    for (int64_t end_ns = cw_now_ns() + RAW_TIMEOUT_MS * 1000000ll;
         !told && cw_now_ns() < end_ns;) {
        connect_badly();
        (void)lines_said(&told);
    }
    assert_true(told);
}

static unsigned descriptors_of(pid_t pid) {
    char path[64];
    unsigned most = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && (unsigned)atoi(entry->d_name) > most)
            most = (unsigned)atoi(entry->d_name);
    closedir(folder);
    return most;
}

/* That the broker has no descriptor left is not the fault of who sends one. */
static void a_full_table_of_descriptors_is_told_and_drops_nobody(void **state) {
    (void)state;
    struct raw_slab slab;
    struct rlimit before, none;
    raw_slab_make(SLAB_BYTES, 64, &slab);
    struct cw_slab_info info = {
        .device_kind = CW_DEVICE_HOST, .size_bytes = SLAB_BYTES, .blocks = 64};
    int fds[2] = {slab.data.fd, slab.table_segment.fd};
    assert_int_equal(raw_ping(&honest), 0);
    assert_int_equal(prlimit(broker.pid, RLIMIT_NOFILE, NULL, &before), 0);
    none.rlim_max = before.rlim_max;
    none.rlim_cur = 3; /* nothing new fits in; what is open stays */
    assert_true(descriptors_of(broker.pid) >= 3);
    assert_int_equal(prlimit(broker.pid, RLIMIT_NOFILE, &none, NULL), 0);
    int code = raw_exchange(&honest, CW_OP_SLAB_ADD, &info, sizeof info, fds, 2, &mail);
    assert_int_equal(prlimit(broker.pid, RLIMIT_NOFILE, &before, NULL), 0);
    assert_int_equal(code, -EDQUOT);
    assert_non_null(strstr(honest.sentence, "no descriptor left"));
    assert_non_null(strstr(honest.sentence, "limit of the broker"));
    assert_int_equal(raw_ping(&honest), 0);
    raw_slab_close(&slab);
}

/* The broker's own time for a thousand CANCELs of what was never asked; the least of some. */
static int64_t cancels_take_ns(void) {
    int64_t least_ns = INT64_MAX;
    for (int round = 0; round < 5; round++) {
        int64_t before_ns = raw_broker_ran_ns(&broker);
        for (uint64_t i = 0; i < 1000; i++) {
            struct cw_cancel nothing = {.id = 1000000 + i};
            assert_int_equal(
                raw_post(&honest, CW_OP_CANCEL, ++honest.next_id, &nothing, sizeof nothing), 0);
        }
        assert_int_equal(raw_ping(&honest), 0);
        int64_t took_ns = raw_broker_ran_ns(&broker) - before_ns;
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    return least_ns;
}

static void what_others_wait_for_makes_no_cancel_dearer(void **state) {
    (void)state;
    enum { OTHERS = 12, WAITS = 1000 };
    int64_t quiet_ns = cancels_take_ns();
    struct raw_client others[OTHERS];
    for (int i = 0; i < OTHERS; i++) {
        assert_int_equal(raw_connect(&broker, &others[i]), 0);
        for (int k = 0; k < WAITS; k++) {
            char name[32];
            snprintf(name, sizeof name, "never/%d", k);
            raw_wait(&others[i], name);
        }
        assert_int_equal(raw_ping(&others[i]), 0);
    }
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_waiting), OTHERS * WAITS);
    assert_in_range(cancels_take_ns(), 0, 4 * quiet_ns + 2000000);
    for (int i = 0; i < OTHERS; i++)
        raw_close(&others[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_liar_with_many_waits_for_a_name_is_dropped_and_nobody_else),
        TEST(of_a_dead_clients_requests_only_those_with_an_effect_are_done),
        TEST(who_gives_up_while_connecting_leaves_nothing),
        TEST(who_dies_after_a_breach_is_dropped_once),
        TEST(a_log_that_nobody_reads_holds_up_nobody),
        TEST(bad_connections_do_not_fill_the_log),
        TEST(a_full_table_of_descriptors_is_told_and_drops_nobody),
        TEST(what_others_wait_for_makes_no_cancel_dearer),
    };
    return cmocka_run_group_tests_name("the broker's turns", tests, NULL, NULL);
}
