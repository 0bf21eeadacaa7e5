/*
 * Doctor: checks of this machine, each with what was found and, where something is amiss, the
 * remedy. One group of checks a file.
 */
#ifndef CW_TOOLS_DOCTOR_DOCTOR_H
#define CW_TOOLS_DOCTOR_DOCTOR_H

#include <jansson.h>

#include "tools/output.h"

enum doctor_level {
    DOCTOR_OK,
    DOCTOR_INFO,    /* no fault; good to know */
    DOCTOR_WARNING, /* works, with less than there could be */
    DOCTOR_MISSING, /* cableway does not work here */
};

struct doctor {
    json_t *checks; /* what was found, in order */
    int worst;      /* enum doctor_level */
};

/* Adds one result. remedy: what to do, or NULL. */
void doctor_add(struct doctor *doctor, enum doctor_level level, const char *check,
                const char *remedy, const char *format, ...) __attribute__((format(printf, 5, 6)));
/* The first line of a file, without its end; false if it cannot be read. */
bool doctor_read(const char *path, char *text, size_t text_bytes);

void doctor_kernel(struct doctor *doctor);      /* kernel.c: what the kernel lets us do */
void doctor_limits(struct doctor *doctor);      /* limits.c: memory and resource limits */
void doctor_place(struct doctor *doctor);       /* rendezvous.c: socket folder and brokers */
void doctor_use(struct doctor *doctor);         /* use.c: put and get, tried */
void doctor_bridge(struct doctor *doctor);      /* bridge.c: other nodes */
void doctor_environment(struct doctor *doctor); /* environment.c: misspelt variables */

#endif
