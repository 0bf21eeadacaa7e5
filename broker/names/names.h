/*
 * Names: keys (namespace, NUL, name) to arrays; the directory of shm/ with a reference for each
 * entry. They live as long as the user has a client, and names_linger_seconds more; kept ones until
 * they are removed; tied ones as long as the process that put them (ties.h).
 */
#ifndef CW_BROKER_NAMES_NAMES_H
#define CW_BROKER_NAMES_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/wire.h"

struct cwd_broker;
struct cwd_session;

/* Is this a key? 0 or -EINVAL with the rule. key need not be terminated. */
int cwd_key_check(const char *key, size_t key_bytes);
/* Are a put's lengths and flags those of a request of so many bytes? */
bool cwd_put_fits(const struct cw_put *put, uint32_t bytes);
/* 0, -EINVAL, -EEXIST, -ESTALE, -EDQUOT. Answers who waits for the name. */
int cwd_name_put(struct cwd_broker *broker, struct cwd_session *session, const struct cw_put *put,
                 const char *key, const void *meta);
/* The same for a version of a tree: if the name means if_version (cw_put_tree), else -EEXIST (0 was
 * said) or -ESTALE. *version: which it is now. */
int cwd_name_put_version(struct cwd_broker *broker, struct cwd_session *session,
                         const struct cw_put *put, const char *key, const void *meta,
                         uint64_t if_version, uint64_t *version);
/* 0, -EINVAL, -ENOENT. */
int cwd_name_remove(struct cwd_broker *broker, struct cwd_session *session, const char *key,
                    size_t key_bytes);
/* A name that is there ends by itself. */
void cwd_name_end(struct cwd_broker *broker, const char *key, size_t key_bytes);
/* The bridge's session ended: its replicas' names go. */
void cwd_names_end_replicas(struct cwd_broker *broker);
/* Ends replicas' names that nobody has, until so many bytes of host memory are on their way back,
 * or none is left. Returns how many: who asks the bridge for one of them again has it fetched
 * again. COST: two looks at all names and, for each CW_BLOCKS_ASKED replicas, one at all leases. */
uint32_t cwd_names_end_unused(struct cwd_broker *broker, uint64_t size_bytes);
/* Which put the name means; 0: it is not there. */
uint64_t cwd_name_version(struct cwd_broker *broker, const char *key, size_t key_bytes);
/* Is the name there? */
int cwd_name_exists(struct cwd_broker *broker, const char *key, size_t key_bytes);
uint64_t cwd_names_count(struct cwd_broker *broker);
/* Ends the names whose user has been without a client for too long. Returns when to ask again. */
int64_t cwd_names_expire(struct cwd_broker *broker);
/* Gives all references back. */
void cwd_names_deinit(struct cwd_broker *broker);

#endif
