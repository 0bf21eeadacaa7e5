/*
 * Limits: each has its own error, which names it, its number, and the ways to change it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define SLAB_BYTES (1u << 20)

static struct raw_mail mail;
static struct raw_broker broker;

static void broker_with(enum cw_limit limit, uint64_t number) {
    char setting[80];
    const char *const environment[] = {setting, NULL};
    snprintf(setting, sizeof setting, "CABLEWAY_%s=%llu", cw_limit_name(limit),
             (unsigned long long)number);
    for (char *at = setting; *at && *at != '='; at++)
        *at = (char)toupper((unsigned char)*at);
    if (!raw_broker_start(&broker, NULL, environment))
        fail_msg("no broker: %s", raw_broker_said(&broker));
}

/* The sentence names limit, number, command, key and variable; the refusal was counted. */
static void assert_says(const char *sentence, enum cw_limit limit, uint64_t number) {
    char allows[80], variable[80], command[80];
    snprintf(allows, sizeof allows, "%s allows %llu", cw_limit_name(limit),
             (unsigned long long)number);
    snprintf(variable, sizeof variable, "CABLEWAY_%s", cw_limit_name(limit));
    for (char *at = variable; *at; at++)
        *at = (char)toupper((unsigned char)*at);
    snprintf(command, sizeof command, "`cableway limit set %s NUMBER`", cw_limit_name(limit));
    if (!strstr(sentence, allows) || !strstr(sentence, variable) || !strstr(sentence, command) ||
        !strstr(sentence, "[limits] in cableway.conf"))
        fail_msg("not the sentence of %s: %s", cw_limit_name(limit), sentence);
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_limits_hit) > 0));
}

static struct raw_client client_open(void) {
    struct raw_client client;
    assert_int_equal(raw_connect(&broker, &client), 0);
    return client;
}

/* LIMIT_SET: the reply's status; *now: the value after it. */
static int set_limit(struct raw_client *client, const char *name, uint32_t name_bytes,
                     uint64_t value, uint64_t *before, uint64_t *now) {
    uint8_t body[128];
    struct cw_limit_set set = {.value = value, .name_bytes = name_bytes};
    struct cw_limit_reply reply = {0, 0};
    memcpy(body, &set, sizeof set);
    memcpy(body + sizeof set, name, strlen(name));
    int code =
        raw_call(client, CW_OP_LIMIT_SET, body, (uint32_t)(sizeof set + strlen(name)), &mail);
    if (code == 0)
        memcpy(&reply, mail.body, sizeof reply);
    *before = reply.before;
    *now = reply.now;
    return code;
}

/* A lower limit takes nothing away, a higher one lets more in, and neither waits for a new broker.
 */
static void a_limit_is_set_while_the_broker_runs(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_names, 2);
    struct raw_client client = client_open(), other = client_open();
    struct raw_slab slab;
    uint64_t before, now;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "a", 0), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "b", 0), 0);
    assert_int_equal(set_limit(&other, "max_names", 9, 3, &before, &now), 0);
    assert_int_equal(before, 2);
    assert_int_equal(now, 3);
    assert_int_equal(CW_LOAD(MON, &broker.root->limits[CW_LIMIT_max_names], relaxed), 3);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "c", 0), 0);
    assert_int_equal(set_limit(&other, "max_names", 9, 1, &before, &now), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_names), 3);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "d", 0), -EDQUOT);
    assert_says(client.sentence, CW_LIMIT_max_names, 1);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 2, "b", CW_PUT_REPLACE), 0);
    /* What cannot be is refused and changes nothing; what has not the form ends the client. */
    assert_int_equal(set_limit(&other, "max_names", 9, 0, &before, &now), -EINVAL);
    assert_int_equal(set_limit(&other, "max_name", 8, 5, &before, &now), -EINVAL);
    assert_int_equal(set_limit(&other, "", 0, 5, &before, &now), -EINVAL);
    assert_int_equal(CW_LOAD(MON, &broker.root->limits[CW_LIMIT_max_names], relaxed), 1);
    assert_int_equal(set_limit(&other, "max_names", 90, 5, &before, &now), -ECONNRESET);
    assert_true(raw_dropped(&other));
    raw_close(&other);
    raw_slab_close(&slab);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

