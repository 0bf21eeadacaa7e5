/*
 * Trees of other nodes, fetched. See fetch.c.
 */
#ifndef CW_IPC_TREE_FETCH_H
#define CW_IPC_TREE_FETCH_H

#include "ipc/base/name_key.h"

/* cw_tree_get_at() of a name of another node. -ELOOP: it is this one. */
int cw_tree_fetch(cw_client *client, const struct cw_name_key *key, uint64_t version,
                  const char *const *devices, uint32_t count, int64_t timeout_ns, cw_tree **out);
/* cw_tree_describe_name() of a name of another node: its index alone comes. -ELOOP: it is this one.
 */
int cw_tree_fetch_description(cw_client *client, const struct cw_name_key *key, int64_t timeout_ns,
                              cw_tree **out);

#endif
