/*
 * Joining and leaving: how a page is found or made, how an epoch begins and is complete, and how
 * the last member takes the name away. Rules and deaths are in page.h.
 *
 * Owner: struct cw_group is this process's; of the page each step is one compare-and-swap, and who
 * waits looks again and again at what others may have changed.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/base/layout.h"
#include "ipc/client.h"
#include "ipc/cuda/kernel.h"
#include "ipc/group/collective.h"
#include "ipc/group/message.h"
#include "ipc/group/page.h"
#include "ipc/group/window.h"
#include "ipc/request/socket.h"
#include "shm/base/error.h"
#include "shm/base/task.h"

#define NAP_FIRST_NS 500000
#define NAMED_EACH   4u /* looks, before the name is looked at once */

static uint64_t joined_word(uint64_t claim, uint32_t epoch) {
    return claim ^ (uint64_t)epoch * 0x9e3779b97f4a7c15ull;
}

/* ---- waiting ---- */

/* Sleeps until members come or go, or for a while that doubles. 0, -ETIMEDOUT, -EINTR. */
static int nap(cw_group *group, uint32_t rings, int64_t *nap_ns) {
    int64_t left_ns = *nap_ns;
    int code = cw_group_may_wait(group, &left_ns);
    if (code)
        return code;
    cw_bell_sleep(&group->page->changed, rings, left_ns);
    *nap_ns = *nap_ns * 2 < GROUP_LOOK_NS ? *nap_ns * 2 : GROUP_LOOK_NS;
    return 0;
}

static int still_alive(cw_group *group, struct group_state state) {
    struct group_page *page = group->page;
    char pids[128] = "";
    size_t used = 0;
    for (uint32_t i = cw_group_next_living(page, 0);
         i < CW_GROUP_RANKS_MAX && used + 16 < sizeof pids; i = cw_group_next_living(page, i + 1))
        used += (size_t)snprintf(pids + used, sizeof pids - used, "%s%u", used ? ", " : "",
                                 (unsigned)(cw_group_claim(&page->slots[i]) & CW_TASK_TID_MASK));
    return cw_fail(state.phase == GROUP_RUNNING ? -ETIMEDOUT : -EINVAL,
                   "group \"%s\" of %u members %s, with the processes %s; %u members cannot join. "
                   "%s",
                   group->name, state.size,
                   state.phase == GROUP_RUNNING ? "runs, or has not ended" : "is being joined",
                   pids, group->size,
                   state.phase == GROUP_RUNNING ? "End them, or choose another name"
                                                : "All members give the same size");
}

/* Are all members of the running epoch there? Then nobody else ever will be. */
static bool all_there(cw_group *group, struct group_state state) {
    uint32_t living = 0;
    for (uint32_t i = cw_group_next_living(group->page, 0); i < CW_GROUP_RANKS_MAX;
         i = cw_group_next_living(group->page, i + 1))
        living++;
    return living >= state.size;
}

/* Makes the page's epoch one that we can join. */
static int epoch_begin(cw_group *group) {
    int64_t nap_ns = NAP_FIRST_NS;
    for (;;) {
        uint32_t rings = cw_bell_announce(&group->page->changed);
        struct group_state state = cw_group_state(group);
        struct group_state next = {state.epoch + 1, group->size, 0, GROUP_JOINING};
        if (state.phase == GROUP_JOINING && state.size == group->size) {
            group->epoch = state.epoch;
            return 0;
        }
        if (state.phase == GROUP_EMPTY ||
            cw_group_next_living(group->page, 0) == CW_GROUP_RANKS_MAX) {
            cw_group_state_swap(group, state, next);
            continue;
        }
        if (state.phase == GROUP_JOINING)
            return still_alive(group, state);
        if (all_there(group, state) && cw_group_state(group).epoch == state.epoch &&
            state.size == group->size) {
            uint64_t broken = cw_barrier_broken(&group->page->broken);
            if (broken >> 32 != state.epoch)
                return cw_fail(-EBUSY,
                               "group \"%s\" has all of its %u members already: start as many "
                               "processes as its size says, or choose another name",
                               group->name, group->size);
        }
        int code = nap(group, rings, &nap_ns);
        if (code == -ETIMEDOUT)
            return still_alive(group, state);
        if (code)
            return code;
        code = cw_group_page_named(group);
        if (code)
            return code;
    }
}

