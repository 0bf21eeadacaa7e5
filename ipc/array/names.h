/*
 * Names, for callers within the library.
 */
#ifndef CW_IPC_ARRAY_NAMES_H
#define CW_IPC_ARRAY_NAMES_H

#include <stdint.h>

#include "ipc/base/name_key.h"
#include "ipc/cableway.h"
#include "shm/base/trace.h"

/* 0, or -EINVAL: flags for opening an array that do not exist, or exclude each other. */
int cw_open_flags_check(const char *function, uint32_t flags);
/* cw_get() with CW_UNMAPPED. */
int cw_get_unmapped(cw_client *client, const char *name, cw_array **out);

/* cw_array_put() of a whole array under a free name of this node, which lasts only as long as
 * somebody has the array open: if the last one closes it or dies, the name goes. */
int cw_array_put_weak(cw_array *array, const char *name);

/* Enters the span of a call about a name, whose key must stay until it is left. */
static inline void cw_name_span(struct cw_trace_span *span, enum cw_trace_kind kind,
                                const struct cw_name_key *key, uint64_t bytes) {
    /* Field by field: a warm get comes here, too, and needs no more. */
    span->kind = (uint8_t)kind;
    span->flags = 0;
    span->op = 0;
    span->is_key = true;
    span->name = key->text;
    span->name_bytes = key->length;
    span->subject = span->number = 0;
    span->bytes = bytes;
    cw_trace_enter(span);
}

#endif
