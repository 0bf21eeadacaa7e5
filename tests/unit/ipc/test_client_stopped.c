/*
 * A broker that stands still, with requests up to the brim of the ring: who needs no answer does
 * not wait, and every other wait ends by a signal, in whichever thread somebody else waits.
 */
#include "tests/unit/ipc/client_support.h"

#include <sys/time.h>
#include <sys/wait.h>

#define ARRAYS 64

#if !CW_TEST_SANITIZED
static bool refuses; /* no memory is left */

void *__libc_malloc(size_t bytes);
void *malloc(size_t bytes) {
    return refuses ? NULL : __libc_malloc(bytes);
}
#endif

static void on_signal(int number) {
    (void)number;
}

/* A signal, a moment from now: no wait below comes to an end otherwise. again: and further ones,
 * for waits in naps, between which a signal is not seen. */
static void signal_soon(bool again) {
    struct sigaction action = {.sa_handler = on_signal};
    struct itimerval soon = {.it_interval = {0, again ? 300000 : 0}, .it_value = {0, 300000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void stop_and_fill(cw_client *client) {
    const struct cw_block_ref nothing = {.token = 1}; /* of no session: needs no answer */
    int code = 0;
    assert_int_equal(kill(cw_client_broker_pid(client), SIGSTOP), 0);
    for (int i = 0; i < 100000 && code == 0; i++)
        code = cw_channel_offer(client, CW_OP_TRANSIT_END, &nothing, sizeof nothing);
    assert_int_equal(code, -EAGAIN);
}

static void go_on(cw_client *client) {
    struct itimerval never = {.it_value = {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    assert_int_equal(kill(cw_client_broker_pid(client), SIGCONT), 0);
    OK(cw_ping(client));
}

static void closing_waits_for_nobody(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *arrays[ARRAYS];
    cw_handle handle, transit;
    for (int i = 0; i < ARRAYS; i++) {
        arrays[i] = bytes_new(client, 1 << 20, i);
        OK(cw_array_export(arrays[i], 0, &handle)); /* others may know of it: its end is told */
    }
    OK(cw_array_export(arrays[0], 1, &transit));
    EVENTUALLY(gauge(other, CW_GAUGE_transits) == 1);
    stop_and_fill(client);
    OK(cw_handle_discard(client, &transit));
    for (int i = 0; i < ARRAYS; i++)
        cw_array_close(arrays[i]);
    assert_int_equal(kill(cw_client_broker_pid(client), SIGCONT), 0);
    /* Without another call of this client. */
    EVENTUALLY(gauge(other, CW_GAUGE_transits) == 0);
    EVENTUALLY(counter(other, CW_COUNTER_blocks_reclaimed) == ARRAYS);
    OK(cw_ping(client));
    cw_client_unref(client);
    cw_client_unref(other);
}

/* What is kept fills the ring several times over; between two fillings the broker falls asleep. */
static void all_that_is_kept_arrives_however_often_the_ring_is_full(void **state) {
    enum { HANDLES = 20000 };
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *array = bytes_new(client, 100, 1);
    cw_handle *handles = calloc(HANDLES, sizeof *handles);
    assert_non_null(handles);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < HANDLES; i++)
            OK(cw_array_export(array, 1, &handles[i]));
        OK(cw_ping(client));
        assert_int_equal(gauge(other, CW_GAUGE_transits), HANDLES);
        stop_and_fill(client);
        for (int i = 0; i < HANDLES; i++)
            OK(cw_handle_discard(client, &handles[i]));
        assert_int_equal(kill(cw_client_broker_pid(client), SIGCONT), 0);
        EVENTUALLY(gauge(other, CW_GAUGE_transits) == 0); /* without another call */
        OK(cw_ping(client));
    }
    free(handles);
    cw_array_close(array);
    cw_client_unref(client);
    cw_client_unref(other);
}

/* What a worker does for each of its tasks. */
static void who_says_the_same_again_and_again_keeps_it_once(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    int64_t count = 1 << 20;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *made = bytes_new(other, count, 7), *array;
    cw_handle handle;
    OK(cw_array_export(made, 1, &handle));
    OK(cw_array_open(client, &handle, &layout, 0, &array)); /* nobody else holds it at the broker */
    OK(cw_ping(client));
    cw_array_close(array);
    OK(cw_ping(client));
    stop_and_fill(client);
    for (int i = 0; i < 1000; i++) {
        OK(cw_array_open(client, &handle, &layout, 0, &array));
        cw_array_close(array);
    }
    uint32_t kept = 0;
    pthread_mutex_lock(&client->channel_lock);
    for (struct cw_deferred *message = client->channel.deferred; message; message = message->next)
        kept++;
    pthread_mutex_unlock(&client->channel_lock);
    assert_in_range(kept, 1, 2); /* the end of its lease, and of its transit */
    cw_array_close(made);
    assert_int_equal(kill(cw_client_broker_pid(client), SIGCONT), 0);
    EVENTUALLY(counter(other, CW_COUNTER_blocks_reclaimed) == 1);
    EVENTUALLY(({
        pthread_mutex_lock(&client->channel_lock);
        bool empty = !client->channel.deferred;
        for (uint32_t i = 0; i < CW_DEFERRED_BUCKETS; i++)
            empty = empty && !client->channel.alike[i];
        pthread_mutex_unlock(&client->channel_lock);
        empty;
    }));
    OK(cw_ping(client));
    cw_client_unref(client);
    cw_client_unref(other);
}

static void a_session_ends_behind_what_waits(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *array = bytes_new(client, 1 << 20, 1);
    cw_handle handle;
    OK(cw_array_export(array, 0, &handle));
    assert_int_equal(gauge(other, CW_GAUGE_clients), 2);
    stop_and_fill(client);
    cw_array_close(array);
    cw_client_unref(client);
    go_on(other);
    EVENTUALLY(gauge(other, CW_GAUGE_clients) == 1);
    client = client_open();
    stop_and_fill(client);
    cw_client_unref(client); /* with nothing kept but its end */
    go_on(other);
    EVENTUALLY(gauge(other, CW_GAUGE_clients) == 1);
    cw_client_unref(other);
}

#if !CW_TEST_SANITIZED
static void a_slab_is_given_back_though_no_memory_is_left_to_say_so(void **state) {
    (void)state;
    setenv("CABLEWAY_CACHE_BYTES", "0", 1);
    cw_client *client = client_open(), *other = client_open();
    cw_array *arrays[3];
    for (int i = 0; i < 3; i++)
        arrays[i] = bytes_new(client, 64 << 20, i); /* a slab each */
    assert_true(gauge(other, CW_GAUGE_slabs) >= 3);
    stop_and_fill(client);
    refuses = true;
    for (int i = 0; i < 3; i++)
        cw_array_close(arrays[i]);
    refuses = false;
    go_on(client);
    EVENTUALLY(gauge(other, CW_GAUGE_slabs) == 0);
    unsetenv("CABLEWAY_CACHE_BYTES");
    cw_client_unref(client);
    cw_client_unref(other);
}
#endif

static void what_is_kept_goes_with_a_killed_broker(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 1 << 20, 1);
    cw_handle handle;
    OK(cw_array_export(array, 0, &handle));
    stop_and_fill(client);
    cw_array_close(array);
    kill(cw_client_broker_pid(client), SIGKILL);
    EVENTUALLY(cw_client_check(client) == -ECONNRESET);
    cw_client_unref(client);
}

/* The broker has it and stands still: nobody can tell whether the name is put, or removed. */
static void a_signal_that_ends_a_put_leaves_it_open(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 1 << 20, 1);
    OK(cw_ping(client));
    kill(cw_client_broker_pid(client), SIGSTOP); /* with room in the ring */
    signal_soon(false);
    assert_int_equal(cw_array_put(array, "x", 0, NULL, 0), -EINPROGRESS);
    assert_non_null(strstr(cw_error(), "may yet be done"));
    go_on(client);
    OK(cw_wait(client, "x", -1));
    kill(cw_client_broker_pid(client), SIGSTOP);
    signal_soon(false);
    assert_int_equal(cw_remove(client, "x"), -EINPROGRESS);
    go_on(client);
    OK(cw_ping(client));
    assert_int_equal(cw_wait(client, "x", 0), -ETIMEDOUT);
    stop_and_fill(client);
    signal_soon(true);
    assert_int_equal(cw_array_put(array, "y", 0, NULL, 0), -EINTR); /* it was never written */
    go_on(client);
    OK(cw_ping(client));
    assert_int_equal(cw_wait(client, "y", 0), -ETIMEDOUT);
    cw_array_close(array);
    cw_client_unref(client);
}

static void a_signal_ends_each_wait(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 1 << 20, 1);
    cw_handle handle;
    stop_and_fill(client);
    signal_soon(true);
    assert_int_equal(cw_array_export(array, 1, &handle), -EINTR);
    signal_soon(true);
    assert_int_equal(cw_ping(client), -EINTR);
    signal_soon(true);
    assert_int_equal(cw_array_put(array, "x", 0, NULL, 0), -EINTR);
    assert_int_equal(cw_wait(client, "x", SECOND / 10), -ETIMEDOUT); /* at the socket */
    signal_soon(true);
    assert_int_equal(cw_wait(client, "x", -1), -EINTR);
    go_on(client);
    assert_int_equal(gauge(client, CW_GAUGE_transits), 0);
    OK(cw_array_export(array, 1, &handle));
    OK(cw_array_put(array, "x", 0, NULL, 0));
    OK(cw_wait(client, "x", -1));
    OK(cw_handle_discard(client, &handle));
    kill(cw_client_broker_pid(client), SIGSTOP); /* with room in the ring */
    signal_soon(false);
    assert_int_equal(cw_ping(client), -EINTR);
    assert_int_equal(cw_wait(client, "y", SECOND / 10), -ETIMEDOUT);
    go_on(client);
    cw_array_close(array);
    cw_client_unref(client);
}

