/*
 * Peers as they are now: how each node that this one knows is reached. peer_list.h has the file.
 *
 * A struct cwb_peer stays once it was made, so that pointers to it hold: one that is no longer in
 * the file is `gone`.
 *
 * A peer with an address is dialed when somebody wants it and it has no link: who waits (below),
 * who asks how it is, or, where a link was cut that this side had dialed, the other side, which may
 * not be able to dial. It is dialed again with growing pauses, each longer or shorter by chance.
 * Links that nobody uses are closed (idle.h). A peer without an address must come to us. Who waits
 * (a job, a transfer that was cut) is told of the link when it opens, or of the reason why there is
 * none when its time to wait is over.
 *
 * Invariant: no client waits for a peer that cannot be heard for longer than CWB_SILENCE_NS. Before
 * anything was asked its time counts from the call; what was asked over a link counts from the last
 * byte of that one, or, if it was a process before this that asked, from when this one first
 * looks: if it ended for its silence that time is over, and if it was cut, what is left
 * of it is for the next one. Nobody begins anew to wait for having to ask once more. What a peer
 * has of us (uploads), or puts here, waits CWB_RESUME_NS: longer than that peer does.
 *
 * Invariant: a peer has one open link at most, and what was said over a link that has ended counts
 * as not said: requests are asked again or fail, watches are forgotten, replicas let go, each side
 * for itself and at once. So it need not be known what of it the other side has heard. Who dials
 * has no link; so where one comes in beside an open one, the other side has lost that one, or both
 * have dialed at once:
 *   - It has lost it (its process died, a middlebox reset one side): the newer one wins. But only
 *     once something has come over it after its HELLO (PROVING), for a connection that was given up
 *     may be read late. Who dialed says STREAMS as soon as it has it open, so that takes no longer
 *     than the way there and back.
 *   - Both have dialed at once, that is, each has said HELLO before it has read the other's: the
 *     try of the side with the smaller run stays. It refuses the other one, which gives its own up.
 * A bridge whose link was replaced by one of another run is dead, as a rule. If it comes again
 * while that one is open, there are two with the same key: it is refused, since else each would end
 * the other's link in turn. If this process dies its links end with it, and all of this with them.
 */
#ifndef CW_BROKER_BRIDGE_LINK_PEER_H
#define CW_BROKER_BRIDGE_LINK_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/bridge/link/link.h"
#include "broker/bridge/memory.h"
#include "broker/bridge/link/peer_list.h"
#include "shm/base/atomic.h"
#include "shm/base/error.h"

#define CWB_DIAL_SPREAD_NS      2000000     /* of a start: so far apart are tries on average, */
#define CWB_DIAL_SPREAD_MOST_NS 5000000000  /* all within this time */
#define CWB_LOOK_NS             10000000000 /* so long is a peer dialed that somebody asks about; */
#define CWB_STATES_MAX          64u /* of those without a link that many with one question */

enum cwb_kind { CWB_SMALL, CWB_LARGE, CWB_KINDS }; /* of offers: incoming_put.c */

struct cwb_link;
struct cwb_hashing;
struct cwb_list;
struct cwb_upload;
struct cwb_incoming_put;
struct cwb_replica;
struct cwb_served;
struct cwb_stream;
struct cwb_tree;
struct cwb_download_state;
struct cwb_waiter;

