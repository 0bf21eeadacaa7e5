/* The rings of a queue: opened, kept, grown into and left behind; see the header. */
#include "ipc/tasks/queue_rings.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/request/channel.h"
#include "shm/base/task.h"

void cw_ring_in(const struct ring *ring, uint64_t position, const void *from, uint64_t bytes) {
    uint64_t at = position & (ring->size_bytes - 1), first = ring->size_bytes - at;
    first = bytes < first ? bytes : first;
    if (first)
        memcpy(ring->bytes + at, from, first);
    if (bytes > first)
        memcpy(ring->bytes, (const uint8_t *)from + first, bytes - first);
}

void cw_ring_out(const struct ring *ring, uint64_t position, void *to, uint64_t bytes) {
    uint64_t at = position & (ring->size_bytes - 1), first = ring->size_bytes - at;
    first = bytes < first ? bytes : first;
    if (first)
        memcpy(to, ring->bytes + at, first);
    if (bytes > first)
        memcpy((uint8_t *)to + first, ring->bytes, bytes - first);
}

int cw_bytes_new(cw_client *client, uint64_t bytes, cw_array **out) {
    int64_t size = (int64_t)bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    return cw_array_new(client, "cpu", &layout, 0, out);
}

int cw_bytes_open(cw_client *client, cw_handle handle, cw_array **out) {
    int64_t bytes = (int64_t)handle.size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &bytes, .dtype = "|u1"};
    if (bytes < 0)
        return cw_fail(-EPROTO, "a handle of %llu bytes", (unsigned long long)handle.size_bytes);
    handle.token = 0; /* the transit is ended apart from this */
    return cw_array_open(client, &handle, &layout, 0, out);
}

/* ---- what this process has open ---- */

/* One user less; outside the lock, since it may tell the broker. NULL is allowed. */
static void release(cw_queue *queue, struct ring *ring) {
    if (!ring)
        return;
    pthread_mutex_lock(&queue->client->lock);
    bool unused = --ring->users == 0;
    pthread_mutex_unlock(&queue->client->lock);
    if (!unused)
        return;
    cw_array_close(ring->array);
    free(ring);
}

/* The ring with this number, with one more user; NULL: this process does not have it. */
static struct ring *held(cw_queue *queue, uint64_t number) {
    pthread_mutex_lock(&queue->client->lock);
    struct ring *ring = queue->rings[number % RINGS];
    if (ring && ring->number == number)
        ring->users++;
    else
        ring = NULL;
    pthread_mutex_unlock(&queue->client->lock);
    return ring;
}

/* A ring that was just opened or made is this process's from here on. */
static void hold(cw_queue *queue, struct ring *ring) {
    struct ring **slot = &queue->rings[ring->number % RINGS];
    pthread_mutex_lock(&queue->client->lock);
    struct ring *before = *slot; /* behind the readers, or the same, by another thread */
    *slot = ring;
    ring->users++;
    pthread_mutex_unlock(&queue->client->lock);
    release(queue, before);
}

/* A struct with one user; what is given here is closed if there is no memory for it. */
static struct ring *new_ring(uint64_t number, uint8_t *bytes, uint64_t size, cw_array *array) {
    struct ring *ring = malloc(sizeof *ring);
    if (ring)
        *ring = (struct ring){number, bytes, size, array, 1};
    else {
        cw_array_close(array);
        cw_fail(-EDQUOT, "no memory for a queue's ring");
    }
    return ring;
}

bool cw_queue_keeper_dead(const cw_queue *queue) {
    const struct cw_root *root = queue->client->root;
    return root->world == cw_task_world() && !cw_task_runs(root->task);
}

static int open_failed(const cw_queue *queue, int code) {
    if (code == -ESTALE)
        return cw_fail(-EPROTO, "memory that the queue names is gone");
    if (code != -ECONNRESET || !cw_queue_keeper_dead(queue))
        return code;
    return cw_fail(-ESTALE,
                   "the queue's next items are lost to this process: they lie in memory that the "
                   "queue grew into, and the broker (pid %d) ended before this process had opened "
                   "it. A process that uses the queue all along may still take them; make a new "
                   "queue",
                   queue->client->broker_pid);
}

/* Opens the ring with this number; its one user is the caller. */
static int open_ring(cw_queue *queue, uint64_t number, struct ring **out) {
    uint8_t *bytes = (uint8_t *)queue->head + HEAD_BYTES;
    uint64_t size_bytes = FIRST_BYTES;
    cw_array *array = NULL;
    if (number) {
        cw_handle handle = *(const volatile cw_handle *)&queue->head->rings[number % RINGS].handle;
        size_bytes = handle.size_bytes;
        if (size_bytes < FIRST_BYTES || (size_bytes & (size_bytes - 1)))
            return cw_fail(-EPROTO, "the queue names a ring of %llu bytes",
                           (unsigned long long)size_bytes);
        int code = cw_bytes_open(queue->client, handle, &array);
        if (code)
            return open_failed(queue, code);
        if (cw_array_gpu(array) >= 0) {
            cw_array_close(array);
            return cw_fail(-EPROTO, "the queue names memory of a GPU as a ring");
        }
        bytes = cw_array_data(array);
    }
    *out = new_ring(number, bytes, size_bytes, array);
    return *out ? 0 : -EDQUOT;
}

