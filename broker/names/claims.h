/*
 * Claims: who loads what a name is to mean, of all who would. Of several processes that find no
 * tree under a name one has the claim, and the others wait until it is over or the name is put.
 *
 * Invariant: a name has at most one claim at a time, which belongs to one session. It ends with
 * RELEASE, with the process (its pidfd alone tells: a child that lives on does not load), with the
 * socket, or with the session, whichever comes first; then all who wait for it look again, and the
 * first that asks has the next one. It saves work and decides nothing: which tree a name means is
 * decided by the version that PUT_TREE says, so that of two who had the claim one after the other,
 * the first one's PUT_TREE being read late, one alone puts.
 *
 * Owner: the loop's thread. Who waits stands among the waits (waits.h), and ends with its session.
 */
#ifndef CW_BROKER_NAMES_CLAIMS_H
#define CW_BROKER_NAMES_CLAIMS_H

#include <stdbool.h>
#include <stdint.h>

struct cwd_broker;
struct cwd_session;
struct cw_message;

/* The body of a CLAIM. 0: *granted, or a wait was begun that answers -EAGAIN when the name means a
 * later version or its claim is over; -EBADMSG (form), -EINVAL (key), -EDQUOT, -EPERM (who asks is
 * dead). */
int cwd_claim_begin(struct cwd_broker *broker, struct cwd_session *session,
                    const struct cw_message *request, const void *body, uint32_t body_bytes,
                    bool *granted);
/* The body of a RELEASE: ends the claim that the session was granted for this token, if it has it
 * still. 0, -EBADMSG (form). */
int cwd_claim_release(struct cwd_broker *broker, struct cwd_session *session, const void *body,
                      uint32_t body_bytes);
/* All claims of the session are over. Answers nobody: cwd_claims_settle() does. */
void cwd_claims_end(struct cwd_broker *broker, struct cwd_session *session);
/* Tells those who wait for claims that are over. Outside of any list. */
void cwd_claims_settle(struct cwd_broker *broker);
void cwd_claims_deinit(struct cwd_broker *broker);

#endif
