/*
 * A pool's parent, where a process is refused memory: whoever keeps some that it does not use is
 * asked to give it up (shm/tasks/dispatch.h, *Memory*). pool.c has the rest of the parent's end.
 *
 * A process that dies before it has answered is not waited for: it keeps nothing.
 */
#include "ipc/tasks/pool_parts.h"
#include "shm/base/error.h"

uint32_t cw_pool_ask(cw_pool *pool) {
    return pool ? cw_dispatch_ask(&pool->parent.view) : 0;
}

int cw_pool_must_heed(cw_pool *pool, uint32_t *number) {
    if (!pool || !number)
        return cw_needs("a pool and a place for the number");
    return cw_dispatch_must_heed(&pool->parts.view, CW_DISPATCH_PARENT, number);
}

void cw_pool_heed(cw_pool *pool, uint32_t number, int some) {
    if (pool)
        cw_dispatch_heed(&pool->parts.view, CW_DISPATCH_PARENT, number, some != 0);
}

uint32_t cw_pool_unheeded(cw_pool *pool, uint32_t number, int *some) {
    bool any;
    if (!pool || !some)
        return 0;
    uint32_t missing = cw_dispatch_unheeded(&pool->parent.view, number, &any);
    *some = any;
    return missing;
}
