/*
 * The promises of the test double about devices: what is visible, topologies, modes, versions, and
 * what a fork leaves.
 */
#include "tests/fakecuda/scene.h"

#include <dlfcn.h>

static int count_devices(void) {
    int count = -1;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    return count;
}

static int last_byte(int device) {
    CUuuid uuid;
    OK(cuDeviceGetUuid(&uuid, device));
    return uuid.bytes[15];
}

static void in_order_0_1_2(int fd) {
    (void)fd;
    CHECK(count_devices() == 3);
    CHECK(last_byte(0) == 0 && last_byte(1) == 1 && last_byte(2) == 2);
}

static void in_order_2_0(int fd) {
    (void)fd;
    CHECK(count_devices() == 2);
    CHECK(last_byte(0) == 2 && last_byte(1) == 0);
    CUdevice device;
    CUDA(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
}

static void one_alone(int fd) {
    (void)fd;
    CHECK(count_devices() == 1 && last_byte(0) == 1);
}

static void none(int fd) {
    (void)fd;
    int count;
    CUDA(cuInit(0), CUDA_ERROR_NO_DEVICE);
    CUDA(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

#define UUID(n) "GPU-66616b65-6375-6461-0000-00000000000" #n

static void a_process_sees_what_the_mask_says(void **state) {
    (void)state;
    scene_play("DEVICES=3", in_order_0_1_2);
    scene_play("DEVICES=3 CUDA_VISIBLE_DEVICES=2,0", in_order_2_0);
    scene_play("DEVICES=3 CUDA_VISIBLE_DEVICES=" UUID(2) "," UUID(0), in_order_2_0);
    scene_play("DEVICES=3 CUDA_VISIBLE_DEVICES=1,7,0", one_alone); /* ends at the wrong one */
    scene_play("DEVICES=3 CUDA_VISIBLE_DEVICES=1,-1,0", one_alone);
    scene_play("DEVICES=3 CUDA_VISIBLE_DEVICES=1,1", none);
    scene_play("DEVICES=3 CUDA_VISIBLE_DEVICES=", none);
    scene_teardown(NULL);
    scene_setup(NULL);
    scene_play("DEVICES=0", none);
}

static void named(int fd) {
    (void)fd;
    CUuuid uuid;
    CHECK(count_devices() == 2);
    OK(cuDeviceGetUuid(&uuid, 1));
    CHECK((unsigned char)uuid.bytes[0] == 0xab && (unsigned char)uuid.bytes[15] == 0xef);
}

static void devices_have_the_uuids_that_are_set(void **state) {
    (void)state;
    scene_play("UUIDS=GPU-00000000-0000-0000-0000-000000000001,"
               "GPU-abcdef01-2345-6789-abcd-ef0123456bef",
               named);
}

static void refused(int fd) {
    (void)fd;
    fclose(stderr);
    CUDA(cuInit(0), CUDA_ERROR_INVALID_VALUE);
}

static void a_wrong_setting_is_refused(void **state) {
    (void)state;
    scene_play("DEVICES=many", refused);
    scene_play("MEMORY_MIB=0", refused);
    scene_play("NO_PEER=0-9", refused);
    scene_play("UUIDS=GPU-12", refused);
    scene_play("MODE=other", refused);
    scene_play("FAULTS=cuInit=NO_SUCH_ERROR", refused);
    scene_play("DIR=/nowhere/at/all", refused);
}

static int reaches(int from, int to) {
    int can;
    OK(cuDeviceCanAccessPeer(&can, from, to));
    return can;
}

static void some_peers(int fd) {
    (void)fd;
    CHECK(count_devices() == 8);
    CHECK(!reaches(0, 1) && !reaches(1, 0) && reaches(0, 2) && reaches(7, 1) && !reaches(3, 3));
    start_on(0);
    CUdeviceptr base = make_on(0, 2 * MIB);
    CUmemAccessDesc one = access_of(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                    two = access_of(2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUDA(cuMemSetAccess(base, 2 * MIB, &one, 1), CUDA_ERROR_INVALID_DEVICE);
    OK(cuMemSetAccess(base, 2 * MIB, &two, 1));
}

static void no_peers(int fd) {
    (void)fd;
    OK(cuInit(0));
    CHECK(!reaches(0, 1));
}

static void a_pair_without_peer_access_has_none(void **state) {
    (void)state;
    scene_play("DEVICES=8 NO_PEER=0-1,4-5", some_peers);
    scene_teardown(NULL);
    scene_setup(NULL);
    scene_play("NO_PEER=all", no_peers);
}

static int attribute(CUdevice_attribute which) {
    int value;
    OK(cuDeviceGetAttribute(&value, which, 0));
    return value;
}

static void without_export(int fd) {
    (void)fd;
    start_on(0);
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0);
    CHECK(!attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
    CUDA(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void without_wait64(int fd) {
    (void)fd;
    start_on(0);
    CUdeviceptr base = make_on(0, 2 * MIB);
    CHECK(!attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
    CUDA(cuStreamWaitValue64(NULL, base, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuStreamWriteValue32(NULL, base, 1, 0));
}

static void what_a_device_lacks_is_refused(void **state) {
    (void)state;
    scene_play("NO_EXPORT=1", without_export);
    scene_play("NO_WAIT64=1", without_wait64);
}

static void one_instance(int fd) {
    (void)fd;
    char name[64];
    CHECK(count_devices() == 1 && last_byte(0) == 2);
    OK(cuDeviceGetName(name, sizeof name, 0));
    CHECK(strstr(name, "MIG"));
}

static void of_mig_instances_a_process_sees_one(void **state) {
    (void)state;
    scene_play("DEVICES=4 MIG=1 CUDA_VISIBLE_DEVICES=MIG-66616b65-6375-6461-0000-000000000002,"
               "MIG-66616b65-6375-6461-0000-000000000001",
               one_instance);
}

static void hold_it(int fd) {
    start_on(0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
    scene_send(fd, 0, -1);
    pause();
}

static void find_it_held(int fd) {
    (void)fd;
    CUcontext context;
    OK(cuInit(0));
    CUDA(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    OK(cuDevicePrimaryCtxRetain(&context, 1));
}

static void find_it_free(int fd) {
    (void)fd;
    start_on(0);
    OK(cuDevicePrimaryCtxRelease(0));
    start_on(0);
}

static void prohibited(int fd) {
    (void)fd;
    CUcontext context;
    OK(cuInit(0));
    CUDA(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

static void an_exclusive_device_has_one_process(void **state) {
    (void)state;
    struct actor holder = scene_begin("MODE=exclusive", hold_it);
    scene_receive(holder.fd, NULL);
    scene_play("MODE=exclusive", find_it_held);
    scene_kill(holder);
    scene_play("MODE=exclusive", find_it_free);
    scene_play("MODE=prohibited", prohibited);
}

static void old_driver(int fd) {
    (void)fd;
    int version;
    OK(cuDriverGetVersion(&version)); /* also before cuInit */
    CHECK(version == 11080);
}

static void the_driver_has_the_version_that_is_set(void **state) {
    (void)state;
    scene_play("DRIVER=11080", old_driver);
}

static void take_context(int fd) {
    start_on(0);
    scene_send(fd, used_bytes() / MIB, -1);
    scene_receive(fd, NULL);
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuCtxPopCurrent(NULL));
    start_on(1);
    scene_send(fd, used_bytes() / MIB, -1);
}

static void a_context_takes_its_memory(void **state) {
    (void)state;
    struct actor first = scene_begin("CONTEXT_MIB=16", take_context);
    assert_int_equal(scene_receive(first.fd, NULL), 16);
    struct actor second = scene_begin("CONTEXT_MIB=16", take_context);
    assert_int_equal(scene_receive(second.fd, NULL), 32);
    scene_kill(second);
    scene_send(first.fd, 0, -1);
    assert_int_equal(scene_receive(first.fd, NULL), 16);
    scene_end(first);
}

static void fork_after_init(int fd) {
    (void)fd;
    start_on(0);
    pid_t child = fork();
    if (!child) {
        int count;
        CUcontext context;
        CUDA(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
        CUDA(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
        CUDA(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
        CUDA(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    OK(cuCtxSynchronize());
}

static void a_child_of_an_initialised_process_can_do_nothing(void **state) {
    (void)state;
    scene_play("", fork_after_init);
}

static void by_name(int fd) {
    (void)fd;
    void *found;
    CUdriverProcAddressQueryResult result;
    OK(cuGetProcAddress("cuMemAlloc", &found, 13000, 0, &result));
    CHECK(found == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") && !result);
    OK(cuGetProcAddress("cuInit", &found, 13000, 0, NULL));
    CHECK(found == dlsym(RTLD_DEFAULT, "cuInit"));
    CUDA(cuGetProcAddress("cuNothing", &found, 13000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    CHECK(!found);
}

static void calls_are_found_by_name(void **state) {
    (void)state;
    scene_play("", by_name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE(a_process_sees_what_the_mask_says),
        SCENE(devices_have_the_uuids_that_are_set),
        SCENE(a_wrong_setting_is_refused),
        SCENE(a_pair_without_peer_access_has_none),
        SCENE(what_a_device_lacks_is_refused),
        SCENE(of_mig_instances_a_process_sees_one),
        SCENE(an_exclusive_device_has_one_process),
        SCENE(the_driver_has_the_version_that_is_set),
        SCENE(a_context_takes_its_memory),
        SCENE(a_child_of_an_initialised_process_can_do_nothing),
        SCENE(calls_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
