/*
 * Hostile clients: whatever one client does, it is dropped or refused, and the others notice
 * nothing. Each test ends with a look at an honest client beside it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define SLAB_BYTES (1u << 20)

static struct raw_mail mail;
static struct raw_broker broker;
static struct raw_client honest; /* beside each hostile one */
static struct raw_slab honest_slab;
static uint64_t honest_gen;

static int start(void **state) {
    (void)state;
    if (!raw_broker_start(&broker, NULL, NULL) || raw_connect(&broker, &honest) != 0 ||
        raw_slab_add(&honest, SLAB_BYTES, 64, &honest_slab) != 0)
        return -1;
    honest_gen = raw_carve(&honest, &honest_slab, 0, 0, 4096);
    return raw_put(&honest, honest_slab.id, 0, honest_gen, 4096, "honest", 0);
}

static int finish(void **state) {
    (void)state;
    struct cw_block_ref ref = {.slab = honest_slab.id, .block = 0, .gen = honest_gen};
    bool well = raw_broker_reap(&broker, 0) == -1 && raw_ping(&honest) == 0 &&
                raw_call(&honest, CW_OP_HOLDERS, &ref, sizeof ref, &mail) == 0 &&
                raw_remove(&honest, "honest") == 0;
    if (!well)
        print_error("broker: %s\n", raw_broker_said(&broker));
    raw_slab_close(&honest_slab);
    raw_close(&honest);
    raw_broker_remove(&broker);
    return well ? 0 : -1;
}

static struct raw_client client_open(void) {
    struct raw_client client;
    assert_int_equal(raw_connect(&broker, &client), 0);
    return client;
}

static void assert_dropped(struct raw_client *client, const char *why) {
    if (!raw_dropped(client))
        fail_msg("it was not dropped for: %s", why);
    if (!strstr(client->sentence, why))
        fail_msg("dropped for \"%s\", not for \"%s\"", client->sentence, why);
    raw_close(client);
    assert_int_equal(raw_ping(&honest), 0);
}

/* A record in the ring as the bytes are. */
static void write_record(struct raw_client *client, uint32_t type, const void *bytes,
                         uint32_t length) {
    assert_int_equal(cw_ring_write(&client->requests, type, bytes, length), 0);
    raw_ring(client);
}

static void records_that_cannot_be_drop_their_client(void **state) {
    (void)state;
    static const uint64_t words[] = {
        1ull << 32,    /* a type, and no length */
        0xffffffffull, /* longer than the ring */
        (uint64_t)CW_OP_PING << 32 | (CW_CHANNEL_BYTES / 4 + 2),
        0xffffffffull << 32 | 9, /* padding that does not reach the end */
    };
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        struct raw_client client = client_open();
        CW_STORE(R1, (cw_a64 *)(void *)client.requests.ring->records, words[i], seq_cst);
        raw_ring(&client);
        assert_dropped(&client, "what is no record");
    }
}

static void requests_of_wrong_form_drop_their_client(void **state) {
    (void)state;
    struct {
        struct cw_message head;
        union {
            struct cw_put put;
            struct cw_key key;
            struct cw_block_ref ref;
            uint8_t bytes[9000];
        } body;
    } message;
    for (int i = 0; i < 12; i++) {
        struct raw_client client = client_open();
        uint32_t type = CW_OP_PUT, length = sizeof message.head + sizeof message.body.put;
        memset(&message, 0, sizeof message);
        message.head = (struct cw_message){.size_bytes = length, .op = CW_OP_PUT, .id = 5};
        switch (i) {
        case 0: /* lengths of key and meta that are not there */
            message.body.put.key_bytes = 100;
            break;
        case 1:
            message.body.put.meta_bytes = 65535;
            message.body.put.key_bytes = 65535;
            break;
        case 2: /* unknown flags */
            message.body.put.flags = 0x80;
            break;
        case 3: /* the header's size is another than the record's */
            message.head.size_bytes++;
            break;
        case 4:
            type = CW_OP_PING;
            break;
        case 5: /* no such request */
            type = message.head.op = 999;
            break;
        case 6: /* a request of the socket */
            type = message.head.op = CW_OP_SLAB_ADD;
            break;
        case 7: /* shorter than a header */
            length = message.head.size_bytes = 8;
            break;
        case 8: /* longer than any message */
            length = message.head.size_bytes = sizeof message.head + 8200;
            break;
        case 9:
            message.head.flags = 1;
            break;
        case 10: /* a token of another session */
            type = message.head.op = CW_OP_TRANSIT_BEGIN;
            length = message.head.size_bytes = sizeof message.head + sizeof message.body.ref;
            message.body.ref.token = (uint64_t)honest.session << 32 | 1;
            break;
        default:
            type = message.head.op = CW_OP_WAIT;
            length = message.head.size_bytes = sizeof message.head + sizeof message.body.key;
            message.body.key.key_bytes = UINT32_MAX;
        }
        write_record(&client, type, &message, length);
        assert_dropped(&client, "request");
    }
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_dropped) == 12));
}

