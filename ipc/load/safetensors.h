/*
 * The header of a .safetensors file: see safetensors.c, and cableway.h for what is public.
 */
#ifndef CW_IPC_LOAD_SAFETENSORS_H
#define CW_IPC_LOAD_SAFETENSORS_H

#include <stdint.h>

#include "ipc/cableway.h"

#define CW_SAFETENSORS_LENGTH_BYTES 8u /* in front of the header: how long it is */
#define CW_SAFETENSORS_METADATA     "__metadata__"

/* XXH3 of the header's bytes. */
uint64_t cw_safetensors_hash(const cw_safetensors *file);
/* How long the header is, by the eight bytes in front of it. 0, or -EPROTO: no file has one. */
int cw_safetensors_length(const char *path, const uint8_t bytes[CW_SAFETENSORS_LENGTH_BYTES],
                          uint64_t *header_bytes);

#endif
