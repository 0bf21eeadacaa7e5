/*
 * The bridge: one struct that owns all, built in order (bridge.c). Nothing unwinds it: its end is
 * the process's.
 *
 * cableway-bridge is a client of the broker with a role, started by it, and keeps nothing that
 * cannot be fetched again: killed at any moment it is started anew, and the broker gives it the
 * jobs again that it had. Words used throughout:
 *   link      a connection to another node's bridge (link.c)
 *   stream    one more connection to it, for large arrays alone, on a thread of its own (stream.h)
 *   peer      a node that is known, with its links (peer.c)
 *   request   a frame that waits for its reply (link.c)
 *   source    an array of this node that a peer reads (source.c)
 *   take      an array of a peer that is being read into this node's memory (take.c)
 *   job       what a local client wants, as the broker handed it over (job.c)
 *   replica   a remote array in local memory, under its remote name (replica.c)
 *
 * All of it belongs to the one thread of the loop, but streams, which run on strands (strand.h) and
 * share sources and chunks with it, under locks. What may block (the broker, allocating, the
 * resolver, hashing much) is done by helper threads (work.c), which touch nothing but their piece
 * of work.
 */
#ifndef CW_BRIDGE_BRIDGE_H
#define CW_BRIDGE_BRIDGE_H

#include <pthread.h>

#include "broker/bridge/awake.h"
#include "broker/bridge/frame.h"
#include "broker/bridge/io.h"
#include "broker/bridge/peers.h"
#include "broker/bridge/tls.h"
#include "broker/bridge/wire.h"
#include "broker/bridge/work.h"
#include "ipc/cableway.h"

#define CWB_UNKNOWN_MAX     256u  /* connections at once that have not shown who they are */
#define CWB_FIRST_BYTES     2048u /* its first record of TLS; OpenSSL begins when it is whole */
#define CWB_UNKNOWN_BYTES   4096u /* what such a one may have sent in all */
#define CWB_UNKNOWN_NS      2000000000 /* and how long it may take */
#define CWB_DIAL_NS         5000000000 /* to connect, TLS and HELLO included */
#define CWB_PING_NS         1000000000
#define CWB_SILENCE_NS      5000000000  /* nothing heard for so long: the peer is gone */
#define CWB_RESUME_NS       10000000000 /* how long a transfer waits for a new link */
#define CWB_REDIAL_FIRST_NS 100000000ll /* pause after a try that failed, doubled each time */
#define CWB_REDIAL_MOST_NS  5000000000
#define CWB_LISTEN_MAX      8u
#define CWB_LINKS_MAX       64u /* open ones of one peer, and ungreeted ones; the oldest gives way */
#define CWB_LISTS_BYTES     (64u << 20) /* lists of names that one peer has not read; then no more */
#define CWB_STREAM_BYTES    (2u << 20)  /* arrays from here on are read over all of them */
#define CWB_OUT_MAX                                                                                \
    (128u << 20) /* unread answers of a peer that still asks, over all its connections; who keeps  \
                    to what was agreed has less */

struct cwb_board;
struct cwb_job;
struct cwb_jobs;
struct cwb_replica;

struct cwb_options {
    const char *place;      /* the broker's socket */
    const char *folder;     /* node.key, node.crt, peers */
    const char *node;       /* NULL: as a job has it, else the host's name */
    uint32_t rekey_records; /* as cwb_tls_new() */
    const char *listen[CWB_LISTEN_MAX];
    uint32_t listens;
    const char *peers[CWB_PEERS_MAX]; /* NAME=HOST:PORT, over what the file says */
    uint32_t peer_count;
    bool use_epoll;
    uint32_t streams; /* --streams: connections to one peer over which large arrays are read: 1, its
                         link; else so many streams, and the link is none of them; 0: as cores */
};

struct cwb_listener {
    struct cwb_watch watch; /* first: it is cast back */
    struct cwb_bridge *bridge;
    bool more; /* may be there that nothing tells of any more */
};

struct cwb_bridge {
    struct cwb_options options;
    char node[CWB_NODE_MAX + 1];
    uint64_t run; /* random, never 0 */
    struct cwb_loop loop;
    bool stopping;
    bool hurry; /* something changed that time decides about: look at it now */

    struct cwb_tls *tls; /* NULL: no key: nobody is reached, and each job is told so */
    char no_key[CW_DETAIL_MAX];
    struct cwb_works *works;
    struct cwb_works *movings; /* what waits for cableway-mover: a GPU that hangs holds up no other
                                  work */
    cw_client *client;         /* for all threads */
    cw_array *reserve;         /* local.c; NULL: there is none */
    bool reserving;            /* a helper makes one */
    struct cwb_home *home;     /* the loop's own (home.h) */
    struct cwb_listener listeners[CWB_LISTEN_MAX];
    uint32_t listener_count;

    struct cwb_peer *peers;
    uint32_t peer_count;
    struct cwb_stamp peers_stamp; /* the file, as it was last read */
    int64_t peers_looked_ns;
    struct cwb_link *links;       /* all that are not freed */
    uint32_t unknown;             /* links that have not shown who they are */
    struct cwb_jobs *jobs;        /* job.c */
    struct cwb_board *board;      /* board.c; NULL: none */
    struct cwb_replica *replicas; /* replica.c, by key */
    uint32_t replicas_on_gpus;
    struct cwb_awake awake;       /* when the loop looks and does not sleep */
    int64_t doubts_ns;            /* when doubtful replicas are let go; 0: none is held */
    struct cwb_watched *watched;  /* watch.c: what peers want to be told of */
    struct cwb_stage *stages;     /* stage.c */
    struct cwb_landing *landings; /* landing.c */
    struct cwb_served *waits;     /* serve.c: names that peers wait for */
    uint64_t next_source;
    pthread_mutex_t sources_lock;               /* source.c: what peers read, also over streams */
    struct cwb_strand *strands[CW_STREAMS_MAX]; /* streams.c: made when first needed */
};

/* Builds all. 0 or a negative code with the sentence; the process then ends. */
int cwb_bridge_init(struct cwb_bridge *bridge, const struct cwb_options *options);
/* Runs until it cannot; the end of the broker ends the process. */
void cwb_bridge_run(struct cwb_bridge *bridge);

/* One line to standard error, which is the broker's log. */
void cwb_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
