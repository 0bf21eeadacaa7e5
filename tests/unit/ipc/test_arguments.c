/*
 * The promises to who gives a number that is none: -EINVAL, with a sentence that names what was
 * wrong, and nothing done.
 */
#include "tests/unit/ipc/client_support.h"

#define WORKERS 2u
#define CELLS   2u

static void refused(int code, const char *says) {
    assert_int_equal(code, -EINVAL);
    if (!strstr(cw_error(), says))
        fail_msg("\"%s\" does not say \"%s\"", cw_error(), says);
}

static void memory_lies_on_the_host_or_on_a_gpu_with_a_number(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, 10, 1);
    uint8_t byte = 2;
    for (int gpu = -2; gpu > -4; gpu--) {
        refused(cw_array_copy_in(array, 0, &byte, gpu, 1, NULL), "gpu");
        refused(cw_array_copy_out(array, 0, &byte, gpu, 1, NULL), "gpu");
    }
    assert_int_equal(byte, 2);
    assert_true(bytes_are(array, 10, 1));
    cw_array_close(array);
    cw_client_unref(client);
}

static void sizes_that_nothing_has_are_told_as_they_were_given(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *memory, *array;
    cw_queue *queue;
    uint64_t loan;
    refused(cw_array_at(client, &loan, UINT64_MAX, &array, &loan), "18446744073709551615 bytes");
    refused(cw_array_at(client, &loan, 1ull << 63, &array, &loan), "9223372036854775808 bytes");
    for (uint64_t limit = 0; limit <= 100; limit += 100) {
        OK(cw_queue_new(client, 0, limit, &memory));
        OK(cw_queue_open(memory, &queue));
        assert_int_equal(cw_queue_put(queue, "x", 1, NULL, 0, UINT64_MAX, 0), -EMSGSIZE);
        assert_non_null(strstr(cw_error(), "1 bytes and its arrays 18446744073709551615"));
        cw_queue_close(queue);
        cw_array_close(memory);
    }
    cw_client_unref(client);
}

static void a_handle_of_zeros_is_none(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *memory;
    cw_queue *queue;
    cw_queue_info info;
    cw_handle zeros = {.instance = 0};
    OK(cw_queue_new(client, 0, 0, &memory));
    OK(cw_queue_open(memory, &queue));
    refused(cw_queue_put(queue, "x", 1, &zeros, 1, 0, 0), "handle 0");
    cw_queue_look_at(queue, &info);
    assert_int_equal(info.put, 0);
    cw_queue_close(queue);
    cw_array_close(memory);
    cw_client_unref(client);
}

static cw_pool *pool_make(void **memory, uint64_t *bytes) {
    cw_pool *pool;
    *bytes = cw_pool_bytes(WORKERS, CELLS, 2);
    *memory = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(*memory != MAP_FAILED);
    OK(cw_pool_new(*memory, *bytes, WORKERS, CELLS, 2, &pool));
    return pool;
}

static void a_worker_is_in_one_group_until_it_is_buried(void **state) {
    (void)state;
    void *memory;
    uint64_t bytes;
    cw_pool *pool = pool_make(&memory, &bytes);
    cw_task task;
    OK(cw_pool_assign(pool, 0, 1));
    for (uint32_t group = 0; group < 2; group++)
        refused(cw_pool_assign(pool, 0, group), "worker 0 is in group 1");
    OK(cw_pool_assign(pool, 1, 1));
    assert_int_equal(cw_pool_bury(pool, 0, &task), -EAGAIN);
    OK(cw_pool_assign(pool, 0, 0));
    cw_pool_delete(pool);
    munmap(memory, bytes);
}

static void a_worker_without_a_place_is_not_told_of_its_number(void **state) {
    (void)state;
    void *memory;
    uint64_t bytes;
    cw_pool *pool = pool_make(&memory, &bytes);
    refused(cw_worker_open(memory, bytes, WORKERS, CELLS, 2, 0, 0, 0, NULL), "NULL was given");
    cw_worker *worker;
    refused(cw_worker_open(memory, bytes, WORKERS, CELLS, 2, 2, 0, 0, &worker), "no worker 2");
    cw_pool_delete(pool);
    munmap(memory, bytes);
}

/* Nothing there, in use, to leave: no failures, but cw_error() speaks of nothing older. */
static void says(int code, int wanted, const char *words) {
    assert_int_equal(code, wanted);
    if (!strstr(cw_error(), words))
        fail_msg("%d: \"%s\" does not say \"%s\"", code, cw_error(), words);
    refused(cw_pool_use(NULL, 1), "a pool is needed"); /* the next one's older sentence */
}

static void what_only_says_not_now_has_a_sentence_of_its_own(void **state) {
    (void)state;
    void *memory;
    uint64_t bytes;
    cw_pool *pool = pool_make(&memory, &bytes);
    cw_worker *worker;
    cw_task tasks[CELLS], task;
    uint8_t data[CW_POOL_DATA_MAX];
    OK(cw_pool_assign(pool, 0, 0));
    OK(cw_worker_open(memory, bytes, WORKERS, CELLS, 2, 0, 0, 0, &worker));
    refused(cw_pool_use(NULL, 1), "a pool is needed");
    says(cw_pool_collect(pool, &task), -EAGAIN, "no answer");
    says(cw_worker_peek(worker, 0, data, &task), -EAGAIN, "no task");
    for (uint32_t i = 0; i < CELLS; i++)
        OK(cw_pool_reserve(pool, &tasks[i]));
    says(cw_pool_reserve(pool, &task), -EAGAIN, "no cell");
    for (uint32_t i = 0; i < CELLS; i++)
        OK(cw_pool_submit(pool, &tasks[i]));
    OK(cw_worker_take(worker, &task));
    says(cw_pool_withdraw(pool, task.cell), -EBUSY, "worker has taken");
    (void)cw_pool_ask(pool);
    says(cw_worker_take(worker, &task), -EDQUOT, "asks its workers to give memory back");
    uint32_t number;
    assert_int_equal(cw_worker_must_heed(worker, &number), 1);
    cw_worker_heed(worker, number, 0);
    OK(cw_pool_dismiss(pool, 0));
    says(cw_worker_take(worker, &task), -ESHUTDOWN, "is to leave");
    assert_int_equal(cw_pool_bury(pool, 0, &task), 0);
    says(cw_pool_bury(pool, 0, &task), -EAGAIN, "nothing more");
    cw_worker_close(worker);
    cw_pool_delete(pool);
    munmap(memory, bytes);
}

static void a_loan_that_has_not_ended_is_said(void **state) {
    (void)state;
    cw_client *client = client_open();
    uint64_t loan;
    says(cw_loan_next(client, &loan), -EAGAIN, "no suballocation");
    cw_client_unref(client);
}

#define WITH_FOLDER(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(memory_lies_on_the_host_or_on_a_gpu_with_a_number),
        WITH_FOLDER(sizes_that_nothing_has_are_told_as_they_were_given),
        WITH_FOLDER(a_handle_of_zeros_is_none),
        cmocka_unit_test(a_worker_is_in_one_group_until_it_is_buried),
        cmocka_unit_test(a_worker_without_a_place_is_not_told_of_its_number),
        cmocka_unit_test(what_only_says_not_now_has_a_sentence_of_its_own),
        WITH_FOLDER(a_loan_that_has_not_ended_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
