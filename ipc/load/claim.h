/*
 * The claim of a name at the broker (broker/names/claims.h): of all who would make what it is to
 * mean, one has it.
 */
#ifndef CW_IPC_LOAD_CLAIM_H
#define CW_IPC_LOAD_CLAIM_H

#include <stdint.h>

#include "ipc/base/name_key.h"

/* 0: it is ours, *token its number; -EAGAIN: the name means a version higher than after, or another
 * claim has ended: look again; -EINTR, -ETIMEDOUT: it is not ours, and we do not wait for it. */
int cw_claim_ask(cw_client *client, const struct cw_name_key *key, uint64_t after,
                 int64_t timeout_ns, uint64_t *token);
/* Ends it; *token is 0 then. Of 0 nothing. Does not block. */
void cw_claim_release(cw_client *client, const struct cw_name_key *key, uint64_t *token);

#endif
