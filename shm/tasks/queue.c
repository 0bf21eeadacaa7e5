/*
 * Queue: see queue.h for the protocol and for what each death leaves behind.
 *
 * Only the process that has the turn at an end writes that end's words. The exception is the turn
 * itself: anybody may clear it when its holder is dead. No state here is private to a process.
 */
#include "shm/tasks/queue.h"

#include <stddef.h>

#include "shm/base/error.h"
#include "shm/base/task.h"

#define LOOK_FIRST_NS 500000 /* the first short sleep while somebody has a turn */
#ifndef SPIN_PAUSES          /* before each look for an item; the model has its own */
#define SPIN_PAUSES 8
#endif
#define JOIN_LOOK_NS 500000000 /* how long a join sleeps before it looks by itself */

struct waiting {
    int64_t end_ns;     /* < 0: for ever */
    int64_t look_ns;    /* how long the next short sleep is */
    bool try;           /* not even for a turn */
    const cw_a32 *word; /* what ends it when it is not as it was; NULL: nothing does */
    uint32_t as_it_was;
};

/* Sleeps at a bell whose number was read before the last look. briefly: somebody has a turn. */
static int sleep_at(struct cw_bell *bell, uint32_t rings, struct waiting *waiting, bool briefly) {
    int64_t left_ns = -1;
    if (waiting->end_ns >= 0) {
        left_ns = waiting->end_ns - cw_now_ns();
        if (left_ns <= 0)
            return cw_fail(-ETIMEDOUT, "the time ran out");
    }
    bool cut = briefly && (left_ns < 0 || left_ns > waiting->look_ns);
    int code = cw_bell_sleep(bell, rings, cut ? waiting->look_ns : left_ns);
    if (cut && code == -ETIMEDOUT)
        waiting->look_ns =
            waiting->look_ns * 2 < CW_QUEUE_LOOK_NS ? waiting->look_ns * 2 : CW_QUEUE_LOOK_NS;
    if (code == -EINTR)
        return cw_fail(-EINTR, "a signal came while waiting at a queue");
    return 0;
}

/* Whether the word that ends a wait has changed. */
static bool ended(const struct waiting *waiting) {
    /* Q15: after W8: who announced before the bell was roused sleeps no more, and who announced
     * later sees Q16. */
    return waiting->word &&
           CW_LOAD(Q15, (cw_a32 *)(uintptr_t)waiting->word, acquire) != waiting->as_it_was;
}

/* Clears the turn of a dead holder. */
static void clear_dead(struct cw_queue_end *end, uint64_t holder) {
    if (holder == 0 || cw_task_runs(holder))
        return;
    /* Q6: one of those who noticed wins. Release: what the dead one stored came before its death,
     * and comes before what the next holder (Q1) stores. */
    if (CW_CAS(Q6, &end->turn, &holder, 0, release))
        cw_bell_rouse(&end->bell);
}

static bool turn_try(struct cw_queue_end *end, uint64_t *holder) {
    *holder = 0;
    /* Q1: seq_cst, before sleepers of the other end are looked for (W9); pairs with W8 and then Q5;
     * else a sleeper neither sees the turn taken nor is woken before the item is there. Acquire:
     * pairs with Q2, the marks of the holder before us. */
    return CW_CAS(Q1, &end->turn, holder, cw_task_self(), seq_cst);
}

static void turn_release(struct cw_queue_end *end) {
    /* Q2: before W9, at both bells; pairs with W8 and then Q5. Release: pairs with Q1. */
    CW_STORE(Q2, &end->turn, 0, seq_cst);
    cw_bell_wake(&end->bell);
}

/* Spins while others are inside: a turn is short. */
static bool turn_spin(struct cw_queue_end *end, uint64_t *holder) {
    int64_t end_ns = cw_now_ns() + CW_SPIN_NS;
    do {
        for (int i = 0; i < 32; i++)
            CW_PAUSE();
        if (turn_try(end, holder))
            return true;
    } while (cw_now_ns() < end_ns);
    return false;
}

/* A turn that somebody else has when our time is out, as one look after the other finds it. */
struct held {
    uint64_t holder, count; /* of the end: another count is another turn */
    int64_t since_ns;       /* since then it is that one's, who was not seen to run */
    int64_t begun_ns;       /* the first look; 0: there was none */
};

/* Whether its holder goes on with it. */
static bool turn_moves(const struct held *held, uint64_t holder, uint64_t count) {
    return holder != held->holder || count != held->count || cw_task_ready(holder);
}

/*
 * After a sleep (code: how it ended) and a look that found the turn taken. The caller's time is for
 * what the queue holds, so the turn is waited for beyond it, as long as its holder runs, or is
 * about to. Until that is known a signal does not end the wait either: a caller that begins anew
 * after each signal would else never learn it. 0: wait on.
 */
