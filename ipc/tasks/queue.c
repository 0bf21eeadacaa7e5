/*
 * Queues: what an item is and where its bytes lie. Who is next, and how the ends wait, is
 * shm/tasks/queue.h, with the deaths of all parties; read that first.
 *
 * An item is a record in the ring where its end stands; how rings grow and who keeps them is
 * queue_rings.h.
 *
 * A record is a struct record, its handles, its data, rounded up to RECORD_ALIGN; bytes wrap around
 * at the ring's end. Behind the last record there is always room for a note.
 *
 * Who keeps the memory. What goes with an item has a transit at the broker, as a ring has, tied to
 * the queue's array (TRANSIT_ANCHOR): it stays until it is ended, or the queue is gone, whoever
 * dies. A reader takes leases of its own on all that goes with an item, ends the transits and then
 * publishes that the item is taken. If it dies before the last step the next reader finds the item
 * again: whole, or (the transits ended) without its memory; such an item is passed over. If the
 * broker is dead, so is what it kept: the item is passed over and whoever came to it is told. So is
 * one with a handle that names no array: put looks at what can be seen in a handle alone, but
 * another process may write here what it likes, and one bad item must not stop the readers. A
 * reader that has passed a ring ends that ring's transit; if it dies before, the next one does. A
 * writer that dies before it ties a transit leaves it to its limit.
 *
 * The memory can be written by every process of the queue: what is read is copied, the copy is
 * checked and used. struct cw_queue is this process's; put_ring belongs to who has the writers'
 * turn, get_ring to who has the readers', which excludes threads as it does processes.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/tasks/queue_rings.h"
#include "shm/base/task.h"
#include "shm/base/trace.h"

#define DATA_MAX    (288u << 10)
#define HANDLES_MAX 1024u

static uint64_t record_bytes(uint64_t size_bytes, uint32_t handles) {
    uint64_t bytes = sizeof(struct record) + handles * sizeof(cw_handle) + size_bytes;
    return (bytes + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
}

/* ---- making and opening ---- */

int cw_queue_new(cw_client *client, uint64_t max_items, uint64_t max_bytes, cw_array **out) {
    cw_array *array;
    if (!out)
        return cw_needs("a place for the queue's array");
    int code = cw_bytes_new(client, HEAD_BYTES + FIRST_BYTES, &array);
    if (code)
        return code;
    struct head *head = cw_array_data(array);
    memset(head, 0, HEAD_BYTES);
    head->world = cw_task_world();
    head->id = cw_trace_id() >> 16 | 1; /* 48 bits: `cableway top` prints it as a double */
    head->core.max_items = max_items;
    head->core.max_bytes = max_bytes;
    head->magic = QUEUE_MAGIC;
    cw_block_mark_queue(&array->slab->table->blocks[array->block], array->gen);
    *out = array;
    return 0;
}

int cw_queue_open(cw_array *array, cw_queue **out) {
    int code = cw_array_ours(array); /* what follows needs no broker */
    if (code)
        return code;
    if (!out)
        return cw_fail(-EINVAL, "a place for the queue is needed, NULL was given");
    struct head *head = cw_array_data(array);
    if (cw_array_gpu(array) >= 0 || cw_array_nbytes(array) != HEAD_BYTES + FIRST_BYTES ||
        cw_array_readonly(array) || array->cow.base || (uintptr_t)head % 64 ||
        *(volatile uint64_t *)&head->magic != QUEUE_MAGIC)
        return cw_fail(-EPROTO,
                       "the array of %llu bytes is not a queue that can be written: it is "
                       "something else, read-only or private",
                       (unsigned long long)cw_array_nbytes(array));
    if (head->world != cw_task_world())
        return cw_fail(-EPERM,
                       "the queue was made in another pid or time namespace, whose processes "
                       "cannot be watched from here: use it in one container only");
    cw_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return cw_fail(-EDQUOT, "no memory for a queue");
    queue->client = cw_array_client(array);
    cw_client_ref(queue->client);
    queue->array = array;
    queue->head = head;
    *out = queue;
    return 0;
}

