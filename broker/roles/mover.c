/*
 * Mover: see mover.h. The loop's thread owns all; nothing here waits for the program.
 */
#include "broker/roles/mover.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/roles/copy_jobs.h"
#include "broker/core/log.h"
#include "broker/core/loop.h"
#include "broker/core/monitor.h"
#include "broker/session/session.h"
#include "broker/core/spawn.h"

#define PROGRAM    "cableway-mover"
#define EXITS_MOST 3u  /* of movers that ended before they asked for work, in a row */
#define KILLS_MOST 16u /* the same of those that were killed: it need not be their fault */

extern char **environ;

void cwd_mover_init(struct cwd_broker *b) {
    b->mover = (struct cwd_mover){.pidfd = -1};
}

bool cwd_mover_is(const struct cwd_broker *b, const struct cwd_session *session) {
    return session == b->mover.session;
}

uint32_t cwd_mover_others(const struct cwd_broker *b) {
    return b->clients - (b->mover.session ? 1 : 0) - b->remote.sessions;
}

/* ---- starting ---- */

static int find_program(char path[PATH_MAX]) {
    int code = cwd_spawn_find(PROGRAM, "CABLEWAY_MOVER", path);
    if (code == 0 || code == -EDQUOT)
        return code;
    return cw_fail(-ENODEV,
                   "this copy needs the program " PROGRAM ", and %.300s cannot be run: %m; name it "
                   "in CABLEWAY_MOVER where the broker is started",
                   path);
}

/* Our environment, without the mask: it may be a client's own, and the mover sees all GPUs. NULL:
 * no memory. */
