/*
 * A pool's memory under load: worker processes, then worker threads (which ThreadSanitizer sees),
 * and a parent with two threads that call and wait, one that submits in bursts and withdraws some,
 * and a helper. Workers are in two groups, whose tasks they
 * look at before they take them. Every task is answered once, or withdrawn; nobody sleeps through a
 * task or an answer (the runner's time limit would show it).
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "ipc/cableway.h"
#include "shm/base/error.h"
#include "tests/support.h"

#define WORKERS 3u
#define CELLS   8u
#define CALLERS 2u
#define GROUPS  2u

static void *memory;
static uint64_t memory_bytes;
static cw_pool *pool;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t calls, bursts; /* tasks of each caller, of the thread that submits in bursts */
static uint8_t *ended;         /* by a task's number */
static uint64_t in_bursts_ended, withdrawn;
static bool over; /* for the helper */

static void pause_sometimes(struct chance *chance) {
    uint64_t pick = chance_below(chance, 2048);
    if (pick == 0)
        usleep(200); /* longer than anybody spins */
    else if (pick < 32)
        for (volatile unsigned i = 0; i < pick * 30; i++)
            ;
}

/* ---- workers ---- */

static void look(cw_worker *worker, uint32_t nth) {
    uint64_t data[CW_POOL_DATA_MAX / 8];
    cw_task task;
    int code = cw_worker_peek(worker, nth, data, &task);
    CW_ASSERT(code == -EAGAIN ||
              (code == 0 && task.size_bytes == 64 && task.kind == 1 && data[1] == data[0] * 31));
}

static int work(uint32_t number) {
    struct chance chance = chance_init(200 + number);
    cw_worker *worker;
    CW_ASSERT(cw_worker_open(memory, memory_bytes, WORKERS, CELLS, GROUPS, number, number % GROUPS,
                             number, &worker) == 0);
    cw_worker_tell(worker, 1);
    cw_task task;
    int code;
    while ((code = cw_worker_take(worker, &task)) == 0) {
        uint64_t data[9];
        memcpy(data, task.data, sizeof data);
        CW_ASSERT(task.size_bytes == 64 && task.kind == 1 && data[1] == data[0] * 31);
        look(worker, (uint32_t)chance_below(&chance, 3));
        data[7] = data[0] * 37;
        pause_sometimes(&chance);
        task.kind = 2;
        task.size_bytes = 72;
        cw_task_write(&task, data, sizeof data);
        cw_worker_answer(worker, &task, 0, 0);
    }
    CW_ASSERT(code == -ESHUTDOWN);
    cw_worker_close(worker);
    return 0;
}

static void *work_as_thread(void *number) {
    work((uint32_t)(uintptr_t)number);
    return NULL;
}

/* ---- the parent; the functions with _locked are called with the lock ---- */

static bool submit_locked(uint64_t number, cw_task *task) {
    if (cw_pool_reserve(pool, task) != 0)
        return false;
    uint64_t data[8] = {number, number * 31};
    cw_task_write(task, data, sizeof data);
    task->size_bytes = 64;
    task->kind = 1;
    task->group = (uint32_t)(number / 3 % GROUPS);
    int code = cw_pool_submit(pool, task);
    if (code == 0)
        return true;
    CW_ASSERT(code == -EAGAIN); /* withdrawn tasks fill the queue */
    cw_pool_free(pool, task->cell);
    return false;
}

static void collect_locked(uint64_t mine) {
    cw_task task;
    int code;
    bool others = false;
    while ((code = cw_pool_collect(pool, &task)) == 0) {
        uint64_t *data = task.data, number = data[0];
        CW_ASSERT(task.kind == 2 && task.size_bytes == 72 && task.worker < WORKERS);
        CW_ASSERT(data[1] == number * 31 && data[7] == number * 37);
        CW_ASSERT(number < CALLERS * calls + bursts && !ended[number]);
        ended[number] = 1;
        if (number >= CALLERS * calls)
            in_bursts_ended++;
        else if (number != mine)
            others = true;
        cw_pool_free(pool, task.cell);
    }
    CW_ASSERT(code == -EAGAIN);
    if (others)
        cw_pool_tell(pool, 0);
}

static void *call(void *context) {
    uint64_t first = (uintptr_t)context * calls;
    struct chance chance = chance_init(first);
    for (uint64_t i = first; i < first + calls; i++) {
        cw_task task;
        pthread_mutex_lock(&lock);
        while (!submit_locked(i, &task)) {
            pthread_mutex_unlock(&lock);
            sched_yield();
            pthread_mutex_lock(&lock);
        }
        cw_pool_wake(pool, task.group, 1);
        while (!ended[i]) {
            uint32_t was = cw_pool_news(pool, 0);
            cw_pool_listen(pool, 1);
            pthread_mutex_unlock(&lock);
            CW_ASSERT(cw_pool_wait(pool, 0, was, i % 3 ? 20000 : 0, -1) == 0);
            pthread_mutex_lock(&lock);
            cw_pool_listen(pool, -1);
            collect_locked(i);
        }
        pthread_mutex_unlock(&lock);
        pause_sometimes(&chance);
    }
    return NULL;
}

