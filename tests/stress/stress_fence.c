/*
 * Fences under threads: one writer, several waiters that sleep on one word. Plain memory written
 * before a value is completed is seen by who waited for it; nobody sleeps through a value; poison
 * ends every wait and keeps what was complete. Clean under ThreadSanitizer.
 */
#include <pthread.h>

#include "shm/base/error.h"
#include "shm/blocks/fence.h"
#include "tests/support.h"

#define WAITERS 3
#define WINDOW  4096

static struct cw_fence fence;
static uint64_t work[WINDOW]; /* plain: what the writer's stream produced for value n */
static cw_a64
    seen[WAITERS]; /* how far each waiter got: the writer stays less than a window ahead */
static uint64_t values;

static void *wait_in_turn(void *number) {
    struct chance chance = chance_init(20 + (uintptr_t)number);
    uint64_t value = 0;
    for (;;) {
        value += 1 + chance_below(&chance, 5);
        int code = cw_fence_wait(&fence, value, -1);
        if (code == -EOWNERDEAD)
            break;
        CW_ASSERT(code == 0);
        CW_ASSERT(work[value % WINDOW] == value * 3);
        atomic_store(&seen[(uintptr_t)number], value);
    }
    CW_ASSERT(value > values); /* what was complete stays good */
    CW_ASSERT(cw_fence_poll(&fence, values) == 1);
    return NULL;
}

static void wait_for_waiters(uint64_t value) {
    for (int i = 0; i < WAITERS; i++)
        while (value - atomic_load(&seen[i]) > WINDOW - 16)
            usleep(50);
}

int main(void) {
    values = test_rounds(2000000);
    struct chance chance = chance_init(1);
    pthread_t threads[WAITERS];
    cw_fence_init(&fence);
    for (uintptr_t i = 0; i < WAITERS; i++)
        CW_ASSERT(pthread_create(&threads[i], NULL, wait_in_turn, (void *)i) == 0);
    for (uint64_t value = 1; value <= values; value++) {
        wait_for_waiters(value);
        cw_fence_enqueue(&fence, value);
        work[value % WINDOW] = value * 3;
        cw_fence_complete(&fence, value);
        if (chance_below(&chance, 8192) == 0)
            usleep(200); /* long enough for all to fall asleep */
    }
    usleep(1000);
    for (int i = 0; i < 3; i++)
        CW_ASSERT(cw_fence_poison(&fence) == values);
    for (int i = 0; i < WAITERS; i++)
        pthread_join(threads[i], NULL);
    printf("stress_fence: %llu values, no wake-up lost, poison kept what was complete\n",
           (unsigned long long)values);
    return 0;
}
