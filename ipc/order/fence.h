/*
 * Fences of this process, and how its streams wait for those of other processes.
 *
 * Pages of fences (CW_SEGMENT_FENCES: header, then CW_FENCES_PER_PAGE fences at CW_PAGE) are made
 * by the broker, each for one session, so that it can poison them. A fence's number is
 * page * CW_FENCES_PER_PAGE + index; numbers are never used again in a run of the broker, and 0 is
 * none. A process maps its own pages and, when it meets a stamp of another process, that page,
 * once. It registers each page with CUDA (all contexts) and keeps both until it ends: unregistering
 * blocks while any stream waits.
 *
 * The four rules
 *   1 One writer. A fence belongs to one stream, known by its id (cuStreamGetId: handles are
 *     reused, ids are not). The stream has a fence for each section that it has open (stream.h).
 *     Values begin at 1 and only rise. When the stream is gone (another has its handle) and all of
 *     its work has passed, the other one goes on with its fences: still one writer at a time.
 *   2 A stream waits only for what is submitted: if the fence's enqueued word is below the stamp's
 *     value, the CPU waits until it is not. At most CW_STREAM_WAITS_MAX streams of a process wait
 *     on the GPU at once; a further one waits on the CPU.
 *   3 Poison: when a fence's process is dead the broker stores poison, which ends every wait. After
 *     each wait, and at the next call on the array, the stamps are read again: not reached means
 *     -EOWNERDEAD. The stamps for which a write had waited are read as well (order.h).
 *   4 Nothing of ours is put into the default stream (0, 1 and 2 as handles): the CPU waits for it,
 *     and its work is stamped through a stream of ours that waits for an event. In a stream that is
 *     being captured every call here is -EINVAL.
 *
 * Owner: the client, under its fences' own lock, which is never held while anything waits: neither
 * for work, nor for the broker, who is asked for a page that is new to this process.
 * The process dies: the broker notes and poisons. Work that was submitted may still run, and the
 * memory comes back only after the poison is final.
 * The broker dies: pages stay mapped and work on among those who have them; a stamp whose page is
 * not mapped here is -ECONNRESET.
 * Fork: nothing here may be used in the child; the client's forked word says so.
 */
#ifndef CW_IPC_ORDER_FENCE_H
#define CW_IPC_ORDER_FENCE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/device.h"
#include "ipc/cableway.h"
#include "shm/blocks/order.h"

struct cw_slab;

#define CW_STREAM_WAITS_MAX 4u

#define CW_FENCE_BUCKETS 64u

struct cw_page_of_fences { /* never unmapped; fences NULL: its session is dead and buried */
    uint32_t number;
    int gpu;           /* whose streams write it: the ordinal; -1: another process's page */
    bool registered;   /* with CUDA */
    bool untold;       /* ours, poisoned, and the broker does not know yet (context_failure.h) */
    uint64_t gpu_base; /* where GPUs find it, the same for all of them */
    struct cw_segment segment;
    struct cw_fence *fences;
    struct cw_page_of_fences *next;
};

struct cw_stream; /* stream.c */

struct cw_fences { /* of one client */
    pthread_mutex_t lock;
    cw_client *client;
    struct cw_page_of_fences *pages[CW_FENCE_BUCKETS];
    struct { /* for each GPU: where its streams' next fence comes from. So a page is one context's,
              * and goes with it (context_failure.h) */
        struct cw_page_of_fences *page;
        uint32_t used;
    } own[CW_GPUS_MAX];
    uint64_t failed_contexts; /* bit i: the context of GPU i is */
    bool untold;              /* some pages are */
    uint32_t unknown;         /* a page that somebody met who could not ask for it; 0: none */
    struct cw_stream *streams;
    struct cw_fences *next; /* of this process; context_failure.c */
};

/* How long somebody waits on the CPU: spins for a while, then naps of growing length. The clock is
 * first read when there is something to wait for. */
struct cw_deadline {
    int64_t spin_end_ns, end_ns, timeout_ns;
};
void cw_deadline_begin(struct cw_deadline *deadline, int64_t timeout_ns);
/* Lets some time pass. 0, -ETIMEDOUT (what did not happen), -EINTR, -ECONNRESET. */
int cw_deadline_nap(cw_client *client, struct cw_deadline *deadline, const char *what);

/* The client's books, made when first asked for. Without client->lock. */
int cw_fences_of(cw_client *client, struct cw_fences **out);
/* A new fence of ours for a stream of that GPU. The fences' lock is held. */
int cw_fence_take(cw_client *client, struct cw_fences *fences, int gpu, uint32_t *number,
                  struct cw_page_of_fences **page);
/* The fence of a stamp. -ENOENT: its session is dead and buried. The fences' lock is held, and
 * given up where the page has to be asked for. */
int cw_fence_find(cw_client *client, struct cw_fences *fences, cw_stamp stamp,
                  struct cw_page_of_fences **page, struct cw_fence **out);
/* cw_stamp_poll() with the fences' lock held; given up as above. */
int cw_stamp_look(cw_client *client, struct cw_fences *fences, cw_stamp stamp);
/* The same, and asks nobody: 0 also where the page is not mapped, which is noted for
 * cw_fences_learn(). *final: can nothing of it land any more? The fences' lock is held. */
int cw_stamp_known(struct cw_fences *fences, cw_stamp stamp, bool *final);
/* Opens the page that was noted. True: that may make a difference. Without any lock. */
bool cw_fences_learn(cw_client *client);
/* cw_stamp_wait() until a deadline. */
int cw_stamp_await(cw_client *client, cw_stamp stamp, struct cw_deadline *deadline);

/* Has the work behind this stamp passed? 1 yes, 0 not yet, -EOWNERDEAD: its process died before.
 * Opens the fence's page when it is not mapped: may ask the broker the first time. The caller does
 * NOT hold client->lock. */
int cw_stamp_poll(cw_client *client, cw_stamp stamp);
/* Waits for it on the CPU. 0, -EOWNERDEAD, -ETIMEDOUT, -EINTR, -ECONNRESET. */
int cw_stamp_wait(cw_client *client, cw_stamp stamp, int64_t timeout_ns);
/* Of a stamp whose process is dead: can nothing of it land any more? The fences' lock is held. */
bool cw_stamp_is_final(cw_client *client, struct cw_fences *fences, cw_stamp stamp);
/*
 * May the owner carve this block anew? True when its last write and all reads have passed or belong
 * to the dead (whose poison is final). Called by the heap with client->lock held, so it never asks
 * the broker and never blocks: a page that is not mapped counts as not passed, and is noted to be
 * opened without the lock (cw_fences_learn), by who needs memory.
 */
bool cw_order_passed(cw_client *client, struct cw_slab *slab, uint32_t block);
/* Waits on the CPU until nobody's work on the array is under way, complete or dead: before a copy
 * by the CPU's hand. 0, -ETIMEDOUT, -EINTR, -ECONNRESET. */
int cw_array_settle(cw_array *array, int64_t timeout_ns);
/* Before the session ends: waits for what our streams were given, 10 s at most. False: it is still
 * under way, and the session must not end, or others would take its work for a dead one's. Where
 * the broker is gone nobody is there to do so, and nothing is waited for. */
bool cw_fences_deinit(cw_client *client);

#endif
