/*
 * Wire: what client and broker say to each other, byte by byte. docs/PROTOCOL.md tells the same.
 *
 * One message format, two carriers. The socket (AF_UNIX, SOCK_SEQPACKET, one message a datagram)
 * carries what comes with descriptors: HELLO, SLAB_ADD, SLAB_OPEN, SEGMENT_OPEN, LEASE_TABLE, FORK,
 * FENCES_ADD, FENCES_OPEN.
 * The channel (two rings in the session segment) carries all else; there the ring's record type is
 * the message's op. All integers little-endian, all structures packed by natural alignment.
 *
 * A request has an id, chosen by the client, that rises; its reply carries the same id and op |
 * CW_OP_REPLY. Ops marked "no reply" have none. A reply with status < 0 (negative errno) has a
 * sentence (UTF-8, not terminated) as its body. The broker validates every field of a copy; a
 * breach of form (a size that does not fit, an unknown op) drops the client, a wish that cannot be
 * met is an error reply.
 *
 * What the structures do not say:
 *   channel     a record's payload is struct cw_message and the body; its type equals the op, its
 *               length size_bytes. A session's requests are handled in the order of its ring.
 *   socket      one request at a time: the client sends the next one when it has the reply. More
 *               than max_client_unread unread messages drop the client.
 *   doorbell    an eventfd: the client writes the 8-byte number 1, never reads.
 *   bell        the read end of a pipe (not an eventfd: its flags would be shared with the client,
 *               who could make the broker's write block). Non-blocking; poll for POLLIN, read to
 *               empty it (a buffer of any size); POLLHUP: the broker is gone.
 *   drop        who is dropped gets one last message on the socket (op CW_OP_REPLY alone, id 0,
 *               status, sentence: why), then end of file. Its leases stay until it is dead.
 *   leases      an owner holds a slot on each block that it uses, stored BEFORE the block is
 * carved, published or not: a block without slot and reference is anybody's to report, and the
 * broker then takes it back. LEASE_TABLE reply body: struct cw_segment_reply; header at 0, struct
 * cw_lease_table at CW_PAGE. SLAB_ADD    reply body: struct cw_slab_info, with slab and
 * owner_session filled in. SLAB_ADOPT  free_bytes in one piece; foreign slabs are never given.
 * SLAB_OPEN gets the fds. SLAB_CLOSE  blocks that are still alive do not matter: the slab then
 * becomes an orphan. FORK        reply without body. The fd is the read end of a pipe. TRANSIT_* a
 * session's counters rise in the order of its BEGINs. An END that overtakes its BEGIN (they come
 * from two rings) is remembered. A counter is at most transits_ready of the session segment, which
 * a PING may let rise; a BEGIN beyond that may do nothing. PUT         -ESTALE: slab or
 * generation is gone; -EINVAL: key, or beyond the block's end. BYE         the broker closes the
 * socket; no reply.
 */
#ifndef CW_IPC_WIRE_H
#define CW_IPC_WIRE_H

#include <stdint.h>

#define CW_PROTOCOL_VERSION 4u
#define CW_HELLO_MAGIC      0x6361626c65776179ull /* "cableway" */
#define CW_MESSAGE_MAX      8192u                 /* bytes of any message, header included */
#define CW_OP_REPLY         0x8000u
/* Bytes of GET's reply, that says where an array of another node lies, and its meta. Of one that is
 * longer the client finds the name in the directory: a look more, and nothing is refused. */
#define CW_PLACED_MAX   512u
#define CW_TRANSITS_MAX (1u << 20) /* of all clients together, the dead included */

