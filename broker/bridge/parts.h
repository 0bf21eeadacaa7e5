/*
 * What the parts of the bridge tell each other. Each function's file is named; all of it runs on
 * the loop's thread, but where strands are named too.
 */
#ifndef CW_BRIDGE_PARTS_H
#define CW_BRIDGE_PARTS_H

#include "broker/bridge/link.h"
#include "ipc/name_key.h"

struct cwb_chunks;
struct cwb_stream;

/* ---- link.c ---- */
/* Makes its TLS state and begins the handshake. 0 or a negative code. */
int cwb_link_begin_tls(struct cwb_link *link);
/* What was kept of its first record is of no more use. */
void cwb_link_drop_first(struct cwb_link *link);
/* A request was answered: of the backlog goes what may. */
void cwb_link_answered(struct cwb_link *link, const struct cwb_request *request);
/* An OPEN was answered with a source: link->ahead has what came with it. 0, or -EPROTO: more is
 * announced than was asked for. */
int cwb_link_expect(struct cwb_link *link, const struct cwb_request *request,
                    const struct cwb_opened *opened);

/* ---- link_in.c ---- */
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

/* ---- peer.c ---- */
struct cwb_waiter { /* waits for a link to a peer; embedded, the caller's */
    /* link NULL: there is none, cw_detail() says why. */
    void (*on_link)(struct cwb_waiter *waiter, struct cwb_link *link);
    int64_t until_ns; /* 0: until the next try has failed */
    struct cwb_waiter *next;
};
int cwb_peers_init(struct cwb_bridge *bridge);
struct cwb_peer *cwb_peer_find(struct cwb_bridge *bridge, const char *name, size_t length);
/* Who shows a certificate with this key, for this node ("": for none)? *peer: as whom it was
 * dialed, or NULL; set to who it is. CWB_STRANGER: cw_detail() says why it may not come in. */
enum cwb_known cwb_peer_known(struct cwb_bridge *bridge, struct cwb_peer **peer,
                              const uint8_t print[CWB_PRINT_BYTES], const char *node);
/* An open link; NULL: none. */
struct cwb_link *cwb_peer_link(struct cwb_peer *peer);
/* Calls back when there is one, perhaps at once. patience_ns: how long tries may go on; 0: one. */
void cwb_peer_await(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_waiter *waiter,
                    int64_t patience_ns);
void cwb_peer_forget(struct cwb_peer *peer, struct cwb_waiter *waiter);
/* From link.c. */
void cwb_peer_opened(struct cwb_link *link);
void cwb_peer_ended(struct cwb_link *link, bool was_open, const char *reason);
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
    UT_hash_handle hh;
};
struct cwb_served *cwb_served_new(struct cwb_link *link, const struct cwb_frame *frame);
/* Takes it from its link, to be answered there in another way, and frees it. */
struct cwb_link *cwb_served_leave(struct cwb_served *served);
/* Answers and frees it. status < 0: cw_detail() is the sentence. */
void cwb_served_reply(struct cwb_served *served, int status, const struct iovec *parts,
                      uint32_t count);
/* Names of this node changed: who waits for one, and who holds what one meant, is told. */
void cwb_serve_changes(struct cwb_bridge *bridge, const struct cw_changed *changed);
/* May its peer write this name? false: cw_detail() says so. */
bool cwb_may_write(const struct cwb_link *link, const char *key, uint32_t key_bytes);
/* Does anybody want to be told? */
bool cwb_serve_watches(const struct cwb_bridge *bridge);
/* One request of theirs. 0, or -EPROTO: a breach. */
int cwb_serve(struct cwb_link *link, const struct cwb_frame *frame);
/* The link ends: nothing is answered any more. */
void cwb_serve_end(struct cwb_link *link);

/* ---- watch.c: what peers want to be told of ---- */
/* This put of that name: its peer is told once when the name means something else. */
void cwb_watch_begin(struct cwb_link *link, const struct cw_name_key *key, uint64_t entry);
/* Names ended: who watches one of them is told. */
void cwb_watch_changes(struct cwb_bridge *bridge, const struct cw_changed *changed);
/* The peer has no link any more. */
void cwb_watch_end(struct cwb_bridge *bridge, struct cwb_peer *peer);

/* ---- source.c: arrays of ours that a peer reads ---- */
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
/* The same of an array on a GPU (CW_DISTANT), whose bytes come by way of host memory (stage.h). Its
 * READs are answered once they are there. read_max: what this peer's READs ask for. */
