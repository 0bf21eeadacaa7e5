/*
 * The client, inside: everything that one connection to the broker has in this process.
 *
 * Locks, in the order in which they may be taken:
 *   clients (fork.c)      the list of all clients of the process
 *   client->lock          slabs, leases, allocator, directory reader, array structs
 *   client->sock_lock     one request at a time over the socket
 *   client->channel_lock  both ends of the channel, the list of calls under way
 *   mapping.c's           where slabs lie in this process, for all of its clients
 * Nobody waits for the broker with client->lock or channel_lock held: who has to ask it gives them
 * up meanwhile, and looks again afterwards at what others may have changed. So a broker that stands
 * still stops only those who need its answer, and a signal ends their wait. sock_lock is held
 * while the socket's answer is waited for; it is taken in naps that a signal ends too. What needs
 * no answer waits for nobody (deferred.c). Only fork() cannot be ended: there the wait is bounded
 * by CW_FORK_TIMEOUT_NS.
 *
 * After fork the child's copy is dead: forked is set, nothing of it is written that the parent
 * shares, and only mappings and the inherited socket are kept (a parent whose child lives on is not
 * dead to the broker).
 */
#ifndef CW_IPC_CLIENT_H
#define CW_IPC_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/cow.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/slab.h"
#include "ipc/request/channel.h"
#include "shm/base/atomic.h"
#include "shm/base/error.h"
#include "shm/base/segment.h"
#include "shm/names/directory.h"
#include "shm/session/monitor.h"
#include "shm/session/session.h"

struct cw_client {
    cw_a32 references;
    cw_a32 lost;   /* the broker is gone; never taken back */
    cw_a32 forked; /* this is a child's copy */
    cw_a64 checked_ns;
    cw_a32 reason_state;        /* 0 none, 1 being written, 2 reason may be read */
    char reason[CW_DETAIL_MAX]; /* why the broker dropped us, in its words */
    char *address, *log_path;
    char name_space[CW_NAMESPACE_MAX + 1];
    uint32_t session;
    int broker_pid;
    uint64_t instance;
    int sock, doorbell, bell;
    bool host_only; /* no GPU's driver is opened for it, whatever it opens: arrays there are not
                       mapped (the bridge) */
    struct cw_segment root_segment, session_segment;
    struct cw_root *root;
    struct cw_session *shared;

    pthread_mutex_t lock;
    struct cw_directory_reader directory;
    struct cw_slabs slabs;
    struct cw_spares spares;
    struct cw_leases leases;
    struct cw_fences *fences; /* fence.h; NULL until first used */
    struct cw_suballocation *suballocations, *suballocations_ended; /* suballocation.c */
    uint64_t imports;                /* import.c: how often anything was */
    pthread_mutex_t import_lock;     /* import.c: one slab is made at a time */
    struct cw_evictable *evictables; /* evict.h */
    pthread_cond_t moved;            /* one of them has left or come back */
    uint64_t uses, evictions;
    struct cw_heap heap;  /* of host memory; behind it those of GPUs, each made when first used */
    cw_array *array_pool; /* closed structs, kept for the next */
    uint32_t array_pool_count;
    uint64_t arrays; /* open ones */
    uint32_t transits;
    uint32_t monitor_row; /* ours in the monitor page, as last found */

    pthread_mutex_t sock_lock;
    uint64_t sock_id;
    int64_t sock_until_ns; /* > 0: a request over the socket is given up then (HELLO, FORK) */

    pthread_mutex_t fast_path_lock; /* never waited for */
    int fast_path;                  /* fast_path.c: to the bridge; -1: none */
    int64_t fast_path_after_ns;     /* not looked for before */
    unsigned fast_path_backoff;     /* answers that are slept for at once */
    unsigned fast_path_misses;      /* answers in a row that came too late */
    struct cw_segment unnamed;      /* fast_path.c: the bridge's; changed under both locks */

    pthread_mutex_t channel_lock;
    struct cw_channel channel;

    /* fork.c */
    struct cw_client *list_prev, *list_next;
    int fork_pipe[2];    /* parent, while it forks */
    int fork_pipe_child; /* child: open while inherited arrays are left that were not renewed */
    bool fork_asks;      /* while it forks: sock_lock was taken */
};

/* 0, -ECONNRESET (lost), -EINVAL (forked). Asks the socket at most every CW_CHECK_INTERVAL_NS. */
int cw_client_usable(cw_client *client);
/* Notes that the broker is gone and returns -ECONNRESET with the sentence. */
int cw_client_lost(cw_client *client);
/* Keeps the broker's last words. */
void cw_client_reason(cw_client *client, const char *text, uint32_t text_bytes);
/* Is the socket at its end? No lock, does not block. */
bool cw_client_hung_up(const cw_client *client);

/* Everything of it goes. The last reference was given up. */
void cw_client_free(cw_client *client);

#endif
