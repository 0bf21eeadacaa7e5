/*
 * The promises of the test double about memory: a descriptor is the memory, what is counted is what
 * somebody can still reach, and access is per device.
 */
#include "tests/fakecuda/scene.h"

#include <fcntl.h>

static void make_and_send(int fd) {
    start_on(0);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    int exported;
    OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    CUdeviceptr base = map_for(handle, 4 * MIB, 0);
    CHECK(word_at(base) == 0);
    OK(cuMemsetD32(base, 0x5eed, MIB));
    OK(cuCtxSynchronize());
    OK(cuMemExportToShareableHandle(&exported, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    0));
    scene_send(fd, 0, exported);
    scene_receive(fd, NULL);
}

static void import_and_read(int fd) {
    int device = (int)scene_receive(fd, NULL), shared;
    scene_receive(fd, &shared);
    start_on(device);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    OK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)shared,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(shared);
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    CHECK(prop.location.id == 0);
    CUdeviceptr base = map_for(handle, 4 * MIB, device);
    CHECK(word_at(base) == 0x5eed && word_at(base + 4 * MIB - 4) == 0x5eed);
    OK(cuMemUnmap(base, 4 * MIB));
    OK(cuMemAddressFree(base, 4 * MIB));
    OK(cuMemRelease(handle));
}

static void nothing_is_used(int fd) {
    (void)fd;
    start_on(0);
    /* Of a dead process with threads the first is a zombie before the others have let go. */
    for (int i = 0; i < 5000 && used_bytes() != 0; i++)
        usleep(1000);
    CHECK(used_bytes() == 0);
}

static void four_mib_are_used(int fd) {
    (void)fd;
    start_on(0);
    CHECK(used_bytes() == 4 * MIB);
}

static void a_descriptor_outlives_its_maker_and_is_the_memory(void **state) {
    (void)state;
    struct actor maker = scene_begin("", make_and_send);
    int shared;
    scene_receive(maker.fd, &shared);
    scene_kill(maker);
    for (uint64_t device = 0; device < 2; device++) {
        struct actor reader = scene_begin("", import_and_read);
        scene_send(reader.fd, device, -1);
        scene_send(reader.fd, 0, shared);
        scene_end(reader);
    }
    scene_play("", four_mib_are_used);
    close(shared);
    scene_play("", nothing_is_used);
}

static void a_descriptor_under_way_keeps_the_memory(void **state) {
    (void)state;
    int pair[2], shared;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    struct actor maker = scene_begin("", make_and_send);
    scene_receive(maker.fd, &shared);
    scene_send(pair[0], 0, shared);
    close(shared);
    scene_kill(maker);
    scene_play("", four_mib_are_used);
    close(pair[0]);
    close(pair[1]);
    scene_play("", nothing_is_used);
}

static void an_exported_descriptor_is_no_shared_memory(void **state) {
    (void)state;
    struct actor maker = scene_begin("", make_and_send);
    int shared;
    scene_receive(maker.fd, &shared);
    assert_int_equal(fcntl(shared, F_GET_SEALS), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ, MAP_SHARED, shared, 0), MAP_FAILED);
    close(shared);
    scene_kill(maker);
}

static void keep_in_a_child(int fd) {
    start_on(0);
    make_on(0, 4 * MIB);
    pid_t child = fork();
    if (!child)
        for (;;)
            pause();
    scene_send(fd, (uint64_t)child, -1);
    for (;;)
        pause();
}

static void a_forked_child_keeps_its_dead_parents_memory(void **state) {
    (void)state;
    struct actor maker = scene_begin("", keep_in_a_child);
    pid_t child = (pid_t)scene_receive(maker.fd, NULL);
    scene_kill(maker);
    scene_play("", four_mib_are_used);
    kill(child, SIGKILL);
    while (kill(child, 0) == 0) { /* its reaper is not us */
        char path[32], state_letter = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", child);
        FILE *stat = fopen(path, "r");
        if (!stat || fscanf(stat, "%*d %*s %c", &state_letter) != 1 || state_letter == 'Z') {
            if (stat)
                fclose(stat);
            break;
        }
        fclose(stat);
        usleep(1000);
    }
    scene_play("", nothing_is_used);
}

