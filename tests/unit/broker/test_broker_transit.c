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
#include <string.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transit_that_was_not_read_yet_holds_its_block),
        cmocka_unit_test(a_client_that_reads_nothing_keeps_nobodys_memory),
        cmocka_unit_test(a_damaged_handle_ends_no_other_handles_transit),
        cmocka_unit_test(what_is_tied_to_a_queue_ends_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
