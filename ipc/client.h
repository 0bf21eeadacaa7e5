/*
 * The client, inside: everything that one connection to the broker has in this process.
 *
 * Locks, in the order in which they may be taken:
 *   clients (fork.c)   the list of all clients of the process
 *   client->lock       slabs, leases, allocator, directory reader, array structs
 *   client->sock_lock  one request at a time over the socket
 *   client->lane_lock  both ends of the lane, the list of calls under way
 *   mapping.c's        where slabs lie in this process, for all of its clients
 * Nobody waits for the broker with client->lock or lane_lock held: who has to ask it gives them up
 * meanwhile, and looks again afterwards at what others may have changed. So a broker that stands
 * still stops only those who need its answer, and a signal ends their wait. sock_lock is held
 * while the socket's answer is waited for; it is taken in naps that a signal ends too. What needs
 * no answer waits for nobody (deferred.c). Only fork() cannot be ended: there the wait is bounded
 * by CW_FORK_PATIENCE_NS.
 *
 * After fork the child's copy is dead: forked is set, nothing of it is written that the parent
 * shares, and only mappings and the inherited socket are kept (a parent whose child lives on is not
 * dead to the broker).
 */
#ifndef CW_IPC_CLIENT_H
#define CW_IPC_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/uio.h>

#include "ipc/memory/backend.h"
#include "ipc/memory/extent.h"
#include "ipc/cableway.h"
#include "ipc/base/layout.h"
#include "ipc/memory/mapping.h"
#include "ipc/wire.h"
#include "shm/blocks/block.h"
#include "shm/base/error.h"
#include "shm/session/monitor.h"
#include "shm/session/session.h"

#define CW_LEASE_TABLES_MAX  256u
#define CW_IDLE_SLABS_MAX    256u   /* mappings kept of slabs that nothing is held of */
#define CW_FULL_WAIT_MS      200    /* on a full device, for what is on its way back (retry.c) */
#define CW_BORROWED_KEPT_MAX 64u    /* allocations kept that something was borrowed from */
#define CW_SPARES_MAX        16u    /* private mappings kept, of which no page was written */
#define CW_SLAB_BLOCKS_MAX   16384u /* block numbers of a shared slab */
#define CW_LARGE_ALIGN_BYTES 4096u  /* of blocks from CW_LARGE_BYTES on */
#define CW_LARGE_BYTES       (1ull << 20)
#define CW_CHECK_INTERVAL_NS 250000000   /* how old the knowledge may be that the broker lives */
#define CW_PATIENCE_NS       1000000000  /* a request ends by a signal after so long */
#define CW_FORK_PATIENCE_NS  10000000000 /* fork() waits so long for the broker, each time twice */
#define CW_NAP_NS            50000
#define CW_NAP_NS_MOST       25600000
#define CW_FDS_MAX           6u   /* descriptors of one message */
#define CW_POST_BUCKETS      256u /* of posts that are kept */

/* What this process holds of one block. */
struct cw_local {
    uint32_t count;           /* arrays on it; while > 0 the slot holds the lease */
    uint32_t slot;            /* table * CW_LEASE_TABLE_SLOTS + index */
    struct cw_extent *extent; /* in our own slabs: where it lies */
};
struct cw_post;

struct cw_slab {
    uint32_t id;
    uint32_t capacity; /* blocks */
    uint64_t size_bytes;
    uint32_t flags; /* enum cw_slab_flags */
    uint32_t device_kind;
    uint8_t device_uuid[CW_UUID_BYTES];
    const struct cw_backend *backend;
    int device; /* by this process's numbers; -1: not looked for yet, or masked out */
    char device_name[16];
    struct cw_segment table_segment;
    struct cw_block_table *table;
    struct cw_mapping rw;         /* of a GPU; base NULL: not mapped */
    struct cw_mappings *mappings; /* of host memory, shared with this process's other clients */
    struct cw_local *locals;      /* capacity of them */
    uint32_t held;                /* blocks with a lease of ours */
    struct cw_slab *hash_next;
    struct cw_slab *idle_prev, *idle_next;
    bool idle;
    /* own slabs */
    struct cw_heap *heap;
    bool own, carved;          /* carved: arena is in use */
    bool cached;               /* entirely free, counted in cached_bytes */
    struct cw_post *last_word; /* room to say SLAB_CLOSE, also when there is no memory left */
    struct cw_arena arena;
    uint32_t blocks_used; /* numbers from here on were never given out */
    uint32_t blocks_free; /* numbers in the stack below */
    uint32_t *blocks;
    struct cw_slab *own_next;
    /* borrowed memory of this process's own (import.c) */
    uint64_t allocation; /* the driver's number of the allocation, never used again; 0: none */
    uint64_t kept_since; /* when it was borrowed from last, by a counter; 0: not kept */
    bool gone;           /* its allocation is: nothing is lent of it any more */
};

