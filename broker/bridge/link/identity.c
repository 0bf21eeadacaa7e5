/*
 * Known: who shows a certificate. It is decided here alone, from what TLS has shown; see
 * identity.h for what counts. No state of its own; the loop's thread calls it within a handshake.
 */
#include "broker/bridge/link/identity.h"

#include <string.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/link/peer.h"
#include "broker/bridge/link/peer_table.h"

/* Nobody, or another than who was dialed: why? */
static enum cwb_known stranger(struct cwb_bridge *bridge, const struct cwb_peer *dialed,
                               const struct cwb_peer *found, const uint8_t *print,
                               const char *node) {
    char text[CWB_PRINT_TEXT];
    const struct cwb_peer *named = cwb_peer_find(bridge, node, strlen(node));
    cwb_print_text(print, text);
    if (found)
        cw_fail(-EPERM, "it is the peer %s's, and this is to be %s", found->config.name,
                dialed->config.name);
    else if (dialed ? dialed->config.pinned : named && named->config.pinned)
        cw_fail(-EPERM, "its key, %s, is not the one that is pinned for the peer %s", text,
                (dialed ? dialed : named)->config.name);
    else if (dialed)
        cw_fail(-EPERM, "it is for %s%s, and this is to be cableway://%s, known by the CA",
                *node ? "cableway://" : "no node", node, dialed->config.name);
    else
        cw_fail(-EPERM,
                "its key, %s, is pinned for no peer, and it is for %s%s, whom the CA lets in%s: "
                "`cableway peers add %s HOST:PORT --key %s` makes it a peer",
                text, *node ? "cableway://" : "no node", node, *node ? " as no peer" : "",
                *node ? node : "NAME", text);
    return CWB_STRANGER;
}

enum cwb_known cwb_peer_known(struct cwb_bridge *bridge, struct cwb_peer **peer,
                              const uint8_t print[CWB_PRINT_BYTES], const char *node) {
    struct cwb_peer *found = cwb_peer_find_key(bridge, print);
    enum cwb_known known = CWB_BY_KEY;
    if (!found && *node) {
        found = cwb_peer_find(bridge, node, strlen(node));
        if (found && !found->config.by_ca)
            found = NULL;
        known = CWB_BY_CA;
    }
    if (!found || (*peer && *peer != found))
        return stranger(bridge, *peer, found, print, node);
    if (known == CWB_BY_CA && !cwb_tls_has_ca(bridge->tls)) {
        cw_fail(-EPERM, "the peer %s is known by a CA, and this node has none (%.300s/ca.crt)",
                found->config.name, bridge->options.folder);
        return CWB_STRANGER;
    }
    *peer = found;
    return known;
}
