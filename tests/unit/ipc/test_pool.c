/*
 * A pool's memory: its sizes, its two ends, what goes through a cell, and what a worker may lie
 * about. Whose turn it is and who sleeps is shm/tasks/dispatch.h's (test_dispatch.c).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ipc/cableway.h"
#include "shm/tasks/dispatch.h"
#include "shm/base/error.h"
#include "tests/support.h"

#define WORKERS 2u
#define CELLS   4u

static void *memory;
static uint64_t memory_bytes;
static cw_pool *pool;
static cw_worker *workers[WORKERS];
static uint32_t groups; /* each worker is in another one, if there are two */

static int setup_groups(uint32_t count) {
    groups = count;
    memory_bytes = cw_pool_bytes(WORKERS, CELLS, groups);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    memset(memory, 0xa5, memory_bytes); /* used before */
    if (cw_pool_new(memory, memory_bytes, WORKERS, CELLS, groups, &pool) != 0)
        return -1;
    for (uint32_t i = 0; i < WORKERS; i++)
        if (cw_worker_open(memory, memory_bytes, WORKERS, CELLS, groups, i, i % groups, 2,
                           &workers[i]) != 0)
            return -1;
    return 0;
}

static int setup(void **state) {
    (void)state;
    return setup_groups(1);
}

static int setup_two_groups(void **state) {
    (void)state;
    return setup_groups(2);
}

static int teardown(void **state) {
    (void)state;
    for (uint32_t i = 0; i < WORKERS; i++)
        cw_worker_close(workers[i]);
    cw_pool_delete(pool);
    return munmap(memory, memory_bytes);
}

/* The shared parts, as shm/tasks/dispatch.h has them, for lies. */
static struct cw_dispatch_words *words(void) {
    return (void *)((uint8_t *)memory + 64);
}
static struct cw_dispatch_group *group_words(uint32_t group) {
    return (struct cw_dispatch_group *)(void *)(words() + 1) + group;
}
static struct cw_dispatch_worker *worker_words(uint32_t w) {
    return (struct cw_dispatch_worker *)(void *)(group_words(0) + groups) + w;
}
static struct cw_cell *cell_words(uint32_t cell) {
    return (struct cw_cell *)(void *)worker_words(WORKERS) + cell;
}

static void fails(int code, int wanted, const char *says) {
    assert_int_equal(code, wanted);
    if (!strstr(cw_detail(), says))
        fail_msg("'%s' does not say '%s'", cw_detail(), says);
}

static cw_task submit(const void *data, uint32_t size_bytes) {
    cw_task task;
    assert_int_equal(cw_pool_reserve(pool, &task), 0);
    memcpy(task.data, data, size_bytes);
    task.size_bytes = size_bytes;
    task.kind = 3;
    task.function = 0x1122334455667788ull;
    task.slot = 5;
    task.function_bytes = 11;
    assert_int_equal(cw_pool_submit(pool, &task), 0);
    cw_pool_wake(pool, 0, 1);
    return task;
}

static cw_task take(uint32_t w) {
    cw_task task;
    assert_int_equal(cw_worker_take(workers[w], &task), 0);
    assert_int_equal(task.worker, w);
    return task;
}

static cw_task collect(void) {
    cw_task task;
    assert_int_equal(cw_pool_collect(pool, &task), 0);
    return task;
}

