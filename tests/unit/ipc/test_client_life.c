/*
 * The promises of cableway.h about time: waiting, signals, threads, forks.
 */
#include "tests/unit/ipc/client_support.h"

#include <stdatomic.h>
#include <sys/time.h>

static void *put_later(void *context) {
    cw_client *client = context;
    usleep(50000);
    cw_array *array = bytes_new(client, 10, 1);
    int code = cw_array_put(array, "later", 0, NULL, 0);
    cw_array_close(array);
    return (void *)(intptr_t)code;
}

static void a_wait_ends_when_the_name_comes(void **state) {
    (void)state;
    cw_client *client = client_open();
    pthread_t thread;
    void *result;
    assert_int_equal(cw_wait(client, "later", 0), -ETIMEDOUT);
    int64_t begun = test_now_ns();
    assert_int_equal(cw_wait(client, "later", SECOND / 10), -ETIMEDOUT);
    assert_true(test_now_ns() - begun >= SECOND / 10);
    pthread_create(&thread, NULL, put_later, client);
    OK(cw_wait(client, "later", 60 * SECOND));
    pthread_join(thread, &result);
    assert_null(result);
    OK(cw_wait(client, "later", 0));
    OK(cw_remove(client, "later"));
    EVENTUALLY(gauge(client, CW_GAUGE_waiting) == 0);
    cw_client_unref(client);
}

static void on_signal(int number) {
    (void)number;
}

static _Atomic int interrupted;

/* Again and again: a signal that comes before the wait does not end it. */
static void *interrupt(void *context) {
    while (!atomic_load(&interrupted)) {
        usleep(50000);
        pthread_kill(*(pthread_t *)context, SIGUSR1);
    }
    return NULL;
}

static void wait_until_interrupted(cw_client *client, int64_t limit_ns) {
    pthread_t self = pthread_self(), thread;
    atomic_store(&interrupted, 0);
    pthread_create(&thread, NULL, interrupt, &self);
    assert_int_equal(cw_wait(client, "never", limit_ns), -EINTR);
    atomic_store(&interrupted, 1);
    pthread_join(thread, NULL);
}

static void *wait_long(void *context) {
    return (void *)(intptr_t)cw_wait(context, "never/2", 60 * SECOND);
}

static void signal_ends_waits(int flags, int64_t limit_ns) {
    cw_client *client = client_open();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t other;
    void *result;
    /* alone, as the receiver */
    wait_until_interrupted(client, limit_ns);
    /* as a follower of another thread that waits, and that waits on */
    pthread_create(&other, NULL, wait_long, client);
    usleep(50000);
    wait_until_interrupted(client, limit_ns);
    OK(cw_ping(client));
    /* the receiver itself: the other one goes on */
    cw_array *array = bytes_new(client, 10, 1);
    OK(cw_array_put(array, "never/2", 0, NULL, 0));
    pthread_join(other, &result);
    assert_null(result);
    OK(cw_remove(client, "never/2"));
    cw_array_close(array);
    EVENTUALLY(gauge(client, CW_GAUGE_waiting) == 0);
    cw_client_unref(client);
}

static void a_signal_ends_each_wait_and_no_other_call(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++)
        signal_ends_waits(i & 1 ? SA_RESTART : 0, i & 2 ? -1 : 60 * SECOND);
}

struct worker {
    cw_client *client;
    unsigned number;
    uint64_t rounds;
    _Atomic int *failures;
};

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "thread, line %d: %s: %s\n", __LINE__, #condition, cw_error());        \
            atomic_fetch_add(w->failures, 1);                                                      \
            return NULL;                                                                           \
        }                                                                                          \
    } while (0)

