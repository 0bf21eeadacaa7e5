/*
 * Channels: two rings between two processes, in memory that both have mapped (an array's, usually).
 *
 *   struct channel_head | bell of side 0 | bell of side 1 | ring 0 -> 1 | ring 1 -> 0
 *
 * Side s sends into ring s and receives from ring 1 - s. A receiver sleeps at its side's bell (its
 * own, or one that many channels share), a sender that finds the ring full sleeps on the ring's
 * producer word. Both spin first, while the other side runs on another core.
 *
 * A bell is a cw_bell (shm/wait.h), since several threads may sleep at one, and a word for rings
 * that carry no message.
 *
 * A dead peer leaves at most a set asleep (one system call for nobody) and whole records. Who waits
 * for a process watches that process too. What the peer wrote is checked where it is read
 * (-EPROTO).
 */
#include <stdlib.h>
#include <string.h>

#include "ipc/causeway.h"
#include "shm/error.h"
#include "shm/ring.h"

#define CHANNEL_MAGIC 0x6377636830303031ull /* "cwch0001" */

struct channel_head { /* 64 bytes, shared */
    uint64_t magic;
    uint64_t ring_bytes;
    uint64_t reserved[6];
};

struct bell { /* 64 bytes, shared; zeros are a bell */
    struct cw_bell sleepers;
    cw_a32 rung; /* cw_bell_ring() without anybody having seen it yet */
    uint32_t reserved0;
    uint64_t reserved[5];
};
_Static_assert(sizeof(struct channel_head) == 64 && sizeof(struct bell) == 64, "layout");

struct cw_channel {
    struct cw_ring_producer out;
    struct cw_ring_consumer in;
    struct bell *bell, *peer_bell;
    uint64_t ring_bytes;
};

static uint64_t ring_offset(uint64_t ring_bytes, int number) {
    return sizeof(struct channel_head) + 2 * sizeof(struct bell) +
           (uint64_t)number * cw_ring_size(ring_bytes);
}

static int check_ring_bytes(uint64_t ring_bytes) {
    if (ring_bytes < CW_RING_MIN_BYTES || ring_bytes > CW_RING_MAX_BYTES ||
        (ring_bytes & (ring_bytes - 1)))
        return cw_fail(-EINVAL, "a ring has a power of two of bytes, from %u to %u, not %llu",
                       CW_RING_MIN_BYTES, CW_RING_MAX_BYTES, (unsigned long long)ring_bytes);
    return 0;
}

static int check_memory(const void *memory, uint64_t memory_bytes, uint64_t ring_bytes) {
    int code = check_ring_bytes(ring_bytes);
    if (code)
        return code;
    if (!memory || (uintptr_t)memory % 64)
        return cw_fail(-EINVAL, "a channel's memory begins at a multiple of 64");
    if (memory_bytes < cw_channel_bytes(ring_bytes))
        return cw_fail(-EINVAL, "a channel with rings of %llu bytes takes %llu, %llu were given",
                       (unsigned long long)ring_bytes,
                       (unsigned long long)cw_channel_bytes(ring_bytes),
                       (unsigned long long)memory_bytes);
    return 0;
}

uint64_t cw_channel_bytes(uint64_t ring_bytes) {
    return ring_offset(ring_bytes, 2);
}

int cw_channel_format(void *memory, uint64_t memory_bytes, uint64_t ring_bytes) {
    int code = check_memory(memory, memory_bytes, ring_bytes);
    if (code)
        return code;
    uint8_t *bytes = memory;
    memset(bytes, 0, ring_offset(ring_bytes, 0));
    for (int i = 0; i < 2; i++)
        cw_ring_init((struct cw_ring *)(void *)(bytes + ring_offset(ring_bytes, i)), ring_bytes);
    *(struct channel_head *)memory =
        (struct channel_head){.magic = CHANNEL_MAGIC, .ring_bytes = ring_bytes};
    return 0;
}

