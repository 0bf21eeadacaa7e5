/*
 * Groups: see groups.h. The loop's thread alone. What a client says is checked against our own
 * tables of slabs and the words of its blocks; what it held by then does not matter: an anchor that
 * is free already is refused, and one that is freed a moment later ends its group.
 */
#include "broker/memory/groups.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/memory/holds.h"
#include "broker/memory/slabs.h"
#include "broker/names/versions.h"
#include "shm/session/lease.h"

#define SLICE 4096u /* members that are given back in a turn */

static struct cwd_hold *hold_of(struct cwd_broker *b, const struct cw_block_name *name) {
    return cwd_hold_find(b, cw_lease_slot(name->slab, name->block), name->gen);
}

struct cwd_group *cwd_group_find(struct cwd_broker *b, uint32_t slab, uint32_t block,
                                 uint64_t gen) {
    struct cw_block_name anchor = {.slab = slab, .block = block, .gen = gen};
    struct cwd_group *group;
    HASH_FIND(hh, b->groups, &anchor, sizeof anchor, group);
    return group;
}

static struct cwd_group *group_make(struct cwd_broker *b, const struct cw_block_name *anchor) {
    struct cwd_group *group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->anchor = *anchor;
    HASH_ADD(hh, b->groups, anchor, sizeof group->anchor, group);
    if (!CWD_ADDED(group)) {
        free(group);
        return NULL;
    }
    b->grouped++;
    cwd_slab_find(b, anchor->slab)->anchors++;
    return group;
}

static void group_leave(struct cwd_broker *b, struct cwd_group *group) {
    struct cwd_slab *slab = cwd_slab_find(b, group->anchor.slab);
    CW_ASSERT(slab && slab->anchors > 0);
    slab->anchors--;
    cwd_versions_end(b, group);
    HASH_DEL(b->groups, group);
}

static void group_free(struct cwd_broker *b, struct cwd_group *group) {
    b->grouped--;
    free(group->members);
    free(group);
}

static void member_drop(struct cwd_broker *b, struct cwd_group *group) {
    const struct cw_block_name *member = &group->members[--group->count];
    struct cwd_hold *hold = hold_of(b, member);
    CW_ASSERT(hold && hold->grouped > 0);
    hold->grouped--;
    b->grouped--;
    cwd_ref_drop(b, member->slab, member->block, member->gen);
}

static int member_take(struct cwd_broker *b, struct cwd_group *group,
                       const struct cw_block_name *member) {
    struct cwd_slab *slab = cwd_slab_find(b, member->slab);
    if (!slab)
        return cw_fail(-ESTALE, "a part of the tree is gone: there is no slab %u", member->slab);
    if (cwd_group_find(b, member->slab, member->block, member->gen))
        return cw_fail(-EINVAL, "block %u of slab %u holds a group; it cannot be a member of one",
                       member->block, member->slab);
    int code = cwd_ref_take(b, slab, member->block, member->gen, NULL);
    if (code)
        return code;
    hold_of(b, member)->grouped++;
    group->members[group->count++] = *member;
    b->grouped++;
    return 0;
}

static int members_room(struct cwd_broker *b, struct cwd_group *group, uint32_t count) {
    uint32_t wanted = group->count + count;
    if (wanted > CW_GROUP_MEMBERS_MAX)
        return cw_fail(-EDQUOT,
                       "a tree of %u parts was asked for, %u are possible (CW_GROUP_MEMBERS_MAX): "
                       "copy its arrays into fewer pieces of memory",
                       wanted, CW_GROUP_MEMBERS_MAX);
    if (b->grouped + count > CW_GROUPED_MAX)
        return cw_fail(-EDQUOT,
                       "%u more parts of trees were asked for, there are %u of the %u that a "
                       "broker holds (CW_GROUPED_MAX): remove trees (`cableway rm`)",
                       count, b->grouped, CW_GROUPED_MAX);
    if (wanted <= group->room)
        return 0;
    struct cw_block_name *members = realloc(group->members, wanted * sizeof *members);
    if (!members)
        return cwd_no_memory("the parts of a tree");
    group->members = members;
    group->room = wanted;
    return 0;
}

