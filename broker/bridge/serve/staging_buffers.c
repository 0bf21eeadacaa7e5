/*
 * Slots: see staging_buffers.h.
 */
#include "broker/bridge/serve/staging_buffers.h"

#include "shm/base/error.h"

void cwb_slots_init(struct cwb_slots *slots, uint64_t size_bytes, uint32_t chunk_bytes) {
    *slots = (struct cwb_slots){.size_bytes = size_bytes,
                                .chunks = (size_bytes + chunk_bytes - 1) / chunk_bytes,
                                .chunk_bytes = chunk_bytes};
    slots->count = slots->chunks < CWB_SLOTS ? (uint32_t)slots->chunks : CWB_SLOTS;
    slots->slot_bytes = slots->chunks == 1 ? (uint32_t)size_bytes : chunk_bytes + CWB_READ_MAX;
    for (uint32_t i = 0; i < CWB_SLOTS; i++)
        slots->slots[i].chunk = CWB_NO_CHUNK;
    pthread_mutex_init(&slots->lock, NULL);
}

void cwb_slots_deinit(struct cwb_slots *slots) {
    pthread_mutex_destroy(&slots->lock);
}

uint64_t cwb_slots_bytes(const struct cwb_slots *slots) {
    return (uint64_t)slots->count * slots->slot_bytes;
}

uint64_t cwb_slots_length(const struct cwb_slots *slots, uint64_t chunk) {
    uint64_t left = slots->size_bytes - chunk * slots->chunk_bytes;
    return left < slots->chunk_bytes ? left : slots->chunk_bytes;
}

struct cwb_slot *cwb_slots_of(struct cwb_slots *slots, uint64_t chunk) {
    for (uint32_t i = 0; i < slots->count; i++)
        if (slots->slots[i].chunk == chunk)
            return &slots->slots[i];
    return NULL;
}

uint8_t *cwb_slots_at(const struct cwb_slots *slots, const struct cwb_slot *slot) {
    return slots->bytes + (size_t)(slot - slots->slots) * slots->slot_bytes;
}

static struct cwb_slot *pick(struct cwb_slots *slots, uint64_t chunk, bool demanded,
                             uint64_t keep) {
    struct cwb_slot *best = cwb_slots_of(slots, chunk);
    bool best_sent = false;
    if (best)
        return best->holds || best->filling ? NULL : best;
    for (uint32_t i = 0; i < slots->count; i++) {
        struct cwb_slot *slot = &slots->slots[i];
        if (slot->chunk == CWB_NO_CHUNK)
            return slot;
        bool sent = slot->sent_bytes >= cwb_slots_length(slots, slot->chunk);
        if (slot->holds || slot->filling || (!sent && (!demanded || slot->chunk >= keep)))
            continue;
        if (!best || sent > best_sent || (sent == best_sent && slot->turn < best->turn)) {
            best = slot;
            best_sent = sent;
        }
    }
    return best;
}

struct cwb_slot *cwb_slots_begin(struct cwb_slots *slots, uint64_t chunk, bool demanded,
                                 uint64_t keep) {
    pthread_mutex_lock(&slots->lock);
    struct cwb_slot *slot = pick(slots, chunk, demanded, keep);
    if (slot)
        *slot = (struct cwb_slot){.chunk = chunk, .filling = true, .turn = ++slots->turns};
    pthread_mutex_unlock(&slots->lock);
    return slot;
}

void cwb_slots_filled(struct cwb_slots *slots, struct cwb_slot *slot, uint64_t valid_bytes) {
    pthread_mutex_lock(&slots->lock);
    slot->filling = false;
    slot->valid_bytes = valid_bytes;
    pthread_mutex_unlock(&slots->lock);
}

void cwb_slots_demand(struct cwb_slots *slots, bool demanded) {
    pthread_mutex_lock(&slots->lock);
    slots->demanded = demanded;
    pthread_mutex_unlock(&slots->lock);
}

void cwb_slots_hold(struct cwb_slots *slots, struct cwb_slot *slot) {
    pthread_mutex_lock(&slots->lock);
    slot->holds++;
    pthread_mutex_unlock(&slots->lock);
}

void cwb_slots_unhold(struct cwb_slots *slots, struct cwb_slot *slot) {
    pthread_mutex_lock(&slots->lock);
    slot->holds--;
    pthread_mutex_unlock(&slots->lock);
}

const uint8_t *cwb_slots_take(struct cwb_slots *slots, const struct cwb_read *read) {
    uint64_t inside = read->offset_bytes % slots->chunk_bytes;
    const uint8_t *bytes = NULL;
    pthread_mutex_lock(&slots->lock);
    struct cwb_slot *slot = cwb_slots_of(slots, read->offset_bytes / slots->chunk_bytes);
    if (slot && !slot->filling && inside + read->length_bytes <= slot->valid_bytes) {
        slot->holds++;
        bytes = cwb_slots_at(slots, slot) + inside;
    }
    pthread_mutex_unlock(&slots->lock);
    return bytes;
}

static struct cwb_slot *held(struct cwb_slots *slots, uint64_t offset_bytes) {
    struct cwb_slot *slot = cwb_slots_of(slots, offset_bytes / slots->chunk_bytes);
    CW_ASSERT(slot && slot->holds);
    return slot;
}

const uint8_t *cwb_slots_held(struct cwb_slots *slots, uint64_t offset_bytes) {
    pthread_mutex_lock(&slots->lock);
    const uint8_t *bytes = cwb_slots_at(slots, held(slots, offset_bytes));
    pthread_mutex_unlock(&slots->lock);
    return bytes + offset_bytes % slots->chunk_bytes;
}

bool cwb_slots_let_go(struct cwb_slots *slots, uint64_t offset_bytes, uint32_t length_bytes,
                      bool sent) {
    pthread_mutex_lock(&slots->lock);
    struct cwb_slot *slot = held(slots, offset_bytes);
    slot->holds--;
    slot->sent_bytes += sent ? length_bytes : 0;
    bool whole = slot->sent_bytes >= cwb_slots_length(slots, slot->chunk);
    bool look = !slot->holds && (slots->demanded || whole);
    pthread_mutex_unlock(&slots->lock);
    return look;
}
