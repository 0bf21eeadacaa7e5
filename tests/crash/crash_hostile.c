/*
 * Hostile clients, in what they write: garbage in the ring, messages that lie about sizes, offsets,
 * slabs and blocks, positions that lie, tables full of nonsense or of holes, doorbells turned
 * against the broker, a client that reads nothing or is stopped. Each is answered with an error or
 * dropped; a neighbour beside it goes on within a bounded time, and nothing of it is left.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/crash/support/hostile.h"

static struct raw_client client;
static struct chance chance;

static bool come(void) {
    return raw_connect(&hostile_broker, &client) == 0;
}

static cw_a64 *request_words(void) {
    return (cw_a64 *)(void *)cw_session_requests(client.session_segment.base)->records;
}

static void knock(void) {
    uint64_t one = 1;
    if (write(client.doorbell, &one, sizeof one) < 0)
        return;
}

/* ---- the ring ---- */

static int garbage_in_the_ring(void) {
    chance = chance_init(1);
    for (int round = 0; round < 60; round++) {
        ACT(come());
        for (uint64_t i = 0; i < CW_CHANNEL_BYTES / 8; i++)
            atomic_store(&request_words()[i], chance_next(&chance) | 1);
        knock();
        ACT(raw_dropped(&client));
        raw_close(&client);
    }
    return 0;
}

static int headers_that_cannot_be(void) {
    const uint64_t words[] = {1ull << 32,
                              ((uint64_t)CW_OP_PING << 32) | UINT32_MAX,
                              ((uint64_t)CW_OP_PING << 32) | (CW_CHANNEL_BYTES / 4 + 2),
                              ((uint64_t)CW_RING_PADDING << 32) | 1,
                              ((uint64_t)CW_RING_PADDING << 32) | UINT32_MAX,
                              UINT64_MAX};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ACT(come());
        atomic_store(&request_words()[0], words[i]);
        knock();
        ACT(raw_dropped(&client));
        raw_close(&client);
    }
    return 0;
}

/* A record that is whole for the ring, and a message in it that is not what it says. */
static bool send_a_lie(void) {
    uint8_t bytes[600];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(chance_below(&chance, 3) ? 0 : chance_next(&chance));
    uint32_t length = (uint32_t)chance_below(&chance, sizeof bytes);
    uint32_t type = (uint32_t)(chance_below(&chance, 8) ? 28 + chance_below(&chance, 20)
                                                        : chance_next(&chance) >> 33);
    struct cw_message head = {
        .size_bytes = (uint32_t)(length - chance_below(&chance, 2) * chance_below(&chance, 40)),
        .op = (uint16_t)(chance_below(&chance, 8) ? type : chance_next(&chance)),
        .flags = (uint16_t)(chance_below(&chance, 8) == 0),
        .id = chance_next(&chance)};
    if (head.op == CW_OP_STOP) /* any client may ask the broker to end */
        head.op = (uint16_t)(type = CW_OP_PING);
    if (length >= sizeof head && chance_below(&chance, 10))
        memcpy(bytes, &head, sizeof head);
    return cw_ring_write(&client.requests, type, bytes, length) == 0;
}

/* A dropped session ends with its process: each batch is a process of its own. */
static int lie_batch(void *number) {
    chance = chance_init(100 + *(uint64_t *)number);
    for (int round = 0; round < 40; round++) {
        ACT(come());
        ACT(send_a_lie());
        knock();
        struct raw_mail mail;
        /* Answered, or dropped, or (a request without reply) neither. */
        if (raw_post(&client, CW_OP_PING, 7777, NULL, 0) == 0)
            ACT(raw_reply(&client, &mail, RAW_TIMEOUT_MS) >= 0);
        raw_close(&client);
    }
    return 0;
}

static int messages_that_lie(void) {
    for (uint64_t batch = 0; batch < 25; batch++)
        ACT(in_child(lie_batch, &batch) == 0);
    return 0;
}

static int positions_that_lie(void) {
    const uint64_t heads[] = {8, 1, 1ull << 40, UINT64_MAX, UINT64_MAX - 7, 4096};
    struct raw_mail mail;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        ACT(come());
        struct cw_ring *replies = cw_session_replies(client.session_segment.base);
        /* As many replies as fit: then the broker has to look at the position. */
        atomic_store(&replies->head, heads[i]);
        for (int n = 0; n < 8000; n++) {
            struct cw_message head = {
                .size_bytes = sizeof head, .op = CW_OP_PING, .id = (uint64_t)n + 1};
            if (cw_ring_write(&client.requests, CW_OP_PING, &head, sizeof head) == 0)
                continue;
            knock();
            struct pollfd poller = {.fd = client.sock, .events = POLLRDHUP};
            if (poll(&poller, 1, 2) > 0)
                break;
        }
        (void)raw_receive(client.sock, &mail, 10);
        raw_close(&client);
    }
    return 0;
}

