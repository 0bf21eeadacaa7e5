/*
 * The parts of the walk with one process: see walk.c. Each takes what it needs and gives it back.
 */
#include "tests/faults/walk.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL 4096
#define LARGE (48 << 20) /* a slab of its own */

/* A name may be put or gone already where the answer alone failed: then the code says so. */
static void put(cw_array *array, const char *name, uint32_t flags) {
    STEP(cw_array_put(array, name, flags | CW_REPLACE, NULL, 0));
}

static void drop(cw_client *client, const char *name) {
    int code = cw_remove(client, name);
    if (code == 0)
        return;
    walk_told(__LINE__, "cw_remove", code);
    int again = cw_remove(client, name);
    if (again != 0 && !(code == -EINPROGRESS && again == -ENOENT))
        walk_wrong(__LINE__, "cw_remove", again);
}

static int count_one(void *context, const cw_name_info *info) {
    *(int *)context += info->ndim == 1;
    return 0;
}

void walk_names(cw_client *client) {
    cw_array *made = walk_array(client, SMALL, 7, CW_ZERO), *got, *own;
    cw_name_info *info = malloc(sizeof *info);
    char *names;
    uint64_t count;
    int seen = 0;
    MUST(info);
    put(made, "faults/a", 0);
    put(made, "faults/b", CW_KEEP);
    MUST(cw_array_put(made, "faults/a", 0, NULL, 0) == -EEXIST);
    STEP(cw_get(client, "faults/a", 0, &got));
    MUST(walk_filled(got, 7));
    STEP(cw_get(client, "faults/a", CW_PRIVATE, &own));
    memset(cw_array_data(own), 9, SMALL);
    MUST(walk_filled(got, 7) && walk_filled(own, 9));
    cw_array_close(own);
    cw_array_close(got);
    STEP(cw_get(client, "faults/b", CW_READONLY, &got));
    MUST(walk_filled(got, 7) && cw_array_readonly(got));
    MUST(cw_get(client, "faults/none", 0, &own) == -ENOENT);
    STEP(cw_name_stat(client, "faults/a", info));
    MUST(info->nbytes == SMALL && info->owner_pid == (uint32_t)getpid());
    STEP(cw_names(client, "faults/", &names, &count));
    MUST(count == 2 && strncmp(names, "faults/", 7) == 0);
    cw_free(names);
    STEP((seen = 0, cw_names_stat(client, "faults/", count_one, &seen)));
    MUST(seen == 2);
    drop(client, "faults/a");
    drop(client, "faults/b");
    MUST(cw_remove(client, "faults/a") == -ENOENT);
    cw_array_close(got);
    cw_array_close(made);
    free(info);
}

/* So many names that the directory grows, and so many leases that one table does not do. */
void walk_many(cw_client *client) {
    enum { NAMES = 1300, LEASES = 4200 };
    static cw_array *arrays[LEASES];
    cw_array *made = walk_array(client, SMALL, 5, 0);
    cw_layout layout;
    int64_t shape = SMALL;
    cw_handle handle;
    char name[32];
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "faults/%d", i);
        put(made, name, 0);
    }
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "faults/%d", i);
        STEP(cw_get(client, name, 0, &arrays[0]));
        cw_array_close(arrays[0]);
        drop(client, name);
    }
    walk_layout(&layout, &shape);
    STEP(cw_array_export(made, 0, &handle));
    for (int i = 0; i < LEASES; i++)
        STEP(cw_array_open(client, &handle, &layout, 0, &arrays[i]));
    MUST(walk_filled(arrays[LEASES - 1], 5));
    for (int i = 0; i < LEASES; i++)
        cw_array_close(arrays[i]);
    for (int i = 0; i < NAMES; i++)
        arrays[i] = walk_array(client, 64, i & 127, 0);
    for (int i = 0; i < NAMES; i++) {
        MUST(walk_filled(arrays[i], i & 127));
        cw_array_close(arrays[i]);
    }
    cw_array_close(made);
}

