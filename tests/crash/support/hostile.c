/*
 * Hostile: see hostile.h. The test's main process is no client; the neighbour is its child, and
 * each hostile client another.
 */
#include "tests/crash/support/hostile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/prctl.h>

#define REST_LOOKS 10000 /* about 1 ms each, until nothing of a dead one is left */

struct world hostile_world;
struct neighbour hostile_neighbour;
struct raw_broker hostile_broker;
static int fds_at_rest;

int hostile_set_up(void **state) {
    (void)state;
    chance_seed();
    setenv("CABLEWAY_TRANSIT_SECONDS", "1", 1);
    world_start(&hostile_world);
    neighbour_start(&hostile_neighbour);
    for (int i = 0; i < 3; i++)
        if (neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE) != 0)
            return 1;
    usleep(100000); /* what the broker closes is closed */
    fds_at_rest = world_fds(&hostile_world);
    return cw_address_find(NULL, &hostile_broker.address);
}

int hostile_tear_down(void **state) {
    (void)state;
    print_message("# the neighbour's longest wait: %.1f ms\n",
                  (double)hostile_neighbour.worst_ns / 1e6);
    neighbour_stop(&hostile_neighbour);
    world_stop(&hostile_world);
    return 0;
}

uint64_t hostile_dropped(void) {
    return world_counter(&hostile_world, CW_COUNTER_clients_dropped);
}

static pid_t start(int (*act)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGPIPE, SIG_IGN);
        faults_end_us();
        _exit(act());
    }
    return pid;
}

static bool at_rest(void) {
    return world_gauge(&hostile_world, CW_GAUGE_clients) == 1 &&
           world_gauge(&hostile_world, CW_GAUGE_orphan_slabs) == 0 &&
           world_gauge(&hostile_world, CW_GAUGE_transits) == 0 &&
           world_gauge(&hostile_world, CW_GAUGE_waiting) == 0 &&
           world_fds(&hostile_world) <= fds_at_rest;
}

static void expect_nothing_left(void) {
    assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE), 0);
    if (!WORLD_UNTIL(at_rest(), REST_LOOKS)) {
        world_print(&hostile_world);
        fail_msg("something of the hostile client is left (%d descriptors at rest)", fds_at_rest);
    }
    assert_true(world_alive(&hostile_world));
    assert_int_equal(neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE), 0);
}

void hostile_run(int (*act)(void), int patience_ms) {
    pid_t pid = start(act);
    int64_t begun_ns = test_now_ns();
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        int alive = neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE);
        if (alive || test_now_ns() - begun_ns > patience_ms * 1000000ll) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            assert_int_equal(alive, 0);
            fail_msg("the hostile client hung");
        }
        world_pause();
    }
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == HOSTILE_SKIP)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
    expect_nothing_left();
}

void hostile_run_until_stopped(int (*act)(void)) {
    pid_t pid = start(act);
    int status;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    for (int i = 0; i < 200; i++) {
        int alive = neighbour_ask(&hostile_neighbour, NEIGHBOUR_LIVE);
        if (alive)
            kill(pid, SIGKILL);
        assert_int_equal(alive, 0);
        world_pause();
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    expect_nothing_left();
}
