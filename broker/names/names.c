/*
 * Names: see names.h. The loop's thread is the directory's one writer; readers look at every moment
 * (shm/names/directory.h). The reference on the new array is taken before the name shows it, the
 * one on the old array given back after no name shows it.
 */
#include "broker/names/names.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/memory/holders.h"
#include "broker/core/log.h"
#include "broker/core/monitor.h"
#include "broker/session/session.h"
#include "broker/names/ties.h"
#include "broker/names/waits.h"
#include "broker/names/weak_names.h"
#include "ipc/cableway.h"
#include "ipc/base/layout.h"

int cwd_key_check(const char *key, size_t key_bytes) {
    char text[CW_KEY_MAX + 1];
    if (key_bytes == 0 || key_bytes > CW_KEY_MAX)
        return cw_fail(-EINVAL, "a key cannot have %zu bytes", key_bytes);
    memcpy(text, key, key_bytes);
    text[key_bytes] = 0;
    size_t name_at = strlen(text) + 1;
    if (name_at > key_bytes || strlen(text + name_at) != key_bytes - name_at)
        return cw_fail(-EINVAL, "a key is a namespace, one NUL and a name");
    int code = cw_namespace_check(text);
    return code ? code : cw_local_name_check(text + name_at);
}

static uint64_t realtime_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Does the array lie within its block, and the block within its slab? */
static int check_range(struct cwd_slab *slab, const struct cw_put *put) {
    struct cw_block *block = &slab->table->blocks[put->block];
    /* B13: after the word was seen alive (B1), which orders these (B7); copied once. */
    uint64_t offset = CW_LOAD(B13, &block->offset_bytes, relaxed);
    uint64_t length = CW_LOAD(B13, &block->length_bytes, relaxed);
    if (offset > slab->info.size_bytes || length > slab->info.size_bytes - offset ||
        put->offset_bytes > length || put->size_bytes > length - put->offset_bytes)
        return cw_fail(-EINVAL,
                       "an array of %llu bytes at %llu was to be named, its block has %llu bytes",
                       (unsigned long long)put->size_bytes, (unsigned long long)put->offset_bytes,
                       (unsigned long long)length);
    return 0;
}

static int check_names_left(struct cwd_broker *b, const char *key, size_t key_bytes) {
    uint64_t names = cwd_names_count(b);
    if (names < CWD_LIMIT(b, max_names) || cwd_name_exists(b, key, key_bytes))
        return 0;
    return cwd_limit_refuse(b, CW_LIMIT_max_names,
                            "a name more than the %llu that exist was asked "
                            "for",
                            (unsigned long long)names);
}

static const char *name_of(const char *key, size_t key_bytes, int *length) {
    size_t at = strnlen(key, key_bytes) + 1;
    *length = (int)(key_bytes - at);
    return key + at;
}

/* Its record in weak_names.c goes, or its reference. */
static void name_gone(struct cwd_broker *b, const struct cw_entry *old) {
    if (old->flags & CW_ENTRY_KEEP)
        b->kept_names--;
    b->remote.replicas -= (old->flags & CW_ENTRY_REPLICA) != 0;
    if (old->flags & CW_ENTRY_TIED)
        cwd_tie_gone(b, old->id);
    if (!(old->flags & CW_ENTRY_REPLICA)) /* no peer sees those */
        cwd_changes_ended(b, old->id);
    if (old->flags & CW_ENTRY_WEAK)
        cwd_weak_name_forget(b, old->slab, old->block, old->gen);
    else
        cwd_ref_drop(b, old->slab, old->block, old->gen);
}

/* The key of a replica, which the bridge alone names: "//node/name" in place of a name. */
static bool is_replica(const char *key, size_t key_bytes) {
    size_t at = strnlen(key, key_bytes) + 1;
    return key_bytes > at + 2 && key_bytes <= CW_KEY_MAX && memcmp(key + at, "//", 2) == 0;
}

