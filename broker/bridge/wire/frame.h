/*
 * Frames: what two bridges say to each other over TLS, byte by byte. docs/PROTOCOL.md tells the
 * same.
 *
 * A frame is a struct cw_message (the local protocol's head, ipc/wire.h) and a body of size_bytes -
 * 24 bytes; integers little-endian. Requests go both ways over one connection; each has an id that
 * its sender chose, and one reply with the same id and op | CW_OP_REPLY. A reply with a status
 * below 0 has a sentence as its body. HELLO, CANCEL, CHANGED and STREAMS have no reply.
 *
 * Bytes of arrays are always PULLED by who receives them: a *source* is a number that the sending
 * side gave to an array (to its upload of it, upload.h); READ asks for a piece of it, and its reply
 * is the only frame that carries more than CWB_FRAME_MAX. So who receives decides how much is under
 * way (that is the credit), on which connection, and where to go on after a cut. A get is OPEN,
 * READ..., CLOSE; a put is an OFFER, at which the other side READs and CLOSEs, and then answers the
 * OFFER. Small arrays go inside the reply to OPEN, and inside the OFFER. Who OPENs may ask for the
 * first pieces with it (CWB_AHEAD), before it knows the source's number, so that no more than one
 * round trip passes before an array of some pieces is there.
 *
 * Pure functions over bytes: cwb_frame_parse() trusts nothing, and what it returns may be trusted
 * in form (lengths, ranges, NULs); whether a request may be made is looked at elsewhere.
 */
#ifndef CW_BROKER_BRIDGE_WIRE_FRAME_H
#define CW_BROKER_BRIDGE_WIRE_FRAME_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ipc/base/node.h"
#include "ipc/wire.h"
#include "shm/names/directory.h"

#define CWB_MAGIC          0x6567646972627763ull /* "cwbridge" */
#define CWB_VERSION        5u
#define CWB_VERSION_MIN    5u
#define CWB_INLINE_MAX     (16u << 10)  /* arrays up to here go inside OPEN's reply and OFFER */
#define CWB_FRAME_MAX      (32u << 10)  /* of any frame but a READ's reply */
#define CWB_READ_MAX       (256u << 10) /* bytes that one READ asks for; agreed by HELLO */
#define CWB_READ_MIN       (16u << 10)  /* the least that a HELLO may offer */
#define CWB_AHEAD_MAX      4u           /* READs that one OPEN may bring with it */
#define CWB_REQUESTS_MAX   1024u        /* requests under way in one direction; agreed by HELLO */
#define CWB_REQUESTS_MIN   16u
#define CWB_REQUESTS_SPARE 16u     /* beyond those: PING, CANCEL, CHANGED */
#define CWB_WAITS_MAX      65536u  /* WAITs of a peer, over all its connections, */
#define CWB_WAITS_ALL_MAX  524288u /* and of all peers, beyond */
#define CWB_WAITS_OWN      1024u   /* those that each may have in any case */
#define CWB_WATCHES_MAX    65536u  /* names of whose change a peer is told */
#define CWB_CHANGED_SPARE  1024u   /* CHANGED over a link, beyond one for each OPEN with WATCH */
#define CWB_ARRAY_MAX      (1ull << 48) /* bytes of an array */

enum cwb_op {
    CWB_HELLO = 1, /* the first frame of each side, no reply */
    CWB_PING,      /* reply: nothing */
    CWB_OPEN,      /* key. reply: opened, meta, data if it is small; behind it, as it says, the
                      replies to READs that came with it */
    CWB_READ,      /* reply: data, then length_bytes of it */
    CWB_CLOSE,     /* reply: closed: the sum of the hashes of all of the array */
    CWB_OFFER,     /* offer, key, meta, data if it is small. reply: it stands under its name. With
                      CW_PUT_TREE a tree: its index, whose parts the other side OPENs. reply:
                      put_done */
    CWB_WAIT,      /* key. reply when the name is there and may be read */
    CWB_NAMES,     /* key (the name is a prefix, may be empty). reply: opened: names, each
                      terminated, as the bytes of a source */
    CWB_REMOVE,    /* remove, key. reply: nothing */
    CWB_CANCEL,    /* cancel: that request of the same sender is answered -ECANCELED, unless it was
                      answered already; no reply itself */
    CWB_CHANGED,   /* changed, key: what a CWB_OPEN with CWB_WATCH opened is no longer what the name
                      means; told once; no reply */
    CWB_STREAMS,   /* streams: how many connections it reads large arrays over; after
                      the HELLOs, no reply */
    CWB_STREAM,    /* stream hello: the first frame, in place of a HELLO, of a connection
                      that is to be a stream. reply: nothing; then READ and PING alone go over it */
    CWB_IDLE,      /* who dialed has no use of the link any more, and asks nothing until it is
                        answered. The other side ends it, or, if it is wanted there, answers -EBUSY */
    CWB_OPS
};

