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
#ifndef CW_BRIDGE_PEERS_H
#define CW_BRIDGE_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/frame.h"
#include "broker/bridge/tls.h"
#include "shm/atomic.h"
#include "shm/error.h"

#define CWB_ADDRESS_MAX  255u
#define CWB_PATTERNS_MAX 256u /* of one peer and kind */
#define CWB_PEERS_MAX    1024u

struct cwb_patterns {
    char **texts;
    uint32_t count;
};

struct cwb_peer_config {
    char name[CWB_NODE_MAX + 1];
    char address[CWB_ADDRESS_MAX + 1]; /* "": none */
    uint8_t print[CWB_PRINT_BYTES];
    bool pinned; /* print is the one that counts */
    bool by_ca;  /* its name in a certificate of the authority counts; not both */
    struct cwb_patterns read, write;
};

struct cwb_link;
struct cwb_source;
struct cwb_offered;
struct cwb_stream;
struct cwb_take_state;
struct cwb_waiter;

struct cwb_peer {
    struct cwb_peer_config config;
    bool gone;
    /* peer.c: how it is reached now */
    struct cwb_link *links; /* open ones */
    struct cwb_link *dialing;
    int64_t dial_after_ns;        /* not before: the last try failed */
    int64_t unlinked_ns;          /* since when it has no link; 0: never had one, or has one */
    uint32_t fails;               /* tries that failed, one after another */
    uint64_t run;                 /* of its bridge, as of its last HELLO */
    char error[CW_DETAIL_MAX];    /* why the last connection failed or ended; "" */
    uint64_t bytes_in, bytes_out; /* of links that are gone */
    struct cwb_waiter *waiting;   /* for a link */
    /* streams.c */
    struct cwb_stream *streams;   /* beginning, running, and ended that are not freed yet */
    uint32_t streams_max;         /* agreed over the last link: connections, the link included */
    int64_t streams_until_ns;     /* a large array was wanted: till then they are dialed */
    int64_t streams_after_ns;     /* not before: the last try failed */
    struct cwb_take_state *takes; /* take.c: large arrays that are being read from it */
    struct cwb_source *sources;   /* source.c: what it is reading, by number */
    struct cwb_offered *offered;  /* take.c: what it put, by token */
    uint32_t number;              /* among all that ever were */
    uint32_t watches;             /* watch.c: of how many names it wants to be told */
    uint32_t wait_count;          /* serve.c: names that it waits for, over all links */
    cw_a64 unread_bytes;          /* wire_out.c: of answers, over all connections */
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
/* HOST:PORT or [HOST]:PORT to its parts; false: it is none. */
bool cwb_address_split(const char *text, char host[CWB_ADDRESS_MAX + 1], char port[8]);
/* Is a name (terminated) like one of the patterns? */
bool cwb_patterns_match(const struct cwb_patterns *patterns, const char *name);
/* Is it said how it is to be known? */
bool cwb_config_known(const struct cwb_peer_config *config);
/* Is it known by the same thing? */
bool cwb_config_same_identity(const struct cwb_peer_config *a, const struct cwb_peer_config *b);

#endif
