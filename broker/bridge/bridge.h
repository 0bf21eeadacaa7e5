/*
 * The bridge: one struct that owns all, built in order (bridge.c). Nothing unwinds it: its end is
 * the process's.
 *
 * cableway-bridge is a client of the broker with a role, started by it, and keeps nothing that
 * cannot be fetched again: killed at any moment it is started anew, and the broker gives it the
 * jobs again that it had. Words used throughout:
 *   link      the connection to another node's bridge (link.c)
 *   stream    one more connection to it, for large arrays alone, on a thread of its own (stream.h)
 *   peer      a node that is known, with its link (peer.c)
 *   request   a frame that waits for its reply (link.c)
 *   upload    an array of this node that a peer reads (upload.c)
 *   download  an array of a peer that is being read into this node's memory (download.c)
 *   job       what a local client wants, as the broker handed it over (job.c); the mover's are copy
 *             jobs
 *   replica   a remote array in local memory, under its remote name (replica.c)
 *
 * All of it belongs to the one thread of the loop, but streams, which run on I/O threads
 * (io_thread.h) and share uploads and transfer plans with it, under locks. What may block (the
 * broker, allocating, the resolver, hashing much) is done by helper threads (helpers.c), which
 * touch nothing but their piece of work. Neither the loop nor an I/O thread can wait for the broker
 * (cw_asks_nobody): a broker that stands mutes nobody.
 *
 * Want of memory, of descriptors and of threads: one rule. What comes of a peer or a client is
 * refused with -EDQUOT (LimitExceeded) and leaves nothing behind; where there is nobody to refuse
 * (a piece of an answer that has begun, bytes that came), that link, stream or local client ends
 * alone, as if it had been cut. What must happen later has its memory from the begin on, in the
 * struct that it is about: the end of a stream, an upload's word to the loop, the tasks of a GPU
 * receive and of a staging; and for what must be said to the broker some is kept ready
 * (broker_channel.c). What nobody asked for is tried again at its next time: a PING, a check of
 * replicas, a try to dial, the file of peers, the reserve. Only what is needed at the start ends
 * the process, with a sentence (cwb_bridge_init). Tables are the broker's (broker/core/table.h),
 * `make faults` tries each call site.
 */
#ifndef CW_BRIDGE_BRIDGE_H
#define CW_BRIDGE_BRIDGE_H

#include <pthread.h>

#include "broker/bridge/io/spin.h"
#include "broker/bridge/wire/frame.h"
#include "broker/bridge/io/io.h"
#include "broker/bridge/link/peer_list.h"
#include "broker/bridge/tls/tls.h"
#include "broker/bridge/wire/wire.h"
#include "broker/bridge/io/helpers.h"
#include "ipc/cableway.h"

#define CWB_UNKNOWN_MAX     256u  /* connections at once that have not shown who they are */
#define CWB_FIRST_BYTES     2048u /* its first record of TLS; OpenSSL begins when it is whole */
#define CWB_UNKNOWN_BYTES   4096u /* what such a one may have sent in all */
#define CWB_UNKNOWN_NS      2000000000 /* and how long it may take */
#define CWB_SHAKING_NS      1000000    /* of one turn, for the handshakes of all of them */
#define CWB_DIAL_NS         5000000000 /* to connect, TLS and HELLO included */
#define CWB_PING_NS         1000000000
#define CWB_SILENCE_NS      5000000000  /* nothing heard for so long: the peer is gone */
#define CWB_RESUME_NS       10000000000 /* how long what a peer reads or puts waits for a new link */
#define CWB_REDIAL_FIRST_NS 100000000ll /* pause after a try that failed, doubled each time */
#define CWB_REDIAL_MOST_NS  5000000000
#define CWB_LISTEN_MAX      8u
#define CWB_LINKS_MAX       64u /* of one peer, accepted and not open yet; the oldest gives way */
#define CWB_LISTS_BYTES     (64u << 20) /* one list of names; and lists that one peer has not read */
#define CWB_STALL_S                                                                                \
    60u /* --stall: how long nothing may come of what a peer that is                               \
           heard was asked for */
/* Lists under way, and those that were not read, of all peers: beyond, a peer may have its OWN. */
#define CWB_LISTS_ALL_MAX (256u << 20)
#define CWB_LISTS_OWN     (128u << 10)
/* Outcomes of puts that are kept, of one peer, and of all: beyond, a peer may have its OWN. */
#define CWB_PUTS_KEPT_MAX     8192u
#define CWB_PUTS_KEPT_ALL_MAX 65536u
#define CWB_PUTS_KEPT_OWN     64u
/* Memory of arrays that a peer puts and that are not all here yet; and of all peers. What is SMALL
 * waits for no larger one, and of such ones each peer has its OWN. */
