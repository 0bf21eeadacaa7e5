/*
 * The promises of the test double about bad luck: errors on demand, broken contexts, lost devices,
 * streams that never end, deaths, and writes after death.
 */
#include "tests/fakecuda/driver/fault.h"
#include "tests/fakecuda/streams/kernels.h"
#include "tests/fakecuda/scene.h"

#include <poll.h>
#include <sys/syscall.h>

static _Atomic uint64_t *page;

static CUstream new_stream(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUdeviceptr register_page(void) {
    CUdeviceptr address;
    OK(cuMemHostRegister((void *)(uintptr_t)page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&address, (void *)(uintptr_t)page, 0));
    return address;
}

static void calls_fail(int fd) {
    (void)fd;
    start_on(0);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    CUDA(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    CHECK(used_bytes() == 4 * MIB);
    CUDA(cuCtxSynchronize(), CUDA_ERROR_NOT_PERMITTED);
    CUDA(cuCtxSynchronize(), CUDA_ERROR_NOT_PERMITTED);
    OK(fakecuda_faults("cuCtxSynchronize@2+=TIMEOUT"));
    OK(cuCtxSynchronize());
    CUDA(cuCtxSynchronize(), CUDA_ERROR_TIMEOUT);
    CUDA(cuCtxSynchronize(), CUDA_ERROR_TIMEOUT);
    OK(fakecuda_faults(""));
    OK(cuCtxSynchronize()); /* none of these is sticky */
    fclose(stderr);
    CUDA(fakecuda_faults("cuInit"), CUDA_ERROR_INVALID_VALUE);
    CUDA(fakecuda_faults("cuInit@0=hang"), CUDA_ERROR_INVALID_VALUE);
    CUDA(fakecuda_faults("copy=delay:x"), CUDA_ERROR_INVALID_VALUE);
    CUDA(fakecuda_faults("copy=until:here"), CUDA_ERROR_INVALID_VALUE);
}

static void a_call_fails_when_it_shall(void **state) {
    (void)state;
    scene_play("FAULTS=cuMemCreate@2=OUT_OF_MEMORY,cuCtxSynchronize=NOT_PERMITTED", calls_fail);
}

/* Breaks device 0's context by way; then nothing of it works, and device 1 is whole. */
static void break_it(int fd) {
    uint64_t way = scene_receive(fd, NULL);
    CUcontext context = start_on(0), other;
    CUdeviceptr memory = make_on(0, 2 * MIB), address = register_page(), bad = 0x1000;
    CUstream stream = new_stream(), waiting = new_stream();
    CUresult error = CUDA_ERROR_ILLEGAL_ADDRESS;
    CUmodule module;
    CUfunction poke, trap;
    uint32_t one = 1;
    void *arguments[] = {&bad, &one};
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&poke, module, "poke"));
    OK(cuModuleGetFunction(&trap, module, "trap"));
    OK(cuStreamWaitValue64(waiting, address, 1, CU_STREAM_WAIT_VALUE_GEQ)); /* never comes */
    if (way == 0)
        OK(cuMemsetD8Async(memory + 2 * MIB, 1, 16, stream));
    else if (way == 1)
        OK(cuLaunchKernel(poke, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    else if (way == 2) {
        error = CUDA_ERROR_LAUNCH_FAILED;
        OK(cuLaunchKernel(trap, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    } else {
        OK(fakecuda_faults("fill@1=ECC_UNCORRECTABLE"));
        error = CUDA_ERROR_ECC_UNCORRECTABLE;
        OK(cuMemsetD8Async(memory, 1, 16, stream));
    }
    CUDA(cuStreamSynchronize(stream), error);
    CUDA(cuStreamSynchronize(waiting), error); /* its wait ended with the context */
    CUDA(cuMemsetD8Async(memory, 1, 16, stream), error);
    CUDA(cuStreamCreate(&stream, 0), error);
    CUDA(cuCtxSynchronize(), error);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxPushCurrent(context));
    OK(cuMemsetD8Async(memory, 1, 16, NULL)); /* whole again; the memory is still there */
    OK(cuCtxSynchronize());
}

static void an_error_of_work_breaks_its_context_alone(void **state) {
    (void)state;
    for (uint64_t way = 0; way < 4; way++) {
        struct actor actor = scene_begin("", break_it);
        scene_send(actor.fd, way, -1);
        scene_end(actor);
    }
}

static void use_until_lost(int fd) {
    CUcontext context = start_on(0);
    (void)context;
    CUdeviceptr address = register_page();
    CUstream stream = new_stream();
    OK(cuStreamWaitValue64(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ));
    scene_send(fd, 0, -1);
    CUDA(cuStreamSynchronize(stream), CUDA_ERROR_UNKNOWN);
}

static void lose(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr memory = make_on(0, 2 * MIB);
    OK(cuMemsetD8Async(memory, 1, 16, NULL));
    CUDA(cuCtxSynchronize(), CUDA_ERROR_UNKNOWN);
    CUcontext other;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
}

static void find_it_lost(int fd) {
    (void)fd;
    CUcontext context;
    OK(cuInit(0));
    CUDA(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_UNKNOWN);
    OK(cuDevicePrimaryCtxRetain(&context, 1));
}

static void a_lost_device_is_lost_for_all(void **state) {
    (void)state;
    struct actor user = scene_begin("", use_until_lost);
    scene_receive(user.fd, NULL);
    scene_play("FAULTS=fill=lose", lose);
    scene_end(user);
    scene_play("", find_it_lost);
}

static void hang(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr memory = make_on(0, 2 * MIB);
    CUstream stream = new_stream(), other = new_stream();
    OK(cuMemsetD8Async(memory, 1, 16, stream));
    OK(cuMemcpyDtoDAsync(memory + 64, memory + 128, 16, other));
    OK(cuStreamSynchronize(other));
    CUDA(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuStreamDestroy(stream)); /* does not wait for it */
}

static void a_stream_that_never_ends_holds_nobody_else(void **state) {
    (void)state;
    scene_play("FAULTS=fill@1=hang", hang);
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void delayed(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr memory = make_on(0, 2 * MIB);
    int64_t begin = now_ms();
    OK(cuMemsetD8Async(memory, 1, 16, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK(now_ms() - begin >= 50);
}

static void work_is_as_late_as_it_shall(void **state) {
    (void)state;
    scene_play("FAULTS=fill=delay:50000", delayed);
}

static char go[64];

static void held_up(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr memory = make_on(0, 2 * MIB);
    CUstream stream = new_stream();
    OK(cuMemsetD8Async(memory, 1, 16, stream));
    usleep(20000);
    CUDA(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    FILE *file = fopen(go, "w");
    CHECK(file && fclose(file) == 0);
    OK(cuStreamSynchronize(stream));
}

static void work_waits_for_a_file(void **state) {
    (void)state;
    char settings[128];
    snprintf(go, sizeof go, "/tmp/cw-go-%d", (int)getpid());
    snprintf(settings, sizeof settings, "FAULTS=fill=until:%s", go);
    scene_play(settings, held_up);
    assert_int_equal(unlink(go), 0);
}

static void three_writes(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr address = register_page();
    CUstream stream = new_stream();
    for (uint64_t i = 1; i <= 3; i++)
        OK(cuStreamWriteValue64(stream, address, i, 0));
    OK(cuStreamSynchronize(stream));
}

static void a_process_dies_at_the_work_that_is_named(void **state) {
    (void)state;
    struct actor actor = scene_begin("FAULTS=write@3=kill", three_writes);
    int status;
    assert_int_equal(waitpid(actor.pid, &status, 0), actor.pid);
    close(actor.fd);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(atomic_load(&page[0]), 2);
}

/* Its stream has two writes behind a wait for a word. */
static void leave_writes(int fd) {
    start_on(0);
    CUdeviceptr address = register_page();
    CUstream stream = new_stream();
    OK(cuStreamWriteValue64(stream, address, 1, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamWaitValue64(stream, address + 8, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue64(stream, address, 2, 0));
    OK(cuStreamWriteValue64(stream, address + 16, 7, 0));
    scene_send(fd, 0, -1);
    scene_receive(fd, NULL);
}

/* The same with these settings of the double, killed with all of it before it. */
static struct actor killed_writer(const char *settings) {
    struct actor writer = scene_begin(settings, leave_writes);
    scene_receive(writer.fd, NULL);
    kill(writer.pid, SIGKILL);
    assert_int_equal(waitpid(writer.pid, NULL, 0), writer.pid);
    return writer;
}

static void writes_can_come_after_a_death(void **state) {
    (void)state;
    char byte;
    for (int keeps = 0; keeps < 2; keeps++) {
        memset((void *)(uintptr_t)page, 0, 4096);
        struct actor writer = killed_writer(keeps ? "LATE_MS=50 LATE_KEEPS=1" : "LATE_MS=50");
        assert_int_equal(atomic_load(&page[0]), 1);
        atomic_store(&page[1], 1); /* what its stream waits for comes after the death */
        /* The end of file comes with the death, or after the last write of who keeps the socket. */
        assert_int_equal(read(writer.fd, &byte, 1), 0);
        if (keeps)
            assert_int_equal(atomic_load(&page[2]), 7);
        while (atomic_load(&page[2]) != 7)
            usleep(1000);
        assert_int_equal(atomic_load(&page[0]), 2);
        close(writer.fd);
    }
}

static void what_waits_for_a_word_that_does_not_come_is_not_written_late(void **state) {
    (void)state;
    char byte;
    struct actor writer = killed_writer("LATE_MS=1 LATE_KEEPS=1");
    assert_int_equal(read(writer.fd, &byte, 1), 0); /* who would write has ended */
    assert_int_equal(atomic_load(&page[0]), 1);
    assert_int_equal(atomic_load(&page[2]), 0);
    close(writer.fd);
}

static void nothing_is_written_after_a_death_unless_asked_for(void **state) {
    (void)state;
    char byte;
    struct actor writer = killed_writer("");
    assert_int_equal(read(writer.fd, &byte, 1), 0);
    atomic_store(&page[1], 1);
    usleep(50000);
    assert_int_equal(atomic_load(&page[0]), 1);
    close(writer.fd);
}

static void wait_for_no_child(int fd) {
    (void)fd;
    start_on(0);
    new_stream();
    CHECK(waitpid(-1, NULL, WNOHANG) == -1); /* who writes late is none of its children */
}

static void who_writes_late_is_not_seen_by_wait(void **state) {
    (void)state;
    scene_play("LATE_MS=10", wait_for_no_child);
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
        WITH_PAGE(a_call_fails_when_it_shall),
        WITH_PAGE(an_error_of_work_breaks_its_context_alone),
        WITH_PAGE(a_lost_device_is_lost_for_all),
        WITH_PAGE(a_stream_that_never_ends_holds_nobody_else),
        WITH_PAGE(work_is_as_late_as_it_shall),
        WITH_PAGE(work_waits_for_a_file),
        WITH_PAGE(a_process_dies_at_the_work_that_is_named),
        WITH_PAGE(writes_can_come_after_a_death),
        WITH_PAGE(what_waits_for_a_word_that_does_not_come_is_not_written_late),
        WITH_PAGE(nothing_is_written_after_a_death_unless_asked_for),
        WITH_PAGE(who_writes_late_is_not_seen_by_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