/* Each has its range, and all may be set to what they are. */
static void every_limit_can_be_set(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    struct raw_client client = client_open();
    uint64_t before, now;
    for (unsigned i = 0; i < CW_LIMIT_COUNT; i++) {
        const char *name = cw_limit_name(i);
        uint64_t value = CW_LOAD(MON, &broker.root->limits[i], relaxed);
        assert_int_equal(set_limit(&client, name, (uint32_t)strlen(name), value, &before, &now), 0);
        assert_int_equal(before, value);
        assert_int_equal(now, value);
        assert_true(set_limit(&client, name, (uint32_t)strlen(name), UINT64_MAX, &before, &now) <
                    0);
        assert_int_equal(CW_LOAD(MON, &broker.root->limits[i], relaxed), value);
    }
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void max_clients(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_clients, 2);
    struct raw_client one = client_open(), two = client_open(), three;
    assert_int_equal(raw_connect(&broker, &three), -EDQUOT);
    assert_says(three.sentence, CW_LIMIT_max_clients, 2);
    raw_bye(&two); /* and there is room again */
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 1));
    two = client_open();
    raw_bye(&two);
    raw_bye(&one);
    raw_broker_remove(&broker);
}

static void max_names(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_names, 2);
    struct raw_client client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "a", 0), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "b", 0), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "c", 0), -EDQUOT);
    assert_says(client.sentence, CW_LIMIT_max_names, 2);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 2, "b", CW_PUT_REPLACE), 0);
    assert_int_equal(raw_remove(&client, "a"), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 1, "c", 0), 0);
    raw_slab_close(&slab);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

/* As many slabs as may be, and one more. */
static void slabs_up_to(enum cw_limit limit, uint64_t number, unsigned fit) {
    broker_with(limit, number);
    struct raw_client client = client_open();
    struct raw_slab slab;
    for (unsigned i = 0; i < fit; i++) {
        assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
        raw_slab_close(&slab);
    }
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), -EDQUOT);
    assert_says(client.sentence, limit, number);
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), fit);
    raw_bye(&client);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_fds) == 0));
    client = client_open(); /* what was refused left nothing charged */
    for (unsigned i = 0; i < fit; i++) {
        assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
        raw_slab_close(&slab);
    }
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void max_slabs(void **state) {
    (void)state;
    slabs_up_to(CW_LIMIT_max_slabs, 3, 3);
}

static void max_client_slabs(void **state) {
    (void)state;
    slabs_up_to(CW_LIMIT_max_client_slabs, 2, 2);
}

static void max_bytes(void **state) {
    (void)state;
    slabs_up_to(CW_LIMIT_max_bytes, 2200000,
                2); /* max_user_bytes is as large: what was set is named */
}

/* What another process is told that asks for a slab, or for nothing but a connection. */
static int of_another_process(bool slab_too) {
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client client;
        struct raw_slab slab;
        int code = raw_connect(&broker, &client);
        if (code == 0 && slab_too)
            code = raw_slab_add(&client, SLAB_BYTES, 16, &slab);
        _exit(-code);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return -WEXITSTATUS(status);
}

