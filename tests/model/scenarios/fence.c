/*
 * Fences on the CPU: a waiter wakes when the value is reached, sees the work before it, and is told
 * when the writer died before it.
 */
#include "scenarios.h"
#include "shm/base/error.h"
#include "shm/blocks/fence.h"

enum { WRITER, WAITER, BROKER, SECOND };

static struct cw_fence fence;
static uint64_t work[2];
static struct {
    uint8_t completed; /* by calls that returned */
    uint8_t noted;     /* what the broker found, + 1 */
    uint8_t told;      /* bit N: somebody was told that N was lost */
} ghost;

static void init(void) {
    cw_fence_init(&fence);
    for (unsigned i = 0; i < 2; i++) {
        work[i] = 0;
        model_plain(&work[i]);
    }
}

static void produce(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        cw_fence_enqueue(&fence, i + 1);
        model_plain_write(&work[i], i + 100);
        cw_fence_complete(&fence, i + 1);
        ghost.completed = (uint8_t)(i + 1);
    }
}

static void writes_one(void) {
    produce(1);
}

static void writes_two(void) {
    produce(2);
}

static void await(unsigned value) {
    uint8_t before = ghost.completed;
    int code = cw_fence_wait(&fence, value, -1);
    MODEL_CHECK(code == 0 || code == -EOWNERDEAD);
    MODEL_CHECK(code == 0 || before < value); /* what was complete stays good */
    if (code)
        ghost.told |= (uint8_t)(1u << value);
    for (unsigned i = 0; code == 0 && i < value; i++)
        MODEL_CHECK(model_plain_read(&work[i]) == i + 100);
}

static void awaits_one(void) {
    await(1);
}

static void awaits_two(void) {
    await(2);
}

/* Poisons the fence of a dead writer, twice, as for writes that land late. */
static void bury(void) {
    model_wait(0, 1u << WRITER);
    if (!model_died(WRITER))
        return;
    ghost.noted = (uint8_t)(cw_fence_poison(&fence) + 1);
    MODEL_CHECK(cw_fence_poison(&fence) + 1 == ghost.noted);
}

static void bury_once(void) {
    model_wait(0, 1u << WRITER);
    if (model_died(WRITER))
        ghost.noted = (uint8_t)(cw_fence_poison(&fence) + 1);
}

static void noted(void) {
    if (model_died(WRITER))
        MODEL_CHECK(ghost.noted > ghost.completed && ghost.noted <= ghost.completed + 2);
    /* What is noted as complete nobody is told to be lost. */
    for (unsigned value = 1; value <= 2; value++)
        MODEL_CHECK(!(ghost.told >> value & 1) || ghost.noted - 1u < value);
}

#define FENCE(text, says, dies, ...)                                                               \
    {                                                                                              \
        .name = text, .promise = says, .init = init, .final = noted, .threads = {__VA_ARGS__},     \
        .killable = dies, .ghost = &ghost, .ghost_bytes = sizeof ghost                             \
    }

const struct model_scenario model_fence_scenarios[] = {
    FENCE("fence, two values", "the waiter wakes and sees the work", 0, writes_two, awaits_two),
    FENCE("fence, two waiters", "all who sleep on one word are woken", 0, writes_one, awaits_one,
          NULL, awaits_one),
    FENCE("fence, writer dies", "the waiter hears of it; what was complete stays good",
          1u << WRITER, writes_two, awaits_two, bury),
    FENCE("fence, writer dies, two waiters", "both hear of it", 1u << WRITER, writes_one,
          awaits_one, bury_once, awaits_one),
    {.name = NULL},
};
