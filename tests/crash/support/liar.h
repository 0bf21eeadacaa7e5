/*
 * Liar: a raw client that does at random what clients do, and lies while it does it. It changes
 * words of what it says, of its rings, lease tables, block tables and fences, sends descriptors of
 * any kind, and speaks of what others have.
 *
 * It never returns: it ends by itself, in one of several ways, stands still until it is killed, or
 * dies of its own lies. What it does follows from the seed and its number; what it meets does not.
 */
#ifndef CW_TESTS_CRASH_SUPPORT_LIAR_H
#define CW_TESTS_CRASH_SUPPORT_LIAR_H

#include <stdint.h>

#include "tests/unit/raw_client.h"

#define LIAR_LIFE_MS 120 /* that one is meant to have, at most: who runs it kills it then */

/* Shared by all: what they did, and words that mean something somewhere. */
struct liar_board {
    cw_a64 lives, requests, lies, refused, done;
    cw_a64 words[64];
};

/* In a child of its own. broker: only its address counts. All names that it puts begin with n. */
_Noreturn void liar_live(const struct raw_broker *broker, struct liar_board *board,
                         uint64_t number);

#endif
