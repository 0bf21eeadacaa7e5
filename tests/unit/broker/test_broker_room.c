/*
 * ROOM: slabs that clients keep free are taken back for one who is about to be refused, and no slab
 * of which anything is held, or may be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/unit/raw_client.h"

#define SLAB_BYTES (1u << 20)

static struct raw_mail mail;
static struct raw_broker broker;
static struct raw_client maker, asker;
static struct raw_slab slab;

static int start(void **state) {
    (void)state;
    return raw_broker_start(&broker, NULL, NULL) && raw_connect(&broker, &maker) == 0 &&
                   raw_connect(&broker, &asker) == 0 &&
                   raw_slab_add(&maker, SLAB_BYTES, 64, &slab) == 0
               ? 0
               : -1;
}

static int finish(void **state) {
    (void)state;
    bool well = raw_broker_reap(&broker, 0) == -1 && raw_ping(&asker) == 0;
    if (!well)
        print_error("broker: %s\n", raw_broker_said(&broker));
    raw_slab_close(&slab);
    raw_close(&maker);
    raw_close(&asker);
    raw_broker_remove(&broker);
    return well ? 0 : -1;
}

/* Asks as the library does: until nothing is unsettled. */
static struct cw_room room(struct raw_client *client, uint64_t size_bytes) {
    struct cw_room answer = {.turn = 0}, sum = {.turn = 0};
    do {
        struct cw_room wish = {.size_bytes = size_bytes, .turn = answer.turn, .next = answer.next};
        assert_int_equal(raw_call(client, CW_OP_ROOM, &wish, sizeof wish, &mail), 0);
        assert_int_equal(mail.body_bytes, sizeof answer);
        memcpy(&answer, mail.body, sizeof answer);
        sum.size_bytes += answer.size_bytes;
        sum.slabs += answer.slabs;
    } while (sum.size_bytes < size_bytes && (answer.next || answer.unsettled));
    return sum;
}

static bool withdrawn(void) {
    return cw_table_withdrawn(slab.table);
}

static uint64_t pages(void) {
    struct stat status;
    return fstat(slab.data.fd, &status) == 0 ? (uint64_t)status.st_blocks : UINT64_MAX;
}

static void a_slab_with_nothing_in_it_is_taken_back(void **state) {
    (void)state;
    uint64_t bytes = raw_gauge(&broker, CW_GAUGE_bytes);
    assert_true(pages() > 0);
    struct cw_room got = room(&asker, SLAB_BYTES);
    assert_int_equal(got.slabs, 1);
    assert_true(got.size_bytes >= SLAB_BYTES);
    assert_true(withdrawn());
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_bytes) + got.size_bytes == bytes));
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), 0);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_slabs_withdrawn), 1);
    assert_true(RAW_UNTIL(pages() == 0)); /* though it is mapped here */
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 0);
    struct cw_slab_request close = {.slab = slab.id}; /* of a slab that is gone: nothing */
    assert_int_equal(raw_post(&maker, CW_OP_SLAB_CLOSE, 7, &close, sizeof close), 0);
    assert_int_equal(raw_ping(&maker), 0);
}

static void ones_own_slabs_stay(void **state) {
    (void)state;
    assert_int_equal(room(&maker, SLAB_BYTES).slabs, 0);
    assert_false(withdrawn());
}

static void no_more_is_taken_than_is_wanted(void **state) {
    (void)state;
    struct raw_slab others[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(raw_slab_add(&maker, SLAB_BYTES, 64, &others[i]), 0);
    assert_int_equal(room(&asker, SLAB_BYTES + 100000).slabs, 2);
    assert_true(withdrawn() && cw_table_withdrawn(others[0].table)); /* the oldest first */
    assert_int_equal(room(&asker, 0).slabs, 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), 2);
    for (int i = 0; i < 3; i++)
        raw_slab_close(&others[i]);
}

/* Who is about to carve has stored its slot, and carves without asking anybody. */
static void an_owner_that_is_about_to_carve_keeps_its_slab(void **state) {
    (void)state;
    raw_lease(&maker, 5, slab.id, 5);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 0);
    assert_true(cw_table_keep(slab.table));
    raw_unlease(&maker, 5);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 1);
    raw_lease(&maker, 5, slab.id, 5);
    assert_false(cw_table_keep(slab.table));
}

static void what_is_alive_keeps_its_slab(void **state) {
    (void)state;
    uint64_t gen = raw_carve(&maker, &slab, 3, 0, 4096);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 0); /* its maker holds it */
    assert_int_equal(raw_put(&maker, slab.id, 3, gen, 4096, "x", 0), 0);
    raw_unlease(&maker, 3);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 0); /* a name does */
    raw_lease(&asker, 9, slab.id, 3);
    assert_int_equal(raw_remove(&maker, "x"), 0);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 0); /* a reader does */
    struct cw_block_ref ref = {
        .token = (uint64_t)asker.session << 32 | 1, .slab = slab.id, .block = 3, .gen = gen};
    assert_int_equal(raw_post(&asker, CW_OP_TRANSIT_BEGIN, 7, &ref, sizeof ref), 0);
    raw_unlease(&asker, 9);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 0); /* a transit does */
    assert_int_equal(raw_post(&asker, CW_OP_TRANSIT_END, 8, &ref, sizeof ref), 0);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 1);
}

/* The next word after REMOVE: the block was not looked at yet. */
static void what_was_just_removed_is_waited_for(void **state) {
    (void)state;
    uint64_t gen = raw_carve(&maker, &slab, 3, 0, 4096);
    assert_int_equal(raw_put(&maker, slab.id, 3, gen, 4096, "x", 0), 0);
    raw_unlease(&maker, 3);
    assert_int_equal(raw_remove(&asker, "x"), 0);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 1);
}

