/*
 * How a client asks its broker: over the socket (socket.c), where descriptors come along, and over
 * the lane (channel.c); and how it waits for that. Included by ipc/client.h.
 *
 * Nobody waits here with another lock held than sock_lock; lane_lock is given up. If the broker
 * dies every wait ends with -ECONNRESET; if this process does, the broker drops what it had asked.
 */
#ifndef CW_IPC_REQUEST_CHANNEL_H
#define CW_IPC_REQUEST_CHANNEL_H

/* A wait that a signal ends, but not before CW_PATIENCE_NS: most last some microseconds, and the
 * caller could not tell what became of the request. A signal that came before is not forgotten. */
struct cw_brief {
    int64_t begun_ns;
    int64_t nap_ns; /* the last nap's length */
    bool signalled;
};
/* Sleeps: CW_NAP_NS at first, then longer and longer, up to CW_NAP_NS_MOST, since a signal that
 * comes between two naps is not seen. True: a signal came. */
bool cw_brief_nap(struct cw_brief *brief);
/* Is it to end by a signal? Notes one that came just now. */
bool cw_brief_over(struct cw_brief *brief, bool came);
/* How long it may sleep at most: -1 for ever. */
int64_t cw_brief_left_ns(const struct cw_brief *brief);
/* Until when this thread's waits at the socket may last, signal or not: for who was given a time by
 * his caller, and cannot tell what he will have to ask for. timeout_ns < 0: for ever. Then back to
 * what it returned. -ETIMEDOUT ends them. */
int64_t cw_brief_limit(int64_t timeout_ns);
void cw_brief_unlimit(int64_t before);
/* Takes a lock that somebody may hold while he waits for the broker. until_ns: where no
 * signal is to end it; 0: one does. 0, -EINTR, -ETIMEDOUT. */
int cw_brief_lock(pthread_mutex_t *lock, struct cw_brief *brief, int64_t until_ns);

/* From now on this thread waits for no broker: whatever would have to be asked, and waited for, is
 * CW_WOULD_WAIT at once, and nothing was asked; another thread can do it. For loops that serve
 * others. What needs no answer goes as ever. */
#define CW_WOULD_WAIT (-EDEADLK)
void cw_asks_nobody(void);
/* 0 or CW_WOULD_WAIT: before each wait. */
int cw_may_ask(void);

/* ---- socket.c: requests with descriptors ---- */
struct cw_fds {
    int fd[CW_FDS_MAX];
    uint32_t count;
};
void cw_fds_close(struct cw_fds *fds);
/*
 * One request and its reply. send: descriptors that stay the caller's, or NULL. reply: exactly
 * reply_bytes on success. received: exactly received->count descriptors on success, the caller's; 0
 * of them otherwise. Blocks; a signal may end it after CW_PATIENCE_NS. _locked: the caller holds
 * sock_lock, and no signal ends it, but sock_until_ns.
 */
int cw_socket_call_locked(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
                          const struct cw_fds *send, void *reply, uint32_t reply_bytes,
                          struct cw_fds *received);
int cw_socket_call(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes,
                   const struct cw_fds *send, void *reply, uint32_t reply_bytes,
                   struct cw_fds *received);
/* The same for who holds a lock (client->lock, or that of the fences), which is given up meanwhile:
 * what it guards may be another afterwards. */
int cw_socket_call_apart(cw_client *client, pthread_mutex_t *lock, uint16_t op, const void *body,
                         uint32_t body_bytes, const struct cw_fds *send, void *reply,
                         uint32_t reply_bytes, struct cw_fds *received);

/* ---- channel.c: all other requests ---- */
void cw_lane_init(cw_client *client);
/* A request without a reply. Does not block: where there is no room it is kept, and goes before any
 * later request (deferred.c). 0, -ECONNRESET, or -EDQUOT: there is no memory to keep it. */
int cw_lane_post(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes);
/* The same, in *room (cw_post_room()) if it must be kept, which is NULL then: never -EDQUOT. */
int cw_lane_post_in(cw_client *client, struct cw_post **room, uint16_t op, const void *body,
                    uint32_t body_bytes);
/* The same, for what must be in the ring before anything else happens: -EAGAIN where there is no
 * room. Does not block. */