static void *work(void *context) {
    struct worker *w = context;
    struct chance chance = chance_init(w->number);
    char name[32];
    for (uint64_t i = 0; i < w->rounds; i++) {
        uint32_t which = (uint32_t)chance_below(&chance, 4);
        int64_t count = 1 + (int64_t)chance_below(&chance, 100000);
        snprintf(name, sizeof name, "shared/%u", which);
        cw_array *array, *got;
        cw_handle handle;
        const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
        switch (chance_below(&chance, 6)) {
        case 0: {
            int value = (int)(count & 0xff);
            EXPECT((array = bytes_new(w->client, count, value)));
            EXPECT(cw_array_put(array, name, CW_REPLACE, NULL, 0) == 0);
            cw_array_close(array);
            break;
        }
        case 1:
            if (cw_remove(w->client, name) == 0)
                break;
            EXPECT(strstr(cw_error(), "no array"));
            break;
        case 2:
            EXPECT((array = bytes_new(w->client, count, 9)));
            EXPECT(cw_array_export(array, 1, &handle) == 0);
            cw_array_close(array);
            EXPECT(cw_array_open(w->client, &handle, &layout, 0, &got) == 0);
            EXPECT(bytes_are(got, count, 9));
            cw_array_close(got);
            break;
        case 3:
            EXPECT(cw_wait(w->client, name, 100000) != -EPROTO);
            break;
        default: {
            int code = cw_get(w->client, name, i & 1 ? CW_READONLY : 0, &got);
            if (code == 0) {
                int64_t length = (int64_t)cw_array_nbytes(got);
                EXPECT(bytes_are(got, length, (int)(length & 0xff)));
                cw_array_close(got);
            } else
                EXPECT(code == -ENOENT);
        }
        }
    }
    return NULL;
}

static void threads_share_a_client(void **state) {
    (void)state;
    enum { THREADS = 4 };
    cw_client *client = client_open(), *second = client_open();
    _Atomic int failures = 0;
    pthread_t threads[THREADS];
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){i == 3 ? second : client, i, test_rounds(2000), &failures};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&failures), 0);
    assert_int_equal(client->leases.held, 0);
    assert_int_equal(client->arrays, 0);
    cw_client_unref(second);
    cw_client_unref(client);
}

/* ---- fork ---- */

struct pipes {
    int to_child[2], to_parent[2];
};

static void pipes_open(struct pipes *pipes) {
    assert_int_equal(pipe2(pipes->to_child, O_CLOEXEC), 0);
    assert_int_equal(pipe2(pipes->to_parent, O_CLOEXEC), 0);
}

static void pipes_close(struct pipes *pipes) {
    for (int i = 0; i < 2; i++) {
        close(pipes->to_child[i]);
        close(pipes->to_parent[i]);
    }
}

static bool tell(int fd) {
    return write(fd, "x", 1) == 1;
}

static bool hear(int fd) {
    char c;
    return read(fd, &c, 1) == 1;
}

static void a_child_keeps_what_it_inherited(void **state) {
    (void)state;
    struct pipes pipes;
    pipes_open(&pipes);
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 500000, 3), *second = bytes_new(client, 500000, 4);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        CHILD(cw_client_forked(client) && cw_array_inherited(array));
        CHILD(cw_client_check(client) == -EINVAL);
        CHILD(cw_array_put(array, "no", 0, NULL, 0) == -EINVAL);
        CHILD(hear(pipes.to_child[0])); /* the parent closed both and made new ones */
        CHILD(bytes_are(array, 500000, 3));
        cw_client *mine;
        CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
        void *data = cw_array_data(array);
        CHILD(cw_array_renew(array, mine) == 0);
        CHILD(!cw_array_inherited(array) && cw_array_client(array) == mine);
        CHILD(cw_array_data(array) == data && bytes_are(array, 500000, 3));
        CHILD(cw_array_put(array, "from the child", 0, NULL, 0) == 0);
        CHILD(bytes_are(second, 500000, 4));
        cw_array_close(second); /* the last inherited one: the fork pipe ends */
        CHILD(client->fork_pipe_child == -1);
        CHILD(tell(pipes.to_parent[1]));
        CHILD(hear(pipes.to_child[0]));
        CHILD(bytes_are(array, 500000, 3));
        cw_array_close(array);
        cw_client_unref(mine);
        cw_client_unref(client);
        _exit(0);
    }
    cw_array_close(array);
    cw_array_close(second);
    OK(cw_ping(client));
    for (int i = 0; i < 4; i++) { /* nothing of it may be used again */
        array = bytes_new(client, 500000, 9);
        OK(cw_array_export(array, 0, &(cw_handle){0}));
        cw_array_close(array);
    }
    assert_true(tell(pipes.to_child[1]));
    assert_true(hear(pipes.to_parent[0]));
    OK(cw_get(client, "from the child", 0, &array));
    assert_true(bytes_are(array, 500000, 3));
    cw_array_close(array);
    OK(cw_remove(client, "from the child"));
    assert_true(tell(pipes.to_child[1]));
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    /* Now that nobody holds anything, all comes back. */
    EVENTUALLY(({
        cw_array_close(bytes_new(client, 8, 0));
        client->heap.pending == NULL;
    }));
    pipes_close(&pipes);
    cw_client_unref(client);
}

