/*
 * Groups: blocks that are held for as long as another block, their anchor, is alive. A tree's index
 * holds its parts: a lease on the index is enough to have all of them.
 *
 * Invariants
 *   G1  A member has one reference of ours for each time that a group names it.
 *   G2  No block is both an anchor and a member. So no group keeps its own anchor alive, and blocks
 *       that nobody has come back.
 *   G3  A group whose anchor is free is in the list of ending groups, and gives its references back
 *       in the same turn or the next ones (SLICE members each), whatever transits are under way.
 *
 * Deaths: if the client that asked dies, the group stays until the anchor is free, which is at once
 * if nobody else holds the anchor. A client that damages the anchor's word keeps the group until
 * the slab's maker has ended; then, and at the end of each later client, such groups end, also
 * where their members keep the slab. If the broker dies, its references end, and the groups with
 * them.
 *
 * Owner: the loop's thread.
 */
#ifndef CW_BROKER_MEMORY_GROUPS_H
#define CW_BROKER_MEMORY_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/core/table.h"
#include "ipc/wire.h"

struct cwd_broker;
struct cwd_slab;
struct cwd_version;

struct cwd_group {
    struct cw_block_name anchor; /* key of the table */
    struct cw_block_name *members;
    uint32_t count, room;
    struct cwd_version *versions;  /* names/versions.h: as what it was put */
    struct cwd_group *prev, *next; /* among those that end */
    UT_hash_handle hh;
};

/* The body of a GROUP. The members are held for as long as the anchor is alive, beside those that
 * earlier requests named: all of them, or none. 0, -EBADMSG (form), -ESTALE, -EINVAL (G2), -EDQUOT.
 */
int cwd_group(struct cwd_broker *broker, const void *body, uint32_t body_bytes);
/* NULL: this block is no anchor. */
struct cwd_group *cwd_group_find(struct cwd_broker *broker, uint32_t slab, uint32_t block,
                                 uint64_t gen);
/* This block is free now: if it is an anchor its group ends. */
void cwd_groups_end(struct cwd_broker *broker, uint32_t slab, uint32_t block, uint64_t gen);
/* This slab is an orphan: groups end whose anchors are no block that lives, by the slab's table. */
void cwd_groups_end_damaged(struct cwd_broker *broker, struct cwd_slab *slab);
/* This slab is closed. */
void cwd_groups_end_in(struct cwd_broker *broker, uint32_t slab);
/* Gives back what ended, some of it in a turn. True: there is more. */
bool cwd_groups_release(struct cwd_broker *broker);
void cwd_groups_deinit(struct cwd_broker *broker);

#endif
