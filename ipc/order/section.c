/*
 * Sections: their begin and end, see section.h. All of it runs with the fences' lock held, which is
 * released during a wait.
 */
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/order/section.h"
#include "ipc/request/socket.h"

#include <string.h>

#include "ipc/order/completion.h"

#define DEAD_TURN_TIMEOUT_NS (3 * (int64_t)CW_POISON_NS)

/* Who waits, and what for. */
struct waiter {
    cw_client *client;
    struct cw_fences *fences;
    struct cw_section *section; /* NULL: the CPU */
    struct cw_deadline deadline;
    struct cw_waits waits;
};

static int poisoned(void) {
    return cw_fail(-EOWNERDEAD, "the process that wrote the array last died before its work was "
                                "complete, or its GPU failed, or its input was incomplete in this "
                                "way: write the whole array again");
}

static int spend(struct waiter *w, const char *what) {
    pthread_mutex_unlock(&w->fences->lock);
    int code = cw_deadline_nap(w->client, &w->deadline, what);
    pthread_mutex_lock(&w->fences->lock);
    return code;
}

/* ---- who has the turn ---- */

enum turn { TURN_FREE, TURN_SAME_STREAM, TURN_TAKEN, TURN_DEAD };

/* What a turn that was met means. Or -EINVAL: this thread has it and would wait for itself. */
static int judge_turn(const struct waiter *w, cw_stamp turn) {
    if (!turn)
        return TURN_FREE;
    const struct cw_section *holder = cw_section_of(w->fences, cw_stamp_fence(turn));
    bool mine = holder && holder->thread == cw_this_thread();
    if (holder && w->section && holder->stream == w->section->stream &&
        (mine || !cw_stream_is_shared(holder->stream)))
        return TURN_SAME_STREAM;
    if (mine)
        return cw_fail(-EINVAL,
                       "this thread is writing the array on the stream %p, and would wait for "
                       "itself: end that first, or use the same stream",
                       holder->stream->handle);
    if (holder)
        return TURN_TAKEN;
    /* The process may have died after its work was complete, but before it noted what that work
     * waited for; so ask for the highest value. */
    int state = cw_stamp_look(w->client, w->fences,
                              cw_stamp_make(cw_stamp_fence(turn), CW_STAMP_VALUE_MAX));
    return state == -EOWNERDEAD ? TURN_DEAD : state < 0 ? state : TURN_TAKEN;
}

/* Lets time pass while a dead process's work may still land. seen_ns: when it was met first. */
static int await_dead_turn(struct waiter *w, int64_t *seen_ns) {
    int64_t now_ns = cw_now_ns();
    if (!*seen_ns)
        *seen_ns = now_ns;
    if (now_ns - *seen_ns > DEAD_TURN_TIMEOUT_NS)
        return cw_fail(-EOWNERDEAD,
                       "a process that used the array is dead, but a forked child of it lives on "
                       "and keeps its GPU work alive, which may still reach the array: end the "
                       "child, or use a new array");
    return spend(w, "the GPU work of a dead process");
}

static int take_turn(struct waiter *w, struct cw_order *order) {
    uint64_t holder;
    int64_t seen_ns = 0;
    while (!cw_order_turn_take(order, cw_section_stamp(w->section), &holder)) {
        int found = judge_turn(w, holder);
        if (found == TURN_SAME_STREAM)
            return cw_fail(-EINVAL, "the stream %p is writing the array already",
                           w->section->stream->handle);
        int code = found < 0            ? found
                   : found == TURN_DEAD ? await_dead_turn(w, &seen_ns)
                                        : spend(w, "another's writing of the array");
        if (code)
            return code;
    }
    return 0;
}

/* ---- what has to pass before ---- */

/* Lets the stream, or the CPU, wait for one stamp. read_of, place: see cw_stream_need(). */
static int need(struct waiter *w, cw_stamp stamp, struct cw_order *read_of, unsigned place) {
    if (w->section)
        return cw_stream_need(w->client, w->fences, w->section->stream, &w->waits, stamp, read_of,
                              place, &w->deadline);
    int code = stamp ? cw_stream_check_own_wait(w->fences, stamp) : 0;
    if (!stamp || code)
        return code;
    pthread_mutex_unlock(&w->fences->lock);
    code = cw_stamp_await(w->client, stamp, &w->deadline);
    pthread_mutex_lock(&w->fences->lock);
    return code;
}

