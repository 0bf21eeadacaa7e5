/*
 * The channel to the broker: all requests without descriptors, over the two rings of the session.
 *
 * A thread that waits here holds no lock but sock_lock; it gives channel_lock up. If the broker
 * dies, every wait ends with -ECONNRESET. If this process dies, the broker drops its requests.
 */
#ifndef CW_IPC_REQUEST_CHANNEL_H
#define CW_IPC_REQUEST_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ipc/cableway.h"
#include "ipc/request/deferred.h"
#include "ipc/request/socket.h"
#include "ipc/wire.h"
#include "shm/base/error.h"
#include "shm/session/ring.h"

/* A request over the channel that waits for its reply. On its thread's stack. */
struct cw_call {
    uint64_t id;
    cw_a32 word; /* enum cw_call_word; futex of the waiting thread */
    int32_t status;
    uint32_t reply_room, reply_bytes;
    void *reply;
    char detail[CW_DETAIL_MAX];
    struct cw_call *next;
};

struct cw_channel {
    struct cw_ring_producer requests;
    struct cw_ring_consumer replies;
    uint64_t next_id;
    struct cw_call *calls;
    struct cw_call *receiver; /* whose thread waits for the broker, on behalf of all */
    struct cw_deferred *deferred, *deferred_last;   /* deferred.c: what goes before anything else */
    struct cw_deferred *alike[CW_DEFERRED_BUCKETS]; /* the same, by what they say */
    bool sender;  /* a thread of ours sees to that; it has a reference */
    bool leaving; /* the last reference is that one: it frees the client */
};

void cw_channel_init(cw_client *client);
/* A request without a reply. Does not block: where there is no room it is kept, and goes before any
 * later request (deferred.c). 0, -ECONNRESET, or -EDQUOT: there is no memory to keep it. */
int cw_channel_post(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes);
/* The same, in *room (cw_deferred_room()) if it must be kept, which is NULL then: never -EDQUOT. */
int cw_channel_post_in(cw_client *client, struct cw_deferred **room, uint16_t op, const void *body,
                       uint32_t body_bytes);
/* The same, for what must be in the ring before anything else happens: -EAGAIN where there is no
 * room. Does not block. */
int cw_channel_push(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes);
/* Lets a moment pass in which there may come room. Without any lock. 0, -EINTR, -ECONNRESET. */
int cw_channel_await_room(cw_client *client, struct cw_interruptible *wait);
/* The same, and never blocks. -EAGAIN: the ring is full, or another thread is at it. -ECONNRESET,
 * and -EPROTO: the ring is damaged. No detail text. */
int cw_channel_offer(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes);
/*
 * A request and its reply; parts are the body. *reply_bytes: in the room at reply, out what came.
 * timeout_ns < 0: for ever. Returns the reply's status (its sentence is then this thread's detail),
 * -ETIMEDOUT, -EINTR, -ECONNRESET. After -EINTR of a short one, what became of it is not known; of
 * the others -EINTR and -ETIMEDOUT say that it was not done or was taken back, and -EINPROGRESS
 * that the broker has not said so.
 */
enum cw_call_mode {
    CW_CALL_SHORT, /* the broker answers at once: a signal ends it only after
                      CW_INTERRUPTIBLE_AFTER_NS */
    CW_CALL_DEED,  /* the same of what changes something: if a signal ends it once it was written,
                      -EINPROGRESS says that it may yet be done */
    CW_CALL_LOOK,  /* it may take long and changes nothing: a signal or the time ends it, it is
                      cancelled, and nobody waits for what became of it */
    CW_CALL_LONG,  /* it may take long: a signal ends it, and it is cancelled at the broker */
    CW_CALL_HELD,  /* the same; once it is begun it cannot be cancelled, and no signal ends it:
                      memory of the caller's is in use until the reply */
};
int cw_channel_call(cw_client *client, uint16_t op, const struct iovec *parts, uint32_t count,
                    void *reply, uint32_t *reply_bytes, enum cw_call_mode mode, int64_t timeout_ns);

/*
 * For one thread that has a client's channel for itself and never waits for it (the bridge's loop):
 * nobody calls the functions above for that client, nor any that would.
 */
/* Writes a request, whose reply cw_channel_take() will bring; the broker, if it sleeps, hears of it
 * with cw_channel_ring(). 0 and *id; -EAGAIN: there is no room, and client->bell rings when there
 * may be; -ECONNRESET. */
int cw_channel_send(cw_client *client, uint16_t op, const struct iovec *parts, uint32_t count,
                    uint64_t *id);
/* Wakes the broker if it sleeps: after one or several requests. */
void cw_channel_ring(cw_client *client);
/* Hands on the next reply: 1, or 0: there is none; -ECONNRESET. The body is the call's. */
typedef void cw_on_reply(void *context, const struct cw_message *head, const void *body,
                         uint32_t body_bytes);
int cw_channel_take(cw_client *client, cw_on_reply *on_reply, void *context);
/* Before sleeping until client->bell may be read; false: a reply is there. After it: rise. */
bool cw_channel_rest(cw_client *client);
void cw_channel_rise(cw_client *client);

/* Writes a request if there is room, and nothing is kept that has to go before it: 0, -EAGAIN,
 * -EPROTO. The caller holds channel_lock, and calls cw_channel_ring() then. */
int cw_channel_write(cw_client *client, uint16_t op, uint64_t id, const struct iovec *parts,
                     uint32_t count);
/* The same, before what is kept. */
int cw_channel_put(cw_client *client, uint16_t op, uint64_t id, const struct iovec *parts,
                   uint32_t count);
/* Takes all replies out of the ring. The caller holds channel_lock. -EPROTO: the ring is damaged.
 */
int cw_channel_drain(cw_client *client);

#endif
