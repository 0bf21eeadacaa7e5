/*
 * The requests of transits (memory/transit.h), for the table of requests.c.
 */
#ifndef CW_BROKER_SESSION_TRANSIT_REQUESTS_H
#define CW_BROKER_SESSION_TRANSIT_REQUESTS_H

#include "broker/session/request_form.h"

serve cwd_serve_transit_begin, cwd_serve_transit_share, cwd_serve_transit_opened,
    cwd_serve_transit_end, cwd_serve_transit_anchor;

#endif
