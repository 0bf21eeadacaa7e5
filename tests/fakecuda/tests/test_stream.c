/*
 * The promises of the test double about streams: work runs in order and asynchronously, words and
 * events order streams of one process and of several, and what freezes a GPU freezes it.
 */
#include "tests/fakecuda/streams/kernels.h"
#include "tests/fakecuda/scene.h"

#include <pthread.h>

static CUstream new_stream(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* A page that all processes of a test share, registered where a scene asks for it. */
static _Atomic uint64_t *page;

static CUdeviceptr register_page(void) {
    CUdeviceptr address;
    OK(cuMemHostRegister((void *)(uintptr_t)page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&address, (void *)(uintptr_t)page, 0));
    return address;
}

/* A word of the page as an address of host memory. */
static uint32_t *host_word(int at) {
    return (uint32_t *)(uintptr_t)page + 512 + at;
}

static void until(bool (*is)(CUstream), CUstream stream) {
    while (!is(stream))
        usleep(200);
}

static bool idle(CUstream stream) {
    CUresult code = cuStreamQuery(stream);
    CHECK(code == CUDA_SUCCESS || code == CUDA_ERROR_NOT_READY);
    return code == CUDA_SUCCESS;
}

static void in_order(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page(), memory = make_on(0, 2 * MIB);
    CUstream stream = new_stream();
    OK(cuStreamWaitValue64(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD32Async(memory, 5, 1, stream));
    OK(cuMemcpyDtoHAsync(host_word(0), memory, 4, stream));
    OK(cuMemsetD32Async(memory, 6, 1, stream));
    OK(cuMemcpyDtoDAsync(memory + 8, memory, 4, stream));
    OK(cuMemcpyDtoHAsync(host_word(1), memory + 8, 4, stream));
    OK(cuStreamWriteValue64(stream, address + 8, 9, 0));
    CUDA(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK(atomic_load(&page[1]) == 0);
    atomic_store(&page[0], 1);
    OK(cuStreamSynchronize(stream));
    CHECK(*host_word(0) == 5 && *host_word(1) == 6 && atomic_load(&page[1]) == 9);
    OK(cuStreamQuery(stream));
    OK(cuStreamDestroy(stream));
    CUDA(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
}

static void work_runs_in_order_and_a_store_of_the_cpu_lets_it_go(void **state) {
    (void)state;
    scene_play("", in_order);
}

static void conditions(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page();
    CUstream stream = new_stream();
    const struct {
        uint64_t word, value;
        unsigned flags;
        bool is;
    } cases[] = {
        {5, 5, CU_STREAM_WAIT_VALUE_GEQ, true},
        {5, 6, CU_STREAM_WAIT_VALUE_GEQ, false},
        {1ull << 63, 7, CU_STREAM_WAIT_VALUE_GEQ, true},  /* poison */
        {1ull << 63, 0, CU_STREAM_WAIT_VALUE_GEQ, false}, /* the comparison is cyclic */
        {5, 5, CU_STREAM_WAIT_VALUE_EQ, true},
        {6, 5, CU_STREAM_WAIT_VALUE_EQ, false},
        {6, 2, CU_STREAM_WAIT_VALUE_AND, true},
        {5, 2, CU_STREAM_WAIT_VALUE_AND, false},
        {5, 2, CU_STREAM_WAIT_VALUE_NOR, true},
        {~0ull, 2, CU_STREAM_WAIT_VALUE_NOR, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        atomic_store(&page[0], cases[i].word);
        OK(cuStreamWaitValue64(stream, address, cases[i].value, cases[i].flags));
        if (!cases[i].is) {
            usleep(2000);
            CUDA(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
            for (size_t other = 0; !idle(stream); other++) { /* some word meets each condition */
                atomic_store(&page[0], cases[other % 10].word);
                usleep(1000);
            }
        }
        OK(cuStreamSynchronize(stream));
    }
    CUDA(cuStreamWaitValue64(stream, address + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CUDA(cuStreamWaitValue64(stream, (CUdeviceptr)(uintptr_t)&stream, 1, 0),
         CUDA_ERROR_INVALID_VALUE); /* not registered */
    CUDA(cuStreamWriteValue64(stream, address, 1, 8), CUDA_ERROR_INVALID_VALUE);
}

static void words_are_compared_as_cuda_says(void **state) {
    (void)state;
    scene_play("", conditions);
}

static void ping(int fd) {
    bool first = scene_receive(fd, NULL) == 0;
    start_on(first ? 0 : 1);
    CUdeviceptr address = register_page(), mine = address + (first ? 0 : 512),
                theirs = address + (first ? 512 : 0);
    CUstream stream = new_stream();
    for (uint64_t i = 1; i <= 50; i++) {
        if (first)
            OK(cuStreamWriteValue64(stream, mine, i, 0));
        OK(cuStreamWaitValue64(stream, theirs, i, CU_STREAM_WAIT_VALUE_GEQ));
        if (!first)
            OK(cuStreamWriteValue64(stream, mine, i, 0));
    }
    OK(cuStreamSynchronize(stream));
    CHECK(atomic_load(&page[first ? 64 : 0]) == 50);
}

static void streams_of_two_processes_go_by_turns(void **state) {
    (void)state;
    struct actor a = scene_begin("", ping), b = scene_begin("", ping);
    scene_send(a.fd, 0, -1);
    scene_send(b.fd, 1, -1);
    scene_end(a);
    scene_end(b);
}

static void wait_for_events(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page(), memory = make_on(0, 2 * MIB);
    CUstream first = new_stream(), second = new_stream();
    CUevent event;
    float ms;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(event)); /* never recorded: done */
    OK(cuStreamWaitEvent(second, event, 0));
    OK(cuStreamWaitValue64(first, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD32Async(memory, 3, 1, first));
    OK(cuEventRecord(event, first));
    OK(cuStreamWaitEvent(second, event, 0));
    OK(cuMemcpyDtoHAsync(host_word(0), memory, 4, second));
    CUDA(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CUDA(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    atomic_store(&page[0], 1);
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(second));
    CHECK(*host_word(0) == 3);
    CUDA(cuEventElapsedTime(&ms, event, event), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy(event));
    CUDA(cuEventRecord(event, first), CUDA_ERROR_INVALID_HANDLE);
}

static void an_event_orders_two_streams(void **state) {
    (void)state;
    scene_play("", wait_for_events);
}

static void default_stream(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page(), memory = make_on(0, 2 * MIB);
    CUstream blocking, other = new_stream();
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamWaitValue64(blocking, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD32Async(memory, 3, 1, blocking));
    OK(cuMemcpyDtoHAsync(host_word(0), memory, 4, NULL));
    CUDA(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    OK(cuMemsetD32Async(memory + 8, 3, 1, other));
    OK(cuStreamSynchronize(other)); /* non-blocking: it waits for nobody */
    atomic_store(&page[0], 1);
    OK(cuStreamSynchronize(NULL));
    CHECK(*host_word(0) == 3);
}

static void the_default_stream_waits_for_blocking_streams_alone(void **state) {
    (void)state;
    scene_play("", default_stream);
}

static void freeze(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page(), memory = make_on(0, 2 * MIB);
    CUstream waiting[4], free_stream = new_stream();
    for (int i = 0; i < 3; i++) {
        waiting[i] = new_stream();
        OK(cuStreamWaitValue64(waiting[i], address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    }
    usleep(20000);
    OK(cuMemsetD32Async(memory, 3, 1, free_stream));
    OK(cuStreamSynchronize(free_stream)); /* three let others go on */
    waiting[3] = new_stream();
    OK(cuStreamWaitValue64(waiting[3], address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (int quiet_ms = 0; quiet_ms < 100;) { /* until a work of it stays where it is */
        OK(cuMemsetD32Async(memory, 3, 1, free_stream));
        for (quiet_ms = 0; quiet_ms < 100 && !idle(free_stream); quiet_ms++)
            usleep(1000);
    }
    CUDA(cuStreamQuery(free_stream), CUDA_ERROR_NOT_READY);
    atomic_store(&page[0], 1);
    OK(cuStreamSynchronize(free_stream));
}

static void many_waiting_streams_freeze_the_others(void **state) {
    (void)state;
    scene_play("WAITS=4", freeze);
}

static CUstream held;

static void *let_go(void *argument) {
    (void)argument;
    usleep(50000);
    CHECK(atomic_load(&page[1]) == 0);
    atomic_store(&page[0], 1);
    return NULL;
}

static void free_while_waiting(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page(), memory;
    pthread_t thread;
    held = new_stream();
    OK(cuMemAlloc(&memory, 100));
    CUdeviceptr mapped = make_on(0, 2 * MIB);
    OK(cuStreamWaitValue64(held, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    /* These go on while a stream waits ... */
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemUnmap(mapped, 2 * MIB));
    CUDA(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
    /* ... and this waits for it. */
    pthread_create(&thread, NULL, let_go, NULL);
    OK(cuMemFree(memory));
    atomic_store(&page[1], 1);
    OK(cuStreamQuery(held));
    pthread_join(thread, NULL);
}

static void freeing_waits_for_streams_and_unmapping_does_not(void **state) {
    (void)state;
    scene_play("", free_while_waiting);
}

static void copy_pageable(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page(), memory = make_on(0, 2 * MIB);
    pthread_t thread;
    uint32_t word = 5;
    static char large[128 << 10];
    held = new_stream();
    OK(cuStreamWaitValue64(held, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemcpyHtoDAsync(memory, &word, 4, held)); /* small: it has been read already */
    word = 6;
    OK(cuMemcpyDtoHAsync(host_word(0), memory, 4, held)); /* registered: does not wait */
    CUDA(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
    pthread_create(&thread, NULL, let_go, NULL);
    OK(cuMemcpyDtoHAsync(&word, memory, 4, held));
    CHECK(word == 5 && *host_word(0) == 5 && atomic_load(&page[0]) == 1);
    pthread_join(thread, NULL);
    OK(cuMemcpyHtoDAsync(memory, large, sizeof large, held));
    memset(large, 7, sizeof large);
    CHECK(word_at(memory + sizeof large - 4) == 0);
}

static void copies_of_pageable_memory_wait_as_the_drivers_do(void **state) {
    (void)state;
    scene_play("", copy_pageable);
}

static void capture(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page();
    CUstream stream = new_stream();
    CUstreamCaptureStatus status;
    CUgraph graph;
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CUDA(cuStreamWriteValue64(stream, address, 1, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUDA(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamSynchronize(stream));
    CHECK(atomic_load(&page[0]) == 0);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUDA(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CUDA(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuCtxSynchronize());
}

static void a_capturing_stream_says_so(void **state) {
    (void)state;
    scene_play("", capture);
}

static void CUDA_CB count(void *data) {
    ++*(int *)data;
}

static void kernels(int fd) {
    (void)fd;
    start_on(0);
    CUmodule module;
    CUfunction fill, add, spin;
    CUdeviceptr memory = make_on(0, 2 * MIB), address = register_page(), a = memory,
                b = memory + 4096, out = memory + 8192;
    CUstream stream = new_stream();
    uint64_t n = 1000;
    uint32_t two = 2, three = 3, one = 1;
    int counted = 0;
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&fill, module, "fill"));
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    CUDA(cuModuleGetFunction(&spin, module, "other"), CUDA_ERROR_NOT_FOUND);
    void *fill_a[] = {&a, &n, &two}, *fill_b[] = {&b, &n, &three}, *sum[] = {&out, &a, &b, &n};
    void *until_one[] = {&address, &one};
    OK(cuLaunchKernel(fill, 4, 1, 1, 128, 1, 1, 0, stream, fill_a, NULL));
    OK(cuLaunchKernel(fill, 4, 1, 1, 128, 1, 1, 0, stream, fill_b, NULL));
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, until_one, NULL));
    OK(cuLaunchKernel(add, 4, 1, 1, 128, 1, 1, 0, stream, sum, NULL));
    OK(cuLaunchHostFunc(stream, count, &counted));
    CUDA(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    atomic_store(&page[0], 1);
    until(idle, stream);
    CHECK(counted == 1);
    CHECK(word_at(out) == 5 && word_at(out + 4 * 999) == 5 && word_at(out + 4 * 1000) == 0);
    OK(cuModuleUnload(module));
}

static void kernels_and_host_functions_run_in_their_stream(void **state) {
    (void)state;
    scene_play("", kernels);
}

static void copy_rows(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr memory = make_on(0, 2 * MIB);
    CUstream stream = new_stream();
    uint8_t from[4][8], to[4][4] = {{0}};
    for (int i = 0; i < 32; i++)
        from[i / 8][i % 8] = (uint8_t)i;
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = from,
                        .srcPitch = 8,
                        .srcXInBytes = 2,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = memory,
                        .dstPitch = 16,
                        .WidthInBytes = 4,
                        .Height = 4};
    CUDA_MEMCPY2D back = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = memory,
                          .srcPitch = 16,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = to,
                          .dstPitch = 4,
                          .WidthInBytes = 4,
                          .Height = 4};
    OK(cuMemcpy2DAsync(&in, stream));
    OK(cuMemcpy2DAsync(&back, stream));
    OK(cuStreamSynchronize(stream));
    for (int row = 0; row < 4; row++)
        CHECK(memcmp(to[row], from[row] + 2, 4) == 0);
    in.dstPitch = 3;
    CUDA(cuMemcpy2DAsync(&in, stream), CUDA_ERROR_INVALID_VALUE);
}

static void rows_are_copied_by_their_pitch(void **state) {
    (void)state;
    scene_play("", copy_rows);
}

static CUcontext shared_context;
static CUdeviceptr shared_memory;

/* Adds one to its own word a hundred times, in the thread's order of streams and events. */
static void *use_streams(void *argument) {
    CUdeviceptr word = shared_memory + (uintptr_t)argument * 64;
    CUevent event;
    OK(cuCtxSetCurrent(shared_context));
    CUstream streams[2] = {new_stream(), (uintptr_t)argument % 2 ? NULL : CU_STREAM_PER_THREAD};
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 1; i <= 100; i++) {
        OK(cuMemsetD32Async(word, i, 1, streams[i % 2]));
        OK(cuEventRecord(event, streams[i % 2]));
        OK(cuStreamWaitEvent(streams[!(i % 2)], event, 0));
    }
    OK(cuStreamSynchronize(streams[0]));
    CHECK(word_at(word) == 100);
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(streams[0]));
    return NULL;
}

static void use_by_threads(int fd) {
    (void)fd;
    pthread_t threads[4];
    shared_context = start_on(0);
    shared_memory = make_on(0, 2 * MIB);
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, use_streams, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxRelease(0));
}

static void threads_use_one_context_at_once(void **state) {
    (void)state;
    scene_play("", use_by_threads);
}

static int map_page(void **state) {
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return page == MAP_FAILED ? -1 : scene_setup(state);
}

static int unmap_page(void **state) {
    munmap((void *)(uintptr_t)page, 4096);
    return scene_teardown(state);
}

#define WITH_PAGE(test) cmocka_unit_test_setup_teardown(test, map_page, unmap_page)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_PAGE(work_runs_in_order_and_a_store_of_the_cpu_lets_it_go),
        WITH_PAGE(words_are_compared_as_cuda_says),
        WITH_PAGE(streams_of_two_processes_go_by_turns),
        WITH_PAGE(an_event_orders_two_streams),
        WITH_PAGE(the_default_stream_waits_for_blocking_streams_alone),
        WITH_PAGE(many_waiting_streams_freeze_the_others),
        WITH_PAGE(freeing_waits_for_streams_and_unmapping_does_not),
        WITH_PAGE(copies_of_pageable_memory_wait_as_the_drivers_do),
        WITH_PAGE(a_capturing_stream_says_so),
        WITH_PAGE(kernels_and_host_functions_run_in_their_stream),
        WITH_PAGE(threads_use_one_context_at_once),
        WITH_PAGE(rows_are_copied_by_their_pitch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
