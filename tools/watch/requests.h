/*
 * Requests, seen from outside: what a client last asked the broker for, and what of it the broker
 * has not read yet. From the ring of its session: nobody is asked.
 *
 * A ring is the client's and the broker's, who go on while it is read: each word is copied and
 * bounded, and what makes no sense is not shown.
 */
#ifndef CW_TOOLS_WATCH_REQUESTS_H
#define CW_TOOLS_WATCH_REQUESTS_H

#include <stdint.h>

#include "shm/session/session.h"

#define REQUESTS_KEY_BYTES 224

struct requests_one {
    uint32_t op;                  /* enum cw_op; 0: none is known */
    uint64_t id;                  /* of the message */
    char key[REQUESTS_KEY_BYTES]; /* terminated: the name that it is about, without its namespace;
                                     "": none */
    char name_space[72];
};

struct requests {
    struct requests_one last; /* through the channel; what comes with descriptors is not seen */
    struct requests_one wait; /* the last one that waits for a name, and was not cancelled */
    uint32_t unread;          /* that the broker has not read yet */
};

/* base: a session's segment of at least CW_SESSION_BYTES. */
void requests_look(void *base, struct requests *out);
/* "put", "wait", ...; "" of 0; "op 99" of others. text: at least 16 bytes. Returns a text. */
const char *requests_text(uint32_t op, char *text);

#endif
