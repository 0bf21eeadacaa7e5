/*
 * Leases: a block's memory comes back once nobody holds it, and never before.
 *
 * One block, the tables of two clients, the broker's evaluation as block.h tells it, an owner that
 * uses the memory again. The block's data are one plain word: a user that the broker overlooked, or
 * whose last read is not before the owner's next write, is a data race. A leak is a broker that
 * waits for a hint which nobody will send.
 */
#include <string.h>

#include "scenarios.h"
#include "shm/blocks/block.h"
#include "shm/base/error.h"
#include "shm/session/lease.h"

#define GEN   5u
#define OLD   77u
#define NEW   88u
#define SLAB  1u
#define BLOCK 0u

enum { HINT, RECLAIMED, MOVED };
enum { BROKER, A, B, OWNER };

static struct cw_block block;
static struct cw_lease_table tables[2]; /* A's and B's; slot 0 of each is used */
static uint64_t data;
static struct {
    uint8_t held[2]; /* A, B: a lease stands, from check to drop */
    uint8_t freed;
    uint8_t dead[2]; /* the broker knows */
} ghost;

static void init_free(void) {
    memset(&block, 0, sizeof block);
    tables[0].slots[0] = tables[1].slots[0] = 0;
    tables[0].high = tables[1].high = 0;
    block.word = (uint64_t)GEN << CW_BLOCK_GEN_SHIFT;
    block.offset_bytes = 4096;
    data = OLD;
    model_plain(&data);
}

static void init(void) {
    init_free();
    cw_block_carve(&block, 8192, 64);
}

static void init_held_by_a(void) {
    init();
    cw_lease_take(&tables[0], 0, SLAB, BLOCK);
    ghost.held[0] = 1;
}

/* ---- broker ---- */

static bool somebody_holds(void) {
    for (unsigned t = 0; t < 2; t++)
        if (!ghost.dead[t] && cw_lease_count(&tables[t]) &&
            cw_lease_read(&tables[t], 0) == cw_lease_slot(SLAB, BLOCK))
            return true;
    return false;
}

/* One evaluation of a block to which the broker holds no reference; true: it is free. */
static bool evaluate(void) {
    if (!cw_block_want(&block, GEN) || somebody_holds() || !cw_block_retire(&block, GEN))
        return false;
    if (somebody_holds()) {
        cw_block_restore(&block, GEN);
        return false;
    }
    if (!cw_block_commit(&block, GEN))
        return false;
    MODEL_CHECK(!(ghost.held[0] && !ghost.dead[0]) && !(ghost.held[1] && !ghost.dead[1]));
    ghost.freed = 1;
    return true;
}

static void reclaim_watching(unsigned mortal) {
    while (!evaluate()) {
        unsigned now = model_wait(1u << HINT, mortal);
        ghost.dead[0] |= (now & MODEL_ENDED(A)) != 0;
        ghost.dead[1] |= (now & MODEL_ENDED(B)) != 0;
        if (now & MODEL_ENDED(A) || now & MODEL_ENDED(B))
            mortal = 0;
    }
    model_signal(RECLAIMED);
}

static void reclaim(void) {
    reclaim_watching(0);
}

static void reclaim_watching_a(void) {
    reclaim_watching(1u << A);
}

static void reclaim_watching_b(void) {
    reclaim_watching(1u << B);
}

/* The name comes back and goes again: WANTED is set, cleared, set. */
static void reclaim_unwanted(void) {
    cw_block_want(&block, GEN);
    cw_block_unwant(&block, GEN);
    reclaim_watching(0);
}

/* ---- clients ---- */

static void drop(unsigned client) {
    ghost.held[client] = 0;
    cw_lease_drop(&tables[client], 0);
    if (cw_block_drop_tells(&block))
        model_signal(HINT);
}

/* Takes, uses, drops. Returns whether the lease stood. */
static bool take(unsigned client, uint64_t gen) {
    cw_lease_take(&tables[client], 0, SLAB, BLOCK);
    int code = cw_block_check(&block, gen);
    MODEL_CHECK(code == 0 || code == -ESTALE);
    if (code)
        return false;
    ghost.held[client] = 1;
    MODEL_CHECK(CW_LOAD(B9, &block.offset_bytes, relaxed) == 8192);
    MODEL_CHECK(model_plain_read(&data) == OLD);
    return true;
}

