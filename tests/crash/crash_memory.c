/*
 * No memory left: a client and a broker in a memory cgroup that is too small, or under
 * RLIMIT_FSIZE, get an error that names the limit (-EDQUOT), never a signal or the kernel's kill,
 * and go on with what there is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/resource.h>

#include "tests/cgroup.h"
#include "tests/crash/support/neighbour.h"
#include "tests/crash/support/world.h"
#include "tests/support.h"

#define MIB        ((int64_t)1 << 20)
#define IMPOSSIBLE 77

static struct world world;
static struct neighbour neighbour;
static struct cgroup group;

#define CHILD(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("# line %d: %s: %s\n", __LINE__, #condition, cw_error());                       \
            fflush(stdout);                                                                        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int new_array(cw_client *client, int64_t bytes, cw_array **out) {
    cw_layout layout = world_bytes(&bytes);
    return cw_array_new(client, "cpu", &layout, 0, out);
}

static int ask_for_too_much(cw_client *client) {
    static cw_array *arrays[100];
    cw_array *huge;
    int made = 0, code;
    CHILD(new_array(client, 512 * MIB, &huge) == -EDQUOT);
    CHILD(strlen(cw_error()) > 0);
    while (made < 100 && (code = new_array(client, 4 * MIB, &arrays[made])) == 0) {
        memset(cw_array_data(arrays[made]), made, (size_t)(4 * MIB)); /* and it is really there */
        made++;
    }
    CHILD(made >= 3 && made < 100 && code == -EDQUOT);
    /* What there is stays good, and what is given back can be had again. */
    CHILD(cw_array_put(arrays[0], "little", CW_REPLACE, NULL, 0) == 0);
    for (int i = 0; i < made; i++) {
        CHILD(((uint8_t *)cw_array_data(arrays[i]))[4 * MIB - 1] == (uint8_t)i);
        cw_array_close(arrays[i]);
    }
    CHILD(new_array(client, 4 * MIB, &arrays[1]) == 0);
    CHILD(cw_ping(client) == 0 && cw_remove(client, "little") == 0);
    return 0;
}

static int client_in_a_cgroup(void *unused) {
    (void)unused;
    cw_client *client;
    if (!cgroup_join(&group, 0))
        return IMPOSSIBLE;
    CHILD(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) == 0);
    int code = ask_for_too_much(client);
    cw_client_unref(client);
    return code;
}

static void a_client_past_its_cgroups_limit_gets_an_error(void **state) {
    (void)state;
    if (!cgroup_open(&group, 96 * MIB)) {
        print_message("skipped: no memory cgroup can be made here\n");
        skip();
    }
    int code = in_child(client_in_a_cgroup, NULL);
    cgroup_close(&group);
    if (code == IMPOSSIBLE) {
        print_message("skipped: a process may not be moved into a memory cgroup here\n");
        skip();
    }
    assert_int_equal(code, 0);
    assert_int_equal(neighbour_ask(&neighbour, NEIGHBOUR_LIVE), 0);
}

static int client_under_rlimit_fsize(void *unused) {
    (void)unused;
    cw_client *client;
    cw_array *array;
    struct rlimit limit = {MIB, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = (rlim_t)(5 * MIB);
    CHILD(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHILD(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) == 0);
    CHILD(new_array(client, 1000, &array) == 0);
    cw_array_close(array);
    CHILD(new_array(client, 6 * MIB, &array) == -EDQUOT);
    CHILD(strstr(cw_error(), "RLIMIT_FSIZE") != NULL);
    CHILD(new_array(client, 1000, &array) == 0);
    cw_client_unref(client);
    return 0;
}

static void a_client_past_rlimit_fsize_gets_an_error(void **state) {
    (void)state;
    assert_int_equal(in_child(client_under_rlimit_fsize, NULL), 0);
}

static int try_to_connect(void *wanted) {
    cw_client *client;
    int code = cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client);
    if (code != *(int *)wanted)
        printf("# connect: %d: %s\n", code, code ? cw_error() : "");
    return code == *(int *)wanted ? 0 : 1;
}

static void a_broker_past_rlimit_fsize_refuses_and_goes_on(void **state) {
    (void)state;
    struct rlimit small = {64 << 10, RLIM_INFINITY}, before;
    int refused = -EDQUOT, welcome = 0;
    assert_int_equal(prlimit(world.broker, RLIMIT_FSIZE, NULL, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(prlimit(world.broker, RLIMIT_FSIZE, &small, NULL), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(in_child(try_to_connect, &refused), 0);
    assert_int_equal(neighbour_ask(&neighbour, NEIGHBOUR_LIVE), 0);
    assert_int_equal(prlimit(world.broker, RLIMIT_FSIZE, &before, NULL), 0);
    assert_int_equal(in_child(try_to_connect, &welcome), 0);
    assert_true(world_alive(&world));
}

/* So many names that the directory has to grow. */
static int put_names_until_refused(void *unused) {
    (void)unused;
    cw_client *client;
    cw_array *array;
    char name[200];
    int code = 0;
    CHILD(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client) == 0);
    CHILD(new_array(client, 64, &array) == 0);
    for (int i = 0; i < 400000 && code == 0; i++) {
        memset(name, 'n', sizeof name);
        snprintf(name + 150, sizeof name - 150, "%d", i);
        code = cw_array_put(array, name, 0, NULL, 0);
    }
    CHILD(code == -EDQUOT);
    CHILD(strstr(cw_error(), "cgroup") != NULL);
    snprintf(name + 150, sizeof name - 150, "%d", 0);
    CHILD(cw_remove(client, name) == 0);
    CHILD(cw_array_put(array, name, 0, NULL, 0) == 0);
    return 0; /* and dies with 100,000 names: they go by themselves */
}

static void a_broker_past_its_cgroups_limit_refuses_and_goes_on(void **state) {
    (void)state;
    if (CW_TEST_SANITIZED)
        skip(); /* a sanitizer's own memory is not what this limit is for */
    if (!cgroup_open(&group, 64 * MIB)) {
        print_message("skipped: no memory cgroup can be made here\n");
        skip();
    }
    struct world small;
    world_start(&small);
    bool joined = cgroup_join(&group, small.broker);
    int code = joined ? in_child(put_names_until_refused, NULL) : IMPOSSIBLE;
    bool alive = world_alive(&small);
    print_message("# %d names\n", (int)world_gauge(&small, CW_GAUGE_names));
    world_kill(&small);
    cgroup_close(&group);
    world_stop(&small);
    setenv("CABLEWAY_DIR", world.folder, 1);
    if (code == IMPOSSIBLE) {
        print_message("skipped: a process may not be moved into a memory cgroup here\n");
        skip();
    }
    assert_int_equal(code, 0);
    assert_true(alive);
}

static int set_up(void **state) {
    (void)state;
    world_start(&world);
    neighbour_start(&neighbour);
    return neighbour_ask(&neighbour, NEIGHBOUR_LIVE);
}

static int tear_down(void **state) {
    (void)state;
    neighbour_stop(&neighbour);
    world_stop(&world);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_past_its_cgroups_limit_gets_an_error),
        cmocka_unit_test(a_client_past_rlimit_fsize_gets_an_error),
        cmocka_unit_test(a_broker_past_rlimit_fsize_refuses_and_goes_on),
        cmocka_unit_test(a_broker_past_its_cgroups_limit_refuses_and_goes_on),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
