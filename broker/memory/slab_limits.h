/*
 * Limits of slabs: may a client have one more? Of all clients together, of one client, and of all
 * clients of one process; the broker's own bridge and mover keep what others asked for, and the
 * last two do not count for them.
 */
#ifndef CW_BROKER_MEMORY_SLAB_LIMITS_H
#define CW_BROKER_MEMORY_SLAB_LIMITS_H

#include <stdint.h>

#include "ipc/wire.h"
#include "shm/session/monitor.h"

struct cwd_broker;
struct cwd_session;

/* May owner be charged with one more slab? bytes: what was asked for, to be told; more_bytes: what
 * it would be charged. 0, or -EDQUOT with the sentence. */
int cwd_slab_limits(struct cwd_broker *broker, struct cwd_session *owner, uint64_t bytes,
                    uint64_t more_bytes);
/* The same of a slab that is new here. */
int cwd_slab_limits_new(struct cwd_broker *broker, struct cwd_session *owner,
                        const struct cw_slab_info *info);
/* GPU memory that is held by the registry itself: not what was imported. */
uint64_t cwd_slab_gpu_bytes(const struct cw_slab_info *info);
/* Which limit of one client, or of one process, so many bytes more of owner would exceed, and what
 * of it is in use; CW_LIMIT_COUNT: none. */
enum cw_limit cwd_slab_share(struct cwd_broker *broker, const struct cwd_session *owner,
                             uint64_t more_bytes, uint64_t *used);

#endif