void cw_queue_close(cw_queue *queue) {
    if (!queue)
        return;
    cw_rings_close(queue);
    cw_client_unref(queue->client);
    free(queue);
}

uint64_t cw_queue_max(const cw_queue *queue) {
    return queue ? DATA_MAX : 0;
}

static int64_t end_of(int64_t timeout_ns) {
    if (timeout_ns == CW_QUEUE_TRY)
        return CW_QUEUE_END_TRY;
    return timeout_ns <= 0 ? timeout_ns : cw_end_ns(cw_now_ns(), timeout_ns);
}

/* Enters the span of a call that may wait at the queue. A group's message is one call of several
 * waits, and has a span around them. */
static void queue_span(struct cw_trace_span *span, enum cw_trace_kind kind, const cw_queue *queue,
                       uint64_t bytes) {
    bool told = cw_trace_top && cw_trace_top->kind == CW_TRACE_GROUP;
    *span = (struct cw_trace_span){
        .kind = (uint8_t)(told ? CW_TRACE_NONE : kind), .subject = queue->head->id, .bytes = bytes};
    cw_trace_enter(span);
}

/* ---- putting ---- */

/* What came of work within a turn, which is the caller's: a time that ran out there was the
 * broker's, and says nothing of what the queue holds. */
static int within_turn(int code) {
    return code == -ETIMEDOUT ? -EBUSY : code;
}

/* Where a record of so many bytes goes; the caller has the turn. */
static int find_room(cw_queue *queue, uint64_t bytes, uint64_t *position) {
    struct cw_queue_place readers;
    const struct ring *ring = queue->put_ring;
    int code = cw_ring_find(queue, &queue->put_ring, ring_of(*position));
    if (code == -ESTALE)
        return cw_fail(-ECONNRESET,
                       "the queue cannot be put into from this process any more: it grew into "
                       "memory that the process had not opened when the broker (pid %d) ended. "
                       "Make a new queue",
                       queue->client->broker_pid);
    if (code)
        return code;
    if (queue->put_ring != ring)
        cw_rings_pass(queue); /* another process has grown it */
    ring = queue->put_ring;
    /* Where the readers stood when it was last looked at: they only go on. */
    uint64_t before = *position - queue->readers_at;
    if (before <= ring->size_bytes && bytes + sizeof(struct record) <= ring->size_bytes - before)
        return 0;
    cw_queue_look(&queue->head->core.get, &readers);
    queue->readers_at = readers.position;
    uint64_t used = *position & OFFSET_MASK, at = ring_of(readers.position);
    if (at == ring->number)
        used = (*position - readers.position) & OFFSET_MASK;
    if (at > ring->number || used > ring->size_bytes)
        return cw_fail(-EPROTO,
                       "the queue is damaged: something overwrote its positions; make a new one");
    if (bytes + sizeof(struct record) <= ring->size_bytes - used)
        return 0;
    return cw_ring_grow(queue, bytes + sizeof(struct record), at, position);
}

static int check_put(cw_queue *queue, const void *data, uint64_t size_bytes,
                     const cw_handle *handles, uint32_t count, uint64_t extra_bytes) {
    uint64_t charge;
    if (!queue || (!data && size_bytes) || (!handles && count))
        return cw_fail(-EINVAL, "a queue and what to put are needed, NULL was given");
    if (size_bytes > DATA_MAX || count > HANDLES_MAX)
        return cw_fail(-EMSGSIZE,
                       "an item has at most %u bytes and %u handles, %llu and %u were given: send "
                       "several items",
                       DATA_MAX, HANDLES_MAX, (unsigned long long)size_bytes, count);
    uint64_t limit = queue->head->core.max_bytes;
    if (__builtin_add_overflow(size_bytes, extra_bytes, &charge) || (limit && charge > limit))
        return cw_fail(-EMSGSIZE,
                       "the item has %llu bytes and its arrays %llu, which can never fit: the "
                       "queue's maxbytes is %llu: raise it, or send the item in parts",
                       (unsigned long long)size_bytes, (unsigned long long)extra_bytes,
                       limit ? (unsigned long long)limit : UINT64_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t end_bytes;
        if (handles[i].instance == 0)
            return cw_fail(-EINVAL,
                           "handle %u names no run of a broker: give the handle of an array", i);
        if (__builtin_add_overflow(handles[i].offset_bytes, handles[i].size_bytes, &end_bytes) ||
            end_bytes > INT64_MAX)
            return cw_fail(-EINVAL,
                           "handle %u names %llu bytes at %llu, which no array has: give the "
                           "handle of an array",
                           i, (unsigned long long)handles[i].size_bytes,
                           (unsigned long long)handles[i].offset_bytes);
    }
    return 0;
}

