/*
 * Versions: as what a tree was put. The name means the latest; an earlier one is found by its
 * number for as long as anybody has it, and no longer: a version holds nothing.
 *
 * A number is that of the put (cw_entry.id), so it rises with each put of any name, and none comes
 * twice, also when a name was removed and put anew. One index may have several: it was put under
 * several names, or again; of these the latest CWD_VERSIONS_OF_GROUP are found.
 *
 * Owner: the loop's thread. Each belongs to the group of its index (memory/groups.h), and ends with
 * it.
 */
#ifndef CW_BROKER_NAMES_VERSIONS_H
#define CW_BROKER_NAMES_VERSIONS_H

#include <stdint.h>

#include "broker/core/table.h"
#include "ipc/wire.h"

#define CWD_VERSIONS_OF_GROUP 64u

struct cwd_broker;
struct cwd_group;
struct cwd_session;

/* The body of a PUT_TREE: the name means that index, if it means what was said. 0 and the version;
 * -EBADMSG (form), -EEXIST, -ESTALE, -EINVAL (no anchor), -EDQUOT. */
int cwd_version_put(struct cwd_broker *broker, struct cwd_session *session, const void *body,
                    uint32_t body_bytes, struct cw_version *out);
/* The body of a FIND_VERSION. 0, -EBADMSG (form), -ENOENT: nobody has it any more, or it was
 * another name's. */
int cwd_version_find(struct cwd_broker *broker, const void *body, uint32_t body_bytes,
                     struct cw_version *out);
/* The body of a NEXT_VERSION. out_key: CW_KEY_MAX bytes. Reads all versions. 0, -EBADMSG (form),
 * -ENOENT. */
int cwd_version_next(struct cwd_broker *broker, const void *body, uint32_t body_bytes,
                     struct cw_version_found *out, char *out_key);
/* 0, or -EDQUOT. */
int cwd_versions_init(struct cwd_broker *broker);
/* After all groups have ended. */
void cwd_versions_deinit(struct cwd_broker *broker);
/* The group ends. */
void cwd_versions_end(struct cwd_broker *broker, struct cwd_group *group);

#endif
