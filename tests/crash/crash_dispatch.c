/*
 * Workers killed with SIGKILL: at every instruction of taking a task and answering it, of being
 * woken for one and waking the next, of answering somebody who sleeps; and at random, three of
 * them, while a parent goes on submitting. After each death every task is READY, answered, or comes
 * out of the burial, the others take what is READY, and another worker goes on in the dead one's
 * place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "ipc/causeway.h"
#include "shm/dispatch.h"
#include "shm/error.h"
#include "tests/crash/every.h"
#include "tests/crash/step.h"
#include "tests/support.h"

/* ---- at every instruction, over shared memory alone ---- */

#define WORKERS 2u
#define CELLS   2u

static struct shared {
    struct cw_dispatch_words words;
    struct cw_dispatch_group groups[1];
    struct cw_dispatch_worker workers[WORKERS];
    struct cw_cell cells[CELLS];
    cw_a32 queue[CELLS], done[WORKERS * CELLS];
    uint64_t tails[1];
    uint32_t free_cells[CELLS];
    uint64_t places[CELLS];
    cw_a64 seen[WORKERS];
    struct cw_dispatch_parent parent; /* the submitter is a child of its own */
    atomic_bool killed;
} * shared;
static struct cw_dispatch_parent *parent;
static const struct cw_dispatch_view *view;
static pid_t submitter;

static void fresh(void) {
    memset(shared, 0, sizeof *shared);
    for (uint32_t i = 0; i < CELLS; i++) {
        shared->free_cells[i] = CELLS - 1 - i;
        shared->places[i] = CW_DISPATCH_NOWHERE;
    }
    shared->parent = (struct cw_dispatch_parent){
        .view = {.words = &shared->words,
                 .groups = shared->groups,
                 .workers = shared->workers,
                 .cells = shared->cells,
                 .queue = shared->queue,
                 .done = shared->done,
                 .worker_count = WORKERS,
                 .cell_count = CELLS,
                 .queue_len = CELLS,
                 .group_count = 1},
        .tail = shared->tails,
        .free = shared->free_cells,
        .free_count = CELLS,
        .place = shared->places,
        .seen = shared->seen,
    };
    parent = &shared->parent;
    view = &parent->view;
}

static void submit(uint64_t value) {
    int cell = cw_dispatch_reserve(parent);
    CW_ASSERT(cell >= 0);
    for (unsigned i = 0; i < 6; i++)
        shared->cells[cell].meta[i] = value + i;
    CW_ASSERT(cw_dispatch_submit(parent, 0, (uint32_t)cell) == 0);
}

static void two_are_ready(void) {
    fresh();
    submit(1000);
    submit(2000);
}

static void two_are_ready_and_all_sleep(void) {
    two_are_ready();
    cw_bell_announce(&shared->words.answers);
    cw_bell_announce(&shared->words.helper);
    cw_sleeper_announce(&shared->workers[1].sleeper);
}

static void two_are_ready_and_one_listens(void) {
    two_are_ready_and_all_sleep();
    cw_dispatch_listen(parent, 1);
}

/* Worker 1 seems to sleep; once worker 0 does too, or is dead, two tasks come, for one of them. */
static void two_come_once_all_sleep(void) {
    fresh();
    cw_sleeper_announce(&shared->workers[1].sleeper);
    fflush(NULL);
    submitter = fork();
    if (submitter != 0)
        return;
    while (!atomic_load(&shared->killed) && !atomic_load(&shared->workers[0].sleeper.asleep))
        sched_yield();
    submit(1000);
    submit(2000);
    cw_dispatch_wake(parent, 0, 1);
    _exit(0);
}

static int take(uint32_t w) {
    uint64_t place;
    return cw_dispatch_take(view, w, &place);
}

static void answer(uint32_t w, int cell) {
    if (!cw_dispatch_publish(view, w, (uint32_t)cell))
        cw_dispatch_settle(view, w, 0);
}

static void take_and_answer(void) {
    int cell = take(0);
    if (cell < 0)
        _exit(9);
    for (unsigned i = 0; i < 6; i++)
        shared->cells[cell].meta[i] += 5;
    answer(0, cell);
}

static void take_and_leave(void) {
    if (take(0) != -ESHUTDOWN)
        _exit(9);
}

static uint64_t value_of(int cell, uint64_t more) {
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(shared->cells[cell].meta[i], shared->cells[cell].meta[0] + i);
    return shared->cells[cell].meta[0] - more;
}

static unsigned collect(unsigned first, unsigned *answered) {
    uint32_t w;
    uint64_t place;
    int cell;
    unsigned count = 0;
    for (; (cell = cw_dispatch_collect(parent, &w, &place)) >= 0; count++) {
        uint64_t value = value_of(cell, 5);
        assert_true(value % 1000 == 0 && value / 1000 >= first);
        answered[value / 1000]++;
        cw_dispatch_free(parent, (uint32_t)cell);
    }
    assert_int_equal(cell, -EAGAIN);
    return count;
}

