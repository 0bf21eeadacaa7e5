/*
 * Devices by UUID: what a slab's record carries, since masks and orders differ between processes.
 *
 * Pure functions, no state, no driver: the broker and the command line use them too. A host has the
 * UUID of sixteen zeros.
 */
#ifndef CW_IPC_BASE_DEVICE_H
#define CW_IPC_BASE_DEVICE_H

#include <stdint.h>

#include "ipc/wire.h"
#include "shm/blocks/order.h"

#define CW_GPUS_MAX   64 /* that one process works with */
#define CW_UUID_BYTES 16
#define CW_UUID_TEXT  41 /* "GPU-", 36 characters, the end */

/* As nvidia-smi writes it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx. "" for the host. */
void cw_uuid_text(const uint8_t uuid[CW_UUID_BYTES], char out[CW_UUID_TEXT]);

/* Bytes of the block table of a slab on a device of that kind: GPU slabs have orders behind it. */
static inline uint64_t cw_slab_table_bytes(uint32_t device_kind, uint32_t blocks) {
    return device_kind == CW_DEVICE_CUDA ? cw_order_table_bytes(blocks)
                                         : cw_block_table_bytes(blocks);
}

#endif
