/*
 * Meetings: a member arrives, waits for the others, and breaks the epoch where one of them is gone.
 * The words are shm/tasks/barrier.h; who may die when is told in page.h.
 *
 * Owner: the thread that is in an operation (group->busy). Waiting is a spin of about a wake-up,
 * with the core given away where others need it (yields.h): at once to a missing member that was
 * last on our core, as each says where it arrives; else after some looks. A core for two members
 * has to switch once a meeting then, and no more. Then sleeps that double up to GROUP_LOOK_NS, with
 * a look after each whether the group is broken, those who are missing live, time is left, and a
 * signal came.
 */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/group/page.h"
#include "shm/base/error.h"
#include "shm/base/task.h"

#define DYING_NAP_NS 1000000
#define DYING_NS     100000000 /* for a process whose session has ended, and which is not gone yet */
/* Looks before the core is given away: the first time where no missing member is on it, and each
 * time where cores have several members. */
#define ALONE_LOOKS   400
#define CROWDED_LOOKS 20
#define BESIDE_RANKS  32 /* that are looked at for who is on our core */

/* broken: epoch 32, reason 16, rank 16. */
static uint64_t broken_word(uint32_t epoch, uint32_t reason, uint32_t rank) {
    return (uint64_t)epoch << 32 | (uint64_t)reason << 16 | rank;
}

static uint64_t broken_now(const cw_group *group) {
    uint64_t word = cw_barrier_broken(&group->page->broken);
    return word >> 32 == group->epoch ? word : 0;
}

static int pid_of(uint64_t claim) {
    return (int)(claim & CW_TASK_TID_MASK);
}

int cw_group_broken(cw_group *group, cw_group_break *out) {
    if (!group)
        return cw_needs("a group");
    uint64_t word = broken_now(group);
    uint32_t rank = word & 0xffff;
    if (word && out)
        *out = (cw_group_break){.reason = (uint32_t)(word >> 16) & 0xffff,
                                .rank = rank,
                                .pid = rank < group->size ? pid_of(group->members[rank].claim) : 0};
    return word != 0;
}

int cw_group_told(const cw_group *group) {
    uint64_t word = broken_now(group);
    if (!word)
        return 0;
    static const char *const reasons[] = {
        [CW_GROUP_DIED] = "its process has ended",
        [CW_GROUP_LEFT] = "it left the group (close)",
        [CW_GROUP_TIMED_OUT] = "its time ran out while it waited for others",
        [CW_GROUP_INTERRUPTED] = "a signal's handler ended its operation",
        [CW_GROUP_FAILED] = "its operation failed in the middle",
    };
    uint32_t reason = (uint32_t)(word >> 16) & 0xffff, rank = word & 0xffff;
    bool known = reason > 0 && reason < sizeof reasons / sizeof *reasons;
    return cw_fail(-EOWNERDEAD,
                   "group \"%s\" is broken by rank %u (pid %d): %s. %llu operations were completed "
                   "here; reform() goes on with the members that are left",
                   group->name, rank, rank < group->size ? pid_of(group->members[rank].claim) : 0,
                   known ? reasons[reason] : "of an unknown reason",
                   (unsigned long long)group->completed);
}

void cw_group_break_by(cw_group *group, uint32_t reason, uint32_t rank) {
    if (!cw_barrier_break(&group->page->broken, group->unbroken,
                          broken_word(group->epoch, reason, rank)))
        return; /* somebody else did, and rouses all */
    for (uint32_t i = 0; i < group->size; i++)
        cw_barrier_rouse(&group->members[i].slot->barrier);
    cw_bell_rouse(&group->page->changed);
}

bool cw_group_present(const struct group_member *member) {
    /* N10: a look; who leaves rouses us, and we look again. */
    return CW_LOAD(N10, &member->slot->claim, acquire) == member->claim &&
           cw_task_process_runs(member->claim);
}

/* ---- an operation's begin and end ---- */

int cw_group_enter(cw_group *group) {
    if (!group)
        return cw_needs("a group");
    if (!group->page)
        return cw_fail(-EINVAL, "the group is closed: join it again");
    if (cw_client_forked(group->client))
        return cw_fail(-EINVAL,
                       "group \"%s\" came over a fork, and this process is no member: join a group "
                       "in the child",
                       group->name);
    /* N11: this process's own word, between its threads. */
    if (CW_XCHG(N11, &group->busy, 1, acquire))
        return cw_fail(-EBUSY,
                       "another thread is in an operation of group \"%s\": operations are called "
                       "one after the other",
                       group->name);
    group->end_ns = group->next_end_ns;
    group->next_end_ns = group->refused_end_ns = 0;
    group->entered = group->number;
    return 0;
}

void cw_group_leave_call(cw_group *group) {
    CW_STORE(N12, &group->busy, 0, release); /* N12: to N11 of the next thread */
}

