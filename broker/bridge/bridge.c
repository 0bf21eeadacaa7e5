/*
 * The bridge as a whole: everything is built here in order.
 *
 *   client of the broker -> sockets -> helpers -> key -> peers -> listening -> jobs
 *
 * Jobs come last: who asks finds all else ready. One loop; a turn is: what came, what time asks
 * for, what is to be sent. If this process dies the broker starts another; nothing is lost but what
 * was under way, which is begun again.
 */
#include "broker/bridge/bridge.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "broker/bridge/board.h"
#include "broker/bridge/door.h"
#include "broker/bridge/home.h"
#include "broker/bridge/parts.h"
#include "broker/bridge/landing.h"
#include "broker/bridge/stage.h"
#include "shm/wait.h"

#define BACKLOG         4096
#define ACCEPTS_MOST    256
#define KEY_LOOK_NS     1000000000
#define STREAMS_DEFAULT 4u /* and no more than there are cores */
#define LISTEN_TRIES    100
#define LISTEN_PAUSE_NS 20000000

void cwb_log(const char *format, ...) {
    char line[1024];
    struct timespec now;
    struct tm parts;
    va_list arguments;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    int length = (int)strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%SZ ", &parts);
    length += snprintf(line + length, sizeof line - (size_t)length, "cableway-bridge[%d] ",
                       (int)getpid());
    va_start(arguments, format);
    vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = '?'; /* other nodes' words stand in it */
    strcat(line, "\n");
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        return; /* nobody reads it */
}

/* ---- listening ---- */

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

/* The kernel may hold the address of a bridge that was killed for some time after its end. */
static int take_address(int fd, const struct addrinfo *at) {
    for (int left = LISTEN_TRIES;; left--) {
        struct timespec pause = {.tv_nsec = LISTEN_PAUSE_NS};
        if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
            return 0;
        if (errno != EADDRINUSE || left == 0)
            return -1;
        nanosleep(&pause, NULL);
    }
}

static const char *listen_remedy(int error) {
    switch (error) {
    case EADDRINUSE:
        return "another program, perhaps another broker's bridge, listens there (`ss -ltnp` shows "
               "which): stop it, or choose another port";
    case EADDRNOTAVAIL:
        return "this machine has no such address (`ip address` shows which it has)";
    case EACCES:
        return "ports below 1024 are root's: choose another";
    default:
        return "choose another address";
    }
}

