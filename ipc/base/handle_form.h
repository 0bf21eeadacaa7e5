/*
 * The form of a handle as bytes: for any transport, of a fixed layout, with a version and a check.
 * Never a pickle: whoever reads it checks every field, and the block after that.
 *
 *   struct cw_handle_form, then the texts: node (the host's name), address (of the broker's
 * socket), name_space, then the array's metadata (meta.h), then the XXH3 of all before it. All
 * little-endian. Nothing follows. Node and namespace are there for who reads an error.
 *
 * The check finds damage, not forgery: who can send a handle to a process can send any. What a
 * forged one can reach are blocks of the broker whose folder is this user's own, of which any
 * process of the user may open all; it cannot be read beyond its block.
 */
#ifndef CW_IPC_BASE_HANDLE_FORM_H
#define CW_IPC_BASE_HANDLE_FORM_H

#include <limits.h>
#include <stdint.h>

#include "ipc/base/layout.h"
#include "ipc/cableway.h"

#define CW_HANDLE_MAGIC   0x656c646e61487763ull /* "cwHandle" */
#define CW_HANDLE_VERSION 1u

struct cw_handle_form {
    uint64_t magic;
    uint16_t version; /* CW_HANDLE_VERSION */
    uint16_t kind;    /* 1: an array; 2: a tree, of which this is the index, as bytes */
    uint32_t total_bytes;
    cw_handle handle;
    uint32_t openers;      /* for how many it was made */
    uint32_t flags;        /* CW_READONLY or 0 */
    uint64_t made_ns;      /* CLOCK_REALTIME */
    uint64_t tree_version; /* 0: an array */
    uint16_t node_bytes, address_bytes, name_space_bytes, meta_bytes;
};
_Static_assert(sizeof(struct cw_handle_form) == 96, "layout");

/* What such bytes say, checked as far as that can be done without a broker. */
struct cw_handle_read {
    struct cw_shape shape;
    cw_handle_info info;
};

/* What info says, and a resolved layout, to CW_HANDLE_BYTES_MAX bytes. Returns how many they are.
 */
uint32_t cw_handle_encode(const struct cw_handle_read *read, uint8_t *out);
/* 0, or -EPROTO: these bytes are no handle. */
int cw_handle_decode(const void *bytes, uint64_t size_bytes, struct cw_handle_read *out);

#endif
