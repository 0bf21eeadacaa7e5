/*
 * Orders: a reader and a writer of one block meet: one of them sees the other, so that one of their
 * streams waits. What a writer leaves is seen whole by who comes after it.
 */
#include "scenarios.h"
#include "shm/blocks/order.h"

enum { READER, WRITER, SECOND, BROKER };

#define MINE   cw_stamp_make(1, 7)
#define WAITED cw_stamp_make(3, 2)
#define OTHERS cw_stamp_make(2, 1)

static struct cw_order order;
static struct {
    uint8_t read_old;      /* the reader goes on, and saw no write */
    uint8_t wrote_blindly; /* the writer goes on, and saw no read */
    uint8_t written;       /* the first writer has given its turn back */
} ghost;

/* The count of writes outlives a block (cw_order_clear), but no execution: states would never be
 * alike. */
static void init(void) {
    cw_order_clear(&order);
    atomic_store(&order.writes, 0);
}

static void reads(void) {
    struct cw_order_seen seen;
    unsigned place;
    cw_stamp before;
    uint8_t was_written = ghost.written;
    MODEL_CHECK(cw_order_read_note(&order, MINE, &place, &before) && before == 0);
    if (cw_order_turn(&order)) {
        cw_order_read_undo(&order, place, MINE, before);
        return;
    }
    cw_order_see(&order, &seen);
    MODEL_CHECK(seen.write == 0 || seen.write == OTHERS);
    MODEL_CHECK(seen.write || !was_written);
    if (seen.write)
        MODEL_CHECK(seen.waited[0] == WAITED);
    ghost.read_old = seen.write == 0;
}

static void writes(void) {
    struct cw_order_seen seen;
    cw_stamp waited = WAITED;
    uint64_t holder;
    MODEL_CHECK(cw_order_turn_take(&order, 5ull << 32 | 1, &holder));
    cw_order_see(&order, &seen);
    bool met = false;
    for (unsigned i = 0; i < CW_ORDER_READS; i++)
        met = met || seen.reads[i] == MINE;
    ghost.wrote_blindly = !met;
    /* Who meets a reader waits until that has submitted its work, before it stores anything. */
    if (!met)
        cw_order_written(&order, OTHERS, &waited, 1, 0);
    cw_order_turn_give(&order);
    ghost.written = !met;
}

/* Comes beside or after the other writer. */
static void writes_too(void) {
    struct cw_order_seen seen;
    uint64_t holder;
    uint8_t was_written = ghost.written;
    if (!cw_order_turn_take(&order, 6ull << 32 | 1, &holder)) {
        MODEL_CHECK(holder >> 32 == 5);
        return;
    }
    cw_order_see(&order, &seen);
    MODEL_CHECK(seen.write == OTHERS || !was_written);
    MODEL_CHECK(seen.write == 0 || (seen.write == OTHERS && seen.waited[0] == WAITED));
    /* Nothing is written: where the other had no turn yet it takes it after this. */
    if (seen.write == OTHERS)
        cw_order_turn_give(&order);
}

static void writes_if_free(void) {
    uint64_t holder;
    cw_stamp waited = WAITED;
    if (!cw_order_turn_take(&order, 5ull << 32 | 1, &holder))
        return;
    cw_order_written(&order, OTHERS, &waited, 1, 0);
    cw_order_turn_give(&order);
    ghost.written = 1;
}

/* ---- the dead: their write was not reached, or they died inside their turn ---- */

#define LOST cw_stamp_make(4, 9)

static int is_lost(void *context, cw_stamp stamp) {
    (void)context;
    return stamp == LOST ? -1 : 0;
}

static void leave_a_lost_write(void) {
    cw_stamp waited = LOST;
    uint64_t holder;
    init();
    MODEL_CHECK(cw_order_turn_take(&order, LOST, &holder));
    cw_order_written(&order, LOST, &waited, 1, 0);
    cw_order_turn_give(&order);
}

static void leave_a_turn(void) {
    uint64_t holder;
    init();
    MODEL_CHECK(cw_order_turn_take(&order, LOST, &holder));
}

static void buries(void) {
    cw_order_bury(&order, is_lost, NULL);
}

/* Writes all anew, when the turn is nobody's. */
static void writes_anew(void) {
    struct cw_order_seen seen;
    uint64_t holder;
    if (!cw_order_turn_take(&order, OTHERS, &holder))
        return;
    cw_order_see(&order, &seen);
    MODEL_CHECK(seen.write == LOST || seen.write == CW_STAMP_DEAD);
    cw_order_written(&order, OTHERS, NULL, 0, 0);
    cw_order_turn_give(&order);
    ghost.written = 1;
}

/* Who comes after all. */
static void no_stamp_of_the_dead_is_left(void) {
    struct cw_order_seen seen;
    cw_order_see(&order, &seen);
    MODEL_CHECK(cw_order_turn(&order) == 0);
    MODEL_CHECK(seen.write == (ghost.written ? OTHERS : CW_STAMP_DEAD));
    MODEL_CHECK(!ghost.written || seen.waited[0] == 0);
    MODEL_CHECK(seen.waited[0] != LOST);
}

static void one_saw_the_other(void) {
    MODEL_CHECK(!(ghost.read_old && ghost.wrote_blindly));
}

#define ORDER(text, says, ...)                                                                     \
    {                                                                                              \
        .name = text, .promise = says, .init = init, .final = one_saw_the_other,                   \
        .threads = {__VA_ARGS__}, .ghost = &ghost, .ghost_bytes = sizeof ghost                     \
    }

const struct model_scenario model_order_scenarios[] = {
    ORDER("order, reader and writer", "one of them sees the other", reads, writes),
    ORDER("order, two writers", "the second sees what the first left", NULL, writes_if_free,
          writes_too),
    {.name = "order, a lost write is buried",
     .promise = "a new write survives it, and what is lost stays so",
     .init = leave_a_lost_write,
     .final = no_stamp_of_the_dead_is_left,
     .threads = {writes_anew, buries},
     .ghost = &ghost,
     .ghost_bytes = sizeof ghost},
    {.name = "order, a turn is buried",
     .promise = "who takes the turn next sees that the data are lost",
     .init = leave_a_turn,
     .final = no_stamp_of_the_dead_is_left,
     .threads = {writes_anew, buries},
     .ghost = &ghost,
     .ghost_bytes = sizeof ghost},
    {.name = NULL},
};