static int anchor_check(struct cwd_broker *b, const struct cw_block_name *anchor) {
    struct cwd_slab *slab = cwd_slab_find(b, anchor->slab);
    if (!slab || anchor->block >= slab->capacity ||
        cw_block_check(&slab->table->blocks[anchor->block], anchor->gen) != 0)
        return cw_fail(-ESTALE, "the index of the tree (slab %u, block %u) is gone", anchor->slab,
                       anchor->block);
    struct cwd_hold *hold = hold_of(b, anchor);
    if (hold && hold->grouped)
        return cw_fail(-EINVAL, "block %u of slab %u is a part of a tree; it cannot be an index",
                       anchor->block, anchor->slab);
    return 0;
}

int cwd_group(struct cwd_broker *b, const void *body, uint32_t body_bytes) {
    struct cw_block_name members[CW_GROUP_ASKED];
    struct cw_block_group head;
    memcpy(&head, body, sizeof head);
    if (head.count > CW_GROUP_ASKED || head.reserved ||
        body_bytes != sizeof head + head.count * sizeof *members)
        return -EBADMSG;
    memcpy(members, (const uint8_t *)body + sizeof head, head.count * sizeof *members);
    int code = anchor_check(b, &head.anchor);
    if (code)
        return code;
    struct cwd_group *group =
        cwd_group_find(b, head.anchor.slab, head.anchor.block, head.anchor.gen);
    bool made = !group;
    if (made && b->grouped >= CW_GROUPED_MAX)
        return cw_fail(-EDQUOT,
                       "one more tree was asked for, there are %u of the %u indexes and parts of "
                       "trees that a broker holds (CW_GROUPED_MAX): remove trees (`cableway rm`)",
                       b->grouped, CW_GROUPED_MAX);
    if (made && !(group = group_make(b, &head.anchor)))
        return cwd_no_memory("a tree");
    uint32_t before = group->count;
    code = members_room(b, group, head.count);
    for (uint32_t i = 0; i < head.count && code == 0; i++)
        code = member_take(b, group, &members[i]);
    if (code == 0)
        return 0;
    while (group->count > before)
        member_drop(b, group);
    if (made) {
        group_leave(b, group);
        group_free(b, group);
    }
    return code;
}

static void end(struct cwd_broker *b, struct cwd_group *group) {
    group_leave(b, group);
    DL_APPEND(b->groups_ended, group);
}

void cwd_groups_end(struct cwd_broker *b, uint32_t slab, uint32_t block, uint64_t gen) {
    struct cwd_group *group = b->groups ? cwd_group_find(b, slab, block, gen) : NULL;
    if (group)
        end(b, group);
}

void cwd_groups_end_damaged(struct cwd_broker *b, struct cwd_slab *slab) {
    struct cwd_group *group, *next;
    HASH_ITER(hh, b->groups, group, next) {
        const struct cw_block_name *anchor = &group->anchor;
        if (anchor->slab == slab->id && !cwd_slab_has(slab, anchor->block, anchor->gen))
            end(b, group);
    }
}

void cwd_groups_end_in(struct cwd_broker *b, uint32_t slab) {
    struct cwd_group *group, *next;
    HASH_ITER(hh, b->groups, group, next) {
        if (group->anchor.slab == slab)
            end(b, group);
    }
}

bool cwd_groups_release(struct cwd_broker *b) {
    for (uint32_t i = 0; b->groups_ended && i < SLICE; i++) {
        struct cwd_group *group = b->groups_ended;
        if (group->count) {
            member_drop(b, group);
            continue;
        }
        DL_DELETE(b->groups_ended, group);
        group_free(b, group);
    }
    return b->groups_ended != NULL;
}

void cwd_groups_deinit(struct cwd_broker *b) {
    struct cwd_group *group, *next;
    HASH_ITER(hh, b->groups, group, next) {
        end(b, group);
    }
    while (cwd_groups_release(b))
        ;
}
