/*
 * What the parts of the bridge tell each other. Each function's file is named; all of it runs on
 * the loop's thread, but where strands are named too.
 */
#ifndef CW_BRIDGE_PARTS_H
#define CW_BRIDGE_PARTS_H

#include "broker/bridge/link/link.h"
#include "ipc/base/name_key.h"

struct cwb_chunks;
struct cwb_stream;

/* ---- link.c ---- */
/* Makes its TLS state and begins the handshake. 0 or a negative code. */
int cwb_link_begin_tls(struct cwb_link *link);
/* What was kept of its first record is of no more use. */
void cwb_link_drop_first(struct cwb_link *link);
/* May the log have one more line about its connections? A peer that makes them and is cut, as often
 * as it can, has LINES_MOST, and four a second; how many were left out is said with the next. */
bool cwb_link_may_log(struct cwb_bridge *bridge, struct cwb_peer *peer);
/* What a peer answered instead: its sentence, with its name, since pids, devices and limits in it
 * are those of its node. Returns the status. */
int cwb_link_refused(const struct cwb_peer *peer, const struct cwb_frame *frame);
/* A request was answered: of the backlog goes what may. */
void cwb_link_answered(struct cwb_link *link, const struct cwb_request *request);
/* An OPEN was answered with a source: link->ahead has what came with it. 0; -EPROTO: more is
 * announced than was asked for; or -EDQUOT. */
int cwb_link_expect(struct cwb_link *link, const struct cwb_request *request,
                    const struct cwb_opened *opened);

/* ---- stall.c ---- */
/* It was sent: from now on its time counts, if it has a limit. */
void cwb_link_time(struct cwb_request *request);
/* It is answered, or gone: no time counts for it any more. May be repeated. */
void cwb_link_untime(struct cwb_request *request);
/* Fails those whose time is over. Once a second. */
void cwb_link_expire(struct cwb_link *link);

/* ---- receive.c ---- */
void cwb_link_on_data(struct cwb_socket *socket, const uint8_t *bytes, uint32_t size_bytes);
extern const struct cwb_wire_calls cwb_link_wire_calls;

/* ---- streams.c: the streams of each peer ---- */
/* A HELLO came over a link: streams of another run of its bridge end; how many there may be is
 * said. */
void cwb_streams_met(struct cwb_link *link, uint64_t run);
/* The peer said how many it reads over. */
void cwb_streams_agree(struct cwb_link *link, uint32_t streams);
/* A connection of theirs says STREAM: link->stream is made. 0, -EPERM, or -EDQUOT. */
int cwb_streams_accept(struct cwb_link *link, const struct cwb_frame *frame);
/* The connection of link->stream is nobody's now: it goes to a strand. */
void cwb_streams_arrived(struct cwb_link *link);
/* The link that was to become link->stream ended. */
void cwb_streams_lost(struct cwb_link *link, const char *reason);
/* A large array is about to be read, by the peer or by us: streams are dialed, if it is us who
 * dials. */
void cwb_streams_want(struct cwb_bridge *bridge, struct cwb_peer *peer);
/* Is there one over which arrays are read? */
bool cwb_streams_open(const struct cwb_peer *peer);
/* Reads an array over all streams that there are. */
void cwb_streams_read(struct cwb_peer *peer, struct cwb_chunks *chunks);
/* The peer has no link any more. */
void cwb_streams_end(struct cwb_peer *peer);
/* Dials. Returns when it wants to be called again. */
int64_t cwb_streams_tick(struct cwb_bridge *bridge);

/* ---- listen.c ---- */
/* Looks up where it is to listen. With options.strict, a port that is taken is found without a key,
 * too. 0 or a negative code. */
int cwb_listen_find(struct cwb_bridge *bridge);
/* There is a key: listens. What fails ends it with options.strict, else it is tried again. */
int cwb_listen_begin(struct cwb_bridge *bridge);
/* Tries again, and accepts. Returns when it wants to be called again. */
int64_t cwb_listen_tick(struct cwb_bridge *bridge);

/* ---- identity.c ---- */
/* Who shows a certificate with this key, for this node ("": for none)? *peer: as whom it was
 * dialed, or NULL; set to who it is. CWB_STRANGER: cw_detail() says why it may not come in. */
