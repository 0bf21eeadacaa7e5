/*
 * Bytes of any length from some members to some: what operations on objects are made of.
 *
 * The length goes with the call, and up to CW_GROUP_INLINE_MAX bytes with it; more lie in an array
 * that its member makes for this exchange, which the others open. Where anybody had one, all meet
 * once more, and it ends then. It is a part of an operation on objects, which is complete, and
 * counted, with the barrier behind. Deaths: as in collective.c.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/group/window.h"
#include "shm/base/error.h"

/* A label has two bytes, of which the second stands where elements have their dtype. */
static uint64_t what_of(uint32_t label, uint32_t root, uint32_t step) {
    return group_what(GROUP_EXCHANGE, label >> 8 & 0xff, label & 0xff, root, step);
}

/* Puts what we contribute where others find it. */
static int contribute(cw_group *group, const void *data, uint64_t bytes, cw_array **array) {
    struct group_call *call = group_next_call(group);
    call->extra = bytes;
    call->flags = 0;
    if (bytes <= CW_GROUP_INLINE_MAX) {
        if (bytes)
            memcpy(call->data, data, bytes);
        return 0;
    }
    int code = cw_window_bytes_new(group, bytes, 0, array);
    if (code == 0)
        code = cw_array_write(*array, 0, data, bytes);
    if (code == 0)
        code = cw_array_export(*array, 0, &call->handles[0]);
    return code;
}

/* A copy of what that member contributed. */
static int copy_of(cw_group *group, uint32_t rank, cw_group_part *out) {
    const struct group_call *call = group_call_of(group, rank);
    uint64_t bytes = *(const volatile uint64_t *)&call->extra;
    cw_array *array = NULL;
    int code = 0;
    const void *from = call->data;
    if (bytes > CW_GROUP_INLINE_MAX) {
        code = cw_window_open(group, rank, 0, bytes, &array);
        from = code ? NULL : cw_array_data(array);
    }
    void *copy = code ? NULL : malloc(bytes ? bytes : 1);
    if (code == 0 && !copy)
        code = cw_fail(-EDQUOT, "no memory for %llu bytes of rank %u", (unsigned long long)bytes,
                       rank);
    if (code == 0) {
        memcpy(copy, from, bytes);
        *out = (cw_group_part){copy, bytes};
    }
    cw_array_close(array);
    return code;
}

void cw_group_parts_free(cw_group_part *parts, uint32_t count) {
    for (uint32_t i = 0; parts && i < count; i++)
        free(parts[i].data);
    free(parts);
}

static int copy_all(cw_group *group, bool all_send, uint32_t root, bool receives, bool *arrays,
                    cw_group_part *parts) {
    int code = 0;
    *arrays = false;
    for (uint32_t i = 0; i < group->size; i++) {
        if (!all_send && i != root)
            continue;
        *arrays |=
            *(const volatile uint64_t *)&group_call_of(group, i)->extra > CW_GROUP_INLINE_MAX;
        if (receives && code == 0)
            code = copy_of(group, i, &parts[i]);
    }
    return code;
}

static int exchange(cw_group *group, const void *data, uint64_t bytes, bool sends, bool all_send,
                    uint32_t root, uint32_t label, bool receives, cw_group_part *parts) {
    cw_array *array = NULL;
    bool arrays;
    int code = cw_group_refused(group, contribute(group, data, sends ? bytes : 0, &array));
    if (code == 0) {
        cw_group_arrive(group, what_of(label, root, 0), 0);
        code = cw_group_await(group);
        if (code == 0) {
            code =
                cw_group_failed(group, copy_all(group, all_send, root, receives, &arrays, parts));
            if (code == 0 && arrays) {
                cw_group_arrive(group, what_of(label, root, 1), 0);
                code = cw_group_await(group);
            }
        }
    }
    cw_array_close(array);
    return code;
}

int cw_group_exchange(cw_group *group, const void *data, uint64_t size_bytes, uint32_t from,
                      uint32_t to, uint32_t label, cw_group_part **out) {
    if (!out || (!data && size_bytes))
        return cw_needs("bytes, and a place for those of the others");
    int code = cw_group_begin(group);
    if (code)
        return code;
    bool all_send = from == CW_GROUP_ALL, all_receive = to == CW_GROUP_ALL;
    uint32_t root = !all_send ? from : !all_receive ? to : GROUP_NO_ROOT;
    if (!all_send && !all_receive) {
        cw_group_leave_call(group);
        return cw_fail(-EINVAL,
                       "bytes go from rank %u to rank %u: one of them is CW_GROUP_ALL; from "
                       "one to one go messages",
                       from, to);
    }
    if ((!all_send && from >= group->size) || (!all_receive && to >= group->size)) {
        cw_group_leave_call(group);
        return cw_fail(-EINVAL, "root %u: group \"%s\" has ranks 0 to %u", root, group->name,
                       group->size - 1);
    }
    cw_group_part *parts = calloc(group->size, sizeof *parts);
    if (!parts) {
        cw_group_leave_call(group);
        return cw_fail(-EDQUOT, "no memory for %u parts", group->size);
    }
    code = exchange(group, data, size_bytes, all_send || from == group->rank, all_send, root, label,
                    all_receive || to == group->rank, parts);
    if (code)
        cw_group_parts_free(parts, group->size);
    else
        *out = parts;
    cw_group_leave_call(group);
    return code;
}
