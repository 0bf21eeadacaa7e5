/*
 * Arrays in a part of a block that another allocator carved. The caller holds client->lock, but for
 * the first.
 */
#ifndef CW_IPC_ARRAY_SUBALLOCATION_H
#define CW_IPC_ARRAY_SUBALLOCATION_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"
#include "ipc/memory/slab.h"

/* cw_array_at(), or (imported) also of memory that was imported. */
int cw_suballocation_take(cw_client *client, const void *address, uint64_t size_bytes,
                          bool imported, cw_array **out, uint64_t *number);
/* A suballocation's block is free, and no stream is at work on it: to be told. May free the slab.
 */
void cw_suballocation_end(cw_client *client, struct cw_slab *slab, struct cw_extent *extent);
void cw_suballocations_deinit(cw_client *client);

#endif