int cw_ring_find(cw_queue *queue, struct ring **ring, uint64_t number) {
    if (*ring && (*ring)->number == number)
        return 0;
    struct ring *found = held(queue, number);
    if (!found) {
        int code = open_ring(queue, number, &found);
        if (code)
            return code;
        hold(queue, found);
    }
    release(queue, *ring);
    *ring = found;
    return 0;
}

/* Those before this one: readers have passed them. */
static void close_before(cw_queue *queue, uint64_t number) {
    for (uint32_t i = 0; i < RINGS; i++) {
        pthread_mutex_lock(&queue->client->lock);
        struct ring *ring = queue->rings[i];
        if (ring && ring->number < number)
            queue->rings[i] = NULL;
        else
            ring = NULL;
        pthread_mutex_unlock(&queue->client->lock);
        release(queue, ring);
    }
}

void cw_rings_pass(cw_queue *queue) {
    struct cw_queue_place readers;
    cw_queue_look(&queue->head->core.get, &readers);
    close_before(queue, ring_of(readers.position));
}

void cw_rings_follow(cw_queue *queue) {
    struct cw_queue_place readers, writers;
    cw_queue_look(&queue->head->core.get, &readers);
    cw_queue_look(&queue->head->core.put, &writers);
    uint64_t first = ring_of(readers.position), last = ring_of(writers.position);
    close_before(queue, first);
    if (last < first || last - first >= RINGS)
        return; /* between two looks they have gone on; or the words make no sense: told elsewhere
                 */
    for (uint64_t number = first; number <= last; number++) {
        struct ring *ring = held(queue, number);
        if (!ring) {
            if (open_ring(queue, number, &ring))
                return;
            hold(queue, ring);
        }
        release(queue, ring);
    }
}

void cw_rings_close(cw_queue *queue) {
    release(queue, queue->put_ring);
    release(queue, queue->get_ring);
    queue->put_ring = queue->get_ring = NULL;
    close_before(queue, UINT64_MAX);
}

/* ---- transits ---- */

void cw_queue_end_transit(cw_queue *queue, uint64_t token) {
    struct cw_block_ref ref = {.token = token};
    if (token)
        cw_channel_post(queue->client, CW_OP_TRANSIT_END, &ref, sizeof ref);
}

/* The broker is to hear of the queue's end, also where no other process ever knew of it. */
void cw_queue_anchor(cw_queue *queue, uint64_t token) {
    struct cw_block_ref ref = {.token = token,
                               .slab = queue->array->slab->id,
                               .block = queue->array->block,
                               .gen = queue->array->gen};
    if (!token)
        return;
    pthread_mutex_lock(&queue->client->lock);
    struct cw_extent *extent = queue->array->slab->locals[ref.block].extent;
    if (extent)
        extent->published = true;
    pthread_mutex_unlock(&queue->client->lock);
    cw_channel_post(queue->client, CW_OP_TRANSIT_ANCHOR, &ref, sizeof ref);
}

/* ---- growing ---- */

int cw_ring_grow(cw_queue *queue, uint64_t bytes, uint64_t readers, uint64_t *position) {
    struct ring *old = queue->put_ring;
    uint64_t number = old->number + 1, size_bytes = old->size_bytes;
    if (number - readers >= RINGS - 1 || number >> (64 - OFFSET_BITS))
        return cw_fail(-EDQUOT,
                       "the queue's items fill %u pieces of memory of up to %llu bytes, which is "
                       "the most that one has: take some, or bound it by items or bytes",
                       RINGS, (unsigned long long)RING_MAX_BYTES);
    if (size_bytes < RING_MAX_BYTES)
        size_bytes *= 2;
    while (size_bytes < bytes)
        size_bytes *= 2;
    cw_array *array;
    int code = cw_bytes_new(queue->client, size_bytes, &array);
    if (code)
        return code;
    struct ring *made = new_ring(number, cw_array_data(array), size_bytes, array);
    if (!made)
        return -EDQUOT;
    cw_handle handle;
    code = cw_array_export(made->array, 1, &handle);
    if (code) {
        release(queue, made);
        return code;
    }
    cw_queue_anchor(queue, handle.token);
    struct ring_place *place = &queue->head->rings[number % RINGS];
    place->handle = handle;
    place->handle.token = 0;
    CW_STORE(Q13, &place->token, handle.token, relaxed);
    struct record note = {.kind = RECORD_JUMP};
    cw_ring_in(old, *position, &note, sizeof note);
    hold(queue, made);
    close_before(queue, readers);
    release(queue, old);
    queue->put_ring = made;
    *position = number << OFFSET_BITS;
    return 0;
}

void cw_ring_forget(cw_queue *queue, uint64_t current) {
    if (current == 0)
        return;
    struct ring_place *place = &queue->head->rings[(current - 1) % RINGS];
    /* Q13: who has the readers' turn writes it, the writer before it came here. */
    uint64_t token = CW_LOAD(Q13, &place->token, relaxed);
    if (!token)
        return;
    cw_queue_end_transit(queue, token);
    CW_STORE(Q13, &place->token, 0, relaxed);
}
