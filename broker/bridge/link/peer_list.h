/*
 * Peers: the nodes that this one knows, from the file `peers` in the node's folder (0600), and
 * where they are reached.
 *
 *   [NAME]
 *   address = HOST:PORT        where it listens; without one it must come to us
 *   key = sha256:HEX           the fingerprint of its key; or
 *   key = ca                   a certificate for cableway://NAME that the authority in the node's
 *                              folder signed. Without either it cannot come in
 *   read = PATTERN             it may read names like this (any number of such lines)
 *   write = PATTERN            it may put and remove names like this
 *
 * What is pinned wins: a key that is pinned for a peer is that peer's, whatever its certificate
 * says, and a peer with a pinned key is known by that key alone, whoever signed another for its
 * name.
 *
 * A pattern is one of the shell's, where * also matches a '/'. Nothing is allowed that is not said.
 * The file is read anew when it changed; a file that cannot be read changes nothing and is told in
 * the log. A struct cwb_peer stays once it was made, so that pointers to it hold: one that is no
 * longer in the file is `gone`.
 */
#ifndef CW_BROKER_BRIDGE_LINK_PEER_LIST_H
#define CW_BROKER_BRIDGE_LINK_PEER_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/wire/frame.h"
#include "broker/bridge/tls/tls.h"
#include "ipc/base/node.h"
#include "shm/base/atomic.h"
#include "shm/base/error.h"

#define CWB_PATTERNS_MAX 256u /* of one peer and kind */
#define CWB_PEERS_MAX    1024u

enum cwb_kind { CWB_SMALL, CWB_LARGE, CWB_KINDS }; /* of offers: incoming_put.c */

struct cwb_patterns {
    char **texts;
    uint32_t count;
};

struct cwb_peer_config {
    char name[CW_NODE_MAX + 1];
    char address[CW_ADDRESS_MAX + 1]; /* "": none */
    uint8_t print[CWB_PRINT_BYTES];
    bool pinned; /* print is the one that counts */
    bool by_ca;  /* its name in a certificate of the authority counts; not both */
    struct cwb_patterns read, write;
};

struct cwb_link;
struct cwb_hashing;
struct cwb_list;
struct cwb_source;
struct cwb_offered;
struct cwb_replica;
struct cwb_served;
struct cwb_stream;
struct cwb_take_state;
struct cwb_waiter;

struct cwb_peer {
    struct cwb_peer_config config;
    bool gone;
    /* peer.c: how it is reached now */
    struct cwb_link *link;    /* the open one; NULL: none */
    bool resolving;           /* its address is being looked up; then */
    struct cwb_link *dialing; /* there is a link, which is not open yet */
    int64_t dial_after_ns;    /* not before: the last try failed */
    int64_t heard_ns;         /* when its last link ended: the last byte of it */
    int64_t unlinked_ns;      /* since when it has no link; 0: never had one, or has one */
    uint32_t fails;           /* tries that failed, one after another */
    uint64_t run;             /* of its bridge, as of its last HELLO */
    uint64_t replaced_run;    /* whose open link a newer one of another run has ended; 0: none */
    int64_t twin_ns; /* when one with its key, of another bridge, was last refused; 0: never */
    char error[CW_DETAIL_MAX];    /* why the last connection failed or ended; "" */
    uint64_t bytes_in, bytes_out; /* of links that are gone */
    struct cwb_waiter *waiting;   /* for a link */
    /* streams.c */
    struct cwb_stream *streams;      /* beginning, running, and ended that are not freed yet */
    uint32_t streams_max;            /* agreed over the link: connections, the link included */
    int64_t streams_until_ns;        /* a large array was wanted: till then they are dialed */
    int64_t streams_after_ns;        /* not before: the last try failed */
    struct cwb_take_state *takes;    /* download.c: large arrays that are being read from it */
    struct cwb_source *sources;      /* upload.c: what it is reading, by number, */
    struct cwb_hashing *hashings;    /* and what it has closed, and is to be hashed */
    struct cwb_offered *offered;     /* incoming_put.c: what it put, by token; */
    struct cwb_offered *offers_done; /* the oldest first, */
    struct cwb_offered *offers_waiting[CWB_KINDS]; /* and those that wait for their turn; */
    uint32_t offered_pending, offered_kept;        /* how many are not done, and are; */
    uint64_t offering_bytes[CWB_KINDS];            /* what those take that have their turn, */
    int64_t offered_ns[CWB_KINDS];                 /* and when the last one got it */
    struct cwb_floor
        *floors;           /* floor.c: what was told here of its names, and what stands of them */
    uint32_t number;       /* among all that ever were */
    uint32_t watches;      /* watch.c: of how many names it wants to be told, */
    uint64_t *watch_order; /* their entries, the oldest first, and some that are over: */
    uint32_t order_begin, order_count, order_room; /* a ring */
    struct cwb_list *list; /* name_lists.c: the lists of names that it asks for; NULL: none */
    bool told_names;       /* answers.c: the log says what it calls names */
    uint32_t lines_left, lines_untold;  /* of the log, about its connections: cwb_link_may_log() */
    int64_t lines_ns;                   /* since when */
    uint32_t wait_count;                /* waits.c: names that it waits for, over all links; */
    struct cwb_served *waits, *wait_at; /* all; the next to be looked at, NULL: the first */
    uint64_t looking_news, looked_news; /* for which news they are, and were, looked at */
    cw_a64 unread_bytes;                /* send.c: of answers, over all connections */
    struct cwb_peer *next;
};

/* A folder's file. 0, or -EINVAL with the sentence; a file that is not there has no peers. *out is
 * the caller's: cwb_configs_free(). */
int cwb_peers_read(const char *folder, struct cwb_peer_config **out, uint32_t *count);
/* Writes it anew, whole or not at all; the caller holds cwb_folder_lock(). 0 or a negative code. */
int cwb_peers_write(const char *folder, const struct cwb_peer_config *configs, uint32_t count);
void cwb_configs_free(struct cwb_peer_config *configs, uint32_t count);
/* 0 or -EINVAL with the sentence. where: for the sentence. */
int cwb_config_set(struct cwb_peer_config *config, const char *name, const char *value,
                   const char *where);
/* Is a name (terminated) like one of the patterns? */
bool cwb_patterns_match(const struct cwb_patterns *patterns, const char *name);
/* Is it said how it is to be known? */
bool cwb_config_known(const struct cwb_peer_config *config);
/* Is it known by the same thing? */
bool cwb_config_same_identity(const struct cwb_peer_config *a, const struct cwb_peer_config *b);

#endif
