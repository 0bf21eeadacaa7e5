/*
 * The promises of channels: messages arrive whole and in order, nobody sleeps through one, several
 * threads may sleep at one bell, damage is an error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "ipc/causeway.h"
#include "tests/support.h"

#define RING 4096u

struct pair {
    void *memory;
    uint64_t bytes;
    cw_channel *side[2];
};

static void pair_open(struct pair *pair, uint64_t ring_bytes) {
    pair->bytes = cw_channel_bytes(ring_bytes);
    pair->memory =
        mmap(NULL, pair->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(pair->memory != MAP_FAILED);
    assert_int_equal(cw_channel_format(pair->memory, pair->bytes, ring_bytes), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            cw_channel_open(pair->memory, pair->bytes, ring_bytes, i, NULL, NULL, &pair->side[i]),
            0);
}

static void pair_close(struct pair *pair) {
    cw_channel_close(pair->side[0]);
    cw_channel_close(pair->side[1]);
    munmap(pair->memory, pair->bytes);
}

static void messages_arrive_whole_and_in_order(void **state) {
    (void)state;
    struct pair pair;
    pair_open(&pair, RING);
    struct chance chance = chance_init(1);
    uint8_t out[RING];
    uint32_t sent = 0, got = 0;
    for (uint64_t round = 0; round < test_rounds(100000); round++) {
        if (chance_below(&chance, 2)) {
            uint32_t size = (uint32_t)chance_below(&chance, cw_channel_max(pair.side[0]) + 1);
            memset(out, (int)(sent & 0xff), size);
            int code = cw_channel_send(pair.side[0], sent, out, size, 0);
            assert_true(code == 0 || code == -ETIMEDOUT);
            sent += code == 0;
        } else {
            uint32_t type, size;
            const void *data;
            int code = cw_channel_recv(pair.side[1], 0, &type, &data, &size);
            assert_true(code == 0 || code == -ETIMEDOUT);
            if (code)
                continue;
            assert_int_equal(type, got);
            for (uint32_t i = 0; i < size; i++)
                assert_int_equal(((const uint8_t *)data)[i], got & 0xff);
            got++;
        }
    }
    assert_true(sent - got < RING);
    pair_close(&pair);
}

static int echo(void *context) {
    struct pair *pair = context;
    for (;;) {
        uint32_t type, size;
        const void *data;
        if (cw_channel_recv(pair->side[1], 10000000000, &type, &data, &size))
            return 1;
        if (cw_channel_send(pair->side[1], type, data, size, 10000000000))
            return 2;
        if (type == 0)
            return 0;
    }
}

static void two_processes_answer_each_other(void **state) {
    (void)state;
    struct pair pair;
    pair_open(&pair, RING);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(echo(&pair));
    uint64_t rounds = test_rounds(20000);
    struct timespec pause = {.tv_nsec = 200000};
    for (uint64_t i = 1; i <= rounds; i++) {
        uint32_t type, size;
        const void *data;
        uint32_t number = i == rounds ? 0 : (uint32_t)i;
        assert_int_equal(cw_channel_send(pair.side[0], number, &i, sizeof i, -1), 0);
        assert_int_equal(cw_channel_recv(pair.side[0], 10000000000, &type, &data, &size), 0);
        assert_int_equal(type, number);
        assert_int_equal(size, sizeof i);
        assert_memory_equal(data, &i, sizeof i);
        if (i % 64 == 0)
            nanosleep(&pause, NULL); /* so that both sides also sleep */
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    pair_close(&pair);
}

static void *send_many(void *context) {
    struct pair *pair = context;
    uint8_t data[1000];
    for (uint32_t i = 0; i < 20000; i++) {
        memset(data, (int)(i & 0xff), sizeof data);
        if (cw_channel_send(pair->side[0], i, data, sizeof data, -1))
            return (void *)1;
    }
    return NULL;
}

static void a_sender_waits_for_room(void **state) {
    (void)state;
    struct pair pair;
    pair_open(&pair, RING);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, send_many, &pair), 0);
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t type, size;
        const void *data;
        assert_int_equal(cw_channel_recv(pair.side[1], 10000000000, &type, &data, &size), 0);
        assert_int_equal(type, i);
        assert_int_equal(size, 1000);
        assert_int_equal(((const uint8_t *)data)[999], i & 0xff);
    }
    void *result;
    pthread_join(thread, &result);
    assert_null(result);
    pair_close(&pair);
}

#define CROWD 4

struct crowd {
    struct pair pairs[CROWD];
    void *bell;
    uint32_t rounds;
};

