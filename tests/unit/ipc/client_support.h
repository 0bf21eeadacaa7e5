/*
 * A broker of its own for a test: a fresh folder, the cablewayd of this build, stopped at the end.
 */
#ifndef CW_TESTS_UNIT_CLIENT_SUPPORT_H
#define CW_TESTS_UNIT_CLIENT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "ipc/client.h"
#include "tests/support.h"

#define SECOND 1000000000ll

/* A forked child of a program with threads is no leak of theirs. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "report_thread_leaks=0";
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ != 0)                                                                            \
            fail_msg("%s: %d: %s", #call, code_, cw_error());                                      \
    } while (0)

/* In children, where cmocka's assertions do not reach. */
#define CHILD(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "child, line %d: %s: %s\n", __LINE__, #condition, cw_error());         \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

static inline void set_broker_path(void) {
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    assert_true(length > 0);
    path[length] = 0;
    for (int i = 0; i < 4; i++) /* BUILD/tests/unit/ipc/program */
        *strrchr(path, '/') = 0;
    strcat(path, "/cablewayd");
    setenv("CABLEWAY_BROKER", path, 0);
}

/* cmocka's set-up and tear-down: a folder, and what lies in it. */
static inline int folder_make(void **state) {
    (void)state;
    static char folder[64];
    strcpy(folder, "/tmp/cw-client-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    setenv("CABLEWAY_DIR", folder, 1);
    unsetenv("CABLEWAY_NAMESPACE");
    set_broker_path();
    return 0;
}

static inline int folder_remove(void **state) {
    (void)state;
    const char *folder = getenv("CABLEWAY_DIR");
    cw_client *client;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) == 0) {
        int pid = cw_client_broker_pid(client);
        cw_broker_stop(client);
        for (int i = 0; i < 10000 && kill(pid, 0) == 0; i++)
            usleep(2000);
        cw_client_unref(client);
    }
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory)
        closedir(directory);
    rmdir(folder);
    return 0;
}

static inline cw_client *client_open(void) {
    cw_client *client;
    OK(cw_connect(NULL, NULL, 0, &client));
    return client;
}

/* Memory goes from thread to thread by way of the broker, and its next user need not begin where
 * the one before began. ThreadSanitizer sees nothing of that, and is told: what was done with an
 * array is done, what others did is seen from here on. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
static char passing;
#define BYTES_DONE() __tsan_release(&passing)
#define BYTES_SEEN() __tsan_acquire(&passing)
#else
#define BYTES_DONE() ((void)0)
#define BYTES_SEEN() ((void)0)
#endif

/* An array of count bytes, all of them value. */
static inline cw_array *bytes_new(cw_client *client, int64_t count, int value) {
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array = NULL;
    int code = cw_array_new(client, "cpu", &layout, 0, &array);
    if (code) {
        fprintf(stderr, "# %lld bytes: %s\n", (long long)count, cw_error());
        return NULL;
    }
    BYTES_SEEN();
    memset(cw_array_data(array), value, (size_t)count);
    BYTES_DONE();
    return array;
}

static inline bool bytes_are(const cw_array *array, int64_t count, int value) {
    const uint8_t *data = cw_array_data(array);
    if (cw_array_nbytes(array) != (uint64_t)count)
        return false;
    bool are = true;
    BYTES_SEEN();
    for (int64_t i = 0; i < count; i++)
        are &= data[i] == (uint8_t)value;
    BYTES_DONE();
    return are;
}

static inline uint64_t gauge(cw_client *client, enum cw_gauge which) {
    return atomic_load(&client->root->gauges[which]);
}

static inline uint64_t counter(cw_client *client, enum cw_counter which) {
    return atomic_load(&client->root->counters[which]);
}

/* Until value() is as expected; the limit is for what never comes: a machine may be busy. */
#define EVENTUALLY(condition)                                                                      \
    do {                                                                                           \
        int64_t end_ = test_now_ns() + 60 * SECOND;                                                \
        while (!(condition)) {                                                                     \
            if (test_now_ns() > end_)                                                              \
                fail_msg("never became true: %s", #condition);                                     \
            usleep(500);                                                                           \
        }                                                                                          \
    } while (0)

#endif