/* ---- a thread that waits for the broker's socket ---- */

struct opener {
    cw_client *client;
    cw_handle handle;
    int code;
};

static void *open_it(void *context) {
    struct opener *opener = context;
    int64_t count = (int64_t)opener->handle.size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    opener->code = cw_array_open(opener->client, &opener->handle, &layout, 0, &array);
    if (opener->code == 0)
        cw_array_close(array);
    return NULL;
}

static bool waits_at_the_socket(cw_client *client) {
    if (pthread_mutex_trylock(&client->sock_lock) != 0)
        return true;
    pthread_mutex_unlock(&client->sock_lock);
    return false;
}

static void a_thread_that_waits_holds_up_nobody(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *own = bytes_new(client, 100, 1), *there = bytes_new(other, 1 << 20, 2), *got;
    struct opener openers[2] = {{.client = client}, {.client = client}};
    pthread_t threads[2];
    OK(cw_array_put(own, "own", 0, NULL, 0));
    OK(cw_get(client, "own", 0, &got)); /* warm from now on */
    cw_array_close(got);
    for (int i = 0; i < 2; i++)
        OK(cw_array_export(there, 0, &openers[i].handle));
    kill(cw_client_broker_pid(client), SIGSTOP);
    for (int i = 0; i < 2; i++) /* both want the same slab, which is not mapped yet */
        pthread_create(&threads[i], NULL, open_it, &openers[i]);
    EVENTUALLY(waits_at_the_socket(client));
    OK(cw_get(client, "own", 0, &got));
    cw_array_close(got);
    cw_array *more = bytes_new(client, 1000, 3); /* carved out of a slab of ours */
    assert_non_null(more);
    cw_array_close(more);
    signal_soon(true);
    int64_t large = 1 << 28;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &large, .dtype = "|u1"};
    assert_int_equal(cw_array_new(client, "cpu", &layout, 0, &got), -EINTR);
    go_on(other);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(openers[i].code, 0);
    }
    OK(cw_array_new(client, "cpu", &layout, 0, &got));
    cw_array_close(got);
    cw_array_close(own);
    cw_array_close(there);
    cw_client_unref(client);
    cw_client_unref(other);
}