/* The whole session segment is written over, all the time, while requests are made. */
static int a_session_scribbled_over(void) {
    chance = chance_init(3);
    for (int round = 0; round < 20; round++) {
        ACT(come());
        cw_a64 *words = client.session_segment.base;
        for (int i = 0; i < 300000; i++) {
            atomic_store_explicit(&words[chance_below(&chance, CW_SESSION_BYTES / 8)],
                                  chance_below(&chance, 4) ? 0 : chance_next(&chance),
                                  memory_order_relaxed);
            if (i % 3000 == 0)
                knock();
        }
        raw_close(&client);
    }
    return 0;
}

static int a_session_punched_full_of_holes(void) {
    for (int round = 0; round < 20; round++) {
        ACT(come());
        struct raw_mail mail;
        ACT(raw_call(&client, CW_OP_PING, NULL, 0, &mail) == 0);
        /* The descriptor is ours still; madvise on the mapping does the same without one. */
        ACT(madvise(client.session_segment.base, CW_SESSION_BYTES / CW_PAGE * CW_PAGE,
                    MADV_REMOVE) == 0);
        knock();
        usleep(1000);
        raw_close(&client);
    }
    return 0;
}

/* ---- what is said ---- */

/* Numbers that are not ours, do not exist or cannot be. Errors, and we are not even dropped. */
static int lies_about_slabs_and_blocks(void) {
    ACT(come());
    struct raw_slab slab;
    ACT(raw_slab_add(&client, 1 << 20, 16, &slab) == 0);
    uint64_t gen = raw_carve(&client, &slab, 3, 4096, 4096);
    ACT(raw_put(&client, slab.id, 3, gen + 1, 4096, "evil", 0) < 0);
    ACT(raw_put(&client, slab.id, 4, gen, 4096, "evil", 0) < 0);
    ACT(raw_put(&client, slab.id, 16, gen, 4096, "evil", 0) < 0);
    ACT(raw_put(&client, slab.id, UINT32_MAX, gen, 4096, "evil", 0) < 0);
    ACT(raw_put(&client, slab.id + 100, 3, gen, 4096, "evil", 0) < 0);
    ACT(raw_put(&client, 0, 3, gen, 4096, "evil", 0) < 0);
    ACT(raw_put(&client, UINT32_MAX, 3, gen, 4096, "evil", 0) < 0);
    ACT(raw_put(&client, slab.id, 3, gen, 4097, "evil", 0) < 0);
    ACT(raw_put(&client, slab.id, 3, gen, UINT64_MAX, "evil", 0) < 0);
    /* another's block: named, dropped, held as we like, it must stay what it was */
    for (uint32_t id = 1; id < 8; id++)
        for (uint32_t block = 0; block < 8; block++) {
            raw_drop(&client, id, block, 0);
            raw_drop(&client, id, block, UINT64_MAX);
            raw_transit_end(&client, (uint64_t)id << 32 | block);
            if (id != slab.id) {
                struct cw_slab_request request = {.slab = id};
                ACT(raw_post(&client, CW_OP_SLAB_CLOSE, 9, &request, sizeof request) == 0);
            }
        }
    ACT(raw_ping(&client) == 0);
    ACT(raw_put(&client, slab.id, 3, gen, 4096, "fair", 0) == 0);
    ACT(raw_remove(&client, "fair") == 0);
    ACT(raw_remove(&client, "evil") == -ENOENT);
    return 0;
}

static int slabs_that_cannot_be(void) {
    const struct cw_slab_info infos[] = {
        {.device_kind = 0, .size_bytes = 8192, .blocks = 16},
        {.device_kind = 99, .size_bytes = 8192, .blocks = 16},
        {.device_kind = CW_DEVICE_HOST, .size_bytes = 0, .blocks = 16},
        {.device_kind = CW_DEVICE_HOST, .size_bytes = UINT64_MAX, .blocks = 16},
        {.device_kind = CW_DEVICE_HOST, .size_bytes = 1ull << 50, .blocks = 16},
        {.device_kind = CW_DEVICE_HOST, .size_bytes = 8192, .blocks = 0},
        {.device_kind = CW_DEVICE_HOST, .size_bytes = 8192, .blocks = UINT32_MAX},
        {.device_kind = CW_DEVICE_HOST, .size_bytes = 8192, .blocks = 17 << 10},
        {.device_kind = CW_DEVICE_HOST, .size_bytes = 8192, .blocks = 16, .flags = 0xffff},
    };
    struct raw_mail mail;
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++) {
        struct raw_slab slab;
        ACT(come());
        raw_slab_make(8192, 16, &slab);
        int fds[2] = {slab.data.fd, slab.table_segment.fd};
        int status =
            raw_exchange(&client, CW_OP_SLAB_ADD, &infos[i], sizeof infos[i], fds, 2, &mail);
        if (status == 0)
            printf("# slab description %zu was taken\n", i);
        ACT(status < 0);
        raw_mail_close(&mail);
        raw_slab_close(&slab);
        raw_close(&client);
    }
    return 0;
}