static int check_key(struct cwd_broker *b, const struct cwd_session *session, const char *key,
                     size_t key_bytes) {
    if (cwd_remote_is(b, session) && is_replica(key, key_bytes))
        return 0;
    return cwd_key_check(key, key_bytes);
}

bool cwd_put_fits(const struct cw_put *put, uint32_t bytes) {
    return bytes == sizeof *put + put->key_bytes + put->meta_bytes &&
           put->meta_bytes <= CW_META_MAX &&
           !(put->flags & ~(uint32_t)(CW_PUT_REPLACE | CW_PUT_KEEP | CW_PUT_REMOTE_READ |
                                      CW_PUT_WEAK | CW_PUT_TIED)) &&
           __builtin_popcount(put->flags & (CW_PUT_KEEP | CW_PUT_WEAK | CW_PUT_TIED)) <= 1;
}

static struct cw_entry entry_of(const struct cwd_session *session, const struct cw_put *put,
                                bool replica, bool tree) {
    return (struct cw_entry){.slab = put->slab,
                             .block = put->block,
                             .gen = put->gen,
                             .offset_bytes = put->offset_bytes,
                             .size_bytes = put->size_bytes,
                             .created_ns = realtime_ns(),
                             .owner_pid = (uint32_t)session->pid,
                             .owner_session = session->id,
                             .flags =
                                 (put->flags & CW_PUT_KEEP ? CW_ENTRY_KEEP : 0u) |
                                 (put->flags & CW_PUT_REMOTE_READ ? CW_ENTRY_REMOTE_READ : 0u) |
                                 (put->flags & CW_PUT_WEAK ? CW_ENTRY_WEAK : 0u) |
                                 (put->flags & CW_PUT_TIED ? CW_ENTRY_TIED : 0u) |
                                 (replica ? CW_ENTRY_REPLICA : 0u) | (tree ? CW_ENTRY_TREE : 0u)};
}

/* Puts it into the directory. *old: what it meant before, if *replaced. */
static int record_put(struct cwd_broker *b, const struct cw_put *put, const char *key,
                      const struct cw_entry *entry, const void *meta, bool *replaced,
                      struct cw_entry *old) {
    int code = cw_directory_put(b->directory, key, put->key_bytes, entry, meta, put->meta_bytes,
                                (put->flags & CW_PUT_REPLACE) != 0, replaced, old);
    if (code == -EEXIST) {
        int length;
        const char *name = name_of(key, put->key_bytes, &length);
        cw_fail(code, "the name \"%.*s\" is taken, by process %u: replace it, or choose another",
                length, name, old->owner_pid);
    }
    return code;
}

static int put_entry(struct cwd_broker *b, struct cwd_session *session, const struct cw_put *put,
                     const char *key, const void *meta, bool tree) {
    struct cw_entry old = {.id = 0};
    struct cwd_tie *tie = NULL;
    bool replaced = false;
    int code = check_key(b, session, key, put->key_bytes);
    if (code == 0)
        code = check_names_left(b, key, put->key_bytes);
    if (code)
        return code;
    struct cwd_slab *slab = cwd_slab_find(b, put->slab);
    if (!slab)
        return cw_fail(-ESTALE, "the array is gone: there is no slab %u", put->slab);
    code = cwd_ref_take(b, slab, put->block, put->gen, NULL);
    if (code)
        return code;
    struct cw_entry entry = entry_of(session, put, is_replica(key, put->key_bytes), tree);
    bool weak = put->flags & CW_PUT_WEAK;
    code = check_range(slab, put);
    if (code == 0 && weak)
        code = cwd_weak_name_add(b, put, key);
    weak = weak && code == 0;
    if (code == 0 && put->flags & CW_PUT_TIED)
        code = cwd_tie_make(b, session, key, put->key_bytes, &tie);
    if (code == 0)
        code = record_put(b, put, key, &entry, meta, &replaced, &old);
    if (code) {
        if (weak)
            cwd_weak_name_forget(b, put->slab, put->block, put->gen);
        cwd_tie_discard(tie);
        cwd_ref_drop(b, put->slab, put->block, put->gen);
        return code;
    }
    if (weak)
        cwd_ref_drop(b, put->slab, put->block, put->gen); /* from here on those who have it open */
    if (put->flags & CW_PUT_KEEP)
        b->kept_names++;
    b->remote.replicas += (entry.flags & CW_ENTRY_REPLICA) != 0;
    if (replaced)
        name_gone(b, &old);
    if (tie)
        cwd_tie_add(b, session, tie, cwd_name_version(b, key, put->key_bytes));
    if (session->of_bridge)
        b->last_client_ns = b->now_ns; /* for a peer, who is no client here: it stays as long */
    CWD_COUNT(b, puts);
    cwd_changes_tell(b);
    cwd_waits_answer(b, key, put->key_bytes, cwd_name_version(b, key, put->key_bytes));
    return 0;
}

