/*
 * The promises to a program that has more rights than its caller: nothing that the caller says in
 * its environment or as argv[0] is executed, loaded or believed. With a real setuid program, so as
 * root, on a file system that knows the bit. Each look has its counterpart: the same program,
 * without the bit, does obey.
 */
#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "tests/unit/ipc/client_support.h"

#define CALLER 65534 /* nobody */

struct world {
    char build[PATH_MAX / 4];  /* of this program */
    char folder[PATH_MAX / 4]; /* everybody may look into it */
    char evil[PATH_MAX / 2];   /* the caller's: a cablewayd of its own, which leaves a mark */
    char mark[PATH_MAX];
    char address[PATH_MAX / 2];
};

static void write_file(const char *path, mode_t mode, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void copy_program(const struct world *world, const char *name, const char *path,
                         mode_t mode) {
    char from[PATH_MAX], buffer[65536];
    snprintf(from, sizeof from, "%s/tests/unit/ipc/%s", world->build, name);
    int in = open(from, O_RDONLY), out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    assert_true(in >= 0 && out >= 0);
    for (ssize_t count; (count = read(in, buffer, sizeof buffer)) > 0;)
        assert_int_equal(write(out, buffer, (size_t)count), count);
    assert_int_equal(fchmod(out, mode), 0);
    close(in);
    close(out);
}

static bool can_be_tried(void) {
    struct statvfs status;
    return geteuid() == 0 && !CW_TEST_SANITIZED && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 &&
           statvfs("/tmp", &status) == 0 && !(status.f_flag & ST_NOSUID);
}

static struct world world_make(void) {
    struct world world;
    char path[PATH_MAX], text[PATH_MAX + 64];
    strcpy(world.folder, getenv("CABLEWAY_DIR"));
    assert_int_equal(chmod(world.folder, 0755), 0);
    strcpy(world.build, getenv("CABLEWAY_BROKER"));
    *strrchr(world.build, '/') = 0;
    snprintf(world.address, sizeof world.address, "%s/own", world.folder);
    assert_int_equal(mkdir(world.address, 0700), 0);
    snprintf(world.evil, sizeof world.evil, "%s/evil", world.folder);
    assert_int_equal(mkdir(world.evil, 0755), 0);
    assert_int_equal(chmod(world.evil, 0777), 0); /* a shell gives the rights up that it got */
    snprintf(world.mark, sizeof world.mark, "%s/mark", world.evil);
    snprintf(path, sizeof path, "%s/cablewayd", world.evil);
    snprintf(text, sizeof text, "#!/bin/sh\nid -u >%s\nexit 1\n", world.mark);
    write_file(path, 0755, text);
    return world;
}

static void world_end(const struct world *world) {
    char command[PATH_MAX];
    snprintf(command, sizeof command, "rm -rf '%s'/*", world->folder);
    assert_int_equal(system(command), 0);
}

/* Runs a program as this user with an environment that leads it to the caller's own things; what it
 * says comes into text. */
static void run_as(const struct world *world, uid_t user, const char *program, char *text,
                   size_t text_bytes) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char name[PATH_MAX];
        static char environment[8][PATH_MAX];
        char *given[9] = {NULL};
        snprintf(environment[0], PATH_MAX, "CABLEWAY_BROKER=%s/cablewayd", world->evil);
        snprintf(environment[1], PATH_MAX, "CABLEWAY_CUDA_DRIVER=%s/tests/fakecuda/%s",
                 world->build, "libcuda-double.so");
        snprintf(environment[2], PATH_MAX, "PATH=%s", world->evil);
        snprintf(environment[3], PATH_MAX, "CABLEWAY_DIR=%s", world->evil);
        snprintf(environment[4], PATH_MAX, "XDG_RUNTIME_DIR=%s", world->evil);
        snprintf(environment[5], PATH_MAX, "CABLEWAY_NAMESPACE=evil");
        snprintf(environment[6], PATH_MAX, "CABLEWAY_MAX_CLIENT_NAMES=1");
        snprintf(environment[7], PATH_MAX, "CABLEWAY_FAKECUDA_DIR=%s", world->evil);
        for (int i = 0; i < 8; i++)
            given[i] = environment[i];
        snprintf(name, sizeof name, "%s/program", world->evil); /* argv[0] */
        CHILD(dup2(ends[1], 1) == 1 && chdir(world->evil) == 0);
        faults_end_us();
        if (user)
            CHILD(setgroups(0, NULL) == 0 && setgid(user) == 0 && setuid(user) == 0);
        char *const argv[] = {name, (char *)(uintptr_t)world->address, NULL};
        execve(program, argv, given);
        CHILD(!"executed");
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t count; (count = read(ends[0], text + length, text_bytes - 1 - length)) > 0;)
        length += (size_t)count;
    text[length] = 0;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status)
        fail_msg("%s ended with %d: %s", program, status, text);
}

