/*
 * Parts of a tree with memory of their own: see own_slab.h.
 *
 * No state.
 */
#include "ipc/tree/own_slab.h"

#include "ipc/array/array.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/memory/slab.h"
#include "ipc/order/drain.h"
#include "ipc/tree/fixed.h"
#include "ipc/tree/tree.h"

int cw_part_bytes(cw_client *client, const char *device, uint64_t size_bytes, uint32_t flags,
                  cw_array **out) {
    int64_t size = (int64_t)size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &size, .dtype = "|u1"};
    return cw_array_new(client, device, &layout, flags, out);
}

static int copy_part(const cw_tree *tree, cw_client *client, uint32_t number, void *stream,
                     cw_array **out) {
    cw_array *part, *copy;
    int code = cw_tree_part_as(tree, client, number, CW_READONLY, &part);
    if (code)
        return code;
    const struct cw_slab *slab = part->home_slab;
    if (slab->device_kind == CW_DEVICE_CUDA)
        code = cw_drain(client, 1ull << slab->device, stream);
    if (code == 0)
        code = cw_part_bytes(client, slab->device_name, part->size_bytes, CW_OWN_SLAB, &copy);
    if (code == 0) {
        code = cw_array_copy(copy, 0, part, 0, part->size_bytes, NULL);
        if (code)
            cw_array_close(copy);
    }
    cw_array_close(part);
    if (code)
        return code;
    cw_array_freeze(copy);
    *out = copy;
    return 0;
}

int cw_part_in_own_slab(const cw_tree *tree, cw_client *client, uint32_t number, void *stream,
                        cw_array **out) {
    cw_array *part;
    int code = cw_tree_part_as(tree, client, number, CW_READONLY | CW_UNMAPPED, &part);
    if (code)
        return code;
    int own = cw_array_sealed(part) ? cw_fixed_has_own_slab(part)
                                    : cw_fail(-EINVAL,
                                              "version %llu of this tree was put with seal=False "
                                              "(CW_TREE_UNSEALED) and changes in place, so it "
                                              "cannot be swapped: get it without swappable=True, "
                                              "its addresses stay",
                                              (unsigned long long)tree->version);
    if (own == 1) {
        *out = part;
        return 0;
    }
    cw_array_close(part);
    return own ? own : copy_part(tree, client, number, stream, out);
}
