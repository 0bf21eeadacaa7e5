/*
 * Two processes hand work to each other's streams and back, on one GPU or on two: by fences (one
 * piece of work that reads the other's array and writes the own one; and a reading and a writing
 * apart, which is twice the work for the GPU), by bare flags in host memory (what the hardware can
 * do: the streams know all rounds beforehand), and by CUDA's IPC events (what the driver offers):
 * one of each side's, recorded again and again, and a new one for each hand-over, which is what a
 * program needs that has more than one under way (PyTorch sends one with each tensor). Between
 * processes on one GPU a wait for an event takes until the GPU turns to the other process; between
 * two GPUs nobody waits for a turn.
 * `make bench-gpu` runs it.
 *
 *   bench_fence [ROUNDS]
 *
 * With fences and events each round is submitted when the other side's was, as a program would do
 * that decides by the data; the CPUs tell each other by a word.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/cableway.h"
#include "ipc/cuda/device.h"
#include "shm/blocks/fence.h"
#include "tests/gpu/bench_ok.h"

#define WARM      200
#define AT_ONCE   200 /* rounds before the streams are waited for */
#define PAGE      4096
#define HANDLE_OF 64

struct board { /* shared by both processes; the first page is registered with CUDA */
    _Alignas(64) uint64_t flags[2][8];
    _Alignas(PAGE) struct cw_fence ready[2], posted[2]; /* of the CPUs, not of streams */
    char events[2][HANDLE_OF];
};
static struct board *board;
static int me;
static const struct cw_cuda *cuda;
static struct cw_gpu *gpu;
static CUstream stream;
static CUevent made[2]; /* the last one of by_new_events() */
static CUresult (*get_event)(CUipcEventHandle *, CUevent);
static CUresult (*open_event)(CUevent *, CUipcEventHandle);

static void meet(void) {
    static uint64_t times;
    cw_fence_complete(&board->ready[me], ++times);
    OK(cw_fence_wait(&board->ready[!me], times, -1));
}

/* Tells the other side that ours is submitted, or waits for its word. */
static void post(int round) {
    cw_fence_complete(&board->posted[me], (uint64_t)round);
}
static void await(int round) {
    OK(cw_fence_wait(&board->posted[!me], (uint64_t)round, -1));
}

static void finish_some(int round) {
    if (round % AT_ONCE == 0)
        OK(cuda->cuStreamSynchronize(stream));
}

static double by_flags(int first, int rounds) {
    CUdeviceptr mine, theirs;
    OK(cuda->cuMemHostGetDevicePointer(&mine, &board->flags[me], 0));
    OK(cuda->cuMemHostGetDevicePointer(&theirs, &board->flags[!me], 0));
    int64_t begun_ns = cw_now_ns();
    for (int i = first; i < first + rounds; i++) {
        if (me)
            OK(cuda->cuStreamWaitValue64(stream, theirs, (uint64_t)i, CU_STREAM_WAIT_VALUE_GEQ));
        OK(cuda->cuStreamWriteValue64(stream, mine, (uint64_t)i, 0));
        if (!me)
            OK(cuda->cuStreamWaitValue64(stream, theirs, (uint64_t)i, CU_STREAM_WAIT_VALUE_GEQ));
        finish_some(i);
    }
    OK(cuda->cuStreamSynchronize(stream));
    return (double)(cw_now_ns() - begun_ns) / rounds / 1e3;
}

static void write_one(cw_array *array) {
    OK(cw_array_writing_begin(array, stream, -1));
    OK(cw_array_writing_end(array, stream, 1));
}

static void read_one(cw_array *array) {
    OK(cw_array_reading_begin(array, stream, -1));
    OK(cw_array_reading_end(array, stream));
}

/* One piece of work a round, begun when the other side's was submitted. */
static double by_work(cw_array *mine, cw_array *theirs, int first, int rounds) {
    const cw_use uses[] = {{.array = theirs}, {.array = mine, .writing = 1, .whole = 1}};
    cw_work *work;
    int64_t begun_ns = cw_now_ns();
    for (int i = first; i < first + rounds; i++) {
        await(me ? i : i - 1);
        OK(cw_work_begin(uses, 2, stream, -1, &work));
        OK(cw_work_end(work));
        post(i);
        finish_some(i);
    }
    OK(cuda->cuStreamSynchronize(stream));
    return (double)(cw_now_ns() - begun_ns) / rounds / 1e3;
}

/* What it costs the CPU to submit one, with nobody else at work. */
static double submit_alone(cw_array *mine, int rounds) {
    const cw_use use = {.array = mine, .writing = 1, .whole = 1};
    cw_work *work;
    int64_t begun_ns = cw_now_ns();
    for (int i = 1; i <= rounds; i++) {
        OK(cw_work_begin(&use, 1, stream, -1, &work));
        OK(cw_work_end(work));
        finish_some(i);
    }
    return (double)(cw_now_ns() - begun_ns) / rounds / 1e3;
}

static double by_fences(cw_array *mine, cw_array *theirs, int first, int rounds) {
    int64_t begun_ns = cw_now_ns();
    for (int i = first; i < first + rounds; i++) {
        if (me) {
            await(i);
            read_one(theirs);
        }
        write_one(mine);
        post(i);
        if (!me) {
            await(i);
            read_one(theirs);
        }
        finish_some(i);
    }
    OK(cuda->cuStreamSynchronize(stream));
    return (double)(cw_now_ns() - begun_ns) / rounds / 1e3;
}

