/*
 * Fences: see fences.h. The loop's thread owns all. Pages are mapped writable by us and by clients;
 * nothing that stands in one decides what the broker does.
 */
#include "broker/fences.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/custody.h"
#include "broker/jobs.h"
#include "broker/monitor.h"
#include "broker/session.h"
#include "shm/fence.h"
#include "shm/order.h"

#define POISON_EVERY_NS 50000000
#define PAGE_MAX        ((CW_STAMP_FENCE_MAX + 1) / CW_FENCES_PER_PAGE)

static void describe(const struct cwd_fence_page *page, struct cw_fence_page *info) {
    *info = (struct cw_fence_page){
        .page = page->page, .session = page->session, .size_bytes = page->segment.size_bytes};
}

int cwd_fences_add(struct cwd_broker *b, struct cwd_session *session, struct cw_fence_page *info,
                   const struct cw_segment **out) {
    if (session->fence_pages >= CWD_LIMIT(b, max_client_fence_pages))
        return cwd_limit_refuse(b, CW_LIMIT_max_client_fence_pages,
                                "a page of %u more fences was asked for, and the client has %u "
                                "pages (a stream needs a fence for each begin that is open)",
                                CW_FENCES_PER_PAGE, session->fence_pages);
    if (b->next_fence_page + 1 >= PAGE_MAX)
        return cw_fail(-EDQUOT, "the numbers of fences are used up: start the broker again");
    if (cwd_fds_held(b) + 1 > CWD_LIMIT(b, max_fds))
        return cwd_limit_refuse(b, CW_LIMIT_max_fds,
                                "a page of fences needs a descriptor more than the %llu that are "
                                "held",
                                (unsigned long long)cwd_fds_held(b));
    struct cwd_fence_page *page = calloc(1, sizeof *page);
    CW_ASSERT(page);
    int code = cw_segment_create("fences", CW_PAGE + CW_FENCES_PER_PAGE * sizeof(struct cw_fence),
                                 CW_SEGMENT_FENCES, b->instance, 0, &page->segment);
    if (code) {
        free(page);
        return code;
    }
    page->page = ++b->next_fence_page;
    page->session = session->id;
    session->fence_pages++;
    b->fds++;
    HASH_ADD(hh, b->fence_pages, page, sizeof page->page, page);
    describe(page, info);
    *out = &page->segment;
    return 0;
}

int cwd_fences_open(struct cwd_broker *b, uint32_t number, struct cw_fence_page *info,
                    const struct cw_segment **out) {
    struct cwd_fence_page *page;
    HASH_FIND(hh, b->fence_pages, &number, sizeof number, page);
    if (!page)
        return cw_fail(-ENOENT, "there is no page %u of fences", number);
    describe(page, info);
    *out = &page->segment;
    return 0;
}

static struct cw_fence *fence_of(const struct cwd_fence_page *page, uint32_t index) {
    return (struct cw_fence *)((uint8_t *)page->segment.base + CW_PAGE) + index;
}

static void poison(struct cwd_fence_page *page) {
    for (uint32_t i = 0; i < CW_FENCES_PER_PAGE; i++)
        cw_fence_poison(fence_of(page, i)); /* for the first time, or over a late write */
}

void cwd_fences_bury(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_fence_page *page, *next;
    if (!session->fence_pages)
        return;
    HASH_ITER(hh, b->fence_pages, page, next) {
        if (page->session != session->id)
            continue;
        page->buried = true;
        poison(page);
    }
    if (b->poison_ns == INT64_MAX)
        b->poison_ns = b->now_ns + POISON_EVERY_NS;
}

void cwd_fences_break(struct cwd_broker *b, struct cwd_session *session, uint32_t number) {
    struct cwd_fence_page *page;
    HASH_FIND(hh, b->fence_pages, &number, sizeof number, page);
    if (!page || page->session != session->id || page->buried)
        return;
    page->buried = true;
    page->final_ns = b->now_ns + CW_POISON_NS;
    session->fence_pages--;
    poison(page);
    if (b->poison_ns == INT64_MAX)
        b->poison_ns = b->now_ns + POISON_EVERY_NS;
}

void cwd_fences_end(struct cwd_broker *b, struct cwd_session *session) {
    struct cwd_fence_page *page, *next;
    cwd_fences_bury(b, session);
    HASH_ITER(hh, b->fence_pages, page, next) {
        if (page->session == session->id)
            page->final_ns = b->now_ns + CW_POISON_NS;
    }
}

/* cw_order_bury() asks: is this stamp's fence on the page, and was its value reached? */
static int died(void *context, cw_stamp stamp) {
    const struct cwd_fence_page *page = context;
    uint32_t fence = cw_stamp_fence(stamp);
    if (fence / CW_FENCES_PER_PAGE != page->page)
        return 0;
    return cw_fence_poll(fence_of(page, fence % CW_FENCES_PER_PAGE), cw_stamp_value(stamp)) > 0
               ? 1
               : -1;
}

/* Takes the page's stamps out of every GPU slab's table, and closes it. */
static void settle(struct cwd_broker *b, struct cwd_fence_page *page) {
    struct cwd_slab *slab;
    for (uint32_t i = 0; i < CW_FENCES_PER_PAGE; i++)
        cw_fence_finish(fence_of(page, i));
    for (slab = b->slabs; slab; slab = slab->hh.next) {
        if (slab->info.device_kind != CW_DEVICE_CUDA)
            continue;
        struct cw_order *orders = (struct cw_order *)(slab->table->blocks + slab->capacity);
        for (uint32_t i = 0; i < slab->capacity; i++)
            cw_order_bury(&orders[i], died, page);
    }
    HASH_DEL(b->fence_pages, page);
    cw_segment_close(&page->segment);
    b->fds--;
    free(page);
}

int64_t cwd_fences_serve(struct cwd_broker *b) {
    struct cwd_fence_page *page, *next;
    bool more = false;
    if (b->poison_ns > b->now_ns)
        return b->poison_ns;
    HASH_ITER(hh, b->fence_pages, page, next) {
        if (!page->buried)
            continue;
        poison(page);
        /* Not while the mover writes for the dead: who waits for the end of its work would meet it.
         */
        if (page->final_ns && b->now_ns >= page->final_ns && !cwd_jobs_moving_for(b, page->session))
            settle(b, page);
        else
            more = true;
    }
    b->poison_ns = more ? b->now_ns + POISON_EVERY_NS : INT64_MAX;
    return b->poison_ns;
}

void cwd_fences_deinit(struct cwd_broker *b) {
    struct cwd_fence_page *page, *next;
    HASH_ITER(hh, b->fence_pages, page, next) {
        HASH_DEL(b->fence_pages, page);
        cw_segment_close(&page->segment);
        free(page);
    }
}
