/*
 * The promises of a queue's items that arrays go with, against a real broker: a handle that is none
 * is refused, and where one lies in the queue all the same it stops nobody.
 */
#include "tests/unit/ipc/client_support.h"

#include "ipc/client.h"
#include "shm/base/task.h"

struct made {
    cw_client *client;
    cw_array *memory, *array;
    cw_queue *queue;
    cw_handle handle; /* of array, under way */
};

static struct made queue_make(void) {
    struct made made = {.client = client_open()};
    OK(cw_queue_new(made.client, 10, 0, &made.memory));
    OK(cw_queue_open(made.memory, &made.queue));
    made.array = bytes_new(made.client, 80, 7);
    OK(cw_array_export(made.array, 1, &made.handle));
    return made;
}

static void queue_end(struct made *made) {
    cw_queue_close(made->queue);
    cw_array_close(made->array);
    cw_array_close(made->memory);
    cw_client_unref(made->client);
}

static void a_forked_child_has_its_parents_queue_for_small_items_alone(void **state) {
    (void)state;
    struct made made = queue_make();
    OK(cw_queue_put(made.queue, "first", 5, NULL, 0, 0, 0));
    OK(cw_queue_put(made.queue, "array", 5, &made.handle, 1, 0, 0));
    cw_item item = {.data = NULL};
    pid_t child = fork();
    if (child == 0) {
        cw_handle handle = {.instance = 1};
        char large[100000] = "";
        CHILD(cw_queue_get(made.queue, &item, 0) == 0 && !memcmp(item.data, "first", 5));
        CHILD(cw_queue_get(made.queue, &item, 0) == -EINVAL); /* it stays, for who can open it */
        CHILD(cw_queue_put(made.queue, "second", 6, NULL, 0, 0, 0) == 0);
        CHILD(cw_queue_put(made.queue, "x", 1, &handle, 1, 0, 0) == -EINVAL);
        CHILD(cw_queue_put(made.queue, large, sizeof large, NULL, 0, 0, 0) == -EINVAL);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(cw_queue_get(made.queue, &item, 0), 1);
    assert_true(bytes_are(item.arrays[0], 80, 7));
    OK(cw_queue_get(made.queue, &item, 0));
    assert_memory_equal(item.data, "second", 6);
    assert_int_equal(cw_queue_get(made.queue, &item, 0), -ETIMEDOUT);
    cw_item_deinit(&item);
    queue_end(&made);
}

struct waiter {
    cw_queue *queue;
    volatile uint32_t word;
    int code;
};

static void *get_unless(void *argument) {
    struct waiter *waiter = argument;
    cw_item item = {.data = NULL};
    waiter->code = cw_queue_get_unless(waiter->queue, &item, -1, &waiter->word, 0);
    cw_item_deinit(&item);
    return NULL;
}

static void waits_for_an_item_are_ended_by_a_word(void **state) {
    (void)state;
    struct made made = queue_make();
    pthread_t threads[3];
    struct waiter waiter = {.queue = made.queue, .code = 1};
    struct waiter waiters[3] = {waiter, waiter, waiter};
    assert_int_equal(cw_queue_gets_end(NULL, &waiter.word), -EINVAL);
    assert_int_equal(cw_queue_gets_end(made.queue, NULL), -EINVAL);
    for (int i = 0; i < 3; i++)
        OK(pthread_create(&threads[i], NULL, get_unless, &waiters[i]));
    usleep(100000); /* until they sleep */
    for (int i = 0; i < 3; i++) {
        OK(cw_queue_gets_end(made.queue, &waiters[i].word));
        OK(pthread_join(threads[i], NULL)); /* the others wait on */
        assert_int_equal(waiters[i].code, -EAGAIN);
    }
    assert_int_equal(waiters[0].word, 1);
    get_unless(&waiters[0]); /* at once: the word is another one */
    assert_int_equal(waiters[0].code, -EAGAIN);
    OK(cw_queue_put(made.queue, "x", 1, NULL, 0, 0, 0));
    get_unless(&waiters[0]); /* what is there is taken all the same */
    assert_int_equal(waiters[0].code, 0);
    queue_end(&made);
}

static void a_handle_that_can_be_none_is_refused_at_put(void **state) {
    (void)state;
    struct made made = queue_make();
    cw_handle bad[3] = {made.handle, made.handle, made.handle};
    cw_queue_info info;
    bad[0].size_bytes = 1ull << 63;
    bad[1].size_bytes = UINT64_MAX;
    bad[2].offset_bytes = UINT64_MAX - 1;
    for (int i = 0; i < 3; i++) {
        cw_handle both[2] = {made.handle, bad[i]};
        assert_int_equal(cw_queue_put(made.queue, "bad", 3, both, 2, 0, 0), -EINVAL);
        assert_non_null(strstr(cw_error(), "handle 1"));
    }
    cw_queue_look_at(made.queue, &info);
    assert_int_equal(info.put, 0);
    OK(cw_handle_discard(made.client, &made.handle)); /* it stayed the caller's */
    queue_end(&made);
}

/* Puts an item whose one handle then becomes bad in the queue's memory, as another process can do
 * that puts by itself, and a good item behind it: that one is reached, the bad one is lost. */
static void passes_over(const cw_handle *bad) {
    struct made made = queue_make();
    cw_item item = {.data = NULL};
    cw_queue_info info;
    OK(cw_queue_put(made.queue, "bad", 3, &made.handle, 1, 0, 0));
    OK(cw_queue_put(made.queue, "good", 4, NULL, 0, 0, 0));
    uint8_t *memory = cw_array_data(made.memory);
    uint64_t bytes = cw_array_nbytes(made.memory), at = 0;
    while (at + sizeof *bad < bytes && memcmp(memory + at, &made.handle, sizeof *bad) != 0)
        at += 8;
    assert_true(at + sizeof *bad < bytes);
    cw_handle changed = *bad;
    changed.instance = made.handle.instance;
    changed.token = made.handle.token;
    if (!changed.gen) { /* its own block, another range */
        changed.slab = made.handle.slab;
        changed.block = made.handle.block;
        changed.gen = made.handle.gen;
    }
    memcpy(memory + at, &changed, sizeof changed);
    int count = cw_queue_get(made.queue, &item, 0);
    if (count < 0)
        fail_msg("get: %d: %s", count, cw_error());
    assert_int_equal(count, 0);
    assert_int_equal(item.size_bytes, 4);
    assert_memory_equal(item.data, "good", 4);
    cw_queue_look_at(made.queue, &info);
    assert_int_equal(info.items, 0);
    assert_int_equal(info.lost, 1);
    cw_item_deinit(&item);
    queue_end(&made);
}

static void an_item_whose_handle_names_no_bytes_is_passed_over_as_lost(void **state) {
    (void)state;
    passes_over(&(cw_handle){.size_bytes = 1ull << 63});
    passes_over(&(cw_handle){.size_bytes = UINT64_MAX});
    passes_over(&(cw_handle){.size_bytes = INT64_MAX});
    passes_over(&(cw_handle){.size_bytes = 81ull << 40});
    passes_over(&(cw_handle){.offset_bytes = 1ull << 40, .size_bytes = 1});
}

static void an_item_whose_handle_names_no_block_is_passed_over_as_lost(void **state) {
    (void)state;
    passes_over(&(cw_handle){.slab = 1, .block = UINT32_MAX, .gen = 1, .size_bytes = 1});
    passes_over(&(cw_handle){.slab = 123456, .block = 0, .gen = 1, .size_bytes = 1});
    passes_over(&(cw_handle){.slab = 0, .block = 0, .gen = 1, .size_bytes = 1});
}

/* One item is lost with the broker for who has not mapped its memory, and is told of once; those
 * that need none come, and join() ends. */
static void what_the_broker_kept_is_lost_with_it_and_nothing_behind_it(void **state) {
    (void)state;
    struct made made = queue_make();
    cw_client *reader = client_open();
    int64_t bytes = (int64_t)cw_array_nbytes(made.memory);
    cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &bytes, .dtype = "|u1"};
    cw_handle handle;
    cw_array *memory;
    cw_queue *queue;
    cw_item item = {.data = NULL};
    cw_queue_info info;
    OK(cw_array_export(made.memory, 1, &handle));
    OK(cw_array_open(reader, &handle, &layout, 0, &memory));
    OK(cw_queue_open(memory, &queue));
    OK(cw_handle_discard(made.client, &made.handle));
    cw_array *big = bytes_new(made.client, 64 << 20, 7); /* a slab of its own */
    OK(cw_array_export(big, 1, &made.handle));
    OK(cw_queue_put(made.queue, "big", 3, &made.handle, 1, 0, 0));
    for (int i = 0; i < 2; i++)
        OK(cw_queue_put(made.queue, "small", 5, NULL, 0, 0, 0));
    kill(cw_client_broker_pid(made.client), SIGKILL);
    EVENTUALLY(!cw_task_runs(made.client->root->task));
    assert_int_equal(cw_queue_get(queue, &item, 0), -ECONNRESET);
    assert_non_null(strstr(cw_error(), "is lost"));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cw_queue_get(queue, &item, 0), 0);
        assert_memory_equal(item.data, "small", 5);
        OK(cw_queue_task_done(queue));
    }
    assert_int_equal(cw_queue_get(queue, &item, 0), -ETIMEDOUT);
    OK(cw_queue_wait_done(queue, 0));
    cw_queue_look_at(queue, &info);
    assert_int_equal(info.lost, 1);
    cw_item_deinit(&item);
    cw_queue_close(queue);
    cw_array_close(memory);
    cw_array_close(big);
    cw_client_unref(reader);
    queue_end(&made);
}

