/*
 * Allocation that is tried again on a full device: what this process has let go of may be on its
 * way back.
 *
 * A published block comes back when the broker has seen that nobody holds it, and its bytes when
 * the last stream that used them has passed. Under load both take a moment; who finds its device
 * full waits for them before it says so: one question to the broker, which then has seen all that
 * this process has let go of, and after that for others' leases and streams, CW_RETRY_WAIT_MS at
 * most ($CABLEWAY_FULL_WAIT_MS), in naps. Where nothing is on its way nobody waits.
 *
 * No state of its own. The caller holds no lock. If another process holds an array for good, or
 * dies, or the broker does, the wait ends with its time, and by a signal at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ipc/client.h"
#include "ipc/memory/allocator.h"
#include "ipc/memory/retry.h"
#include "ipc/memory/slab.h"
#include "ipc/memory/slab_cache.h"
#include "ipc/request/channel.h"
#include "shm/base/wait.h"

#define CW_RETRY_WAIT_MS 200 /* on a full device, for what is on its way back */

#define CHECKED_BYTES (1u << 20) /* makes a slab that costs more than the question */

#define NAP_NS       20000
#define NAP_NS_MOST  2000000
#define SETTLE_NS    1000000 /* between looks for what the end of pickles gave back */
#define SETTLE_LOOKS 50u
#define OTHERS_NS    1000000000 /* for what others have let go of and the broker has not looked at */

/* Until when this thread's last wait would have lasted, if a signal ended it: who asks again, since
 * the signal's handler wants him to, gets no more time by it. */
static CW_THREAD_LOCAL int64_t resumes_ns;

static int64_t wait_at_most_ns(void) {
    const char *text = secure_getenv("CABLEWAY_FULL_WAIT_MS");
    if (text && *text) {
        char *end;
        unsigned long value = strtoul(text, &end, 10);
        if (*end == 0 && value <= 3600000)
            return (int64_t)value * 1000000;
    }
    return CW_RETRY_WAIT_MS * (int64_t)1000000;
}

/* came: something came back just now. */
static bool on_its_way(cw_client *client, struct cw_heap *heap, uint64_t *given, bool *came) {
    pthread_mutex_lock(&client->lock);
    uint64_t before = heap->given;
    /* Kept: others may have its slab mapped, whose memory would not come free. */
    cw_heap_collect_all(client, heap);
    bool any = heap->pending || heap->draining;
    *given = heap->given;
    *came = *given != before;
    pthread_mutex_unlock(&client->lock);
    return any;
}

/* Arrays on a GPU that stay only since others may open their pickles: how many went. */
static uint32_t end_opened(cw_client *client) {
    struct cw_room wish = {.what = CW_ROOM_OPENED}, room = {.slabs = 0};
    struct iovec part = {&wish, sizeof wish};
    uint32_t bytes = sizeof room;
    int code = cw_channel_call(client, CW_OP_ROOM, &part, 1, &room, &bytes, CW_CALL_SHORT, -1);
    return code == 0 && bytes == sizeof room ? room.slabs : 0; /* else the next call tells why */
}

int cw_retry_check(cw_client *client, const struct cw_heap *heap, uint64_t slab_bytes,
                   uint32_t blocks) {
    struct cw_room wish = {.size_bytes = slab_bytes, .slabs = blocks, .what = CW_ROOM_CHECK}, room;
    struct iovec part = {&wish, sizeof wish};
    uint32_t room_bytes = sizeof room;
    if (heap->backend->device_kind != CW_DEVICE_HOST || slab_bytes < CHECKED_BYTES)
        return 0;
    return cw_channel_call(client, CW_OP_ROOM, &part, 1, &room, &room_bytes, CW_CALL_SHORT, -1);
}

int cw_retry_ask(cw_client *client, struct cw_heap *heap) {
    uint64_t before, now;
    bool came, any = on_its_way(client, heap, &before, &came);
    if (came)
        return 1;
    uint32_t ended = heap->backend->device_kind == CW_DEVICE_CUDA ? end_opened(client) : 0;
    for (unsigned looks = 0;; looks++) {
        int code = any || ended ? cw_ping(client) : -ENOENT;
        if (code)
            return code == -EINTR ? code : 0; /* a lost broker shows at the next call */
        on_its_way(client, heap, &now, &came);
        if (now != before || !ended || looks == SETTLE_LOOKS)
            return now != before;
        struct timespec nap = {.tv_nsec = SETTLE_NS}; /* the broker gives blocks back in slices */
        nanosleep(&nap, NULL);
    }
}