int cw_lane_push(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes);
/* Lets a moment pass in which there may come room. Without any lock. 0, -EINTR, -ECONNRESET. */
int cw_lane_await_room(cw_client *client, struct cw_brief *brief);
/* The same, and never blocks. -EAGAIN: the ring is full, or another thread is at it. -ECONNRESET,
 * and -EPROTO: the ring is damaged. No detail text. */
int cw_lane_offer(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes);
/*
 * A request and its reply; parts are the body. *reply_bytes: in the room at reply, out what came.
 * timeout_ns < 0: for ever. Returns the reply's status (its sentence is then this thread's detail),
 * -ETIMEDOUT, -EINTR, -ECONNRESET. After -EINTR of a brief one, what became of it is not known; of
 * the others -EINTR and -ETIMEDOUT say that it was not done or was taken back, and -EINPROGRESS
 * that the broker has not said so.
 */
enum cw_call_mode {
    CW_CALL_BRIEF, /* the broker answers at once: a signal ends it only after CW_PATIENCE_NS */
    CW_CALL_DEED,  /* the same of what changes something: if a signal ends it once it was written,
                      -EINPROGRESS says that it may yet be done */
    CW_CALL_LOOK,  /* it may take long and changes nothing: a signal or the time ends it, it is
                      cancelled, and nobody waits for what became of it */
    CW_CALL_LONG,  /* it may take long: a signal ends it, and it is cancelled at the broker */
    CW_CALL_HELD,  /* the same; once it is begun it cannot be cancelled, and no signal ends it:
                      memory of the caller's is in use until the reply */
};
int cw_lane_call(cw_client *client, uint16_t op, const struct iovec *parts, uint32_t count,
                 void *reply, uint32_t *reply_bytes, enum cw_call_mode mode, int64_t timeout_ns);

/*
 * For one thread that has a client's lane for itself and never waits for it (the bridge's loop):
 * nobody calls the functions above for that client, nor any that would.
 */
/* Writes a request, whose reply cw_lane_take() will bring; the broker, if it sleeps, hears of it
 * with cw_lane_ring(). 0 and *id; -EAGAIN: there is no room, and client->bell rings when there may
 * be; -ECONNRESET. */
int cw_lane_send(cw_client *client, uint16_t op, const struct iovec *parts, uint32_t count,
                 uint64_t *id);
/* Wakes the broker if it sleeps: after one or several requests. */
void cw_lane_ring(cw_client *client);
/* Hands on the next reply: 1, or 0: there is none; -ECONNRESET. The body is the call's. */
typedef void cw_on_reply(void *context, const struct cw_message *head, const void *body,
                         uint32_t body_bytes);
int cw_lane_take(cw_client *client, cw_on_reply *on_reply, void *context);
/* Before sleeping until client->bell may be read; false: a reply is there. After it: rise. */
bool cw_lane_rest(cw_client *client);
void cw_lane_rise(cw_client *client);

/* Writes a request if there is room, and nothing is kept that has to go before it: 0, -EAGAIN,
 * -EPROTO. The caller holds lane_lock, and calls cw_lane_ring() then. */
int cw_lane_write(cw_client *client, uint16_t op, uint64_t id, const struct iovec *parts,
                  uint32_t count);
/* The same, before what is kept. */
int cw_lane_put(cw_client *client, uint16_t op, uint64_t id, const struct iovec *parts,
                uint32_t count);
/* Takes all replies out of the ring. The caller holds lane_lock. -EPROTO: the ring is damaged. */
int cw_lane_drain(cw_client *client);

/* ---- deferred.c: what goes without an answer; the caller holds lane_lock ---- */
/* Memory for a request of so many bytes that may have to be kept; NULL: there is none. For free(),
 * or cw_lane_post_in(). Without the lock. */
struct cw_post *cw_post_room(uint32_t body_bytes);
/* Keeps a request that found no room in the ring, in *room unless that is NULL. 0, -EDQUOT. */
int cw_post_keep(cw_client *client, struct cw_post **room, uint16_t op, const void *body,
                 uint32_t body_bytes);
/* Writes what is kept, and rings for it. 0: nothing is left; -EAGAIN, -EPROTO. */
int cw_posts_write(cw_client *client);
void cw_posts_deinit(cw_client *client);
/* The last reference is gone: says so to the broker. True: the postman does, and frees the client.
 * The caller does NOT hold lane_lock. */
bool cw_posts_leave(cw_client *client);

#endif
