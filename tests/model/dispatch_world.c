/*
 * The world of the scenarios of dispatch: see dispatch_world.h.
 */
#include "dispatch_world.h"

#include <string.h>

#include "shm/base/error.h"

enum { LOCK };

struct cw_dispatch_words words;
struct cw_dispatch_group groups[GROUPS];
struct cw_dispatch_worker workers[WORKERS];
struct cw_cell cells[CELLS];
struct cw_dispatch_parent parent;
struct cw_dispatch_view views[WORKERS];
uint64_t payload[CELLS], note;
struct dispatch_ghost ghost;
static cw_a32 queue[GROUPS * CELLS], done[WORKERS * CELLS];
static uint64_t tails[GROUPS], heads[GROUPS], places[CELLS];
static uint32_t free_cells[CELLS];
static cw_a64 seen[WORKERS];
static cw_a32 lock_word;

void fresh(uint32_t cell_count, uint32_t spinners) {
    memset(&words, 0, sizeof words);
    memset(groups, 0, sizeof groups);
    memset(workers, 0, sizeof workers);
    memset(cells, 0, sizeof cells);
    memset(queue, 0, sizeof queue);
    memset(done, 0, sizeof done);
    memset(tails, 0, sizeof tails);
    memset(heads, 0, sizeof heads);
    memset(seen, 0, sizeof seen);
    memset(payload, 0, sizeof payload);
    atomic_store(&lock_word, 0);
    note = 0;
    for (uint32_t i = 0; i < CELLS; i++) {
        free_cells[i] = cell_count - 1 - i;
        places[i] = CW_DISPATCH_NOWHERE;
        model_plain(&payload[i]);
    }
    model_plain(&note);
    parent = (struct cw_dispatch_parent){
        .view = {.words = &words,
                 .groups = groups,
                 .workers = workers,
                 .cells = cells,
                 .queue = queue,
                 .done = done,
                 .worker_count = WORKERS,
                 .cell_count = cell_count,
                 .queue_len = cell_count,
                 .group_count = 1,
                 .spinners = spinners},
        .tail = tails,
        .head = heads,
        .free = free_cells,
        .free_count = cell_count,
        .place = places,
        .seen = seen,
    };
    for (uint32_t w = 0; w < WORKERS; w++)
        views[w] = parent.view;
}

void fresh_groups(uint32_t cell_count, uint32_t group_of_1) {
    fresh(cell_count, 0);
    parent.view.group_count = GROUPS;
    for (uint32_t w = 0; w < WORKERS; w++) {
        views[w] = parent.view;
        views[w].group = w == 1 ? group_of_1 : 0;
        cw_dispatch_assign(&parent, w, views[w].group);
    }
}

void submit_to(uint32_t group, uint64_t value) {
    int cell = cw_dispatch_reserve(&parent);
    MODEL_CHECK(cell >= 0);
    model_plain_write(&payload[cell], value);
    MODEL_CHECK(cw_dispatch_submit(&parent, group, (uint32_t)cell) == 0);
}

void submit(uint64_t value) {
    submit_to(0, value);
}

void submit_and_wake(uint64_t value) {
    submit(value);
    cw_dispatch_wake(&parent, 0, 1);
}

int take(uint32_t w) {
    uint64_t place;
    int cell = cw_dispatch_take(&views[w], w, &place);
    if (cell < 0)
        return cell;
    uint64_t value = model_plain_read(&payload[cell]);
    MODEL_CHECK(value >= 1 && value <= 4 && ghost.taken[value]++ == 0);
    model_plain_write(&payload[cell], value + ANSWERED);
    return cell;
}

void answer(uint32_t w, int cell) {
    MODEL_CHECK(cell >= 0);
    if (!cw_dispatch_publish(&views[w], w, (uint32_t)cell))
        cw_dispatch_settle(&views[w], w, 0);
}

void note_answer(int cell) {
    uint64_t value = model_plain_read(&payload[cell]) - ANSWERED;
    MODEL_CHECK(value >= 1 && value <= 4 && ghost.collected[value]++ == 0);
    cw_dispatch_free(&parent, (uint32_t)cell);
}

unsigned collect(void) {
    uint32_t w;
    uint64_t place;
    int cell;
    unsigned count = 0;
    for (; (cell = cw_dispatch_collect(&parent, &w, &place)) >= 0; count++)
        note_answer(cell);
    MODEL_CHECK(cell == -EAGAIN);
    return count;
}

void bury(uint32_t w) {
    struct cw_dispatch_end end;
    int cell;
    collect();
    while ((cell = cw_dispatch_bury(&parent, w, &end)) >= 0) {
        if (end.answered) {
            note_answer(cell);
            continue;
        }
        uint64_t value = model_plain_read(&payload[cell]) % ANSWERED;
        MODEL_CHECK(value >= 1 && value <= 4 && ghost.lost[value]++ == 0);
        cw_dispatch_free(&parent, (uint32_t)cell);
    }
    MODEL_CHECK(cell == -EAGAIN);
}

void lock(void) {
    model_wait(1u << LOCK, 0);
    CW_ADD(LOCK, &lock_word, 1, acq_rel);
}

void unlock(void) {
    CW_ADD(LOCK, &lock_word, 1, acq_rel);
    model_signal(LOCK);
}

bool is_ready(uint32_t cell) {
    return (atomic_load(&cells[cell].word) & 0xf) == CW_CELL_READY;
}

bool nothing_ready(void) {
    return !is_ready(0) && !is_ready(1);
}

void one_by_0(void) {
    answer(0, take(0));
}

void one_by_1(void) {
    answer(1, take(1));
}

void undertaker(void) {
    model_wait(0, 1u << 0);
    if (model_died(0))
        bury(0);
}

void accounted(unsigned value) {
    unsigned ready = 0;
    for (uint32_t i = 0; i < CELLS; i++)
        ready += is_ready(i) && payload[i] == value;
    MODEL_CHECK(ghost.collected[value] + ghost.lost[value] + ready == 1);
    MODEL_CHECK(!ghost.lost[value] || model_died(0));
}
