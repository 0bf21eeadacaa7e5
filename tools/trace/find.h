/*
 * The traces of this user's processes, found through /proc and copied. Nobody is asked, so it works
 * whatever the broker does, and without one.
 *
 * What a process wrote is copied and checked: events that cannot be are counted and left out.
 */
#ifndef CW_TOOLS_TRACE_FIND_H
#define CW_TOOLS_TRACE_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/base/trace_ring.h"

struct trace_function {
    uint64_t number;
    char name[CW_TRACE_NAME_MAX + 1];
};

struct trace_process {
    uint32_t pid;
    uint64_t inode;                     /* of its trace */
    char command[128];                  /* its command line, cut; as it is, so to be made safe */
    uint64_t events;                    /* of it, among all */
    uint64_t overwritten, lost, broken; /* events that newer ones took the place of; that found
                                         * their place taken; that cannot be */
    int64_t
        short_since_ns; /* events shorter than CW_TRACE_LONG_NS are all here from then on; 0: all */
    struct trace_function functions[CW_TRACE_FUNCTIONS];
    unsigned function_count;
};

struct trace_event {
    struct cw_trace_record record; /* of one under way the duration is until now */
    uint32_t process;              /* index */
    bool under_way;
    uint32_t calls;  /* that it is made of, one behind the other: see tracks.h */
    uint32_t lane;   /* tracks.h */
    uint64_t flow;   /* that links it to the other events of its task; 0: none */
    char flow_phase; /* 's', 't' or 'f': the first, one between, the last */
};

struct traces { /* zeros are none */
    int64_t now_ns;
    char *address; /* of the broker: its socket */
    struct trace_process *processes;
    size_t process_count, process_room;
    struct trace_event *events;
    size_t count, room;
};

/* Finds all of processes that ask the user's own broker, or would, whether one runs or not. Events
 * that ended before since_ns are left out, and so is what cannot be looked into. 0; -EINVAL: the
 * environment names no place for a broker. */
int traces_find(int64_t since_ns, struct traces *out);
void traces_free(struct traces *traces);

#endif
