/*
 * Promises of cablewayd about its configuration: files and environment, what is stronger, and where
 * a bad value stands.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define CONTAINS(text, part)                                                                       \
    do {                                                                                           \
        if (!strstr((text), (part)))                                                               \
            fail_msg("\"%s\" is not in: %s", (part), (text));                                      \
    } while (0)

static void bad_configuration_is_told_with_its_place(void **state) {
    (void)state;
    struct raw_broker broker;
    char path[128];
    static const struct {
        const char *text, *said;
    } files[] = {
        {"[limits]\nmax_names = many\n", "max_names = \"many\" is not a whole number"},
        {"[limits]\nmax_clients = 100000\n",
         "test.conf:2: max_clients = \"100000\" is not a whole number from 1 to 1024"},
        {"[limits]\n; 4\nmax_bytes = 4GB\n", "test.conf:3: max_bytes = \"4GB\" is not a whole "
                                             "number of bytes, or one with KiB, MiB, GiB "
                                             "or TiB from 0"},
        {"[limits]\nmax_names = 1KiB\n", "max_names = \"1KiB\" is not a whole number from 1"},
        {"[limits]\nmax_bytes = 9999999999TiB\n", "max_bytes = \"9999999999TiB\" is not"},
        {"[limits]\nmax_bytes = -1\n", "max_bytes = \"-1\" is not"},
        {"[limits]\nmax_bytes =\n", "max_bytes = \"\" is not"},
        {"[limits]\nmax_arrays = 5\n", "no limit \"max_arrays\""},
        {"[other]\nmax_names = 5\n", "no section [other]"},
        {"[limits]\nmax_names\n", "test.conf:2: "},
        {NULL, "failed: No such file"},
    };
    raw_broker_folder(&broker);
    snprintf(path, sizeof path, "%s/test.conf", broker.folder);
    const char *arguments[] = {"--config", path, NULL};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        unlink(path);
        if (files[i].text) {
            int fd = open(path, O_WRONLY | O_CREAT, 0600);
            assert_true(write(fd, files[i].text, strlen(files[i].text)) > 0);
            close(fd);
        }
        broker.said_bytes = 0;
        raw_broker_spawn(&broker, arguments, NULL);
        assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 2);
        CONTAINS(raw_broker_said(&broker), files[i].said);
        CONTAINS(raw_broker_said(&broker), path);
    }
    static const char *const variables[][2] = {
        {"CABLEWAY_MAX_FDS=-3", "CABLEWAY_MAX_FDS: max_fds = \"-3\" is not a whole number from"},
        {"CABLEWAY_MAX_BYTES=4 gigabytes",
         "CABLEWAY_MAX_BYTES: max_bytes = \"4 gigabytes\" is not"},
    };
    for (unsigned i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *const environment[] = {variables[i][0], NULL};
        broker.said_bytes = 0;
        raw_broker_spawn(&broker, NULL, environment);
        assert_int_equal(raw_broker_reap(&broker, RAW_TIMEOUT_MS), 2);
        CONTAINS(raw_broker_said(&broker), variables[i][1]);
    }
    raw_broker_remove(&broker);
}

static void bytes_may_have_a_unit_in_file_and_environment(void **state) {
    (void)state;
    static const char *const environment[] = {"CABLEWAY_MAX_GPU_BYTES=3TiB", NULL};
    static const char text[] = "[limits]\nmax_bytes = 4GiB\nmax_user_bytes = 7 MiB\n"
                               "max_pickle_bytes = 12\n";
    struct raw_broker broker;
    char path[128];
    raw_broker_folder(&broker);
    snprintf(path, sizeof path, "%s/test.conf", broker.folder);
    const char *arguments[] = {"--config", path, NULL};
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(write(fd, text, sizeof text - 1) > 0);
    close(fd);
    raw_broker_spawn(&broker, arguments, environment);
    assert_true(raw_broker_ready(&broker));
    assert_int_equal(CW_LOAD(M1, &broker.root->limits[CW_LIMIT_max_bytes], relaxed), 4ull << 30);
    assert_int_equal(CW_LOAD(M1, &broker.root->limits[CW_LIMIT_max_user_bytes], relaxed),
                     7ull << 20);
    assert_int_equal(CW_LOAD(M1, &broker.root->limits[CW_LIMIT_max_gpu_bytes], relaxed),
                     3ull << 40);
    assert_int_equal(CW_LOAD(M1, &broker.root->limits[CW_LIMIT_max_pickle_bytes], relaxed), 12);
    raw_broker_remove(&broker);
}

static void the_environment_is_stronger_than_the_file(void **state) {
    (void)state;
    static const char *const environment[] = {"CABLEWAY_MAX_NAMES=7", NULL};
    struct raw_broker broker;
    char path[128];
    static const char text[] = "; limits of a test\n[limits]\nmax_names = 5\nmax_slabs = 9\n";
    raw_broker_folder(&broker);
    snprintf(path, sizeof path, "%s/test.conf", broker.folder);
    const char *arguments[] = {"--config", path, NULL};
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(write(fd, text, sizeof text - 1) > 0);
    close(fd);
    raw_broker_spawn(&broker, arguments, environment);
    assert_true(raw_broker_ready(&broker));
    assert_int_equal(CW_LOAD(M1, &broker.root->limits[CW_LIMIT_max_names], relaxed), 7);
    assert_int_equal(CW_LOAD(M1, &broker.root->limits[CW_LIMIT_max_slabs], relaxed), 9);
    assert_int_equal(CW_LOAD(M1, &broker.root->limits[CW_LIMIT_transit_seconds], relaxed), 300);
    raw_broker_remove(&broker);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_configuration_is_told_with_its_place),
        cmocka_unit_test(bytes_may_have_a_unit_in_file_and_environment),
        cmocka_unit_test(the_environment_is_stronger_than_the_file),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
