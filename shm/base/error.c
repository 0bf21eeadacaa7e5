/*
 * Error texts: one buffer a thread, and the assertion that never returns.
 *
 * Owner: each thread its own buffer, which it takes at its first failure and which goes with it;
 * the key alone is shared. A thread that finds no memory for one still tells its codes, and a
 * sentence that says so. The buffer is no thread-local variable: where the library comes by
 * dlopen(), the C library makes these at a thread's first look at one, and for want of memory ends
 * the process.
 */
#include "shm/base/error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static CW_THREAD_LOCAL char *buffer;
static CW_THREAD_LOCAL const char *detail;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int key_made;

/* At a thread's end; what fails after that takes another one. */
static void drop(void *text) {
    buffer = NULL;
    detail = NULL;
    free(text);
}

static void make_key(void) {
    key_made = pthread_key_create(&key, drop) == 0;
}

/* The library is unloaded, and with it what threads would call at their end. */
__attribute__((destructor)) static void forget_key(void) {
    if (key_made)
        pthread_key_delete(key);
    key_made = 0;
}

/* A failure's text may be made of errno. */
static char *own_buffer(void) {
    int before = errno;
    pthread_once(&once, make_key);
    char *made = key_made ? malloc(CW_DETAIL_MAX) : NULL;
    if (made && pthread_setspecific(key, made) != 0) {
        free(made);
        made = NULL;
    }
    errno = before;
    return made;
}

int cw_fail_detail(int code, const char *format, ...) {
    va_list arguments;
    if (!buffer && !(buffer = own_buffer())) {
        detail = "no memory is left, not even to say what failed";
        return code;
    }
    va_start(arguments, format);
    vsnprintf(buffer, CW_DETAIL_MAX, format, arguments);
    va_end(arguments);
    detail = buffer;
    return code;
}

int cw_fail_plain(int code, const char *sentence) {
    detail = sentence;
    return code;
}

const char *cw_detail(void) {
    return detail ? detail : "";
}

_Noreturn void cw_assert_failed(const char *expression, const char *file, int line) {
    fprintf(stderr, "cableway: assertion failed: %s (%s:%d)\n", expression, file, line);
    abort();
}

/* Set once, before there are others who might read it. */
static int is_broker;

void cw_descriptors_are_the_brokers(void) {
    is_broker = 1;
}

/* The sentence goes to a client, whose own limit is another one. The broker has one thread that
 * makes sentences. */
static const char *brokers_remedy(void) {
    static char text[256];
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        files.rlim_cur = 0;
    snprintf(text, sizeof text,
             "this is the limit of the broker, which may open %llu files, as the program that "
             "started it allowed (ulimit -Hn): end the broker (cableway stop) and start it where "
             "more are allowed, or run cablewayd as a service",
             (unsigned long long)files.rlim_cur);
    return text;
}

static const char *own_remedy(void) {
    static __thread char text[160];
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        files.rlim_cur = 0;
    snprintf(text, sizeof text,
             "this process may open %llu files: raise that limit (ulimit -n) and start it again",
             (unsigned long long)files.rlim_cur);
    return text;
}

const char *cw_descriptor_remedy(int error) {
    switch (error) {
    case EMFILE:
        return is_broker ? brokers_remedy() : own_remedy();
    case ENFILE:
        return "the whole machine has none left: raise sysctl fs.file-max";
    default:
        return "the kernel has no memory left for it";
    }
}