static void one_by(uint32_t w) {
    int cell = take(w);
    assert_true(cell >= 0);
    for (unsigned i = 0; i < 6; i++)
        shared->cells[cell].meta[i] += 5;
    answer(w, cell);
}

/* Buries worker 0; the others take what is READY; then all goes on. */
static void all_accounted(void) {
    unsigned answered[5] = {0}, lost = 0;
    struct cw_dispatch_end end;
    int cell;
    collect(1, answered);
    while ((cell = cw_dispatch_bury(parent, 0, &end)) >= 0) {
        if (end.answered)
            answered[value_of(cell, 5) / 1000]++;
        else
            lost++;
        cw_dispatch_free(parent, (uint32_t)cell);
    }
    assert_int_equal(cell, -EAGAIN);
    assert_true(answered[1] <= 1 && answered[2] == 0 && answered[1] + lost <= 1);
    if (cw_dispatch_ready(view, 0))
        assert_false(atomic_load(&shared->workers[1].sleeper.asleep));
    cw_dispatch_close(parent, true);
    while ((cell = take(1)) >= 0) {
        for (unsigned i = 0; i < 6; i++)
            shared->cells[cell].meta[i] += 5;
        answer(1, cell);
    }
    assert_int_equal(cell, -ESHUTDOWN);
    collect(1, answered);
    assert_int_equal(answered[1] + lost, 1);
    assert_int_equal(answered[2], 1);
    cw_dispatch_close(parent, false);
    assert_int_equal(parent->free_count, CELLS);
    submit(3000);
    submit(4000);
    one_by(0); /* the next of that number */
    one_by(1);
    collect(3, answered);
    assert_true(answered[3] == 1 && answered[4] == 1);
}

static void all_accounted_once_submitted(void) {
    atomic_store(&shared->killed, true);
    int status;
    assert_int_equal(waitpid(submitter, &status, 0), submitter);
    assert_int_equal(status, 0);
    all_accounted();
}

static void closed(void) {
    fresh();
    cw_dispatch_close(parent, true);
}

static void nothing_left(void) {
    struct cw_dispatch_end end;
    assert_int_equal(cw_dispatch_bury(parent, 0, &end), -EAGAIN);
    cw_dispatch_close(parent, false);
    unsigned answered[5] = {0};
    submit(3000);
    one_by(0);
    assert_int_equal(collect(3, answered), 1);
}

static void state(void) {
    cw_dispatch_state(view, 0, 3);
}

/* ---- at random, with processes ---- */

#define CREW       3u
#define POOL_CELLS 6u

static void *memory;
static uint64_t memory_bytes, kills;
static cw_pool *pool;
static _Atomic pid_t crew[CREW]; /* 0: dead, and not replaced yet */
static atomic_bool ended;

static void crew_work(uint32_t number) {
    cw_worker *worker;
    cw_task task;
    if (cw_worker_open(memory, memory_bytes, CREW, POOL_CELLS, 1, number, 0, 2, &worker) != 0)
        _exit(1);
    while (cw_worker_take(worker, &task) == 0) {
        uint64_t *data = task.data;
        for (unsigned i = 1; i < 64; i++)
            data[i] = data[0] * i;
        task.size_bytes = 512;
        cw_worker_answer(worker, &task, 0, 0);
    }
    _exit(0);
}

static void crew_start(uint32_t number) {
    pid_t pid = fork();
    CW_ASSERT(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        crew_work(number);
    }
    atomic_store(&crew[number], pid);
}