static void b_takes_and_drops(void) {
    take(1, GEN);
    model_point();
    drop(1); /* also when it was stale: the slot stood for a moment, and may have held the block up
              */
}

static void a_takes_and_drops(void) {
    take(0, GEN);
    drop(0);
}

static void a_drops(void) {
    (void)model_plain_read(&data);
    drop(0);
}

/* A hands its lease to B: keeps it until B says that it holds it. */
static void a_hands_over(void) {
    (void)model_plain_read(&data);
    model_wait(1u << MOVED, 1u << B);
    drop(0);
}

static void b_receives(void) {
    MODEL_CHECK(take(1, GEN)); /* somebody held it all the time */
    model_signal(MOVED);
    drop(1);
}

/* B comes with a handle of an older generation. */
static void b_is_late(void) {
    MODEL_CHECK(!take(1, GEN - 1));
    drop(1);
}

/* ---- owner ---- */

static void owner_reuses(void) {
    model_wait(1u << RECLAIMED, 0);
    uint64_t word = CW_LOAD(B8, &block.word, acquire);
    if (cw_block_state(word) != CW_BLOCK_FREE)
        return;
    MODEL_CHECK(cw_block_carve(&block, 0, 32) == GEN + 1);
    model_plain_write(&data, NEW);
}

static void owner_carves(void) {
    cw_block_carve(&block, 8192, 64);
}

static void owner_carves_and_frees(void) {
    cw_block_carve(&block, 8192, 64);
    cw_block_free_local(&block);
}

/* ---- ends ---- */

static void came_back(void) {
    MODEL_CHECK(ghost.freed);
    MODEL_CHECK(cw_block_gen(block.word) == GEN + 1);
}

#define LEASE(text, says, start, end, dies, ...)                                                   \
    {                                                                                              \
        .name = text, .promise = says, .init = start, .final = end, .threads = {__VA_ARGS__},      \
        .killable = dies, .ghost = &ghost, .ghost_bytes = sizeof ghost                             \
    }

const struct model_scenario model_lease_scenarios[] = {
    LEASE("lease, taken while retired", "held means not freed; free means reused safely", init,
          came_back, 0, reclaim, NULL, b_takes_and_drops, owner_reuses),
    LEASE("lease, dropped while another takes", "never freed while held, never leaked",
          init_held_by_a, came_back, 0, reclaim, a_drops, b_takes_and_drops),
    LEASE("lease, two takers", "never freed while held, never leaked", init, came_back, 0, reclaim,
          a_takes_and_drops, b_takes_and_drops),
    LEASE("lease, moved between tables", "what is held all the time is never stale, never leaked",
          init_held_by_a, came_back, 0, reclaim, a_hands_over, b_receives),
    LEASE("lease, dropped and reused", "the last read comes before the owner's next write",
          init_held_by_a, came_back, 0, reclaim, a_drops, NULL, owner_reuses),
    LEASE("lease, an old handle comes", "it is stale, and does not keep the block", init_held_by_a,
          came_back, 0, reclaim, a_drops, b_is_late),
    LEASE("lease, wanted, unwanted, wanted", "never leaked", init_held_by_a, came_back, 0,
          reclaim_unwanted, a_drops, b_takes_and_drops),
    LEASE("lease, holder dies", "its lease ends with it", init_held_by_a, came_back, 1u << A,
          reclaim_watching_a, a_drops, b_takes_and_drops),
    LEASE("lease, taker dies", "its lease ends with it", init_held_by_a, came_back, 1u << B,
          reclaim_watching_b, a_drops, b_takes_and_drops),
    LEASE("lease, receiver dies", "its lease ends with it", init_held_by_a, came_back, 1u << B,
          reclaim_watching_b, a_hands_over, b_receives),
    LEASE("lease, carved while looked for", "a live block's place is the one it was carved at",
          init_free, NULL, 0, NULL, NULL, b_takes_and_drops, owner_carves),
    LEASE("lease, carved and freed alone", "never seen live with another's place", init_free, NULL,
          0, NULL, NULL, b_takes_and_drops, owner_carves_and_frees),
    LEASE("lease, broker dies", "who holds it keeps it", init_held_by_a, NULL, 1u << BROKER,
          reclaim, a_drops, b_takes_and_drops),
    {.name = NULL},
};