static void max_client_bytes(void **state) {
    (void)state;
    slabs_up_to(CW_LIMIT_max_client_bytes, 2200000, 2);
    broker_with(CW_LIMIT_max_client_bytes, 1500000);
    struct raw_client client = client_open(), other = client_open();
    struct raw_slab slabs[3];
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slabs[0]), 0);
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slabs[1]), -EDQUOT);
    assert_says(client.sentence, CW_LIMIT_max_client_bytes, 1500000);
    assert_non_null(strstr(client.sentence, "a slab of 1048576 bytes was asked for, 10"));
    assert_int_equal(raw_slab_add(&other, SLAB_BYTES, 16, &slabs[1]), 0); /* of this process, too */
    assert_int_equal(of_another_process(true), 0);
    raw_bye(&other);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void max_pid_bytes(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_pid_bytes, 2200000);
    struct raw_client client = client_open(), other = client_open();
    struct raw_slab slabs[3];
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slabs[0]), 0);
    assert_int_equal(raw_slab_add(&other, SLAB_BYTES, 16, &slabs[1]), 0);
    assert_int_equal(raw_slab_add(&other, SLAB_BYTES, 16, &slabs[2]), -EDQUOT);
    assert_says(other.sentence, CW_LIMIT_max_pid_bytes, 2200000);
    assert_int_equal(of_another_process(true), 0);
    raw_bye(&client); /* its slab has no owner now, and is not this process's */
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 1));
    assert_int_equal(raw_slab_add(&other, SLAB_BYTES, 16, &slabs[2]), 0);
    raw_bye(&other);
    raw_broker_remove(&broker);
}

static void max_pid_clients(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_pid_clients, 2);
    struct raw_client one = client_open(), two = client_open(), three;
    char clause[80];
    assert_int_equal(raw_connect(&broker, &three), -EDQUOT);
    assert_says(three.sentence, CW_LIMIT_max_pid_clients, 2);
    snprintf(clause, sizeof clause, "process %d has 2 clients connected", (int)getpid());
    assert_non_null(strstr(three.sentence, clause));
    assert_int_equal(of_another_process(false), 0);
    raw_bye(&two);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 1));
    two = client_open();
    /* 0: as max_clients, also when that one changes. */
    uint64_t before, now;
    assert_int_equal(set_limit(&one, "max_pid_clients", 15, 0, &before, &now), 0);
    assert_int_equal(before, 2);
    assert_int_equal(now, 256);
    assert_int_equal(set_limit(&one, "max_clients", 11, 3, &before, &now), 0);
    assert_int_equal(CW_LOAD(MON, &broker.root->limits[CW_LIMIT_max_pid_clients], relaxed), 3);
    three = client_open();
    raw_bye(&three);
    raw_bye(&two);
    raw_bye(&one);
    raw_broker_remove(&broker);
}

/* Whoever is refused in a loop is heard ten times a second, others at once. */
static void who_is_refused_again_and_again_is_heard_later(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_clients, 1);
    struct raw_client held = client_open(), refused;
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(raw_connect(&broker, &refused), -EDQUOT);
    int64_t begun_ns = cw_now_ns();
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(raw_connect(&broker, &refused), -EDQUOT);
    assert_true(cw_now_ns() - begun_ns >= 500000000); /* some were given back meanwhile */
    assert_says(refused.sentence, CW_LIMIT_max_clients, 1);
    /* Connections that end while they wait cost nothing, and nothing of them stays. */
    for (unsigned i = 0; i < 500; i++) {
        int sock = raw_dial(&broker), pidfd = raw_pidfd(getpid());
        assert_int_equal(raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, pidfd), 0);
        close(pidfd);
        close(sock);
    }
    assert_int_equal(of_another_process(false), -EDQUOT);
    assert_int_equal(raw_ping(&held), 0);
    /* There is room: it gets in, at the latest when it is heard. */
    raw_bye(&held);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 0));
    held = client_open();
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_fds) == 5));
    raw_bye(&held);
    raw_broker_remove(&broker);
}

static void max_user_bytes(void **state) {
    (void)state;
    slabs_up_to(CW_LIMIT_max_user_bytes, 2200000, 2);
}

static void max_fds(void **state) {
    (void)state;
    slabs_up_to(CW_LIMIT_max_fds, 32, (32 - 5) / 2);
}