static void sizes_have_limits(void **state) {
    (void)state;
    assert_int_equal(cw_pool_bytes(0, 1, 1), 0);
    assert_int_equal(cw_pool_bytes(2, 1, 1), 0);
    assert_int_equal(cw_pool_bytes(CW_POOL_WORKERS_MAX + 1, CW_POOL_CELLS_MAX, 1), 0);
    assert_int_equal(cw_pool_bytes(1, CW_POOL_CELLS_MAX + 1, 1), 0);
    assert_int_equal(cw_pool_bytes(1, 1, 0), 0);
    assert_int_equal(cw_pool_bytes(1, 1, CW_POOL_GROUPS_MAX + 1), 0);
    assert_true(cw_pool_bytes(1, 1, CW_POOL_GROUPS_MAX) > cw_pool_bytes(1, 1, 1));
    assert_true(cw_pool_bytes(1, 1, 1) > 0);
    assert_true(cw_pool_bytes(CW_POOL_WORKERS_MAX, CW_POOL_CELLS_MAX, 1) > 1ull << 30);
    cw_pool *other;
    fails(cw_pool_new(memory, memory_bytes, 0, 1, 1, &other), -EINVAL,
          "0 workers, 1 groups and 1 cells");
    fails(cw_pool_new(memory, memory_bytes, 3, 2, 1, &other), -EINVAL,
          "as many cells as workers or more");
    fails(cw_pool_new(memory, memory_bytes - 1, WORKERS, CELLS, 1, &other), -EINVAL, "were given");
    fails(cw_pool_new(memory, memory_bytes, WORKERS, CELLS, 65, &other), -EINVAL,
          "1 to 64 groups of them");
    fails(cw_pool_new(NULL, memory_bytes, WORKERS, CELLS, 1, &other), -EINVAL, "multiple of 64");
    fails(cw_pool_new((uint8_t *)memory + 8, memory_bytes - 64, 1, 1, 1, &other), -EINVAL,
          "multiple of 64");
    fails(cw_pool_new(memory, memory_bytes, WORKERS, CELLS, 1, NULL), -EINVAL, "NULL was given");
    cw_pool_delete(NULL);
}

static void its_memory_is_whole_and_stays_so(void **state) {
    (void)state;
    int fd = -1;
    fails(cw_pool_allocate(0, &fd), -EINVAL, "0 bytes");
    fails(cw_pool_allocate(1ull << 60, &fd), -EDQUOT, "shared memory were asked for");
    assert_int_equal(fd, -1);
    assert_int_equal(cw_pool_allocate(memory_bytes, &fd), 0);
    struct stat status;
    assert_int_equal(fstat(fd, &status), 0);
    assert_true((uint64_t)status.st_size >= memory_bytes);
    assert_int_equal(status.st_blocks * 512, status.st_size);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(close(fd), 0);
}

static void a_worker_opens_what_the_parent_formatted(void **state) {
    (void)state;
    cw_worker *other;
    fails(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 1, WORKERS, 0, 0, &other), -EINVAL,
          "has no worker 2");
    fails(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 1, 0, 0, 0, NULL), -EINVAL,
          "NULL was given");
    fails(cw_worker_open(memory, memory_bytes, 1, CELLS, 1, 0, 0, 0, &other), -EPROTO,
          "not formatted");
    fails(cw_worker_open(memory, memory_bytes, WORKERS, 2, 1, 0, 0, 0, &other), -EPROTO,
          "not formatted");
    fails(cw_worker_open(memory, memory_bytes, WORKERS, CELLS + 9, 1, 0, 0, 0, &other), -EINVAL,
          "were given");
    fails(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 1, 0, 1, 0, &other), -EINVAL,
          "has no group 1");
    cw_pool_assign(pool, 1, 0);
    memset(memory, 0, 8);
    fails(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 1, 0, 0, 0, &other), -EPROTO,
          "not formatted");
}

static void a_worker_stays_until_each_of_its_answers_is_released(void **state) {
    (void)state;
    cw_worker *next;
    assert_int_equal(cw_worker_released(workers[1]), 1);
    cw_worker_lend(workers[1]);
    cw_worker_lend(workers[1]);
    assert_int_equal(cw_worker_released(workers[1]), 0);
    cw_pool_release(pool, 1);
    assert_int_equal(cw_worker_released(workers[1]), 0);
    assert_int_equal(cw_worker_released(workers[0]), 1);
    cw_pool_release(pool, 1);
    assert_int_equal(cw_worker_released(workers[1]), 1);
    cw_worker_lend(workers[1]); /* and dies: who has its number next owes nothing */
    assert_int_equal(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 1, 1, 0, 0, &next), 0);
    assert_int_equal(cw_worker_released(next), 1);
    cw_worker_close(next);
}

/* Reserved and free cells of the pool are as many as before: none was given out twice. */
static void cells_are_whole(void) {
    cw_task tasks[CELLS], more;
    for (uint32_t i = 0; i < CELLS; i++) {
        assert_int_equal(cw_pool_reserve(pool, &tasks[i]), 0);
        for (uint32_t k = 0; k < i; k++)
            assert_int_not_equal(tasks[i].cell, tasks[k].cell);
    }
    assert_int_equal(cw_pool_reserve(pool, &more), -EAGAIN);
    for (uint32_t i = 0; i < CELLS; i++)
        assert_int_equal(cw_pool_free(pool, tasks[i].cell), 0);
}

