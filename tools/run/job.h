/*
 * A job of `cableway run`: the processes, and who ends them when one dies.
 *
 *   front   the process that was started: has the keeper, hands signals on to it, and exits as it
 *           does
 *   keeper  its child, the parent of the ranks
 *   ranks   the processes of the program
 *
 * Invariant: a process of the job (a rank, or what a rank has started) lives only as long as front
 * and keeper do. A process that made a session of its own (setsid(), as a broker does) has left the
 * job.
 *
 *   a rank dies       the keeper reaps it: if it failed, the others get SIGTERM, and SIGKILL after
 *                     the grace; when all have ended, what they left behind is ended likewise
 *   the front dies    the keeper reads the end of `front_alive`, kills all, and exits
 *   the keeper dies   ranks get SIGKILL (PR_SET_PDEATHSIG); what they had started becomes children
 *                     of the front, a subreaper, which kills all
 *   both at once      ranks get SIGKILL; what they had started is nobody's any more
 */
#ifndef CW_TOOLS_RUN_JOB_H
#define CW_TOOLS_RUN_JOB_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/cableway.h"

struct job {
    uint32_t size; /* 1 to CW_GROUP_RANKS_MAX */
    bool tag, keep_going;
    int64_t grace_ns;               /* between SIGTERM and SIGKILL */
    char **arguments;               /* of the program, ends with NULL */
    char group[64];                 /* its name: no other job has it */
    sigset_t mask;                  /* the signals that were blocked before us */
    pid_t front;                    /* its pid */
    int front_alive;                /* keeper: reads the end when the front has died */
    pid_t pids[CW_GROUP_RANKS_MAX]; /* keeper: of the ranks; 0: not started, or reaped */
};

/* The signals that are handed on to the ranks, and SIGCHLD; without those that we were told to
 * ignore. */
void job_signals(sigset_t *out);

/* Runs the job in the calling process, the keeper. Returns the exit status. Blocks. */
int job_keep(struct job *job);

/* ---- ranks.c ---- */

/* Starts all ranks. tags: NULL, or where their output goes. 0, or an exit status after the error
 * was printed; some run then. */
struct tags;
int job_start(struct job *job, struct tags *tags);

/* ---- descendants.c ---- */

/* Sends a signal (0: none) to all processes that descend from the calling one and are of its
 * session. Returns how many there are that have not ended. */
unsigned job_signal_descendants(int signal);
/* Kills them all, and waits for their end; says so where one does not end. */
void job_kill_descendants(void);

#endif