/* Leaves the answers to others. */
static void *submit_bursts(void *context) {
    (void)context;
    struct chance chance = chance_init(99);
    for (uint64_t i = 0; i < bursts;) {
        cw_task task, last = {.cell = 0};
        unsigned most = 1 + (unsigned)chance_below(&chance, CELLS), count = 0;
        pthread_mutex_lock(&lock);
        for (; count < most && i < bursts && submit_locked(CALLERS * calls + i, &task); i++) {
            count++;
            last = task;
        }
        for (uint32_t group = 0; group < GROUPS; group++)
            cw_pool_wake(pool, group, count);
        if (count && chance_below(&chance, 8) == 0 && cw_pool_withdraw(pool, last.cell) == 0) {
            withdrawn++;
            uint64_t number = ((uint64_t *)last.data)[0];
            CW_ASSERT(!ended[number]);
            ended[number] = 1;
            cw_pool_free(pool, last.cell);
        }
        pthread_mutex_unlock(&lock);
        pause_sometimes(&chance);
        if (!count)
            usleep(20);
    }
    return NULL;
}

static void *help(void *context) {
    (void)context;
    pthread_mutex_lock(&lock);
    while (!over) {
        uint32_t was = cw_pool_news(pool, 1);
        pthread_mutex_unlock(&lock);
        CW_ASSERT(cw_pool_wait(pool, 1, was, 0, -1) == 0);
        pthread_mutex_lock(&lock);
        collect_locked(UINT64_MAX);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void start(pthread_t *thread, void *(*body)(void *), uintptr_t context) {
    CW_ASSERT(pthread_create(thread, NULL, body, (void *)context) == 0);
}

static void run(bool threads) {
    pthread_t workers[WORKERS], callers[CALLERS], burst, helper;
    pid_t children[WORKERS];
    memset(ended, 0, CALLERS * calls + bursts);
    in_bursts_ended = withdrawn = 0;
    over = false;
    CW_ASSERT(cw_pool_new(memory, memory_bytes, WORKERS, CELLS, GROUPS, &pool) == 0);
    for (uint32_t i = 0; i < WORKERS; i++) {
        cw_pool_assign(pool, i, i % GROUPS);
        if (threads) {
            start(&workers[i], work_as_thread, i);
            continue;
        }
        children[i] = fork();
        CW_ASSERT(children[i] >= 0);
        if (children[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(work(i));
        }
    }
    start(&helper, help, 0);
    for (uint32_t i = 0; i < CALLERS; i++)
        start(&callers[i], call, i);
    start(&burst, submit_bursts, 0);
    for (uint32_t i = 0; i < CALLERS; i++)
        pthread_join(callers[i], NULL);
    pthread_join(burst, NULL);
    pthread_mutex_lock(&lock);
    cw_pool_close(pool, 1); /* what is READY is still answered */
    while (in_bursts_ended + withdrawn < bursts) {
        pthread_mutex_unlock(&lock);
        usleep(1000);
        pthread_mutex_lock(&lock);
    }
    over = true;
    pthread_mutex_unlock(&lock);
    cw_pool_tell(pool, 1);
    pthread_join(helper, NULL);
    for (uint32_t i = 0; i < WORKERS; i++) {
        int status = 0;
        if (threads)
            pthread_join(workers[i], NULL);
        else
            CW_ASSERT(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
    uint64_t tasks = 0;
    for (uint32_t i = 0; i < WORKERS; i++) {
        cw_worker_info info;
        cw_pool_look_at(pool, i, &info);
        CW_ASSERT(info.state == 1 && info.bytes_in == 64 * info.tasks &&
                  info.bytes_out == 72 * info.tasks);
        tasks += info.tasks;
    }
    CW_ASSERT(tasks == CALLERS * calls + bursts - withdrawn && cw_pool_ready(pool, 0) == 0 &&
              cw_pool_ready(pool, 1) == 0);
    for (uint64_t i = 0; i < CALLERS * calls + bursts; i++)
        CW_ASSERT(ended[i]);
    cw_pool_delete(pool);
    printf("stress_dispatch: worker %s, %llu tasks answered, %llu withdrawn, none lost or twice\n",
           threads ? "threads" : "processes", (unsigned long long)tasks,
           (unsigned long long)withdrawn);
}

int main(void) {
    chance_seed(); /* before there are threads and children */
    calls = test_rounds(10000);
    bursts = test_rounds(40000);
    ended = calloc(CALLERS * calls + bursts, 1);
    memory_bytes = cw_pool_bytes(WORKERS, CELLS, GROUPS);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CW_ASSERT(ended && memory != MAP_FAILED);
    run(false);
    run(true);
    free(ended);
    return 0;
}
