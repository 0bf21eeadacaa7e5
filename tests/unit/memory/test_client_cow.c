/*
 * The promises of CW_PRIVATE: copy-on-write views of arrays, against a real broker.
 */
#include <dirent.h>

#include "tests/unit/ipc/client_support.h"
#include "ipc/memory/cow.h"

#define LARGE (3 << 20)

static cw_array *open_as(cw_client *client, const cw_handle *handle, uint32_t flags) {
    int64_t count = (int64_t)handle->size_bytes;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array = NULL;
    OK(cw_array_open(client, handle, &layout, flags, &array));
    return array;
}

static void what_is_written_stays_private(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *array = bytes_new(client, LARGE, 1);
    cw_handle handle;
    OK(cw_array_export(array, 0, &handle));
    cw_array *first = open_as(other, &handle, CW_PRIVATE);
    cw_array *second = open_as(other, &handle, CW_PRIVATE);
    assert_false(cw_array_readonly(first));
    assert_true(bytes_are(second, LARGE, 1));
    memset(cw_array_data(first), 2, LARGE);
    ((uint8_t *)cw_array_data(second))[LARGE - 1] = 3;
    assert_true(bytes_are(array, LARGE, 1));
    assert_true(bytes_are(first, LARGE, 2));
    assert_int_equal(((uint8_t *)cw_array_data(second))[0], 1);
    cw_array_close(array);
    assert_true(bytes_are(first, LARGE, 2));
    cw_array_close(first);
    /* What was written went with its view. */
    cw_array *third = open_as(other, &handle, CW_PRIVATE);
    assert_true(bytes_are(third, LARGE, 1));
    cw_array_close(second);
    cw_array_close(third);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void small_arrays_beside_each_other_stay_apart(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *arrays[8], *views[8];
    for (int i = 0; i < 8; i++) {
        cw_handle handle;
        arrays[i] = bytes_new(client, 1000 + i, i);
        OK(cw_array_export(arrays[i], 0, &handle));
        views[i] = open_as(client, &handle, CW_PRIVATE);
        assert_true(bytes_are(views[i], 1000 + i, i));
    }
    for (int i = 0; i < 8; i++)
        memset(cw_array_data(views[i]), 100 + i, 1000u + (unsigned)i);
    for (int i = 0; i < 8; i++) {
        assert_true(bytes_are(arrays[i], 1000 + i, i));
        assert_true(bytes_are(views[i], 1000 + i, 100 + i));
        cw_array_close(views[i]);
        cw_array_close(arrays[i]);
    }
    cw_client_unref(client);
}

static void empty_arrays_and_parts_can_be_private(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *none = bytes_new(client, 0, 0), *array = bytes_new(client, LARGE, 1), *got;
    cw_handle handle;
    OK(cw_array_export(none, 0, &handle));
    got = open_as(client, &handle, CW_PRIVATE);
    assert_int_equal(cw_array_nbytes(got), 0);
    cw_array_close(got);
    OK(cw_array_export(array, 0, &handle));
    handle.offset_bytes = 5000;
    handle.size_bytes = 9000;
    ((uint8_t *)cw_array_data(array))[5000] = 7;
    got = open_as(client, &handle, CW_PRIVATE);
    assert_int_equal(((uint8_t *)cw_array_data(got))[0], 7);
    memset(cw_array_data(got), 8, 9000);
    assert_int_equal(((uint8_t *)cw_array_data(array))[5000], 7);
    cw_array_close(got);
    cw_array_close(array);
    cw_array_close(none);
    cw_client_unref(client);
}

/* A mapping that was only read is used again, one that was written is not; both show the slab. */
static void a_mapping_is_used_again_while_it_is_clean(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    cw_array *array = bytes_new(client, LARGE, 1);
    cw_handle handle;
    OK(cw_array_export(array, 0, &handle));
    cw_array *view = open_as(other, &handle, CW_PRIVATE);
    const void *place = cw_array_data(view);
    assert_true(bytes_are(view, LARGE, 1));
    cw_array_close(view);
    assert_int_equal(other->spares.count, 1);
    memset(cw_array_data(array), 2, LARGE); /* nobody has it open */
    view = open_as(other, &handle, CW_PRIVATE);
    assert_ptr_equal(cw_array_data(view), place);
    assert_int_equal(other->spares.count, 0);
    assert_true(bytes_are(view, LARGE, 2));
    ((uint8_t *)cw_array_data(view))[LARGE / 2] = 3;
    cw_array_close(view);
    assert_int_equal(other->spares.count, 0);
    view = open_as(other, &handle, CW_PRIVATE);
    assert_true(bytes_are(view, LARGE, 2));
    cw_array_close(view);
    cw_array_close(array);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void few_mappings_are_kept(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    enum { COUNT = CW_SPARES_MAX + 4 };
    cw_array *arrays[COUNT], *views[COUNT];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            cw_handle handle;
            arrays[i] = bytes_new(client, LARGE, i);
            OK(cw_array_export(arrays[i], 0, &handle));
            views[i] = open_as(other, &handle, CW_PRIVATE);
        }
        for (int i = 0; i < COUNT; i++) {
            assert_true(bytes_are(views[i], LARGE, i));
            cw_array_close(views[i]);
            cw_array_close(arrays[i]);
        }
        assert_int_equal(other->spares.count, CW_SPARES_MAX);
    }
    cw_client_unref(client);
    cw_client_unref(other);
}

