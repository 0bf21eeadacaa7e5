/*
 * Dispatch, the parent's side: submits, collects, waits, buries. See dispatch.h for the words, who
 * owns them, and what each death leaves behind.
 *
 * The parent's own counts are private; `seen` is read by its waiting threads while another one
 * collects, so it is atomic, as advice: who reads an old value looks once more for nothing.
 */
#include "shm/tasks/dispatch_words.h"
#include "shm/base/error.h"

/* Who waits while something is READY looks again after so long, doubling. */
#define LOOK_FIRST_NS 1000000
#define LOOK_MOST_NS  100000000
#define COLLECT_MOST  4u /* answers of one worker, before it is the next one's turn */
_Static_assert(COLLECT_MOST <= CW_DISPATCH_AHEAD, "whose turn it is has room");

uint32_t cw_dispatch_in_use(const struct cw_dispatch_view *view) {
    return workers_in_use(view);
}

uint64_t cw_dispatch_ready(const struct cw_dispatch_view *view, uint32_t group) {
    return ready_of(view, group);
}

static bool any_ready(const struct cw_dispatch_view *view) {
    for (uint32_t group = 0; group < view->group_count; group++)
        if (ready_of(view, group) > 0)
            return true;
    return false;
}

void cw_dispatch_assign(struct cw_dispatch_parent *parent, uint32_t w, uint32_t group) {
    CW_ASSERT(group < parent->view.group_count);
    /* T42: what starts it orders it. */
    CW_STORE(T42, &parent->view.workers[w].group, group + 1, relaxed);
}

void cw_dispatch_wake(struct cw_dispatch_parent *parent, uint32_t group, uint32_t most) {
    cw_dispatch_wake_own(&parent->view, group, parent->tail[group], most);
    if (parent->view.group_count > 1)
        cw_dispatch_wake_thieves(&parent->view, group, most);
}

/* Wakes all who sleep, whatever their words say: a waker may have cleared a word and then died. */
static void rouse_all(const struct cw_dispatch_view *view) {
    uint32_t count = workers_in_use(view);
    for (uint32_t w = 0; w < count; w++)
        cw_sleeper_rouse(&view->workers[w].sleeper);
}

void cw_dispatch_use(struct cw_dispatch_parent *parent, uint32_t workers) {
    CW_STORE(T40, &parent->view.worker_count, workers, relaxed);
}

int cw_dispatch_reserve(struct cw_dispatch_parent *parent) {
    if (parent->free_count == 0)
        return -EAGAIN;
    uint32_t cell = parent->free[--parent->free_count];
    parent->place[cell] = CW_DISPATCH_NOWHERE;
    return (int)cell;
}

void cw_dispatch_free(struct cw_dispatch_parent *parent, uint32_t cell) {
    CW_ASSERT(parent->free_count < parent->view.cell_count &&
              parent->place[cell] == CW_DISPATCH_NOWHERE);
    parent->place[cell] = CW_DISPATCH_FREE;
    parent->free[parent->free_count++] = cell;
}

int cw_dispatch_submit(struct cw_dispatch_parent *parent, uint32_t group, uint32_t cell) {
    const struct cw_dispatch_view *view = &parent->view;
    CW_ASSERT(group < view->group_count);
    uint64_t pos = parent->tail[group], place = place_of(view, group, pos);
    /* All workers write to head: it is looked at only once so many places were used. */
    while (parent->head[group] + view->queue_len <= pos) {
        uint64_t head = head_of(view, group);
        if (head > pos || pos - head > view->queue_len)
            return cw_fail(-EPROTO, "a dispatch queue's head is %llu while %llu tasks went in",
                           (unsigned long long)head, (unsigned long long)pos);
        parent->head[group] = head;
        if (head + view->queue_len > pos)
            break;
        uint32_t first = CW_LOAD(T5, entry_of(view, group, head), relaxed);
        if (first < view->cell_count &&
            /* T34: a look: only we make a word READY. */
            CW_LOAD(T34, &view->cells[first].word, relaxed) ==
                word_of(CW_CELL_READY, 0, place_of(view, group, head)))
            return -EAGAIN;
        pass_by(view, group, head);
    }
    CW_STORE(T10, &view->cells[cell].taken_ns, 0, relaxed);
    /* T1: T3 orders it, and what lies in the cell. A worker that still holds an older place's
     * number does not take it: the word is another one. */
    CW_STORE(T1, &view->cells[cell].word, word_of(CW_CELL_READY, 0, place), relaxed);
    CW_STORE(T5, entry_of(view, group, pos), cell, relaxed);
    parent->place[cell] = place;
    parent->tail[group] = pos + 1;
    /* T3: before we look at the spinners (T20) and sleepers (W2); pairs with T19 or W1, and then
     * T4. */
    CW_STORE(T3, &view->groups[group].tail, pos + 1, seq_cst);
    return 0;
}

