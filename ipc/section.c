/*
 * Work on arrays put in order: begin and end of reading and writing, and waiting for it on the CPU.
 * See order.h for the record of a block and fence.h for the rules.
 *
 * A turn is the stamp of the section that has it, so that whoever meets it can see whether its
 * process is dead. A reader is told so at once. A writer waits until nothing of the dead can land
 * any more (cw_fence_is_final), and is told when that takes longer than GHOST_PATIENCE_NS: a forked
 * child of the dead lives on, and keeps its GPU work alive.
 *
 * No state of its own. If this process dies between begin and end the broker takes its turn out.
 */
#include <string.h>

#include "ipc/stream.h"

#define GHOST_PATIENCE_NS (3 * (int64_t)CW_POISON_NS)

static int poisoned(void) {
    return cw_fail(-EOWNERDEAD, "the process that wrote the array last died before its work was "
                                "complete, or what it computed with came from such a one; write "
                                "the whole array anew");
}

/* What every call begins with. *order NULL: a host array, nothing to be done. */
static int open_call(cw_array *array, struct cw_fences **fences, struct cw_order **order) {
    int code = cw_array_usable(array);
    *order = NULL;
    if (code || array->slab->device_kind != CW_DEVICE_CUDA)
        return code;
    code = cw_fences_of(array->client, fences);
    if (code == 0)
        *order = cw_order_of(array->slab->table, array->block);
    return code;
}

static int open_section(cw_array *array, struct cw_fences *fences, void *handle, bool writing,
                        struct cw_section **out) {
    pthread_mutex_lock(&fences->lock);
    int code = cw_section_open(array->client, fences, array, handle, writing, out);
    pthread_mutex_unlock(&fences->lock);
    return code;
}

static void cancel_section(struct cw_fences *fences, struct cw_section *section) {
    pthread_mutex_lock(&fences->lock);
    cw_section_cancel(section);
    pthread_mutex_unlock(&fences->lock);
}

/* ---- who has the turn ---- */

enum turn { TURN_FREE, TURN_SAME_STREAM, TURN_TAKEN, TURN_DEAD };

/* What a turn that was met means for a stream (NULL: for the CPU). Or -EINVAL: this thread has it
 * and would wait for itself. */
static int judge_turn(cw_client *client, struct cw_fences *fences, const struct cw_stream *stream,
                      cw_stamp turn) {
    int found = TURN_TAKEN;
    if (!turn)
        return TURN_FREE;
    pthread_mutex_lock(&fences->lock);
    struct cw_section *section = cw_section_of(fences, cw_stamp_fence(turn));
    if (section && section->stream == stream)
        found = TURN_SAME_STREAM;
    else if (section && section->thread == cw_this_thread())
        found = cw_fail(-EINVAL,
                        "this thread is writing the array on the stream %p, and would wait for "
                        "itself: end that first, or use the same stream",
                        section->stream->handle);
    else if (!section) {
        /* The highest value: it may have died behind its last submit, its work complete, and what
         * that had waited for untold. */
        int state =
            cw_stamp_look(client, fences, cw_stamp_make(cw_stamp_fence(turn), CW_STAMP_VALUE_MAX));
        found = state == -EOWNERDEAD ? TURN_DEAD : state < 0 ? state : TURN_TAKEN;
    }
    pthread_mutex_unlock(&fences->lock);
    return found;
}

/* Lets time pass while a dead process's work may still land. seen_ns: when it was met first. */
static int await_ghost(cw_client *client, struct cw_patience *patience, int64_t *seen_ns) {
    int64_t now_ns = cw_now_ns();
    if (!*seen_ns)
        *seen_ns = now_ns;
    if (now_ns - *seen_ns > GHOST_PATIENCE_NS)
        return cw_fail(-EOWNERDEAD,
                       "a process that used the array is dead, but a forked child of it lives on "
                       "and keeps its GPU work alive, which may still reach the array: end the "
                       "child, or use a new array");
    return cw_patience_spend(client, patience, "the GPU work of a dead process");
}