static double by_events(CUevent mine, CUevent theirs, int first, int rounds) {
    int64_t begun_ns = cw_now_ns();
    for (int i = first; i < first + rounds; i++) {
        if (me) {
            await(i);
            OK(cuda->cuStreamWaitEvent(stream, theirs, 0));
        }
        OK(cuda->cuEventRecord(mine, stream));
        post(i);
        if (!me) {
            await(i);
            OK(cuda->cuStreamWaitEvent(stream, theirs, 0));
        }
        OK(cuda->cuStreamSynchronize(stream)); /* one event: it may not be recorded again before */
    }
    return (double)(cw_now_ns() - begun_ns) / rounds / 1e3;
}

/* Makes an event, records it and hands it over; waits for the other side's. */
static void hand_over(void) {
    CUipcEventHandle handle;
    CUevent mine;
    OK(cuda->cuEventCreate(&mine, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    OK(cuda->cuEventRecord(mine, stream));
    OK(get_event(&handle, mine));
    memcpy(board->events[me], &handle, HANDLE_OF);
    OK(cuda->cuEventDestroy(made[me]));
    made[me] = mine; /* it lives until the other side has opened it, a round later */
}

static void take_over(void) {
    CUipcEventHandle handle;
    CUevent theirs;
    memcpy(&handle, board->events[!me], HANDLE_OF);
    OK(open_event(&theirs, handle));
    OK(cuda->cuStreamWaitEvent(stream, theirs, 0));
    OK(cuda->cuEventDestroy(theirs));
}

static double by_new_events(int first, int rounds) {
    int64_t begun_ns = cw_now_ns();
    for (int i = first; i < first + rounds; i++) {
        if (me) {
            await(i);
            take_over();
        }
        hand_over();
        post(i);
        if (!me) {
            await(i);
            take_over();
        }
    }
    OK(cuda->cuStreamSynchronize(stream));
    return (double)(cw_now_ns() - begun_ns) / rounds / 1e3;
}

static bool make_events(CUevent *mine, CUevent *theirs) {
    CUipcEventHandle handle;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return false; /* the test double has none */
    *(void **)&get_event = dlsym(library, "cuIpcGetEventHandle");
    *(void **)&open_event = dlsym(library, "cuIpcOpenEventHandle");
    OK(cuda->cuEventCreate(mine, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    OK(get_event(&handle, *mine));
    memcpy(board->events[me], &handle, HANDLE_OF);
    meet();
    memcpy(&handle, board->events[!me], HANDLE_OF);
    OK(open_event(theirs, handle));
    return true;
}

static void play(int rounds, double out[6], int *gpus) {
    cw_client *client;
    cw_array *mine, *theirs;
    CUevent my_event, their_event;
    int64_t shape = 1024;
    cw_layout layout = {.ndim = 1, .itemsize = 4, .shape = &shape, .dtype = "<u4"};
    char device[16];
    OK(cw_gpu_count(gpus));
    int ordinal = *gpus > 1 ? me : 0;
    OK(cw_gpu_get(ordinal, &gpu));
    cuda = gpu->cuda;
    OK(cw_gpu_enter(gpu));
    OK(cuda->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuda->cuMemHostRegister(board, PAGE,
                               CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
    OK(cw_connect(NULL, NULL, 0, &client));
    snprintf(device, sizeof device, "cuda:%d", ordinal);
    OK(cw_array_new(client, device, &layout, 0, &mine));
    OK(cw_array_put(mine, me ? "bench/fence/1" : "bench/fence/0", CW_REPLACE, NULL, 0));
    OK(cw_wait(client, me ? "bench/fence/0" : "bench/fence/1", -1));
    OK(cw_get(client, me ? "bench/fence/0" : "bench/fence/1", 0, &theirs));
    meet();
    by_flags(1, WARM);
    out[0] = by_flags(1 + WARM, rounds);
    by_fences(mine, theirs, 1, WARM);
    meet();
    out[1] = by_fences(mine, theirs, 1 + WARM, rounds);
    int next = 1 + WARM + rounds;
    by_work(mine, theirs, next, WARM);
    meet();
    out[3] = by_work(mine, theirs, next + WARM, rounds);
    meet();
    next += WARM + rounds;
    if (!me)
        out[4] = submit_alone(mine, rounds);
    if (make_events(&my_event, &their_event)) {
        meet();
        by_events(my_event, their_event, next, WARM);
        out[2] = by_events(my_event, their_event, next + WARM, rounds / 10 + 1);
        next += WARM + rounds / 10 + 1;
        OK(cuda->cuEventCreate(&made[me], CU_EVENT_DISABLE_TIMING));
        meet();
        by_new_events(next, 20);
        out[5] = by_new_events(next + 20, rounds / 20 + 1);
    }
    meet();
    if (!me) {
        OK(cw_remove(client, "bench/fence/0"));
        OK(cw_remove(client, "bench/fence/1"));
    }
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 4000, gpus = 0, status;
    double us[6] = {0};
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t other = fork();
    me = other == 0;
    play(rounds, us, &gpus);
    if (me)
        _exit(0);
    waitpid(other, &status, 0);
    if (status || rounds <= 0)
        fail("the other process", status);
    printf("streams of two processes on %s, there and back, %d rounds:\n",
           gpus > 1 ? "two GPUs" : "one GPU", rounds);
    printf("  bare flags, all submitted beforehand   %8.1f us\n", us[0]);
    printf("  fences: one piece of work              %8.1f us   %.2f of the flags\n", us[3],
           us[3] / us[0]);
    printf("  fences: writing and reading apart      %8.1f us   %.2f of the flags\n", us[1],
           us[1] / us[0]);
    printf("  begin and end on the CPU alone         %8.1f us\n", us[4]);
    if (us[2] > 0)
        printf("  IPC events                             %8.1f us   %.1f times the fences\n", us[2],
               us[2] / us[3]);
    if (us[5] > 0)
        printf("  IPC events, a new one each time        %8.1f us   %.1f times the fences\n", us[5],
               us[5] / us[3]);
    return 0;
}
