/*
 * The fast path for a get. A client of this node asks the bridge itself, over a socket beside
 * the broker's, and is told where the bytes lie, once they are whole and checked; the name is put
 * meanwhile. So the broker is in nobody's way: two wake-ups instead of four.
 *
 * Nothing depends on it. One request of a client is under way at a time, and only GET; whoever
 * finds none, or waits for longer than a moment, asks the broker as for anything else
 * (ipc/array/fast_path.c), which sees to a bridge that is dead or stands. What the client is told
 * is no right: it takes its own lease, and where the array is gone by then it asks anew.
 *
 * If the client dies its request is forgotten, and what was being fetched is finished. If this
 * process dies the sockets end.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_FAST_PATH_H
#define CW_BROKER_BRIDGE_LOCAL_FAST_PATH_H

#include "broker/bridge/local/job.h"

#define CWB_FAST_PATH_CLIENTS_MAX 256u /* clients at once; who comes then asks the broker */

/* Listens. 0 or a negative code: there is no fast path then, and nothing else is wrong. */
int cwb_fast_path_new(struct cwb_bridge *bridge);
/* It has begun what the local client asked. */
void cwb_fast_path_took(struct cwb_local_client *client, struct cwb_job *job);
/* Where an array lies, as a client is told; its meta goes behind it. */
void cwb_fast_path_location(const struct cwb_bridge *bridge, const struct cw_put *put,
                            struct cw_fast_path_answer *out);
/* Answers a job that came over the fast path: where the array lies and its meta (status 0), or
 * cw_detail().
 */
void cwb_fast_path_answer(struct cwb_job *job, int status, const struct cw_put *put,
                          const void *meta);

#endif
