/*
 * The promises of cableway.h about queues, with a broker.
 */
#include "tests/unit/ipc/client_support.h"

#include <sys/time.h>

#include "shm/tasks/queue.h"
#include "shm/base/task.h"

static cw_client *client;
static cw_array *array;
static cw_queue *queue;

static void make(uint64_t max_items, uint64_t max_bytes) {
    client = client_open();
    OK(cw_queue_new(client, max_items, max_bytes, &array));
    OK(cw_queue_open(array, &queue));
}

static void unmake(void) {
    cw_queue_close(queue);
    cw_array_close(array);
    cw_client_unref(client);
}

static int put(uint64_t number, uint64_t bytes, int64_t timeout_ns) {
    static _Thread_local uint64_t data[48 << 10];
    data[0] = number;
    for (uint64_t i = 1; i < bytes / 8; i++)
        data[i] = number * 31 + i;
    return cw_queue_put(queue, data, bytes, NULL, 0, 0, timeout_ns);
}

static bool is(const cw_item *item, uint64_t number, uint64_t bytes) {
    const uint64_t *data = item->data;
    if (item->size_bytes != bytes || data[0] != number)
        return false;
    for (uint64_t i = 1; i < bytes / 8; i++)
        if (data[i] != number * 31 + i)
            return false;
    return true;
}

static cw_queue_info look(void) {
    cw_queue_info info;
    cw_queue_look_at(queue, &info);
    return info;
}

static void items_come_in_order(void **state) {
    (void)state;
    make(0, 0);
    cw_item item = {.data = NULL};
    assert_int_equal(cw_queue_get(queue, &item, 0), -ETIMEDOUT);
    uint64_t taken = 0;
    for (uint64_t n = 0; n < 3000; n++) {
        OK(put(n, 8 + n % 7 * 40, 0));
        if (n % 3 == 0) {
            OK(cw_queue_get(queue, &item, 0));
            assert_true(is(&item, taken, 8 + taken % 7 * 40));
            taken++;
        }
    }
    assert_int_equal(look().items, 3000 - taken);
    for (; taken < 3000; taken++) {
        OK(cw_queue_get(queue, &item, 0));
        assert_true(is(&item, taken, 8 + taken % 7 * 40));
    }
    assert_int_equal(look().bytes, 0);
    assert_int_equal(cw_queue_get(queue, &item, SECOND / 100), -ETIMEDOUT);
    cw_item_deinit(&item);
    unmake();
}

static void many_items_before_the_first_is_read(void **state) {
    (void)state;
    make(0, 0);
    cw_item item = {.data = NULL};
    for (int round = 0; round < 2; round++) {
        for (uint64_t n = 0; n < 200000; n++)
            OK(put(n, 64, 0));
        assert_int_equal(look().items, 200000);
        for (uint64_t n = 0; n < 200000; n++) {
            OK(cw_queue_get(queue, &item, 0));
            assert_true(is(&item, n, 64));
        }
    }
    uint64_t most = cw_queue_max(queue);
    assert_int_equal(put(1, most, 0), 0);
    assert_int_equal(cw_queue_put(queue, &item, most + 1, NULL, 0, 0, 0), -EMSGSIZE);
    OK(cw_queue_get(queue, &item, 0));
    assert_true(is(&item, 1, most));
    cw_item_deinit(&item);
    EVENTUALLY(gauge(client, CW_GAUGE_transits) == 1); /* the ring that is in use */
    unmake();
}

static void it_is_bounded_in_items(void **state) {
    (void)state;
    make(3, 0);
    cw_item item = {.data = NULL};
    for (uint64_t n = 0; n < 3; n++)
        OK(put(n, 8, 0));
    assert_int_equal(put(3, 8, 0), -ETIMEDOUT);
    assert_int_equal(put(3, 8, SECOND / 100), -ETIMEDOUT);
    OK(cw_queue_get(queue, &item, 0));
    OK(put(3, 8, 0));
    assert_int_equal(put(4, 8, 0), -ETIMEDOUT);
    for (uint64_t n = 1; n < 4; n++) {
        OK(cw_queue_get(queue, &item, 0));
        assert_true(is(&item, n, 8));
    }
    cw_item_deinit(&item);
    unmake();
}

