/*
 * Replicas: remote arrays in local memory, each under its remote name in the directory, where local
 * clients find it without asking anybody.
 *
 *   OPENING --opened--> MAKING --memory--> COMING --whole, checked--> HELD
 *      |  (small arrays come with the answer: no COMING)               |
 *      |                                 changed, unused, or the peer is away
 *      |                                                               v
 *      +--it fails: all jobs are told--------------------------------> gone
 *
 * However many clients want one array, it is fetched once: they all wait for the same replica. At
 * other places of this node, on GPUs, it has co-located replicas (co_located.c). What is HELD is
 * what the name means at its owner as far as it can be known: the owner tells of each change, and
 * while there is no link to it, nothing is HELD. Clients that have opened a replica keep it in any
 * case, also under other names that they give it: its block is frozen, and means the same bytes for
 * as long as anybody has it. If this process dies, the broker takes all replicas' names away.
 *
 * Within the node a name never goes back: floor.h. What a client of this node put or removed is
 * outdated before the broker is told that the write is done. Who asks then, or after its owner has
 * told of a change, while it is being fetched, waits for the next one (late); who asked before that
 * gets what was opened before. A client is told where its array lies, over the fast path and by way
 * of the broker, so that it gets that array though the name may mean another by then; the name is
 * for those who come later, and what is stale gets none.
 *
 * One that is to be fetched anew, or was waiting for another place's, is `due`, and begins at the
 * end of the turn: what has become of one, and of those that waited for it, never runs on in the
 * midst of what becomes of another. Of a due one nothing is under way, so nothing can fail of it,
 * and it is not freed; who asks for it meanwhile waits with the others.
 *
 * Between COMING and HELD the broker is asked for the name. Where nothing here depends on that
 * (no_wake), its answer does not wake this process, which may then sleep for as long as it has
 * nothing else to do. So whatever makes the answer matter calls cwb_replica_hurry(): somebody asks
 * for it (cwb_replica_get), or a co-located replica waits for it (co_located.c). Who sleeps has
 * somebody who wakes him.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_REPLICA_H
#define CW_BROKER_BRIDGE_FETCH_REPLICA_H

#include "broker/bridge/fetch/download.h"
#include "ipc/base/device.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/fetch/gpu_receive.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/relay/relay.h"
#include "broker/bridge/wire/frame.h"

struct cwb_replica {
    struct cwb_waiter waiter; /* first: it is cast back */
    struct cwb_download download;
    struct cwb_gpu_receive *gpu_receive; /* it comes onto a GPU, or is a copy of a co-located one */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cw_name_key key, there;
    bool is_part; /* of a tree: which bytes these are never changes, whatever the name means */
    struct cwb_part part;
    uint32_t name_bytes; /* of there, without what a part's has behind the name */
    bool on_gpu;
    uint8_t gpu[CW_UUID_BYTES];
    struct cwb_replica *followed, *followers, *follow_next; /* co-located ones, see co_located.c */
    bool mapping; /* what it is to be copied from is being mapped, see co_located.c */
    bool due;     /* begins at the end of the turn, in the bridge's list of these: */
    struct cwb_replica *due_next, *due_prev;
    bool held, waits;
    bool whole; /* in memory, and checked: put and came say where and what; being named, or HELD */
    bool named; /* whole: the broker was asked for its name */
    struct cwb_naming *naming; /* whole: until the broker has answered */
    bool no_wake; /* whole: the broker's answer that it has its name wakes nobody (replica.c) */
    struct cw_put put;
    uint32_t cached;                /* in the replica cache: its index there + 1 */
    struct cwb_floor *floor;        /* floor.h */
    struct cwb_replica *floor_next; /* there */
    uint64_t sent; /* stamp of the question to its owner (floor.h); 0: it was not asked yet */
    bool stale;    /* it will not be found: it changed, or the peer was away, or something later was
                         told, while it was being fetched */
    bool waited;   /* who wants it has waited for another fetch already */
    unsigned tries, unused;
    int64_t answered_ns; /* whole: when somebody was last told where it lies; 0: nobody was */
    int64_t checked_ns;  /* replica_gc.c */
    struct cwb_replica *gc_next, *gc_prev;
    struct cwb_job *jobs;
    struct cwb_job *late; /* asked when it was stale already: what is fetched next is theirs */
    struct cwb_request *asked;
    struct cwb_opened opened;
    struct cwb_peer *from;         /* who sends its bytes, by the number source, */
    uint64_t source, run;          /* and the run of its bridge */
    int64_t wait_ns;               /* as the download's */
    struct cwb_redirect *redirect; /* its owner refers us to another node; NULL: it does not */
    unsigned referrals;            /* that failed */
    struct cwb_relay relay;        /* other nodes that are referred to us */
    uint8_t *came;   /* OPEN's reply: the meta, then the bytes if they are inside; malloced.
                      * Whole: the meta of put */
    cw_array *array; /* whole: our hold on it; HELD in host memory: none, its name holds it */
    UT_hash_handle hh;
};

/* Fetches it, or has it copied from a co-located one, at the end of this turn. */
void cwb_replica_begin(struct cwb_replica *replica);
/* What was being fetched is given up, and fetched again, TRIES times at most (replica.c). */
void cwb_replica_again(struct cwb_replica *replica);
/* The same, of which another node than its owner did not bring the bytes. */
void cwb_replica_anew(struct cwb_replica *replica);
/* opened and came are set: memory is made for its bytes, and they are read from that peer. */
void cwb_replica_fetch(struct cwb_replica *replica, struct cwb_peer *from, uint64_t source,
                       int64_t wait_ns);
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

/* A local client wants the array under a remote key. */
void cwb_replica_get(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_job *job);

struct cwb_replica *cwb_replica_find(struct cwb_bridge *bridge, const struct cw_name_key *key);
/* Returns when it wants to be called again. */
int64_t cwb_replicas_tick(struct cwb_bridge *bridge);

#endif
