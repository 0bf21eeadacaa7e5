/*
 * Fences: pages, stamps, and waiting for them. See fence.h for the rules; stream.c has the streams.
 *
 * State of a client: the pages that it has mapped, under its fences' lock. Pages are shared memory:
 * a value is copied and compared, nothing else is done with it. A page once mapped stays mapped and
 * registered with CUDA until the process ends, so that pointers into it need no lock.
 */
#include "ipc/client.h"
#include "ipc/memory/slab.h"
#include "ipc/request/socket.h"
#include "ipc/order/fence.h"

#include <stdlib.h>
#include <time.h>

#include "ipc/order/context_failure.h"
#include "shm/base/trace.h"

/* A nap is a quarter of the time that has passed, so that nobody waits much longer than the work
 * takes. */
#define SPIN_NS        50000
#define NAP_SHARE      4
#define NAP_LONGEST_NS 500000

/* The client's lock is held. */
static struct cw_fences *books_of(cw_client *client) {
    if (!client->fences) {
        client->fences = calloc(1, sizeof *client->fences);
        if (client->fences) {
            pthread_mutex_init(&client->fences->lock, NULL);
            client->fences->client = client;
            cw_context_failure_watch(client->fences);
        }
    }
    return client->fences;
}

int cw_fences_of(cw_client *client, struct cw_fences **out) {
    pthread_mutex_lock(&client->lock);
    *out = books_of(client);
    pthread_mutex_unlock(&client->lock);
    return *out ? 0 : cw_fail(-EDQUOT, "no memory for the books of fences");
}

/* ---- pages ---- */

static struct cw_page_of_fences *find_page(struct cw_fences *fences, uint32_t number) {
    struct cw_page_of_fences *page = fences->pages[number % CW_FENCE_BUCKETS];
    while (page && page->number != number)
        page = page->next;
    return page;
}

static void note_page(struct cw_fences *fences, struct cw_page_of_fences *page, uint32_t number) {
    page->number = number;
    page->gpu = -1;
    page->next = fences->pages[number % CW_FENCE_BUCKETS];
    fences->pages[number % CW_FENCE_BUCKETS] = page;
}

/* Asks the broker for a page, by its number or (0) a new one. The lock is held, and given up
 * meanwhile. -ENOENT: its session is dead and buried, which is noted. */
static int fetch_page(cw_client *client, struct cw_fences *fences, uint32_t number,
                      struct cw_page_of_fences **out) {
    struct cw_fence_page request = {.page = number}, info;
    struct cw_fds fds = {.count = 1};
    struct cw_page_of_fences *page = calloc(1, sizeof *page);
    if (!page)
        return cw_fail(-EDQUOT, "no memory for a page of fences");
    int code =
        cw_socket_call_apart(client, &fences->lock, number ? CW_OP_FENCES_OPEN : CW_OP_FENCES_ADD,
                             &request, number ? sizeof request : 0, NULL, &info, sizeof info, &fds);
    struct cw_page_of_fences *known = number ? find_page(fences, number) : NULL;
    if (known) { /* another thread was quicker */
        if (code == 0)
            cw_fds_close(&fds);
        free(page);
        *out = known;
        return known->fences ? 0 : -ENOENT;
    }
    if (code == -ENOENT && number) {
        note_page(fences, page, number);
        return code;
    }
    if (code == 0)
        code = cw_segment_open(fds.fd[0], CW_PAGE + CW_FENCES_PER_PAGE * sizeof(struct cw_fence),
                               CW_SEGMENT_FENCES, true, 0, &page->segment);
    if (code) {
        free(page);
        return code;
    }
    cw_segment_close_fd(&page->segment);
    page->fences = (struct cw_fence *)((uint8_t *)page->segment.base + CW_PAGE);
    note_page(fences, page, info.page);
    *out = page;
    return 0;
}

int cw_fence_take(cw_client *client, struct cw_fences *fences, int gpu, uint32_t *number,
                  struct cw_page_of_fences **out) {
    struct cw_page_of_fences *page = fences->own[gpu].page;
    if (!page || fences->own[gpu].used == CW_FENCES_PER_PAGE) {
        int code = fetch_page(client, fences, 0, &page);
        if (code)
            return code;
        /* Where another thread fetched one, too, the rest of that is left unused. */
        page->gpu = gpu;
        fences->own[gpu].page = page;
        fences->own[gpu].used = 0;
    }
    *out = page;
    *number = page->number * CW_FENCES_PER_PAGE + fences->own[gpu].used++;
    return 0;
}

int cw_fence_find(cw_client *client, struct cw_fences *fences, cw_stamp stamp,
                  struct cw_page_of_fences **page, struct cw_fence **out) {
    uint32_t fence = cw_stamp_fence(stamp), number = fence / CW_FENCES_PER_PAGE;
    *page = find_page(fences, number);
    if (!*page) {
        int code = number ? fetch_page(client, fences, number, page) : -ENOENT;
        if (code)
            return code;
    }
    if (!(*page)->fences)
        return -ENOENT;
    *out = &(*page)->fences[fence % CW_FENCES_PER_PAGE];
    return 0;
}

/* ---- stamps ---- */

int cw_stamp_look(cw_client *client, struct cw_fences *fences, cw_stamp stamp) {
    struct cw_page_of_fences *page;
    struct cw_fence *fence;
    int code = cw_fence_find(client, fences, stamp, &page, &fence);
    if (code == -ENOENT)
        return -EOWNERDEAD; /* its session is dead and buried */
    return code ? code : cw_fence_poll(fence, cw_stamp_value(stamp));
}