static void it_is_bounded_in_bytes(void **state) {
    (void)state;
    make(0, 1000);
    cw_item item = {.data = NULL};
    OK(put(0, 600, 0));
    assert_int_equal(put(1, 408, 0), -ETIMEDOUT);
    OK(put(1, 400, 0));
    assert_int_equal(put(2, 8, 0), -ETIMEDOUT);
    assert_int_equal(put(2, 1008, 0), -EMSGSIZE);
    assert_int_equal(cw_queue_put(queue, "x", 1, NULL, 0, UINT64_MAX, 0), -EMSGSIZE);
    OK(cw_queue_get(queue, &item, 0));
    assert_int_equal(look().bytes, 400);
    OK(put(2, 600, 0));
    assert_int_equal(look().bytes, 1000);
    cw_item_deinit(&item);
    unmake();
}

static void *put_later(void *unused) {
    (void)unused;
    usleep(50000);
    return (void *)(intptr_t)put(7, 64, 0);
}

static void *get_later(void *unused) {
    (void)unused;
    cw_item item = {.data = NULL};
    usleep(50000);
    int code = cw_queue_get(queue, &item, 0);
    cw_item_deinit(&item);
    return (void *)(intptr_t)code;
}

static void waits_end_when_there_is_something(void **state) {
    (void)state;
    make(1, 0);
    cw_item item = {.data = NULL};
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, put_later, NULL);
    OK(cw_queue_get(queue, &item, -1));
    assert_true(is(&item, 7, 64));
    pthread_join(thread, &result);
    assert_null(result);
    OK(put(1, 8, 0));
    pthread_create(&thread, NULL, get_later, NULL);
    OK(put(2, 8, 60 * SECOND));
    pthread_join(thread, &result);
    assert_null(result);
    cw_item_deinit(&item);
    unmake();
}

/* ---- somebody is in the middle of a put, or a get ---- */

static struct call {
    pthread_t thread;
    int64_t timeout_ns;
    atomic_bool over;
    int code;
} calls[2];

static void *put_beside(void *context) {
    struct call *call = context;
    call->code = put(1, 8, call->timeout_ns);
    call->over = true;
    return NULL;
}

static void *get_beside(void *context) {
    struct call *call = context;
    cw_item item = {.data = NULL};
    call->code = cw_queue_get(queue, &item, call->timeout_ns);
    cw_item_deinit(&item);
    call->over = true;
    return NULL;
}

static struct cw_queue_core *core(void) {
    return (struct cw_queue_core *)((uint8_t *)cw_array_data(array) + 64);
}

/* Calls with no time, and with little, while we have the turn of that end: they wait for it. */
static void call_beside(struct cw_queue_end *end, void *(*function)(void *)) {
    for (int i = 0; i < 2; i++) {
        calls[i] = (struct call){.timeout_ns = i * 1000};
        pthread_create(&calls[i].thread, NULL, function, &calls[i]);
    }
    EVENTUALLY(cw_bell_waits(&end->bell) || calls[0].over || calls[1].over);
    assert_false(calls[0].over || calls[1].over);
}

static void calls_end_well(void) {
    for (int i = 0; i < 2; i++) {
        pthread_join(calls[i].thread, NULL);
        OK(calls[i].code);
    }
}

static void who_is_putting_makes_no_queue_full(void **state) {
    (void)state;
    for (uint64_t places = 0; places < 3; places += 2) {
        make(places, 0);
        struct cw_queue_place place;
        OK(cw_queue_put_begin(core(), 8, 0, &place));
        assert_int_equal(put(1, 8, CW_QUEUE_TRY), -EBUSY);
        call_beside(&core()->put, put_beside);
        cw_queue_put_cancel(core());
        calls_end_well();
        assert_int_equal(look().items, 2);
        assert_int_equal(put(1, 8, CW_QUEUE_TRY), places ? -ETIMEDOUT : 0);
        unmake();
    }
}

