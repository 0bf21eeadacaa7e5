/*
 * Transits and leases that pass each other: a block that somebody is handing on is never taken for
 * one that nobody holds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/raw_client.h"

#define MANY 200 /* requests: more than the broker serves of one client in a turn */

static struct raw_broker broker;
static struct raw_mail mail;

static struct raw_client client_open(void) {
    struct raw_client client;
    assert_int_equal(raw_connect(&broker, &client), 0);
    return client;
}

static int holders(struct raw_client *client, const struct raw_slab *slab, uint64_t gen) {
    struct cw_block_ref ref = {.slab = slab->id, .block = 0, .gen = gen};
    return raw_call(client, CW_OP_HOLDERS, &ref, sizeof ref, &mail);
}

/* Its holder begins a transit and drops its lease without a word; the BEGIN still stands in its
 * ring when the broker hears that the transit before has ended. */
static void a_transit_that_was_not_read_yet_holds_its_block(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    struct raw_client holder = client_open(), opener = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&holder, 1 << 20, 16, &slab), 0);
    uint64_t gen = raw_carve(&holder, &slab, 0, 0, 4096);
    uint64_t first = raw_transit_begin(&holder, slab.id, 0, gen);
    assert_int_equal(raw_ping(&holder), 0);
    kill(broker.pid, SIGSTOP);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(raw_post(&holder, CW_OP_PING, ++holder.next_id, NULL, 0), 0);
    uint64_t second = raw_transit_begin(&holder, slab.id, 0, gen);
    raw_unlease(&holder, 0);
    raw_transit_end(&opener, first);
    kill(broker.pid, SIGCONT);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(raw_reply(&holder, &mail, RAW_TIMEOUT_MS), 1);
    assert_int_equal(raw_ping(&opener), 0);
    assert_int_equal(raw_ping(&holder), 0);
    assert_int_equal(holders(&opener, &slab, gen), 0);
    raw_transit_end(&opener, second); /* and when that ends too, nobody has it */
    assert_true(RAW_UNTIL(holders(&opener, &slab, gen) == -ESTALE));
    raw_slab_close(&slab);
    raw_bye(&opener);
    raw_bye(&holder);
    raw_broker_remove(&broker);
}

/* Who takes no replies is not waited for. */
static void a_client_that_reads_nothing_keeps_nobodys_memory(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    struct raw_client stuck = client_open(), client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, 1 << 20, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    uint64_t token = raw_transit_begin(&client, slab.id, 0, gen);
    assert_int_equal(raw_ping(&client), 0);
    const struct cw_message ping = {.size_bytes = sizeof ping, .op = CW_OP_PING};
    for (int full = 0; full < 20;) { /* until its replies' ring is full, and its requests stand */
        if (cw_ring_write(&stuck.requests, CW_OP_PING, &ping, sizeof ping) == 0) {
            raw_ring(&stuck);
            full = 0;
        } else {
            raw_pause();
            full++;
        }
    }
    raw_unlease(&client, 0);
    raw_transit_end(&client, token);
    assert_true(RAW_UNTIL(holders(&client, &slab, gen) == -ESTALE));
    raw_slab_close(&slab);
    raw_bye(&client);
    raw_close(&stuck);
    raw_broker_remove(&broker);
}

/* Tokens can be guessed, and handles come damaged: what says a number that nobody has handed out
 * yet ends nothing of who gets it later, and what says another's number ends nothing of his. */
static void a_damaged_handle_ends_no_other_handles_transit(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    struct raw_client maker = client_open(), opener = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&maker, 1 << 20, 16, &slab), 0);
    uint64_t gen = raw_carve(&maker, &slab, 0, 0, 4096);
    uint64_t other_gen = raw_carve(&maker, &slab, 1, 4096, 4096);
    for (uint32_t i = 1; i < 100; i++)
        raw_transit_end_of(&opener, (uint64_t)maker.session << 32 | i, slab.id, 0, gen);
    assert_int_equal(raw_ping(&opener), 0);
    assert_int_equal(raw_ping(&maker), 0); /* all that it had said by then was read */
    uint64_t token = raw_transit_begin(&maker, slab.id, 0, gen);
    raw_unlease(&maker, 0);
    raw_drop(&maker, slab.id, 0, gen);
    assert_int_equal(raw_ping(&maker), 0);
    assert_int_equal(holders(&opener, &slab, gen), 0);
    raw_transit_end_of(&opener, token, slab.id, 1, other_gen);
    raw_transit_end_of(&opener, token, slab.id, 0, gen + 1);
    assert_int_equal(raw_ping(&opener), 0);
    assert_int_equal(holders(&opener, &slab, gen), 0);
    raw_transit_end_of(&opener, token, slab.id, 0, gen);
    assert_true(RAW_UNTIL(holders(&opener, &slab, gen) == -ESTALE));
    raw_slab_close(&slab);
    raw_bye(&opener);
    raw_bye(&maker);
    raw_broker_remove(&broker);
}

