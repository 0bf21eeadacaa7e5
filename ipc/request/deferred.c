/*
 * Deferred messages: requests that need no answer and found the ring full.
 *
 * The end of a lease, of a transit, of a slab or of the whole session is said by who must not wait:
 * it holds client->lock, or closes an array. What finds no room is kept here, in order, and goes
 * before any later request of this client: of its next call, or of the sender, a thread that is
 * there as long as something is kept. All of these only give something up: that they come late
 * costs memory, never data. What says that an array is held on (a transit's begin) is never kept,
 * since the broker must find it in the ring (cw_channel_push).
 *
 * No two that are kept say the same: the broker looks at how things stand when it reads them, so
 * the first will do. (Two openings of one handle count as one then, and its transit lives to its
 * limit.) A worker that opens and closes the same array for each of its tasks, while
 * the broker stands still, keeps one. What is kept is bounded by the blocks, transits and slabs
 * that this process knows, and new ones need the broker.
 *
 * Owner: channel_lock. The sender thread has a reference to the client, or (leaving) is the last to
 * have one, and frees it. If the process dies the broker sees that, and all of this is said by it.
 * If the broker dies nobody needs to be told. A forked child has no sender thread, and its copy of
 * the client is dead.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/client.h"
#include "ipc/request/channel.h"
#include "ipc/request/deferred.h"
#include "shm/base/thread.h"

#define NAP_NS      200000
#define NAP_NS_MOST 5000000

static struct cw_deferred **bucket(struct cw_channel *channel, uint16_t op, const void *body,
                                   uint32_t body_bytes) {
    uint32_t hash = 2166136261u ^ op; /* FNV-1a */
    for (uint32_t i = 0; i < body_bytes; i++)
        hash = (hash ^ ((const uint8_t *)body)[i]) * 16777619u;
    return &channel->alike[(hash ^ hash >> 16) % CW_DEFERRED_BUCKETS];
}

/* The place of the message that says this, or where it would be hung in. */
static struct cw_deferred **find(struct cw_channel *channel, uint16_t op, const void *body,
                                 uint32_t body_bytes) {
    struct cw_deferred **at = bucket(channel, op, body, body_bytes);
    while (*at && ((*at)->op != op || (*at)->body_bytes != body_bytes ||
                   (body_bytes && memcmp((*at)->body, body, body_bytes) != 0)))
        at = &(*at)->beside;
    return at;
}

int cw_deferred_write(cw_client *client) {
    struct cw_channel *channel = &client->channel;
    bool any = false;
    int code = 0;
    for (struct cw_deferred *message; (message = channel->deferred);) {
        struct iovec part = {message->body, message->body_bytes};
        code = cw_channel_put(client, message->op, ++channel->next_id, &part, 1);
        if (code)
            break;
        any = true;
        channel->deferred = message->next;
        *bucket(channel, message->op, message->body, message->body_bytes) =
            message->beside; /* the oldest there */
        free(message);
    }
    /* Also where only some had room: the broker may have emptied the ring and gone to sleep since.
     */
    if (any)
        cw_channel_ring(client);
    return code;
}

void cw_deferred_deinit(cw_client *client) {
    for (struct cw_deferred *message; (message = client->channel.deferred);) {
        client->channel.deferred = message->next;
        free(message);
    }
}

/* One round of the sender thread: -EAGAIN, there is something left. */
static int deliver(cw_client *client) {
    if (CW_LOAD(K3, &client->lost, relaxed))
        return -ECONNRESET;
    int code = cw_deferred_write(client);
    if (code && (code != -EAGAIN || cw_channel_drain(client) < 0 || cw_client_hung_up(client)))
        return cw_client_lost(client);
    return code;
}

static void *send_all(void *context) {
    cw_client *client = context;
    struct timespec nap = {.tv_nsec = NAP_NS};
    pthread_mutex_lock(&client->channel_lock);
    while (deliver(client) == -EAGAIN) {
        pthread_mutex_unlock(&client->channel_lock);
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < NAP_NS_MOST)
            nap.tv_nsec *= 2;
        pthread_mutex_lock(&client->channel_lock);
    }
    bool leaving = client->channel.leaving;
    client->channel.sender = false;
    pthread_mutex_unlock(&client->channel_lock);
    if (leaving)
        cw_client_free(client);
    else
        cw_client_unref(client);
    return NULL;
}

/* Without a thread the next call of this client sees to it. */
static void start_sender(cw_client *client) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (client->channel.sender || pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (!client->channel.leaving)
        cw_client_ref(client);
    client->channel.sender = true;
    if (cw_thread_start(&thread, &attributes, send_all, client) != 0) {
        client->channel.sender = false;
        if (!client->channel.leaving) /* not the last one: the caller has his */
            CW_ADD(K6, &client->references, -1u, relaxed);
    }
    pthread_attr_destroy(&attributes);
}

struct cw_deferred *cw_deferred_room(uint32_t body_bytes) {
    return malloc(sizeof(struct cw_deferred) + body_bytes);
}

int cw_deferred_keep(cw_client *client, struct cw_deferred **room, uint16_t op, const void *body,
                     uint32_t body_bytes) {
    struct cw_channel *channel = &client->channel;
    struct cw_deferred **at = find(channel, op, body, body_bytes);
    if (*at)
        return 0;
    struct cw_deferred *message = *room ? *room : cw_deferred_room(body_bytes);
    if (!message)
        return cw_fail(-EDQUOT, "no memory to keep a request of %u bytes until the broker has room",
                       body_bytes);
    *room = NULL;
    *message = (struct cw_deferred){.op = op, .body_bytes = body_bytes};
    if (body_bytes)
        memcpy(message->body, body, body_bytes);
    *(channel->deferred ? &channel->deferred_last->next : &channel->deferred) = *at = message;
    channel->deferred_last = message;
    start_sender(client);
    return 0;
}

bool cw_deferred_leave(cw_client *client) {
    pthread_mutex_lock(&client->channel_lock);
    CW_ASSERT(!client->channel.sender); /* it would have a reference */
    client->channel.leaving = true;
    struct iovec none = {NULL, 0};
    struct cw_deferred *room = NULL;
    int code = cw_channel_write(client, CW_OP_BYE, ++client->channel.next_id, &none, 1);
    if (code == 0)
        cw_channel_ring(client);
    else if (code == -EAGAIN) /* where no thread is to be had the session ends with the process */
        (void)cw_deferred_keep(client, &room, CW_OP_BYE, NULL, 0);
    bool kept = client->channel.sender;
    pthread_mutex_unlock(&client->channel_lock);
    return kept;
}
