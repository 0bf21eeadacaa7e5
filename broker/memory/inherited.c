/*
 * Ghosts: see inherited.h. The loop's thread owns them. A ghost outlives the session that made it:
 * its lifeline alone ends it. A slot that names what is not alive adds nothing.
 */
#include "broker/memory/inherited.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/core/fd_class.h"
#include "broker/core/loop.h"
#include "broker/session/session.h"

struct ghost_hold {
    uint32_t slab, block;
    uint64_t gen;
};

struct cwd_ghost {
    uint32_t id;
    int lifeline;
    uint32_t session; /* who is charged, while it lives */
    struct ghost_hold *holds;
    uint32_t count;
    UT_hash_handle hh;
};

static int compare_slots(const void *left, const void *right) {
    uint64_t l = *(const uint64_t *)left, r = *(const uint64_t *)right;
    return l < r ? -1 : l > r;
}

/* The slots of all tables, sorted; the caller frees *out. */
static int gather_slots(struct cwd_session *session, uint64_t **out, uint32_t *count) {
    uint64_t *slots = malloc((size_t)session->tables * CW_LEASE_TABLE_SLOTS * sizeof *slots);
    uint32_t found = 0;
    if (!slots)
        return cw_fail(-EDQUOT, "no memory to double the leases of a fork");
    for (uint32_t t = 0; t < session->tables; t++) {
        struct cw_lease_table *table = cwd_session_table(session, t);
        for (uint32_t i = 0, most = cw_lease_count(table); i < most; i++) {
            uint64_t slot = cw_lease_read(table, i);
            if (slot)
                slots[found++] = slot;
        }
    }
    qsort(slots, found, sizeof *slots, compare_slots);
    *out = slots;
    *count = found;
    return 0;
}

/* -EDQUOT: not all of them could be held. */
static int hold_slots(struct cwd_broker *b, struct cwd_ghost *ghost, const uint64_t *slots,
                      uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (i && slots[i] == slots[i - 1])
            continue;
        uint32_t block = cw_lease_block(slots[i]);
        struct cwd_slab *slab = cwd_slab_find(b, cw_lease_slab(slots[i]));
        if (!slab || block >= slab->capacity)
            continue;
        /* B13: the generation that lives there now; cwd_ref_take looks whether it lives. */
        uint64_t gen = cw_block_gen(CW_LOAD(B13, &slab->table->blocks[block].word, acquire));
        int code = cwd_ref_take(b, slab, block, gen, NULL);
        if (code == 0)
            ghost->holds[ghost->count++] = (struct ghost_hold){slab->id, block, gen};
        else if (code == -EDQUOT)
            return code;
    }
    return 0;
}

static void ghost_free(struct cwd_broker *b, struct cwd_ghost *ghost) {
    for (uint32_t i = 0; i < ghost->count; i++)
        cwd_ref_drop(b, ghost->holds[i].slab, ghost->holds[i].block, ghost->holds[i].gen);
    free(ghost->holds);
    free(ghost);
}

/* One with a number and room for so many holds; NULL: no memory. */
static struct cwd_ghost *ghost_make(struct cwd_broker *b, uint32_t count) {
    struct cwd_ghost *ghost = calloc(1, sizeof *ghost), *other;
    if (!ghost)
        return NULL;
    ghost->holds = calloc(count ? count : 1, sizeof *ghost->holds);
    do {
        ghost->id = ++b->next_ghost;
        HASH_FIND(hh, b->ghosts, &ghost->id, sizeof ghost->id, other);
    } while (other);
    if (ghost->holds)
        HASH_ADD(hh, b->ghosts, id, sizeof ghost->id, ghost);
    if (ghost->holds && CWD_ADDED(ghost))
        return ghost;
    ghost_free(b, ghost);
    return NULL;
}

int cwd_ghost_new(struct cwd_broker *b, struct cwd_session *session, int lifeline) {
    uint64_t *slots;
    uint32_t count;
    enum cwd_fd_class class = cwd_fd_class(lifeline);
    if (class != CWD_FD_PIPE)
        return cwd_fd_refuse(class, "a lifeline is a pipe; another descriptor came");
    if (cwd_fds_held(b) + 1 > CWD_LIMIT(b, max_fds))
        return cwd_limit_refuse(b, CW_LIMIT_max_fds,
                                "a fork needs 1 descriptor more than the %llu that are held",
                                (unsigned long long)cwd_fds_held(b));
    if (session->lifelines >= CWD_LIMIT(b, max_fds) / 4)
        return cwd_limit_refuse(b, CW_LIMIT_max_fds,
                                "one more lifeline than the %u of this client was asked for; one "
                                "client may have a quarter of the descriptors",
                                session->lifelines);
    int code = gather_slots(session, &slots, &count);
    if (code)
        return code;
    struct cwd_ghost *ghost = ghost_make(b, count);
    code = ghost ? hold_slots(b, ghost, slots, count) : cwd_no_memory("the leases of a fork");
    free(slots);
    /* Nothing but HUP is watched: what somebody writes into the pipe does not wake us. */
    if (code == 0)
        code = cwd_loop_add(b, lifeline, CWD_EVENT_LIFELINE, ghost->id, 0);
    if (code) {
        if (ghost) {
            HASH_DEL(b->ghosts, ghost);
            ghost_free(b, ghost);
        }
        return code;
    }
    ghost->lifeline = lifeline;
    ghost->session = session->id;
    session->lifelines++;
    b->fds++;
    return 0;
}

static void ghost_end(struct cwd_broker *b, struct cwd_ghost *ghost) {
    struct cwd_session *session = cwd_session_find(b, ghost->session);
    if (session)
        session->lifelines--;
    HASH_DEL(b->ghosts, ghost);
    cwd_loop_remove(b, ghost->lifeline);
    close(ghost->lifeline); /* a pipe: never blocks */
    b->fds--;
    ghost_free(b, ghost);
    b->reclaim.urgent = true;
    b->last_client_ns = b->now_ns;
}

void cwd_ghost_on_lifeline(struct cwd_broker *b, uint32_t id) {
    struct cwd_ghost *ghost;
    HASH_FIND(hh, b->ghosts, &id, sizeof id, ghost);
    if (ghost)
        ghost_end(b, ghost);
}

void cwd_ghosts_deinit(struct cwd_broker *b) {
    struct cwd_ghost *ghost, *next;
    HASH_ITER(hh, b->ghosts, ghost, next) {
        ghost_end(b, ghost);
    }
}
