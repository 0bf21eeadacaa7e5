/*
 * Promises of names that last only as long as somebody has the array open.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support.h"
#include "tests/unit/raw_client.h"

#define SLAB_BYTES (1u << 20)

static struct raw_broker broker;

static int start(void **state) {
    (void)state;
    return raw_broker_start(&broker, NULL, NULL) ? 0 : -1;
}

static int finish(void **state) {
    (void)state;
    return raw_broker_finish(&broker);
}

static uint64_t names(void) {
    return raw_gauge(&broker, CW_GAUGE_names);
}

static struct raw_client client_open(void) {
    struct raw_client client;
    assert_int_equal(raw_connect(&broker, &client), 0);
    return client;
}

static void the_name_goes_with_the_last_who_has_it_open(void **state) {
    (void)state;
    struct raw_client maker = client_open(), other = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&maker, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&maker, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&maker, slab.id, 0, gen, 4096, "weak", CW_PUT_WEAK), 0);
    raw_lease(&other, 0, slab.id, 0);
    raw_unlease(&maker, 0);
    raw_drop(&maker, slab.id, 0, gen);
    assert_int_equal(raw_ping(&maker), 0);
    assert_int_equal(names(), 1);
    assert_false(raw_is_free(&slab, 0));
    raw_unlease(&other, 0);
    raw_drop(&other, slab.id, 0, gen);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 0)));
    assert_true(RAW_UNTIL(names() == 0));
    assert_int_equal(raw_remove(&maker, "weak"), -ENOENT);
    raw_slab_close(&slab);
    raw_bye(&maker);
    raw_bye(&other);
}

static void who_is_killed_takes_it_along(void **state) {
    (void)state;
    struct raw_client maker = client_open();
    struct raw_slab slab;
    int ends[2];
    char ready;
    assert_int_equal(raw_slab_add(&maker, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&maker, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&maker, slab.id, 0, gen, 4096, "weak", CW_PUT_WEAK), 0);
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct raw_client victim;
        if (raw_connect(&broker, &victim) != 0)
            _exit(1);
        raw_lease(&victim, 0, slab.id, 0);
        if (write(ends[1], "r", 1) != 1)
            _exit(2);
        pause();
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &ready, 1), 1);
    raw_unlease(&maker, 0);
    raw_drop(&maker, slab.id, 0, gen);
    assert_int_equal(raw_ping(&maker), 0);
    assert_int_equal(names(), 1);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(RAW_UNTIL(names() == 0 && raw_is_free(&slab, 0)));
    close(ends[0]);
    raw_slab_close(&slab);
    raw_bye(&maker);
}

static void what_is_refused_leaves_nothing_noted(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    uint64_t second = raw_carve(&client, &slab, 1, 4096, 4096);
    assert_int_equal(raw_put(&client, slab.id, 1, second, 4096, "taken", 0), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "taken", CW_PUT_WEAK), -EEXIST);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4097, "x", CW_PUT_WEAK), -EINVAL);
    assert_int_equal(raw_put(&client, slab.id, 0, gen + 1, 1, "x", CW_PUT_WEAK), -ESTALE);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "x", CW_PUT_WEAK), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "y", CW_PUT_WEAK), -EINVAL);
    assert_non_null(strstr(client.sentence, "has a name already"));
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "x", CW_PUT_WEAK), -EEXIST);
    assert_int_equal(names(), 2);
    raw_slab_close(&slab);
    raw_bye(&client);
}

static void a_name_that_is_kept_cannot_go_with_its_holders(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_true(raw_put(&client, slab.id, 0, gen, 1, "x", CW_PUT_WEAK | CW_PUT_KEEP) < 0);
    assert_true(raw_dropped(&client));
    assert_int_equal(names(), 0);
    raw_slab_close(&slab);
    raw_close(&client);
    raw_broker_remove(&broker);
}

static void removed_and_replaced_the_array_stays_with_its_holders(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    uint64_t second = raw_carve(&client, &slab, 1, 4096, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "a", CW_PUT_WEAK), 0);
    assert_int_equal(raw_remove(&client, "a"), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "b", CW_PUT_WEAK), 0);
    assert_int_equal(raw_put(&client, slab.id, 1, second, 4096, "b", CW_PUT_WEAK | CW_PUT_REPLACE),
                     0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "b", CW_PUT_REPLACE), 0);
    assert_int_equal(raw_ping(&client), 0);
    assert_false(raw_is_free(&slab, 0));
    assert_false(raw_is_free(&slab, 1));
    assert_int_equal(names(), 1);
    raw_unlease(&client, 1);
    raw_drop(&client, slab.id, 1, second);
    assert_true(RAW_UNTIL(raw_is_free(&slab, 1)));
    raw_unlease(&client, 0);
    raw_drop(&client, slab.id, 0, gen);
    assert_int_equal(raw_ping(&client), 0);
    assert_false(raw_is_free(&slab, 0)); /* "b" is a usual name now */
    raw_slab_close(&slab);
    raw_bye(&client);
}

/* A usual name beside it, and a handle under way, hold the array, and so the other name. */
static void other_references_count_too(void **state) {
    (void)state;
    struct raw_client client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&client, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&client, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "weak", CW_PUT_WEAK), 0);
    assert_int_equal(raw_put(&client, slab.id, 0, gen, 4096, "usual", 0), 0);
    uint64_t token = raw_transit_begin(&client, slab.id, 0, gen);
    raw_unlease(&client, 0);
    raw_drop(&client, slab.id, 0, gen);
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(names(), 2);
    assert_int_equal(raw_remove(&client, "usual"), 0);
    assert_int_equal(raw_ping(&client), 0);
    assert_int_equal(names(), 1);
    raw_transit_end(&client, token);
    assert_true(RAW_UNTIL(names() == 0 && raw_is_free(&slab, 0)));
    raw_slab_close(&slab);
    raw_bye(&client);
}

/* A word that no edge can free: the name goes with the slab, when its maker has ended. */
static void a_damaged_blocks_name_goes_with_its_slab(void **state) {
    (void)state;
    struct raw_client maker = client_open(), client = client_open();
    struct raw_slab slab;
    assert_int_equal(raw_slab_add(&maker, SLAB_BYTES, 16, &slab), 0);
    uint64_t gen = raw_carve(&maker, &slab, 0, 0, 4096);
    assert_int_equal(raw_put(&maker, slab.id, 0, gen, 4096, "weak", CW_PUT_WEAK), 0);
    assert_int_equal(raw_ping(&maker), 0);
    CW_STORE(B10, &slab.table->blocks[0].word, UINT64_MAX, seq_cst);
    raw_slab_close(&slab);
    raw_bye(&maker);
    assert_true(RAW_UNTIL(raw_gauge(&broker, CW_GAUGE_slabs) == 0));
    assert_true(RAW_UNTIL(names() == 0));
    assert_int_equal(raw_remove(&client, "weak"), -ENOENT);
    raw_bye(&client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_name_goes_with_the_last_who_has_it_open, start, finish),
        cmocka_unit_test_setup_teardown(who_is_killed_takes_it_along, start, finish),
        cmocka_unit_test_setup_teardown(what_is_refused_leaves_nothing_noted, start, finish),
        cmocka_unit_test_setup(a_name_that_is_kept_cannot_go_with_its_holders, start),
        cmocka_unit_test_setup_teardown(removed_and_replaced_the_array_stays_with_its_holders,
                                        start, finish),
        cmocka_unit_test_setup_teardown(other_references_count_too, start, finish),
        cmocka_unit_test_setup_teardown(a_damaged_blocks_name_goes_with_its_slab, start, finish),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