static void a_cell_that_is_not_the_callers_is_refused(void **state) {
    (void)state;
    const uint32_t none[] = {CELLS, CELLS + 1, 1u << 20, UINT32_MAX};
    int64_t elapsed;
    for (int i = 0; i < 4; i++) {
        cw_task forged = {.cell = none[i]};
        fails(cw_pool_free(pool, none[i]), -EINVAL, "has no cell");
        fails(cw_pool_submit(pool, &forged), -EINVAL, "has no cell");
        fails(cw_pool_withdraw(pool, none[i]), -EINVAL, "has no cell");
        fails(cw_pool_taker(pool, none[i], &elapsed), -EINVAL, "has no cell");
    }
    for (uint32_t cell = 0; cell < CELLS; cell++) { /* free ones */
        cw_task forged = {.cell = cell};
        fails(cw_pool_free(pool, cell), -EINVAL, "is free");
        fails(cw_pool_submit(pool, &forged), -EINVAL, "is free");
        fails(cw_pool_withdraw(pool, cell), -EINVAL, "has no submitted task");
    }
    cw_task task;
    assert_int_equal(cw_pool_reserve(pool, &task), 0);
    fails(cw_pool_withdraw(pool, task.cell), -EINVAL, "has no submitted task");
    assert_int_equal(cw_pool_free(pool, task.cell), 0);
    fails(cw_pool_free(pool, task.cell), -EINVAL, "is free"); /* twice */

    task = submit("data", 5);
    fails(cw_pool_submit(pool, &task), -EINVAL, "has a submitted task");
    fails(cw_pool_free(pool, task.cell), -EINVAL, "has a submitted task");
    assert_int_equal(cw_pool_withdraw(pool, task.cell), 0);
    fails(cw_pool_withdraw(pool, task.cell), -EINVAL, "has no submitted task");
    assert_int_equal(cw_pool_free(pool, task.cell), 0);

    submit("data", 5);
    cw_task taken = take(0);
    fails(cw_worker_answer(workers[1], &taken, 0, 0), -EINVAL, "has no task in cell");
    assert_int_equal(cw_worker_answer(workers[0], &taken, 0, 0), 0);
    fails(cw_worker_answer(workers[0], &taken, 0, 0), -EINVAL, "has no task in cell");
    taken.cell = UINT32_MAX;
    fails(cw_worker_answer(workers[0], &taken, 0, 0), -EINVAL, "has no task in cell");
    task = collect();
    fails(cw_pool_withdraw(pool, task.cell), -EINVAL, "arrived already");
    fails(cw_pool_collect(pool, &taken), -EAGAIN, "");
    assert_int_equal(cw_pool_free(pool, task.cell), 0);
    fails(cw_pool_free(pool, task.cell), -EINVAL, "is free");
    cells_are_whole();
}

static void a_task_of_more_than_there_is_room_for_is_refused(void **state) {
    (void)state;
    static const uint8_t data[2 * CW_POOL_DATA_MAX];
    cw_task task;
    assert_int_equal(cw_pool_reserve(pool, &task), 0);
    fails(cw_task_write(&task, data, CW_POOL_DATA_MAX + 1), -EINVAL, "at most 4096 bytes");
    fails(cw_task_write(&task, NULL, 1), -EINVAL, "NULL was given");
    assert_int_equal(cw_task_write(&task, data, CW_POOL_DATA_MAX), 0);
    cw_task large = task, slot = task, function = task, group = task;
    large.size_bytes = CW_POOL_DATA_MAX + 1;
    slot.slot = CW_POOL_FUNCTION_SLOTS;
    function.function_bytes = CW_POOL_FUNCTION_MAX + 1;
    group.group = groups;
    fails(cw_pool_submit(pool, &large), -EINVAL, "4097 were given");
    fails(cw_pool_submit(pool, &slot), -EINVAL, "in slot 128");
    fails(cw_pool_submit(pool, &function), -EINVAL, "2049 in slot");
    fails(cw_pool_submit(pool, &group), -EINVAL, "has no group");
    assert_int_equal(cw_pool_submit(pool, &task), 0);
    task = take(0);
    large = task;
    large.size_bytes = UINT32_MAX;
    fails(cw_worker_answer(workers[0], &large, 0, 0), -EINVAL, "at most 4096 bytes");
    assert_int_equal(cw_worker_answer(workers[0], &task, 0, 0), 0);
    task = collect();
    assert_int_equal(cw_pool_free(pool, task.cell), 0);
    cells_are_whole();
}