/* A private mapping that no array has, see cow.c. */
struct cw_spare {
    const struct cw_slab *slab;
    uint64_t begin_bytes; /* in the slab */
    struct cw_mapping mapping;
};

struct cw_spares { /* least recently used first */
    struct cw_spare rows[CW_SPARES_MAX];
    uint32_t count;
};

#define CW_SLAB_BUCKETS 1024u

struct cw_slabs {
    struct cw_slab *buckets[CW_SLAB_BUCKETS];
    struct cw_slab *idle_first, *idle_last; /* least recently used first */
    uint32_t idle_count;
    struct cw_slab *own;
    uint64_t closed_seen;     /* session->closed_slabs as last looked at */
    uint64_t own_closed_seen; /* the same, for slabs of ours (slab_cache.c) */
    uint32_t closing;  /* own ones given up since somebody waited for their memory (slab_cache.c) */
    int64_t closed_ns; /* when the last of these was given up; 0: none */
    uint64_t closing_from; /* how many descriptors the broker had closed before the first */
};

struct cw_leases {
    struct cw_lease_table *tables[CW_LEASE_TABLES_MAX];
    struct cw_segment segments[CW_LEASE_TABLES_MAX]; /* of all but the first */
    uint32_t tables_count;
    uint32_t *free; /* stack of free slots */
    uint32_t free_count;
    uint32_t held;
};

struct cw_heap { /* allocation on one device */
    const struct cw_backend *backend;
    int device;
    uint8_t device_uuid[CW_UUID_BYTES];
    uint64_t granule_bytes; /* slabs are multiples of it */
    struct cw_carver carver;
    struct cw_carver foreign; /* somebody else's memory: one block a slab, never carved */
    uint64_t next_slab_bytes;
    uint64_t crowded_bytes; /* the last slab that ran out of block numbers had so much in use; 0: it
                             * was followed by one for such arrays */
    uint32_t large_ones;    /* arrays for which a slab was made that is larger than the next one */
    uint64_t cached_bytes, cache_limit_bytes; /* entirely free slabs that are kept */
    bool hoards;               /* keep what becomes free beyond the limit: it is about to be used */
    struct cw_extent *pending; /* published, dropped, not yet back; the oldest come back first */
    struct cw_extent *pending_last;
    uint64_t pending_count;
    uint64_t reclaimed_seen;    /* session->reclaimed as last looked at */
    uint64_t owed;              /* blocks that came back, still in the pending list */
    struct cw_extent *draining; /* free, but streams may still use them (order.h) */
    uint64_t given;             /* blocks whose bytes came back so far */
    struct cw_heap *next;       /* of this client */
};

/* A request over the lane that waits for its reply. On its thread's stack. */
struct cw_call {
    uint64_t id;
    cw_a32 word; /* enum cw_call_word; futex of the waiting thread */
    int32_t status;
    uint32_t reply_room, reply_bytes;
    void *reply;
    char detail[CW_DETAIL_MAX];
    struct cw_call *next;
};

/* A request that needs no answer and found no room. */
struct cw_post {
    struct cw_post *next;
    struct cw_post *beside; /* in its bucket: the next younger one */
    uint16_t op;
    uint32_t body_bytes;
    uint8_t body[];
};