static char **environment(void) {
    static const char mask[] = "CUDA_VISIBLE_DEVICES=";
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **copy = malloc((count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++)
        if (copy && strncmp(environ[i], mask, sizeof mask - 1) != 0)
            copy[kept++] = environ[i];
    if (copy)
        copy[kept] = NULL;
    return copy;
}

/* 0: it runs, and mover->pid and pidfd tell of it. */
static int spawn(struct cwd_broker *b, const char *path) {
    char parent[16];
    char *argv[] = {(char[]){PROGRAM},
                    (char[]){"--socket"},
                    b->address.socket_path,
                    (char[]){"--parent"},
                    parent,
                    NULL};
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    char **env = environment();
    if (!env)
        return cwd_no_memory("the environment of " PROGRAM);
    int code = cwd_spawn(path, argv, env, -1, &b->mover.pid, &b->mover.pidfd);
    free(env);
    return code == -ENOENT ? -ENODEV : code; /* of a copy no -ENOENT is told: that is a name's */
}

static int start(struct cwd_broker *b) {
    struct cwd_mover *mover = &b->mover;
    char path[PATH_MAX];
    if (mover->exits >= EXITS_MOST || mover->kills >= KILLS_MOST)
        return cw_fail(-ENODEV,
                       "cableway-mover ended %u times before it took a job: the broker's log says "
                       "why",
                       mover->exits + mover->kills);
    int code = find_program(path);
    if (code == 0)
        code = spawn(b, path);
    if (code == -EDQUOT)
        *mover = (struct cwd_mover){.pidfd = -1};
    if (code)
        return code;
    mover->asked = false;
    if (cwd_loop_add(b, mover->pidfd, CWD_EVENT_MOVER, 0, EPOLLIN) != 0) {
        kill(mover->pid, SIGKILL);
        waitpid(mover->pid, NULL, 0);
        close(mover->pidfd);
        *mover = (struct cwd_mover){.pidfd = -1};
        return cw_fail(-EDQUOT, "no descriptor is left to watch " PROGRAM " with: %m");
    }
    b->fds++;
    CWD_COUNT(b, mover_starts);
    cwd_log("started %s, pid %d", path, (int)mover->pid);
    return 0;
}

/* ---- work ---- */

/* Gives what waits to the threads that ask. */
static void hand_out(struct cwd_broker *b) {
    struct cwd_mover *mover = &b->mover;
    struct cw_job job;
    /* One that was dropped, or has hung up, reads no reply: its end is near (session_ended). */
    while (mover->session && mover->session->state == CWD_OPEN && !mover->session->socket_ended &&
           mover->ask_count) {
        if (!cwd_session_has_room(mover->session)) {
            cwd_session_drop(b, mover->session, "the mover does not read its replies");
            return;
        }
        if (!cwd_job_take(b, &job))
            return;
        cwd_session_reply(b, mover->session, CW_OP_MOVER_NEXT, mover->asks[--mover->ask_count], 0,
                          &job, sizeof job);
    }
}

void cwd_mover_serve(struct cwd_broker *b) {
    if (!b->jobs || b->stopping)
        return;
    if (!b->mover.pid && !b->mover.session) {
        int code = start(b);
        if (code) {
            cwd_log_error(0, "%s", cw_detail());
            cwd_jobs_fail(b, code);
            b->mover.exits = b->mover.kills = 0; /* the next job tries again */
        }
    }
    hand_out(b);
}

int cwd_mover_next(struct cwd_broker *b, struct cwd_session *session, uint64_t request) {
    struct cwd_mover *mover = &b->mover;
    if (!mover->pid || mover->pid != session->pid || (mover->session && mover->session != session))
        return cw_fail(-EPERM, "jobs are for the mover that this broker started (pid %d)",
                       (int)mover->pid);
    if (mover->ask_count == CWD_MOVER_ASKS)
        return cw_fail(-EDQUOT, "a mover asks for %u jobs at once at most", CWD_MOVER_ASKS);
    mover->session = session;
    mover->asked = true;
    mover->exits = mover->kills = 0;
    mover->asks[mover->ask_count++] = request;
    hand_out(b);
    return 0;
}

void cwd_mover_cancel(struct cwd_broker *b, struct cwd_session *session, uint64_t request) {
    static const char cancelled[] = "no job came";
    struct cwd_mover *mover = &b->mover;
    for (uint32_t i = 0; session == mover->session && i < mover->ask_count; i++) {
        if (mover->asks[i] != request)
            continue;
        mover->asks[i] = mover->asks[--mover->ask_count];
        cwd_session_reply(b, session, CW_OP_MOVER_NEXT, request, -ECANCELED, cancelled,
                          sizeof cancelled - 1);
        return;
    }
}

/* ---- the end ---- */

/* Gone for good: what it had is done again. */
static void settle(struct cwd_broker *b) {
    if (b->mover.pid || b->mover.session)
        return;
    cwd_jobs_repeat(b);
    cwd_mover_serve(b);
}

void cwd_mover_on_exit(struct cwd_broker *b) {
    struct cwd_mover *mover = &b->mover;
    int status = 0;
    pid_t found = mover->pid ? waitpid(mover->pid, &status, WNOHANG) : 0;
    if (found == 0)
        return;
    if (found < 0)
        cwd_log_error(0, "cableway-mover (pid %d) ended; how is not known: %m", (int)mover->pid);
    else if (WIFSIGNALED(status))
        cwd_log_error(0, "cableway-mover (pid %d) was killed by signal %d", (int)mover->pid,
                      WTERMSIG(status));
    else
        cwd_log("cableway-mover (pid %d) ended with exit code %d", (int)mover->pid,
                WEXITSTATUS(status));
    if (!mover->asked)
        WIFSIGNALED(status) ? mover->kills++ : mover->exits++;
    cwd_loop_remove(b, mover->pidfd);
    close(mover->pidfd);
    b->fds--;
    mover->pidfd = -1;
    mover->pid = 0;
    settle(b);
}

void cwd_mover_session_ended(struct cwd_broker *b, struct cwd_session *session) {
    if (b->mover.session != session)
        return;
    b->mover.session = NULL;
    b->mover.ask_count = 0;
    if (!b->stopping)
        settle(b);
}

void cwd_mover_deinit(struct cwd_broker *b) {
    if (b->mover.pidfd < 0)
        return;
    kill(b->mover.pid, SIGTERM); /* unless it is stuck in the driver: then the kernel, with us */
    close(b->mover.pidfd);
    b->mover.pidfd = -1;
}
