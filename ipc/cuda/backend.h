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
/* Waits for all that this process does on these GPUs (bit i: GPU i), whatever stream it is on.
 * False while a stream is being captured, which forbids it. */
bool cw_cuda_drain(uint64_t gpus);
/* Imports a slab's memory and checks it. The caller releases the handle. */
int cw_cuda_import_slab(const struct cw_gpu *gpu, int fd, uint64_t size_bytes,
                        CUmemGenericAllocationHandle *out);
/* Fixed addresses (fixed.c): struct cw_backend. */
int cw_cuda_fixed_reserve(int device, uint64_t size_bytes, struct cw_mapping *out);
void cw_cuda_fixed_give_back(struct cw_mapping *mapping);
int cw_cuda_fixed_hold(int device, int fd, uint64_t size_bytes, uint32_t slab_flags,
                       uint64_t *memory);
void cw_cuda_fixed_drop(uint64_t memory);
int cw_cuda_fixed_map(struct cw_mapping *mapping, uint64_t memory);
int cw_cuda_fixed_unmap(struct cw_mapping *mapping);
/* Registers a mapping of host memory with CUDA, for all GPUs, if it is not: 54 ms a GiB, once.
 * Where the driver refuses (no memory to be locked), copies go on without, slower. Under an entered
 * context. */
void cw_cuda_register_host(const struct cw_gpu *gpu, struct cw_mapping *mapping);
/* Maps imported memory by its ticket, and ends that (import.c). -EPROTO: no ticket. -ENODEV. */
int cw_import_map(const struct cw_gpu *gpu, int fd, uint64_t size_bytes, struct cw_mapping *out);
void cw_import_unmap(const struct cw_gpu *gpu, const struct cw_mapping *mapping);

#endif
