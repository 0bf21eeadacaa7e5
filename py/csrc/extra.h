/*
 * extra.h: what the Python package needs beside cableway.h.
 *
 * A signal's handler may raise as soon as a call returns, before Python has seen what it gave. So
 * whatever is taken is noted by C, in memory of an object of Python's that was there before: a
 * *cell*, which that object gives back when it goes (arrays: dispatch_lease_cell.c). Whoever was
 * interrupted, also in the midst of giving back, leaves nothing behind, and nothing is given back
 * twice.
 *
 * Included by the CFFI module alone. The text between the marks is also the cdef. Every function
 * may be called from any thread, for one cell by one at a time.
 */
#ifndef CABLEWAY_PY_EXTRA_H
#define CABLEWAY_PY_EXTRA_H

#include <errno.h>
#include <linux/mempolicy.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ipc/cableway.h"

/* cdef begins */
/* Disconnects the client in a cell, or closes the queue, if there is one. */
static void cwpy_client_end(cw_client **cell);
static void cwpy_queue_end(cw_queue **cell);
/* Closes the tree in a cell, if there is one. */
static void cwpy_tree_end(cw_tree **cell);
/* The same of trees in a row, up to the first NULL; and takes the last of them into a cell. */
static void cwpy_trees_end(cw_tree **trees);
static void cwpy_trees_take_last(cw_tree **trees, cw_tree **cell);
/* The same of a mount. */
static void cwpy_mount_end(cw_mount **cell);
/* A turn, in 40 bytes: is taken into a cell, 0; -1: another thread had it for timeout_ns, or a
 * signal came; -2: this thread has it (a signal's handler). And it ends, if it was taken. */
static void cwpy_turn_init(uint64_t *turn);
static int cwpy_turn_take(uint64_t *turn, int64_t timeout_ns, int *cell);
static void cwpy_turn_end(uint64_t *turn, int *cell);
/* Closes the checkpoint, the reading or the load in a cell, if there is one. */
static void cwpy_checkpoint_end(cw_checkpoint **cell);
static void cwpy_reading_end(cw_reading **cell);
static void cwpy_load_end(cw_load **cell);
/* Handles for one opener each, which are under way from the moment at which they are added, in the
 * order of their arrays, for which room was made: 0, or -1 (no memory). What was not put into a
 * queue ends with their cell. */
typedef struct {
    cw_handle *handles;
    uint32_t count, room;
    cw_client *client;
} cwpy_handles;
static int cwpy_handles_room(cwpy_handles *cell, uint32_t room);
static int cwpy_handles_add(cwpy_handles *cell, cw_array *array);
static void cwpy_handles_end(cwpy_handles *cell);
/* cw_queue_put() of an item with all handles in a cell: they are the queue's then. */
static int cwpy_queue_put(cw_queue *queue, const void *data, uint64_t size_bytes,
                          cwpy_handles *cell, uint64_t extra_bytes, int64_t timeout_ns);
/* Takes an item's array out of it. */
static void cwpy_item_take(cw_item *item, uint32_t number, cw_array **cell);
/* cw_array_pin(), and its end if it was. *cell: whether it was. */
static int cwpy_pin(cw_array *array, int *cell);
static void cwpy_unpin(cw_array **array, int *cell);
/* Begin and end of writing or reading. *cell: whether it was begun; ending what was not is 0. */
static int cwpy_use_begin(cw_array *array, void *stream, int64_t timeout_ns, int writing,
                          int *cell);
static int cwpy_use_end(cw_array *array, void *stream, int writing, int whole, int *cell,
                        cw_completion *out);
/* A stream reads an array from now on: it waits for the last write. -EINTR: nothing was done. */
static int cwpy_follow(cw_array *array, void *stream);
/* cw_work_finish() of what is in a cell, if there is anything. */
static int cwpy_work_end(cw_work **cell, cw_completion *out);
/* The layout as bytes (ndim, itemsize, nbytes, shape, strides, dtype), to be the key of a cache.
 * Writes at most size_bytes and returns the length that it would take, 0 when the layout cannot be.
 */
