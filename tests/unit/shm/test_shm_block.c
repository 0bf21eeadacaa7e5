/*
 * The promises of shm/blocks/block.h: each edge of the state picture, and no other; every step of
 * the lease protocol in every order of its one-word operations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>

#include "shm/blocks/block.h"
#include "shm/session/lease.h"
#include "tests/support.h"

#define LIVE     CW_BLOCK_LIVE
#define WANTED   (CW_BLOCK_LIVE | CW_BLOCK_WANTED)
#define RETIRING CW_BLOCK_RETIRING
#define FREE     CW_BLOCK_FREE

static uint64_t word(uint64_t gen, uint64_t bits) {
    return gen << CW_BLOCK_GEN_SHIFT | bits;
}

static struct cw_block block_with(uint64_t bits) {
    struct cw_block block = {.word = word(5, bits)};
    return block;
}

static void carving_publishes_place_length_and_generation(void **state) {
    (void)state;
    struct cw_block block = block_with(FREE);
    assert_int_equal(cw_block_carve(&block, 4096, 123), 5);
    assert_int_equal(atomic_load(&block.word), word(5, LIVE));
    assert_int_equal(atomic_load(&block.offset_bytes), 4096);
    assert_int_equal(atomic_load(&block.length_bytes), 123);
}

static void freeing_locally_makes_old_handles_stale(void **state) {
    (void)state;
    struct cw_block block = block_with(FREE);
    uint64_t gen = cw_block_carve(&block, 0, 1);
    assert_int_equal(cw_block_check(&block, gen), 0);
    cw_block_free_local(&block);
    assert_int_equal(cw_block_check(&block, gen), -ESTALE);
    assert_int_equal(cw_block_carve(&block, 0, 1), gen + 1);
    assert_int_equal(cw_block_check(&block, gen), -ESTALE);
    assert_int_equal(cw_block_check(&block, gen + 1), 0);
}

static void what_is_outdated_is_one_generation(void **state) {
    (void)state;
    struct cw_block block = block_with(FREE);
    uint64_t gen = cw_block_carve(&block, 0, 1);
    assert_false(cw_block_outdated(&block, gen));
    cw_block_outdate(&block, gen);
    assert_true(cw_block_outdated(&block, gen));
    assert_int_equal(cw_block_check(&block, gen), 0); /* who has it, or a handle of it, keeps it */
    cw_block_free_local(&block);
    assert_false(cw_block_outdated(&block, cw_block_carve(&block, 0, 1)));
}

