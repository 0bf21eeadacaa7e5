/*
 * A client: one connection to the broker, from connect to the last reference.
 *
 * Connecting: the folder is checked, the socket connected (a broker started first if none answers),
 * and one message exchanged: our pidfd for the root segment, our session segment and two eventfds.
 * A broker that ends (because it was idle, or told to) resets who connected a moment before, or was
 * not answered yet; nothing was lost then, and the next broker is asked, within the same limit.
 * From then on the socket's end is how we learn that the broker died; that is looked for where we
 * sleep, and every CW_CHECK_INTERVAL_NS otherwise, so that a warm get costs no system call. What is
 * mapped stays readable.
 *
 * The struct belongs to its references (the user's and one for each array); any thread may use it.
 * If this process dies the broker sees the pidfd and the socket's end, and forgets the session.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/array/array.h"
#include "ipc/array/fast_path.h"
#include "ipc/array/suballocation.h"
#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/fork.h"
#include "ipc/memory/lease.h"
#include "ipc/memory/slab.h"
#include "ipc/order/fence.h"
#include "ipc/request/address.h"
#include "ipc/request/channel.h"
#include "ipc/request/deferred.h"
#include "ipc/request/socket.h"
#include "ipc/request/start.h"
#include "shm/base/fd.h"
#include "shm/base/pidfd.h"
#include "shm/base/trace.h"

#define CW_CHECK_INTERVAL_NS 250000000 /* how old the knowledge may be that the broker lives */

#define CONNECT_LIMIT_NS 10000000000
#define CONNECT_PAUSE_NS 2000000
#define START_AGAIN_NS   1000000000 /* the one that ran may have ended before it answered */

const char *cw_error(void) {
    return cw_detail();
}

const char *cw_version(void) {
    return CW_VERSION;
}

int cw_version_number(void) {
    return CW_VERSION_NUMBER;
}

/* Coarse time is enough here, and costs no more than a load. */
static uint64_t coarse_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

bool cw_client_hung_up(const cw_client *client) {
    struct pollfd poller = {.fd = client->sock, .events = POLLRDHUP};
    return poll(&poller, 1, 0) > 0;
}

void cw_client_reason(cw_client *client, const char *text, uint32_t text_bytes) {
    uint32_t none = 0;
    /* K7: who takes the word writes the reason; its 2 publishes it. */
    if (!CW_CAS(K7, &client->reason_state, &none, 1, acquire))
        return;
    if (text_bytes > CW_DETAIL_MAX / 2)
        text_bytes = CW_DETAIL_MAX / 2;
    memcpy(client->reason, text, text_bytes);
    client->reason[text_bytes] = 0;
    CW_STORE(K7, &client->reason_state, 2, release);
}

/* A broker that drops us says why, before the socket ends. Does not block. */
static void read_reason(cw_client *client) {
    _Alignas(8) char buffer[CW_MESSAGE_MAX];
    const struct cw_message *head = (const void *)buffer;
    ssize_t count = recv(client->sock, buffer, sizeof buffer, MSG_DONTWAIT);
    if (count > (ssize_t)sizeof *head && head->op == CW_OP_REPLY && head->id == 0)
        cw_client_reason(client, (const char *)(head + 1), (uint32_t)count - sizeof *head);
}

int cw_client_lost(cw_client *client) {
    /* K3: a flag that only rises; whoever misses it finds the socket's end. */
    if (!CW_XCHG(K3, &client->lost, 1, relaxed))
        read_reason(client);
    if (CW_LOAD(K7, &client->reason_state, acquire) == 2)
        return cw_fail(-ECONNRESET, "the broker (pid %d) dropped this client: %s. Its log is %s",
                       client->broker_pid, client->reason, client->log_path);
    return cw_fail(-ECONNRESET,
                   "the broker (pid %d) at %s is gone; its log is %s. Arrays that are open stay "
                   "readable; connect again for a new broker",
                   client->broker_pid, client->address, client->log_path);
}

int cw_client_usable(cw_client *client) {
    if (!client)
        return cw_fail(-EINVAL, "a client is needed, NULL was given");
    if (cw_client_forked(client))
        return cw_fail(-EINVAL,
                       "this client was inherited over a fork: connect again in the child");
    /* K3: a flag that only rises; whoever misses it finds the socket's end. */
    if (CW_LOAD(K3, &client->lost, relaxed))
        return cw_client_lost(client);
    uint64_t now_ns = coarse_ns();
    /* K5: when somebody looked last; no order is needed. */
    if (now_ns - CW_LOAD(K5, &client->checked_ns, relaxed) < CW_CHECK_INTERVAL_NS)
        return 0;
    if (cw_client_hung_up(client))
        return cw_client_lost(client);
    CW_STORE(K5, &client->checked_ns, now_ns, relaxed);
    return 0;
}