enum cwb_known cwb_peer_known(struct cwb_bridge *bridge, struct cwb_peer **peer,
                              const uint8_t print[CWB_PRINT_BYTES], const char *node);

/* ---- peer.c ---- */
struct cwb_waiter { /* waits for a link to a peer; embedded, the caller's */
    /* link NULL: there is none, cw_detail() says why. */
    void (*on_link)(struct cwb_waiter *waiter, struct cwb_link *link);
    int64_t until_ns;
    bool once; /* or until the next try has failed */
    struct cwb_waiter *next;
};
int cwb_peers_init(struct cwb_bridge *bridge);
struct cwb_peer *cwb_peer_find(struct cwb_bridge *bridge, const char *name, size_t length);
/* The open link; NULL: none. */
struct cwb_link *cwb_peer_link(struct cwb_peer *peer);
/* Calls back when there is one, perhaps at once. patience_ns: how long after the peer was last
 * heard tries may go on; 0: one, and CWB_SILENCE_NS at most. */
void cwb_peer_await(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_waiter *waiter,
                    int64_t patience_ns);
void cwb_peer_forget(struct cwb_peer *peer, struct cwb_waiter *waiter);
/* Is it being looked up or dialed just now? */
bool cwb_peer_trying(const struct cwb_peer *peer);
/* From link.c and receive.c. Who dialed this one has said HELLO: may it be the link? 0, or -EPERM.
 */
int cwb_peer_may_open(const struct cwb_link *link);
/* It is about to be the link: what was it before, or was to be, ends. */
void cwb_peer_replace(struct cwb_link *link);
void cwb_peer_opened(struct cwb_link *link);
void cwb_peer_ended(struct cwb_link *link, enum cwb_link_state was, const char *reason);
/* Dials, reads the file again, lets waiters go. Returns when it wants to be called again. */
int64_t cwb_peers_tick(struct cwb_bridge *bridge);

/* ---- serve.c: what peers ask of us ---- */
struct cwb_served { /* a request of theirs that is answered later */
    uint64_t id;
    uint16_t op;
    struct cwb_link *link;                  /* NULL: it ended, nobody hears the answer */
    void (*on_cancel)(struct cwb_served *); /* CANCEL, or its link ended: NULL: goes on */
    void *owner;
    struct cwb_served *next, *prev; /* its keeper's */
    int64_t deferred_ns; /* deferred.c: since when it waits for the broker; 0: it does not */
    struct cwb_served *deferred_next, *deferred_prev;
    UT_hash_handle hh;
};
/* NULL: there is no memory (cw_detail()), and nobody was answered. */
struct cwb_served *cwb_served_new(struct cwb_link *link, const struct cwb_frame *frame);
/* Takes it from its link, to be answered there in another way, and frees it. */
struct cwb_link *cwb_served_leave(struct cwb_served *served);
/* Answers and frees it. status < 0: cw_detail() is the sentence. */
void cwb_served_reply(struct cwb_served *served, int status, const struct iovec *parts,
                      uint32_t count);
/* It is answered so, and its on_cancel called: with or without an answer of its own it goes its
 * way. status < 0: cw_detail() is the sentence. */
void cwb_served_refuse(struct cwb_served *served, int status);
/* Names of this node changed: who waits for one, and who holds what one meant, is told, soon. */
void cwb_serve_changes(struct cwb_bridge *bridge, const struct cw_changed *changed);
/* -ENOENT, with the sentence for a peer. */
int cwb_not_there(const char *name);
/* May a peer write this name? false: cw_detail() says so. */
bool cwb_may_write(const struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *key,
                   uint32_t key_bytes);
/* May a peer read this name, put as the record says? */
bool cwb_may_read(const struct cwb_peer *peer, const char *name, const struct cw_entry *entry);
/* Is there a name that this peer may read? 0; -ENOENT; CW_WOULD_WAIT: something must be mapped
 * first. */
int cwb_is_there(struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *key,
                 uint32_t key_bytes);
/* Some of the changes are looked at, if any are to be. Asks nobody: what it needs is mapped first,
 * by a helper. Once a turn. */
