/*
 * The loop: one thread, one epoll, no call that waits for a client.
 *
 * A turn: events; requests of every channel, a bounded number each; suspects; limits of time;
 * figures. When a turn found nothing the loop spins a little if a client is awake on another core,
 * then announces its sleep, looks at every channel once more, and sleeps in epoll.
 */
#ifndef CW_BROKER_CORE_LOOP_H
#define CW_BROKER_CORE_LOOP_H

#include <stdint.h>

struct cwd_broker;

enum cwd_event {
    CWD_EVENT_LISTEN,
    CWD_EVENT_SIGNAL,
    CWD_EVENT_SOCKET,
    CWD_EVENT_PIDFD,
    CWD_EVENT_DOORBELL,
    CWD_EVENT_FORK_PIPE,
    CWD_EVENT_CLOSED,
    CWD_EVENT_MOVER,
    CWD_EVENT_BRIDGE,
    CWD_EVENT_TOLD /* by the bridge, at its first start */
};

/* What epoll tells with an event: its kind, and the id of the session or of inherited references.
 * An id that is gone is found by nobody, so an event that comes late does no harm. */
static inline uint64_t cwd_loop_data(enum cwd_event event, uint32_t id) {
    return (uint64_t)event << 32 | id;
}
/* Watches fd. 0 or -EDQUOT. */
int cwd_loop_add(struct cwd_broker *broker, int fd, enum cwd_event event, uint32_t id,
                 uint32_t events);

/* Watches for other events: 0: for its end alone. */
void cwd_loop_change(struct cwd_broker *broker, int fd, enum cwd_event event, uint32_t id,
                     uint32_t events);

/* Ends the watch, before fd is closed: epoll watches what is behind the descriptor, and would go on
 * as long as the client has it too. fd may be one that was never watched. */
void cwd_loop_remove(struct cwd_broker *broker, int fd);

int cwd_loop_init(struct cwd_broker *broker);
/* Runs until the broker is to stop. */
void cwd_loop_run(struct cwd_broker *broker);
void cwd_loop_deinit(struct cwd_broker *broker);

#endif