int cw_channel_open(void *memory, uint64_t memory_bytes, uint64_t ring_bytes, int side, void *bell,
                    void *peer_bell, cw_channel **out) {
    int code = check_memory(memory, memory_bytes, ring_bytes);
    if (code)
        return code;
    if (!out || (side != 0 && side != 1))
        return cw_fail(-EINVAL, "a channel has the sides 0 and 1, %d was asked for", side);
    struct channel_head head = *(const volatile struct channel_head *)memory;
    if (head.magic != CHANNEL_MAGIC || head.ring_bytes != ring_bytes)
        return cw_fail(-EPROTO, "the memory is not formatted as a channel with rings of %llu bytes",
                       (unsigned long long)ring_bytes);
    cw_channel *channel = calloc(1, sizeof *channel);
    if (!channel)
        return cw_fail(-EDQUOT, "no memory for a channel");
    uint8_t *bytes = memory;
    struct bell *bells = (struct bell *)(void *)(bytes + sizeof(struct channel_head));
    channel->ring_bytes = ring_bytes;
    channel->bell = bell ? bell : &bells[side];
    channel->peer_bell = peer_bell ? peer_bell : &bells[1 - side];
    cw_ring_producer_init(&channel->out,
                          (struct cw_ring *)(void *)(bytes + ring_offset(ring_bytes, side)),
                          ring_bytes);
    cw_ring_consumer_init(&channel->in,
                          (struct cw_ring *)(void *)(bytes + ring_offset(ring_bytes, 1 - side)),
                          ring_bytes);
    *out = channel;
    return 0;
}

static void end_message(cw_channel *channel) {
    if (channel->in.advance == 0)
        return;
    cw_ring_consume(&channel->in);
    cw_sleeper_wake(&channel->in.ring->producer);
}

void cw_channel_close(cw_channel *channel) {
    if (channel)
        end_message(channel);
    free(channel);
}

uint32_t cw_channel_max(const cw_channel *channel) {
    return cw_ring_max_payload(channel->ring_bytes);
}

/* ---- bells ---- */

void cw_bell_ring(void *memory) {
    struct bell *bell = memory;
    /* C1: the condition of those that wait for a ring; pairs with C3. Who reads the bell's number
     * before it moves (W11) does not sleep, who reads it after sees this. */
    CW_STORE(C1, &bell->rung, 1, release);
    /* Whoever noticed a death rings here: the dead may have cleared the word without waking. */
    cw_bell_rouse(&bell->sleepers);
}

/* Was it rung? One waiter gets each ring. */
static bool bell_rung(struct bell *bell) {
    /* C2: saves the exchange where nothing rang. C3: what came before the ring is seen; pairs with
     * C1. */
    return CW_LOAD(C2, &bell->rung, relaxed) && CW_XCHG(C3, &bell->rung, 0, acquire);
}

/* 0: woken, the number had moved, or the time is over: the caller looks. */
static int bell_sleep(struct bell *bell, uint32_t rings, int64_t left_ns) {
    if (cw_bell_sleep(&bell->sleepers, rings, left_ns) == -EINTR)
        return cw_fail(-EINTR, "a signal came while waiting for a message");
    return 0;
}

static int64_t end_of(int64_t timeout_ns) {
    return timeout_ns < 0 ? -1 : cw_now_ns() + timeout_ns;
}

/* Time left until end_ns; -1 for ever. -ETIMEDOUT when there is none. */
static int time_left(int64_t end_ns, int64_t *left_ns) {
    *left_ns = end_ns < 0 ? -1 : end_ns - cw_now_ns();
    if (end_ns >= 0 && *left_ns <= 0)
        return cw_fail(-ETIMEDOUT, "the time ran out");
    return 0;
}

/* ---- messages ---- */

int cw_channel_send(cw_channel *channel, uint32_t type, const void *data, uint32_t size_bytes,
                    int64_t timeout_ns) {
    struct cw_ring_producer *out = &channel->out;
    if (type == CW_RING_PADDING)
        return cw_fail(-EINVAL, "the message type 0x%x is the ring's own", type);
    int code = cw_ring_write(out, type, data, size_bytes);
    if (code == -EAGAIN) {
        struct cw_sleeper *self = &out->ring->producer;
        int64_t end_ns = end_of(timeout_ns), left_ns;
        while ((code = cw_ring_write(out, type, data, size_bytes)) == -EAGAIN) {
            code = time_left(end_ns, &left_ns);
            if (code)
                return code;
            cw_sleeper_announce(self);
            if (!cw_ring_has_room(out, size_bytes) && cw_sleeper_sleep(self, left_ns) == -EINTR) {
                cw_sleeper_cancel(self);
                return cw_fail(-EINTR, "a signal came while waiting for room");
            }
            cw_sleeper_cancel(self);
        }
    }
    if (code)
        return code;
    cw_bell_wake(&channel->peer_bell->sleepers);
    return 0;
}

