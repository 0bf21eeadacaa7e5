/*
 * Channels: bells at which several sleep, and which several ring (ipc/channel.c over shm/wait.c).
 *
 * A Pool's parent sleeps at one bell for all its workers; a worker may die in the middle of a
 * wake-up; who notices that rings.
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/causeway.h"
#include "scenarios.h"
#include "shm/error.h"

#define RING_BYTES 4096u
#define FOR_EVER   (-1)

enum { PARENT, WORKER_0, WORKER_1, HELPER };

static _Alignas(64) uint8_t memory[2][16384];
static _Alignas(64) uint8_t bell[64];
static cw_channel *parents[2], *workers[2];
static uint64_t news;
static struct {
    uint8_t received[2];
    uint8_t rung;
} ghost;

/* shared_by: the side whose ends share the bell. */
static void open_channels(int shared_by) {
    memset(bell, 0, sizeof bell);
    for (int i = 0; i < 2; i++) {
        free(parents[i]); /* an earlier execution's; closing would wake somebody */
        free(workers[i]);
        void *parent_bell = shared_by == 0 ? bell : NULL,
             *worker_bell = shared_by == 1 ? bell : NULL;
        if (cw_channel_bytes(RING_BYTES) > sizeof memory[i] ||
            cw_channel_format(memory[i], sizeof memory[i], RING_BYTES) != 0 ||
            cw_channel_open(memory[i], sizeof memory[i], RING_BYTES, 0, parent_bell, worker_bell,
                            &parents[i]) != 0 ||
            cw_channel_open(memory[i], sizeof memory[i], RING_BYTES, 1, worker_bell, parent_bell,
                            &workers[i]) != 0)
            abort();
    }
    news = 0;
    model_plain(&news);
}

static void init_parent_sleeps(void) {
    open_channels(0);
}

static void init_workers_sleep(void) {
    open_channels(1);
}

static void send(cw_channel *channel, uint32_t type) {
    MODEL_CHECK(cw_channel_send(channel, type, NULL, 0, FOR_EVER) == 0);
}

static void receive(cw_channel *channel, unsigned number) {
    uint32_t type, size;
    const void *data;
    MODEL_CHECK(cw_channel_recv(channel, FOR_EVER, &type, &data, &size) == 0);
    MODEL_CHECK(type == number + 7 && size == 0);
    ghost.received[number]++;
}

static void worker_0_answers(void) {
    send(workers[0], 7);
}

static void worker_1_answers(void) {
    send(workers[1], 8);
}

static void parent_collects(void) {
    while (!(ghost.received[0] || ghost.rung) || !ghost.received[1]) {
        int which = cw_channels_wait(parents, 2, bell, FOR_EVER);
        MODEL_CHECK(which == 0 || which == 1 || which == -EAGAIN);
        if (which >= 0)
            receive(parents[which], (unsigned)which);
        else
            ghost.rung = 1;
    }
}

/* Waits for worker 1 alone, at the bell that worker 0 rings too. */
static void parent_awaits_1(void) {
    int which;
    while ((which = cw_channels_wait(&parents[1], 1, bell, FOR_EVER)) != 0)
        MODEL_CHECK(which == -EAGAIN);
}

/* Rings when worker 0 is gone. */
static void helper_watches(void) {
    model_wait(0, 1u << WORKER_0);
    cw_bell_ring(bell);
}

static void parent_sends_to_both(void) {
    send(parents[0], 7);
    send(parents[1], 8);
}

static void worker_0_listens(void) {
    receive(workers[0], 0);
}

static void worker_1_listens(void) {
    receive(workers[1], 1);
}

static void helper_tells(void) {
    model_plain_write(&news, 5);
    cw_bell_ring(bell);
}

static void parent_hears(void) {
    MODEL_CHECK(cw_channels_wait(NULL, 0, bell, FOR_EVER) == -EAGAIN);
    MODEL_CHECK(model_plain_read(&news) == 5);
    ghost.rung = 1;
}

#define CHANNEL(text, says, start, dies, ...)                                                      \
    {                                                                                              \
        .name = text, .promise = says, .init = start, .threads = {__VA_ARGS__}, .killable = dies,  \
        .ghost = &ghost, .ghost_bytes = sizeof ghost                                               \
    }

const struct model_scenario model_channel_scenarios[] = {
    CHANNEL("channel, one bell for two workers", "every message wakes the parent",
            init_parent_sleeps, 0, parent_collects, worker_0_answers, worker_1_answers),
    CHANNEL("channel, two sleep at one bell", "each is woken for its own message",
            init_workers_sleep, 0, parent_sends_to_both, worker_0_listens, worker_1_listens),
    CHANNEL("channel, the bell is rung", "who is rung sees what came before", init_parent_sleeps, 0,
            parent_hears, NULL, NULL, helper_tells),
    CHANNEL("channel, a worker dies", "the parent does not miss another's message",
            init_parent_sleeps, 1u << WORKER_0, parent_awaits_1, worker_0_answers, worker_1_answers,
            helper_watches),
    {.name = NULL},
};