static void a_task_and_its_answer_go_through_a_cell(void **state) {
    (void)state;
    uint8_t data[CW_POOL_DATA_MAX], back[CW_POOL_DATA_MAX];
    memset(data, 7, sizeof data);
    memset(back, 9, sizeof back);
    memcpy(cw_pool_function(pool, 5), "a function", 11);
    for (uint32_t size = 0; size <= CW_POOL_DATA_MAX; size += CW_POOL_DATA_MAX / 4) {
        cw_task sent = submit(data, size), task = take(1);
        assert_int_equal(task.cell, sent.cell);
        assert_int_equal(task.size_bytes, size);
        assert_int_equal(task.kind, 3);
        assert_true(task.function == sent.function && task.slot == 5 && task.function_bytes == 11);
        assert_string_equal(cw_worker_function(workers[1], &task), "a function");
        assert_memory_equal(task.data, data, size);
        task.size_bytes = CW_POOL_DATA_MAX - size;
        task.kind = 8;
        memcpy(task.data, back, task.size_bytes);
        if (size == 0)
            cw_worker_fail(workers[1]);
        cw_worker_called(workers[1], 7);
        cw_worker_answer(workers[1], &task, 100, 1000);
        cw_task answer = collect();
        assert_int_equal(answer.cell, sent.cell);
        assert_int_equal(answer.worker, 1);
        assert_int_equal(answer.kind, 8);
        assert_int_equal(answer.size_bytes, CW_POOL_DATA_MAX - size);
        assert_memory_equal(answer.data, back, answer.size_bytes);
        cw_pool_free(pool, answer.cell);
    }
    cw_worker_info info;
    cw_pool_look_at(pool, 1, &info);
    assert_int_equal(info.tasks, 5);
    assert_int_equal(info.calls, 5 * 7);
    assert_int_equal(info.bytes_in, 500 + CW_POOL_DATA_MAX / 4 * (1 + 2 + 3 + 4));
    assert_int_equal(info.bytes_out, 5000 + CW_POOL_DATA_MAX / 4 * (1 + 2 + 3 + 4));
    assert_int_equal(info.failed, 1);
    cw_pool_look_at(pool, 0, &info);
    assert_int_equal(info.tasks, 0);
}

static void cells_run_out_and_come_back(void **state) {
    (void)state;
    cw_task tasks[CELLS], more;
    for (uint32_t i = 0; i < CELLS; i++)
        tasks[i] = submit(&i, sizeof i);
    assert_int_equal(cw_pool_ready(pool, 0), CELLS);
    assert_int_equal(cw_pool_reserve(pool, &more), -EAGAIN);
    assert_int_equal(cw_pool_withdraw(pool, tasks[3].cell), 0);
    cw_pool_free(pool, tasks[3].cell);
    assert_int_equal(cw_pool_reserve(pool, &more), 0);
    cw_pool_free(pool, more.cell);
    int64_t elapsed_ns;
    assert_int_equal(cw_pool_taker(pool, tasks[0].cell, &elapsed_ns), -1);
    cw_task task = take(0);
    assert_int_equal(task.cell, tasks[0].cell);
    assert_int_equal(cw_pool_taker(pool, task.cell, &elapsed_ns), 0);
    assert_int_equal(cw_pool_withdraw(pool, task.cell), -EBUSY);
    assert_int_equal(cw_pool_collect(pool, &more), -EAGAIN);
    assert_int_equal(cw_pool_bury(pool, 0, &more), 0);
    assert_int_equal(more.cell, task.cell);
    assert_int_equal(more.worker, 0);
    assert_int_equal(cw_pool_bury(pool, 0, &more), -EAGAIN);
}

