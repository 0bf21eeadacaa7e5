/*
 * Sleeping: nobody sleeps while there is something for it to do.
 *
 * Between clients on futexes, both sides of a full ring; between client and broker on eventfds,
 * where the client only looks at the broker's word and the broker clears it. A lost wake-up is a
 * thread that sleeps while nobody is left to wake it.
 */
#include <string.h>

#include "scenarios.h"
#include "shm/base/error.h"
#include "shm/session/ring.h"

#define CAPACITY 64u

static _Alignas(64) uint8_t memory[2][sizeof(struct cw_ring) + CAPACITY];
static struct cw_ring *const requests = (struct cw_ring *)(void *)memory[0];
static struct cw_ring *const replies = (struct cw_ring *)(void *)memory[1];
static struct cw_sleeper broker;
static struct cw_ring_producer request_in, reply_in;
static struct cw_ring_consumer request_out, reply_out;
static struct { uint8_t asked, served, answered; } ghost;

enum { DOORBELL, BELL };

static void init(void) {
    memset(memory, 0, sizeof memory);
    memset(&broker, 0, sizeof broker);
    cw_ring_init(requests, CAPACITY);
    cw_ring_init(replies, CAPACITY);
    cw_ring_producer_init(&request_in, requests, CAPACITY);
    cw_ring_consumer_init(&request_out, requests, CAPACITY);
    cw_ring_producer_init(&reply_in, replies, CAPACITY);
    cw_ring_consumer_init(&reply_out, replies, CAPACITY);
}

/* The ring has room for nothing more: two records of the three that will be. */
static void init_full(void) {
    init();
    for (unsigned i = 0; i < 2; i++) {
        void *place;
        if (cw_ring_reserve(&request_in, 16, &place) != 0)
            model_fail("the ring cannot be filled alone");
        cw_ring_commit(&request_in, i + 1, 16);
    }
}

static bool take(struct cw_ring_consumer *side, unsigned number) {
    uint32_t type, length;
    const void *payload;
    if (cw_ring_peek(side, &type, &payload, &length) != 1)
        return false;
    MODEL_CHECK(type == number + 1);
    cw_ring_consume(side);
    return true;
}

/* ---- futexes, ring full: three records of 24 bytes and a padding ---- */

#define RECORDS 3u

static void futex_produce(void) {
    for (unsigned i = 2; i < RECORDS; i++) {
        void *place;
        while (cw_ring_reserve(&request_in, 16, &place) != 0) {
            cw_sleeper_announce(&requests->producer);
            if (cw_ring_has_room(&request_in, 16))
                cw_sleeper_cancel(&requests->producer);
            else
                cw_sleeper_sleep(&requests->producer, -1);
        }
        cw_ring_commit(&request_in, i + 1, 16);
        cw_sleeper_wake(&requests->consumer);
    }
}

static void futex_consume(void) {
    for (unsigned i = 0; i < RECORDS; i++) {
        while (!take(&request_out, i)) {
            cw_sleeper_announce(&requests->consumer);
            if (cw_ring_has_record(&request_out))
                cw_sleeper_cancel(&requests->consumer);
            else
                cw_sleeper_sleep(&requests->consumer, -1);
        }
        cw_sleeper_wake(&requests->producer);
    }
}

/* ---- client and broker ---- */

#define REQUESTS 2u

static void ring_doorbell(void) {
    /* W12: as ipc/request/channel.c does: after the effect, and it only looks. */
    if (CW_LOAD(W12, &broker.asleep, seq_cst))
        model_signal(DOORBELL);
}

static void client(void) {
    for (unsigned i = 0; i < REQUESTS; i++) {
        void *place;
        if (cw_ring_reserve(&request_in, 0, &place) != 0)
            model_fail("no room");
        cw_ring_commit(&request_in, i + 1, 0);
        ghost.asked++;
        ring_doorbell();
        bool lost = false;
        while (!take(&reply_out, i)) {
            if (lost)
                return; /* BrokerLost */
            cw_sleeper_announce(&replies->consumer);
            if (!cw_ring_has_record(&reply_out))
                lost = model_wait(1u << BELL, 2) & MODEL_ENDED(1);
            cw_sleeper_cancel(&replies->consumer);
        }
        ghost.answered++;
    }
}

static void serve_all(void) {
    while (take(&request_out, ghost.served)) {
        void *place;
        if (cw_ring_reserve(&reply_in, 0, &place) != 0)
            model_fail("no room");
        cw_ring_commit(&reply_in, ghost.served + 1u, 0);
        ghost.served++;
        if (cw_sleeper_claim(&replies->consumer))
            model_signal(BELL);
    }
}

static void serve(void) {
    bool dead = false;
    while (ghost.served < REQUESTS) {
        serve_all();
        if (ghost.served == REQUESTS || dead)
            return;
        cw_sleeper_announce(&broker);
        if (!cw_ring_has_record(&request_out))
            dead = model_wait(1u << DOORBELL, 1) & MODEL_ENDED(0);
        cw_sleeper_cancel(&broker);
    }
}

static void all_answered(void) {
    if (!model_died(0) && !model_died(1))
        MODEL_CHECK(ghost.answered == REQUESTS);
    /* The broker looked once more after the client's death: what was asked whole was served. */
    if (model_died(0))
        MODEL_CHECK(ghost.served >= ghost.asked);
}

/* ---- a bell: a waker with nothing to say may die in the middle of it ---- */

static struct cw_bell bell;
static cw_a64 said;

static void init_bell(void) {
    memset(&bell, 0, sizeof bell);
    memset(&said, 0, sizeof said);
}

static void wake_for_nothing(void) {
    cw_bell_wake(&bell);
}

static void rouse_for_nothing(void) {
    cw_bell_rouse(&bell);
}

static void say(void) {
    CW_STORE(F2, &said, 1, seq_cst); /* F2, F3: as a fence does */
    cw_bell_wake(&bell);
}

static void hear(void) {
    while (!CW_LOAD(F3, &said, seq_cst)) {
        uint32_t rings = cw_bell_announce(&bell);
        if (!CW_LOAD(F3, &said, seq_cst))
            cw_bell_sleep(&bell, rings, -1);
    }
}

#define SLEEP(text, says, start, end, dies, ...)                                                   \
    {                                                                                              \
        .name = text, .promise = says, .init = start, .final = end, .threads = {__VA_ARGS__},      \
        .killable = dies, .ghost = &ghost, .ghost_bytes = sizeof ghost                             \
    }

const struct model_scenario model_sleep_scenarios[] = {
    SLEEP("sleep, futexes", "no wake-up is lost, for records and for room", init_full, NULL, 0,
          futex_produce, futex_consume),
    SLEEP("sleep, doorbell and bell", "no wake-up is lost, between client and broker", init,
          all_answered, 0, client, serve),
    SLEEP("sleep, client dies", "the broker serves what was asked whole, and goes on", init,
          all_answered, 1, client, serve),
    SLEEP("sleep, broker dies", "the client does not wait for ever", init, all_answered, 2, client,
          serve),
    SLEEP("bell, a waker dies beside another", "who sleeps hears the other", init_bell, NULL, 1,
          wake_for_nothing, say, hear),
    SLEEP("bell, who rouses dies beside a waker", "who sleeps hears the waker", init_bell, NULL, 1,
          rouse_for_nothing, say, hear),
    {.name = NULL},
};
