/*
 * Promises to others while one client's requests are refused again and again, and to that one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/session/refusals.h"
#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define SLAB_BYTES (1u << 20)
#define AT_ONCE    ((unsigned)CWD_REFUSALS_AT_ONCE)
#define BEYOND     100u /* refusals that are paid for with time */
#define SECOND_NS  1000000000LL

static struct raw_mail mail;
static struct raw_broker broker;

static int start(void **state) {
    (void)state;
    return raw_broker_start(&broker, NULL, NULL) ? 0 : -1;
}

static int finish(void **state) {
    (void)state;
    return raw_broker_finish(&broker);
}

static struct raw_client client_open(void) {
    struct raw_client client;
    assert_int_equal(raw_connect(&broker, &client), 0);
    return client;
}

/* A PUT under "/", which is no name. */
struct bad_put {
    struct cw_put put;
    char key[2];
};

static uint32_t bad_put_make(uint8_t *body) {
    struct bad_put bad = {.put = {.key_bytes = sizeof bad.key}, .key = {0, '/'}};
    memcpy(body, &bad.put, sizeof bad.put);
    memcpy(body + sizeof bad.put, bad.key, sizeof bad.key);
    return (uint32_t)(sizeof bad.put + sizeof bad.key);
}

/* So many refused requests, each after the answer to the one before. Returns the time. */
static int64_t refused_one_by_one(struct raw_client *client, unsigned count) {
    uint8_t body[sizeof(struct bad_put)];
    uint32_t bytes = bad_put_make(body);
    int64_t begin_ns = cw_now_ns();
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(raw_call(client, CW_OP_PUT, body, bytes, &mail), -EINVAL);
    return cw_now_ns() - begin_ns;
}

static void who_is_refused_again_and_again_is_slowed_down(void **state) {
    (void)state;
    struct raw_client client = client_open();
    /* Of all together: where this process waits for a core, its bucket fills. */
    int64_t took_ns = refused_one_by_one(&client, AT_ONCE + BEYOND);
    assert_true((double)took_ns >= 0.9 * BEYOND / CWD_REFUSALS_PER_SECOND * SECOND_NS);
    raw_bye(&client);
}

/* Requests that are all refused stand in its ring; another process is served meanwhile. */
static void others_are_served_meanwhile(void **state) {
    (void)state;
    struct raw_client flood = client_open();
    uint8_t body[sizeof(struct bad_put)];
    uint32_t bytes = bad_put_make(body);
    int ends[2];
    bool told = false;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork(); /* another process: it may be refused as often for itself */
    if (pid == 0) {
        struct raw_client other = client_open();
        int64_t took_ns = refused_one_by_one(&other, AT_ONCE / 2);
        bool quick = took_ns < (int64_t)(AT_ONCE / 2) * 5 * CWD_REFUSALS_PAUSE_NS / 10;
        for (unsigned i = 0; i < 100 && quick; i++)
            quick = raw_ping(&other) == 0;
        raw_bye(&other);
        _exit(write(ends[1], &quick, sizeof quick) == sizeof quick ? 0 : 1);
    }
    refused_one_by_one(&flood, 2 * AT_ONCE);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 64; i++)
            assert_int_equal(raw_post(&flood, CW_OP_PUT, i, body, bytes), 0);
        for (unsigned i = 0; i < 64; i++) { /* all are answered, in their order */
            assert_int_equal(raw_reply(&flood, &mail, RAW_TIMEOUT_MS), 1);
            assert_int_equal(mail.head.id, i);
            assert_int_equal(mail.head.status, -EINVAL);
        }
    }
    assert_int_equal(read(ends[0], &told, sizeof told), sizeof told);
    assert_true(told);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(ends[0]);
    close(ends[1]);
    raw_bye(&flood);
}

/* What stands in a ring that is not read just now counts: a handle under way is not lost. */
static void what_it_begins_meanwhile_is_not_lost(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "name", 0), 0);
    refused_one_by_one(&client, 2 * AT_ONCE);
    for (unsigned i = 0; i < 20; i++) {
        uint64_t token = raw_transit_begin(&client, slab.id, 0, gen);
        if (i == 0) {
            raw_unlease(&client, 0);
            assert_int_equal(raw_remove(&client, "name"), 0);
        } else
            raw_transit_end(&client, token - 1);
        refused_one_by_one(&client, 3);
        uint64_t word = CW_LOAD(B10, &slab.table->blocks[0].word, seq_cst);
        assert_true(cw_block_state(word) == CW_BLOCK_LIVE && cw_block_gen(word) == gen);
    }
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_transits), 1);
    raw_slab_close(&slab);
    raw_bye(&client);
}

/* It dies while it pauses, with requests in its ring: nobody waits for them. */
static void who_dies_meanwhile_gives_back_at_once(void **state) {
    (void)state;
    struct raw_client other = client_open();
    int ends[2];
    char ready;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client client = client_open();
        struct raw_slab slab;
        uint8_t body[sizeof(struct bad_put)];
        uint32_t bytes = bad_put_make(body);
        if (raw_slab_add(&client, SLAB_BYTES, 16, &slab) != 0)
            _exit(1);
        refused_one_by_one(&client, 2 * AT_ONCE);
        for (unsigned i = 0; i < 64; i++)
            raw_post(&client, CW_OP_PUT, i, body, bytes);
        if (write(ends[1], "r", 1) != 1)
            _exit(2);
        pause();
        _exit(0);
    }
    assert_int_equal(read(ends[0], &ready, 1), 1);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 0));
    assert_int_equal(raw_ping(&other), 0);
    close(ends[0]);
    close(ends[1]);
    raw_bye(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_is_refused_again_and_again_is_slowed_down, start,
                                        finish),
        cmocka_unit_test_setup_teardown(others_are_served_meanwhile, start, finish),
        cmocka_unit_test_setup_teardown(what_it_begins_meanwhile_is_not_lost, start, finish),
        cmocka_unit_test_setup_teardown(who_dies_meanwhile_gives_back_at_once, start, finish),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