static uint64_t cwpy_layout(const cw_array *array, void *buffer, uint64_t size_bytes);
/* The lowest byte of an array in this process, and how many bytes lie from there to behind its
 * highest one. Element 0 lies above it where strides are negative. */
static void *cwpy_memory(const cw_array *array, uint64_t *span_bytes);
/* Memory of this thread, and of those that it starts, comes from that NUMA node first, from others
 * when it is full. 0, or -1 where the kernel or the container does not let us. */
static int cwpy_prefer_node(int node);
/* cdef ends */

static void cwpy_client_end(cw_client **cell) {
    cw_client *client = *cell;

    *cell = NULL;
    cw_client_unref(client);
}

static void cwpy_queue_end(cw_queue **cell) {
    cw_queue *queue = *cell;

    *cell = NULL;
    cw_queue_close(queue);
}

static void cwpy_tree_end(cw_tree **cell) {
    cw_tree *tree = *cell;

    *cell = NULL;
    cw_tree_close(tree);
}

static void cwpy_trees_end(cw_tree **trees) {
    for (; *trees; trees++)
        cwpy_tree_end(trees);
}

static void cwpy_trees_take_last(cw_tree **trees, cw_tree **cell) {
    while (trees[0] && trees[1])
        trees++;
    *cell = *trees;
    *trees = NULL;
}

static void cwpy_mount_end(cw_mount **cell) {
    cw_mount *mount = *cell;

    *cell = NULL;
    cw_mount_close(mount);
}

_Static_assert(sizeof(sem_t) <= 32, "a turn is a semaphore, and behind it who has it");
static _Thread_local char cwpy_this_thread; /* its address is this thread's */

static void cwpy_turn_init(uint64_t *turn) {
    sem_init((sem_t *)(void *)turn, 0, 1);
    turn[4] = 0;
}

static int cwpy_turn_take(uint64_t *turn, int64_t timeout_ns, int *cell) {
    const uint64_t me = (uintptr_t)&cwpy_this_thread;
    volatile uint64_t *has = &turn[4]; /* a word; who reads its own number has written it */
    struct timespec end;
    if (*has == me)
        return -2;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += timeout_ns % 1000000000;
    end.tv_sec += timeout_ns / 1000000000 + end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    if (sem_timedwait((sem_t *)(void *)turn, &end) < 0)
        return -1;
    *has = me;
    *cell = 1;
    return 0;
}

static void cwpy_turn_end(uint64_t *turn, int *cell) {
    if (*cell) {
        *(volatile uint64_t *)&turn[4] = 0;
        sem_post((sem_t *)(void *)turn);
    }
    *cell = 0;
}

static void cwpy_checkpoint_end(cw_checkpoint **cell) {
    cw_checkpoint *checkpoint = *cell;

    *cell = NULL;
    cw_checkpoint_close(checkpoint);
}

static void cwpy_reading_end(cw_reading **cell) {
    cw_reading *reading = *cell;

    *cell = NULL;
    cw_reading_end(reading);
}

static void cwpy_load_end(cw_load **cell) {
    cw_load *load = *cell;

    *cell = NULL;
    cw_load_end(load);
}

static int cwpy_handles_room(cwpy_handles *cell, uint32_t room) {
    cell->handles = calloc(room, sizeof *cell->handles);
    cell->room = cell->handles ? room : 0;
    return cell->handles ? 0 : -1;
}

static int cwpy_handles_add(cwpy_handles *cell, cw_array *array) {
    int code =
        cell->count < cell->room ? cw_array_export(array, 1, &cell->handles[cell->count]) : -EINVAL;
    if (code)
        return code;
    cell->count++;
    if (!cell->client) {
        cell->client = cw_array_client(array);
        cw_client_ref(cell->client);
    }
    return 0;
}

static void cwpy_handles_end(cwpy_handles *cell) {
    while (cell->count)
        cw_handle_discard(cell->client, &cell->handles[--cell->count]);
    free(cell->handles);
    cw_client_unref(cell->client);
    *cell = (cwpy_handles){.handles = NULL};
}

