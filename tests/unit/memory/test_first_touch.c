/*
 * The promises of memory that nobody has written yet (ipc/array/first_touch.h), against a real
 * broker.
 */
#include <sched.h>

#include "tests/unit/ipc/client_support.h"

#define PAGE  4096u
#define GUARD 0xa5

static cw_array *empty_of(cw_client *client, int64_t count, uint32_t flags) {
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_array *array = NULL;
    OK(cw_array_new(client, "cpu", &layout, flags, &array));
    return array;
}

/* Random bytes at an odd address, so that nothing is on a page's edge by chance. */
static uint8_t *random_bytes(uint64_t size_bytes) {
    uint8_t *memory = malloc(size_bytes + 1);
    uint64_t state = 0x9e3779b97f4a7c15ull ^ size_bytes;
    assert_non_null(memory);
    for (uint64_t i = 0; i < size_bytes + 1; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        memory[i] = (uint8_t)(state >> 56);
    }
    return memory;
}

/* Pages of an array that this process has mapped. */
static unsigned pages_here(cw_array *array) {
    uint64_t entry, page = (uintptr_t)cw_array_data(array) / PAGE;
    unsigned count = 0, pages = (unsigned)(cw_array_nbytes(array) / PAGE);
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    for (unsigned i = 0; i < pages; i++)
        if (pread(fd, &entry, sizeof entry, (off_t)((page + i) * sizeof entry)) == sizeof entry)
            count += entry >> 63;
    close(fd);
    return count;
}

/* This thread, and those that it starts, on one CPU; or on those that it had before. */
static void on_one_cpu(cpu_set_t *before) {
    cpu_set_t one;
    OK(sched_getaffinity(0, sizeof *before, before));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, before))
            CPU_SET(i, &one);
    OK(sched_setaffinity(0, sizeof one, &one));
}

static void the_first_write_of_any_size_arrives_whole(void **state) {
    (void)state;
    static const int64_t sizes[] = {1,       4095,    65536,       65537,          1 << 20,
                                    4194303, 4194304, 9 << 20 | 1, 37 << 20 | 4095};
    cw_client *client = client_open();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t count = (uint64_t)sizes[i];
        uint8_t *bytes = random_bytes(count);
        cw_array *array = empty_of(client, sizes[i], 0);
        OK(cw_array_write(array, 0, bytes + 1, count));
        assert_memory_equal(cw_array_data(array), bytes + 1, count);
        OK(cw_array_write(array, 0, bytes, count)); /* again: it is written now */
        assert_memory_equal(cw_array_data(array), bytes, count);
        cw_array_close(array);
        free(bytes);
    }
    cw_client_unref(client);
}

static void what_lies_around_a_part_stays(void **state) {
    (void)state;
    cw_client *client = client_open();
    const uint64_t count = 24 << 20, at = 5000001, size = 11 << 20 | 77;
    uint8_t *bytes = random_bytes(size);
    cw_array *array = empty_of(client, (int64_t)count, CW_ZERO);
    OK(cw_array_write(array, at, bytes, size));
    const uint8_t *found = cw_array_data(array);
    for (uint64_t i = 0; i < count; i++)
        if (found[i] != (i < at || i >= at + size ? 0 : bytes[i - at]))
            fail_msg("byte %llu is %d", (unsigned long long)i, found[i]);
    assert_int_equal(cw_array_write(array, count - size + 1, bytes, size), -EINVAL);
    cw_array_close(array);
    cw_client_unref(client);
    free(bytes);
}

static void one_cpu_writes_it_by_the_file_alone(void **state) {
    (void)state;
    cpu_set_t before;
    cw_client *client = client_open();
    const uint64_t count = 16 << 20;
    uint8_t *bytes = random_bytes(count);
    cw_array *array = empty_of(client, (int64_t)count, 0);
    on_one_cpu(&before);
    OK(cw_array_write(array, 0, bytes, count));
    OK(sched_setaffinity(0, sizeof before, &before));
    assert_int_equal(pages_here(array), 0);
    assert_memory_equal(cw_array_data(array), bytes, count);
    cw_array_close(array);
    /* What was mapped for it is written by the mapping. */
    array = empty_of(client, (int64_t)count + 8 * PAGE, CW_FILLED);
    OK(cw_array_write(array, 0, bytes, count));
    assert_in_range(pages_here(array), count / PAGE, count / PAGE + 8);
    assert_memory_equal(cw_array_data(array), bytes, count);
    cw_array_close(array);
    cw_client_unref(client);
    free(bytes);
}

static bool kernel_populates(void) {
    void *probe = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool can = madvise(probe, PAGE, 23 /* MADV_POPULATE_WRITE */) == 0;
    munmap(probe, PAGE);
    return can;
}

static void fresh_memory_that_is_to_be_filled_is_mapped_in_one_go(void **state) {
    (void)state;
    cw_client *client = client_open();
    int64_t length = 8 << 20;
    cw_array *empty = empty_of(client, length, 0), *filled = empty_of(client, length, CW_FILLED);
    assert_int_equal(pages_here(empty), 0);
    if (kernel_populates())
        assert_in_range(pages_here(filled), (8 << 20) / 4096 - 1, (8 << 20) / 4096);
    else
        print_message("# this kernel maps pages one by one\n");
    assert_true(bytes_are(filled, length, 0));
    cw_array_close(filled);
    cw_array_close(empty);
    cw_client_unref(client);
}

