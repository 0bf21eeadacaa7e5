/*
 * Hash tables and lists of the broker: uthash, with our rule for want of memory (the broker's own
 * few bytes: an assertion, since half a change could not be undone).
 */
#ifndef CW_BROKER_TABLE_H
#define CW_BROKER_TABLE_H

#include "shm/error.h"

#define uthash_fatal(text) CW_ASSERT(!text)
#include <uthash.h>
#include <utlist.h>

#endif
