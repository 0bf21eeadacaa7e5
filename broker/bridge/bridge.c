/*
 * The bridge as a whole: everything is built here in order.
 *
 *   client of the broker -> sockets -> helpers -> key -> listening -> peers -> jobs
 *
 * Jobs come last: who asks finds all else ready. One loop; a turn is: what came, what time asks
 * for, what is to be sent. If this process dies the broker starts another; nothing is lost but what
 * was under way, which is begun again.
 */
#include "ipc/client.h"
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

#include "broker/bridge/fetch/download.h"
#include "broker/bridge/fetch/gpu_receive.h"
#include "broker/bridge/fetch/replica.h"
#include "broker/bridge/link/link.h"
#include "broker/bridge/link/listen.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/peer_table.h"
#include "broker/bridge/link/streams.h"
#include "broker/bridge/local/arrays.h"
#include "broker/bridge/local/broker_channel.h"
#include "broker/bridge/local/fast_path.h"
#include "broker/bridge/local/job.h"
#include "broker/bridge/local/replica_cache.h"
#include "broker/bridge/serve/deferred.h"
#include "broker/bridge/serve/incoming_put.h"
#include "broker/bridge/serve/name_lists.h"
#include "broker/bridge/serve/serve.h"
#include "broker/bridge/serve/staging.h"
#include "broker/bridge/serve/tree_parts.h"
#include "broker/bridge/serve/upload.h"
#include "broker/bridge/wire/send.h"
#include "broker/bridge/wire/turns.h"
#include "ipc/request/channel.h"
#include "shm/base/wait.h"

#define KEY_LOOK_NS     1000000000
#define STREAMS_DEFAULT 4u /* and no more than there are cores */

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
    return cwb_listen_begin(bridge);
}

static int64_t key_tick(struct cwb_bridge *bridge) {
    if (bridge->tls)
        return INT64_MAX;
    if (bridge->loop.now_ns - bridge->key_looked_ns >= KEY_LOOK_NS) {
        bridge->key_looked_ns = bridge->loop.now_ns;
        if (load_key(bridge) != 0) {
            cwb_log("ends: %s", cw_detail());
            bridge->stopping = true;
        }
        bridge->tick_now |= bridge->tls != NULL; /* peers may be dialed */
    }
    return bridge->key_looked_ns + KEY_LOOK_NS;
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
    host[CW_NODE_MAX] = 0;
    strcpy(bridge->node, cw_node_valid(host) ? host : "node");
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
    pthread_mutex_init(&bridge->uploads_lock, NULL);
    if (bridge->options.streams == 0)
        bridge->options.streams = default_streams();
    cwb_spin_init(&bridge->spin, cores());
    name_node(bridge);
    if (!cw_node_valid(bridge->node))
        return cw_fail(-EINVAL, "--node %.100s: 1 to %u of the characters A-Z a-z 0-9 _ . -",
                       bridge->node, CW_NODE_MAX);
    while (bridge->run == 0)
        if (getrandom(&bridge->run, sizeof bridge->run, 0) < 0)
            return cw_fail(-EREMOTEIO, "the kernel gave no random numbers: %m");
    bridge->next_upload = bridge->run >> 16; /* no number of one run is one of the next */
    bridge->loop.now_ns = cw_now_ns();
    int code = cw_connect(options->broker_socket, "", CW_CONNECT_NO_START, &bridge->client);
    if (code == 0) {
        bridge->client->host_only = true;
        code = cwb_io_new(options->use_epoll, false, &bridge->loop.io, &why);
    }
    if (code == 0 && *why)
        cwb_log("%s", why);
    if (code == 0)
        code = cwb_helpers_new(bridge->loop.io, "cw-helper", CWB_HELPERS, &bridge->helpers);
    if (code == 0)
        code = cwb_helpers_new(bridge->loop.io, "cw-asking", CWB_HELPERS, &bridge->broker_helpers);
    if (code == 0)
        code = cwb_helpers_new(bridge->loop.io, "cw-making", CWB_HELPERS, &bridge->memory_helpers);
    if (code == 0)
        code = cwb_helpers_new(bridge->loop.io, "cw-resolver", CWB_HELPERS_MAX,
                               &bridge->resolver_helpers);
    if (code == 0)
        code = cwb_helpers_new(bridge->loop.io, "cw-staging", CWB_HELPERS, &bridge->mover_helpers);
    if (code == 0)
        code = cwb_listen_find(bridge);
    if (code == 0)
        code = load_key(bridge);
    if (code == 0)
        code = cwb_peer_table_init(bridge);
    if (code == 0)
        code = cwb_broker_channel_new(bridge, &bridge->broker_channel);
    if (code == 0)
        code = cwb_jobs_init(bridge);
    if (code == 0 && !(bridge->replica_cache = cwb_replica_cache_new(bridge)))
        cwb_log("no replica cache for arrays without a name: %s", cw_detail());
    if (code == 0 && cwb_fast_path_new(bridge) != 0)
        cwb_log("no fast path for gets: %s", cw_detail());
    if (code == 0)
        cwb_local_reserve(bridge);
    return code;
}