/* ---- a slot ---- */

/* Gives the slot back. */
static void slot_leave(cw_group *group, struct group_slot *slot, uint64_t me) {
    CW_STORE(N15, &slot->joined, 0, relaxed); /* N15: before N16, or our own to begin with */
    /* N16: another one may have taken it, if we were taken for dead. Release: pairs with N17. */
    CW_CAS(N16, &slot->claim, &me, 0, acq_rel);
    cw_barrier_rouse(&slot->barrier);
    cw_bell_rouse(&group->page->changed);
}

static bool slot_take(struct group_slot *slot, uint64_t me) {
    uint64_t claim = cw_group_claim(slot);
    /* N17: one of those who want it wins. */
    return cw_group_claim_free(claim) && CW_CAS(N17, &slot->claim, &claim, me, acq_rel);
}

/* Takes a slot: the one of the rank, or the lowest that is free. */
static int slot_find(cw_group *group, int32_t rank, uint64_t me) {
    struct group_page *page = group->page;
    if (rank >= 0) {
        while (!slot_take(&page->slots[rank], me)) {
            uint64_t claim = cw_group_claim(&page->slots[rank]);
            if (!cw_group_claim_free(claim))
                return cw_fail(-EEXIST,
                               "rank %d of group \"%s\" is taken by process %u: each member has a "
                               "rank of its own; either all give theirs, or none does",
                               rank, group->name, (unsigned)(claim & CW_TASK_TID_MASK));
        }
        group->rank = (uint32_t)rank;
        return 0;
    }
    for (uint32_t i = 0; i < group->size; i++) {
        if (!slot_take(&page->slots[i], me))
            continue;
        group->rank = i;
        return 0;
    }
    return -EAGAIN; /* it is about to be complete, or one of them dies */
}

/* Clears what an earlier holder left, and says that we are there. */
static void slot_join(cw_group *group, uint64_t me) {
    struct group_slot *slot = group->own;
    for (unsigned i = 0; i < 2; i++) {
        memset(&slot->call[i], 0, sizeof slot->call[i]);
        CW_STORE(N18, &slot->barrier.arrived[i], 0, relaxed); /* N18: before N19 */
    }
    CW_STORE(N18, &slot->ready, 0, relaxed);
    CW_STORE(N18, &slot->member, me, relaxed);
    slot->inbox = group->inbox_handle;
    /* N19: release: what was cleared; pairs with N20. Before W9 of the bell; a sleeper that misses
     * it looks again soon. */
    CW_STORE(N19, &slot->joined, joined_word(me, group->epoch), release);
    cw_bell_wake(&group->page->changed);
}

/* Have all joined, by processes that live? *missing: the first that has not. */
static bool all_joined(cw_group *group, uint32_t *missing) {
    for (uint32_t i = 0; i < group->size; i++) {
        struct group_slot *slot = &group->page->slots[i];
        uint64_t claim = cw_group_claim(slot);
        /* N20: pairs with N19. */
        uint64_t joined = CW_LOAD(N20, &slot->joined, acquire);
        *missing = i;
        if (claim == 0 || joined != joined_word(claim, group->epoch))
            return false;
    }
    for (uint32_t i = 0; i < group->size; i++) {
        *missing = i;
        if (!cw_task_process_runs(cw_group_claim(&group->page->slots[i])))
            return false;
    }
    return true;
}

static int not_complete(cw_group *group) {
    char missing[160] = "";
    size_t used = 0;
    uint32_t there = 0;
    for (uint32_t i = 0; i < group->size; i++) {
        bool taken = !cw_group_claim_free(cw_group_claim(&group->page->slots[i]));
        there += taken;
        if (!taken && used + 8 < sizeof missing)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%u",
                                     used ? ", " : "", i);
    }
    return cw_fail(-ETIMEDOUT,
                   "group \"%s\" was not complete after %.3f s: %u of %u members came; missing: "
                   "rank %s. Start them, or give a longer timeout",
                   group->name, (double)group->timeout_ns / 1e9, there, group->size, missing);
}

