/*
 * Deeds: what peers put and remove here, each done once however often it is asked for.
 *
 * A peer's broker numbers its clients' puts and removes. A number stays the same when the peer's
 * bridge asks again, over another connection or after a death, and when the next bridge does. The
 * number and the effect are noted in one step here, in the broker and not in its bridge: so a
 * repetition is known whichever bridge of ours it comes through. Only what was done is noted. What
 * was refused changed nothing, and nobody was told of it if it is asked for again.
 *
 * A number is forgotten when its peer says that it repeats none below a higher one ("settled");
 * such a number is refused from then on, so that a late first frame, read after its repetition,
 * does nothing. Above DONE_MAX numbers the earliest goes; a repetition of one that may have gone is
 * answered that nobody knows. With the broker its names and this memory end together; the asker
 * sees the other instance and does not repeat (broker/bridge/local/once.h).
 */
#ifndef CW_BROKER_ROLES_ONCE_H
#define CW_BROKER_ROLES_ONCE_H

#include "ipc/wire.h"

struct cwd_broker;
struct cwd_session;

/* DEED: its body, of at least a struct cw_deed. 0: it is done, now or before. -ENOENT: ASK: it is
 * not. -EREMOTEIO: nobody knows. -ECANCELED: it was settled. -EPERM, -EDQUOT, and what a put or
 * remove says. -EBADMSG: a breach. */
int cwd_deed(struct cwd_broker *broker, struct cwd_session *session, const uint8_t *body,
             uint32_t body_bytes);
void cwd_deeds_deinit(struct cwd_broker *broker);

#endif
