/*
 * Turns and waits of one array that stays where it is: see unpinned.h.
 */
#include "ipc/array/array.h"
#include "ipc/client.h"
#include "ipc/order/context_failure.h"
#include "ipc/order/section.h"
#include "ipc/order/unpinned.h"

/* What every call on one array begins with. *fences NULL: a host array, nothing to be done. An
 * evictable one is a GPU's also while it is away and has no slab: an end may be called without a
 * begin, and is refused then. */
static int open_call(cw_array *array, struct cw_fences **fences) {
    int code = cw_array_usable(array);
    *fences = NULL;
    if (code)
        return code;
    bool on_gpu = array->fixed ? array->fixed->backend->device_kind == CW_DEVICE_CUDA
                               : array->evict || array->slab->device_kind == CW_DEVICE_CUDA;
    if (!on_gpu)
        return 0;
    return cw_fences_of(array->client, fences);
}

int cw_unpinned_begin(cw_array *array, void *stream, bool writing, int64_t timeout_ns) {
    struct cw_fences *fences;
    struct cw_section *section;
    const cw_use use = {.array = array, .writing = writing};
    int code = open_call(array, &fences);
    if (code == 0 && writing && array->readonly)
        return cw_fail(-EINVAL, "the array is mapped read-only");
    if (code || !fences)
        return code;
    code = cw_section_begin(array->client, fences, &use, 1, false, stream, timeout_ns, &section);
    return cw_context_failure_serve(code);
}

int cw_unpinned_end(cw_array *array, void *stream, bool writing, bool whole, bool failed,
                    cw_completion *out, bool *found) {
    struct cw_fences *fences;
    struct cw_section *section;
    int code = open_call(array, &fences);
    *found = false;
    if (code || !fences)
        return code;
    pthread_mutex_lock(&fences->lock);
    code = cw_section_find(fences, array, stream, writing, &section);
    *found = code == 0;
    if (*found) {
        section->held->whole = whole;
        code = cw_section_end(array->client, fences, section, failed, out);
    }
    pthread_mutex_unlock(&fences->lock);
    return cw_context_failure_serve(code);
}

int cw_unpinned_await(cw_array *array, bool uses, int64_t timeout_ns) {
    struct cw_fences *fences;
    int code = open_call(array, &fences);
    if (code || !fences)
        return code;
    struct cw_order *order = cw_order_of(array->slab->table, array->block);
    if (cw_order_unused(order))
        return 0;
    return cw_context_failure_serve(cw_order_await(array->client, fences, order, uses, timeout_ns));
}
