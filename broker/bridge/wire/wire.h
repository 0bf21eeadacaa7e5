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
 *
 * Turns (turns.c): in one turn of its loop a wire is read for CWB_TURN_NS at most, whatever
 * comes over it, so that nobody who asks as fast as he can holds up the others. What came and was
 * not read is kept, in order, and read on in the next turn; while that is more than CWB_KEPT_BYTES
 * nothing is received. The data that were asked for do not count: who asked bounds them.
 */
#ifndef CW_BROKER_BRIDGE_WIRE_WIRE_H
#define CW_BROKER_BRIDGE_WIRE_WIRE_H

#include <sys/uio.h>

#include "broker/bridge/wire/frame.h"
#include "broker/bridge/io/io.h"
#include "broker/bridge/tls/tls.h"
#include "shm/base/atomic.h"

struct cwb_wire;

#define CWB_TURN_NS    500000       /* for which a wire is read in one turn */
#define CWB_KEPT_BYTES (256u << 10) /* kept for the next turn; from here on nothing is received */

struct cwb_loop { /* a thread's sockets */
    struct cwb_io *io;
    int64_t now_ns;         /* as of this turn */
    struct cwb_wire *dirty; /* have something to send */
    uint64_t turn;          /* its number */
    struct cwb_wire *held;  /* have something to be read in the next turn, in order */
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
    /* Its turn: what was kept is at tls.in. NULL: cwb_wire_read_on(). */
    int (*on_turn)(struct cwb_wire *);
};

/* The bytes of a piece were just read, and lie in the cache (sent), or its wire ended. loop: of who
 * says so. */
typedef void cwb_on_piece(void *owner, const struct cwb_loop *loop, const struct cwb_read *read,
                          bool sent);

struct cwb_piece { /* a READ's reply that waits for room */
    uint64_t id;
    struct cwb_read read;
    const uint8_t *bytes; /* they stay until on_done */
    cwb_on_piece *on_done;
    void *owner;
    struct cwb_piece *next;
};

struct cwb_wire {
    struct cwb_socket socket; /* first: it is cast back */
    struct cwb_loop *loop;
    const struct cwb_wire_calls *calls;
    struct cwb_tls_end tls;
    bool greeted, ended;        /* ended: nothing is read, written or called back any more */
    int broken;                 /* 0, or why the next flush ends it: -EPROTO, or -EDQUOT */
    bool held;                  /* it waits for its turn */
    bool in_turn;               /* it is read from what was kept: there tls.in leads */
    bool is_paused, has_closed; /* while it waits: nothing is received; the other side has closed */
    uint64_t turn;              /* the last one in which it was read, */
    int64_t turn_ns;            /* and for how long */
    struct cwb_bytes kept;
    struct cwb_wire *held_next;
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
    bool mapped;     /* on_data says that its pages are there, as far as is known */
    uint32_t data_need, data_have;

    /* sending */
    struct cwb_bytes out, flying;
    bool sending, is_dirty;
    struct cwb_piece *pieces, **pieces_end;
    uint32_t piece_count;
    cw_a64 *peer_unread;  /* of all wires of its peer; NULL: whose it is is not known yet, */
    cw_a64 *all_unread;   /* and of all peers */
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

#endif