int cw_client_check(cw_client *client) {
    if (client)
        CW_STORE(K5, &client->checked_ns, 0, relaxed);
    return cw_client_usable(client);
}

int cw_client_forked(const cw_client *client) {
    if (!client)
        return cw_needs("a client");
    /* K4: stored in the child before any other thread is. */
    return CW_LOAD(K4, (cw_a32 *)(uintptr_t)&client->forked, relaxed) != 0;
}

const char *cw_client_address(const cw_client *client) {
    return client ? client->address : NULL;
}

const char *cw_client_namespace(const cw_client *client) {
    return client ? client->name_space : NULL;
}

int cw_client_broker_pid(const cw_client *client) {
    return client ? client->broker_pid : cw_needs("a client");
}

uint64_t cw_client_instance(const cw_client *client) {
    return client ? client->instance : 0;
}

/* ---- the end ---- */

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void cw_client_free(cw_client *client) {
    while (client->array_pool) {
        cw_array *array = client->array_pool;
        client->array_pool = array->next;
        free(array);
    }
    cw_slabs_deinit(client);
    cw_suballocations_deinit(client);
    cw_heaps_deinit(client);
    cw_leases_deinit(client);
    cw_deferred_deinit(client);
    if (client->root)
        cw_directory_reader_deinit(&client->directory);
    cw_segment_close(&client->session_segment);
    cw_segment_close(&client->root_segment);
    close_fd(&client->sock);
    close_fd(&client->doorbell);
    close_fd(&client->bell);
    close_fd(&client->fork_pipe_child);
    cw_fast_path_close(client);
    cw_segment_close(&client->unnamed);
    pthread_mutex_destroy(&client->fast_path_lock);
    pthread_mutex_destroy(&client->import_lock);
    pthread_mutex_destroy(&client->lock);
    pthread_mutex_destroy(&client->sock_lock);
    pthread_mutex_destroy(&client->channel_lock);
    pthread_cond_destroy(&client->moved);
    free(client->address);
    free(client->log_path);
    free(client);
}

void cw_client_ref(cw_client *client) {
    if (client)
        CW_ADD(K6, &client->references, 1, relaxed);
}

void cw_client_unref(cw_client *client) {
    /* K6: the last one sees all that the others did. */
    if (!client || CW_ADD(K6, &client->references, -1u, acq_rel) != 1)
        return;
    cw_fork_unregister(client);
    if (!cw_fences_deinit(client))
        return; /* GPU work of ours goes on: the session ends with the process */
    if (cw_client_forked(client) || CW_LOAD(K3, &client->lost, relaxed) ||
        !cw_deferred_leave(client))
        cw_client_free(client);
}

/* ---- the beginning ---- */

/* For the directory: its reader has client->lock, and looks again at what may have moved. */
static int fetch_segment(void *context, uint32_t kind, uint64_t which, struct cw_segment *out) {
    cw_client *client = context;
    struct cw_segment_request request = {.kind = kind, .which = which};
    struct cw_segment_reply reply;
    struct cw_fds fds = {.count = 1};
    int code = cw_socket_call_apart(client, &client->lock, CW_OP_SEGMENT_OPEN, &request,
                                    sizeof request, NULL, &reply, sizeof reply, &fds);
    if (code)
        return code;
    code = cw_segment_open(fds.fd[0], reply.size_bytes, kind, false, 0, out);
    if (code == 0)
        cw_segment_close_fd(out);
    return code;
}

/* Gives the directory's reader what HELLO brought, so that a first get of an array whose memory is
 * mapped asks nobody. Both descriptors are taken over. */
static int begin_directory(cw_client *client, const struct cw_hello_reply *reply, int index_fd,
                           int records_fd) {
    struct cw_segment index, records;
    cw_directory_reader_init(&client->directory, &client->root->directory, fetch_segment, client);
    int code = cw_segment_open(index_fd, reply->index_bytes, CW_SEGMENT_INDEX, false, 0, &index);
    if (code) {
        close(records_fd);
        return code;
    }
    code =
        cw_segment_open(records_fd, reply->records_bytes, CW_SEGMENT_RECORDS, false, 0, &records);
    if (code) {
        cw_segment_close(&index);
        return code;
    }
    cw_segment_close_fd(&index);
    cw_segment_close_fd(&records);
    cw_directory_reader_give(&client->directory, reply->index_id, &index, &records);
    return 0;
}

