/*
 * Effects done once: puts and removes that peers ask for here. Each is done once, however often it
 * is asked for.
 *
 * A peer's broker numbers its clients' puts and removes. The number stays the same when the peer's
 * bridge asks again, over another connection or after a death, and when the peer's next bridge
 * asks. The number and the effect are noted in one step, in this broker and not in its bridge. So a
 * repetition is recognised through whichever bridge of ours it comes. Only what was done is noted:
 * a request that was refused changed nothing, and may be done if it is asked for again.
 *
 * A number is forgotten when its peer says that it repeats none below a higher one ("settled").
 * Such a number is refused from then on, so that a late first frame, read after its repetition,
 * does nothing. Above DONE_MAX numbers the earliest is forgotten; the answer to a repetition that
 * may be one of these is that nobody knows. When the broker ends, its names and these notes end
 * together; the asker sees another instance and does not repeat (broker/bridge/local/once.h).
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
             uint32_t body_bytes, struct cw_deed_done *out);
void cwd_deeds_deinit(struct cwd_broker *broker);

#endif
