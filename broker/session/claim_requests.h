/*
 * The requests of claims (names/claims.h), for the table of requests.c.
 */
#ifndef CW_BROKER_SESSION_CLAIM_REQUESTS_H
#define CW_BROKER_SESSION_CLAIM_REQUESTS_H

#include "broker/session/request_form.h"

serve cwd_serve_claim, cwd_serve_release, cwd_serve_next_version;

#endif
