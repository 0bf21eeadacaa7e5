/*
 * CUDA backend: what its neighbours (copies, fences) need beside the seam of backend.h.
 */
#ifndef CW_IPC_CUDA_BACKEND_H
#define CW_IPC_CUDA_BACKEND_H

#include "ipc/memory/backend.h"
#include "ipc/cuda/device.h"

/* Lets this GPU use a mapping that lies on any GPU. -ENODEV when the hardware cannot. Blocks some
 * microseconds the first time for that GPU. */
int cw_cuda_admit(const struct cw_gpu *gpu, struct cw_mapping *mapping);
/* Registers a mapping of host memory with CUDA, for all GPUs, if it is not: 54 ms a GiB, once.
 * Where the driver refuses (no memory to be locked), copies go on without, slower. Under an entered
 * context. */
void cw_cuda_register_host(const struct cw_gpu *gpu, struct cw_mapping *mapping);
/* Maps imported memory by its ticket, and ends that (import.c). -EPROTO: no ticket. -ENODEV. */
int cw_import_map(const struct cw_gpu *gpu, int fd, uint64_t size_bytes, struct cw_mapping *out);
void cw_import_unmap(const struct cw_gpu *gpu, const struct cw_mapping *mapping);

#endif
