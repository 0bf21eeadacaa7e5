/*
 * Monitor page: the broker's side. The layout is shm/session/monitor.h; everybody of the user may
 * read it.
 */
#ifndef CW_BROKER_CORE_MONITOR_H
#define CW_BROKER_CORE_MONITOR_H

#include "broker/broker.h"

/* M1: figures only; no reader concludes anything from their order. */
#define CWD_COUNT(broker, name)                                                                    \
    ((void)CW_ADD(M1, &(broker)->root->counters[CW_COUNTER_##name], 1, relaxed))

uint64_t cwd_boottime_ns(void);
/* Writes pid, start and limits. */
void cwd_monitor_init(struct cwd_broker *broker);
/* Writes the limits, which have changed. */
void cwd_monitor_limits(struct cwd_broker *broker);
/* Writes the gauges, and the rows of sessions that changed. At the end of a turn. */
void cwd_monitor_update(struct cwd_broker *broker);
/* A session is about to get an answer: counts it, and writes the gauges and its row. Before the
 * answer can be seen: who has it finds in the figures what was done, also if we are held up in the
 * middle of the turn. */
void cwd_monitor_answer(struct cwd_broker *broker, struct cwd_session *session);
/* The loop's sign of life: now; 0 at the end. */
void cwd_monitor_heartbeat(struct cwd_broker *broker, int64_t now_ns);

/* A row for a session that said HELLO; comm is at most 32 bytes, not terminated when full. */
void cwd_monitor_row_open(struct cwd_broker *broker, struct cwd_session *session,
                          const char comm[32]);
void cwd_monitor_row_close(struct cwd_broker *broker, struct cwd_session *session);

#endif