enum cw_op {
    /* socket */
    CW_OP_HELLO = 1,    /* fds in: pidfd. reply fds: root, session, doorbell, bell,
                      index, first segment of records */
    CW_OP_SLAB_ADD,     /* fds in: data, block table. reply: slab id */
    CW_OP_SLAB_OPEN,    /* reply fds: data, block table */
    CW_OP_SEGMENT_OPEN, /* reply fds: the segment */
    CW_OP_LEASE_TABLE,  /* reply fds: one more lease table (CW_SEGMENT_LEASES) */
    CW_OP_FORK, /* fds in: read end of a pipe. All leases of the caller's tables, as they stand,
                   are held once more until every copy of the pipe's write end is closed. */
    CW_OP_FENCES_ADD,  /* reply: fence page; fds: one more page of fences for the caller */
    CW_OP_FENCES_OPEN, /* fence page (page): reply: fence page; fds: that page, of any session */
    /* channel */
    CW_OP_FENCES_BREAK = 31, /* no reply: fence page (page): nothing that the caller submitted
                                behind these fences will be done any more, for its context is
                                broken: they are poisoned as if it were dead */
    CW_OP_PUT = 32,
    CW_OP_REMOVE,
    CW_OP_WAIT,   /* replies when the name is there (at once, or later) */
    CW_OP_CANCEL, /* ends a WAIT, CLAIM, COPY or MOVER_NEXT: that replies -ECANCELED unless already
                     answered, or begun by the mover; no reply itself */
    CW_OP_TRANSIT_BEGIN, /* no reply */
    CW_OP_TRANSIT_END,   /* no reply: it ends, whoever was still to open it */
    CW_OP_DROP, /* no reply: a lease ended on a wanted block, or the owner's last on a published */
    CW_OP_SLAB_CLOSE, /* no reply: the owner gives up a slab, all of whose blocks are free */
    CW_OP_SLAB_ADOPT, /* reply: an orphan slab, so many bytes free, now the caller's; or -ENOENT */
    CW_OP_HOLDERS,    /* reply: pids that hold a block */
    CW_OP_STOP,       /* reply, then the broker ends */
    CW_OP_BYE,        /* no reply: the client ends its session on purpose; its leases end now */
    CW_OP_PING,       /* reply: nothing */
    CW_OP_TRANSIT_ANCHOR, /* no reply: the transit does not end by its limit while the block named
                             beside its token is alive (an item of a queue, and the queue) */
    CW_OP_COPY,       /* a job for cableway-mover. Replies when it is done; CANCEL ends it while the
                         mover has not taken it */
    CW_OP_MOVER_NEXT, /* of the broker's own mover alone: replies with a job when there is one */
    CW_OP_MOVER_DONE, /* no reply: a job has ended, well or with a sentence */
    CW_OP_LINK,       /* reply: what is known of the way between two GPUs, or -ENOENT */
    CW_OP_LINK_KEEP,  /* no reply: what somebody measured */
    CW_OP_REMOTE,     /* a job for cableway-bridge. Replies when it is done; CANCEL ends it */
    CW_OP_REMOTE_NEXT, /* of the broker's own bridge alone: replies with a job when there is one */
    CW_OP_REMOTE_DONE, /* no reply: a job has ended, well or with a sentence */
    CW_OP_CHANGES,     /* of the bridge alone: replies when names ended, or are new */
    CW_OP_REPLICA,     /* of the bridge alone: an array gets a remote name. reply: nothing */
    CW_OP_MAKE, /* of the bridge alone, a job for cableway-mover: replies with memory on a GPU */
    CW_OP_HOLDERS_OF, /* reply: how many clients hold each of many blocks */
    CW_OP_ROOM,       /* reply: how much host memory that other clients kept free was taken back,
                         for one who is about to be refused */
    CW_OP_DEED,       /* of the bridge alone: a put or a remove for a peer, done once however often
                         it is asked for. reply: nothing */
    CW_OP_GROUP,      /* blocks are held for as long as another one, the anchor, is alive. reply:
                         nothing */
    CW_OP_PUT_TREE,   /* PUT of an anchor, if the name means the version that is said. reply: the
                         version that it is now */
    CW_OP_FIND_VERSION,   /* reply: where a version lies that was put as a tree, or -ENOENT */
    CW_OP_WAIT_AFTER,     /* WAIT until the name means a later version */
    CW_OP_CLAIM,          /* to be the one who loads what the name is to mean: replies 0 at once, or
                             -EAGAIN when somebody else's claim is over, or the name means a later
                             version: look again */
    CW_OP_RELEASE,        /* no reply: a claim of the caller's is over */
    CW_OP_NEXT_VERSION,   /* reply: of the versions of a name, or of all whose key begins so, the
                             earliest one after that which is said, or -ENOENT */
    CW_OP_TRANSIT_SHARE,  /* no reply: TRANSIT_BEGIN of a handle that several open */
    CW_OP_TRANSIT_OPENED, /* no reply: one of those opened it, and has a lease; the last ends it */
    CW_OP_TRANSITS,       /* reply: the oldest transits, of all clients */
    CW_OP_LIMIT_SET,      /* not of the bridge: a limit changes now. reply: before and now */
};