static void what_a_worker_says_of_itself_is_read(void **state) {
    (void)state;
    cw_task task;
    cw_worker_info info;
    uint32_t was = cw_pool_news(pool, 1);
    strcpy(cw_worker_words(workers[1]), "ready, with a warning");
    cw_worker_tell(workers[1], 4);
    assert_int_equal(cw_pool_wait(pool, 1, was, 0, 0), 0);
    cw_pool_look_at(pool, 1, &info);
    assert_int_equal(info.state, 4);
    assert_string_equal(cw_pool_words(pool, 1), "ready, with a warning");
    assert_int_equal(cw_pool_bury(pool, 1, &task), -EAGAIN);
    cw_pool_look_at(pool, 1, &info);
    assert_int_equal(info.state, 0);
}

static void time_counts_once_however_many_tasks_a_worker_has(void **state) {
    (void)state;
    cw_worker_info info;
    int64_t begun_ns = cw_now_ns();
    for (int i = 0; i < 3; i++)
        submit("ab", 2);
    cw_task first = take(0), second = take(0);
    usleep(20000);
    cw_worker_answer(workers[0], &second, 0, 0);
    cw_task third = take(0);
    usleep(20000);
    cw_worker_answer(workers[0], &third, 0, 0);
    cw_worker_answer(workers[0], &first, 0, 0);
    int64_t ended_ns = cw_now_ns();
    usleep(20000); /* without a task */
    cw_pool_look_at(pool, 0, &info);
    assert_in_range(info.busy_ns, 40000000, ended_ns - begun_ns);
    for (int i = 0; i < 3; i++)
        cw_pool_free(pool, collect().cell);
    begun_ns = cw_now_ns();
    submit("ab", 2);
    first = take(0);
    cw_worker_answer(workers[0], &first, 0, 0);
    uint64_t before_ns = info.busy_ns;
    cw_pool_look_at(pool, 0, &info);
    assert_in_range(info.busy_ns - before_ns, 0, cw_now_ns() - begun_ns);
    cw_pool_free(pool, collect().cell);
}

static void figures_go_on_with_the_next_worker(void **state) {
    (void)state;
    cw_worker_info info;
    for (int i = 0; i < 2; i++) {
        submit("ab", 2);
        cw_task task = take(0);
        cw_worker_answer(workers[0], &task, 0, 0);
        task = collect();
        cw_pool_free(pool, task.cell);
        assert_int_equal(cw_pool_bury(pool, 0, &task), -EAGAIN);
        cw_worker_close(workers[0]);
        assert_int_equal(
            cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 1, 0, 0, 99, &workers[0]), 0);
    }
    cw_pool_look_at(pool, 0, &info);
    assert_int_equal(info.tasks, 2);
    assert_int_equal(info.bytes_out, 4);
}

static void only_numbers_in_use_are_looked_at(void **state) {
    (void)state;
    cw_task task;
    submit("a", 1);
    task = take(1);
    cw_worker_answer(workers[1], &task, 0, 0);
    task = collect(); /* worker 0 is looked at next */
    cw_pool_free(pool, task.cell);
    submit("b", 1);
    task = take(0);
    cw_worker_answer(workers[0], &task, 0, 0);
    cw_pool_use(pool, 1);
    task = collect();
    assert_int_equal(task.worker, 0);
    cw_pool_free(pool, task.cell);
    assert_int_equal(cw_pool_bury(pool, 1, &task), -EAGAIN);
    cw_pool_use(pool, 2);
    submit("c", 1);
    submit("d", 1);
    task = take(1);
    cw_worker_answer(workers[1], &task, 0, 0);
    assert_int_equal(collect().worker, 1);
    task = take(0);
    cw_worker_answer(workers[0], &task, 0, 0);
    cw_pool_use(pool, 1); /* whoever was to be looked at next */
    assert_int_equal(collect().worker, 0);
}

/* ---- groups ---- */

static cw_task submit_to(uint32_t group, const void *data, uint32_t size_bytes) {
    cw_task task;
    assert_int_equal(cw_pool_reserve(pool, &task), 0);
    cw_task_write(&task, data, size_bytes);
    task = (cw_task){.cell = task.cell,
                     .data = task.data,
                     .group = group,
                     .size_bytes = size_bytes,
                     .kind = 6 + group};
    assert_int_equal(cw_pool_submit(pool, &task), 0);
    cw_pool_wake(pool, group, 1);
    return task;
}