int cwd_name_put(struct cwd_broker *b, struct cwd_session *session, const struct cw_put *put,
                 const char *key, const void *meta) {
    return put_entry(b, session, put, key, meta, false);
}

int cwd_name_put_version(struct cwd_broker *b, struct cwd_session *session,
                         const struct cw_put *put, const char *key, const void *meta,
                         uint64_t if_version, uint64_t *version) {
    uint64_t now = cwd_name_version(b, key, put->key_bytes);
    int length;
    const char *name = name_of(key, put->key_bytes, &length);
    if (if_version == 0 && now != 0)
        return cw_fail(-EEXIST,
                       "the name \"%.*s\" is taken (version %llu): replace it, or choose "
                       "another",
                       length, name, (unsigned long long)now);
    if (if_version != CW_VERSION_ANY && if_version != now)
        return cw_fail(-ESTALE,
                       "\"%.*s\" was to be replaced if it means version %llu; it means %s%llu",
                       length, name, (unsigned long long)if_version, now ? "" : "nothing, version ",
                       (unsigned long long)now);
    int code = put_entry(b, session, put, key, meta, true);
    if (code == 0)
        *version = cwd_name_version(b, key, put->key_bytes);
    return code;
}

int cwd_name_remove(struct cwd_broker *b, struct cwd_session *session, const char *key,
                    size_t key_bytes) {
    struct cw_entry old;
    int code = check_key(b, session, key, key_bytes);
    if (code)
        return code;
    if (cw_directory_remove(b->directory, key, key_bytes, &old) != 0) {
        int length;
        const char *name = name_of(key, key_bytes, &length);
        return cw_fail(-ENOENT, "there is no name \"%.*s\" in namespace \"%.64s\"", length, name,
                       key);
    }
    name_gone(b, &old);
    CWD_COUNT(b, removes);
    cwd_changes_tell(b);
    return 0;
}

void cwd_name_end(struct cwd_broker *b, const char *key, size_t key_bytes) {
    struct cw_entry old;
    int code = cw_directory_remove(b->directory, key, key_bytes, &old);
    CW_ASSERT(code == 0);
    name_gone(b, &old);
    cwd_changes_tell(b);
}

uint64_t cwd_name_version(struct cwd_broker *b, const char *key, size_t key_bytes) {
    struct cw_entry entry;
    return cw_directory_lookup(b->directory, key, key_bytes, &entry) == 0 ? entry.id : 0;
}

int cwd_name_exists(struct cwd_broker *b, const char *key, size_t key_bytes) {
    struct cw_entry entry;
    return cw_directory_lookup(b->directory, key, key_bytes, &entry) == 0;
}

uint64_t cwd_names_count(struct cwd_broker *b) {
    return CW_LOAD(D8, &b->root->directory.names, relaxed);
}

struct sweep {
    struct cwd_broker *broker;
    bool all, replicas;
};

static bool sweep_one(void *context, const struct cw_entry *entry) {
    struct sweep *sweep = context;
    if (sweep->replicas && !(entry->flags & CW_ENTRY_REPLICA))
        return false;
    if (!sweep->all && (entry->flags & CW_ENTRY_KEEP))
        return false;
    name_gone(sweep->broker, entry);
    return true;
}

