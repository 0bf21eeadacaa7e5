/*
 * Chunks: see transfer_plan.h. The lock is held for a few instructions; nothing is called under it.
 */
#include "broker/bridge/fetch/transfer_plan.h"

#include <stdlib.h>
#include <string.h>

#include "broker/bridge/memory.h"
#include "ipc/base/name_key.h"

static void told(struct cwb_work *work) {
    struct cwb_chunks *chunks = (struct cwb_chunks *)work;
    pthread_mutex_lock(&chunks->lock);
    chunks->telling = false;
    pthread_mutex_unlock(&chunks->lock);
    if (chunks->owner)
        chunks->on_told(chunks->owner);
    cwb_chunks_unref(chunks);
}

struct cwb_chunks *cwb_chunks_new(struct cwb_works *works, cw_array *array, cw_array *held,
                                  uint64_t source, uint64_t size_bytes, uint64_t ring_bytes,
                                  uint32_t chunk_bytes) {
    chunk_bytes = chunk_bytes / CWB_SUM_PIECE * CWB_SUM_PIECE;
    CW_ASSERT(chunk_bytes);
    uint64_t count = (size_bytes + chunk_bytes - 1) / chunk_bytes;
    uint64_t ring = ring_bytes ? ring_bytes / chunk_bytes : count;
    CW_ASSERT(ring);
    struct cwb_chunks *chunks = calloc(1, sizeof *chunks + count);
    if (!chunks) {
        cwb_no_memory("an array of another node");
        return NULL;
    }
    chunks->sum = cwb_sum_new(cw_array_lowest(array), size_bytes, ring * chunk_bytes);
    if (!chunks->sum) {
        free(chunks);
        return NULL;
    }
    chunks->work.done = told;
    chunks->works = works;
    chunks->source = source;
    chunks->size_bytes = size_bytes;
    chunks->count = count;
    chunks->ring = ring;
    chunks->chunk_bytes = chunk_bytes;
    chunks->bytes = cw_array_lowest(array);
    chunks->held = held;
    chunks->references = 1;
    pthread_mutex_init(&chunks->lock, NULL);
    return chunks;
}

void cwb_chunks_ref(struct cwb_chunks *chunks) {
    pthread_mutex_lock(&chunks->lock);
    chunks->references++;
    pthread_mutex_unlock(&chunks->lock);
}

void cwb_chunks_unref(struct cwb_chunks *chunks) {
    pthread_mutex_lock(&chunks->lock);
    uint32_t left = --chunks->references;
    pthread_mutex_unlock(&chunks->lock);
    if (left)
        return;
    cw_array_close(chunks->held);
    cwb_sum_free(chunks->sum);
    pthread_mutex_destroy(&chunks->lock);
    free(chunks);
}

static uint64_t number_of(const struct cwb_chunks *chunks, const struct cwb_read *read) {
    return read->offset_bytes / chunks->chunk_bytes;
}

uint8_t *cwb_chunks_place(const struct cwb_chunks *chunks, const struct cwb_read *read) {
    return chunks->bytes + number_of(chunks, read) % chunks->ring * chunks->chunk_bytes;
}

void cwb_chunks_consumed(struct cwb_chunks *chunks, uint64_t bytes) {
    pthread_mutex_lock(&chunks->lock);
    chunks->consumed = bytes / chunks->chunk_bytes;
    pthread_mutex_unlock(&chunks->lock);
}

/* Is there one to ask for? It is `next`. The lock is held. */
static bool has_wanted(struct cwb_chunks *chunks) {
    while (chunks->next < chunks->count && chunks->states[chunks->next] != CWB_WANTED)
        chunks->next++;
    return !chunks->stopped && !chunks->status && chunks->next < chunks->count &&
           chunks->next < chunks->consumed + chunks->ring;
}

bool cwb_chunks_ask(struct cwb_chunks *chunks, struct cwb_read *out) {
    pthread_mutex_lock(&chunks->lock);
    bool found = has_wanted(chunks);
    uint64_t chunk = chunks->next;
    if (found) {
        chunks->states[chunks->next++] = CWB_ASKED;
        chunks->asked++;
        chunks->moves++;
    } else {
        chunks->in_vain = true;
    }
    pthread_mutex_unlock(&chunks->lock);
    if (!found)
        return false;
    uint64_t left = chunks->size_bytes - chunk * chunks->chunk_bytes;
    *out = (struct cwb_read){.source = chunks->source,
                             .offset_bytes = chunk * chunks->chunk_bytes,
                             .length_bytes =
                                 left < chunks->chunk_bytes ? (uint32_t)left : chunks->chunk_bytes};
    return true;
}

