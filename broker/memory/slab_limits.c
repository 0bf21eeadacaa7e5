/*
 * Limits of slabs: see slab_limits.h. The loop's thread alone; nothing is kept.
 */
#include "broker/memory/slab_limits.h"

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/session/session.h"
#include "shm/base/error.h"
#include "ipc/base/device.h"

static bool exceeds(uint64_t used, uint64_t more, uint64_t limit) {
    return more > limit || used > limit - more;
}

/* The broker's own bridge and mover keep what others asked for. */
static bool is_own(const struct cwd_broker *b, const struct cwd_session *owner) {
    return owner->pid == b->mover.pid || owner->pid == b->remote.pid;
}

/* One that nobody has set bounds no more than max_bytes does. */
static bool is_over(const struct cwd_broker *b, enum cw_limit which, uint64_t used, uint64_t more) {
    return !b->limits.follows[which] && exceeds(used, more, b->limits.value[which]);
}

enum cw_limit cwd_slab_share(struct cwd_broker *b, const struct cwd_session *owner,
                             uint64_t more_bytes, uint64_t *used) {
    *used = owner->bytes;
    if (is_own(b, owner))
        return CW_LIMIT_COUNT;
    if (is_over(b, CW_LIMIT_max_client_bytes, *used, more_bytes))
        return CW_LIMIT_max_client_bytes;
    *used = cwd_sessions_bytes(b, owner->pid);
    if (is_over(b, CW_LIMIT_max_pid_bytes, *used, more_bytes))
        return CW_LIMIT_max_pid_bytes;
    return CW_LIMIT_COUNT;
}

int cwd_slab_limits(struct cwd_broker *b, struct cwd_session *owner, uint64_t bytes,
                    uint64_t more_bytes) {
    if (owner->slabs >= CWD_LIMIT(b, max_client_slabs))
        return cwd_limit_refuse(b, CW_LIMIT_max_client_slabs,
                                "one more than %u slabs of this "
                                "client was asked for",
                                owner->slabs);
    /* The user's share follows this one where it is not set: so this one is named first. */
    if (exceeds(b->bytes, more_bytes, CWD_LIMIT(b, max_bytes)))
        return cwd_limit_refuse(b, CW_LIMIT_max_bytes,
                                "a slab of %llu bytes was asked for, %llu are in use",
                                (unsigned long long)bytes, (unsigned long long)b->bytes);
    if (exceeds(b->bytes, more_bytes, CWD_LIMIT(b, max_user_bytes)))
        return cwd_limit_refuse(b, CW_LIMIT_max_user_bytes,
                                "a slab of %llu bytes was asked for, %llu are in use",
                                (unsigned long long)bytes, (unsigned long long)b->bytes);
    uint64_t used;
    enum cw_limit share = cwd_slab_share(b, owner, more_bytes, &used);
    if (share != CW_LIMIT_COUNT)
        return cwd_limit_refuse(b, share, "a slab of %llu bytes was asked for, %llu are this %s's",
                                (unsigned long long)bytes, (unsigned long long)used,
                                share == CW_LIMIT_max_client_bytes ? "client" : "process");
    return 0;
}

uint64_t cwd_slab_gpu_bytes(const struct cw_slab_info *info) {
    bool held = info->device_kind == CW_DEVICE_CUDA && !(info->flags & CW_SLAB_FOREIGN);
    return held ? info->size_bytes : 0;
}

int cwd_slab_limits_new(struct cwd_broker *b, struct cwd_session *owner,
                        const struct cw_slab_info *info) {
    if (HASH_COUNT(b->slabs) >= CWD_LIMIT(b, max_slabs))
        return cwd_limit_refuse(b, CW_LIMIT_max_slabs, "one more than %u slabs was asked for",
                                HASH_COUNT(b->slabs));
    if (cwd_fds_held(b) + 2 > CWD_LIMIT(b, max_fds))
        return cwd_limit_refuse(b, CW_LIMIT_max_fds,
                                "a slab needs 2 descriptors more than the %llu that are held",
                                (unsigned long long)cwd_fds_held(b));
    uint64_t table_bytes = cw_slab_table_bytes(info->device_kind, info->blocks);
    if (info->device_kind != CW_DEVICE_CUDA)
        return cwd_slab_limits(b, owner, info->size_bytes, info->size_bytes + table_bytes);
    uint64_t gpu_bytes = cwd_slab_gpu_bytes(info);
    if (gpu_bytes > CWD_LIMIT(b, max_gpu_bytes) ||
        b->gpu_bytes > CWD_LIMIT(b, max_gpu_bytes) - gpu_bytes)
        return cwd_limit_refuse(
            b, CW_LIMIT_max_gpu_bytes, "%llu bytes of GPU memory were asked for, %llu are in use",
            (unsigned long long)info->size_bytes, (unsigned long long)b->gpu_bytes);
    return cwd_slab_limits(b, owner, table_bytes, table_bytes);
}
