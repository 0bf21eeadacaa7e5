/*
 * The page of a group, and this process's view of it.
 *
 * The page is a host array under the name ".group/NAME". Who finds no such name makes one, and
 * names it if nobody else has (cw_array_put_weak() decides). It is used again by later groups of
 * that name if somebody has it open still; who leaves last removes it. The name lasts only as long
 * as somebody has the page open, so it goes also when all members are killed
 * (broker/names/weak_names.h).
 *
 *   state    epoch | size | proposer | phase: EMPTY (nobody was ever here), JOINING, RUNNING
 *   broken   epoch | reason | rank: how that epoch ended, before its members left
 *   slots    one a member: who has it (claim), its words of the barrier, what it brings to a
 * meeting
 *
 *   EMPTY --------------> JOINING(e + 1, size) -------------> RUNNING(e, size)
 *      by who comes first      by whoever finds all slots joined     |  |
 *   JOINING(e + 1, size) <---- nobody of e lives or stays -----------+  +--> RUNNING(e + 1, fewer)
 *      by who comes first                                              by a survivor (reform.c)
 *
 * Each arrow is one compare-and-swap of the state.
 *
 * Invariants
 * - A slot is free if its claim is 0 or names a process that has ended. A compare-and-swap takes
 * it, and only while the state is JOINING. Who takes a slot looks at the state once more: if it is
 *   another epoch now, he gives the slot back.
 * - `joined` is the claim and the epoch mixed: it cannot be that of an earlier holder. A slot's
 *   other words were cleared before it was stored.
 * - RUNNING(e, size) was stored by somebody who saw all slots joined, by processes that ran. From
 *   then on a member of e is who joined with the slot, which `member` says also when he has left:
 *   each member notes all of these. A slot whose claim is another one now counts as left.
 * - Every member waits with looks in between (meet.c), 32 ms apart at most. So whoever dies, at
 *   whatever moment, is missed by all who wait for him; the first one who notices breaks the epoch
 *   and rouses the others. Nobody relies on being woken.
 * - A name that was removed or replaced meanwhile: who waits for members looks now and then whether
 *   the name still means this page; he names it again if nobody has the name, and moves over if
 *   another page has it.
 *
 * Deaths
 *   maker of a page before it is named       the array goes with him
 *   who joins, having a claim                the slot is free for the next one
 *   who joins, joined                        the same while JOINING; after RUNNING the epoch breaks
 *   a member, at any moment                  the epoch breaks, if anybody waits for him: what he
 *                                            arrived for has happened (barrier.h)
 *   who breaks an epoch, before all know     they see it at their own next look
 *   who leaves, before or after the name     the name goes with the last who has the page open
 *   all members at once                      the broker ends the name, and with it the page
 *   a forked child of a member lives on      nothing: the claim names the process, not its files
 *   the broker                               nothing while the group runs; to join or to send what
 *                                            needs new memory is -ECONNRESET
 *
 * What others write here is checked where it is used: sizes and ranks against the limits, handles
 * by cw_array_open(). A claim that names nobody who runs is a free slot, or a dead member.
 */
#ifndef CW_IPC_GROUP_PAGE_H
#define CW_IPC_GROUP_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ipc/cableway.h"
#include "ipc/group/yields.h"
#include "shm/base/trace.h"
#include "shm/tasks/barrier.h"

#define GROUP_MAGIC    0x6377677270303033ull /* "cwgrp003" */
#define GROUP_NAP_NS   1000000               /* the first sleep before a look for the dead, */
#define GROUP_LOOK_NS  32000000              /* and the longest one */
#define GROUP_LEAST_NS 1000000000 /* for the broker's answers, where no time is given at all */
#define GROUP_PREFIX   ".group/"

enum group_phase { GROUP_EMPTY = 0, GROUP_JOINING = 1, GROUP_RUNNING = 2 };