void cwb_changes_turn(struct cwb_bridge *bridge);
/* Are there changes to be looked at now? */
bool cwb_changes_due(const struct cwb_bridge *bridge);
/* Answers a NAMES and frees it: names is malloced (NULL: none) and taken over. status < 0:
 * cw_detail() is the sentence. */
void cwb_list_answer(struct cwb_served *served, int status, char *names, uint64_t size_bytes);
/* Does anybody want to be told? */
bool cwb_serve_watches(const struct cwb_bridge *bridge);
/* One request of theirs. 0, or -EPROTO: a breach. */
int cwb_serve(struct cwb_link *link, const struct cwb_frame *frame);
/* The link ends: nothing is answered any more. */
void cwb_serve_end(struct cwb_link *link);

/* ---- deferred.c: what peers ask of us that needs our broker ---- */
/* A look-up for which something is not mapped: it is served again when it is. */
void cwb_defer(struct cwb_link *link, const struct cwb_frame *frame);
/* From now on it waits for the broker, and is refused (cwb_served_refuse) if that stands: it has an
 * on_cancel. May be repeated. */
void cwb_deferred_begin(struct cwb_served *served);
/* It does no more; or it is answered, or its link ends (serve.c). May be repeated. */
void cwb_deferred_end(struct cwb_served *served);
/* Is it known that the broker stands? Then -EREMOTEIO, and nothing is to be begun; else 0. again:
 * what is asked may have been done before. */
int cwb_deferred_refuse(const struct cwb_bridge *bridge, uint16_t op, bool again);
/* Asks the broker for a sign of life, unless it is being asked. 0, or -EREMOTEIO: it has given none
 * since it was asked, for as long as those above wait. */
int cwb_deferred_probe(struct cwb_bridge *bridge);
/* Refuses. Returns when it wants to be called again. */
int64_t cwb_deferred_tick(struct cwb_bridge *bridge);

/* ---- name_lists.c: lists of this node's names ---- */
/* A peer asks for one. */
void cwb_list_begin(struct cwb_link *link, const struct cwb_frame *frame);
/* Makes a slice of one, if any is asked for. Once a turn. */
void cwb_lists_turn(struct cwb_bridge *bridge);

/* ---- watch.c: what peers want to be told of ---- */
/* This put of that name: its peer is told once when the name means something else. 0 or -EDQUOT. */
int cwb_watch_begin(struct cwb_link *link, const struct cw_name_key *key, uint64_t entry);
/* Names ended: who watches one of them is told, at once or (all) by cwb_watches_turn(). */
void cwb_watch_changes(struct cwb_bridge *bridge, const struct cw_changed *changed);
/* Looks at some watches, if all are to be looked at. Once a turn. */
void cwb_watches_turn(struct cwb_bridge *bridge);
/* The peer has no link any more. */
void cwb_watch_end(struct cwb_bridge *bridge, struct cwb_peer *peer);

/* ---- waits.c: names that peers wait for ---- */
/* Answered when the name is there, at once or later. */
void cwb_wait_begin(struct cwb_link *link, const struct cwb_frame *frame);
/* There are new names: all waits are looked at. */
void cwb_waits_look(struct cwb_bridge *bridge);
/* Looks at some. Once a turn. */
void cwb_waits_turn(struct cwb_bridge *bridge);

/* ---- upload.c: arrays of ours that a peer reads ---- */
enum cwb_sourced {
    CWB_OPENED,
    CWB_OFFERED, /* it stays after a CLOSE */
    CWB_PUSHED,  /* its CLOSE came with its OPEN: answered when all was sent (cwb_source_push) */
};
/* Takes the array over whose lowest byte is at bytes, or (array NULL) the malloced bytes. On
 * failure they stay the caller's. 0 or -EDQUOT. */
int cwb_source_new(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                   uint8_t *bytes, uint64_t size_bytes, enum cwb_sourced how,
                   struct cwb_source **out);
/* So many READs came with the OPEN by which it was made, and was answered; of a pushed one they are
 * all of it. */
void cwb_source_push(struct cwb_link *link, const struct cwb_frame *frame,
                     struct cwb_source *source, uint32_t count);
