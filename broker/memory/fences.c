/*
 * Fences: see fences.h. The loop's thread owns all. Pages are mapped writable by us and by clients;
 * nothing that stands in one decides what the broker does.
 */
#include "broker/memory/fences.h"

#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/memory/slabs.h"
#include "broker/roles/copy_jobs.h"
#include "broker/core/monitor.h"
#include "broker/session/session.h"
#include "shm/blocks/fence.h"
#include "shm/blocks/order.h"

#define POISON_EVERY_NS 50000000
#define SETTLE_EACH     8192u /* orders in one turn: about a millisecond */
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
    if (!page)
        return cwd_no_memory("a page of fences");
    int code = cw_segment_create("fences", CW_PAGE + CW_FENCES_PER_PAGE * sizeof(struct cw_fence),
                                 CW_SEGMENT_FENCES, b->instance, 0, &page->segment);
    if (code) {
        free(page);
        return code;
    }
    page->page = b->next_fence_page + 1;
    page->session = session->id;
    HASH_ADD(hh, b->fence_pages, page, sizeof page->page, page);
    if (!CWD_ADDED(page)) {
        cw_segment_close(&page->segment);
        free(page);
        return cwd_no_memory("a page of fences");
    }
    b->next_fence_page++;
    session->fence_pages++;
    b->fds++;
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

static void page_free(struct cwd_broker *b, struct cwd_fence_page *page) {
    HASH_DEL(b->fence_pages, page);
    cw_segment_close(&page->segment);
    b->fds--;
    free(page);
}

/*
 * Settling takes the stamps of final pages out of every GPU slab's table, and then closes these
 * pages: one pass over all tables for all pages that are final when it begins, SETTLE_EACH orders a
 * turn, since a table may have a million and clients wait meanwhile. Clients work on the tables all
 * the time, so a pass is no more exact in one turn than in many: a stamp that somebody copies
 * behind it names a page that is gone, which everybody takes for dead.
 */

/* cw_order_bury() asks: is this stamp's fence on a page that is settled, and was its value reached?
 */
static int died(void *context, cw_stamp stamp) {
    const struct cwd_broker *b = context;
    struct cwd_fence_page *page;
    uint32_t fence = cw_stamp_fence(stamp), number = fence / CW_FENCES_PER_PAGE;
    HASH_FIND(hh, b->fence_pages, &number, sizeof number, page);
    if (!page || !page->settling)
        return 0;
    return cw_fence_poll(fence_of(page, fence % CW_FENCES_PER_PAGE), cw_stamp_value(stamp)) > 0
               ? 1
               : -1;
}

/* A page's fences are final. */
static void settle_begin(struct cwd_broker *b, struct cwd_fence_page *page) {
    for (uint32_t i = 0; i < CW_FENCES_PER_PAGE; i++)
        cw_fence_finish(fence_of(page, i));
    page->settling = true;
    b->settling = true;
    b->settle_slab = 0;
    b->settle_order = 0;
}

/* A slice of the pass. Slabs stand in the order of their numbers. */
static void settle_some(struct cwd_broker *b) {
    struct cwd_fence_page *page, *next;
    struct cwd_slab *slab;
    uint32_t left = SETTLE_EACH;
    for (slab = b->slabs; slab; slab = slab->hh.next) {
        if (slab->info.device_kind != CW_DEVICE_CUDA || slab->info.slab < b->settle_slab)
            continue;
        struct cw_order *orders = (struct cw_order *)(slab->table->blocks + slab->capacity);
        uint32_t from = slab->info.slab == b->settle_slab ? b->settle_order : 0;
        uint32_t until = slab->capacity - from < left ? slab->capacity : from + left;
        for (uint32_t i = from; i < until; i++)
            cw_order_bury(&orders[i], died, b);
        left -= until - from;
        if (until < slab->capacity) {
            b->settle_slab = slab->info.slab;
            b->settle_order = until;
            return;
        }
        b->settle_slab = slab->info.slab + 1;
        b->settle_order = 0;
    }
    b->settling = false;
    HASH_ITER(hh, b->fence_pages, page, next) {
        if (page->settling)
            page_free(b, page);
    }
}

/* Poisons the buried once more, and finds those that are final. Returns whether there are others.
 */
static bool look_at_buried(struct cwd_broker *b) {
    struct cwd_fence_page *page;
    bool more = false, busy = b->settling;
    for (page = b->fence_pages; page; page = page->hh.next) {
        if (!page->buried || page->settling)
            continue;
        poison(page);
        /* Not while the mover writes for the dead: who waits for the end of its work would meet it;
         * and not in the midst of a pass: that has been at some tables already. */
        if (!busy && page->final_ns && b->now_ns >= page->final_ns &&
            !cwd_jobs_moving_for(b, page->session))
            settle_begin(b, page);
        else
            more = true;
    }
    return more;
}

int64_t cwd_fences_serve(struct cwd_broker *b) {
    if (b->poison_ns <= b->now_ns)
        b->poison_ns = look_at_buried(b) ? b->now_ns + POISON_EVERY_NS : INT64_MAX;
    if (b->settling)
        settle_some(b);
    return b->settling ? b->now_ns : b->poison_ns;
}

void cwd_fences_take_back(struct cwd_broker *b, struct cwd_session *session, uint32_t number) {
    struct cwd_fence_page *page;
    HASH_FIND(hh, b->fence_pages, &number, sizeof number, page);
    CW_ASSERT(page && page->session == session->id);
    session->fence_pages--;
    page_free(b, page);
}

void cwd_fences_deinit(struct cwd_broker *b) {
    struct cwd_fence_page *page, *next;
    HASH_ITER(hh, b->fence_pages, page, next) {
        page_free(b, page);
    }
}