static int take_turn(cw_client *client, struct cw_fences *fences, struct cw_order *order,
                     struct cw_section *section, struct cw_patience *patience) {
    uint64_t holder;
    int64_t seen_ns = 0;
    while (!cw_order_turn_take(order, cw_section_stamp(section), &holder)) {
        int found = judge_turn(client, fences, section->stream, holder);
        if (found == TURN_SAME_STREAM)
            return cw_fail(-EINVAL, "the stream %p is writing the array already",
                           section->stream->handle);
        int code = found < 0 ? found
                   : found == TURN_DEAD
                       ? await_ghost(client, patience, &seen_ns)
                       : cw_patience_spend(client, patience, "another's writing of the array");
        if (code)
            return code;
    }
    return 0;
}

/* ---- reading ---- */

/* Takes a place for a read whose stamp has passed. */
static bool replace_read(cw_client *client, struct cw_order *order, cw_stamp stamp,
                         unsigned *place) {
    struct cw_order_seen seen;
    cw_order_see(order, &seen);
    for (unsigned i = 0; i < CW_ORDER_READS; i++)
        if (cw_stamp_poll(client, seen.reads[i]) > 0 &&
            cw_order_read_replace(order, i, seen.reads[i], stamp)) {
            *place = i;
            return true;
        }
    return false;
}

/* Notes the read, when nobody is writing. */
static int note_read(cw_client *client, struct cw_fences *fences, struct cw_order *order,
                     const struct cw_section *section, struct cw_patience *patience,
                     unsigned *place, cw_stamp *before) {
    cw_stamp stamp = cw_section_stamp(section);
    for (;;) {
        bool noted = cw_order_read_note(order, stamp, place, before);
        if (!noted) {
            *before = 0;
            noted = replace_read(client, order, stamp, place);
        }
        int found =
            noted ? judge_turn(client, fences, section->stream, cw_order_turn(order)) : TURN_TAKEN;
        if (found == TURN_FREE || found == TURN_SAME_STREAM)
            return 0;
        if (noted)
            cw_order_read_undo(order, *place, stamp, *before);
        int code = found < 0 ? found
                   : found == TURN_DEAD
                       ? poisoned()
                       : cw_patience_spend(client, patience, "another's use of the array");
        if (code)
            return code;
    }
}

/* Lets the stream (NULL: the CPU) wait for one stamp. */
static int wait_for_stamp(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                          cw_stamp stamp, struct cw_patience *patience) {
    if (stream)
        return cw_stream_wait_for(client, fences, stream, stamp, patience);
    return stamp ? cw_stamp_await(client, stamp, patience) : 0;
}

/* The same for the last write, and what that had waited for. */
static int wait_for_write(cw_client *client, struct cw_fences *fences, struct cw_order *order,
                          struct cw_stream *stream, struct cw_patience *patience) {
    for (;;) {
        struct cw_order_seen seen, again;
        int code = 0;
        cw_order_see(order, &seen);
        if (seen.marks & CW_ORDER_POISONED)
            return poisoned();
        for (unsigned i = 0; i <= CW_ORDER_WAITED && code == 0; i++)
            code = wait_for_stamp(client, fences, stream,
                                  i < CW_ORDER_WAITED ? seen.waited[i] : seen.write, patience);
        if (code != -EOWNERDEAD)
            return code;
        /* Unless the broker has just taken the stamps of the dead out: then it says what is so. */
        cw_order_see(order, &again);
        if (again.write == seen.write && memcmp(again.waited, seen.waited, sizeof seen.waited) == 0)
            return poisoned();
    }
}

static int reading_begin(cw_array *array, void *handle, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_section *section;
    struct cw_patience patience;
    cw_stamp before;
    unsigned place;
    int code = open_call(array, &fences, &order);
    if (code || !order)
        return code;
    cw_client *client = array->client;
    cw_patience_begin(&patience, timeout_ns);
    code = open_section(array, fences, handle, false, &section);
    if (code)
        return code;
    code = note_read(client, fences, order, section, &patience, &place, &before);
    if (code == 0) {
        code = wait_for_write(client, fences, order, section->stream, &patience);
        if (code)
            cw_order_read_undo(order, place, cw_section_stamp(section), before);
    }
    if (code)
        cancel_section(fences, section);
    return code;
}

