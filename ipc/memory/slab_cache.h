/*
 * The slab cache: entirely free slabs that are kept for the next arrays. The caller holds
 * client->lock unless the comment says otherwise.
 */
#ifndef CW_IPC_MEMORY_SLAB_CACHE_H
#define CW_IPC_MEMORY_SLAB_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/memory/allocator.h"

/* How much free memory a heap keeps: what the user says in the environment, else what the device's
 * size suggests. */
int cw_slab_cache_limit(const struct cw_backend *backend, uint64_t suggested_bytes, uint64_t *out);
/* Gives up an own slab; it is freed. */
void cw_slab_close(cw_client *client, struct cw_slab *slab);
/* Called for a slab that may be entirely free now: keeps it, or gives it up. */
void cw_heap_settle(cw_client *client, struct cw_slab *slab);
/* The same of the slab with this id, which was made for an array that may have found room
 * elsewhere, where something came back meanwhile; 0, or it is gone: nothing. Without client->lock.
 */
void cw_slab_cache_settle(cw_client *client, uint32_t id);
/* Gives up cached slabs beyond the limit. */
void cw_slab_cache_trim(cw_client *client, struct cw_heap *heap);
/* Forgets the slabs that the broker has taken back for others (broker/memory/room.h), or does so
 * when the broker has said that a slab was given up. Who calls has none of them in hand. */
void cw_slab_cache_forget(cw_client *client);
void cw_slab_cache_forget_if_told(cw_client *client);
/* At a limit: gives up all that is kept, and waits until its memory, and that of slabs given up
 * before, is free. True: there was some. Without client->lock. */
bool cw_slab_cache_drop(cw_client *client);
/* How many descriptors the broker has closed; and waits until it has closed those of so many slabs
 * more, or for a second. Without client->lock. */
uint64_t cw_slab_cache_closed(const cw_client *client);
void cw_slab_cache_await_closed(cw_client *client, uint64_t before, uint32_t slabs);
/* Where that was not enough: 1 after a nap while the memory of a slab given up within the last
 * second may be on its way, 0 otherwise, -EINTR. *until_ns: 0, then the end of all such naps.
 * Without client->lock. */
int cw_slab_cache_nap(cw_client *client, int64_t *until_ns);

#endif
