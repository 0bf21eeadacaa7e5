/*
 * Wire: one TCP and TLS connection as far as bytes and frames go: what comes is decrypted and cut
 * into frames, what is to go is encrypted and sent. Who the other side is and what a frame means is
 * its owner's business: a link (link.h), or a stream of one (stream.h).
 *
 * A wire belongs to one loop, that is to one thread, which calls everything here; a stream's wire
 * begins on the bridge's loop and is handed over once, with nothing of it in the kernel's hands.
 *
 * Output: frames are encrypted into one buffer while the other is being sent. Replies to READ wait
 * as *pieces* until there is room, so that a peer that reads slowly holds up itself alone. Input:
 * the data of a READ's reply are decrypted straight to where they were asked for. Whatever breaks
 * the form ends the wire: on_broken.
 */
#ifndef CW_BRIDGE_WIRE_H
#define CW_BRIDGE_WIRE_H

#include <sys/uio.h>

#include "broker/bridge/frame.h"
#include "broker/bridge/io.h"
#include "broker/bridge/tls.h"
#include "shm/atomic.h"

struct cwb_source;
struct cwb_wire;

struct cwb_loop { /* a thread's sockets */
    struct cwb_io *io;
    int64_t now_ns;         /* as of this turn */
    struct cwb_wire *dirty; /* have something to send */
};

struct cwb_wire_calls {
    /* A whole frame that keeps the form. 0, or -EPROTO: it may not come now. */
    int (*on_frame)(struct cwb_wire *, const struct cwb_frame *);
    /* The begin of a READ's reply: 0 and where its data go (NULL: nowhere), or -EPROTO: they were
     * not asked for. */
    int (*on_data)(struct cwb_wire *, const struct cwb_frame *, uint8_t **target);
    /* All of them came. */
    int (*on_data_end)(struct cwb_wire *, const struct cwb_frame *);
    /* It cannot go on: cw_detail() says why. */
    void (*on_broken)(struct cwb_wire *);
};

struct cwb_piece { /* a READ's reply that waits for room */
    uint64_t id;
    struct cwb_source *source; /* one reference */
    struct cwb_read read;
    const uint8_t *bytes; /* of the source; they stay until the piece lets go */
    struct cwb_piece *next;
};

struct cwb_wire {
    struct cwb_socket socket; /* first: it is cast back */
    struct cwb_loop *loop;
    const struct cwb_wire_calls *calls;
    struct cwb_tls_end tls;
    bool greeted, broken, ended; /* ended: nothing is read, written or called back any more */
    int64_t heard_ns;
    cw_a64 bytes_in, bytes_out; /* its thread's to count, the bridge's loop reads them */
    cw_a32 key_updates;         /* of what we write; the same */

    /* parsing */
    struct cw_message head;
    uint32_t head_have;
    uint8_t *body; /* CWB_FRAME_MAX bytes */
    uint32_t body_need, body_have;
    bool in_data;
    uint8_t *target; /* of the data that are coming */
    uint32_t data_need, data_have;

    /* sending */
    struct cwb_bytes out, flying;
    bool sending, is_dirty;
    struct cwb_piece *pieces, **pieces_end;
    uint32_t piece_count;
    cw_a64 *peer_unread;  /* of all wires of its peer; NULL: whose it is is not known yet */
    uint64_t unread_told; /* what of it is this wire's */
    struct cwb_wire *dirty_next;
};

/* socket.calls and fd are set by the caller. */
void cwb_wire_init(struct cwb_wire *wire, struct cwb_loop *loop,
                   const struct cwb_wire_calls *calls);
/* After on_closed. */
void cwb_wire_deinit(struct cwb_wire *wire);
/* A wire with nothing under way goes to another owner and loop; `from` is as after deinit. */
void cwb_wire_move(struct cwb_wire *from, struct cwb_wire *to, struct cwb_loop *loop,
                   const struct cwb_wire_calls *calls);
/* Neither reads nor writes from now on; drops the pieces. The socket is the caller's to close. */
void cwb_wire_end(struct cwb_wire *wire);

/* Bytes that came and went; any thread. Adds to both. */
void cwb_wire_counts(struct cwb_wire *wire, uint64_t *in, uint64_t *out);
/* How often it has changed the keys that it writes with; any thread. */
uint32_t cwb_wire_key_updates(struct cwb_wire *wire);

/* ---- wire_in.c ---- */
/* Bytes came and TLS stands: decrypts and hands frames on. 0 or a negative code. */
int cwb_wire_feed(struct cwb_wire *wire, const uint8_t *bytes, uint32_t size_bytes);
/* The same for what TLS has still of an earlier feed. */
int cwb_wire_read_on(struct cwb_wire *wire);
/* So many bytes came, now. */
void cwb_wire_heard(struct cwb_wire *wire, uint32_t size_bytes);

/* ---- wire_out.c ---- */
/* Something was written to wire->out. */
void cwb_wire_touch(struct cwb_wire *wire);
void cwb_wire_write(struct cwb_wire *wire, const void *bytes, uint32_t size_bytes);
/* A frame of a head and parts; and its size, and its bytes at `frame`, for who keeps it. */
uint32_t cwb_frame_bytes(const struct iovec *parts, uint32_t count);
void cwb_frame_fill(uint8_t *frame, const struct cw_message *head, const struct iovec *parts,
                    uint32_t count);
void cwb_wire_frame(struct cwb_wire *wire, const struct cw_message *head, const struct iovec *parts,
                    uint32_t count);
/* The reply to a request of theirs. status < 0: detail is the sentence. */
void cwb_wire_reply(struct cwb_wire *wire, uint16_t op, uint64_t id, int status, const char *detail,
                    const struct iovec *parts, uint32_t count);
/* The reply to a READ: when there is room. The source's range was checked. */
void cwb_wire_send_piece(struct cwb_wire *wire, uint64_t id, struct cwb_source *source,
                         const struct cwb_read *read, const uint8_t *bytes);
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
