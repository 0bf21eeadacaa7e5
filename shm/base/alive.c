/*
 * Alive: see alive.h. The list has one entry, in private memory; the kernel finds the word by its
 * distance from it.
 */
#include "shm/base/alive.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/base/error.h"

int cw_alive_begin(struct cw_alive_keeper *keeper, cw_a32 *word) {
    keeper->entry.next = &keeper->head.list;
    keeper->head = (struct robust_list_head){
        .list = {&keeper->entry},
        .futex_offset = (long)((uintptr_t)word - (uintptr_t)&keeper->entry)};
    keeper->word = word;
    /* AL1: nobody else has the segment yet. */
    CW_STORE(AL1, word, (uint32_t)syscall(SYS_gettid), relaxed);
    if (syscall(SYS_set_robust_list, &keeper->head, sizeof keeper->head) == 0)
        return 0;
    return cw_fail(-EDQUOT, "the kernel has no robust futexes (set_robust_list: %m), by which "
                            "clients learn at once that a broker is dead");
}

void cw_alive_end(struct cw_alive_keeper *keeper) {
    if (!keeper->word)
        return;
    /* AL1: before the lock is given back, which orders it. */
    CW_STORE(AL1, keeper->word, 0, relaxed);
    keeper->head.list.next = &keeper->head.list;
    keeper->word = NULL;
}
