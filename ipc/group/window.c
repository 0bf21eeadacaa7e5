/*
 * Windows: see window.h. Handles come from memory that other processes write: cw_array_open()
 * checks them, and their sizes are checked here.
 */
#include "ipc/group/window.h"

#include <string.h>

#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/request/socket.h"
#include "shm/base/error.h"

int cw_window_of(cw_group_memory memory, uint64_t bytes, bool writable) {
    cw_array *array = memory.array;
    if (!memory.data && bytes)
        return cw_needs("memory for the elements");
    if (!array || !bytes)
        return 0;
    int code = cw_array_usable(array);
    if (code)
        return code;
    const uint8_t *data = memory.data;
    if (data < array->bytes || bytes > array->size_bytes ||
        (uint64_t)(data - array->bytes) > array->size_bytes - bytes)
        return cw_fail(-EINVAL, "%llu bytes at %p do not lie in the array of %llu bytes at %p",
                       (unsigned long long)bytes, memory.data,
                       (unsigned long long)array->size_bytes, (void *)array->bytes);
    if (writable && cw_array_readonly(array))
        return cw_fail(-EINVAL, "the array to receive into is read-only: open it writable, or "
                                "receive into another one");
    return !array->cow.base && !cw_array_readonly(array) && !array->fixed;
}

int cw_window_export(cw_group_memory memory, uint64_t bytes, cw_handle *out) {
    cw_handle handle;
    int code = cw_array_export(memory.array, 0, &handle);
    if (code)
        return code;
    handle.offset_bytes += (uint64_t)((const uint8_t *)memory.data - memory.array->bytes);
    handle.size_bytes = bytes;
    *out = handle;
    return 0;
}

static int open_bytes(cw_group *group, const cw_handle *named, uint64_t bytes, cw_array **out) {
    cw_handle handle = *(const volatile cw_handle *)named;
    int64_t size = (int64_t)bytes;
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    handle.token = 0;
    if (handle.size_bytes != bytes)
        return cw_fail(-EPROTO, "a member of group \"%s\" names %llu bytes where there are %llu",
                       group->name, (unsigned long long)handle.size_bytes,
                       (unsigned long long)bytes);
    int64_t before = cw_socket_limit(cw_group_broker_ns(group));
    int code = cw_array_open(group->client, &handle, &layout, 0, out);
    cw_socket_unlimit(before);
    if (code == -ETIMEDOUT) /* the others wait for us at a meeting */
        cw_group_break_by(group, CW_GROUP_TIMED_OUT, group->rank);
    return code;
}

int cw_window_open(cw_group *group, uint32_t rank, unsigned which, uint64_t bytes, cw_array **out) {
    return open_bytes(group, &group_call_of(group, rank)->handles[which], bytes, out);
}

int cw_window_bytes_new(cw_group *group, uint64_t bytes, uint32_t flags, cw_array **out) {
    int64_t size = (int64_t)bytes, before = cw_socket_limit(cw_group_broker_ns(group));
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    int code = cw_array_new(group->client, "cpu", &layout, flags, out);
    cw_socket_unlimit(before);
    return code;
}

/* ---- staging memory ---- */

int cw_stage_make(cw_group *group, cw_handle *handle) {
    if (!group->stage) {
        cw_array *stage;
        int code = cw_window_bytes_new(group, 2 * STAGE_BYTES, CW_FILLED, &stage);
        if (code)
            return code;
        code = cw_array_export(stage, 0, &group->stage_handle);
        if (code) {
            cw_array_close(stage);
            return code;
        }
        group->stage = stage;
        group->stage_known = false;
    }
    *handle = group->stage_handle;
    return 0;
}

uint8_t *cw_stage_of(cw_group *group, uint32_t rank, const cw_handle *handle, uint32_t half,
                     int *code) {
    struct group_member *member = &group->members[rank];
    if (!member->stage || memcmp(&member->stage_handle, handle, sizeof *handle) != 0) {
        cw_array_close(member->stage);
        member->stage = NULL;
        *code = open_bytes(group, handle, 2 * STAGE_BYTES, &member->stage);
        if (*code)
            return NULL;
        member->stage_handle = *handle;
    }
    return (uint8_t *)cw_array_data(member->stage) + half * STAGE_BYTES;
}

void cw_stages_close(cw_group *group) {
    for (uint32_t i = 0; i < CW_GROUP_RANKS_MAX; i++) {
        cw_array_close(group->members[i].stage);
        group->members[i].stage = NULL;
    }
    cw_array_close(group->stage);
    group->stage = NULL;
}