int cw_queue_put(cw_queue *queue, const void *data, uint64_t size_bytes, const cw_handle *handles,
                 uint32_t count, uint64_t extra_bytes, int64_t timeout_ns) {
    struct cw_queue_place place;
    int code = check_put(queue, data, size_bytes, handles, count, extra_bytes);
    if (code == 0 && count && (code = cw_client_usable(queue->client)) == -ECONNRESET)
        return cw_fail(code, /* nobody would keep what goes with it */
                       "an item with %u arrays or large parts cannot be put: the broker (pid %d) "
                       "that the queue was made at would keep them, and has ended. Make a new "
                       "queue; what is small still goes by this one",
                       count, queue->client->broker_pid);
    if (code)
        return code;
    uint64_t charge = size_bytes + extra_bytes;
    struct cw_queue_core *core = &queue->head->core;
    struct cw_trace_span span;
    queue_span(&span, CW_TRACE_QUEUE_PUT, queue, charge);
    code = cw_queue_put_begin(core, charge, end_of(timeout_ns), &place);
    cw_trace_leave_wait(&span, timeout_ns, code);
    if (code)
        return code;
    uint64_t bytes = record_bytes(size_bytes, count);
    code = find_room(queue, bytes, &place.position);
    if (code) {
        cw_queue_put_cancel(core);
        return within_turn(code);
    }
    struct record record = {.kind = RECORD_ITEM,
                            .size_bytes = (uint32_t)size_bytes,
                            .handles = count,
                            .charge_bytes = charge,
                            .number = place.count};
    uint64_t at = place.position;
    cw_ring_in(queue->put_ring, at, &record, sizeof record);
    cw_ring_in(queue->put_ring, at + sizeof record, handles, count * sizeof *handles);
    cw_ring_in(queue->put_ring, at + sizeof record + count * sizeof *handles, data, size_bytes);
    place.position = moved(at, bytes);
    cw_queue_put_commit(core, &place, charge);
    /* From here on the item is the queue's; the transits began before, and are tied now. */
    for (uint32_t i = 0; i < count; i++)
        cw_queue_anchor(queue, handles[i].token);
    return 0;
}

/* ---- taking ---- */

static void close_arrays(cw_item *item) {
    while (item->count)
        cw_array_close(item->arrays[--item->count]);
}

void cw_item_deinit(cw_item *item) {
    if (!item)
        return;
    close_arrays(item);
    free(item->arrays);
    free(item->data);
    *item = (cw_item){.data = NULL};
}

static int make_room(cw_item *item, uint64_t bytes, uint32_t handles) {
    if (bytes > item->room_bytes || !item->data) {
        void *data = realloc(item->data, DATA_MAX); /* once: it never moves again */
        if (!data)
            return cw_fail(-EDQUOT, "no memory for an item of %llu bytes",
                           (unsigned long long)bytes);
        item->data = data;
        item->room_bytes = DATA_MAX;
    }
    if (handles > item->room) {
        cw_array **arrays = realloc(item->arrays, handles * sizeof(cw_array *));
        if (!arrays)
            return cw_fail(-EDQUOT, "no memory for an item's %u handles", handles);
        item->arrays = arrays;
        item->room = handles;
    }
    return 0;
}