struct cwb_peer {
    struct cwb_peer_config config;
    bool gone;
    uint64_t seen_in; /* peer_table.c: the last reading of the file that had it */
    /* peer.c: how it is reached now */
    struct cwb_link *link;    /* the open one; NULL: none */
    bool resolving;           /* its address is being looked up; then */
    struct cwb_link *dialing; /* there is a link, which is not open yet */
    int64_t dial_after_ns;    /* not before: the last try failed */
    int64_t heard_ns;         /* when its last link ended: the last byte of it */
    int64_t unlinked_ns;      /* since when it has no link; 0: never had one, or has one */
    uint32_t fails;           /* tries that failed, one after another */
    uint32_t idle_closes;     /* of its links, that they were idle */
    bool redial;              /* its link was cut, and this side had dialed it */
    int64_t look_until_ns;    /* somebody asks how it is: till then it is dialed */
    uint64_t run;             /* of its bridge, as of its last HELLO */
    uint64_t replaced_run;    /* whose open link a newer one of another run has ended; 0: none */
    int64_t twin_ns; /* when one with its key, of another bridge, was last refused; 0: never */
    char error[CW_DETAIL_MAX];    /* why the last connection failed or ended; "" */
    uint64_t bytes_in, bytes_out; /* of links that are gone */
    struct cwb_waiter *waiting;   /* for a link */
    /* streams.c */
    struct cwb_stream *streams;           /* beginning, running, and ended that are not freed yet */
    uint32_t streams_max;                 /* agreed over the link: connections, the link included */
    int64_t streams_until_ns;             /* a large array was wanted: till then they are dialed */
    int64_t streams_after_ns;             /* not before: the last try failed */
    struct cwb_download_state *downloads; /* download.c: large arrays that are being read from it */
    struct cwb_upload *uploads;           /* upload.c: what it is reading, by number, */
    struct cwb_tree *trees;               /* tree_parts.c: whose parts it may read */
    struct cwb_hashing *hashings;         /* and what it has closed, and is to be hashed */
    struct cwb_incoming_put *incoming_puts;           /* incoming_put.c: what it put, by token; */
    struct cwb_incoming_put *puts_done;               /* the oldest first, */
    struct cwb_incoming_put *puts_waiting[CWB_KINDS]; /* and those that wait for their turn; */
    uint32_t puts_pending, puts_kept;                 /* how many are not done, and are; */
    uint64_t put_bytes[CWB_KINDS];                    /* what those take that have their turn, */
    int64_t put_ns[CWB_KINDS];                        /* and when the last one got it */
    struct cwb_floor
        *floors;           /* floor.c: what was told here of its names, and what stands of them */
    uint32_t number;       /* among all that ever were */
    uint32_t watches;      /* watch.c: of how many names it wants to be told, */
    uint64_t *watch_order; /* their entries, the oldest first, and some that are over: */
    uint32_t order_begin, order_count, order_room; /* a ring */
    struct cwb_list *list; /* name_lists.c: the lists of names that it asks for; NULL: none */
    bool told_names;       /* answers.c: the log says what it calls names */
    uint32_t lines_left, lines_untold;  /* of the log, about its connections: cwb_peer_may_log() */
    int64_t lines_ns;                   /* since when */
    uint32_t wait_count;                /* waits.c: names that it waits for, over all links; */
    struct cwb_served *waits, *wait_at; /* all; the next to be looked at, NULL: the first */
    uint64_t looking_news, looked_news; /* for which news they are, and were, looked at */
    cw_a64 unread_bytes;                /* send.c: of answers, over all connections */
    struct cwb_peer *next;              /* of the bridge: all that ever were; */
    struct cwb_peer *met_next;          /* those that ever had a link: others have nothing here, */
    bool is_met;                        /* and are not looked at */
    UT_hash_handle hh;                  /* the same by name (peer_table.c), */
    UT_hash_handle hh_key; /* and by pinned key, those that are in the file; tbl NULL: not */
};

struct cwb_waiter { /* waits for a link to a peer; embedded, the caller's */
    /* link NULL: there is none, cw_detail() says why. */
    void (*on_link)(struct cwb_waiter *waiter, struct cwb_link *link);
    int64_t until_ns;
    bool once; /* or until the next try has failed */
    struct cwb_waiter *next;
};
/* The open link; NULL: none. */
struct cwb_link *cwb_peer_link(struct cwb_peer *peer);
/* Calls back when there is one, perhaps at once. wait_ns: how long after the peer was last
 * heard tries may go on; 0: one, and CWB_SILENCE_NS at most. */
void cwb_peer_await(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_waiter *waiter,
                    int64_t wait_ns);
/* May the log have one more line about its connections? A peer that makes them and is cut, as often
 * as it can, has LINES_MOST, and four a second; how many were left out is said with the next. */
bool cwb_peer_may_log(struct cwb_bridge *bridge, struct cwb_peer *peer);
/* Somebody asks how it is: it is dialed for a while. */
void cwb_peer_look(struct cwb_bridge *bridge, struct cwb_peer *peer);
/* A number from 0 to most_ns, so that many do not do the same at once. */
int64_t cwb_jitter(struct cwb_bridge *bridge, int64_t most_ns);
void cwb_peer_forget(struct cwb_peer *peer, struct cwb_waiter *waiter);
/* Is it being looked up or dialed just now? */
bool cwb_peer_trying(const struct cwb_peer *peer);
/* From link.c and receive.c. Who dialed this one has said HELLO: may it be the link? 0, or -EPERM.
 */
int cwb_peer_may_open(const struct cwb_link *link);
/* It is about to be the link: what was it before, or was to be, ends. */
void cwb_peer_replace(struct cwb_link *link);
void cwb_peer_opened(struct cwb_link *link);
/* From idle.c. The link is not to be parted with: who waits for it is told. */
void cwb_peer_stays(struct cwb_link *link);
void cwb_peer_ended(struct cwb_link *link, enum cwb_link_state was, const char *reason);
/* All its connections end. */
void cwb_peer_cut(struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *why);
/* It is gone: its connections end, and who waits for one is told. */
void cwb_peer_leave(struct cwb_bridge *bridge, struct cwb_peer *peer);
/* Dials, reads the file again, lets waiters go. Returns when it wants to be called again. */
int64_t cwb_peers_tick(struct cwb_bridge *bridge);

#endif
