/*
 * Remote: requests of clients to other nodes, and the process cableway-bridge, which serves them.
 *
 *   waiting --NEXT of the bridge--> given --DONE--> answered --room in the client's ring--> gone
 *      |                             |
 *      | CANCEL, client dead         | bridge dead: waiting again (BRIDGE_TRIES times)
 *      v                             | CANCEL, client dead: the bridge is told, nobody is answered
 *     gone                           v
 *
 * To the broker the bridge is a client with a role, as the mover is (mover.h): the role belongs to
 * the process that we started, by its pid. It is started if the configuration names an address to
 * listen on or nodes to reach, else when the first job comes. If it died it is started again: at
 * once if there are jobs, else after a pause that grows. It keeps no state that cannot be fetched
 * again. Its names (replicas of remote arrays) go when its session ends, since nobody would keep
 * them up to date. The next bridge gets its jobs, and is told that they were given before. A put or
 * remove has a number, by which the other node recognises it (once.h).
 *
 * A bridge that is stopped or hangs is treated as dead: other nodes may depend on it of which this
 * broker knows nothing. So it is asked once a second whether it lives, and killed if it has sent
 * nothing for CWD_REMOTE_LOOKS seconds. Only seconds in which this process ran count.
 *
 * The bridge also asks to be told when names changed (changes.h).
 */
#ifndef CW_BROKER_ROLES_REMOTE_H
#define CW_BROKER_ROLES_REMOTE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "broker/names/changes.h"
#include "ipc/wire.h"

#define CWD_REMOTE_PROGRAM     "cableway-bridge"
#define CWD_REMOTE_OPTIONS_MAX 64u
#define CWD_REMOTE_LOOKS       4u  /* one a second: it is found after less than 5 s */
#define CWD_REMOTE_START_LOOKS 30u /* the same, until it has asked for work */

struct cwd_broker;
struct cwd_session;
struct cwd_remote_job;

struct cwd_remote_options { /* as the bridge takes them: "--listen", "HOST:PORT", ... */
    char *words[2 * CWD_REMOTE_OPTIONS_MAX];
    uint32_t count;
};

struct cwd_remote {
    struct cwd_remote_options options;
    pid_t pid; /* 0: none runs */
    int pidfd;
    struct cwd_session *session;         /* NULL: none, or it has not asked for work yet */
    unsigned starts;                     /* in a row without one that asked for work */
    int64_t start_after_ns;              /* not before, unless there are jobs */
    uint64_t nexts[CW_REMOTE_NEXTS_MAX]; /* its NEXTs that wait, the oldest first */
    uint32_t next_count;
    uint32_t sessions; /* of our bridges: two of each */
    struct cwd_changes changes;
    int64_t look_ns;             /* when it is looked at next; 0: it was just started */
    uint64_t look_head;          /* how far it had come with its requests then */
    unsigned silent;             /* looks that found no new one */
    struct cwd_remote_job *jobs; /* waiting and given, in the order in which they came */
    uint64_t next_job, next_deed;
    uint32_t replicas; /* names of it in the directory */
};

void cwd_remote_init(struct cwd_broker *broker);
/* One more option of the bridge. 0 or -EINVAL: too many. where: for the sentence. */
int cwd_remote_option(struct cwd_remote_options *options, const char *option, const char *value,
                      const char *where);
/* Starts the bridge: remote_start.c. 0 or a negative code. */
int cwd_remote_start(struct cwd_broker *broker);
/* Starts the bridge where it is wanted; returns when it wants to be called again, or INT64_MAX. */
int64_t cwd_remote_serve(struct cwd_broker *broker);
/* REMOTE of a client; body is copied. 0: answered later. -EDQUOT. */
int cwd_remote_begin(struct cwd_broker *broker, struct cwd_session *client, uint64_t request,
                     const void *body, uint32_t body_bytes);
/* CANCEL of a client's REMOTE, or of the bridge's NEXT or CHANGES. */
void cwd_remote_cancel(struct cwd_broker *broker, struct cwd_session *session, uint64_t request);
/* REPLICA: names the array, and answers the job with what became of that. */
int cwd_remote_replica(struct cwd_broker *broker, struct cwd_session *session,
                       const struct cw_replica *replica, const char *key, const void *meta);
/* REMOTE_NEXT, CHANGES: 0: answered later. -EPERM: not from our bridge. */
int cwd_remote_next(struct cwd_broker *broker, struct cwd_session *session, uint64_t request);
int cwd_remote_changes(struct cwd_broker *broker, struct cwd_session *session, uint64_t request,
                       const struct cw_changes *changes);
/* REMOTE_DONE. -EBADMSG: not from our bridge. A job that it does not have any more is no breach. */
int cwd_remote_done(struct cwd_broker *broker, struct cwd_session *session,
                    const struct cw_remote_end *end, const void *body, uint32_t body_bytes);
/* Answers that had no room; returns whether any was written. */
bool cwd_remote_flush(struct cwd_broker *broker, struct cwd_session *client);
bool cwd_remote_is(const struct cwd_broker *broker, const struct cwd_session *session);
/* A client's session ends; the bridge's own may be it. */
void cwd_remote_forget(struct cwd_broker *broker, struct cwd_session *session);
void cwd_remote_on_exit(struct cwd_broker *broker);
void cwd_remote_deinit(struct cwd_broker *broker);

#endif
