/*
 * The promises of shm/session/lease.h: a slot is one word that names slab and block; a table may be
 * found damaged and nothing breaks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "shm/session/lease.h"
#include "shm/session/session.h"
#include "tests/support.h"

static struct cw_lease_table table;

static void a_slot_names_slab_and_block_and_is_never_zero(void **state) {
    (void)state;
    struct chance chance = chance_init(1);
    const uint32_t edges[] = {0, 1, 0x7fffffff, 0xfffffffe};
    for (int i = 0; i < 100000; i++) {
        uint32_t slab = i < 16 ? edges[i / 4] : (uint32_t)chance_next(&chance);
        uint32_t block = i < 16 ? edges[i % 4] : (uint32_t)chance_below(&chance, UINT32_MAX);
        uint64_t slot = cw_lease_slot(slab, block);
        assert_int_not_equal(slot, 0);
        assert_int_equal(cw_lease_slab(slot), slab);
        assert_int_equal(cw_lease_block(slot), block);
    }
}

static void taking_fills_one_slot_and_dropping_empties_it(void **state) {
    (void)state;
    for (uint32_t i = 0; i < CW_LEASE_TABLE_SLOTS; i += 1365) {
        assert_int_equal(cw_lease_read(&table, i), 0);
        cw_lease_take(&table, i, 7, i);
        assert_int_equal(cw_lease_read(&table, i), cw_lease_slot(7, i));
        if (i)
            assert_int_equal(cw_lease_read(&table, i - 1), 0);
        cw_lease_drop(&table, i);
        assert_int_equal(cw_lease_read(&table, i), 0);
    }
}

static void a_scan_looks_at_the_slots_that_were_ever_used(void **state) {
    (void)state;
    static struct cw_lease_table own;
    assert_int_equal(cw_lease_count(&own), 0);
    cw_lease_take(&own, 0, 1, 1);
    assert_int_equal(cw_lease_count(&own), 1);
    cw_lease_take(&own, 41, 1, 1);
    cw_lease_take(&own, 7, 1, 1);
    assert_int_equal(cw_lease_count(&own), 42);
    cw_lease_drop(&own, 41); /* it was used */
    assert_int_equal(cw_lease_count(&own), 42);
    cw_lease_take(&own, CW_LEASE_TABLE_SLOTS - 1, 1, 1);
    assert_int_equal(cw_lease_count(&own), CW_LEASE_TABLE_SLOTS);
    CW_STORE(L4, &own.high, UINT32_MAX, seq_cst); /* a lie */
    assert_int_equal(cw_lease_count(&own), CW_LEASE_TABLE_SLOTS);
}

static int take_beyond(void *context) {
    (void)context;
    fclose(stderr);
    cw_lease_take(&table, CW_LEASE_TABLE_SLOTS, 1, 1);
    return 0;
}

static int drop_beyond(void *context) {
    (void)context;
    fclose(stderr);
    cw_lease_drop(&table, CW_LEASE_TABLE_SLOTS);
    return 0;
}

static void a_slot_beyond_the_table_is_our_own_fault(void **state) {
    (void)state;
    assert_int_equal(in_child(take_beyond, NULL), 128 + 6 /* SIGABRT */);
    assert_int_equal(in_child(drop_beyond, NULL), 128 + 6);
}

static void the_parts_of_a_session_do_not_overlap(void **state) {
    (void)state;
    assert_true(sizeof(struct cw_session) <= CW_SESSION_REQUESTS);
    assert_true(CW_SESSION_REQUESTS + cw_ring_size(CW_CHANNEL_BYTES) <= CW_SESSION_REPLIES);
    assert_true(CW_SESSION_REPLIES + cw_ring_size(CW_CHANNEL_BYTES) <= CW_SESSION_LEASES);
    assert_true(CW_SESSION_LEASES + sizeof(struct cw_lease_table) <= CW_SESSION_BYTES);
    assert_int_equal(CW_SESSION_REQUESTS % 64, 0);
    assert_int_equal(CW_SESSION_REPLIES % 64, 0);
    assert_int_equal(CW_SESSION_LEASES % 64, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_names_slab_and_block_and_is_never_zero),
        cmocka_unit_test(taking_fills_one_slot_and_dropping_empties_it),
        cmocka_unit_test(a_scan_looks_at_the_slots_that_were_ever_used),
        cmocka_unit_test(a_slot_beyond_the_table_is_our_own_fault),
        cmocka_unit_test(the_parts_of_a_session_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