static void a_task_knows_its_group_and_place(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 10; i++)
        for (uint32_t group = 0; group < 2; group++) {
            submit_to(group, "a", 1);
            assert_int_equal(cw_pool_ready(pool, group), 1);
            assert_int_equal(cw_pool_ready(pool, 1 - group), 0);
            cw_task task = take(group);
            assert_int_equal(task.place, 2 * i + group);
            assert_int_equal(task.group, group);
            cw_worker_answer(workers[group], &task, 0, 0);
            task = collect();
            assert_int_equal(task.place, 2 * i + group);
            assert_int_equal(task.group, group);
            cw_pool_free(pool, task.cell);
        }
}

static void a_worker_knows_how_many_are_of_its_group(void **state) {
    (void)state;
    cw_task task;
    cw_pool_assign(pool, 0, 1);
    cw_pool_assign(pool, 1, 1);
    for (uint32_t w = 2; w < WORKERS; w++)
        cw_pool_assign(pool, w, 0);
    assert_int_equal(cw_worker_fellows(workers[1]), 2);
    assert_int_equal(cw_pool_bury(pool, 0, &task), -EAGAIN);
    assert_int_equal(cw_worker_fellows(workers[1]), 1);
}

static void a_worker_of_another_group_is_refused(void **state) {
    (void)state;
    cw_worker *other;
    fails(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 2, 1, 0, 0, &other), -EINVAL,
          "worker 1 is in group 1, not in group 0");
    cw_task task;
    assert_int_equal(cw_pool_bury(pool, 1, &task), -EAGAIN);
    cw_pool_assign(pool, 1, 0);
    fails(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 2, 1, 1, 0, &other), -EINVAL,
          "worker 1 is in group 0, not in group 1");
    assert_int_equal(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, 2, 1, 0, 0, &other), 0);
    cw_worker_close(other);
}

static void ready_tasks_are_seen_without_being_taken(void **state) {
    (void)state;
    uint8_t data[CW_POOL_DATA_MAX], found[CW_POOL_DATA_MAX];
    cw_task task;
    memset(data, 5, sizeof data);
    assert_int_equal(cw_worker_peek(workers[0], 0, found, &task), -EAGAIN);
    submit_to(0, data, sizeof data);
    cw_task second = submit_to(0, "second", 6);
    submit_to(1, "other", 5);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cw_worker_peek(workers[0], 0, found, &task), 0);
        assert_int_equal(task.size_bytes, sizeof data);
        assert_memory_equal(found, data, sizeof data);
        assert_int_equal(cw_worker_peek(workers[0], 1, found, &task), 0);
        assert_true(task.size_bytes == 6 && task.cell == second.cell && task.kind == 6);
        assert_ptr_equal(task.data, found);
        assert_memory_equal(found, "second", 6);
    }
    uint64_t place = task.place;
    assert_int_equal(cw_worker_peek(workers[0], 2, found, &task), -EAGAIN);
    assert_int_equal(cw_worker_peek(workers[1], 0, found, &task), 0);
    assert_true(task.group == 1 && task.kind == 7);
    take(0);
    assert_int_equal(cw_worker_peek(workers[0], 0, found, &task), 0);
    assert_int_equal(task.place, place);
    assert_int_equal(take(0).place, place);
    assert_int_equal(cw_worker_peek(workers[0], 0, found, &task), -EAGAIN);
}

static void *answer_and_settle(void *task) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    cw_worker_answer(workers[0], task, 0, 0);
    pthread_mutex_unlock(&lock);
    cw_worker_settle(workers[0]);
    return NULL;
}