/* Ties the transit of block 1 to block 0, and drops both leases. */
static void tie_and_leave(struct raw_client *maker, const struct raw_slab *slab, uint64_t queue,
                          uint64_t item) {
    uint64_t token = raw_transit_begin(maker, slab->id, 1, item);
    struct cw_block_ref to = {.token = token, .slab = slab->id, .block = 0, .gen = queue};
    assert_int_equal(raw_post(maker, CW_OP_TRANSIT_ANCHOR, 0, &to, sizeof to), 0);
    raw_unlease(maker, 1);
    raw_drop(maker, slab->id, 1, item);
}

static void what_is_tied_to_a_queue_ends_with_it(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL)); /* transit_seconds is 300 */
    struct raw_client maker = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&maker, 1 << 20, 16, &slab), 0);
    for (int late = 0; late < 2; late++) {
        uint64_t queue = raw_carve(&maker, &slab, 0, 0, 4096);
        uint64_t item = raw_carve(&maker, &slab, 1, 4096, 4096);
        if (late) { /* the queue has gone before it is said what is tied to it */
            raw_unlease(&maker, 0);
            raw_drop(&maker, slab.id, 0, queue);
            assert_true(RAW_UNTIL(holders(&maker, &slab, queue) == -ESTALE));
        }
        tie_and_leave(&maker, &slab, queue, item);
        if (!late) {
            assert_int_equal(raw_ping(&maker), 0);
            assert_int_equal(raw_gauge(&broker, CW_GAUGE_transits), 1);
            raw_unlease(&maker, 0);
            raw_drop(&maker, slab.id, 0, queue);
        }
        assert_true(RAW_UNTIL(raw_ping(&maker) == 0 && raw_gauge(&broker, CW_GAUGE_transits) == 0));
        assert_true(
            RAW_UNTIL(cw_block_state(atomic_load(&slab.table->blocks[1].word)) == CW_BLOCK_FREE));
    }
    raw_slab_close(&slab);
    raw_bye(&maker);
    raw_broker_remove(&broker);
}

/* A transit of block 0 for so many openers, whose maker has let go. */
static uint64_t share_and_leave(struct raw_client *maker, const struct raw_slab *slab, uint64_t gen,
                                uint32_t openers) {
    uint64_t token = raw_transit_share(maker, slab->id, 0, gen, openers);
    raw_unlease(maker, 0);
    raw_drop(maker, slab->id, 0, gen);
    return token;
}

static bool transits_are(struct raw_client *client, uint64_t count) {
    return raw_ping(client) == 0 && raw_gauge(&broker, CW_GAUGE_transits) == count;
}

static void it_ends_with_its_last_opener_and_not_before(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    struct raw_client maker = client_open(), opener = client_open(), other = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&maker, 1 << 20, 16, &slab), 0);
    for (int dies = 0; dies < 2; dies++) { /* its maker or not, at the end */
        uint64_t gen = raw_carve(&maker, &slab, 0, 0, 4096);
        uint64_t token = share_and_leave(&maker, &slab, gen, 3);
        assert_int_equal(raw_ping(&maker), 0);
        if (dies)
            raw_close(&maker);
        raw_transit_opened(&opener, token);
        raw_transit_opened(&opener, token); /* openings are counted, not openers */
        assert_int_equal(raw_ping(&opener), 0);
        assert_int_equal(holders(&opener, &slab, gen), 0);
        assert_true(transits_are(&opener, 1));
        raw_transit_opened(&other, token);
        assert_true(RAW_UNTIL(holders(&other, &slab, gen) == -ESTALE));
        raw_transit_opened(&other, token); /* one too many: nothing */
        assert_true(transits_are(&other, 0));
    }
    raw_slab_close(&slab);
    raw_bye(&opener);
    raw_bye(&other);
    raw_broker_remove(&broker);
}