struct cw_message {
    uint32_t size_bytes; /* of the whole message */
    uint16_t op;
    uint16_t flags; /* 0 */
    uint64_t id;
    int32_t status;    /* in replies: 0 or negative errno */
    uint32_t reserved; /* 0 */
};

struct cw_hello { /* request body */
    uint64_t magic;
    uint32_t version_min, version_max;
    char comm[32]; /* what monitors show; not terminated when full */
};
struct cw_hello_reply {
    uint32_t version; /* the one that holds from now on */
    uint32_t session;
    uint64_t instance; /* of the broker: random, never 0 */
    uint64_t root_bytes, session_bytes;
    uint64_t index_id, index_bytes; /* of the directory as it stands, */
    uint64_t records_bytes;         /* and of its first segment of records: what is warm from the
                                       start needs no SEGMENT_OPEN */
};
/* A refused HELLO replies with status -EPERM (other user), -EPROTO (version), -EDQUOT (max_clients)
 * and the sentence, then the broker closes. */

enum cw_device_kind { CW_DEVICE_HOST = 1, CW_DEVICE_CUDA = 2 };
enum cw_slab_flags {
    CW_SLAB_FOREIGN =
        1, /* the data is somebody else's shared memory (adopted by fd), maybe unsealed */
};
struct cw_slab_info { /* SLAB_ADD body; SLAB_OPEN and SLAB_ADOPT reply it */
    uint32_t slab;    /* 0 in SLAB_ADD */
    uint32_t device_kind;
    uint8_t device_uuid[16]; /* zero for the host */
    uint64_t size_bytes;     /* of the data */
    uint32_t blocks;         /* capacity of the block table */
    uint32_t flags;          /* enum cw_slab_flags */
    uint32_t owner_session;  /* 0: orphan; ignored in SLAB_ADD */
    uint32_t reserved;
};
struct cw_slab_request { /* SLAB_OPEN, SLAB_CLOSE (slab); SLAB_ADOPT (the rest) */
    uint32_t slab;
    uint32_t device_kind;
    uint64_t free_bytes;
    uint8_t device_uuid[16]; /* SLAB_ADOPT: of that device */
};
#define CW_ROOM_OPENED 1u /* no slab is wanted: only that opened pickles' transits end */
#define CW_ROOM_CHECK  2u /* none is taken: would a slab of host memory be refused for a limit? */
struct cw_room {          /* ROOM; the reply is the same struct */
    uint64_t size_bytes;  /* that are wanted; reply: that were taken back */
    uint64_t turn;        /* 0 at first, then as in the last reply */
    uint32_t next;        /* the same: where to go on; reply: 0: all slabs were looked at */
    uint32_t slabs;       /* reply: so many were taken back (CW_ROOM_OPENED: have ended);
                           * CW_ROOM_CHECK: the slab's blocks */
    uint32_t unsettled; /* reply: 1: blocks that came free before the first ROOM wait for a look */
    uint32_t what;      /* 0, CW_ROOM_OPENED or CW_ROOM_CHECK */
};
struct cw_segment_request { /* SEGMENT_OPEN body */
    uint32_t kind;          /* CW_SEGMENT_INDEX or CW_SEGMENT_RECORDS */
    uint32_t reserved;
    uint64_t which; /* index id, or number of the record segment */
};
struct cw_segment_reply {
    uint64_t size_bytes;
};
struct cw_fence_page { /* FENCES_OPEN, FENCES_BREAK (page alone), FENCES_ADD: bodies and replies */
    uint32_t page;     /* numbers of its fences: page * CW_FENCES_PER_PAGE and up; from 1 */
    uint32_t session;  /* whose */
    uint64_t size_bytes;
};

