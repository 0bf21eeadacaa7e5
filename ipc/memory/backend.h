/*
 * Device backend: what a kind of memory must provide, so that slabs, arrays and copies need not
 * know whether they are in host or in GPU memory. There are two: host.c and ipc/cuda/backend.c.
 *
 * Preconditions of all functions: the caller has checked sizes and offsets against the slab; fds
 * are valid and stay the caller's unless the comment says otherwise. Calls may come from any
 * thread, and block for as long as the device takes. Those that return int return 0 or a negative
 * errno with a detail text; those that return nothing cannot fail.
 */
#ifndef CW_IPC_MEMORY_BACKEND_H
#define CW_IPC_MEMORY_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/cableway.h"
#include "ipc/base/device.h"

#define CW_LARGE_SLAB_BLOCKS 64u /* large_blocks of the host */

/* GPU memory that another library allocated (ipc/cuda/import.c): */
enum cw_imported {
    CW_IMPORT_OWN = 1,    /* by this process: used at the address where it is */
    CW_IMPORT_OPENED = 2, /* by another process: opened here by CUDA IPC */
};

struct cw_mapping { /* one slab's data in this process */
    void *base;     /* host address or device pointer */
    size_t size_bytes;
    int device;        /* its device, by this process's numbers */
    uint64_t reachers; /* GPU memory: bit i: device i may use it. Host memory: 1 when registered
                        * with CUDA. Under the CUDA backend's lock */
    int imported;      /* GPU memory of somebody else (import.c): in its owner, or opened; else 0 */
    bool empty;        /* fixed addresses where nothing is mapped */
    bool readonly;     /* GPU memory: a write breaks the CUDA context of the process */
};

struct cw_backend {
    const char *name;        /* "cpu", "cuda" */
    uint32_t device_kind;    /* enum cw_device_kind */
    uint64_t slab_min_bytes; /* the first slab; allocator.c says how they grow */
    uint64_t slab_max_bytes; /* up to here */
    uint32_t align_bytes;    /* of every block */
    uint32_t block_bytes;    /* a shared slab has a block number for so many bytes */
    uint32_t large_blocks; /* block numbers of a large array's own slab; on GPUs for suballocations
                              in it */
    bool protects;         /* read-only and writable mappings of a slab are two (mapping.h) */

    /* How many devices of this kind there are for this process (host: 1). */
    int (*device_count)(int *out);
    /* A device's UUID, and the device with that UUID. -ENODEV when this process does not see it. */
    int (*device_uuid)(int device, uint8_t uuid[CW_UUID_BYTES]);
    int (*device_find)(const uint8_t uuid[CW_UUID_BYTES], int *device);
    /* What slabs are multiples of, and how much of entirely free ones one client keeps. */
    int (*device_limits)(int device, uint64_t *granule_bytes, uint64_t *cache_bytes);
    /* Describes the device, for people. */
    int (*device_stat)(int device, cw_device_info *out);
    /* Makes memory and exports it: *fd is the caller's. size_bytes: a multiple of the granule. */
    int (*slab_create)(int device, uint64_t size_bytes, int *fd);
    /* Maps a slab's data. Checks fd against size_bytes. Does not take fd over. */
    int (*slab_map)(int device, int fd, uint64_t size_bytes, uint32_t slab_flags, int readonly,
                    struct cw_mapping *out);
    /* A mapping that was made read-only is writable from now on, where it is, and stays so. NULL
     * where read-only and writable mappings are two (protects). */
    int (*slab_raise)(struct cw_mapping *mapping);
    /* Called when nothing in this process holds an array of it. In a forked child: its copy ends.
     */
    void (*slab_unmap)(struct cw_mapping *mapping);
    /* Maps whole pages of a slab copy-on-write: what is written there only this process sees.
     * slab_unmap ends it. NULL where the device cannot. */
    int (*slab_map_cow)(int fd, uint64_t slab_bytes, uint32_t slab_flags, uint64_t begin_bytes,
                        uint64_t size_bytes, struct cw_mapping *out);
    /*
     * Addresses that stay while the memory there is exchanged (ipc/tree/fixed.h). They are reserved
     * and given back when nothing is mapped there; where something is, slab_unmap ends both.
     * A slab's memory is held by a number of the backend's, mapped or not, without the broker.
     */
    int (*fixed_reserve)(int device, uint64_t size_bytes, struct cw_mapping *out);
    void (*fixed_give_back)(struct cw_mapping *mapping);
    int (*fixed_hold)(int device, int fd, uint64_t size_bytes, uint32_t slab_flags,
                      uint64_t *memory);
    void (*fixed_drop)(uint64_t memory);
    /* Maps memory read-only, in place of what is there. If it fails: mapping->empty is false while
     * the old memory is still there, true if nothing is. */
    int (*fixed_map)(struct cw_mapping *mapping, uint64_t memory);
    /* Takes away what is there; the addresses stay reserved. */
    int (*fixed_unmap)(struct cw_mapping *mapping);
    /* Copies between this device and host memory of this process. Blocks until done. */
    int (*copy_in)(int device, void *target, const void *host, size_t size_bytes);
    int (*copy_out)(int device, void *host, const void *source, size_t size_bytes);
    int (*zero)(int device, void *target, size_t size_bytes);
};

extern const struct cw_backend cw_backend_host, cw_backend_cuda;
/* Host memory that GPUs may copy from at full speed: ends that before the memory is unmapped. */
void cw_backend_forget_host(struct cw_mapping *mapping);
/* The backend of a slab's device kind; NULL: there is none. */
const struct cw_backend *cw_backend_of_kind(uint32_t device_kind);
/* The backend of a device name ("cpu", "cuda:N") and its ordinal. -ENODEV with the remedy, -EINVAL.
 */
int cw_backend_find(const char *device, const struct cw_backend **backend, int *ordinal);

#endif