static int turn_timeout(struct cw_queue_end *end, const struct waiting *waiting, struct held *held,
                        uint64_t holder, int code) {
    int64_t now_ns = cw_now_ns();
    if (waiting->end_ns < 0 || now_ns < waiting->end_ns)
        return code;
    uint64_t count = CW_LOAD(Q14, &end->count, relaxed); /* Q14: is it still the same turn? */
    if (held->begun_ns == 0)
        held->begun_ns = now_ns;
    if (turn_moves(held, holder, count)) {
        held->holder = holder;
        held->count = count;
        held->since_ns = now_ns;
    }
    if (now_ns - held->since_ns >= CW_QUEUE_HOLDER_NS)
        return cw_fail(-EBUSY,
                       "thread %u is in the middle of a put or a get, and has not run for %.1f s: "
                       "it is stopped (SIGSTOP, a debugger), or waits for the broker. Continue it, "
                       "or kill it: then others go on",
                       (unsigned)(holder & CW_TASK_TID_MASK), (double)CW_QUEUE_HOLDER_NS / 1e9);
    return now_ns - held->begun_ns < CW_QUEUE_HOLDER_NS ? 0 : code;
}

static int turn_take(struct cw_queue_end *end, const struct waiting *waiting) {
    struct waiting turn = {.end_ns = -1, .look_ns = LOOK_FIRST_NS};
    struct held held = {.holder = 0};
    uint64_t holder;
    if (turn_try(end, &holder) || turn_spin(end, &holder))
        return 0;
    if (waiting->try)
        return cw_fail(-EBUSY, "others put or take at this moment");
    for (;;) {
        uint32_t rings = cw_bell_announce(&end->bell);
        /* Q5: after W8; pairs with Q2 before W9. A swap that fails would be no look: it may be old.
         */
        uint64_t seen = CW_LOAD(Q5, &end->turn, seq_cst);
        int code = seen ? sleep_at(&end->bell, rings, &turn, true) : 0;
        clear_dead(end, seen);
        if (turn_try(end, &holder))
            return 0;
        code = turn_timeout(end, waiting, &held, holder, code);
        if (code)
            return code;
    }
}

/* The mark that belongs to a count: what is read is whole if the count is still the same after. */
static bool mark_read(struct cw_queue_end *end, struct cw_queue_place *place) {
    struct cw_queue_mark *mark = &end->mark[place->count & 1];
    /* Q8: pairs with Q7; who reads a value that was stored for a later count then reads (Q4) a
     * later count too. */
    place->position = CW_LOAD(Q8, &mark->position, acquire);
    place->bytes = CW_LOAD(Q8, &mark->bytes, acquire);
    place->lost = CW_LOAD(Q8, &mark->lost, acquire);
    return CW_LOAD(Q9, &end->count, relaxed) == place->count;
}

static uint64_t count_of(struct cw_queue_end *end) {
    /* Q4: pairs with Q3: the item, or that its memory is free again. Before a sleep it comes after
     * Q5: who sees the turn given back (Q2) sees what was published before. */
    return CW_LOAD(Q4, &end->count, acquire);
}

void cw_queue_look(struct cw_queue_end *end, struct cw_queue_place *place) {
    do
        place->count = count_of(end);
    while (!mark_read(end, place));
}

/* Publishes the next mark by the count. */
static void publish(struct cw_queue_end *end, struct cw_queue_place *place) {
    struct cw_queue_mark *mark = &end->mark[++place->count & 1];
    /* Q7: pairs with Q8; see mark_read(). */
    CW_STORE(Q7, &mark->position, place->position, release);
    CW_STORE(Q7, &mark->bytes, place->bytes, release);
    CW_STORE(Q7, &mark->lost, place->lost, release);
    /* Q3: the one store by which it has happened; pairs with Q4. Before the turn is given back
     * (Q2). */
    CW_STORE(Q3, &end->count, place->count, release);
}

/* How the other end may change what we wait for. */
enum verdict { GO, WAIT, DAMAGED };

static enum verdict put_verdict(struct cw_queue_core *queue, uint64_t bytes,
                                struct cw_queue_place *ours) {
    struct cw_queue_place theirs;
    if (!queue->max_items && !queue->max_bytes) { /* the readers' line stays with the readers */
        cw_queue_look(&queue->put, ours);
        return GO;
    }
    cw_queue_look(&queue->get, &theirs); /* first: the number of items can then only look larger */
    cw_queue_look(&queue->put, ours);
    uint64_t items = ours->count - theirs.count, held = ours->bytes - theirs.bytes;
    if (theirs.count > ours->count || theirs.bytes > ours->bytes)
        return DAMAGED;
    if (queue->max_items && items >= queue->max_items)
        return WAIT;
    if (queue->max_bytes && items && (held >= queue->max_bytes || bytes > queue->max_bytes - held))
        return WAIT;
    return GO;
}