static int64_t tick(struct cwb_bridge *bridge) {
    int64_t due_ns[] = {
        cwb_links_tick(bridge),        cwb_peers_tick(bridge),   cwb_replicas_tick(bridge),
        cwb_jobs_tick(bridge),         key_tick(bridge),         cwb_stagings_tick(bridge),
        cwb_gpu_receives_tick(bridge), cwb_streams_tick(bridge), cwb_deferred_tick(bridge),
        cwb_downloads_tick(bridge),    cwb_listen_tick(bridge),  cwb_local_tick(bridge)};
    int64_t first_ns = due_ns[0];
    if (cw_client_usable(bridge->client) != 0) {
        cwb_log("ends with its broker: %s", cw_detail());
        bridge->stopping = true;
    }
    cwb_uploads_tick(bridge);
    cwb_trees_tick(bridge);
    cwb_incoming_puts_tick(bridge);
    for (unsigned i = 1; i < sizeof due_ns / sizeof *due_ns; i++)
        first_ns = due_ns[i] < first_ns ? due_ns[i] : first_ns;
    return first_ns;
}

#define TICK_NS 10000000 /* after so long a time of turns: what they changed may ask for a time */

/* Sleeps until something comes, from a socket or from the broker. */
static void wait(struct cwb_bridge *bridge, int64_t timeout_ns) {
    if (timeout_ns == 0 || !cwb_broker_channel_rest(bridge->broker_channel)) {
        cwb_io_turn(bridge->loop.io, 0, &bridge->loop.now_ns);
        return;
    }
    cwb_io_turn(bridge->loop.io, timeout_ns, &bridge->loop.now_ns);
    cwb_broker_channel_rise(bridge->broker_channel);
}

/* What came is answered before time is looked at: that costs more than a small answer. */
void cwb_bridge_run(struct cwb_bridge *bridge) {
    cw_asks_nobody();
    int64_t due_ns = 0, first_ns = 0; /* the begin of the first turn since time was looked at */
    while (!bridge->stopping) {
        cwb_wires_turn(&bridge->loop);
        cwb_wires_flush(&bridge->loop);
        first_ns = first_ns ? first_ns : bridge->loop.now_ns;
        if (bridge->tick_now || bridge->files_now || bridge->loop.now_ns >= due_ns ||
            bridge->loop.now_ns - first_ns >= TICK_NS) {
            bridge->peers_now |= bridge->tick_now;
            bridge->tick_now = false;
            due_ns = tick(bridge);
            first_ns = 0;
        }
        cwb_lists_turn(bridge);
        cwb_changes_turn(bridge);
        int64_t ring_ns = cwb_broker_channel_notify(bridge->broker_channel);
        cwb_wires_flush(&bridge->loop);
        if (bridge->stopping)
            break;
        if (ring_ns > due_ns)
            ring_ns = due_ns;
        int64_t left_ns = ring_ns - cw_now_ns();
        bool busy = bridge->loop.dirty || bridge->loop.held || bridge->tick_now ||
                    bridge->files_now || bridge->lists || cwb_changes_due(bridge) ||
                    bridge->loop.now_ns < bridge->spin.until_ns;
        wait(bridge, busy || left_ns < 0 ? 0 : ring_ns == INT64_MAX ? -1 : left_ns);
        cwb_replica_cache_here(bridge);
        cwb_broker_channel_turn(bridge->broker_channel);
    }
}
