/*
 * Devices by UUID: what a slab's record carries, since masks and orders differ between processes.
 *
 * Pure functions, no state, no driver: the broker and the command line use them too. A host has the
 * UUID of sixteen zeros.
 */
#ifndef CW_IPC_DEVICE_H
#define CW_IPC_DEVICE_H

#include <stdint.h>

#define CW_UUID_BYTES 16
#define CW_UUID_TEXT  41 /* "GPU-", 36 characters, the end */

/* As nvidia-smi writes it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx. "" for the host. */
void cw_uuid_text(const uint8_t uuid[CW_UUID_BYTES], char out[CW_UUID_TEXT]);

#endif
