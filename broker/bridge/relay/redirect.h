/*
 * Redirect: a replica whose owner refers us to another node for its bytes. fan_out.h has the whole.
 * See redirect.c.
 */
#ifndef CW_BROKER_BRIDGE_RELAY_REDIRECT_H
#define CW_BROKER_BRIDGE_RELAY_REDIRECT_H

#include "broker/bridge/wire/frame.h"

struct cwb_replica;
struct cwb_redirect;

/* The owner has told what it is (opened and came are set), and who has it. */
void cwb_redirect_begin(struct cwb_replica *replica, const struct cwb_referral *referral);
/* There is no memory for it here, or it came (status 0), or did not: the replica is put, asked for
 * anew, or fails. */
void cwb_redirect_came(struct cwb_replica *replica, int status);
/* Nobody is asked any more; NULL: nobody was. */
void cwb_redirect_cancel(struct cwb_redirect *redirect);

#endif