enum cw_put_flags {
    CW_PUT_REPLACE = 1,
    CW_PUT_KEEP = 2,
    CW_PUT_REMOTE_READ = 4, /* peers of the bridge may read it, whatever else they may */
    CW_PUT_WEAK = 8,        /* the name lasts only as long as somebody has the array open */
    CW_PUT_TREE = 16,       /* REMOTE: the block is the index of a tree, and an anchor */
    CW_PUT_TIED = 32,       /* PUT, PUT_TREE: the name ends with the process that puts it */
    CW_PUT_GPU = 0xff0000,  /* REMOTE: onto this GPU of the other node, its number there + 1 */
};
#define CW_PUT_GPU_SHIFT 16
struct cw_put { /* then key_bytes of key, then meta_bytes of meta */
    uint32_t slab, block;
    uint64_t gen;
    uint64_t offset_bytes, size_bytes;
    uint32_t flags; /* enum cw_put_flags */
    uint16_t key_bytes, meta_bytes;
};
struct cw_key { /* REMOVE, WAIT; then key_bytes of key */
    uint32_t key_bytes;
    uint32_t reserved;
};
struct cw_wait_after { /* WAIT_AFTER; then key_bytes of key */
    uint64_t after;    /* cw_entry.id: answered when the name means one that is higher */
    struct cw_key key;
};
struct cw_claim {   /* CLAIM, RELEASE; then key_bytes of key */
    uint64_t token; /* the caller's number for it; RELEASE of the same ends it */
    uint64_t after; /* cw_entry.id: nothing is to be loaded if the name means one that is higher */
    struct cw_key key;
};
struct cw_cancel {
    uint64_t id; /* of the WAIT */
};
struct cw_block_ref { /* TRANSIT_BEGIN (token), TRANSIT_END and TRANSIT_OPENED (of this block; slab
                         0: of any), DROP, HOLDERS,
                         TRANSIT_ANCHOR (token of the transit, the block to which it is tied) */
    uint64_t token;   /* session << 32 | counter of that session; 0 where none */
    uint32_t slab, block;
    uint64_t gen;
};
#define CW_OPENERS_ANY         0u /* nobody knows how many */
#define CW_TRANSIT_OPENERS_MAX 65536u
struct cw_transit_share { /* TRANSIT_SHARE body */
    struct cw_block_ref ref;
    uint32_t openers; /* 1 to CW_TRANSIT_OPENERS_MAX, or CW_OPENERS_ANY */
    uint32_t reserved;
};
struct cw_limit_set { /* LIMIT_SET; then name_bytes of the limit's name */
    uint64_t value;
    uint32_t name_bytes, reserved; /* 0 */
};
struct cw_limit_reply {
    uint64_t before, now; /* now: what a value of 0 bytes means */
};
#define CW_TRANSITS_TOLD     96u
#define CW_TRANSIT_IS_OPENED 1u /* by somebody, and stays for others */
#define CW_TRANSIT_IS_TIED   2u /* to a block with which it ends: an item of a queue */
struct cw_transit_told {
    uint32_t slab, block, session, pid; /* who began it; pid 0: it has ended */
    uint64_t size_bytes;                /* of the block */
    uint64_t age_ns, left_ns;           /* since it began; until its limit */
    uint32_t openers;                   /* that are still to come, or CW_OPENERS_ANY */
    uint32_t flags;                     /* CW_TRANSIT_IS_... */
    uint32_t device_kind, reserved;
    uint8_t device_uuid[16];
};
struct cw_transits_reply { /* TRANSITS reply; then count of cw_transit_told, the oldest first */
    uint32_t count, reserved;
    uint64_t total; /* of all that there are */
};
_Static_assert(sizeof(struct cw_limit_set) == 16 && sizeof(struct cw_limit_reply) == 16 &&
                   sizeof(struct cw_transit_told) == 72 && sizeof(struct cw_transits_reply) == 16 &&
                   24 + 16 + CW_TRANSITS_TOLD * sizeof(struct cw_transit_told) <= CW_MESSAGE_MAX,
               "layout");