/* The last write, and what that had waited for. */
static int need_write(struct waiter *w, struct cw_order *order) {
    for (;;) {
        struct cw_order_seen seen, again;
        int code = 0;
        cw_order_see(order, &seen);
        if (seen.marks & CW_ORDER_POISONED)
            return poisoned();
        for (unsigned i = 0; i <= CW_ORDER_WAITED && code == 0; i++)
            code = need(w, i < CW_ORDER_WAITED ? seen.waited[i] : seen.write, NULL, 0);
        if (code != -EOWNERDEAD)
            return code;
        /* Unless the broker has just taken the stamps of the dead out: then it says what is so. */
        cw_order_see(order, &again);
        if (again.write == seen.write && memcmp(again.waited, seen.waited, sizeof seen.waited) == 0)
            return poisoned();
    }
}

/* One earlier use; where its process is dead, until none of its work can land any more. */
static int need_use(struct waiter *w, cw_stamp stamp, struct cw_order *read_of, unsigned place) {
    int64_t seen_ns = 0;
    int code = need(w, stamp, read_of, place);
    if (code != -EOWNERDEAD)
        return code;
    do
        code = cw_stamp_is_final(w->client, w->fences, stamp) ? 0 : await_dead_turn(w, &seen_ns);
    while (code == 0 && !cw_stamp_is_final(w->client, w->fences, stamp));
    return code;
}

static int need_uses(struct waiter *w, struct cw_order *order) {
    struct cw_order_seen seen;
    int code = 0;
    cw_order_see(order, &seen);
    for (unsigned i = 0; i < CW_ORDER_READS && code == 0; i++)
        while ((code = need_use(w, seen.reads[i], order, i)) == CW_TAKEN_BACK)
            seen.reads[i] = cw_order_read_at(order, i);
    return code ? code : need_use(w, seen.write, NULL, 0);
}

/* What the last write had waited for: a write that keeps some of its bytes hands that on at its end
 * (gather), when nobody can be asked whose these stamps are. The turn is ours. */
static int meet_inherited(const struct waiter *w, struct cw_order *order) {
    struct cw_order_seen seen;
    cw_order_see(order, &seen);
    for (unsigned i = 0; i < CW_ORDER_WAITED; i++) {
        int state = seen.waited[i] ? cw_stamp_look(w->client, w->fences, seen.waited[i]) : 0;
        if (state < 0 && state != -EOWNERDEAD)
            return state;
    }
    return 0;
}

/* ---- one array ---- */

/* Takes a place for a read whose stamp has passed: 1. 0: there is none. Negative: the broker was
 * asked for others' fences in vain. */
static int replace_read(const struct waiter *w, struct cw_section_array *held, cw_stamp stamp) {
    struct cw_order_seen seen;
    cw_order_see(held->order, &seen);
    for (unsigned i = 0; i < CW_ORDER_READS; i++) {
        int state = cw_stamp_look(w->client, w->fences, seen.reads[i]);
        if (state < 0 && state != -EOWNERDEAD)
            return state;
        if (state > 0 && cw_order_read_replace(held->order, i, seen.reads[i], stamp)) {
            held->place = i;
            held->before = 0;
            return 1;
        }
    }
    return 0;
}

/* Notes the read, when nobody is writing. */
static int note_read(struct waiter *w, struct cw_section_array *held) {
    cw_stamp stamp = cw_section_stamp(w->section);
    for (;;) {
        int noted = cw_order_read_note(held->order, stamp, &held->place, &held->before)
                        ? 1
                        : replace_read(w, held, stamp);
        if (noted < 0)
            return noted;
        int found = noted ? judge_turn(w, cw_order_turn(held->order)) : TURN_TAKEN;
        if (found == TURN_FREE || found == TURN_SAME_STREAM)
            return 0;
        if (noted)
            cw_order_read_undo(held->order, held->place, stamp, held->before);
        int code = found < 0            ? found
                   : found == TURN_DEAD ? poisoned()
                                        : spend(w, "another's use of the array");
        if (code)
            return code;
    }
}

static void give_back(const struct cw_section *section, const struct cw_section_array *held) {
    if (held->writing)
        cw_order_turn_give(held->order);
    else
        cw_order_read_undo(held->order, held->place, cw_section_stamp(section), held->before);
}

static int take(struct waiter *w, struct cw_section_array *held) {
    int code = held->writing ? take_turn(w, held->order) : note_read(w, held);
    if (code)
        return code;
    code = held->writing ? need_uses(w, held->order) : need_write(w, held->order);
    if (code == 0 && held->writing && !held->whole)
        code = meet_inherited(w, held->order);
    if (code)
        give_back(w->section, held);
    return code;
}

