/*
 * Which versions of trees are alive, and who has them: the broker knows both, of which nothing is
 * kept here. A version that goes between two questions is left out. Any thread.
 */
#include <errno.h>
#include <string.h>

#include "ipc/array/array.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/request/admin.h"
#include "ipc/request/channel.h"
#include "ipc/tree/tree.h"

static int make_key(cw_client *client, const char *name, bool begins, struct cw_name_key *key) {
    if (!begins)
        return cw_name_key_make(client, name, key);
    int code = cw_client_usable(client);
    size_t space = strlen(client->name_space) + 1, length = strlen(name);
    if (code == 0 && length > CW_KEY_MAX - space)
        code = cw_fail(-EINVAL, "no name begins with %zu bytes", length);
    if (code)
        return code;
    memcpy(key->text, client->name_space, space);
    memcpy(key->text + space, name, length);
    key->length = (uint32_t)(space + length);
    return 0;
}

struct answer {
    struct cw_version_found head;
    char key[CW_KEY_MAX];
};

static int ask(cw_client *client, const struct cw_name_key *key, bool begins, uint64_t after,
               struct answer *out) {
    struct cw_next_version body = {
        .after = after, .begins = begins, .key = {.key_bytes = key->length}};
    struct iovec parts[] = {{&body, sizeof body}, {(void *)(uintptr_t)key->text, key->length}};
    uint32_t bytes = sizeof *out;
    int code =
        cw_channel_call(client, CW_OP_NEXT_VERSION, parts, 2, out, &bytes, CW_CALL_SHORT, -1);
    if (code)
        return code;
    size_t space = strlen(client->name_space) + 1;
    if (bytes < sizeof out->head || bytes - sizeof out->head != out->head.key_bytes ||
        out->head.at.version <= after || out->head.key_bytes < space ||
        out->head.key_bytes - space >= sizeof((cw_version_info){0}).name)
        return cw_fail(-EPROTO, "the broker answered NEXT_VERSION with %u bytes", bytes);
    return 0;
}

/* -ESTALE: it has gone. */
static int ask_holders(cw_client *client, const struct cw_version *at, cw_version_info *out) {
    struct cw_holders head;
    _Static_assert(sizeof out->pids / sizeof *out->pids >= CW_HOLDERS_LISTED, "room");
    int code = cw_holders_ask(client, at->slab, at->block, at->gen, &head, out->pids);
    if (code)
        return code;
    out->holders = head.holders;
    out->listed = head.listed;
    return 0;
}

int cw_version_next(cw_client *client, const char *name, int begins, uint64_t after,
                    cw_version_info *out) {
    struct cw_name_key key, found;
    struct cw_found now;
    struct answer answer;
    if (!client || !name || !out)
        return cw_needs("a client, a name and a place for the version");
    int code = make_key(client, name, begins != 0, &key);
    if (code)
        return code;
    do {
        code = ask(client, &key, begins != 0, after, &answer);
        if (code)
            return code;
        after = answer.head.at.version;
        *out = (cw_version_info){.version = after,
                                 .total_bytes = answer.head.total_bytes,
                                 .created_ns = answer.head.created_ns};
        code = ask_holders(client, &answer.head.at, out);
    } while (code == -ESTALE);
    if (code)
        return code;
    size_t space = strlen(client->name_space) + 1;
    memcpy(out->name, answer.key + space, answer.head.key_bytes - space);
    found.length = answer.head.key_bytes;
    memcpy(found.text, answer.key, found.length);
    code = cw_name_key_find(client, &found, &now);
    out->latest = code == 0 && now.entry.id == after;
    return code == -ENOENT ? 0 : code;
}
