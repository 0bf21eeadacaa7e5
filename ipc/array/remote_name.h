/*
 * Names of other nodes: "//node/name". The broker hands each wish to the bridge; what was fetched
 * stands in the directory under the remote name and is found there without asking anybody.
 */
#ifndef CW_IPC_ARRAY_REMOTE_NAME_H
#define CW_IPC_ARRAY_REMOTE_NAME_H

#include <stdbool.h>

#include "ipc/base/device.h"
#include "ipc/base/meta.h"
#include "ipc/base/name_key.h"
#include "ipc/base/node.h"

/* Does it begin as a name of another node does? */
static inline bool cw_remote_name(const char *name) {
    return name && name[0] == '/' && name[1] == '/';
}
/* The part behind the node: of a name that passed cw_name_check(). */
static inline const char *cw_remote_local(const char *name) {
    const char *slash = name + 2;
    while (*slash && *slash != '/')
        slash++;
    return *slash ? slash + 1 : slash;
}
/* May names begin with it, //NODE or //NODE/...? 0 or -EINVAL. */
int cw_remote_prefix_check(const char *prefix);
/*
 * All of these: -ELOOP where the name's node is this one, which the bridge alone knows. The caller
 * then does the same under cw_remote_local().
 *
 * Blocks until the replica is there. Flags and time as cw_get_within().
 */
int cw_remote_get(cw_client *client, const struct cw_name_key *key, uint32_t flags,
                  int64_t timeout_ns, cw_array **out);
/* The bytes of the index of a tree, as its node has them, and which version it is. -ENOTDIR: it is
 * no tree. */
int cw_remote_index(cw_client *client, const struct cw_name_key *key, int64_t timeout_ns,
                    struct cw_meta_remote_tree *about, cw_array **out);
/* A part of that version, as bytes, not mapped. part: a GET with CW_REMOTE_PART; device: where it
 * is to lie. -ESTALE: nobody there has this version any more. */
int cw_remote_get_part(cw_client *client, const struct cw_name_key *key,
                       const struct cw_remote *part, const char *device, int64_t timeout_ns,
                       cw_array **out);
/* Until the name means a later version; instance: of which run of its node's broker the version is,
 * 0: of this one. */
int cw_remote_wait_after(cw_client *client, const struct cw_name_key *key, uint64_t instance,
                         uint64_t after, int64_t timeout_ns);
/* Does a replica stand in host memory, as its name means it? Asks nobody. 0, -ENOENT (without a
 * sentence), -EINTR, -ECONNRESET. */
int cw_remote_stands(cw_client *client, const struct cw_name_key *key);
/* The same, of a replica on a GPU of this process. device: "cuda:N"; -ENODEV. */
int cw_remote_get_on(cw_client *client, const struct cw_name_key *key, const char *device,
                     uint32_t flags, int64_t timeout_ns, cw_array **out);
/* The key under which a replica on a GPU stands: that of the one in host memory, NUL, the UUID.
 * false: there is no room for it. */
bool cw_remote_place(const struct cw_name_key *key, const uint8_t uuid[CW_UUID_BYTES],
                     struct cw_name_key *out);
/* The key under which a part of a tree stands: that of the tree, NUL, "P", and the 128 bits by
 * which the request names it. false: there is no room for it. */
bool cw_remote_part(const struct cw_name_key *key, const struct cw_remote *part,
                    struct cw_name_key *out);
/* Blocks until the array stands under its name at the other node. flags: as cw_array_put(); gpu: on
 * which GPU there, -1 in host memory. */
int cw_remote_put(cw_array *array, const struct cw_name_key *key, int gpu, uint32_t flags,
                  const cw_layout *layout, uint64_t offset_bytes);
/* "cpu" (-1), or "cuda:N": how the other node names a GPU is not looked up here. 0 or -ENODEV. */
int cw_remote_gpu(const char *device, int *gpu);
/* The same of the index of a tree, which is an anchor, with all parts of the tree. -ESTALE: as
 * meta->if_version says. *version is of the broker *instance. */
int cw_remote_put_tree(cw_array *array, const struct cw_name_key *key, int gpu, uint32_t flags,
                       const struct cw_meta_put_tree *meta, uint64_t *instance, uint64_t *version);
/* WAIT and REMOVE. */
int cw_remote_call(cw_client *client, enum cw_remote_verb verb, const struct cw_name_key *key,
                   int64_t timeout_ns);
/* A text about each peer, as the bridge tells it: terminated, one behind the other. cw_free(). */
int cw_remote_peers(cw_client *client, int64_t timeout_ns, char **texts, uint64_t *count);
/* The name of this node, as its bridge has it, terminated; not checked. */
int cw_remote_self(cw_client *client, char node[CW_NODE_MAX + 1]);
int cw_remote_names(cw_client *client, const struct cw_name_key *key, char **names,
                    uint64_t *count);
/* What the other node tells about a name; its name, and what it does not tell, is left as it is. */
int cw_remote_about(cw_client *client, const struct cw_name_key *key, cw_name_info *out);

#endif