static int cwpy_queue_put(cw_queue *queue, const void *data, uint64_t size_bytes,
                          cwpy_handles *cell, uint64_t extra_bytes, int64_t timeout_ns) {
    uint32_t count = cell ? cell->count : 0;
    int code = cw_queue_put(queue, data, size_bytes, count ? cell->handles : NULL, count,
                            extra_bytes, timeout_ns);
    if (code == 0 && cell)
        cell->count = 0;
    return code;
}

static void cwpy_item_take(cw_item *item, uint32_t number, cw_array **cell) {
    *cell = item->arrays[number];
    item->arrays[number] = NULL;
}

static int cwpy_pin(cw_array *array, int *cell) {
    int code = cw_array_pin(array);

    *cell = code == 0;
    return code;
}

static void cwpy_unpin(cw_array **array, int *cell) {
    int pinned = *cell;

    *cell = 0;
    if (pinned && *array)
        cw_array_unpin(*array);
}

static int cwpy_use_begin(cw_array *array, void *stream, int64_t timeout_ns, int writing,
                          int *cell) {
    int code = writing ? cw_array_writing_begin(array, stream, timeout_ns)
                       : cw_array_reading_begin(array, stream, timeout_ns);

    *cell = code == 0;
    return code;
}

static int cwpy_use_end(cw_array *array, void *stream, int writing, int whole, int *cell,
                        cw_completion *out) {
    int begun = *cell;

    *cell = 0;
    if (!begun)
        return 0;
    return writing ? cw_array_writing_finish(array, stream, whole, out)
                   : cw_array_reading_finish(array, stream, out);
}

static int cwpy_follow(cw_array *array, void *stream) {
    int code = cw_array_reading_begin(array, stream, -1);

    return code ? code : cw_array_reading_end(array, stream);
}

static int cwpy_work_end(cw_work **cell, cw_completion *out) {
    cw_work *work = *cell;

    *cell = NULL;
    return work ? cw_work_finish(work, out) : 0;
}

static int cwpy_prefer_node(int node) {
    unsigned long nodes[16] = {0}, bits = 8 * sizeof nodes[0];

    if (node < 0 || (unsigned)node >= 16 * bits)
        return -1;
    nodes[(unsigned)node / bits] = 1ul << (unsigned)node % bits;
    return (int)syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, 16 * bits);
}

static uint64_t cwpy_layout(const cw_array *array, void *buffer, uint64_t size_bytes) {
    cw_layout layout;
    uint64_t nbytes = cw_array_nbytes(array);
    uint8_t *at = buffer;

    cw_array_layout(array, &layout);
    if (layout.ndim > CW_NDIM_MAX || !layout.strides)
        return 0;
    size_t dims = layout.ndim * sizeof(int64_t), text = strnlen(layout.dtype, CW_DTYPE_MAX);
    uint64_t length = 16 + 2 * dims + text;
    if (length > size_bytes)
        return length;
    memcpy(at, &layout.ndim, 4);
    memcpy(at + 4, &layout.itemsize, 4);
    memcpy(at + 8, &nbytes, 8);
    memcpy(at + 16, layout.shape, dims);
    memcpy(at + 16 + dims, layout.strides, dims);
    memcpy(at + 16 + 2 * dims, layout.dtype, text);
    return length;
}

static void *cwpy_memory(const cw_array *array, uint64_t *span_bytes) {
    cw_layout layout;
    int64_t low = 0, high = 0;

    cw_array_layout(array, &layout);
    *span_bytes = 0;
    for (uint32_t i = 0; i < layout.ndim; i++) {
        if (layout.shape[i] == 0)
            return cw_array_data(array);
        int64_t reach = (layout.shape[i] - 1) * layout.strides[i];
        *(reach < 0 ? &low : &high) += reach; /* the library has checked that nothing overflows */
    }
    *span_bytes = (uint64_t)(high - low) + layout.itemsize;
    return (uint8_t *)cw_array_data(array) + low;
}

#endif
