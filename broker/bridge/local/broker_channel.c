/*
 * The broker channel: see broker_channel.h. Owned by the loop's thread. If this process dies the
 * broker gives the jobs to the next bridge, and takes the names of replicas away.
 */
#include "broker/bridge/local/broker_channel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/bridge/bridge.h"
#include "broker/bridge/memory.h"
#include "ipc/client.h"
#include "shm/base/alive.h"

#define BATCH_NS                                                                                   \
    10000000 /* beyond the next tick of the kernel: a nearer timer costs more than it gives */
#define BATCH_MOST 64u /* so many are told of at once */
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

struct cwb_broker_channel {
    struct cwb_watch bell; /* first: it is cast back */
    struct cwb_bridge *bridge;
    struct cwb_watch end;
    cw_client *client;
    struct asked *asked, *untabled;
    struct unsent *first, **last, *spares;
    uint32_t asked_count;   /* since the broker was woken; */
    uint32_t batched_count; /* of these: may wait for others */
    int64_t batch_until_ns;
    bool quiet; /* what is asked now wakes nobody */
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
    struct cwb_broker_channel *channel =
        (struct cwb_broker_channel *)((char *)watch - offsetof(struct cwb_broker_channel, end));
    cw_client_lost(channel->client);
    broker_lost();
}

int cwb_broker_channel_new(struct cwb_bridge *bridge, struct cwb_broker_channel **out) {
    struct cwb_broker_channel *channel = calloc(1, sizeof *channel);
    struct spare *spares = calloc(SPARES, sizeof *spares); /* untouched pages cost nothing */
    if (!channel || !spares) {
        free(channel);
        free(spares);
        return cwb_no_memory("what it has to do with its broker");
    }
    for (uint32_t i = 0; i < SPARES; i++)
        LL_PREPEND(channel->spares, (struct unsent *)spares[i].bytes);
    channel->bridge = bridge;
    channel->last = &channel->first;
    int code = cw_connect(bridge->options.broker_socket, "", CW_CONNECT_NO_START, &channel->client);
    if (code == 0) {
        channel->bell = (struct cwb_watch){.fd = channel->client->bell, .on_ready = on_bell};
        channel->end = (struct cwb_watch){.fd = channel->client->sock, .on_ready = on_end};
        code = cwb_io_watch(bridge->loop.io, &channel->bell);
    }
    if (code == 0)
        code = cwb_io_watch(bridge->loop.io, &channel->end);
    *out = channel; /* on failure the process ends */
    return code;
}

uint32_t cwb_broker_channel_session(const struct cwb_broker_channel *channel) {
    return channel->client->session;
}

void cwb_broker_channel_check(const struct cwb_broker_channel *channel) {
    if (cw_alive(&channel->client->root->alive))
        return;
    cw_client_lost(channel->client);
    broker_lost();
}

/* 0, -EAGAIN. */
static int try_send(struct cwb_broker_channel *channel, uint16_t op, const struct iovec *parts,
                    uint32_t count, struct asked *asked) {
    uint64_t id;
    int code = cw_channel_send(channel->client, op, parts, count, &id);
    if (code == -EAGAIN)
        return code;
    if (code)
        broker_lost();
    channel->asked_count += !channel->quiet;
    if (!asked)
        return 0;
    asked->id = id;
    HASH_ADD(hh, channel->asked, id, sizeof asked->id, asked);
    if (!CWD_ADDED(asked))
        LL_PREPEND(channel->untabled, asked);
    return 0;
}

/* NULL: there is no memory; of what must be said a spare one. */
static struct unsent *unsent_new(struct cwb_broker_channel *channel, uint32_t size_bytes,
                                 bool must) {
    struct unsent *unsent = malloc(sizeof *unsent + size_bytes), *spare = channel->spares;
    if (unsent || !must || !spare || size_bytes > SPARE_BYTES) {
        if (unsent)
            unsent->spare = false;
        return unsent;
    }
    LL_DELETE(channel->spares, spare);
    spare->spare = true;
    return spare;
}

static void unsent_free(struct cwb_broker_channel *channel, struct unsent *unsent) {
    if (unsent->spare)
        LL_PREPEND(channel->spares, unsent);
    else
        free(unsent);
}

int cwb_broker_channel_ask(struct cwb_broker_channel *channel, uint16_t op,
                           const struct iovec *parts, uint32_t count, cwb_on_answer *on_answer,
                           void *owner) {
    struct asked *asked = on_answer ? malloc(sizeof *asked) : NULL;
    if (on_answer && !asked)
        return cwb_no_memory("what its broker is asked");
    if (asked)
        *asked = (struct asked){.on_answer = on_answer, .owner = owner};
    if (!channel->first && try_send(channel, op, parts, count, asked) == 0)
        return 0;
    uint32_t size_bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        size_bytes += (uint32_t)parts[i].iov_len;
    struct unsent *unsent = unsent_new(channel, size_bytes, !on_answer);
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
    *channel->last = unsent;
    channel->last = &unsent->next;
    return 0;
}

static void send_rest(struct cwb_broker_channel *channel) {
    struct unsent *unsent;
    while ((unsent = channel->first)) {
        struct iovec part = {unsent->body, unsent->body_bytes};
        if (try_send(channel, unsent->op, &part, 1, unsent->asked) != 0)
            return;
        channel->first = unsent->next;
        if (!channel->first)
            channel->last = &channel->first;
        unsent_free(channel, unsent);
    }
}

static void on_reply(void *context, const struct cw_message *head, const void *body,
                     uint32_t body_bytes) {
    struct cwb_broker_channel *channel = context;
    struct asked *asked;
    HASH_FIND(hh, channel->asked, &head->id, sizeof head->id, asked);
    if (asked) {
        HASH_DEL(channel->asked, asked);
    } else {
        LL_SEARCH_SCALAR(channel->untabled, asked, id, head->id);
        if (!asked)
            return; /* nobody wants it */
        LL_DELETE(channel->untabled, asked);
    }
    if (head->status < 0)
        cw_fail(head->status, "%.*s", (int)body_bytes, (const char *)body);
    asked->on_answer(asked->owner, head->status, body, body_bytes);
    free(asked);
}

void cwb_broker_channel_turn(struct cwb_broker_channel *channel) {
    int code;
    while ((code = cw_channel_take(channel->client, on_reply, channel)) == 1)
        continue;
    if (code < 0)
        broker_lost();
    if (channel->first)
        send_rest(channel);
}

void cwb_broker_channel_batch_notify(struct cwb_broker_channel *channel) {
    if (channel->batched_count++ == 0)
        channel->batch_until_ns = channel->bridge->loop.now_ns + BATCH_NS;
}

void cwb_broker_channel_quiet(struct cwb_broker_channel *channel, bool quiet) {
    channel->quiet = quiet;
}

void cwb_broker_channel_flush(struct cwb_broker_channel *channel) {
    channel->batched_count = 0;
}

int64_t cwb_broker_channel_notify(struct cwb_broker_channel *channel) {
    if (channel->asked_count == 0)
        return INT64_MAX;
    if (channel->asked_count <= channel->batched_count && channel->batched_count < BATCH_MOST &&
        channel->bridge->loop.now_ns < channel->batch_until_ns)
        return channel->batch_until_ns;
    cw_channel_ring(channel->client);
    channel->asked_count = channel->batched_count = 0;
    return INT64_MAX;
}

bool cwb_broker_channel_rest(struct cwb_broker_channel *channel) {
    return cw_channel_rest(channel->client);
}

void cwb_broker_channel_rise(struct cwb_broker_channel *channel) {
    cw_channel_rise(channel->client);
}