static void tasks_are_answered_later_and_by_other_threads(void **state) {
    (void)state;
    cw_task tasks[3];
    uint32_t was = cw_pool_news(pool, 1);
    for (uint32_t i = 0; i < 3; i++)
        submit_to(0, "ab", 2);
    for (uint32_t i = 0; i < 3; i++)
        tasks[i] = take(0);
    pthread_t threads[3];
    for (uint32_t i = 0; i < 3; i++) {
        tasks[i].kind = 10 + i;
        assert_int_equal(pthread_create(&threads[i], NULL, answer_and_settle, &tasks[i]), 0);
    }
    unsigned kinds = 0;
    for (uint32_t i = 0; i < 3;) { /* the helper is told of each */
        assert_int_equal(cw_pool_wait(pool, 1, was, 0, -1), 0);
        cw_task task;
        while (cw_pool_collect(pool, &task) == 0) {
            kinds += 1u << (task.kind - 10);
            cw_pool_free(pool, task.cell);
            i++;
        }
    }
    assert_int_equal(kinds, 7);
    for (uint32_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    cw_worker_info info;
    cw_pool_look_at(pool, 0, &info);
    assert_true(info.tasks == 3 && info.bytes_in == 6 && info.bytes_out == 6);
}

static void what_was_taken_and_not_answered_is_lost(void **state) {
    (void)state;
    cw_task task;
    for (uint32_t i = 0; i < 3; i++)
        submit_to(0, "a", 1);
    cw_task first = take(0), second = take(0), third = take(0);
    cw_worker_answer(workers[0], &second, 0, 0);
    task = collect();
    assert_int_equal(task.place, second.place);
    cell_words(third.cell)->taken_ns = 0; /* as if it had died just behind the swap */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cw_pool_bury(pool, 0, &task), 0);
        assert_true(task.place == (task.begun ? first.place : third.place));
        cw_pool_free(pool, task.cell);
    }
    assert_int_equal(cw_pool_bury(pool, 0, &task), -EAGAIN);
}

static void workers_leave_when_told(void **state) {
    (void)state;
    cw_task task;
    submit("a", 1);
    cw_pool_dismiss(pool, 0);
    assert_int_equal(cw_worker_take(workers[0], &task), -ESHUTDOWN);
    cw_pool_close(pool, 1);
    task = take(1);
    cw_worker_answer(workers[1], &task, 0, 0);
    assert_int_equal(cw_worker_take(workers[1], &task), -ESHUTDOWN);
}

static void the_helper_is_told_once_that_nothing_waits_if_it_asked(void **state) {
    (void)state;
    uint32_t was = cw_pool_news(pool, 1);
    cw_pool_emptied(pool);
    assert_int_equal(cw_pool_news(pool, 1), was);
    cw_pool_ask_emptied(pool);
    cw_pool_emptied(pool);
    assert_int_equal(cw_pool_news(pool, 1), was + 1);
    assert_int_equal(cw_pool_wait(pool, 1, was, 0, -1), 0);
    cw_pool_emptied(pool);
    assert_int_equal(cw_pool_news(pool, 1), was + 1);
}

/* ---- lies ---- */

static void sizes_in_a_cell_never_lead_outside(void **state) {
    (void)state;
    submit("a", 1);
    cw_task task = take(0);
    struct cw_cell *cell = cell_words(task.cell);
    cw_worker_answer(workers[0], &task, 0, 0);
    cell->meta[0] = UINT64_MAX; /* kind and size */
    assert_int_equal(collect().size_bytes, CW_POOL_DATA_MAX);
    cw_pool_free(pool, task.cell);
    for (int i = 0; i < 2; i++) {
        cw_task sent = submit("a", 1);
        cell = cell_words(sent.cell);
        cell->meta[2] = i ? (uint64_t)(CW_POOL_FUNCTION_MAX + 1) << 32 : CW_POOL_FUNCTION_SLOTS;
        fails(cw_worker_take(workers[1], &task), -EPROTO, "a task names");
        assert_int_equal(cw_pool_bury(pool, 1, &task), 0); /* it ends with that worker */
        cw_pool_free(pool, task.cell);
        assert_int_equal(cw_pool_bury(pool, 1, &task), -EAGAIN);
    }
}

static void who_answers_what_it_did_not_have_is_named(void **state) {
    (void)state;
    cw_task task;
    submit("a", 1);
    task = take(0);
    atomic_store(&worker_words(1)->done, 1);
    fails(cw_pool_collect(pool, &task), -EPROTO, "worker 1 says that it has answered");
    assert_int_equal(task.worker, 1);
    atomic_store(&worker_words(1)->done, CELLS + 2);
    fails(cw_pool_collect(pool, &task), -EPROTO, "worker 1 says that it has given");
    assert_int_equal(task.worker, 1);
    assert_int_equal(cw_pool_collect(pool, &task), -EAGAIN);
    atomic_store(&group_words(0)->head, 77);
    for (int i = 1; i < 2 * (int)CELLS; i++) { /* head matters once the queue was filled */
        assert_int_equal(cw_pool_reserve(pool, &task), 0);
        task.size_bytes = task.slot = task.function_bytes = 0;
        int code = cw_pool_submit(pool, &task);
        if (code) {
            fails(code, -EPROTO, "head is 77");
            return;
        }
        assert_int_equal(cw_pool_withdraw(pool, task.cell), 0);
        cw_pool_free(pool, task.cell);
    }
    fail_msg("nobody noticed");
}

