/*
 * The broker is killed with SIGKILL: every client learns it within a second, also one that sleeps
 * in a wait; what is mapped stays readable; nothing of ours is left outside the socket folder; the
 * next start takes the stale socket over, and the next connect starts anew.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "tests/crash/support/world.h"
#include "tests/support.h"

#define BYTES 200000
#define LOOKS 1000 /* of a millisecond, in which all have learnt it: see WORLD_UNTIL */

static struct world world;

struct verdict { /* one a client, shared */
    cw_a32 ready, code;
    cw_a64 at_ns;
    cw_a32 intact;
    char sentence[512];
};
static struct verdict *verdicts;

enum kind { WAITS, PINGS, GETS, PUTS, CHECKS, ALLOCATES, FORKED, KINDS };
static const char *const kinds[] = {"waits", "pings",     "gets",  "puts",
                                    "looks", "allocates", "forked"};

static bool whole(const cw_array *array) {
    const uint8_t *data = cw_array_data(array);
    for (int i = 0; i < BYTES; i++)
        if (data[i] != (uint8_t)(i * 7))
            return false;
    return true;
}

static int make(cw_client *client, const char *name, uint32_t flags, cw_array **out) {
    const int64_t shape = BYTES;
    cw_layout layout = world_bytes(&shape);
    int code = cw_array_new(client, "cpu", &layout, 0, out);
    if (code)
        return code;
    for (int i = 0; i < BYTES; i++)
        ((uint8_t *)cw_array_data(*out))[i] = (uint8_t)(i * 7);
    return cw_array_put(*out, name, flags, NULL, 0);
}

/* One thing again and again, until it fails. */
static int until_it_fails(cw_client *client, enum kind kind) {
    cw_array *array;
    int code = 0;
    while (code == 0) {
        switch (kind) {
        case WAITS:
            code = cw_wait(client, "never", -1);
            break;
        case PINGS:
            code = cw_ping(client);
            break;
        case PUTS:
            code = make(client, "again", CW_REPLACE, &array);
            if (code == 0)
                cw_array_close(array);
            break;
        case ALLOCATES: { /* a slab of its own each time: a request with descriptors */
            const int64_t shape = 40 << 20;
            cw_layout layout = world_bytes(&shape);
            code = cw_array_new(client, "cpu", &layout, 0, &array);
            if (code == 0)
                cw_array_close(array);
            break;
        }
        case CHECKS:
            code = cw_client_check(client);
            usleep(20000);
            break;
        default:
            code = cw_get(client, "shared", 0, &array);
            if (code == 0)
                cw_array_close(array);
            usleep(10000);
        }
    }
    return code;
}

static void client_life(enum kind kind) {
    struct verdict *verdict = &verdicts[kind];
    cw_client *client;
    cw_array *held;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) != 0 ||
        cw_get(client, "shared", 0, &held) != 0)
        _exit(1);
    if (kind == FORKED && fork() != 0) { /* the child goes on with what it inherited */
        pause();
        _exit(0);
    }
    if (kind == FORKED && cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) != 0)
        _exit(1);
    atomic_store(&verdict->ready, 1);
    int code = until_it_fails(client, kind);
    snprintf(verdict->sentence, sizeof verdict->sentence, "%s", cw_error());
    atomic_store(&verdict->code, (uint32_t)-code);
    atomic_store(&verdict->intact, whole(held));
    atomic_store(&verdict->at_ns, (uint64_t)test_now_ns());
    usleep(100000);
    atomic_store(&verdict->intact, atomic_load(&verdict->intact) && whole(held));
    cw_array_close(held);
    cw_client_unref(client);
    _exit(0);
}

static int put_shared(void *unused) {
    (void)unused;
    cw_client *client;
    cw_array *array;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) != 0 ||
        make(client, "shared", CW_KEEP, &array) != 0)
        return 1;
    return 0;
}

