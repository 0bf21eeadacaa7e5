/*
 * The transfer plan: see transfer_plan.h. The lock is held for a few instructions; nothing is
 * called under it.
 */
#include "broker/bridge/fetch/transfer_plan.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/memory.h"
#include "ipc/base/name_key.h"

static void told(struct cwb_work *work) {
    struct cwb_transfer_plan *plan = (struct cwb_transfer_plan *)work;
    pthread_mutex_lock(&plan->lock);
    plan->telling = false;
    pthread_mutex_unlock(&plan->lock);
    if (plan->owner)
        plan->on_told(plan->owner);
    cwb_transfer_plan_unref(plan);
}

struct cwb_transfer_plan *cwb_transfer_plan_new(struct cwb_helpers *helpers, cw_array *array,
                                                cw_array *lease, uint64_t source,
                                                uint64_t size_bytes, uint64_t ring_bytes,
                                                uint32_t chunk_bytes) {
    chunk_bytes = chunk_bytes / CWB_SUM_PIECE * CWB_SUM_PIECE;
    CW_ASSERT(chunk_bytes);
    uint64_t count = (size_bytes + chunk_bytes - 1) / chunk_bytes;
    uint64_t ring = ring_bytes ? ring_bytes / chunk_bytes : count;
    CW_ASSERT(ring);
    struct cwb_transfer_plan *plan = calloc(1, sizeof *plan + count);
    if (!plan) {
        cwb_no_memory("an array of another node");
        return NULL;
    }
    plan->sum = cwb_sum_new(cw_array_lowest(array), size_bytes, ring * chunk_bytes);
    if (!plan->sum) {
        free(plan);
        return NULL;
    }
    plan->work.done = told;
    plan->helpers = helpers;
    plan->source = source;
    plan->size_bytes = size_bytes;
    plan->count = count;
    plan->ring = ring;
    plan->chunk_bytes = chunk_bytes;
    plan->bytes = cw_array_lowest(array);
    plan->lease = lease;
    plan->references = 1;
    pthread_mutex_init(&plan->lock, NULL);
    return plan;
}

void cwb_transfer_plan_ref(struct cwb_transfer_plan *plan) {
    pthread_mutex_lock(&plan->lock);
    plan->references++;
    pthread_mutex_unlock(&plan->lock);
}

void cwb_transfer_plan_unref(struct cwb_transfer_plan *plan) {
    pthread_mutex_lock(&plan->lock);
    uint32_t left = --plan->references;
    pthread_mutex_unlock(&plan->lock);
    if (left)
        return;
    cw_array_close(plan->lease);
    cwb_sum_free(plan->sum);
    pthread_mutex_destroy(&plan->lock);
    free(plan);
}

static uint64_t number_of(const struct cwb_transfer_plan *plan, const struct cwb_read *read) {
    return read->offset_bytes / plan->chunk_bytes;
}

uint8_t *cwb_transfer_plan_target(const struct cwb_transfer_plan *plan,
                                  const struct cwb_read *read) {
    return plan->bytes + number_of(plan, read) % plan->ring * plan->chunk_bytes;
}

void cwb_transfer_plan_consumed(struct cwb_transfer_plan *plan, uint64_t bytes) {
    pthread_mutex_lock(&plan->lock);
    plan->consumed = bytes / plan->chunk_bytes;
    pthread_mutex_unlock(&plan->lock);
}

/* Is there one to ask for? It is `next`. The lock is held. */
static bool has_wanted(struct cwb_transfer_plan *plan) {
    while (plan->next < plan->count && plan->states[plan->next] != CWB_WANTED)
        plan->next++;
    return !plan->stopped && !plan->status && plan->next < plan->count &&
           plan->next < plan->consumed + plan->ring;
}

bool cwb_transfer_plan_ask(struct cwb_transfer_plan *plan, struct cwb_read *out) {
    pthread_mutex_lock(&plan->lock);
    bool found = has_wanted(plan);
    uint64_t chunk = plan->next;
    if (found) {
        plan->states[plan->next++] = CWB_ASKED;
        plan->asked++;
        plan->moves++;
    } else {
        plan->starved = true;
    }
    pthread_mutex_unlock(&plan->lock);
    if (!found)
        return false;
    uint64_t left = plan->size_bytes - chunk * plan->chunk_bytes;
    *out = (struct cwb_read){.source = plan->source,
                             .offset_bytes = chunk * plan->chunk_bytes,
                             .length_bytes =
                                 left < plan->chunk_bytes ? (uint32_t)left : plan->chunk_bytes};
    return true;
}

