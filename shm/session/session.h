/*
 * Session segment: what one client and the broker share. Made by the broker, one per client.
 *
 *   offset 0                      struct cw_session (header, doorbell flags, counters)
 *   CW_SESSION_REQUESTS           ring client -> broker (requests), CW_CHANNEL_BYTES
 *   CW_SESSION_REPLIES            ring broker -> client (replies), CW_CHANNEL_BYTES
 *   CW_SESSION_LEASES             the first lease table
 *
 * The broker trusts nothing in it: it copies, checks the copy, uses the copy. If the client dies,
 * the broker first consumes the whole records still in the request ring, then reads the lease
 * tables, then closes the segment.
 */
#ifndef CW_SHM_SESSION_SESSION_H
#define CW_SHM_SESSION_SESSION_H

#include "shm/session/lease.h"
#include "shm/session/ring.h"
#include "shm/base/segment.h"

#define CW_CHANNEL_BYTES (64u << 10)

/* Ways of bytes to or from a GPU. */
enum cw_route {
    CW_ROUTE_SAME,   /* within one GPU */
    CW_ROUTE_PEER,   /* from GPU to GPU */
    CW_ROUTE_IN,     /* from host memory to a GPU */
    CW_ROUTE_OUT,    /* from a GPU to host memory */
    CW_ROUTE_STAGED, /* from GPU to GPU through host memory */
    CW_ROUTES,
};

struct cw_session {
    struct cw_segment_header header;
    uint32_t session; /* id, never used again within this run of the broker */
    cw_a32 mapped; /* client: 1 once it has mapped this segment; a client that gave up before holds
                    * nothing, and its session ends with its socket */
    cw_a64 reclaimed; /* broker: rises when blocks of this client's slabs came back (state FREE) */
    cw_a64 closed_slabs;      /* broker: rises when a slab that this client opened was given up */
    cw_a64 routes[CW_ROUTES]; /* client: bytes that it copied, by route */
    cw_a64 transits_ready;    /* broker: the highest counter of a token with which this client may
                               * begin a transit: there is memory for so many */
    uint64_t reserved[7];
};
_Static_assert(sizeof(struct cw_session) == 192, "layout");

#define CW_SESSION_REQUESTS CW_PAGE
#define CW_SESSION_REPLIES  (CW_SESSION_REQUESTS + CW_PAGE + CW_CHANNEL_BYTES)
#define CW_SESSION_LEASES   (CW_SESSION_REPLIES + CW_PAGE + CW_CHANNEL_BYTES)
#define CW_SESSION_BYTES    (CW_SESSION_LEASES + sizeof(struct cw_lease_table))

static inline struct cw_ring *cw_session_requests(void *base) {
    return (struct cw_ring *)((uint8_t *)base + CW_SESSION_REQUESTS);
}
static inline struct cw_ring *cw_session_replies(void *base) {
    return (struct cw_ring *)((uint8_t *)base + CW_SESSION_REPLIES);
}
static inline struct cw_lease_table *cw_session_leases(void *base) {
    return (struct cw_lease_table *)((uint8_t *)base + CW_SESSION_LEASES);
}

#endif
