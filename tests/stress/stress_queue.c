/*
 * Queue under threads: several writers and readers over one small queue, all of which sleep. Every
 * item comes once, whole, each writer's in its order; nobody sleeps through a wake-up (the runner's
 * time limit would show it). Clean under ThreadSanitizer.
 */
#include <pthread.h>

#include "shm/base/error.h"
#include "shm/tasks/queue.h"
#include "tests/support.h"

#define WRITERS 3u
#define READERS 3u
#define PLACES  4u

static struct cw_queue_core queue;
static struct item { uint64_t writer, number, words[6]; } cells[PLACES];
static uint64_t items; /* of each writer */
static uint8_t *seen[WRITERS];

static void pause_sometimes(struct chance *chance) {
    uint64_t pick = chance_below(chance, 4096);
    if (pick == 0)
        usleep(100);
    else if (pick < 64)
        for (volatile unsigned i = 0; i < pick * 30; i++)
            ;
}

static void *write_all(void *context) {
    uint64_t writer = (uint64_t)(uintptr_t)context;
    struct chance chance = chance_init(writer);
    for (uint64_t n = 0; n < items; n++) {
        struct cw_queue_place place;
        CW_ASSERT(cw_queue_put_begin(&queue, 8, -1, &place) == 0);
        CW_ASSERT(place.position == place.count * 3 && place.bytes == place.count * 8);
        struct item *item = &cells[place.count % PLACES];
        *item = (struct item){.writer = writer, .number = n};
        for (unsigned i = 0; i < 6; i++)
            item->words[i] = n * 31 + i;
        place.position += 3;
        cw_queue_put_commit(&queue, &place, 8);
        pause_sometimes(&chance);
    }
    return NULL;
}

static void *read_some(void *context) {
    struct chance chance = chance_init(100 + (uint64_t)(uintptr_t)context);
    uint64_t last[WRITERS] = {0};
    for (uint64_t n = 0; n < items * WRITERS / READERS; n++) {
        struct cw_queue_place place;
        CW_ASSERT(cw_queue_get_begin(&queue, -1, &place) == 0);
        CW_ASSERT(place.position == place.count * 3 && place.bytes == place.count * 8);
        struct item item = cells[place.count % PLACES];
        place.position += 3;
        cw_queue_get_commit(&queue, &place, 8, false);
        CW_ASSERT(item.writer < WRITERS && item.number < items);
        for (unsigned i = 0; i < 6; i++)
            CW_ASSERT(item.words[i] == item.number * 31 + i);
        CW_ASSERT(item.number + 1 > last[item.writer]);
        last[item.writer] = item.number + 1;
        CW_ASSERT(!seen[item.writer][item.number]); /* one reader has it: nobody else writes here */
        seen[item.writer][item.number] = 1;
        pause_sometimes(&chance);
    }
    return NULL;
}

int main(void) {
    chance_seed(); /* before there are threads */
    items = test_rounds(60000);
    queue.max_items = PLACES;
    pthread_t threads[WRITERS + READERS];
    for (unsigned i = 0; i < WRITERS; i++)
        seen[i] = calloc(items, 1);
    for (unsigned i = 0; i < WRITERS + READERS; i++)
        CW_ASSERT(pthread_create(&threads[i], NULL, i < WRITERS ? write_all : read_some,
                                 (void *)(uintptr_t)(i % WRITERS)) == 0);
    for (unsigned i = 0; i < WRITERS + READERS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < WRITERS; i++) {
        for (uint64_t n = 0; n < items; n++)
            CW_ASSERT(seen[i][n]);
        free(seen[i]);
    }
    printf(
        "stress_queue: %llu items of each of %u writers, none lost, twice, torn or out of order\n",
        (unsigned long long)items, WRITERS);
    return 0;
}
