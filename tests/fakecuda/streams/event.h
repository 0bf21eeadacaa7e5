/*
 * Events: numbers of recordings, made and done. All under fake_mutex.
 */
#ifndef CW_TESTS_FAKECUDA_STREAMS_EVENT_H
#define CW_TESTS_FAKECUDA_STREAMS_EVENT_H

#include "tests/fakecuda/driver/context.h"

struct CUevent_st {
    struct CUevent_st *next;
    fake_context *context;
    unsigned flags;
    int references; /* its handle, and works that record it or wait for it */
    bool destroyed;
    uint64_t recorded; /* the number of the last recording */
    uint64_t done;     /* of the last that has run */
    uint64_t done_ns;
};

void fake_event_unref(CUevent event);

#endif