/* Spins while the other side runs on another core. True: a message is there. */
static bool spin_for_message(cw_channel *channel) {
    cw_sleeper_here(&channel->bell->sleepers.sleeper);
    if (!cw_sleeper_spin_pays(&channel->peer_bell->sleepers.sleeper))
        return false;
    int64_t end_ns = cw_now_ns() + CW_SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (cw_ring_has_record(&channel->in))
                return true;
            CW_PAUSE();
        }
    } while (cw_now_ns() < end_ns);
    return false;
}

int cw_channel_recv(cw_channel *channel, int64_t timeout_ns, uint32_t *type, const void **data,
                    uint32_t *size_bytes) {
    end_message(channel);
    int code = cw_ring_peek(&channel->in, type, data, size_bytes);
    if (code == 0 && timeout_ns != 0 && spin_for_message(channel))
        code = cw_ring_peek(&channel->in, type, data, size_bytes);
    if (code)
        return code < 0 ? code : 0;
    int64_t end_ns = end_of(timeout_ns), left_ns;
    for (;;) {
        code = cw_ring_peek(&channel->in, type, data, size_bytes);
        if (code)
            return code < 0 ? code : 0;
        code = time_left(end_ns, &left_ns);
        if (code)
            return code;
        uint32_t rings = cw_bell_announce(&channel->bell->sleepers);
        if (!cw_ring_has_record(&channel->in))
            code = bell_sleep(channel->bell, rings, left_ns);
        if (code)
            return code;
    }
}

/* Is a message there (or damage, which the receive will report)? What looks like a record may be
 * padding alone, whose message is not yet published: so the record is looked at, and not given out.
 */
static bool is_ready(cw_channel *channel) {
    uint32_t type, size_bytes;
    const void *data;
    if (!cw_ring_has_record(&channel->in))
        return false;
    int code = cw_ring_peek(&channel->in, &type, &data, &size_bytes);
    channel->in.advance = 0;
    return code != 0;
}

/* Index of a channel with a message that is not given out yet, or -1. */
static int first_ready(cw_channel *const *channels, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (is_ready(channels[i]))
            return (int)i;
    return -1;
}

static bool any_spin_pays(cw_channel *const *channels, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (cw_sleeper_spin_pays(&channels[i]->peer_bell->sleepers.sleeper))
            return true;
    return false;
}

int cw_channels_wait(cw_channel *const *channels, uint32_t count, void *memory,
                     int64_t timeout_ns) {
    struct bell *bell = memory;
    if (!bell || count > INT32_MAX)
        return cw_fail(-EINVAL, "a bell is needed, NULL was given");
    for (uint32_t i = 0; i < count; i++)
        end_message(channels[i]);
    int64_t end_ns = end_of(timeout_ns), left_ns, spin_end_ns = 0;
    cw_sleeper_here(&bell->sleepers.sleeper);
    if (timeout_ns != 0 && any_spin_pays(channels, count))
        spin_end_ns = cw_now_ns() + CW_SPIN_NS;
    for (;;) {
        int ready = first_ready(channels, count);
        if (ready >= 0)
            return ready;
        if (bell_rung(bell))
            return -EAGAIN;
        if (spin_end_ns && cw_now_ns() < spin_end_ns) {
            CW_PAUSE();
            continue;
        }
        int code = time_left(end_ns, &left_ns);
        if (code)
            return code;
        uint32_t rings = cw_bell_announce(&bell->sleepers);
        if ((ready = first_ready(channels, count)) >= 0)
            return ready;
        if (bell_rung(bell))
            return -EAGAIN;
        code = bell_sleep(bell, rings, left_ns);
        if (code)
            return code;
    }
}