/* What a member brings to a meeting: written before it arrives, by the parity of the number. */
struct group_call {
    uint64_t what; /* the operation: see group_what() */
    uint64_t count;
    uint64_t flags;
    uint64_t extra;
    union {
        uint8_t data[CW_GROUP_INLINE_MAX];
        cw_handle handles[2]; /* where others read, and where they write */
    };
};
_Static_assert(sizeof(struct group_call) == 192, "layout");

struct group_proposal {                        /* of a survivor: who goes on (reform.c) */
    uint64_t members[CW_GROUP_RANKS_MAX / 64]; /* slots */
    uint64_t completed;
    uint64_t number;
};

struct group_slot { /* 704 bytes, shared */
    struct cw_barrier_slot barrier;
    cw_a64 claim;     /* the process that has the slot (cw_task_process()); 0: nobody */
    cw_a64 joined;    /* claim and epoch mixed; 0: not yet, or about to leave */
    cw_a64 ready;     /* the epoch that its member wants to go on from, in reform() */
    cw_a64 completed; /* then: the operations that it has completed, */
    cw_a64 number;    /* and the number of its last meeting */
    cw_a64 member;    /* the claim of who joined last; stays when it leaves */
    uint64_t reserved[2];
    struct group_proposal proposal[2]; /* by the parity of the epoch that it makes */
    cw_handle inbox;                   /* its queue of messages; instance 0: none yet */
    uint64_t pad[6];
    struct group_call call[2];
};
_Static_assert(sizeof(struct group_slot) == 704 && offsetof(struct group_slot, call) % 64 == 0,
               "layout");

struct group_page { /* shared */
    uint64_t magic;
    uint64_t world; /* cw_task_world() of the maker */
    cw_a64 state;
    cw_a64 broken;
    struct cw_bell changed; /* who waits for members to come or to go sleeps here */
    uint64_t reserved[58];
    struct group_slot slots[CW_GROUP_RANKS_MAX];
};

/* The state's word. */
struct group_state {
    uint32_t epoch;
    uint32_t size;
    uint32_t proposer; /* the slot whose proposal made this epoch; 0 and not used after JOINING */
    enum group_phase phase;
};
static inline uint64_t group_state_word(struct group_state state) {
    return (uint64_t)state.epoch << 32 | (uint64_t)state.size << 20 |
           (uint64_t)state.proposer << 8 | (uint64_t)state.phase;
}
static inline struct group_state group_state_of(uint64_t word) {
    return (struct group_state){.epoch = (uint32_t)(word >> 32),
                                .size = (uint32_t)(word >> 20) & 0xfff,
                                .proposer = (uint32_t)(word >> 8) & 0xfff,
                                .phase = (enum group_phase)(word & 0xff)};
}

struct group_member { /* as this process noted it when the epoch began */
    struct group_slot *slot;
    uint64_t claim;
    cw_array *stage; /* its staging memory, as last opened here; NULL: not yet (window.h) */
    cw_handle stage_handle;
    cw_array *outbox_array; /* its inbox, where we put messages (message.h); NULL: not yet */
    cw_queue *outbox;
};

/* Where the members' vectors are, for one piece of each block (collective.c). */
struct group_sources {
    const uint8_t *vector[CW_GROUP_RANKS_MAX];
    uint64_t stride[CW_GROUP_RANKS_MAX]; /* from one block of a vector to the next */
};