int cw_dispatch_withdraw(struct cw_dispatch_parent *parent, uint32_t cell) {
    uint64_t place = parent->place[cell];
    CW_ASSERT(place < CW_DISPATCH_NOWHERE);
    uint64_t word = word_of(CW_CELL_READY, 0, place);
    /* T31: against the workers (T6); what lies in the cell is our own. */
    if (!CW_CAS(T31, &parent->view.cells[cell].word, &word, word_of(CW_CELL_FREE, 0, place),
                release))
        return -EBUSY;
    parent->place[cell] = CW_DISPATCH_NOWHERE;
    return 0;
}

int cw_dispatch_taker(const struct cw_dispatch_parent *parent, uint32_t cell, int64_t *elapsed_ns) {
    /* T34: a look. */
    uint64_t word = CW_LOAD(T34, &parent->view.cells[cell].word, relaxed);
    *elapsed_ns = cw_dispatch_elapsed_ns(&parent->view, cell);
    return (int)worker_of(word) - 1;
}

static uint64_t done_of(const struct cw_dispatch_view *view, uint32_t w) {
    /* T14: after T15 or W8; pairs with T12. Acquire: T2. */
    return CW_LOAD(T14, &view->workers[w].done, seq_cst);
}

static uint64_t seen_of(const struct cw_dispatch_parent *parent, uint32_t w) {
    /* T37: private to the parent. Another thread may collect meanwhile: then we look for nothing.
     */
    return CW_LOAD(T37, &parent->seen[w], relaxed);
}

static void see(struct cw_dispatch_parent *parent, uint32_t w, uint64_t done) {
    CW_STORE(T37, &parent->seen[w], done, relaxed);
}

/* All answers of a worker up to there are collected. Told once for many: the worker looks at it. */
static void see_all(struct cw_dispatch_parent *parent, uint32_t w, uint64_t done) {
    see(parent, w, done);
    /* T41: advice for the worker. */
    CW_STORE(T41, &parent->view.workers[w].collected, done, relaxed);
}

/* What is about to be read lies in other cores' caches: it is asked for, of all of them at a time,
 * before any of it is needed. */
static void bring(const struct cw_dispatch_view *view, uint32_t cell) {
    if (cell >= view->cell_count)
        return;
    CW_BRING(&view->cells[cell]);
    if (view->beside)
        CW_BRING((const char *)view->beside + cell * view->beside_stride);
}

/* Notes answers that a worker has given. -EPROTO. */
static int look_at(struct cw_dispatch_parent *parent, uint32_t w) {
    const struct cw_dispatch_view *view = &parent->view;
    uint64_t seen = seen_of(parent, w), done = done_of(view, w);
    if (done - seen > view->cell_count) {
        see_all(parent, w, done); /* what it really has answered comes out when it is buried */
        return cw_fail(-EPROTO, "worker %u says that it has given %llu answers more, to %u cells",
                       w, (unsigned long long)(done - seen), view->cell_count);
    }
    if (done - seen > COLLECT_MOST)
        done = seen + COLLECT_MOST;
    for (; seen < done; seen++) {
        /* T2: T14 ordered it. */
        uint32_t cell =
            CW_LOAD(T2, &view->done[(uint64_t)w * view->queue_len + (seen & (view->queue_len - 1))],
                    relaxed);
        bring(view, cell);
        parent->ahead[parent->ahead_count++] =
            (struct cw_dispatch_notice){.w = w, .cell = cell, .last = seen + 1 == done};
    }
    return 0;
}

/* Looks at all workers in turn: a quick one hides no other. 0, or -EPROTO: *w broke the rules. */
static int look_around(struct cw_dispatch_parent *parent, uint32_t *w) {
    uint32_t count = workers_in_use(&parent->view);
    int code = 0;
    parent->ahead_next = parent->ahead_count = 0;
    for (uint32_t i = 0;
         i < count && code == 0 && parent->ahead_count + COLLECT_MOST <= CW_DISPATCH_AHEAD; i++) {
        *w = parent->look_at < count ? parent->look_at : 0;
        parent->look_at = *w + 1;
        code = look_at(parent, *w);
    }
    return code;
}

