/*
 * Queues: whose turn it is at each end, and how the ends wait for each other (shm/tasks/queue.c).
 *
 * The items lie in plain words, one for each place in the queue: a race on them fails. A position
 * is 16 times the count, so that a mark which is not its count's shows.
 */
#include <string.h>

#include "scenarios.h"
#include "shm/base/error.h"
#include "shm/tasks/queue.h"

#define FOR_EVER (-1)
#define AT_ONCE  0
#define STEP     16u

static struct cw_queue_core queue;
static uint64_t cells[2];
static struct {
    uint8_t taken[3]; /* by value */
    uint8_t count;
} ghost;

static void fresh(uint64_t max_items) {
    memset(&queue, 0, sizeof queue);
    queue.max_items = max_items;
    /* All run on one core, and have said so: nobody spins, and advice makes no steps. */
    queue.filled.core = queue.freed.core = 1;
    for (unsigned i = 0; i < 2; i++) {
        cells[i] = 0;
        model_plain(&cells[i]);
    }
}

static void init_one_place(void) {
    fresh(1);
}

static void init_two_places(void) {
    fresh(2);
}

static void put_until(uint64_t value, int64_t end_ns) {
    struct cw_queue_place place;
    MODEL_CHECK(cw_queue_put_begin(&queue, 1, end_ns, &place) == 0);
    MODEL_CHECK(place.position == place.count * STEP && place.bytes == place.count);
    model_plain_write(&cells[place.count % queue.max_items], value);
    place.position += STEP;
    cw_queue_put_commit(&queue, &place, 1);
}

static void put(uint64_t value) {
    put_until(value, FOR_EVER);
}

/* Takes one; notes it when it is taken. */
static uint64_t get_until(int64_t end_ns) {
    struct cw_queue_place place;
    MODEL_CHECK(cw_queue_get_begin(&queue, end_ns, &place) == 0);
    MODEL_CHECK(place.position == place.count * STEP && place.bytes == place.count);
    uint64_t value = model_plain_read(&cells[place.count % queue.max_items]);
    place.position += STEP;
    cw_queue_get_commit(&queue, &place, 1, false);
    MODEL_CHECK(value == 1 || value == 2);
    MODEL_CHECK(ghost.taken[value]++ == 0);
    ghost.count++;
    return value;
}

static uint64_t get(void) {
    return get_until(FOR_EVER);
}

static void put_1(void) {
    put(1);
}

static void put_1_at_once(void) {
    put_until(1, AT_ONCE);
}

static void put_2_at_once(void) {
    put_until(2, AT_ONCE);
}

static void get_one_at_once(void) {
    get_until(AT_ONCE);
}

static void put_2(void) {
    put(2);
}

static void get_one(void) {
    get();
}

static void all_taken(void) {
    MODEL_CHECK(ghost.count == 2 && ghost.taken[1] && ghost.taken[2]);
}

static void both_are_there(void) {
    struct cw_queue_place there;
    cw_queue_look(&queue.put, &there);
    MODEL_CHECK(there.count == 2 && there.position == 2 * STEP && cells[0] + cells[1] == 3);
}

static void the_others_is_there(void) {
    struct cw_queue_place there;
    cw_queue_look(&queue.put, &there);
    MODEL_CHECK(there.count >= 1 && there.position == there.count * STEP);
    MODEL_CHECK(cells[there.count - 1] == 2 || cells[0] == 2);
    MODEL_CHECK(queue.put.turn == 0 || model_died(0));
}

/* Who died took at most its own, and the rest is there. */
static void nothing_else_lost(void) {
    struct cw_queue_place taken;
    cw_queue_look(&queue.get, &taken);
    MODEL_CHECK(ghost.count >= 1 && taken.position == taken.count * STEP);
    MODEL_CHECK(taken.count >= ghost.count && taken.count <= ghost.count + 1u);
}

/* A reader may wait for ever only when nothing is there. */
static bool nothing_there(void) {
    struct cw_queue_place taken, there;
    cw_queue_look(&queue.get, &taken);
    cw_queue_look(&queue.put, &there);
    return taken.count == there.count;
}

/* A writer may wait for ever only when there is no room. */
static bool no_room(void) {
    struct cw_queue_place taken, there;
    cw_queue_look(&queue.get, &taken);
    cw_queue_look(&queue.put, &there);
    return there.count - taken.count == queue.max_items;
}

