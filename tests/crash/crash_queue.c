/*
 * Killed at every instruction of putting into a queue and of taking from it: SIGKILL after 0, 1,
 * 2, ... instructions, until the operation ends. Exhaustive over the path between the ends: the
 * turn, the item's bytes, the mark, the count, both wake-ups. After each kill the others look: the
 * item is there whole or not at all, what was there before is there, and both ends go on at once,
 * without waiting for a time to run out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <sys/mman.h>

#include "shm/tasks/queue.h"
#include "shm/base/task.h"
#include "tests/crash/support/every.h"
#include "tests/crash/support/step.h"
#include "tests/support.h"

#define PLACES 4u
#define WORDS  8u /* of an item */
#define SECOND 1000000000ll

struct shared {
    struct cw_queue_core queue;
    uint64_t cells[PLACES][WORDS];
    uint64_t taken; /* by the child, noted before it publishes */
};

static struct shared *shared;
static uint64_t before; /* items that were there */

static int put(uint64_t value) {
    struct cw_queue_place place;
    int code = cw_queue_put_begin(&shared->queue, 1, cw_now_ns() + 5 * SECOND, &place);
    if (code)
        return code;
    for (unsigned i = 0; i < WORDS; i++)
        shared->cells[place.count % PLACES][i] = value + i;
    place.position += 16;
    cw_queue_put_commit(&shared->queue, &place, 1);
    return 0;
}

static int get(uint64_t *value) {
    struct cw_queue_place place;
    int code = cw_queue_get_begin(&shared->queue, cw_now_ns() + 5 * SECOND, &place);
    if (code)
        return code;
    *value = shared->cells[place.count % PLACES][0];
    for (unsigned i = 0; i < WORDS; i++)
        if (shared->cells[place.count % PLACES][i] != *value + i ||
            place.position != 16 * place.count || place.bytes != place.count)
            code = -EPROTO;
    place.position += 16;
    cw_queue_get_commit(&shared->queue, &place, 1, false);
    return code;
}

static void fill(uint64_t items) {
    memset(shared, 0, sizeof *shared);
    shared->queue.max_items = PLACES;
    before = items;
    for (uint64_t i = 0; i < items; i++)
        assert_int_equal(put(1000 * (i + 1)), 0);
}

static void two_are_there(void) {
    fill(2);
}

/* Everybody sleeps, or seems to: each wake-up is a system call. */
static void two_are_there_and_all_sleep(void) {
    fill(2);
    cw_bell_announce(&shared->queue.filled);
    cw_bell_announce(&shared->queue.freed);
    cw_bell_announce(&shared->queue.put.bell);
    cw_bell_announce(&shared->queue.get.bell);
}

static void put_one(void) {
    put(9000);
}

static void take_one(void) {
    uint64_t value;
    get(&value);
}

/* The rest, in order; then the ends work as ever. */
static void goes_on(uint64_t first, uint64_t items, bool with_new) {
    uint64_t value;
    for (uint64_t i = first; i < before; i++, items--) {
        assert_int_equal(get(&value), 0);
        assert_int_equal(value, 1000 * (i + 1));
    }
    if (with_new) {
        assert_int_equal(items, 1);
        assert_int_equal(get(&value), 0);
        assert_int_equal(value, 9000);
    }
    for (uint64_t i = 0; i < PLACES; i++)
        assert_int_equal(put(70 + i * 100), 0);
    for (uint64_t i = 0; i < PLACES; i++) {
        assert_int_equal(get(&value), 0);
        assert_int_equal(value, 70 + i * 100);
    }
}

static uint64_t count(void) {
    struct cw_queue_place taken, there;
    cw_queue_look(&shared->queue.get, &taken);
    cw_queue_look(&shared->queue.put, &there);
    return there.count - taken.count;
}

static void whole_or_not_at_all(void) {
    uint64_t items = count();
    assert_true(items == before || items == before + 1);
    goes_on(0, items, items > before);
}

static void taken_or_not(void) {
    uint64_t items = count();
    assert_true(items == before || items == before - 1);
    goes_on(before - items, items, false);
}

static void enter(void) {
    cw_task_self(); /* once a thread; it reads a file */
}

#define TEST(name, prepare, run, check) EVERY_TEST(name, prepare, enter, run, check, 100)

int main(void) {
    step_pin();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        TEST(a_put_is_whole_or_never_was, two_are_there, put_one, whole_or_not_at_all),
        TEST(a_put_that_wakes_is_whole_or_never_was, two_are_there_and_all_sleep, put_one,
             whole_or_not_at_all),
        TEST(a_get_takes_one_or_nothing, two_are_there, take_one, taken_or_not),
        TEST(a_get_that_wakes_takes_one_or_nothing, two_are_there_and_all_sleep, take_one,
             taken_or_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
