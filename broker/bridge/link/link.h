/*
 * Link: a connection to another node's bridge, from its TCP connection to its end.
 *
 *   DIALING --connected--> SHAKING --TLS done, key pinned--> GREETING --HELLO--> OPEN
 *        accepted -------->   |                                 |                 |
 *                             +--2 s, 4 KiB, a wrong key--------+--CWB_DIAL_NS----+--silence, a
 *                             v                                 |\                v  breach, cut, a
 *                           ENDED (freed once the kernel         | +--STREAM--> LEAVING  newer link
 *                           has given its buffers back)          |
 *                                                                +--HELLO, accepted, and the peer
 *                                                                   has an open one--> PROVING
 *                                                                   --a frame more--> OPEN
 *
 * Until SHAKING is over nothing is kept for who connects but the struct, what it said of its first
 * record of TLS (CWB_FIRST_BYTES at most), and, once that is whole, OpenSSL's state; no frame is
 * parsed before GREETING. What it may ask is then a matter of its peer. How much may wait to be
 * sent is bounded by what was agreed: requests_max requests, read_max bytes each.
 *
 * Every connection begins as a link. One that says STREAM in place of HELLO leaves the bridge's
 * loop: once the kernel has given back what it had, its socket and TLS go to a stream (stream.h).
 * Nothing may come in between: who dialed waits for the reply to its STREAM, which the stream
 * sends, and the other side waits for a frame after that.
 */
#ifndef CW_BROKER_BRIDGE_LINK_LINK_H
#define CW_BROKER_BRIDGE_LINK_LINK_H

#include "broker/bridge/bridge.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/wire/wire.h"

enum cwb_link_state {
    CWB_DIALING,
    CWB_SHAKING,
    CWB_GREETING,
    CWB_PROVING,
    CWB_OPEN_LINK,
    CWB_LEAVING,
    CWB_ENDED
};

struct cwb_request;
struct cwb_served;
struct cwb_stream;

/* The reply came, or (frame NULL) the link ended before: cw_detail() says why. frame->head.status
 * may be negative. The request is freed afterwards. */
typedef void cwb_on_reply(struct cwb_request *request, const struct cwb_frame *frame);

struct cwb_request { /* ours, under way on one link */
    uint64_t id;
    uint16_t op;
    struct cwb_link *link;
    cwb_on_reply *on_reply;
    void *owner;
    /* READ: what was asked, and where the data go; NULL: nobody wants them any more */
    struct cwb_read read;
    uint8_t *target;
    uint8_t *frame; /* in the backlog: the whole frame */
    /* OPEN: how many READs came with it. CLOSE that came with one: how many of these are not
     * answered yet. */
    uint32_t ahead;
    bool may_refer;              /* OPEN: with CWB_REFER */
    struct cwb_request *closing; /* READ that came with an OPEN: its CLOSE; NULL: there is none */
    struct cwb_request *backlog_next;
    /* What is answered at once, or when the asked side has read something of ours: it fails when
     * that is not so for stall_ns. */
    bool is_timed;
    int64_t asked_ns;                                /* when it was sent */
    int64_t (*moved_ns)(const struct cwb_request *); /* when it was last read; NULL: it is not */
    struct cwb_request *timed_next, *timed_prev;     /* of its link, in the order of asked_ns */
    UT_hash_handle hh;
};

/*
 * What an OPEN asked for with it, while its on_reply runs: requests without an owner, whose data
 * go nowhere, unless somebody takes them over by then (download.c).
 */
struct cwb_ahead {
    uint64_t source; /* 0: nothing */
    struct cwb_request *reads[CWB_AHEAD_MAX];
    uint32_t count;
    struct cwb_request *closing; /* NULL: they are not all of it */
};

struct cwb_link {
    struct cwb_wire wire; /* first: it is cast back */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer; /* dialed: from the begin; accepted: once its key was seen */
    enum cwb_link_state state;
    bool dialed, counted_unknown;
    bool parting;           /* idle.c: IDLE was said, or heard and taken, and it is not refused */
    struct cwb_bytes first; /* accepted: the begin of its first record of TLS; else none */
    char where[CW_ADDRESS_MAX + 1]; /* the other side's address */
    int64_t limit_ns;               /* until OPEN: then it must be open */
    int64_t pinged_ns, ping_sent_ns, opened_ns, rtt_ns;
    int64_t used_ns;   /* idle.c: when something was last asked over it, or depended on it */
    uint32_t pings;    /* of ours that are not answered */
    int64_t served_ns; /* when a small array was last sent, in its answer; 0: none */
    struct cwb_stream *stream; /* it begins this one; NULL: it is a link, or will be */

    struct cwb_request *reading; /* whose data are coming */
    struct cwb_ahead ahead;

