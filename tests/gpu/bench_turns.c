/*
 * Two processes on one GPU take turns, with a kernel in each turn: it reads the other's array of 1
 * MiB and writes the own one. By sections (the streams wait for each other), by CUDA's IPC events
 * (one of each side's, recorded anew each turn), and by the CPU (the kernel is waited for, then the
 * other process is told). Each turn adds 1 to all words, so the sum tells whether any was missed.
 * `make bench-gpu` runs it, where it can also with the driver's MPS, by which both processes share
 * one context.
 *
 *   bench_turns [ROUNDS]
 *
 * What bounds all three without MPS is not the hand-over: the driver gives the GPU to one process
 * after the other, in time slices, so that a kernel of the other process begins when the GPU turns
 * to it.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/cableway.h"
#include "shm/base/wait.h"
#include "shm/blocks/fence.h"
#include "tests/gpu/bench_ok.h"
#include "tests/gpu/cuda.h"

#define WARM  100u
#define WORDS (1u << 18)
#define SIZE  (4ull * WORDS)

struct board { /* shared by both processes */
    struct cw_fence ready[2], posted[2];
    CUipcEventHandle events[2];
};
static struct board *board;
static int me;
static CUstream stream;
static cw_array *mine, *theirs, *ones;
static CUdeviceptr to, from, one;
static CUevent my_event, their_event; /* NULL: the driver has none for other processes */
static CUresult (*create_event)(CUevent *, unsigned);
static CUresult (*record_event)(CUevent, CUstream);
static CUresult (*wait_event)(CUstream, CUevent, unsigned);
static CUresult (*finish)(CUstream);

static void meet(void) {
    static uint64_t times;
    cw_fence_complete(&board->ready[me], ++times);
    OK(cw_fence_wait(&board->ready[!me], times, -1));
}

/* Waits until the other side's turn was submitted, and says that ours was. Turns are counted over
 * all ways. */
static uint64_t turn;
static void await_other(void) {
    turn++;
    OK(cw_fence_wait(&board->posted[!me], me ? turn : turn - 1, -1));
}
static void post(void) {
    cw_fence_complete(&board->posted[me], turn);
}

static void by_sections(void) {
    const cw_use uses[] = {{.array = theirs}, {.array = mine, .writing = 1, .whole = 1}};
    cw_work *work;
    await_other();
    OK(cw_work_begin(uses, 2, stream, -1, &work));
    test_add(stream, to, from, one, WORDS);
    OK(cw_work_end(work));
    post();
}

static void by_events(void) {
    await_other();
    OK(wait_event(stream, their_event, 0));
    test_add(stream, to, from, one, WORDS);
    OK(record_event(my_event, stream));
    post();
    OK(finish(stream)); /* one event: it may not be recorded again before */
}

static void by_cpu(void) {
    await_other();
    test_add(stream, to, from, one, WORDS);
    OK(finish(stream));
    post();
}

/* Microseconds of one turn: a round is one of each side. */
static double rounds_of(void (*once)(void), unsigned rounds) {
    for (unsigned i = 0; i < WARM; i++)
        once();
    OK(finish(stream));
    meet();
    int64_t begun_ns = cw_now_ns();
    for (unsigned i = 0; i < rounds; i++)
        once();
    OK(finish(stream));
    meet();
    return (double)(cw_now_ns() - begun_ns) / rounds / 2e3;
}

static void find_calls(void) {
    const char *path = getenv("CABLEWAY_CUDA_DRIVER");
    void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library || !(*(void **)&finish = dlsym(library, "cuStreamSynchronize")))
        fail("no CUDA driver", -ENODEV);
    if (!test_cuda_is_real())
        return; /* the test double has no IPC events */
    CUresult (*get)(CUipcEventHandle *, CUevent), (*open)(CUevent *, CUipcEventHandle);
    *(void **)&create_event = dlsym(library, "cuEventCreate");
    *(void **)&record_event = dlsym(library, "cuEventRecord");
    *(void **)&wait_event = dlsym(library, "cuStreamWaitEvent");
    *(void **)&get = dlsym(library, "cuIpcGetEventHandle");
    *(void **)&open = dlsym(library, "cuIpcOpenEventHandle");
    OK(create_event(&my_event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    OK(get(&board->events[me], my_event));
    meet();
    OK(open(&their_event, board->events[!me]));
}

static cw_array *words_of(cw_client *client, uint32_t value) {
    int64_t shape = WORDS;
    cw_layout layout = {.ndim = 1, .itemsize = 4, .shape = &shape, .dtype = "<u4"};
    uint32_t *values = malloc(SIZE);
    cw_array *made;
    if (!values)
        fail("malloc", -ENOMEM);
    for (unsigned i = 0; i < WORDS; i++)
        values[i] = value;
    OK(cw_array_new(client, "cuda:0", &layout, 0, &made));
    OK(cw_array_write(made, 0, values, SIZE));
    free(values);
    return made;
}

/* The last turn was the second process's: all its words say how many there were. */
static void check(void) {
    uint32_t *values = malloc(SIZE);
    if (!values)
        fail("malloc", -ENOMEM);
    OK(cw_array_read(mine, 0, values, SIZE));
    for (unsigned i = 0; me && i < WORDS; i++)
        if (values[i] != 2 * turn) {
            fprintf(stderr, "bench_turns: word %u is %u after %llu turns\n", i, values[i],
                    (unsigned long long)(2 * turn));
            exit(1);
        }
    free(values);
}

static void play(unsigned rounds, double out[3]) {
    const char *names[] = {"bench/turns/0", "bench/turns/1"};
    cw_client *client;
    test_cuda_start();
    stream = test_stream();
    OK(cw_connect(NULL, NULL, 0, &client));
    mine = words_of(client, 0);
    ones = words_of(client, 1);
    OK(cw_array_put(mine, names[me], CW_REPLACE, NULL, 0));
    OK(cw_wait(client, names[!me], -1));
    OK(cw_get(client, names[!me], 0, &theirs));
    to = (CUdeviceptr)(uintptr_t)cw_array_data(mine);
    from = (CUdeviceptr)(uintptr_t)cw_array_data(theirs);
    one = (CUdeviceptr)(uintptr_t)cw_array_data(ones);
    find_calls();
    meet();
    out[0] = rounds_of(by_sections, rounds);
    check();
    if (my_event) {
        OK(record_event(my_event, stream));
        meet();
        out[1] = rounds_of(by_events, rounds);
        check();
    }
    out[2] = rounds_of(by_cpu, rounds);
    check();
    meet();
    if (!me) {
        OK(cw_remove(client, names[0]));
        OK(cw_remove(client, names[1]));
    }
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 2000, status;
    double us[3] = {0};
    const char *folder = getenv("CABLEWAY_DIR"); /* where the test double has its card, too */
    if (rounds < 1 || !folder) {
        fprintf(stderr, "usage: CABLEWAY_DIR=FOLDER bench_turns [ROUNDS]\n");
        return 2;
    }
    test_cuda_choose(argv[0], folder);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t other = fork();
    me = other == 0;
    play((unsigned)rounds, us);
    if (me)
        _exit(0);
    waitpid(other, &status, 0);
    if (status)
        fail("the other process", status);
    printf("two processes on one GPU, a kernel on 1 MiB in each turn, %d rounds:\n", rounds);
    printf("  sections                               %8.1f us\n", us[0]);
    if (us[1] > 0)
        printf("  IPC events                             %8.1f us\n", us[1]);
    printf("  the CPU waits and tells                %8.1f us\n", us[2]);
    return 0;
}
