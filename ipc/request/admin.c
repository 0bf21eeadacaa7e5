/*
 * What who administers a broker asks of it: handles under way, holders, limits. Any thread may
 * call; nothing is kept.
 */
#include <limits.h>
#include <string.h>

#include "ipc/base/device.h"
#include "ipc/client.h"
#include "ipc/request/admin.h"
#include "ipc/request/channel.h"

static void describe(const struct cw_transit_told *told, cw_transit_info *out) {
    *out = (cw_transit_info){.nbytes = told->size_bytes,
                             .age_ns = told->age_ns,
                             .left_ns = told->left_ns,
                             .pid = told->pid,
                             .openers = told->openers,
                             .opened = (told->flags & CW_TRANSIT_IS_OPENED) != 0,
                             .tied = (told->flags & CW_TRANSIT_IS_TIED) != 0};
    strcpy(out->device, told->device_kind == CW_DEVICE_CUDA ? "cuda" : "cpu");
    cw_uuid_text(told->device_uuid, out->device_uuid);
}

int cw_transits_oldest(cw_client *client, cw_transit_info *out, uint32_t room, uint32_t *count,
                       uint64_t *total) {
    struct {
        struct cw_transits_reply head;
        struct cw_transit_told told[CW_TRANSITS_TOLD];
    } reply;
    uint32_t bytes = sizeof reply;
    if (!client || !out || !count || !total)
        return cw_needs("a client, and places for the transits and their numbers");
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_channel_call(client, CW_OP_TRANSITS, NULL, 0, &reply, &bytes, CW_CALL_SHORT, -1);
    if (code)
        return code;
    if (bytes < sizeof reply.head || reply.head.count > CW_TRANSITS_TOLD ||
        bytes != sizeof reply.head + reply.head.count * sizeof *reply.told)
        return cw_fail(-EPROTO, "the broker answered TRANSITS with %u bytes", bytes);
    *count = reply.head.count < room ? reply.head.count : room;
    *total = reply.head.total;
    for (uint32_t i = 0; i < *count; i++)
        describe(&reply.told[i], &out[i]);
    return 0;
}

int cw_holders_ask(cw_client *client, uint32_t slab, uint32_t block, uint64_t gen,
                   struct cw_holders *head, uint32_t *pids) {
    struct {
        struct cw_holders head;
        uint32_t pids[CW_HOLDERS_LISTED];
    } reply;
    uint32_t bytes = sizeof reply;
    struct cw_block_ref ref = {.slab = slab, .block = block, .gen = gen};
    struct iovec part = {&ref, sizeof ref};
    int code = cw_channel_call(client, CW_OP_HOLDERS, &part, 1, &reply, &bytes, CW_CALL_SHORT, -1);
    if (code)
        return code;
    if (bytes < sizeof reply.head || reply.head.listed > CW_HOLDERS_LISTED ||
        bytes < sizeof reply.head + reply.head.listed * sizeof *reply.pids)
        return cw_fail(-EPROTO, "the broker answered HOLDERS with %u bytes", bytes);
    *head = reply.head;
    if (pids)
        memcpy(pids, reply.pids, reply.head.listed * sizeof *pids);
    return 0;
}

int cw_slab_holders(cw_client *client, uint32_t slab, cw_holders_info *out) {
    struct cw_holders head;
    uint32_t pids[CW_HOLDERS_LISTED];
    if (!client || !out)
        return cw_needs("a client and a place for the holders");
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_holders_ask(client, slab, CW_BLOCK_ANY, 0, &head, pids);
    if (code)
        return code;
    *out = (cw_holders_info){.holders = head.holders,
                             .listed = head.listed,
                             .references = head.references,
                             .owner_pid = head.owner_pid};
    memcpy(out->pids, pids, head.listed * sizeof *pids);
    return 0;
}

int cw_limit_set(cw_client *client, const char *limit, uint64_t value, uint64_t *before,
                 uint64_t *now) {
    struct cw_limit_reply reply;
    uint32_t bytes = sizeof reply;
    if (!client || !limit || !before || !now)
        return cw_needs("a client, a limit's name and places for its values");
    struct cw_limit_set body = {.value = value, .name_bytes = (uint32_t)strnlen(limit, NAME_MAX)};
    struct iovec parts[] = {{&body, sizeof body}, {(void *)(uintptr_t)limit, body.name_bytes}};
    int code = cw_client_usable(client);
    if (code == 0)
        code = cw_channel_call(client, CW_OP_LIMIT_SET, parts, 2, &reply, &bytes, CW_CALL_DEED, -1);
    if (code)
        return code;
    if (bytes != sizeof reply)
        return cw_fail(-EPROTO, "the broker answered LIMIT_SET with %u bytes", bytes);
    *before = reply.before;
    *now = reply.now;
    return 0;
}
