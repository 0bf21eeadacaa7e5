/*
 * Tasks of 64 bytes to worker processes and their answers back, through a pool's memory alone: what
 * the C part of a Pool costs.
 *
 * Hot: parent and one worker, each pinned to a core of its own, both spinning, beside a bare spin
 * loop on two words in the same memory (no payload: the machine's own speed). After sleep: the
 * worker has gone to sleep. Rates: the parent keeps as many tasks under way as there are cells,
 * with 1, 2, 4, ... workers on the cores that are left (one at least).
 *
 * The parent's own time for a task, in submitting and in collecting, apart from all waiting: what
 * it reads was written by other cores, and what it writes is read by them. For many workers one
 * process on the other core answers in the name of each in turn, so that the same lines of the
 * cache travel as with a core for each. *Alone*: nobody takes anything while it submits.
 *
 * The workers end with their parent (PR_SET_PDEATHSIG).
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/cableway.h"
#include "shm/base/atomic.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/bench/programs/bench.h"

#define CELLS          256u
#define PAYLOAD        64u
#define AFTER_SLEEP_US 300u /* six times the spin: the worker sleeps by then */
#define SPIN_NS        1000000
#define WORKERS_MAX    64u
#define BURST          64u /* tasks that are submitted, then answered, then collected */

static cw_a64 *words; /* two, a line each */
static void *memory;
static uint64_t memory_bytes;
static cw_pool *pool;
static pid_t children[WORKERS_MAX];

static _Noreturn void work(uint32_t workers, uint32_t number, uint32_t spinners) {
    cw_worker *worker;
    bench_need(
        cw_worker_open(memory, memory_bytes, workers, CELLS, 1, number, 0, spinners, &worker),
        "open a worker");
    cw_task task;
    int code;
    while ((code = cw_worker_take(worker, &task)) == 0) {
        ((uint64_t *)task.data)[7] = ((uint64_t *)task.data)[0];
        cw_worker_answer(worker, &task, 0, 0);
    }
    bench_need(code == -ESHUTDOWN ? 0 : code, "take a task");
    _exit(0);
}

static void make(uint32_t workers) {
    memory_bytes = cw_pool_bytes(workers, CELLS, 1);
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CW_ASSERT(memory != MAP_FAILED);
    bench_need(cw_pool_new(memory, memory_bytes, workers, CELLS, 1, &pool), "make a pool");
}

