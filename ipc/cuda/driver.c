/*
 * The CUDA driver: see driver.h.
 *
 * State of the process: one table, one lock. The table is published by a store of its pointer, and
 * read without the lock. Private memory: no other process sees it.
 */
#include "ipc/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/atomic.h"

#define DRIVER_NAME     "libcuda.so.1"
#define VERSIONED(name) SPELLED(name)
#define SPELLED(name)   #name

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cw_cuda table;
static void *opened;     /* the driver's library; constant once the table is published */
static cw_a32 state;     /* private: 0 not open, 1 open, 2 a child of a process that had it open */
static cw_a32 suspected; /* private: 1: a fatal error was seen */

enum { CLOSED, OPEN, FORKED };

static int forked_error(void) {
    return cw_fail(-ENODEV, "CUDA was initialised before this process was forked, and the driver "
                            "does not survive a fork: start processes that use a GPU with the "
                            "start method \"spawn\" (multiprocessing.get_context(\"spawn\"))");
}

/* Another thread may have held the lock at the fork: the child has one of its own. */
static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    /* V1: no other thread yet. */
    if (CW_LOAD(V1, &state, relaxed) == OPEN)
        CW_STORE(V1, &state, FORKED, relaxed);
}

static int load_calls(void *library, const char *path, struct cw_cuda *out) {
    const struct {
        const char *name;
        void *place;
    } calls[] = {
#define CW_CUDA_CALL(name) {VERSIONED(name), &out->name},
        CW_CUDA_CALLS
#undef CW_CUDA_CALL
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(library, calls[i].name);
        if (!found)
            return cw_fail(-ENODEV,
                           "the CUDA driver %s has no %s: it is too old; CUDA %d.%d or later is "
                           "needed (driver 525 or later)",
                           path, calls[i].name, CW_CUDA_DRIVER_MIN / 1000,
                           CW_CUDA_DRIVER_MIN % 1000 / 10);
        memcpy(calls[i].place, &found, sizeof found);
    }
#ifdef CW_CUDA_CALLS_LATER
    const struct {
        const char *name;
        void *place;
    } later[] = {
#define CW_CUDA_CALL(name) {VERSIONED(name), &out->name},
        CW_CUDA_CALLS_LATER
#undef CW_CUDA_CALL
    };
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        void *found = dlsym(library, later[i].name);
        memcpy(later[i].place, &found, sizeof found);
    }
#endif
    return 0;
}

static int start(struct cw_cuda *cuda, const char *path) {
    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    CUresult result = cuda->cuDriverGetVersion(&cuda->version);
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "asking %s for its version", path);
    if (cuda->version < CW_CUDA_DRIVER_MIN)
        return cw_fail(-ENODEV,
                       "the CUDA driver %s is of CUDA %d.%d; %d.%d or later is needed (driver 525 "
                       "or later)",
                       path, cuda->version / 1000, cuda->version % 1000 / 10,
                       CW_CUDA_DRIVER_MIN / 1000, CW_CUDA_DRIVER_MIN % 1000 / 10);
    result = cuda->cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE)
        return cw_fail(-ENODEV,
                       "the CUDA driver sees no GPU (CUDA_VISIBLE_DEVICES is %s%s%s): use "
                       "device=\"cpu\", or make a GPU visible to this process",
                       mask ? "\"" : "", mask ? mask : "not set", mask ? "\"" : "");
    if (result == CUDA_ERROR_NOT_INITIALIZED) /* what a child hears whose parent had called cuInit,
                                                 through whichever library */
        return forked_error();
    if (result != CUDA_SUCCESS)
        return cw_cuda_error(cuda, result, "initialising the CUDA driver %s", path);
    return 0;
}

/* Was there something that the process has too little of? Only the words of dlopen() say so, and of
 * a file that is there "no such file" is no more than another word for no memory. */
static bool lacked(const char *path, const char *why) {
    static const int errors[] = {ENOMEM, EMFILE, ENFILE};
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strstr(why, strerror(errors[i])))
            return true;
    if (strstr(why, "out of memory") || strstr(why, "annot allocate memory") ||
        strstr(why, "cannot create shared object descriptor"))
        return true;
    return strchr(path, '/') && strncmp(why, path, strlen(path)) == 0 &&
           strstr(why, strerror(ENOENT)) && access(path, F_OK) == 0;
}

static int open_driver(void) {
    static bool watches_forks;
    const char *path = secure_getenv("CABLEWAY_CUDA_DRIVER");
    if (!path || !*path)
        path = DRIVER_NAME;
    /* Never closed: the driver has threads, and others in this process use it. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *why = library ? NULL : dlerror();
    if (why && lacked(path, why))
        return cw_fail(-EDQUOT, "the CUDA driver could not be opened: %s", why);
    if (!library)
        return cw_fail(-ENODEV,
                       "no CUDA driver here (%s): use device=\"cpu\", or install NVIDIA's driver, "
                       "or name its library in CABLEWAY_CUDA_DRIVER",
                       why ? why : "dlopen() failed");
    opened = library;
    int code = load_calls(library, path, &table);
    if (code == 0)
        code = start(&table, path);
    if (code == 0 && !watches_forks) {
        if (pthread_atfork(NULL, NULL, in_child) != 0)
            return cw_fail(-EDQUOT, "no memory to watch for forks");
        watches_forks = true;
    }
    return code;
}

int cw_cuda_open(const struct cw_cuda **out) {
    /* V1: pairs with the store below: the table is filled before. */
    uint32_t now = CW_LOAD(V1, &state, acquire);
    if (now == CLOSED) {
        pthread_mutex_lock(&lock);
        int code = CW_LOAD(V1, &state, relaxed) == CLOSED ? open_driver() : 0;
        if (code == 0)
            CW_STORE(V1, &state, OPEN, release);
        pthread_mutex_unlock(&lock);
        if (code)
            return code;
    } else if (now == FORKED)
        return forked_error();
    *out = &table;
    return 0;
}

const struct cw_cuda *cw_cuda_opened(void) {
    return CW_LOAD(V1, &state, acquire) == OPEN ? &table : NULL;
}

bool cw_cuda_is_fatal(CUresult result) {
    switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
        return true;
    default:
        return false;
    }
}

bool cw_cuda_suspected(void) {
    return CW_LOAD(V2, &suspected, relaxed) != 0;
}

void *cw_cuda_symbol(const char *name) {
    return cw_cuda_opened() ? dlsym(opened, name) : NULL;
}

int cw_cuda_tell(const struct cw_cuda *cuda, CUresult result, const char *format, ...) {
    const char *name = NULL, *sentence = NULL;
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (cw_cuda_is_fatal(result))
        CW_STORE(V2, &suspected, 1, relaxed); /* V2: a hint; context_failure.c asks the contexts */
    if (cuda->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "an error without a name";
    if (cuda->cuGetErrorString(result, &sentence) != CUDA_SUCCESS || !sentence)
        sentence = "no more is known";
    return cw_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? -EDQUOT : -ENODEV,
                   "%s: CUDA says %s (%d, %s)", what, name, (int)result, sentence);
}
