/*
 * The fast path: see fast_path.h. The loop's thread owns it. Answers are sent at once: they are
 * small, and there is room, since nothing else is under way to that client; where there is none it
 * is shut out.
 */
#include "broker/bridge/local/fast_path.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/local/replica_cache.h"
#include "broker/bridge/memory.h"
#include "ipc/client.h"
#include "ipc/request/address.h"
#include "shm/base/wait.h"

#define BACKLOG 64

struct cwb_fast_path {
    struct cwb_watch watch; /* first: it is cast back */
    struct cwb_bridge *bridge;
    uint32_t count;
};

struct cwb_local_client {
    struct cwb_socket socket; /* first: it is cast back */
    struct cwb_fast_path *fast_path;
    struct cwb_job *job; /* under way; NULL: none */
    bool has_cache;
    uint32_t core;       /* where it asked, + 1; 0: it does not say */
    int64_t answered_ns; /* when it was last answered */
    bool asks_on;        /* the last time it asked again within CW_SPIN_NS */
};

static void leave(struct cwb_local_client *client) {
    struct cwb_job *job = client->job;
    client->job = NULL;
    if (job) {
        job->local_client = NULL;
        if (job->on_cancel)
            job->on_cancel(job);
        cwb_job_release(job);
    }
    cwb_io_close(client->fast_path->bridge->loop.io, &client->socket);
}

static void on_error(struct cwb_socket *socket, int error) {
    (void)error;
    leave((struct cwb_local_client *)socket);
}

static void on_closed(struct cwb_socket *socket) {
    struct cwb_local_client *client = (struct cwb_local_client *)socket;
    client->fast_path->count--;
    free(client);
}

static void on_data(struct cwb_socket *socket, const uint8_t *bytes, uint32_t size_bytes) {
    struct cwb_local_client *client = (struct cwb_local_client *)socket;
    struct cwb_bridge *bridge = client->fast_path->bridge;
    struct cw_remote remote = {.verb = 0};
    cwb_spin_end(&bridge->spin);
    /* A GET, and one at a time; anything else is no client of ours. */
    if (size_bytes >= sizeof remote)
        memcpy(&remote, bytes, sizeof remote);
    if (size_bytes < sizeof remote || size_bytes > CW_MESSAGE_MAX || client->job ||
        remote.verb != CW_REMOTE_GET) {
        leave(client);
        return;
    }
    client->core = remote.slab;
    client->asks_on = bridge->loop.now_ns - client->answered_ns < CW_SPIN_NS;
    if (cwb_job_begin(bridge, client, NULL, bytes, size_bytes) != 0)
        leave(client); /* it asks by way of the broker */
    else if (client->job)
        cwb_spin_asked(&bridge->spin, bridge->loop.now_ns);
}

static const struct cwb_socket_calls calls = {NULL, on_data, NULL, on_error, on_closed};

void cwb_fast_path_took(struct cwb_local_client *client, struct cwb_job *job) {
    client->job = job;
}

/* The replica cache goes along, once. room: for one descriptor. */
static void hand_cache(struct cwb_local_client *client, struct msghdr *message, uint8_t *room) {
    int fd = cwb_replica_cache_fd(client->fast_path->bridge);
    if (fd < 0)
        return;
    message->msg_control = room;
    message->msg_controllen = CMSG_SPACE(sizeof fd);
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    client->has_cache = true;
}

/* Who asks again and again, from another core, is spun for, for a moment. On the same core
 * it could not ask meanwhile. */
static void spin_on(struct cwb_local_client *client) {
    struct cwb_bridge *bridge = client->fast_path->bridge;
    client->answered_ns = bridge->loop.now_ns;
    cwb_spin_answered(&bridge->spin,
                      client->asks_on && client->core &&
                          client->core != (uint32_t)sched_getcpu() + 1,
                      bridge->loop.now_ns);
}