/* The record at place, after the notes before it; the caller has the turn. */
static int find_record(cw_queue *queue, struct cw_queue_place *place, struct record *record) {
    for (;;) {
        uint64_t number = ring_of(place->position);
        int code = cw_ring_find(queue, &queue->get_ring, number);
        if (code)
            return code;
        cw_ring_out(queue->get_ring, place->position, record, sizeof *record);
        if (record->kind != RECORD_JUMP)
            break;
        place->position = (number + 1) << OFFSET_BITS;
    }
    if (record->kind != RECORD_ITEM || record->number != place->count ||
        record->size_bytes > DATA_MAX || record->handles > HANDLES_MAX ||
        place->position % RECORD_ALIGN)
        return cw_fail(-EPROTO,
                       "the queue is damaged: something overwrote an item; make a new one");
    return 0;
}

/* Leases on all that goes with the item, then the end of its transits. -ESTALE: it is gone, or a
 * handle names what is no array (-EPROTO), which no reader will ever open. */
static int open_all(cw_queue *queue, uint64_t at, uint32_t count, cw_item *item) {
    int stale = 0;
    for (uint32_t i = 0; i < count && !stale; i++) {
        cw_handle handle;
        cw_ring_out(queue->get_ring, at + i * sizeof handle, &handle, sizeof handle);
        item->arrays[i] = NULL;
        int code = cw_bytes_open(queue->client, handle, &item->arrays[i]);
        if (code && code != -ESTALE && code != -EPROTO) {
            close_arrays(item);
            return code; /* all is as it was */
        }
        stale = code ? -ESTALE : 0;
        item->count += !stale;
    }
    for (uint32_t i = 0; i < count; i++) {
        cw_handle handle;
        cw_ring_out(queue->get_ring, at + i * sizeof handle, &handle, sizeof handle);
        cw_queue_end_transit(queue, handle.token);
    }
    if (stale)
        close_arrays(item);
    return stale;
}

/* What came of one attempt to take an item. */
struct taken {
    bool passed; /* an item that was lost was passed over */
    bool behind; /* this process may have rings to open, or to close */
};

/*
 * Takes the record that the turn's holder stands at. 0; -ESTALE: it cannot be reached. Passed over
 * as well: 0 (what it named is gone), -ECONNRESET (it was lost with the broker, and is told of).
 */
static int take(cw_queue *queue, struct cw_queue_place *place, cw_item *item, struct taken *taken) {
    struct cw_queue_core *core = &queue->head->core;
    const struct ring *before = queue->get_ring;
    struct cw_queue_place writers;
    struct record record;
    cw_ring_forget(queue, ring_of(place->position)); /* what is published: nobody goes back */
    int code = find_record(queue, place, &record);
    if (code == 0)
        code = make_room(item, record.size_bytes, record.handles);
    if (code) {
        cw_queue_get_cancel(core);
        return within_turn(code);
    }
    cw_queue_look(&core->put, &writers);
    taken->behind =
        queue->get_ring != before || queue->get_ring->number != ring_of(writers.position);
    uint64_t at = place->position + sizeof record;
    code = record.handles ? open_all(queue, at, record.handles, item) : 0;
    taken->passed = code == -ESTALE || (code == -ECONNRESET && cw_queue_keeper_dead(queue));
    if (code && !taken->passed) {
        cw_queue_get_cancel(core);
        return within_turn(code);
    }
    if (code == 0) {
        cw_ring_out(queue->get_ring, at + record.handles * sizeof(cw_handle), item->data,
                    record.size_bytes);
        item->size_bytes = record.size_bytes;
    }
    place->position = moved(place->position, record_bytes(record.size_bytes, record.handles));
    cw_queue_get_commit(core, place, record.charge_bytes, taken->passed);
    if (code == -ECONNRESET)
        return cw_fail(code,
                       "an item of the queue is lost: the broker (pid %d) that kept the %u arrays "
                       "that went with it has ended. The next call takes the next item",
                       queue->client->broker_pid, record.handles);
    return 0;
}

static int get(cw_queue *queue, cw_item *item, int64_t timeout_ns, const cw_a32 *word,
               uint32_t as_it_was) {
    struct cw_queue_place place;
    struct taken taken;
    close_arrays(item);
    int64_t end_ns = end_of(timeout_ns);
    int code;
    do {
        taken = (struct taken){.passed = false};
        struct cw_trace_span span;
        queue_span(&span, CW_TRACE_QUEUE_GET, queue, 0);
        code = cw_queue_get_begin_unless(&queue->head->core, end_ns, word, as_it_was, &place);
        cw_trace_leave_wait(&span, timeout_ns, code);
        if (code)
            return code;
        code = take(queue, &place, item, &taken);
    } while (code == 0 && taken.passed);
    if (code == 0 && taken.behind)
        cw_rings_follow(queue);
    return code ? code : (int)item->count;
}