#define CWB_INCOMING_PUTS_MAX     (1ull << 30)
#define CWB_INCOMING_PUTS_ALL_MAX (4ull << 30)
#define CWB_INCOMING_PUT_SMALL    (4u << 20)
#define CWB_INCOMING_PUTS_OWN     (64u << 20)
#define CWB_STREAM_BYTES          (2u << 20) /* arrays from here on are read over all of them */
#define CWB_OUT_MAX                                                                                \
    (128u << 20) /* unread answers of a peer that still asks, over all its connections; who keeps  \
                    to what was agreed has less */
#define CWB_OUT_ALL_MAX (512u << 20) /* and of all peers: then none may have more than */
#define CWB_OUT_OWN     (40u << 20)  /* the most that requests agreed on ask for */
/* All that one peer can make this process keep: unread answers; lists that it has not read, the
 * last of them, and the one that is being made; waits and watches, whose names are as long as may
 * be; offers with their bytes inside, and outcomes; what is kept of each of its connections
 * (turns.c). */
#define CWB_PEER_BYTES (512u << 20)
_Static_assert(CWB_OUT_MAX + 3 * CWB_LISTS_BYTES + CWB_WAITS_MAX * 512 + CWB_WATCHES_MAX * 512 +
                       (32u << 20) + (1 + CW_STREAMS_MAX) * (CWB_KEPT_BYTES + (4u << 20)) <=
                   CWB_PEER_BYTES,
               "a peer's part of the bridge's memory");

struct cwb_replica_cache;
struct cwb_fan_out;
struct cwb_job;
struct cwb_jobs;
struct cwb_lingering;
struct cwb_list;
struct cwb_replica;

struct cwb_options {
    const char *broker_socket; /* the broker's socket */
    const char *folder;        /* node.key, node.crt, peers */
    const char *node;          /* NULL: as a job has it, else the host's name */
    uint32_t rekey_records;    /* as cwb_tls_new() */
    const char *listen[CWB_LISTEN_MAX];
    uint32_t listens;
    bool strict; /* who cannot listen ends: somebody waits for how the start goes */
    const char *peers[CWB_PEERS_MAX]; /* NAME=HOST:PORT, over what the file says */
    uint32_t peer_count;
    bool use_epoll;
    int64_t stall_ns; /* --stall; 0: for ever */
    int64_t idle_ns;  /* --link-idle; 0: links are dialed at the start, and kept */
    uint32_t fan_out; /* --fan-out: to how many nodes one sends a sealed array; 0: to all */
    uint32_t streams; /* --streams: connections to one peer over which large arrays are read: 1, its
                         link; else so many streams, and the link is none of them; 0: as cores */
};

struct addrinfo;
struct cwb_listening { /* one --listen; listen.c */
    struct addrinfo *found;
    bool done; /* it listens at all of these */
};

struct cwb_listener {
    struct cwb_watch watch; /* first: it is cast back */
    struct cwb_bridge *bridge;
    bool more; /* may be there that nothing tells of any more */
};

struct cwb_bridge {
    struct cwb_options options;
    char node[CW_NODE_MAX + 1];
    uint64_t run;          /* random, never 0 */
    uint64_t jitter_state; /* peer.c */
    struct cwb_loop loop;
    bool stopping;
    bool tick_now; /* something changed that time decides about: look at it now */
    bool
        files_now; /* peer_table.c: the same for files alone, unless they were looked at just now */
    bool peers_now;       /* peer.c: something changed since all peers were looked at, */
    int64_t peers_due_ns; /* which said that this is the next time for it */

    struct cwb_tls *tls; /* NULL: no key: nobody is reached, and each job is told so */
    char no_key[CW_DETAIL_MAX];
    int64_t key_looked_ns; /* while there is none */
    int64_t dates_told_ns; /* that a certificate ends soon; 0: not of those that are loaded now */
    struct cwb_helpers *helpers;          /* hashing; and what I/O threads tell */
    struct cwb_helpers *broker_helpers;   /* what waits for the broker */
    struct cwb_helpers *memory_helpers;   /* what makes memory: a second for each GiB */
    struct cwb_helpers *resolver_helpers; /* what waits for name servers, which may not answer */
    struct cwb_helpers *mover_helpers; /* what waits for cableway-mover: a GPU that hangs holds up
                                  no other work */
    cw_client *client;                 /* for all threads */
    cw_array *reserve;                 /* arrays.c; NULL: there is none */
    bool reserving;                    /* a helper makes one */
    int64_t trim_due_ns; /* arrays.c: when what is kept free is given back; 0: there is none */
    bool trimming;       /* a helper does */
    struct cwb_broker_channel *broker_channel; /* the loop's own (broker_channel.h) */
    struct cwb_listener listeners[CWB_LISTEN_MAX];
    uint32_t listener_count;
    struct cwb_listening listenings[CWB_LISTEN_MAX];
    int64_t listen_since_ns, listen_looked_ns; /* while it cannot listen; 0: it does, or not yet */
    bool listen_told;                          /* and the log says why */