int cw_dispatch_collect(struct cw_dispatch_parent *parent, uint32_t *w, uint64_t *place) {
    const struct cw_dispatch_view *view = &parent->view;
    if (parent->ahead_next == parent->ahead_count) {
        int code = look_around(parent, w);
        if (code)
            return code;
        if (parent->ahead_count == 0)
            return -EAGAIN;
    }
    struct cw_dispatch_notice notice = parent->ahead[parent->ahead_next++];
    uint32_t cell = notice.cell;
    *w = notice.w;
    if (notice.last)
        see_all(parent, *w, seen_of(parent, *w) + 1);
    else
        see(parent, *w, seen_of(parent, *w) + 1);
    if (cell >= view->cell_count || parent->place[cell] >= CW_DISPATCH_NOWHERE ||
        /* T16: T14 ordered it, and the answer. */
        CW_LOAD(T16, &view->cells[cell].word, relaxed) !=
            word_of(CW_CELL_DONE, *w + 1, parent->place[cell]))
        return cw_fail(-EPROTO,
                       "worker %u says that it has answered the cell %u, whose task it did not "
                       "have",
                       *w, cell);
    *place = parent->place[cell];
    parent->place[cell] = CW_DISPATCH_NOWHERE;
    return (int)cell;
}

/* What was found of a worker's is not looked at any more. */
static void forget_ahead(struct cw_dispatch_parent *parent, uint32_t w) {
    uint32_t kept = 0;
    for (uint32_t i = parent->ahead_next; i < parent->ahead_count; i++)
        if (parent->ahead[i].w != w)
            parent->ahead[kept++] = parent->ahead[i];
    parent->ahead_next = 0;
    parent->ahead_count = kept;
}

bool cw_dispatch_has_answer(const struct cw_dispatch_parent *parent) {
    uint32_t count = workers_in_use(&parent->view);
    for (uint32_t w = 0; w < count; w++)
        if (seen_of(parent, w) != done_of(&parent->view, w))
            return true;
    return false;
}

void cw_dispatch_listen(struct cw_dispatch_parent *parent, int change) {
    cw_a32 *listeners = &parent->view.words->listeners;
    /* T15: one thread at a time stores. Before we look at the answers (T14); pairs with T12 and
     * then T13. */
    uint32_t now = CW_LOAD(T15, listeners, relaxed);
    CW_STORE(T15, listeners, now + (uint32_t)change, seq_cst);
}

uint32_t cw_dispatch_news(const struct cw_dispatch_view *view, bool helper) {
    /* T27: acquire; pairs with T25: what the news are about. */
    return CW_LOAD(T27, &view->words->news[helper], acquire);
}

static struct cw_bell *bell_of(const struct cw_dispatch_view *view, bool helper) {
    return helper ? &view->words->helper : &view->words->answers;
}

void cw_dispatch_tell(const struct cw_dispatch_view *view, bool helper) {
    /* T25: before the bell's number moves (W11); pairs with T26 and T27: what the news are about.
     */
    CW_ADD(T25, &view->words->news[helper], 1, release);
    /* Whatever the word says: the news may be a death, in the middle of a wake-up. */
    cw_bell_rouse(bell_of(view, helper));
}

void cw_dispatch_ask_emptied(struct cw_dispatch_parent *parent) {
    /* T52: before the caller looks at the row; pairs with T53, after the last was taken out. */
    CW_STORE(T52, &parent->asked, 1, seq_cst);
}

void cw_dispatch_emptied(struct cw_dispatch_parent *parent) {
    /* T53: after the row was emptied; pairs with T52, before the row is looked at. */
    if (CW_XCHG(T53, &parent->asked, 0, seq_cst))
        cw_dispatch_tell(&parent->view, true);
}

/* Is there something to see? The helper leaves answers to the listeners. */
static bool must_look(const struct cw_dispatch_parent *parent, bool helper, uint32_t was) {
    /* T26: after W8; pairs with T25, before W11: else W11 ends our sleep. */
    if (CW_LOAD(T26, &parent->view.words->news[helper], acquire) != was)
        return true;
    /* T32: a listener that leaves (T15) collects what it finds after that. */
    if (helper && CW_LOAD(T32, &parent->view.words->listeners, seq_cst))
        return false;
    return cw_dispatch_has_answer(parent);
}

static bool spin_for_answer(const struct cw_dispatch_parent *parent, bool helper, uint32_t was,
                            int64_t spin_ns) {
    int64_t end_ns = cw_now_ns() + spin_ns;
    do
        for (int i = 0; i < SPIN_LOOKS; i++) {
            if (must_look(parent, helper, was))
                return true;
            CW_PAUSE();
        }
    while (cw_now_ns() < end_ns);
    return false;
}