/* ---- begin ---- */

/* A break of the context (context_failure.h) may have ended the section while the lock was given
 * up. */
static int check_open(const struct waiter *w) {
    return w->section->open ? 0 : cw_gpu_check(w->section->stream->gpu);
}

static int take_all(struct waiter *w, const cw_use *uses, uint32_t count) {
    struct cw_section *section = w->section;
    int code = 0;
    for (uint32_t i = 0; i < count && code == 0; i++) {
        cw_array *array = uses[i].array;
        struct cw_section_array held = {.array = array,
                                        .order = cw_order_of(array->slab->table, array->block),
                                        .writing = uses[i].writing != 0,
                                        .whole = uses[i].whole != 0};
        code = take(w, &held);
        if (code == 0 && !section->open)
            give_back(section, &held);
        if (code == 0 && section->open)
            section->held[section->held_count++] = held;
        if (code == 0)
            code = check_open(w);
    }
    if (code == 0)
        code =
            cw_stream_submit_waits(w->client, w->fences, section->stream, &w->waits, &w->deadline);
    return code ? code : check_open(w);
}

int cw_section_begin(cw_client *client, struct cw_fences *fences, const cw_use *uses,
                     uint32_t count, bool several, void *handle, int64_t timeout_ns,
                     struct cw_section **out) {
    struct waiter w;
    w.client = client;
    w.fences = fences;
    w.waits.count = 0;
    w.waits.decided = false;
    cw_deadline_begin(&w.deadline, timeout_ns);
    int64_t before = cw_socket_limit(timeout_ns ? timeout_ns : -1); /* 0: a page may be asked for */
    pthread_mutex_lock(&fences->lock);
    int code = cw_section_open(client, fences, uses[0].array->home_slab->device, handle, count,
                               &w.section);
    if (code == 0) {
        w.section->several = several;
        code = take_all(&w, uses, count);
    } else
        w.section = NULL;
    if (code && w.section && w.section->open) {
        while (w.section->held_count)
            give_back(w.section, &w.section->held[--w.section->held_count]);
        cw_section_cancel(w.section);
    }
    pthread_mutex_unlock(&fences->lock);
    cw_socket_unlimit(before);
    *out = w.section;
    return code;
}

/* ---- end ---- */

#define GATHERED_MAX (CW_ORDER_WAITED + CW_DEPENDENCIES_MAX)

/* What readers of a write must look at besides its own stamp: what the stream still waits for, and,
 * where the write keeps some bytes, what the write before it had waited for, since only the new
 * write's record is found. The stream need not wait for these, which that write has done. Returns
 * their number. *dead: one of them will not be reached. The turn is ours; the lock is kept. */
static uint32_t gather(struct cw_fences *fences, const struct cw_stream *stream,
                       const struct cw_section_array *held, cw_stamp *out, bool *dead) {
    struct cw_order_seen seen;
    uint32_t count = 0;
    bool final;
    *dead = false;
    cw_order_see(held->order, &seen);
    for (unsigned i = 0; i < CW_ORDER_WAITED && !held->whole; i++) {
        int state = seen.waited[i] ? cw_stamp_known(fences, seen.waited[i], &final) : 1;
        *dead = *dead || state < 0;
        if (state == 0)
            out[count++] = seen.waited[i];
    }
    for (uint32_t i = 0, inherited = count; i < stream->dependency_count; i++) {
        cw_stamp stamp = stream->dependencies[i].stamp;
        uint32_t at = 0;
        if (stream->dependencies[i].only_read)
            continue;
        while (at < inherited && cw_stamp_fence(out[at]) != cw_stamp_fence(stamp))
            at++;
        if (at == inherited)
            out[count++] = stamp;
        else if (out[at] < stamp)
            out[at] = stamp;
    }
    return count;
}

/* Where that is more than a record holds the CPU waits for the rest. */
static int settle_dependencies(cw_client *client, struct cw_fences *fences,
                               struct cw_section *section) {
    cw_stamp waited[GATHERED_MAX];
    bool dead;
    cw_stream_prune(client, fences, section->stream);
    for (uint32_t i = 0; section->open && i < section->held_count;) {
        struct cw_section_array *held = &section->held[i++];
        if (!held->writing ||
            gather(fences, section->stream, held, waited, &dead) <= CW_ORDER_WAITED)
            continue;
        pthread_mutex_unlock(&fences->lock);
        int code = cw_stamp_wait(client, waited[0], -1);
        pthread_mutex_lock(&fences->lock);
        if (code && code != -EOWNERDEAD && code != -EINTR)
            return code;
        cw_stream_prune(client, fences, section->stream);
        i = 0; /* another thread's begin on this stream may have brought more */
    }
    return 0;
}

