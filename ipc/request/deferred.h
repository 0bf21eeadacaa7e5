/*
 * Deferred messages: requests that need no answer and found the ring full. See deferred.c.
 */
#ifndef CW_IPC_REQUEST_DEFERRED_H
#define CW_IPC_REQUEST_DEFERRED_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

#define CW_POST_BUCKETS 256u /* of posts that are kept */

/* A request that needs no answer and found no room. */
struct cw_post {
    struct cw_post *next;
    struct cw_post *beside; /* in its bucket: the next younger one */
    uint16_t op;
    uint32_t body_bytes;
    uint8_t body[];
};

/* The caller holds lane_lock. */
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