int cw_stamp_known(struct cw_fences *fences, cw_stamp stamp, bool *final) {
    uint32_t fence = cw_stamp_fence(stamp), number = fence / CW_FENCES_PER_PAGE;
    struct cw_page_of_fences *page = find_page(fences, number);
    *final = !number || (page && !page->fences);
    if (*final)
        return -EOWNERDEAD;
    if (!page) {
        fences->unknown = number;
        return 0;
    }
    *final = cw_fence_is_final(&page->fences[fence % CW_FENCES_PER_PAGE]);
    return cw_fence_poll(&page->fences[fence % CW_FENCES_PER_PAGE], cw_stamp_value(stamp));
}

bool cw_fences_learn(cw_client *client) {
    struct cw_page_of_fences *page;
    int code = -ENOENT;
    pthread_mutex_lock(&client->lock);
    struct cw_fences *fences = client->fences; /* once made it stays */
    pthread_mutex_unlock(&client->lock);
    if (!fences)
        return false;
    pthread_mutex_lock(&fences->lock);
    uint32_t number = fences->unknown;
    fences->unknown = 0;
    if (number && !find_page(fences, number))
        code = fetch_page(client, fences, number, &page);
    pthread_mutex_unlock(&fences->lock);
    return number && (code == 0 || code == -ENOENT);
}

bool cw_stamp_is_final(cw_client *client, struct cw_fences *fences, cw_stamp stamp) {
    struct cw_page_of_fences *page;
    struct cw_fence *fence;
    int code = cw_fence_find(client, fences, stamp, &page, &fence);
    return code == -ENOENT || (code == 0 && cw_fence_is_final(fence));
}

int cw_stamp_poll(cw_client *client, cw_stamp stamp) {
    struct cw_fences *fences;
    int code = cw_fences_of(client, &fences);
    if (code)
        return code;
    pthread_mutex_lock(&fences->lock);
    code = cw_stamp_look(client, fences, stamp);
    pthread_mutex_unlock(&fences->lock);
    return code;
}

void cw_deadline_begin(struct cw_deadline *deadline, int64_t timeout_ns) {
    *deadline = (struct cw_deadline){.timeout_ns = timeout_ns};
}

int cw_deadline_nap(cw_client *client, struct cw_deadline *deadline, const char *what) {
    int64_t now_ns = cw_now_ns();
    if (!deadline->spin_end_ns) {
        deadline->spin_end_ns = now_ns + SPIN_NS;
        deadline->end_ns = cw_end_ns(now_ns, deadline->timeout_ns);
    }
    if (now_ns >= deadline->end_ns)
        return cw_fail(-ETIMEDOUT, "%s did not come to an end in %.3f s", what,
                       (double)deadline->timeout_ns / 1e9);
    if (now_ns < deadline->spin_end_ns) {
        CW_PAUSE();
        return 0;
    }
    /* A stream stores its value without waking anybody, so we look again by ourselves. Without a
     * broker nobody would tell of a death. */
    int code = cw_client_usable(client);
    if (code)
        return code;
    cw_context_failure_look(); /* what we wait for may be our own, and lost */
    int64_t nap_ns = (now_ns - deadline->spin_end_ns + SPIN_NS) / NAP_SHARE;
    struct timespec nap = {.tv_nsec = nap_ns < NAP_LONGEST_NS ? nap_ns : NAP_LONGEST_NS};
    cw_trace_sleeps();
    if (nanosleep(&nap, NULL) < 0)
        return cw_fail(-EINTR, "a signal came while waiting for %s", what);
    return 0;
}

int cw_stamp_wait(cw_client *client, cw_stamp stamp, int64_t timeout_ns) {
    struct cw_deadline deadline;
    cw_deadline_begin(&deadline, timeout_ns);
    return cw_stamp_await(client, stamp, &deadline);
}

static int await(cw_client *client, cw_stamp stamp, struct cw_deadline *deadline) {
    for (;;) {
        int state = cw_stamp_poll(client, stamp);
        if (state > 0)
            return 0;
        if (state < 0)
            return state;
        int code = cw_deadline_nap(client, deadline, "work on the array");
        if (code)
            return code;
    }
}

int cw_stamp_await(cw_client *client, cw_stamp stamp, struct cw_deadline *deadline) {
    struct cw_trace_span span = {.kind = CW_TRACE_FENCE};
    cw_trace_enter(&span);
    int code = await(client, stamp, deadline);
    cw_trace_leave_wait(&span, deadline->timeout_ns, code);
    return code;
}

/* ---- the heap's question ---- */

bool cw_order_passed(cw_client *client, struct cw_slab *slab, uint32_t block) {
    struct cw_order *order = cw_order_of(slab->table, block);
    struct cw_order_seen seen;
    if (cw_order_unused(order))
        return true;
    struct cw_fences *fences = books_of(client);
    if (!fences)
        return false; /* asked again */
    cw_order_see(order, &seen);
    bool passed = cw_order_turn(order) == 0;
    pthread_mutex_lock(&fences->lock);
    for (unsigned i = 0; i <= CW_ORDER_READS && passed; i++) {
        cw_stamp stamp = i < CW_ORDER_READS ? seen.reads[i] : seen.write;
        bool final = false;
        int state = stamp ? cw_stamp_known(fences, stamp, &final) : 1;
        /* Of the dead: not before nothing of them can land any more. */
        passed = state > 0 || (state == -EOWNERDEAD && final);
    }
    pthread_mutex_unlock(&fences->lock);
    return passed;
}