/* Did the block hold incomplete data before this write? The turn is ours: only the broker changes
 * the words, when it takes out the dead. All of these stamps were met at the begin; should a look
 * fail nevertheless, the data count as incomplete. May give the lock up. */
static bool was_poisoned(cw_client *client, struct cw_fences *fences, struct cw_order *order) {
    for (;;) {
        struct cw_order_seen seen, again;
        bool dead = false;
        cw_order_see(order, &seen);
        for (unsigned i = 0; i <= CW_ORDER_WAITED; i++) {
            cw_stamp stamp = i < CW_ORDER_WAITED ? seen.waited[i] : seen.write;
            dead = dead || (stamp && cw_stamp_look(client, fences, stamp) < 0);
        }
        cw_order_see(order, &again);
        if (seen.marks & CW_ORDER_POISONED)
            return true;
        if (again.write == seen.write && memcmp(again.waited, seen.waited, sizeof seen.waited) == 0)
            return dead;
    }
}

static bool has_writing(const struct cw_section *section) {
    for (uint32_t i = 0; i < section->held_count; i++)
        if (section->held[i].writing)
            return true;
    return false;
}

/* What each array that was written says from now on. Returns whether all of them are complete, as
 * far as is known. */
static bool publish(struct cw_fences *fences, struct cw_section *section, cw_stamp stamp,
                    bool complete) {
    cw_stamp waited[GATHERED_MAX];
    bool all = true;
    for (uint32_t i = 0; i < section->held_count; i++) {
        struct cw_section_array *held = &section->held[i];
        if (!held->writing)
            continue;
        /* What has passed by now was reached; what died since was_poisoned() is told here. */
        bool dead, good = complete && !held->poisoned;
        uint32_t count = gather(fences, section->stream, held, waited, &dead);
        if (count > CW_ORDER_WAITED) { /* where settling failed */
            good = false;
            count = CW_ORDER_WAITED;
        }
        good = good && !dead;
        cw_order_written(held->order, stamp, waited, count, good ? 0 : CW_ORDER_POISONED);
        cw_order_turn_give(held->order);
        all = all && good;
    }
    section->held_count = 0;
    return all;
}

int cw_section_end(cw_client *client, struct cw_fences *fences, struct cw_section *section,
                   bool failed, cw_completion *out) {
    struct cw_stream *stream = section->stream;
    cw_stamp stamp = cw_section_stamp(section);
    int settled = has_writing(section) ? settle_dependencies(client, fences, section) : 0;
    for (uint32_t i = 0; section->open && i < section->held_count; i++) {
        struct cw_section_array *held = &section->held[i];
        held->poisoned = held->writing && !held->whole && was_poisoned(client, fences, held->order);
    }
    int code = section->open ? 0 : cw_gpu_check(stream->gpu); /* it broke meanwhile */
    if (code)
        return code;
    code = cw_section_submit(section);
    if (code == 0)
        code = settled;
    if (code == 0)
        code = cw_stream_tell(client, fences, stream, section);
    bool complete = publish(fences, section, stamp, code == 0 && !failed);
    if (out)
        cw_completion_note(client, stream, stamp, code == 0 && !complete ? -EOWNERDEAD : code, out);
    return code;
}

/* ---- on the CPU ---- */

int cw_order_await(cw_client *client, struct cw_fences *fences, struct cw_order *order, bool uses,
                   int64_t timeout_ns) {
    struct waiter w = {.client = client, .fences = fences};
    int64_t seen_ns = 0;
    int found, code = 0;
    cw_deadline_begin(&w.deadline, timeout_ns);
    int64_t before = cw_socket_limit(timeout_ns ? timeout_ns : -1);
    pthread_mutex_lock(&fences->lock);
    while (code == 0 && (found = judge_turn(&w, cw_order_turn(order))) != TURN_FREE)
        code = found < 0            ? found
               : found != TURN_DEAD ? spend(&w, "another's writing of the array")
               : uses               ? await_dead_turn(&w, &seen_ns)
                                    : poisoned();
    if (code == 0)
        code = uses ? need_uses(&w, order) : need_write(&w, order);
    pthread_mutex_unlock(&fences->lock);
    cw_socket_unlimit(before);
    return code;
}