/* Our own block table and lease table say anything. */
static int nonsense(void) {
    chance = chance_init(4);
    ACT(come());
    struct raw_slab slab;
    ACT(raw_slab_add(&client, 4 << 20, 64, &slab) == 0);
    for (uint32_t block = 0; block < 32; block++) {
        char name[32];
        snprintf(name, sizeof name, "nonsense/%u", block);
        uint64_t gen = raw_carve(&client, &slab, block, block * 4096, 4096);
        ACT(raw_put(&client, slab.id, block, gen, 4096, name, 0) == 0);
    }
    for (int i = 0; i < 3000; i++) {
        cw_a64 *words = (cw_a64 *)slab.table + chance_below(&chance, (128 + 64 * 64) / 8);
        atomic_store(words, chance_next(&chance) >> chance_below(&chance, 64));
        atomic_store(&client.leases->slots[chance_below(&chance, CW_LEASE_TABLE_SLOTS)],
                     chance_next(&chance) >> chance_below(&chance, 64));
        char name[32];
        snprintf(name, sizeof name, "nonsense/%u", (unsigned)chance_below(&chance, 32));
        if (i % 400 == 0)
            (void)raw_remove(&client, name);
        raw_drop(&client, slab.id, (uint32_t)chance_below(&chance, 64), 0);
    }
    return raw_ping(&client);
}

static int tables_of_nonsense(void) {
    ACT(nonsense() == 0);
    for (unsigned block = 0; block < 32; block++) {
        char name[32];
        snprintf(name, sizeof name, "nonsense/%u", block);
        (void)raw_remove(&client, name);
    }
    return 0;
}

static int tables_full_of_holes(void) {
    ACT(come());
    struct raw_slab slab;
    ACT(raw_slab_add(&client, 1 << 20, 256, &slab) == 0);
    uint64_t gen = raw_carve(&client, &slab, 200, 0, 4096);
    ACT(raw_put(&client, slab.id, 200, gen, 4096, "hollow", 0) == 0);
    ACT(madvise(slab.table, slab.table_segment.size_bytes, MADV_REMOVE) == 0);
    ACT(madvise(client.leases, sizeof *client.leases, MADV_REMOVE) == 0);
    raw_drop(&client, slab.id, 200, gen);
    ACT(raw_ping(&client) == 0);
    ACT(raw_remove(&client, "hollow") == 0);
    return 0;
}

static int leave_nonsense(void *unused) {
    (void)unused;
    return nonsense();
}

/* The dead one's slab stands, since some of its names do, and is adopted by who needs memory. */
static void a_slab_with_a_table_of_nonsense_is_adopted(void **state) {
    (void)state;
    assert_int_equal(in_child(leave_nonsense, NULL), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_GROW), 0);
        assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE), 0);
    }
    assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_SWEEP), 0);
    assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_GROW), 0);
    assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE), 0);
    assert_true(world_alive(&hostile_world));
}

/* ---- waiting and waking ---- */

/* The eventfd and the pipe are shared with the broker: what is done to them must not block it. */
static int bells_turned_against_the_broker(void) {
    ACT(come());
    struct cw_ring *replies = cw_session_replies(client.session_segment.base);
    struct raw_mail mail;
    char path[64], full[4096];
    uint64_t most = UINT64_MAX - 1;
    memset(full, 0, sizeof full);
    ACT(fcntl(client.bell, F_SETFL, 0) == 0); /* blocking, for whoever shares it */
    snprintf(path, sizeof path, "/proc/self/fd/%d", client.bell);
    int writer = open(path, O_WRONLY | O_NONBLOCK);
    while (writer >= 0 && write(writer, full, sizeof full) > 0)
        ;
    for (uint64_t i = 1; i <= 100; i++) {
        struct cw_message head = {.size_bytes = sizeof head, .op = CW_OP_PING, .id = i};
        uint64_t count;
        atomic_store(&replies->consumer.asleep, 1); /* so that it rings us */
        ACT(cw_ring_write(&client.requests, CW_OP_PING, &head, sizeof head) == 0);
        ACT(fcntl(client.doorbell, F_SETFL, O_NONBLOCK) == 0);
        if (i % 2 && read(client.doorbell, &count, sizeof count) < 0) /* away before it is read */
            ACT(errno == EAGAIN);
        if (write(client.doorbell, &most, sizeof most) < 0) /* full */
            ACT(errno == EAGAIN);
        ACT(fcntl(client.doorbell, F_SETFL, 0) == 0); /* a broker that read it would now block */
        ACT(raw_reply(&client, &mail, RAW_TIMEOUT_MS) >= 0);
    }
    return 0;
}

