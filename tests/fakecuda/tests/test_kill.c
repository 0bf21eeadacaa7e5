/*
 * The promise of the test double's card: processes may be killed at any moment, and what they alone
 * held is free again, what others hold is whole.
 */
#include "tests/fakecuda/scene.h"

#define ACTORS 4

/* Makes, exports, imports, maps and frees, until it is killed. */
static void churn(int fd) {
    struct chance chance = chance_init((uint64_t)getpid());
    CUmemGenericAllocationHandle handles[4] = {0}, imported;
    CUmemAllocationProp prop = on_device(0);
    start_on(0);
    scene_send(fd, 0, -1);
    for (;;) {
        CUmemGenericAllocationHandle *handle = &handles[chance_below(&chance, 4)];
        if (*handle) {
            OK(cuMemRelease(*handle));
            *handle = 0;
            continue;
        }
        CUresult code = cuMemCreate(handle, 2 * MIB * (1 + chance_below(&chance, 4)), &prop, 0);
        CHECK(code == CUDA_SUCCESS || code == CUDA_ERROR_OUT_OF_MEMORY);
        if (code)
            continue;
        int exported;
        OK(cuMemExportToShareableHandle(&exported, *handle,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        OK(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)exported,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(exported);
        CUdeviceptr base = map_for(imported, 2 * MIB, 0);
        OK(cuMemRelease(imported));
        OK(cuMemsetD32(base, 1, 16));
        OK(cuMemUnmap(base, 2 * MIB));
        OK(cuMemAddressFree(base, 2 * MIB));
    }
}

static void the_card_is_empty(int fd) {
    (void)fd;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    start_on(0);
    CHECK(used_bytes() == 0);
    OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
}

static void kills_at_any_moment_leave_no_byte(void **state) {
    (void)state;
    struct chance chance = chance_init(1);
    for (uint64_t round = 0; round < test_rounds(100); round++) {
        struct actor actors[ACTORS];
        for (int i = 0; i < ACTORS; i++)
            actors[i] = scene_begin("MEMORY_MIB=64", churn);
        for (int i = 0; i < ACTORS; i++)
            scene_receive(actors[i].fd, NULL);
        for (int i = 0; i < ACTORS; i++) {
            usleep((useconds_t)chance_below(&chance, 3000));
            scene_kill(actors[i]);
        }
        scene_play("MEMORY_MIB=64", the_card_is_empty);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {SCENE(kills_at_any_moment_leave_no_byte)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
