/*
 * Requests with descriptors, over the socket; and how a thread waits for the broker, here and in
 * the channel.
 *
 * A thread that waits here holds no lock but sock_lock. If the broker dies, every wait ends with
 * -ECONNRESET. If this process dies, the broker drops its requests.
 */
#ifndef CW_IPC_REQUEST_SOCKET_H
#define CW_IPC_REQUEST_SOCKET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

#define CW_INTERRUPTIBLE_AFTER_NS 1000000000 /* a request ends by a signal after so long */
#define CW_NAP_NS                 50000
#define CW_NAP_NS_MOST            25600000
#define CW_FDS_MAX                6u /* descriptors of one message */

/* A wait that a signal ends, but not before CW_INTERRUPTIBLE_AFTER_NS: most last some microseconds,
 * and the caller could not tell what became of the request. A signal that came before is not
 * forgotten. */
struct cw_interruptible {
    int64_t begun_ns;
    int64_t nap_ns; /* the last nap's length */
    bool signalled;
};
/* Sleeps: CW_NAP_NS at first, then longer and longer, up to CW_NAP_NS_MOST, since a signal that
 * comes between two naps is not seen. True: a signal came. */
bool cw_interruptible_nap(struct cw_interruptible *wait);
/* Is it to end by a signal? Notes one that came just now. */
bool cw_interruptible_over(struct cw_interruptible *wait, bool came);
/* How long it may sleep at most: -1 for ever. */
int64_t cw_interruptible_left_ns(const struct cw_interruptible *wait);
/* Until when this thread's waits for the broker may last, at the socket or for a short request,
 * signal or not: for who was given a time by his caller, and cannot tell what he will have to ask
 * for. timeout_ns < 0: for ever. Then back to what it returned. -ETIMEDOUT ends them. */
int64_t cw_socket_limit(int64_t timeout_ns);
void cw_socket_unlimit(int64_t before);
/* That time, by cw_now_ns(); INT64_MAX: none. What is told when it is over: -ETIMEDOUT. */
int64_t cw_socket_limited_ns(void);
int cw_socket_too_late(void);
/* ppoll() of a wait for the broker, shown in the trace. timeout_ns < 0: for ever. Returns how many
 * are ready, or -1 with errno: EINTR also by a signal whose handler has SA_RESTART. */
struct pollfd;
int cw_socket_poll(struct pollfd *pollers, uint32_t count, int64_t timeout_ns);
/* Takes a lock that somebody may hold while he waits for the broker. until_ns: where no
 * signal is to end it; 0: one does. 0, -EINTR, -ETIMEDOUT. */
int cw_interruptible_lock(pthread_mutex_t *lock, struct cw_interruptible *wait, int64_t until_ns);

/* From now on this thread waits for no broker: whatever would have to be asked, and waited for, is
 * CW_WOULD_WAIT at once, and nothing was asked; another thread can do it. For loops that serve
 * others. What needs no answer goes as ever. */
#define CW_WOULD_WAIT (-EDEADLK)
void cw_asks_nobody(void);
/* 0 or CW_WOULD_WAIT: before each wait. */
int cw_may_ask(void);

struct cw_fds {
    int fd[CW_FDS_MAX];
    uint32_t count;
};
void cw_fds_close(struct cw_fds *fds);
/*
 * One request and its reply. send: descriptors that stay the caller's, or NULL. reply: exactly
 * reply_bytes on success. received: exactly received->count descriptors on success, the caller's; 0
 * of them otherwise. Blocks; a signal may end it after CW_INTERRUPTIBLE_AFTER_NS. _locked: the
 * caller holds sock_lock, and no signal ends it, but sock_until_ns.
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

#endif