/* Kills one, waits for its end, tells who waits; as a watcher of pidfds does. */
static void *kill_some(void *context) {
    (void)context;
    struct chance chance = chance_init(3);
    while (kills > 0) {
        if (chance_below(&chance, 3))
            usleep((useconds_t)chance_below(&chance, 300));
        uint32_t w = (uint32_t)chance_below(&chance, CREW);
        pid_t pid = atomic_load(&crew[w]);
        if (pid == 0)
            continue;
        int status;
        kill(pid, SIGKILL);
        CW_ASSERT(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        kills--;
        atomic_store(&crew[w], 0);
        cw_pool_tell(pool, 0);
    }
    atomic_store(&ended, true);
    cw_pool_tell(pool, 0);
    return NULL;
}

struct tally {
    uint64_t submitted, answered, lost;
    unsigned under_way;
};

static void crew_answer(const cw_task *task, struct tally *tally) {
    uint64_t *data = task->data;
    CW_ASSERT(task->size_bytes == 512 && data[0] >= 1 && data[0] <= tally->submitted);
    for (unsigned i = 1; i < 64; i++)
        CW_ASSERT(data[i] == data[0] * i);
    data[0] = 0; /* once */
    tally->answered++;
    tally->under_way--;
    cw_pool_free(pool, task->cell);
}

static void crew_collect(struct tally *tally) {
    cw_task task;
    int code;
    while ((code = cw_pool_collect(pool, &task)) == 0)
        crew_answer(&task, tally);
    CW_ASSERT(code == -EAGAIN);
}

static void crew_replace(struct tally *tally) {
    for (uint32_t w = 0; w < CREW; w++) {
        if (atomic_load(&crew[w]) != 0)
            continue;
        cw_task task;
        int code;
        crew_collect(tally);
        while ((code = cw_pool_bury(pool, w, &task)) >= 0) {
            if (code == 1) {
                crew_answer(&task, tally);
                continue;
            }
            tally->lost++;
            tally->under_way--;
            cw_pool_free(pool, task.cell);
        }
        CW_ASSERT(code == -EAGAIN);
        crew_start(w);
    }
}

static void crew_submit(struct tally *tally, unsigned count) {
    cw_task task;
    for (unsigned i = 0; i < count && cw_pool_reserve(pool, &task) == 0; i++) {
        ((uint64_t *)task.data)[0] = tally->submitted + 1;
        task.size_bytes = 8;
        int code = cw_pool_submit(pool, &task);
        CW_ASSERT(code == 0);
        tally->submitted++;
        tally->under_way++;
    }
    cw_pool_wake(pool, 0, count);
}

static void killed_at_random_no_other_task_is_lost(void **unused) {
    (void)unused;
    struct chance chance = chance_init(4);
    struct tally tally = {0};
    uint64_t all = kills = test_rounds(300);
    memory_bytes = cw_pool_bytes(CREW, POOL_CELLS, 1);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(cw_pool_new(memory, memory_bytes, CREW, POOL_CELLS, 1, &pool), 0);
    for (uint32_t w = 0; w < CREW; w++)
        crew_start(w);
    pthread_t killer;
    assert_int_equal(pthread_create(&killer, NULL, kill_some, NULL), 0);
    while (!atomic_load(&ended)) {
        crew_submit(&tally, 1 + (unsigned)chance_below(&chance, POOL_CELLS));
        if (chance_below(&chance, 16) == 0)
            usleep(100); /* they sleep */
        cw_pool_listen(pool, 1);
        for (;;) {
            uint32_t was = cw_pool_news(pool, 0);
            crew_replace(&tally);
            crew_collect(&tally);
            if (tally.under_way == 0)
                break;
            assert_int_equal(cw_pool_wait(pool, 0, was, 0, -1), 0);
        }
        cw_pool_listen(pool, -1);
    }
    pthread_join(killer, NULL);
    crew_replace(&tally);
    cw_pool_close(pool, 1);
    for (uint32_t w = 0; w < CREW; w++) {
        int status;
        assert_int_equal(waitpid(atomic_load(&crew[w]), &status, 0), atomic_load(&crew[w]));
        assert_int_equal(status, 0);
    }
    assert_int_equal(tally.answered + tally.lost, tally.submitted);
    assert_true(tally.lost <= all);
    print_message("# %llu kills, %llu tasks, %llu went with their worker\n",
                  (unsigned long long)all, (unsigned long long)tally.submitted,
                  (unsigned long long)tally.lost);
    cw_pool_delete(pool);
}

#define TEST(name, prepare, run, check, least) EVERY_TEST(name, prepare, NULL, run, check, least)

int main(void) {
    chance_seed(); /* before there are children */
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    const struct CMUnitTest at_random[] = {
        cmocka_unit_test(killed_at_random_no_other_task_is_lost),
    };
    int failed = cmocka_run_group_tests(at_random, NULL, NULL);
    step_pin();
    const struct CMUnitTest tests[] = {
        TEST(a_task_is_ready_lost_or_answered, two_are_ready, take_and_answer, all_accounted, 100),
        TEST(the_same_while_the_helper_sleeps, two_are_ready_and_all_sleep, take_and_answer,
             all_accounted, 100),
        TEST(the_same_while_a_listener_sleeps, two_are_ready_and_one_listens, take_and_answer,
             all_accounted, 100),
        TEST(who_is_woken_and_wakes_leaves_nobody_asleep, two_come_once_all_sleep, take_and_answer,
             all_accounted_once_submitted, 100),
        TEST(leaving_leaves_nothing, closed, take_and_leave, nothing_left, 10),
        TEST(a_state_leaves_nothing, closed, state, nothing_left, 10),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) + failed;
}
