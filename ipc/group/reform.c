/*
 * Going on without the dead: the members that are left of a broken epoch make the next one.
 *
 * Each says in its slot that it is ready, with what it has completed. Who finds that all members
 * which are still there are ready writes a proposal into its own slot: who goes on, the lowest
 * number of completed operations, and a number for meetings beyond all of theirs. Then it swaps the
 * state, which names it: one of those who propose wins, and all go by the winner's proposal.
 *
 * Deaths: who dies before the swap is not waited for any more, or is in a proposal: then the new
 * epoch is broken as soon as somebody waits for him. The proposal of a dead winner stays in its
 * slot, which nobody can take as long as the state is RUNNING.
 *
 * A member that neither comes here nor ends is waited for until the time is out.
 */
#include <stdio.h>
#include <string.h>

#include "ipc/client.h"
#include "ipc/group/message.h"
#include "ipc/group/page.h"
#include "ipc/group/window.h"
#include "shm/base/error.h"
#include "shm/base/task.h"

static uint64_t ready_of(const struct group_member *member) {
    /* N23: pairs with N22: what the member has completed. */
    return CW_LOAD(N23, &member->slot->ready, acquire);
}

static uint64_t figure_of(const cw_a64 *word) {
    return CW_LOAD(N24, (cw_a64 *)(uintptr_t)word, relaxed); /* N24: N23 orders it */
}

static void say_ready(cw_group *group, uint64_t epoch) {
    struct group_slot *own = group->own;
    CW_STORE(N25, &own->completed, group->completed, relaxed); /* N25: before N22 */
    CW_STORE(N25, &own->number, group->number, relaxed);
    /* N22: release: the figures; pairs with N23. A sleeper that misses the wake-up looks again. */
    CW_STORE(N22, &own->ready, epoch, release);
    cw_bell_rouse(&group->page->changed);
}

/* Fills our proposal, if all who are there are ready: how many go on; 0: not yet, *missing is one
 * that is not. */
static uint32_t propose(cw_group *group, uint32_t *missing) {
    struct group_proposal *proposal = &group->own->proposal[(group->epoch + 1) & 1];
    struct group_proposal found = {.completed = group->completed, .number = group->number};
    uint32_t count = 0;
    for (uint32_t i = 0; i < group->size; i++) {
        struct group_member *member = &group->members[i];
        if (i != group->rank && !cw_group_present(member))
            continue;
        if (ready_of(member) != group->epoch) {
            *missing = i;
            return 0;
        }
        uint64_t slot = (uint64_t)(member->slot - group->page->slots);
        uint64_t completed = figure_of(&member->slot->completed);
        uint64_t number = figure_of(&member->slot->number);
        found.members[slot / 64] |= 1ull << slot % 64;
        found.completed = completed < found.completed ? completed : found.completed;
        if ((int32_t)((uint32_t)number - (uint32_t)found.number) > 0)
            found.number = number;
        count++;
    }
    found.number += 4; /* no word of an arrival is there yet that could be taken for a new one */
    *proposal = found;
    return count;
}

/* Goes by what was decided. -EAGAIN: yet another epoch began meanwhile. */
static int adopt(cw_group *group, struct group_state state) {
    struct group_page *page = group->page;
    uint32_t slots[CW_GROUP_RANKS_MAX], size = 0, rank = CW_GROUP_RANKS_MAX;
    if (state.phase != GROUP_RUNNING || state.proposer >= CW_GROUP_RANKS_MAX)
        return cw_fail(-EOWNERDEAD, "group \"%s\" has ended: join it again", group->name);
    struct group_proposal proposal = page->slots[state.proposer].proposal[state.epoch & 1];
    if (group_state_word(cw_group_state(group)) != group_state_word(state))
        return -EAGAIN;
    for (uint32_t i = 0; i < CW_GROUP_RANKS_MAX; i++) {
        if (!(proposal.members[i / 64] >> i % 64 & 1))
            continue;
        if (&page->slots[i] == group->own)
            rank = size;
        slots[size++] = i;
    }
    if (rank == CW_GROUP_RANKS_MAX || size != state.size)
        return cw_fail(-EOWNERDEAD,
                       "group \"%s\" went on without rank %u (pid %d), which did not take part in "
                       "reform() in time: close it, and join another one",
                       group->name, group->rank, (int)(group->me & CW_TASK_TID_MASK));
    cw_stages_close(group);
    cw_inboxes_forget(group);
    group->epoch = state.epoch;
    group->size = size;
    group->rank = rank;
    group->completed = proposal.completed;
    group->number = (uint32_t)proposal.number;
    cw_group_members(group, slots);
    return 0;
}

static int not_ready(cw_group *group, uint32_t missing) {
    say_ready(group, 0);
    return cw_fail(-ETIMEDOUT,
                   "reform() of group \"%s\" waited %.3f s for rank %u (pid %d), which lives and "
                   "has not called it: let it call reform() or close(), or end it",
                   group->name, (double)group->timeout_ns / 1e9, missing,
                   (int)(group->members[missing].claim & CW_TASK_TID_MASK));
}

static int reform(cw_group *group) {
    int64_t nap_ns = GROUP_NAP_NS;
    say_ready(group, group->epoch);
    for (;;) {
        uint32_t missing = 0, rings = cw_bell_announce(&group->page->changed);
        struct group_state state = cw_group_state(group);
        if (state.epoch != group->epoch) {
            int code = adopt(group, state);
            if (code != -EAGAIN)
                return code;
            continue;
        }
        uint32_t count = propose(group, &missing);
        if (count) {
            uint32_t slot = (uint32_t)(group->own - group->page->slots);
            struct group_state next = {group->epoch + 1, count, slot, GROUP_RUNNING};
            if (cw_group_state_swap(group, state, next))
                cw_bell_rouse(&group->page->changed);
            continue;
        }
        int64_t left_ns = nap_ns;
        int code = cw_group_may_wait(group, &left_ns);
        if (code == -ETIMEDOUT)
            return not_ready(group, missing);
        if (code) {
            say_ready(group, 0);
            return code;
        }
        cw_bell_sleep(&group->page->changed, rings, left_ns);
        nap_ns = group_longer(nap_ns);
    }
}

int cw_group_reform(cw_group *group) {
    int code = cw_group_enter(group);
    if (code)
        return code;
    if (!cw_group_broken(group, NULL) && cw_group_state(group).epoch == group->epoch)
        code = cw_fail(-EINVAL,
                       "group \"%s\" is not broken: reform() is for what is left of a group after "
                       "GroupBroken or Timeout",
                       group->name);
    else
        code = reform(group);
    cw_group_leave_call(group);
    return code;
}