void cwb_fast_path_location(const struct cwb_bridge *bridge, const struct cw_put *put,
                            struct cw_fast_path_answer *out) {
    *out = (struct cw_fast_path_answer){.text_bytes = put->meta_bytes,
                                        .instance = cw_client_instance(bridge->client),
                                        .slab = put->slab,
                                        .block = put->block,
                                        .gen = put->gen,
                                        .offset_bytes = put->offset_bytes,
                                        .size_bytes = put->size_bytes};
}

void cwb_fast_path_answer(struct cwb_job *job, int status, const struct cw_put *put,
                          const void *meta) {
    struct cwb_local_client *client = job->local_client;
    struct cw_fast_path_answer answer = {.status = status,
                                         .instance = cw_client_instance(job->bridge->client)};
    const char *sentence = cw_detail();
    struct iovec parts[] = {{&answer, sizeof answer}, {(void *)(uintptr_t)meta, 0}};
    if (status == 0) {
        cwb_fast_path_location(job->bridge, put, &answer);
        parts[1].iov_len = put->meta_bytes;
    } else {
        parts[1] = (struct iovec){(void *)(uintptr_t)sentence, strlen(sentence)};
    }
    answer.text_bytes = (uint32_t)parts[1].iov_len;
    client->job = NULL;
    job->local_client = NULL;
    cwb_job_release(job);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    _Alignas(struct cmsghdr) uint8_t room[CMSG_SPACE(sizeof(int))] = {0};
    if (!client->has_cache)
        hand_cache(client, &message, room);
    if (sendmsg(client->socket.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        leave(client); /* it went, or does not read */
    else
        spin_on(client);
}

static void let_in(struct cwb_fast_path *fast_path, int fd) {
    struct ucred who;
    socklen_t length = sizeof who;
    if (fast_path->count == CWB_FAST_PATH_CLIENTS_MAX ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) < 0 || who.uid != geteuid()) {
        close(fd);
        return;
    }
    struct cwb_local_client *client = calloc(1, sizeof *client);
    if (!client) {
        close(fd);
        return;
    }
    client->socket = (struct cwb_socket){.calls = &calls, .fd = fd};
    client->fast_path = fast_path;
    fast_path->count++;
    cwb_io_start(fast_path->bridge->loop.io, &client->socket);
}

static void on_ready(struct cwb_watch *watch) {
    int fd;
    while ((fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
        let_in((struct cwb_fast_path *)watch, fd);
}

/* In the broker's folder, which is the user's alone. A bridge before us may have left its own. */
static int listen_at(const char *broker_socket) {
    struct cw_address address;
    struct sockaddr_un name;
    socklen_t length;
    int folder;
    int code = cw_address_find(broker_socket, &address);
    if (code == 0)
        code = cw_address_open_folder(&address, false, &folder);
    if (code)
        return code;
    cw_address_to_fast_path(&address);
    cw_address_sockaddr(&address, folder, &name, &length);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)unlinkat(folder, address.socket_name, 0);
    mode_t before = umask(0177);
    int result = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&name, length);
    umask(before);
    if (result < 0 || listen(fd, BACKLOG) < 0) {
        code = cw_fail(-EREMOTEIO, "listening at %.300s: %m", address.socket_path);
        if (fd >= 0)
            close(fd);
    }
    close(folder);
    return code ? code : fd;
}

int cwb_fast_path_new(struct cwb_bridge *bridge) {
    int fd = listen_at(bridge->options.broker_socket);
    if (fd < 0)
        return fd;
    struct cwb_fast_path *fast_path = calloc(1, sizeof *fast_path);
    int code = fast_path ? 0 : cwb_no_memory("the fast path");
    if (fast_path) {
        fast_path->bridge = bridge;
        fast_path->watch = (struct cwb_watch){.fd = fd, .on_ready = on_ready};
        code = cwb_io_watch(bridge->loop.io, &fast_path->watch);
    }
    if (code) {
        close(fd);
        free(fast_path);
    }
    return code;
}
