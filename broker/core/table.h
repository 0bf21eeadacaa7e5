/*
 * Hash tables and lists of the broker: uthash, with our rule for a lack of memory. If there is no
 * memory to add an element, the table stays as it was. Whoever adds checks this (CWD_ADDED) and
 * undoes what it had begun; the request is then refused.
 */
#ifndef CW_BROKER_CORE_TABLE_H
#define CW_BROKER_CORE_TABLE_H

#include "shm/base/error.h"

#define HASH_NONFATAL_OOM            1
#define uthash_nonfatal_oom(element) ((void)(element))
#include <uthash.h>
#include <utlist.h>

/* After HASH_ADD(): is it in? */
#define CWD_ADDED(element) ((element)->hh.tbl != NULL)
/* HASH_ADD() that cannot fail: to a table that is never empty. Where there is no memory for more
 * buckets the chains get longer, until a later add finds some. */
#define CWD_ADD_SURELY(head, field, bytes, element)                                                \
    do {                                                                                           \
        HASH_ADD(hh, head, field, bytes, element);                                                 \
        if (!CWD_ADDED(element)) {                                                                 \
            (head)->hh.tbl->noexpand = 1;                                                          \
            HASH_ADD(hh, head, field, bytes, element);                                             \
            (head)->hh.tbl->noexpand = 0;                                                          \
        }                                                                                          \
    } while (0)
/* The outcome of a request for which the broker finds no memory. */
#define cwd_no_memory(what)                                                                        \
    cw_fail(-EDQUOT, "the broker has no memory left for %s: close something, or let it have more", \
            what)

#endif
