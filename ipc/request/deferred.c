/*
 * Posts: requests that need no answer and found the ring full.
 *
 * The end of a lease, of a transit, of a slab or of the whole session is said by who must not wait:
 * it holds client->lock, or closes an array. What finds no room is kept here, in order, and goes
 * before any later request of this client: of its next call, or of the postman, a thread that is
 * there as long as something is kept. All of these only give something up: that they come late
 * costs memory, never data. What says that an array is held on (a transit's begin) is never kept,
 * since the broker must find it in the ring (cw_lane_push).
 *
 * No two that are kept say the same: the broker looks at how things stand when it reads them, so
 * the first will do. A worker that opens and closes the same array for each of its tasks, while
 * the broker stands still, keeps one. What is kept is bounded by the blocks, transits and slabs
 * that this process knows, and new ones need the broker.
 *
 * Owner: lane_lock. The postman has a reference to the client, or (leaving) is the last to have
 * one, and frees it. If the process dies the broker sees that, and all of this is said by it. If
 * the broker dies nobody needs to be told. A forked child has no postman, and its copy of the
 * client is dead.
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

static struct cw_post **bucket(struct cw_lane *lane, uint16_t op, const void *body,
                               uint32_t body_bytes) {
    uint32_t hash = 2166136261u ^ op; /* FNV-1a */
    for (uint32_t i = 0; i < body_bytes; i++)
        hash = (hash ^ ((const uint8_t *)body)[i]) * 16777619u;
    return &lane->alike[(hash ^ hash >> 16) % CW_POST_BUCKETS];
}

/* The place of the post that says this, or where it would be hung in. */
static struct cw_post **find(struct cw_lane *lane, uint16_t op, const void *body,
                             uint32_t body_bytes) {
    struct cw_post **at = bucket(lane, op, body, body_bytes);
    while (*at && ((*at)->op != op || (*at)->body_bytes != body_bytes ||
                   (body_bytes && memcmp((*at)->body, body, body_bytes) != 0)))
        at = &(*at)->beside;
    return at;
}

int cw_posts_write(cw_client *client) {
    struct cw_lane *lane = &client->lane;
    bool any = false;
    int code = 0;
    for (struct cw_post *post; (post = lane->posts);) {
        struct iovec part = {post->body, post->body_bytes};
        code = cw_lane_put(client, post->op, ++lane->next_id, &part, 1);
        if (code)
            break;
        any = true;
        lane->posts = post->next;
        *bucket(lane, post->op, post->body, post->body_bytes) = post->beside; /* the oldest there */
        free(post);
    }
    /* Also where only some had room: the broker may have emptied the ring and gone to sleep since.
     */
    if (any)
        cw_lane_ring(client);
    return code;
}

void cw_posts_deinit(cw_client *client) {
    for (struct cw_post *post; (post = client->lane.posts);) {
        client->lane.posts = post->next;
        free(post);
    }
}

/* One round of the postman: -EAGAIN, there is something left. */
static int deliver(cw_client *client) {
    if (CW_LOAD(K3, &client->lost, relaxed))
        return -ECONNRESET;
    int code = cw_posts_write(client);
    if (code && (code != -EAGAIN || cw_lane_drain(client) < 0 || cw_client_hung_up(client)))
        return cw_client_lost(client);
    return code;
}

static void *postman(void *context) {
    cw_client *client = context;
    struct timespec nap = {.tv_nsec = NAP_NS};
    pthread_mutex_lock(&client->lane_lock);
    while (deliver(client) == -EAGAIN) {
        pthread_mutex_unlock(&client->lane_lock);
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < NAP_NS_MOST)
            nap.tv_nsec *= 2;
        pthread_mutex_lock(&client->lane_lock);
    }
    bool leaving = client->lane.leaving;
    client->lane.postman = false;
    pthread_mutex_unlock(&client->lane_lock);
    if (leaving)
        cw_client_free(client);
    else
        cw_client_unref(client);
    return NULL;
}

/* Without a thread the next call of this client sees to it. */
static void start_postman(cw_client *client) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (client->lane.postman || pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (!client->lane.leaving)
        cw_client_ref(client);
    client->lane.postman = true;
    if (cw_thread_start(&thread, &attributes, postman, client) != 0) {
        client->lane.postman = false;
        if (!client->lane.leaving) /* not the last one: the caller has his */
            CW_ADD(K6, &client->references, -1u, relaxed);
    }
    pthread_attr_destroy(&attributes);
}

struct cw_post *cw_post_room(uint32_t body_bytes) {
    return malloc(sizeof(struct cw_post) + body_bytes);
}

int cw_post_keep(cw_client *client, struct cw_post **room, uint16_t op, const void *body,
                 uint32_t body_bytes) {
    struct cw_lane *lane = &client->lane;
    struct cw_post **at = find(lane, op, body, body_bytes);
    if (*at)
        return 0;
    struct cw_post *post = *room ? *room : cw_post_room(body_bytes);
    if (!post)
        return cw_fail(-EDQUOT, "no memory to keep a request of %u bytes until the broker has room",
                       body_bytes);
    *room = NULL;
    *post = (struct cw_post){.op = op, .body_bytes = body_bytes};
    if (body_bytes)
        memcpy(post->body, body, body_bytes);
    *(lane->posts ? &lane->posts_last->next : &lane->posts) = *at = post;
    lane->posts_last = post;
    start_postman(client);
    return 0;
}

bool cw_posts_leave(cw_client *client) {
    pthread_mutex_lock(&client->lane_lock);
    CW_ASSERT(!client->lane.postman); /* it would have a reference */
    client->lane.leaving = true;
    struct iovec none = {NULL, 0};
    struct cw_post *room = NULL;
    int code = cw_lane_write(client, CW_OP_BYE, ++client->lane.next_id, &none, 1);
    if (code == 0)
        cw_lane_ring(client);
    else if (code == -EAGAIN) /* where no thread is to be had the session ends with the process */
        (void)cw_post_keep(client, &room, CW_OP_BYE, NULL, 0);
    bool kept = client->lane.postman;
    pthread_mutex_unlock(&client->lane_lock);
    return kept;
}
