/*
 * Sums: see sum.h.
 */
#include "broker/bridge/sum.h"

#include <pthread.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shm/error.h"

/* A turn ends after so much: another thread goes on with the next piece, and requests that wait for
 * this one are not held up, also where the first piece comes after all others. What is left when no
 * more comes is cwb_sum_rest()'s. */
#define TURN_BYTES (4u << 20)

struct cwb_sum {
    pthread_mutex_t lock;
    pthread_cond_t turn_ended;
    bool turn; /* somebody is hashing */
    const uint8_t *bytes;
    uint64_t size_bytes, ring_bytes, hashed_bytes; /* the last its holder's alone during a turn */
    uint64_t *marks, count;                        /* a bit a piece */
    XXH3_state_t *hash;
};

struct cwb_sum *cwb_sum_new(const uint8_t *bytes, uint64_t size_bytes, uint64_t ring_bytes) {
    struct cwb_sum *sum = calloc(1, sizeof *sum);
    CW_ASSERT(sum);
    pthread_mutex_init(&sum->lock, NULL);
    pthread_cond_init(&sum->turn_ended, NULL);
    sum->bytes = bytes;
    sum->size_bytes = size_bytes;
    sum->ring_bytes = ring_bytes ? ring_bytes : 1;
    sum->count = (size_bytes + CWB_SUM_PIECE - 1) / CWB_SUM_PIECE;
    sum->marks = calloc((sum->count + 63) / 64 + 1, sizeof *sum->marks);
    sum->hash = XXH3_createState();
    CW_ASSERT(sum->marks && sum->hash);
    XXH3_64bits_reset(sum->hash);
    return sum;
}

void cwb_sum_free(struct cwb_sum *sum) {
    if (!sum)
        return;
    XXH3_freeState(sum->hash);
    free(sum->marks);
    pthread_cond_destroy(&sum->turn_ended);
    pthread_mutex_destroy(&sum->lock);
    free(sum);
}

static bool marked(const struct cwb_sum *sum, uint64_t piece) {
    return piece < sum->count && (sum->marks[piece / 64] >> piece % 64 & 1);
}

/* Where the marked pieces from `piece` on end, or `most`. */
static uint64_t run_end(const struct cwb_sum *sum, uint64_t piece, uint64_t most) {
    while (piece < most && marked(sum, piece))
        piece++;
    return piece;
}

static void mark(struct cwb_sum *sum, uint64_t offset_bytes, uint32_t length_bytes) {
    uint64_t end_bytes = offset_bytes + length_bytes;
    uint64_t piece = (offset_bytes + CWB_SUM_PIECE - 1) / CWB_SUM_PIECE;
    uint64_t end = end_bytes == sum->size_bytes ? sum->count : end_bytes / CWB_SUM_PIECE;
    for (; piece < end; piece++)
        sum->marks[piece / 64] |= 1ull << piece % 64;
}

static void hash_to(struct cwb_sum *sum, uint64_t end_bytes) {
    uint64_t at_bytes = sum->hashed_bytes;
    while (at_bytes < end_bytes) {
        uint64_t place = at_bytes % sum->ring_bytes, count = end_bytes - at_bytes;
        if (count > sum->ring_bytes - place)
            count = sum->ring_bytes - place;
        XXH3_64bits_update(sum->hash, sum->bytes + place, count);
        at_bytes += count;
    }
}

static uint64_t piece_begin(const struct cwb_sum *sum, uint64_t piece) {
    return piece >= sum->count ? sum->size_bytes : piece * CWB_SUM_PIECE;
}

void cwb_sum_add(struct cwb_sum *sum, uint64_t offset_bytes, uint32_t length_bytes) {
    uint64_t turn_bytes = 0;
    pthread_mutex_lock(&sum->lock);
    mark(sum, offset_bytes, length_bytes);
    while (!sum->turn && sum->hashed_bytes < sum->size_bytes) {
        uint64_t piece = sum->hashed_bytes / CWB_SUM_PIECE;
        uint64_t end = run_end(sum, piece, piece + TURN_BYTES / CWB_SUM_PIECE);
        if (end == piece || turn_bytes >= TURN_BYTES)
            break;
        uint64_t end_bytes = piece_begin(sum, end);
        sum->turn = true;
        pthread_mutex_unlock(&sum->lock);
        hash_to(sum, end_bytes);
        pthread_mutex_lock(&sum->lock);
        turn_bytes += end_bytes - sum->hashed_bytes;
        sum->hashed_bytes = end_bytes;
        sum->turn = false;
        pthread_cond_broadcast(&sum->turn_ended);
    }
    pthread_mutex_unlock(&sum->lock);
}

uint64_t cwb_sum_prefix(struct cwb_sum *sum) {
    pthread_mutex_lock(&sum->lock);
    uint64_t hashed_bytes = sum->hashed_bytes;
    pthread_mutex_unlock(&sum->lock);
    return hashed_bytes;
}

void cwb_sum_rest(struct cwb_sum *sum) {
    pthread_mutex_lock(&sum->lock);
    while (sum->turn)
        pthread_cond_wait(&sum->turn_ended, &sum->lock);
    if (sum->hashed_bytes == sum->size_bytes) {
        pthread_mutex_unlock(&sum->lock);
        return;
    }
    sum->turn = true;
    pthread_mutex_unlock(&sum->lock);
    hash_to(sum, sum->size_bytes);
    pthread_mutex_lock(&sum->lock);
    sum->hashed_bytes = sum->size_bytes;
    sum->turn = false;
    pthread_cond_broadcast(&sum->turn_ended);
    pthread_mutex_unlock(&sum->lock);
}

uint64_t cwb_sum_digest(struct cwb_sum *sum) {
    CW_ASSERT(sum->hashed_bytes == sum->size_bytes);
    return XXH3_64bits_digest(sum->hash);
}
