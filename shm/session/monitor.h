/*
 * Monitor page: the root segment. The broker writes it, and every process of the user may read it
 * without asking. `cableway status` needs nothing else, so it also works when the broker hangs.
 *
 * How a monitor finds it: the lock file in the socket folder holds one line "PID FD INSTANCE\n",
 * and /proc/PID/fd/FD is the segment. It ends with the broker; nothing is left in a file system.
 */
#ifndef CW_SHM_SESSION_MONITOR_H
#define CW_SHM_SESSION_MONITOR_H

#include <stdbool.h>
#include <stddef.h>

#include "shm/names/directory.h"
#include "shm/base/error.h"
#include "shm/base/wait.h"

/* Limits: X(name, default, what it bounds). The name is the configuration key; the environment
 * variable is CABLEWAY_ and the name in capitals. Bytes 0 means: half of the machine's memory. */
#define CW_LIMITS(X)                                                                               \
    X(max_clients, 256, "clients connected at once")                                               \
    X(max_names, 1000000, "names in the directory")                                                \
    X(max_slabs, 4096, "slabs that the broker holds")                                              \
    X(max_fds, 16384, "descriptors held by the broker")                                            \
    X(max_bytes, 0, "bytes of slabs that the broker holds")                                        \
    X(max_user_bytes, 0, "bytes of slabs that the broker holds for one user")                      \
    X(max_gpu_bytes, 0, "bytes of GPU memory that the broker holds, as declared; 0: no limit")     \
    X(max_client_slabs, 1024, "slabs that one client made")                                        \
    X(max_client_leases, 262144, "leases that one client holds")                                   \
    X(max_client_transits, 65536, "transit leases that one client began")                          \
    X(max_client_fence_pages, 1024, "pages of 64 fences that one client has")                      \
    X(max_client_waits, 1024, "names that one client waits for")                                   \
    X(max_client_jobs, 64, "copies by cableway-mover that one client has under way")               \
    X(max_client_unread, 64, "messages with descriptors that one client has not read")             \
    X(transit_seconds, 300, "seconds until a transit lease ends by itself")                        \
    X(pickle_seconds, 10, "seconds that an array stays after a pickle of it was first opened")     \
    X(max_pickle_bytes, 1073741824, "bytes of such arrays, after which the oldest end earlier")    \
    X(names_linger_seconds, 60, "seconds that names outlive the user's last client")               \
    X(max_log_lines, 20, "lines a second in the broker's log; at once 25 times as many")           \
    X(max_pid_log_lines, 5, "of these, about one process")                                         \
    X(max_client_bytes, 0, "bytes of slabs that one client made")                                  \
    X(max_pid_bytes, 0, "bytes of slabs that all clients of one process made")                     \
    X(max_pid_clients, 0, "clients connected at once of one process")

/* Counters: X(name, what it counts). They only rise, within one run of the broker. */
#define CW_COUNTERS(X)                                                                             \
    X(clients_accepted, "clients that connected")                                                  \
    X(clients_refused, "connections refused: other user, other version, a limit")                  \
    X(clients_died, "clients that ended without saying so")                                        \
    X(clients_dropped, "clients dropped for a breach of protocol")                                 \
    X(requests, "requests answered")                                                               \
    X(puts, "names put")                                                                           \
    X(removes, "names removed")                                                                    \
    X(waits, "waits for a name")                                                                   \
    X(transits_begun, "transit leases begun")                                                      \
    X(transits_ended, "transit leases ended by opening or carrier")                                \
    X(transits_expired, "transit leases ended by their limit")                                     \
    X(blocks_reclaimed, "blocks taken back")                                                       \
    X(scans, "scans of the lease tables")                                                          \
    X(slabs_added, "slabs that the broker took over from clients")                                 \
    X(slabs_adopted, "slabs of dead makers handed to another client")                              \
    X(slabs_closed, "slabs given up")                                                              \
    X(slabs_withdrawn, "of these, taken back from makers that kept them free")                     \
    X(fds_closed, "descriptors closed by the helper")                                              \
    X(limits_hit, "requests refused for a limit")                                                  \
    X(wakeups, "times the loop slept and woke")                                                    \
    X(bytes_same_gpu, "bytes copied within a GPU")                                                 \
    X(bytes_peer, "bytes copied from GPU to GPU")                                                  \
    X(bytes_to_gpu, "bytes copied from host memory to a GPU")                                      \
    X(bytes_from_gpu, "bytes copied from a GPU to host memory")                                    \
    X(bytes_staged, "bytes copied from GPU to GPU through host memory")                            \
    X(jobs_done, "copies that cableway-mover did")                                                 \
    X(jobs_repeated, "copies begun anew since the mover died in them")                             \
    X(mover_starts, "times that a mover was started")                                              \
    X(errors, "errors that the broker met, or told clients of")                                    \
    X(errors_forgotten, "of these, of kinds that `cableway log` has no place for")                 \
    X(log_lines_left_out, "lines that the log was spared: too many, or nobody read them")

