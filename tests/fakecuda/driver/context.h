/*
 * Contexts, and what every call begins with.
 *
 * A device has one context, its primary one. An error that is sticky stays with it, is returned by
 * every later call, and ends all work that is under way or comes after it; only the last release
 * or a reset takes it away. Work runs in threads (stream.h); one lock for the whole process, with
 * one condition for all that can change, keeps what calls and threads share.
 *
 * A child of fork whose parent had initialised the driver gets NOT_INITIALIZED from every call.
 */
#ifndef CW_TESTS_FAKECUDA_DRIVER_CONTEXT_H
#define CW_TESTS_FAKECUDA_DRIVER_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "tests/fakecuda/driver/config.h"

struct fake_stream;

struct CUctx_st {
    int index;
    int retained;                /* by cuDevicePrimaryCtxRetain */
    _Atomic CUresult error;      /* sticky */
    int waiting;                 /* streams that wait for a word just now */
    struct fake_stream *null;    /* the default stream */
    int keeper_fd;               /* its memory on the card */
    int owner_fd;                /* exclusive mode */
    bool peer[FAKE_DEVICES_MAX]; /* cuCtxEnablePeerAccess: for memory of cuMemAlloc */
};
typedef struct CUctx_st fake_context;

extern pthread_mutex_t fake_mutex;
extern pthread_cond_t fake_changed; /* broadcast with every change of a stream or an event */

/* Begin of a call that needs the driver alone, or a current context that works as well. */
#define CALL(name)                                                                                 \
    do {                                                                                           \
        CUresult call_code = fake_call(#name);                                                     \
        if (call_code)                                                                             \
            return call_code;                                                                      \
    } while (0)
#define CALL_IN(context, name)                                                                     \
    fake_context *context = NULL;                                                                  \
    do {                                                                                           \
        CUresult call_code = fake_call_in(#name, &context);                                        \
        if (call_code)                                                                             \
            return call_code;                                                                      \
    } while (0)

CUresult fake_call(const char *name);
CUresult fake_call_in(const char *name, fake_context **context);

/* The device's context, active or not. */
fake_context *fake_context_of(int index);
bool fake_context_active(const fake_context *context);
/* An ordinal of this process as an index; -1 if it is none. */
int fake_device_index(CUdevice ordinal);
/* The error that work on it ends with; looks whether the device is lost. */
CUresult fake_context_error(fake_context *context);
void fake_context_break(fake_context *context, CUresult code);

#endif