void walk_handles(cw_client *client) {
    cw_array *made = walk_array(client, LARGE, 3, CW_FILLED),
             *other = walk_array(client, SMALL, 4, 0);
    cw_array *opened;
    cw_layout layout, small;
    int64_t shape = LARGE, small_shape = SMALL;
    cw_handle handles[40], lent;
    cw_client *second = walk_connect();
    walk_layout(&layout, &shape);
    walk_layout(&small, &small_shape);
    for (int i = 0; i < 40; i++)
        STEP(cw_array_export(other, 1, &handles[i]));
    STEP(cw_array_export(made, 0, &lent));
    STEP(cw_array_open(second, &lent, &layout, CW_READONLY, &opened));
    MUST(walk_filled(opened, 3));
    cw_array_close(made);
    MUST(walk_filled(opened, 3));
    cw_array_close(opened);
    STEP(cw_array_open(second, &handles[0], &small, 0, &opened));
    MUST(walk_filled(opened, 4));
    for (int i = 1; i < 40; i++)
        STEP(cw_handle_discard(i & 1 ? client : second, &handles[i]));
    uint8_t bytes[CW_HANDLE_BYTES_MAX];
    uint64_t size_bytes;
    cw_array *again;
    STEP(cw_to_handle(other, 2, 0, NULL, 0, bytes, &size_bytes));
    STEP(cw_from_handle(second, bytes, size_bytes, CW_READONLY, &again));
    MUST(walk_filled(again, 4));
    cw_array_close(again);
    STEP(cw_array_export(other, CW_OPENERS_UNKNOWN, &lent));
    STEP(cw_handle_skip(second, &lent));
    STEP(cw_handle_discard(client, &lent));
    cw_array_close(other);
    STEP(cw_from_handle(second, bytes, size_bytes, 0, &again)); /* which it kept */
    cw_array_close(again);
    MUST(walk_filled(opened, 4));
    cw_array_close(opened);
    made = walk_array(client, LARGE, 6, 0); /* where the first one was, or beside it */
    MUST(walk_filled(made, 6));
    cw_array_close(made);
    cw_client_unref(second);
}

void walk_copies(cw_client *client) {
    cw_array *one = walk_array(client, SMALL, 1, 0), *two = walk_array(client, SMALL, 2, 0), *taken;
    cw_pair pairs[12];
    uint8_t memory[SMALL];
    char *devices;
    uint64_t count, waiting;
    cw_layout layout;
    int64_t shape = SMALL;
    cw_work *work;
    for (unsigned i = 0; i < 12; i++)
        pairs[i] = (cw_pair){two, i * 16, one, i * 16, 16};
    STEP(cw_array_copy(two, 0, one, 0, SMALL, NULL));
    MUST(walk_filled(two, 1));
    memset(cw_array_data(one), 8, SMALL);
    STEP(cw_array_copy_many(pairs, 12, NULL));
    MUST(((uint8_t *)cw_array_data(two))[12 * 16 - 1] == 8);
    memset(memory, 9, sizeof memory);
    STEP(cw_array_write(one, 0, memory, SMALL));
    STEP(cw_array_copy_out(one, 0, memory, -1, SMALL, NULL));
    STEP(cw_array_copy_in(two, 0, memory, -1, SMALL, NULL));
    MUST(walk_filled(two, 9));
    STEP(cw_array_read(two, 0, memory, SMALL));
    cw_use uses[2] = {{.array = one}, {.array = two, .writing = 1}};
    STEP(cw_work_begin(uses, 2, NULL, -1, &work));
    STEP(cw_work_end(work));
    STEP(cw_array_pin(one));
    cw_array_unpin(one);
    int fd = memfd_create("walk", MFD_CLOEXEC);
    MUST(fd >= 0 && ftruncate(fd, SMALL) == 0 && pwrite(fd, memory, SMALL, 0) == SMALL);
    walk_layout(&layout, &shape);
    STEP(cw_array_adopt(client, fd, 0, &layout, &taken));
    close(fd);
    MUST(walk_filled(taken, 9));
    STEP(cw_array_put(taken, "faults/taken", CW_REPLACE, NULL, 0));
    STEP(cw_remove(client, "faults/taken"));
    cw_array_close(taken);
    STEP(cw_devices(&devices, &count));
    MUST(count >= 1 && strcmp(devices, "cpu") == 0);
    cw_free(devices);
    STEP(cw_device_check("cpu"));
    cw_array_close(one);
    cw_array_close(two);
    (void)cw_trim(client, 0, &waiting);
}

struct putter {
    cw_array *array;
    int code;
};

static void *put_later(void *context) {
    struct putter *putter = context;
    putter->code = cw_array_put(putter->array, "faults/late", CW_REPLACE, NULL, 0);
    if (putter->code < 0) {
        walk_told(__LINE__, "put_later", putter->code);
        putter->code = cw_array_put(putter->array, "faults/late", CW_REPLACE, NULL, 0);
    }
    return NULL;
}