    uint64_t run;                             /* of the other side, from its HELLO */
    uint32_t version, read_max, requests_max; /* agreed */
    uint64_t instance;                        /* of the other side's broker */
    uint64_t since_ns;                        /* that broker had begun by then, CLOCK_BOOTTIME */
    uint64_t next_id;
    struct cwb_request *timed;
    uint64_t changed_left;                      /* so many CHANGED may still come */
    struct cwb_request *requests;               /* ours, by id */
    uint32_t request_count;                     /* of those that were sent; WAITs do not count */
    struct cwb_request *backlog, **backlog_end; /* not sent yet: as many as agreed are under way */
    struct cwb_served *served;                  /* theirs that wait (serve.c), by id */
    uint32_t served_count, wait_count;
    struct cwb_link *next, *prev; /* of the bridge */
};

/* A connection was accepted; takes fd over. */
void cwb_link_accept(struct cwb_bridge *bridge, int fd, const char *where);
/* Connects to a peer; takes fd (a non-blocking socket) over. NULL: there is no memory. */
struct cwb_link *cwb_link_dial(struct cwb_bridge *bridge, struct cwb_peer *peer, int fd,
                               const struct sockaddr *address, socklen_t length, const char *where);
/* The same for one more connection of a peer, which is to be a stream. */
struct cwb_link *cwb_link_dial_stream(struct cwb_stream *stream, int fd,
                                      const struct sockaddr *address, socklen_t length,
                                      const char *where);
/* Its socket and TLS go to link->stream, when the kernel has given back what it has. */
void cwb_link_leave(struct cwb_link *link);
/* Ends it: all requests are told, the reason (cw_detail()) is kept with the peer and logged. May be
 * repeated. */
void cwb_link_end(struct cwb_link *link);
/* From streams.c: ends one that was to become link->stream, which is freed. Of no other connection
 * is anything changed by it, nor of its peer. */
void cwb_link_end_stream(struct cwb_link *link, const char *reason);

/* Sends a request; the link is open, and one that ends meanwhile tells on_reply. NULL: there is no
 * memory for it (cw_detail()), and it was not sent. */
struct cwb_request *cwb_link_ask(struct cwb_link *link, uint16_t op, const struct iovec *parts,
                                 uint32_t count, cwb_on_reply *on_reply, void *owner);
/* The same, OPEN; text is the key, and what its flags say behind it. ahead: the first READs go with
 * it, if not too much is under way already. */
struct cwb_request *cwb_link_open(struct cwb_link *link, struct cwb_key *key, const char *text,
                                  uint32_t bytes, bool ahead, cwb_on_reply *on_reply, void *owner);
/* How long a piece of an array is that READs over this link ask for, but the last. */
uint32_t cwb_link_piece_bytes(const struct cwb_link *link);
/* The READ of a piece of an array of so many bytes. Both sides cut what comes with an OPEN so. */
struct cwb_read cwb_link_piece(const struct cwb_link *link, uint64_t source, uint64_t size_bytes,
                               uint32_t number);
/* The same, READ: the reply's data go to target. */
struct cwb_request *cwb_link_read(struct cwb_link *link, const struct cwb_read *read,
                                  uint8_t *target, cwb_on_reply *on_reply, void *owner);
/* Its owner is gone: on_reply is not called any more. */
void cwb_request_forget(struct cwb_request *request);
/* A frame without a reply. */
void cwb_link_say(struct cwb_link *link, uint16_t op, const struct iovec *parts, uint32_t count);
/* The reply to a request of theirs. status < 0: detail is the sentence. */
void cwb_link_reply(struct cwb_link *link, uint16_t op, uint64_t id, int status, const char *detail,
                    const struct iovec *parts, uint32_t count);

/* Makes its TLS state and begins the handshake. 0 or a negative code. */
int cwb_link_begin_tls(struct cwb_link *link);
/* What was kept of its first record is of no more use. */
void cwb_link_drop_first(struct cwb_link *link);
/* What a peer answered instead: its sentence, with its name, since pids, devices and limits in it
 * are those of its node. Returns the status. */
int cwb_link_refused(const struct cwb_peer *peer, const struct cwb_frame *frame);
/* A request was answered: of the backlog goes what may. */
void cwb_link_answered(struct cwb_link *link, const struct cwb_request *request);
/* An OPEN was answered with the number of an upload: link->ahead has what came with it. 0; -EPROTO:
 * more is announced than was asked for; or -EDQUOT. */
int cwb_link_expect(struct cwb_link *link, const struct cwb_request *request,
                    const struct cwb_opened *opened);

/* Heartbeats and limits. Returns when it wants to be called again. */
int64_t cwb_links_tick(struct cwb_bridge *bridge);

#endif
