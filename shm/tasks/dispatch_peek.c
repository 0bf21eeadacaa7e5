/*
 * Dispatch, looking at tasks that nobody has taken: see dispatch.h (Peeking).
 */
#include <string.h>

#include "shm/tasks/dispatch_words.h"
#include "shm/base/error.h"

int cw_dispatch_peek(const struct cw_dispatch_view *view, uint32_t nth, uint64_t *place) {
    uint64_t tail = tail_of(view, view->group), pos = head_of(view, view->group);
    if (tail > pos && tail - pos > view->queue_len)
        pos = tail - view->queue_len; /* an old head; what lies before is passed by */
    for (; pos < tail; pos++) {
        /* T5: T4 ordered it; if it is a later place's, then the word below is another one. */
        uint32_t cell = CW_LOAD(T5, entry_of(view, view->group, pos), relaxed);
        if (cell >= view->cell_count)
            return cw_fail(-EPROTO, "a dispatch queue names the cell %u of %u", cell,
                           view->cell_count);
        *place = place_of(view, view->group, pos);
        if (cw_dispatch_is_still(view, cell, *place) && nth-- == 0)
            return (int)cell;
    }
    return -EAGAIN;
}

bool cw_dispatch_is_still(const struct cw_dispatch_view *view, uint32_t cell, uint64_t place) {
    /* T45: after T4, which orders what lies in the cell; and after T44: who has read a word that
     * was written once the cell was taken reads another word here. */
    return CW_LOAD(T45, &view->cells[cell].word, relaxed) == word_of(CW_CELL_READY, 0, place);
}

void cw_dispatch_write(cw_a64 *to, const void *from, uint32_t size_bytes) {
    const char *at = from;
    for (; size_bytes >= 8; size_bytes -= 8, at += 8, to++) {
        uint64_t word;
        memcpy(&word, at, 8);
        /* T43: release: the cell was taken (T6) before; pairs with T44, before T45. */
        CW_STORE(T43, to, word, release);
    }
    if (size_bytes > 0) {
        uint64_t word = 0;
        memcpy(&word, at, size_bytes);
        CW_STORE(T43, to, word, release);
    }
}

void cw_dispatch_read(void *to, const cw_a64 *from, uint32_t size_bytes) {
    char *at = to;
    for (; size_bytes >= 8; size_bytes -= 8, at += 8, from++) {
        /* T44: pairs with T43. */
        uint64_t word = CW_LOAD(T44, (cw_a64 *)from, acquire);
        memcpy(at, &word, 8);
    }
    if (size_bytes > 0) {
        uint64_t word = CW_LOAD(T44, (cw_a64 *)from, acquire);
        memcpy(at, &word, size_bytes);
    }
}