/* Maps what HELLO brought. fds are closed or taken over. */
static int begin_session(cw_client *client, const struct cw_hello_reply *reply,
                         struct cw_fds *fds) {
    client->session = reply->session;
    client->instance = reply->instance;
    client->doorbell = fds->fd[2];
    client->bell = fds->fd[3];
    int code = cw_segment_open(fds->fd[0], reply->root_bytes, CW_SEGMENT_ROOT, false, 0,
                               &client->root_segment);
    if (code) {
        close(fds->fd[1]);
        goto close_directory;
    }
    code = cw_segment_open(fds->fd[1], reply->session_bytes, CW_SEGMENT_SESSION, true, 0,
                           &client->session_segment);
    if (code)
        goto close_directory;
    if (client->root_segment.size_bytes < sizeof(struct cw_root) ||
        client->session_segment.size_bytes < CW_SESSION_BYTES || reply->instance == 0) {
        code =
            cw_fail(-EPROTO, "the broker's segments are smaller than this version's: end that "
                             "broker (`cableway stop`), or use one release of cableway for both");
        goto close_directory;
    }
    cw_segment_close_fd(&client->root_segment);
    cw_segment_close_fd(&client->session_segment);
    client->root = client->root_segment.base;
    client->shared = client->session_segment.base;
    /* S3: from here on we may hold what the broker has to keep for us. */
    CW_STORE(S3, &client->shared->mapped, 1, relaxed);
    client->broker_pid = (int)client->root->pid;
    cw_channel_init(client);
    code = begin_directory(client, reply, fds->fd[4], fds->fd[5]);
    if (code == 0)
        code = cw_heap_init(&client->heap, &cw_backend_host, 0);
    return code ? code : cw_leases_init(client);

close_directory:
    close(fds->fd[4]);
    close(fds->fd[5]);
    return code;
}

static int say_hello(cw_client *client) {
    struct cw_hello hello = {.magic = CW_HELLO_MAGIC,
                             .version_min = CW_PROTOCOL_VERSION,
                             .version_max = CW_PROTOCOL_VERSION};
    char comm[16] = "";
    prctl(PR_GET_NAME, comm);
    strncpy(hello.comm, comm, sizeof hello.comm - 1);
    int pidfd = cw_pidfd_open(getpid());
    if (pidfd < 0)
        return pidfd;
    struct cw_fds send = {.fd = {pidfd}, .count = 1}, received = {.count = 6};
    struct cw_hello_reply reply;
    client->sock_until_ns = cw_now_ns() + CONNECT_LIMIT_NS; /* a stopped broker accepts, too */
    int code = cw_socket_call(client, CW_OP_HELLO, &hello, sizeof hello, &send, &reply,
                              sizeof reply, &received);
    client->sock_until_ns = 0;
    close(pidfd);
    if (code)
        return code;
    if (reply.version != CW_PROTOCOL_VERSION) {
        cw_fds_close(&received);
        return cw_fail(-EPROTO,
                       "the broker speaks version %u, this library version %u: end that broker "
                       "(`cableway stop`), or use one release of cableway for both",
                       reply.version, CW_PROTOCOL_VERSION);
    }
    return begin_session(client, &reply, &received);
}

static cw_client *client_new(const struct cw_address *address, const char *name_space) {
    cw_client *client = calloc(1, sizeof *client);
    if (!client)
        return NULL;
    client->references = 1;
    client->sock = client->doorbell = client->bell = client->fork_pipe_child = -1;
    client->fork_pipe[0] = client->fork_pipe[1] = -1;
    client->root_segment.fd = client->session_segment.fd = client->unnamed.fd = -1;
    client->address = strdup(address->socket_path);
    client->log_path = strdup(address->log_path);
    strcpy(client->name_space, name_space);
    pthread_mutex_init(&client->lock, NULL);
    pthread_mutex_init(&client->sock_lock, NULL);
    pthread_mutex_init(&client->channel_lock, NULL);
    pthread_mutex_init(&client->fast_path_lock, NULL);
    pthread_mutex_init(&client->import_lock, NULL);
    client->fast_path = -1;
    pthread_cond_init(&client->moved, NULL);
    if (client->address && client->log_path)
        return client;
    cw_client_free(client);
    return NULL;
}

