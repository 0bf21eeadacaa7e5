/*
 * Listening: where other nodes reach this one. Addresses are looked up once, at the start. A bridge
 * for whose start nobody waits goes on without those that it cannot have, and tries them again:
 * this node can still call others.
 */
#include "broker/bridge/link/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/io/io.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/port_owner.h"

#define BACKLOG      4096
#define ACCEPTS_MOST 256
#define TRIES        100 /* the kernel may hold the address of a bridge that was killed for a while */
#define PAUSE_NS     20000000
#define QUIET_NS     2000000000 /* so nobody is told of it that long */
#define AGAIN_NS     1000000000

struct trial {
    int tries;
    bool listens; /* else it only sees whether the address can be had */
    bool names;   /* who has it is looked for: that reads much of /proc */
};

static void accept_some(struct cwb_listener *listener) {
    listener->more = true;
    for (int i = 0; i < ACCEPTS_MOST; i++) {
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        char host[64], port[8], where[80];
        int fd = accept4(listener->watch.fd, (struct sockaddr *)&address, &length,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) { /* without descriptors the next turn of time tries again */
            listener->more = errno != EAGAIN;
            return;
        }
        if (getnameinfo((struct sockaddr *)&address, length, host, sizeof host, port, sizeof port,
                        NI_NUMERICHOST | NI_NUMERICSERV) != 0)
            strcpy(host, "?"), strcpy(port, "?");
        snprintf(where, sizeof where, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
        cwb_link_accept(listener->bridge, fd, where);
    }
}

static void on_listener(struct cwb_watch *watch) {
    accept_some((struct cwb_listener *)watch);
}

static int refused(const struct addrinfo *at, const char *text, bool names, int error) {
    char who[CWB_PORT_OWNER_TEXT] = "";
    if (error == EADDRINUSE && (!names || cwb_port_owner(at, 0, who) < 0))
        strcpy(who, "another program (`ss -ltnp` shows which)");
    errno = error;
    return cw_fail(-EREMOTEIO, "--listen %.300s: %m; %s%s", text, who,
                   error == EADDRINUSE      ? " listens there: stop it, or choose another port"
                   : error == EADDRNOTAVAIL ? "this machine has no such address (`ip address` "
                                              "shows which it has)"
                   : error == EACCES        ? "ports below 1024 are root's: choose another"
                                            : "choose another address");
}

/* A socket with that address, in *fd; -1: this machine has no such family. */
static int bind_one(const struct addrinfo *at, const char *text, const struct trial *trial,
                    int *fd) {
    int one = 1;
    *fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return at->ai_family == AF_INET6 ? 0 : cw_fail(-EREMOTEIO, "--listen %.300s: %m", text);
    (void)setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (at->ai_family == AF_INET6)
        (void)setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    for (int left = trial->tries;; left--) {
        struct timespec pause = {.tv_nsec = PAUSE_NS};
        if (bind(*fd, at->ai_addr, at->ai_addrlen) == 0 &&
            (!trial->listens || listen(*fd, BACKLOG) == 0))
            return 0;
        if (errno != EADDRINUSE || left == 0)
            break;
        nanosleep(&pause, NULL);
    }
    int error = errno;
    close(*fd);
    *fd = -1;
    return refused(at, text, trial->names, error);
}

/* All addresses of one option, or none. */
static int bind_all(struct cwb_bridge *bridge, uint32_t option, const struct trial *trial) {
    const char *text = bridge->options.listen[option];
    int fds[CWB_LISTEN_MAX], code = 0;
    uint32_t count = 0, left = CWB_LISTEN_MAX - bridge->listener_count;
    for (struct addrinfo *at = bridge->listenings[option].found; at && !code; at = at->ai_next) {
        if (count == left)
            code = cw_fail(-EINVAL, "--listen %s: more than %u addresses", text, CWB_LISTEN_MAX);
        else
            code = bind_one(at, text, trial, &fds[count]);
        count += code == 0 && fds[count] >= 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct cwb_listener *listener = &bridge->listeners[bridge->listener_count];
        *listener = (struct cwb_listener){.watch = {.fd = fds[i], .on_ready = on_listener},
                                          .bridge = bridge};
        if (trial->listens && !code)
            code = cwb_io_watch(bridge->loop.io, &listener->watch);
        if (trial->listens && !code)
            bridge->listener_count++;
        else
            close(fds[i]);
    }
    return code;
}

static int find(struct cwb_bridge *bridge, uint32_t option) {
    const struct trial look = {.tries = TRIES, .names = true};
    const char *text = bridge->options.listen[option];
    char host[CW_ADDRESS_MAX + 1], port[8];
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    if (!cw_address_split(text, host, port))
        return cw_fail(-EINVAL, "--listen %.300s: it is HOST:PORT, [HOST]:PORT, :PORT, or PORT",
                       text);
    int error = getaddrinfo(*host ? host : NULL, port, &hints, &bridge->listenings[option].found);
    if (error)
        return cw_fail(-EREMOTEIO, "--listen %.300s: %s", text, gai_strerror(error));
    return bridge->options.strict ? bind_all(bridge, option, &look) : 0;
}

int cwb_listen_find(struct cwb_bridge *bridge) {
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < bridge->options.listens; i++)
        code = find(bridge, i);
    return code;
}

/* Those that are not there yet. 0, or why one of them is not. */
static int listen_all(struct cwb_bridge *bridge, const struct trial *trial) {
    int first = 0;
    char why[CW_DETAIL_MAX] = "";
    for (uint32_t i = 0; i < bridge->options.listens; i++) {
        if (bridge->listenings[i].done)
            continue;
        int code = bind_all(bridge, i, trial);
        if (code == 0) {
            bridge->listenings[i].done = true;
            cwb_log("listens at %s", bridge->options.listen[i]);
        } else if (first == 0) {
            first = code;
            strcpy(why, cw_error());
        }
    }
    return first ? cw_fail(first, "%s", why) : 0;
}

int cwb_listen_begin(struct cwb_bridge *bridge) {
    const struct trial first = {.tries = TRIES, .listens = true, .names = true};
    if (bridge->options.strict && !bridge->broker_channel) /* at the start */
        return listen_all(bridge, &first);
    bridge->listen_since_ns = bridge->loop.now_ns;
    return 0;
}

int64_t cwb_listen_tick(struct cwb_bridge *bridge) {
    int64_t now_ns = bridge->loop.now_ns;
    for (uint32_t i = 0; i < bridge->listener_count; i++)
        if (bridge->listeners[i].more)
            accept_some(&bridge->listeners[i]);
    if (!bridge->listen_since_ns)
        return INT64_MAX;
    int64_t pause_ns = bridge->listen_told ? AGAIN_NS : PAUSE_NS;
    if (now_ns - bridge->listen_looked_ns < pause_ns)
        return bridge->listen_looked_ns + pause_ns;
    bridge->listen_looked_ns = now_ns;
    bool tells = !bridge->listen_told && now_ns - bridge->listen_since_ns >= QUIET_NS;
    const struct trial again = {.listens = true, .names = tells};
    if (listen_all(bridge, &again) == 0) {
        bridge->listen_since_ns = 0;
        bridge->listen_told = false;
    } else if (tells) {
        cwb_log("no node is let in there until it can listen, and it tries on: %s", cw_detail());
        bridge->listen_told = true;
    }
    return now_ns + pause_ns;
}