struct cw_lane {
    struct cw_ring_producer requests;
    struct cw_ring_consumer replies;
    uint64_t next_id;
    struct cw_call *calls;
    struct cw_call *receiver;           /* whose thread waits for the broker, on behalf of all */
    struct cw_post *posts, *posts_last; /* deferred.c: what goes before anything else */
    struct cw_post *alike[CW_POST_BUCKETS]; /* the same, by what they say */
    bool postman;                           /* a thread of ours sees to that; it has a reference */
    bool leaving; /* the last reference is that one: it frees the client */
};

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
    struct cw_fences *fences;            /* fence.h; NULL until first used */
    struct cw_loan *loans, *loans_ended; /* suballocation.c */
    uint64_t borrowed;                   /* import.c: how often anything was */
    pthread_mutex_t borrow_lock;         /* import.c: one slab is made at a time */
    struct cw_evictable *evictables;     /* evict.h */
    pthread_cond_t moved;                /* one of them has left or come back */
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

    pthread_mutex_t door_lock;     /* never waited for */
    int door;                      /* fast_path.c: to the bridge; -1: none */
    int64_t door_after_ns;         /* not looked for before */
    unsigned door_naps, door_vain; /* answers that are slept for at once; of how many in a row it
                                      was in vain to be awake */
    struct cw_segment board;       /* fast_path.c: the bridge's; changed under both locks */

    pthread_mutex_t lane_lock;
    struct cw_lane lane;

    /* fork.c */
    struct cw_client *list_prev, *list_next;
    int lifeline[2];    /* parent, while it forks */
    int lifeline_child; /* child: open while inherited arrays are left that were not renewed */
    bool fork_asks;     /* while it forks: sock_lock was taken */
};

struct cw_array {
    cw_client *client;    /* whose lease it is; one reference */
    cw_client *home;      /* whose mapping data points into; a reference if it is not client */
    struct cw_slab *slab; /* of client */
    struct cw_slab *home_slab;
    uint32_t block;
    uint64_t gen;
    uint64_t offset_bytes; /* of the lowest byte within the block */
    uint64_t size_bytes;   /* the span */
    uint8_t *bytes;        /* the lowest byte */
    uint8_t *data;         /* element 0 */
    uint32_t ndim, itemsize;
    bool readonly;
    cw_a32 fresh; /* 1: host memory that nobody has written, as far as we know (first_touch.c) */
    struct cw_mapping *mapping;  /* host memory: where it was counted (mapping.h); else NULL */
    uint64_t origin_bytes;       /* of element 0, from the lowest byte */
    struct cw_evictable *evict;  /* evict.h; NULL: it stays where it is. While its bytes are away
                                  * slab, home_slab, bytes and data are NULL */
    struct cw_mapping own_pages; /* CW_PRIVATE: where bytes lie; else base NULL */
    uint64_t own_pages_begin;    /* in the slab */
    int64_t *shape, *strides;
    char *dtype;
    void *spill; /* where they lie if they do not fit below */
    int64_t axes[2 * 6];
    char text[40];
    cw_array *next; /* in the pool */
};

/* ---- client.c ---- */
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

#include "ipc/request/channel.h"

/* ---- lease.c; the caller holds client->lock ---- */
/* Makes sure that so many leases may be taken at once. May give the lock up meanwhile: whatever is
 * not held may be gone afterwards. 0, -EDQUOT, -EINTR, -ECONNRESET. */
int cw_leases_room(cw_client *client, uint32_t count);
int cw_leases_init(cw_client *client);
void cw_leases_deinit(cw_client *client);
/* Takes one more hold on generation gen of a block. There is room. 0, -ESTALE. */
int cw_lease_hold(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen);
/* For a block that is still FREE and about to be carved: only the slot is stored. There is room. */
void cw_lease_hold_new(cw_client *client, struct cw_slab *slab, uint32_t block);
/* Takes that back: nothing was carved. */
void cw_lease_unhold_new(cw_client *client, struct cw_slab *slab, uint32_t block);
/* Gives one hold back. The last one tells the broker where it must, and frees our own private
 * blocks. */
void cw_lease_release(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen);