static void who_is_taking_makes_no_queue_empty(void **state) {
    (void)state;
    make(0, 0);
    struct cw_queue_place place;
    cw_item item = {.data = NULL};
    OK(put(1, 8, 0));
    OK(put(2, 8, 0));
    OK(cw_queue_get_begin(core(), 0, &place));
    assert_int_equal(cw_queue_get(queue, &item, CW_QUEUE_TRY), -EBUSY);
    call_beside(&core()->get, get_beside);
    cw_queue_get_cancel(core());
    calls_end_well();
    assert_int_equal(cw_queue_get(queue, &item, CW_QUEUE_TRY), -ETIMEDOUT);
    cw_item_deinit(&item);
    unmake();
}

/* ---- who watches ---- */

static void *watch(void *context) {
    struct call *call = context;
    cw_queue_sight_words sight = {.words = {0}};
    while (!call->over) {
        cw_queue_watch_begin(queue, call->timeout_ns != 0, &sight);
        if (look().items != (uint64_t)call->timeout_ns)
            call->over = true;
        else
            call->code = cw_queue_watch_wait(queue, &sight);
    }
    return NULL;
}

static void who_watches_sees_puts_and_takes(void **state) {
    (void)state;
    make(0, 0);
    cw_item item = {.data = NULL};
    for (int i = 0; i < 2; i++) { /* timeout_ns: how many there are */
        struct call *call = &calls[i];
        *call = (struct call){.timeout_ns = i};
        pthread_create(&call->thread, NULL, watch, call);
        struct cw_bell *bell = i ? &core()->freed : &core()->filled;
        EVENTUALLY(cw_bell_waits(bell));
        assert_false(call->over);
        if (i == 0)
            OK(put(1, 8, 0));
        else
            OK(cw_queue_get(queue, &item, 0));
        pthread_join(call->thread, NULL);
    }
    cw_item_deinit(&item);
    unmake();
}

static void what_came_between_begin_and_wait_ends_the_wait(void **state) {
    (void)state;
    make(0, 0);
    cw_queue_sight_words sight = {.words = {0}};
    cw_queue_watch_begin(queue, 0, &sight);
    OK(put(1, 8, 0));
    OK(cw_queue_watch_wait(queue, &sight));
    cw_queue_watch_begin(queue, 1, &sight);
    cw_queue_watch_rouse(queue);
    OK(cw_queue_watch_wait(queue, &sight));
    unmake();
}

