/*
 * What the trace could slow down, one short run of each: a warm get, a put of eight bytes under a
 * name, and a task with its answer, once with the other side on another core and once all on one
 * core, where each of them sleeps and is woken. tools/bench/studies/trace_cost.py alternates runs
 * with the trace and without.
 *
 * What is counted is CPU time, of both sides together: other processes on the machine do not add to
 * it.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/wait.h"
#include "tools/bench/programs/bench.h"
#include "tools/bench/programs/scratch.h"

#define CELLS   16u
#define PAYLOAD 64u
#define SPIN_NS 1000000

/* CPU time of this process and another one, of all their threads. */
static int64_t cpu_ns(pid_t other) {
    clockid_t clock;
    struct timespec own, theirs;
    CW_ASSERT(clock_getcpuclockid(other, &clock) == 0);
    CW_ASSERT(!clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) && !clock_gettime(clock, &theirs));
    return (int64_t)(own.tv_sec + theirs.tv_sec) * 1000000000 + own.tv_nsec + theirs.tv_nsec;
}

static void put(cw_client *client) {
    int64_t shape = 1;
    cw_layout layout = {.ndim = 1, .itemsize = 8, .shape = &shape, .dtype = "<f8"};
    cw_array *array;
    bench_need(cw_array_new(client, "cpu", &layout, CW_ZERO, &array), "allocate");
    bench_need(cw_array_put(array, "bench/x", CW_REPLACE, NULL, 0), "put");
    cw_array_close(array);
}

static void get(cw_client *client) {
    cw_array *array;
    bench_need(cw_get(client, "bench/x", CW_READONLY, &array), "get");
    cw_array_close(array);
}

/* ns a call, in batches. */
static void calls(const char *name, const char *how, cw_client *client, void (*call)(cw_client *),
                  unsigned rounds, unsigned batch) {
    struct bench_samples samples = {.cpu_seconds = -1};
    pid_t broker = cw_client_broker_pid(client);
    for (unsigned i = 0; i < rounds + 2; i++) {
        int64_t begun_ns = cpu_ns(broker);
        for (unsigned n = 0; n < batch; n++)
            call(client);
        if (i >= 2)
            bench_add(&samples, (double)(cpu_ns(broker) - begun_ns) / batch);
    }
    bench_report("trace", name, how, "ns", &samples);
    bench_samples_deinit(&samples);
}

static _Noreturn void work(void *memory, uint64_t bytes, uint32_t spinners) {
    cw_worker *worker;
    cw_task task;
    int code;
    bench_need(cw_worker_open(memory, bytes, 1, CELLS, 1, 0, 0, spinners, &worker), "open");
    while ((code = cw_worker_take(worker, &task)) == 0)
        cw_worker_answer(worker, &task, 0, 0);
    _exit(code == -ESHUTDOWN ? 0 : 1);
}

static void round_trip(cw_pool *pool) {
    cw_task task;
    int code;
    bench_need(cw_pool_reserve(pool, &task), "reserve a cell");
    task.size_bytes = PAYLOAD;
    bench_need(cw_pool_submit(pool, &task), "submit a task");
    cw_pool_listen(pool, 1);
    cw_pool_wake(pool, 0, 1);
    uint32_t was = cw_pool_news(pool, 0);
    while ((code = cw_pool_collect(pool, &task)) == -EAGAIN)
        bench_need(cw_pool_wait(pool, 0, was, SPIN_NS, -1), "wait for an answer");
    bench_need(code, "collect an answer");
    cw_pool_free(pool, task.cell);
    cw_pool_listen(pool, -1);
}

static void tasks(const char *how, int core, bool spins, unsigned rounds, unsigned batch) {
    struct bench_samples samples = {.cpu_seconds = -1};
    uint64_t bytes = cw_pool_bytes(1, CELLS, 1);
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    cw_pool *pool;
    CW_ASSERT(memory != MAP_FAILED);
    bench_need(cw_pool_new(memory, bytes, 1, CELLS, 1, &pool), "make a pool");
    pid_t child = fork();
    CW_ASSERT(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bench_pin(core);
        work(memory, bytes, spins);
    }
    for (unsigned i = 0; i < rounds + 2; i++) {
        int64_t begun_ns = cpu_ns(child);
        for (unsigned n = 0; n < batch; n++)
            round_trip(pool);
        if (i >= 2)
            bench_add(&samples, (double)(cpu_ns(child) - begun_ns) / batch);
    }
    cw_pool_close(pool, 1);
    int status;
    CW_ASSERT(waitpid(child, &status, 0) == child && status == 0);
    bench_report("trace", "a task and its answer", how, "ns", &samples);
    bench_samples_deinit(&samples);
}

int main(int argc, char **argv) {
    unsigned rounds = (unsigned)bench_option(argc, argv, "rounds", 15);
    unsigned batch = (unsigned)bench_option(argc, argv, "batch", 500);
    int cores[2];
    CW_ASSERT(bench_two_cores(cores));
    bench_pin(cores[1]); /* the broker's */
    struct scratch scratch;
    scratch_open(&scratch);
    put(scratch.client);
    calls("put", "one core", scratch.client, put, rounds, batch);
    bench_pin(cores[0]);
    calls("put", "two cores", scratch.client, put, rounds, batch);
    calls("warm get", "", scratch.client, get, rounds, 10 * batch);
    tasks("two cores", cores[1], true, rounds, batch);
    tasks("one core", cores[0], false, rounds, batch);
    scratch_close(&scratch);
    return 0;
}