static void a_lease_stands_on_a_live_block_of_its_generation_alone(void **state) {
    (void)state;
    const struct {
        uint64_t bits, gen;
        int code;
    } cases[] = {{LIVE, 5, 0},         {WANTED, 5, 0},         {RETIRING, 5, 0},
                 {FREE, 5, -ESTALE},   {LIVE, 4, -ESTALE},     {LIVE, 6, -ESTALE},
                 {WANTED, 6, -ESTALE}, {RETIRING, 6, -ESTALE}, {3, 5, -ESTALE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cw_block block = block_with(cases[i].bits);
        uint64_t before = atomic_load(&block.word);
        assert_int_equal(cw_block_check(&block, cases[i].gen), cases[i].code);
        if (cases[i].bits == RETIRING && cases[i].gen == 5) /* rescued, and the broker is told */
            assert_int_equal(atomic_load(&block.word), word(5, WANTED));
        else
            assert_int_equal(atomic_load(&block.word), before);
    }
}

static void dropping_tells_only_where_the_broker_wants_to_know(void **state) {
    (void)state;
    struct cw_block live = block_with(LIVE), wanted = block_with(WANTED);
    struct cw_block retiring = block_with(RETIRING), gone = block_with(FREE);
    assert_false(cw_block_drop_tells(&live));
    assert_true(cw_block_drop_tells(&wanted));
    assert_true(cw_block_drop_tells(&retiring));
    assert_false(cw_block_drop_tells(&gone));
}

typedef bool edge(struct cw_block *block, uint64_t gen);

static void each_edge_of_the_broker_leaves_from_its_state_alone(void **state) {
    (void)state;
    const struct {
        edge *edge;
        uint64_t from, to, gen_step;
        bool repeats; /* true where it already holds is as good */
    } edges[] = {{cw_block_want, LIVE, WANTED, 0, true},
                 {cw_block_unwant, WANTED, LIVE, 0, false},
                 {cw_block_retire, WANTED, RETIRING, 0, false},
                 {cw_block_commit, RETIRING, FREE, 1, false},
                 {cw_block_restore, RETIRING, WANTED, 0, false}};
    const uint64_t all[] = {FREE, LIVE, WANTED, RETIRING, 3};
    for (size_t e = 0; e < sizeof edges / sizeof *edges; e++)
        for (size_t s = 0; s < sizeof all / sizeof *all; s++)
            for (uint64_t gen = 4; gen <= 6; gen++) {
                struct cw_block block = block_with(all[s]);
                bool goes = all[s] == edges[e].from && gen == 5;
                bool holds = edges[e].repeats && all[s] == edges[e].to && gen == 5;
                assert_int_equal(edges[e].edge(&block, gen), goes || holds);
                uint64_t after = goes ? word(5 + edges[e].gen_step, edges[e].to) : word(5, all[s]);
                assert_int_equal(atomic_load(&block.word), after);
            }
}

static void who_wins_the_word_decides_between_rescue_and_commit(void **state) {
    (void)state;
    struct cw_block block = block_with(RETIRING);
    assert_int_equal(cw_block_check(&block, 5), 0);
    assert_false(cw_block_commit(&block, 5));
    assert_false(cw_block_restore(&block, 5));
    assert_true(cw_block_retire(&block, 5));
    assert_true(cw_block_commit(&block, 5));
    assert_int_equal(cw_block_check(&block, 5), -ESTALE);
}

static void a_table_has_room_for_its_entries(void **state) {
    (void)state;
    assert_int_equal(cw_block_table_bytes(0), 192);
    assert_int_equal(cw_block_table_bytes(10), 192 + 640);
    assert_int_equal(cw_block_table_bytes(UINT32_MAX), 192 + 64ull * UINT32_MAX);
}

/* A taker and the broker, one word operation at a time: every interleaving of their two programs.
 */
struct world {
    struct cw_block block;
    struct cw_lease_table *leases;
    int taker, broker; /* program counters */
    bool held, seen1, seen2, told;
};

static bool taker_step(struct world *w) {
    switch (w->taker) {
    case 0:
        cw_lease_take(w->leases, 0, 1, 0);
        break;
    case 1:
        w->held = cw_block_check(&w->block, 5) == 0;
        break;
    case 2:
        w->held = false; /* uses it up to here */
        cw_lease_drop(w->leases, 0);
        break;
    case 3:
        w->told |= cw_block_drop_tells(&w->block);
        break;
    default:
        return false;
    }
    w->taker++;
    return true;
}

static bool broker_step(struct world *w) {
    switch (w->broker) {
    case 0:
        w->told = false; /* this look answers all that was told before */
        cw_block_want(&w->block, 5);
        break;
    case 1:
        w->seen1 = cw_lease_read(w->leases, 0) != 0;
        if (w->seen1)
            w->broker = 5;
        break;
    case 2:
        if (!cw_block_retire(&w->block, 5))
            w->broker = 5;
        break;
    case 3:
        w->seen2 = cw_lease_read(w->leases, 0) != 0;
        break;
    case 4:
        if (w->seen2)
            cw_block_restore(&w->block, 5);
        else if (cw_block_commit(&w->block, 5))
            assert_false(w->held); /* memory never goes while it is held */
        break;
    default:
        return false;
    }
    w->broker++;
    return true;
}

static void in_every_order_nothing_held_goes_and_nothing_dropped_stays(void **state) {
    (void)state;
    static struct cw_lease_table leases;
    unsigned orders = 0;
    for (unsigned order = 0; order < 1u << 9; order++) {
        struct world w = {.leases = &leases};
        atomic_store(&leases.slots[0], 0);
        atomic_store(&w.block.word, word(5, LIVE));
        for (int i = 0; i < 9; i++)
            (void)((order >> i & 1) ? taker_step(&w) : broker_step(&w));
        while (broker_step(&w) || taker_step(&w))
            ;
        for (int turns = 0; w.told && turns < 3; turns++)
            for (w.broker = 0; broker_step(&w);)
                ;
        assert_false(w.told);
        assert_int_equal(cw_block_state(atomic_load(&w.block.word)), FREE);
        orders++;
    }
    assert_int_equal(orders, 512);
}

/* Random edges against a model of (state, wanted, generation). */
static void random_sequences_follow_the_picture(void **state) {
    (void)state;
    struct chance chance = chance_init(2);
    struct cw_block block = {0};
    uint64_t gen = 0, bits = FREE;
    for (int i = 0; i < 300000; i++) {
        uint64_t asked = gen - (gen && chance_below(&chance, 8) == 0);
        bool right = asked == gen;
        switch (chance_below(&chance, 8)) {
        case 0:
            if (bits == FREE) {
                assert_int_equal(cw_block_carve(&block, 64, 64), gen);
                bits = LIVE;
            }
            break;
        case 1:
            if (bits == LIVE && chance_below(&chance, 4) == 0) {
                cw_block_free_local(&block);
                bits = FREE;
                gen++;
            }
            break;
        case 2:
            assert_int_equal(cw_block_check(&block, asked), right && bits != FREE ? 0 : -ESTALE);
            if (right && bits == RETIRING)
                bits = WANTED;
            break;
        case 3:
            assert_int_equal(cw_block_want(&block, asked),
                             right && (bits == LIVE || bits == WANTED));
            if (right && bits == LIVE)
                bits = WANTED;
            break;
        case 4:
            assert_int_equal(cw_block_unwant(&block, asked), right && bits == WANTED);
            if (right && bits == WANTED)
                bits = LIVE;
            break;
        case 5:
            assert_int_equal(cw_block_retire(&block, asked), right && bits == WANTED);
            if (right && bits == WANTED)
                bits = RETIRING;
            break;
        case 6:
            assert_int_equal(cw_block_commit(&block, asked), right && bits == RETIRING);
            if (right && bits == RETIRING) {
                bits = FREE;
                gen++;
            }
            break;
        default:
            assert_int_equal(cw_block_restore(&block, asked), right && bits == RETIRING);
            if (right && bits == RETIRING)
                bits = WANTED;
        }
        assert_int_equal(atomic_load(&block.word), word(gen, bits));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(carving_publishes_place_length_and_generation),
        cmocka_unit_test(freeing_locally_makes_old_handles_stale),
        cmocka_unit_test(what_is_outdated_is_one_generation),
        cmocka_unit_test(a_lease_stands_on_a_live_block_of_its_generation_alone),
        cmocka_unit_test(dropping_tells_only_where_the_broker_wants_to_know),
        cmocka_unit_test(each_edge_of_the_broker_leaves_from_its_state_alone),
        cmocka_unit_test(who_wins_the_word_decides_between_rescue_and_commit),
        cmocka_unit_test(a_table_has_room_for_its_entries),
        cmocka_unit_test(in_every_order_nothing_held_goes_and_nothing_dropped_stays),
        cmocka_unit_test(random_sequences_follow_the_picture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