static void who_watches_sees_what_a_writer_had_put_that_died_in_its_turn(void **state) {
    (void)state;
    make(0, 0);
    pid_t child = fork();
    if (child == 0) { /* its turn, and nothing after it */
        struct cw_queue_place place;
        _exit(cw_queue_put_begin(core(), 8, 0, &place) != 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    uint64_t holder = atomic_load(&core()->put.turn);
    assert_int_not_equal(holder, 0);
    cw_queue_sight_words sight = {.words = {0}};
    cw_queue_watch_begin(queue, 0, &sight);
    OK(cw_queue_watch_wait(queue, &sight)); /* not for ever: somebody had the turn */
    assert_int_equal(atomic_load(&core()->put.turn), 0);
    unmake();
}

static void on_signal(int number) {
    (void)number;
}

static void *wait_get(void *timeout_ns) {
    cw_item item = {.data = NULL};
    return (void *)(intptr_t)cw_queue_get(queue, &item, *(int64_t *)timeout_ns);
}

static void *wait_put(void *timeout_ns) {
    return (void *)(intptr_t)put(2, 8, *(int64_t *)timeout_ns);
}

static void *wait_done(void *timeout_ns) {
    return (void *)(intptr_t)cw_queue_wait_done(queue, *(int64_t *)timeout_ns);
}

static void *wait_watch(void *timeout_ns) {
    (void)timeout_ns; /* it has none */
    cw_queue_sight_words sight = {.words = {0}};
    int code = cw_queue_watch_begin(queue, 1, &sight);
    return (void *)(intptr_t)(code ? code : cw_queue_watch_wait(queue, &sight));
}

/* One rule for all that wait: by a handler with SA_RESTART or without, with a limit or without. */
static void a_signal_ends_a_wait(void **state) {
    (void)state;
    make(1, 0);
    void *(*const waits[])(void *) = {wait_get, wait_put, wait_done, wait_watch};
    int64_t limits[] = {60 * SECOND, -1};
    const struct itimerval none = {0}, soon = {{0, 30000}, {0, 30000}};
    for (int i = 0; i < 4; i++) {
        if (i == 1)
            OK(put(1, 8, 0));
        for (int j = 0; j < 4; j++) {
            struct sigaction action = {.sa_handler = on_signal, .sa_flags = j / 2 ? SA_RESTART : 0};
            sigaction(SIGALRM, &action, NULL);
            setitimer(ITIMER_REAL, &soon, NULL);
            int code = (int)(intptr_t)waits[i](&limits[j % 2]);
            setitimer(ITIMER_REAL, &none, NULL);
            if (code != -EINTR)
                fail_msg("wait %d, case %d: %d", i, j, code);
        }
    }
    assert_int_equal(look().items, 1);
    unmake();
}

static int put_array(int64_t count, int value) {
    cw_array *made = bytes_new(client, count, value);
    cw_handle handle;
    OK(cw_array_export(made, 1, &handle));
    int code = cw_queue_put(queue, "x", 1, &handle, 1, (uint64_t)count, 0);
    if (code)
        cw_handle_discard(client, &handle);
    cw_array_close(made); /* the queue holds it now */
    return code;
}

static void arrays_travel_by_handle(void **state) {
    (void)state;
    make(0, 1 << 20);
    cw_item item = {.data = NULL};
    for (int n = 0; n < 8; n++)
        OK(put_array(100000, n + 1));
    assert_int_equal(look().bytes, 8 * 100001);
    EVENTUALLY(gauge(client, CW_GAUGE_transits) == 8);
    for (int n = 0; n < 8; n++) {
        assert_int_equal(cw_queue_get(queue, &item, 0), 1);
        assert_int_equal(item.count, 1);
        assert_true(bytes_are(item.arrays[0], 100000, n + 1));
    }
    cw_item_deinit(&item);
    EVENTUALLY(gauge(client, CW_GAUGE_transits) == 0);
    unmake();
}

static void an_item_outlives_its_writer_and_every_limit(void **state) {
    (void)state;
    setenv("CABLEWAY_TRANSIT_SECONDS", "2", 1);
    make(0, 0);
    unsetenv("CABLEWAY_TRANSIT_SECONDS");
    pid_t child = fork();
    if (child == 0) {
        cw_client *own;
        CHILD(cw_connect(NULL, NULL, 0, &own) == 0);
        CHILD(cw_array_renew(array, own) == 0);
        client = own;
        CHILD(cw_queue_open(array, &queue) == 0);
        for (uint64_t n = 0; n < 3000; n++) /* grows */
            CHILD(put(n, 64, 0) == 0);
        CHILD(put_array(100000, 5) == 0);
        cw_ping(own);
        kill(getpid(), SIGKILL);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(WTERMSIG(status), SIGKILL);
    usleep(5000000); /* two limits */
    cw_item item = {.data = NULL};
    for (uint64_t n = 0; n < 3000; n++) {
        OK(cw_queue_get(queue, &item, 0));
        assert_true(is(&item, n, 64));
    }
    assert_int_equal(cw_queue_get(queue, &item, 0), 1);
    assert_true(bytes_are(item.arrays[0], 100000, 5));
    cw_item_deinit(&item);
    OK(put_array(100000, 6));
    unmake();
    client = client_open();
    EVENTUALLY(gauge(client, CW_GAUGE_transits) == 0); /* they end with the queue */
    cw_client_unref(client);
}

static void an_item_whose_memory_is_gone_is_passed_over(void **state) {
    (void)state;
    make(0, 0);
    cw_item item = {.data = NULL};
    cw_array *made = bytes_new(client, 100000, 1);
    cw_handle handle;
    OK(cw_array_export(made, 1, &handle));
    OK(cw_queue_put(queue, "x", 1, &handle, 1, 0, 0));
    OK(cw_handle_discard(client, &handle)); /* as a reader does that dies behind it */
    cw_array_close(made);
    OK(put(5, 8, 0));
    EVENTUALLY(gauge(client, CW_GAUGE_transits) == 0);
    EVENTUALLY(counter(client, CW_COUNTER_blocks_reclaimed) >= 1);
    OK(cw_queue_get(queue, &item, 0));
    assert_true(is(&item, 5, 8));
    assert_int_equal(look().lost, 1);
    assert_int_equal(look().unfinished, 1);
    cw_item_deinit(&item);
    unmake();
}

static void *done_later(void *unused) {
    (void)unused;
    usleep(50000);
    return (void *)(intptr_t)cw_queue_task_done(queue);
}

static void join_waits_for_all_that_was_put(void **state) {
    (void)state;
    make(0, 0);
    cw_item item = {.data = NULL};
    OK(cw_queue_wait_done(queue, 0));
    assert_int_equal(cw_queue_task_done(queue), -EINVAL);
    OK(put(1, 8, 0));
    OK(put(2, 8, 0));
    assert_int_equal(cw_queue_wait_done(queue, SECOND / 100), -ETIMEDOUT);
    OK(cw_queue_get(queue, &item, 0));
    OK(cw_queue_task_done(queue));
    assert_int_equal(cw_queue_wait_done(queue, 0), -ETIMEDOUT);
    OK(cw_queue_get(queue, &item, 0));
    pthread_t thread;
    pthread_create(&thread, NULL, done_later, NULL);
    OK(cw_queue_wait_done(queue, 60 * SECOND));
    pthread_join(thread, NULL);
    assert_int_equal(cw_queue_task_done(queue), -EINVAL);
    cw_item_deinit(&item);
    unmake();
}

static void other_memory_is_refused(void **state) {
    (void)state;
    make(0, 0);
    cw_queue *other;
    cw_array *bytes = bytes_new(client, 100, 0);
    assert_int_equal(cw_queue_open(bytes, &other), -EPROTO);
    cw_array_close(bytes);
    bytes = bytes_new(client, (int64_t)cw_array_nbytes(array), 0);
    assert_int_equal(cw_queue_open(bytes, &other), -EPROTO);
    cw_array_close(bytes);
    /* Whatever somebody wrote into the queue's memory: an error, and no harm. */
    struct chance chance = chance_init(1);
    uint8_t *memory = cw_array_data(array);
    for (int round = 0; round < 2000; round++) {
        cw_item item = {.data = NULL};
        put(1, 64, CW_QUEUE_TRY); /* a turn may name anybody now */
        for (int i = 0; i < 4; i++) {
            uint64_t at = 64 + chance_below(&chance, i % 2 ? 640 : cw_array_nbytes(array) - 64);
            if (at >= 128 + 24 && at < 128 + 32)
                continue;
            memory[at] = (uint8_t)chance_next(&chance);
        }
        for (int i = 0; i < 4; i++) {
            put(2, 64, CW_QUEUE_TRY);
            cw_queue_get(queue, &item, CW_QUEUE_TRY);
        }
        cw_item_deinit(&item);
    }
    unmake();
}

static void tasks_are_told_apart(void **state) {
    (void)state;
    uint64_t self = cw_task_self();
    assert_true(self != 0 && self == cw_task_self() && cw_task_runs(self));
    assert_false(cw_task_runs(self ^ 1ull << 30)); /* our number, another start */
    pid_t child = fork();
    if (child == 0)
        _exit(cw_task_self() == self);
    siginfo_t info;
    waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
    assert_int_equal(info.si_status, 0);
    assert_false(cw_task_runs((uint64_t)child | self >> 22 << 22)); /* a zombie is dead */
    waitpid(child, NULL, 0);
    assert_false(cw_task_runs((uint64_t)child | self >> 22 << 22));
    assert_true(cw_task_world() != 0);
}

int main(void) {
    chance_seed(); /* before there are threads */
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_are_told_apart),
        TEST(items_come_in_order),
        TEST(many_items_before_the_first_is_read),
        TEST(it_is_bounded_in_items),
        TEST(it_is_bounded_in_bytes),
        TEST(waits_end_when_there_is_something),
        TEST(who_is_putting_makes_no_queue_full),
        TEST(who_is_taking_makes_no_queue_empty),
        TEST(who_watches_sees_puts_and_takes),
        TEST(what_came_between_begin_and_wait_ends_the_wait),
        TEST(who_watches_sees_what_a_writer_had_put_that_died_in_its_turn),
        TEST(a_signal_ends_a_wait),
        TEST(arrays_travel_by_handle),
        TEST(an_item_outlives_its_writer_and_every_limit),
        TEST(an_item_whose_memory_is_gone_is_passed_over),
        TEST(join_waits_for_all_that_was_put),
        TEST(other_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