/* Gauges: X(name, what it tells). Values of this moment. */
#define CW_GAUGES(X)                                                                               \
    X(clients, "clients connected")                                                                \
    X(names, "names in the directory")                                                             \
    X(slabs, "slabs that the broker holds")                                                        \
    X(orphan_slabs, "slabs whose maker is dead and that nobody adopted yet")                       \
    X(fds, "descriptors held")                                                                     \
    X(bytes, "bytes of host slabs, and of the block tables of all slabs, as max_bytes counts")     \
    X(gpu_bytes, "bytes of GPU slabs, as declared")                                                \
    X(gpu_orphan_bytes, "of these, of slabs without an owner: no process shows them")              \
    X(transits, "transit leases under way")                                                        \
    X(waiting, "waits under way")                                                                  \
    X(jobs, "copies that wait for cableway-mover, or that it does")

enum cw_limit {
#define X(name, def, what) CW_LIMIT_##name,
    CW_LIMITS(X)
#undef X
        CW_LIMIT_COUNT
};
enum cw_counter {
#define X(name, what) CW_COUNTER_##name,
    CW_COUNTERS(X)
#undef X
        CW_COUNTER_COUNT
};
enum cw_gauge {
#define X(name, what) CW_GAUGE_##name,
    CW_GAUGES(X)
#undef X
        CW_GAUGE_COUNT
};

#define CW_MONITOR_CLIENTS 1024u /* rows; max_clients may not exceed it */

struct cw_monitor_client { /* 128 bytes; session 0: the row is empty */
    cw_a32 session;
    cw_a32 pid;
    cw_a64 connected_ns; /* CLOCK_REALTIME */
    cw_a64 slabs, bytes, transits, waits, requests;
    cw_a64 comm[4]; /* up to 32 bytes of name, as words */
    cw_a64 gpu_bytes;
    cw_a64 heard_ns; /* CLOCK_MONOTONIC of the loop's turn in which it last asked for anything */
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct cw_monitor_client) == 128, "layout");

/*
 * Errors, each kind once: texts that differ in numbers alone are one kind. For who looks at a
 * broker, whatever became of its log. The broker alone writes; a kind that is new takes the place
 * of the one that was met last the longest time ago.
 */
#define CW_ERRORS_KEPT      64u
#define CW_ERROR_TEXT_BYTES CW_DETAIL_MAX /* an answer's sentence is whole */
struct cw_monitor_error { /* 544 bytes; count 0: the row is empty, or being written */
    cw_a64 count;
    cw_a64 first_ns, last_ns; /* CLOCK_REALTIME */
    cw_a32 pid;               /* whose request it was, the last time; 0: none */
    uint32_t reserved;
    cw_a64 text[CW_ERROR_TEXT_BYTES / 8]; /* the last one, terminated */
};
_Static_assert(sizeof(struct cw_monitor_error) == 544, "layout");

struct cw_root { /* the root segment */
    struct cw_segment_header header;
    uint32_t protocol; /* CW_PROTOCOL_VERSION */
    uint32_t pid;
    uint64_t started_ns; /* CLOCK_REALTIME */
    cw_a64 heartbeat_ns; /* CLOCK_MONOTONIC of the loop's last turn. While broker.asleep is 1 it may
                            stand: idle is no hang */
    struct cw_sleeper broker; /* asleep: clients that publish a request then ring their doorbell */
    cw_a64 bridge;            /* the session of its bridge; 0: there is none (unnamed.h) */
    uint64_t since_ns;        /* CLOCK_BOOTTIME at its start */
    uint64_t task, world; /* its loop's, see task.h: whether it is dead, for whoever asks later */
    _Alignas(64) cw_a32 alive; /* its loop's, see alive.h: what this directory says of names of
                                  other nodes counts only while the broker lives */
    _Alignas(64) struct cw_directory_root directory;
    _Alignas(64) cw_a64 limits[CW_LIMIT_COUNT];
    _Alignas(64) cw_a64 counters[CW_COUNTER_COUNT];
    _Alignas(64) cw_a64 gauges[CW_GAUGE_COUNT];
    _Alignas(64) struct cw_monitor_client clients[CW_MONITOR_CLIENTS];
    _Alignas(64) struct cw_monitor_error errors[CW_ERRORS_KEPT];
};

const char *cw_limit_name(enum cw_limit which);
const char *cw_limit_what(enum cw_limit which);
uint64_t cw_limit_default(enum cw_limit which);
/* Which one it is as large as while nobody has set it (or set it to 0); CW_LIMIT_COUNT: none. */
unsigned cw_limit_leader(enum cw_limit which);
uint64_t cw_limit_most(enum cw_limit which); /* that it may be set to */
/* Is it a number of bytes? Else it counts, or is in seconds. */
bool cw_limit_in_bytes(enum cw_limit which);
/* The limit whose name is these bytes (they need not end with 0); CW_LIMIT_COUNT: there is none. */
unsigned cw_limit_find(const char *name, size_t name_bytes);
/* May it be set to value? Else -EINVAL, with a sentence that begins with where value stands (a
 * variable, file:line, a command) and says what was read and what is allowed. */
int cw_limit_check(enum cw_limit which, uint64_t value, const char *where);
/* The value that a text gives, in all places where a limit is written: 0 and *out, or as above. */
int cw_limit_parse(enum cw_limit which, const char *text, const char *where, uint64_t *out);
const char *cw_counter_name(enum cw_counter which);
const char *cw_counter_what(enum cw_counter which);
const char *cw_gauge_name(enum cw_gauge which);
const char *cw_gauge_what(enum cw_gauge which);

#endif
