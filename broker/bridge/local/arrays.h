/*
 * Memory and names of this node. See arrays.c.
 */
#ifndef CW_BROKER_BRIDGE_LOCAL_ARRAYS_H
#define CW_BROKER_BRIDGE_LOCAL_ARRAYS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/name_key.h"
#include "ipc/cableway.h"
#include "ipc/wire.h"

struct cwb_bridge;

/*
 * An array of this node, or the index of a tree, by key or by what a request says, mapped
 * read-only; or, if it lies on a GPU, not mapped (*on_gpu): staging.h brings its bytes. 0, -ENOENT
 * (without a sentence), -ESTALE, on the loop CW_WOULD_WAIT. Any thread.
 */
int cwb_local_open(struct cwb_bridge *bridge, const struct cw_name_key *key, struct cw_found *found,
                   cw_array **out, bool *on_gpu);
int cwb_local_open_at(struct cwb_bridge *bridge, const struct cw_remote *remote, cw_array **out,
                      bool *on_gpu);
/* The record under a key, as cw_name_key_find(). CW_WOULD_WAIT: a part of the directory is not
 * mapped, and is being mapped now. */
int cwb_local_find(struct cwb_bridge *bridge, const struct cw_name_key *key,
                   struct cw_found *found);
/* Is all of the directory mapped that there is now? */
bool cwb_local_mapped(struct cwb_bridge *bridge);
/* Has a helper map what is not, and, unless key is NULL, what its array lies in, which stays mapped
 * while on_done(owner, code) runs, perhaps at once. code < 0: cw_detail(). That there is no such
 * name is none. */
typedef void cwb_on_mapped(void *owner, int code);
void cwb_local_map(struct cwb_bridge *bridge, const struct cw_name_key *key, cwb_on_mapped *on_done,
                   void *owner);
/* One more lease on a plain array of this process. 0 or a negative code. */
int cwb_local_hold(cw_array *array, cw_array **out);
/* How often an array on a GPU was written. false: somebody is writing. Any thread. */
bool cwb_local_written(const cw_array *array, uint64_t *writes);
/* A plain array of so many bytes. Any thread; blocks. */
int cwb_local_make(struct cwb_bridge *bridge, uint64_t size_bytes, cw_array **out);
/* cw_array_close(); a large one is closed by a helper, for the kernel may take its memory back
 * then, at 150 ms/GiB. */
void cwb_local_close(struct cwb_bridge *bridge, cw_array *array);
/* Has memory made ready for what comes next. */
void cwb_local_reserve(struct cwb_bridge *bridge);
/* Gives back what this process keeps free, once no large array was made for some seconds. Returns
 * when that is due, or INT64_MAX: it keeps nothing but the reserve. */
int64_t cwb_local_tick(struct cwb_bridge *bridge);
/* Makes a plain array of so many bytes. on_done(owner, code, array): 0 and the array, the owner's;
 * else cw_detail(). Runs at once where there is room in memory that is mapped. */
typedef void cwb_on_array(void *owner, int code, cw_array *array);
void cwb_local_new(struct cwb_bridge *bridge, uint64_t size_bytes, cwb_on_array *on_done,
                   void *owner);

#endif