static void a_slab_that_goes_takes_its_spares(void **state) {
    (void)state;
    setenv("CABLEWAY_CACHE_BYTES", "0", 1);
    cw_client *client = client_open();
    unsetenv("CABLEWAY_CACHE_BYTES");
    cw_array *array = bytes_new(client, 64 << 20, 1); /* in a slab of its own */
    cw_handle handle;
    OK(cw_array_export(array, 0, &handle));
    cw_array *view = open_as(client, &handle, CW_PRIVATE);
    cw_array_close(view);
    assert_int_equal(client->spares.count, 1);
    cw_array_close(array);
    EVENTUALLY(({
        cw_array *any = bytes_new(client, 100, 0); /* it looks for what came back */
        cw_ping(client);
        cw_array_close(any);
        client->spares.count == 0;
    }));
    cw_client_unref(client);
}

static void a_child_has_its_own_copy(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, LARGE, 1);
    cw_handle handle;
    OK(cw_array_export(array, 0, &handle));
    cw_array *view = open_as(client, &handle, CW_PRIVATE);
    cw_array *read = open_as(client, &handle, CW_PRIVATE);
    assert_true(bytes_are(read, LARGE, 1));
    uint8_t *bytes = cw_array_data(view);
    bytes[0] = 2;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        cw_client *mine;
        CHILD(bytes[0] == 2 && bytes[1] == 1);
        memset(bytes, 9, LARGE);
        CHILD(cw_array_export(view, 0, &handle) == -EINVAL);
        CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
        CHILD(cw_array_renew(view, mine) == 0);
        CHILD(bytes_are(view, LARGE, 9));
        cw_array_close(view);
        CHILD(bytes_are(read, LARGE, 1));
        CHILD(cw_array_renew(read, mine) == 0);
        cw_array_close(read);
        CHILD(bytes_are(array, LARGE, 1));
        cw_array_close(array);
        cw_client_unref(mine);
        cw_client_unref(client);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(bytes[0], 2);
    assert_int_equal(bytes[1], 1);
    assert_true(bytes_are(array, LARGE, 1));
    cw_array_close(view);
    cw_array_close(read);
    cw_array_close(array);
    cw_client_unref(client);
}

#define THREADS 4
#define ROUNDS  (CW_TEST_SANITIZED ? 100 : 400)
#define SHARED  3

struct reader {
    cw_client *client;
    const cw_handle *handles;
    int number;
    atomic_int faults;
};

static void *read_and_write(void *context) {
    struct reader *reader = context;
    struct chance chance = chance_init((uint64_t)reader->number);
    for (int i = 0; i < ROUNDS; i++) {
        int which = (int)chance_below(&chance, SHARED);
        cw_array *view = open_as(reader->client, &reader->handles[which], CW_PRIVATE);
        if (!bytes_are(view, (int64_t)cw_array_nbytes(view), which + 1))
            atomic_fetch_add(&reader->faults, 1);
        if (chance_below(&chance, 2)) {
            memset(cw_array_data(view), 100 + reader->number, cw_array_nbytes(view));
            if (!bytes_are(view, (int64_t)cw_array_nbytes(view), 100 + reader->number))
                atomic_fetch_add(&reader->faults, 1);
        }
        cw_array_close(view);
    }
    return NULL;
}

