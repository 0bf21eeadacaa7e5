/*
 * Jobs: copies that a client cannot do itself, and that cableway-mover does (mover.h).
 *
 *   waiting --NEXT of the mover--> moving --DONE--> answered --room in the client's ring--> gone
 *      |                             |
 *      | CANCEL, client dead         | mover dead: waiting again, from the job's beginning
 *      v                             | client dead: stays until DONE or the mover's death,
 *     gone                           v   unanswered
 *
 * Invariant: from its request to its end a job has a reference on its source and on its target. So
 * neither is freed or used for another array while the mover may touch them, whoever dies. A job
 * that is answered is complete, or failed with its reason; the mover has let go of both blocks.
 *
 * A job that makes memory has no such references: the mover holds the block until it has begun a
 * transit for it. The transit goes to the client with the answer, or is ended here if nobody hears
 * the answer. It ends with the one of the two that has it (transit.h).
 *
 * Deaths
 *   client    a waiting job is dropped. A moving one goes on: the mover writes its target until it
 *             says DONE or is dead. The fences of the client's streams become final no earlier
 *             (fences.c), so the next writer of the target does not meet the mover there.
 *   mover     it counts as dead by its pidfd and its socket: the driver has ended its work on the
 *             GPUs before the pidfd tells. Its successor does the jobs again, into the same
 *             targets: the same bytes are written once more. After JOB_TRIES deaths a job fails.
 *   broker    clients get BrokerLost, and the mover ends with the broker. Nobody sees a target as
 *             complete before its job is answered: the client gives nobody the array, or keeps its
 *             turn to write it (ipc/array/copy.c), and gives the turn back with the answer.
 */
#ifndef CW_BROKER_ROLES_COPY_JOBS_H
#define CW_BROKER_ROLES_COPY_JOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

struct cwd_broker;
struct cwd_session;
struct cwd_job;

/* A client's request. 0: answered later. -ESTALE, -EDQUOT. */
int cwd_job_begin(struct cwd_broker *broker, struct cwd_session *client, uint64_t request,
                  const struct cw_copy *copy);
/* The same, of memory on a GPU. */
int cwd_job_make(struct cwd_broker *broker, struct cwd_session *client, uint64_t request,
                 const struct cw_make *make);
/* CANCEL of a client: its request is answered -ECANCELED, unless the mover has the job. */
void cwd_job_cancel(struct cwd_broker *broker, struct cwd_session *client, uint64_t request);
/* The next job for the mover, marked as moving. False: none waits. */
bool cwd_job_take(struct cwd_broker *broker, struct cw_job *out);
/* The mover's word that one has ended. -EBADMSG: it has no such job. */
int cwd_job_done(struct cwd_broker *broker, const struct cw_job_end *end, const void *text);
/* The mover is dead: what it had waits again. */
void cwd_jobs_repeat(struct cwd_broker *broker);
/* There will be no mover: all that wait fail with this thread's last sentence. */
void cwd_jobs_fail(struct cwd_broker *broker, int status);
/* A client's session ends. */
void cwd_jobs_forget(struct cwd_broker *broker, struct cwd_session *client);
/* Sends answers that had no room. Returns whether it sent any. */
bool cwd_jobs_flush(struct cwd_broker *broker, struct cwd_session *client);
/* Does the mover work for that client, which may be dead? */
bool cwd_jobs_moving_for(struct cwd_broker *broker, uint32_t session);
void cwd_jobs_deinit(struct cwd_broker *broker);

#endif