struct cw_group {
    cw_client *client; /* one reference */
    cw_array *array;   /* the page; NULL: closed */
    struct group_page *page;
    char name[CW_NAME_MAX + 1]; /* as the user says it */
    uint32_t size, rank, epoch;
    uint32_t number;            /* of the last meeting */
    uint64_t completed;         /* operations of all members that were completed here */
    uint64_t unbroken;          /* the page's word while this epoch is not broken */
    bool in_barrier;            /* cw_group_barrier_finish() comes next */
    bool crowded;               /* more members than cores: who waits gives its core away at once */
    cw_a32 busy;                /* a thread is in an operation */
    int64_t timeout_ns, end_ns; /* of each operation; when this one is over, 0: not counted yet */
    int64_t spin_ns;            /* looks for so long before it sleeps; 0: CW_SPIN_NS */
    int64_t next_end_ns;        /* the same of the next call; 0: it has its own time */
    int64_t refused_end_ns;     /* of the last one, if it failed before others were met; else 0 */
    uint32_t entered;           /* the meetings before this operation */
    struct group_yields yields; /* of the core, while others are waited for */
    int64_t nap_ns;             /* how long the next sleep for a message is */
    int (*check)(void *context);
    void *context;
    cw_array *stage; /* our staging memory (window.h); NULL: not yet needed */
    cw_handle stage_handle;
    bool stage_known; /* all others have opened it */
    cw_array *detour; /* host memory for elements on GPUs (gpu.c); NULL: not yet needed */
    cw_handle inbox_handle;
    cw_array *inbox_array; /* where messages to us come (message.h) */
    cw_queue *inbox;
    struct group_kept *kept; /* those that came and were not asked for yet, as they came */
    uint64_t arrivals;       /* of messages so far */
    uint32_t oldest;         /* messages of earlier epochs are dropped */
    uint32_t looks;          /* for who is gone, so far */
    int64_t looked_ns;       /* when a probe that does not wait last looked for the dead */
    uint32_t stage_half;     /* the half of it that is written next */
    uint64_t me;             /* our claim */
    struct group_slot *own;
    struct group_member members[CW_GROUP_RANKS_MAX];
    uint16_t rank_of[CW_GROUP_RANKS_MAX]; /* by slot; CW_GROUP_RANKS_MAX: of no member */
    struct group_sources sources;         /* of the operation that runs */
    struct group_views *views;            /* the same (collective.c); NULL: not yet needed */
};

/* The next sleep of a wait: they grow, so that a death is noticed at most as long after it as the
 * wait has lasted. */
static inline int64_t group_longer(int64_t nap_ns) {
    return nap_ns * 2 < GROUP_LOOK_NS ? nap_ns * 2 : GROUP_LOOK_NS;
}

/* ---- page.c ---- */

/* The page under the group's name, made where there is none. */
int cw_group_page_open(cw_group *group);
void cw_group_page_close(cw_group *group);
/* Does the name still mean our page? Where nobody has the name, it is given to it. 0, -EAGAIN:
 * another page has it. */
int cw_group_page_named(cw_group *group);
/* Takes the name away, if it means our page. */
void cw_group_page_unname(cw_group *group);
/* The process that has a slot, and whether that is nobody who lives. */
uint64_t cw_group_claim(struct group_slot *slot);
bool cw_group_claim_free(uint64_t claim);
/* The first slot, from one on, that somebody has who lives; CW_GROUP_RANKS_MAX: none. */
uint32_t cw_group_next_living(struct group_page *page, uint32_t from);
struct group_state cw_group_state(const cw_group *group);
/* Whether it was so, and is the other now. */
bool cw_group_state_swap(cw_group *group, struct group_state from, struct group_state to);

/* ---- join.c ---- */

/* Notes who the members of the epoch are, by the slots of their ranks (NULL: as the ranks). */
void cw_group_members(cw_group *group, const uint32_t *slots);

/* ---- meet.c ---- */

/* This thread has the member from now on: -EBUSY, -EINVAL (closed or forked); and no more. */
int cw_group_enter(cw_group *group);
void cw_group_leave_call(cw_group *group);
/* Begins an operation: -EBUSY, -EOWNERDEAD (broken), -EINVAL (closed or forked). */
int cw_group_begin(cw_group *group);
/* Ends it; code comes back. What is not 0 and leaves members behind breaks the group first. */
int cw_group_end(cw_group *group, int code);
/* The place of what this member brings to its next meeting. */
static inline struct group_call *group_next_call(cw_group *group) {
    return &group->own->call[(group->number + 1) & 1];
}
/* What member rank has brought to the last meeting. */
static inline const struct group_call *group_call_of(const cw_group *group, uint32_t rank) {
    return &group->members[rank].slot->call[group->number & 1];
}
/* The bytes that a member brings to its next meeting, or rank has brought to the last one, where
 * they are so many: few lie beside the word of its arrival, in the cache line that all wait for. At
 * most CW_GROUP_INLINE_MAX. */
