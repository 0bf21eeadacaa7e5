/*
 * Arrays in a part of a block that another allocator carved. The caller holds client->lock, but for
 * the first.
 */
#ifndef CW_IPC_ARRAY_SUBALLOCATION_H
#define CW_IPC_ARRAY_SUBALLOCATION_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cableway.h"

/* cw_array_at(), or (imported) also of memory that was imported. */
int cw_suballocation_take(cw_client *client, const void *address, uint64_t size_bytes,
                          bool imported, cw_array **out, uint64_t *number);
void cw_suballocations_deinit(cw_client *client);

#endif
