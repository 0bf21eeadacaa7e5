/*
 * Device backend: what a kind of memory must provide, so that slabs, arrays and copies need not
 * know whether they lie in host or in GPU memory. The host backend (host.c) is the first one.
 *
 * Preconditions, once for all: sizes and offsets were checked by the caller against the slab; fds
 * are valid and stay the caller's unless said otherwise; calls may come from any thread, and block
 * for as long as the device takes. Every function returns 0 or a negative errno with a detail text.
 */
#ifndef CW_IPC_BACKEND_H
#define CW_IPC_BACKEND_H

#include <stddef.h>
#include <stdint.h>

struct cw_mapping { /* one slab's data in this process */
    void *base;     /* host address or device pointer */
    size_t size_bytes;
    void *opaque; /* the backend's own, e.g. an allocation handle */
};

struct cw_backend {
    const char *name;        /* "cpu", "cuda" */
    uint32_t device_kind;    /* enum cw_device_kind */
    uint64_t slab_min_bytes; /* the first slab; each further one doubles */
    uint64_t slab_max_bytes; /* up to here */
    uint32_t align_bytes;    /* of every block */

    /* How many devices of this kind there are for this process (host: 1). */
    int (*device_count)(int *out);
    /* Makes memory and exports it: *fd is the caller's. */
    int (*slab_create)(int device, uint64_t size_bytes, int *fd);
    /* Maps a slab's data. Checks fd against size_bytes. Does not take fd over. */
    int (*slab_map)(int device, int fd, uint64_t size_bytes, uint32_t slab_flags, int readonly,
                    struct cw_mapping *out);
    void (*slab_unmap)(struct cw_mapping *mapping);
    /* Maps whole pages of a slab copy-on-write: what is written there is this process's alone.
     * slab_unmap ends it. NULL where the device cannot. */
    int (*slab_map_private)(int fd, uint64_t slab_bytes, uint32_t slab_flags, uint64_t begin_bytes,
                            uint64_t size_bytes, struct cw_mapping *out);
    /* Copies between memory of this backend and host memory, or within it. Blocks until done. */
    int (*copy)(void *destination, const void *source, size_t size_bytes);
    int (*zero)(void *destination, size_t size_bytes);
};

extern const struct cw_backend cw_backend_host;
/* The backend of a device name ("cpu", "cuda:N") and its ordinal. -ENODEV with the remedy, -EINVAL.
 */
int cw_backend_find(const char *device, const struct cw_backend **backend, int *ordinal);

#endif
