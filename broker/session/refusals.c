/*
 * Refusals: see refusals.h.
 */
#include "broker/session/refusals.h"

#include "broker/broker.h"
#include "broker/session/pace.h"
#include "broker/session/session.h"

void cwd_refusal(struct cwd_broker *b, struct cwd_session *session) {
    if (session->pid == b->mover.pid || session->pid == b->remote.pid)
        return;
    int64_t debt_ns = cwd_pace_owe(&b->refusals, session->pid, CWD_REFUSALS_PER_SECOND,
                                   CWD_REFUSALS_AT_ONCE, b->now_ns);
    if (debt_ns > CWD_REFUSALS_PAUSE_NS)
        debt_ns = CWD_REFUSALS_PAUSE_NS;
    if (debt_ns <= 0)
        return;
    session->paused_until_ns = b->now_ns + debt_ns;
    if (session->paused_until_ns < b->resume_ns)
        b->resume_ns = session->paused_until_ns;
}

bool cwd_refusals_pause(struct cwd_broker *b, struct cwd_session *session) {
    if (!session->paused_until_ns)
        return false;
    if (b->stopping || session->paused_until_ns <= b->now_ns) {
        session->paused_until_ns = 0;
        return false;
    }
    if (session->paused_until_ns < b->resume_ns)
        b->resume_ns = session->paused_until_ns;
    return true;
}