#define CW_BLOCK_ANY UINT32_MAX /* HOLDERS: any block of the slab, whatever its generation */
struct cw_holders {   /* HOLDERS reply; then count (at most 64 listed) pids, uint32_t each */
    uint32_t holders; /* clients that hold a lease on it */
    uint32_t listed;
    uint32_t references;  /* of the broker's own: names, transits, forks */
    uint32_t owner_pid;   /* of the slab; 0 orphan */
    uint32_t device_kind; /* where the slab lies */
    uint32_t reserved;
    uint8_t device_uuid[16];
};
#define CW_BLOCKS_ASKED 240u
struct cw_block_name {
    uint32_t slab, block;
    uint64_t gen;
};
#define CW_GROUP_ASKED       480u       /* members that one GROUP names */
#define CW_GROUP_MEMBERS_MAX 65536u     /* of one anchor */
#define CW_GROUPED_MAX       (1u << 20) /* anchors and members, of all clients together */
struct cw_block_group { /* GROUP body; then count of cw_block_name. No block is anchor and member */
    struct cw_block_name anchor;
    uint32_t count;
    uint32_t reserved; /* 0 */
};
#define CW_VERSION_ANY UINT64_MAX
struct cw_put_tree {     /* PUT_TREE body; then key and meta of the put */
    uint64_t if_version; /* cw_entry.id of what the name means; 0: nothing; CW_VERSION_ANY */
    struct cw_put put;   /* of a block that is an anchor */
};
struct cw_find_version { /* FIND_VERSION body; then key_bytes of key */
    uint64_t version;
    struct cw_key key;
};
struct cw_version { /* PUT_TREE and FIND_VERSION reply */
    uint64_t version;
    uint32_t slab, block;
    uint64_t gen, offset_bytes, size_bytes;
};
struct cw_next_version { /* NEXT_VERSION body; then key_bytes of key */
    uint64_t after;
    uint32_t begins; /* 1: of all names whose key begins so; 0: of this one */
    uint32_t reserved;
    struct cw_key key;
};
struct cw_version_found { /* NEXT_VERSION reply; then key_bytes of key */
    struct cw_version at;
    uint64_t created_ns;  /* CLOCK_REALTIME */
    uint64_t total_bytes; /* of its leaves, as who put it said */
    uint32_t key_bytes, reserved;
};
_Static_assert(sizeof(struct cw_next_version) == 24 && sizeof(struct cw_version_found) == 64,
               "layout");
struct cw_blocks { /* HOLDERS_OF body; then count of cw_block_name */
    uint32_t count;
    uint32_t reserved; /* 0 */
};
struct cw_block_holders { /* HOLDERS_OF reply: one for each, in their order, or for as many as there
                             is room for */
    uint32_t holders;     /* as in cw_holders */
    uint32_t references;
    uint32_t device_kind; /* 0: the block is gone */
    uint32_t reserved;
    uint8_t device_uuid[16];
};
_Static_assert(sizeof(struct cw_message) + CW_BLOCKS_ASKED * sizeof(struct cw_block_holders) <=
                   CW_MESSAGE_MAX,
               "an answer fits a message");

enum cw_remote_verb {
    CW_REMOTE_GET = 1, /* the array is to stand under its remote name, as a replica */
    CW_REMOTE_WAIT,    /* the name is to be there */
    CW_REMOTE_PUT,     /* the array behind the handle, seen as meta says, gets the name */
    CW_REMOTE_REMOVE,
    CW_REMOTE_NAMES, /* the key is a prefix. reply: remote names */
    CW_REMOTE_PEERS, /* no key. reply: remote names: lines of text about each peer */
    CW_REMOTE_NODE,  /* whose name it is: 0 a peer's, -ELOOP this node's. Asks no peer */
    CW_REMOTE_ABOUT, /* reply: remote names: one text, as the bridges' NAMES with ABOUT tells it */
    CW_REMOTE_SELF,  /* no key. reply: the name of this node, not terminated. Asks no peer */
    CW_REMOTE_VERBS
};
#define CW_STALL_MAX_S 86400u /* --stall: seconds in which nothing comes of what was asked */
#define CW_FAN_OUT_MAX 4096u  /* --fan-out: nodes to which one sends a sealed array itself */
#define CW_IDLE_MAX_S  86400u /* --link-idle: seconds until an unused connection ends */
#define CW_STREAMS_MAX 16u    /* --streams: connections of the bridge to one node */
/* GET of a tree's part, in flags: the part (block) of version `gen` of the tree that the owner's
 * broker `instance` has under the name. offset_bytes and size_bytes are 128 bits by which the
 * caller names those bytes: the same for the same, whichever version they are a part of. */
