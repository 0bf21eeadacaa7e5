/*
 * What is known about a name: its record in the directory, who holds its block as the broker counts
 * them; of another node's name what that node tells. Any thread may call; nothing is kept.
 */
#include <stdio.h>
#include <string.h>

#include "ipc/client.h"
#include "ipc/meta.h"
#include "ipc/name_key.h"
#include "ipc/remote.h"

#define STAT_TRIES 1000u /* names replaced under us, one after the other */

/* Who holds the record's block, as the broker counts. */
static int ask_holders(cw_client *client, const struct cw_entry *entry, struct cw_holders *out) {
    struct {
        struct cw_holders head;
        uint32_t pids[64];
    } reply;
    uint32_t reply_bytes = sizeof reply;
    struct cw_block_ref ref = {.slab = entry->slab, .block = entry->block, .gen = entry->gen};
    struct iovec part = {&ref, sizeof ref};
    int code =
        cw_lane_call(client, CW_OP_HOLDERS, &part, 1, &reply, &reply_bytes, CW_CALL_BRIEF, -1);
    if (code)
        return code;
    if (reply_bytes < sizeof reply.head)
        return cw_fail(-EPROTO, "the broker answered HOLDERS with %u bytes", reply_bytes);
    *out = reply.head;
    return 0;
}

int cw_name_key_holders(cw_client *client, const struct cw_name_key *key, uint32_t *holders) {
    struct cw_found found;
    struct cw_holders reply;
    int code = cw_name_key_find(client, key, &found);
    if (code == 0)
        code = ask_holders(client, &found.entry, &reply);
    if (code == 0)
        *holders = reply.holders;
    return code;
}

/* Of a name of another node: what that node tells. What it does not tell stays 0 or empty. */
static int stat_there(cw_client *client, const char *name, const struct cw_name_key *key,
                      cw_name_info *out) {
    memset(out, 0, sizeof *out);
    int code = cw_remote_about(client, key, out);
    if (code == -ELOOP)
        return cw_name_stat(client, cw_remote_local(name), out);
    strcpy(out->name, cw_remote_local(name));
    return code;
}

int cw_name_stat(cw_client *client, const char *name, cw_name_info *out) {
    struct cw_name_key key;
    struct cw_found found;
    struct cw_shape shape;
    struct cw_holders holders = {.holders = 0};
    if (!out)
        return cw_fail(-EINVAL, "a place for the answer is needed, NULL was given");
    int code = cw_name_key_make(client, name, &key);
    if (code == 0 && cw_remote_name(name))
        return stat_there(client, name, &key, out);
    for (unsigned tries = 0; code == 0 && tries < STAT_TRIES; tries++) {
        code = cw_name_key_find(client, &key, &found);
        if (code == -ENOENT)
            return cw_no_such_name(client, name);
        if (code == 0)
            code =
                cw_meta_decode(found.meta, found.entry.meta_bytes, found.entry.size_bytes, &shape);
        if (code)
            break;
        code = ask_holders(client, &found.entry, &holders);
        if (code != -ESTALE && code != -ENOENT)
            break;
        code = 0; /* the name was replaced meanwhile */
        if (tries + 1 == STAT_TRIES)
            return cw_fail(-ESTALE, "the name \"%s\" is replaced faster than it can be looked at",
                           name);
    }
    if (code)
        return code;
    memset(out, 0, sizeof *out);
    strcpy(out->name, name);
    out->owner_pid = found.entry.owner_pid;
    out->holders = holders.holders;
    out->references = holders.references;
    out->created_ns = found.entry.created_ns;
    out->nbytes = found.entry.size_bytes;
    out->keep = (found.entry.flags & CW_ENTRY_KEEP) != 0;
    out->slab = found.entry.slab;
    out->ndim = shape.ndim;
    memcpy(out->shape, shape.shape, shape.ndim * sizeof *shape.shape);
    memcpy(out->dtype, shape.dtype, shape.dtype_bytes + 1);
    strcpy(out->device, holders.device_kind == CW_DEVICE_CUDA ? "cuda" : "cpu");
    cw_uuid_text(holders.device_uuid, out->device_uuid);
    return 0;
}

int cw_name_is_here(cw_client *client, const char *name) {
    struct cw_name_key key;
    int code = cw_name_key_make(client, name, &key);
    if (code)
        return code;
    if (!cw_remote_name(name))
        return 1;
    code = cw_remote_call(client, CW_REMOTE_NODE, &key, -1);
    return code == -ELOOP ? 1 : code;
}
