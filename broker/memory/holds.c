/*
 * Holds: see holds.h. The loop's thread alone.
 */
#include "broker/memory/holds.h"

#include <stdlib.h>

#include "broker/broker.h"

int cwd_holds_init(struct cwd_broker *b) {
    struct cwd_hold *floor = cwd_hold_spare(); /* of slab 0, which is none */
    if (floor)
        HASH_ADD(hh, b->reclaim.holds, key, sizeof floor->key, floor);
    if (floor && CWD_ADDED(floor))
        return 0;
    free(floor);
    return cwd_no_memory("what it notes of arrays");
}

void cwd_holds_deinit(struct cwd_broker *b) {
    struct cwd_hold *hold, *next;
    HASH_ITER(hh, b->reclaim.holds, hold, next) {
        HASH_DEL(b->reclaim.holds, hold);
        free(hold);
    }
}

struct cwd_hold *cwd_hold_find(struct cwd_broker *b, uint64_t slot, uint64_t gen) {
    struct cwd_hold_key key = {slot, gen};
    struct cwd_hold *hold;
    HASH_FIND(hh, b->reclaim.holds, &key, sizeof key, hold);
    return hold;
}

struct cwd_hold *cwd_hold_make(struct cwd_broker *b, uint64_t slot, uint64_t gen,
                               struct cwd_hold **spare) {
    struct cwd_hold *hold = cwd_hold_find(b, slot, gen);
    if (hold)
        return hold;
    hold = spare ? *spare : cwd_hold_spare();
    if (!hold)
        return NULL;
    if (spare)
        *spare = NULL;
    hold->key = (struct cwd_hold_key){slot, gen};
    CWD_ADD_SURELY(b->reclaim.holds, key, sizeof hold->key, hold);
    return hold;
}

void cwd_hold_settle(struct cwd_broker *b, struct cwd_hold *hold) {
    if (hold->refs || hold->waits)
        return;
    HASH_DEL(b->reclaim.holds, hold);
    free(hold);
}

struct cwd_hold *cwd_hold_spare(void) {
    return calloc(1, sizeof(struct cwd_hold));
}