static int set_up(void **state) {
    (void)state;
    verdicts = mmap(NULL, sizeof *verdicts * KINDS, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    world_start(&world);
    return in_child(put_shared, NULL);
}

static int tear_down(void **state) {
    (void)state;
    world_stop(&world);
    munmap(verdicts, sizeof *verdicts * KINDS);
    return 0;
}

static bool all_have_learnt_it(void) {
    for (enum kind kind = 0; kind < KINDS; kind++)
        if (!atomic_load(&verdicts[kind].at_ns))
            return false;
    return true;
}

static void every_client_learns_it_within_a_second_and_keeps_what_it_mapped(void **state) {
    (void)state;
    pid_t pids[KINDS];
    fflush(NULL);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        pids[kind] = fork();
        if (pids[kind] == 0)
            client_life(kind);
    }
    for (enum kind kind = 0; kind < KINDS; kind++)
        assert_true(WORLD_UNTIL(atomic_load(&verdicts[kind].ready), 10000));
    usleep(300000);
    int64_t killed_ns = test_now_ns();
    world_kill(&world);
    bool in_time = WORLD_UNTIL(all_have_learnt_it(), LOOKS);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        struct verdict *verdict = &verdicts[kind];
        assert_true(WORLD_UNTIL(atomic_load(&verdict->at_ns), 20000));
        double took_ms = (double)((int64_t)atomic_load(&verdict->at_ns) - killed_ns) / 1e6;
        print_message("# one that %s: %d after %.1f ms: %s\n", kinds[kind],
                      -(int)atomic_load(&verdict->code), took_ms, verdict->sentence);
        assert_int_equal(atomic_load(&verdict->code), ECONNRESET);
        assert_non_null(strstr(verdict->sentence, ".log")); /* it says where to look */
    }
    assert_true(in_time);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        int status;
        if (kind == FORKED) {
            usleep(200000);
            kill(pids[kind], SIGKILL);
        }
        assert_int_equal(waitpid(pids[kind], &status, 0), pids[kind]);
        if (kind != FORKED)
            assert_int_equal(status, 0);
        assert_true(atomic_load(&verdicts[kind].intact));
    }
}

static bool ours_alone(const char *path) {
    static const char *const others[] = {
        "/memfd:", "socket:", "pipe:",  "anon_inode:", "/dev/null", "/usr/",
        "/lib",    "/etc/",   "/proc/", "[",           "/dev/zero", "anon"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(path, others[i], strlen(others[i])) == 0)
            return true;
    return strncmp(path, world.folder, strlen(world.folder)) == 0 ||
           strcmp(path, world_program()) == 0;
}

/* All files that the process has open or mapped lie in the socket folder or have no name. */
static void expect_no_files_of(pid_t pid) {
    char path[64], target[PATH_MAX], line[PATH_MAX + 256], own[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    assert_non_null(realpath(world_program(), own));
    for (struct dirent *entry; (entry = readdir(folder));) {
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        if (length <= 0)
            continue;
        target[length] = 0;
        if (!ours_alone(target))
            fail_msg("the broker has %s open", target);
    }
    closedir(folder);
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        char *name = strpbrk(line, "/[");
        line[strcspn(line, "\n")] = 0;
        if (name && !ours_alone(name) && strcmp(name, own) != 0)
            fail_msg("the broker has %s mapped", name);
    }
    fclose(maps);
}

static unsigned entries_of_ours(const char *place) {
    DIR *folder = opendir(place);
    unsigned count = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        count += strstr(entry->d_name, "cableway") || strncmp(entry->d_name, "cw-", 3) == 0;
    if (folder)
        closedir(folder);
    return count;
}

static void nothing_of_ours_is_left_outside_the_folder(void **state) {
    (void)state;
    if (!world.broker)
        world_start_broker(&world);
    assert_int_equal(in_child(put_shared, NULL), 0);
    expect_no_files_of(world.broker);
    world_kill(&world);
    assert_int_equal(entries_of_ours("/dev/shm"), 0);
    DIR *folder = opendir(world.folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "foreground.out") != 0)
            assert_int_equal(strncmp(entry->d_name, "cablewayd-v4", 12), 0);
    closedir(folder);
}

