/*
 * What outlives a broker: shared memory that processes still have mapped after the broker that kept
 * it has ended. From /proc of all processes that we may look into: nobody is asked.
 */
#ifndef CW_TOOLS_WATCH_REMAINS_H
#define CW_TOOLS_WATCH_REMAINS_H

#include <stdint.h>

struct remains_row {
    uint32_t pid;
    char comm[33];
    uint64_t host_bytes; /* of slabs that it maps, each once; several processes may map the same */
};

typedef void remains_each(void *context, const struct remains_row *row);
/* Calls each() for every process that maps memory of a broker that has ended. */
void remains_walk(remains_each *each, void *context);

#endif
