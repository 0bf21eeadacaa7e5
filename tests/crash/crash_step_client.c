/*
 * Killed at every instruction, as a client of a running broker: SIGKILL after each instruction of a
 * warm get with close, of the close that must tell the broker (a drop request in the ring), of
 * requests without reply (a transit begun and ended), of private gets, of a ping and of a put.
 * After each kill the broker and a neighbour go on, the session is gone from the monitor page and
 * the block that the dead one held is back within 100 ms of its death.
 *
 * Every instruction of get, close and requests without reply is tried (1 in some under a sanitizer,
 * where they are ten times as many; the first one is chosen by the seed). Private get, ping and put
 * wait for the broker, so that their paths differ from run to run: there one in some is tried, each
 * one with CABLEWAY_SOAK set (make soak).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>

#include "tests/crash/support/neighbour.h"
#include "tests/crash/support/step.h"
#include "tests/crash/support/world.h"
#include "tests/support.h"

#define LOOKS     1000                            /* about 1 ms each */
#define SOME      (CW_TEST_SANITIZED ? 150 : 400) /* instructions tried where not each is */
#define EXPIRY_MS 5000

static struct world world;
static struct neighbour neighbour;

/* ---- what a child does ---- */

static cw_client *client;
static cw_array *array;

#define CHILD(call)                                                                                \
    do {                                                                                           \
        if ((call) != 0) {                                                                         \
            printf("# %s: %s\n", #call, cw_error());                                               \
            fflush(stdout);                                                                        \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

static void warm(void) {
    CHILD(cw_connect(NULL, NULL, CW_CONNECT_NO_START, &client));
    CHILD(cw_get(client, "x", 0, &array));
    cw_array_close(array);
}

static void holding(void) {
    warm();
    CHILD(cw_get(client, "x", 0, &array));
}

static void get_and_close(void) {
    if (cw_get(client, "x", 0, &array) == 0)
        cw_array_close(array);
}

/* Written to, so that its mapping goes; then only read, so that it is kept. */
static void private_get_and_close(void) {
    for (int i = 0; i < 2; i++)
        if (cw_get(client, "x", CW_PRIVATE, &array) == 0) {
            volatile uint8_t *byte = cw_array_data(array);
            uint8_t seen = *byte;
            if (i == 0)
                *byte = (uint8_t)(seen + 1);
            cw_array_close(array);
        }
}

static void close_the_last(void) {
    cw_array_close(array);
}

static void export_and_discard(void) {
    cw_handle handle;
    if (cw_array_export(array, 1, &handle) == 0)
        cw_handle_discard(client, &handle);
}

static void ping(void) {
    cw_ping(client);
}

static int put_y(void) {
    const int64_t shape = NEIGHBOUR_X_BYTES;
    cw_layout layout = world_bytes(&shape);
    cw_array *fresh;
    int code = cw_array_new(client, "cpu", &layout, 0, &fresh);
    if (code)
        return code;
    memset(cw_array_data(fresh), NEIGHBOUR_CHILD_PUT, NEIGHBOUR_X_BYTES);
    code = cw_array_put(fresh, "y", CW_REPLACE, NULL, 0);
    cw_array_close(fresh);
    return code;
}

static void having_put(void) {
    warm();
    CHILD(put_y());
}

static void put(void) {
    (void)put_y();
}

/* ---- one operation ---- */

struct operation {
    void (*prepare)(void); /* in the child, before the first mark */
    void (*run)(void);     /* between the marks */
    bool drop_first;       /* "x" is removed while the child holds it, before it is stepped */
    bool every;            /* each instruction; else some */
};

static const struct operation *current;
static uint64_t slabs; /* before the child */

static void child(void *unused) {
    (void)unused;
    current->prepare();
    step_ready();
    current->run();
    step_done();
}

/* Until the broker sleeps: then its figures are those of all that was asked. */
static void settle(void) {
    assert_true(WORLD_UNTIL(atomic_load(&world.root->broker.asleep), 1000));
}

/* The state before each kill: "x" is there, the neighbour is the only client. */
static pid_t begin(uint64_t *reclaimed) {
    assert_int_equal(neighbour_ask(&neighbour, NEIGHBOUR_NEW_X), 0);
    settle();
    slabs = world_gauge(&world, CW_GAUGE_slabs);
    pid_t pid = step_fork(child, NULL);
    if (pid < 0) {
        print_message("skipped: ptrace is not allowed here\n");
        skip();
    }
    *reclaimed = world_counter(&world, CW_COUNTER_blocks_reclaimed);
    if (current->drop_first)
        assert_int_equal(neighbour_ask(&neighbour, NEIGHBOUR_DROP_X), 0);
    settle(); /* and so that the path to its doorbell is the same in every run */
    return pid;
}

/* After the kill. Returns how many looks it took until all was back. */
static int end(uint64_t reclaimed) {
    bool transits = current->run == export_and_discard;
    int y = current->run == put ? neighbour_ask(&neighbour, NEIGHBOUR_LOOK_Y) : 0;
    assert_true(y >= 0);
    if (!current->drop_first)
        assert_int_equal(neighbour_ask(&neighbour, NEIGHBOUR_DROP_X), 0);
    int looks = 0;
    /* A transit that the dead one began stands until its limit; the block with it. */
    while (world_gauge(&world, CW_GAUGE_clients) != 1 ||
           (!transits && world_counter(&world, CW_COUNTER_blocks_reclaimed) <= reclaimed) ||
           world_gauge(&world, CW_GAUGE_orphan_slabs) != 0 ||
           world_gauge(&world, CW_GAUGE_slabs) > slabs) {
        if (++looks > LOOKS) {
            world_print(&world);
            fail_msg("not all of the dead client's is back after %d looks", looks);
        }
        world_pause();
    }
    return looks;
}

static void at_every_instruction(void **state) {
    current = *state;
    uint64_t reclaimed, stride = 1, runs = 0, over = 0;
    int worst = 0;
    struct step_path path;
    pid_t pid = begin(&reclaimed);
    assert_int_equal(step_trace(pid, &path), STEP_OVER);
    step_kill(pid);
    end(reclaimed);
    if ((!current->every || CW_TEST_SANITIZED) && !getenv("CABLEWAY_SOAK"))
        stride = path.count / SOME + 1;
    struct chance chance = chance_init(current->every);
    enum step_end how = STEP_KILLED;
    for (uint64_t n = stride > 1 ? chance_below(&chance, stride) : 0;
         n < path.count || how != STEP_OVER; n += stride) {
        pid = begin(&reclaimed);
        how = step_to(pid, &path, n);
        step_kill(pid);
        assert_int_not_equal(how, STEP_BROKEN);
        int looks = end(reclaimed);
        worst = looks > worst ? looks : worst;
        over += how == STEP_OVER;
        if (runs++ % 16 == 0)
            assert_int_equal(neighbour_ask(&neighbour, NEIGHBOUR_LIVE), 0);
    }
    print_message("# %d instructions, %d kills, %d of them behind the end; all back after %d ms "
                  "at most\n",
                  (int)path.count, (int)runs, (int)over, worst);
    step_path_deinit(&path);
    assert_int_equal(neighbour_ask(&neighbour, NEIGHBOUR_LIVE), 0);
    assert_true(
        WORLD_UNTIL(world_gauge(&world, CW_GAUGE_transits) == 0, EXPIRY_MS + 100 * LOOKS / 100));
}

static int set_up(void **state) {
    (void)state;
    setenv("CABLEWAY_TRANSIT_SECONDS", "1", 1);
    world_start(&world);
    neighbour_start(&neighbour);
    step_pin();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    print_message("# the neighbour's longest wait: %.1f ms\n", (double)neighbour.worst_ns / 1e6);
    neighbour_stop(&neighbour);
    world_stop(&world);
    return 0;
}

#define TEST(name, prepare, run, drop_first, every)                                                \
    {                                                                                              \
#name, at_every_instruction, NULL, NULL, &(struct operation) {                             \
            prepare, run, drop_first, every                                                        \
        }                                                                                          \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_warm_get_and_close, warm, get_and_close, false, true),
        TEST(the_close_that_tells_the_broker, holding, close_the_last, true, true),
        TEST(a_transit_begun_and_ended, holding, export_and_discard, false, true),
        TEST(a_private_get_and_close, warm, private_get_and_close, false, false),
        TEST(a_ping, warm, ping, false, false),
        TEST(a_put, having_put, put, false, false),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
