/*
 * Door: the quick way for a get. A client of this node asks the bridge itself, over a socket beside
 * the broker's, and is told where the bytes lie, once they are whole and checked; the name is put
 * meanwhile. So the broker is in nobody's way: two wake-ups instead of four.
 *
 * Nothing depends on it. One request of a client is under way at a time, and only GET; whoever
 * finds no door, or waits at one for longer than a moment, asks the broker as for anything else
 * (ipc/door.c), which sees to a bridge that is dead or stands. What the client is told is no right:
 * it takes its own lease, and where the array is gone by then it asks anew.
 *
 * If the client dies its request is forgotten, and what was being fetched is finished. If this
 * process dies the sockets end.
 */
#ifndef CW_BRIDGE_DOOR_H
#define CW_BRIDGE_DOOR_H

#include "broker/bridge/job.h"

#define CWB_DOOR_MAX 256u /* clients at once; who comes then asks the broker */

/* Listens. 0 or a negative code: there is no door then, and nothing else is wrong. */
int cwb_door_new(struct cwb_bridge *bridge);
/* It has begun what the visitor asked. */
void cwb_door_took(struct cwb_visitor *visitor, struct cwb_job *job);
/* Answers a job that came by the door: where the array lies and its meta (status 0), or
 * cw_detail().
 */
void cwb_door_answer(struct cwb_job *job, int status, const struct cw_put *put, const void *meta);

#endif
