/*
 * Early ends: openings and ends of transits whose BEGIN the broker has not read yet (transit.h).
 *
 * BEGIN and END come from the rings of two clients. A BEGIN stands in its ring before the handle
 * leaves. So once that ring was read as far as it was filled when the END came, the END was of a
 * token that nobody had handed out, and says nothing of who gets that number later. Tokens are
 * numbers that anybody can guess: what is remembered is limited for each session and in all. What
 * is not remembered costs memory until the transit's limit, never data.
 *
 * Owner: the loop's thread.
 */
#ifndef CW_BROKER_MEMORY_EARLY_ENDS_H
#define CW_BROKER_MEMORY_EARLY_ENDS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

struct cwd_broker;
struct cwd_session;

#define CWD_EARLY_ALL UINT32_MAX /* as openings: an END, it is over for all */

/* Does this OPENED or END speak of that block? Slab 0: it knows the token alone. */
bool cwd_ref_means(const struct cw_block_ref *said, const struct cw_block_ref *block);
/* No transit of ref's token is known: session said so many openings, or an END. */
void cwd_early_note(struct cwd_broker *broker, struct cwd_session *session,
                    const struct cw_block_ref *ref, uint32_t openings);
/* The beginner's BEGIN with ref was read: the openings that came before it, or CWD_EARLY_ALL. They
 * are forgotten. */
uint32_t cwd_early_take(struct cwd_broker *broker, const struct cwd_session *beginner,
                        const struct cw_block_ref *ref);
/* A session ends: what is remembered for its BEGINs goes, what it said stays. */
void cwd_early_forget(struct cwd_broker *broker, struct cwd_session *session);
void cwd_early_deinit(struct cwd_broker *broker);

#endif
