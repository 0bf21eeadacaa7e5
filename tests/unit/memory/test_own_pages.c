/*
 * The promises of CW_OWN_PAGES: an array that a fork leaves as it leaves other memory, against a
 * real broker.
 */
#include "tests/unit/ipc/client_support.h"

#define LARGE (3 << 20)

static int bytes_of(cw_client *client, const char *device, int64_t count, uint32_t flags,
                    cw_array **out) {
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    return cw_array_new(client, device, &layout, CW_OWN_PAGES | flags, out);
}

static cw_array *own(cw_client *client, int64_t count, int value) {
    cw_array *array;
    OK(bytes_of(client, "cpu", count, CW_FILLED, &array));
    memset(cw_array_data(array), value, (size_t)count);
    return array;
}

static cw_array *opened(cw_client *client, const cw_handle *handle) {
    int64_t count = (int64_t)handle->size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array;
    OK(cw_array_open(client, handle, &layout, CW_READONLY, &array));
    return array;
}

/* What another process sees of an array: all bytes of it are value. */
static void others_see(const cw_handle *handle, int value) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        cw_client *mine;
        cw_array *array;
        int64_t count = (int64_t)handle->size_bytes;
        const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
        CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
        CHILD(cw_array_open(mine, handle, &layout, CW_READONLY, &array) == 0);
        CHILD(bytes_are(array, count, value));
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
}

/* Sizes that are no multiple of a page, and neighbours on both sides. */
static void nothing_else_lies_on_its_pages(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *arrays[9];
    for (int i = 0; i < 9; i++) {
        arrays[i] = i % 2 ? own(client, LARGE + i, i) : bytes_new(client, 4096 + i, i);
        if (i % 2)
            assert_int_equal((uintptr_t)cw_array_data(arrays[i]) % 4096, 0);
    }
    for (int i = 1; i < 9; i += 2) {
        OK(cw_array_make_private(arrays[i]));
        OK(cw_array_make_private(arrays[i])); /* once more does nothing */
    }
    for (int i = 0; i < 9; i += 2) {
        cw_handle handle;
        memset(cw_array_data(arrays[i]), 100 + i, 4096u + (unsigned)i);
        OK(cw_array_export(arrays[i], 0, &handle));
        others_see(&handle, 100 + i);
    }
    for (int i = 0; i < 9; i++) {
        assert_true(i % 2 ? bytes_are(arrays[i], LARGE + i, i)
                          : bytes_are(arrays[i], 4096 + i, 100 + i));
        cw_array_close(arrays[i]);
    }
    cw_client_unref(client);
}

static void neither_side_of_a_fork_sees_the_other_write(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = own(client, LARGE, 1);
    uint8_t *bytes = cw_array_data(array);
    int turns[2][2];
    char turn = 0;
    assert_int_equal(pipe(turns[0]) | pipe(turns[1]), 0);
    OK(cw_array_make_private(array));
    assert_true(bytes_are(array, LARGE, 1));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        CHILD(read(turns[0][0], &turn, 1) == 1); /* the parent has written to the first half */
        CHILD(bytes_are(array, LARGE, 1));
        memset(bytes, 3, LARGE);
        CHILD(write(turns[1][1], &turn, 1) == 1);
        CHILD(read(turns[0][0], &turn, 1) == 1);
        cw_array_close(array);
        _exit(0);
    }
    memset(bytes, 2, LARGE / 2);
    assert_int_equal(write(turns[0][1], &turn, 1), 1);
    assert_int_equal(read(turns[1][0], &turn, 1), 1);
    assert_int_equal(bytes[0], 2);
    assert_int_equal(bytes[LARGE / 2 - 1], 2);
    assert_int_equal(bytes[LARGE / 2], 1);
    assert_int_equal(bytes[LARGE - 1], 1);
    assert_int_equal(write(turns[0][1], &turn, 1), 1);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    for (int i = 0; i < 2; i++)
        close(turns[i][0]), close(turns[i][1]);
    cw_array_close(array);
    cw_client_unref(client);
}