struct cwb_hello {
    uint64_t magic;
    uint32_t version_min, version_max;
    uint64_t run; /* of the bridge: random, never 0 */
    uint32_t read_max, requests_max;
    uint64_t instance;          /* of its broker, not 0 */
    uint64_t up_ns;             /* for how long that has run, not less, CLOCK_BOOTTIME */
    char node[CW_NODE_MAX + 1]; /* terminated, the rest zero: how it calls itself */
};
/*
 * What changes something is done once, however often it is asked for: its token is the instance of
 * the asker's broker and a number which that broker gave, the same in each repetition (once.h).
 */
struct cwb_token {
    uint64_t instance, number; /* neither 0 */
    uint64_t settled;          /* the asker repeats none with a lower number; at most number */
};
enum cwb_names_flags {
    CWB_ABOUT = 1, /* of NAMES: the key is a whole name, and asked is what is known about it. reply:
                      one text, or -ENOENT: bytes, moment of the put (ns, CLOCK_REALTIME), keep,
                      dtype, then the shape's numbers, each after a tab; opened says which put */
};
enum cwb_open_flags {
    CWB_WATCH = 1, /* tell when the name means something else, or is gone */
    CWB_PART = 2,  /* behind the key a struct cwb_part: a part of the tree under that name */
    /* With CWB_PART: of a tree that this side OFFERs under that name: instance and version are
     * those of the OFFER's token. */
    CWB_PUT_PART = 4,
    /* With CWB_WATCH: the reply may refer the asker to another node that has the same bytes. */
    CWB_REFER = 8,
    CWB_FAILED = 16, /* with CWB_REFER: the node that the last reply named did not bring them */
    /* Behind the key a struct cwb_ticket: this side's replica of a third node's array. */
    CWB_TICKET = 32,
    /*
     * A number, from bit CWB_AHEAD_SHIFT on: so many READs come with it, of the agreed read_max (in
     * whole CWB_READ_MIN) each, from the first byte on, and behind them, if they are all of the
     * array, its CLOSE. Their ids are those that follow the OPEN's, one after another.
     */
    CWB_AHEAD = 0xff00,
    CWB_AHEAD_SHIFT = 8,
};
enum cwb_wait_flags {
    CWB_AFTER = 1, /* behind the key a struct cwb_after */
};
struct cwb_key { /* OPEN, WAIT, NAMES; then key_bytes of key, then what the flags say */
    uint32_t key_bytes;
    uint32_t flags; /* enum cwb_open_flags, cwb_names_flags, cwb_wait_flags; else 0 */
};
struct cwb_part {               /* OPEN with CWB_PART */
    uint64_t instance, version; /* of the tree, as the answer to its own OPEN said */
    uint32_t number;            /* of the part, in the index */
    uint32_t reserved;          /* 0 */
};
struct cwb_ticket {           /* OPEN with CWB_TICKET: what the owner said of its array */
    uint64_t instance, entry; /* neither 0 */
    uint64_t turn;            /* the asker's, not 0: it waits for nobody whose turn is later */
    uint64_t secret[2];
};
#define CWB_DIGEST_BYTES 32u /* SHA-256 */
/* In the reply to an OPEN with CWB_REFER, behind the meta (relay/fan_out.h). */
struct cwb_referral {
    uint64_t turn;      /* the asker's among those that the owner told of this array, not 0 */
    uint64_t secret[2]; /* by which others that may read it are known */
    uint8_t digest[CWB_DIGEST_BYTES]; /* of all bytes, if node is one; else zero */
    char node[CW_NODE_MAX + 1]; /* which has it, or will; terminated, the rest zero; all zero: the
                                   bytes are here, as ever */
};
struct cwb_after {              /* WAIT with CWB_AFTER */
    uint64_t instance, version; /* a later one, or any of another instance; instance 0: this one */
};
struct cwb_opened {      /* then meta_bytes of meta, then size_bytes of data if inside */
    uint64_t source;     /* to READ and CLOSE; 0 if inside, or at the node that is referred to */
    uint64_t size_bytes; /* of the array */
    uint64_t instance;   /* of the owner's broker, and which put of it this is: two opened arrays */
    uint64_t entry;      /* with both the same are the same array */
    uint64_t hash;       /* XXH3, 64 bits, if inside, else 0 */
    uint16_t inside; /* 1: the data follow; CWB_REFERRED: a struct cwb_referral does (parsed: 0) */
    uint16_t ahead;  /* so many of the READs that came with the OPEN are answered; if these are
                        all of the array, the CLOSE, too; of others nothing is heard */
    uint32_t meta_bytes;
};
#define CWB_REFERRED 2u
struct cwb_read { /* READ; its reply begins with the same */
    uint64_t source;
    uint64_t offset_bytes;
    uint32_t length_bytes;
    uint32_t reserved; /* 0 */
};
struct cwb_close {
    uint64_t source;
    uint32_t unneeded; /* 1: given up, the hash is not wanted */
    uint32_t reserved; /* 0 */
};
struct cwb_closed {
    uint64_t hash; /* over all bytes, from the lowest to the highest: checksum.h */
};
struct cwb_offer { /* then key_bytes of key, meta_bytes of meta, size_bytes of data if inside */
    struct cwb_token token;
    uint64_t source; /* of the offering side; 0 if inside */
    uint64_t size_bytes;
    uint64_t hash;   /* if inside, else 0 */
    uint32_t inside; /* 1: the data follow */
    uint32_t flags;  /* enum cw_put_flags, CWB_AGAIN */
    uint32_t key_bytes, meta_bytes;
};
struct cwb_put_done { /* the reply to an OFFER with CW_PUT_TREE */
    uint64_t version; /* that the name means now: of the answering side's broker */
};
#define CWB_AGAIN 8u /* OFFER, REMOVE: it was asked for before, perhaps */
struct cwb_remove {  /* then key_bytes of key */
    struct cwb_token token;
    uint32_t key_bytes;
    uint32_t flags; /* CWB_AGAIN */
};
struct cwb_cancel {
    uint64_t id;
};
struct cwb_streams_said {
    uint32_t streams;  /* 1: none but the link itself; the smaller of both sides' counts */
    uint32_t reserved; /* 0 */
};
struct cwb_stream_hello {
    uint64_t magic;
    uint64_t run, to_run; /* of the bridge that sends it, and of the one that it means */
};
struct cwb_changed {          /* then key_bytes of key */
    uint64_t instance, entry; /* what was opened */
    uint32_t key_bytes;
    uint32_t reserved; /* 0 */
};
_Static_assert(sizeof(struct cwb_hello) == 112 && sizeof(struct cwb_key) == 8 &&
                   sizeof(struct cwb_opened) == 48 && sizeof(struct cwb_read) == 24 &&
                   sizeof(struct cwb_close) == 16 && sizeof(struct cwb_closed) == 8 &&
                   sizeof(struct cwb_offer) == 64 && sizeof(struct cwb_remove) == 32 &&
                   sizeof(struct cwb_changed) == 24 && sizeof(struct cwb_streams_said) == 8 &&
                   sizeof(struct cwb_stream_hello) == 24 && sizeof(struct cwb_part) == 24 &&
                   sizeof(struct cwb_after) == 16 && sizeof(struct cwb_put_done) == 8 &&
                   sizeof(struct cwb_ticket) == 40 && sizeof(struct cwb_referral) == 120,
               "layout");