/* The same of an array on a GPU (CW_DISTANT), whose bytes come by way of host memory (staging.h).
 * Its READs are answered once they are there. read_max: what this peer's READs ask for. */
int cwb_source_new_staged(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                          uint64_t size_bytes, uint32_t read_max, bool offered,
                          struct cwb_source **out);
/* From staging.c: all was staged and hashed, or (status below 0, cw_detail()) it failed. */
void cwb_source_staged(struct cwb_source *source, int status, uint64_t hash);
uint64_t cwb_source_id(const struct cwb_source *source);
/* When it was made, or its peer last asked for bytes of it, or its hash. */
int64_t cwb_source_used_ns(struct cwb_source *source);
/* Where the bytes of a piece lie, not of a staged one. Any thread. */
const uint8_t *cwb_source_at(const struct cwb_source *source, uint64_t offset_bytes);
/* Strands too; there cwb_source_drop() is the other. */
void cwb_source_ref(struct cwb_source *source);
void cwb_source_unref(struct cwb_source *source);
/* The peer has it no more: it goes with its last reference. */
void cwb_source_end(struct cwb_source *source);
/* A READ of the peer, over its link. 0 or -EPROTO. */
int cwb_source_serve_read(struct cwb_link *link, const struct cwb_frame *frame);
/* The same over a stream, on its strand. */
int cwb_source_serve_far_read(struct cwb_stream *stream, const struct cwb_frame *frame);
int cwb_source_serve_close(struct cwb_link *link, const struct cwb_frame *frame);
/* Ends a reference; strands too. */
void cwb_source_drop(struct cwb_source *source, const struct cwb_loop *loop);
/* A piece lets go of its source, and its reference ends. sent: its bytes were just read, and lie in
 * the cache; else its wire ended. loop: of who says so; strands too. */
void cwb_source_let_go(struct cwb_source *source, const struct cwb_loop *loop,
                       const struct cwb_read *read, bool sent);
/* Ends those of peers that were away for too long. */
void cwb_sources_tick(struct cwb_bridge *bridge);

/* ---- download.c: arrays of a peer, read into our memory ---- */
struct cwb_take { /* embedded in its owner's struct, which stays until on_done */
    /* status 0: all bytes are in array, checked. Else cw_detail() has the sentence. */
    void (*on_done)(struct cwb_take *take, int status);
    /* Bytes from the begin on, without a gap, are here and hashed; told when they are
     * progress_bytes more, or all: before on_done. NULL: nobody asks. It ends nothing. */
    void (*on_progress)(struct cwb_take *take, uint64_t bytes);
    /* set by the owner */
    struct cwb_bridge *bridge;
    struct cwb_peer *peer;
    uint64_t source, size_bytes, progress_bytes;
    int64_t patience_ns; /* as cwb_peer_await(); 0: CWB_SILENCE_NS, as a client waits for it */
    cw_array *array;     /* plain bytes, the take's until done */
    uint64_t ring_bytes; /* 0: array has them all; else it is a ring of so many, at least
                            CWB_READ_MAX, of which cwb_take_landed() gives bytes back */
    /* download.c's */
    struct cwb_take_state *state;
};
/* All large takes of the peer go on over streams that have just opened, or over its link, if its
 * last stream ended. */
void cwb_takes_spread(struct cwb_peer *peer);
/* A peer is heard, and sent nothing of this for stall_ns: -EREMOTEIO with the sentence. */
int cwb_stalled(const struct cwb_bridge *bridge, const struct cwb_peer *peer, const char *what);
/* Fails those of which nothing comes. Returns when it wants to be called again. */
int64_t cwb_takes_tick(struct cwb_bridge *bridge);
/* Begins to read; array is there. */
void cwb_take_begin(struct cwb_take *take, uint64_t run);
/* A ring: bytes from the begin on that are needed there no more. */
void cwb_take_landed(struct cwb_take *take, uint64_t bytes);
/* How much of the ring it uses: byte i lies at i modulo this. It has begun, and is not done. */
uint64_t cwb_take_ring_bytes(const struct cwb_take *take);
/* A source that was opened there is not read at all: the peer need not keep it. */
void cwb_take_refuse(struct cwb_peer *peer, uint64_t run, uint64_t source);
/* Nobody wants it any more: on_done is not called. The array stays the owner's. */
void cwb_take_cancel(struct cwb_take *take);