/* The block's next array is shared, at the same addresses. */
static void its_close_gives_the_pages_back(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        cw_client *client = client_open();
        cw_array *array = own(client, LARGE, 1);
        void *place = cw_array_data(array);
        OK(cw_array_make_private(array));
        memset(place, 2, LARGE);
        cw_array_close(array);
        cw_handle handle;
        array = own(client, LARGE, 50 + i);
        assert_ptr_equal(cw_array_data(array), place);
        OK(cw_array_export(array, 0, &handle));
        others_see(&handle, 50 + i);
        cw_array_close(array);
        cw_client_unref(client);
    }
}

static void without_a_fork_it_is_an_array_like_others(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_handle handle;
    cw_array *zeros, *array = own(client, LARGE + 1, 9);
    OK(cw_array_export(array, 0, &handle));
    assert_int_equal(handle.size_bytes, LARGE + 1);
    cw_array *seen = opened(other, &handle);
    assert_true(bytes_are(seen, LARGE + 1, 9));
    cw_array_close(array);
    assert_true(bytes_are(seen, LARGE + 1, 9));
    cw_array_close(seen);
    OK(bytes_of(client, "cpu", LARGE, CW_ZERO, &zeros)); /* on used memory, too */
    assert_true(bytes_are(zeros, LARGE, 0));
    cw_array_close(zeros);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void only_used_memory_is_reused(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array, *none, *small = bytes_new(client, 4096, 1);
    assert_int_equal(bytes_of(client, "cpu", LARGE, CW_REUSED, &none), -EAGAIN);
    array = own(client, LARGE, 2); /* and much room behind it, where nothing was yet */
    assert_int_equal(bytes_of(client, "cpu", LARGE, CW_REUSED, &none), -EAGAIN);
    void *place = cw_array_data(array);
    cw_array_close(array);
    for (int i = 0; i < 20; i++) {
        OK(bytes_of(client, "cpu", LARGE, CW_REUSED | (i % 2 ? CW_ZERO : 0), &array));
        assert_ptr_equal(cw_array_data(array), place);
        if (i % 2)
            assert_true(bytes_are(array, LARGE, 0));
        memset(cw_array_data(array), i, LARGE);
        if (i % 3 == 0)
            OK(cw_array_make_private(array));
        cw_array_close(array);
    }
    assert_int_equal(bytes_of(client, "cpu", 100, CW_REUSED, &none), -EINVAL);
    cw_array_close(small);
    cw_client_unref(client);
}

static void the_broker_may_be_gone(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = own(client, LARGE, 1), *none;
    int pid = cw_client_broker_pid(client);
    kill(pid, SIGKILL);
    while (cw_client_check(client) == 0)
        usleep(1000);
    OK(cw_array_make_private(array));
    memset(cw_array_data(array), 2, LARGE);
    assert_true(bytes_are(array, LARGE, 2));
    assert_int_equal(bytes_of(client, "cpu", LARGE, 0, &none), -ECONNRESET);
    cw_array_close(array);
    cw_client_unref(client);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, LARGE, 1), *none;
    assert_int_equal(cw_array_make_private(array), -EINVAL);
    assert_non_null(strstr(cw_error(), "CW_OWN_PAGES"));
    assert_int_equal(cw_array_make_private(NULL), -EINVAL);
    assert_int_equal(bytes_of(client, "cpu", 100, 0, &none), -EINVAL);
    assert_non_null(strstr(cw_error(), "this one has 100 on cpu"));
    cw_array_close(array);
    cw_client_unref(client);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(nothing_else_lies_on_its_pages), TEST(neither_side_of_a_fork_sees_the_other_write),
        TEST(its_close_gives_the_pages_back), TEST(without_a_fork_it_is_an_array_like_others),
        TEST(only_used_memory_is_reused),     TEST(the_broker_may_be_gone),
        TEST(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
