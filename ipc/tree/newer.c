/*
 * Waiting for a later version of a tree: of a name of this node at its broker, of another node's at
 * the broker there, over the bridge. Nothing is held meanwhile. Who dies: the broker, or the bridge
 * that asks, ends the wait by an error; a publisher that dies has published, or it has not.
 */
#include <errno.h>

#include "ipc/array/array.h"
#include "ipc/array/remote_name.h"
#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "ipc/client.h"
#include "ipc/request/channel.h"
#include "ipc/request/socket.h"
#include "ipc/tree/fetch.h"
#include "ipc/tree/tree.h"
#include "shm/base/error.h"

static int timed_out(const char *name, uint64_t after, int64_t timeout_ns) {
    return cw_fail(-ETIMEDOUT, "\"%s\" got no version after %llu in %.3f s", name,
                   (unsigned long long)after, (double)timeout_ns / 1e9);
}

/* Who does not wait is told by what the name means here, or by its owner if nothing is known here:
 * the question is answered, however long that takes. */
static int look_there(cw_client *client, const struct cw_name_key *key, uint64_t instance,
                      uint64_t after) {
    struct cw_meta_remote_tree about;
    cw_array *index;
    int code = cw_remote_index(client, key, -1, &about, &index);
    if (code == -ENOTDIR) /* an array, which was put later */
        return 0;
    if (code)
        return code == -ENOENT ? -ETIMEDOUT : code;
    cw_array_close(index);
    bool later = about.version > after || (instance && about.instance != instance);
    return later ? 0 : -ETIMEDOUT;
}

/* instance: of which run of the owner's broker the version is; 0: of this one. */
static int await_after(cw_client *client, const char *name, uint64_t instance, uint64_t after,
                       int64_t timeout_ns) {
    struct cw_name_key key;
    struct cw_found found;
    int code = cw_name_key_make(client, name, &key);
    if (code == 0 && cw_remote_name(name)) {
        code = timeout_ns ? cw_remote_wait_after(client, &key, instance, after, timeout_ns)
                          : look_there(client, &key, instance, after);
        if (code == -ETIMEDOUT)
            return timed_out(name, after, timeout_ns);
        if (code != -ELOOP)
            return code;
        name = cw_remote_local(name);
        code = cw_name_key_make(client, name, &key);
    }
    if (code)
        return code;
    if (instance && instance != client->instance)
        after = 0;
    code = cw_name_key_find(client, &key, &found);
    if ((code == 0 && found.entry.id > after) || (code && code != -ENOENT))
        return code;
    if (timeout_ns == 0)
        return cw_fail(-ETIMEDOUT, "\"%s\" has no version after %llu", name,
                       (unsigned long long)after);
    struct cw_wait_after body = {.after = after, .key = {.key_bytes = key.length}};
    struct iovec parts[] = {{&body, sizeof body}, {key.text, key.length}};
    code =
        cw_channel_call(client, CW_OP_WAIT_AFTER, parts, 2, NULL, NULL, CW_CALL_LOOK, timeout_ns);
    return code == -ETIMEDOUT ? timed_out(name, after, timeout_ns) : code;
}

int cw_tree_newer(const cw_tree *tree, cw_client *client, const char *name, int64_t timeout_ns) {
    if (!tree || !client)
        return cw_needs("a tree and a client");
    int64_t before = cw_socket_limit(timeout_ns ? timeout_ns : -1);
    /* One that came by a handle does not say whose version it is: its name does. */
    bool by_name = cw_remote_name(name) && tree->instance == tree->client->instance;
    int code = await_after(client, name, by_name ? 0 : tree->instance, tree->version, timeout_ns);
    cw_socket_unlimit(before);
    return code;
}

int cw_wait_after(cw_client *client, const char *name, uint64_t after, int64_t timeout_ns) {
    int64_t before = cw_socket_limit(timeout_ns ? timeout_ns : -1); /* 0: who only looks may ask */
    int code = await_after(client, name, 0, after, timeout_ns);
    cw_socket_unlimit(before);
    return code;
}