static int reads_no_replies(void) {
    ACT(come());
    for (uint64_t i = 0;; i++) {
        struct cw_message head = {.size_bytes = sizeof head, .op = CW_OP_PING, .id = i + 1};
        int code = cw_ring_write(&client.requests, CW_OP_PING, &head, sizeof head);
        knock();
        if (code == -EAGAIN && (usleep(20000), true) &&
            !cw_ring_has_room(&client.requests, sizeof head))
            break; /* both rings are full: the broker waits for us, and for nobody else */
    }
    return 0;
}

static int stopped_with_full_rings(void) {
    int code = reads_no_replies();
    if (code)
        return code;
    raise(SIGSTOP);
    return 0;
}

/* Slabs are asked for again and again, and the answers with their descriptors never read. */
static int reads_nothing_of_its_socket(void) {
    ACT(come());
    struct raw_slab slab;
    ACT(raw_slab_add(&client, 1 << 16, 16, &slab) == 0);
    struct cw_slab_request request = {.slab = slab.id};
    struct {
        struct cw_message head;
        struct cw_slab_request request;
    } message = {{.size_bytes = sizeof message, .op = CW_OP_SLAB_OPEN, .id = 1}, request};
    uint64_t dropped = hostile_dropped();
    for (int i = 0; i < 3000 && hostile_dropped() == dropped; i++) {
        struct pollfd poller = {.fd = client.sock, .events = POLLOUT};
        poll(&poller, 1, 10);
        if (send(client.sock, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
            errno != EAGAIN)
            break;
    }
    ACT(WORLD_UNTIL(hostile_dropped() > dropped, 5000));
    return 0;
}

/* ---- limits ---- */

static int too_much_of_everything(void) {
    ACT(come());
    struct raw_slab slab;
    ACT(raw_slab_add(&client, 1 << 16, 16, &slab) == 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    struct raw_mail mail;
    for (int i = 0; i < 70000; i++) /* one client's limit is 65,536 */
        (void)raw_transit_begin(&client, slab.id, 0, gen);
    ACT(raw_ping(&client) == 0 || raw_dropped(&client));
    raw_close(&client);
    ACT(come());
    uint8_t body[300];
    uint32_t length = raw_key("never", body);
    bool refused = false;
    for (int i = 0; i < 1100 && !refused; i++) {
        ACT(raw_post(&client, CW_OP_WAIT, (uint64_t)i + 50000, body, length) == 0);
        int code = raw_reply(&client, &mail, i < 1024 ? 0 : 200);
        refused = code == 1 && mail.head.status == -EDQUOT;
    }
    ACT(refused);
    return 0;
}

static void test(void **state) {
    hostile_run((int (*)(void))(uintptr_t)*state, 30000);
}

static void test_stopped(void **state) {
    hostile_run_until_stopped((int (*)(void))(uintptr_t)*state);
}

#define HOSTILE(act)                                                                               \
    { #act, test, NULL, NULL, (void *)(uintptr_t)(act) }
#define HOSTILE_STOPPED(act)                                                                       \
    { #act, test_stopped, NULL, NULL, (void *)(uintptr_t)(act) }

int main(void) {
    const struct CMUnitTest tests[] = {
        HOSTILE(garbage_in_the_ring),
        HOSTILE(headers_that_cannot_be),
        HOSTILE(messages_that_lie),
        HOSTILE(positions_that_lie),
        HOSTILE(a_session_scribbled_over),
        HOSTILE(a_session_punched_full_of_holes),
        HOSTILE(lies_about_slabs_and_blocks),
        HOSTILE(slabs_that_cannot_be),
        HOSTILE(tables_of_nonsense),
        HOSTILE(tables_full_of_holes),
        HOSTILE(bells_turned_against_the_broker),
        HOSTILE(reads_no_replies),
        HOSTILE_STOPPED(stopped_with_full_rings),
        HOSTILE(reads_nothing_of_its_socket),
        HOSTILE(too_much_of_everything),
        cmocka_unit_test(a_slab_with_a_table_of_nonsense_is_adopted),
    };
    return cmocka_run_group_tests(tests, hostile_set_up, hostile_tear_down);
}