static void a_child_that_dies_lets_go(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 500000, 3);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    cw_array_close(array);
    for (int i = 0; i < 5; i++)
        OK(cw_ping(client));
    pthread_mutex_lock(&client->lock);
    cw_heap_collect(client, true);
    assert_non_null(client->heap.pending);
    pthread_mutex_unlock(&client->lock);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    EVENTUALLY(({
        pthread_mutex_lock(&client->lock);
        cw_heap_collect(client, true);
        pthread_mutex_unlock(&client->lock);
        client->heap.pending == NULL;
    }));
    cw_client_unref(client);
}

static int grandchild(void *context) {
    cw_array *array = context;
    cw_client *mine;
    CHILD(cw_array_inherited(array) && bytes_are(array, 1000, 3));
    CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
    CHILD(cw_array_renew(array, mine) == 0);
    CHILD(bytes_are(array, 1000, 3));
    cw_array_close(array);
    cw_client_unref(mine);
    return 0;
}

static int child_with_child(void *context) {
    cw_array *array = context;
    cw_client *mine;
    CHILD(in_child(grandchild, array) == 0); /* of one that was not renewed */
    CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
    CHILD(cw_array_renew(array, mine) == 0);
    CHILD(in_child(grandchild, array) == 0); /* and of one that was */
    CHILD(bytes_are(array, 1000, 3));
    cw_array_close(array);
    cw_client_unref(mine);
    return 0;
}

static void grandchildren_inherit_too(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 1000, 3);
    assert_int_equal(in_child(child_with_child, array), 0);
    assert_true(bytes_are(array, 1000, 3));
    cw_array_close(array);
    cw_client_unref(client);
}

static void *fork_noise(void *context) {
    struct worker *w = context;
    for (uint64_t i = 0; i < w->rounds; i++) {
        cw_array *array = bytes_new(w->client, 1000, 1);
        EXPECT(array);
        EXPECT(cw_array_put(array, "noise", CW_REPLACE, NULL, 0) == 0);
        cw_array_close(array);
    }
    return NULL;
}

static void forks_while_other_threads_work(void **state) {
    (void)state;
    cw_client *client = client_open();
    _Atomic int failures = 0;
    struct worker w = {client, 0, test_rounds(3000), &failures};
    cw_array *array = bytes_new(client, 1000, 3);
    pthread_t thread;
    pthread_create(&thread, NULL, fork_noise, &w);
    for (int i = 0; i < 30; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            _exit(cw_array_inherited(array) && bytes_are(array, 1000, 3) ? 0 : 1);
        int status;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
    }
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&failures), 0);
    cw_array_close(array);
    cw_client_unref(client);
}

static int start_at_once(void *context) {
    cw_client *mine;
    struct pipes *pipes = context; /* two: to begin, and to end */
    CHILD(hear(pipes->to_child[0]));
    CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
    uint64_t instance = cw_client_instance(mine);
    CHILD(write(pipes->to_parent[1], &instance, sizeof instance) == sizeof instance);
    CHILD(hear(pipes[1].to_child[0]));
    cw_client_unref(mine);
    return 0;
}