static void datagrams_of_wrong_form_drop_their_client(void **state) {
    (void)state;
    static uint8_t bytes[CW_MESSAGE_MAX + 100];
    int fds[8];
    for (int i = 0; i < 8; i++)
        fds[i] = honest.sock;
    for (int i = 0; i < 6; i++) {
        struct raw_client client = client_open();
        struct cw_message head = {.size_bytes = sizeof head, .op = CW_OP_LEASE_TABLE, .id = 1};
        memset(bytes, 0, sizeof bytes);
        size_t length = sizeof head;
        uint32_t fd_count = 0;
        const char *why = "header";
        if (i == 0)
            length = 7;
        if (i == 1)
            length = sizeof bytes, why = "longer";
        if (i == 2)
            head.size_bytes = 4000;
        if (i == 3)
            fd_count = 8, why = "descriptors";
        if (i == 4)
            head.op = CW_OP_PING, why = "no request of the socket";
        if (i == 5)
            head.op = CW_OP_SLAB_ADD, why = "body";
        memcpy(bytes, &head, sizeof head);
        assert_int_equal(raw_send(client.sock, bytes, length, fds, fd_count), 0);
        assert_dropped(&client, why);
    }
}

static int slab_offer(struct raw_client *client, const struct cw_slab_info *info, int data,
                      int table) {
    int fds[2] = {data, table};
    return raw_exchange(client, CW_OP_SLAB_ADD, info, sizeof *info, fds, 2, &mail);
}

static void slabs_that_lie_are_refused(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    int ends[2], null = open("/dev/null", O_RDWR), unsealed = memfd_create("x", 0);
    int huge = memfd_create("h", MFD_HUGETLB | MFD_ALLOW_SEALING);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(ftruncate(unsealed, SLAB_BYTES), 0);
    raw_slab_make(SLAB_BYTES, 16, &slab);
    const struct cw_slab_info good = {
        .device_kind = CW_DEVICE_HOST, .size_bytes = SLAB_BYTES, .blocks = 16};
    struct cw_slab_info info = good;
    int data = slab.data.fd, table = slab.table_segment.fd;
    assert_int_equal(slab_offer(&client, &info, null, table), -EINVAL);
    assert_int_equal(slab_offer(&client, &info, ends[0], table), -EINVAL);
    assert_int_equal(slab_offer(&client, &info, unsealed, table), -EINVAL);
    assert_int_equal(slab_offer(&client, &info, data, null), -EPROTO);
    assert_int_equal(slab_offer(&client, &info, data, unsealed), -EPROTO);
    assert_int_equal(slab_offer(&client, &info, data, data), -EPROTO);
    if (huge >= 0)
        assert_int_equal(slab_offer(&client, &info, data, huge), -EPROTO);
    info.size_bytes = SLAB_BYTES * 2ull;
    assert_int_equal(slab_offer(&client, &info, data, table), -EINVAL);
    info.size_bytes = UINT64_MAX;
    assert_int_equal(slab_offer(&client, &info, data, table), -EINVAL);
    info = good;
    info.blocks = 17;
    assert_true(slab_offer(&client, &info, data, table) < 0);
    info.blocks = UINT32_MAX;
    assert_int_equal(slab_offer(&client, &info, data, table), -EINVAL);
    info = good;
    info.device_kind = 7;
    assert_int_equal(slab_offer(&client, &info, data, table), -EINVAL);
    info.device_kind = CW_DEVICE_CUDA; /* memory is not a GPU's descriptor */
    info.device_uuid[0] = 1;
    assert_int_equal(slab_offer(&client, &info, data, table), -EINVAL);
    info = good;
    info.flags = 0xff00;
    assert_int_equal(slab_offer(&client, &info, data, table), -EINVAL);
    slab.table->header.magic++;
    assert_int_equal(slab_offer(&client, &good, data, table), -EPROTO);
    slab.table->header.magic--;
    slab.table->slab_bytes--;
    assert_int_equal(slab_offer(&client, &good, data, table), -EINVAL);
    slab.table->slab_bytes++;
    int one[1] = {data};
    assert_int_equal(raw_exchange(&client, CW_OP_SLAB_ADD, &good, sizeof good, one, 1, &mail),
                     -EPROTO);
    assert_int_equal(raw_exchange(&client, CW_OP_FORK, NULL, 0, &null, 1, &mail), -EPROTO);
    assert_int_equal(slab_offer(&client, &good, data, table), 0);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 2));
    raw_slab_close(&slab);
    close(null), close(unsealed), close(ends[0]), close(ends[1]);
    if (huge >= 0)
        close(huge);
    raw_bye(&client);
}