#define CWB_HEAD_BYTES ((uint32_t)sizeof(struct cw_message))

struct cwb_frame { /* a parsed frame; the pointers lead into the bytes that were parsed */
    struct cw_message head;
    union {
        struct cwb_hello hello;
        struct cwb_key open;
        struct cwb_opened opened;
        struct cwb_read read;
        struct cwb_close close;
        struct cwb_closed closed;
        struct cwb_offer offer;
        struct cwb_put_done put_done;
        struct cwb_remove remove;
        struct cwb_cancel cancel;
        struct cwb_changed changed;
        struct cwb_streams_said streams;
        struct cwb_stream_hello stream;
    };
    struct cwb_part part;         /* OPEN with CWB_PART; else zero */
    struct cwb_after after;       /* WAIT with CWB_AFTER; else zero */
    struct cwb_ticket ticket;     /* OPEN with CWB_TICKET; else zero */
    struct cwb_referral referral; /* OPEN's reply with one; else zero: turn 0 */
    const char *key;              /* namespace, NUL, name; of NAMES the name is a prefix */
    uint32_t key_bytes;
    const uint8_t *meta;
    uint32_t meta_bytes;
    const uint8_t *data;  /* size_bytes, if inside */
    const char *sentence; /* of a status below 0; not terminated */
    uint32_t sentence_bytes;
};

/* Is the head of a frame one that may come now? greeted: a HELLO or STREAM has come. A READ's reply
 * may have up to read_max bytes of data. 0 or -EPROTO with the sentence. */
int cwb_head_check(const struct cw_message *head, bool greeted, uint32_t read_max);
/* Checks a whole frame whose head was checked; body is of head->size_bytes - 24 bytes, of a READ's
 * reply the struct cwb_read alone (its data are not looked at). 0 or -EPROTO with the sentence. */
int cwb_frame_parse(const struct cw_message *head, const void *body, struct cwb_frame *out);
/* The size of a frame of a head and parts, and its bytes, at `frame`. */
uint32_t cwb_frame_bytes(const struct iovec *parts, uint32_t count);
void cwb_frame_fill(uint8_t *frame, const struct cw_message *head, const struct iovec *parts,
                    uint32_t count);
/* Is this a key: a namespace, NUL, and a name, or (prefix) the begin of one? 0 or -EPROTO. */
int cwb_key_check(const char *key, uint32_t key_bytes, bool prefix);

#endif
