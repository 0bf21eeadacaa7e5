/*
 * Verdict: whether the bridge that the command line asks for (--listen, --peer, --node, --streams)
 * has started to work. The process that starts a detached broker waits for the verdict, so that an
 * error such as a port in use is shown where the command was typed. If the bridge fails at its
 * first start, the broker ends with exit code 1: the user has to know, and nothing is lost yet.
 * Later starts of the bridge are up to remote.c, and failures are only logged; so are failures of a
 * bridge that the configuration asks for, since every client of the user starts that broker.
 *
 * The bridge writes one text into a pipe: "": it listens; "key: ...": it will listen when it has
 * its key; any other text: why it cannot. If the pipe ends without a text, the bridge has ended or
 * was killed.
 */
#ifndef CW_BROKER_ROLES_VERDICT_H
#define CW_BROKER_ROLES_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/base/error.h"

struct cwd_broker;

#define CWD_TELL_FD 3 /* of the bridge: the pipe's other end */

struct cwd_verdict {
    bool awaited;
    int starter_fd; /* where the starter waits; -1: none */
    int told_fd;    /* what the bridge says comes from here; -1: not started yet */
    int64_t until_ns;
    char text[CW_DETAIL_MAX]; /* why it failed */
};

/* Nothing is awaited. */
void cwd_verdict_init(struct cwd_broker *broker);
/* starter_fd is taken over. */
void cwd_verdict_await(struct cwd_broker *broker, int starter_fd);
/* For the bridge about to be started: the pipe's end for it, to be closed here; -1: nothing is
 * awaited, or there is no descriptor (then the verdict fails). */
int cwd_verdict_pipe(struct cwd_broker *broker);
/* The bridge could not even be started; the sentence is this thread's last. */
void cwd_verdict_fail(struct cwd_broker *broker);
void cwd_verdict_on_told(struct cwd_broker *broker);
/* Returns when it wants to be called again, or INT64_MAX. */
int64_t cwd_verdict_serve(struct cwd_broker *broker);
/* After the broker has left its place: who hears of the failure may start another at once. */
void cwd_verdict_deinit(struct cwd_broker *broker);

#endif