int64_t cwd_names_expire(struct cwd_broker *b) {
    uint64_t names = cwd_names_count(b);
    if (cwd_mover_others(b) || names == b->kept_names)
        return INT64_MAX;
    int64_t due_ns = b->last_client_ns + (int64_t)CWD_LIMIT(b, names_linger_seconds) * 1000000000;
    if (b->now_ns < due_ns)
        return due_ns;
    struct sweep sweep = {.broker = b};
    cw_directory_sweep(b->directory, sweep_one, &sweep);
    cwd_changes_tell(b);
    cwd_log("%llu names ended, since their user has no client any more",
            (unsigned long long)(names - cwd_names_count(b)));
    return INT64_MAX;
}

void cwd_names_end_replicas(struct cwd_broker *b) {
    struct sweep sweep = {.broker = b, .replicas = true};
    if (b->remote.replicas)
        cw_directory_sweep(b->directory, sweep_one, &sweep);
}

/* ---- replicas that nobody has, where memory is wanted ---- */

struct unused {
    struct cwd_broker *broker;
    struct cw_block_name *blocks; /* of each replica, in the order of the sweep */
    bool *unused;
    uint32_t count, room, ended;
    uint64_t left_bytes;
};

static bool note_replica(void *context, const struct cw_entry *entry) {
    struct unused *u = context;
    if ((entry->flags & CW_ENTRY_REPLICA) && u->count < u->room)
        u->blocks[u->count++] =
            (struct cw_block_name){.slab = entry->slab, .block = entry->block, .gen = entry->gen};
    return false;
}

static void look_at_holders(struct unused *u) {
    struct cw_block_holders found[CW_BLOCKS_ASKED];
    for (uint32_t from = 0; from < u->count; from += CW_BLOCKS_ASKED) {
        uint32_t some = u->count - from < CW_BLOCKS_ASKED ? u->count - from : CW_BLOCKS_ASKED;
        cwd_holders_count(u->broker, u->blocks + from, some, found);
        for (uint32_t i = 0; i < some; i++)
            u->unused[from + i] = found[i].device_kind == CW_DEVICE_HOST && found[i].holders == 0 &&
                                  found[i].references == 1;
    }
}

static bool end_unused(void *context, const struct cw_entry *entry) {
    struct unused *u = context;
    if (!(entry->flags & CW_ENTRY_REPLICA) || u->count == u->room)
        return false;
    const struct cw_block_name *block = &u->blocks[u->count];
    bool same =
        block->slab == entry->slab && block->block == entry->block && block->gen == entry->gen;
    if (!u->unused[u->count++] || !same || u->left_bytes == 0)
        return false;
    u->left_bytes -= entry->size_bytes < u->left_bytes ? entry->size_bytes : u->left_bytes;
    u->ended++;
    name_gone(u->broker, entry);
    return true;
}

uint32_t cwd_names_end_unused(struct cwd_broker *b, uint64_t size_bytes) {
    const uint32_t replicas = (uint32_t)b->remote.replicas;
    struct unused u = {.broker = b, .room = replicas, .left_bytes = size_bytes};
    if (replicas == 0)
        return 0;
    u.blocks = malloc(replicas * sizeof *u.blocks);
    u.unused = malloc(replicas * sizeof *u.unused);
    if (u.blocks && u.unused) { /* else they stay, and who asks is refused */
        cw_directory_sweep(b->directory, note_replica, &u);
        look_at_holders(&u);
        u.room = u.count;
        u.count = 0;
        cw_directory_sweep(b->directory, end_unused, &u);
    }
    free(u.blocks);
    free(u.unused);
    return u.ended;
}

void cwd_names_deinit(struct cwd_broker *b) {
    struct sweep sweep = {.broker = b, .all = true};
    if (b->directory)
        cw_directory_sweep(b->directory, sweep_one, &sweep);
}
