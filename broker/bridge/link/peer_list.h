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
 * the log.
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

#define CWB_PATTERNS_MAX 256u  /* of one peer and kind */
#define CWB_PEERS_MAX    4096u /* of a file */

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