/* The openings of several come before the broker has read that it began. */
static void openings_that_overtake_the_begin_are_counted(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    struct raw_client maker = client_open(), opener = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&maker, 1 << 20, 16, &slab), 0);
    for (uint32_t openers = 2; openers <= 4; openers++) {
        uint64_t gen = raw_carve(&maker, &slab, 0, 0, 4096);
        kill(broker.pid, SIGSTOP);
        for (int i = 0; i < MANY; i++)
            assert_int_equal(raw_post(&maker, CW_OP_PING, ++maker.next_id, NULL, 0), 0);
        uint64_t token = share_and_leave(&maker, &slab, gen, openers);
        for (int i = 0; i < 3; i++)
            raw_transit_opened(&opener, token);
        kill(broker.pid, SIGCONT);
        for (int i = 0; i < MANY; i++)
            assert_int_equal(raw_reply(&maker, &mail, RAW_TIMEOUT_MS), 1);
        assert_int_equal(raw_ping(&opener), 0);
        assert_int_equal(raw_ping(&maker), 0);
        if (openers == 4) { /* one is still to come */
            assert_int_equal(holders(&opener, &slab, gen), 0);
            raw_transit_opened(&opener, token);
        }
        assert_true(RAW_UNTIL(holders(&opener, &slab, gen) == -ESTALE));
        assert_true(transits_are(&opener, 0));
    }
    raw_slab_close(&slab);
    raw_bye(&opener);
    raw_bye(&maker);
    raw_broker_remove(&broker);
}

/* Nobody knows how many will open it: it stays for a time after the first; that its maker opens it
 * is none; who takes it back ends it. */
static void a_pickle_stays_for_a_time_after_its_first_opening(void **state) {
    (void)state;
    setenv("CABLEWAY_PICKLE_SECONDS", "1", 1);
    assert_true(raw_broker_start(&broker, NULL, NULL)); /* transit_seconds is 300 */
    unsetenv("CABLEWAY_PICKLE_SECONDS");
    struct raw_client maker = client_open(), opener = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&maker, 1 << 20, 16, &slab), 0);
    uint64_t gen = raw_carve(&maker, &slab, 0, 0, 4096);
    uint64_t kept = raw_carve(&maker, &slab, 1, 4096, 4096);
    uint64_t by_maker = raw_transit_share(&maker, slab.id, 1, kept, CW_OPENERS_ANY);
    raw_transit_opened(&maker, by_maker);
    uint64_t token = share_and_leave(&maker, &slab, gen, CW_OPENERS_ANY);
    assert_true(transits_are(&maker, 2));
    for (int i = 0; i < 3; i++)
        raw_transit_opened(&opener, token);
    assert_int_equal(raw_ping(&opener), 0);
    assert_int_equal(holders(&opener, &slab, gen), 0); /* for others who may come */
    assert_true(RAW_UNTIL(holders(&opener, &slab, gen) == -ESTALE));
    assert_true(transits_are(&opener, 1)); /* the other has 300 seconds */
    raw_transit_end(&opener, by_maker);
    assert_true(transits_are(&opener, 0));
    raw_slab_close(&slab);
    raw_bye(&opener);
    raw_bye(&maker);
    raw_broker_remove(&broker);
}

static void opened_pickles_are_worth_no_more_than_a_limit(void **state) {
    (void)state;
    setenv("CABLEWAY_MAX_PICKLE_BYTES", "8192", 1);
    assert_true(raw_broker_start(&broker, NULL, NULL)); /* pickle_seconds is 10 */
    unsetenv("CABLEWAY_MAX_PICKLE_BYTES");
    struct raw_client maker = client_open(), opener = client_open();
    struct raw_slab slab;
    uint64_t gens[4], tokens[4];
    assert_int_equal(raw_slab_add(&maker, 1 << 20, 16, &slab), 0);
    for (uint32_t i = 0; i < 4; i++) {
        gens[i] = raw_carve(&maker, &slab, i, i * 4096ull, 4096);
        tokens[i] = raw_transit_share(&maker, slab.id, i, gens[i], CW_OPENERS_ANY);
    }
    assert_int_equal(raw_ping(&maker), 0);
    for (uint32_t i = 0; i < 3; i++)
        raw_transit_opened(&opener, tokens[i]);
    assert_true(transits_are(&opener, 4)); /* one broadcast of much: all stay for a second */
    struct timespec more_than_a_second = {.tv_sec = 1, .tv_nsec = 100000000};
    nanosleep(&more_than_a_second, NULL);
    raw_transit_opened(&opener, tokens[3]);
    assert_true(transits_are(&opener, 2));
    raw_transit_opened(&opener, tokens[0]); /* over: nothing */
    assert_true(transits_are(&opener, 2));
    struct cw_room room, wish = {.size_bytes = 1ull << 40}; /* somebody is about to be refused */
    do { /* as clients do, which are told that blocks are still to be looked at */
        assert_int_equal(raw_call(&opener, CW_OP_ROOM, &wish, sizeof wish, &mail), 0);
        memcpy(&room, mail.body, sizeof room);
    } while (room.unsettled && !transits_are(&opener, 0));
    assert_true(transits_are(&opener, 0));
    gens[0] = raw_carve(&maker, &slab, 5, 5 * 4096ull, 4096);
    raw_transit_opened(&maker, raw_transit_share(&maker, slab.id, 5, gens[0], CW_OPENERS_ANY));
    assert_true(transits_are(&maker, 1));
    wish = (struct cw_room){.what = CW_ROOM_OPENED}; /* the same on a GPU */
    assert_int_equal(raw_call(&opener, CW_OP_ROOM, &wish, sizeof wish, &mail), 0);
    assert_true(transits_are(&opener, 0));
    raw_slab_close(&slab);
    raw_bye(&opener);
    raw_bye(&maker);
    raw_broker_remove(&broker);
}