/* What follows a word at the beginning of a line. */
static const char *line_of(const char *text, const char *word) {
    const char *at = strstr(text, word);
    assert_non_null(at);
    return at + strlen(word) + 1;
}

static bool said(const char *text, const char *line) {
    return strstr(text, line) != NULL;
}

static void a_setuid_program_obeys_nothing_of_its_callers_environment(void **state) {
    (void)state;
    if (!can_be_tried())
        skip();
    struct world world = world_make();
    char program[PATH_MAX], beside[PATH_MAX], text[8192];
    snprintf(program, sizeof program, "%s/program", world.folder);
    snprintf(beside, sizeof beside, "%s/program", world.evil);
    write_file(beside, 0755, ""); /* what argv[0] names is there */

    copy_program(&world, "setuid_helper", program, 0755); /* the counterpart obeys */
    run_as(&world, 0, program, text, sizeof text);
    assert_true(said(text, "double 1\n"));
    assert_non_null(strstr(line_of(text, "default"), world.evil));
    assert_int_equal(access(world.mark, F_OK), 0);
    assert_int_equal(unlink(world.mark), 0);

    copy_program(&world, "setuid_helper", program, 04755);
    run_as(&world, CALLER, program, text, sizeof text);
    assert_true(said(text, "uid 65534\neuid 0\n"));
    assert_true(said(text, "double 0\n"));
    assert_false(said(text, world.evil));
    assert_false(said(text, "namespace \"evil\""));
    assert_int_not_equal(access(world.mark, F_OK), 0);
    world_end(&world);
}

/* A file of /proc of a process, NULs as newlines. */
static void proc_file(int pid, const char *name, char *text, size_t text_bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY);
    ssize_t count = fd < 0 ? -1 : read(fd, text, text_bytes - 1);
    assert_true(count >= 0);
    for (ssize_t i = 0; i < count; i++)
        if (!text[i])
            text[i] = '\n';
    text[count] = 0;
    close(fd);
}

static void the_broker_that_it_starts_is_the_installed_one_and_no_work_of_its_caller(void **state) {
    (void)state;
    if (!can_be_tried())
        skip();
    struct world world = world_make();
    char program[PATH_MAX], link[64], path[PATH_MAX], text[8192], expected[PATH_MAX];
    snprintf(program, sizeof program, "%s/program", world.folder);
    copy_program(&world, "setuid_shared", program, 04755);
    run_as(&world, CALLER, program, text, sizeof text);
    assert_true(said(text, "uid 65534\neuid 0\n"));
    if (!said(text, "connect 0 \n") || !said(text, "put 0 \n"))
        fail_msg("it said: %s", text);
    assert_true(said(text, "namespace \"\"\n"));
    assert_int_not_equal(access(world.mark, F_OK), 0);
    int broker = atoi(line_of(text, "\nbroker"));
    assert_true(broker > 1);
    snprintf(link, sizeof link, "/proc/%d/exe", broker);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    snprintf(expected, sizeof expected, "%s/cablewayd", world.build);
    assert_string_equal(path, expected);
    proc_file(broker, "status", text, sizeof text);
    assert_true(said(text, "\nUid:\t0\t0\t0\t0\n"));
    proc_file(broker, "environ", text, sizeof text);
    assert_false(said(text, world.evil));
    assert_false(said(text, "CABLEWAY_"));

    cw_client *client; /* its work is there for the effective user */
    cw_array *array;
    OK(cw_connect(world.address, NULL, CW_CONNECT_NO_START, &client));
    assert_int_equal(cw_client_broker_pid(client), broker);
    OK(cw_get(client, "setuid/x", 0, &array));
    cw_array_close(array);
    OK(cw_broker_stop(client));
    cw_client_unref(client);
    EVENTUALLY(kill(broker, 0) != 0);
    world_end(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_setuid_program_obeys_nothing_of_its_callers_environment,
                                        folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(
            the_broker_that_it_starts_is_the_installed_one_and_no_work_of_its_caller, folder_make,
            folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
