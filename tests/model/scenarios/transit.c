/*
 * Transits: a handle on its way holds its block, though no lease table names it and the broker has
 * not read of it yet.
 *
 * A takes the block, writes BEGIN into its request ring and lets go; B opens the handle when A has
 * sent it, and ends the transit. The broker retires the block meanwhile, as broker/memory/reclaim.c
 * does: it marks it WANTED, reads the ring, looks at the leases, marks it RETIRING, looks again,
 * and then looks on into the ring for what has begun since. The block's data are one plain word,
 * which the owner writes when the block came back.
 *
 * One scenario leaves the last look out and must fail: it is what the other ones are there for.
 */
#include <string.h>

#include "scenarios.h"
#include "shm/blocks/block.h"
#include "shm/base/error.h"
#include "shm/session/lease.h"
#include "shm/session/ring.h"

#define GEN      5u
#define OLD      77u
#define NEW      88u
#define SLAB     1u
#define BLOCK    0u
#define CAPACITY 64u

enum { HINT, RECLAIMED, MOVED };
enum { BROKER, A, B, OWNER };

static struct cw_block block;
static struct cw_lease_table tables[2]; /* A's and B's; slot 0 of each is used */
static _Alignas(64) uint8_t memory[sizeof(struct cw_ring) + CAPACITY];
static struct cw_ring *const ring = (struct cw_ring *)(void *)memory;
static struct cw_ring_producer producer;
static struct cw_ring_consumer consumer;
static uint64_t data;
static struct {
    uint8_t held[2]; /* A, B: a lease stands, from check to drop */
    uint8_t sent;    /* A has begun the transit */
    uint8_t ended;   /* B has ended it */
    uint8_t unread;  /* the broker has seen that a BEGIN stands in the ring */
    uint8_t refs;    /* the broker has read of it */
    uint8_t freed;
    uint8_t dead; /* B, as the broker knows */
} ghost;

static void init(void) {
    memset(&block, 0, sizeof block);
    memset(memory, 0, sizeof memory);
    for (unsigned t = 0; t < 2; t++) {
        tables[t].slots[0] = 0;
        tables[t].high = 0;
    }
    block.word = (uint64_t)GEN << CW_BLOCK_GEN_SHIFT;
    cw_block_carve(&block, 8192, 64);
    cw_ring_init(ring, CAPACITY);
    cw_ring_producer_init(&producer, ring, CAPACITY);
    cw_ring_consumer_init(&consumer, ring, CAPACITY);
    data = OLD;
    model_plain(&data);
}

static void init_held_by_a(void) {
    init();
    cw_lease_take(&tables[0], 0, SLAB, BLOCK);
    ghost.held[0] = 1;
}

/* ---- broker ---- */

static void read_ring(void) {
    uint32_t type, length;
    const void *payload;
    while (cw_ring_peek(&consumer, &type, &payload, &length) == 1) {
        if (!ghost.ended && cw_block_check(&block, GEN) == 0) {
            ghost.refs = 1;
            cw_block_unwant(&block, GEN);
        }
        cw_ring_consume(&consumer);
    }
    if (ghost.ended)
        ghost.refs = 0;
}

static bool somebody_holds(void) {
    for (unsigned t = 0; t < 2; t++)
        if (!(t == 1 && ghost.dead) && cw_lease_count(&tables[t]) &&
            cw_lease_read(&tables[t], 0) == cw_lease_slot(SLAB, BLOCK))
            return true;
    return false;
}

/* Has a transit begun that was not read of? */
static bool begins(void) {
    struct cw_ring_consumer ahead = consumer;
    uint32_t type, length;
    const void *payload;
    ahead.advance = 0;
    return cw_ring_look_on(&ahead, &type, &payload, &length) == 1;
}

