/*
 * Home: see broker_channel.h. Owned by the loop's thread. If this process dies the broker gives the
 * jobs to the next bridge, and takes the names of replicas away.
 */
#include "broker/bridge/local/broker_channel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/memory.h"
#include "ipc/client.h"
#include "shm/base/alive.h"

#define CALM_NS                                                                                    \
    10000000 /* beyond the next tick of the kernel: a nearer timer costs more than it gives */
#define CALM_MOST 64u /* calm requests are no longer that when there are so many */
/* What must be said (the end of a job, of a name) finds its place also when there is neither memory
 * nor room in the ring: so much is kept ready. */
#define SPARES      1024u
#define SPARE_BYTES (CW_DETAIL_MAX + 64u)

struct asked { /* an answer is to come */
    uint64_t id;
    cwb_on_answer *on_answer;
    void *owner;
    struct asked *next; /* of those for which the table had no memory */
    UT_hash_handle hh;
};

struct unsent { /* there was no room in the ring */
    struct unsent *next;
    struct asked *asked; /* NULL: nobody wants the answer */
    bool spare;
    uint16_t op;
    uint32_t body_bytes;
    uint8_t body[];
};

struct spare {
    _Alignas(struct unsent) uint8_t bytes[sizeof(struct unsent) + SPARE_BYTES];
};

struct cwb_home {
    struct cwb_watch bell; /* first: it is cast back */
    struct cwb_bridge *bridge;
    struct cwb_watch end;
    cw_client *client;
    struct asked *asked, *untabled;
    struct unsent *first, **last, *spares;
    uint32_t asked_count, calm_count; /* since the broker was woken; of these: are in no hurry */
    int64_t calm_until_ns;
};

_Noreturn static void broker_lost(void) {
    cwb_log("ends with its broker: %s", cw_detail());
    _exit(0); /* other threads wait: nothing of theirs is to be put in order */
}

static void on_bell(struct cwb_watch *watch) {
    char rings[256];
    while (read(watch->fd, rings, sizeof rings) == (ssize_t)sizeof rings)
        continue; /* however often it rang, the ring is looked at in each turn */
}

/* The broker's last word, or the end of the socket. Nothing else comes over it. */
static void on_end(struct cwb_watch *watch) {
    struct cwb_home *home = (struct cwb_home *)((char *)watch - offsetof(struct cwb_home, end));
    cw_client_lost(home->client);
    broker_lost();
}

int cwb_home_new(struct cwb_bridge *bridge, struct cwb_home **out) {
    struct cwb_home *home = calloc(1, sizeof *home);
    struct spare *spares = calloc(SPARES, sizeof *spares); /* untouched pages cost nothing */
    if (!home || !spares) {
        free(home);
        free(spares);
        return cwb_no_memory("what it has to do with its broker");
    }
    for (uint32_t i = 0; i < SPARES; i++)
        LL_PREPEND(home->spares, (struct unsent *)spares[i].bytes);
    home->bridge = bridge;
    home->last = &home->first;
    int code = cw_connect(bridge->options.place, "", CW_CONNECT_NO_START, &home->client);
    if (code == 0) {
        home->bell = (struct cwb_watch){.fd = home->client->bell, .on_ready = on_bell};
        home->end = (struct cwb_watch){.fd = home->client->sock, .on_ready = on_end};
        code = cwb_io_watch(bridge->loop.io, &home->bell);
    }
    if (code == 0)
        code = cwb_io_watch(bridge->loop.io, &home->end);
    *out = home; /* on failure the process ends */
    return code;
}

uint32_t cwb_home_session(const struct cwb_home *home) {
    return home->client->session;
}

void cwb_home_check(const struct cwb_home *home) {
    if (cw_alive(&home->client->root->alive))
        return;
    cw_client_lost(home->client);
    broker_lost();
}

/* 0, -EAGAIN. */
static int try_send(struct cwb_home *home, uint16_t op, const struct iovec *parts, uint32_t count,
                    struct asked *asked) {
    uint64_t id;
    int code = cw_lane_send(home->client, op, parts, count, &id);
    if (code == -EAGAIN)
        return code;
    if (code)
        broker_lost();
    home->asked_count++;
    if (!asked)
        return 0;
    asked->id = id;
    HASH_ADD(hh, home->asked, id, sizeof asked->id, asked);
    if (!CWD_ADDED(asked))
        LL_PREPEND(home->untabled, asked);
    return 0;
}