static void init_first_is_there(void) {
    init_one_place();
    cells[0] = 1;
    struct cw_queue_place place = {.position = 0};
    cw_queue_put_begin(&queue, 1, FOR_EVER, &place);
    place.position += STEP;
    cw_queue_put_commit(&queue, &place, 1);
}

static void init_both_are_there(void) {
    init_two_places();
    cells[0] = 1;
    cells[1] = 2;
    atomic_store(&queue.put.count, 2);
    atomic_store(&queue.put.mark[0].position, 2 * STEP);
    atomic_store(&queue.put.mark[0].bytes, 2);
}

static void look(void) {
    struct cw_queue_place place;
    cw_queue_look(&queue.get, &place);
    MODEL_CHECK(place.position == place.count * STEP && place.bytes == place.count);
}

/* Three go through an end, without anybody at the other one. */
static void init_three_there(void) {
    fresh(4);
    atomic_store(&queue.put.count, 3);
    atomic_store(&queue.put.mark[1].position, 3 * STEP);
    atomic_store(&queue.put.mark[1].bytes, 3);
}

static void take_three(void) {
    for (int i = 0; i < 3; i++) {
        struct cw_queue_place place;
        MODEL_CHECK(cw_queue_get_begin(&queue, FOR_EVER, &place) == 0);
        place.position += STEP;
        cw_queue_get_commit(&queue, &place, 1, false);
    }
}

static void get_and_done(void) {
    get();
    MODEL_CHECK(cw_queue_done(&queue) == 0);
}

static void join(void) {
    MODEL_CHECK(cw_queue_join(&queue, FOR_EVER) == 0);
    MODEL_CHECK(ghost.count == 1);
}

/* Two threads of one process: one waits for an item, the other has one for it. */
static cw_a32 word;

static void init_a_word(void) {
    fresh(1);
    atomic_store(&word, 0);
}

static void wait_for_one(void) {
    struct cw_queue_place place;
    MODEL_CHECK(cw_queue_get_begin_unless(&queue, FOR_EVER, &word, 0, &place) == -EAGAIN);
}

static void end_the_wait(void) {
    cw_queue_end_waits(&queue, &word);
}

#define QUEUE(text, says, start, dies, end, wait, ...)                                             \
    {                                                                                              \
        .name = text, .promise = says, .init = start, .final = end, .threads = {__VA_ARGS__},      \
        .killable = dies, .ghost = &ghost, .ghost_bytes = sizeof ghost, .stuck = wait              \
    }

const struct model_scenario model_queue_scenarios[] = {
    QUEUE("queue, two writers", "both put theirs", init_two_places, 0, both_are_there, NULL, put_1,
          put_2),
    QUEUE("queue, two readers", "each item is taken once", init_both_are_there, 0, all_taken, NULL,
          get_one, get_one),
    QUEUE("queue, two writers that do not wait", "nobody finds it full that has room",
          init_two_places, 0, both_are_there, NULL, put_1_at_once, put_2_at_once),
    QUEUE("queue, two readers that do not wait", "nobody finds it empty beside an item",
          init_both_are_there, 0, all_taken, NULL, get_one_at_once, get_one_at_once),
    QUEUE("queue, a writer dies beside one that does not wait", "the other puts its own",
          init_two_places, 1u << 0, the_others_is_there, NULL, put_1, put_2_at_once),
    QUEUE("queue, a writer dies", "what it published is read", init_one_place, 1u << 0, NULL,
          nothing_there, put_1, get_one),
    QUEUE("queue, a reader dies", "the room that it made is seen", init_first_is_there, 1u << 0,
          NULL, no_room, get_one, put_2),
    QUEUE("queue, a writer dies beside another", "the other puts its own", init_two_places, 1u << 0,
          the_others_is_there, NULL, put_1, put_2),
    QUEUE("queue, a reader dies beside another", "the other takes one, nothing else is lost",
          init_both_are_there, 1u << 0, nothing_else_lost, NULL, get_one, get_one),
    QUEUE("queue, a look while three go through", "a mark is its count's", init_three_there, 0,
          NULL, NULL, take_three, look),
    QUEUE("queue, joined", "who joins sees that all is done", init_first_is_there, 0, NULL, NULL,
          get_and_done, join),
    QUEUE("queue, a wait that is ended", "who waits goes on", init_a_word, 0, NULL, NULL,
          wait_for_one, end_the_wait),
    {.name = NULL},
};
