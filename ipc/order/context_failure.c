/*
 * Failed contexts: see context_failure.h.
 */
#include "ipc/request/channel.h"
#include "ipc/order/context_failure.h"

#include <stdio.h>
#include <string.h>

#include "ipc/order/stream.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list; one look at a time */
static struct cw_fences *all;
static bool watches_forks;

static void in_child(void) {
    pthread_mutex_init(&lock, NULL);
    all = NULL;
}

void cw_context_failure_watch(struct cw_fences *fences) {
    pthread_mutex_lock(&lock);
    if (!watches_forks)
        watches_forks = pthread_atfork(NULL, NULL, in_child) == 0;
    fences->next = all;
    all = fences;
    pthread_mutex_unlock(&lock);
}

void cw_context_failure_forget(struct cw_fences *fences) {
    pthread_mutex_lock(&lock);
    struct cw_fences **at = &all;
    while (*at && *at != fences)
        at = &(*at)->next;
    if (*at)
        *at = fences->next;
    pthread_mutex_unlock(&lock);
}

/* ---- the books of one client ---- */

/* Ends a section whose work will never be done. */
static void end_section(struct cw_section *section) {
    for (uint32_t i = 0; i < section->held_count; i++) {
        const struct cw_section_array *held = &section->held[i];
        if (!held->writing)
            continue; /* its stamp stays: who meets it finds the poison */
        cw_order_written(held->order, cw_section_stamp(section), NULL, 0, CW_ORDER_POISONED);
        cw_order_turn_give(held->order);
    }
    section->held_count = 0;
    section->open = false;
}

/* Poisons the pages of that GPU's fences. */
static void poison_pages(struct cw_fences *fences, int gpu) {
    for (uint32_t i = 0; i < CW_FENCE_BUCKETS; i++)
        for (struct cw_page_of_fences *page = fences->pages[i]; page; page = page->next) {
            if (page->gpu != gpu)
                continue;
            for (uint32_t j = 0; j < CW_FENCES_PER_PAGE; j++)
                cw_fence_poison(&page->fences[j]);
            page->untold = fences->untold = true;
        }
    fences->own[gpu].page = NULL;
}

/* Tells the broker, as far as there is room: who waits for others' work holds locks that all who
 * wait need. A broker that stands still hears of it with a later look, or by our death. */
static void tell_broker(struct cw_fences *fences) {
    bool left = false;
    for (uint32_t i = 0; fences->untold && i < CW_FENCE_BUCKETS; i++)
        for (struct cw_page_of_fences *page = fences->pages[i]; page; page = page->next) {
            struct cw_fence_page request = {.page = page->number};
            if (page->untold && cw_channel_offer(fences->client, CW_OP_FENCES_BREAK, &request,
                                                 sizeof request) == -EAGAIN)
                left = true;
            else
                page->untold = false;
        }
    fences->untold = left;
}

static void tell(struct cw_fences *fences, const struct cw_gpu *gpu) {
    pthread_mutex_lock(&fences->lock);
    if (!(fences->failed_contexts >> gpu->ordinal & 1)) {
        fences->failed_contexts |= 1ull << gpu->ordinal;
        for (struct cw_stream *stream = fences->streams; stream; stream = stream->next) {
            if (stream->gpu != gpu)
                continue;
            cw_stream_stop_waiting(stream);
            for (struct cw_section *at = stream->sections; at; at = at->next)
                if (at->open)
                    end_section(at);
        }
        poison_pages(fences, gpu->ordinal);
    }
    tell_broker(fences);
    pthread_mutex_unlock(&fences->lock);
}

/* ---- the process ---- */

/* Asks the driver about one context; another thread may be capturing a stream, which a question
 * would end. */
static void look_at(struct cw_gpu *gpu) {
    const struct cw_cuda *cuda = gpu->cuda;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (cw_gpu_check(gpu) != 0)
        return;
    CUresult result = cuda->cuCtxPushCurrent(gpu->context);
    if (result == CUDA_SUCCESS) {
        CUcontext popped;
        result = cuda->cuThreadExchangeStreamCaptureMode(&mode);
        if (result == CUDA_SUCCESS) {
            result = cuda->cuStreamQuery(gpu->copies);
            cuda->cuThreadExchangeStreamCaptureMode(&mode);
        }
        cuda->cuCtxPopCurrent(&popped);
    }
    if (cw_cuda_is_fatal(result))
        CW_STORE(V3, &gpu->fault, (uint32_t)result, relaxed);
}

void cw_context_failure_look(void) {
    char text[CW_DETAIL_MAX];
    struct cw_gpu *gpu;
    if (!cw_cuda_opened())
        return;
    snprintf(text, sizeof text, "%s", cw_detail());
    pthread_mutex_lock(&lock);
    for (int i = 0; (gpu = cw_gpu_started(i)); i++) {
        pthread_mutex_lock(&gpu->lock);
        bool started = gpu->context != NULL;
        pthread_mutex_unlock(&gpu->lock);
        if (!started)
            continue;
        look_at(gpu);
        for (struct cw_fences *fences = all; fences && cw_gpu_check(gpu) != 0;
             fences = fences->next)
            tell(fences, gpu);
    }
    pthread_mutex_unlock(&lock);
    cw_fail(-EAGAIN, "%s", text); /* the caller's text, as it was */
}

int cw_context_failure_serve(int code) {
    if (cw_cuda_suspected())
        cw_context_failure_look();
    return code;
}