static enum verdict get_verdict(struct cw_queue_core *queue, uint64_t unused,
                                struct cw_queue_place *ours) {
    (void)unused;
    cw_queue_look(&queue->get, ours);
    uint64_t there = count_of(&queue->put);
    return there > ours->count ? GO : there < ours->count ? DAMAGED : WAIT;
}

typedef enum verdict look_fn(struct cw_queue_core *, uint64_t, struct cw_queue_place *);

/* One end, as begin() sees it. */
struct side {
    struct cw_queue_end *mine, *other;
    struct cw_bell *wait_at; /* where we sleep until the other end has moved */
    struct cw_bell *wake_at; /* where the other end sleeps until we have */
    look_fn *look;
};

static struct side side_put(struct cw_queue_core *queue) {
    return (struct side){&queue->put, &queue->get, &queue->freed, &queue->filled, put_verdict};
}

static struct side side_get(struct cw_queue_core *queue) {
    return (struct side){&queue->get, &queue->put, &queue->filled, &queue->freed, get_verdict};
}

/* Looks again and again for about a wake-up's time, while the other side runs elsewhere. */
static enum verdict spin(struct cw_queue_core *queue, const struct side *side, uint64_t bytes,
                         struct cw_queue_place *place) {
    enum verdict verdict = WAIT;
    cw_bell_here(side->wait_at);
    if (!cw_bell_spin_pays(side->wake_at))
        return WAIT;
    int64_t end_ns = cw_now_ns() + CW_SPIN_NS;
    do {
        for (int i = 0; i < 32 && verdict == WAIT; i++) {
            for (int pause = 0; pause < SPIN_PAUSES; pause++)
                CW_PAUSE(); /* each look takes the cache line from who publishes there */
            verdict = side->look(queue, bytes, place);
        }
    } while (verdict == WAIT && cw_now_ns() < end_ns);
    return verdict;
}

/* Sleeps until what we wait for may be so. */
static int await(struct cw_queue_core *queue, const struct side *side, uint64_t bytes,
                 struct waiting *waiting) {
    struct cw_queue_place place;
    uint32_t rings = cw_bell_announce(side->wait_at);
    /* Q5: after W8, before the look at what we wait for; pairs with Q1 before W9. 0: whoever had
     * the turn has published, and we see it now; whoever takes it from now on wakes us before it
     * publishes. Else it may publish without seeing us: we look again soon. */
    uint64_t holder = CW_LOAD(Q5, &side->other->turn, seq_cst);
    if (side->look(queue, bytes, &place) != WAIT)
        return 0;
    if (ended(waiting))
        return cw_fail(-EAGAIN, "another thread of this process ended the wait");
    int code = sleep_at(side->wait_at, rings, waiting, holder != 0);
    /* Whether it runs takes longer to find out than to put an item: not when there is one now. */
    if (holder && side->look(queue, bytes, &place) == WAIT)
        clear_dead(side->other, holder);
    return code;
}

static int begin(struct cw_queue_core *queue, const struct side *side, uint64_t bytes,
                 int64_t end_ns, const cw_a32 *word, uint32_t as_it_was,
                 struct cw_queue_place *place) {
    bool try = end_ns == CW_QUEUE_END_TRY;
    struct waiting waiting = {try ? 0 : end_ns, LOOK_FIRST_NS, try, word, as_it_was};
    enum verdict verdict = side->look(queue, bytes, place);
    if (verdict == WAIT && waiting.end_ns != 0)
        verdict = spin(queue, side, bytes, place);
    for (;;) {
        if (verdict == GO) {
            int code = turn_take(side->mine, &waiting);
            if (code)
                return code;
            /* What we waited for may be gone: others were before us. */
            verdict = side->look(queue, bytes, place);
            if (verdict == GO) {
                cw_bell_here(side->wait_at);
                cw_bell_wake(side->wake_at); /* before anything is published */
                return 0;
            }
            turn_release(side->mine);
        }
        if (verdict == DAMAGED)
            return cw_fail(-EPROTO, "the queue's counts make no sense: something wrote over them");
        if (waiting.end_ns == 0) /* an announcement would cost the other side a system call */
            return cw_fail(-ETIMEDOUT, "the time ran out");
        int code = await(queue, side, bytes, &waiting);
        verdict = side->look(queue, bytes, place);
        if (code && verdict != GO)
            return code;
    }
}

static void commit(const struct side *side, struct cw_queue_place *place) {
    publish(side->mine, place);
    turn_release(side->mine);
    cw_bell_wake(side->wake_at);
}

