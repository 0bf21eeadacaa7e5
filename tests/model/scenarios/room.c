/*
 * Room: a slab of which nothing is carved is taken from its owner, who may be about to carve.
 *
 * One slab with one block, its owner A, another client B, and the broker as broker/memory/room.c
 * does it. The data are one plain word: what the broker makes free (a write) while somebody uses
 * it, or not after somebody's last read, is a data race. One scenario reads words and slots in the
 * wrong order and must fail.
 */
#include <string.h>

#include "scenarios.h"
#include "shm/blocks/block.h"
#include "shm/session/lease.h"

#define GEN   5u
#define OLD   77u
#define NEW   88u
#define SLAB  1u
#define BLOCK 0u

enum { MOVED };
enum { BROKER, A, B };

static _Alignas(64) uint8_t slab[sizeof(struct cw_block_table) + sizeof(struct cw_block)];
static struct cw_block_table *const table = (struct cw_block_table *)(void *)slab;
static struct cw_block *const block = (struct cw_block *)(void *)(slab + sizeof *table);
static struct cw_lease_table tables[2]; /* A's and B's; slot 0 of each is used */
static uint64_t data;
static cw_a64 sent; /* by what carries a handle */
static struct {
    uint8_t held[2]; /* A, B */
    uint8_t withdrawn;
    uint8_t lost; /* A found its slab gone */
} ghost;

static void init(void) {
    memset(slab, 0, sizeof slab);
    for (unsigned t = 0; t < 2; t++) {
        tables[t].slots[0] = 0;
        tables[t].high = 0;
    }
    block->word = (uint64_t)GEN << CW_BLOCK_GEN_SHIFT;
    data = OLD;
    sent = 0;
    model_plain(&data);
}

static void init_carved(void) {
    init();
    cw_lease_take(&tables[0], 0, SLAB, BLOCK);
    cw_block_carve(block, 0, 64);
    ghost.held[0] = 1;
}

/* What a broker left that was killed. */
static void init_withdrawing(void) {
    init();
    cw_table_withdraw(table);
}

/* ---- broker ---- */

static bool owner_holds(void) {
    return cw_lease_count(&tables[0]) && cw_lease_read(&tables[0], 0) == cw_lease_slot(SLAB, BLOCK);
}

static bool all_free(void) {
    return cw_block_state(CW_LOAD(B13, &block->word, acquire)) == CW_BLOCK_FREE;
}

static void withdraw(void) {
    if (!all_free() || !cw_table_withdraw(table))
        return;
    if (owner_holds() || !all_free() || !cw_table_commit(table)) {
        cw_table_restore(table);
        return;
    }
    MODEL_CHECK(!ghost.held[0] && !ghost.held[1]);
    ghost.withdrawn = 1;
    model_plain_write(&data, 0); /* its pages go */
}

/* The other way round: what was carved and passed on between the two is overlooked. */
static void withdraw_words_first(void) {
    if (!cw_table_withdraw(table))
        return;
    if (!all_free() || owner_holds() || !cw_table_commit(table)) {
        cw_table_restore(table);
        return;
    }
    MODEL_CHECK(!ghost.held[0] && !ghost.held[1]);
}

static void withdraw_twice(void) {
    withdraw();
    if (!ghost.withdrawn)
        withdraw();
}

/* ---- owner ---- */

static bool carve(void) {
    cw_lease_take(&tables[0], 0, SLAB, BLOCK);
    if (!cw_table_keep(table)) {
        cw_lease_drop(&tables[0], 0);
        ghost.lost = 1;
        return false;
    }
    ghost.held[0] = 1;
    cw_block_carve(block, 0, 64);
    model_plain_write(&data, NEW);
    return true;
}

static void free_alone(void) {
    MODEL_CHECK(model_plain_read(&data) != 0);
    ghost.held[0] = 0;
    cw_lease_drop(&tables[0], 0);
    cw_block_free_local(block);
}

static void a_carves(void) {
    if (!carve())
        return;
    MODEL_CHECK(model_plain_read(&data) == NEW);
    free_alone();
}

static void a_frees(void) {
    free_alone();
}

static void a_frees_and_carves(void) {
    free_alone();
    (void)carve();
}

/* A's array goes to B, which is told when it has a lease. */
static void a_carves_and_hands_over(void) {
    if (carve()) {
        CW_STORE(H1, &sent, 1, release);
        model_signal(MOVED);
        model_wait(0, 1u << B);
        ghost.held[0] = 0;
        cw_lease_drop(&tables[0], 0);
    } else {
        model_signal(MOVED);
    }
}

static void b_receives(void) {
    model_wait(1u << MOVED, 0);
    if (!CW_LOAD(H1, &sent, acquire))
        return;
    cw_lease_take(&tables[1], 0, SLAB, BLOCK);
    MODEL_CHECK(cw_block_check(block, GEN) == 0);
    ghost.held[1] = 1; /* for ever: it is published, and the broker alone frees it */
    MODEL_CHECK(model_plain_read(&data) == NEW);
}

/* ---- ends ---- */

static void one_of_them_has_it(void) {
    MODEL_CHECK(!ghost.lost || ghost.withdrawn);
    MODEL_CHECK(!(ghost.withdrawn && ghost.held[0]));
    MODEL_CHECK(ghost.withdrawn == (table->withdrawn == CW_TABLE_WITHDRAWN));
}

static void the_owner_kept_it(void) {
    MODEL_CHECK(!ghost.lost && table->withdrawn == CW_TABLE_OPEN);
}

#define ROOM(text, says, start, end, dies, ...)                                                    \
    {                                                                                              \
        .name = text, .promise = says, .init = start, .final = end, .threads = {__VA_ARGS__},      \
        .killable = dies, .ghost = &ghost, .ghost_bytes = sizeof ghost                             \
    }

const struct model_scenario model_room_scenarios[] = {
    ROOM("room, while the owner carves", "one of them has it, and both know", init,
         one_of_them_has_it, 0, withdraw_twice, a_carves),
    ROOM("room, while the owner frees", "its last read comes before the pages go", init_carved,
         one_of_them_has_it, 0, withdraw_twice, a_frees),
    ROOM("room, while the owner frees and carves", "one of them has it, and both know", init_carved,
         one_of_them_has_it, 0, withdraw, a_frees_and_carves),
    ROOM("room, of what another is given", "what somebody holds is not taken", init,
         one_of_them_has_it, 0, withdraw, a_carves_and_hands_over, b_receives),
    ROOM("room, owner dies", "one of them has it", init, NULL, 1u << A, withdraw_twice, a_carves),
    ROOM("room, broker dies", "the owner carves, or knows that it is gone", init, NULL,
         1u << BROKER, withdraw, a_carves),
    ROOM("room, left by a dead broker", "the owner keeps it", init_withdrawing, the_owner_kept_it,
         0, NULL, a_carves),
    {.name = "room, words before slots",
     .promise = "it is taken from who was given it",
     .init = init,
     .threads = {withdraw_words_first, a_carves_and_hands_over, b_receives},
     .ghost = &ghost,
     .ghost_bytes = sizeof ghost,
     .fails = true},
    {.name = NULL},
};
