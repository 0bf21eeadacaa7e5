/*
 * Mover: the process cableway-mover (broker/mover/), which makes copies that clients cannot make.
 * It is our only process that sees all GPUs. A broker has one: it is started when the first job
 * comes, ends when it has had none for a while, and is started again if it died with jobs left.
 *
 *   none --job--> started --its first NEXT--> at work --pidfd and socket's end--> none
 *                    |                                                              |
 *                    | its end, EXITS_MOST in a row: all jobs fail                  | jobs left
 *                    v                                                              v
 *                  none                                                          started
 *
 * To the rest of the broker it is a client with a role: it opens slabs and holds leases as all do.
 * The role belongs to the process that we started, by its pid, which no other process can have
 * before we have waited for it. It keeps no state, so its successor needs only the jobs
 * (copy_jobs.h). When this process ends, the kernel kills it.
 */
#ifndef CW_BROKER_ROLES_MOVER_H
#define CW_BROKER_ROLES_MOVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/wire.h"

#define CWD_MOVER_ASKS 16u /* NEXTs of it that wait: one a thread */

struct cwd_broker;
struct cwd_session;

struct cwd_mover {
    pid_t pid; /* 0: none runs */
    int pidfd;
    struct cwd_session *session; /* NULL: none, or it has not asked for work yet */
    bool asked;                  /* for work, since it was started */
    unsigned exits, kills;       /* in a row of those that never asked */
    uint32_t ask_count;
    uint64_t asks[CWD_MOVER_ASKS]; /* requests that wait for a job */
};

void cwd_mover_init(struct cwd_broker *broker);
/* There may be a job: hands out what waits, and starts a mover where none is. */
void cwd_mover_serve(struct cwd_broker *broker);
/* MOVER_NEXT. 0: answered later. -EPERM: not from our mover. */
int cwd_mover_next(struct cwd_broker *broker, struct cwd_session *session, uint64_t request);
/* CANCEL of a NEXT. */
void cwd_mover_cancel(struct cwd_broker *broker, struct cwd_session *session, uint64_t request);
bool cwd_mover_is(const struct cwd_broker *broker, const struct cwd_session *session);
/* Events: the process's end, and its session's. */
void cwd_mover_on_exit(struct cwd_broker *broker);
void cwd_mover_session_ended(struct cwd_broker *broker, struct cwd_session *session);
/* Clients but for the mover and the bridge. */
uint32_t cwd_mover_others(const struct cwd_broker *broker);
void cwd_mover_deinit(struct cwd_broker *broker);

#endif
