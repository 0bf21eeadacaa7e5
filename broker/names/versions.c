/*
 * Versions: see versions.h. The loop's thread alone. Memory for a version is taken before the name
 * changes, so that no put is done and then said to have failed; and the table is never empty, so
 * that to add to it needs none (broker/core/table.h).
 */
#include "broker/names/versions.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broker/broker.h"
#include "broker/memory/groups.h"
#include "broker/names/names.h"
#include "ipc/base/meta.h"

struct cwd_version {
    struct cw_version put; /* put.version is the key of the table */
    struct cwd_group *group;
    struct cwd_version *prev, *next; /* of the group, the oldest first */
    UT_hash_handle hh;
    uint64_t created_ns, total_bytes;
    size_t key_bytes;
    char key[];
};

int cwd_versions_init(struct cwd_broker *b) {
    struct cwd_version *floor = calloc(1, sizeof *floor); /* 0 is no version */
    if (floor)
        HASH_ADD(hh, b->versions, put.version, sizeof floor->put.version, floor);
    if (floor && CWD_ADDED(floor)) {
        b->version_floor = floor;
        return 0;
    }
    free(floor);
    return cwd_no_memory("what it notes of versions");
}

void cwd_versions_deinit(struct cwd_broker *b) {
    if (b->version_floor)
        HASH_DEL(b->versions, b->version_floor);
    free(b->version_floor);
    b->version_floor = NULL;
}

static void version_free(struct cwd_broker *b, struct cwd_version *version) {
    HASH_DEL(b->versions, version);
    DL_DELETE(version->group->versions, version);
    free(version);
}

/* Of a group that has as many as are found, the oldest ends. */
static void make_room(struct cwd_broker *b, struct cwd_group *group) {
    struct cwd_version *version;
    unsigned count = 0;
    DL_FOREACH(group->versions, version)
    count++;
    if (count >= CWD_VERSIONS_OF_GROUP)
        version_free(b, group->versions);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* As who put it says; 0 of what cannot be read. Told to those who ask, and used for nothing. */
static uint64_t bytes_of(const char *meta, uint32_t meta_bytes) {
    struct cw_meta_tree tree;
    return cw_meta_tree_decode(meta, meta_bytes, &tree) == 0 ? tree.total_bytes : 0;
}

int cwd_version_put(struct cwd_broker *b, struct cwd_session *session, const void *body,
                    uint32_t body_bytes, struct cw_version *out) {
    struct cw_put_tree head;
    memcpy(&head, body, sizeof head);
    const struct cw_put *put = &head.put;
    if (!cwd_put_fits(put, body_bytes - (uint32_t)(sizeof head - sizeof *put)))
        return -EBADMSG;
    const char *key = (const char *)body + sizeof head;
    struct cwd_group *group = cwd_group_find(b, put->slab, put->block, put->gen);
    if (!group)
        return cw_fail(-EINVAL, "block %u of slab %u is no index of a tree: GROUP comes first",
                       put->block, put->slab);
    struct cwd_version *version = calloc(1, sizeof *version + put->key_bytes);
    if (!version)
        return cwd_no_memory("a version of a tree");
    uint64_t number;
    int code =
        cwd_name_put_version(b, session, put, key, key + put->key_bytes, head.if_version, &number);
    if (code) {
        free(version);
        return code;
    }
    make_room(b, group);
    version->put = (struct cw_version){.version = number,
                                       .slab = put->slab,
                                       .block = put->block,
                                       .gen = put->gen,
                                       .offset_bytes = put->offset_bytes,
                                       .size_bytes = put->size_bytes};
    version->group = group;
    version->created_ns = now_ns();
    version->total_bytes = bytes_of(key + put->key_bytes, put->meta_bytes);
    version->key_bytes = put->key_bytes;
    memcpy(version->key, key, put->key_bytes);
    *out = version->put;
    CWD_ADD_SURELY(b->versions, put.version, sizeof number, version);
    DL_APPEND(group->versions, version);
    return 0;
}

static int is_gone(const struct cw_find_version *head, const char *key) {
    size_t space = strnlen(key, head->key.key_bytes); /* before the name, and its end */
    size_t at = space < head->key.key_bytes ? space + 1 : space;
    return cw_fail(-ENOENT,
                   "version %llu of \"%.*s\" is gone, since no process has it open (or the "
                   "number is another name's): get the newest, without a version",
                   (unsigned long long)head->version, (int)(head->key.key_bytes - at), key + at);
}

int cwd_version_find(struct cwd_broker *b, const void *body, uint32_t body_bytes,
                     struct cw_version *out) {
    const char *key = (const char *)body + sizeof(struct cw_find_version);
    struct cw_find_version head;
    struct cwd_version *version;
    memcpy(&head, body, sizeof head);
    if (head.key.key_bytes > body_bytes || body_bytes != sizeof head + head.key.key_bytes)
        return -EBADMSG;
    HASH_FIND(hh, b->versions, &head.version, sizeof head.version, version);
    bool found = version && version != b->version_floor &&
                 version->key_bytes == head.key.key_bytes &&
                 memcmp(version->key, key, version->key_bytes) == 0;
    if (found)
        *out = version->put;
    return found ? 0 : is_gone(&head, key);
}

int cwd_version_next(struct cwd_broker *b, const void *body, uint32_t body_bytes,
                     struct cw_version_found *out, char *out_key) {
    const char *key = (const char *)body + sizeof(struct cw_next_version);
    struct cw_next_version head;
    const struct cwd_version *found = NULL;
    memcpy(&head, body, sizeof head);
    if (head.key.key_bytes > CW_KEY_MAX || body_bytes != sizeof head + head.key.key_bytes ||
        head.begins > 1)
        return -EBADMSG;
    for (const struct cwd_version *at = b->versions; at; at = at->hh.next) {
        bool fits =
            head.begins ? at->key_bytes >= head.key.key_bytes : at->key_bytes == head.key.key_bytes;
        if (at != b->version_floor && fits && at->put.version > head.after &&
            (!found || at->put.version < found->put.version) &&
            memcmp(at->key, key, head.key.key_bytes) == 0)
            found = at;
    }
    if (!found)
        return cw_fail(-ENOENT, "there is no later version");
    *out = (struct cw_version_found){.at = found->put,
                                     .created_ns = found->created_ns,
                                     .total_bytes = found->total_bytes,
                                     .key_bytes = (uint32_t)found->key_bytes};
    memcpy(out_key, found->key, found->key_bytes);
    return 0;
}

void cwd_versions_end(struct cwd_broker *b, struct cwd_group *group) {
    while (group->versions)
        version_free(b, group->versions);
}