/* Whatever a worker writes into the shared words: an error, and no harm. */
static void any_words_do_no_harm(void **state) {
    (void)state;
    struct chance chance = chance_init(1);
    uint8_t *from = (uint8_t *)words(), *to = (uint8_t *)cell_words(CELLS);
    to += 4 * CELLS *
          (groups + WORKERS); /* queue and done rings; a little more for their alignment */
    for (int round = 0; round < 5000; round++) {
        cw_task task;
        if (cw_pool_reserve(pool, &task) == 0) {
            task = (cw_task){.cell = task.cell, .data = task.data, .group = (uint32_t)round % 2};
            if (cw_pool_submit(pool, &task) != 0)
                cw_pool_free(pool, task.cell);
        }
        for (int i = 0; i < 3; i++)
            from[chance_below(&chance, (uint64_t)(to - from))] = (uint8_t)chance_next(&chance);
        cw_pool_close(pool, 1); /* nobody sleeps here */
        uint8_t buffer[CW_POOL_DATA_MAX];
        for (uint32_t w = 0; w < WORKERS; w++)
            if (cw_worker_peek(workers[w], (uint32_t)round % 3, buffer, &task) == 0)
                assert_true(task.cell < CELLS && task.size_bytes <= CW_POOL_DATA_MAX);
        for (uint32_t w = 0; w < WORKERS; w++) {
            if (cw_worker_take(workers[w], &task) == 0) {
                assert_true(task.cell < CELLS && task.size_bytes <= CW_POOL_DATA_MAX);
                task.size_bytes = 8;
                cw_worker_answer(workers[w], &task, 0, 0);
            }
        }
        for (int i = 0; i < 9; i++)
            if (cw_pool_collect(pool, &task) == 0)
                cw_pool_free(pool, task.cell);
        if (round % 16)
            continue;
        for (uint32_t w = 0; w < WORKERS; w++)
            for (int code; (code = cw_pool_bury(pool, w, &task)) != -EAGAIN;) {
                assert_true(code == 0 || code == 1);
                cw_pool_free(pool, task.cell);
            }
    }
}

int main(void) {
    chance_seed();
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(sizes_have_limits),
        TEST(its_memory_is_whole_and_stays_so),
        TEST(a_worker_opens_what_the_parent_formatted),
        TEST(a_worker_stays_until_each_of_its_answers_is_released),
        TEST(a_task_and_its_answer_go_through_a_cell),
        TEST(a_cell_that_is_not_the_callers_is_refused),
        TEST(a_task_of_more_than_there_is_room_for_is_refused),
        TEST(cells_run_out_and_come_back),
        TEST(what_a_worker_says_of_itself_is_read),
        TEST(time_counts_once_however_many_tasks_a_worker_has),
        TEST(figures_go_on_with_the_next_worker),
        TEST(only_numbers_in_use_are_looked_at),
        TEST(workers_leave_when_told),
        TEST(the_helper_is_told_once_that_nothing_waits_if_it_asked),
        TEST(sizes_in_a_cell_never_lead_outside),
        TEST(who_answers_what_it_did_not_have_is_named),
#define TEST_2(name) cmocka_unit_test_setup_teardown(name, setup_two_groups, teardown)
        TEST_2(a_task_knows_its_group_and_place),
        TEST_2(a_worker_knows_how_many_are_of_its_group),
        TEST_2(a_worker_of_another_group_is_refused),
        TEST_2(ready_tasks_are_seen_without_being_taken),
        TEST_2(tasks_are_answered_later_and_by_other_threads),
        TEST_2(what_was_taken_and_not_answered_is_lost),
        TEST_2(any_words_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
