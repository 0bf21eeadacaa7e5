/*
 * Fork: what a child may keep of its parent's clients.
 *
 * Before fork every client's locks are taken, and if it holds leases the broker is asked to hold
 * them once more for the child: for as long as anybody has the write end of a pipe, the fork pipe,
 * which the child gets and the parent closes. In the child the copies of the clients are marked:
 * nothing that the parent shares is written. The child closes the fork pipe when each array that it
 * inherited was renewed or closed; if it dies, or its children do, the kernel closes it.
 *
 * The child keeps the inherited sockets open: as long as it lives its parent is not dead to the
 * broker, since what the parent had queued (on a GPU) may still be going on.
 *
 * The list of clients belongs to list_lock, which the handlers hold across the fork.
 */
#include <fcntl.h>
#include <unistd.h>

#include "ipc/client.h"
#include "ipc/memory/fork.h"
#include "ipc/memory/slab.h"
#include "ipc/request/socket.h"
#include "shm/base/fd.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static cw_client *clients;
static bool handlers_set;

static void close_end(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Blocks that we hold are known to another process from now on: the broker decides when they end.
 */
static void publish_held(cw_client *client) {
    for (struct cw_slab *slab = client->slabs.own; slab; slab = slab->own_next) {
        struct cw_extent *extent = slab->carved && slab->held ? slab->arena.first : NULL;
        for (; extent; extent = extent->after)
            if (extent->carved && slab->locals[extent->block].count)
                extent->published = true;
    }
}

/* Has the leases held for the child. If that fails (the broker is gone, or stands still for
 * CW_FORK_TIMEOUT_NS, no descriptors) the child still has the mappings; a renewal may then find
 * its array stale. */
static void begin_fork_pipe(cw_client *client) {
    if (client->leases.held == 0 || pipe2(client->fork_pipe, O_CLOEXEC) < 0)
        return;
    for (int i = 0; i < 2; i++)
        client->fork_pipe[i] = cw_fd_above_stdio(client->fork_pipe[i]);
    if (client->fork_pipe[0] < 0 || client->fork_pipe[1] < 0) {
        close_end(&client->fork_pipe[0]);
        close_end(&client->fork_pipe[1]);
        return;
    }
    struct cw_fds send = {.fd = {client->fork_pipe[0]}, .count = 1};
    client->sock_until_ns = cw_now_ns() + CW_FORK_TIMEOUT_NS;
    int code = cw_socket_call_locked(client, CW_OP_FORK, NULL, 0, &send, NULL, 0, NULL);
    client->sock_until_ns = 0;
    if (code)
        close_end(&client->fork_pipe[1]);
    else
        publish_held(client);
    close_end(&client->fork_pipe[0]);
}

static void before_fork(void) {
    pthread_mutex_lock(&list_lock);
    for (cw_client *client = clients; client; client = client->list_next) {
        pthread_mutex_lock(&client->lock);
        /* Another thread may wait there for a broker that stands still. */
        struct cw_interruptible wait = {.begun_ns = cw_now_ns()};
        client->fork_asks = cw_interruptible_lock(&client->sock_lock, &wait,
                                                  wait.begun_ns + CW_FORK_TIMEOUT_NS) == 0;
        if (client->fork_asks && !cw_client_forked(client) && !CW_LOAD(K3, &client->lost, relaxed))
            begin_fork_pipe(client);
        pthread_mutex_lock(&client->channel_lock);
    }
    cw_mappings_lock();
}

static void unlock_all(cw_client *client) {
    pthread_mutex_unlock(&client->channel_lock);
    if (client->fork_asks)
        pthread_mutex_unlock(&client->sock_lock);
    pthread_mutex_unlock(&client->lock);
}

static void after_fork_parent(void) {
    cw_mappings_unlock();
    for (cw_client *client = clients; client; client = client->list_next) {
        close_end(&client->fork_pipe[1]);
        unlock_all(client);
    }
    pthread_mutex_unlock(&list_lock);
}

static void after_fork_child(void) {
    cw_mappings_unlock();
    for (cw_client *client = clients; client; client = client->list_next) {
        if (!cw_client_forked(client)) {
            /* K4: the child has one thread yet. */
            CW_STORE(K4, &client->forked, 1, relaxed);
            client->fork_pipe_child = client->fork_pipe[1];
            client->fork_pipe[1] = -1;
            if (client->channel.sender) /* it is the parent's, and so is its reference */
                CW_ADD(K6, &client->references, -1u, relaxed);
            client->channel.sender = false;
        }
        unlock_all(client);
    }
    pthread_mutex_unlock(&list_lock);
}

void cw_fork_settled(cw_client *client) {
    if (client->arrays == 0)
        close_end(&client->fork_pipe_child);
}

void cw_fork_register(cw_client *client) {
    pthread_mutex_lock(&list_lock);
    if (!handlers_set)
        handlers_set = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
    client->list_next = clients;
    if (clients)
        clients->list_prev = client;
    clients = client;
    pthread_mutex_unlock(&list_lock);
}

void cw_fork_unregister(cw_client *client) {
    pthread_mutex_lock(&list_lock);
    *(client->list_prev ? &client->list_prev->list_next : &clients) = client->list_next;
    if (client->list_next)
        client->list_next->list_prev = client->list_prev;
    pthread_mutex_unlock(&list_lock);
}