int cw_retry_make_room(cw_client *client, struct cw_heap *heap) {
    char sentence[CW_DETAIL_MAX];
    snprintf(sentence, sizeof sentence, "%s", cw_detail());
    int came = 0;
    if (heap->backend->device_kind != CW_DEVICE_CUDA)
        came = cw_retry_ask(client, heap); /* of a GPU it is asked for later, and waited for */
    if (came < 0)
        return came;
    uint32_t unmapped = cw_slabs_sweep(client); /* of others, which they gave up */
    if (cw_slab_cache_drop(client) || unmapped || came)
        return -EAGAIN;
    return cw_fail(-EDQUOT, "%s", sentence);
}

/* One look at all slabs. Returns 0 or a negative code; *slabs and *left go on, *unsettled: some
 * blocks were still to be looked at. */
static int take_back(cw_client *client, struct cw_room *room, uint64_t *left, uint32_t *slabs,
                     bool *unsettled) {
    *unsettled = false;
    room->next = 0;
    do {
        struct cw_room wish = {.size_bytes = *left, .turn = room->turn, .next = room->next};
        struct iovec part = {&wish, sizeof wish};
        uint32_t room_bytes = sizeof *room;
        int code =
            cw_channel_call(client, CW_OP_ROOM, &part, 1, room, &room_bytes, CW_CALL_SHORT, -1);
        if (code)
            return code;
        if (room_bytes != sizeof *room)
            return cw_fail(-EPROTO, "the broker answered ROOM with %u bytes", room_bytes);
        *slabs += room->slabs;
        *left -= room->size_bytes < *left ? room->size_bytes : *left;
        *unsettled |= room->unsettled != 0;
    } while (*left && room->next);
    return 0;
}

int cw_retry_ask_others(cw_client *client, uint64_t size_bytes) {
    char sentence[CW_DETAIL_MAX];
    snprintf(sentence, sizeof sentence, "%s", cw_detail());
    struct timespec nap = {.tv_nsec = NAP_NS};
    uint64_t closed = cw_slab_cache_closed(client), left = size_bytes ? size_bytes : 1;
    int64_t end_ns = cw_now_ns() + OTHERS_NS;
    struct cw_room room = {.turn = 0};
    uint32_t slabs = 0;
    bool unsettled = false, waited = false;
    for (;;) {
        int code = take_back(client, &room, &left, &slabs, &unsettled);
        if (code)
            return code;
        if (!left || !unsettled || cw_now_ns() >= end_ns)
            break;
        waited = true; /* what settles meanwhile may be enough by itself */
        if (nanosleep(&nap, NULL) < 0)
            return cw_fail(-EINTR, "a signal came while waiting for memory");
        if (nap.tv_nsec < NAP_NS_MOST)
            nap.tv_nsec *= 2;
    }
    if (slabs)
        cw_slab_cache_await_closed(client, closed, slabs);
    return slabs || waited ? -EAGAIN : cw_fail(-EDQUOT, "%s", sentence);
}

int cw_retry_wait(cw_client *client, struct cw_heap *heap, int64_t *until_ns) {
    struct timespec nap = {.tv_nsec = NAP_NS};
    uint64_t before, now;
    bool came, any = on_its_way(client, heap, &before, &came);
    if (came || !any)
        return came;
    if (!*until_ns) {
        int64_t now_ns = cw_now_ns();
        *until_ns = now_ns < resumes_ns ? resumes_ns : now_ns + wait_at_most_ns();
        resumes_ns = 0;
    }
    while (cw_now_ns() < *until_ns && cw_client_usable(client) == 0) {
        bool signalled = nanosleep(&nap, NULL) < 0;
        bool more = on_its_way(client, heap, &now, &came);
        if (now != before)
            return 1;
        if (signalled) {
            resumes_ns = *until_ns;
            return cw_fail(-EINTR, "a signal came while waiting for memory of a full GPU");
        }
        if (!more)
            break;
        if (nap.tv_nsec < NAP_NS_MOST)
            nap.tv_nsec *= 2;
    }
    return 0;
}

int cw_retry_failed(const struct cw_heap *heap, int64_t until_ns, const char *sentence) {
    if (!until_ns)
        return cw_fail(-EDQUOT, "%s", sentence);
    return cw_fail(-EDQUOT,
                   "%s; waited %lld ms (CABLEWAY_FULL_WAIT_MS) for the %llu arrays that this "
                   "process has let go of and others, or streams, still use",
                   sentence, (long long)(wait_at_most_ns() / 1000000),
                   (unsigned long long)heap->pending_count);
}