static void a_fork_waits_for_a_while(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *array = bytes_new(client, 1 << 20, 1);
    int status;
    kill(cw_client_broker_pid(client), SIGSTOP);
    pid_t child = fork();
    if (child == 0)
        _exit(bytes_are(array, 1 << 20, 1) ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    go_on(other);
    OK(cw_array_put(array, "after", 0, NULL, 0)); /* the late answer is nobody's */
    cw_array_close(array);
    cw_client_unref(client);
    cw_client_unref(other);
}

/* What is in memory that this process has mapped is found there, also by the first who looks. */
static void a_first_get_of_what_is_mapped_asks_nobody(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 1000, 7), *got;
    OK(cw_array_put(array, "x", 0, NULL, 0));
    kill(cw_client_broker_pid(client), SIGSTOP);
    OK(cw_get_within(client, "x", 0, SECOND, &got));
    assert_true(bytes_are(got, 1000, 7));
    cw_array_close(got);
    assert_int_equal(cw_get_within(client, "y", 0, SECOND, &got), -ENOENT);
    kill(cw_client_broker_pid(client), SIGCONT);
    cw_array_close(array);
    cw_client_unref(client);
}

/* A loop that serves others: whatever it calls, the broker is not waited for. */
static void *ask_nobody(void *context) {
    cw_client *client = context;
    int64_t large = 1 << 28;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &large, .dtype = "|u1"};
    cw_array *got;
    cw_asks_nobody();
    assert_int_equal(cw_ping(client), CW_WOULD_WAIT);
    assert_int_equal(cw_get(client, "there", 0, &got), CW_WOULD_WAIT);
    assert_int_equal(cw_array_new(client, "cpu", &layout, 0, &got), CW_WOULD_WAIT);
    assert_int_equal(cw_remove(client, "x"), CW_WOULD_WAIT);
    OK(cw_get(client, "x", 0, &got));
    assert_true(bytes_are(got, 1000, 7));
    assert_int_equal(cw_array_put(got, "y", 0, NULL, 0), CW_WOULD_WAIT);
    cw_array_close(got);
    return NULL;
}