/* ---- slab.c; the caller holds client->lock ---- */
/* The slab, with its table mapped: from the cache, or from the broker, and room for a lease. The
 * lock is given up where the broker is asked, here and in the next three. -ESTALE: it is gone. */
int cw_slab_get(cw_client *client, uint32_t id, struct cw_slab **out);
/* The same for a read-only array (in_ro): memory of a GPU that this process has not mapped yet is
 * mapped so that it cannot be written. */
int cw_slab_get_for(cw_client *client, uint32_t id, bool in_ro, struct cw_slab **out);
/* Maps the data if they are not; in_ro: in the read-only mapping, where there are two. Where there
 * is one, it is as the first one wanted it, and writable from the first on who did not say in_ro.
 */
int cw_slab_map(cw_client *client, struct cw_slab *slab, bool in_ro);
/* Where they begin in that mapping; NULL: it is not there. */
void *cw_slab_base(struct cw_slab *slab, bool in_ro);
/* Hands a new slab to the broker; a signal may end that. data and table stay the caller's on
 * failure; on success both are taken over, and the slab is own. capacity: of the table. */
int cw_slab_add(cw_client *client, struct cw_heap *heap, const struct cw_slab_info *info,
                int data_fd, struct cw_segment *table, struct cw_slab **out);
/* Its file, which the caller closes. Asks the broker. */
int cw_slab_file(cw_client *client, struct cw_slab *slab, int *fd);
/* Maps a part of it copy-on-write; both in whole pages. */
int cw_slab_map_private(cw_client *client, struct cw_slab *slab, uint64_t begin_bytes,
                        uint64_t size_bytes, struct cw_mapping *out);
/* Unmaps idle slabs that their owners gave up: memory of a GPU is free only then. Returns how many.
 * The caller does NOT hold client->lock. */
uint32_t cw_slabs_sweep(cw_client *client);
/* Puts an idle slab where it may be unmapped, and takes it back out. */
void cw_slab_rest(cw_client *client, struct cw_slab *slab);
void cw_slab_wake(cw_client *client, struct cw_slab *slab);
/* Forgets a slab: unmaps all. Nothing of it is held. */
void cw_slab_free(cw_client *client, struct cw_slab *slab);
void cw_slabs_deinit(cw_client *client);

/* ---- allocator.c; the caller holds client->lock unless said otherwise ---- */
int cw_heap_init(struct cw_heap *heap, const struct cw_backend *backend, int device);
/* The heap of a device, made when there is none. -ENODEV, -EDQUOT. Without client->lock: it may
 * open the driver. */
int cw_heap_of(cw_client *client, const struct cw_backend *backend, int device,
               struct cw_heap **out);
void cw_heaps_deinit(cw_client *client);
/* Carves a block and holds it. *clean: it reads as zeros. The caller does NOT hold client->lock. */
int cw_heap_take(cw_client *client, struct cw_heap *heap, uint64_t size_bytes,
                 struct cw_slab **slab, uint32_t *block, uint64_t *gen, bool *clean);
/* The same in the slabs that there are, for who may not wait: -EAGAIN, without a sentence, where
 * they have no room. */
int cw_heap_take_here(cw_client *client, struct cw_heap *heap, uint64_t size_bytes,
                      struct cw_slab **slab, uint32_t *block, uint64_t *gen, bool *clean);
/* A private block of ours ended: its bytes are free. */
void cw_heap_give(cw_client *client, struct cw_slab *slab, uint32_t block);
/* A published block of ours is held by us no more: it comes back when the broker frees it. */
void cw_heap_await(cw_client *client, struct cw_slab *slab, uint32_t block);
/* It is waited for no more. */
void cw_heap_await_no_more(struct cw_heap *heap, struct cw_extent *extent);
/* Takes back what the broker freed, on all devices: when a look pays, or now. Asks nobody: what
 * waits for streams of processes that were never met here stays. */
void cw_heap_collect(cw_client *client, bool now);
/* The same for who may wait for the broker, which is asked for the fences of such streams.
 * Meanwhile the lock is given up. hoarder: a heap that keeps what becomes free beyond its limit, or
 * NULL. Returns how often something was learned. */