int cw_queue_put_begin(struct cw_queue_core *queue, uint64_t bytes, int64_t end_ns,
                       struct cw_queue_place *place) {
    struct side side = side_put(queue);
    return begin(queue, &side, bytes, end_ns, NULL, 0, place);
}

void cw_queue_put_commit(struct cw_queue_core *queue, struct cw_queue_place *place,
                         uint64_t bytes) {
    struct side side = side_put(queue);
    place->bytes += bytes;
    commit(&side, place);
}

void cw_queue_put_cancel(struct cw_queue_core *queue) {
    turn_release(&queue->put);
}

int cw_queue_get_begin_unless(struct cw_queue_core *queue, int64_t end_ns, const cw_a32 *word,
                              uint32_t as_it_was, struct cw_queue_place *place) {
    struct side side = side_get(queue);
    return begin(queue, &side, 0, end_ns, word, as_it_was, place);
}

int cw_queue_get_begin(struct cw_queue_core *queue, int64_t end_ns, struct cw_queue_place *place) {
    return cw_queue_get_begin_unless(queue, end_ns, NULL, 0, place);
}

void cw_queue_end_waits(struct cw_queue_core *queue, cw_a32 *word) {
    CW_ADD(Q16, word, 1, release); /* Q16: before the bell; pairs with Q15 */
    cw_bell_rouse(&queue->filled);
}

void cw_queue_get_commit(struct cw_queue_core *queue, struct cw_queue_place *place, uint64_t bytes,
                         bool lost) {
    struct side side = side_get(queue);
    place->bytes += bytes;
    place->lost += lost;
    commit(&side, place);
}

void cw_queue_get_cancel(struct cw_queue_core *queue) {
    turn_release(&queue->get);
}

/* ---- who watches ---- */

void cw_queue_watch(struct cw_queue_core *queue, bool taken, struct cw_queue_sight *sight) {
    sight->end = taken ? &queue->get : &queue->put;
    sight->bell = taken ? &queue->freed : &queue->filled;
    sight->rings = cw_bell_announce(sight->bell);
    /* Q5: as in await(), before the caller looks. */
    sight->holder = CW_LOAD(Q5, &sight->end->turn, seq_cst);
    if (!sight->holder || !sight->look_ns)
        sight->look_ns = LOOK_FIRST_NS;
}

int cw_queue_watch_sleep(struct cw_queue_sight *sight) {
    struct waiting waiting = {.end_ns = -1, .look_ns = sight->look_ns};
    int code = sleep_at(sight->bell, sight->rings, &waiting, sight->holder != 0);
    sight->look_ns = waiting.look_ns;
    clear_dead(sight->end, sight->holder);
    return code;
}

void cw_queue_rouse(struct cw_queue_core *queue) {
    cw_bell_rouse(&queue->filled);
    cw_bell_rouse(&queue->freed);
}

/* ---- who waits until all is done ---- */

uint64_t cw_queue_count_done(struct cw_queue_core *queue) {
    return CW_LOAD(Q10, &queue->done, relaxed); /* Q10: a figure; Q11 looks again */
}

int cw_queue_done(struct cw_queue_core *queue) {
    struct cw_queue_place taken;
    cw_queue_look(&queue->get, &taken);
    uint64_t limit = count_of(&queue->put) - taken.lost;
    uint64_t done = cw_queue_count_done(queue);
    do
        if (done >= limit)
            return cw_fail(-EINVAL, "task_done() called too many times: %llu items were put",
                           (unsigned long long)limit);
    while (
        !CW_CAS(Q11, &queue->done, &done, done + 1, seq_cst)); /* Q11: before W9; pairs with Q12 */
    cw_bell_wake(&queue->joined);
    return 0;
}

static bool all_done(struct cw_queue_core *queue) {
    struct cw_queue_place taken;
    uint64_t done = CW_LOAD(Q12, &queue->done, seq_cst); /* Q12: after W8; pairs with Q11 */
    cw_queue_look(&queue->get, &taken);
    return done + taken.lost >= count_of(&queue->put);
}

int cw_queue_join(struct cw_queue_core *queue, int64_t end_ns) {
    /* Who dies between its last word and the wake-up is not noticed: so we look now and then. */
    struct waiting waiting = {.end_ns = end_ns, .look_ns = JOIN_LOOK_NS};
    for (;;) {
        uint32_t rings = cw_bell_announce(&queue->joined);
        if (all_done(queue))
            return 0;
        waiting.look_ns = JOIN_LOOK_NS;
        int code = sleep_at(&queue->joined, rings, &waiting, true);
        if (code)
            return all_done(queue) ? 0 : code;
    }
}
