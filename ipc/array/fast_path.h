/*
 * Fast path: gets of other nodes' arrays asked of the bridge itself
 * (broker/bridge/local/fast_path.h). Nothing depends on it.
 */
#ifndef CW_IPC_ARRAY_FAST_PATH_H
#define CW_IPC_ARRAY_FAST_PATH_H

#include "ipc/base/name_key.h"

/*
 * Blocks for a moment. 0 and *out; -EAGAIN (without a sentence): ask the broker; else what the
 * bridge says (-ENOENT, -EREMOTEIO, ...), -EINTR. until_ns: by cw_now_ns(); who has less than a
 * moment left asks the broker.
 */
int cw_fast_path_get(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                     int64_t until_ns, cw_array **out);
/*
 * The same, of what is here already and has no name yet, by the bridge's unnamed replicas
 * (shm/names/unnamed.h): asks nobody. 0 and *out; -EINTR; -EAGAIN (without a sentence): it is not
 * to be had so.
 */
int cw_fast_path_find(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                      cw_array **out);
void cw_fast_path_close(cw_client *client);
/* Opens what the bridge's answer of so many bytes names; text: its text_bytes, behind it. -EAGAIN
 * (without a sentence): it went meanwhile, or the answer is of another form. */
int cw_fast_path_open(cw_client *client, const struct cw_fast_path_answer *answer, size_t bytes,
                      uint32_t flags, cw_array **out);

#endif
