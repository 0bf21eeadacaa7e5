/*
 * The transfer plan of a download: which chunks of the peer's array are here, asked for, or wanted,
 * shared by all threads that read it: the bridge's loop over the main link, I/O threads over
 * streams.
 *
 *   WANTED --ask--> ASKED --its bytes came--> HERE
 *      ^-- its wire ended --+
 *
 * Invariant: a chunk is ASKED by exactly one wire, which writes its bytes and then says HERE, or
 * gives it back; so nothing is lost and nothing is written twice at once. What is under way is
 * each wire's own business: who is slow takes fewer chunks. Whoever makes it whole, fails it or
 * gives something back tells the bridge's loop (on_told), which knows the owner.
 *
 * Streams share what there is: each has no more under way than a part of what nobody has asked for
 * yet, so that all of them are at work from the first chunks on, as these become ready at the other
 * side, and none has much left when the others are done.
 *
 * The array may be a ring of fewer bytes than come (download.h): a chunk is asked for only when its
 * place is free, which it is again when the owner has said so (cwb_transfer_plan_consumed).
 *
 * A plan has references and, where streams read too, a lease of its own on the array: a download
 * that is given up stops it, and the memory stays until the last byte that was asked for has come
 * or its wire has ended. Threads end with the process alone.
 */
#ifndef CW_BROKER_BRIDGE_FETCH_TRANSFER_PLAN_H
#define CW_BROKER_BRIDGE_FETCH_TRANSFER_PLAN_H

#include <pthread.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/wire/checksum.h"

#define CWB_SHARE_LEAST 2u /* one is on its way while the next is asked for */
#define CWB_SHARE_PARTS 4u /* of what each of them would read in all */

enum cwb_chunk_state { CWB_WANTED, CWB_ASKED, CWB_HERE };

struct cwb_transfer_plan {
    struct cwb_work work; /* first: it is cast back; the bridge's loop is told */
    struct cwb_helpers *helpers;
    /* the loop's: NULL once nobody wants it any more */
    void (*on_told)(void *owner);
    void *owner;
    /* fixed */
    uint64_t source, size_bytes, count, ring; /* the last two in chunks */
    uint64_t progress_bytes; /* on_told also when so many more are hashed; 0: it is not */
    uint32_t chunk_bytes;
    uint8_t *bytes;
    bool fresh;      /* nobody has written its memory yet, as far as is known */
    cw_array *lease; /* NULL: the owner's lease does */
    struct cwb_sum *sum;
    /* under lock */
    pthread_mutex_t lock;
    uint32_t references;
    bool stopped; /* nothing more is asked for */
    bool telling;
    uint32_t readers; /* streams that read it; 0: none was told to */
    bool starved;     /* somebody asked in vain: there was none */
    int status;       /* why it failed; 0: it did not */
    char detail[CW_DETAIL_MAX];
    uint64_t next, consumed; /* from next on all are WANTED */
    uint64_t asked;          /* how many are ASKED */
    uint64_t moves;          /* rises with each step of one of them */
    uint8_t states[];        /* enum cwb_chunk_state */
};

/* Of an array; lease is taken over. NULL: there is no memory (cw_detail()), and lease stays the
 * caller's. ring_bytes 0: it has room for all. chunk_bytes: at least CWB_READ_MIN; a whole number
 * of CWB_SUM_PIECE of it is used. One reference. */
struct cwb_transfer_plan *cwb_transfer_plan_new(struct cwb_helpers *helpers, cw_array *array,
                                                cw_array *lease, uint64_t source,
                                                uint64_t size_bytes, uint64_t ring_bytes,
                                                uint32_t chunk_bytes);
/* Where the bytes of a READ go. */
uint8_t *cwb_transfer_plan_target(const struct cwb_transfer_plan *plan,
                                  const struct cwb_read *read);
/* So many bytes from the begin on are needed there no more. */
void cwb_transfer_plan_consumed(struct cwb_transfer_plan *plan, uint64_t bytes);
void cwb_transfer_plan_ref(struct cwb_transfer_plan *plan);
void cwb_transfer_plan_unref(struct cwb_transfer_plan *plan);
/* The first that is WANTED is ASKED from now on. false: there is none, or all was stopped. */
bool cwb_transfer_plan_ask(struct cwb_transfer_plan *plan, struct cwb_read *out);
/* So many streams read it from now on. */
void cwb_transfer_plan_readers(struct cwb_transfer_plan *plan, uint32_t readers);
/* How many one of them may have under way now; most: what is agreed. Any thread. */
uint32_t cwb_transfer_plan_share(struct cwb_transfer_plan *plan, uint32_t most);
/* Has somebody asked in vain, and there is one now? Told once: then all who read it are to ask. */
bool cwb_transfer_plan_refilled(struct cwb_transfer_plan *plan);
/* Its bytes came. true: the loop is to be told (cwb_transfer_plan_tell). */
bool cwb_transfer_plan_here(struct cwb_transfer_plan *plan, const struct cwb_read *read);
/* Its wire ended: another asks for it. */
void cwb_transfer_plan_back(struct cwb_transfer_plan *plan, const struct cwb_read *read);
/* The peer answers with an error. The first counts. */
void cwb_transfer_plan_fail(struct cwb_transfer_plan *plan, int status, const char *sentence,
                            uint32_t length);
/* Has the loop call on_told, soon. */
void cwb_transfer_plan_tell(struct cwb_transfer_plan *plan);
/* Is all here and hashed? */
bool cwb_transfer_plan_whole(struct cwb_transfer_plan *plan);
/* 0, or why it failed with cw_detail(). */
int cwb_transfer_plan_status(struct cwb_transfer_plan *plan);
/* Is it waited for wires: is any asked for, or could be? *moves: rises with each that is, came, or
 * was given back. */
bool cwb_transfer_plan_wait(struct cwb_transfer_plan *plan, uint64_t *moves);
/* Nobody wants it any more: on_told is not called. The loop's. */
void cwb_transfer_plan_stop(struct cwb_transfer_plan *plan);

#endif