static void who_asks_nobody_waits_for_nobody(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *array = bytes_new(client, 1000, 7), *there = bytes_new(other, 1000, 8), *got;
    pthread_t thread;
    OK(cw_array_put(array, "x", 0, NULL, 0));
    OK(cw_array_put(there, "there", 0, NULL, 0));
    kill(cw_client_broker_pid(client), SIGSTOP);
    assert_int_equal(pthread_create(&thread, NULL, ask_nobody, client), 0);
    pthread_join(thread, NULL);
    kill(cw_client_broker_pid(client), SIGCONT);
    OK(cw_get(client, "there", 0, &got)); /* other threads ask as ever */
    assert_int_equal(cw_get(client, "y", 0, &got), -ENOENT);
    cw_array_close(got);
    cw_array_close(array);
    cw_array_close(there);
    cw_client_unref(client);
    cw_client_unref(other);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(closing_waits_for_nobody),
        TEST(all_that_is_kept_arrives_however_often_the_ring_is_full),
        TEST(who_says_the_same_again_and_again_keeps_it_once),
        TEST(a_session_ends_behind_what_waits),
#if !CW_TEST_SANITIZED
        TEST(a_slab_is_given_back_though_no_memory_is_left_to_say_so),
#endif
        TEST(what_is_kept_goes_with_a_killed_broker),
        TEST(a_signal_ends_each_wait),
        TEST(a_signal_that_ends_a_put_leaves_it_open),
        TEST(a_thread_that_waits_holds_up_nobody),
        TEST(a_first_get_of_what_is_mapped_asks_nobody),
        TEST(who_asks_nobody_waits_for_nobody),
        TEST(a_fork_waits_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
