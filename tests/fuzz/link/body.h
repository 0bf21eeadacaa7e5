/*
 * The body of a frame, as it is put together.
 */
#ifndef CW_TESTS_FUZZ_LINK_BODY_H
#define CW_TESTS_FUZZ_LINK_BODY_H

#include <stdint.h>
#include <string.h>

#include "broker/bridge/wire/frame.h"
#include "ipc/base/layout.h"
#include "ipc/base/meta.h"

struct body {
    uint8_t bytes[CWB_FRAME_MAX];
    uint32_t used;
};

static inline void add(struct body *body, const void *bytes, size_t count) {
    if (count > sizeof body->bytes - body->used)
        return;
    memcpy(body->bytes + body->used, bytes, count);
    body->used += (uint32_t)count;
}

static inline uint32_t key_bytes(const char *name) {
    return (uint32_t)strlen(name) + 1; /* of no namespace */
}

static inline void add_key(struct body *body, const char *name) {
    add(body, "", 1);
    add(body, name, strlen(name));
}

static inline uint32_t meta_of(uint64_t size_bytes, uint8_t meta[CW_META_BYTES_MAX]) {
    int64_t length = (int64_t)size_bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    struct cw_shape shape;
    return cw_layout_resolve(&layout, &shape) == 0 ? cw_meta_encode(&shape, meta) : 0;
}

#endif
