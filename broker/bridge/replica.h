/*
 * Replica: what replica.c and sibling.c share. See replica.c for its states.
 */
#ifndef CW_BRIDGE_REPLICA_H
#define CW_BRIDGE_REPLICA_H

#include "broker/bridge/job.h"
#include "broker/bridge/landing.h"

struct cwb_replica {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct cwb_take take;
    struct cwb_landing *landing; /* it comes onto a GPU, or is a copy of a sibling */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cw_name_key key, there;
    bool on_gpu;
    uint8_t gpu[CW_UUID_BYTES];
    struct cwb_replica *followed, *followers, *follow_next; /* siblings, see sibling.c */
    bool held, waits;
    bool whole; /* in memory, and checked: put and came say where and what; being named, or HELD */
    bool calm;  /* whole: nobody waited for its name when it was asked for */
    bool ahead; /* whole: an older sibling may be found at its place until this one has its name */
    struct cw_put put;
    uint32_t posted; /* on the board: its place there + 1 */
    bool written;    /* a client of this node wrote the name since the owner was asked */
    bool doubtful;   /* changed, or the peer was away, while it was being fetched: soon let go; not
                        on the board */
    unsigned tries, rewrites, unused;
    int64_t looked_ns; /* looks.c */
    struct cwb_job *jobs;
    struct cwb_job *late; /* asked when it was doubtful already: what is fetched next is theirs */
    struct cwb_request *asked;
    struct cwb_opened opened;
    uint64_t run;
    uint8_t *came;   /* OPEN's reply: the meta, then the bytes if they are inside; malloced.
                      * Whole: the meta of put */
    cw_array *array; /* HELD: until it is looked at who uses it, which costs the hot path nothing */
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
/* Takes the name of one that is HELD away; it is gone, or, for who asked late, fetched again. */
void cwb_replica_let_go(struct cwb_replica *replica);

/* Its name goes; it stays as it is. */
void cwb_replica_unname(struct cwb_replica *replica);

struct cwb_replica *cwb_replica_find(struct cwb_bridge *bridge, const struct cw_name_key *key);

/* ---- doubts.c ---- */
/* It is HELD, and doubtful: it is let go of some time later. */
void cwb_doubts_hold(struct cwb_bridge *bridge);
/* It is whole, and about to be told. false: it is older than what was told at a sibling's place. */
bool cwb_doubts_newest(struct cwb_replica *replica);
/* It is about to be told: older siblings are found no more. true: one may be until the broker has
 * read so. */
bool cwb_doubts_outdate(struct cwb_replica *replica);
/* Lets go of those whose time is over. Returns when it wants to be called again. */
int64_t cwb_doubts_tick(struct cwb_bridge *bridge);

/* ---- looks.c ---- */
/* Lets go of what nobody uses. Returns when it wants to be called again. */
int64_t cwb_looks_tick(struct cwb_bridge *bridge);

/* ---- sibling.c ---- */
/* Its array is to come onto a GPU, or from another place of this node: size and place are filled
 * in. */
void cwb_replica_land(struct cwb_replica *replica, const struct cwb_landing_wish *what);
/* What came to one place is copied to another on this node; what is coming is waited for. false: it
 * must be fetched. */
bool cwb_replica_follow(struct cwb_replica *replica);
/* It is HELD, or gone: siblings that waited for it go on. */
void cwb_replica_wake(struct cwb_replica *replica);

#endif