#define CW_REMOTE_PART 1u
/* WAIT, in flags: until the name means a version after `gen`; instance: of which run of the owner's
 * broker that is, any version of another one counts as later; 0: not said. */
#define CW_REMOTE_AFTER 1u
struct cw_remote { /* REMOTE; then key_bytes of key (namespace, NUL, "//node/name"), then meta */
    uint32_t verb;
    uint32_t flags; /* PUT: enum cw_put_flags; GET: CW_REMOTE_PART; WAIT: CW_REMOTE_AFTER */
    uint16_t key_bytes, meta_bytes;
    uint32_t reserved;    /* 0 */
    uint8_t uuid[16];     /* GET: of the GPU where the replica is to lie; zero: host memory */
    uint64_t instance;    /* PUT: which array, as a handle has it; the caller holds it */
    uint32_t slab, block; /* until the reply */
    uint64_t gen, offset_bytes, size_bytes;
};
struct cw_remote_put_tree { /* reply to PUT with CW_PUT_TREE */
    uint64_t instance;      /* of the other node's broker, */
    uint64_t version;       /* and which put of it this is */
};
struct cw_remote_names { /* reply to NAMES and PEERS: an array of bytes, its transit the caller's */
    uint64_t count;
    uint64_t instance, token;
    uint32_t slab, block;
    uint64_t gen, offset_bytes, size_bytes; /* as a handle has it; size 0: nothing, no array */
};
struct cw_remote_job { /* REMOTE_NEXT reply; then the body of the client's request */
    uint64_t job;
    uint32_t session;   /* whose it is */
    uint32_t cancelled; /* 1: a job that the bridge has is not wanted any more; no body */
    uint64_t deed;    /* of PUT and REMOVE: its number, rising; the same for every bridge; else 0 */
    uint64_t settled; /* of these: nobody waits any more for those below it, and none is repeated */
    uint64_t taken_ns; /* when the broker took it, CLOCK_BOOTTIME */
    uint32_t handed;   /* 1: an earlier bridge had it, and may have begun it */
    uint32_t reserved; /* 0 */
}; /* job 0: nothing but a sign of life, to be answered by the next REMOTE_NEXT */
#define CW_REMOTE_NEXTS_MAX 8u /* REMOTE_NEXT of the bridge that may wait at once */
struct cw_remote_end { /* REMOTE_DONE; then a sentence (status < 0), or the client's reply */
    uint64_t job;
    int32_t status;
    uint32_t reserved;
};
struct cw_replica {    /* REPLICA; then the key and the meta of the put */
    uint32_t calm;     /* 1: the bridge is not woken for the reply: it sees it when it next wakes */
    uint32_t reserved; /* 0 */
    struct cw_put put;
};
enum cw_deed_verb { CW_DEED_ASK = 1, CW_DEED_PUT, CW_DEED_REMOVE, CW_DEED_PUT_TREE, CW_DEED_VERBS };
/* DEED; then, as for the ops of these names, put or put_tree with key and meta, or key; of ASK
 * nothing. What a peer wants to be done once: instance (of its broker) and number are the same in
 * each repetition. */
struct cw_deed {
    char peer[64]; /* terminated, the rest zero */
    uint64_t instance, number;
    uint64_t settled; /* the peer repeats none with a lower number */
    uint32_t verb;    /* enum cw_deed_verb */
    uint32_t again;   /* 1: it may have been done already; 0: it was not asked for before */
};
struct cw_deed_done { /* its reply */
    uint64_t version; /* that PUT_TREE gave, now or before; of others 0 */
};
struct cw_fast_path_answer { /* of the bridge itself, to a cw_remote of a GET over the fast path,
                           and (status 0) the body of a REMOTE's reply to a GET: where the array
                           lies, which whoever asked takes a lease on. Then text_bytes of its meta,
                           or (status < 0) of a sentence */
    int32_t status;
    uint32_t text_bytes;
    uint64_t instance;
    uint32_t slab, block;
    uint64_t gen, offset_bytes, size_bytes;
};
struct cw_changes {    /* CHANGES */
    uint64_t seen;     /* the directory's count of changes, as it was last told */
    uint32_t news;     /* 1: new names are to be told; 0: ends of names alone */
    uint32_t reserved; /* 0 */
};
#define CW_CHANGES_MAX 96u /* ends that are told apart */
struct cw_changed {        /* its reply, up to ended[count] */
    uint64_t seen;
    uint32_t count, all;            /* all 1: more ended, any may have */
    uint64_t ended[CW_CHANGES_MAX]; /* cw_entry.id of names that were removed or replaced */
};

