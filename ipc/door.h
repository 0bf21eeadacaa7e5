/*
 * Door: gets of other nodes' arrays asked of the bridge itself (broker/bridge/door.h). The quick
 * way, which nothing depends on.
 */
#ifndef CW_IPC_DOOR_H
#define CW_IPC_DOOR_H

#include "ipc/name_key.h"

/*
 * Blocks for a moment. 0 and *out; -EAGAIN (without a sentence): ask the broker; else what the
 * bridge says (-ENOENT, -EREMOTEIO, ...), -EINTR. until_ns: by cw_now_ns(); who has less than a
 * moment left asks the broker.
 */
int cw_door_get(cw_client *client, const struct cw_name_key *key, uint32_t flags, int64_t until_ns,
                cw_array **out);
/*
 * The same, of what is here already and has no name yet, by the bridge's board (shm/board.h): asks
 * nobody. 0 and *out; -EINTR; -EAGAIN (without a sentence): it is not to be had so.
 */
int cw_door_find(cw_client *client, const struct cw_name_key *key, uint32_t flags, cw_array **out);
void cw_door_close(cw_client *client);

#endif
