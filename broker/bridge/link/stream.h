/*
 * Stream: one more connection to a peer, beside its links, for the bytes of large arrays alone. It
 * runs on an I/O thread, so that several cores encrypt.
 *
 *   BEGINNING: a link that says STREAM in place of HELLO; its peer must have an open link, its key
 *   |          that peer's, and both runs must be those that met over it (receive.c)
 *   |  handed over to an I/O thread: the bridge's loop has nothing of the connection any more
 *   v
 *   RUNNING --silence, a breach, a cut, its peer has no link any more, or nothing to do--> ENDED
 *
 * Over it go READs of either side, their replies, and PINGs; all else is a breach. The side that
 * dialed the link dials streams, when a large array is about to go either way (streams.c), and ends
 * them when nothing was read for CWB_STREAM_IDLE_NS.
 *
 * Who owns what: the fields under "the bridge's" are its loop's, those under "the I/O thread's"
 * that thread's from the hand-over on. The loop makes the struct and frees it, the latter by a last
 * note, when the I/O thread has told that the stream has ended; so no note finds it gone, nor does
 * the I/O thread. A stream that ends gives back the chunks that it had asked for, and drops the
 * uploads of pieces that waited; nothing else depends on it. If a peer, a download, or an upload
 * goes, the stream lives on without it.
 */
#ifndef CW_BROKER_BRIDGE_LINK_STREAM_H
#define CW_BROKER_BRIDGE_LINK_STREAM_H

#include "broker/bridge/bridge.h"
#include "broker/bridge/io/io_thread.h"

#define CWB_STREAM_WINDOW  8u  /* READs under way of one array over one stream: its credit */
#define CWB_STREAM_ASKS    64u /* of all arrays over one stream */
#define CWB_STREAM_IDLE_NS 30000000000

struct cwb_transfer_plan;
struct cwb_link;
struct cwb_upload;

struct cwb_ask { /* a READ of ours; plan NULL: it is free */
    uint64_t id;
    struct cwb_transfer_plan *plan; /* one reference */
    struct cwb_read read;
};

struct cwb_flow {                   /* an array that is read over the stream */
    struct cwb_transfer_plan *plan; /* one reference */
    uint32_t asked;
    struct cwb_flow *next;
};

struct cwb_stream {
    struct cwb_wire wire; /* first: it is cast back; the I/O thread's */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    struct cwb_io_thread *io_thread;
    bool dialed;
    uint32_t read_max;
    char where[CW_ADDRESS_MAX + 1];
    /* the bridge's */
    struct cwb_link *link; /* while it is BEGINNING */
    bool open;             /* its I/O thread may be told of arrays */
    bool told_end;         /* its I/O thread: cwb_stream_end() */
    int64_t opened_ns;
    struct cwb_stream *next, *prev; /* of its peer */
    struct cwb_work opened, ended;  /* told by the I/O thread */
    /* the I/O thread's */
    struct cwb_note begin, ending, free;
    bool no_memory;      /* ending: for want of it, not for want of another connection */
    uint64_t began_with; /* accepted: the id of its STREAM */
    bool heard;          /* a frame came: the other side has it, too */
    int64_t pinged_ns, used_ns;
    int64_t moved_ns; /* when a READ of ours was last answered, or the first of them asked */
    uint64_t next_id, ping_id;
    struct cwb_ask asks[CWB_STREAM_ASKS];
    uint32_t ask_count;
    struct cwb_flow *flows;
    uint32_t parked; /* READs of theirs that the bridge's loop has: of staged uploads */
    struct cwb_stream *thread_next, *thread_prev;
};

/* ---- stream.c: on its I/O thread ---- */
/* The bridge's loop: the I/O thread takes it over; wire, opened and ended are set. */
void cwb_stream_begin(struct cwb_stream *stream);
/* Reads an array also over this stream. */
void cwb_stream_read(struct cwb_stream *stream, struct cwb_transfer_plan *plan);
/* The answer to a READ that the loop was given: a piece, whose bytes are there, or (without memory
 * the stream ends instead) a refusal with cw_detail(). */
/* false: there is no memory, nothing of the upload is held, and the stream ends. */
bool cwb_stream_send_piece(struct cwb_stream *stream, uint64_t id, struct cwb_upload *upload,
                           const struct cwb_read *read, const uint8_t *bytes);
void cwb_stream_refuse(struct cwb_stream *stream, uint64_t id, int status);
/* Ends it; `ended` is told. */
void cwb_stream_end(struct cwb_stream *stream);
/* After `ended`: the I/O thread frees it. */
void cwb_stream_free(struct cwb_stream *stream);
/* The I/O thread's: heartbeats, silence and idleness of all that run on it. */
void cwb_io_thread_tick(struct cwb_io_thread *io_thread);

#endif