int cwb_source_new_staged(struct cwb_bridge *bridge, struct cwb_peer *peer, cw_array *array,
                          uint64_t size_bytes, uint32_t read_max, bool offered,
                          struct cwb_source **out);
/* From stage.c: all was staged and hashed, or (status below 0, cw_detail()) it failed. */
void cwb_source_staged(struct cwb_source *source, int status, uint64_t hash);
uint64_t cwb_source_id(const struct cwb_source *source);
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

/* ---- take.c: arrays of a peer, read into our memory ---- */
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
    cw_array *array;     /* plain bytes, the take's until done */
    uint64_t ring_bytes; /* 0: array has them all; else it is a ring of so many, at least
                            CWB_READ_MAX, of which cwb_take_landed() gives bytes back */
    /* take.c's */
    struct cwb_take_state *state;
};
/* All large takes of the peer go on over streams that have just opened, or over its link, if its
 * last stream ended. */
void cwb_takes_spread(struct cwb_peer *peer);
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

/* ---- offered.c: puts of peers ---- */
int cwb_offered_serve(struct cwb_link *link, const struct cwb_frame *frame);
void cwb_offered_tick(struct cwb_bridge *bridge);

/* ---- local.c: memory and names of this node, by helper threads ---- */
/*
 * An array of this node, by key or by what a request says, mapped read-only; or, if it lies on a
 * GPU, not mapped (*on_gpu): stage.h brings its bytes. 0, -ENOENT (without a sentence),
 * -ESTALE. Any thread.
 */
int cwb_local_open(struct cwb_bridge *bridge, const struct cw_name_key *key, struct cw_found *found,
                   cw_array **out, bool *on_gpu);
int cwb_local_open_at(struct cwb_bridge *bridge, const struct cw_remote *remote, cw_array **out,
                      bool *on_gpu);
/* One more lease on a plain array of this process. 0 or a negative code. */
int cwb_local_hold(cw_array *array, cw_array **out);
/* How often an array on a GPU was written. false: somebody is writing. Any thread. */
bool cwb_local_written(const cw_array *array, uint64_t *writes);
/* A plain array of so many bytes. Any thread; blocks. */
int cwb_local_make(struct cwb_bridge *bridge, uint64_t size_bytes, cw_array **out);
/* Has memory made ready for what comes next. */
void cwb_local_reserve(struct cwb_bridge *bridge);
/* Makes a plain array of so many bytes. on_done(owner, code, array): 0 and the array, the owner's;
 * else cw_detail(). Runs at once where that cannot take long. */
typedef void cwb_on_array(void *owner, int code, cw_array *array);
void cwb_local_new(struct cwb_bridge *bridge, uint64_t size_bytes, cwb_on_array *on_done,
                   void *owner);
/* Puts a plain array under a key, as the metadata say. on_done(owner, code). */
typedef void cwb_on_code(void *owner, int code);
void cwb_local_put(struct cwb_bridge *bridge, cw_array *array, const char *key, uint32_t key_bytes,
                   const void *meta, uint32_t meta_bytes, uint64_t size_bytes, uint32_t flags,
                   cwb_on_code *on_done, void *owner);

/* ---- job.c: what local clients want ---- */
void cwb_jobs_init(struct cwb_bridge *bridge);
/* Asks for changes where they are wanted. Returns when it wants to be called again. */
int64_t cwb_jobs_tick(struct cwb_bridge *bridge);
/* From now on changes of names are to be told (cwb_serve_changes). */
void cwb_jobs_watch(struct cwb_bridge *bridge);

/* ---- replica.c ---- */
/* A local client wants the array under a remote key. */
void cwb_replica_get(struct cwb_bridge *bridge, struct cwb_peer *peer, struct cwb_job *job);
/* A local client's put or remove under a remote key was done; before it is told so. */
void cwb_replica_wrote(const struct cwb_job *job);
/* The owner tells that a name means something else now. */
void cwb_replica_changed(struct cwb_peer *peer, const struct cwb_frame *frame);
/* The peer has no link any more: nobody can say whether its replicas are fresh. */
void cwb_replicas_unlink(struct cwb_bridge *bridge, struct cwb_peer *peer);
int64_t cwb_replicas_tick(struct cwb_bridge *bridge);

#endif