static int listen_at(struct cwb_bridge *bridge, const struct addrinfo *at, const char *text) {
    int one = 1;
    if (bridge->listener_count == CWB_LISTEN_MAX)
        return cw_fail(-EINVAL, "--listen %s: more than %u addresses", text, CWB_LISTEN_MAX);
    struct cwb_listener *listener = &bridge->listeners[bridge->listener_count];
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return at->ai_family == AF_INET6 ? 0 : cw_fail(-EREMOTEIO, "--listen %s: %m", text);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (at->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (take_address(fd, at) < 0) {
        int code = cw_fail(-EREMOTEIO, "--listen %s: %m; %s", text, listen_remedy(errno));
        close(fd);
        return code;
    }
    *listener =
        (struct cwb_listener){.watch = {.fd = fd, .on_ready = on_listener}, .bridge = bridge};
    int code = cwb_io_watch(bridge->loop.io, &listener->watch);
    if (code)
        close(fd);
    else
        bridge->listener_count++;
    return code;
}

static int listen_to(struct cwb_bridge *bridge, const char *text) {
    char host[CWB_ADDRESS_MAX + 1], port[8];
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found;
    if (!cwb_address_split(text, host, port))
        return cw_fail(-EINVAL, "--listen %.300s: it is HOST:PORT, [HOST]:PORT, :PORT, or PORT",
                       text);
    int error = getaddrinfo(*host ? host : NULL, port, &hints, &found);
    if (error)
        return cw_fail(-EREMOTEIO, "--listen %.300s: %s", text, gai_strerror(error));
    int code = 0;
    for (struct addrinfo *at = found; at && code == 0; at = at->ai_next)
        code = listen_at(bridge, at, text);
    freeaddrinfo(found);
    if (code == 0)
        cwb_log("listens at %s", text);
    return code;
}

/* ---- the node's key: it may be made while we run ---- */

static int load_key(struct cwb_bridge *bridge) {
    char print[CWB_PRINT_TEXT];
    int code = cwb_tls_new(bridge->options.folder, bridge->options.rekey_records, &bridge->tls);
    if (code) {
        if (strcmp(bridge->no_key, cw_detail()) != 0)
            cwb_log("%s; no node is reached, and none let in", cw_detail());
        strcpy(bridge->no_key, cw_detail());
        return 0; /* it may come */
    }
    cwb_print_text(cwb_tls_print(bridge->tls), print);
    cwb_log("node %s, key %s, sockets by %s", bridge->node, print, cwb_io_kind(bridge->loop.io));
    if (cwb_tls_has_ca(bridge->tls) && strcmp(bridge->node, cwb_tls_node(bridge->tls)) != 0)
        cwb_log("node.crt names the node \"%s\", so peers that go by a CA know this one as that",
                cwb_tls_node(bridge->tls));
    for (uint32_t i = 0; code == 0 && i < bridge->options.listens; i++)
        code = listen_to(bridge, bridge->options.listen[i]);
    return code;
}

static int64_t key_tick(struct cwb_bridge *bridge) {
    static int64_t looked_ns;
    if (bridge->tls)
        return INT64_MAX;
    if (bridge->loop.now_ns - looked_ns >= KEY_LOOK_NS) {
        looked_ns = bridge->loop.now_ns;
        if (load_key(bridge) != 0) {
            cwb_log("ends: %s", cw_detail());
            bridge->stopping = true;
        }
    }
    return looked_ns + KEY_LOOK_NS;
}

/* ---- all of it ---- */

static void name_node(struct cwb_bridge *bridge) {
    char host[256] = "";
    const char *given = bridge->options.node ? bridge->options.node : cwb_job_node();
    if (given) {
        snprintf(bridge->node, sizeof bridge->node, "%s", given);
        return;
    }
    (void)gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    host[CWB_NODE_MAX] = 0;
    strcpy(bridge->node, cwb_node_valid(host) ? host : "node");
}

static uint32_t cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

/* One core a connection, and no more than that; several peers share them. */
static uint32_t default_streams(void) {
    return cores() < STREAMS_DEFAULT ? cores() : STREAMS_DEFAULT;
}

int cwb_bridge_init(struct cwb_bridge *bridge, const struct cwb_options *options) {
    const char *why;
    memset(bridge, 0, sizeof *bridge);
    bridge->options = *options;
    pthread_mutex_init(&bridge->sources_lock, NULL);
    if (bridge->options.streams == 0)
        bridge->options.streams = default_streams();
    cwb_awake_init(&bridge->awake, cores());
    name_node(bridge);
    if (!cwb_node_valid(bridge->node))
        return cw_fail(-EINVAL, "--node %.100s: 1 to %u of the characters A-Z a-z 0-9 _ . -",
                       bridge->node, CWB_NODE_MAX);
    while (bridge->run == 0)
        if (getrandom(&bridge->run, sizeof bridge->run, 0) < 0)
            return cw_fail(-EREMOTEIO, "the kernel gave no random numbers: %m");
    bridge->next_source = bridge->run >> 16; /* no number of one run is one of the next */
    bridge->loop.now_ns = cw_now_ns();
    int code = cw_connect(options->place, "", CW_CONNECT_NO_START, &bridge->client);
    if (code == 0) {
        bridge->client->host_only = true;
        code = cwb_io_new(options->use_epoll, &bridge->loop.io, &why);
    }
    if (code == 0 && *why)
        cwb_log("%s", why);
    if (code == 0)
        code = cwb_works_new(bridge->loop.io, "cw-helper", &bridge->works);
    if (code == 0)
        code = cwb_works_new(bridge->loop.io, "cw-staging", &bridge->movings);
    if (code == 0)
        code = load_key(bridge);
    if (code == 0)
        code = cwb_peers_init(bridge);
    if (code == 0)
        code = cwb_home_new(bridge, &bridge->home);
    if (code == 0)
        cwb_jobs_init(bridge);
    if (code == 0 && !(bridge->board = cwb_board_new(bridge)))
        cwb_log("no board for arrays without a name: %s", cw_detail());
    if (code == 0 && cwb_door_new(bridge) != 0)
        cwb_log("no quick way for gets: %s", cw_detail());
    if (code == 0)
        cwb_local_reserve(bridge);
    return code;
}

static int64_t tick(struct cwb_bridge *bridge) {
    int64_t due_ns[] = {cwb_links_tick(bridge),    cwb_peers_tick(bridge),
                        cwb_replicas_tick(bridge), cwb_jobs_tick(bridge),
                        key_tick(bridge),          cwb_stages_tick(bridge),
                        cwb_landings_tick(bridge), cwb_streams_tick(bridge)};
    int64_t first_ns = due_ns[0];
    if (cw_client_usable(bridge->client) != 0) {
        cwb_log("ends with its broker: %s", cw_detail());
        bridge->stopping = true;
    }
    cwb_sources_tick(bridge);
    cwb_offered_tick(bridge);
    for (uint32_t i = 0; i < bridge->listener_count; i++)
        if (bridge->listeners[i].more)
            accept_some(&bridge->listeners[i]);
    for (unsigned i = 1; i < sizeof due_ns / sizeof *due_ns; i++)
        first_ns = due_ns[i] < first_ns ? due_ns[i] : first_ns;
    return first_ns;
}

#define TICK_NS 10000000 /* after so long a time of turns: what they changed may ask for a time */

/* Sleeps until something comes, from a socket or from the broker. */
static void wait(struct cwb_bridge *bridge, int64_t timeout_ns) {
    if (timeout_ns == 0 || !cwb_home_rest(bridge->home)) {
        cwb_io_turn(bridge->loop.io, 0, &bridge->loop.now_ns);
        return;
    }
    cwb_io_turn(bridge->loop.io, timeout_ns, &bridge->loop.now_ns);
    cwb_home_rise(bridge->home);
}

/* What came is answered before time is looked at: that costs more than a small answer. */
void cwb_bridge_run(struct cwb_bridge *bridge) {
    int64_t due_ns = 0, first_ns = 0; /* the begin of the first turn since time was looked at */
    while (!bridge->stopping) {
        cwb_wires_flush(&bridge->loop);
        first_ns = first_ns ? first_ns : bridge->loop.now_ns;
        if (bridge->hurry || bridge->loop.now_ns >= due_ns ||
            bridge->loop.now_ns - first_ns >= TICK_NS) {
            bridge->hurry = false;
            due_ns = tick(bridge);
            first_ns = 0;
        }
        int64_t ring_ns = cwb_home_flush(bridge->home);
        cwb_wires_flush(&bridge->loop);
        if (bridge->stopping)
            break;
        if (ring_ns > due_ns)
            ring_ns = due_ns;
        int64_t left_ns = ring_ns - cw_now_ns();
        bool busy = bridge->loop.dirty != NULL || bridge->hurry ||
                    bridge->loop.now_ns < bridge->awake.until_ns;
        wait(bridge, busy || left_ns < 0 ? 0 : ring_ns == INT64_MAX ? -1 : left_ns);
        cwb_board_here(bridge);
        cwb_home_turn(bridge->home);
    }
}
