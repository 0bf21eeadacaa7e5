/*
 * Holds: the broker's notes about one block of one generation: how many references it has, and
 * whether the broker waits for somebody who had a lease on it. A hold exists as long as either is
 * so.
 *
 * A hold may be made in advance, for no block yet, for a reference that is promised: its owner can
 * then take the reference without asking for memory. So the table is never empty (a table without
 * elements has no memory of its own), and if its buckets cannot grow its chains do.
 *
 * Owner: the loop's thread. Holds end with the broker.
 */
#ifndef CW_BROKER_MEMORY_HOLDS_H
#define CW_BROKER_MEMORY_HOLDS_H

#include <stdbool.h>
#include <stdint.h>

#include "broker/core/table.h"

struct cwd_broker;

struct cwd_hold_key {
    uint64_t slot, gen; /* slot: slab and block, as in a lease table; 0 is none */
};

struct cwd_hold {
    struct cwd_hold_key key;
    uint32_t refs;
    uint32_t grouped; /* of these: of groups */
    bool waits;
    struct cwd_hold *prev, *next; /* in reclaim.waiting */
    UT_hash_handle hh;
};

/* 0, or -EDQUOT. */
int cwd_holds_init(struct cwd_broker *broker);
void cwd_holds_deinit(struct cwd_broker *broker);

/* NULL: there is none. */
struct cwd_hold *cwd_hold_find(struct cwd_broker *broker, uint64_t slot, uint64_t gen);
/* That of this block, made if there is none: of *spare, which is NULL then, unless spare is. NULL:
 * no memory, which cannot be with a spare one. */
struct cwd_hold *cwd_hold_make(struct cwd_broker *broker, uint64_t slot, uint64_t gen,
                               struct cwd_hold **spare);
/* Frees it if nothing keeps it. */
void cwd_hold_settle(struct cwd_broker *broker, struct cwd_hold *hold);
/* One of no block yet; NULL: no memory. For free(), or cwd_hold_make(). */
struct cwd_hold *cwd_hold_spare(void);

#endif