static void start(uint32_t workers, const int *core, uint32_t spinners) {
    make(workers);
    for (uint32_t i = 0; i < workers; i++) {
        children[i] = fork();
        CW_ASSERT(children[i] >= 0);
        if (children[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (core)
                bench_pin(*core);
            work(workers, i, spinners);
        }
    }
}

static void stop(uint32_t workers) {
    cw_pool_close(pool, 1);
    for (uint32_t i = 0; i < workers; i++) {
        int status;
        CW_ASSERT(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
    cw_pool_delete(pool);
    munmap(memory, memory_bytes);
}

static void submit(uint64_t number) {
    cw_task task;
    bench_need(cw_pool_reserve(pool, &task), "reserve a cell");
    ((uint64_t *)task.data)[0] = number;
    task.size_bytes = PAYLOAD;
    bench_need(cw_pool_submit(pool, &task), "submit a task");
}

/* Waits for an answer and takes it. */
static uint64_t collect(void) {
    cw_task task;
    int code;
    uint32_t was = cw_pool_news(pool, 0);
    while ((code = cw_pool_collect(pool, &task)) == -EAGAIN)
        bench_need(cw_pool_wait(pool, 0, was, SPIN_NS, -1), "wait for an answer");
    bench_need(code, "collect an answer");
    uint64_t number = ((uint64_t *)task.data)[7];
    cw_pool_free(pool, task.cell);
    return number;
}

static double round_trips(unsigned count) {
    int64_t begun_ns = cw_now_ns();
    for (uint64_t i = 1; i <= count; i++) {
        submit(i);
        cw_pool_listen(pool, 1);
        cw_pool_wake(pool, 0, 1);
        CW_ASSERT(collect() == i);
        cw_pool_listen(pool, -1);
    }
    return (double)(cw_now_ns() - begun_ns) / count;
}

static double bare(unsigned count) {
    int64_t begun_ns = cw_now_ns();
    for (unsigned i = 0; i < count; i++) {
        uint64_t next = CW_LOAD(BENCH, &words[0], relaxed) + 1;
        CW_STORE(BENCH, &words[0], next, release);
        while (CW_LOAD(BENCH, &words[8], acquire) != next)
            CW_PAUSE();
    }
    return (double)(cw_now_ns() - begun_ns) / count;
}

static _Noreturn void bare_echo(void) {
    for (uint64_t next = 1;; next++) {
        while (CW_LOAD(BENCH, &words[0], acquire) != next)
            CW_PAUSE();
        CW_STORE(BENCH, &words[8], next, release);
    }
}

static void hot(const int cores[2], unsigned rounds, unsigned batch) {
    struct bench_samples samples[2] = {{.cpu_seconds = -1}, {.cpu_seconds = -1}};
    pid_t echo = fork();
    CW_ASSERT(echo >= 0);
    if (echo == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bench_pin(cores[1]);
        bare_echo();
    }
    for (unsigned i = 0; i < rounds; i++)
        bench_add(&samples[0], bare(batch));
    kill(echo, SIGKILL); /* it spins on the worker's core */
    waitpid(echo, NULL, 0);
    start(1, &cores[1], 1);
    for (unsigned i = 0; i < rounds; i++)
        bench_add(&samples[1], round_trips(batch));
    stop(1);
    bench_report("dispatch", "two words, spin loop, no payload", "spins", "ns", &samples[0]);
    bench_report("dispatch", "a task and its answer, 1 worker", "spins", "ns", &samples[1]);
    for (int i = 0; i < 2; i++)
        bench_samples_deinit(&samples[i]);
}

static void after_sleep(const int cores[2], unsigned rounds) {
    struct bench_samples samples = {.cpu_seconds = -1};
    start(1, &cores[1], 1);
    for (unsigned i = 0; i < rounds; i++) {
        usleep(AFTER_SLEEP_US);
        bench_add(&samples, round_trips(1));
    }
    stop(1);
    bench_report("dispatch", "a task and its answer after sleep", "sleeps", "ns", &samples);
    bench_samples_deinit(&samples);
}

/* Tasks a second, all cells under way. */
static double rate(unsigned tasks, unsigned most_under_way) {
    uint64_t submitted = 0, collected = 0;
    int64_t begun_ns = cw_now_ns();
    cw_pool_listen(pool, 1);
    while (collected < tasks) {
        unsigned more = 0;
        for (; submitted < tasks && submitted - collected < most_under_way; more++)
            submit(++submitted);
        if (more)
            cw_pool_wake(pool, 0, more);
        cw_task task;
        unsigned got = 0;
        uint32_t was = cw_pool_news(pool, 0);
        int code;
        while ((code = cw_pool_collect(pool, &task)) == 0) {
            cw_pool_free(pool, task.cell);
            got++;
        }
        bench_need(code == -EAGAIN ? 0 : code, "collect");
        collected += got;
        if (!got)
            bench_need(cw_pool_wait(pool, 0, was, SPIN_NS, -1), "wait for an answer");
    }
    cw_pool_listen(pool, -1);
    return tasks / ((double)(cw_now_ns() - begun_ns) / 1e9);
}

static void rates(int parent_core, unsigned rounds, unsigned tasks) {
    cpu_set_t rest;
    bench_need(sched_getaffinity(0, sizeof rest, &rest) ? -errno : 0, "read the affinity");
    unsigned cores = (unsigned)CPU_COUNT(&rest) - 1;
    CPU_CLR(parent_core, &rest);
    for (uint32_t workers = 1; workers <= WORKERS_MAX && workers <= 2 * cores; workers *= 2) {
        struct bench_samples samples = {.cpu_seconds = -1};
        bench_need(sched_setaffinity(0, sizeof rest, &rest) ? -errno : 0, "leave the core");
        start(workers, NULL, cores > 1 ? cores / 2 : 1);
        bench_pin(parent_core);
        for (unsigned i = 0; i < rounds; i++)
            bench_add(&samples, rate(tasks, CELLS));
        stop(workers);
        char name[64];
        snprintf(name, sizeof name, "tasks a second, %u worker%s", workers, workers > 1 ? "s" : "");
        bench_report("dispatch", name, "adaptive", "1/s", &samples);
        bench_samples_deinit(&samples);
    }
}

/* Answers bursts in the name of all workers in turn; words[0] says that a burst may be taken,
 * words[8] how many are answered. */
static _Noreturn void work_for_all(uint32_t workers) {
    cw_worker *worker[WORKERS_MAX];
    for (uint32_t w = 0; w < workers; w++)
        bench_need(cw_worker_open(memory, memory_bytes, workers, CELLS, 1, w, 0, 1, &worker[w]),
                   "open a worker");
    for (uint64_t burst = 1;; burst++) {
        while (CW_LOAD(BENCH, &words[0], acquire) < burst)
            CW_PAUSE();
        for (uint32_t i = 0; i < BURST; i++) {
            cw_task task;
            bench_need(cw_worker_take(worker[i % workers], &task), "take a task");
            ((uint64_t *)task.data)[7] = ((uint64_t *)task.data)[0];
            cw_worker_answer(worker[i % workers], &task, 0, 0);
        }
        CW_STORE(BENCH, &words[8], burst, release);
    }
}

enum share { SUBMIT, COLLECT, SHARES };

/* One burst: ns a task of each share. */
static void burst(uint64_t number, bool alone, double share_ns[SHARES]) {
    if (!alone)
        CW_STORE(BENCH, &words[0], number, release);
    int64_t begun_ns = cw_now_ns();
    for (uint64_t i = 0; i < BURST; i++) {
        submit(i);
        cw_pool_wake(pool, 0, 1);
    }
    share_ns[SUBMIT] = (double)(cw_now_ns() - begun_ns) / BURST;
    CW_STORE(BENCH, &words[0], number, release);
    while (CW_LOAD(BENCH, &words[8], acquire) < number)
        CW_PAUSE();
    begun_ns = cw_now_ns();
    cw_task task;
    unsigned got = 0;
    for (; cw_pool_collect(pool, &task) == 0; got++) {
        CW_ASSERT(((uint64_t *)task.data)[7] < BURST);
        cw_pool_free(pool, task.cell);
    }
    CW_ASSERT(got == BURST);
    share_ns[COLLECT] = (double)(cw_now_ns() - begun_ns) / BURST;
}

static void shares(const int cores[2], uint32_t workers, unsigned rounds) {
    struct bench_samples samples[SHARES + 1] = {
        {.cpu_seconds = -1}, {.cpu_seconds = -1}, {.cpu_seconds = -1}};
    memset(words, 0, 4096);
    make(workers);
    pid_t child = fork();
    CW_ASSERT(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bench_pin(cores[1]);
        work_for_all(workers);
    }
    cw_pool_listen(pool, 1); /* nobody is told */
    for (unsigned i = 0; i < 2 * rounds; i++) {
        double share_ns[SHARES];
        bool alone = i % 2;
        burst(i + 1, alone, share_ns);
        bench_add(&samples[alone ? SHARES : SUBMIT], share_ns[SUBMIT]);
        bench_add(&samples[COLLECT], share_ns[COLLECT]);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cw_pool_delete(pool);
    munmap(memory, memory_bytes);
    const char *titles[SHARES + 1] = {"submit", "collect", "submit alone"};
    for (int i = 0; i <= SHARES; i++) {
        char name[64];
        snprintf(name, sizeof name, "the parent's own time, %u worker%s: %s", workers,
                 workers > 1 ? "s" : "", titles[i]);
        bench_report("dispatch", name, "", "ns", &samples[i]);
        bench_samples_deinit(&samples[i]);
    }
}

int main(int argc, char **argv) {
    unsigned rounds = (unsigned)bench_option(argc, argv, "rounds", 501);
    unsigned batch = (unsigned)bench_option(argc, argv, "batch", 100);
    unsigned tasks = (unsigned)bench_option(argc, argv, "tasks", 100000);
    int cores[2];
    cpu_set_t all;
    if (!bench_two_cores(cores) || sched_getaffinity(0, sizeof all, &all)) {
        printf("{\"bench\": \"dispatch\", \"skipped\": \"one core only\"}\n");
        return 0;
    }
    words =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CW_ASSERT(words != MAP_FAILED);
    bench_pin(cores[0]);
    hot(cores, rounds, batch);
    after_sleep(cores, 201);
    shares(cores, 1, rounds);
    shares(cores, 16, rounds);
    bench_need(sched_setaffinity(0, sizeof all, &all) ? -errno : 0, "leave the core");
    rates(cores[0], 11, tasks);
    return 0;
}