/* Waits until the epoch runs. -EAGAIN: it became another one, or another page has the name. */
static int wait_complete(cw_group *group) {
    int64_t nap_ns = NAP_FIRST_NS;
    for (uint32_t looks = 1;; looks++) {
        uint32_t missing, rings = cw_bell_announce(&group->page->changed);
        struct group_state state = cw_group_state(group), running = state;
        if (state.epoch != group->epoch || state.size != group->size)
            return -EAGAIN;
        if (state.phase == GROUP_RUNNING)
            return 0;
        running.phase = GROUP_RUNNING;
        if (all_joined(group, &missing)) {
            if (cw_group_state_swap(group, state, running))
                cw_bell_rouse(&group->page->changed);
            continue;
        }
        int code = nap(group, rings, &nap_ns);
        if (code == -ETIMEDOUT)
            return not_complete(group);
        if (code == 0 && looks % NAMED_EACH == 0)
            code = cw_group_page_named(group);
        if (code)
            return code;
    }
}

/* ---- joining ---- */

void cw_group_members(cw_group *group, const uint32_t *slots) {
    for (uint32_t i = 0; i < CW_GROUP_RANKS_MAX; i++)
        group->rank_of[i] = CW_GROUP_RANKS_MAX;
    for (uint32_t i = 0; i < group->size; i++) {
        struct group_slot *slot = &group->page->slots[slots ? slots[i] : i];
        group->rank_of[slot - group->page->slots] = (uint16_t)i;
        group->members[i] = (struct group_member){
            .slot = slot,
            /* N26: N13, which saw the epoch run, orders it; some may have left already. */
            .claim = CW_LOAD(N26, &slot->member, relaxed)};
    }
    cpu_set_t cores;
    int count = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
    group->crowded = group->size > (uint32_t)count;
    group->unbroken = cw_barrier_broken(&group->page->broken);
}

/* One try on the page that has the name now. -EAGAIN: another one. */
static int join_once(cw_group *group, int32_t rank) {
    const uint64_t me = group->me;
    int code = cw_group_page_open(group);
    if (code == 0)
        code = epoch_begin(group);
    if (code == 0)
        code = slot_find(group, rank, me);
    if (code == 0) {
        group->own = &group->page->slots[group->rank];
        struct group_state state =
            cw_group_state(group); /* after the claim, which others look at */
        if (state.epoch == group->epoch && state.size == group->size) {
            slot_join(group, me);
            code = wait_complete(group);
        } else
            code = -EAGAIN;
        if (code)
            slot_leave(group, group->own, me);
    }
    if (code == 0) {
        group->oldest = group->epoch;
        cw_group_members(group, NULL);
    } else if (group->page)
        cw_group_page_close(group);
    return code;
}

static int join_check(cw_client *client, const char *name, uint32_t size, int32_t rank,
                      const void *out) {
    if (!client || !name || !out)
        return cw_needs("a client, a name and a place for the group");
    if (size < 1 || size > CW_GROUP_RANKS_MAX)
        return cw_fail(-EINVAL, "size %u: a group has 1 to %d members", size, CW_GROUP_RANKS_MAX);
    if (rank < -1 || (rank >= 0 && (uint32_t)rank >= size))
        return cw_fail(-EINVAL, "rank %d: a group of %u has ranks 0 to %u, or -1 for any", rank,
                       size, size - 1);
    if (strlen(name) > CW_GROUP_NAME_MAX)
        return cw_fail(-EINVAL, "a group's name has at most %d bytes, %zu were given",
                       CW_GROUP_NAME_MAX, strlen(name));
    if (strncmp(name, "//", 2) == 0)
        return cw_fail(-EINVAL,
                       "\"%s\": all members of a group are on one machine, and its name has no "
                       "node",
                       name);
    return cw_local_name_check(name);
}

