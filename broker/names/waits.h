/*
 * Waits: clients that wait for a name. A wait is answered when the name is put, cancelled, or
 * forgotten with its session. Answers that find no room in the reply ring stay with the session
 * until there is.
 */
#ifndef CW_BROKER_NAMES_WAITS_H
#define CW_BROKER_NAMES_WAITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cwd_broker;
struct cwd_session;

struct cw_message;

/* A client that serves signals waits in calls of CW_TRACE_PART_NS, which it cancels: a part that
 * was. One that asks for the same within CWD_WAIT_PART_NS goes on, which is no wait and no request
 * of the user's more. Of threads that wait so at a time, the parts of the last are known. */
#define CWD_WAIT_PARTS   8u
#define CWD_WAIT_PART_NS 1000000000
struct cwd_wait_part {
    uint32_t hash; /* of the name */
    uint64_t after;
    int64_t until_ns;
};

/* Answers the request at once if the name means a version after that one (0: any). 0: begun or
 * answered; -EINVAL, -EDQUOT: to be replied. */
int cwd_wait_begin(struct cwd_broker *broker, struct cwd_session *session,
                   const struct cw_message *request, uint64_t after, const char *key,
                   size_t key_bytes);
/* Replies -ECANCELED unless it is answered already. */
void cwd_wait_cancel(struct cwd_broker *broker, struct cwd_session *session, uint64_t id);
/* The name means that version now. */
void cwd_waits_answer(struct cwd_broker *broker, const char *key, size_t key_bytes,
                      uint64_t version);
/* The name's claim is over (claims.h): who waits for it looks again. */
void cwd_waits_look_again(struct cwd_broker *broker, const char *key, size_t key_bytes);
/* Writes answers that had no room; returns whether any was written. */
bool cwd_waits_flush(struct cwd_broker *broker, struct cwd_session *session);
/* The session reads no replies any more. */
void cwd_waits_cancel_all(struct cwd_broker *broker, struct cwd_session *session);

#endif