uint32_t cw_heap_collect_all(cw_client *client, struct cw_heap *hoarder);
/* Without a broker: loans that nobody here holds are at their end (suballocation.c). */
void cw_heap_end_loans(cw_client *client);
/* Prepares an own slab to be carved; clean: it reads as zeros. */
/* The size of the slab that an array of this size calls for, and how many blocks it has. */
uint64_t cw_slab_plan(struct cw_heap *heap, uint64_t size_bytes, uint32_t *capacity);
int cw_heap_divide(struct cw_slab *slab, struct cw_carver *carver, bool clean);
/* May a free block's bytes be used anew? In GPU memory the last user's work may still be under way,
 * also when all leases have ended. */
bool cw_heap_drained(cw_client *client, struct cw_slab *slab, uint32_t block);
/* A block table with nothing in it. Without client->lock. */
int cw_heap_make_table(uint32_t device_kind, uint32_t capacity, uint64_t slab_bytes,
                       struct cw_segment *out);
/* Makes a slab of somebody else's memory with a table of so many entries; block 0 is all of it, and
 * held. Without client->lock. */
int cw_heap_adopt_foreign(cw_client *client, struct cw_heap *heap, int fd, uint64_t size_bytes,
                          uint32_t capacity, struct cw_slab **slab, uint64_t *gen);

/* ---- slab_cache.c; the caller holds client->lock, but for the last ---- */
/* Gives up an own slab; it is freed. */
void cw_slab_close(cw_client *client, struct cw_slab *slab);
/* A slab that may have become entirely free: it is kept, or given up. */
void cw_heap_settle(cw_client *client, struct cw_slab *slab);
/* The same of the slab with this id, which was made for an array that may have found room
 * elsewhere, where something came back meanwhile; 0, or it is gone: nothing. Without client->lock.
 */
void cw_kept_settle(cw_client *client, uint32_t id);
/* Gives up what is kept beyond the limit. */
void cw_kept_trim(cw_client *client, struct cw_heap *heap);
/* Forgets the slabs that the broker has taken back for others (broker/memory/room.h), or does so
 * when the broker has said that a slab was given up. Who calls has none of them in hand. */
void cw_kept_forget(cw_client *client);
void cw_kept_forget_if_told(cw_client *client);
/* At a limit: gives up all that is kept, and waits until its memory, and that of slabs given up
 * before, is free. True: there was some. Without client->lock. */
bool cw_kept_drop(cw_client *client);
/* How many descriptors the broker has closed; and waits until it has closed those of so many slabs
 * more, or for a second. Without client->lock. */
uint64_t cw_kept_closed(const cw_client *client);
void cw_kept_await_closed(cw_client *client, uint64_t before, uint32_t slabs);
/* Where that was not enough: 1 after a nap while the memory of a slab given up within the last
 * second may be on its way, 0 otherwise, -EINTR. *until_ns: 0, then the end of all such naps.
 * Without client->lock. */
int cw_kept_nap(cw_client *client, int64_t *until_ns);

/* ---- retry.c; without client->lock ---- */
/* Has the broker look at all that this process has let go of. 1: something of the heap came
 * back; 0; -EINTR. */
int cw_full_ask(cw_client *client, struct cw_heap *heap);
/* After a limit's refusal: gives up what is kept. -EAGAIN: something came free; else -EDQUOT or
 * -EINTR. */
int cw_full_make_room(cw_client *client, struct cw_heap *heap);
/* The last step before -EDQUOT in host memory: the broker takes back what other clients keep free.
 * -EAGAIN: something came free; -EDQUOT with the sentence that stands; -EINTR. Waits for what is on
 * its way, 1 s at most. */
int cw_full_ask_others(cw_client *client, uint64_t size_bytes);
/* Waits until something of the heap comes back: 1. 0: nothing is on its way, or the time is over.
 * -EINTR: a signal came.
 * *until_ns: 0 at first, then when that is. Blocks CW_FULL_WAIT_MS at most, over all calls. */