int cw_array_reading_begin(cw_array *array, void *handle, int64_t timeout_ns) {
    int code = cw_array_pin(array); /* until the end */
    if (code)
        return code;
    code = reading_begin(array, handle, timeout_ns);
    if (code)
        cw_array_unpin(array);
    return code;
}

int cw_array_reading_end(cw_array *array, void *handle) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_section *section;
    int code = open_call(array, &fences, &order);
    if (code || !order)
        return code;
    pthread_mutex_lock(&fences->lock);
    code = cw_section_find(fences, array, handle, false, &section);
    bool found = code == 0;
    if (code == 0)
        code = cw_section_submit(section);
    if (code == 0)
        code = cw_stream_tell(array->client, fences, section->stream);
    pthread_mutex_unlock(&fences->lock);
    if (found)
        cw_array_unpin(array);
    return code;
}

/* ---- writing ---- */

/* Lets the stream (NULL: the CPU) wait for one earlier use, and where its process is dead, until
 * none of its work can land any more. */
static int wait_for_use(cw_client *client, struct cw_fences *fences, struct cw_stream *stream,
                        cw_stamp stamp, struct cw_patience *patience) {
    int64_t seen_ns = 0;
    int code = wait_for_stamp(client, fences, stream, stamp, patience);
    if (code != -EOWNERDEAD)
        return code;
    do
        code = cw_stamp_is_final(client, stamp) ? 0 : await_ghost(client, patience, &seen_ns);
    while (code == 0 && !cw_stamp_is_final(client, stamp));
    return code;
}

static int writing_begin(cw_array *array, void *handle, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_section *section;
    struct cw_patience patience;
    struct cw_order_seen seen;
    int code = open_call(array, &fences, &order);
    if (code == 0 && array->readonly)
        return cw_fail(-EINVAL, "the array is mapped read-only");
    if (code || !order)
        return code;
    cw_client *client = array->client;
    cw_patience_begin(&patience, timeout_ns);
    code = open_section(array, fences, handle, true, &section);
    if (code)
        return code;
    code = take_turn(client, fences, order, section, &patience);
    if (code) {
        cancel_section(fences, section);
        return code;
    }
    cw_order_see(order, &seen);
    for (unsigned i = 0; i <= CW_ORDER_READS && code == 0; i++)
        code = wait_for_use(client, fences, section->stream,
                            i < CW_ORDER_READS ? seen.reads[i] : seen.write, &patience);
    if (code) {
        cw_order_turn_give(order);
        cancel_section(fences, section);
    }
    return code;
}

int cw_array_writing_begin(cw_array *array, void *handle, int64_t timeout_ns) {
    int code = cw_array_pin(array);
    if (code)
        return code;
    code = writing_begin(array, handle, timeout_ns);
    if (code)
        cw_array_unpin(array);
    return code;
}

/* What readers of the result must look at besides its own stamp: what the stream still waits for.
 * Where that is more than a record holds the CPU waits for the rest. The lock is held, and given up
 * meanwhile. */
static int settle_dependencies(cw_client *client, struct cw_fences *fences,
                               struct cw_stream *stream) {
    cw_stream_prune(client, fences, stream);
    while (stream->dependency_count > CW_ORDER_WAITED) {
        cw_stamp oldest = stream->dependencies[0];
        pthread_mutex_unlock(&fences->lock);
        int code = cw_stamp_wait(client, oldest, -1);
        pthread_mutex_lock(&fences->lock);
        if (code && code != -EOWNERDEAD && code != -EINTR)
            return code;
        cw_stream_prune(client, fences, stream);
    }
    return 0;
}

/* Did the block hold incomplete data before this write? The turn is ours: only the broker changes
 * the words, when it takes out the dead. */