/* True: it is free. */
static bool evaluate(bool looks_on) {
    if (ghost.refs || !cw_block_want(&block, GEN))
        return false;
    read_ring();
    if (ghost.refs || somebody_holds() || !cw_block_retire(&block, GEN))
        return false;
    bool held = somebody_holds();
    if (held || (looks_on && begins())) {
        cw_block_restore(&block, GEN);
        ghost.unread = !held; /* nobody sleeps beside a record (sleep.c) */
        return false;
    }
    if (!cw_block_commit(&block, GEN))
        return false;
    MODEL_CHECK(!ghost.held[0] && (!ghost.held[1] || ghost.dead));
    MODEL_CHECK(!ghost.sent || ghost.ended); /* nothing of it was on its way */
    ghost.freed = 1;
    return true;
}

/* As the loop: rings are read in each turn, and what came to an end is looked at. */
static void reclaim_as(bool looks_on, unsigned mortal) {
    while (!evaluate(looks_on)) {
        unsigned now = ghost.unread ? 0 : model_wait(1u << HINT, mortal);
        ghost.unread = 0;
        if (now & MODEL_ENDED(B)) {
            mortal = 0;
            ghost.dead = 1;
            ghost.ended = 1; /* its limit is over */
        }
        read_ring();
    }
    model_signal(RECLAIMED);
}

static void reclaim(void) {
    reclaim_as(true, 0);
}

static void reclaim_watching_b(void) {
    reclaim_as(true, 1u << B);
}

static void reclaim_without_the_last_look(void) {
    reclaim_as(false, 0);
}

/* ---- clients ---- */

static void drop(unsigned client) {
    ghost.held[client] = 0;
    cw_lease_drop(&tables[client], 0);
    if (cw_block_drop_tells(&block))
        model_signal(HINT);
}

static bool take(unsigned client) {
    cw_lease_take(&tables[client], 0, SLAB, BLOCK);
    if (cw_block_check(&block, GEN) != 0)
        return false;
    ghost.held[client] = 1;
    MODEL_CHECK(model_plain_read(&data) == OLD);
    return true;
}

static void a_sends_on(void) {
    MODEL_CHECK(cw_ring_write(&producer, 1, NULL, 0) == 0);
    ghost.sent = 1;
    drop(0);
    model_signal(HINT); /* its doorbell */
}

/* A finds the array by its name, while that ends. */
static void a_takes_and_sends(void) {
    if (take(0))
        a_sends_on();
    else
        drop(0);
    model_signal(MOVED);
}

static void a_sends(void) {
    a_sends_on();
    model_signal(MOVED);
}

static void b_receives(void) {
    model_wait(1u << MOVED, 0);
    if (!ghost.sent)
        return;
    MODEL_CHECK(take(1)); /* it was on its way all the time */
    drop(1);
    ghost.ended = 1; /* END, over a ring of its own */
    model_signal(HINT);
}

static void owner_reuses(void) {
    model_wait(1u << RECLAIMED, 0);
    if (cw_block_state(CW_LOAD(B8, &block.word, acquire)) != CW_BLOCK_FREE)
        return;
    MODEL_CHECK(cw_block_carve(&block, 0, 32) == GEN + 1);
    model_plain_write(&data, NEW);
}

static void came_back(void) {
    MODEL_CHECK(ghost.freed);
    MODEL_CHECK(cw_block_gen(block.word) == GEN + 1);
}

#define TRANSIT(text, says, start, dies, wrong, ...)                                               \
    {                                                                                              \
        .name = text, .promise = says, .init = start, .final = came_back,                          \
        .threads = {__VA_ARGS__}, .killable = dies, .ghost = &ghost, .ghost_bytes = sizeof ghost,  \
        .fails = wrong                                                                             \
    }

const struct model_scenario model_transit_scenarios[] = {
    TRANSIT("transit, begun while retired", "what is on its way is not freed, and comes back", init,
            0, false, reclaim, a_takes_and_sends, b_receives),
    TRANSIT("transit, begun by the last holder", "what is on its way is not freed, and comes back",
            init_held_by_a, 0, false, reclaim, a_sends, b_receives, owner_reuses),
    TRANSIT("transit, receiver dies", "it ends by its limit", init_held_by_a, 1u << B, false,
            reclaim_watching_b, a_sends, b_receives),
    TRANSIT("transit, without the last look", "it is freed on its way", init, 0, true,
            reclaim_without_the_last_look, a_takes_and_sends, b_receives),
    {.name = NULL},
};
