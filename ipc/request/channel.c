/*
 * The channel: requests and replies over the two rings of the session.
 *
 * Any thread may call. Requests are written under channel_lock. Of all threads that wait for
 * replies one is the receiver: it spins a little, then sleeps in poll on {bell, socket}, and takes
 * replies out for all. The others sleep on the futex in their struct cw_call, so that signals reach
 * them (Ctrl-C). When the receiver has its own reply it hands its part to the next. Who finds the
 * request ring full waits in naps, without the lock, and takes replies out meanwhile: the broker
 * stops reading requests where it cannot answer.
 *
 * Invariants: while calls wait and the broker lives there is a receiver, or one was promoted. A
 * call is in the list as long as its function runs. The broker's death ends the socket: the
 * receiver sees that and wakes all.
 */
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ipc/client.h"
#include "ipc/request/channel.h"
#include "ipc/request/deferred.h"
#include "ipc/request/socket.h"
#include "shm/base/trace.h"

enum cw_call_word {
    CALL_WAITS = 0,
    CALL_DONE,     /* status and reply are there */
    CALL_PROMOTED, /* its thread is to become the receiver (or the broker is gone) */
};

void cw_channel_init(cw_client *client) {
    cw_ring_producer_init(&client->channel.requests,
                          cw_session_requests(client->session_segment.base), CW_CHANNEL_BYTES);
    cw_ring_consumer_init(&client->channel.replies,
                          cw_session_replies(client->session_segment.base), CW_CHANNEL_BYTES);
}

