/*
 * The lease protocol under threads: one broker that carves, names, replaces, wants and retires; N
 * takers that take, check, use and drop. Memory is never used again while it is held: the owner
 * writes a new value into each block that it carves, and a taker that holds one must see the value
 * of its generation from first to last (ThreadSanitizer would also see the race). Nothing dropped
 * stays: the broker looks only at blocks that it was told of, and at the end all are free.
 */
#include <pthread.h>

#include "shm/blocks/block.h"
#include "shm/base/error.h"
#include "shm/session/lease.h"
#include "tests/support.h"

#define TAKERS 3
#define BLOCKS 4
#define WORDS  8

static struct cw_block blocks[BLOCKS];
static uint64_t data[BLOCKS][WORDS];  /* plain memory: what a slab holds */
static cw_a64 names[BLOCKS];          /* gen + 1 while the block has a name, else 0 */
static cw_a32 told[BLOCKS];           /* a dropper's word to the broker */
static struct cw_lease_table *tables; /* one a taker */
static _Atomic bool stop;
static cw_a64 held_count, stale_count;

static uint64_t value_of(uint64_t block, uint64_t gen) {
    return gen * 1000003 + block + 1;
}

static void use(uint64_t block, uint64_t gen) {
    for (int i = 0; i < WORDS; i++)
        CW_ASSERT(data[block][i] == value_of(block, gen));
}

static void *take(void *number) {
    struct cw_lease_table *table = &tables[(uintptr_t)number];
    struct chance chance = chance_init(10 + (uintptr_t)number);
    uint64_t held = 0, stale = 0;
    while (!atomic_load(&stop)) {
        uint32_t block = (uint32_t)chance_below(&chance, BLOCKS);
        uint32_t slot = (uint32_t)chance_below(&chance, 3) * 2000;
        uint64_t name = atomic_load_explicit(&names[block], memory_order_relaxed);
        if (!name)
            continue;
        cw_lease_take(table, slot, 1, block);
        bool stands = cw_block_check(&blocks[block], name - 1) == 0;
        if (stands) {
            use(block, name - 1);
            if (chance_below(&chance, 4) == 0) { /* the lease moves to another slot */
                cw_lease_take(table, slot + 1, 1, block);
                cw_lease_drop(table, slot);
                slot++;
            }
            for (volatile uint64_t i = chance_below(&chance, 200); i > 0; i--)
                ;
            use(block, name - 1);
        }
        cw_lease_drop(table, slot);
        /* A slot protects its block whatever the generation: a failed taker may have been seen. */
        if (cw_block_drop_tells(&blocks[block]))
            atomic_store(&told[block], 1);
        *(stands ? &held : &stale) += 1;
    }
    atomic_fetch_add(&held_count, held);
    atomic_fetch_add(&stale_count, stale);
    return NULL;
}

/* ---- the broker, who is the owner as well ---- */

static bool anybody_holds(uint32_t block) {
    for (int taker = 0; taker < TAKERS; taker++)
        for (uint32_t slot = 0; slot < cw_lease_count(&tables[taker]);
             slot += slot % 2000 == 0 ? 1 : 1999) /* the six slots that takers use */
            if (cw_lease_read(&tables[taker], slot) == cw_lease_slot(1, block))
                return true;
    return false;
}

static bool evaluate(uint32_t block, uint64_t gen) {
    if (anybody_holds(block) || !cw_block_retire(&blocks[block], gen))
        return false;
    if (!anybody_holds(block) && cw_block_commit(&blocks[block], gen))
        return true;
    cw_block_restore(&blocks[block], gen);
    return false;
}

struct kept {
    uint64_t gen;
    enum { EMPTY, NAMED, DYING } state;
};

static bool step(struct kept *kept, uint32_t block, struct chance *chance) {
    switch (kept->state) {
    case EMPTY:
        for (int i = 0; i < WORDS; i++)
            data[block][i] = value_of(block, kept->gen);
        CW_ASSERT(cw_block_carve(&blocks[block], 0, sizeof data[block]) == kept->gen);
        atomic_store_explicit(&names[block], kept->gen + 1, memory_order_relaxed);
        kept->state = NAMED;
        return false;
    case NAMED:
        if (chance_below(chance, 4))
            return false;
        atomic_store_explicit(&names[block], 0, memory_order_relaxed);
        CW_ASSERT(cw_block_want(&blocks[block], kept->gen));
        kept->state = DYING;
        break;
    case DYING:
        if (chance_below(chance, 64) == 0 && cw_block_unwant(&blocks[block], kept->gen)) {
            atomic_store_explicit(&names[block], kept->gen + 1, memory_order_relaxed);
            kept->state = NAMED; /* put again by who still held it */
            return false;
        }
        if (!atomic_exchange(&told[block], 0))
            return false;
    }
    if (!evaluate(block, kept->gen))
        return false;
    kept->gen++;
    kept->state = EMPTY;
    return true;
}

int main(void) {
    const uint64_t rounds = test_rounds(20000000);
    struct chance chance = chance_init(1);
    struct kept kept[BLOCKS] = {0};
    pthread_t threads[TAKERS];
    uint64_t reclaimed = 0;
    tables = calloc(TAKERS, sizeof *tables);
    for (uintptr_t i = 0; i < TAKERS; i++)
        CW_ASSERT(pthread_create(&threads[i], NULL, take, (void *)i) == 0);
    for (uint64_t round = 0; round < rounds; round++) {
        uint32_t block = (uint32_t)chance_below(&chance, BLOCKS);
        reclaimed += step(&kept[block], block, &chance);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < TAKERS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t block = 0; block < BLOCKS; block++) {
        if (kept[block].state == NAMED) {
            CW_ASSERT(cw_block_want(&blocks[block], kept[block].gen));
            CW_ASSERT(evaluate(block, kept[block].gen));
        } else if (kept[block].state == DYING) {
            CW_ASSERT(atomic_load(&told[block])); /* else it would stay for ever */
            CW_ASSERT(evaluate(block, kept[block].gen));
        }
    }
    printf("stress_lease: %llu leases held, %llu stale, %llu blocks reclaimed, none while held\n",
           (unsigned long long)held_count, (unsigned long long)stale_count,
           (unsigned long long)reclaimed);
    free(tables);
    return 0;
}