/* Words, offsets and slots that change under the broker while it reclaims. */
static void tables_altered_under_the_broker_do_no_harm(void **state) {
    (void)state;
    struct chance chance = chance_init(7);
    for (uint64_t round = 0; round < test_rounds(20); round++) {
        struct raw_client client = client_open();
        struct raw_slab slab;
        assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 64, &slab), 0);
        for (int i = 0; i < 400; i++) {
            uint32_t block = (uint32_t)chance_below(&chance, 64);
            struct cw_block *place = &slab.table->blocks[block];
            uint64_t noise = chance_next(&chance) >> chance_below(&chance, 60);
            CW_STORE(B7, &place->word, noise, release);
            CW_STORE(B9, &place->offset_bytes, chance_next(&chance), relaxed);
            CW_STORE(B9, &place->length_bytes, chance_next(&chance), relaxed);
            raw_lease(&client, (uint32_t)chance_below(&chance, 4096),
                      (uint32_t)chance_below(&chance, 4) * 1000003u +
                          (uint32_t)chance_below(&chance, slab.id + 2),
                      (uint32_t)chance_next(&chance) >> chance_below(&chance, 32));
            uint64_t gen = cw_block_gen(CW_LOAD(B10, &place->word, seq_cst));
            raw_drop(&client, slab.id, block, gen);
            if (i % 7 == 0)
                (void)raw_put(&client, slab.id, block, gen, 1, "hostile", CW_PUT_REPLACE);
            if (i % 11 == 0)
                (void)raw_transit_begin(&client, slab.id, block, gen);
        }
        slab.table->capacity = UINT32_MAX;
        slab.table->header.size_bytes = 1;
        struct cw_slab_request wish = {.device_kind = CW_DEVICE_HOST, .free_bytes = 1};
        (void)raw_call(&client, CW_OP_SLAB_ADOPT, &wish, sizeof wish, &mail);
        if (round % 2)
            raw_bye(&client);
        else
            raw_close(&client);
        raw_slab_close(&slab);
        assert_int_equal(raw_ping(&honest), 0);
    }
    (void)raw_remove(&honest, "hostile");
}

/* Random bytes over the whole session segment, again and again. */
static void noise_in_the_session_does_no_harm(void **state) {
    (void)state;
    struct chance chance = chance_init(8);
    for (uint64_t round = 0; round < test_rounds(50); round++) {
        struct raw_client client = client_open();
        uint8_t *bytes = client.session_segment.base;
        for (int i = 0; i < 2000; i++) {
            uint64_t at = chance_below(&chance, 3)
                              ? CW_SESSION_REQUESTS + chance_below(&chance, 512)
                              : chance_below(&chance, CW_SESSION_BYTES - 8);
            uint64_t noise = chance_next(&chance) >> chance_below(&chance, 64);
            memcpy(bytes + (at & ~7ull), &noise, 8);
            if (i % 50 == 0 && write(client.doorbell, &(uint64_t){1}, 8) < 0)
                break;
        }
        raw_close(&client);
        assert_int_equal(raw_ping(&honest), 0);
    }
}

static void who_never_reads_the_socket_is_dropped(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct {
        struct cw_message head;
        struct cw_slab_request body;
    } message = {.head = {.size_bytes = sizeof message, .op = CW_OP_SLAB_OPEN},
                 .body = {.slab = honest_slab.id}};
    int sent = 0, code = 0;
    while (code == 0 && sent < 1000) {
        message.head.id = (uint64_t)++sent;
        code = raw_send(client.sock, &message, sizeof message, NULL, 0);
    }
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_dropped) == 1));
    assert_int_equal(raw_ping(&honest), 0);
    assert_dropped(&client, "does not read");
}

static void who_never_reads_its_replies_waits_alone(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct cw_message head = {.size_bytes = sizeof head, .op = CW_OP_PING};
    uint64_t sent = 0, got = 0;
    /* Until both rings are full: the broker stops reading what it could not answer. */
    for (int quiet = 0; quiet < 50;) {
        head.id = sent + 1;
        if (cw_ring_write(&client.requests, CW_OP_PING, &head, sizeof head) == 0) {
            sent++;
            quiet = 0;
            raw_ring(&client);
        } else {
            quiet++;
            assert_int_equal(raw_ping(&honest), 0);
        }
    }
    assert_true(sent > CW_CHANNEL_BYTES / 64);
    assert_int_equal(raw_gauge(&broker, CW_GAUGE_clients), 2);
    /* Then it reads, and gets every answer in order. */
    while (got < sent) {
        assert_int_equal(raw_reply(&client, &mail, RAW_TIMEOUT_MS), 1);
        assert_int_equal(mail.head.id, ++got);
    }
    raw_bye(&client);
}

