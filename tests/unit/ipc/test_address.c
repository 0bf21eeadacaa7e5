/*
 * Promises of addresses and of what stands beside the socket: paths, jobs, the detached broker and
 * its log.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/core/log.h"
#include "ipc/cableway.h"
#include "tests/support.h"
#include "tests/unit/raw_client.h"

static void the_folder_is_found_in_its_order(void **state) {
    (void)state;
    struct cw_address address;
    char own[64];
    unsetenv("SLURM_JOB_ID"), unsetenv("PBS_JOBID"), unsetenv("LSB_JOBID"), unsetenv("JOB_ID");
    setenv("CABLEWAY_DIR", "/tmp/chosen", 1);
    assert_int_equal(cw_address_find(NULL, &address), 0);
    assert_string_equal(address.socket_path, "/tmp/chosen/cablewayd-v4.sock");
    assert_string_equal(address.lock_path, "/tmp/chosen/cablewayd-v4.lock");
    assert_string_equal(address.log_path, "/tmp/chosen/cablewayd-v4.log");
    unsetenv("CABLEWAY_DIR");
    strcpy(own, "/tmp/cw-run-XXXXXX");
    assert_non_null(mkdtemp(own));
    setenv("XDG_RUNTIME_DIR", own, 1);
    assert_int_equal(cw_address_find(NULL, &address), 0);
    assert_memory_equal(address.folder, own, strlen(own));
    assert_string_equal(address.folder + strlen(own), "/cableway");
    rmdir(own); /* one that is not there is none */
    assert_int_equal(cw_address_find(NULL, &address), 0);
    snprintf(own, sizeof own, "/tmp/cableway-%u", (unsigned)geteuid());
    assert_string_equal(address.folder, own);
    unsetenv("XDG_RUNTIME_DIR");
}

static void each_batch_job_has_its_own(void **state) {
    (void)state;
    struct cw_address address;
    char job[300];
    setenv("LSB_JOBID", "7/8 x", 1);
    assert_int_equal(cw_address_find("/tmp/f", &address), 0);
    assert_string_equal(address.socket_name, "cablewayd-v4-7_8_x.sock");
    setenv("SLURM_JOB_ID", "41", 1);
    assert_int_equal(cw_address_find("/tmp/f", &address), 0);
    assert_string_equal(address.socket_name, "cablewayd-v4-41.sock");
    memset(job, 'j', sizeof job - 1);
    job[sizeof job - 1] = 0;
    setenv("SLURM_JOB_ID", job, 1); /* a name of any length fits a socket's address */
    assert_int_equal(cw_address_find("/tmp/f", &address), 0);
    struct sockaddr_un name;
    socklen_t length;
    cw_address_sockaddr(&address, 123456, &name, &length);
    assert_non_null(strstr(name.sun_path, ".sock"));
    unsetenv("SLURM_JOB_ID"), unsetenv("LSB_JOBID");
}

static void a_place_is_a_folder_or_a_socket(void **state) {
    (void)state;
    struct cw_address address;
    char longest[5000];
    assert_int_equal(cw_address_find("/a/b/mine.sock", &address), 0);
    assert_string_equal(address.folder, "/a/b");
    assert_string_equal(address.lock_path, "/a/b/mine.lock");
    char here[PATH_MAX], expected[PATH_MAX + 16];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(cw_address_find("mine.sock", &address), 0);
    assert_string_equal(address.folder, here);
    snprintf(expected, sizeof expected, "%s/a/b", here);
    assert_int_equal(cw_address_find("a/b", &address), 0);
    assert_string_equal(address.folder, expected);
    assert_int_equal(cw_address_find("", &address), -EINVAL);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(cw_address_find(longest, &address), -EINVAL);
    strcpy(longest + 200, ".sock");
    assert_int_equal(cw_address_find(longest, &address), -EINVAL);
}

static void a_relative_folder_in_the_environment_is_refused(void **state) {
    (void)state;
    struct cw_address address;
    setenv("CABLEWAY_DIR", "here", 1);
    assert_int_equal(cw_address_find(NULL, &address), -EINVAL);
    assert_non_null(strstr(cw_error(), "whole path"));
    unsetenv("CABLEWAY_DIR");
}

static void a_lock_file_of_noise_names_no_broker(void **state) {
    (void)state;
    static const char *const lines[] = {"",        "\n",       "12 3",      "12 3 4",
                                        "x y z\n", "-1 3 4\n", "12 -3 4\n", "99999"};
    struct raw_broker place;
    struct cw_lock_line line;
    int folder;
    raw_broker_folder(&place);
    assert_int_equal(cw_address_open_folder(&place.address, false, &folder), 0);
    assert_int_equal(cw_address_read_lock(&place.address, folder, &line), -ENOENT);
    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++) {
        int fd = openat(folder, place.address.lock_name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_int_equal(write(fd, lines[i], strlen(lines[i])), strlen(lines[i]));
        close(fd);
        assert_int_equal(cw_address_read_lock(&place.address, folder, &line), -ENOENT);
    }
    int fd = openat(folder, place.address.lock_name, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, "12 3 4\n", 7), 7);
    close(fd);
    assert_int_equal(cw_address_read_lock(&place.address, folder, &line), 0);
    assert_int_equal(line.pid, 12);
    assert_int_equal(line.root_fd, 3);
    assert_int_equal(line.instance, 4);
    close(folder);
    raw_broker_remove(&place);
}

