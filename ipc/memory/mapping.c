/*
 * Mappings of slabs, one place for each array in a process: see mapping.h.
 */
#include "ipc/memory/mapping.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ipc/wire.h"
#include "shm/base/error.h"
#include "shm/base/segment.h"

#define BUCKETS 1024u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cw_mappings *buckets[BUCKETS];

void cw_mappings_lock(void) {
    pthread_mutex_lock(&lock);
}

void cw_mappings_unlock(void) {
    pthread_mutex_unlock(&lock);
}

static struct cw_mappings **bucket(uint64_t instance, uint32_t slab) {
    return &buckets[((slab ^ (uint32_t)instance) * 2654435769u) >> 22];
}
_Static_assert(BUCKETS == 1u << (32 - 22), "the hash above gives ten bits");

int cw_mappings_hold(uint64_t instance, uint32_t slab, uint32_t capacity,
                     struct cw_mappings **out) {
    struct cw_mappings **first = bucket(instance, slab), *at;
    int code = 0;
    pthread_mutex_lock(&lock);
    for (at = *first; at; at = at->next)
        if (at->instance == instance && at->slab == slab)
            break;
    if (!at && (at = calloc(1, sizeof *at + capacity * sizeof at->blocks[0]))) {
        at->instance = instance;
        at->slab = slab;
        at->capacity = capacity;
        at->next = *first;
        *first = at;
    }
    if (!at)
        code = cw_fail(-EDQUOT, "no memory for a slab of %u blocks", capacity);
    else if (at->capacity != capacity) /* the broker says so, of a slab that it described before */
        code =
            cw_fail(-EPROTO, "slab %u changed from %u to %u blocks", slab, at->capacity, capacity);
    else
        at->references++;
    pthread_mutex_unlock(&lock);
    *out = at;
    return code;
}

void cw_mappings_release(struct cw_mappings *mappings, const struct cw_backend *backend) {
    pthread_mutex_lock(&lock);
    if (--mappings->references == 0) {
        struct cw_mappings **at = bucket(mappings->instance, mappings->slab);
        while (*at != mappings)
            at = &(*at)->next;
        *at = mappings->next;
        if (mappings->rw.base)
            backend->slab_unmap(&mappings->rw);
        if (mappings->ro.base)
            backend->slab_unmap(&mappings->ro);
        free(mappings);
    }
    pthread_mutex_unlock(&lock);
}

int cw_mappings_map(struct cw_mappings *mappings, const struct cw_backend *backend, int fd,
                    uint64_t size_bytes, uint32_t slab_flags, bool in_ro) {
    struct cw_mapping *mapping = in_ro ? &mappings->ro : &mappings->rw;
    int code = 0;
    pthread_mutex_lock(&lock);
    if (!mapping->base)
        code = backend->slab_map(0, fd, size_bytes, slab_flags, in_ro, mapping);
    pthread_mutex_unlock(&lock);
    return code;
}

void cw_mappings_give(struct cw_mappings *mappings, const struct cw_mapping *rw) {
    pthread_mutex_lock(&lock);
    CW_ASSERT(!mappings->rw.base);
    mappings->rw = *rw;
    pthread_mutex_unlock(&lock);
}

void *cw_mappings_base(struct cw_mappings *mappings, bool in_ro) {
    pthread_mutex_lock(&lock);
    void *base = (in_ro ? &mappings->ro : &mappings->rw)->base;
    pthread_mutex_unlock(&lock);
    return base;
}

static bool choose(const struct cw_seen *seen, bool readonly) {
    return seen->readers || seen->writers ? seen->in_ro : readonly;
}

bool cw_mappings_choose(struct cw_mappings *mappings, uint32_t block, bool readonly) {
    pthread_mutex_lock(&lock);
    bool in_ro = choose(&mappings->blocks[block], readonly);
    pthread_mutex_unlock(&lock);
    return in_ro;
}

/* The pages of a block, in ro, are writable from now on. What shares its first and last page is
 * then read-only by its flag. */
static int raise(struct cw_mappings *mappings, const struct cw_range *range) {
    uint64_t first = range->begin_bytes / CW_PAGE * CW_PAGE;
    uint64_t end = range->begin_bytes + range->length_bytes;
    if (end > mappings->ro.size_bytes)
        end = mappings->ro.size_bytes;
    if (first < end &&
        mprotect((uint8_t *)mappings->ro.base + first, end - first, PROT_READ | PROT_WRITE) < 0)
        return cw_fail(-EDQUOT,
                       "an array that this process has open read-only could not be made writable "
                       "where it lies: %m; close what it has of it, and open it again");
    mappings->raised++;
    return 0;
}

/* What was raised stays so until nothing is written there, since blocks share pages. */
static void lower(struct cw_mappings *mappings) {
    if (--mappings->raised == 0) /* should it fail, it is as with a writable array beside it */
        (void)mprotect(mappings->ro.base, mappings->ro.size_bytes, PROT_READ);
}

int cw_mappings_enter(struct cw_mappings *mappings, uint32_t block, const struct cw_range *range,
                      bool readonly, struct cw_mapping **out) {
    struct cw_seen *seen = &mappings->blocks[block];
    int code = 0;
    pthread_mutex_lock(&lock);
    bool in_ro = choose(seen, readonly);
    struct cw_mapping *mapping = in_ro ? &mappings->ro : &mappings->rw;
    if (!mapping->base)
        code = -EAGAIN;
    else if (in_ro && !readonly && seen->writers == 0)
        code = raise(mappings, range);
    if (code == 0) {
        seen->in_ro = in_ro;
        ++*(readonly ? &seen->readers : &seen->writers);
        *out = mapping;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

void cw_mappings_leave(struct cw_mappings *mappings, uint32_t block, bool readonly) {
    struct cw_seen *seen = &mappings->blocks[block];
    uint32_t *count = readonly ? &seen->readers : &seen->writers;
    pthread_mutex_lock(&lock);
    CW_ASSERT(*count > 0);
    if (--*count == 0 && !readonly && seen->in_ro)
        lower(mappings);
    pthread_mutex_unlock(&lock);
}