int cw_group_begin(cw_group *group) {
    int code = cw_group_enter(group);
    if (code)
        return code;
    code = cw_group_told(group);
    if (code)
        cw_group_leave_call(group);
    return code;
}

int cw_group_end(cw_group *group, int code) {
    if (code == 0)
        group->completed++;
    cw_group_leave_call(group);
    return code;
}

static uint32_t mark_of(uint64_t what, uint64_t count) {
    uint64_t mixed = (what ^ count * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(mixed >> 32) ^ (uint32_t)mixed;
}

static uint64_t word_now(const cw_group *group) {
    const struct group_call *call = &group->own->call[group->number & 1];
    return cw_barrier_word(group->number, mark_of(call->what, call->count));
}

void cw_group_arrive(cw_group *group, uint64_t what, uint64_t count) {
    struct group_call *call = group_next_call(group);
    call->what = what;
    call->count = count;
    if (group->number != group->entered)
        group->end_ns = 0; /* all were here: each further step has its own time */
    group->number++;
    cw_bell_here(&group->own->barrier.bell);
    cw_barrier_arrive(&group->own->barrier, word_now(group));
}

/* ---- waiting ---- */

int cw_group_may_wait(cw_group *group, int64_t *left_ns) {
    int64_t now_ns = cw_now_ns();
    if (group->end_ns == 0)
        group->end_ns = cw_end_ns(now_ns, group->timeout_ns);
    if (group->check && group->check(group->context))
        return cw_fail(-EINTR, "a signal's handler ended the wait in group \"%s\"", group->name);
    if (now_ns >= group->end_ns)
        return -ETIMEDOUT;
    if (*left_ns > group->end_ns - now_ns)
        *left_ns = group->end_ns - now_ns;
    return 0;
}

int64_t cw_group_broker_ns(cw_group *group) {
    if (group->timeout_ns <= 0)
        return group->timeout_ns ? group->timeout_ns : GROUP_LEAST_NS;
    int64_t now_ns = cw_now_ns();
    if (group->end_ns == 0)
        group->end_ns = cw_end_ns(now_ns, group->timeout_ns);
    return group->end_ns > now_ns ? group->end_ns - now_ns : 0;
}

int cw_group_limit_next(cw_group *group, int64_t timeout_ns) {
    if (!group)
        return -EINVAL;
    group->next_end_ns = timeout_ns < 0 ? 0 : cw_end_ns(cw_now_ns(), timeout_ns);
    return 0;
}

/* What is missing, for who gives up: the first few ranks and what they are at. */
static int timed_out(cw_group *group, uint64_t word) {
    char ours[96], missing[256] = "";
    size_t used = 0;
    uint32_t more = 0;
    const struct group_call *own = &group->own->call[group->number & 1];
    cw_group_describe(own->what, own->count, ours, sizeof ours);
    for (uint32_t i = 0; i < group->size; i++) {
        struct group_slot *slot = group->members[i].slot;
        if (cw_barrier_look(&slot->barrier, word) != 0)
            continue;
        char theirs[96];
        struct group_call last;
        uint32_t parity = (group->number + 1) & 1; /* what it did before, and may be at still */
        last.what = *(volatile uint64_t *)&slot->call[parity].what;
        last.count = *(volatile uint64_t *)&slot->call[parity].count;
        cw_group_describe(last.what, last.count, theirs, sizeof theirs);
        int wrote =
            used + 1 < sizeof missing
                ? snprintf(missing + used, sizeof missing - used, "%srank %u (pid %d; last in %s)",
                           used ? ", " : "", i, pid_of(group->members[i].claim), theirs)
                : 0;
        if (wrote > 0 && used + (size_t)wrote < sizeof missing)
            used += (size_t)wrote;
        else {
            missing[used] = 0;
            more++;
        }
    }
    if (more)
        snprintf(missing + used, sizeof missing - used, " and %u more", more);
    return cw_fail(-ETIMEDOUT,
                   "%.3f s ran out in group \"%s\": rank %u is in operation %llu, %s, and these "
                   "have not come: %s. The group is broken now",
                   (double)group->timeout_ns / 1e9, group->name, group->rank,
                   (unsigned long long)group->completed, ours, missing);
}

/* Why a member is not there. */
static uint32_t reason_of(const struct group_member *member) {
    bool left = CW_LOAD(N10, &member->slot->claim, acquire) != member->claim;
    return left ? CW_GROUP_LEFT : CW_GROUP_DIED;
}

/* Breaks the epoch if one of those who have not arrived is gone. */
static void look_for_the_dead(cw_group *group, uint64_t word) {
    for (uint32_t i = 0; i < group->size; i++) {
        struct group_member *member = &group->members[i];
        if (i == group->rank || cw_barrier_look(&member->slot->barrier, word) != 0 ||
            cw_group_present(member))
            continue;
        if (cw_barrier_look(&member->slot->barrier, word) != 0)
            continue; /* it arrived, and went then */
        cw_group_break_by(group, reason_of(member), i);
        return;
    }
}

int cw_group_failed(cw_group *group, int code) {
    if (code == 0 || code == -EOWNERDEAD || code == -ETIMEDOUT || code == -EINTR)
        return code;
    int64_t end_ns = cw_now_ns() + DYING_NS;
    while (code == -ESTALE && cw_now_ns() < end_ns) {
        if (broken_now(group)) /* others went on without us, and let go of what we look for */
            return cw_group_told(group);
        for (uint32_t i = 0; i < group->size; i++)
            if (i != group->rank && !cw_group_present(&group->members[i])) {
                cw_group_break_by(group, reason_of(&group->members[i]), i);
                return cw_group_told(group);
            }
        struct timespec nap = {.tv_nsec = DYING_NAP_NS};
        nanosleep(&nap, NULL);
    }
    cw_group_break_by(group, CW_GROUP_FAILED, group->rank);
    return code;
}

int cw_group_refused(cw_group *group, int code) {
    if (code)
        group->refused_end_ns = group->end_ns;
    return code == -ECONNRESET ? cw_group_failed(group, code) : code;
}

/* Is one of those who have not arrived yet on our core, where it can only go on when we do not?
 * Ranks before `from` have arrived. */
static bool missing_beside(const cw_group *group, uint32_t from, uint64_t word) {
    uint32_t end = from + BESIDE_RANKS < group->size ? from + BESIDE_RANKS : group->size;
    for (uint32_t i = from; i < end; i++) {
        const struct cw_barrier_slot *slot = &group->members[i].slot->barrier;
        if (cw_barrier_look(slot, word) == 0 && !cw_bell_elsewhere(&slot->bell))
            return true;
    }
    return false;
}

/* Gives the core away. Returns when it was back. */
static int64_t give_core(cw_group *group, int64_t now_ns) {
    sched_yield();
    int64_t back_ns = cw_now_ns();
    cw_bell_here(&group->own->barrier.bell);
    group_yielded(&group->yields, now_ns, back_ns);
    return back_ns;
}

/* Looks for about the time of a wake-up. What cw_barrier_look() says. */
static int spin(cw_group *group, uint32_t rank, uint64_t word) {
    struct cw_barrier_slot *slot = &group->members[rank].slot->barrier;
    int64_t now_ns = 0, end_ns = 0;
    for (;;) {
        uint32_t looks = missing_beside(group, rank, word) ? 1
                         : group->crowded                  ? CROWDED_LOOKS
                         : end_ns == 0                     ? ALONE_LOOKS
                                                           : 1;
        while (looks-- > 0) {
            int code = cw_barrier_look(slot, word);
            if (code)
                return code;
            if (looks > 0)
                CW_PAUSE();
        }
        if (end_ns == 0) {
            now_ns = cw_now_ns();
            end_ns = now_ns + (group->spin_ns ? group->spin_ns : CW_SPIN_NS);
        }
        if (now_ns >= end_ns || !group_may_yield(&group->yields, now_ns) || broken_now(group))
            return 0;
        now_ns = give_core(group, now_ns);
    }
}

/* Until one member has arrived: what cw_barrier_look() says then, or the code that ends it. */
static int wait_for(cw_group *group, uint32_t rank, uint64_t word) {
    struct cw_barrier_slot *slot = &group->members[rank].slot->barrier;
    int code = spin(group, rank, word);
    int64_t nap_ns = GROUP_NAP_NS;
    bool looked = false;
    while (code == 0) {
        int64_t limit_ns = nap_ns;
        code = cw_group_may_wait(group, &limit_ns);
        if (code == 0 && looked)
            look_for_the_dead(group, word);
        if (code == 0)
            code = cw_group_told(group);
        if (code) {
            int arrived = cw_barrier_look(slot, word);
            if (arrived && code == -EOWNERDEAD)
                return arrived; /* what it arrived for has happened */
            break;
        }
        cw_barrier_sleep(slot, word, &group->page->broken, group->unbroken, limit_ns);
        nap_ns = group_longer(nap_ns);
        looked = true;
        code = cw_barrier_look(slot, word);
    }
    if (code == -ETIMEDOUT) {
        timed_out(group, word);
        cw_group_break_by(group, CW_GROUP_TIMED_OUT, group->rank);
    }
    if (code == -EINTR)
        cw_group_break_by(group, CW_GROUP_INTERRUPTED, group->rank);
    return code;
}

#define DECLINED_WHAT group_what(GROUP_DECLINED, 0, 0, GROUP_NO_ROOT, 0)

/* Why that member cannot take part; what it wrote may be anything. */
static void reason_text(const struct group_call *call, char text[CW_GROUP_INLINE_MAX]) {
    const volatile uint8_t *from = call->data;
    uint32_t i;
    for (i = 0; i + 1 < CW_GROUP_INLINE_MAX && from[i]; i++)
        text[i] = from[i] >= ' ' && from[i] <= '~' ? (char)from[i] : '?';
    text[i] = 0;
}

static int differs(const cw_group *group) {
    const struct group_call *own = &group->own->call[group->number & 1];
    char ours[96], theirs[96] = "something else", why[CW_GROUP_INLINE_MAX];
    uint32_t other = group->rank;
    for (uint32_t i = 0; i < group->size; i++) {
        const struct group_call *call = group_call_of(group, i);
        if (call->what != DECLINED_WHAT)
            continue;
        reason_text(call, why);
        return cw_fail(-EINVAL,
                       "in group \"%s\" rank %u could not take part in the operation that all "
                       "call: %s. Nothing was done",
                       group->name, i, why);
    }
    cw_group_describe(own->what, own->count, ours, sizeof ours);
    for (uint32_t i = 0; i < group->size && other == group->rank; i++) {
        const struct group_call *call = group_call_of(group, i);
        if (call->what == own->what && call->count == own->count)
            continue;
        cw_group_describe(call->what, call->count, theirs, sizeof theirs);
        other = i;
    }
    return cw_fail(-EINVAL,
                   "in group \"%s\" rank %u calls %s where rank %u calls %s: all members call the "
                   "same operations, with the same dtype, count, root and op. Nothing was done",
                   group->name, group->rank, ours, other, theirs);
}

int cw_group_await(cw_group *group) {
    const uint64_t word = word_now(group);
    bool same = true;
    for (uint32_t i = 0; i < group->size; i++) {
        int code = cw_barrier_look(&group->members[i].slot->barrier, word);
        if (code == 0)
            code = wait_for(group, i, word);
        if (code == -EBADMSG)
            same = false;
        else if (code < 0)
            return code;
    }
    return same ? 0 : differs(group);
}

int cw_group_decline(cw_group *group, const char *why) {
    int64_t end_ns = group ? group->refused_end_ns : 0;
    int code = why ? cw_group_begin(group) : cw_needs("a reason");
    if (code)
        return code;
    if (end_ns)
        group->end_ns = end_ns;
    struct group_call *call = group_next_call(group);
    snprintf((char *)call->data, sizeof call->data, "%s", why);
    cw_group_arrive(group, DECLINED_WHAT, 0);
    code = cw_group_await(group);
    cw_group_leave_call(group);
    return code == -EINVAL ? 0 : code; /* the others, or all, decline or call what they call */
}

uint32_t cw_group_meetings(const cw_group *group) {
    return group ? group->number : 0;
}

int cw_group_interrupt(cw_group *group) {
    int code = cw_group_begin(group);
    if (code)
        return code;
    cw_group_break_by(group, CW_GROUP_INTERRUPTED, group->rank);
    cw_group_leave_call(group);
    return 0;
}

int cw_group_glance(cw_group *group, int rounds) {
    const uint64_t word = word_now(group);
    uint32_t i = 0;
    while (rounds-- > 0) {
        while (i < group->size && cw_barrier_look(&group->members[i].slot->barrier, word) == 1)
            i++;
        if (i == group->size)
            return 1;
        CW_PAUSE();
    }
    return 0;
}

/* ---- barrier ---- */

#define BARRIER_WHAT group_what(GROUP_BARRIER, 0, 0, GROUP_NO_ROOT, 0)

static int await_all(cw_group *group) {
    struct cw_trace_span span;
    cw_group_span(&span, group, GROUP_BARRIER);
    int code = cw_group_await(group);
    cw_trace_leave(&span, code < 0);
    return code;
}

int cw_group_barrier(cw_group *group) {
    int code = cw_group_begin(group);
    if (code)
        return code;
    cw_group_arrive(group, BARRIER_WHAT, 0);
    return cw_group_end(group, await_all(group));
}

int cw_group_barrier_begin(cw_group *group) {
    int code = cw_group_begin(group);
    if (code)
        return code;
    cw_group_arrive(group, BARRIER_WHAT, 0);
    if (cw_group_glance(group, group->crowded ? 1 : 64))
        return cw_group_end(group, 0);
    group->in_barrier = true;
    return cw_fail_plain(-EAGAIN, "others have not come yet: cw_group_barrier_finish() waits");
}

int cw_group_barrier_finish(cw_group *group) {
    if (!group || !group->in_barrier)
        return cw_fail(-EINVAL,
                       "cw_group_barrier_finish() comes after cw_group_barrier_begin() has "
                       "returned -EAGAIN, of the same group");
    group->in_barrier = false;
    return cw_group_end(group, await_all(group));
}
