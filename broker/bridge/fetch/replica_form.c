/*
 * What a replica is of: see replica_form.h. Pure functions, but for cw_name_key_put_form().
 *
 * A part of a tree has the key of its tree's replica with the 128 bits behind it that say which
 * bytes it is (cw_remote_part()), whichever version of the tree it was asked for by: that is told
 * to the owner alone. It is never told of as changed, and is no name: who lists names does not see
 * it.
 */
#include "broker/bridge/fetch/replica_form.h"

#include <string.h>

#include "broker/bridge/relay/fan_out.h"
#include "broker/bridge/wire/frame.h"
#include "ipc/array/remote_name.h"
#include "ipc/base/meta.h"

static const uint8_t host[CW_UUID_BYTES];

int cwb_replica_keys(const struct cwb_job *job, struct cwb_replica_keys *out) {
    const struct cw_remote *remote = &job->remote;
    struct cw_name_key what = job->key;
    *out = (struct cwb_replica_keys){.there = job->there,
                                     .name_bytes = job->there.length,
                                     .on_gpu = memcmp(remote->uuid, host, sizeof host) != 0,
                                     .is_part = job->id && remote->flags & CW_REMOTE_PART};
    bool fits = true;
    if (out->is_part) {
        out->part = (struct cwb_part){
            .instance = remote->instance, .version = remote->gen, .number = remote->block};
        fits = cw_remote_part(&job->key, remote, &what) &&
               cw_remote_part(&job->there, remote, &out->there);
    }
    out->key = what;
    memcpy(out->gpu, remote->uuid, sizeof out->gpu);
    if (fits && out->on_gpu)
        fits = cw_remote_place(&what, out->gpu, &out->key);
    return fits
               ? 0
               : cw_fail(-EINVAL, "the name is too long for a copy on a GPU, or for a tree: get it "
                                  "with device=\"cpu\", or choose a shorter name");
}

void cwb_replica_describe(struct cwb_replica *replica, const struct cwb_replica_keys *keys) {
    replica->key = keys->key;
    replica->there = keys->there;
    replica->name_bytes = keys->name_bytes;
    replica->on_gpu = keys->on_gpu;
    replica->is_part = keys->is_part;
    replica->part = keys->part;
    memcpy(replica->gpu, keys->gpu, sizeof replica->gpu);
}

uint32_t cwb_replica_question(const struct cwb_replica *replica, struct cwb_key *key, char *text) {
    uint32_t more = replica->referrals ? CWB_REFER | CWB_FAILED : CWB_REFER;
    if (replica->on_gpu || replica->referrals > CWB_REFERRALS_MAX)
        more = 0;
    *key = (struct cwb_key){.key_bytes = replica->name_bytes,
                            .flags = replica->is_part ? CWB_PART : CWB_WATCH | more};
    memcpy(text, replica->there.text, replica->name_bytes);
    if (!replica->is_part)
        return replica->name_bytes;
    memcpy(text + replica->name_bytes, &replica->part, sizeof replica->part);
    return replica->name_bytes + (uint32_t)sizeof replica->part;
}

int cwb_replica_check_place(const struct cwb_replica *replica, const void *meta,
                            uint32_t meta_bytes) {
    return replica->on_gpu && cw_meta_is_remote_tree(meta, meta_bytes)
               ? cw_fail(-EISDIR, "the name means a tree of another node: get it as a tree")
               : 0;
}

int cwb_replica_form(const struct cwb_replica *replica, struct cw_put *put, uint8_t *meta) {
    const uint32_t came_bytes = replica->opened.meta_bytes;
    const uint64_t size_bytes = replica->opened.size_bytes;
    int64_t length = (int64_t)size_bytes;
    struct cw_shape shape = {.origin_bytes = 0};
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &length, .dtype = "|u1"};
    bool tree = cw_meta_is_remote_tree(replica->came, came_bytes);
    int code = tree ? 0 : cw_meta_layout(replica->came, came_bytes, size_bytes, &shape, &layout);
    if (code == 0)
        code = cw_name_key_put_form(replica->array, &replica->key, CW_REPLACE, &layout,
                                    shape.origin_bytes, put, meta);
    if (code || !tree)
        return code;
    put->meta_bytes = (uint16_t)came_bytes; /* its index is bytes; of which version stays with it */
    memcpy(meta, replica->came, came_bytes);
    return 0;
}
