/*
 * A dispatch within one process, for its unit tests: the shared words, the parent's own, and what
 * each test does with them. Who includes it says how large: WORKERS, CELLS, GROUPS, PLACES (of a
 * queue).
 */
#ifndef CW_TESTS_DISPATCH_SUPPORT_H
#define CW_TESTS_DISPATCH_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>

#include "shm/tasks/dispatch.h"
#include "shm/base/error.h"
#include "tests/support.h"

static struct {
    struct cw_dispatch_words words;
    struct cw_dispatch_group groups[GROUPS];
    struct cw_dispatch_worker workers[WORKERS];
    struct cw_cell cells[CELLS];
    cw_a32 queue[GROUPS * PLACES], done[WORKERS * PLACES];
} shared;
static uint64_t tails[GROUPS], heads[GROUPS], places[CELLS];
static uint32_t free_cells[CELLS];
static cw_a64 seen[WORKERS];
static struct cw_dispatch_parent parent;

static inline void fresh_world(uint32_t group_count) {
    memset(&shared, 0, sizeof shared);
    memset(tails, 0, sizeof tails);
    memset(heads, 0, sizeof heads);
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < CELLS; i++) {
        free_cells[i] = CELLS - 1 - i;
        places[i] = CW_DISPATCH_NOWHERE;
    }
    parent = (struct cw_dispatch_parent){
        .view = {.words = &shared.words,
                 .groups = shared.groups,
                 .workers = shared.workers,
                 .cells = shared.cells,
                 .queue = shared.queue,
                 .done = shared.done,
                 .worker_count = WORKERS,
                 .cell_count = CELLS,
                 .queue_len = PLACES,
                 .group_count = group_count},
        .tail = tails,
        .head = heads,
        .free = free_cells,
        .free_count = CELLS,
        .place = places,
        .seen = seen,
    };
}

static inline uint32_t submit_to(uint32_t group, uint64_t value) {
    int cell = cw_dispatch_reserve(&parent);
    assert_true(cell >= 0);
    cw_dispatch_write(shared.cells[cell].meta, &value, sizeof value);
    assert_int_equal(cw_dispatch_submit(&parent, group, (uint32_t)cell), 0);
    return (uint32_t)cell;
}

static inline uint32_t take_from(const struct cw_dispatch_view *of, uint32_t w, uint64_t value) {
    uint64_t place;
    int cell = cw_dispatch_take(of, w, &place);
    assert_true(cell >= 0 && cell < (int)CELLS);
    assert_int_equal(shared.cells[cell].meta[0], value);
    assert_int_equal(place, places[cell]);
    return (uint32_t)cell;
}

static inline void answer_to(const struct cw_dispatch_view *of, uint32_t w, uint32_t cell) {
    if (!cw_dispatch_publish(of, w, cell))
        cw_dispatch_settle(of, w, 0);
}

static inline void collect(uint32_t by, uint64_t value) {
    uint32_t w;
    uint64_t place;
    int cell = cw_dispatch_collect(&parent, &w, &place);
    assert_true(cell >= 0);
    assert_int_equal(w, by);
    assert_int_equal(shared.cells[cell].meta[0], value);
    cw_dispatch_free(&parent, (uint32_t)cell);
}

#endif
