/*
 * Session: one client's connection, from accept to its end.
 *
 *   CONNECTING --HELLO--> OPEN --EOF, pidfd alive--> DETACHED --pidfd--> ended
 *       |                  | |                                            ^
 *       | EOF, limit       | +--breach--> DROPPED --EOF and pidfd---------+
 *       v                  +--BYE, or EOF and pidfd-----------------------+
 *     ended
 *
 * A client is dead when its pidfd says so and its socket is at its end: only then, or when it says
 * BYE, do its leases end. A dropped client's channel is read no more, but what it holds stays until
 * it is dead, since it may still use what it has mapped.
 */
#ifndef CW_BROKER_SESSION_SESSION_H
#define CW_BROKER_SESSION_SESSION_H

#include <sys/types.h>

#include "broker/core/table.h"
#include "broker/names/waits.h"
#include "ipc/wire.h"
#include "shm/session/session.h"

#define CWD_NO_ROW     UINT32_MAX
#define CWD_HELLO_NS   5000000000 /* how long a connection may wait with its HELLO */
#define CWD_REASON_MAX 256        /* bytes of the sentence that a dropped client gets */

struct cwd_broker;
struct cwd_transit;
struct cwd_wait;
struct cwd_claim;
struct cwd_tie;
struct cwd_job;
struct cwd_remote_job;

enum cwd_session_state { CWD_CONNECTING, CWD_OPEN, CWD_DETACHED, CWD_DROPPED };

/* Of a process: how many of its sessions are open, and the bytes of slabs of all of them. */
unsigned cwd_sessions_of(struct cwd_broker *broker, pid_t pid);
uint64_t cwd_sessions_bytes(struct cwd_broker *broker, pid_t pid);

struct cwd_session {
    uint32_t id; /* never used again within this run */
    enum cwd_session_state state;
    pid_t pid; /* of who connected, by SO_PEERCRED */
    bool pid_dead, socket_ended, ended;
    bool leases_ended; /* its tables count no more */
    bool said_bye;
    uint8_t admin;  /* one of those who may connect beyond the limit: which (hello.c); 0: none */
    bool of_bridge; /* our bridge's: it has two (broker/bridge/local/broker_channel.h), and neither
                       is a user */
    int sock, pidfd, doorbell, bell; /* -1 where there is none; bell: our write end */
    int64_t hello_limit_ns;
    int64_t
        hello_after_ns; /* its HELLO is read then: its process was refused too often; 0: at once */
    bool hello_heard;   /* that moment has come */
    uint32_t unread;    /* messages with descriptors since the client had read all */

    struct cw_segment segment; /* the channel and the first lease table */
    struct cw_session *shared;
    struct cw_ring_consumer requests;
    struct cw_ring_producer replies;
    bool wake;                     /* replies were written: look whether the client sleeps */
    bool room_came;                /* it slept for room in the request ring: wake it in any case */
    uint64_t read_through;         /* all that stood in its request ring at that turn was read */
    uint64_t mark_turn, mark_head; /* where the ring's reading stood then: read_through's next */

    uint32_t tables;                /* lease tables, the first included */
    struct cw_segment *more_tables; /* tables - 1 of them */

    /* charged to it */
    uint32_t slabs, transits, waits, jobs, remotes, fork_pipes, early_ends, fence_pages;
    uint64_t bytes, gpu_bytes, requests_done;
    int64_t heard_ns;                   /* of the turn in which a request of its was last read */
    int64_t heard_before_ns;            /* the same, before the one that is served */
    uint32_t adopts_from;               /* the slab at which its ADOPT goes on; 0: none does */
    uint64_t routes_seen[CW_ROUTES];    /* of its figures, what the counters have */
    int64_t paused_until_ns;            /* its requests are not read (refusals.h); 0: they are */
    uint64_t last_transit;              /* the highest counter of its BEGINs */
    struct cwd_transit *ready_transits; /* memory for its next ones (transit.h) */
    uint32_t ready_count;
    struct cwd_wait *own_waits;                      /* all of its waits */
    struct cwd_wait_part wait_parts[CWD_WAIT_PARTS]; /* that were cancelled last */
    uint32_t next_part;
    struct cwd_wait *ready;   /* of these, the answers that had no room yet */
    struct cwd_claim *claims; /* that it has (claims.h) */
    uint32_t claim_count;
    struct cwd_tie *ties;                  /* names that end with it (ties.h) */
    struct cwd_job *answers;               /* to jobs, the same */
    struct cwd_remote_job *remote_answers; /* to what it wants of other nodes, the same */

