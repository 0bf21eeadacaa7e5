/*
 * Sums: see checksum.h.
 */
#include "broker/bridge/wire/checksum.h"

#include <pthread.h>
#include <stdlib.h>

#include "ipc/base/hash.h"
#include "broker/bridge/memory.h"
#include "shm/base/error.h"

#define BATCH 16u /* pieces that are hashed between two looks at the lock */

struct cwb_sum {
    const uint8_t *bytes;
    uint64_t size_bytes, ring_bytes, count; /* in pieces */
    pthread_mutex_t lock;
    uint64_t total, left, prefix; /* the last two in pieces */
    uint64_t *marks;              /* a bit for each piece that counts */
};

struct cwb_sum *cwb_sum_new(const uint8_t *bytes, uint64_t size_bytes, uint64_t ring_bytes) {
    const uint64_t count = (size_bytes + CWB_SUM_PIECE - 1) / CWB_SUM_PIECE;
    struct cwb_sum *sum = calloc(1, sizeof *sum);
    uint64_t *marks = calloc(count / 64 + 1, sizeof *marks);
    if (!sum || !marks) {
        free(sum);
        free(marks);
        cwb_no_memory("the hash of an array");
        return NULL;
    }
    pthread_mutex_init(&sum->lock, NULL);
    sum->bytes = bytes;
    sum->size_bytes = size_bytes;
    sum->ring_bytes = ring_bytes ? ring_bytes : 1;
    sum->count = sum->left = count;
    sum->marks = marks;
    return sum;
}

void cwb_sum_free(struct cwb_sum *sum) {
    if (!sum)
        return;
    free(sum->marks);
    pthread_mutex_destroy(&sum->lock);
    free(sum);
}

static bool counts(const struct cwb_sum *sum, uint64_t piece) {
    return sum->marks[piece / 64] >> piece % 64 & 1;
}

/* Where a piece begins, and where all ends. */
static uint64_t begin_of(const struct cwb_sum *sum, uint64_t piece) {
    return piece >= sum->count ? sum->size_bytes : piece * CWB_SUM_PIECE;
}

/* Those that others have brought meanwhile do not count again. true: all counts now. */
static bool count_in(struct cwb_sum *sum, uint64_t piece, const uint64_t *hashes, uint64_t number) {
    bool whole = false;
    pthread_mutex_lock(&sum->lock);
    for (uint64_t i = 0; i < number; i++, piece++) {
        if (counts(sum, piece))
            continue;
        sum->marks[piece / 64] |= 1ull << piece % 64;
        sum->total += hashes[i];
        whole = --sum->left == 0;
    }
    while (sum->prefix < sum->count && counts(sum, sum->prefix))
        sum->prefix++;
    pthread_mutex_unlock(&sum->lock);
    return whole;
}

/* at: where the first of them lies; NULL: in the sum's memory. */
static bool add_pieces(struct cwb_sum *sum, uint64_t piece, uint64_t end, const uint8_t *at) {
    const uint64_t first_bytes = begin_of(sum, piece);
    uint64_t hashes[BATCH];
    bool whole = false;
    while (piece < end) {
        uint64_t number = end - piece < BATCH ? end - piece : BATCH;
        for (uint64_t i = 0; i < number; i++) {
            uint64_t from = begin_of(sum, piece + i), length = begin_of(sum, piece + i + 1) - from;
            const uint8_t *bytes =
                at ? at + (from - first_bytes) : sum->bytes + from % sum->ring_bytes;
            hashes[i] = cw_hash(bytes, length, piece + i);
        }
        whole |= count_in(sum, piece, hashes, number);
        piece += number;
    }
    return whole;
}

bool cwb_sum_add(struct cwb_sum *sum, uint64_t offset_bytes, uint64_t length_bytes) {
    return cwb_sum_add_at(sum, offset_bytes, length_bytes, NULL);
}

bool cwb_sum_add_at(struct cwb_sum *sum, uint64_t offset_bytes, uint64_t length_bytes,
                    const uint8_t *bytes) {
    uint64_t end_bytes = offset_bytes + length_bytes;
    uint64_t piece = (offset_bytes + CWB_SUM_PIECE - 1) / CWB_SUM_PIECE;
    return add_pieces(sum, piece,
                      end_bytes == sum->size_bytes ? sum->count : end_bytes / CWB_SUM_PIECE,
                      bytes ? bytes + (piece * CWB_SUM_PIECE - offset_bytes) : NULL);
}

uint64_t cwb_sum_prefix(struct cwb_sum *sum) {
    pthread_mutex_lock(&sum->lock);
    uint64_t prefix = sum->prefix;
    pthread_mutex_unlock(&sum->lock);
    return begin_of(sum, prefix);
}

uint64_t cwb_sum_left(struct cwb_sum *sum) {
    pthread_mutex_lock(&sum->lock);
    uint64_t left = sum->left;
    pthread_mutex_unlock(&sum->lock);
    return left * CWB_SUM_PIECE;
}

bool cwb_sum_rest(struct cwb_sum *sum, uint64_t most_bytes) {
    uint64_t most = most_bytes / CWB_SUM_PIECE + (most_bytes % CWB_SUM_PIECE != 0);
    uint64_t piece = cwb_sum_prefix(sum) / CWB_SUM_PIECE;
    for (; most; most--, piece++) {
        pthread_mutex_lock(&sum->lock);
        bool done = sum->left == 0;
        while (piece < sum->count && counts(sum, piece))
            piece++;
        pthread_mutex_unlock(&sum->lock);
        if (done || piece >= sum->count)
            break;
        add_pieces(sum, piece, piece + 1, NULL);
    }
    return cwb_sum_left(sum) == 0;
}

uint64_t cwb_sum_digest(struct cwb_sum *sum) {
    pthread_mutex_lock(&sum->lock);
    CW_ASSERT(sum->left == 0);
    uint64_t total = sum->total;
    pthread_mutex_unlock(&sum->lock);
    return total;
}