static void a_reply_ring_that_lies_drops_its_client(void **state) {
    (void)state;
    struct raw_client client = client_open();
    CW_STORE(R3, &client.replies.ring->head, 1ull << 40, seq_cst);
    struct cw_message head = {.size_bytes = sizeof head, .op = CW_OP_PING, .id = 1};
    for (int i = 0; i < 1500; i++)
        if (cw_ring_write(&client.requests, CW_OP_PING, &head, sizeof head) == 0)
            raw_ring(&client);
    assert_dropped(&client, "position");
}

static void silent_connections_keep_nobody_out(void **state) {
    (void)state;
    int socks[200];
    for (int i = 0; i < 200; i++)
        socks[i] = raw_dial(&broker);
    struct raw_client client = client_open();
    raw_bye(&client);
    for (int i = 0; i < 200; i++)
        if (socks[i] >= 0)
            close(socks[i]);
}

static void a_hello_of_noise_is_refused(void **state) {
    (void)state;
    struct chance chance = chance_init(9);
    for (int i = 0; i < 50; i++) {
        uint8_t bytes[256];
        for (unsigned at = 0; at < sizeof bytes; at++)
            bytes[at] = (uint8_t)chance_next(&chance);
        int sock = raw_dial(&broker), fds[1] = {sock};
        uint32_t length = (uint32_t)chance_below(&chance, sizeof bytes) + 1;
        if (i % 2)
            memcpy(bytes, &length, sizeof length);
        assert_int_equal(raw_send(sock, bytes, length, fds, (uint32_t)(i % 3 == 0)), 0);
        while (raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 1)
            assert_true(mail.head.status < 0);
        close(sock);
    }
    assert_int_equal(raw_ping(&honest), 0);
}

static void a_stopped_client_with_full_rings_disturbs_nobody(void **state) {
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client client;
        struct cw_message head = {.size_bytes = sizeof head, .op = CW_OP_PING, .id = 1};
        if (raw_connect(&broker, &client) != 0)
            _exit(1);
        while (cw_ring_write(&client.requests, CW_OP_PING, &head, sizeof head) == 0)
            continue;
        raw_ring(&client);
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    for (int i = 0; i < 100; i++)
        assert_int_equal(raw_ping(&honest), 0);
    /* The broker waits for room, asleep, and does not turn in circles. */
    assert_true(RAW_UNTIL(CW_LOAD(W2, &honest.root->broker.asleep, relaxed) == 1));
    assert_true(RAW_UNTIL(raw_rests(&broker, 100)));
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_clients) == 1));
}

/* epoll watches what is behind a descriptor: what we keep of it must not keep the broker awake. */
static void descriptors_that_are_kept_do_not_keep_it_awake(void **state) {
    (void)state;
    struct raw_client client = client_open();
    int ends[2], said[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(raw_exchange(&client, CW_OP_FORK, NULL, 0, ends, 1, &mail), 0);
    close(ends[1]); /* the fork pipe ends; its read end stays here */
    raw_bye(&client);
    /* A client that dies, whose pidfd is kept by another process, by way of the very same open
     * file. */
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, said), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int own = raw_pidfd(getpid()), sock = raw_dial(&broker);
        bool well = raw_say_hello(sock, CW_PROTOCOL_VERSION, CW_PROTOCOL_VERSION, own) == 0 &&
                    raw_receive(sock, &mail, RAW_TIMEOUT_MS) == 1 && mail.head.status == 0 &&
                    raw_send(said[1], "x", 1, &own, 1) == 0;
        _exit(well ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_true(RAW_UNTIL(raw_counter(&broker, CW_COUNTER_clients_died) == 1));
    assert_true(RAW_UNTIL(raw_rests(&broker, 100)));
    assert_true(CW_LOAD(W2, &honest.root->broker.asleep, relaxed) == 1);
    close(said[0]), close(said[1]), close(ends[0]); /* the pidfd was in said all the time */
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)
    const struct CMUnitTest tests[] = {
        TEST(records_that_cannot_be_drop_their_client),
        TEST(requests_of_wrong_form_drop_their_client),
        TEST(datagrams_of_wrong_form_drop_their_client),
        TEST(slabs_that_lie_are_refused),
        TEST(tables_altered_under_the_broker_do_no_harm),
        TEST(noise_in_the_session_does_no_harm),
        TEST(who_never_reads_the_socket_is_dropped),
        TEST(who_never_reads_its_replies_waits_alone),
        TEST(a_reply_ring_that_lies_drops_its_client),
        TEST(silent_connections_keep_nobody_out),
        TEST(a_hello_of_noise_is_refused),
        TEST(descriptors_that_are_kept_do_not_keep_it_awake),
        TEST(a_stopped_client_with_full_rings_disturbs_nobody),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