    uint32_t row;                     /* of the monitor page */
    bool changed;                     /* its row is to be written */
    char drop_reason[CWD_REASON_MAX]; /* of who is dropped, until it was told at the turn's end */
    struct cwd_session *next_dropped, *next_ended;
    UT_hash_handle hh;
};

struct cwd_session *cwd_session_find(struct cwd_broker *broker, uint32_t id);
/* A connection was accepted; takes sock over. */
void cwd_session_accept(struct cwd_broker *broker, int sock);
/* A HELLO was checked: makes channel, bell and doorbell. pidfd is taken over on success. *bell_read
 * is the client's end, to be closed once it is sent. 0 or a negative code. */
int cwd_session_open(struct cwd_broker *broker, struct cwd_session *session, int pidfd,
                     int *bell_read);
/* Lease table number t. */
struct cw_lease_table *cwd_session_table(struct cwd_session *session, uint32_t t);
/* One more lease table; *out stays the session's. 0 or -EDQUOT. */
int cwd_session_add_table(struct cwd_broker *broker, struct cwd_session *session,
                          const struct cw_segment **out);

/* The newest lease table was sent, or could not be: then it is none of the session's. */
void cwd_session_table_sent(struct cwd_broker *broker, struct cwd_session *session, bool sent);

/* Events. */
void cwd_session_on_pidfd(struct cwd_broker *broker, struct cwd_session *session);
void cwd_session_on_socket_end(struct cwd_broker *broker, struct cwd_session *session);
/*
 * A breach of protocol by a client, which has said HELLO: reason is the sentence that it gets and
 * the log shows; it is copied.
 *
 * From now on nothing of the session is served and nothing is written to it. All else (its waits,
 * its last word) ends in cwd_sessions_settle() at the end of the turn: a breach shows in the midst
 * of a reply, while whoever replies walks a list in which the session may stand, or ends another
 * session. So this only marks it, and no reply ends anything.
 */
void cwd_session_drop(struct cwd_broker *broker, struct cwd_session *session, const char *reason);
/* The same of a connection that has not said HELLO: it hears why, and ends now. It stands in no
 * list but that of all sessions, and nobody replies to it but hello.c. */
void cwd_session_refuse(struct cwd_broker *broker, struct cwd_session *session, const char *reason);
/* Ends it now, with everything that it holds. May be repeated. The struct stays until the turn's
 * end. Others hear what its end means for them, which may drop them: never from a reply. */
void cwd_session_end(struct cwd_broker *broker, struct cwd_session *session);
/* Too many connections said no HELLO yet: the oldest of them says it now, or ends. */
void cwd_sessions_make_room(struct cwd_broker *broker);
/* Ends connections that did not say HELLO in time. Returns the next such limit, or INT64_MAX. */
int64_t cwd_sessions_expire(struct cwd_broker *broker);
/* Ends what sessions dropped in this turn had asked for, and tells them why. Outside of any list.
 */
void cwd_sessions_settle(struct cwd_broker *broker);
/* Frees what ended in this turn. After cwd_sessions_settle(). */
void cwd_sessions_free_ended(struct cwd_broker *broker);
void cwd_sessions_deinit(struct cwd_broker *broker);

/* Is there room in the reply ring for any reply? */
bool cwd_session_has_room(struct cwd_session *session);
/* Is there room for one with this body, which may be larger than those? */
bool cwd_session_fits(struct cwd_session *session, uint32_t body_bytes);
/* Writes one reply; there must be room. A status < 0 goes with its sentence. */
void cwd_session_reply(struct cwd_broker *broker, struct cwd_session *session, uint16_t op,
                       uint64_t id, int status, const void *body, uint32_t body_bytes);
/* Wakes the client if replies were written and it sleeps. Never blocks. */
void cwd_session_wake(struct cwd_broker *broker, struct cwd_session *session);

#endif
