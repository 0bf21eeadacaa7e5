/*
 * What a stream's thread does with one piece of work. It returns the error that breaks the context.
 * Memory is looked up and touched under fake_ranges_lock, taken shared, and never held in a wait.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/fakecuda/driver/card.h"
#include "tests/fakecuda/streams/event.h"
#include "tests/fakecuda/driver/fault.h"
#include "tests/fakecuda/streams/kernel.h"
#include "tests/fakecuda/memory/memory.h"
#include "tests/fakecuda/streams/stream.h"

static const char *const names[] = {
    [FAKE_COPY] = "copy",     [FAKE_FILL] = "fill",     [FAKE_WRITE] = "write",
    [FAKE_WAIT] = "wait",     [FAKE_KERNEL] = "kernel", [FAKE_HOST] = "host",
    [FAKE_RECORD] = "record", [FAKE_EVENT] = "event",   [FAKE_AFTER] = "after",
};

/* Must the thread stop, whatever it waits for? */
static bool stopped(struct fake_stream *stream) {
    pthread_mutex_lock(&fake_mutex);
    bool stop = stream->dropped || fake_context_error(stream->context);
    pthread_mutex_unlock(&fake_mutex);
    return stop;
}

static bool side_allowed(struct fake_stream *stream, uintptr_t address, size_t size_bytes,
                         bool write, bool host) {
    if (host && !fake_range_known(address, size_bytes))
        return true; /* plain memory of the process */
    return fake_range_allows(stream->context, address, size_bytes, write, true);
}