static void *wait_for_one(void *context) {
    cw_queue *queue = context;
    cw_item item = {.data = NULL};
    int code = cw_queue_get(queue, &item, -1);
    bool right = code == 0 && item.size_bytes == 4 && memcmp(item.data, "late", 4) == 0;
    cw_item_deinit(&item);
    return right ? context : NULL;
}

/* Who has its memory has the queue, also who never opened it before. */
static void a_queue_is_opened_and_waited_at_without_its_broker(void **state) {
    (void)state;
    struct made made = queue_make();
    OK(cw_handle_discard(made.client, &made.handle));
    pthread_t thread;
    void *right;
    cw_queue *late;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_one, made.queue), 0);
    kill(cw_client_broker_pid(made.client), SIGKILL);
    EVENTUALLY(!cw_task_runs(made.client->root->task));
    EVENTUALLY(cw_client_check(made.client) == -ECONNRESET);
    OK(cw_queue_open(made.memory, &late));
    assert_int_equal(cw_queue_put(late, "with", 4, &made.handle, 1, 0, 0), -ECONNRESET);
    OK(cw_queue_put(late, "late", 4, NULL, 0, 0, 0));
    assert_int_equal(pthread_join(thread, &right), 0);
    assert_ptr_equal(right, made.queue);
    cw_queue_close(late);
    queue_end(&made);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_forked_child_has_its_parents_queue_for_small_items_alone,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(waits_for_an_item_are_ended_by_a_word, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(a_handle_that_can_be_none_is_refused_at_put, folder_make,
                                        folder_remove),
        cmocka_unit_test_setup_teardown(an_item_whose_handle_names_no_bytes_is_passed_over_as_lost,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(an_item_whose_handle_names_no_block_is_passed_over_as_lost,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(a_queue_is_opened_and_waited_at_without_its_broker,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(what_the_broker_kept_is_lost_with_it_and_nothing_behind_it,
                                        folder_make, folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
