/*
 * Slabs without an owner, in whose tables anybody can write: what the broker knows to be alive in
 * one keeps it, and nothing else does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/raw_client.h"

#define SLAB_BYTES (1u << 20)

static struct raw_mail mail;
static struct raw_broker broker;
static struct raw_client honest; /* beside each hostile one */
static struct raw_slab honest_slab;

static int start(void **state) {
    (void)state;
    return raw_broker_start(&broker, NULL, NULL) && raw_connect(&broker, &honest) == 0 &&
                   raw_slab_add(&honest, SLAB_BYTES, 64, &honest_slab) == 0
               ? 0
               : -1;
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

static struct raw_client client_open(void) {
    struct raw_client client;
    assert_int_equal(raw_connect(&broker, &client), 0);
    return client;
}

/* A slab without an owner, still mapped by who made it; the name "kept" alone holds it. */
static void orphan_make(struct raw_slab *slab) {
    struct raw_client liar = client_open();
    assert_int_equal(raw_slab_add(&liar, SLAB_BYTES, 64, slab), 0);
    uint64_t gen = raw_carve(&liar, slab, 0, 0, 4096);
    assert_int_equal(raw_put(&liar, slab->id, 0, gen, 4096, "kept", 0), 0);
    raw_bye(&liar);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_orphan_slabs) == 1));
    assert_int_equal(raw_ping(&honest), 0); /* what was suspected then has been looked at */
}

static void write_word(struct raw_slab *slab, uint32_t block, uint64_t word) {
    CW_STORE(B9, &slab->table->blocks[block].offset_bytes, block * 4096ull, relaxed);
    CW_STORE(B9, &slab->table->blocks[block].length_bytes, 4096, relaxed);
    CW_STORE(B7, &slab->table->blocks[block].word, word, release);
}

static const uint64_t living[] = {CW_BLOCK_LIVE, CW_BLOCK_LIVE | CW_BLOCK_WANTED, CW_BLOCK_RETIRING,
                                  7ull << CW_BLOCK_GEN_SHIFT | CW_BLOCK_LIVE};

static void blocks_that_nobody_carved_keep_no_orphan(void **state) {
    (void)state;
    for (unsigned i = 0; i < sizeof living / sizeof *living; i++) {
        struct raw_slab slab;
        orphan_make(&slab);
        write_word(&slab, 5, living[i]);
        assert_int_equal(raw_remove(&honest, "kept"), 0);
        assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 1)); /* the honest one's */
        assert_int_equal(raw_gauge(&broker, CW_GAUGE_orphan_slabs), 0);
        raw_slab_close(&slab);
    }
}

static void blocks_that_nobody_carved_come_back_to_who_adopts(void **state) {
    (void)state;
    for (unsigned i = 0; i < sizeof living / sizeof *living; i++) {
        struct raw_slab slab;
        struct cw_slab_request wish = {.device_kind = CW_DEVICE_HOST, .free_bytes = 4096};
        orphan_make(&slab);
        write_word(&slab, 5, living[i]);
        struct raw_client heir = client_open();
        assert_int_equal(raw_call(&heir, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail), 0);
        assert_true(RAW_UNTIL(cw_block_state(CW_LOAD(B10, &slab.table->blocks[5].word, seq_cst)) ==
                              CW_BLOCK_FREE));
        assert_true(RAW_UNTIL(CW_LOAD(S1, &heir.shared->reclaimed, acquire) > 0));
        /* The named one stays. */
        assert_int_equal(cw_block_state(CW_LOAD(B10, &slab.table->blocks[0].word, seq_cst)),
                         CW_BLOCK_LIVE);
        raw_bye(&heir);
        assert_int_equal(raw_remove(&honest, "kept"), 0);
        assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 1));
        raw_slab_close(&slab);
    }
}

/* What an honest client holds of it stays, whatever its table says. */
static void a_lease_keeps_an_orphan_whose_table_says_that_it_is_empty(void **state) {
    (void)state;
    struct raw_slab slab;
    orphan_make(&slab);
    raw_lease(&honest, 9, slab.id, 0);
    assert_int_equal(raw_remove(&honest, "kept"), 0);
    assert_int_equal(raw_ping(&honest), 0);
    write_word(&slab, 0, 0);
    assert_int_equal(raw_ping(&honest), 0);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_slabs), 2);
    raw_unlease(&honest, 9);
    struct raw_client other = client_open(); /* at each end all that waits is looked at again */
    raw_bye(&other);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 1));
    raw_slab_close(&slab);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(blocks_that_nobody_carved_keep_no_orphan),
        TEST(blocks_that_nobody_carved_come_back_to_who_adopts),
        TEST(a_lease_keeps_an_orphan_whose_table_says_that_it_is_empty),
    };
    return cmocka_run_group_tests_name("slabs without an owner", tests, NULL, NULL);
}
