/*
 * Replica: what replica.c and co_located.c share. See replica.c for its states.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_REPLICA_H
#define CW_BROKER_BRIDGE_FETCH_REPLICA_H

#include "ipc/base/device.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/fetch/gpu_receive.h"

struct cwb_replica {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct cwb_take take;
    struct cwb_landing *landing; /* it comes onto a GPU, or is a copy of a sibling */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cw_name_key key, there;
    bool on_gpu;
    uint8_t gpu[CW_UUID_BYTES];
    struct cwb_replica *followed, *followers, *follow_next; /* siblings, see co_located.c */
    bool held, waits;
    bool whole; /* in memory, and checked: put and came say where and what; being named, or HELD */
    bool named; /* whole: the broker was asked for its name */
    struct cwb_naming *naming; /* whole: until the broker has answered */
    bool calm; /* whole: the broker's answer that it has its name wakes nobody (replica.c) */
    struct cw_put put;
    uint32_t posted;                /* on the board: its place there + 1 */
    struct cwb_floor *floor;        /* floor.h */
    struct cwb_replica *next_place; /* there */
    uint64_t sent; /* stamp of the question to its owner (floor.h); 0: it was not asked yet */
    bool doubtful; /* it will not be found: it changed, or the peer was away, or something later was
                      told, while it was being fetched */
    bool waited;   /* who wants it has waited for another fetch already */
    unsigned tries, unused;
    int64_t answered_ns; /* whole: when somebody was last told where it lies; 0: nobody was */
    int64_t looked_ns;   /* replica_gc.c */
    struct cwb_replica *look_next, *look_prev;
    struct cwb_job *jobs;
    struct cwb_job *late; /* asked when it was doubtful already: what is fetched next is theirs */
    struct cwb_request *asked;
    struct cwb_opened opened;
    uint64_t run;
    uint8_t *came;   /* OPEN's reply: the meta, then the bytes if they are inside; malloced.
                      * Whole: the meta of put */
    cw_array *array; /* whole: our hold on it; HELD in host memory: none, its name holds it */
    UT_hash_handle hh;
};

/* ---- replica.c ---- */
/* Fetches it, or has it copied from a sibling. */
void cwb_replica_begin(struct cwb_replica *replica);
/* What was being fetched is given up, and fetched again. */
void cwb_replica_again(struct cwb_replica *replica);
/* All who wait hear this thread's sentence; it is gone. */
void cwb_replica_fail(struct cwb_replica *replica, int status);
/* array is there, whole and checked: it gets its name. */
void cwb_replica_put(struct cwb_replica *replica);
/* It is whole: outdated, and its name goes; it is gone, or, for who asked late, fetched again. */
void cwb_replica_let_go(struct cwb_replica *replica);

/* Something depends on its being HELD from now on: if it is being named, and the broker was told
 * that its answer need wake nobody, it is asked something whose answer does, and comes after that
 * one. */
void cwb_replica_hurry(struct cwb_replica *replica);

struct cwb_replica *cwb_replica_find(struct cwb_bridge *bridge, const struct cw_name_key *key);

/* ---- invalidation.c ---- */
/* It may be found no more from now on, or will not be. If it is whole it is gone, or begins anew.
 */
void cwb_doubts_outdate(struct cwb_replica *replica);
/* Ends our hold on its array, if there is one: later, where somebody may be about to open it. */
void cwb_doubts_part(struct cwb_replica *replica);
/* Ends such holds. Returns when it wants to be called again. */
int64_t cwb_doubts_tick(struct cwb_bridge *bridge);

/* ---- replica_gc.c ---- */
/* Looks at all that are HELD on GPUs, now: memory is needed there. true: there are some. */
bool cwb_looks_at_gpus(struct cwb_bridge *bridge);
/* Lets go of what nobody uses. Returns when it wants to be called again. */
int64_t cwb_looks_tick(struct cwb_bridge *bridge);

/* ---- co_located.c ---- */
/* Its array is to come onto a GPU, or from another place of this node: size and place are filled
 * in. */
void cwb_replica_land(struct cwb_replica *replica, const struct cwb_landing_wish *what);
/* What came to one place is copied to another on this node; what is coming is waited for. false: it
 * must be fetched. */
bool cwb_replica_follow(struct cwb_replica *replica);
/* It is HELD, or gone: siblings that waited for it go on. */
void cwb_replica_wake(struct cwb_replica *replica);

#endif