void cwb_chunks_readers(struct cwb_chunks *chunks, uint32_t readers) {
    pthread_mutex_lock(&chunks->lock);
    chunks->readers = readers;
    pthread_mutex_unlock(&chunks->lock);
}

uint32_t cwb_chunks_share(struct cwb_chunks *chunks, uint32_t most) {
    pthread_mutex_lock(&chunks->lock);
    uint64_t readers = chunks->readers ? chunks->readers : 1;
    uint64_t share = (chunks->count - chunks->next) / readers / CWB_SHARE_PARTS;
    pthread_mutex_unlock(&chunks->lock);
    if (share < CWB_SHARE_LEAST)
        share = CWB_SHARE_LEAST;
    return share < most ? (uint32_t)share : most;
}

bool cwb_chunks_lacked(struct cwb_chunks *chunks) {
    pthread_mutex_lock(&chunks->lock);
    bool lacked = chunks->in_vain && has_wanted(chunks);
    if (lacked)
        chunks->in_vain = false;
    pthread_mutex_unlock(&chunks->lock);
    return lacked;
}

bool cwb_chunks_here(struct cwb_chunks *chunks, const struct cwb_read *read) {
    pthread_mutex_lock(&chunks->lock);
    CW_ASSERT(chunks->states[number_of(chunks, read)] == CWB_ASKED);
    chunks->states[number_of(chunks, read)] = CWB_HERE;
    chunks->asked--;
    chunks->moves++;
    pthread_mutex_unlock(&chunks->lock);
    uint64_t step = chunks->progress_bytes, before = step ? cwb_sum_prefix(chunks->sum) : 0;
    bool whole = cwb_sum_add(chunks->sum, read->offset_bytes, read->length_bytes);
    return whole || (step && cwb_sum_prefix(chunks->sum) / step > before / step);
}

void cwb_chunks_back(struct cwb_chunks *chunks, const struct cwb_read *read) {
    uint64_t chunk = number_of(chunks, read);
    pthread_mutex_lock(&chunks->lock);
    CW_ASSERT(chunks->states[chunk] == CWB_ASKED);
    chunks->states[chunk] = CWB_WANTED;
    chunks->asked--;
    chunks->moves++;
    if (chunk < chunks->next)
        chunks->next = chunk;
    pthread_mutex_unlock(&chunks->lock);
}

void cwb_chunks_fail(struct cwb_chunks *chunks, int status, const char *sentence, uint32_t length) {
    pthread_mutex_lock(&chunks->lock);
    if (!chunks->status) {
        chunks->status = status;
        snprintf(chunks->detail, sizeof chunks->detail, "%.*s", (int)length, sentence);
    }
    pthread_mutex_unlock(&chunks->lock);
}

void cwb_chunks_tell(struct cwb_chunks *chunks) {
    pthread_mutex_lock(&chunks->lock);
    bool tell = !chunks->telling;
    chunks->telling = true;
    chunks->references += tell;
    pthread_mutex_unlock(&chunks->lock);
    if (tell)
        cwb_work_tell(chunks->works, &chunks->work);
}

bool cwb_chunks_whole(struct cwb_chunks *chunks) {
    return cwb_sum_left(chunks->sum) == 0;
}

int cwb_chunks_status(struct cwb_chunks *chunks) {
    pthread_mutex_lock(&chunks->lock);
    int status = chunks->status;
    if (status)
        cw_fail(status, "%s", chunks->detail);
    pthread_mutex_unlock(&chunks->lock);
    return status;
}

bool cwb_chunks_wait(struct cwb_chunks *chunks, uint64_t *moves) {
    pthread_mutex_lock(&chunks->lock);
    bool waits = chunks->asked || has_wanted(chunks);
    *moves = chunks->moves;
    pthread_mutex_unlock(&chunks->lock);
    return waits;
}

void cwb_chunks_stop(struct cwb_chunks *chunks) {
    chunks->owner = NULL;
    pthread_mutex_lock(&chunks->lock);
    chunks->stopped = true;
    pthread_mutex_unlock(&chunks->lock);
}