static bool was_poisoned(cw_client *client, struct cw_fences *fences, struct cw_order *order) {
    for (;;) {
        struct cw_order_seen seen, again;
        bool dead = false;
        cw_order_see(order, &seen);
        for (unsigned i = 0; i <= CW_ORDER_WAITED; i++) {
            cw_stamp stamp = i < CW_ORDER_WAITED ? seen.waited[i] : seen.write;
            dead = dead || (stamp && cw_stamp_look(client, fences, stamp) == -EOWNERDEAD);
        }
        cw_order_see(order, &again);
        if (seen.marks & CW_ORDER_POISONED)
            return true;
        if (again.write == seen.write && memcmp(again.waited, seen.waited, sizeof seen.waited) == 0)
            return dead;
    }
}

int cw_array_writing_end(cw_array *array, void *handle, int whole) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_section *section;
    cw_stamp waited[CW_ORDER_WAITED];
    int code = open_call(array, &fences, &order);
    if (code || !order)
        return code;
    cw_client *client = array->client;
    pthread_mutex_lock(&fences->lock);
    code = cw_section_find(fences, array, handle, true, &section);
    if (code) {
        pthread_mutex_unlock(&fences->lock);
        return code;
    }
    struct cw_stream *stream = section->stream;
    cw_stamp stamp = cw_section_stamp(section);
    int settled = settle_dependencies(client, fences, stream);
    bool dead = !whole && was_poisoned(client, fences, order);
    unsigned count =
        stream->dependency_count < CW_ORDER_WAITED ? stream->dependency_count : CW_ORDER_WAITED;
    memcpy(waited, stream->dependencies, count * sizeof *waited);
    code = cw_section_submit(section);
    if (code == 0)
        code = settled;
    if (code == 0)
        code = cw_stream_tell(client, fences, stream);
    cw_order_written(order, stamp, waited, count, dead || code ? CW_ORDER_POISONED : 0);
    cw_order_turn_give(order);
    pthread_mutex_unlock(&fences->lock);
    cw_array_unpin(array);
    return code;
}

/* ---- on the CPU ---- */

static int wait_written(cw_array *array, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_patience patience;
    int found, code = open_call(array, &fences, &order);
    if (code || !order || cw_order_unused(order))
        return code;
    cw_patience_begin(&patience, timeout_ns);
    while ((found = judge_turn(array->client, fences, NULL, cw_order_turn(order))) != TURN_FREE) {
        code = found < 0 ? found
               : found == TURN_DEAD
                   ? poisoned()
                   : cw_patience_spend(array->client, &patience, "another's writing of the array");
        if (code)
            return code;
    }
    return wait_for_write(array->client, fences, order, NULL, &patience);
}

static int settle(cw_array *array, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_order *order;
    struct cw_order_seen seen;
    struct cw_patience patience;
    int64_t seen_ns = 0;
    int found, code = open_call(array, &fences, &order);
    if (code || !order || cw_order_unused(order))
        return code;
    cw_client *client = array->client;
    cw_patience_begin(&patience, timeout_ns);
    while ((found = judge_turn(client, fences, NULL, cw_order_turn(order))) != TURN_FREE) {
        code = found < 0 ? found
               : found == TURN_DEAD
                   ? await_ghost(client, &patience, &seen_ns)
                   : cw_patience_spend(client, &patience, "another's writing of the array");
        if (code)
            return code;
    }
    cw_order_see(order, &seen);
    for (unsigned i = 0; i <= CW_ORDER_READS && code == 0; i++)
        code = wait_for_use(client, fences, NULL, i < CW_ORDER_READS ? seen.reads[i] : seen.write,
                            &patience);
    return code;
}

int cw_array_wait(cw_array *array, int64_t timeout_ns) {
    int code = cw_array_pin(array);
    if (code)
        return code;
    code = wait_written(array, timeout_ns);
    cw_array_unpin(array);
    return code;
}

int cw_array_settle(cw_array *array, int64_t timeout_ns) {
    int code = cw_array_pin(array);
    if (code)
        return code;
    code = settle(array, timeout_ns);
    cw_array_unpin(array);
    return code;
}