void walk_waits(cw_client *client) {
    struct putter putter = {.array = walk_array(client, SMALL, 2, 0)};
    pthread_t thread;
    int code = cw_wait(client, "faults/late", 1000000);
    if (code != -ETIMEDOUT) {
        walk_told(__LINE__, "cw_wait", code);
        MUST(cw_wait(client, "faults/late", 1000000) == -ETIMEDOUT);
    }
    MUST(pthread_create(&thread, NULL, put_later, &putter) == 0);
    STEP(cw_wait(client, "faults/late", -1));
    pthread_join(thread, NULL);
    MUST(putter.code == 0);
    STEP(cw_wait(client, "faults/late", 0));
    drop(client, "faults/late");
    cw_array_close(putter.array);
}

static void queue_items(cw_client *client, cw_queue *queue, cw_item *item) {
    enum { ITEMS = 40, BYTES = 60000 };
    static uint8_t data[BYTES];
    cw_array *array = walk_array(client, SMALL, 11, 0);
    cw_handle handles[3];
    for (int i = 0; i < 3; i++)
        STEP(cw_array_export(array, 1, &handles[i]));
    STEP(cw_queue_put(queue, "first", 5, handles, 3, SMALL, -1));
    for (int i = 0; i < ITEMS; i++) {
        memset(data, i, sizeof data);
        STEP(cw_queue_put(queue, data, sizeof data, NULL, 0, 0, -1));
    }
    cw_array_close(array);
    MUST(STEP(cw_queue_get(queue, item, -1)) == 3);
    MUST(item->size_bytes == 5 && memcmp(item->data, "first", 5) == 0);
    for (int i = 0; i < 3; i++)
        MUST(walk_filled(item->arrays[i], 11));
    STEP(cw_queue_task_done(queue));
    for (int i = 0; i < ITEMS; i++) {
        MUST(STEP(cw_queue_get(queue, item, -1)) == 0);
        MUST(item->size_bytes == BYTES && ((uint8_t *)item->data)[BYTES - 1] == i);
        STEP(cw_queue_task_done(queue));
    }
    STEP(cw_queue_wait_done(queue, -1));
    int code = cw_queue_get(queue, item, 1000000);
    if (code != -ETIMEDOUT) {
        walk_told(__LINE__, "cw_queue_get", code);
        MUST(cw_queue_get(queue, item, 1000000) == -ETIMEDOUT);
    }
}

void walk_queues(cw_client *client) {
    cw_array *memory;
    cw_queue *queue;
    cw_item item = {.data = NULL};
    cw_queue_info info;
    STEP(cw_queue_new(client, 0, 0, &memory));
    STEP(cw_queue_open(memory, &queue));
    queue_items(client, queue, &item);
    cw_queue_look_at(queue, &info);
    MUST(info.items == 0 && info.put == 41 && info.taken == 41 && info.lost == 0);
    cw_item_deinit(&item);
    cw_queue_close(queue);
    cw_array_close(memory);
}

void walk_pools(void) {
    enum { WORKERS = 2, CELLS = 4 };
    uint64_t bytes = cw_pool_bytes(WORKERS, CELLS, 1);
    cw_pool *pool;
    cw_worker *worker;
    cw_task task = {.cell = 0}, taken;
    int fd;
    STEP(cw_pool_allocate(bytes, &fd));
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED);
    close(fd);
    STEP(cw_pool_new(memory, bytes, WORKERS, CELLS, 1, &pool));
    STEP(cw_pool_assign(pool, 0, 0));
    STEP(cw_worker_open(memory, bytes, WORKERS, CELLS, 1, 0, 0, 1, &worker));
    STEP(cw_pool_reserve(pool, &task));
    STEP(cw_task_write(&task, "hello", 5));
    task.size_bytes = 5;
    STEP(cw_pool_submit(pool, &task));
    STEP(cw_pool_wake(pool, 0, 1));
    STEP(cw_worker_take(worker, &taken));
    MUST(taken.size_bytes == 5 && memcmp(taken.data, "hello", 5) == 0);
    STEP(cw_worker_answer(worker, &taken, 0, 0));
    cw_pool_listen(pool, 1);
    STEP(cw_pool_wait(pool, 0, cw_pool_news(pool, 0), 0, -1));
    STEP(cw_pool_collect(pool, &task));
    STEP(cw_pool_free(pool, task.cell));
    int code = cw_pool_wait(pool, 0, cw_pool_news(pool, 0), 0, 1000000);
    if (code != -ETIMEDOUT) {
        walk_told(__LINE__, "cw_pool_wait", code);
        MUST(cw_pool_wait(pool, 0, cw_pool_news(pool, 0), 0, 1000000) == -ETIMEDOUT);
    }
    cw_pool_listen(pool, -1);
    cw_worker_close(worker);
    cw_pool_delete(pool);
    munmap(memory, bytes);
}
