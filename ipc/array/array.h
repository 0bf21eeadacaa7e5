/*
 * The struct of an array, and how one is made on a block.
 */
#ifndef CW_IPC_ARRAY_ARRAY_H
#define CW_IPC_ARRAY_ARRAY_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/device.h"
#include "ipc/base/layout.h"
#include "ipc/cableway.h"
#include "ipc/memory/mapping.h"
#include "ipc/memory/slab.h"
#include "shm/base/atomic.h"

/* Where an array belongs whose slab changes. */
struct cw_location {
    int gpu; /* by this process's numbers; -1: host memory */
    char name[16];
    uint8_t uuid[CW_UUID_BYTES];
};

/*
 * Addresses of this process that stay while the memory behind them changes (ipc/tree/fixed.h). Its
 * arrays have no lease of their own: it has one for all of them, and one slab, block and generation
 * that are theirs.
 *
 * Owner: client->lock, and client->moved for who waits for a change to end. A pin keeps the memory
 * as it is: a call under way, an open section.
 */
struct cw_fixed {
    cw_client *client; /* one reference */
    enum cw_fixed_state { CW_FIXED_EMPTY, CW_FIXED_MAPPED, CW_FIXED_CHANGING } state;
    uint32_t references, pins;
    cw_array *arrays;
    void (*end)(struct cw_fixed *fixed); /* without the lock: the last reference was given up */
    const struct cw_backend *backend;
    struct cw_location location;
    cw_array *held;            /* the lease on the block, which is not mapped by it; NULL: parked */
    struct cw_mapping mapping; /* the addresses, and what is known of the memory there */
    uint64_t memory;           /* that of the backend, which may be mapped there; 0: none */
    uint64_t begin_bytes, size_bytes; /* of the block, from the first address on */
};

struct cw_array {
    cw_client *client;    /* whose lease it is; one reference */
    cw_client *home;      /* whose mapping data points into; a reference if it is not client */
    struct cw_slab *slab; /* of client */
    struct cw_slab *home_slab;
    uint32_t block;
    uint64_t gen;
    uint64_t offset_bytes; /* of the lowest byte within the block */
    uint64_t size_bytes;   /* the span */
    uint8_t *bytes;        /* the lowest byte */
    uint8_t *data;         /* element 0 */
    uint32_t ndim, itemsize;
    bool readonly;
    cw_a32 fresh; /* 1: host memory that nobody has written, as far as we know (first_touch.c) */
    struct cw_mapping *mapping; /* host memory: where it was counted (mapping.h); else NULL */
    uint64_t origin_bytes;      /* of element 0, from the lowest byte */
    struct cw_evictable *evict; /* evict.h; NULL: it stays where it is. While its bytes are away
                                 * slab, home_slab, bytes and data are NULL */
    struct cw_fixed *fixed;     /* NULL: its memory is the same as long as it is open */
    cw_array *fixed_next;
    const struct cw_location *location;  /* of evict or fixed; NULL: where its slab lies */
    struct cw_mapping cow;               /* CW_PRIVATE: where bytes lie; else base NULL */
    uint64_t cow_begin_bytes;            /* in the slab */
    uint64_t own_begin_bytes, own_bytes; /* CW_OWN_PAGES: its pages, in the slab; else 0 */
    bool parted;                         /* they are copy-on-write */
    int64_t *shape, *strides;
    char *dtype;
    void *spill; /* where they lie if they do not fit below */
    int64_t axes[2 * 6];
    char text[40];
    cw_array *next; /* in the pool */
};

/* cw_array_new() in host memory of this client that is there, for who may not wait: -EAGAIN,
 * without a sentence, where there is none. Without the lock. */
int cw_array_new_here(cw_client *client, const cw_layout *layout, cw_array **out);
/* An array struct on a block that is held already and has that range of its slab; that hold
 * becomes the array's. flags: as of cw_array_attach(). -EAGAIN: the mapping in which it would lie
 * is not there. The caller holds the lock. */
int cw_array_make(cw_client *client, struct cw_slab *slab, uint32_t block, uint64_t gen,
                  const struct cw_range *range, uint64_t offset_bytes, uint64_t size_bytes,
                  const struct cw_shape *shape, uint32_t flags, cw_array **out);
/* Holds a block, maps its slab and makes an array on it; checks that the range lies in the block.
 * flags: CW_READONLY, CW_PRIVATE or CW_UNMAPPED, and CW_CURRENT. */
int cw_array_attach(cw_client *client, uint32_t slab_id, uint32_t block, uint64_t gen,
                    uint64_t offset_bytes, uint64_t size_bytes, const struct cw_shape *shape,
                    uint32_t flags, cw_array **out);
struct cw_handle_read;
/* Of handles as bytes (handle.c). What one of this client for so many openers says, but for what it
 * leads to: 0, or -EINVAL. */
int cw_handle_begin(const cw_client *client, uint32_t openers, uint32_t flags, cw_handle_info *out);
/* Reads one, which must be of this client's broker. 0, -EPROTO, -EXDEV or -ESTALE. */
int cw_handle_accept(cw_client *client, const void *bytes, uint64_t size_bytes,
                     struct cw_handle_read *out);
/* -ESTALE: what it leads to is gone, and why that may be. */
int cw_handle_gone(cw_client *client, const cw_handle_info *info);
/* 0, or -EINVAL when the array is not this process's: NULL, or it came over a fork. */
int cw_array_ours(const cw_array *array);
/* It leaves its addresses, if it has such. True: it has no lease of its own. */
bool cw_fixed_leave(cw_array *array);
/* One reference less. */
void cw_fixed_release(struct cw_fixed *fixed);
/* Of a GPU's memory: the mapping in which it lies. */
struct cw_mapping *cw_array_gpu_mapping(cw_array *array);
/* The same for who asks the broker about it: -ECONNRESET when that is gone. */
int cw_array_usable(const cw_array *array);

#endif