/* NULL: there is no memory; of what must be said a spare one. */
static struct unsent *unsent_new(struct cwb_home *home, uint32_t size_bytes, bool must) {
    struct unsent *unsent = malloc(sizeof *unsent + size_bytes), *spare = home->spares;
    if (unsent || !must || !spare || size_bytes > SPARE_BYTES) {
        if (unsent)
            unsent->spare = false;
        return unsent;
    }
    LL_DELETE(home->spares, spare);
    spare->spare = true;
    return spare;
}

static void unsent_free(struct cwb_home *home, struct unsent *unsent) {
    if (unsent->spare)
        LL_PREPEND(home->spares, unsent);
    else
        free(unsent);
}

int cwb_home_ask(struct cwb_home *home, uint16_t op, const struct iovec *parts, uint32_t count,
                 cwb_on_answer *on_answer, void *owner) {
    struct asked *asked = on_answer ? malloc(sizeof *asked) : NULL;
    if (on_answer && !asked)
        return cwb_no_memory("what its broker is asked");
    if (asked)
        *asked = (struct asked){.on_answer = on_answer, .owner = owner};
    if (!home->first && try_send(home, op, parts, count, asked) == 0)
        return 0;
    uint32_t size_bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        size_bytes += (uint32_t)parts[i].iov_len;
    struct unsent *unsent = unsent_new(home, size_bytes, !on_answer);
    if (!unsent) {
        int code = cwb_no_memory("what its broker is to read");
        free(asked);
        if (on_answer)
            return code;
        cwb_log("ends: %s; its broker reads nothing, and %u words to it wait", cw_detail(), SPARES);
        _exit(1);
    }
    unsent->next = NULL;
    unsent->asked = asked;
    unsent->op = op;
    unsent->body_bytes = size_bytes;
    uint8_t *at = unsent->body;
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].iov_len)
            memcpy(at, parts[i].iov_base, parts[i].iov_len);
        at += parts[i].iov_len;
    }
    *home->last = unsent;
    home->last = &unsent->next;
    return 0;
}

static void send_rest(struct cwb_home *home) {
    struct unsent *unsent;
    while ((unsent = home->first)) {
        struct iovec part = {unsent->body, unsent->body_bytes};
        if (try_send(home, unsent->op, &part, 1, unsent->asked) != 0)
            return;
        home->first = unsent->next;
        if (!home->first)
            home->last = &home->first;
        unsent_free(home, unsent);
    }
}

static void on_reply(void *context, const struct cw_message *head, const void *body,
                     uint32_t body_bytes) {
    struct cwb_home *home = context;
    struct asked *asked;
    HASH_FIND(hh, home->asked, &head->id, sizeof head->id, asked);
    if (asked) {
        HASH_DEL(home->asked, asked);
    } else {
        LL_SEARCH_SCALAR(home->untabled, asked, id, head->id);
        if (!asked)
            return; /* nobody wants it */
        LL_DELETE(home->untabled, asked);
    }
    if (head->status < 0)
        cw_fail(head->status, "%.*s", (int)body_bytes, (const char *)body);
    asked->on_answer(asked->owner, head->status, body, body_bytes);
    free(asked);
}

void cwb_home_turn(struct cwb_home *home) {
    int code;
    while ((code = cw_lane_take(home->client, on_reply, home)) == 1)
        continue;
    if (code < 0)
        broker_lost();
    if (home->first)
        send_rest(home);
}

void cwb_home_calm(struct cwb_home *home) {
    if (home->calm_count++ == 0)
        home->calm_until_ns = home->bridge->loop.now_ns + CALM_NS;
}

void cwb_home_urge(struct cwb_home *home) {
    home->calm_count = 0;
}

int64_t cwb_home_flush(struct cwb_home *home) {
    if (home->asked_count == 0)
        return INT64_MAX;
    if (home->asked_count <= home->calm_count && home->calm_count < CALM_MOST &&
        home->bridge->loop.now_ns < home->calm_until_ns)
        return home->calm_until_ns;
    cw_lane_ring(home->client);
    home->asked_count = home->calm_count = 0;
    return INT64_MAX;
}

bool cwb_home_rest(struct cwb_home *home) {
    return cw_lane_rest(home->client);
}

void cwb_home_rise(struct cwb_home *home) {
    cw_lane_rise(home->client);
}
