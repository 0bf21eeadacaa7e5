/*
 * The requests of who administers a broker (`cableway leaks`, `cableway limit`), for the table of
 * requests.c.
 */
#ifndef CW_BROKER_SESSION_ADMIN_REQUESTS_H
#define CW_BROKER_SESSION_ADMIN_REQUESTS_H

#include "broker/session/request_form.h"

serve cwd_serve_transits, cwd_serve_limit_set;

#endif
