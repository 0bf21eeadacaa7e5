/*
 * Scenes for the test double's own tests. The double reads its environment once, so each scene is
 * a process: forked from a program that has never called cuInit, with settings of its own, and a
 * folder for the card that all processes of one test share.
 *
 * CHECK(condition) and CUDA(call, expected) end the process of the scene with a sentence.
 */
#ifndef CW_FAKECUDA_SCENE_H
#define CW_FAKECUDA_SCENE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <cuda.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/support.h"

#define MIB ((size_t)1 << 20)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define CUDA(call, expected)                                                                       \
    do {                                                                                           \
        CUresult got_ = (call);                                                                    \
        const char *name_ = "?";                                                                   \
        cuGetErrorName(got_, &name_);                                                              \
        if (got_ != (expected)) {                                                                  \
            fprintf(stderr, "%s:%d: %s gave %s, not " #expected "\n", __FILE__, __LINE__, #call,   \
                    name_);                                                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) CUDA(call, CUDA_SUCCESS)

typedef void scene(int fd); /* fd: a socket to the test, with a message for a step */

struct actor {
    pid_t pid;
    int fd;
};

/* "NAME=VALUE NAME=VALUE": without CABLEWAY_FAKECUDA_ where the name is in capitals and short. */
static inline void scene_settings(const char *settings) {
    char text[1024], name[128];
    snprintf(text, sizeof text, "%s", settings);
    for (char *item = strtok(text, " "); item; item = strtok(NULL, " ")) {
        char *value = strchr(item, '=');
        CHECK(value);
        *value++ = 0;
        snprintf(name, sizeof name, "%s%s", strncmp(item, "CUDA_", 5) ? "CABLEWAY_FAKECUDA_" : "",
                 item);
        setenv(name, value, 1);
    }
}

static inline struct actor scene_begin(const char *settings, scene *play) {
    struct actor actor;
    int pair[2];
    fflush(NULL);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    actor.pid = fork();
    assert_true(actor.pid >= 0);
    if (!actor.pid) {
        close(pair[0]);
        scene_settings(settings);
        play(pair[1]);
        _exit(0);
    }
    close(pair[1]);
    actor.fd = pair[0];
    return actor;
}

static inline void scene_end(struct actor actor) {
    int status = 0;
    assert_int_equal(waitpid(actor.pid, &status, 0), actor.pid);
    close(actor.fd);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline void scene_kill(struct actor actor) {
    kill(actor.pid, SIGKILL);
    assert_int_equal(waitpid(actor.pid, NULL, 0), actor.pid);
    close(actor.fd);
}

static inline void scene_play(const char *settings, scene *play) {
    scene_end(scene_begin(settings, play));
}

/* One step: a number, and a descriptor if fd is one. */
static inline void scene_send(int to, uint64_t number, int fd) {
    union {
        char bytes[CMSG_SPACE(sizeof fd)];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {&number, sizeof number};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    CHECK(sendmsg(to, &message, MSG_NOSIGNAL) == sizeof number);
}

static inline uint64_t scene_receive(int from, int *fd) {
    uint64_t number = 0;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec part = {&number, sizeof number};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    CHECK(recvmsg(from, &message, MSG_CMSG_CLOEXEC) == sizeof number);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (fd) {
        CHECK(head);
        memcpy(fd, CMSG_DATA(head), sizeof *fd);
    }
    return number;
}

/* A folder for the card; gone with the test. */
static char scene_folder[] = "/tmp/fakecuda-test-XXXXXX";

static inline int scene_setup(void **state) {
    (void)state;
    strcpy(scene_folder + sizeof scene_folder - 7, "XXXXXX");
    if (!mkdtemp(scene_folder))
        return -1;
    return setenv("CABLEWAY_FAKECUDA_DIR", scene_folder, 1);
}

static inline int scene_teardown(void **state) {
    (void)state;
    char path[80];
    const char *const names[] = {"card", "lock"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", scene_folder, names[i]);
        unlink(path);
    }
    return rmdir(scene_folder);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, scene_setup, scene_teardown)

/* ---- what most scenes begin with
 * ------------------------------------------------------------------ */

static inline CUcontext start_on(int device) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxPushCurrent(context));
    return context;
}

static inline CUmemAllocationProp on_device(int device) {
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static inline CUmemAccessDesc access_of(int device, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {.flags = flags};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    return access;
}

/* Maps a handle for one device. */
static inline CUdeviceptr map_for(CUmemGenericAllocationHandle handle, size_t size_bytes,
                                  int device) {
    CUdeviceptr base = 0;
    CUmemAccessDesc access = access_of(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemAddressReserve(&base, size_bytes, 0, 0, 0));
    OK(cuMemMap(base, size_bytes, 0, handle, 0));
    OK(cuMemSetAccess(base, size_bytes, &access, 1));
    return base;
}

static inline CUdeviceptr make_on(int device, size_t size_bytes) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(device);
    OK(cuMemCreate(&handle, size_bytes, &prop, 0));
    CUdeviceptr base = map_for(handle, size_bytes, device);
    OK(cuMemRelease(handle));
    return base;
}

static inline size_t used_bytes(void) {
    size_t free_bytes, total_bytes;
    OK(cuMemGetInfo(&free_bytes, &total_bytes));
    return total_bytes - free_bytes;
}

static inline uint32_t word_at(CUdeviceptr address) {
    uint32_t word = 0;
    OK(cuMemcpyDtoH(&word, address, sizeof word));
    return word;
}

#endif