static void fill_up(int fd) {
    start_on(0);
    CUmemGenericAllocationHandle handle, more;
    CUmemAllocationProp prop = on_device(0), other = on_device(1);
    CUdeviceptr plain;
    OK(cuMemCreate(&handle, 48 * MIB, &prop, 0));
    scene_send(fd, 0, -1);
    scene_receive(fd, NULL);
    CUDA(cuMemCreate(&more, 18 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CUDA(cuMemAlloc(&plain, 18 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemCreate(&more, 64 * MIB, &other, 0)); /* the other device has its own */
    OK(cuMemAlloc(&plain, 16 * MIB));
    CHECK(used_bytes() == 64 * MIB);
    OK(cuMemFree(plain));
    OK(cuMemRelease(handle));
    CHECK(used_bytes() == 0);
}

static void find_it_full(int fd) {
    (void)fd;
    start_on(0);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    CHECK(used_bytes() == 48 * MIB);
    CUDA(cuMemCreate(&handle, 18 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemCreate(&handle, 16 * MIB, &prop, 0));
}

static void a_device_is_full_for_all_processes_at_once(void **state) {
    (void)state;
    struct actor first = scene_begin("MEMORY_MIB=64", fill_up);
    scene_receive(first.fd, NULL);
    scene_play("MEMORY_MIB=64", find_it_full);
    scene_send(first.fd, 0, -1);
    scene_end(first);
}

static void wrong_arguments(int fd) {
    (void)fd;
    start_on(0);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    CUdeviceptr base, second;
    size_t bytes;
    CUDA(cuMemCreate(&handle, MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE); /* no whole granules */
    prop.location.id = 7;
    CUDA(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
    prop.location.id = 0;
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemAddressReserve(&base, 4 * MIB, 0, 0, 0));
    CUDA(cuMemMap(base, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* longer than it is */
    CUDA(cuMemMap(base + 4 * MIB, 2 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(base, 2 * MIB, 0, handle, 0));
    CUDA(cuMemMap(base, 2 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* taken */
    CUDA(cuMemAddressFree(base, 4 * MIB), CUDA_ERROR_INVALID_VALUE);       /* in use */
    CUDA(cuMemUnmap(base, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    CUDA(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    CHECK(used_bytes() == 2 * MIB); /* the mapping keeps it */
    OK(cuMemGetAddressRange(&second, &bytes, base + 5));
    CHECK(second == base && bytes == 2 * MIB);
    OK(cuMemUnmap(base, 2 * MIB));
    CHECK(used_bytes() == 0);
    CUDA(cuMemGetAddressRange(&second, &bytes, base), CUDA_ERROR_NOT_FOUND);
    OK(cuMemAddressFree(base, 4 * MIB));
    CUDA(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)0,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
         CUDA_ERROR_INVALID_VALUE); /* no slab */
}

static void wrong_arguments_are_refused_and_change_nothing(void **state) {
    (void)state;
    scene_play("", wrong_arguments);
}

static void touch_without_access(int fd) {
    uint64_t way = scene_receive(fd, NULL);
    start_on(0);
    CUdeviceptr base = make_on(0, 2 * MIB);
    CUcontext other;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent(other));
    uint32_t word = 1;
    CUmemAccessDesc both[] = {access_of(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                              access_of(1, CU_MEM_ACCESS_FLAGS_PROT_READ)};
    if (way > 0)
        OK(cuMemSetAccess(base, 2 * MIB, both, 2));
    if (way == 2) {
        CUDA(cuMemcpyHtoD(base, &word, 4), CUDA_ERROR_INVALID_VALUE); /* may only read */
        CUDA(cuMemsetD8(base, 1, 4), CUDA_ERROR_INVALID_VALUE);
    }
    CUDA(cuMemcpyDtoH(&word, base, 4), way ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(way ? word == 0 : word == 1);
    /* The other device's context is whole, whatever happened. */
    OK(cuCtxPopCurrent(NULL));
    OK(cuCtxSynchronize());
}

static void a_device_touches_only_what_it_has_access_to(void **state) {
    (void)state;
    for (uint64_t way = 0; way < 3; way++) {
        struct actor actor = scene_begin("", touch_without_access);
        scene_send(actor.fd, way, -1);
        scene_end(actor);
    }
}

static void register_host(int fd) {
    (void)fd;
    start_on(0);
    uint64_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr address;
    CUDA(cuMemHostGetDevicePointer(&address, page, 0), CUDA_ERROR_INVALID_VALUE);
    CUDA(cuMemHostUnregister(page), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    CUDA(cuMemHostRegister(page, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostGetDevicePointer(&address, page + 3, 0));
    OK(cuMemsetD8(address, 0xab, 8));
    CHECK(page[3] == 0xabababababababab && page[2] == 0 && page[4] == 0);
    unsigned type;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    CHECK(type == CU_MEMORYTYPE_HOST);
    OK(cuMemHostUnregister(page));
    munmap(page, 4096);
    CUDA(cuMemHostRegister(page, 4096, 0), CUDA_ERROR_INVALID_VALUE); /* not there */
}

static void host_memory_is_reached_once_it_is_registered(void **state) {
    (void)state;
    scene_play("", register_host);
}

static void lend(int fd) {
    start_on(0);
    CUdeviceptr base;
    CUipcMemHandle handle;
    OK(cuMemAlloc(&base, 100));
    OK(cuMemsetD32(base, 77, 25));
    OK(cuIpcGetMemHandle(&handle, base));
    CUDA(cuIpcOpenMemHandle(&base, handle, 1), CUDA_ERROR_INVALID_CONTEXT); /* its own */
    for (size_t i = 0; i < sizeof handle; i += 8) {
        uint64_t part;
        memcpy(&part, handle.reserved + i, 8);
        scene_send(fd, part, -1);
    }
    scene_receive(fd, NULL);
    CUDA(cuIpcGetMemHandle(&handle, make_on(0, 2 * MIB)), CUDA_ERROR_INVALID_VALUE);
}

static void borrow(int fd) {
    CUipcMemHandle handle;
    CUdeviceptr base, again;
    for (size_t i = 0; i < sizeof handle; i += 8) {
        uint64_t part = scene_receive(fd, NULL);
        memcpy(handle.reserved + i, &part, 8);
    }
    start_on(1);
    OK(cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(base == again && word_at(base) == 77);
    OK(cuIpcCloseMemHandle(base));
    scene_send(fd, 0, -1);
    scene_receive(fd, NULL); /* the lender is dead */
    CHECK(word_at(base) == 77);
    OK(cuIpcCloseMemHandle(base));
    CUDA(cuIpcCloseMemHandle(base), CUDA_ERROR_INVALID_VALUE);
    CUDA(cuIpcOpenMemHandle(&base, handle, 1), CUDA_ERROR_INVALID_VALUE);
}

static void a_legacy_handle_opens_while_its_maker_lives(void **state) {
    (void)state;
    struct actor lender = scene_begin("", lend), borrower = scene_begin("", borrow);
    for (int i = 0; i < 8; i++)
        scene_send(borrower.fd, scene_receive(lender.fd, NULL), -1);
    scene_receive(borrower.fd, NULL);
    scene_kill(lender);
    scene_send(borrower.fd, 0, -1);
    scene_end(borrower);
    scene_play("", nothing_is_used);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE(a_descriptor_outlives_its_maker_and_is_the_memory),
        SCENE(a_descriptor_under_way_keeps_the_memory),
        SCENE(an_exported_descriptor_is_no_shared_memory),
        SCENE(a_forked_child_keeps_its_dead_parents_memory),
        SCENE(a_device_is_full_for_all_processes_at_once),
        SCENE(wrong_arguments_are_refused_and_change_nothing),
        SCENE(a_device_touches_only_what_it_has_access_to),
        SCENE(host_memory_is_reached_once_it_is_registered),
        SCENE(a_legacy_handle_opens_while_its_maker_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