static inline uint8_t *group_next_bytes(cw_group *group, uint64_t bytes) {
    return bytes <= CW_BARRIER_BROUGHT ? group->own->barrier.brought[(group->number + 1) & 1]
                                       : group_next_call(group)->data;
}
static inline const uint8_t *group_bytes_of(const cw_group *group, uint32_t rank, uint64_t bytes) {
    return bytes <= CW_BARRIER_BROUGHT
               ? group->members[rank].slot->barrier.brought[group->number & 1]
               : group_call_of(group, rank)->data;
}
/* Arrives at the next meeting. */
void cw_group_arrive(cw_group *group, uint64_t what, uint64_t count);
/* Waits until all have arrived at it. 0; -EINVAL: for different things (all members are told);
 * -EOWNERDEAD, -ETIMEDOUT, -EINTR: broken now. Blocks. */
int cw_group_await(cw_group *group);
/* Have all arrived at it? Looks for so many rounds. 1 or 0. */
int cw_group_glance(cw_group *group, int rounds);
/* Breaks the epoch: reason of enum cw_group_reason, the rank that it is about. */
void cw_group_break_by(cw_group *group, uint32_t reason, uint32_t rank);
/* After the first meeting of an operation: what comes of a failure, since the others wait for us at
 * a meeting to which we do not come. Memory of a member that died is gone with it: -ESTALE becomes
 * -EOWNERDEAD then. */
int cw_group_failed(cw_group *group, int code);
/* Before the first meeting: what comes of a failure there. Without a broker there is no way on for
 * anybody, so the group is broken; else nobody was met, and this member can do it again. */
int cw_group_refused(cw_group *group, int code);
/* -EOWNERDEAD with the sentence if this epoch is broken, else 0. */
int cw_group_told(const cw_group *group);
/* Time and signals of a wait: 0, -ETIMEDOUT (without a sentence), -EINTR. left_ns: at most so long
 * may the next sleep be. */
int cw_group_may_wait(cw_group *group, int64_t *left_ns);
/* How long this operation may still wait for the broker, which may be stopped (cw_socket_limit()).
 * Its time is counted from now on, if it was not yet. */
int64_t cw_group_broker_ns(cw_group *group);
/* Is that member still there? */
bool cw_group_present(const struct group_member *member);

/* ---- call.c: what the word `what` tells ---- */

enum group_operation {
    GROUP_BARRIER = 1,
    GROUP_BCAST,
    GROUP_SCATTER,
    GROUP_GATHER,
    GROUP_ALLGATHER,
    GROUP_REDUCE,
    GROUP_ALLREDUCE,
    GROUP_REDUCE_SCATTER,
    GROUP_ALLTOALL,
    GROUP_EXCHANGE,
    GROUP_DECLINED, /* it cannot take part: its call has why, as text */
    GROUP_OPERATIONS
};
#define GROUP_NO_ROOT 0xffffu
/* What a trace calls waits that are no collective operation's; beside enum group_operation. */
enum group_trace { GROUP_TRACE_JOIN = 100, GROUP_TRACE_RECEIVE, GROUP_TRACE_SEND };
/* Enters the span of a call that may wait for other members. */
static inline void cw_group_span(struct cw_trace_span *span, const cw_group *group,
                                 unsigned operation) {
    *span = (struct cw_trace_span){.kind = CW_TRACE_GROUP,
                                   .op = (uint16_t)operation,
                                   .name = group->name,
                                   .name_bytes = (uint32_t)strlen(group->name)};
    cw_trace_enter(span);
}
static inline uint64_t group_what(enum group_operation operation, uint32_t dtype,
                                  uint32_t reduction, uint32_t root, uint32_t step) {
    return (uint64_t)operation | (uint64_t)dtype << 8 | (uint64_t)reduction << 16 |
           (uint64_t)root << 24 | (uint64_t)step << 40;
}
/* "Allreduce(1000 of <f8, sum)". */
void cw_group_describe(uint64_t what, uint64_t count, char *text, size_t room);

#endif
