/*
 * Deferred messages: requests that need no answer and found the ring full. See deferred.c.
 */
#ifndef CW_IPC_REQUEST_DEFERRED_H
#define CW_IPC_REQUEST_DEFERRED_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

#define CW_DEFERRED_BUCKETS 256u /* of deferred messages */

/* A request that needs no answer and found no room. */
struct cw_deferred {
    struct cw_deferred *next;
    struct cw_deferred *beside; /* in its bucket: the next younger one */
    uint16_t op;
    uint32_t body_bytes;
    uint8_t body[];
};

/* The caller holds channel_lock. */
/* Memory for a request of so many bytes that may have to be kept; NULL: there is none. For free(),
 * or cw_channel_post_in(). Without the lock. */
struct cw_deferred *cw_deferred_room(uint32_t body_bytes);
/* Keeps a request that found no room in the ring, in *room unless that is NULL. 0, -EDQUOT. */
int cw_deferred_keep(cw_client *client, struct cw_deferred **room, uint16_t op, const void *body,
                     uint32_t body_bytes);
/* Writes what is kept, and rings for it. 0: nothing is left; -EAGAIN, -EPROTO. */
int cw_deferred_write(cw_client *client);
void cw_deferred_deinit(cw_client *client);
/* The last reference is gone: says so to the broker. True: the sender thread does, and frees the
 * client. The caller does NOT hold channel_lock. */
bool cw_deferred_leave(cw_client *client);

#endif