/* One try. -ECONNREFUSED: nobody listens there. */
static int connect_once(const struct cw_address *address, int folder_fd, int *sock) {
    struct sockaddr_un place;
    socklen_t length;
    cw_address_sockaddr(address, folder_fd, &place, &length);
    *sock = cw_fd_above_stdio(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (*sock < 0)
        return cw_fail(-EDQUOT, "no socket could be made: %m; %s", cw_descriptor_remedy(errno));
    if (connect(*sock, (struct sockaddr *)&place, length) == 0)
        return 0;
    int code = -errno;
    close_fd(sock);
    if (code == -ENOENT || code == -ECONNREFUSED || code == -EAGAIN || code == -EINTR)
        return -ECONNREFUSED;
    return cw_fail(code == -EACCES ? -EPERM : code, "connecting to %s failed: %s",
                   address->socket_path, strerror(-code));
}

static void connect_pause(void) {
    struct timespec pause = {.tv_nsec = CONNECT_PAUSE_NS};
    nanosleep(&pause, NULL);
}

static int nobody_answers(const struct cw_address *address, const char *why) {
    return cw_fail(-ECONNRESET, "%s at %s; a broker's log would be %s", why, address->socket_path,
                   address->log_path);
}

/* Connects, and starts a broker first where there is none. */
static int connect_or_start(const struct cw_address *address, int folder_fd, uint32_t flags,
                            int64_t begun_ns, int *sock) {
    int64_t started_ns = 0;
    for (;;) {
        int code = connect_once(address, folder_fd, sock);
        if (code != -ECONNREFUSED)
            return code;
        if (flags & CW_CONNECT_NO_START)
            return nobody_answers(address, "no broker answers");
        int64_t now_ns = cw_now_ns();
        if (now_ns - begun_ns > CONNECT_LIMIT_NS)
            return nobody_answers(address, "a broker was started, but none answers");
        if (!started_ns || now_ns - started_ns > START_AGAIN_NS) {
            code = cw_address_check_versions(address, folder_fd);
            if (code == 0)
                code = cw_start_broker(address->socket_path);
            if (code)
                return code;
            started_ns = cw_now_ns();
            continue;
        }
        connect_pause();
    }
}

/* One connection and its HELLO. A client, or an error; *ended if the socket ended without one. */
static int connect_client(const struct cw_address *address, const char *name_space, int folder_fd,
                          uint32_t flags, int64_t begun_ns, bool *ended, cw_client **out) {
    cw_client *client = client_new(address, name_space);
    if (!client)
        return cw_fail(-EDQUOT, "no memory for a client");
    int code = connect_or_start(address, folder_fd, flags, begun_ns, &client->sock);
    if (code == 0)
        code = say_hello(client);
    if (code == 0)
        *out = client;
    else {
        /* K3: this thread stored it. */
        *ended = code == -ECONNRESET && CW_LOAD(K3, &client->lost, relaxed);
        cw_client_free(client);
    }
    return code;
}

/* The broker that a process without an address asks, for its trace. */
static uint64_t would_ask(void) {
    struct cw_address *address = malloc(sizeof *address);
    uint64_t number = 0;
    if (address && cw_address_find(NULL, address) == 0)
        number = cw_trace_address(address->socket_path);
    free(address);
    return number;
}

__attribute__((constructor)) static void tell_traces(void) {
    cw_trace_would_ask(would_ask);
}

int cw_connect_within(const char *place, const char *name_space, uint32_t flags, int64_t timeout_ns,
                      cw_client **out) {
    int64_t before = cw_socket_limit(timeout_ns);
    int code = cw_connect(place, name_space, flags, out);
    cw_socket_unlimit(before);
    return code;
}

int cw_connect(const char *place, const char *name_space, uint32_t flags, cw_client **out) {
    struct cw_address address;
    int64_t begun_ns = cw_now_ns();
    bool ended;
    int folder_fd;
    if (!out || flags & ~(uint32_t)CW_CONNECT_NO_START)
        return cw_fail(-EINVAL, out ? "cw_connect knows only the flag CW_CONNECT_NO_START"
                                    : "a place for the client is needed, NULL was given");
    if (!name_space)
        name_space = secure_getenv("CABLEWAY_NAMESPACE");
    if (!name_space)
        name_space = "";
    int code = cw_namespace_check(name_space);
    if (code == 0)
        code = cw_trace_wish_check();
    if (code == 0)
        code = cw_address_find(place, &address);
    if (code)
        return code;
    code = cw_address_open_folder(&address, !(flags & CW_CONNECT_NO_START), &folder_fd);
    if (code)
        return code == -ENOENT ? nobody_answers(&address, "no broker answers") : code;
    for (;;) {
        ended = false;
        code = connect_client(&address, name_space, folder_fd, flags, begun_ns, &ended, out);
        if (!ended || cw_now_ns() - begun_ns > CONNECT_LIMIT_NS)
            break;
        connect_pause(); /* it was about to end: the next one is asked */
    }
    close(folder_fd);
    if (code == 0) {
        cw_fork_register(*out);
        cw_trace_broker(address.socket_path);
    }
    return code;
}

/* ---- small requests ---- */

static int plain_call(cw_client *client, uint16_t op) {
    int code = cw_client_usable(client);
    return code ? code : cw_channel_call(client, op, NULL, 0, NULL, NULL, CW_CALL_SHORT, -1);
}

int cw_ping(cw_client *client) {
    return plain_call(client, CW_OP_PING);
}

int cw_broker_stop(cw_client *client) {
    return plain_call(client, CW_OP_STOP);
}