static void the_next_start_takes_a_stale_socket_over(void **state) {
    (void)state;
    for (int round = 0; round < 5; round++) {
        if (!world.broker)
            world_start_broker(&world);
        assert_int_equal(in_child(put_shared, NULL), 0); /* a new one has no names: no -EEXIST */
        world_kill(&world);
    }
    world_start_broker(&world);
    assert_int_equal(in_child(put_shared, NULL), 0);
}

static int start_anew(void *unused) {
    (void)unused;
    cw_client *old, *fresh, *second;
    cw_array *array;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &old) != 0)
        return 1;
    kill(cw_client_broker_pid(old), SIGKILL);
    if (!WORLD_UNTIL(cw_client_check(old) == -ECONNRESET, 1000))
        return 2;
    if (cw_connect(NULL, NULL, CW_CONNECT_NO_START, &fresh) != -ECONNRESET)
        return 3; /* none runs, and none was to be started */
    if (cw_connect(NULL, NULL, 0, &fresh) != 0) {
        printf("# %s\n", cw_error());
        return 4;
    }
    if (cw_client_instance(fresh) == cw_client_instance(old) ||
        cw_client_broker_pid(fresh) == cw_client_broker_pid(old))
        return 5;
    if (cw_get(fresh, "shared", 0, &array) != -ENOENT || make(fresh, "new", 0, &array) != 0)
        return 6;
    if (cw_get(old, "new", 0, &array) != -ECONNRESET) /* the old client stays lost */
        return 7;
    if (cw_connect(NULL, NULL, 0, &second) != 0 ||
        cw_client_instance(second) != cw_client_instance(fresh))
        return 8;
    if (cw_broker_stop(second) != 0)
        return 9;
    return WORLD_UNTIL(cw_client_check(fresh) == -ECONNRESET, 1000) ? 0 : 10;
}

static void the_next_connect_starts_anew(void **state) {
    (void)state;
    if (!world.broker)
        world_start_broker(&world);
    assert_int_equal(in_child(start_anew, NULL), 0);
    waitpid(world.broker, NULL, 0);
    world.broker = 0;
}

static void many_clients_at_once_start_one_broker(void **state) {
    (void)state;
    world_kill(&world);
    cw_a64 *instances = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    for (int i = 0; i < 8; i++)
        if (fork() == 0) {
            cw_client *client;
            if (cw_connect(NULL, NULL, 0, &client) != 0) {
                printf("# %s\n", cw_error());
                fflush(stdout);
                _exit(1);
            }
            atomic_store(&instances[i], cw_client_instance(client));
            usleep(300000);
            _exit(cw_ping(client) ? 2 : 0);
        }
    for (int i = 0; i < 8; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(atomic_load(&instances[i]), atomic_load(&instances[0]));
    munmap(instances, 4096);
    cw_client *client;
    assert_int_equal(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client), 0);
    int pid = cw_client_broker_pid(client);
    assert_int_equal(cw_broker_stop(client), 0);
    cw_client_unref(client);
    assert_true(WORLD_UNTIL(kill(pid, 0) != 0, 5000));
}

static void on_sigterm_clients_learn_it_and_the_socket_goes(void **state) {
    (void)state;
    world_start_broker(&world);
    cw_client *client;
    assert_int_equal(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client), 0);
    char socket_path[PATH_MAX];
    snprintf(socket_path, sizeof socket_path, "%s", cw_client_address(client));
    int status;
    kill(world.broker, SIGTERM);
    assert_int_equal(waitpid(world.broker, &status, 0), world.broker);
    assert_int_equal(status, 0);
    world.broker = 0;
    assert_int_equal(cw_ping(client), -ECONNRESET);
    assert_int_equal(access(socket_path, F_OK), -1);
    cw_client_unref(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_client_learns_it_within_a_second_and_keeps_what_it_mapped),
        cmocka_unit_test(nothing_of_ours_is_left_outside_the_folder),
        cmocka_unit_test(the_next_start_takes_a_stale_socket_over),
        cmocka_unit_test(the_next_connect_starts_anew),
        cmocka_unit_test(many_clients_at_once_start_one_broker),
        cmocka_unit_test(on_sigterm_clients_learn_it_and_the_socket_goes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