/* Joins a page, for as long as it takes. */
static int join(cw_group *group, int32_t rank) {
    int64_t unused_ns = 0;
    int code = cw_inbox_make(group, &group->inbox_handle);
    if (code == 0)
        code = cw_group_may_wait(group, &unused_ns); /* the time begins */
    if (code == -ETIMEDOUT)
        code = 0; /* there is none: what needs no wait is done */
    while (code == 0 && (code = join_once(group, rank)) == -EAGAIN) {
        int64_t left_ns = 0;
        sched_yield();
        code = cw_group_may_wait(group, &left_ns);
        if (code == -ETIMEDOUT)
            code = cw_fail(-ETIMEDOUT,
                           "group \"%s\" could not be joined in %.3f s: all of its %u "
                           "ranks are taken, or its members come and go",
                           group->name, (double)group->timeout_ns / 1e9, group->size);
    }
    return code;
}

int cw_group_join(cw_client *client, const char *name, uint32_t size, int32_t rank,
                  const cw_group_options *options, cw_group **out) {
    static const cw_group_options for_ever = {.timeout_ns = -1};
    int code = join_check(client, name, size, rank, out);
    if (code)
        return code;
    const cw_group_options *given = options ? options : &for_ever;
    cw_group *group = calloc(1, sizeof *group);
    if (!group)
        return cw_fail(-EDQUOT, "no memory for a group");
    cw_client_ref(client);
    group->client = client;
    group->me = cw_task_process();
    group->size = size;
    group->timeout_ns = given->timeout_ns;
    group->check = given->interrupted;
    group->context = given->context;
    if (given->spent_ns > 0 && given->timeout_ns > 0)
        group->end_ns = cw_end_ns(cw_now_ns() - given->spent_ns, given->timeout_ns);
    snprintf(group->name, sizeof group->name, "%s", name);
    cw_kernels_load_started(); /* before anybody waits for us (gpu_reduce.c) */
    int64_t before = cw_socket_limit(cw_group_broker_ns(group));
    struct cw_trace_span span;
    cw_group_span(&span, group, GROUP_TRACE_JOIN);
    code = join(group, rank);
    cw_trace_leave(&span, code < 0);
    cw_socket_unlimit(before);
    if (code == -EINPROGRESS) /* the broker has the name, and does not answer */
        code = cw_socket_too_late();
    if (code) {
        cw_inboxes_close(group);
        cw_client_unref(client);
        free(group);
        return code;
    }
    *out = group;
    return 0;
}

/* ---- leaving ---- */

/* Is everybody else gone, or about to go? */
static bool last_one(cw_group *group) {
    for (uint32_t i = 0; i < group->size; i++) {
        struct group_member *member = &group->members[i];
        if (i == group->rank || cw_group_claim(member->slot) != member->claim)
            continue;
        if (CW_LOAD(N20, &member->slot->joined, acquire) != 0 && cw_group_present(member))
            return false;
    }
    return true;
}

static void leave(cw_group *group) {
    /* N21: says that we are about to leave, and then looks who else is; two who leave at once may
     * both find so. */
    CW_XCHG(N21, &group->own->joined, 0, acq_rel);
    /* A name that a broker which does not answer keeps is taken over by the next group. */
    group->end_ns = 0;
    int64_t before = cw_socket_limit(cw_group_broker_ns(group));
    if (last_one(group))
        cw_group_page_unname(group);
    cw_socket_unlimit(before);
    slot_leave(group, group->own, group->me);
}

void cw_group_close(cw_group *group) {
    if (!group)
        return;
    if (group->page && !cw_client_forked(group->client))
        leave(group);
    cw_stages_close(group);
    cw_group_detour_close(group);
    cw_inboxes_close(group);
    if (group->page)
        cw_group_page_close(group);
    cw_client_unref(group->client);
    free(group->views);
    free(group);
}

int cw_group_set_timeout(cw_group *group, int64_t timeout_ns) {
    if (!group)
        return cw_needs("a group");
    group->timeout_ns = timeout_ns;
    return 0;
}

uint32_t cw_group_rank(const cw_group *group) {
    return group ? group->rank : 0;
}

uint32_t cw_group_size(const cw_group *group) {
    return group ? group->size : 0;
}

uint64_t cw_group_completed(const cw_group *group) {
    return group ? group->completed : 0;
}
