/*
 * What goes out over a wire. See send.c.
 */
#ifndef CW_BROKER_BRIDGE_WIRE_SEND_H
#define CW_BROKER_BRIDGE_WIRE_SEND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "broker/bridge/wire/wire.h"

/* Something was written to wire->out. */
void cwb_wire_touch(struct cwb_wire *wire);
void cwb_wire_write(struct cwb_wire *wire, const void *bytes, uint32_t size_bytes);
/* A frame of a head and parts. */
void cwb_wire_frame(struct cwb_wire *wire, const struct cw_message *head, const struct iovec *parts,
                    uint32_t count);
/* The reply to a request of theirs. status < 0: detail is the sentence. */
void cwb_wire_reply(struct cwb_wire *wire, uint16_t op, uint64_t id, int status, const char *detail,
                    const struct iovec *parts, uint32_t count);
/* The reply to a READ: when there is room. The range was checked; on_done(owner, ...) tells when
 * its bytes are needed no more. false: there is no memory for it, on_done is not called, and the
 * wire ends with the next flush. */
bool cwb_wire_send_piece(struct cwb_wire *wire, uint64_t id, const struct cwb_read *read,
                         const uint8_t *bytes, cwb_on_piece *on_done, void *owner);
/* Bytes that were encrypted, and that the other side has not taken. */
uint64_t cwb_wire_unread(const struct cwb_wire *wire);
/* Its peer asks for something more: 0, or -EPROTO: it does not read the answers, over all of its
 * connections together. A wire tells of what it has in steps of CWB_UNREAD_STEP. Any thread its
 * own wire. */
int cwb_wire_may_ask(struct cwb_wire *wire);
/* Tells what is unread of this wire, if that is another by a step; at its end all is read. */
void cwb_wire_tell_unread(struct cwb_wire *wire);
void cwb_wire_on_sent(struct cwb_socket *socket);
/* Sends what waits, of all wires of a loop. Once a turn. */
void cwb_wires_flush(struct cwb_loop *loop);

#endif
