/*
 * The slab registry. A slab is two descriptors to the broker: data, and block table.
 *
 *   owned    a client carves blocks out of it. The broker takes it from the client if another
 *            client is about to be refused memory and no block of the slab is alive (room.h)
 *   orphan   its owner is dead or gave it up. The next client that needs memory adopts it, or the
 *            broker closes it when no block of it is alive
 * The broker maps the table, never the data.
 *
 * The broker knows which blocks of an orphan are alive without the table, in which any client can
 * write. When the owner went, every block that was alive had a reference or became a suspect, and
 * nobody carves blocks there since. So no block is alive once the slab has no reference, no block
 * that waits and no suspect.
 */
#ifndef CW_BROKER_MEMORY_SLABS_H
#define CW_BROKER_MEMORY_SLABS_H

#include "broker/core/table.h"
#include "ipc/wire.h"
#include "shm/blocks/block.h"

struct cwd_broker;
struct cwd_session;

#define CWD_GAP_UNKNOWN UINT64_MAX

struct cwd_slab {
    uint32_t id;
    struct cw_slab_info info; /* as the maker declared it, checked */
    uint32_t capacity;        /* our own copy: the table's is shared */
    int data_fd;
    bool data_is_known; /* its close cannot be blocked by a file system */
    struct cw_segment segment;
    struct cw_block_table *table;
    uint64_t charge_bytes;     /* of host memory: data and table */
    uint64_t gpu_bytes;        /* of GPU memory, as declared */
    struct cwd_session *owner; /* NULL: orphan */
    uint32_t refs;             /* references on its blocks */
    uint32_t waits;            /* blocks of it that wait for the end of somebody's lease */
    uint32_t anchors;          /* of groups (groups.h) */
    uint32_t weak_names;       /* of its blocks (names/weak_names.h) */
    uint64_t unsettled;        /* the sweep that found suspects of it yet to be looked at */
    uint64_t gap_bytes; /* the largest free piece, as its table said; CWD_GAP_UNKNOWN: look */
    bool suspected;
    struct cwd_slab *prev, *next; /* in broker.suspect */
    UT_hash_handle hh;
};

struct cwd_slab *cwd_slab_find(struct cwd_broker *broker, uint32_t id);

/* Would cwd_slab_add() refuse a slab of host memory for a limit? 0, or what it would return. */
int cwd_slab_check(struct cwd_broker *broker, struct cwd_session *owner, uint64_t size_bytes,
                   uint32_t blocks);
/* Takes two descriptors into the registry for owner; takes both over, also on failure. Returns 0,
 * -EDQUOT (a limit), -EINVAL (numbers that cannot be, data that is no memory), -EPROTO (a block
 * table that is none). */
int cwd_slab_add(struct cwd_broker *broker, struct cwd_session *owner,
                 const struct cw_slab_info *info, const int fds[2], struct cw_slab_info *out);
/* An orphan with one free piece of that size becomes owner's. 0, -ENOENT, -EDQUOT; -EAGAIN: some
 * tables were looked at, and others are still to be: ask in the next turn. */
int cwd_slab_adopt(struct cwd_broker *broker, struct cwd_session *owner,
                   const struct cw_slab_request *wish, struct cw_slab_info *out);
/* The owner gives it up or is gone: it becomes an orphan, its blocks are suspected. */
void cwd_slab_orphan(struct cwd_broker *broker, struct cwd_slab *slab);
/* Whether this block lives there with this generation, by the table: only a look. */
bool cwd_slab_has(struct cwd_slab *slab, uint32_t block, uint64_t gen);
/* All slabs of a session that ends. */
void cwd_slabs_orphan_of(struct cwd_broker *broker, struct cwd_session *owner);
/* Takes a slab with nothing in it from its owner (room.h) and closes it; its pages become free,
 * whoever has them mapped. No reference, no wait and no suspect of it is left. */
void cwd_slab_withdraw(struct cwd_broker *broker, struct cwd_slab *slab);
/* A block of it was taken back. */
void cwd_slab_block_freed(struct cwd_broker *broker, struct cwd_slab *slab);
/* Perhaps nothing of this orphan is alive any more. */
void cwd_slab_suspect(struct cwd_broker *broker, struct cwd_slab *slab);
/* Closes the suspected orphans in which nothing is alive; those with suspects stay in the list. */
void cwd_slabs_sweep(struct cwd_broker *broker);
/* Closes all. */
void cwd_slabs_deinit(struct cwd_broker *broker);

/* Closes a descriptor that a client gave us, by the helper. */
void cwd_fd_discard(struct cwd_broker *broker, int fd);

#endif