/* A table that somebody wrote into frees nothing of which the broker knows that it is held. */
static void a_table_that_lies_frees_nothing_that_others_hold(void **state) {
    (void)state;
    uint64_t gen = raw_carve(&maker, &slab, 3, 0, 4096);
    assert_int_equal(raw_put(&maker, slab.id, 3, gen, 4096, "x", 0), 0);
    raw_unlease(&maker, 3);
    CW_STORE(B7, &slab.table->blocks[3].word, gen << CW_BLOCK_GEN_SHIFT, release);
    assert_int_equal(room(&asker, SLAB_BYTES).slabs, 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), 1);
    for (uint32_t word = 1; word < 9; word++) {
        CW_STORE(B19, &slab.table->withdrawn, word, relaxed);
        assert_int_equal(room(&asker, SLAB_BYTES).slabs, 0);
    }
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), 1);
}

/* Left by a broker that was killed between its two words. */
static void an_owner_takes_a_withdrawal_back_that_nobody_ends(void **state) {
    (void)state;
    assert_true(cw_table_withdraw(slab.table));
    raw_lease(&maker, 5, slab.id, 5);
    assert_true(cw_table_keep(slab.table));
    assert_false(cw_table_commit(slab.table));
    raw_unlease(&maker, 5);
}

/* More tables than are looked at in a turn. */
static void many_slabs_are_looked_at_in_turns(void **state) {
    (void)state;
    enum { SLABS = 20, BLOCKS = 16384 };
    struct raw_slab others[SLABS];
    for (int i = 0; i < SLABS; i++) {
        assert_int_equal(raw_slab_add(&maker, SLAB_BYTES, BLOCKS, &others[i]), 0);
        raw_lease(&maker, (uint32_t)i, others[i].id, BLOCKS - 1);
        cw_block_carve(&others[i].table->blocks[BLOCKS - 1], 0, 4096);
    }
    cw_block_free_local(&others[SLABS - 1].table->blocks[BLOCKS - 1]);
    raw_unlease(&maker, SLABS - 1);
    assert_int_equal(room(&asker, 3 * SLAB_BYTES).slabs, 2);
    assert_true(withdrawn() && cw_table_withdrawn(others[SLABS - 1].table));
    for (int i = 0; i < SLABS; i++)
        raw_slab_close(&others[i]);
}

static int limit_bytes(uint64_t value) {
    struct {
        struct cw_limit_set set;
        char name[9];
    } body = {{.value = value, .name_bytes = 9}, {'m', 'a', 'x', '_', 'b', 'y', 't', 'e', 's'}};
    return raw_call(&asker, CW_OP_LIMIT_SET, &body, sizeof body.set + sizeof body.name, &mail);
}

static int check_slab(uint64_t size_bytes, uint32_t blocks) {
    struct cw_room wish = {.size_bytes = size_bytes, .slabs = blocks, .what = CW_ROOM_CHECK};
    return raw_call(&asker, CW_OP_ROOM, &wish, sizeof wish, &mail);
}

/* As one that is refused again and again, for more than there can be. */
static void what_is_not_enough_is_left_to_its_owner(void **state) {
    (void)state;
    uint64_t bytes = raw_gauge(&broker, CW_GAUGE_bytes);
    assert_int_equal(limit_bytes(bytes), 0);
    assert_int_equal(room(&asker, 3 * SLAB_BYTES).slabs, 0);
    assert_int_equal(room(&asker, UINT64_MAX).slabs, 0);
    assert_false(withdrawn());
    assert_int_equal(limit_bytes(bytes + 2 * SLAB_BYTES), 0); /* with what is free, it is enough */
    assert_int_equal(room(&asker, 3 * SLAB_BYTES).slabs, 1);
    assert_true(withdrawn());
}

static void a_check_tells_what_would_be_refused_and_changes_nothing(void **state) {
    (void)state;
    uint64_t bytes = raw_gauge(&broker, CW_GAUGE_bytes);
    assert_int_equal(limit_bytes(bytes + SLAB_BYTES), 0);
    uint64_t hits = raw_counter(&broker, CW_COUNTER_limits_hit);
    assert_int_equal(check_slab(SLAB_BYTES / 2, 64), 0);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_limits_hit), hits);
    assert_int_equal(check_slab(SLAB_BYTES, 64), -EDQUOT); /* its table is too much */
    assert_non_null(strstr((char *)mail.body, "max_bytes"));
    assert_int_equal(check_slab(UINT64_MAX, 64), -EINVAL);
    assert_int_equal(check_slab(SLAB_BYTES, 0), -EINVAL);
    assert_int_equal(raw_counter(&broker, CW_COUNTER_limits_hit), hits + 1);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_bytes), bytes);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), 1);
    assert_false(withdrawn());
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_slab_with_nothing_in_it_is_taken_back),
        TEST(ones_own_slabs_stay),
        TEST(no_more_is_taken_than_is_wanted),
        TEST(an_owner_that_is_about_to_carve_keeps_its_slab),
        TEST(what_is_alive_keeps_its_slab),
        TEST(what_was_just_removed_is_waited_for),
        TEST(a_table_that_lies_frees_nothing_that_others_hold),
        TEST(an_owner_takes_a_withdrawal_back_that_nobody_ends),
        TEST(many_slabs_are_looked_at_in_turns),
        TEST(what_is_not_enough_is_left_to_its_owner),
        TEST(a_check_tells_what_would_be_refused_and_changes_nothing),
    };
    return cmocka_run_group_tests_name("room for others", tests, NULL, NULL);
}
