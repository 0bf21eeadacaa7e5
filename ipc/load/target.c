/*
 * One name of a load, and its memory: pieces of 64 GiB at most, so that what is large needs no
 * piece of a size that is not there, allocated before a byte is read.
 *
 * Owner: the load (load.c). Its process dies: the arrays end with the session.
 */
#include "ipc/load/target.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/load/checkpoint.h"
#include "ipc/tree/tree.h"
#include "shm/base/error.h"

#define PART_BYTES                                                                                 \
    (64ull << 30) /* of memory that is allocated at once, unless one tensor is larger */

int cw_target_init(struct cw_target *target, cw_client *client, const char *name,
                   const char *device) {
    int code = cw_tree_key(client, name, &target->key);
    if (code)
        return code;
    target->name = strdup(name);
    target->device = device ? strdup(device) : NULL;
    if (!target->name || (device && !target->device))
        return cw_fail(-EDQUOT, "no memory to load \"%.100s\"", name);
    return 0;
}

void cw_target_deinit(struct cw_target *target) {
    free(target->parts);
    free(target->name);
    free(target->device);
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + CW_LEAF_ALIGN - 1) / CW_LEAF_ALIGN * CW_LEAF_ALIGN;
}

static int add_part(struct cw_target *target, cw_client *client, uint64_t size_bytes) {
    int64_t size = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    cw_array **parts = realloc(target->parts, (target->part_count + 1) * sizeof(void *));
    if (!parts)
        return cw_fail(-EDQUOT, "no memory to load \"%.100s\"", target->name);
    target->parts = parts;
    int code = cw_array_new(client, target->device ? target->device : "cpu", &layout, CW_APART,
                            &parts[target->part_count]);
    target->part_count += code == 0;
    return code;
}

int cw_target_check_paths(const cw_checkpoint *c) {
    for (uint32_t i = 0; i < c->tensor_count; i++) {
        int code = cw_path_check(c->tensors[i].name);
        if (code)
            return code;
    }
    return 0;
}

int cw_target_allocate(struct cw_target *target, cw_client *client, const cw_checkpoint *c) {
    uint32_t first = 0;
    uint64_t end = 0;
    int code = 0;
    for (uint32_t i = 0; i <= c->tensor_count && code == 0; i++) {
        uint64_t size = i < c->tensor_count ? c->tensors[i].size_bytes : 0;
        bool whole = i == c->tensor_count || (end && aligned(end) + size > PART_BYTES);
        if (whole && i > first) { /* also without bytes: what reads into it needs an array */
            code = add_part(target, client, end ? end : 1);
            for (; first < i && code == 0; first++)
                target->reads[first].array = target->parts[target->part_count - 1];
            end = 0;
        }
        if (i == c->tensor_count || code)
            break;
        target->reads[i].tensor = i;
        target->reads[i].size_bytes = size;
        target->reads[i].offset_bytes = aligned(end);
        end = aligned(end) + size;
    }
    return code;
}

void cw_target_empty(struct cw_target *target) {
    while (target->part_count)
        cw_array_close(target->parts[--target->part_count]);
    target->reads = NULL;
}
