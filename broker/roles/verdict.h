/*
 * Verdict: whether the bridge that the command line asks for (--listen, --peer, --node, --streams)
 * has come up. The starter of a detached broker waits for it, so that a port that is taken is told
 * where the command was typed; and a broker whose bridge fails at its first start ends, with exit
 * code 1: who asked for it has to know, and nothing is lost yet. Later starts of the bridge are
 * remote.c's own, and are only logged; so is one that the configuration asks for, since every
 * client of the user's starts that broker.
 *
 * The bridge says one text down a pipe: "" it listens; "key: ..." it will when it has its key;
 * else why it cannot. A pipe that ends without one: the bridge has ended, or was killed.
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
