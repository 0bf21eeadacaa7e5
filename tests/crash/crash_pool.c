/*
 * A pool's workers killed with SIGKILL at random, three of them in two groups, while a parent goes
 * on submitting: each task is answered once or comes out of the
 * burial, a group whose workers are dead strands nothing, and what others look at is whole. At
 * every instruction: crash_dispatch.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "ipc/cableway.h"
#include "shm/base/error.h"
#include "tests/support.h"

#define CREW   3u
#define GROUPS 2u
#define CELLS  8u

static void *memory;
static uint64_t memory_bytes, kills;
static cw_pool *pool;
static _Atomic pid_t crew[CREW]; /* 0: dead, and not replaced yet */
static atomic_bool ended;

/* ---- a worker: one thread takes and looks, another one answers some ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    cw_worker *worker;
    cw_task task;
    bool full, over;
} leaving = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static pthread_mutex_t answering = PTHREAD_MUTEX_INITIALIZER;

static void answer(const cw_task *task) {
    pthread_mutex_lock(&answering);
    cw_worker_answer(leaving.worker, task, 0, 0);
    pthread_mutex_unlock(&answering);
}

static void *leave(void *unused) {
    (void)unused;
    pthread_mutex_lock(&leaving.lock);
    while (leaving.full || !leaving.over) {
        if (!leaving.full) {
            pthread_cond_wait(&leaving.changed, &leaving.lock);
            continue;
        }
        cw_task task = leaving.task;
        leaving.full = false;
        pthread_cond_signal(&leaving.changed);
        pthread_mutex_unlock(&leaving.lock);
        answer(&task);
        cw_worker_settle(leaving.worker);
        pthread_mutex_lock(&leaving.lock);
    }
    pthread_mutex_unlock(&leaving.lock);
    return NULL;
}

/* What is seen is whole: a task's number, and nothing of an answer. */
static void look(cw_worker *worker, uint32_t nth) {
    uint64_t data[CW_POOL_DATA_MAX / 8];
    cw_task task;
    int code = cw_worker_peek(worker, nth, data, &task);
    if (code != 0 && code != -EAGAIN)
        _exit(3);
    if (code == 0 && (task.size_bytes != 16 || data[1] != ~data[0] || task.group > 1))
        _exit(4);
}

static void hand_over(const cw_task *task, bool over) {
    pthread_mutex_lock(&leaving.lock);
    while (leaving.full)
        pthread_cond_wait(&leaving.changed, &leaving.lock);
    leaving.over = over;
    leaving.full = !over;
    if (task)
        leaving.task = *task;
    pthread_cond_signal(&leaving.changed);
    pthread_mutex_unlock(&leaving.lock);
}

static void crew_work(uint32_t number) {
    cw_worker *worker;
    cw_task task;
    pthread_t thread;
    if (cw_worker_open(memory, memory_bytes, CREW, CELLS, GROUPS, number, number % GROUPS, 2,
                       &worker) != 0)
        _exit(1);
    leaving.worker = worker;
    if (pthread_create(&thread, NULL, leave, NULL) != 0)
        _exit(2);
    while (cw_worker_take(worker, &task) == 0) {
        uint64_t data[64], value = *(uint64_t *)task.data;
        look(worker, (uint32_t)value % 3);
        for (unsigned i = 0; i < 64; i++)
            data[i] = value * (i ? i : 1);
        cw_task_write(&task, data, sizeof data);
        task.size_bytes = sizeof data;
        if (value % 3 == 0)
            hand_over(&task, false);
        else
            answer(&task);
    }
    cw_worker_settle(worker);
    hand_over(NULL, true);
    pthread_join(thread, NULL);
    _exit(0);
}

/* ---- the parent ---- */

static void crew_start(uint32_t number) {
    cw_pool_assign(pool, number, number % GROUPS);
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

static void crew_submit(struct tally *tally, uint32_t group, unsigned count) {
    cw_task task;
    for (unsigned i = 0; i < count && cw_pool_reserve(pool, &task) == 0; i++) {
        uint64_t data[2] = {tally->submitted + 1, ~(tally->submitted + 1)};
        cw_task_write(&task, data, sizeof data);
        task.size_bytes = sizeof data;
        task.group = group;
        int code = cw_pool_submit(pool, &task);
        CW_ASSERT(code == 0);
        tally->submitted++;
        tally->under_way++;
    }
    cw_pool_wake(pool, group, count);
}

static void killed_at_random_no_other_task_is_lost(void **unused) {
    (void)unused;
    struct chance chance = chance_init(4);
    struct tally tally = {0};
    uint64_t all = kills = test_rounds(300);
    memory_bytes = cw_pool_bytes(CREW, CELLS, GROUPS);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_int_equal(cw_pool_new(memory, memory_bytes, CREW, CELLS, GROUPS, &pool), 0);
    for (uint32_t w = 0; w < CREW; w++)
        crew_start(w);
    pthread_t killer;
    assert_int_equal(pthread_create(&killer, NULL, kill_some, NULL), 0);
    while (!atomic_load(&ended)) {
        crew_submit(&tally, (uint32_t)chance_below(&chance, GROUPS),
                    1 + (unsigned)chance_below(&chance, CELLS));
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
    assert_true(tally.lost <= 3 * all); /* one that runs, one that waits, one that leaves */
    print_message("# %llu kills, %llu tasks, %llu went with their worker\n",
                  (unsigned long long)all, (unsigned long long)tally.submitted,
                  (unsigned long long)tally.lost);
    cw_pool_delete(pool);
}

int main(void) {
    chance_seed(); /* before there are children */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_random_no_other_task_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