int cw_queue_get(cw_queue *queue, cw_item *item, int64_t timeout_ns) {
    if (!queue || !item)
        return cw_fail(-EINVAL, "a queue and an item are needed, NULL was given");
    return get(queue, item, timeout_ns, NULL, 0);
}

int cw_queue_get_unless(cw_queue *queue, cw_item *item, int64_t timeout_ns,
                        const volatile uint32_t *word, uint32_t as_it_was) {
    if (!queue || !item || !word)
        return cw_needs("a queue, an item and a word");
    return get(queue, item, timeout_ns, (const cw_a32 *)(uintptr_t)word, as_it_was);
}

int cw_queue_gets_end(cw_queue *queue, volatile uint32_t *word) {
    if (!queue || !word)
        return cw_needs("a queue and a word");
    cw_queue_end_waits(&queue->head->core, (cw_a32 *)(uintptr_t)word);
    return 0;
}

/* ---- numbers, and being done ---- */

void cw_queue_look_at(cw_queue *queue, cw_queue_info *out) {
    if (out)
        *out = (cw_queue_info){.items = 0};
    if (!queue || !out)
        return;
    struct cw_queue_core *core = &queue->head->core;
    struct cw_queue_place taken, put;
    cw_queue_look(&core->get, &taken);
    cw_queue_look(&core->put, &put);
    uint64_t finished = cw_queue_count_done(core) + taken.lost;
    uint64_t ring = ring_of(put.position), size = FIRST_BYTES;
    if (ring)
        size = *(volatile uint64_t *)&queue->head->rings[ring % RINGS].handle.size_bytes;
    *out = (cw_queue_info){.items = put.count - taken.count,
                           .bytes = put.bytes - taken.bytes,
                           .put = put.count,
                           .taken = taken.count,
                           .lost = taken.lost,
                           .unfinished = put.count > finished ? put.count - finished : 0,
                           .max_items = core->max_items,
                           .max_bytes = core->max_bytes,
                           .memory_bytes = size};
}

_Static_assert(sizeof(struct cw_queue_sight) <= sizeof(cw_queue_sight_words), "room");

int cw_queue_watch_begin(cw_queue *queue, int taken, cw_queue_sight_words *sight) {
    if (!queue || !sight)
        return cw_needs("a queue and a sight");
    struct cw_queue_sight own;
    memcpy(&own, sight, sizeof own);
    cw_queue_watch(&queue->head->core, taken != 0, &own);
    memcpy(sight, &own, sizeof own);
    return 0;
}

int cw_queue_watch_wait(cw_queue *queue, cw_queue_sight_words *sight) {
    if (!queue || !sight)
        return cw_needs("a queue and a sight");
    struct cw_queue_sight own;
    memcpy(&own, sight, sizeof own);
    if (!own.bell)
        return cw_fail(-EINVAL, "the queue is not watched: begin a watch before you wait for it");
    int code = cw_queue_watch_sleep(&own);
    memcpy(sight, &own, sizeof own);
    return code;
}

int cw_queue_watch_rouse(cw_queue *queue) {
    if (!queue)
        return cw_needs("a queue");
    cw_queue_rouse(&queue->head->core);
    return 0;
}

int cw_queue_task_done(cw_queue *queue) {
    return !queue ? cw_needs("a queue") : cw_queue_done(&queue->head->core);
}

int cw_queue_wait_done(cw_queue *queue, int64_t timeout_ns) {
    struct cw_trace_span span;
    if (!queue)
        return cw_needs("a queue");
    queue_span(&span, CW_TRACE_QUEUE_JOIN, queue, 0);
    int code = cw_queue_join(&queue->head->core, end_of(timeout_ns));
    cw_trace_leave_wait(&span, timeout_ns, code);
    return code;
}
