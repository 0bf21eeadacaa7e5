/*
 * Staging buffers: see staging_buffers.h.
 */
#include "broker/bridge/serve/staging_buffers.h"

#include "shm/base/error.h"

void cwb_staging_buffers_init(struct cwb_staging_buffers *buffers, uint64_t size_bytes,
                              uint32_t chunk_bytes) {
    *buffers =
        (struct cwb_staging_buffers){.size_bytes = size_bytes,
                                     .chunk_count = (size_bytes + chunk_bytes - 1) / chunk_bytes,
                                     .chunk_bytes = chunk_bytes};
    buffers->count = buffers->chunk_count < CWB_STAGING_BUFFERS ? (uint32_t)buffers->chunk_count
                                                                : CWB_STAGING_BUFFERS;
    buffers->buffer_bytes =
        buffers->chunk_count == 1 ? (uint32_t)size_bytes : chunk_bytes + CWB_READ_MAX;
    for (uint32_t i = 0; i < CWB_STAGING_BUFFERS; i++)
        buffers->buffers[i].chunk = CWB_NO_CHUNK;
    pthread_mutex_init(&buffers->lock, NULL);
}

void cwb_staging_buffers_deinit(struct cwb_staging_buffers *buffers) {
    pthread_mutex_destroy(&buffers->lock);
}

uint64_t cwb_staging_buffers_bytes(const struct cwb_staging_buffers *buffers) {
    return (uint64_t)buffers->count * buffers->buffer_bytes;
}

uint64_t cwb_staging_buffers_length(const struct cwb_staging_buffers *buffers, uint64_t chunk) {
    uint64_t left = buffers->size_bytes - chunk * buffers->chunk_bytes;
    return left < buffers->chunk_bytes ? left : buffers->chunk_bytes;
}

struct cwb_staging_buffer *cwb_staging_buffers_of(struct cwb_staging_buffers *buffers,
                                                  uint64_t chunk) {
    for (uint32_t i = 0; i < buffers->count; i++)
        if (buffers->buffers[i].chunk == chunk)
            return &buffers->buffers[i];
    return NULL;
}

uint8_t *cwb_staging_buffers_at(const struct cwb_staging_buffers *buffers,
                                const struct cwb_staging_buffer *buffer) {
    return buffers->bytes + (size_t)(buffer - buffers->buffers) * buffers->buffer_bytes;
}

static struct cwb_staging_buffer *pick(struct cwb_staging_buffers *buffers, uint64_t chunk,
                                       bool demanded, uint64_t keep) {
    struct cwb_staging_buffer *best = cwb_staging_buffers_of(buffers, chunk);
    bool best_sent = false;
    if (best)
        return best->holds || best->filling ? NULL : best;
    for (uint32_t i = 0; i < buffers->count; i++) {
        struct cwb_staging_buffer *buffer = &buffers->buffers[i];
        if (buffer->chunk == CWB_NO_CHUNK)
            return buffer;
        bool sent = buffer->sent_bytes >= cwb_staging_buffers_length(buffers, buffer->chunk);
        if (buffer->holds || buffer->filling || (!sent && (!demanded || buffer->chunk >= keep)))
            continue;
        if (!best || sent > best_sent || (sent == best_sent && buffer->turn < best->turn)) {
            best = buffer;
            best_sent = sent;
        }
    }
    return best;
}

struct cwb_staging_buffer *cwb_staging_buffers_begin(struct cwb_staging_buffers *buffers,
                                                     uint64_t chunk, bool demanded, uint64_t keep) {
    pthread_mutex_lock(&buffers->lock);
    struct cwb_staging_buffer *buffer = pick(buffers, chunk, demanded, keep);
    if (buffer)
        *buffer =
            (struct cwb_staging_buffer){.chunk = chunk, .filling = true, .turn = ++buffers->turns};
    pthread_mutex_unlock(&buffers->lock);
    return buffer;
}

void cwb_staging_buffers_filled(struct cwb_staging_buffers *buffers,
                                struct cwb_staging_buffer *buffer, uint64_t valid_bytes) {
    pthread_mutex_lock(&buffers->lock);
    buffer->filling = false;
    buffer->valid_bytes = valid_bytes;
    pthread_mutex_unlock(&buffers->lock);
}

void cwb_staging_buffers_demand(struct cwb_staging_buffers *buffers, bool demanded) {
    pthread_mutex_lock(&buffers->lock);
    buffers->demanded = demanded;
    pthread_mutex_unlock(&buffers->lock);
}

void cwb_staging_buffers_hold(struct cwb_staging_buffers *buffers,
                              struct cwb_staging_buffer *buffer) {
    pthread_mutex_lock(&buffers->lock);
    buffer->holds++;
    pthread_mutex_unlock(&buffers->lock);
}

void cwb_staging_buffers_unhold(struct cwb_staging_buffers *buffers,
                                struct cwb_staging_buffer *buffer) {
    pthread_mutex_lock(&buffers->lock);
    buffer->holds--;
    pthread_mutex_unlock(&buffers->lock);
}

const uint8_t *cwb_staging_buffers_acquire(struct cwb_staging_buffers *buffers,
                                           const struct cwb_read *read) {
    uint64_t inside = read->offset_bytes % buffers->chunk_bytes;
    const uint8_t *bytes = NULL;
    pthread_mutex_lock(&buffers->lock);
    struct cwb_staging_buffer *buffer =
        cwb_staging_buffers_of(buffers, read->offset_bytes / buffers->chunk_bytes);
    if (buffer && !buffer->filling && inside + read->length_bytes <= buffer->valid_bytes) {
        buffer->holds++;
        bytes = cwb_staging_buffers_at(buffers, buffer) + inside;
    }
    pthread_mutex_unlock(&buffers->lock);
    return bytes;
}

static struct cwb_staging_buffer *held(struct cwb_staging_buffers *buffers, uint64_t offset_bytes) {
    struct cwb_staging_buffer *buffer =
        cwb_staging_buffers_of(buffers, offset_bytes / buffers->chunk_bytes);
    CW_ASSERT(buffer && buffer->holds);
    return buffer;
}

const uint8_t *cwb_staging_buffers_held(struct cwb_staging_buffers *buffers,
                                        uint64_t offset_bytes) {
    pthread_mutex_lock(&buffers->lock);
    const uint8_t *bytes = cwb_staging_buffers_at(buffers, held(buffers, offset_bytes));
    pthread_mutex_unlock(&buffers->lock);
    return bytes + offset_bytes % buffers->chunk_bytes;
}

bool cwb_staging_buffers_release(struct cwb_staging_buffers *buffers, uint64_t offset_bytes,
                                 uint32_t length_bytes, bool sent) {
    pthread_mutex_lock(&buffers->lock);
    struct cwb_staging_buffer *buffer = held(buffers, offset_bytes);
    buffer->holds--;
    buffer->sent_bytes += sent ? length_bytes : 0;
    bool whole = buffer->sent_bytes >= cwb_staging_buffers_length(buffers, buffer->chunk);
    bool look = !buffer->holds && (buffers->demanded || whole);
    pthread_mutex_unlock(&buffers->lock);
    return look;
}
