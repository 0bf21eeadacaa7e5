/*
 * A process that has few addresses (RLIMIT_AS, `ulimit -v`): it gives up mappings that it keeps of
 * slabs in which it holds nothing.
 */
#include "tests/unit/ipc/client_support.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#define SLABS 12
#define LARGE (64 << 20) /* a slab of its own each */

static uint64_t addresses_bytes(void) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    return pages * 4096;
}

static void mappings_that_are_kept_make_room(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* a sanitizer has most addresses */
#endif
    int told[2];
    cw_handle handles[SLABS];
    assert_int_equal(pipe(told), 0);
    fflush(NULL);
    pid_t maker = fork();
    if (maker == 0) {
        cw_client *client;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        CHILD(cw_connect(NULL, NULL, 0, &client) == 0);
        for (int i = 0; i < SLABS; i++) {
            int64_t count = LARGE;
            const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
            cw_array *array;
            CHILD(cw_array_new(client, "cpu", &layout, CW_APART, &array) == 0);
            *(char *)cw_array_data(array) = (char)i;
            CHILD(cw_array_export(array, 0, &handles[i]) == 0);
        }
        CHILD(write(told[1], handles, sizeof handles) == sizeof handles);
        pause();
        _exit(0);
    }
    assert_int_equal(read(told[0], handles, sizeof handles), sizeof handles);
    cw_client *client = client_open();
    int64_t count = LARGE;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < SLABS; i++) {
            cw_array *array;
            OK(cw_array_open(client, &handles[i], &layout, CW_READONLY, &array));
            assert_int_equal(*(char *)cw_array_data(array), i);
            cw_array_close(array);
            if (i == 2) { /* room for one more, and then for none */
                limit.rlim_cur = addresses_bytes() + LARGE * 3ull / 2;
                assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
            }
        }
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    cw_client_unref(client);
    kill(maker, SIGKILL);
    waitpid(maker, NULL, 0);
    close(told[0]), close(told[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(mappings_that_are_kept_make_room, folder_make,
                                        folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
