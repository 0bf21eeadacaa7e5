/*
 * Monitor: the broker seen from outside, without asking it. Finds the lock file in the socket
 * folder, opens the root segment through /proc/PID/fd and maps it read-only. Works when the broker
 * is stopped or hangs.
 *
 * What the page says is the broker's own word; a monitor copies words and bounds what it counts.
 * The mapping stays readable when the broker dies.
 */
#ifndef CW_TOOLS_MONITOR_H
#define CW_TOOLS_MONITOR_H

#include "ipc/request/address.h"
#include "shm/base/error.h"
#include "shm/session/monitor.h"
#include "shm/base/segment.h"

struct monitor {
    struct cw_address address;
    struct cw_lock_line lock;
    int pidfd; /* of the broker; negative: none could be had, no_pidfd says why */
    char no_pidfd[CW_DETAIL_MAX];
    struct cw_segment segment;
    struct cw_root *root; /* read-only mapping */
};

enum monitor_state {
    MONITOR_IDLE,    /* sleeps until somebody asks */
    MONITOR_RUNNING, /* in a turn of its loop */
    MONITOR_HANGS,   /* in one turn of its loop for longer than MONITOR_HANG_SECONDS */
    MONITOR_STOPPED, /* by a signal (SIGSTOP, a debugger) */
    MONITOR_GONE,    /* died since it was opened */
};
#define MONITOR_HANG_SECONDS 1.0

/*
 * Opens the user's own broker. Returns 0; -ENOENT: none runs, cw_error() says where one was looked
 * for; -EPERM: the folder is not ours, or /proc/PID/fd is closed to us; -EPROTO: another version.
 * address is filled whenever the result is not -EINVAL. The caller closes what was opened.
 */
int monitor_open(struct monitor *out);
void monitor_close(struct monitor *monitor);

/* How it is; *still_seconds: since when its heartbeat stands, < 0 where nobody can say. */
enum monitor_state monitor_look(const struct monitor *monitor, double *still_seconds);
/* The state letter of its process, as /proc has it (T: stopped); 0: it has ended. */
char monitor_process_state(const struct monitor *monitor);
const char *monitor_state_text(enum monitor_state state);

/* The namespaces that hold names, sorted, each once; *out: count terminated strings, the caller
 * frees each and the array. Reads the directory through /proc. 0 or negative. */
int monitor_namespaces(struct monitor *monitor, char ***out, size_t *count);

/*
 * The names of all namespaces, or of one (NULL: all), that begin with prefix, sorted by namespace
 * and name: each(context, namespace, name, record). Replicas of other nodes' names are left out,
 * and what goes meanwhile. Reads the directory through /proc. A result of each() other than 0 ends
 * it.
 */
typedef int monitor_on_name(void *context, const char *name_space, const char *name,
                            const struct cw_found *found);
int monitor_names(struct monitor *monitor, const char *name_space, const char *prefix,
                  monitor_on_name *each, void *context);

/* Opens one descriptor of another process by its number, read-only, if its link in /proc begins so
 * ("/memfd:cw-..."). Returns the descriptor; -ENOENT: it is none of these, or gone; or -EPERM. */
int monitor_open_memfd(pid_t pid, const char *number, const char *prefix);

static inline uint64_t monitor_word(cw_a64 *word) {
    return CW_LOAD(MON, word,
                   relaxed); /* figures of one moment each; nothing depends on their order */
}

#endif
