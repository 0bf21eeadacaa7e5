/*
 * Contexts: see context.h.
 */
#include "tests/fakecuda/driver/context.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/fakecuda/driver/card.h"
#include "tests/fakecuda/driver/error.h"
#include "tests/fakecuda/driver/fault.h"
#include "tests/fakecuda/streams/stream.h"

#define STACK_MAX 16

pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

static fake_context contexts[FAKE_DEVICES_MAX];
static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int initialised;
static _Atomic int forked; /* this process is a child of one that had initialised */
static __thread fake_context *stack[STACK_MAX];
static __thread int depth;

static void after_fork(void) {
    if (atomic_load(&initialised))
        atomic_store(&forked, 1);
}

static CUresult load(void) {
    CUresult code;
    if ((code = fake_config_load()) || (code = fake_fault_load()) || (code = fake_card_open()))
        return code;
    for (int i = 0; i < FAKE_DEVICES_MAX; i++)
        contexts[i] = (fake_context){.index = i, .keeper_fd = -1, .owner_fd = -1};
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags) {
    static bool watched, loaded;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&forked))
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&init_mutex);
    CUresult code = loaded ? CUDA_SUCCESS : load();
    loaded = code == CUDA_SUCCESS;
    if (!code) {
        struct fake_fault fault = fake_fault_next("cuInit");
        code = fault.action == FAKE_ERROR       ? fault.error
               : fake_config.visible_count == 0 ? CUDA_ERROR_NO_DEVICE
                                                : CUDA_SUCCESS;
    }
    if (!code && !watched)
        watched = pthread_atfork(NULL, NULL, after_fork) == 0;
    if (!code)
        atomic_store(&initialised, 1);
    pthread_mutex_unlock(&init_mutex);
    return code;
}

static CUresult fault_of_call(const char *name, fake_context *context) {
    struct fake_fault fault = fake_fault_next(name);
    switch (fault.action) {
    case FAKE_ERROR:
        if (context && fake_error_sticky(fault.error))
            fake_context_break(context, fault.error);
        return fault.error;
    case FAKE_DELAY:
        fake_delay_us(fault.delay_us);
        return CUDA_SUCCESS;
    case FAKE_LOSE:
        fake_card_lose(context ? context->index : fake_config.visible[0]);
        return context ? fake_context_error(context) : CUDA_SUCCESS;
    default:
        return CUDA_SUCCESS;
    }
}

CUresult fake_call(const char *name) {
    if (atomic_load(&forked) || !atomic_load(&initialised))
        return CUDA_ERROR_NOT_INITIALIZED;
    return fault_of_call(name, depth ? stack[depth - 1] : NULL);
}

CUresult fake_call_in(const char *name, fake_context **context) {
    if (atomic_load(&forked) || !atomic_load(&initialised))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!depth || !stack[depth - 1])
        return CUDA_ERROR_INVALID_CONTEXT;
    fake_context *current = stack[depth - 1];
    if (!fake_context_active(current))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUresult code = fault_of_call(name, current);
    *context = current;
    return code ? code : fake_context_error(current);
}

fake_context *fake_context_of(int index) {
    return &contexts[index];
}

bool fake_context_active(const fake_context *context) {
    pthread_mutex_lock(&fake_mutex);
    bool active = context->retained > 0;
    pthread_mutex_unlock(&fake_mutex);
    return active;
}

int fake_device_index(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < fake_config.visible_count ? fake_config.visible[ordinal] : -1;
}

/* What the driver says after a device fell off the bus. */
CUresult fake_context_error(fake_context *context) {
    if (!context->error && fake_card_lost(context->index))
        fake_context_break(context, CUDA_ERROR_UNKNOWN);
    return context->error;
}

void fake_context_break(fake_context *context, CUresult code) {
    CUresult none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&context->error, &none, code);
}

/* ---- the primary context ------------------------------------------------------------------------
 */

/* Under fake_mutex. */
static CUresult make(fake_context *context) {
    int slot;
    uint64_t id;
    CUresult code = CUDA_SUCCESS;
    if (fake_card_lost(context->index))
        return CUDA_ERROR_UNKNOWN;
    if (fake_config.mode == CU_COMPUTEMODE_PROHIBITED)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (fake_config.mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
        code = fake_card_exclusive(context->index, &context->owner_fd);
    if (!code && fake_config.context_bytes)
        code = fake_card_take(context->index, fake_config.context_bytes, &context->keeper_fd, &slot,
                              &id);
    if (code && context->owner_fd >= 0) {
        close(context->owner_fd);
        context->owner_fd = -1;
    }
    return code;
}

/* Under fake_mutex. */
static void destroy(fake_context *context) {
    fake_stream_end_all(context);
    context->retained = 0;
    context->error = CUDA_SUCCESS;
    memset(context->peer, 0, sizeof context->peer);
    if (context->keeper_fd >= 0)
        close(context->keeper_fd);
    if (context->owner_fd >= 0)
        close(context->owner_fd);
    context->keeper_fd = context->owner_fd = -1;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    CALL(cuDevicePrimaryCtxRetain);
    int index = fake_device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    fake_context *context = &contexts[index];
    pthread_mutex_lock(&fake_mutex);
    CUresult code = context->retained ? CUDA_SUCCESS : make(context);
    if (!code) {
        context->retained++;
        *out = context;
    }
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    CALL(cuDevicePrimaryCtxRelease);
    int index = fake_device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    fake_context *context = &contexts[index];
    pthread_mutex_lock(&fake_mutex);
    CUresult code = context->retained ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (context->retained == 1)
        destroy(context);
    else if (!code)
        context->retained--;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    CALL(cuDevicePrimaryCtxReset);
    int index = fake_device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_mutex);
    destroy(&contexts[index]);
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    CALL(cuDevicePrimaryCtxGetState);
    int index = fake_device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = 0;
    *active = fake_context_active(&contexts[index]);
    return CUDA_SUCCESS;
}

/* ---- the thread's stack of contexts ------------------------------------------------------------
 */

static bool known(CUcontext context) {
    return context >= contexts && context < contexts + FAKE_DEVICES_MAX;
}

CUresult cuCtxPushCurrent(CUcontext context) {
    CALL(cuCtxPushCurrent);
    if (!known(context) || !fake_context_active(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == STACK_MAX) {
        fprintf(stderr, "fakecuda: more than %d contexts pushed in one thread\n", STACK_MAX);
        return CUDA_ERROR_INVALID_VALUE;
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *out) {
    CALL(cuCtxPopCurrent);
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (out)
        *out = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    CALL(cuCtxSetCurrent);
    if (context && !known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    depth += depth == 0;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out) {
    CALL(cuCtxGetCurrent);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *out) {
    CALL(cuCtxGetDevice);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!depth || !stack[depth - 1])
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = fake_config_ordinal(stack[depth - 1]->index);
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    CALL_IN(context, cuCtxEnablePeerAccess);
    if (flags || !known(peer))
        return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    if (peer == context || !fake_config.peer[context->index][peer->index])
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    pthread_mutex_lock(&fake_mutex);
    CUresult code =
        context->peer[peer->index] ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
    context->peer[peer->index] = true;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    CALL_IN(context, cuCtxDisablePeerAccess);
    if (!known(peer))
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_mutex);
    CUresult code = context->peer[peer->index] ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peer[peer->index] = false;
    pthread_mutex_unlock(&fake_mutex);
    return code;
}