static void a_log_has_a_limited_size(void **state) {
    (void)state;
    struct raw_broker place;
    struct stat status;
    char old[PATH_MAX + 128];
    int folder;
    raw_broker_folder(&place);
    assert_int_equal(cw_address_open_folder(&place.address, false, &folder), 0);
    assert_int_equal(cwd_log_open(&place.address, folder), 0);
    for (int i = 0; i < 10000; i++)
        cwd_log("line %d of a client that\nwould begin one of its own, %0900d", i, i);
    cwd_log_close();
    assert_int_equal(stat(place.address.log_path, &status), 0);
    assert_in_range(status.st_size, 1, CWD_LOG_MAX_BYTES + 2048);
    snprintf(old, sizeof old, "%s.1", place.address.log_path);
    assert_int_equal(stat(old, &status), 0);
    assert_in_range(status.st_size, CWD_LOG_MAX_BYTES / 2, CWD_LOG_MAX_BYTES + 2048);
    close(folder);
    raw_broker_remove(&place);
}

/* A command that starts a broker there, with what follows its options. */
static void broker_command(const struct raw_broker *place, const char *rest,
                           char command[PATH_MAX + 256]) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length] = 0;
    for (int i = 0; i < 3; i++)
        *strrchr(program, '/') = 0;
    const char *given = getenv("CABLEWAY_BROKER");
    snprintf(command, PATH_MAX + 256, "'%s%s' --idle-exit 60 --dir '%s' %s",
             given ? given : program, given ? "" : "/cablewayd", place->folder, rest);
}

/* `script | cat` ends although script started a broker: that holds nothing of its starter. */
static void a_detached_broker_holds_no_pipe_of_its_starter(void **state) {
    (void)state;
    struct raw_broker place;
    struct cw_lock_line line;
    char command[PATH_MAX + 256], text[256];
    int folder;
    raw_broker_folder(&place);
    broker_command(&place, "2>&1", command);
    FILE *pipe = popen(command, "re");
    assert_non_null(pipe);
    assert_int_equal(fread(text, 1, sizeof text, pipe), 0); /* the end of file comes */
    assert_int_equal(pclose(pipe), 0);
    assert_int_equal(cw_address_open_folder(&place.address, false, &folder), 0);
    assert_int_equal(cw_address_read_lock(&place.address, folder, &line), 0);
    pipe = popen(command, "re"); /* the second one says who runs */
    size_t length = fread(text, 1, sizeof text - 1, pipe);
    text[length] = 0;
    assert_int_equal(WEXITSTATUS(pclose(pipe)), 3);
    assert_non_null(strstr(text, "a broker runs already"));
    assert_int_equal(kill(line.pid, SIGTERM), 0);
    assert_true(RAW_UNTIL(access(place.address.socket_path, F_OK) != 0));
    assert_int_equal(access(place.address.log_path, F_OK), 0);
    close(folder);
    raw_broker_remove(&place);
}

/* The lock of a killed broker may live on for a moment, in a child that is not yet another program.
 */
static void a_dead_brokers_lock_is_waited_for(void **state) {
    (void)state;
    struct raw_broker place;
    struct cw_lock_line line;
    char command[PATH_MAX + 256];
    int folder;
    raw_broker_folder(&place);
    broker_command(&place, ">/dev/null 2>&1", command);
    assert_int_equal(system(command), 0);
    assert_int_equal(cw_address_open_folder(&place.address, false, &folder), 0);
    assert_int_equal(cw_address_read_lock(&place.address, folder, &line), 0);
    pid_t first = line.pid;
    int lock = open(place.address.lock_path, O_RDWR | O_CLOEXEC);
    assert_true(lock >= 0);
    assert_int_equal(kill(first, SIGKILL), 0);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    assert_int_equal(access(place.address.socket_path, F_OK), 0); /* all of it still stands there */
    pid_t child = fork();
    if (child == 0) {
        usleep(200000);
        _exit(0);
    }
    close(lock); /* the child has it alone */
    assert_int_equal(system(command), 0);
    assert_int_equal(cw_address_read_lock(&place.address, folder, &line), 0);
    assert_int_not_equal(line.pid, first);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(kill(line.pid, SIGTERM), 0);
    assert_true(RAW_UNTIL(access(place.address.socket_path, F_OK) != 0));
    close(folder);
    raw_broker_remove(&place);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_folder_is_found_in_its_order),
        cmocka_unit_test(each_batch_job_has_its_own),
        cmocka_unit_test(a_place_is_a_folder_or_a_socket),
        cmocka_unit_test(a_relative_folder_in_the_environment_is_refused),
        cmocka_unit_test(a_lock_file_of_noise_names_no_broker),
        cmocka_unit_test(a_log_has_a_limited_size),
        cmocka_unit_test(a_detached_broker_holds_no_pipe_of_its_starter),
        cmocka_unit_test(a_dead_brokers_lock_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