/* Rings the broker's doorbell. A full counter rings too. */
static void ring_doorbell(cw_client *client) {
    uint64_t one = 1;
    while (write(client->doorbell, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void call_wake(cw_client *client, struct cw_call *call, enum cw_call_word word) {
    /* K1: publishes status and reply; pairs with K2, else the caller may see an old reply. */
    CW_STORE(K1, &call->word, word, release);
    if (call != client->channel.receiver) /* that one never sleeps on its word */
        syscall(SYS_futex, &call->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static uint32_t call_word(struct cw_call *call) {
    /* K2: pairs with K1. */
    return CW_LOAD(K2, &call->word, acquire);
}

/* A reply whose size is checked: to the call that waits for it. Unknown ids were given up. */
static void deliver(cw_client *client, const struct cw_message *head, const void *body,
                    uint32_t body_bytes) {
    struct cw_call *call = client->channel.calls;
    while (call && (call->id != head->id || call_word(call) == CALL_DONE))
        call = call->next;
    if (!call)
        return;
    call->status = head->status;
    if (head->status < 0) {
        uint32_t length = body_bytes < CW_DETAIL_MAX - 1 ? body_bytes : CW_DETAIL_MAX - 1;
        memcpy(call->detail, body, length);
        call->detail[length] = 0;
    } else {
        call->reply_bytes = body_bytes < call->reply_room ? body_bytes : call->reply_room;
        if (call->reply_bytes)
            memcpy(call->reply, body, call->reply_bytes);
    }
    call_wake(client, call, CALL_DONE);
}

int cw_channel_drain(cw_client *client) {
    struct cw_ring_consumer *replies = &client->channel.replies;
    uint32_t type, length;
    const void *payload;
    int code;
    while ((code = cw_ring_peek(replies, &type, &payload, &length)) == 1) {
        struct cw_message head;
        if (length >= sizeof head) {
            memcpy(&head, payload, sizeof head);
            if (head.size_bytes == length)
                deliver(client, &head, (const uint8_t *)payload + sizeof head,
                        length - (uint32_t)sizeof head);
        }
        cw_ring_consume(replies);
        if (cw_sleeper_claim(&replies->ring->producer))
            ring_doorbell(client);
    }
    return code;
}

/* The next of the waiting becomes the receiver. The caller holds channel_lock. */
static void promote(cw_client *client) {
    struct cw_channel *channel = &client->channel;
    channel->receiver = NULL;
    for (struct cw_call *call = channel->calls; call; call = call->next)
        if (call_word(call) == CALL_WAITS) {
            call_wake(client, call, CALL_PROMOTED);
            channel->receiver = call;
            return;
        }
}

static void call_enter(cw_client *client, struct cw_call *call) {
    call->next = client->channel.calls;
    client->channel.calls = call;
}

static void call_leave(cw_client *client, struct cw_call *call) {
    struct cw_call **at = &client->channel.calls;
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    if (client->channel.receiver == call)
        promote(client);
}

int cw_channel_put(cw_client *client, uint16_t op, uint64_t id, const struct iovec *parts,
                   uint32_t count) {
    struct cw_message head = {.size_bytes = sizeof head, .op = op, .id = id};
    uint8_t *place;
    for (uint32_t i = 0; i < count; i++)
        head.size_bytes += (uint32_t)parts[i].iov_len;
    CW_ASSERT(head.size_bytes <= CW_MESSAGE_MAX);
    int code = cw_ring_reserve(&client->channel.requests, head.size_bytes, (void **)&place);
    if (code)
        return code;
    memcpy(place, &head, sizeof head);
    place += sizeof head;
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].iov_len)
            memcpy(place, parts[i].iov_base, parts[i].iov_len);
        place += parts[i].iov_len;
    }
    cw_sleeper_here(
        &client->channel.replies.ring->consumer); /* for the broker: whether spinning pays */
    cw_ring_commit(&client->channel.requests, op, head.size_bytes);
    return 0;
}

void cw_channel_ring(cw_client *client) {
    /* W12: after the request was published (R1, seq_cst); pairs with W1 in the broker. We only
     * look: the page is the broker's, and it clears the word itself when it wakes. */
    if (CW_LOAD(W12, &client->root->broker.asleep, seq_cst))
        ring_doorbell(client);
}

int cw_channel_write(cw_client *client, uint16_t op, uint64_t id, const struct iovec *parts,
                     uint32_t count) {
    int code = cw_deferred_write(client);
    return code ? code : cw_channel_put(client, op, id, parts, count);
}

/* Lets a moment pass, without the lock. True: a signal came. Enters and leaves with channel_lock
 * held.
 */
static bool nap(cw_client *client, struct cw_interruptible *wait) {
    pthread_mutex_unlock(&client->channel_lock);
    bool came = cw_interruptible_nap(wait);
    pthread_mutex_lock(&client->channel_lock);
    return came;
}

/* Is the broker expected to answer at once? */
static bool is_short(enum cw_call_mode mode) {
    return mode == CW_CALL_SHORT || mode == CW_CALL_DEED;
}

/* Writes a request. The caller holds channel_lock, which is given up while there is no room.
 * until_ns: INT64_MAX for ever. 0; -ECONNRESET; -EINTR, -ETIMEDOUT: it was not written. */
static int write_request(cw_client *client, uint16_t op, uint64_t id, const struct iovec *parts,
                         uint32_t count, enum cw_call_mode mode, struct cw_interruptible *wait,
                         int64_t until_ns) {
    for (;;) {
        if (CW_LOAD(K3, &client->lost, relaxed))
            return cw_client_lost(client);
        int code = cw_channel_write(client, op, id, parts, count);
        if (code == 0) {
            cw_channel_ring(client);
            return 0;
        }
        if (code != -EAGAIN || cw_channel_drain(client) < 0 || cw_client_hung_up(client))
            return cw_client_lost(client);
        if (cw_now_ns() >= until_ns)
            return cw_fail(-ETIMEDOUT, "the broker did not accept the request in time: it is "
                                       "stopped or hangs; `cableway status` tells which");
        bool came = nap(client, wait);
        if (cw_interruptible_over(wait, came) || (came && !is_short(mode)))
            return cw_fail(-EINTR, "a signal came while waiting for the broker");
    }
}

/* The caller holds channel_lock. keep: where there is no room; in *room, unless that is NULL. */
static int post(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes, bool keep,
                struct cw_deferred **room) {
    struct iovec part = {(void *)(uintptr_t)body, body_bytes};
    if (CW_LOAD(K3, &client->lost, relaxed))
        return cw_client_lost(client);
    int code = cw_channel_write(client, op, ++client->channel.next_id, &part, 1);
    if (code == 0)
        cw_channel_ring(client);
    else if (code != -EAGAIN)
        code = cw_client_lost(client);
    else if (keep)
        code = cw_deferred_keep(client, room, op, body, body_bytes);
    return code;
}

int cw_channel_post(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes) {
    pthread_mutex_lock(&client->channel_lock);
    struct cw_deferred *none = NULL;
    int code = post(client, op, body, body_bytes, true, &none);
    pthread_mutex_unlock(&client->channel_lock);
    return code;
}

int cw_channel_post_in(cw_client *client, struct cw_deferred **room, uint16_t op, const void *body,
                       uint32_t body_bytes) {
    pthread_mutex_lock(&client->channel_lock);
    int code = post(client, op, body, body_bytes, true, room);
    pthread_mutex_unlock(&client->channel_lock);
    return code;
}

int cw_channel_push(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes) {
    pthread_mutex_lock(&client->channel_lock);
    int code = post(client, op, body, body_bytes, false, NULL);
    pthread_mutex_unlock(&client->channel_lock);
    return code;
}

int cw_channel_await_room(cw_client *client, struct cw_interruptible *wait) {
    int code = cw_may_ask();
    if (code)
        return code;
    pthread_mutex_lock(&client->channel_lock);
    bool lost = cw_channel_drain(client) < 0 || cw_client_hung_up(client);
    bool came = !lost && nap(client, wait);
    pthread_mutex_unlock(&client->channel_lock);
    if (lost)
        return cw_client_lost(client);
    return cw_interruptible_over(wait, came)
               ? cw_fail(-EINTR, "a signal came while waiting for the broker")
               : 0;
}

int cw_channel_offer(cw_client *client, uint16_t op, const void *body, uint32_t body_bytes) {
    struct iovec part = {(void *)(uintptr_t)body, body_bytes};
    if (pthread_mutex_trylock(&client->channel_lock) != 0)
        return -EAGAIN; /* another thread may wait for room */
    int code = CW_LOAD(K3, &client->lost, relaxed) ? -ECONNRESET : 0;
    if (code == 0)
        code = cw_channel_write(client, op, ++client->channel.next_id, &part, 1);
    if (code == 0)
        cw_channel_ring(client);
    pthread_mutex_unlock(&client->channel_lock);
    return code;
}

/* How a wait ended: 0 (look again), -EINTR, -ETIMEDOUT. */
static int wait_as_follower(struct cw_call *call, int64_t left_ns) {
    bool quiet = cw_trace_sleeps_quietly(left_ns); /* without a limit SA_RESTART would restart it */
    left_ns = quiet ? CW_TRACE_QUIET_NS : left_ns < 0 ? (int64_t)CW_FAR_S * 1000000000 : left_ns;
    struct timespec limit = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
    long result = syscall(SYS_futex, &call->word, FUTEX_WAIT_PRIVATE, CALL_WAITS, &limit, NULL, 0);
    int code = result < 0 && (errno == EINTR || errno == ETIMEDOUT) ? -errno : 0;
    if (!quiet || code != -ETIMEDOUT)
        return code;
    cw_trace_slept_quietly();
    return 0;
}

/* Sleeps until the broker rings, dies, or the time is over. Enters and leaves with channel_lock
 * held.
 */
static int wait_as_receiver(cw_client *client, struct cw_call *call, int64_t left_ns) {
    struct cw_sleeper *self = &client->channel.replies.ring->consumer;
    cw_sleeper_announce(self);
    if (call_word(call) == CALL_DONE || cw_ring_has_record(&client->channel.replies)) {
        cw_sleeper_cancel(self);
        return 0;
    }
    pthread_mutex_unlock(&client->channel_lock);
    struct pollfd pollers[2] = {{.fd = client->bell, .events = POLLIN},
                                {.fd = client->sock, .events = POLLRDHUP}};
    int count = cw_socket_poll(pollers, 2, left_ns);
    int code = count < 0 ? -errno : count == 0 ? -ETIMEDOUT : 0;
    pthread_mutex_lock(&client->channel_lock);
    cw_sleeper_cancel(self);
    if (count > 0 && pollers[0].revents) {
        char rings[256];
        ssize_t got = read(client->bell, rings, sizeof rings);
        (void)got; /* non-blocking: however often it rang, the ring is looked at next */
    }
    if (count > 0 && pollers[1].revents && cw_channel_drain(client) >= 0 &&
        call_word(call) != CALL_DONE)
        cw_client_lost(client);
    return code;
}

/* Spins for the price of one wake-up while the broker runs on another core. channel_lock is held,
 * and given up between looks. */
static void spin(cw_client *client, struct cw_call *call) {
    /* W6: advice only. Unlike between clients a broker that sleeps now has just been rung: it wakes
     * where it last ran. */
    uint32_t core = CW_LOAD(W6, &client->root->broker.core, relaxed);
    if (core == 0 || core == (uint32_t)sched_getcpu() + 1)
        return;
    int64_t end_ns = cw_now_ns() + CW_SPIN_NS;
    while (call_word(call) == CALL_WAITS && cw_now_ns() < end_ns) {
        pthread_mutex_unlock(&client->channel_lock);
        for (int i = 0; i < 32; i++)
            CW_PAUSE();
        pthread_mutex_lock(&client->channel_lock);
        if (cw_channel_drain(client) < 0)
            return;
    }
}

/* The shorter of two times, of which -1 is for ever. */
static int64_t shorter(int64_t a_ns, int64_t b_ns) {
    return a_ns < 0 ? b_ns : b_ns < 0 || a_ns < b_ns ? a_ns : b_ns;
}

/* Waits for the reply. Enters and leaves with channel_lock held. until_ns: INT64_MAX for ever. 0
 * when done. */
static int call_wait(cw_client *client, struct cw_call *call, enum cw_call_mode mode,
                     struct cw_interruptible *wait, int64_t until_ns) {
    bool spun = false;
    for (;;) {
        if (cw_channel_drain(client) < 0)
            return cw_client_lost(client);
        if (call_word(call) == CALL_DONE)
            return 0;
        if (CW_LOAD(K3, &client->lost, relaxed))
            return cw_client_lost(client);
        int64_t left_ns = until_ns == INT64_MAX ? -1 : until_ns - cw_now_ns();
        if (until_ns != INT64_MAX && left_ns <= 0)
            return cw_fail(-ETIMEDOUT, "nothing came in time");
        left_ns = shorter(left_ns, cw_interruptible_left_ns(wait));
        int code;
        if (!client->channel.receiver || client->channel.receiver == call) {
            client->channel.receiver = call;
            if (!spun) {
                spun = true;
                spin(client, call);
                continue;
            }
            code = wait_as_receiver(client, call, left_ns);
        } else {
            pthread_mutex_unlock(&client->channel_lock);
            code = wait_as_follower(call, left_ns);
            pthread_mutex_lock(&client->channel_lock);
        }
        bool over = cw_interruptible_over(wait, code == -EINTR);
        if ((over || (code == -EINTR && !is_short(mode))) && call_word(call) != CALL_DONE)
            return cw_fail(-EINTR, "a signal came while waiting for the broker");
    }
}

/* The wait for an answer has ended, and the broker, which stands still, may yet do it. */
static int in_progress(void) {
    return cw_fail(-EINPROGRESS,
                   "the broker has the request and does not answer: it is stopped, or "
                   "hangs. It may yet be done: look before you repeat it");
}

/* Takes a request back at the broker and waits for what became of it: answered meanwhile, or
 * cancelled. A broker that does not answer is given CW_INTERRUPTIBLE_AFTER_NS; but one whose memory
 * is in use until then is waited for through any number of signals. */
static int call_cancel(cw_client *client, struct cw_call *call, enum cw_call_mode mode, int code) {
    struct cw_cancel cancel = {.id = call->id};
    char sentence[CW_DETAIL_MAX];
    strcpy(sentence, cw_detail());
    struct cw_deferred *none = NULL;
    int waited = post(client, CW_OP_CANCEL, &cancel, sizeof cancel, true, &none);
    if (waited == 0 && mode != CW_CALL_LOOK)
        do {
            struct cw_interruptible wait = {.begun_ns = cw_now_ns()};
            int64_t until_ns =
                mode == CW_CALL_HELD ? INT64_MAX : wait.begun_ns + CW_INTERRUPTIBLE_AFTER_NS;
            waited = call_wait(client, call, CW_CALL_SHORT, &wait, until_ns);
        } while (waited == -EINTR && mode == CW_CALL_HELD);
    if (waited == 0 && mode != CW_CALL_LOOK && call->status != -ECANCELED)
        return 0;
    if (waited == -ECONNRESET)
        return waited;
    if (waited && mode != CW_CALL_LOOK)
        return in_progress();
    return cw_fail(code, "%s", sentence);
}

static int ask(cw_client *client, uint16_t op, const struct iovec *parts, uint32_t count,
               void *reply, uint32_t *reply_bytes, enum cw_call_mode mode, int64_t timeout_ns) {
    struct cw_call call = {.reply = reply, .reply_room = reply_bytes ? *reply_bytes : 0};
    struct cw_interruptible wait = {.begun_ns = cw_now_ns()};
    int64_t until_ns = cw_end_ns(wait.begun_ns, timeout_ns), limited_ns = cw_socket_limited_ns();
    int code = cw_may_ask();
    if (code)
        return code;
    until_ns = is_short(mode) && limited_ns < until_ns ? limited_ns : until_ns;
    cw_trace_begin(wait.begun_ns);
    pthread_mutex_lock(&client->channel_lock);
    call.id = ++client->channel.next_id;
    code = write_request(client, op, call.id, parts, count, mode, &wait, until_ns);
    if (code == 0) {
        call_enter(client, &call);
        code = call_wait(client, &call, mode, &wait, until_ns);
        if (!is_short(mode) && (code == -EINTR || code == -ETIMEDOUT))
            code = call_cancel(client, &call, mode, code);
        else if (mode == CW_CALL_DEED && (code == -EINTR || code == -ETIMEDOUT))
            code = in_progress();
        else if (code == -ETIMEDOUT)
            code = cw_socket_too_late();
        call_leave(client, &call);
    }
    pthread_mutex_unlock(&client->channel_lock);
    if (code)
        return code;
    if (call.status < 0)
        return cw_fail(call.status, "%s", call.detail);
    if (reply_bytes)
        *reply_bytes = call.reply_bytes;
    return 0;
}

int cw_channel_call(cw_client *client, uint16_t op, const struct iovec *parts, uint32_t count,
                    void *reply, uint32_t *reply_bytes, enum cw_call_mode mode,
                    int64_t timeout_ns) {
    struct cw_trace_span span;
    cw_trace_enter_request(&span, op);
    int code = ask(client, op, parts, count, reply, reply_bytes, mode, timeout_ns);
    cw_trace_leave_wait(&span, timeout_ns, code);
    return code;
}

/* ---- one thread alone, which never waits ---- */

int cw_channel_send(cw_client *client, uint16_t op, const struct iovec *parts, uint32_t count,
                    uint64_t *id) {
    struct cw_sleeper *self = &client->channel.requests.ring->producer;
    int code = cw_channel_put(client, op, client->channel.next_id + 1, parts, count);
    if (code == -EAGAIN) { /* the broker rings when it has read something */
        cw_sleeper_announce(self);
        code = cw_channel_put(client, op, client->channel.next_id + 1, parts, count);
        if (code == 0)
            cw_sleeper_cancel(self);
    }
    if (code == 0)
        *id = ++client->channel.next_id;
    return code == 0 || code == -EAGAIN ? code : cw_client_lost(client);
}

int cw_channel_take(cw_client *client, cw_on_reply *on_reply, void *context) {
    struct cw_ring_consumer *replies = &client->channel.replies;
    uint32_t type, length;
    const void *payload;
    int code = cw_ring_peek(replies, &type, &payload, &length);
    if (code < 0)
        return cw_client_lost(client);
    if (code == 0)
        return 0;
    _Alignas(8) uint8_t copy[sizeof(struct cw_message) + CW_MESSAGE_MAX];
    struct cw_message head;
    if (length < sizeof head || length > sizeof copy)
        return cw_client_lost(client);
    memcpy(copy, payload, length);
    cw_ring_consume(replies);
    if (cw_sleeper_claim(&replies->ring->producer))
        ring_doorbell(client);
    memcpy(&head, copy, sizeof head);
    if (head.size_bytes != length)
        return cw_client_lost(client);
    on_reply(context, &head, copy + sizeof head, length - (uint32_t)sizeof head);
    return 1;
}

bool cw_channel_rest(cw_client *client) {
    struct cw_sleeper *self = &client->channel.replies.ring->consumer;
    cw_sleeper_announce(self);
    if (!cw_ring_has_record(&client->channel.replies))
        return true;
    cw_sleeper_cancel(self);
    return false;
}

void cw_channel_rise(cw_client *client) {
    cw_sleeper_cancel(&client->channel.replies.ring->consumer);
}
