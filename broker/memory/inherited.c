/*
 * Inherited references: see inherited.h. The loop's thread owns them. They outlive the session that
 * made them: their fork pipe alone ends them. A slot that names what is not alive adds nothing.
 */
#include "broker/memory/inherited.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/core/fd_class.h"
#include "broker/core/loop.h"
#include "broker/session/session.h"

struct inherited_hold {
    uint32_t slab, block;
    uint64_t gen;
};

struct cwd_inherited {
    uint32_t id;
    int fork_pipe;
    uint32_t session; /* who is charged, while it lives */
    struct inherited_hold *holds;
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
static int hold_slots(struct cwd_broker *b, struct cwd_inherited *inherited, const uint64_t *slots,
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
            inherited->holds[inherited->count++] = (struct inherited_hold){slab->id, block, gen};
        else if (code == -EDQUOT)
            return code;
    }
    return 0;
}

static void inherited_free(struct cwd_broker *b, struct cwd_inherited *inherited) {
    for (uint32_t i = 0; i < inherited->count; i++)
        cwd_ref_drop(b, inherited->holds[i].slab, inherited->holds[i].block,
                     inherited->holds[i].gen);
    free(inherited->holds);
    free(inherited);
}

/* One with a number and room for so many holds; NULL: no memory. */
static struct cwd_inherited *inherited_make(struct cwd_broker *b, uint32_t count) {
    struct cwd_inherited *inherited = calloc(1, sizeof *inherited), *other;
    if (!inherited)
        return NULL;
    inherited->holds = calloc(count ? count : 1, sizeof *inherited->holds);
    do {
        inherited->id = ++b->next_inherited;
        HASH_FIND(hh, b->inherited, &inherited->id, sizeof inherited->id, other);
    } while (other);
    if (inherited->holds)
        HASH_ADD(hh, b->inherited, id, sizeof inherited->id, inherited);
    if (inherited->holds && CWD_ADDED(inherited))
        return inherited;
    inherited_free(b, inherited);
    return NULL;
}

int cwd_inherited_new(struct cwd_broker *b, struct cwd_session *session, int fork_pipe) {
    uint64_t *slots;
    uint32_t count;
    enum cwd_fd_class class = cwd_fd_class(fork_pipe);
    if (class != CWD_FD_PIPE)
        return cwd_fd_refuse(class, "the descriptor of a fork is a pipe; another one came");
    /* Who holds both ends of a pipe never hears that it has ended. */
    if ((fcntl(fork_pipe, F_GETFL) & O_ACCMODE) != O_RDONLY)
        return cw_fail(-EPROTO, "the descriptor of a fork is a pipe's read end; another end came");
    if (cwd_fds_held(b) + 1 > CWD_LIMIT(b, max_fds))
        return cwd_limit_refuse(b, CW_LIMIT_max_fds,
                                "a fork needs 1 descriptor more than the %llu that are held",
                                (unsigned long long)cwd_fds_held(b));
    if (session->fork_pipes >= CWD_LIMIT(b, max_fds) / 4)
        return cwd_limit_refuse(b, CW_LIMIT_max_fds,
                                "one more fork pipe than the %u of this client was asked for; one "
                                "client may have a quarter of the descriptors",
                                session->fork_pipes);
    int code = gather_slots(session, &slots, &count);
    if (code)
        return code;
    struct cwd_inherited *inherited = inherited_make(b, count);
    code =
        inherited ? hold_slots(b, inherited, slots, count) : cwd_no_memory("the leases of a fork");
    free(slots);
    /* Nothing but HUP is watched: what somebody writes into the pipe does not wake us. */
    if (code == 0)
        code = cwd_loop_add(b, fork_pipe, CWD_EVENT_FORK_PIPE, inherited->id, 0);
    if (code) {
        if (inherited) {
            HASH_DEL(b->inherited, inherited);
            inherited_free(b, inherited);
        }
        return code;
    }
    inherited->fork_pipe = fork_pipe;
    inherited->session = session->id;
    session->fork_pipes++;
    b->fds++;
    return 0;
}

static void inherited_end(struct cwd_broker *b, struct cwd_inherited *inherited) {
    struct cwd_session *session = cwd_session_find(b, inherited->session);
    if (session)
        session->fork_pipes--;
    HASH_DEL(b->inherited, inherited);
    cwd_loop_remove(b, inherited->fork_pipe);
    close(inherited->fork_pipe); /* a pipe: never blocks */
    b->fds--;
    inherited_free(b, inherited);
    b->reclaim.urgent = true;
    b->last_client_ns = b->now_ns;
}

void cwd_inherited_on_fork_pipe(struct cwd_broker *b, uint32_t id) {
    struct cwd_inherited *inherited;
    HASH_FIND(hh, b->inherited, &id, sizeof id, inherited);
    if (inherited)
        inherited_end(b, inherited);
}

void cwd_inherited_deinit(struct cwd_broker *b) {
    struct cwd_inherited *inherited, *next;
    HASH_ITER(hh, b->inherited, inherited, next) {
        inherited_end(b, inherited);
    }
}