static void *talk(void *context) {
    struct pair *pair = context;
    for (uint32_t i = 0; i < 2000; i++) {
        if (cw_channel_send(pair->side[1], i, &i, sizeof i, -1))
            return (void *)1;
        if (i % 100 == 0) {
            struct timespec pause = {.tv_nsec = 300000};
            nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

static void many_channels_share_a_bell(void **state) {
    (void)state;
    struct crowd crowd = {.rounds = 2000};
    crowd.bell = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cw_channel *ends[CROWD];
    pthread_t threads[CROWD];
    uint32_t got[CROWD] = {0};
    for (int i = 0; i < CROWD; i++) {
        struct pair *pair = &crowd.pairs[i];
        pair->bytes = cw_channel_bytes(RING);
        pair->memory = aligned_alloc(64, pair->bytes);
        assert_int_equal(cw_channel_format(pair->memory, pair->bytes, RING), 0);
        assert_int_equal(
            cw_channel_open(pair->memory, pair->bytes, RING, 0, crowd.bell, NULL, &pair->side[0]),
            0);
        assert_int_equal(
            cw_channel_open(pair->memory, pair->bytes, RING, 1, NULL, crowd.bell, &pair->side[1]),
            0);
        ends[i] = pair->side[0];
    }
    for (int i = 0; i < CROWD; i++)
        pthread_create(&threads[i], NULL, talk, &crowd.pairs[i]);
    for (uint32_t n = 0; n < CROWD * crowd.rounds; n++) {
        int which = cw_channels_wait(ends, CROWD, crowd.bell, 10000000000);
        assert_in_range(which, 0, CROWD - 1);
        uint32_t type, size;
        const void *data;
        assert_int_equal(cw_channel_recv(ends[which], 0, &type, &data, &size), 0);
        assert_int_equal(type, got[which]++);
    }
    for (int i = 0; i < CROWD; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
        cw_channel_close(crowd.pairs[i].side[0]);
        cw_channel_close(crowd.pairs[i].side[1]);
        free(crowd.pairs[i].memory);
    }
    munmap(crowd.bell, 4096);
}

struct sleeper {
    void *bell;
    int result;
};

static void *sleep_at_bell(void *context) {
    struct sleeper *sleeper = context;
    sleeper->result = cw_channels_wait(NULL, 0, sleeper->bell, 10000000000);
    return NULL;
}

static void each_ring_of_a_bell_ends_one_wait(void **state) {
    (void)state;
    void *bell = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cw_bell_ring(bell); /* before anybody waits: kept */
    assert_int_equal(cw_channels_wait(NULL, 0, bell, 0), -EAGAIN);
    assert_int_equal(cw_channels_wait(NULL, 0, bell, 1000000), -ETIMEDOUT);
    struct sleeper sleepers[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        sleepers[i] = (struct sleeper){bell, 1};
        pthread_create(&threads[i], NULL, sleep_at_bell, &sleepers[i]);
    }
    for (int i = 0; i < 3; i++) {
        struct timespec pause = {.tv_nsec = 3000000};
        nanosleep(&pause, NULL);
        cw_bell_ring(bell);
    }
    for (int rings = 0, left = 3; left; rings++) {
        for (int i = 0; i < 3; i++)
            if (threads[i] && pthread_tryjoin_np(threads[i], NULL) == 0) {
                assert_int_equal(sleepers[i].result, -EAGAIN);
                threads[i] = 0;
                left--;
            }
        /* Two rings at once may end one wait: ring again. */
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
        if (left && rings % 20 == 19)
            cw_bell_ring(bell);
    }
    munmap(bell, 4096);
}

static void on_signal(int number) {
    (void)number;
}

static void *interrupt(void *context) {
    struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
    pthread_kill(*(pthread_t *)context, SIGUSR1);
    return NULL;
}

static void a_signal_ends_a_wait(void **state) {
    (void)state;
    struct pair pair;
    pair_open(&pair, RING);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t self = pthread_self(), thread;
    uint32_t type, size;
    const void *data;
    pthread_create(&thread, NULL, interrupt, &self);
    assert_int_equal(cw_channel_recv(pair.side[0], -1, &type, &data, &size), -EINTR);
    pthread_join(thread, NULL);
    uint8_t block[1000] = {0};
    while (cw_channel_send(pair.side[0], 1, block, sizeof block, 0) == 0)
        ;
    pthread_create(&thread, NULL, interrupt, &self);
    assert_int_equal(cw_channel_send(pair.side[0], 1, block, sizeof block, -1), -EINTR);
    pthread_join(thread, NULL);
    pair_close(&pair);
}

static void bad_arguments_and_damage_are_errors(void **state) {
    (void)state;
    struct pair pair;
    pair_open(&pair, RING);
    cw_channel *other;
    uint8_t big[RING];
    uint32_t type, size;
    const void *data;
    memset(big, 0xff, sizeof big);
    assert_int_equal(cw_channel_format(pair.memory, pair.bytes, 5000), -EINVAL);
    assert_int_equal(cw_channel_format(pair.memory, pair.bytes - 1, RING), -EINVAL);
    assert_int_equal(cw_channel_format((char *)pair.memory + 1, pair.bytes, RING), -EINVAL);
    assert_int_equal(cw_channel_open(pair.memory, pair.bytes, RING, 2, NULL, NULL, &other),
                     -EINVAL);
    assert_int_equal(cw_channel_send(pair.side[0], 1, big, cw_channel_max(pair.side[0]) + 1, 0),
                     -EMSGSIZE);
    assert_int_equal(cw_channel_recv(pair.side[1], 1000000, &type, &data, &size), -ETIMEDOUT);
    memset((char *)pair.memory + 64 + 128 + 256, 0xff, 64); /* where ring 0's first header lies */
    assert_int_equal(cw_channel_recv(pair.side[1], 0, &type, &data, &size), -EPROTO);
    cw_channel *ends[] = {pair.side[1]};
    assert_int_equal(cw_channels_wait(ends, 1, big + (64 - (uintptr_t)big % 64) % 64, 0), 0);
    memset(pair.memory, 0, 64);
    assert_int_equal(cw_channel_open(pair.memory, pair.bytes, RING, 0, NULL, NULL, &other),
                     -EPROTO);
    pair_close(&pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_whole_and_in_order),
        cmocka_unit_test(two_processes_answer_each_other),
        cmocka_unit_test(a_sender_waits_for_room),
        cmocka_unit_test(many_channels_share_a_bell),
        cmocka_unit_test(each_ring_of_a_bell_ends_one_wait),
        cmocka_unit_test(a_signal_ends_a_wait),
        cmocka_unit_test(bad_arguments_and_damage_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