void cwb_transfer_plan_readers(struct cwb_transfer_plan *plan, uint32_t readers) {
    pthread_mutex_lock(&plan->lock);
    plan->readers = readers;
    pthread_mutex_unlock(&plan->lock);
}

uint32_t cwb_transfer_plan_share(struct cwb_transfer_plan *plan, uint32_t most) {
    pthread_mutex_lock(&plan->lock);
    uint64_t readers = plan->readers ? plan->readers : 1;
    uint64_t share = (plan->count - plan->next) / readers / CWB_SHARE_PARTS;
    pthread_mutex_unlock(&plan->lock);
    if (share < CWB_SHARE_LEAST)
        share = CWB_SHARE_LEAST;
    return share < most ? (uint32_t)share : most;
}

bool cwb_transfer_plan_refilled(struct cwb_transfer_plan *plan) {
    pthread_mutex_lock(&plan->lock);
    bool refilled = plan->starved && has_wanted(plan);
    if (refilled)
        plan->starved = false;
    pthread_mutex_unlock(&plan->lock);
    return refilled;
}

bool cwb_transfer_plan_here(struct cwb_transfer_plan *plan, const struct cwb_read *read) {
    pthread_mutex_lock(&plan->lock);
    CW_ASSERT(plan->states[number_of(plan, read)] == CWB_ASKED);
    plan->states[number_of(plan, read)] = CWB_HERE;
    plan->asked--;
    plan->moves++;
    pthread_mutex_unlock(&plan->lock);
    uint64_t step = plan->progress_bytes, before = step ? cwb_sum_prefix(plan->sum) : 0;
    bool whole = cwb_sum_add(plan->sum, read->offset_bytes, read->length_bytes);
    return whole || (step && cwb_sum_prefix(plan->sum) / step > before / step);
}

void cwb_transfer_plan_back(struct cwb_transfer_plan *plan, const struct cwb_read *read) {
    uint64_t chunk = number_of(plan, read);
    pthread_mutex_lock(&plan->lock);
    CW_ASSERT(plan->states[chunk] == CWB_ASKED);
    plan->states[chunk] = CWB_WANTED;
    plan->asked--;
    plan->moves++;
    if (chunk < plan->next)
        plan->next = chunk;
    pthread_mutex_unlock(&plan->lock);
}

void cwb_transfer_plan_fail(struct cwb_transfer_plan *plan, int status, const char *sentence,
                            uint32_t length) {
    pthread_mutex_lock(&plan->lock);
    if (!plan->status) {
        plan->status = status;
        snprintf(plan->detail, sizeof plan->detail, "%.*s", (int)length, sentence);
    }
    pthread_mutex_unlock(&plan->lock);
}

void cwb_transfer_plan_tell(struct cwb_transfer_plan *plan) {
    pthread_mutex_lock(&plan->lock);
    bool tell = !plan->telling;
    plan->telling = true;
    plan->references += tell;
    pthread_mutex_unlock(&plan->lock);
    if (tell)
        cwb_work_tell(plan->helpers, &plan->work);
}

bool cwb_transfer_plan_whole(struct cwb_transfer_plan *plan) {
    return cwb_sum_left(plan->sum) == 0;
}

int cwb_transfer_plan_status(struct cwb_transfer_plan *plan) {
    pthread_mutex_lock(&plan->lock);
    int status = plan->status;
    if (status)
        cw_fail(status, "%s", plan->detail);
    pthread_mutex_unlock(&plan->lock);
    return status;
}

bool cwb_transfer_plan_wait(struct cwb_transfer_plan *plan, uint64_t *moves) {
    pthread_mutex_lock(&plan->lock);
    bool waits = plan->asked || has_wanted(plan);
    *moves = plan->moves;
    pthread_mutex_unlock(&plan->lock);
    return waits;
}

void cwb_transfer_plan_stop(struct cwb_transfer_plan *plan) {
    plan->owner = NULL;
    pthread_mutex_lock(&plan->lock);
    plan->stopped = true;
    pthread_mutex_unlock(&plan->lock);
}
