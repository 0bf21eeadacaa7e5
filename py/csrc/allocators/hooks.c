/*
 * Memory of ours for the allocators of GPU libraries: each piece is one array of bytes.
 *
 * What a library gives back may still be in use by work that it has submitted, on whatever stream
 * (its own allocator, cudaMalloc, waits for all of it in cudaFree). So it goes to the list of the
 * freed first, and when that has FREED_MAX pieces or FREED_BYTES, or memory runs out, one wait for
 * all GPUs concerned lets the whole list go. Libraries that pool their memory come by here rarely.
 *
 * Invariant: a piece is in the table (a library has it), in the list of the freed, or its array is
 * closed. Owner: the lock, never held while anything waits or the broker is asked. If the process
 * dies its arrays go, as all that it held; what others hold of them (suballocations) stays. In a
 * forked child nothing is touched: the pieces are the parent's.
 */
#include "hooks.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS     4096u
#define FREED_MAX   64u
#define FREED_BYTES (256ull << 20)

struct piece {
    void *memory;
    cw_array *array;
    uint64_t size_bytes;
    int gpu;
    struct piece *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cw_client *client; /* one reference */
static pid_t owner;       /* the process that this is about */
static struct piece *table[BUCKETS], *freed;
static uint64_t bytes, freed_bytes;
static unsigned freed_count;
/* In memory that each thread has from its beginning: taking some later could end the process. */
static _Thread_local int status __attribute__((tls_model("initial-exec")));

static struct piece **bucket(const void *memory) {
    return &table[((uintptr_t)memory >> 9) * 2654435769u % BUCKETS];
}

int cwpy_hook_begin(cw_client *with) {
    cw_client_ref(with);
    if (owner && owner != getpid()) {
        cw_client_unref(with);
        return -EINVAL; /* what the parent had cannot be used here, and its lock may be held */
    }
    pthread_mutex_lock(&lock);
    cw_client *before = client;
    client = with;
    owner = getpid();
    pthread_mutex_unlock(&lock);
    if (before)
        cw_client_unref(before);
    return 0;
}

/* Waits for the work of all GPUs that have pieces in the list. */
static int wait_for(const struct piece *list) {
    uint64_t done = 0;
    for (; list; list = list->next) {
        int code = done >> list->gpu & 1 ? 0 : cw_stream_wait(list->gpu, NULL, 1);
        if (code)
            return code;
        done |= 1ull << list->gpu;
    }
    return 0;
}

/* Lets go of what was freed. While a stream is being captured, which forbids to wait, it stays. */
static void settle(void) {
    pthread_mutex_lock(&lock);
    struct piece *list = freed;
    uint64_t list_bytes = freed_bytes;
    freed = NULL;
    freed_bytes = freed_count = 0;
    pthread_mutex_unlock(&lock);
    if (wait_for(list) == 0) {
        for (struct piece *next; list; list = next) {
            next = list->next;
            cw_array_close(list->array);
            free(list);
        }
        return;
    }
    struct piece *last = list;
    unsigned count = 1;
    for (; last->next; last = last->next)
        count++;
    pthread_mutex_lock(&lock);
    last->next = freed;
    freed = list;
    freed_bytes += list_bytes;
    freed_count += count;
    pthread_mutex_unlock(&lock);
}

/* A library takes whatever fails for memory that is full, so a signal ends nothing in the first
 * second: most have handlers that want no end. */
static int new_array(cw_client *with, const char *device, const cw_layout *layout, cw_array **out) {
    struct timespec begin, now;
    int code;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        code = cw_array_new(with, device, layout, CW_POOL, out);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (code == -EINTR && now.tv_sec - begin.tv_sec < 2);
    return code;
}

static int make(uint64_t size_bytes, int gpu, struct piece **out) {
    char device[24];
    int64_t count = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    struct piece *made = malloc(sizeof *made);
    if (!made)
        return -ENOMEM;
    pthread_mutex_lock(&lock);
    cw_client *with = client;
    if (with)
        cw_client_ref(with);
    pthread_mutex_unlock(&lock);
    snprintf(device, sizeof device, "cuda:%d", gpu);
    *made = (struct piece){.size_bytes = size_bytes, .gpu = gpu};
    int code = with ? new_array(with, device, &layout, &made->array) : -EINVAL;
    if (code == -EDQUOT && freed) {
        settle();
        code = new_array(with, device, &layout, &made->array);
    }
    if (with)
        cw_client_unref(with);
    if (code) {
        free(made);
        return code;
    }
    made->memory = cw_array_data(made->array);
    *out = made;
    return 0;
}

__attribute__((visibility("default"))) void *cwpy_hook_alloc(size_t size, int device,
                                                             void *stream) {
    struct piece *made;
    (void)stream;
    status = 0;
    if (size == 0)
        return NULL;
    status = owner != getpid() || device < 0 || device > 63 || size > INT64_MAX / 2
                 ? -EINVAL
                 : make(size, device, &made);
    if (status) {
        /* PyTorch takes any NULL for a full memory: the true reason must not be lost. */
        if (status != -EDQUOT)
            fprintf(stderr, "cableway: %zu bytes on cuda:%d: %s\n", size, device,
                    status == -EINVAL ? "cableway's allocator is not in use in this process"
                                      : cw_error());
        return NULL;
    }
    pthread_mutex_lock(&lock);
    made->next = *bucket(made->memory);
    *bucket(made->memory) = made;
    bytes += made->size_bytes;
    pthread_mutex_unlock(&lock);
    return made->memory;
}

__attribute__((visibility("default"))) void cwpy_hook_free(void *memory, size_t size, int device,
                                                           void *stream) {
    (void)size, (void)device, (void)stream;
    if (!memory || owner != getpid())
        return;
    pthread_mutex_lock(&lock);
    struct piece **at = bucket(memory), *piece;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    piece = *at;
    bool full = false;
    if (piece) {
        *at = piece->next;
        bytes -= piece->size_bytes;
        piece->next = freed;
        freed = piece;
        freed_bytes += piece->size_bytes;
        full = ++freed_count >= FREED_MAX || freed_bytes >= FREED_BYTES;
    }
    pthread_mutex_unlock(&lock);
    if (full)
        settle();
}

int cwpy_hook_status(void) {
    return status;
}

uint64_t cwpy_hook_bytes(void) {
    pthread_mutex_lock(&lock);
    uint64_t now = bytes;
    pthread_mutex_unlock(&lock);
    return now;
}

uint64_t cwpy_hook_freed_bytes(void) {
    pthread_mutex_lock(&lock);
    uint64_t now = freed_bytes;
    pthread_mutex_unlock(&lock);
    return now;
}