static void max_client_leases(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_client_leases, 3 * CW_LEASE_TABLE_SLOTS);
    struct raw_client client = client_open();
    for (int i = 0; i < 2; i++) {
        struct cw_segment_reply reply;
        struct cw_segment table;
        assert_int_equal(raw_exchange(&client, CW_OP_LEASE_TABLE, NULL, 0, NULL, 0, &mail), 0);
        memcpy(&reply, mail.body, sizeof reply);
        assert_int_equal(
            cw_segment_open(mail.fds[0], reply.size_bytes, CW_SEGMENT_LEASES, true, 0, &table), 0);
        cw_segment_close(&table);
    }
    assert_int_equal(raw_exchange(&client, CW_OP_LEASE_TABLE, NULL, 0, NULL, 0, &mail), -EDQUOT);
    assert_says(client.sentence, CW_LIMIT_max_client_leases, 3 * CW_LEASE_TABLE_SLOTS);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void max_client_transits(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_client_transits, 2);
    struct raw_client client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    uint64_t first = raw_transit_begin(&client, slab.id, 0, gen);
    raw_transit_begin(&client, slab.id, 0, gen);
    raw_transit_begin(&client, slab.id, 0, gen); /* does nothing; the row shows that it would */
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_transits), 2);
    assert_int_equal(CW_LOAD(M1, &broker.root->clients[0].transits, relaxed), 2);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_limits_hit), 1);
    raw_transit_end(&client, first);
    raw_transit_begin(&client, slab.id, 0, gen);
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_transits), 2);
    raw_slab_close(&slab);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void max_client_waits(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_client_waits, 2);
    struct raw_client client = client_open();
    raw_wait(&client, "a");
    raw_wait(&client, "b");
    uint64_t id = raw_wait(&client, "c");
    assert_int_equal(raw_reply(&client, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(mail.head.id, id);
    assert_int_equal(mail.head.status, -EDQUOT);
    assert_says(client.sentence, CW_LIMIT_max_client_waits, 2);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

static void max_client_fence_pages(void **state) {
    (void)state;
    broker_with(CW_LIMIT_max_client_fence_pages, 2);
    struct raw_client client = client_open();
    struct cw_fence_page page;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(raw_exchange(&client, CW_OP_FENCES_ADD, NULL, 0, NULL, 0, &mail), 0);
        memcpy(&page, mail.body, sizeof page);
        close(mail.fds[0]);
    }
    assert_int_equal(raw_exchange(&client, CW_OP_FENCES_ADD, NULL, 0, NULL, 0, &mail), -EDQUOT);
    assert_says(client.sentence, CW_LIMIT_max_client_fence_pages, 2);
    struct raw_client other = client_open(); /* each client has its own */
    assert_int_equal(raw_exchange(&other, CW_OP_FENCES_ADD, NULL, 0, NULL, 0, &mail), 0);
    close(mail.fds[0]);
    assert_int_equal(raw_post(&client, CW_OP_FENCES_BREAK, 0, &page, sizeof page), 0);
    assert_int_equal(raw_ping(&client), 0); /* a page that broke counts no more */
    assert_int_equal(raw_exchange(&client, CW_OP_FENCES_ADD, NULL, 0, NULL, 0, &mail), 0);
    close(mail.fds[0]);
    raw_bye(&other);
    raw_bye(&client);
    raw_broker_remove(&broker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_is_set_while_the_broker_runs),
        cmocka_unit_test(every_limit_can_be_set),
        cmocka_unit_test(max_clients),
        cmocka_unit_test(max_names),
        cmocka_unit_test(max_slabs),
        cmocka_unit_test(max_client_slabs),
        cmocka_unit_test(max_bytes),
        cmocka_unit_test(max_user_bytes),
        cmocka_unit_test(max_client_bytes),
        cmocka_unit_test(max_pid_bytes),
        cmocka_unit_test(max_pid_clients),
        cmocka_unit_test(who_is_refused_again_and_again_is_heard_later),
        cmocka_unit_test(max_fds),
        cmocka_unit_test(max_client_leases),
        cmocka_unit_test(max_client_waits),
        cmocka_unit_test(max_client_transits),
        cmocka_unit_test(max_client_fence_pages),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