    struct cwb_peer *peers, *peers_last; /* peer_table.c: all that ever were, */
    struct cwb_peer *met;                /* peer.c: those that ever had a link to this process; */
    struct cwb_peer *peers_by_name;      /* the same, */
    struct cwb_peer *peers_by_key;       /* and those that are known by a pinned key now */
    uint32_t peer_count;
    uint64_t peers_read;          /* how often the file was */
    struct cwb_stamp peers_stamp; /* the file, as it was last read */
    int64_t peers_looked_ns;
    struct cwb_link *links;                  /* all that are not freed */
    uint32_t unknown;                        /* links that have not shown who they are */
    int64_t unknown_told_ns;                 /* that one of them ended; 0: never */
    uint64_t shaking_turn;                   /* the last turn in which one of them shook hands, */
    int64_t shaking_ns;                      /* and for how long all did */
    struct cwb_jobs *jobs;                   /* job.c */
    struct cwb_replica_cache *replica_cache; /* replica_cache.c; NULL: none */
    struct cwb_replica *replicas;            /* replica.c, by key; */
    struct cwb_replica *due;                 /* those that begin at the end of this turn */
    struct cwb_replica *gc_order;    /* replica_gc.c: the same, that was checked last is last; */
    int64_t gpu_room_until_ns;       /* memory of those on GPUs may come back until then */
    struct cwb_spin spin;            /* when the loop looks and does not sleep */
    struct cwb_lingering *lingering; /* invalidation.c: the first to go is the first */
    uint64_t stamp;                  /* floor.h: of the last question or fact */
    struct cwb_fan_out *fan_outs;    /* fan_out.c: by the entry of a put */
    struct cwb_watched *watched;     /* watch.c: what peers want to be told of, */
    struct cwb_watched *watch_at;    /* the next to be looked at, since all are; NULL: none, */
    bool watch_again;                /* and then all once more */
    struct cwb_staging *stagings;    /* staging.c */
    struct cwb_gpu_receive *gpu_receives; /* gpu_receive.c */
    uint32_t wait_count;                  /* waits.c: names that peers wait for; */
    uint64_t news;                        /* how often there were new names, */
    bool waits_due;                       /* for which not all were looked at */
    uint64_t put_bytes;     /* incoming_put.c: of large ones that have their turn, of all peers */
    uint32_t puts_kept;     /* incoming_put.c: of all peers, that are kept */
    uint64_t lists_bytes;   /* name_lists.c, upload.c: of lists, made or being made, of all peers */
    struct cwb_list *lists; /* name_lists.c: of names, that peers ask for */
    struct cwb_served *deferred; /* deferred.c: what waits for the broker, the oldest first */
    int64_t probed_ns;           /* since when the broker is asked whether it lives; 0: it is not */
    bool changes_mapping;        /* serve.c: a helper maps what is needed to look at changes; */
    int64_t changes_after_ns;    /* or that failed: not before */
    bool mapping; /* arrays.c: a helper maps the directory for nobody in particular */
    struct cwb_download_state *downloads; /* download.c */
    int64_t downloads_looked_ns;
    cw_a64 unread_bytes; /* send.c: of answers, of all peers */
    uint64_t next_upload;
    int64_t uploads_looked_ns;    /* for what was open for too long */
    pthread_mutex_t uploads_lock; /* upload.c: what peers read, also over streams */
    struct cwb_io_thread *io_threads[CW_STREAMS_MAX]; /* streams.c: made when first needed */
};

/* Builds all. 0 or a negative code with the sentence; the process then ends. */
int cwb_bridge_init(struct cwb_bridge *bridge, const struct cwb_options *options);
/* Runs until it cannot; the end of the broker ends the process. */
void cwb_bridge_run(struct cwb_bridge *bridge);

/* One line to standard error, which is the broker's log. */
void cwb_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
