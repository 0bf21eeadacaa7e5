/*
 * Who it is that shows a certificate. See identity.c.
 */
#ifndef CW_BROKER_BRIDGE_LINK_IDENTITY_H
#define CW_BROKER_BRIDGE_LINK_IDENTITY_H

#include "broker/bridge/tls/tls.h"

struct cwb_bridge;
struct cwb_peer;

/* Who shows a certificate with this key, for this node ("": for none)? *peer: as whom it was
 * dialed, or NULL; set to who it is. CWB_STRANGER: cw_detail() says why it may not come in. */
enum cwb_known cwb_peer_known(struct cwb_bridge *bridge, struct cwb_peer **peer,
                              const uint8_t print[CWB_PRINT_BYTES], const char *node);

#endif