static void a_prefault_maps_what_nobody_has_written(void **state) {
    (void)state;
    cw_client *client = client_open();
    const unsigned pages = (20 << 20) / PAGE;
    cw_array *array = empty_of(client, 20 << 20, 0);
    if (!kernel_populates()) {
        cw_array_close(array);
        cw_client_unref(client);
        skip();
    }
    assert_int_equal(pages_here(array), 0);
    cw_array_prefault(array);
    assert_in_range(pages_here(array), pages - 1, pages);
    assert_true(bytes_are(array, 20 << 20, 0));
    cw_array_prefault(NULL);
    cw_array_close(array);
    cw_client_unref(client);
}

static void what_others_may_have_written_is_not_taken_for_fresh(void **state) {
    (void)state;
    cw_client *client = client_open(), *other = client_open();
    int64_t count = 20 << 20;
    cw_array *array = empty_of(client, count, 0), *theirs;
    cw_handle handle;
    OK(cw_array_export(array, 0, &handle));
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    OK(cw_array_open(other, &handle, &layout, 0, &theirs));
    ((uint8_t *)cw_array_data(theirs))[count - 1] = 7;
    unsigned before = pages_here(array);
    cw_array_prefault(array);
    assert_int_equal(pages_here(array), before);
    assert_int_equal(((uint8_t *)cw_array_data(array))[count - 1], 7);
    cw_array_close(theirs);
    cw_array_close(array);
    cw_client_unref(other);
    cw_client_unref(client);
}

static void it_copies_within_itself(void **state) {
    (void)state;
    static const uint64_t counts[] = {12 << 20, 40 << 20}; /* the larger would go past the caches */
    cw_client *client = client_open();
    for (size_t i = 0; i < 2; i++) {
        const uint64_t count = counts[i];
        cw_array *array = empty_of(client, (int64_t)count, CW_ZERO);
        uint8_t *data = cw_array_data(array), *bytes = random_bytes(count);
        memcpy(data, bytes, count);
        OK(cw_array_write(array, PAGE, data, count - PAGE));
        assert_memory_equal(data, bytes, PAGE);
        assert_memory_equal(data + PAGE, bytes, count - PAGE);
        cw_array_close(array);
        free(bytes);
    }
    cw_client_unref(client);
}

static void it_is_written_whole_after_the_brokers_death(void **state) {
    (void)state;
    cw_client *client = client_open();
    const uint64_t count = 12 << 20;
    uint8_t *bytes = random_bytes(count);
    cw_array *array = empty_of(client, (int64_t)count, 0);
    kill(cw_client_broker_pid(client), SIGKILL);
    int code = cw_array_write(array, 0, bytes, count);
    if (code == 0)
        assert_memory_equal(cw_array_data(array), bytes, count);
    else
        assert_int_equal(code, -ECONNRESET);
    cw_array_close(array);
    cw_client_unref(client);
    free(bytes);
}

static void a_stopped_broker_does_not_hold_it_up(void **state) {
    (void)state;
    cw_client *client = client_open();
    const uint64_t count = 12 << 20;
    uint8_t *bytes = random_bytes(count);
    cw_array *array = empty_of(client, (int64_t)count, 0), *got;
    kill(cw_client_broker_pid(client), SIGSTOP);
    OK(cw_array_write(array, 0, bytes, count)); /* the runner's time limit is the test */
    assert_memory_equal(cw_array_data(array), bytes, count);
    kill(cw_client_broker_pid(client), SIGCONT);
    for (int i = 0; i < 20; i++) { /* the answer that came too late disturbs no later one */
        OK(cw_array_put(array, "here", CW_REPLACE, NULL, 0));
        OK(cw_get(client, "here", 0, &got));
        assert_memory_equal(cw_array_data(got), bytes, count);
        cw_array_close(got);
    }
    cw_array_close(array);
    cw_client_unref(client);
    free(bytes);
}

static void a_child_writes_its_parents_new_array(void **state) {
    (void)state;
    cw_client *client = client_open();
    const uint64_t count = 12 << 20;
    uint8_t *bytes = random_bytes(count);
    cw_array *array = empty_of(client, (int64_t)count, 0);
    ((uint8_t *)cw_array_data(array))[0] = 1;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        cw_client *own;
        CHILD(cw_connect(NULL, NULL, 0, &own) == 0);
        CHILD(cw_array_renew(array, own) == 0);
        cw_array_prefault(array);
        CHILD(cw_array_write(array, 1, bytes, count - 1) == 0);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(((uint8_t *)cw_array_data(array))[0], 1);
    assert_memory_equal((uint8_t *)cw_array_data(array) + 1, bytes, count - 1);
    cw_array_close(array);
    cw_client_unref(client);
    free(bytes);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        TEST(the_first_write_of_any_size_arrives_whole),
        TEST(what_lies_around_a_part_stays),
        TEST(one_cpu_writes_it_by_the_file_alone),
        TEST(fresh_memory_that_is_to_be_filled_is_mapped_in_one_go),
        TEST(a_prefault_maps_what_nobody_has_written),
        TEST(what_others_may_have_written_is_not_taken_for_fresh),
        TEST(it_copies_within_itself),
        TEST(it_is_written_whole_after_the_brokers_death),
        TEST(a_stopped_broker_does_not_hold_it_up),
        TEST(a_child_writes_its_parents_new_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