/* ---- remove.c: removals of peers ---- */
void cwb_remove_serve(struct cwb_link *link, const struct cwb_frame *frame);

/* ---- incoming_put.c: puts of peers ---- */
int cwb_offered_serve(struct cwb_link *link, const struct cwb_frame *frame);
void cwb_offered_tick(struct cwb_bridge *bridge);

/* ---- arrays.c: memory and names of this node, by helper threads ---- */
/*
 * An array of this node, by key or by what a request says, mapped read-only; or, if it lies on a
 * GPU, not mapped (*on_gpu): staging.h brings its bytes. 0, -ENOENT (without a sentence),
 * -ESTALE, on the loop CW_WOULD_WAIT. Any thread.
 */
int cwb_local_open(struct cwb_bridge *bridge, const struct cw_name_key *key, struct cw_found *found,
                   cw_array **out, bool *on_gpu);
int cwb_local_open_at(struct cwb_bridge *bridge, const struct cw_remote *remote, cw_array **out,
                      bool *on_gpu);
/* The record under a key, as cw_name_key_find(). CW_WOULD_WAIT: a part of the directory is not
 * mapped, and is being mapped now. */
int cwb_local_find(struct cwb_bridge *bridge, const struct cw_name_key *key,
                   struct cw_found *found);
/* Is all of the directory mapped that there is now? */
bool cwb_local_mapped(struct cwb_bridge *bridge);
/* Has a helper map what is not, and, unless key is NULL, what its array lies in, which stays mapped
 * while on_done(owner, code) runs, perhaps at once. code < 0: cw_detail(). That there is no such
 * name is none. */
typedef void cwb_on_mapped(void *owner, int code);
void cwb_local_map(struct cwb_bridge *bridge, const struct cw_name_key *key, cwb_on_mapped *on_done,
                   void *owner);
/* One more lease on a plain array of this process. 0 or a negative code. */
int cwb_local_hold(cw_array *array, cw_array **out);
/* How often an array on a GPU was written. false: somebody is writing. Any thread. */
bool cwb_local_written(const cw_array *array, uint64_t *writes);
/* A plain array of so many bytes. Any thread; blocks. */
int cwb_local_make(struct cwb_bridge *bridge, uint64_t size_bytes, cw_array **out);
/* cw_array_close(); a large one is closed by a helper, for the kernel may take its memory back
 * then, at 150 ms/GiB. */
void cwb_local_close(struct cwb_bridge *bridge, cw_array *array);
/* Has memory made ready for what comes next. */
void cwb_local_reserve(struct cwb_bridge *bridge);
/* Makes a plain array of so many bytes. on_done(owner, code, array): 0 and the array, the owner's;
 * else cw_detail(). Runs at once where there is room in memory that is mapped. */
typedef void cwb_on_array(void *owner, int code, cw_array *array);
void cwb_local_new(struct cwb_bridge *bridge, uint64_t size_bytes, cwb_on_array *on_done,
                   void *owner);

/* ---- job.c: what local clients want ---- */
/* 0 or -EDQUOT. */
int cwb_jobs_init(struct cwb_bridge *bridge);
/* Asks for changes where they are wanted. Returns when it wants to be called again. */
int64_t cwb_jobs_tick(struct cwb_bridge *bridge);
/* From now on changes of names are to be told (cwb_serve_changes). */
void cwb_jobs_watch(struct cwb_bridge *bridge);

/* ---- replica.c ---- */
/* A local client wants the array under a remote key. */
void cwb_replica_get(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_job *job);
/* The owner tells that a name means something else now. */
void cwb_replica_changed(struct cwb_peer *peer, const struct cwb_frame *frame);
/* The peer has no link any more: nobody can say whether its replicas are fresh. */
void cwb_replicas_unlink(struct cwb_peer *peer);
int64_t cwb_replicas_tick(struct cwb_bridge *bridge);

#endif
