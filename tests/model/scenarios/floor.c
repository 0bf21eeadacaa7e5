/*
 * Floor: a remote name never goes back, whatever place it is read at.
 *
 * The bridge has an earlier array at one place, outdates it and publishes a later one at another
 * (broker/bridge/fetch/floor.h). One reader meets the later one and tells another, who then finds
 * the record of the earlier one, which nobody has taken away yet, and must not believe it. So with
 * a broker that is dead: the kernel says so in its root segment before the lock is free, with which
 * the next one publishes the later array; who is still connected to the dead one finds its record.
 * Without the look at either word both scenarios must fail.
 */
#include <string.h>

#include "scenarios.h"
#include "shm/base/alive.h"
#include "shm/blocks/block.h"

#define GEN 5u

static struct cw_block block; /* of the earlier array */
static cw_a32 alive;          /* the first broker */
static cw_a64 later;          /* 1: the later array is published */
static cw_a64 told;           /* 1: somebody has it, and says so */
static struct { uint8_t unused; } ghost;

static void init(void) {
    memset(&block, 0, sizeof block);
    block.word = (uint64_t)GEN << CW_BLOCK_GEN_SHIFT | CW_BLOCK_LIVE;
    alive = 77;
    later = told = 0;
}

static void publish(void) {
    cw_block_outdate(&block, GEN);
    CW_STORE(H1, &later, 1, release);
}

/* The kernel, and what holds the lock after it. */
static void die_and_publish(void) {
    CW_STORE(AL1, &alive, FUTEX_OWNER_DIED, relaxed);
    CW_STORE(H1, &later, 1, release);
}

static void tell(void) {
    if (CW_LOAD(H1, &later, acquire))
        CW_STORE(H1, &told, 1, release);
}

static void read_earlier(void) {
    uint64_t before = CW_LOAD(H1, &told, acquire);
    bool believed = !cw_block_outdated(&block, GEN) && cw_alive(&alive);
    MODEL_CHECK(!(before && believed));
}

static void read_without_a_look(void) {
    MODEL_CHECK(!CW_LOAD(H1, &told, acquire));
}

#define FLOOR(text, says, bad, ...)                                                                \
    {                                                                                              \
        .name = text, .promise = says, .init = init, .threads = {__VA_ARGS__}, .ghost = &ghost,    \
        .ghost_bytes = sizeof ghost, .fails = bad                                                  \
    }

const struct model_scenario model_floor_scenarios[] = {
    FLOOR("floor, another place", "who was told of a later array believes no earlier one", false,
          publish, tell, read_earlier),
    FLOOR("floor, a dead broker", "what its directory says is not believed after the next one's",
          false, die_and_publish, tell, read_earlier),
    FLOOR("floor, without the looks", "a name goes back", true, publish, tell, read_without_a_look),
    {.name = NULL},
};