_Static_assert(sizeof(struct cw_remote) == 72 && sizeof(struct cw_remote_names) == 56 &&
                   sizeof(struct cw_remote_job) == 48 && sizeof(struct cw_deed) == 96 &&
                   sizeof(struct cw_remote_end) == 16 && sizeof(struct cw_changes) == 16 &&
                   sizeof(struct cw_replica) == 48 && sizeof(struct cw_remote_put_tree) == 16 &&
                   sizeof(struct cw_deed_done) == 8 && sizeof(struct cw_fast_path_answer) == 48,
               "layout");
_Static_assert(sizeof(struct cw_wait_after) == 16 && sizeof(struct cw_claim) == 24 &&
                   sizeof(struct cw_block_group) == 24 && sizeof(struct cw_put_tree) == 48 &&
                   sizeof(struct cw_find_version) == 16 && sizeof(struct cw_version) == 40 &&
                   sizeof(struct cw_message) + sizeof(struct cw_block_group) +
                           CW_GROUP_ASKED * sizeof(struct cw_block_name) <=
                       CW_MESSAGE_MAX,
               "layout");
struct cw_block_range { /* bytes of a block */
    uint32_t slab, block;
    uint64_t gen;
    uint64_t offset_bytes; /* in the block */
};
struct cw_copy { /* COPY body */
    struct cw_block_range source, target;
    uint64_t size_bytes;
};
struct cw_make { /* MAKE body */
    uint64_t size_bytes;
    uint8_t device_uuid[16]; /* zero: by its number */
    uint32_t device;         /* as the mover counts GPUs, which sees all */
    uint32_t reserved;       /* 0 */
};
struct cw_made { /* MAKE reply: a block whose transit is the caller's to end */
    uint64_t token;
    uint32_t slab, block;
    uint64_t gen;
    uint64_t offset_bytes; /* in the block */
};
struct cw_job { /* MOVER_NEXT reply */
    uint64_t job;
    struct cw_copy copy; /* if make.size_bytes is 0 */
    struct cw_make make;
};
struct cw_job_end { /* MOVER_DONE body; then text_bytes of a sentence (status < 0), or made */
    uint64_t job;
    int32_t status; /* 0 or negative errno: what the client hears */
    uint32_t text_bytes;
};
enum cw_link_route { CW_LINK_SAME = 1, CW_LINK_PEER, CW_LINK_STAGED };
struct cw_link { /* LINK body (from and to count); its reply; LINK_KEEP body */
    uint8_t from_uuid[16], to_uuid[16]; /* bytes go from that GPU to this one */
    uint32_t route;                     /* enum cw_link_route */
    int32_t rank;                       /* as the driver has it; -1 unknown */
    uint32_t atomics;                   /* 1: they work across it */
    uint32_t reserved;
    uint64_t bytes_per_second; /* by that route; 0 not measured */
};

_Static_assert(sizeof(struct cw_block_range) == 24 && sizeof(struct cw_copy) == 56 &&
                   sizeof(struct cw_make) == 32 && sizeof(struct cw_made) == 32 &&
                   sizeof(struct cw_job) == 96 && sizeof(struct cw_job_end) == 16 &&
                   sizeof(struct cw_link) == 56,
               "layout");
_Static_assert(sizeof(struct cw_message) == 24 && sizeof(struct cw_hello) == 48 &&
                   sizeof(struct cw_hello_reply) == 56 && sizeof(struct cw_slab_info) == 48 &&
                   sizeof(struct cw_slab_request) == 32 && sizeof(struct cw_put) == 40 &&
                   sizeof(struct cw_block_ref) == 24 && sizeof(struct cw_holders) == 40 &&
                   sizeof(struct cw_fence_page) == 16,
               "layout");

#endif