int cw_dispatch_wait(const struct cw_dispatch_parent *parent, bool helper, uint32_t was,
                     int64_t spin_ns, int64_t timeout_ns) {
    struct cw_bell *bell = bell_of(&parent->view, helper);
    if (must_look(parent, helper, was))
        return 0;
    int64_t end_ns = timeout_ns < 0 ? -1 : cw_end_ns(cw_now_ns(), timeout_ns), left_ns = -1;
    if (spin_ns > 0 && timeout_ns != 0 && spin_for_answer(parent, helper, was, spin_ns))
        return 0;
    for (int64_t look_ns = LOOK_FIRST_NS;;) {
        if (end_ns >= 0 && (left_ns = end_ns - cw_now_ns()) <= 0)
            return cw_fail(-ETIMEDOUT, "the time ran out");
        uint32_t rings = cw_bell_announce(bell);
        if (must_look(parent, helper, was))
            return 0;
        /* Who spins, was woken or is about to wake another may be stopped, by a debugger or for
         * want of a core. */
        bool briefly = any_ready(&parent->view) && (left_ns < 0 || left_ns > look_ns);
        int code = cw_bell_sleep(bell, rings, briefly ? look_ns : left_ns);
        if (must_look(parent, helper, was))
            return 0;
        if (code == -EINTR)
            return cw_fail(-EINTR, "a signal came while waiting for an answer");
        if (briefly && code == -ETIMEDOUT && any_ready(&parent->view)) {
            rouse_all(&parent->view);
            look_ns = look_ns * 2 < LOOK_MOST_NS ? look_ns * 2 : LOOK_MOST_NS;
        }
    }
}

static void rouse(const struct cw_dispatch_view *view, uint32_t w) {
    cw_sleeper_wake(&view->workers[w].sleeper);
}

void cw_dispatch_close(struct cw_dispatch_parent *parent, bool closing) {
    /* T23: before we look who sleeps (W2); pairs with W1 and then T24. */
    CW_STORE(T23, &parent->view.words->closing, closing, seq_cst);
    uint32_t count = workers_in_use(&parent->view);
    for (uint32_t w = 0; closing && w < count; w++)
        rouse(&parent->view, w);
}

void cw_dispatch_order(struct cw_dispatch_parent *parent, uint32_t w, enum cw_worker_order order) {
    /* T21: before we look whether it sleeps (W2); pairs with W1 and then T22. */
    CW_STORE(T21, &parent->view.workers[w].order, order, seq_cst);
    rouse(&parent->view, w);
}

/* Did the worker have this cell's task? Also if its word makes no sense: nobody else will answer.
 */
static bool had(const struct cw_dispatch_view *view, uint32_t w, uint64_t word, uint64_t place) {
    enum cw_cell_state state = state_of(word);
    uint32_t taker = worker_of(word);
    bool sound = word >> PLACE_SHIFT == word_of(CW_CELL_FREE, 0, place) >> PLACE_SHIFT &&
                 (state == CW_CELL_READY ? taker == 0
                                         : (state == CW_CELL_TAKEN || state == CW_CELL_DONE) &&
                                               taker >= 1 && taker <= workers_in_use(view));
    return !sound || taker == w + 1;
}

int cw_dispatch_bury(struct cw_dispatch_parent *parent, uint32_t w, struct cw_dispatch_end *end) {
    const struct cw_dispatch_view *view = &parent->view;
    for (uint32_t cell = 0; cell < view->cell_count; cell++) {
        uint64_t place = parent->place[cell];
        if (place >= CW_DISPATCH_NOWHERE)
            continue;
        /* T33: the death orders it. */
        uint64_t word = CW_LOAD(T33, &view->cells[cell].word, relaxed);
        if (!had(view, w, word, place))
            continue;
        bool begun = CW_LOAD(T10, &view->cells[cell].taken_ns, relaxed) != 0;
        *end = (struct cw_dispatch_end){.place = place,
                                        .answered = word == word_of(CW_CELL_DONE, w + 1, place),
                                        .begun = begun};
        parent->place[cell] = CW_DISPATCH_NOWHERE;
        return (int)cell;
    }
    forget_ahead(parent, w);
    see_all(parent, w,
            done_of(view, w)); /* an entry without an answer is none for who comes after */
    for (uint32_t group = 0; group < view->group_count; group++)
        for (uint32_t i = 0; i < view->spinners; i++) {
            uint32_t dead = w + 1;
            /* T35: the death orders it; all are roused below, whoever still counts on it. */
            CW_CAS(T35, &view->groups[group].spinner[i], &dead, 0, release);
        }
    awake(&view->workers[w].sleeper);
    /* T36: what starts the next worker of this number orders it. */
    CW_STORE(T36, &view->workers[w].order, CW_ORDER_NONE, relaxed);
    /* T47: its group's bound falls: before we look who sleeps (W2); pairs with W1 and then T42. */
    CW_STORE(T47, &view->workers[w].group, 0, seq_cst);
    for (uint32_t group = 0; view->group_count > 1 && group < view->group_count; group++)
        cw_dispatch_wake_thieves(view, group, UINT32_MAX);
    /* It may have cleared a word and then died: whoever sleeps there looks again. */
    rouse_all(view);
    cw_bell_rouse(&view->words->answers);
    cw_bell_rouse(&view->words->helper);
    for (uint32_t group = 0; group < view->group_count; group++)
        cw_dispatch_wake_own(view, group, parent->tail[group], UINT32_MAX);
    return -EAGAIN;
}
