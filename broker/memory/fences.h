/*
 * Fences: pages of them, each for one session, and what the broker does with them after its death.
 *
 *   open    its session lives: its streams write
 *   broken  its session lives, but the CUDA context of the page's streams has failed
 *           (FENCES_BREAK): treated as buried, and its streams as ended, from that message on. The
 *           session has given its turns back itself.
 *   buried  its process is dead. Poison is stored again every POISON_EVERY_NS until the socket has
 *           ended, too, and CW_POISON_NS have passed: late writes of a GPU may land until then.
 *           Then the stamps of these fences are taken out of all block tables (cw_order_bury), and
 *           the page is closed; a process that has it mapped keeps it.
 * The broker trusts nothing in a page: it stores poison, and notes numbers for those who read from
 * the dead process.
 */
#ifndef CW_BROKER_MEMORY_FENCES_H
#define CW_BROKER_MEMORY_FENCES_H

#include "broker/core/table.h"
#include "ipc/wire.h"
#include "shm/base/segment.h"

struct cwd_broker;
struct cwd_session;

struct cwd_fence_page {
    uint32_t page;    /* its number; never given out again */
    uint32_t session; /* whose */
    struct cw_segment segment;
    bool buried;
    bool settling;    /* final, and its stamps are being taken out of the tables */
    int64_t final_ns; /* 0: the session's socket is still open */
    UT_hash_handle hh;
};

/* One more page for a session. *out: its segment, whose descriptor stays ours. -EDQUOT. */
int cwd_fences_add(struct cwd_broker *broker, struct cwd_session *session,
                   struct cw_fence_page *info, const struct cw_segment **out);
/* The session could not be told of its newest page: it is none. */
void cwd_fences_take_back(struct cwd_broker *broker, struct cwd_session *session, uint32_t page);
/* A page by its number. -ENOENT: its session is dead and buried, or there was none. */
int cwd_fences_open(struct cwd_broker *broker, uint32_t page, struct cw_fence_page *info,
                    const struct cw_segment **out);
/* The session's process is dead: poison from now on. May be repeated. */
void cwd_fences_bury(struct cwd_broker *broker, struct cwd_session *session);
/* The session's word that nothing behind one of its pages will be done any more. A page that is not
 * its own, or none: nothing happens. */
void cwd_fences_break(struct cwd_broker *broker, struct cwd_session *session, uint32_t page);
/* The session has ended: nothing can land later than CW_POISON_NS from now. */
void cwd_fences_end(struct cwd_broker *broker, struct cwd_session *session);
/* Does what is due. Returns when to come again, INT64_MAX for never. */
int64_t cwd_fences_serve(struct cwd_broker *broker);
void cwd_fences_deinit(struct cwd_broker *broker);

#endif