static void clients_that_start_at_once_find_one_broker(void **state) {
    (void)state;
    enum { CHILDREN = 6 };
    struct pipes pipes[2];
    pipes_open(&pipes[0]);
    pipes_open(&pipes[1]);
    pid_t children[CHILDREN];
    fflush(NULL);
    for (int i = 0; i < CHILDREN; i++)
        if ((children[i] = fork()) == 0)
            _exit(start_at_once(pipes));
    for (int i = 0; i < CHILDREN; i++)
        assert_true(tell(pipes[0].to_child[1]));
    uint64_t first = 0, instance;
    for (int i = 0; i < CHILDREN; i++) {
        assert_int_equal(read(pipes[0].to_parent[0], &instance, sizeof instance), sizeof instance);
        if (first)
            assert_int_equal(instance, first);
        first = instance;
    }
    for (int i = 0; i < CHILDREN; i++)
        assert_true(tell(pipes[1].to_child[1]));
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        waitpid(children[i], &status, 0);
        assert_int_equal(status, 0);
    }
    pipes_close(&pipes[0]);
    pipes_close(&pipes[1]);
}

static bool was_told_of_a_closed_slab(cw_client *maker, cw_client *other) {
    cw_array_close(bytes_new(maker, 10, 1)); /* takes back what is free */
    return atomic_load(&other->shared->closed_slabs) > 0;
}

static void what_was_given_up_is_unmapped_at_the_next_open(void **state) {
    (void)state;
    setenv("CABLEWAY_CACHE_BYTES", "0", 1);
    cw_client *maker = client_open(), *other = client_open();
    cw_array *small = bytes_new(maker, 100, 1), *large = bytes_new(maker, 16 << 20, 2);
    cw_array *held, *got;
    OK(cw_array_put(small, "small", 0, NULL, 0));
    OK(cw_array_put(large, "large", 0, NULL, 0));
    OK(cw_get(other, "small", 0, &held));
    OK(cw_get(other, "large", 0, &got));
    cw_array_close(got);
    assert_int_equal(other->slabs.idle_count, 1);
    OK(cw_remove(maker, "large"));
    cw_array_close(large);
    EVENTUALLY(was_told_of_a_closed_slab(maker, other));
    assert_int_equal(other->slabs.idle_count, 1);
    OK(cw_get(other, "small", 0, &got)); /* of another slab */
    assert_int_equal(other->slabs.idle_count, 0);
    cw_array_close(got);
    cw_array_close(held);
    cw_array_close(small);
    cw_client_unref(other);
    cw_client_unref(maker);
    unsetenv("CABLEWAY_CACHE_BYTES");
}

static bool has_one_slab(cw_client *client) {
    cw_array_close(bytes_new(client, 10, 1)); /* takes back what is free */
    return client->slabs.own && !client->slabs.own->own_next;
}

/* What a name had comes back while a slab is made for the next array, which then takes that. */
static void a_slab_that_no_array_took_is_given_up(void **state) {
    (void)state;
    setenv("CABLEWAY_CACHE_BYTES", "0", 1);
    cw_client *client = client_open();
    cw_array *small = bytes_new(client, 100, 1);
    for (int i = 0; i < 20; i++) {
        cw_array *array = bytes_new(client, 16 << 20, 1);
        OK(cw_array_put(array, "large", 0, NULL, 0));
        cw_array_close(array);
        OK(cw_remove(client, "large"));
        cw_array_close(bytes_new(client, 16 << 20, 2));
        EVENTUALLY(has_one_slab(client));
    }
    cw_array_close(small);
    cw_client_unref(client);
    unsetenv("CABLEWAY_CACHE_BYTES");
}

int main(void) {
    chance_seed(); /* before there are threads */
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(a_wait_ends_when_the_name_comes),
        TEST(a_signal_ends_each_wait_and_no_other_call),
        TEST(threads_share_a_client),
        TEST(a_child_keeps_what_it_inherited),
        TEST(a_child_that_dies_lets_go),
        TEST(grandchildren_inherit_too),
        TEST(forks_while_other_threads_work),
        TEST(clients_that_start_at_once_find_one_broker),
        TEST(what_was_given_up_is_unmapped_at_the_next_open),
        TEST(a_slab_that_no_array_took_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
