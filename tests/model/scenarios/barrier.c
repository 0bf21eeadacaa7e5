/*
 * Barriers: nobody passes before all have come, what each wrote before is seen by all and stays
 * until all have read it, no wake-up is lost, and who waits for a dead member is told.
 */
#include <errno.h>
#include <string.h>

#include "scenarios.h"
#include "shm/tasks/barrier.h"

#define MEMBERS 3u
#define BROKEN  7u

static struct cw_barrier_slot slots[MEMBERS];
static cw_a64 broken;
static uint64_t brought[MEMBERS][2];

static void init(void) {
    memset(slots, 0, sizeof slots);
    memset(&broken, 0, sizeof broken);
    for (unsigned i = 0; i < MEMBERS; i++)
        for (unsigned half = 0; half < 2; half++) {
            brought[i][half] = 0;
            model_plain(&brought[i][half]);
        }
}

static uint64_t word_of(unsigned number) {
    return cw_barrier_word(number, 5);
}

/* Waits until a member has arrived; false: the group is broken. */
static bool await(unsigned member, unsigned number) {
    for (;;) {
        int code = cw_barrier_look(&slots[member], word_of(number));
        MODEL_CHECK(code >= 0);
        if (code || cw_barrier_broken(&broken))
            return code;
        cw_barrier_sleep(&slots[member], word_of(number), &broken, 0, -1);
    }
}

static void arrive(unsigned self, unsigned number) {
    model_plain_write(&brought[self][number & 1], 10 * number + self);
    cw_barrier_arrive(&slots[self], word_of(number));
}

static void read_of(unsigned member, unsigned number) {
    MODEL_CHECK(model_plain_read(&brought[member][number & 1]) == 10 * number + member);
}

/* Two meetings with the other one; then the first one's memory is written anew. */
static void meet(unsigned self) {
    unsigned other = 1 - self;
    for (unsigned number = 1; number <= 2; number++) {
        arrive(self, number);
        MODEL_CHECK(await(other, number));
        read_of(other, number);
    }
    model_plain_write(&brought[self][1], 0);
}

static void zero_of_two(void) {
    meet(0);
}

static void one_of_two(void) {
    meet(1);
}

static void awaits_two(void) {
    arrive(0, 1);
    for (unsigned i = 1; i < MEMBERS; i++) {
        MODEL_CHECK(await(i, 1));
        read_of(i, 1);
    }
}

static void awaits_one(void) {
    arrive(1, 1);
    MODEL_CHECK(await(2, 1));
    read_of(2, 1);
}

static void arrives(void) {
    arrive(2, 1);
}

/* ---- a member dies: 0 may, 1 waits for it, 2 notices ---- */

static void may_die(void) {
    arrive(0, 1);
}

static void waits(void) {
    arrive(1, 1);
    if (await(0, 1))
        read_of(0, 1);
}

static void notices(void) {
    model_wait(0, 1u << 0);
    if (!model_died(0))
        return;
    if (cw_barrier_look(&slots[0], word_of(1))) {
        cw_barrier_rouse(&slots[0]); /* stands for the limit of the sleep */
        return;
    }
    if (cw_barrier_break(&broken, 0, BROKEN))
        for (unsigned i = 0; i < MEMBERS; i++)
            cw_barrier_rouse(&slots[i]);
}

static void told(void) {
    MODEL_CHECK(CW_LOAD(N6, &broken, relaxed) == 0 || model_died(0));
}

/* ---- who has arrived for something else ---- */

static void arrives_for_another(void) {
    cw_barrier_arrive(&slots[0], cw_barrier_word(1, 6));
}

static void finds_another(void) {
    int code;
    while ((code = cw_barrier_look(&slots[0], word_of(1))) == 0)
        cw_barrier_sleep(&slots[0], word_of(1), &broken, 0, -1);
    MODEL_CHECK(code == -EBADMSG);
}

#define BARRIER(text, says, end, dies, ...)                                                        \
    {                                                                                              \
        .name = text, .promise = says, .init = init, .final = end, .threads = {__VA_ARGS__},       \
        .killable = dies                                                                           \
    }

const struct model_scenario model_barrier_scenarios[] = {
    BARRIER("barrier, two meetings", "what was brought is seen, and stays until it was", NULL, 0,
            zero_of_two, one_of_two),
    BARRIER("barrier, three members", "nobody passes alone, nobody sleeps on", NULL, 0, awaits_two,
            awaits_one, arrives),
    BARRIER("barrier, a member dies", "who waits for it is told", told, 1, may_die, waits, notices),
    BARRIER("barrier, for another thing", "who waits is told", NULL, 0, arrives_for_another,
            finds_another),
    {.name = NULL},
};