static void threads_open_the_same_arrays(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *arrays[SHARED];
    cw_handle handles[SHARED];
    struct reader readers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < SHARED; i++) {
        arrays[i] = bytes_new(client, 100000 * (i + 1), i + 1);
        OK(cw_array_export(arrays[i], 0, &handles[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        readers[i] = (struct reader){.client = client, .handles = handles, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, read_and_write, &readers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&readers[i].faults), 0);
    }
    for (int i = 0; i < SHARED; i++) {
        assert_true(bytes_are(arrays[i], 100000 * (i + 1), i + 1));
        cw_array_close(arrays[i]);
    }
    cw_client_unref(client);
}

static int make_and_die(void *context) {
    cw_client *mine;
    CHILD(cw_connect(NULL, NULL, 0, &mine) == 0);
    cw_array *array = bytes_new(mine, LARGE, 4);
    CHILD(array);
    CHILD(cw_array_export(array, 1, context) == 0);
    CHILD(cw_ping(mine) == 0);
    raise(SIGKILL);
    return 0;
}

static void a_view_outlives_its_maker_and_the_broker(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_handle *handle =
        mmap(NULL, CW_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(in_child(make_and_die, handle), 128 + SIGKILL);
    cw_array *view = open_as(client, handle, CW_PRIVATE);
    ((uint8_t *)cw_array_data(view))[10] = 5;
    assert_int_equal(((uint8_t *)cw_array_data(view))[LARGE - 1], 4);
    int pid = cw_client_broker_pid(client);
    OK(cw_broker_stop(client));
    for (int i = 0; i < 30000 && kill(pid, 0) == 0; i++)
        usleep(2000);
    assert_int_equal(((uint8_t *)cw_array_data(view))[10], 5);
    assert_int_equal(((uint8_t *)cw_array_data(view))[LARGE / 2], 4);
    cw_array_close(view);
    cw_client_unref(client);
    munmap(handle, CW_PAGE);
}

/* The broker stands: whoever asked it would wait for ever. */
static void further_views_of_a_slab_ask_nobody(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, LARGE, 1), *views[2 * CW_SPARES_MAX];
    cw_handle handle;
    OK(cw_array_export(array, 0, &handle));
    views[0] = open_as(client, &handle, CW_PRIVATE);
    int pid = cw_client_broker_pid(client);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    for (unsigned i = 1; i < 2 * CW_SPARES_MAX; i++) {
        views[i] = open_as(client, &handle, CW_PRIVATE);
        memset(cw_array_data(views[i]), (int)i, LARGE);
    }
    assert_int_equal(kill(pid, SIGCONT), 0);
    for (unsigned i = 1; i < 2 * CW_SPARES_MAX; i++) {
        assert_true(bytes_are(views[i], LARGE, (int)i));
        cw_array_close(views[i]);
    }
    assert_true(bytes_are(views[0], LARGE, 1));
    cw_array_close(views[0]);
    cw_array_close(array);
    cw_client_unref(client);
}

static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void a_client_keeps_so_many_descriptors_of_slabs_and_no_more(void **state) {
    (void)state;
    enum { SLABS = CW_COW_FILES_MAX + 8 };
    const int before = descriptors();
    cw_client *client = client_open(), *other = client_open();
    cw_array *arrays[SLABS], *views[SLABS];
    cw_handle handles[SLABS];
    for (int i = 0; i < SLABS; i++) {
        arrays[i] = bytes_new(client, 33 << 20, i); /* a slab of its own */
        OK(cw_array_export(arrays[i], 0, &handles[i]));
    }
    const int without = descriptors();
    for (int i = 0; i < SLABS; i++)
        views[i] = open_as(other, &handles[i], CW_PRIVATE);
    assert_int_equal(descriptors() - without, CW_COW_FILES_MAX);
    for (int i = 0; i < SLABS; i++) {
        assert_int_equal(((uint8_t *)cw_array_data(views[i]))[LARGE], i);
        cw_array_close(views[i]);
        cw_array_close(arrays[i]);
    }
    cw_client_unref(other);
    cw_client_unref(client);
    assert_int_equal(descriptors(), before);
}

static void names_handles_and_bad_flags_are_refused(void **state) {
    (void)state;
    cw_client *client = client_open();
    cw_array *array = bytes_new(client, LARGE, 1), *got = NULL;
    cw_handle handle, second;
    OK(cw_array_put(array, "here", 0, NULL, 0));
    OK(cw_array_export(array, 0, &handle));
    OK(cw_get(client, "here", CW_PRIVATE, &got));
    assert_int_equal(cw_array_put(got, "there", 0, NULL, 0), -EINVAL);
    assert_non_null(strstr(cw_error(), "private"));
    assert_int_equal(cw_array_export(got, 0, &second), -EINVAL);
    assert_int_equal(cw_array_export(got, 1, &second), -EINVAL);
    assert_non_null(strstr(cw_error(), "private"));
    cw_queue *queue;
    assert_int_equal(cw_queue_open(got, &queue), -EPROTO);
    cw_array_close(got);
    assert_int_equal(cw_get(client, "here", CW_PRIVATE | CW_READONLY, &got), -EINVAL);
    assert_int_equal(cw_get(client, "here", CW_ZERO, &got), -EINVAL);
    int64_t count = LARGE;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    assert_int_equal(cw_array_open(client, &handle, &layout, CW_PRIVATE | CW_READONLY, &got),
                     -EINVAL);
    assert_int_equal(cw_array_open(client, &handle, &layout, 64, &got), -EINVAL);
    OK(cw_remove(client, "here"));
    cw_array_close(array);
    cw_client_unref(client);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_stays_private),
        TEST(small_arrays_beside_each_other_stay_apart),
        TEST(empty_arrays_and_parts_can_be_private),
        TEST(a_mapping_is_used_again_while_it_is_clean),
        TEST(few_mappings_are_kept),
        TEST(a_slab_that_goes_takes_its_spares),
        TEST(a_child_has_its_own_copy),
        TEST(threads_open_the_same_arrays),
        TEST(a_view_outlives_its_maker_and_the_broker),
        TEST(further_views_of_a_slab_ask_nobody),
        TEST(a_client_keeps_so_many_descriptors_of_slabs_and_no_more),
        TEST(names_handles_and_bad_flags_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