struct told {
    struct cw_transits_reply head;
    struct cw_transit_told told[CW_TRANSITS_TOLD];
};

/* A reply that lies whole in mail: how many it tells of, each with the figures that it must have,
 * the oldest first. */
static uint32_t check_told(uint32_t session, uint32_t slab, uint64_t total) {
    static struct told reply;
    assert_int_equal(mail.head.status, 0);
    assert_true(mail.body_bytes >= sizeof reply.head && mail.body_bytes <= sizeof reply);
    memcpy(&reply, mail.body, mail.body_bytes);
    assert_int_equal(mail.body_bytes, sizeof reply.head + reply.head.count * sizeof *reply.told);
    assert_int_equal(reply.head.total, total);
    for (uint32_t i = 0; i < reply.head.count; i++) {
        const struct cw_transit_told *told = &reply.told[i];
        assert_int_equal(told->slab, slab);
        assert_int_equal(told->session, session);
        assert_int_equal(told->size_bytes, 4096);
        assert_int_equal(told->device_kind, CW_DEVICE_HOST);
        assert_int_equal(told->openers, 1);
        assert_true(told->left_ns > 0 && told->left_ns <= 300000000000);
        if (i > 0)
            assert_true(reply.told[i - 1].age_ns >= told->age_ns);
    }
    return reply.head.count;
}

/* The oldest are told, whatever else there is; with less room in the ring fewer of them. */
static void who_asks_is_told_the_oldest(void **state) {
    (void)state;
    assert_true(raw_broker_start(&broker, NULL, NULL));
    struct raw_client maker = client_open(), asker = client_open();
    struct raw_slab slab;
    uint32_t session = maker.session, many = 0, few = 0;
    assert_int_equal(raw_slab_add(&maker, 1 << 20, 16, &slab), 0);
    assert_int_equal(raw_call(&asker, CW_OP_TRANSITS, NULL, 0, &mail), 0);
    assert_int_equal(check_told(session, slab.id, 0), 0);
    uint64_t oldest = raw_carve(&maker, &slab, 7, 7 * 4096ull, 4096);
    (void)raw_transit_begin(&maker, slab.id, 7, oldest);
    assert_int_equal(raw_ping(&maker), 0);
    uint64_t gen = raw_carve(&maker, &slab, 0, 0, 4096);
    for (uint32_t i = 0; i < MANY; i++) {
        (void)raw_transit_begin(&maker, slab.id, 0, gen);
        assert_int_equal(raw_ping(&maker), 0);
    }
    /* More answers than the ring has room for, before any is read. */
    uint64_t answered = raw_counter(&broker, CW_COUNTER_requests);
    for (int i = 0; i < 60; i++)
        assert_int_equal(raw_post(&asker, CW_OP_TRANSITS, ++asker.next_id, NULL, 0), 0);
    /* Nine of them take the ring's 64 KiB but for some small ones. */
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_requests) >= answered + 10));
    for (int i = 0; i < 60; i++) {
        assert_int_equal(raw_reply(&asker, &mail, RAW_TIMEOUT_MS), 1);
        uint32_t count = check_told(session, slab.id, MANY + 1);
        struct cw_transit_told first;
        memcpy(&first, mail.body + sizeof(struct cw_transits_reply), sizeof first);
        assert_int_equal(first.block, 7);
        assert_int_equal(first.pid, getpid());
        many += count == CW_TRANSITS_TOLD;
        few += count == 14;
    }
    assert_int_equal(many + few, 60);
    assert_true(many > 0 && few > 0);
    raw_slab_close(&slab);
    raw_bye(&asker);
    raw_bye(&maker);
    raw_broker_remove(&broker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transit_that_was_not_read_yet_holds_its_block),
        cmocka_unit_test(a_client_that_reads_nothing_keeps_nobodys_memory),
        cmocka_unit_test(a_damaged_handle_ends_no_other_handles_transit),
        cmocka_unit_test(what_is_tied_to_a_queue_ends_with_it),
        cmocka_unit_test(it_ends_with_its_last_opener_and_not_before),
        cmocka_unit_test(openings_that_overtake_the_begin_are_counted),
        cmocka_unit_test(a_pickle_stays_for_a_time_after_its_first_opening),
        cmocka_unit_test(opened_pickles_are_worth_no_more_than_a_limit),
        cmocka_unit_test(who_asks_is_told_the_oldest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
