/*
 * A context that breaks while its process lives on, on a real GPU or on the test double: a kernel
 * writes to an address that is none. The process finds out by waiting for its own work; a consumer
 * in another process, whose stream waits for that work, is told, and can write the array anew.
 *
 *   broken_context [alone|forked]     only the bad kernel, in this very process or in a forked one:
 *                                     what a tool that checks kernels must report (sanitize.py)
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc/cableway.h"
#include "tests/gpu/cuda.h"
#include "tests/support.h"

#define WORDS    65536u
#define LIMIT_NS 30000000000
#define NOWHERE  0x10000ull /* no memory of any GPU */

static struct { _Atomic int ready, told; } * board;

static void expect(int code, int wanted, const char *what) {
    if (code != wanted)
        test_fail("%s: %d, not %d: %s", what, code, wanted, cw_error());
}

static void await(_Atomic int *word, const char *what) {
    int64_t end_ns = test_now_ns() + LIMIT_NS;
    while (!atomic_load(word)) {
        if (test_now_ns() > end_ns)
            test_fail("%s: a hang", what);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static CUdeviceptr at(cw_array *array) {
    return (CUdeviceptr)(uintptr_t)cw_array_data(array);
}

static void produce(void) {
    int64_t shape = WORDS;
    cw_layout layout = {.ndim = 1, .itemsize = 4, .shape = &shape, .dtype = "<u4"};
    cw_client *client;
    cw_array *x;
    test_cuda_start();
    CUstream stream = test_stream();
    expect(cw_connect(NULL, NULL, 0, &client), 0, "cw_connect");
    expect(cw_array_new(client, "cuda:0", &layout, 0, &x), 0, "cw_array_new");
    expect(cw_array_writing_begin(x, stream, LIMIT_NS), 0, "writing");
    test_fill(stream, at(x), WORDS, 7);
    expect(cw_array_writing_end(x, stream, 1), 0, "the end of writing");
    expect(cw_array_wait(x, LIMIT_NS), 0, "cw_array_wait");
    expect(cw_array_put(x, "broken/x", 0, NULL, 0), 0, "cw_array_put");
    expect(cw_array_writing_begin(x, stream, LIMIT_NS), 0, "writing again");
    test_fill(stream, NOWHERE, WORDS, 8);
    int ended = cw_array_writing_end(x, stream, 1); /* the error may have come already */
    if (ended != -ENODEV)
        expect(ended, 0, "the end of what breaks");
    atomic_store(&board->ready, 1);
    expect(cw_array_wait(x, LIMIT_NS), -EOWNERDEAD, "waiting for work that was lost");
    expect(cw_array_writing_begin(x, stream, LIMIT_NS), -ENODEV, "writing in a broken context");
    await(&board->told, "the consumer");
    _exit(0);
}

static void consume(void) {
    cw_client *client;
    cw_array *x;
    uint32_t *host;
    test_cuda_start();
    CUstream stream = test_stream();
    CU(cuMemHostAlloc((void **)&host, WORDS * 4, 0));
    expect(cw_connect(NULL, NULL, 0, &client), 0, "cw_connect");
    await(&board->ready, "the producer");
    expect(cw_get(client, "broken/x", 0, &x), 0, "cw_get");
    int64_t end_ns = test_now_ns() + LIMIT_NS;
    int code;
    do { /* its stream may wait for the lost work; then the next begin tells */
        code = cw_array_reading_begin(x, stream, LIMIT_NS);
        if (code == 0)
            code = cw_array_reading_end(x, stream);
        test_finish(stream);
    } while (code == 0 && test_now_ns() < end_ns);
    expect(code, -EOWNERDEAD, "reading what was lost");
    expect(cw_array_wait(x, LIMIT_NS), -EOWNERDEAD, "waiting for what was lost");
    expect(cw_array_writing_begin(x, stream, LIMIT_NS), 0, "writing it anew");
    test_fill(stream, at(x), WORDS, 9);
    expect(cw_array_writing_end(x, stream, 1), 0, "the end of writing it anew");
    expect(cw_array_wait(x, LIMIT_NS), 0, "waiting for it");
    CU(cuMemcpyDtoHAsync(host, at(x), WORDS * 4, stream));
    test_finish(stream);
    for (uint32_t i = 0; i < WORDS; i++)
        if (host[i] != 9)
            test_fail("word %u is %u", i, host[i]);
    atomic_store(&board->told, 1);
    expect(cw_remove(client, "broken/x"), 0, "cw_remove");
    _exit(0);
}

static int break_alone(void) {
    CUresult result;
    test_cuda_start();
    CUstream stream = test_stream();
    test_fill(stream, NOWHERE, WORDS, 8);
    while ((result = cuda.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    printf("broken_context: a bad kernel of process %d: error %d\n", (int)getpid(), (int)result);
    fflush(stdout);
    return result == CUDA_SUCCESS;
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/cableway-broken-XXXXXX", card[64], command[96];
    cw_client *client;
    int failed = 0, status;
    if (!mkdtemp(folder))
        test_fail("mkdtemp: %m");
    snprintf(card, sizeof card, "%s/card", folder);
    mkdir(card, 0700);
    setenv("CABLEWAY_DIR", folder, 1);
    test_cuda_choose(argv[0], card);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (argc > 1) {
        if (strcmp(argv[1], "forked") != 0)
            failed = break_alone();
        else if (fork() == 0)
            _exit(break_alone());
        else if (wait(&status) > 0)
            failed = status != 0;
        return failed || system(command) != 0;
    }
    board = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fork() == 0)
        produce();
    if (fork() == 0)
        consume();
    for (int i = 0; i < 2; i++) {
        while (wait(&status) < 0)
            ;
        failed += status != 0;
    }
    if (failed)
        test_fail("%d of 2 processes failed; the broker's log is in %s", failed, folder);
    expect(cw_connect(NULL, NULL, 0, &client), 0, "cw_connect");
    expect(cw_broker_stop(client), 0, "cw_broker_stop");
    cw_client_unref(client);
    if (system(command) != 0)
        test_fail("%s failed", command);
    printf("broken_context: %s: the process and who waited for it were told\n",
           test_cuda_is_real() ? "on a real GPU" : "on the test double");
    return 0;
}