int cw_full_wait(cw_client *client, struct cw_heap *heap, int64_t *until_ns);
/* -EDQUOT with a sentence, and whether anything was waited for. */
int cw_full_told(const struct cw_heap *heap, int64_t until_ns, const char *sentence);

/* ---- suballocation.c; the caller holds client->lock, but for the first ---- */
/* cw_array_at(), or (borrowed) also of memory that was borrowed. */
int cw_loan_take(cw_client *client, const void *address, uint64_t size_bytes, bool borrowed,
                 cw_array **out, uint64_t *number);
/* A loan's block is free, and no stream is at work on it: to be told. May free the slab. */
void cw_loan_end(cw_client *client, struct cw_slab *slab, struct cw_extent *extent);
void cw_loans_deinit(cw_client *client);

/* ---- adoption.c ---- */
/* Takes over a dead maker's slab with at least so much free. -ENOENT: there is none. Without the
 * lock. */
int cw_heap_adopt(cw_client *client, struct cw_heap *heap, uint64_t size_bytes);

/* ---- array.c ---- */
/* cw_array_new() in host memory of this client that is there, for who may not wait: -EAGAIN,
 * without a sentence, where there is none. Without the lock. */
int cw_array_new_here(cw_client *client, const cw_layout *layout, cw_array **out);
/* An array struct on a block that is held already and has that range of its slab; that hold
 * becomes the array's. flags: as of cw_array_attach(). -EAGAIN: the mapping in which it would lie
 * is not there. The caller holds the lock. */
int cw_array_make(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen,
                  const struct cw_range *range, uint64_t offset_bytes, uint64_t size_bytes,
                  const struct cw_shape *shape, uint32_t flags, cw_array **out);
#define CW_DISTANT                                                                                 \
    (1u << 31) /* its memory is not mapped: only its lease, layout and order count                 \
                */
#define CW_CURRENT                                                                                 \
    (1u << 30) /* of a replica: -ENOENT, without a sentence, where its name does not mean it any   \
                  more */
/* Holds a block, maps its slab and makes an array on it; checks that the range lies in the block.
 * flags: CW_READONLY, CW_PRIVATE or CW_DISTANT, and CW_CURRENT. */
int cw_array_attach(cw_client *client, uint32_t slab_id, uint32_t block, uint64_t gen,
                    uint64_t offset_bytes, uint64_t size_bytes, const struct cw_shape *shape,
                    uint32_t flags, cw_array **out);
/* 0, or -EINVAL: flags for opening an array that do not exist, or exclude each other. */
int cw_open_flags_check(const char *function, uint32_t flags);
/* 0, or -EINVAL when the array is not this process's: NULL, or it came over a fork. */
int cw_array_ours(const cw_array *array);
/* The same for who asks the broker about it: -ECONNRESET when that is gone. */
int cw_array_usable(const cw_array *array);

/* ---- names.c ---- */
/* cw_get() with CW_DISTANT. */
int cw_get_distant(cw_client *client, const char *name, cw_array **out);

/* ---- cow.c ---- */
/* A private mapping of the pages that hold a range of a slab, spare or new. The caller holds the
 * lock. -EINVAL: not in host memory. */
int cw_private_take(cw_client *client, struct cw_slab *slab, uint64_t begin_bytes,
                    uint64_t size_bytes, struct cw_mapping *out);
/* Ends an array's private mapping, if it has one: it is spare, or gone. Without the lock; the
 * array's lease stands. */
void cw_private_give(cw_array *array);
/* The slab is about to be freed. The caller holds the lock. */
void cw_private_forget(cw_client *client, const struct cw_slab *slab);

/* ---- fork.c ---- */
void cw_fork_register(cw_client *client);
void cw_fork_unregister(cw_client *client);
/* An inherited array was renewed or closed. */
void cw_fork_settled(cw_client *client);

/* ---- start.c ---- */
/* Starts a broker at place (a socket's path), detached. 0: one was started, or runs already. Blocks
 * until it listens. -ECONNRESET with its reason, -EDQUOT. */
int cw_start_broker(const char *place);

#endif