static CUresult run_copy(struct fake_stream *stream, const struct fake_copy *copy) {
    CUresult code = CUDA_SUCCESS;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    for (size_t row = 0; row < copy->height && !code; row++) {
        uintptr_t to = copy->to + row * copy->to_pitch_bytes;
        uintptr_t from = copy->from + row * copy->from_pitch_bytes;
        if (!side_allowed(stream, to, copy->width_bytes, true, copy->to_host) ||
            !side_allowed(stream, from, copy->width_bytes, false, copy->from_host))
            code = CUDA_ERROR_ILLEGAL_ADDRESS;
        else
            memmove((void *)to, (const void *)from, copy->width_bytes);
    }
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

static CUresult run_fill(struct fake_stream *stream, const struct fake_fill *fill) {
    CUresult code = CUDA_SUCCESS;
    size_t unit = (size_t)fill->unit_bytes;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    if (!fake_range_allows(stream->context, fill->to, fill->count * unit, true, true))
        code = CUDA_ERROR_ILLEGAL_ADDRESS;
    else if (unit == 1)
        memset((void *)fill->to, (int)fill->value, fill->count);
    else
        for (size_t i = 0; i < fill->count; i++)
            memcpy((void *)(fill->to + i * unit), &fill->value, unit);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

static CUresult run_write(struct fake_stream *stream, const struct fake_word *word) {
    CUresult code = CUDA_SUCCESS;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    if (!fake_range_allows(stream->context, word->address, (size_t)word->size_bytes, true, false))
        code = CUDA_ERROR_ILLEGAL_ADDRESS;
    else if (word->size_bytes == 8)
        atomic_store((_Atomic uint64_t *)word->address, word->value);
    else
        atomic_store((_Atomic uint32_t *)word->address, (uint32_t)word->value);
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

static CUresult look(struct fake_stream *stream, const struct fake_word *word, bool *out) {
    CUresult code = CUDA_SUCCESS;
    pthread_rwlock_rdlock(&fake_ranges_lock);
    if (!fake_range_allows(stream->context, word->address, (size_t)word->size_bytes, false, false))
        code = CUDA_ERROR_ILLEGAL_ADDRESS;
    else
        *out = fake_word_reached(word, word->size_bytes == 8
                                           ? atomic_load((_Atomic uint64_t *)word->address)
                                           : atomic_load((_Atomic uint32_t *)word->address));
    pthread_rwlock_unlock(&fake_ranges_lock);
    return code;
}

static void change_waiting(struct fake_stream *stream, int by) {
    pthread_mutex_lock(&fake_mutex);
    stream->context->waiting += by;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_mutex);
}

static CUresult run_wait(struct fake_stream *stream, const struct fake_word *word) {
    bool is = false;
    CUresult code = look(stream, word, &is);
    if (code || is)
        return code;
    change_waiting(stream, 1);
    for (uint64_t pause_us = 10; !code && !is && !stopped(stream);) {
        fake_delay_us(pause_us);
        pause_us += pause_us < 200 ? 10 : 0;
        code = look(stream, word, &is);
    }
    change_waiting(stream, -1);
    return code;
}

/* Waits for another stream, or for an event, whose threads need nothing of this one. */
static CUresult run_after(struct fake_stream *stream, struct fake_work *work) {
    pthread_mutex_lock(&fake_mutex);
    while (!stream->dropped && !fake_context_error(stream->context) &&
           (work->kind == FAKE_AFTER ? work->after.stream->completed < work->after.number
                                     : work->event.event->done < work->event.number))
        fake_wait_changed();
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

static CUresult apply(struct fake_stream *stream, struct fake_fault fault) {
    char name[16];
    switch (fault.action) {
    case FAKE_ERROR:
        return fault.error;
    case FAKE_DELAY:
        (void)pthread_getname_np(pthread_self(), name, sizeof name);
        (void)pthread_setname_np(pthread_self(), FAKE_WAITS);
        for (uint64_t left = fault.delay_us; left && !stopped(stream);) {
            uint64_t step = left < 5000 ? left : 5000;
            fake_delay_us(step);
            left -= step;
        }
        (void)pthread_setname_np(pthread_self(), name);
        return CUDA_SUCCESS;
    case FAKE_UNTIL:
        (void)pthread_getname_np(pthread_self(), name, sizeof name);
        (void)pthread_setname_np(pthread_self(), FAKE_WAITS);
        while (access(fault.file, F_OK) != 0 && !stopped(stream))
            fake_delay_us(2000);
        (void)pthread_setname_np(pthread_self(), name);
        return CUDA_SUCCESS;
    case FAKE_HANG:
        (void)pthread_setname_np(pthread_self(), FAKE_HANGS);
        while (!stopped(stream))
            fake_delay_us(2000);
        return CUDA_SUCCESS;
    case FAKE_LOSE:
        fake_card_lose(stream->context->index);
        return CUDA_ERROR_UNKNOWN;
    default:
        return CUDA_SUCCESS;
    }
}

CUresult fake_work_run(struct fake_stream *stream, struct fake_work *work) {
    CUresult code = apply(stream, fake_fault_next(names[work->kind]));
    if (code || stopped(stream))
        return code;
    switch (work->kind) {
    case FAKE_COPY:
        return run_copy(stream, &work->copy);
    case FAKE_FILL:
        return run_fill(stream, &work->fill);
    case FAKE_WRITE:
        return run_write(stream, &work->word);
    case FAKE_WAIT:
        return run_wait(stream, &work->word);
    case FAKE_KERNEL:
        return fake_kernel_run(stream, &work->launch);
    case FAKE_HOST:
        work->host.function(work->host.data);
        return CUDA_SUCCESS;
    case FAKE_RECORD:
        return CUDA_SUCCESS; /* fake_work_end notes it, also when nothing runs any more */
    case FAKE_EVENT:
    case FAKE_AFTER:
        return run_after(stream, work);
    }
    return CUDA_ERROR_UNKNOWN;
}

void fake_work_end(struct fake_work *work) {
    struct timespec now;
    if (work->kind == FAKE_COPY)
        free(work->copy.staged);
    if (work->kind == FAKE_KERNEL)
        free(work->launch.vector);
    if (work->kind == FAKE_AFTER)
        fake_stream_unref(work->after.stream);
    if (work->kind != FAKE_RECORD && work->kind != FAKE_EVENT)
        return;
    CUevent event = work->event.event;
    if (work->kind == FAKE_RECORD && event->done < work->event.number) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        event->done = work->event.number;
        event->done_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    fake_event_unref(event);
}
